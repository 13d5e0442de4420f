//! The edges of a chain's graph in a manifest: what outputs and entrances lead to, by the names of stages, and branches.
//!
//! An output is the name of its target, or a table with a branch. An entrance is such a table, which leads to stages or drops.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::ManifestError;
use super::position::Position;
use super::reader::{Reader, wrong};
use super::rule::MatchTable;
use crate::model::{
    Branch, BranchPart, BranchProblem, BranchSite, Case, Match, Output, PortName, StageName, Target, quoted,
};

/// A branch as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BranchTable {
    branch: Spanned<Vec<Spanned<CaseTable>>>,
    default: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseTable {
    #[serde(rename = "match")]
    matcher: MatchTable,
    to: Spanned<String>,
}

/// An output as it is written.
pub(super) enum OutputValue {
    Target(String),
    Branch(BranchTable),
}

impl<'de> Deserialize<'de> for OutputValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrTable;

        impl<'de> Visitor<'de> for NameOrTable {
            type Value = OutputValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a target, or a table with branch and default")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<OutputValue, E> {
                Ok(OutputValue::Target(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<OutputValue, A::Error> {
                BranchTable::deserialize(MapAccessDeserializer::new(table)).map(OutputValue::Branch)
            }
        }

        deserializer.deserialize_any(NameOrTable)
    }
}

/// The positions of branches, and of their parts.
#[derive(Default)]
pub(super) struct BranchPositions(BTreeMap<BranchSite, PartPositions>);

struct PartPositions {
    branch: Position,
    cases: Vec<Position>,
    default: Position,
}

impl BranchPositions {
    pub(super) fn add(&mut self, reader: &Reader<'_>, site: BranchSite, table: &BranchTable) {
        let cases = table.branch.get_ref().iter().map(|case| reader.place(case)).collect();
        let (branch, default) = (reader.place(&table.branch), reader.place(&table.default));
        self.0.insert(site, PartPositions { branch, cases, default });
    }

    /// Adds those of a stage's outputs, by the stage's number from 1.
    pub(super) fn add_outputs(&mut self, reader: &Reader<'_>, stage: usize, outputs: &[Spanned<OutputValue>]) {
        for (output, value) in outputs.iter().enumerate() {
            if let OutputValue::Branch(table) = value.get_ref() {
                self.add(reader, BranchSite::Output { stage, output }, table);
            }
        }
    }

    /// Returns the position of the case that caused the problem, or of the branch.
    pub(super) fn of(&self, site: BranchSite, problem: &BranchProblem) -> Option<Position> {
        match *problem {
            BranchProblem::Match { case, .. } | BranchProblem::Shadowed { case, .. } => {
                self.of_part(site, BranchPart::Case(case))
            }
            BranchProblem::Cases(_) => self.of_branch(site),
        }
    }

    /// Returns the position of a branch's list of cases.
    pub(super) fn of_branch(&self, site: BranchSite) -> Option<Position> {
        Some(self.0.get(&site)?.branch.clone())
    }

    /// Returns the position of one of a branch's cases, or of its default.
    pub(super) fn of_part(&self, site: BranchSite, part: BranchPart) -> Option<Position> {
        let PartPositions { cases, default, .. } = self.0.get(&site)?;
        match part {
            BranchPart::Case(number) => cases.get(number - 1).cloned(),
            BranchPart::Default => Some(default.clone()),
        }
    }
}

/// A key whose values name targets.
#[derive(Clone, Copy)]
pub(super) struct TargetKey {
    name: &'static str,
    /// What to do about a name that means nothing.
    remedy: &'static str,
}

impl TargetKey {
    pub(super) const ENTRY: Self = Self { name: "entry", remedy: "say the name of a stage, or drop" };
    pub(super) const REVERSE_ENTRY: Self = Self { name: "reverse.entry", ..Self::ENTRY };
    const OUTPUTS: Self = Self { name: "outputs", remedy: "say the name of a later stage, egress, drop, or port:NAME" };
}

/// Reads names of targets, in a chain with stages of these names.
pub(super) struct Targets<'a> {
    pub(super) reader: &'a Reader<'a>,
    pub(super) names: &'a [Option<StageName>],
}

impl Targets<'_> {
    pub(super) fn outputs(&self, outputs: &Spanned<Vec<Spanned<OutputValue>>>) -> Result<Vec<Output>, ManifestError> {
        if outputs.get_ref().is_empty() {
            let problem =
                "outputs is empty: leave the key out for one output to what comes next, or name where each leads";
            return Err(wrong(self.reader.place(outputs), problem));
        }
        let output = |value: &Spanned<OutputValue>| match value.get_ref() {
            OutputValue::Target(name) => Ok(self.target(TargetKey::OUTPUTS, name, self.reader.place(value))?.into()),
            OutputValue::Branch(table) => self.branch(TargetKey::OUTPUTS, table).map(Output::Branch),
        };
        outputs.get_ref().iter().map(output).collect()
    }

    /// Reads the branch that this key has.
    pub(super) fn branch(&self, key: TargetKey, table: &BranchTable) -> Result<Branch, ManifestError> {
        let target = |name: &Spanned<String>| self.target(key, name.get_ref(), self.reader.place(name));
        let case = |case: &Spanned<CaseTable>| {
            let CaseTable { matcher, to } = case.get_ref();
            Ok(Case { matcher: Match::from(matcher.clone()), to: target(to)? })
        };
        let cases = table.branch.get_ref().iter().map(case).collect::<Result<_, ManifestError>>()?;
        Ok(Branch { cases, default: target(&table.default)? })
    }

    /// Parses `egress`, `drop`, `port:NAME`, or a stage's name. [`crate::model::Chain::check`] checks that it may lead there.
    fn target(&self, key: TargetKey, name: &str, place: Position) -> Result<Target, ManifestError> {
        let TargetKey { name: key, remedy } = key;
        if let Some(port) = name.strip_prefix("port:") {
            return PortName::new(port).map(Target::Port).map_err(|bad| wrong(place, format!("{key}: {bad}")));
        }
        let is_it = |stage: &Option<StageName>| stage.as_ref().is_some_and(|stage| stage.as_str() == name);
        match (name, self.names.iter().position(is_it)) {
            ("egress", _) => Ok(Target::Egress),
            ("drop", _) => Ok(Target::Drop),
            (_, Some(stage)) => Ok(Target::Stage(stage)),
            (_, None) => Err(wrong(place, format!("{key}: {} is no stage's name: {remedy}", quoted(name)))),
        }
    }
}
