//! The naive model of a stage: the frames in it, the slots that they hold, and where its outputs lead.

use std::collections::VecDeque;
use std::sync::Arc;

use pinion_abi::{Descriptor, PORT_DROP, PORT_REPLY};
use pinion_mma::accounts::counters::MovedCounters;
use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::ways::direction::{Direction, PortSet, Sides};
use pinion_mma::wiring::branch::{Branch, Conditions, Entrance};
use pinion_mma::wiring::{Backpressure, Edge, Wiring};

use crate::{FRAME_BYTES_MAX, SLOT_BYTES};

/// Most slots that a worker provides in a turn.
const STEP_SLOTS: usize = 16 * 1024 / SLOT_BYTES as usize;
/// In a chain with a way back, frames of these ports go back, those of `FORTH` go forth, and those of others are on no
/// side.
const BACK: [u16; 1] = [2];
const FORTH: [u16; 2] = [0, 1];

/// A frame inside the house.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) port: u16,
    pub(crate) bytes: Vec<u8>,
    pub(crate) course: Course,
}

/// Which way a frame goes through its chain, and how many stages it has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Course {
    pub(crate) direction: Direction,
    pub(crate) passed: usize,
}

impl Course {
    /// Returns the course of a frame that was just received on this port.
    pub(crate) fn of_port(port: u16) -> Self {
        Self { direction: if BACK.contains(&port) { Direction::Back } else { Direction::Forth }, passed: 0 }
    }
}

/// What should have been counted for one FWP.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    received: u64,
    received_bytes: u64,
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) no_slot: u64,
    pub(crate) too_long: u64,
    pub(crate) egress: u64,
    pub(crate) gone: u64,
    pub(crate) by_graph: u64,
    pub(crate) entered_bytes: u64,
}

impl Counts {
    pub(crate) fn of(moved: &MovedCounters) -> Self {
        Self {
            received: moved.received.value(),
            received_bytes: moved.received_bytes.value(),
            sent: moved.sent.value(),
            sent_bytes: moved.sent_bytes.value(),
            no_slot: moved.dropped_no_slot.value(),
            too_long: moved.dropped_too_long.value(),
            egress: moved.dropped_egress.value(),
            gone: moved.dropped_instance_ended.value(),
            by_graph: moved.dropped_by_graph.value(),
            entered_bytes: moved.entered_bytes.value(),
        }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.no_slot + self.too_long + self.egress + self.gone + self.by_graph
    }
}

/// Where one of a stage's outputs leads: further down the chain, out, nowhere, or to one of these by a frame's first byte.
#[derive(Debug, Clone)]
pub(crate) enum Output {
    Stage(usize),
    Port(u16),
    WhereItCame,
    Drop,
    Branch(Vec<Output>),
}

/// The conditions of each branch: a frame meets the case of the number that its first byte is, modulo 4.
#[derive(Debug)]
struct ByFirstByte;

impl Conditions for ByFirstByte {
    fn first_met(&self, frame: &[u8], _port: PortIndex) -> Option<usize> {
        frame.first().map(|byte| usize::from(byte % 4))
    }
}

/// Makes the real branch with these edges, of which the last one is the default.
fn branch(edges: &[Edge]) -> Branch {
    let (default, cases) = edges.split_last().expect("a branch has edges");
    Branch::new(Arc::new(ByFirstByte), cases.to_vec(), *default)
}

/// Returns which of a branch's edges a frame takes.
fn chosen(edges: &[Edge], packet: &Packet) -> Edge {
    let (default, cases) = edges.split_last().expect("a branch has edges");
    *cases.get(usize::from(packet.bytes[0] % 4)).unwrap_or(default)
}

/// Returns the edge of an output that leads to these FWPs, and adds the edges of its branch.
fn edge(output: &Output, tenants: &[FwpId], branches: &mut Vec<Vec<Edge>>) -> Edge {
    match output {
        Output::Stage(next) => Edge::Fwp(tenants[*next]),
        Output::Port(port) => Edge::Egress(PortIndex(*port)),
        Output::WhereItCame => Edge::EgressWhereItCame,
        Output::Drop => Edge::Drop,
        Output::Branch(outputs) => {
            let edges = outputs.iter().map(|output| edge(output, tenants, &mut Vec::new())).collect();
            branches.push(edges);
            Edge::Branch(branches.len() as u8 - 1)
        }
    }
}

