//! The naive model of a stage: the frames in it, the slots that they hold, and where its outputs lead.

use std::collections::VecDeque;

use pinion_abi::{Descriptor, PORT_DROP, PORT_REPLY};
use pinion_mma::accounts::counters::MovedCounters;
use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::ways::direction::{Direction, PortSet, Sides};
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
        }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.no_slot + self.too_long + self.egress + self.gone
    }
}

/// Where one of a stage's outputs leads: further down the chain, or out.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Output {
    Stage(usize),
    Port(u16),
    WhereItCame,
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
    pub(crate) waiting: VecDeque<Packet>,
    pub(crate) delivered: VecDeque<Packet>,
    /// With the descriptor by which the real guest knows the frame.
    pub(crate) held: Vec<(Descriptor, Packet)>,
    pub(crate) sent: VecDeque<(u16, Packet)>,
    pub(crate) blocked: bool,
    pub(crate) upstream: Vec<FwpId>,
    pub(crate) counts: Counts,
    /// Slots, from the first one on: those in use, those with pages, and those that the MMA wants.
    pub(crate) circulating: usize,
    pub(crate) provided: usize,
    pub(crate) wanted: usize,
}

impl Stage {
    /// Makes a new stage whose outputs lead to these FWPs.
    pub(crate) fn new(id: FwpId, drawn: Drawn, tenants: &[FwpId]) -> Self {
        let edge = |&output: &Output| match output {
            Output::Stage(next) => Edge::Fwp(tenants[next]),
            Output::Port(port) => Edge::Egress(PortIndex(port)),
            Output::WhereItCame => Edge::EgressWhereItCame,
        };
        Self {
            id,
            edges: drawn.outputs.iter().map(edge).collect(),
            back: drawn.back.as_ref().map(|back| back.iter().map(edge).collect()),
            drawn,
            waiting: VecDeque::new(),
            delivered: VecDeque::new(),
            held: Vec::new(),
            sent: VecDeque::new(),
            blocked: false,
            upstream: Vec::new(),
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

    pub(crate) fn accept(&mut self, packet: &Packet) -> Accepted {
        if packet.bytes.len() > FRAME_BYTES_MAX {
            return Accepted::TooLong;
        }
        if self.delivered.len() + self.held.len() + self.sent.len() == self.circulating {
            return Accepted::NoSlot;
        }
        self.counts.received += 1;
        self.counts.received_bytes += packet.bytes.len() as u64;
        self.delivered.push_back(packet.clone());
        Accepted::Yes
    }

    /// Returns where it sends a frame by this outlet, and which way the frame goes from there.
    pub(crate) fn way(&self, outlet: u16, packet: &Packet) -> (Edge, Direction) {
        let direction = packet.course.direction;
        let where_it_came = (Edge::EgressWhereItCame, direction);
        match (&self.back, outlet) {
            (None, PORT_REPLY) => where_it_came,
            (None, output) => (self.edges[usize::from(output)], direction),
            (Some(_), PORT_REPLY) if ![FORTH.as_slice(), &BACK].concat().contains(&packet.port) => where_it_came,
            (Some(back), PORT_REPLY) => {
                let comes_from_behind = BACK.contains(&packet.port);
                let on = if comes_from_behind { (self.edges[0], Direction::Forth) } else { (back[0], Direction::Back) };
                if matches!(on.0, Edge::Fwp(_)) { on } else { where_it_came }
            }
            (Some(back), output) if direction == Direction::Back => (back[usize::from(output)], direction),
            (Some(_), output) => (self.edges[usize::from(output)], direction),
        }
    }

    /// The same for what it has sent, if that is not the same for all that it sends by an outlet.
    pub(crate) fn way_of_sent(&self, outlet: u16, packet: &Packet) -> Option<(Edge, Direction)> {
        (outlet != PORT_DROP && self.back.is_some()).then(|| self.way(outlet, packet))
    }

    /// Returns the number of frames in it that are still to go somewhere.
    pub(crate) fn inside(&self) -> usize {
        let sent = self.sent.iter().filter(|(port, _)| *port != PORT_DROP).count();
        self.waiting.len() + self.delivered.len() + self.held.len() + sent
    }

    /// Returns the wiring of the real stage.
    pub(crate) fn wiring(&self) -> Wiring {
        if let Some(back) = &self.back {
            let set = |ports: &[u16]| PortSet::of(ports.iter().copied().map(PortIndex)).unwrap();
            return Wiring::both_ways(self.edges.clone(), back.clone(), Sides { forth: set(&FORTH), back: set(&BACK) });
        }
        let backpressure = self.drawn.holds.map_or(Backpressure::Drop, |frames_max| Backpressure::Hold { frames_max });
        Wiring::new(self.edges.clone(), backpressure)
    }
}
