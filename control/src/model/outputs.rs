//! Where packets go in a chain: from its entrance, and from the outputs of its stages. A chain is a graph whose edges all
//! lead forward, so no packet can loop.

use serde::Serialize;

use super::branch::{Branch, BranchPart, BranchSite, CHAIN_CASES_MAX};
use super::{Chain, ChainProblem, PortName, Stage};

/// The maximum number of outputs of a stage; the minimum is 1.
pub const OUTPUTS_MAX: usize = 16;

/// Names that outputs and branches have for targets, so that no stage can have them.
const TARGET_NAMES: [&str; 2] = ["egress", "drop"];

/// Where an edge leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// To a later stage, by its index in the chain, from 0.
    Stage(usize),
    /// To where packets leave the chain: [`super::Chain::egress`].
    Egress,
    /// Out of the node by this port.
    Port(PortName),
    /// Nowhere: packets are dropped and counted.
    Drop,
}

impl Target {
    /// Returns the stage that it leads to.
    pub fn stage(&self) -> Option<usize> {
        match self {
            Self::Stage(stage) => Some(*stage),
            Self::Egress | Self::Port(_) | Self::Drop => None,
        }
    }

    /// Returns the port that it names.
    pub fn port(&self) -> Option<&PortName> {
        match self {
            Self::Port(port) => Some(port),
            Self::Stage(_) | Self::Egress | Self::Drop => None,
        }
    }
}

/// Where one of a stage's outputs leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Output {
    /// All of its packets to one target.
    To(Target),
    /// Each of its packets to a target by its headers.
    Branch(Branch),
}

impl From<Target> for Output {
    fn from(target: Target) -> Self {
        Self::To(target)
    }
}

impl Output {
    /// Returns the default outputs of a stage: one, to the next stage, or from the last to the egress.
    pub fn default_of(stage: usize, stages: usize) -> Vec<Self> {
        vec![if stage + 1 < stages { Target::Stage(stage + 1) } else { Target::Egress }.into()]
    }

    /// Returns its branch, if it has one.
    pub fn branch(&self) -> Option<&Branch> {
        match self {
            Self::To(_) => None,
            Self::Branch(branch) => Some(branch),
        }
    }

    /// Returns all targets that its packets may go to.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.parts().map(|(_, target)| target)
    }

    /// Returns all targets that its packets may go to, each with the part of its branch that leads there, if it has one.
    pub fn parts(&self) -> impl Iterator<Item = (Option<BranchPart>, &Target)> {
        let (target, branch) = match self {
            Self::To(target) => (Some(target), None),
            Self::Branch(branch) => (None, Some(branch)),
        };
        let parts = branch.into_iter().flat_map(Branch::parts).map(|(part, target)| (Some(part), target));
        target.into_iter().map(|target| (None, target)).chain(parts)
    }

    /// Returns all targets that its packets may go to, for changes.
    pub fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        let (target, branch) = match self {
            Self::To(target) => (Some(target), None),
            Self::Branch(branch) => (None, Some(branch)),
        };
        target.into_iter().chain(branch.into_iter().flat_map(Branch::targets_mut))
    }
}

impl Chain {
    /// Returns the branches of its entrances and outputs, with their places.
    pub fn branches(&self) -> impl Iterator<Item = (BranchSite, &Branch)> {
        let entry = self.entry.iter().map(|branch| (BranchSite::Entry, branch));
        let back = self.reverse.iter().filter_map(|reverse| reverse.entry.as_ref());
        let back = back.map(|branch| (BranchSite::ReverseEntry, branch));
        let outputs = self.stages.iter().enumerate().flat_map(|(at, stage)| {
            let branches = stage.outputs.iter().enumerate();
            branches.filter_map(move |(output, it)| Some((BranchSite::Output { stage: at + 1, output }, it.branch()?)))
        });
        entry.chain(back).chain(outputs)
    }

    /// Returns the number of matches of all its branches together.
    pub fn case_count(&self) -> usize {
        self.branches().map(|(_, branch)| branch.cases.len()).sum()
    }