/// A stage as the strategy drew it.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    pub(crate) slots: u32,
    pub(crate) outputs: Vec<Output>,
    /// As many for frames that go back, if the chain has a way back.
    pub(crate) back: Option<Vec<Output>>,
    /// Most frames that may wait before it, if it holds.
    pub(crate) holds: Option<usize>,
    /// Only the first slot's pages are there when it begins.
    pub(crate) is_new: bool,
    /// Where frames enter that are meant for it and go forth: stages, or nowhere.
    pub(crate) entrance: Option<Vec<Output>>,
}

pub(crate) enum Accepted {
    Yes,
    NoSlot,
    TooLong,
}

/// One stage. Each frame in it holds a slot, except those that wait before it, which hold buffers.
pub(crate) struct Stage {
    pub(crate) id: FwpId,
    pub(crate) drawn: Drawn,
    /// Where the outputs lead, with the generations of that time.
    pub(crate) edges: Vec<Edge>,
    pub(crate) back: Option<Vec<Edge>>,
    branches: Vec<Vec<Edge>>,
    entrance: Option<Vec<Edge>>,
    pub(crate) waiting: VecDeque<Packet>,
    pub(crate) delivered: VecDeque<Packet>,
    /// With the descriptor by which the real guest knows the frame.
    pub(crate) held: Vec<(Descriptor, Packet)>,
    pub(crate) sent: VecDeque<(u16, Packet)>,
    pub(crate) blocked: bool,
    pub(crate) upstream: Vec<FwpId>,
    /// How many stages before it were unblocked and not visited since, and the stage by which it was blocked.
    pub(crate) upstream_unblocked: usize,
    pub(crate) waited_for: Option<FwpId>,
    /// Whether the odd slot goes to a frame that waits when slots are next shared.
    odd_to_waiting: bool,
    pub(crate) counts: Counts,
    /// Slots, from the first one on: those in use, those with pages, and those that the MMA wants.
    pub(crate) circulating: usize,
    pub(crate) provided: usize,
    pub(crate) wanted: usize,
}

impl Stage {
    /// Makes a new stage whose outputs lead to these FWPs.
    pub(crate) fn new(id: FwpId, drawn: Drawn, tenants: &[FwpId]) -> Self {
        let mut branches = Vec::new();
        let mut edges = |outputs: &Vec<Output>| -> Vec<Edge> {
            outputs.iter().map(|output| edge(output, tenants, &mut branches)).collect()
        };
        Self {
            id,
            edges: edges(&drawn.outputs),
            back: drawn.back.as_ref().map(&mut edges),
            entrance: drawn.entrance.as_ref().map(&mut edges),
            branches,
            drawn,
            waiting: VecDeque::new(),
            delivered: VecDeque::new(),
            held: Vec::new(),
            sent: VecDeque::new(),
            blocked: false,
            upstream: Vec::new(),
            upstream_unblocked: 0,
            waited_for: None,
            odd_to_waiting: false,
            counts: Counts::default(),
            circulating: usize::MAX,
            provided: usize::MAX,
            wanted: 0,
        }
    }

    pub(crate) fn to_come(&self) -> usize {
        self.drawn.slots as usize - self.circulating
    }

    /// Sets how many slots have their pages when it begins.
    pub(crate) fn begin_with(&mut self, slots: u16) {
        (self.circulating, self.provided) = (slots.into(), slots.into());
    }

    /// Returns whether it lacks slots whose pages are to come.
    pub(crate) fn is_short(&self) -> bool {
        self.wanted > self.circulating
    }

    pub(crate) fn want(&mut self, more: usize) {
        self.wanted = self.wanted.max(self.circulating + more.min(self.to_come()));
    }

    /// Provides slots, as its worker does. Returns whether there were some to provide.
    pub(crate) fn provide(&mut self) -> bool {
        let is_behind = self.wanted > self.provided;
        self.provided = self.provided.max(self.wanted.min(self.provided + STEP_SLOTS));
        is_behind
    }

    pub(crate) fn take_provided(&mut self) -> bool {
        let is_there = self.provided > self.circulating;
        self.circulating += usize::from(is_there);
        is_there
    }

    fn free(&self) -> usize {
        self.circulating - self.delivered.len() - self.held.len() - self.sent.len()
    }

