//! A node's API for figures: one call at a time, without starting a program for it.

use std::path::Path;

use pinion_control::client::{Client, ClientError, Filter, NodeReport};
use pinion_control::node::FwpStatus;
use tokio::runtime::{Builder, Runtime};

/// A connection to a running node.
#[derive(Debug)]
pub(crate) struct NodeApi {
    runtime: Runtime,
    client: Client,
}

impl NodeApi {
    /// Connects to the node that serves this socket.
    pub(crate) fn connect(socket: &Path) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(Client::connect(socket))?;
        Ok(Self { runtime, client })
    }

    /// Returns the node's status.
    pub(crate) fn status(&mut self) -> Result<NodeReport, ClientError> {
        self.runtime.block_on(self.client.status())
    }

    /// Returns its FWPs.
    pub(crate) fn fwps(&mut self) -> Result<Vec<FwpStatus>, ClientError> {
        self.runtime.block_on(self.client.fwps(Filter::default()))
    }
}
