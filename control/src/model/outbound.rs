//! The flows that functions of a chain may open themselves.

use serde::Serialize;

use super::{Chain, ChainProblem, PortRange, Prefix, Protocol};

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

/// Checks a chain's list, and that the answers to its functions' requests reach a stage.
pub(super) fn check(chain: &Chain) -> Result<(), ChainProblem> {
    let list = &chain.outbound;
    if list.len() > OUTBOUND_MAX {
        return Err(ChainProblem::Outbound(list.len()));
    }
    if let Some((entry, it)) = (1..).zip(list).find(|(_, it)| !it.protocol.has_ports()) {
        return Err(ChainProblem::OutboundProtocol { entry, protocol: it.protocol });
    }
    if !list.is_empty() && !chain.takes_what_is_not_ip() {
        return Err(ChainProblem::AnswersDropped);
    }
    Ok(())
}
