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
//! The way back must be one way only, so exactly one stage is before each, or the entrance: the chain is a line, or a tree.
//! An output that leads to a stage leads back to the one before, and so does a stage's first output. No branch is evaluated
//! for that. Outputs that lead out of the node otherwise do so in both directions.
//!
//! ```text
//!             .--> cache ----> outside       backwards: from the cache, and from the firewall, to the meter
//!   --> meter |
//!             '--> firewall -> outside       where packets from outside enter, reverse.entry says
//! ```

use serde::Serialize;

use super::branch::Branch;
use super::outputs::{Output, Target};
use super::{Chain, ChainProblem, PortName};

/// Which packets pass a chain in reverse, and where they enter and leave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reverse {
    /// The ports by which they arrive, each once. If there are none, only replies of later stages pass the stages backwards.
    pub from: Vec<PortName>,
    /// By which stages they enter; without it by the only one that leads to no other.
    pub entry: Option<Branch>,
    /// The port by which they leave after the first stage. Replies alone leave by the port by which their packet came, so
    /// there is one exactly if `from` names a port.
    pub egress: Option<PortName>,
}

impl Chain {
    /// Returns the stages before one, by their indices: those that lead to it, each once.
    pub fn stages_before(&self, stage: usize) -> impl Iterator<Item = usize> {
        let leads_there = move |output: &Output| output.targets().any(|target| target.stage() == Some(stage));
        (0..stage.min(self.stages.len())).filter(move |at| self.stages[*at].outputs.iter().any(leads_there))
    }

    /// Returns the stages that lead to no other one, by their indices.
    pub fn last_stages(&self) -> impl Iterator<Item = usize> {
        let leads_on = |output: &Output| output.targets().any(|target| target.stage().is_some());
        (0..self.stages.len()).filter(move |at| !self.stages[*at].outputs.iter().any(leads_on))
    }
}

/// Checks that the chain can have its reverse direction, if it declares one.
pub(super) fn check(chain: &Chain) -> Result<(), ChainProblem> {
    let Some(reverse) = &chain.reverse else { return Ok(()) };
    check_ends(reverse)?;
    if chain.hold_frames > 0 {
        return Err(ChainProblem::ReverseHolds(chain.hold_frames));
    }
    for at in 0..chain.stages.len() {
        let entry = chain.is_entered_by(at).then_some(None);
        let mut before = entry.into_iter().chain(chain.stages_before(at).map(|before| Some(before + 1)));
        if let (Some(first), Some(Some(second))) = (before.next(), before.next()) {
            let (stage, name) = (at + 1, chain.stages[at].label().to_owned());
            return Err(ChainProblem::ReverseOfTwoWays { stage, name, first, second });
        }
    }
    let mut last = chain.last_stages();
    if let (Some(first), Some(second)) = (last.next(), last.next())
        && reverse.entry.is_none()
        && !reverse.from.is_empty()
    {
        return Err(ChainProblem::ReverseWithoutEntry { first: named(chain, first), second: named(chain, second) });
    }
    let mut targets = chain.stages.iter().flat_map(|stage| &stage.outputs).flat_map(Output::targets);
    if chain.egress.is_none() && !reverse.from.is_empty() && targets.any(|target| *target == Target::Egress) {
        return Err(ChainProblem::ReverseWithoutEgress);
    }
    Ok(())
}

/// Checks the ports by which packets come and leave.
fn check_ends(Reverse { from, entry, egress }: &Reverse) -> Result<(), ChainProblem> {
    match egress {
        Some(egress) if from.is_empty() => return Err(ChainProblem::ReverseEgressOfReplies(egress.clone())),
        None if !from.is_empty() => return Err(ChainProblem::ReverseFromWithoutEgress),
        _ => {}
    }
    if entry.is_some() && from.is_empty() {
        return Err(ChainProblem::ReverseEntryOfReplies);
    }
    match from.iter().enumerate().find(|(at, port)| from[..*at].contains(port)) {
        Some((_, port)) => Err(ChainProblem::ReverseFromTwice(port.clone())),
        None => Ok(()),
    }
}

fn named(chain: &Chain, stage: usize) -> String {
    format!("stage {} ({})", stage + 1, chain.stages[stage].label())
}
