//! The calls under way: who waits for which answer, until when, and those whose chain has no instance yet.
//!
//! ```text
//!            enter                 deliver                 end
//!    free ----------> entered -----------------> with a function -----> free
//!                         \                       ^            /
//!                          `-- wait --> waiting --'-----------'
//! ```
//!
//! Fixed tables, by place. What every sweep looks at lies together.

use std::hash::{BuildHasher, RandomState};

use super::dispatcher::Invocation;
use super::message::CallRef;
use super::{Failure, FunctionRef};
use crate::flows::index::{Links, List};
use crate::id::{CHAINS_MAX, ChainIndex};

/// Of a place without a call.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq)]
enum State {
    Free,
    Entered,
    Waiting,
    Delivered,
}

#[derive(Clone, Copy)]
struct Place {
    state: State,
    chain: ChainIndex,
    /// Of the call that is here, or was the last one here.
    token: u64,
    /// What it ends with, should its time be over.
    failure: Failure,
}

/// What an answer is to a call.
#[derive(Debug, PartialEq)]
pub(super) enum Fit {
    /// It is awaited.
    Awaited,
    /// It was, or has been given already.
    Late,
    /// Nobody has asked for it.
    Unknown,
}

pub(super) struct Calls {
    /// When each gives up.
    ends_ns: Box<[u64]>,
    places: Box<[Place]>,
    invocations: Box<[Option<Box<Invocation>>]>,
    /// Of the free list and of the chains' lists of those that wait.
    links: Links,
    free: List,
    waiting: Box<[List]>,
    under_way: usize,
    /// Makes tokens: with keys of this process, of a number that is never used twice.
    tokens: RandomState,
    next_number: u64,
}

impl Calls {
    pub(super) fn new(calls_max: usize) -> Self {
        let mut links = Links::new(calls_max);
        let free = List::all(&mut links);
        let place = Place { state: State::Free, chain: ChainIndex(0), token: 0, failure: Failure::Deadline };
        Self {
            ends_ns: vec![NEVER; calls_max].into(),
            places: vec![place; calls_max].into(),
            invocations: (0..calls_max).map(|_| None).collect(),
            links,
            free,
            waiting: vec![List::new(); CHAINS_MAX as usize].into(),
            under_way: 0,
            tokens: RandomState::new(),
            next_number: 0,
        }
    }

    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// Calls under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Enters a call; gives it back if there is no place.
    pub(super) fn enter(&mut self, invocation: Box<Invocation>) -> Result<u32, Box<Invocation>> {
        let Some(place) = self.free.pop_front(&mut self.links) else { return Err(invocation) };
        let token = self.tokens.hash_one(self.next_number);
        self.next_number += 1;
        let chain = invocation.function.chain;
        self.places[place as usize] = Place { state: State::Entered, chain, token, failure: Failure::Deadline };
        self.ends_ns[place as usize] = invocation.deadline_ns;
        self.invocations[place as usize] = Some(invocation);
        self.under_way += 1;
        Ok(place)
    }

    /// What its message and its answer carry.
    pub(super) fn call_ref(&self, place: u32) -> CallRef {
        CallRef { place, token: self.places[place as usize].token }
    }

    pub(super) fn invocation(&self, place: u32) -> Option<&Invocation> {
        self.invocations.get(place as usize)?.as_deref()
    }

    pub(super) fn function(&self, place: u32) -> Option<FunctionRef> {
        Some(self.invocation(place)?.function)
    }

    /// Has a call wait for an instance of its chain, no longer than until then.
    pub(super) fn wait(&mut self, place: u32, until_ns: u64) {
        let Place { state, chain, failure, .. } = &mut self.places[place as usize];
        let Some(list) = self.waiting.get_mut(chain.0 as usize) else { return };
        list.push_back(&mut self.links, place);
        *state = State::Waiting;
        if until_ns < self.ends_ns[place as usize] {
            (self.ends_ns[place as usize], *failure) = (until_ns, Failure::NoInstance);
        }
    }

    /// The call that waits longest for the chain.
    pub(super) fn first_waiting(&self, chain: ChainIndex) -> Option<u32> {
        self.waiting.get(chain.0 as usize)?.first()
    }

    /// All that wait, of all chains.
    pub(super) fn all_waiting(&self) -> impl Iterator<Item = u32> {
        let is_waiting = |place: &u32| self.places[*place as usize].state == State::Waiting;
        (0..self.places.len() as u32).filter(is_waiting)
    }

    /// Its message is on its way.
    pub(super) fn delivered(&mut self, place: u32) {
        self.stop_waiting(place);
        let deadline_ns = self.invocation(place).map_or(NEVER, |invocation| invocation.deadline_ns);
        self.ends_ns[place as usize] = deadline_ns;
        (self.places[place as usize].state, self.places[place as usize].failure) =
            (State::Delivered, Failure::Deadline);
    }

    /// The instance of a chain that has messages is no more: calls whose answers do not come until then have none.
    pub(super) fn abandon(&mut self, chain: ChainIndex, until_ns: u64) {
        if self.under_way == 0 {
            return;
        }
        for (place, end_ns) in self.places.iter_mut().zip(&mut self.ends_ns) {
            if place.chain == chain && place.state == State::Delivered && until_ns < *end_ns {
                (*end_ns, place.failure) = (until_ns, Failure::Ended);
            }
        }
    }

    /// What an answer is to the call that it names.
    pub(super) fn judge(&self, call: CallRef) -> Fit {
        match self.places.get(call.place as usize) {
            Some(place) if place.token != call.token => Fit::Unknown,
            Some(place) if place.state == State::Delivered => Fit::Awaited,
            Some(_) => Fit::Late,
            None => Fit::Unknown,
        }
    }

    /// Ends a call.
    pub(super) fn end(&mut self, place: u32) -> Option<Box<Invocation>> {
        self.stop_waiting(place);
        let invocation = self.invocations.get_mut(place as usize)?.take()?;
        self.places[place as usize].state = State::Free;
        self.ends_ns[place as usize] = NEVER;
        self.free.push_back(&mut self.links, place);
        self.under_way -= 1;
        Some(invocation)
    }

    fn stop_waiting(&mut self, place: u32) {
        let Place { state, chain, .. } = &mut self.places[place as usize];
        if *state == State::Waiting {
            *state = State::Entered;
            self.waiting[chain.0 as usize].remove(&mut self.links, place);
        }
    }

    /// A call, from this place on, whose time is over, and what it ends with.
    pub(super) fn overdue(&self, from: u32, now_ns: u64) -> Option<(u32, Failure)> {
        let found = self.ends_ns.get(from as usize..)?.iter().position(|end_ns| *end_ns <= now_ns)?;
        let place = from + found as u32;
        Some((place, self.places[place as usize].failure))
    }
}
