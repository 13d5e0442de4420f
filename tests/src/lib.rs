//! The testbed: real nodes, real clients, in network namespaces of their own.
//!
//! ```text
//!   namespace "switch"                            namespaces "client1", "client2", ...
//!   +---------------------------------------+     +---------------------------------------+
//!   | piniond's port --- bridge --- client1 |-----| eth0  10.77.0.11/24  fd77::11/64      |
//!   |                        \----- client2 |-----| eth0  10.77.0.12/24  fd77::12/64      |
//!   +---------------------------------------+     +---------------------------------------+
//! ```
//!
//! A [`bed::Bed`] is all of that, an [`inline::Inline`] is a node between two hosts, a [`border::Border`] one between two networks. Their
//! parts can also be used alone. A namespace, process or file that a value makes goes when the value is dropped, also on a panic. The next
//! run removes what a killed run left behind.
//!
//! For `integration/` and `hostile/`, and nothing else. All functions here panic with a sentence rather than return an error, and packets are sent only
//! into namespaces made here.
#![forbid(unsafe_code)]

pub mod autogroup;
pub mod bed;
pub mod border;
pub mod build;
pub mod cli;
pub mod disk;
pub mod echo;
pub mod frames;
pub mod holdings;
pub mod inline;
pub mod iperf;
mod leftovers;
pub mod load;
pub mod manifest;
pub mod namespace;
pub mod node;
pub mod ping;
pub mod process;
pub mod random;
pub mod strangers;
pub mod tenant;
pub mod tour;
pub mod transfer;
pub mod tuning;
pub mod until;
pub mod versions;
pub mod witness;
