//! The calls under way: which answers are awaited, until when, and which calls wait for an instance of their chain.
//!
//! ```text
//!            enter                 deliver                 end
//!    free ----------> entered -----------------> with a function -----> free
//!                      ^  \                       ^        /   /
//!                      |   `-- wait --> waiting --'-------+---'
//!                      `--------- deliver again ---------'
//! ```
//!
//! Fixed tables, by place. The fields that every sweep reads lie together.

use std::hash::{BuildHasher, RandomState};

use super::dispatcher::Invocation;
use super::message::CallRef;
use super::{Failure, FunctionRef, REDELIVERIES_MAX};
use crate::flows::index::{List, ListLinks};
use crate::id::{CHAINS_MAX, ChainIndex};

/// The deadline of a place without a call.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq)]
enum State {
    Free,
    Entered,
    Waiting,
    Delivered,
}

#[derive(Clone, Copy)]
struct CallSlot {
    state: State,
    chain: ChainIndex,
    /// The token of the call in this place, or of the last one there.
    token: u64,
    /// The failure that the call ends with if its time runs out.
    failure: Failure,
    /// How often it was delivered again, as the instance that had it ended.
    redeliveries: u8,
}

/// How an answer relates to the calls.
#[derive(Debug, PartialEq)]
pub(super) enum AnswerMatch {
    /// It answers a call that awaits it.
    Awaited,
    /// Its call is over: answered, or timed out.
    Late,
    /// It answers no call.
    Unknown,
}

pub(super) struct Calls {
    /// When each call times out, in nanoseconds.
    ends_ns: Box<[u64]>,
    places: Box<[CallSlot]>,
    invocations: Box<[Option<Box<Invocation>>]>,
    /// ListLinks of the free list, and of the chains' lists of waiting calls.
    links: ListLinks,
    free: List,
    waiting: Box<[List]>,
    under_way: usize,
    /// Makes tokens: keyed hashes, with keys of this process, of a number that is never used twice.
    tokens: RandomState,
    next_number: u64,
}

impl Calls {
    pub(super) fn new(calls_max: usize) -> Self {
        let mut links = ListLinks::new(calls_max);
        let free = List::all(&mut links);
        let place = CallSlot {
            state: State::Free,
            chain: ChainIndex(0),
            token: 0,
            failure: Failure::Deadline,
            redeliveries: 0,
        };
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

    /// Returns the number of calls under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Enters a call. Returns the invocation if there is no place.
    pub(super) fn enter(&mut self, invocation: Box<Invocation>) -> Result<u32, Box<Invocation>> {
        let Some(place) = self.free.pop_front(&mut self.links) else { return Err(invocation) };
        let token = self.tokens.hash_one(self.next_number);
        self.next_number += 1;
        let chain = invocation.function.chain;
        self.places[place as usize] =
            CallSlot { state: State::Entered, chain, token, failure: Failure::Deadline, redeliveries: 0 };
        self.ends_ns[place as usize] = invocation.deadline_ns;
        self.invocations[place as usize] = Some(invocation);
        self.under_way += 1;
        Ok(place)
    }

    /// Returns what the call's message and its answer carry.
    pub(super) fn call_ref(&self, place: u32) -> CallRef {
        CallRef { place, token: self.places[place as usize].token }
    }

    pub(super) fn invocation(&self, place: u32) -> Option<&Invocation> {
        self.invocations.get(place as usize)?.as_deref()
    }

    pub(super) fn function(&self, place: u32) -> Option<FunctionRef> {
        Some(self.invocation(place)?.function)
    }

    /// Makes a call wait for an instance of its chain, until `until_ns` at most.
    pub(super) fn wait(&mut self, place: u32, until_ns: u64) {
        let CallSlot { state, chain, failure, .. } = &mut self.places[place as usize];
        let Some(list) = self.waiting.get_mut(chain.0 as usize) else { return };
        list.push_back(&mut self.links, place);
        *state = State::Waiting;
        if until_ns < self.ends_ns[place as usize] {
            (self.ends_ns[place as usize], *failure) = (until_ns, Failure::NoInstance);
        }
    }

    /// Returns the call that has waited longest for the chain.
    pub(super) fn first_waiting(&self, chain: ChainIndex) -> Option<u32> {
        self.waiting.get(chain.0 as usize)?.first()
    }

    /// Returns all calls that wait, of all chains.
    pub(super) fn all_waiting(&self) -> impl Iterator<Item = u32> {
        let is_waiting = |place: &u32| self.places[*place as usize].state == State::Waiting;
        (0..self.places.len() as u32).filter(is_waiting)
    }

    /// Notes that the call's message has been handed over.
    pub(super) fn delivered(&mut self, place: u32) {
        self.stop_waiting(place);
        let deadline_ns = self.invocation(place).map_or(NEVER, |invocation| invocation.deadline_ns);
        self.ends_ns[place as usize] = deadline_ns;
        (self.places[place as usize].state, self.places[place as usize].failure) =
            (State::Delivered, Failure::Deadline);
    }

    /// Notes that the instance of a chain has ended. Calls delivered to it fail unless their answers come before
    /// `until_ns`.
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

    /// Takes a call back whose instance has ended, to be delivered again. Its token stays: an answer that was on its way
    /// is as good as another one. Returns whether it may be: not if it was often enough.
    pub(super) fn take_back(&mut self, place: u32, now_ns: u64) -> bool {
        let CallSlot { state, failure, redeliveries, .. } = &mut self.places[place as usize];
        let Some(invocation) = self.invocations[place as usize].as_deref_mut() else { return false };
        if *state != State::Delivered || *redeliveries == REDELIVERIES_MAX {
            return false;
        }
        // From now on it waits for another instance.
        invocation.called_ns = now_ns;
        (*state, *failure, *redeliveries) = (State::Entered, Failure::Deadline, *redeliveries + 1);
        self.ends_ns[place as usize] = invocation.deadline_ns;
        true
    }

    /// Returns the failure of a call that its caller is told, if it ends with this one now. A call that an instance had
    /// may have been carried out, whatever kept it from the next instance.
    pub(super) fn told(&self, place: u32, failure: Failure) -> Failure {
        match (failure, self.places.get(place as usize).map_or(0, |place| place.redeliveries)) {
            (Failure::Deadline | Failure::Cancelled, _) | (_, 0) => failure,
            (Failure::Ended, REDELIVERIES_MAX) => Failure::EndedEachTime,
            _ => Failure::Ended,
        }
    }

    /// Returns how an answer relates to the call that it names.
    pub(super) fn judge(&self, call: CallRef) -> AnswerMatch {
        match self.places.get(call.place as usize) {
            Some(place) if place.token != call.token => AnswerMatch::Unknown,
            Some(place) if place.state == State::Delivered => AnswerMatch::Awaited,
            Some(_) => AnswerMatch::Late,
            None => AnswerMatch::Unknown,
        }
    }

    /// Ends a call and frees its place.
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
        let CallSlot { state, chain, .. } = &mut self.places[place as usize];
        if *state == State::Waiting {
            *state = State::Entered;
            self.waiting[chain.0 as usize].remove(&mut self.links, place);
        }
    }

    /// Returns the first call from this place on whose time is over, and the failure that it ends with.
    pub(super) fn overdue(&self, from: u32, now_ns: u64) -> Option<(u32, Failure)> {
        let found = self.ends_ns.get(from as usize..)?.iter().position(|end_ns| *end_ns <= now_ns)?;
        let place = from + found as u32;
        Some((place, self.places[place as usize].failure))
    }
}
