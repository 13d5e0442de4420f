//! Finds the first of many rules that matches a flow, without walking through all of them.
//!
//! Each rule is a box: in each dimension of a flow (addresses, ports, protocol and so on) it covers a range of values.
//! A node of the tree cuts one dimension in two. Boxes on one side of the cut go to the child of that side. Boxes that
//! the cut crosses go to a third child:
//!
//! ```text
//!                 cut: destination below 10.0.128.0?
//!              /                 |                  \
//!        all below            across              all above        leaf: up to 8 rules in order
//! ```
//!
//! A lookup visits one side, and the boxes across. So each rule has one copy, and the tree is no larger than the rules,
//! whatever they are. Prefix tries and cutting trees, which copy rules to both sides, cannot guarantee this, nor can
//! tuple spaces with port ranges. Each subtree knows its first rule, and is skipped once an earlier one was found.
//!
//! No cut can separate rules that overlap in every dimension. They stay together in a leaf, which is searched in order.

use std::collections::HashSet;
use std::ops::{Range, RangeInclusive};

use ipnet::IpNet;

use super::Match;
use super::pattern::{Pattern, bits};
use crate::headers::{Field, FlowKey, ICMP_TYPE_THERE};

/// A node with at most this many rules becomes a leaf.
const LEAF_RULES: usize = 8;
/// Each child of a node has at most this share of its parent's rules, which bounds the depth.
const CHILD_SHARE: (usize, usize) = (31, 32);

const DIMENSIONS: usize = 10;
const SCALARS: [Field; DIMENSIONS - 2] = [
    Field::DESTINATION_PORT,
    Field::SOURCE_PORT,
    Field::PROTOCOL,
    Field::ICMP_TYPE,
    Field::IP_VERSION,
    Field::INGRESS_PORT,
    Field::VLAN,
    Field::INNER_VLAN,
];

/// No earlier rule.
const NONE: u32 = u32::MAX;

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Classifier {
    /// The root is the last node. Empty if there are no rules.
    nodes: Box<[Node]>,
    /// The patterns of the leaves, one leaf after another; within a leaf in order of rank.
    patterns: Box<[Pattern]>,
    /// For each pattern, the rank of its rule.
    ranks: Box<[u32]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    /// The rank of the first rule in the subtree.
    rank: u32,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The children, as indices of nodes.
    Cut { cut: Cut, below: u32, above: u32, across: u32 },
    /// A range of patterns.
    Leaf { first: u32, end: u32 },
}

/// Separates values below `value` from the rest, in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    dimension: u8,
    value: u128,
}

impl Classifier {
    /// Builds the tree for rules with their ranks, which rise.
    pub(super) fn new<'a>(rules: impl Iterator<Item = (u32, &'a Match)>) -> Self {
        let mut builder = Builder::default();
        builder.node(rules.filter_map(|(rank, matches)| Extent::of(rank, matches)).collect());
        let Builder { nodes, patterns, ranks } = builder;
        Self { nodes: nodes.into(), patterns: patterns.into(), ranks: ranks.into() }
    }

    /// Returns the depth of the tree and the number of its patterns.
    #[cfg(test)]
    pub(super) fn shape(&self) -> (usize, usize) {
        // Children come before their parents.
        let mut depths: Vec<usize> = Vec::new();
        for node in &self.nodes {
            let depth_of = |child: u32| depths.get(child as usize).copied().unwrap_or(0);
            depths.push(match node.step {
                Step::Leaf { .. } => 1,
                Step::Cut { below, above, across, .. } => {
                    1 + depth_of(below).max(depth_of(above)).max(depth_of(across))
                }
            });
        }
        (depths.last().copied().unwrap_or(0), self.patterns.len())
    }

    /// Returns the rank of the first rule that matches the flow.
    pub(super) fn first_match(&self, flow: &FlowKey) -> Option<usize> {
        let root = self.nodes.len().checked_sub(1)?;
        let best = self.search(root as u32, flow, NONE);
        (best != NONE).then_some(best as usize)
    }

    /// Returns the first rule in this subtree that matches the flow and precedes `best`, else `best`.
    fn search(&self, mut node: u32, flow: &FlowKey, mut best: u32) -> u32 {
        // Recurses into the sides, at most as deep as the tree is, and iterates over the boxes across.
        while let Some(Node { rank, step }) = self.nodes.get(node as usize)
            && *rank < best
        {
            match *step {
                Step::Leaf { first, end } => return self.search_leaf(first as usize..end as usize, flow, best),
                Step::Cut { cut, below, above, across } => {
                    best = self.search(if cut.is_above(flow) { below } else { above }, flow, best);
                    node = across;
                }
            }
        }
        best
    }

    fn search_leaf(&self, places: Range<usize>, flow: &FlowKey, best: u32) -> u32 {
        for (pattern, rank) in self.patterns[places.clone()].iter().zip(&self.ranks[places]) {
            if *rank >= best {
                break;
            }
            if pattern.fits(flow) {
                return *rank;
            }
        }
        best
    }
}

