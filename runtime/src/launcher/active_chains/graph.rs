//! The graph of a chain in force: where its entrances and its outputs lead, with ports by index and conditions compiled once for all of
//! its instances, and how the stages of an instance are wired by it.

use std::sync::Arc;

use pinion_control::model::{self, Output, PortName, Target};
use pinion_gateway::rules::BranchConditions;
use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::ways::direction::{PortSet, Sides};
use pinion_mma::wiring::branch::{Branch, Conditions, Entrance};
use pinion_mma::wiring::{Backpressure, Edge, Wiring};

use super::NodePorts;
use crate::instruments::activation::EntryStage;

/// Where an edge leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hop {
    /// To another stage of the same instance.
    Stage(usize),
    /// Along this edge, out of the node or to nowhere.
    Exit(Edge),
}

impl Hop {
    fn edge(self, ids: &[FwpId]) -> Edge {
        match self {
            Self::Stage(stage) => Edge::Fwp(ids[stage]),
            Self::Exit(edge) => edge,
        }
    }
}

/// A branch whose conditions are compiled.
#[derive(Debug, Clone)]
struct BranchHops {
    conditions: Arc<dyn Conditions>,
    cases: Vec<Hop>,
    default: Hop,
}

impl BranchHops {
    fn hops(&self) -> impl Iterator<Item = &Hop> {
        self.cases.iter().chain([&self.default])
    }

    fn can_drop(&self) -> bool {
        self.hops().any(|hop| *hop == Hop::Exit(Edge::Drop))
    }

    /// Makes the branch of an instance with these FWPs.
    fn branch(&self, ids: &[FwpId]) -> Branch {
        let cases = self.cases.iter().map(|hop| hop.edge(ids)).collect();
        Branch::new(Arc::clone(&self.conditions), cases, self.default.edge(ids))
    }
}

/// Where an output leads.
#[derive(Debug, Clone)]
enum OutputHops {
    To(Hop),
    Branch(BranchHops),
}

/// The way back through a chain.
struct WayBack {
    /// By stage: where its outputs lead on the way back.
    outputs: Vec<Vec<OutputHops>>,
    /// Where frames enter that take it, if that is not the last stage.
    entry: Option<BranchHops>,
    /// The ports on which packets that go forth arrive, and those on which packets that go back arrive.
    sides: Sides,
}

/// See the module.
pub(in crate::launcher) struct Graph {
    /// By stage: where its outputs lead.
    outputs: Vec<Vec<OutputHops>>,
    /// Where frames enter, if that is not the first stage.
    entry: Option<BranchHops>,
    way_back: Option<WayBack>,
}

impl Graph {
    /// Compiles the graph of a chain, on a node with these ports.
    ///
    /// # Errors
    /// Returns which port it names that the node does not have, or which entry leads out of the chain.
    pub(super) fn new(spec: &model::Chain, ports: &NodePorts) -> Result<Self, String> {
        let egress = match &spec.egress {
            Some(port) => Edge::Egress(ports.index(port)?),
            None => Edge::EgressWhereItCame,
        };
        let compiler = Compiler { ports, egress };
        let outputs = |stage: &model::Stage| stage.outputs.iter().map(|output| compiler.output(output)).collect();
        let outputs = spec.stages.iter().map(outputs).collect::<Result<Vec<_>, String>>()?;
        let entry = spec.entry.as_ref().map(|entry| compiler.entry(entry)).transpose()?;
        let way_back = spec.reverse.as_ref().map(|reverse| way_back(spec, reverse, &outputs, ports)).transpose()?;
        Ok(Self { outputs, entry, way_back })
    }

    /// Returns the ports whose frames take the way back, if there is one.
    pub(in crate::launcher) fn back(&self) -> Option<PortSet> {
        self.way_back.as_ref().map(|way_back| way_back.sides.back)
    }

    /// Returns by which stages frames enter, in both directions together.
    pub(in crate::launcher) fn entered_by(&self) -> EntryStage {
        let back = self.way_back.as_ref().and_then(|way_back| way_back.entry.as_ref());
        let entries = || self.entry.iter().chain(back);
        match entries().count() {
            0 => EntryStage::EitherEnd,
            _ if entries().any(BranchHops::can_drop) => EntryStage::AnyOrNone,
            _ => EntryStage::Any,
        }
    }

