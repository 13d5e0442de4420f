//! The flows that functions of a chain may open themselves.

use serde::Serialize;

use super::{ChainProblem, PortRange, Prefix, Protocol};

/// The most entries of a chain's list.
pub const OUTBOUND_MAX: usize = 16;

/// Flows that functions of a chain may open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outbound {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The network that the destination is in.
    pub to: Prefix,
    /// The destination ports; all if absent.
    pub ports: Option<PortRange>,
}

/// Checks a chain's list.
pub(super) fn check(list: &[Outbound]) -> Result<(), ChainProblem> {
    if list.len() > OUTBOUND_MAX {
        return Err(ChainProblem::Outbound(list.len()));
    }
    match (1..).zip(list).find(|(_, it)| !it.protocol.has_ports()) {
        Some((entry, it)) => Err(ChainProblem::OutboundProtocol { entry, protocol: it.protocol }),
        None => Ok(()),
    }
}
