//! Where stages send packets to. A chain is a graph whose edges all lead forward, so no packet can loop.

use serde::Serialize;

use super::{ChainProblem, PortName, Stage};

/// The maximum number of outputs of a stage; the minimum is 1.
pub const OUTPUTS_MAX: usize = 16;

/// Where one of a stage's outputs leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// To a later stage, by its index in the chain, from 0.
    Stage(usize),
    /// To where packets leave the chain: [`super::Chain::egress`].
    Egress,
    /// Out of the node by this port.
    Port(PortName),
}

impl Output {
    /// Returns the default outputs of a stage: one, to the next stage, or from the last to the egress.
    pub fn default_of(stage: usize, stages: usize) -> Vec<Self> {
        vec![if stage + 1 < stages { Self::Stage(stage + 1) } else { Self::Egress }]
    }
}

/// Checks that stages have distinct names, that every output leads forward, and that an output leads to every stage but
/// the first.
pub(super) fn check(stages: &[Stage]) -> Result<(), ChainProblem> {
    check_names(stages)?;
    let mut reached = vec![false; stages.len()];
    for (at, stage) in stages.iter().enumerate() {
        let count = stage.outputs.len();
        if !(1..=OUTPUTS_MAX).contains(&count) {
            return Err(ChainProblem::Outputs { stage: at + 1, count });
        }
        for (output, target) in stage.outputs.iter().enumerate() {
            let &Output::Stage(target) = target else { continue };
            match reached.get_mut(target) {
                Some(reached) if target > at => *reached = true,
                _ => {
                    let (stage, target, count) = (at + 1, target + 1, stages.len());
                    return Err(ChainProblem::OutputNotForward { stage, output, target, count });
                }
            }
        }
    }
    match reached.iter().skip(1).position(|reached| !reached) {
        Some(at) => Err(ChainProblem::Unreached { stage: at + 2, name: stages[at + 1].label().to_owned() }),
        None => Ok(()),
    }
}

fn check_names(stages: &[Stage]) -> Result<(), ChainProblem> {
    for (at, stage) in stages.iter().enumerate() {
        let Some(name) = &stage.name else { continue };
        if name.as_str() == "egress" {
            return Err(ChainProblem::StageNamedEgress { stage: at + 1 });
        }
        if let Some(first) = stages[..at].iter().position(|earlier| earlier.name.as_ref() == Some(name)) {
            return Err(ChainProblem::SameStageName { first: first + 1, second: at + 1, name: name.clone() });
        }
    }
    Ok(())
}
