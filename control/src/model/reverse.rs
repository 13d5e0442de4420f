//! The reverse direction of a chain: frames that arrive by some ports pass the same stages in the opposite order, as on
//! a symmetric service function path (RFC 7665, section 2.2).
//!
//! ```text
//!   inside --> firewall --> nat --> router --> egress           frames from any other port go forwards
//!   reverse.egress <-- firewall <-- nat <-- router <-- outside  frames from one of reverse.from go backwards
//! ```
//!
//! Replies of a stage go towards the port by which their packet came, through the stages before it. So a chain whose last
//! stage answers everything has no port behind it, and names none: nothing but such replies passes it backwards then.
//!
//! Such a chain is a line of stages, so that exactly one stage is before each. A stage's first output leads to the next
//! stage or to the one before, depending on the packet's direction. Its further outputs lead out of the node in both
//! directions.

use serde::Serialize;

use super::{Chain, ChainProblem, Output, PortName};

/// Which packets pass a chain in reverse, and where they leave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reverse {
    /// The ports by which they arrive, each once. If there are none, only replies of later stages pass the stages backwards.
    pub from: Vec<PortName>,
    /// The port by which they leave after the first stage. Replies alone leave by the port by which their packet came, so
    /// there is one exactly if `from` names a port.
    pub egress: Option<PortName>,
}

/// Checks that the chain can have its reverse direction, if it declares one.
pub(super) fn check(chain: &Chain) -> Result<(), ChainProblem> {
    let Some(Reverse { from, egress }) = &chain.reverse else { return Ok(()) };
    match egress {
        Some(egress) if from.is_empty() => return Err(ChainProblem::ReverseEgressOfReplies(egress.clone())),
        None if !from.is_empty() => return Err(ChainProblem::ReverseFromWithoutEgress),
        _ => {}
    }
    if let Some((_, port)) = from.iter().enumerate().find(|(at, port)| from[..*at].contains(port)) {
        return Err(ChainProblem::ReverseFromTwice(port.clone()));
    }
    if chain.hold_frames > 0 {
        return Err(ChainProblem::ReverseHolds(chain.hold_frames));
    }
    let count = chain.stages.len();
    for (at, stage) in chain.stages.iter().enumerate() {
        for (output, target) in stage.outputs.iter().enumerate() {
            let leads_to = match target {
                Output::Stage(target) => Some(*target),
                Output::Egress | Output::Port(_) => None,
            };
            let is_next = (output == 0 && at + 1 < count).then_some(at + 1);
            if leads_to != is_next {
                return Err(ChainProblem::ReverseOfNoLine { stage: at + 1, output, count });
            }
        }
    }
    let leaves_by_egress = chain.stages.iter().any(|stage| stage.outputs.contains(&Output::Egress));
    if leaves_by_egress && chain.egress.is_none() && !from.is_empty() {
        return Err(ChainProblem::ReverseWithoutEgress);
    }
    Ok(())
}
