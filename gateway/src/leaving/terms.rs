//! What a chain's frames may be when they leave.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;
use pinion_mma::ways::direction::PortSet;

use super::origins::Owner;
use crate::headers::Vlan;

/// What the frames of a chain may be when they leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaySend {
    /// The ports that they may leave by.
    pub ports: PortSet,
    /// The networks whose addresses may be the source of its packets, in addition to those that came in by the chain.
    pub sources: Arc<[IpNet]>,
    /// Whether they may come from any address and any station.
    pub transparent: bool,
    /// Whether the node writes the Ethernet addresses of all of them. Otherwise it does for those without a receiver.
    pub routed: bool,
    /// The flows that its functions may open.
    pub outbound: Arc<[OutboundGrant]>,
}

impl Default for MaySend {
    /// From no address but those that came in, by any port.
    fn default() -> Self {
        let (sources, outbound) = (Arc::default(), Arc::default());
        Self { ports: PortSet::ALL, sources, transparent: false, routed: false, outbound }
    }
}

impl MaySend {
    /// What is not held against anything.
    #[must_use]
    pub fn anything() -> Self {
        Self { transparent: true, ..Self::default() }
    }
}

/// What is known of a chain whose frame leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SenderTerms {
    pub(crate) owner: Owner,
    pub(crate) may_send: MaySend,
    /// The VLANs that its rules name.
    pub(crate) vlans: Box<[Vlan]>,
}

impl SenderTerms {
    /// Returns whether its functions may ask for flows, be they refused. One that may send anything passes frames of that type on.
    #[inline]
    pub(crate) fn may_ask_for_flows(&self) -> bool {
        !self.may_send.transparent || !self.may_send.outbound.is_empty()
    }
}

/// Flows that a chain may open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundGrant {
    /// The IP protocol's number.
    pub protocol: u8,
    /// The network that the destination lies in.
    pub to: IpNet,
    /// The destination ports.
    pub ports: RangeInclusive<u16>,
}

impl OutboundGrant {
    /// Returns whether it allows flows to this port of this address.
    pub(crate) fn admits(&self, protocol: u8, to: IpAddr, port: u16) -> bool {
        self.protocol == protocol && self.to.contains(&to) && self.ports.contains(&port)
    }
}