    /// Returns the wiring of a stage in an instance with these FWPs, one for each stage.
    pub(in crate::launcher) fn wiring(&self, stage: usize, ids: &[FwpId], backpressure: Backpressure) -> Wiring {
        let mut branches = Vec::new();
        let mut edges = |outputs: &[OutputHops]| -> Vec<Edge> {
            let edge = |output: &OutputHops| match output {
                OutputHops::To(hop) => hop.edge(ids),
                OutputHops::Branch(hops) => {
                    branches.push(hops.branch(ids));
                    Edge::Branch(branches.len() as u8 - 1)
                }
            };
            outputs.iter().map(edge).collect()
        };
        let forth = edges(&self.outputs[stage]);
        let wiring = match &self.way_back {
            Some(way_back) => Wiring::both_ways(forth, edges(&way_back.outputs[stage]), way_back.sides),
            None => Wiring::new(forth, backpressure),
        };
        // The gateway's frames are meant for the first stage, or for the last one if they take the way back.
        let entry = |is_there: bool, hops: Option<&BranchHops>| hops.filter(|_| is_there).map(|hops| hops.branch(ids));
        let back = self.way_back.as_ref().and_then(|way_back| way_back.entry.as_ref());
        let entrance =
            Entrance { forth: entry(stage == 0, self.entry.as_ref()), back: entry(stage + 1 == ids.len(), back) };
        wiring.with_branches(branches).with_entrance(entrance)
    }
}

/// Returns the way back through a chain. There, a stage's first output and each that leads to a stage leads to the stage before it, and
/// other outputs lead where they do on the way forth. If only replies take it, they leave the first stage by the port by which their packet
/// came.
fn way_back(
    spec: &model::Chain,
    reverse: &model::Reverse,
    forth: &[Vec<OutputHops>],
    ports: &NodePorts,
) -> Result<WayBack, String> {
    let egress = match &reverse.egress {
        Some(port) => Edge::Egress(ports.index(port)?),
        None => Edge::EgressWhereItCame,
    };
    let stage = |(at, stage): (usize, &model::Stage)| {
        let before = spec.stages_before(at).next().map_or(Hop::Exit(egress), Hop::Stage);
        let leads_to_stage = |output: &Output| output.targets().any(|target| target.stage().is_some());
        let output = |(number, output): (usize, &Output)| {
            let is_back = number == 0 || leads_to_stage(output);
            if is_back { OutputHops::To(before) } else { forth[at][number].clone() }
        };
        stage.outputs.iter().enumerate().map(output).collect()
    };
    let back = reverse.from.iter().map(|port| ports.index(port)).collect::<Result<Vec<_>, _>>()?;
    let forth = ports.indices().filter(|port| !back.contains(port)).collect::<Vec<_>>();
    let set = |ports: Vec<PortIndex>| {
        PortSet::of(ports).ok_or_else(|| format!("a reverse needs a node of at most {} ports", PortSet::PORTS_MAX))
    };
    Ok(WayBack {
        outputs: spec.stages.iter().enumerate().map(stage).collect(),
        entry: reverse.entry.as_ref().map(|entry| Compiler { ports, egress }.entry(entry)).transpose()?,
        sides: Sides { forth: set(forth)?, back: set(back)? },
    })
}

/// What targets mean on a node.
struct Compiler<'a> {
    ports: &'a NodePorts,
    /// Where the target `egress` leads.
    egress: Edge,
}

impl Compiler<'_> {
    fn output(&self, output: &Output) -> Result<OutputHops, String> {
        Ok(match output {
            Output::To(target) => OutputHops::To(self.hop(target)?),
            Output::Branch(branch) => OutputHops::Branch(self.branch(branch)?),
        })
    }

    fn branch(&self, branch: &model::Branch) -> Result<BranchHops, String> {
        let matches =
            branch.cases.iter().map(|case| self.ports.compiled(&case.matcher)).collect::<Result<Vec<_>, _>>()?;
        let cases = branch.cases.iter().map(|case| self.hop(&case.to)).collect::<Result<_, _>>()?;
        let conditions = Arc::new(BranchConditions::new(&matches));
        Ok(BranchHops { conditions, cases, default: self.hop(&branch.default)? })
    }

    /// Compiles a branch at an entrance. The control plane refuses one that leads out of the chain.
    fn entry(&self, branch: &model::Branch) -> Result<BranchHops, String> {
        let hops = self.branch(branch)?;
        let is_exit = |hop: &Hop| matches!(hop, Hop::Exit(edge) if *edge != Edge::Drop);
        if hops.hops().any(is_exit) {
            return Err(
                "entry leads out of the chain: packets pass at least one stage; name a stage or drop".to_owned()
            );
        }
        Ok(hops)
    }

    fn hop(&self, target: &Target) -> Result<Hop, String> {
        let exit = |port: &PortName| self.ports.index(port).map(|port| Hop::Exit(Edge::Egress(port)));
        match target {
            Target::Stage(stage) => Ok(Hop::Stage(*stage)),
            Target::Egress => Ok(Hop::Exit(self.egress)),
            Target::Port(port) => exit(port),
            Target::Drop => Ok(Hop::Exit(Edge::Drop)),
        }
    }
}

#[cfg(test)]
mod tests;
