//! Flows that the function's connections and UDP flows ask the node for: [`OwnFlow`]; and those that the node is to close, [`Endings`].
//!
//! A request or its answer may be lost if a ring is full, so a request is repeated until it is answered. If that opens two flows, the second
//! one is closed.

use std::collections::VecDeque;

use super::outbound::Via;
use crate::Slots;
use crate::outbound::{Request, close_packet};

/// How long the node, and then the peer, may take to open a connection or a flow.
pub(super) const CONNECT_NS_MAX: u64 = 10_000_000_000;
/// After which time a request is repeated.
const ASK_AGAIN_NS: u64 = 1_000_000_000;
/// Delay before something is sent for which there was no slot.
const RETRY_NS: u64 = 50_000;

/// Bits of a tag: the index of what asks, its serial number, and its kind.
const INDEX_BITS: u32 = 16;
const KIND_AT: u32 = 62;
const SERIALS: u64 = (1 << (KIND_AT - INDEX_BITS)) - 1;

/// What asks for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Connection = 0,
    /// A UDP flow of the function's owner.
    Udp = 1,
    /// A lookup of a name.
    Lookup = 2,
}

/// What the events of a flow are for: what asked for it, by its kind, its serial number and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) kind: Kind,
    pub(super) serial: u64,
    pub(super) index: u16,
}

impl Tag {
    /// Returns the tag of this number; a kind that there is not counts as [`Kind::Connection`].
    pub(super) fn of(number: u64) -> Self {
        let kind = match number >> KIND_AT {
            1 => Kind::Udp,
            2 => Kind::Lookup,
            _ => Kind::Connection,
        };
        Self { kind, serial: number >> INDEX_BITS & SERIALS, index: number as u16 }
    }

    pub(super) fn number(self) -> u64 {
        (self.kind as u64) << KIND_AT | self.serial << INDEX_BITS | u64::from(self.index)
    }
}

/// A flow that the node is asked for, or has opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnFlow {
    request: Request,
    via: Via,
    /// The node's number of it, while it is open.
    pub(super) number: Option<u64>,
    /// When to ask for it, again.
    ask_ns: u64,
    /// When to give up.
    pub(super) until_ns: u64,
}

impl OwnFlow {
    pub(super) fn new(request: Request, via: Via, now_ns: u64) -> Self {
        Self { request, via, number: None, ask_ns: now_ns, until_ns: now_ns + CONNECT_NS_MAX }
    }

    pub(super) fn via(&self) -> Via {
        self.via
    }

    /// Asks the node for the flow if it is time. Returns when to do so next, or to give up.
    pub(super) fn ask(&mut self, slots: Slots<'_>, now_ns: u64) -> u64 {
        if self.ask_ns <= now_ns {
            match self.request.packet(slots, self.via.way) {
                Some(packet) => {
                    packet.reply();
                    self.ask_ns = now_ns + ASK_AGAIN_NS;
                }
                None => self.ask_ns = now_ns + RETRY_NS,
            }
        }
        self.due_ns()
    }

    /// Returns when to ask, or to give up.
    pub(super) fn due_ns(&self) -> u64 {
        self.ask_ns.min(self.until_ns)
    }
}

/// Flows that the node is to close. If there are more than fit, the oldest ones are left to the node, which closes idle flows itself.
pub(super) struct Endings {
    flows: VecDeque<(u64, Via)>,
    retry_ns: Option<u64>,
}

impl Endings {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { flows: VecDeque::with_capacity(capacity), retry_ns: None }
    }

    pub(super) fn push(&mut self, number: u64, via: Via) {
        if self.flows.len() == self.flows.capacity() {
            self.flows.pop_front();
        }
        self.flows.push_back((number, via));
    }

    /// Asks the node to close them, as far as there are slots.
    pub(super) fn send(&mut self, slots: Slots<'_>, now_ns: u64) {
        self.retry_ns = None;
        while let Some((number, via)) = self.flows.front() {
            // No connection or flow has this tag: nothing depends on the answer.
            let Some(packet) = close_packet(*number, 0, slots, via.way) else {
                self.retry_ns = Some(now_ns + RETRY_NS);
                return;
            };
            packet.reply();
            self.flows.pop_front();
        }
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.retry_ns
    }
}
