//! What is measured: nodes, and the peers beside them.

pub(crate) mod hosted;
pub(crate) mod lab;
pub(crate) mod nginx;
pub(crate) mod node_api;
pub(crate) mod processes;
pub(crate) mod server;
pub(crate) mod testpmd;
