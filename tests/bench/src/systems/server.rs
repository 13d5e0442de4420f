//! A server of many clients in a lab of its own: a node, or its peer.

use anyhow::{Context, bail};
use pinion_tests::product::node::Node;

use crate::clients::web::addresses::{Addresses, lead_to_clients};
use crate::systems::lab::Lab;
use crate::systems::nginx::Nginx;
use crate::systems::processes::Children;

/// A server. When dropped, it and its lab end.
pub(crate) struct Server {
    running: Running,
    pub(crate) lab: Lab,
    /// Those of its clients to come.
    pub(crate) addresses: Addresses,
}

/// What serves.
pub(crate) enum Running {
    /// A node.
    Node { _node: Node },
    /// nginx.
    Nginx(Nginx),
    /// Another process.
    Processes(Children),
}

impl Server {
    pub(crate) fn new(running: Running, lab: Lab) -> Self {
        let addresses = Addresses::of(&lab);
        match running {
            // A node replies to where a frame came from.
            Running::Node { .. } => {}
            Running::Nginx(_) | Running::Processes(_) => lead_to_clients(&lab),
        }
        Self { running, lab, addresses }
    }

    /// Fails if it has ended by itself. A node that has ended is started again, and its clients notice.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match &mut self.running {
            Running::Nginx(nginx) => nginx.check(),
            Running::Processes(Children(children)) => {
                for child in children {
                    if let Some(status) = child.try_wait().context("the server")? {
                        bail!("the server has ended by itself: {status}");
                    }
                }
                Ok(())
            }
            Running::Node { .. } => Ok(()),
        }
    }
}
