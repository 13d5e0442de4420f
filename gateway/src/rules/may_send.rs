//! What a chain's frames may be when they leave.

use std::sync::Arc;

use ipnet::IpNet;

use super::OutboundGrant;

/// What the frames of a chain may be when they leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaySend {
    /// The networks whose addresses may be the source of its packets, in addition to those that came in by the chain.
    pub sources: Arc<[IpNet]>,
    /// Whether they may come from any address and any station.
    pub transparent: bool,
    /// Whether the node writes the Ethernet addresses of all of them. Otherwise it does for those without a receiver.
    pub routed: bool,
    /// The flows that its functions may open.
    pub outbound: Arc<[OutboundGrant]>,
}

impl MaySend {
    /// What is not held against anything.
    #[must_use]
    pub fn anything() -> Self {
        Self { transparent: true, ..Self::default() }
    }
}
