//! The backends, the state of each, and the flows that each has.
//!
//! A remembered flow stays with its backend, unless that is down. A new flow goes to the backend that the table gives,
//! and is remembered. So a change of backends moves no existing flow. A balancer that has forgotten a flow, or never
//! saw it, still finds the same backend for it in most cases.
//!
//! ```text
//!   first packet, or a SYN --> New --another packet, no SYN--> Kept
//! ```
//!
//! Strangers fill the table with SYNs and single datagrams. So when it is full, new flows give way to each other as long
//! as they take a share of it, and kept ones only below that.

use core::fmt::Write;
use core::hash::{Hash, Hasher};
use std::hash::DefaultHasher;

use pinion_sdk::headers::FlowKey;
use pinion_sdk::lru::{Id, Lru};

use crate::config::{BackendConfig, Config};
use crate::maglev::{Backend, Maglev, Order, Part};

/// The operating state of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It serves old and new flows.
    Up,
    /// It keeps its flows, and gets no new ones.
    Draining,
    /// It gets no packets.
    Down,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Down => "down",
        }
    }
}

/// How long after its last packet a flow keeps its backend in spite of a SYN: one that is sent again, or forged, must
/// not move it.
const SYN_KEEPS_NS: u64 = 60 * 1_000_000_000;
/// How long a silent flow must still find its backend: as long as established TCP may be silent (RFC 5382, REQ-5).
pub const FLOW_SILENT_NS: u64 = 7_440 * 1_000_000_000;
/// New flows can always take this part of the table, so that they live to their second packet.
const NEW_PART: usize = 8;

/// A queue of the flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    /// Flows of which nothing but a first packet, or SYNs, have come.
    New,
    /// All others.
    Kept,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    backend: Backend,
    queue: Queue,
}

#[derive(Clone, Debug)]
struct Member {
    config: BackendConfig,
    order: Order,
    state: State,
    packets: u64,
}

/// All backends, and the flow table.
#[derive(Debug)]
pub struct Backends {
    members: Vec<Member>,
    maglev: Maglev,
    flows: Lru<FlowKey, Flow, 2>,
    /// The number of flows in [`Queue::New`].
    new_count: usize,
}

