//! Branches: packets go where the first match leads that applies to them, and the platform evaluates it, not a function.
//!
//! ```text
//!   entry, or an output --packet--> match 1 --> target
//!                                   match 2 --> target
//!                                   default --> target     none of them applies
//! ```
//!
//! The matches are those of rules, with the same meaning. A match that could never be taken is a mistake, and refused.

use std::fmt;

use serde::Serialize;

use super::outputs::Target;
use super::{ChainProblem, Match, RuleProblem};

/// The maximum number of matches of a branch; the minimum is 1.
pub const BRANCH_CASES_MAX: usize = 16;
/// The maximum number of matches of all branches of a chain together.
pub const CHAIN_CASES_MAX: usize = 256;
/// The maximum number of matches of all branches of a node together.
pub const CASES_TOTAL_MAX: usize = 65_536;

/// Where packets go by their headers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Branch {
    /// 1 to [`BRANCH_CASES_MAX`] cases. The first one counts that applies.
    #[serde(rename = "branch")]
    pub cases: Vec<Case>,
    /// Where packets go to which no case applies, and all that is not IP: calls, and the frames by which functions open flows.
    pub default: Target,
}

/// One case of a branch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Case {
    /// The packets that it applies to, as in a rule.
    #[serde(rename = "match")]
    pub matcher: Match,
    /// Where they go.
    pub to: Target,
}

impl Branch {
    /// Returns all of its targets, of the cases in order and then the default.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.parts().map(|(_, target)| target)
    }

    /// Returns all of its targets in that order, each with the part of the branch that leads there.
    pub fn parts(&self) -> impl Iterator<Item = (BranchPart, &Target)> {
        let cases = self.cases.iter().enumerate().map(|(at, case)| (BranchPart::Case(at + 1), &case.to));
        cases.chain([(BranchPart::Default, &self.default)])
    }

    /// Returns all of its targets for changes.
    pub fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        self.cases.iter_mut().map(|case| &mut case.to).chain([&mut self.default])
    }

    /// Checks, of a branch at an entrance, that it leads to stages of this chain or drops: a packet passes at least one stage.
    pub(super) fn check_entrance(&self, site: BranchSite, stages: usize) -> Result<(), ChainProblem> {
        self.parts().try_for_each(|(part, target)| match target {
            Target::Stage(stage) if *stage >= stages => {
                Err(ChainProblem::EntryToNoStage { site, part, target: stage + 1, count: stages })
            }
            Target::Stage(_) | Target::Drop => Ok(()),
            Target::Egress => Err(ChainProblem::EntryLeadsOut { site, part, to: "egress".to_owned() }),
            Target::Port(port) => Err(ChainProblem::EntryLeadsOut { site, part, to: format!("port:{port}") }),
        })
    }

    /// Checks that there is a number of cases that is allowed, that some packet can match each, and that each can be taken.
    pub(super) fn check(&self, site: BranchSite) -> Result<(), ChainProblem> {
        let problem = |problem| Err(ChainProblem::Branch { site, problem: Box::new(problem) });
        let count = self.cases.len();
        if !(1..=BRANCH_CASES_MAX).contains(&count) {
            return problem(BranchProblem::Cases(count));
        }
        for (at, Case { matcher, .. }) in self.cases.iter().enumerate() {
            if let Err(wrong) = matcher.check() {
                return problem(BranchProblem::Match { case: at + 1, problem: wrong });
            }
            if let Some(by) = self.cases[..at].iter().position(|earlier| earlier.matcher.covers(matcher)) {
                let (matcher, earlier) = (matcher.to_string(), self.cases[by].matcher.to_string());
                return problem(BranchProblem::Shadowed { case: at + 1, matcher, by: by + 1, earlier });
            }
        }
        Ok(())
    }
}

/// Where in a chain a branch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BranchSite {
    /// At the chain's entrance.
    Entry,
    /// At the entrance of packets that pass the chain in reverse.
    ReverseEntry,
    /// At an output of a stage.
    Output {
        /// Which stage, from 1.
        stage: usize,
        /// Which of its outputs, from 0.
        output: usize,
    },
}

/// Which part of a branch leads to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchPart {
    /// One of its cases, from 1.
    Case(usize),
    /// The default.
    Default,
}

impl fmt::Display for BranchSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry => f.write_str("entry"),
            Self::ReverseEntry => f.write_str("reverse.entry"),
            Self::Output { stage, output } => write!(f, "output {output} of stage {stage}"),
        }
    }
}

/// What is wrong with a branch in itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BranchProblem {
    /// No matches, or too many.
    #[error("it has {0} matches: a branch has 1 to {BRANCH_CASES_MAX}")]
    Cases(usize),
    /// A match that no packet can meet.
    #[error("match {case}: {problem}")]
    Match {
        /// Which of its matches, from 1.
        case: usize,
        /// What is wrong.
        problem: RuleProblem,
    },
    /// A match that can never be taken.
    #[error(
        "match {case} ({matcher}) is never taken, as match {by} ({earlier}) comes before it and applies to all of that: put it \
         before that one, or leave it out"
    )]
    Shadowed {
        /// Which of its matches, from 1.
        case: usize,
        /// What it matches.
        matcher: String,
        /// The earlier one, from 1.
        by: usize,
        /// What that matches.
        earlier: String,
    },
}
