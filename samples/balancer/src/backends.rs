//! The backends, the state of each, and the flows that each has.
//!
//! A remembered flow stays with its backend, unless that is down. A new flow goes to the backend that the table gives,
//! and is remembered. So a change of backends moves no existing flow. A balancer that has forgotten a flow, or never
//! saw it, still finds the same backend for it in most cases.

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
    flows: Lru<FlowKey, Backend>,
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
        let mut backends = Self { members, maglev: Maglev::new(places), flows: Lru::with_capacity(config.connections) };
        backends.fill();
        backends
    }

    /// Draws a new hash key for the flow table. The backend of new flows does not depend on it.
    pub fn rekey(&mut self) {
        self.flows.rekey();
    }

    /// Returns the backend for a packet of a flow. A packet that begins a connection starts a new flow.
    #[inline]
    pub fn choose(&mut self, flow: FlowKey, begins: bool, now_ns: u64) -> Option<Backend> {
        let known = self.flows.find(&flow);
        let kept =
            known.filter(|_| !begins).map(|id| *self.flows.value(id)).filter(|it| self.state(*it) != State::Down);
        // None, if the flow's backend is down and there is no other.
        let backend = kept.or_else(|| self.maglev.backend(hash(&flow)))?;
        self.remember_at(known, flow, backend, now_ns);
        Some(backend)
    }

    /// Returns the backend for an ICMP error about a flow. The quoted packet may have no ports, as a later fragment has
    /// none: then the error goes where the latest fragments between the two addresses went, by `portless`. If the flow is
    /// not known by either key, its ports decide, as they would in each balancer with the same backends. The error is not
    /// remembered.
    pub fn choose_for_error(&self, flow: Option<FlowKey>, portless: FlowKey) -> Option<Backend> {
        let backend_of = |key: FlowKey| self.flows.find(&key).map(|id| *self.flows.value(id));
        let known = [flow, Some(portless)].into_iter().flatten().filter_map(backend_of);
        let known = { known }.find(|it| self.state(*it) != State::Down);
        known.or_else(|| self.maglev.backend(hash(&flow?)))
    }

    /// Remembers that a flow belongs to a backend. If the table is full, forgets the flow unseen for longest.
    pub fn remember(&mut self, flow: FlowKey, backend: Backend, now_ns: u64) {
        self.remember_at(self.flows.find(&flow), flow, backend, now_ns);
    }

    /// Remembers it where it is known already, if it is.
    #[inline]
    fn remember_at(&mut self, known: Option<Id>, flow: FlowKey, backend: Backend, now_ns: u64) {
        if let Some(id) = known {
            *self.flows.value_mut(id) = backend;
            return self.flows.touch(id, 0, now_ns);
        }
        if self.flows.len() == self.flows.capacity()
            && let Some((oldest, _)) = self.flows.oldest(0)
        {
            self.flows.remove(oldest);
        }
        self.flows.insert(flow, backend, 0, now_ns);
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
