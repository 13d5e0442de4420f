//! The clients of what is measured, and the frames that they send.

pub(crate) mod checksum;
pub(crate) mod newcomers;
pub(crate) mod port;
pub(crate) mod prober;
pub(crate) mod web;