    /// Returns how many slots frames that wait may take now: half of those that are free, if stages before it want some.
    pub(crate) fn slots_for_waiting(&mut self) -> usize {
        if self.upstream_unblocked == 0 {
            return usize::MAX;
        }
        let is_odd = self.free() % 2 == 1;
        let extra = is_odd && self.odd_to_waiting;
        self.odd_to_waiting ^= is_odd;
        self.free() / 2 + usize::from(extra)
    }

    pub(crate) fn accept(&mut self, packet: &Packet) -> Accepted {
        if packet.bytes.len() > FRAME_BYTES_MAX {
            return Accepted::TooLong;
        }
        if self.free() == 0 {
            return Accepted::NoSlot;
        }
        self.counts.received += 1;
        self.counts.received_bytes += packet.bytes.len() as u64;
        self.delivered.push_back(packet.clone());
        Accepted::Yes
    }

    /// Returns where a frame of the gateway's enters that is meant for it.
    pub(crate) fn entered(&self, packet: &Packet) -> Edge {
        let goes_back = self.back.is_some() && packet.course.direction == Direction::Back;
        match &self.entrance {
            Some(entrance) if !goes_back => chosen(entrance, packet),
            _ => Edge::Fwp(self.id),
        }
    }

    /// Returns where it sends a frame by this outlet, by the frame's first byte if that branches, and which way the frame goes
    /// from there.
    pub(crate) fn way(&self, outlet: u16, packet: &Packet) -> (Edge, Direction) {
        let (edge, direction) = self.way_out(outlet, packet);
        let Edge::Branch(number) = edge else { return (edge, direction) };
        match chosen(&self.branches[usize::from(number)], packet) {
            Edge::Egress(_) if outlet == PORT_REPLY => (Edge::EgressWhereItCame, direction),
            edge => (edge, direction),
        }
    }

    /// Returns the output by which it sends a frame: an edge or a branch, and which way the frame goes from there.
    pub(crate) fn way_out(&self, outlet: u16, packet: &Packet) -> (Edge, Direction) {
        let direction = packet.course.direction;
        let where_it_came = (Edge::EgressWhereItCame, direction);
        match (&self.back, outlet) {
            (None, PORT_REPLY) => where_it_came,
            (None, output) => (self.edges[usize::from(output)], direction),
            (Some(_), PORT_REPLY) if ![FORTH.as_slice(), &BACK].concat().contains(&packet.port) => where_it_came,
            (Some(back), PORT_REPLY) => {
                let comes_from_behind = BACK.contains(&packet.port);
                let on = if comes_from_behind { (self.edges[0], Direction::Forth) } else { (back[0], Direction::Back) };
                let is_stage = |edge: &Edge| matches!(edge, Edge::Fwp(_));
                let leads_on = match on.0 {
                    Edge::Branch(number) => self.branches[usize::from(number)].iter().any(is_stage),
                    edge => is_stage(&edge),
                };
                if leads_on { on } else { where_it_came }
            }
            (Some(back), output) if direction == Direction::Back => (back[usize::from(output)], direction),
            (Some(_), output) => (self.edges[usize::from(output)], direction),
        }
    }

    /// The same if that is not the same for all that it sends by an outlet.
    pub(crate) fn way_of_sent(&self, outlet: u16, packet: &Packet) -> Option<(Edge, Direction)> {
        (outlet != PORT_DROP && self.back.is_some()).then(|| self.way_out(outlet, packet))
    }

    /// Returns the number of frames in it that are still to go somewhere.
    pub(crate) fn inside(&self) -> usize {
        let sent = self.sent.iter().filter(|(port, _)| *port != PORT_DROP).count();
        self.waiting.len() + self.delivered.len() + self.held.len() + sent
    }

    /// Returns the wiring of the real stage.
    pub(crate) fn wiring(&self) -> Wiring {
        let branches = self.branches.iter().map(|edges| branch(edges)).collect();
        let entrance = Entrance { forth: self.entrance.as_deref().map(branch), back: None };
        self.wiring_of_outputs().with_branches(branches).with_entrance(entrance)
    }

    fn wiring_of_outputs(&self) -> Wiring {
        if let Some(back) = &self.back {
            let set = |ports: &[u16]| PortSet::of(ports.iter().copied().map(PortIndex)).unwrap();
            return Wiring::both_ways(self.edges.clone(), back.clone(), Sides { forth: set(&FORTH), back: set(&BACK) });
        }
        let backpressure = self.drawn.holds.map_or(Backpressure::Drop, |frames_max| Backpressure::Hold { frames_max });
        Wiring::new(self.edges.clone(), backpressure)
    }
}