    /// Returns whether what is not IP enters it by a stage, as calls and answers to requests for flows. Otherwise its entrance
    /// drops that.
    pub fn takes_what_is_not_ip(&self) -> bool {
        self.entry.as_ref().is_none_or(|entry| entry.default != Target::Drop)
    }

    /// Returns the ports that its outputs and its branches name, each as often as it is named.
    pub fn ports_of_edges(&self) -> impl Iterator<Item = &PortName> {
        let outputs = self.stages.iter().flat_map(|stage| &stage.outputs).filter_map(|output| match output {
            Output::To(target) => target.port(),
            Output::Branch(_) => None,
        });
        let branches = self.branches().flat_map(|(_, branch)| {
            let matched = branch.cases.iter().filter_map(|case| case.matcher.port.as_ref());
            branch.targets().filter_map(Target::port).chain(matched)
        });
        outputs.chain(branches)
    }

    /// Returns whether packets of the gateway's that go forwards may enter it by this stage, by its index.
    pub fn is_entered_by(&self, stage: usize) -> bool {
        match &self.entry {
            None => stage == 0,
            Some(entry) => entry.targets().any(|target| target.stage() == Some(stage)),
        }
    }
}

/// Checks that stages have distinct names, that every edge leads forward, that branches are valid, and that an edge leads
/// to every stage.
pub(super) fn check(chain: &Chain) -> Result<(), ChainProblem> {
    let stages = &chain.stages;
    check_names(stages)?;
    for (at, Stage { outputs, .. }) in stages.iter().enumerate() {
        if !(1..=OUTPUTS_MAX).contains(&outputs.len()) {
            return Err(ChainProblem::Outputs { stage: at + 1, count: outputs.len() });
        }
        check_forward(at, outputs, stages.len())?;
    }
    check_branches(chain)?;
    check_reached(chain)
}

/// Checks each branch, and that they have not too many matches together.
fn check_branches(chain: &Chain) -> Result<(), ChainProblem> {
    let mut cases = 0;
    let mut beyond = None;
    for (site, branch) in chain.branches() {
        if matches!(site, BranchSite::Entry | BranchSite::ReverseEntry) {
            branch.check_entrance(site, chain.stages.len())?;
        }
        branch.check(site)?;
        cases += branch.cases.len();
        if cases > CHAIN_CASES_MAX {
            beyond.get_or_insert(site);
        }
    }
    match beyond {
        Some(site) => Err(ChainProblem::Cases { site, count: cases }),
        None => Ok(()),
    }
}

fn check_forward(at: usize, outputs: &[Output], count: usize) -> Result<(), ChainProblem> {
    for (output, leads_to) in outputs.iter().enumerate() {
        let mut stages = leads_to.parts().filter_map(|(part, target)| Some((part, target.stage()?)));
        if let Some((part, target)) = stages.find(|(_, target)| *target <= at || *target >= count) {
            return Err(ChainProblem::OutputNotForward { stage: at + 1, output, part, target: target + 1, count });
        }
    }
    Ok(())
}

/// Checks that an edge leads to every stage. Edges lead forward, so that is enough.
fn check_reached(chain: &Chain) -> Result<(), ChainProblem> {
    let outputs = chain.stages.iter().flat_map(|stage| &stage.outputs);
    let reached: Vec<usize> = outputs.flat_map(Output::targets).filter_map(Target::stage).collect();
    let is_reached = |at: usize| chain.is_entered_by(at) || reached.contains(&at);
    match (0..chain.stages.len()).find(|at| !is_reached(*at)) {
        Some(at) => Err(ChainProblem::Unreached { stage: at + 1, name: chain.stages[at].label().to_owned() }),
        None => Ok(()),
    }
}

fn check_names(stages: &[Stage]) -> Result<(), ChainProblem> {
    for (at, stage) in stages.iter().enumerate() {
        let Some(name) = &stage.name else { continue };
        if TARGET_NAMES.contains(&name.as_str()) {
            return Err(ChainProblem::StageNamedAsTarget { stage: at + 1, name: name.clone() });
        }
        if let Some(first) = stages[..at].iter().position(|earlier| earlier.name.as_ref() == Some(name)) {
            return Err(ChainProblem::SameStageName { first: first + 1, second: at + 1, name: name.clone() });
        }
    }
    Ok(())
}