impl Cut {
    fn is_above(self, flow: &FlowKey) -> bool {
        let value = match self.dimension {
            0 => flow.destination_bits(),
            1 => flow.source_bits(),
            scalar => u128::from(SCALARS[usize::from(scalar) - 2].of(flow)),
        };
        value < self.value
    }
}

/// The range that a rule covers in each dimension, both ends included.
#[derive(Clone)]
struct Extent {
    rank: u32,
    pattern: Pattern,
    ranges: [[u128; 2]; DIMENSIONS],
}

impl Extent {
    /// Returns `None` if the rule matches nothing.
    fn of(rank: u32, matches: &Match) -> Option<Self> {
        let pattern = Pattern::new(matches)?;
        let address = |net: Option<IpNet>| net.map(|net| [bits(net.network()), bits(net.broadcast())]);
        let ports =
            |ports: &Option<RangeInclusive<u16>>| ports.as_ref().map(|p| [*p.start(), *p.end()].map(u128::from));
        let value = |value: u64| [u128::from(value); 2];
        let version = matches.source.or(matches.destination).map(|net| value(matches!(net, IpNet::V6(_)).into()));
        let icmp_type = matches.icmp_type.map(|icmp_type| value(ICMP_TYPE_THERE | u64::from(icmp_type)));
        let ranges = [
            address(matches.destination),
            address(matches.source),
            ports(&matches.destination_ports),
            ports(&matches.source_ports),
            matches.protocol.map(|protocol| value(protocol.into())),
            icmp_type,
            version,
            matches.port.map(|port| value(port.0.into())),
            Some(value(matches.vlan.id.into())),
            Some(value(matches.vlan.inner_id.into())),
        ];
        let everything = [0, u128::MAX];
        Some(Self { rank, pattern, ranges: ranges.map(|range| range.unwrap_or(everything)) })
    }
}

#[derive(Default)]
struct Builder {
    nodes: Vec<Node>,
    patterns: Vec<Pattern>,
    ranks: Vec<u32>,
}

impl Builder {
    /// Builds the subtree of these rules, which are in order of rank. Returns its root, or [`NONE`] if there are no
    /// rules.
    fn node(&mut self, boxes: Vec<Extent>) -> u32 {
        let Some(rank) = boxes.first().map(|first| first.rank) else { return NONE };
        let step = match best_cut(&boxes) {
            Some(cut) => {
                let [below, above, across] = divide(boxes, cut).map(|boxes| self.node(boxes));
                Step::Cut { cut, below, above, across }
            }
            None => self.leaf(boxes),
        };
        self.nodes.push(Node { rank, step });
        (self.nodes.len() - 1) as u32
    }

    fn leaf(&mut self, boxes: Vec<Extent>) -> Step {
        let first = self.patterns.len() as u32;
        let mut seen = HashSet::new();
        // Among rules with the same conditions, only the first is ever found.
        for extent in boxes.into_iter().filter(|extent| seen.insert(extent.pattern)) {
            self.patterns.push(extent.pattern);
            self.ranks.push(extent.rank);
        }
        Step::Leaf { first, end: self.patterns.len() as u32 }
    }
}

/// Splits boxes into those below, above and across the cut, each in order.
fn divide(boxes: Vec<Extent>, cut: Cut) -> [Vec<Extent>; 3] {
    let mut parts = [const { Vec::new() }; 3];
    for extent in boxes {
        let [first, last] = extent.ranges[usize::from(cut.dimension)];
        let part = if last < cut.value { 0 } else { 1 + usize::from(first < cut.value) };
        parts[part].push(extent);
    }
    parts
}

/// Returns the cut that leaves the fewest rules to search, if any cut is worthwhile.
fn best_cut(boxes: &[Extent]) -> Option<Cut> {
    if boxes.len() <= LEAF_RULES {
        return None;
    }
    let cuts = (0..DIMENSIONS).filter_map(|dimension| best_cut_in(dimension, boxes));
    cuts.max_by_key(|(worth, _)| *worth).map(|(_, cut)| cut)
}

/// Returns the best cut in one dimension, and its worth.
fn best_cut_in(dimension: usize, boxes: &[Extent]) -> Option<(usize, Cut)> {
    let (mut firsts, mut lasts): (Vec<u128>, Vec<u128>) =
        boxes.iter().map(|extent| (extent.ranges[dimension][0], extent.ranges[dimension][1])).unzip();
    firsts.sort_unstable();
    lasts.sort_unstable();
    let child_max = boxes.len() * CHILD_SHARE.0 / CHILD_SHARE.1;
    let mut best = None;
    let mut below = 0;
    for (place, value) in firsts.iter().enumerate() {
        if place > 0 && firsts[place - 1] == *value {
            continue;
        }
        while lasts[below] < *value {
            below += 1;
        }
        let above = boxes.len() - place;
        let across = boxes.len() - below - above;
        if below.max(above).max(across) > child_max {
            continue;
        }
        // The rules left to search in the worse case count double; then the number excluded on average.
        let (less, more) = (below.min(above), below.max(above));
        let worth = 2 * less + more.min(boxes.len() - more);
        if best.is_none_or(|(best, _)| worth > best) {
            best = Some((worth, Cut { dimension: dimension as u8, value: *value }));
        }
    }
    best
}
