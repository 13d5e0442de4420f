//! What flows a chain may open.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

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
