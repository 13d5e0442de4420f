//! What is sent through a node: by programs of the kernel's, and frames that no kernel would send.

pub mod echo;
pub mod frames;
pub mod iperf;
pub mod load;
pub mod ping;
pub mod strangers;
pub mod tls;
pub mod transfer;
pub mod web;