impl Backends {
    /// Makes the backends of a configuration, all up.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let places = config.places;
        let member = |config: BackendConfig| {
            let order = Order::of(&config.name, places);
            Member { config, order, state: State::Up, packets: 0 }
        };
        let members = config.backends.into_iter().map(member).collect();
        let flows = Lru::with_capacity(config.connections);
        let mut backends = Self { members, maglev: Maglev::new(places), flows, new_count: 0 };
        backends.fill();
        backends
    }

    /// Draws a new hash key for the flow table. The backend of new flows does not depend on it.
    pub fn rekey(&mut self) {
        self.flows.rekey();
        self.new_count = 0;
    }

    /// Returns the backend for a packet of a flow. A SYN starts a new flow, unless the flow was used just before by another
    /// packet: SYNs alone keep no flow where it is for longer.
    #[inline]
    pub fn choose(&mut self, flow: FlowKey, is_syn: bool, now_ns: u64) -> Option<Backend> {
        let known = self.flows.find(&flow);
        if let Some(id) = known {
            let Flow { backend, queue } = *self.flows.value(id);
            let was_used_just_before = || now_ns.saturating_sub(self.flows.used_ns(id)) < SYN_KEEPS_NS;
            let goes_on = match (is_syn, queue, self.state(backend)) {
                (_, _, State::Down) => false,
                (false, ..) => true,
                (true, Queue::Kept, _) => was_used_just_before(),
                (true, Queue::New, state) => state == State::Up && was_used_just_before(),
            };
            if goes_on {
                match (is_syn, queue) {
                    (false, _) => self.touch(id, queue, Queue::Kept, now_ns),
                    (true, Queue::New) => self.touch(id, queue, Queue::New, now_ns),
                    (true, Queue::Kept) => {}
                }
                return Some(backend);
            }
        }
        self.choose_anew(known, flow, now_ns)
    }

    /// Assigns a flow by the table. `None`, if the flow's backend is down and there is no other.
    #[inline(never)]
    fn choose_anew(&mut self, known: Option<Id>, flow: FlowKey, now_ns: u64) -> Option<Backend> {
        let backend = self.maglev.backend(hash(&flow))?;
        match known {
            Some(id) => {
                let queue = self.flows.value(id).queue;
                self.flows.value_mut(id).backend = backend;
                self.touch(id, queue, Queue::New, now_ns);
            }
            None => self.insert(flow, Flow { backend, queue: Queue::New }, now_ns),
        }
        Some(backend)
    }

    #[inline]
    fn touch(&mut self, id: Id, before: Queue, queue: Queue, now_ns: u64) {
        if before != queue {
            self.flows.value_mut(id).queue = queue;
            self.new_count += usize::from(queue == Queue::New);
            self.new_count -= usize::from(before == Queue::New);
        }
        self.flows.touch(id, queue as usize, now_ns);
    }

    /// Returns the backend for an ICMP error about a flow. The quoted packet may have no ports, as a later fragment has
    /// none: then the error goes where the latest fragments between the two addresses went, by `portless`. If the flow is
    /// not known by either key, its ports decide, as they would in each balancer with the same backends. The error is not
    /// remembered.
    pub fn choose_for_error(&self, flow: Option<FlowKey>, portless: FlowKey) -> Option<Backend> {
        let backend_of = |key: FlowKey| self.flows.find(&key).map(|id| self.flows.value(id).backend);
        let known = [flow, Some(portless)].into_iter().flatten().filter_map(backend_of);
        let known = { known }.find(|it| self.state(*it) != State::Down);
        known.or_else(|| self.maglev.backend(hash(&flow?)))
    }

    /// Remembers that what goes between two addresses without ports belongs to a backend.
    pub fn remember(&mut self, portless: FlowKey, backend: Backend, now_ns: u64) {
        match self.flows.find(&portless) {
            Some(id) => {
                let queue = self.flows.value(id).queue;
                self.flows.value_mut(id).backend = backend;
                self.touch(id, queue, Queue::Kept, now_ns);
            }
            None => self.insert(portless, Flow { backend, queue: Queue::New }, now_ns),
        }
    }

    /// Adds a flow. If the table is full, forgets another one.
    fn insert(&mut self, flow: FlowKey, value: Flow, now_ns: u64) {
        if self.flows.len() == self.flows.capacity() {
            self.forget_one(now_ns);
        }
        if self.flows.insert(flow, value, value.queue as usize, now_ns).is_some() {
            self.new_count += 1;
        }
    }

    /// Forgets the flow unseen for longest: of the kept ones, if that has been silent for too long or if new ones take
    /// less than their share, and else of the new ones.
    fn forget_one(&mut self, now_ns: u64) {
        let kept = self.flows.oldest(Queue::Kept as usize);
        let is_over = |used_ns: u64| now_ns.saturating_sub(used_ns) >= FLOW_SILENT_NS;
        let has_share = self.new_count > self.flows.capacity() / NEW_PART;
        let forgotten = match (kept, self.flows.oldest(Queue::New as usize)) {
            (Some((id, used_ns)), new) if new.is_none() || !has_share || is_over(used_ns) => id,
            (_, Some((id, _))) => id,
            (_, None) => return,
        };
        let (_, flow) = self.flows.remove(forgotten);
        self.new_count -= usize::from(flow.queue == Queue::New);
    }

    /// Counts a packet for a backend, and returns where that is; none, if it is down.
    #[inline]
    pub fn take(&mut self, backend: Backend) -> Option<&BackendConfig> {
        let member = self.members.get_mut(usize::from(backend)).filter(|member| member.state != State::Down)?;
        member.packets += 1;
        Some(&member.config)
    }

    /// Sets the state of a backend; returns whether there is one of that name.
    pub fn set(&mut self, name: &str, state: State) -> bool {
        let Some(member) = self.members.iter_mut().find(|member| member.config.name == name) else { return false };
        if member.state != state {
            member.state = state;
            self.fill();
        }
        true
    }

    /// Returns the number of remembered flows.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Returns the status text, with a line for each backend.
    #[must_use]
    pub fn status(&self) -> String {
        let mut places = vec![0_u32; self.members.len()];
        for backend in self.maglev.places() {
            if let Some(count) = places.get_mut(usize::from(*backend)) {
                *count += 1;
            }
        }
        let mut status = String::new();
        for (member, places) in self.members.iter().zip(places) {
            let Member { config, state, packets, .. } = member;
            let _ = writeln!(status, "{} {} places {places} packets {packets}", config.name, state.name());
        }
        status
    }

    fn state(&self, backend: Backend) -> State {
        self.members.get(usize::from(backend)).map_or(State::Down, |member| member.state)
    }

    fn fill(&mut self) {
        let part = |(number, member): (usize, &Member)| {
            let weight = if member.state == State::Up { member.config.weight } else { 0 };
            Part { backend: number as Backend, order: member.order, weight }
        };
        let parts: Vec<Part> = self.members.iter().enumerate().map(part).collect();
        self.maglev.fill(&parts);
    }
}

/// Returns the hash of a flow. It is the same in all instances, so that all of them choose the same backend.
fn hash(flow: &FlowKey) -> u64 {
    let mut hasher = DefaultHasher::new();
    flow.hash(&mut hasher);
    hasher.finish()
}
