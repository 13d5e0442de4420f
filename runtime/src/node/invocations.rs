//! Invocations for callers that wait for one answer: the control API, and programs that embed a node.
//!
//! ```text
//!   invoke (any thread) --lock--> Dispatcher --> gateway ...
//!   the thread `invocations`, asleep at the dispatcher's doorbell --> takes answers, calls back
//! ```
//!
//! A program that makes millions of calls takes a [`Dispatcher`] of its own instead, from
//! [`crate::node::data_plane::DataPlane::dispatcher`]. Control threads and this module's thread share the lock here; no data-plane thread
//! ever takes it.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pinion_gateway::invoke::{CallNumber, Dispatcher, Failure, Refused};
use pinion_mma::accounts::shares::{Share, Shares};
use pinion_mma::id::TenantIndex;
use pinion_mma::notify::doorbell::Doorbell;

use crate::reports::status_table::Callable;

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The call was not accepted.
    Refused(Refused),
    /// The call's tenant has all calls under way that it may have: so many, of which so many are guaranteed to it.
    ShareUsed(Share),
    /// The call was accepted and failed.
    Failed(Failure),
}

/// Called with the answer's payload, or why there is none.
pub type Answered = Box<dyn FnOnce(Result<Vec<u8>, NoAnswer>) + Send>;

/// The longest sleep if the doorbell does not ring.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

struct Waiting {
    dispatcher: Dispatcher,
    /// By ticket.
    callers: HashMap<u64, Caller>,
    next_ticket: u64,
    /// Tenants' shares of the calls that may be under way.
    shares: Shares,
    /// How many calls of each tenant were refused since its share was used.
    refused: HashMap<TenantIndex, u64>,
    /// What they were last divided by.
    weights: Arc<[(TenantIndex, u32)]>,
}

/// What a tenant has of the calls that may be under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallAccount {
    /// Its share.
    pub share: Share,
    /// How many were refused.
    pub refused: u64,
}

/// The caller of a call under way.
struct Caller {
    /// None once the caller has given the call up.
    answered: Option<Answered>,
    tenant: TenantIndex,
    number: CallNumber,
}

/// Calls under way; see the module.
pub struct Invocations {
    waiting: Mutex<Waiting>,
    bell: Doorbell,
    stopping: AtomicBool,
}

impl Invocations {
    /// Creates the invocations that go through this dispatcher.
    #[must_use]
    pub fn new(dispatcher: Dispatcher) -> Self {
        let bell = dispatcher.bell().clone();
        let shares = Shares::new(dispatcher.calls_max() as u32);
        let waiting = Waiting {
            dispatcher,
            callers: HashMap::new(),
            next_ticket: 0,
            shares,
            refused: HashMap::new(),
            weights: Arc::default(),
        };
        Self { waiting: Mutex::new(waiting), bell, stopping: AtomicBool::new(false) }
    }

    /// Divides the calls that may be under way among the tenants with chains, by weight.
    pub fn divide(&self, weights: &Arc<[(TenantIndex, u32)]>) {
        let mut waiting = self.waiting();
        if !Arc::ptr_eq(&waiting.weights, weights) {
            waiting.shares.divide(weights);
            let has_chains: HashSet<TenantIndex> = weights.iter().map(|(tenant, _)| *tenant).collect();
            waiting.refused.retain(|tenant, _| has_chains.contains(tenant));
            waiting.weights = Arc::clone(weights);
        }
    }

    /// Returns a tenant's calls under way, and how many were refused.
    #[must_use]
    pub fn account(&self, tenant: TenantIndex) -> CallAccount {
        let waiting = self.waiting();
        CallAccount { share: waiting.shares.of(tenant), refused: waiting.refused.get(&tenant).copied().unwrap_or(0) }
    }

    /// Calls a function without waiting. `answered` is called once and must not block, unless the call is cancelled. If the call is accepted,
    /// another thread calls it. Returns the call's ticket if it was accepted.
    pub fn invoke(&self, callable: Callable, payload: &[u8], timeout: Duration, answered: Answered) -> Option<u64> {
        let Callable { function, tenant } = callable;
        let mut waiting = self.waiting();
        // Checked under the lock: a call that is added before `stopping` is seen is found when `run` answers the remaining callers.
        if self.stopping.load(Ordering::SeqCst) {
            drop(waiting);
            answered(Err(NoAnswer::Failed(Failure::Ended)));
            return None;
        }
        if !waiting.shares.has_room(tenant, 1) {
            let share = waiting.shares.of(tenant);
            *waiting.refused.entry(tenant).or_default() += 1;
            drop(waiting);
            answered(Err(NoAnswer::ShareUsed(share)));
            return None;
        }
        let ticket = waiting.next_ticket;
        let timeout_ns = timeout.as_nanos().try_into().unwrap_or(u64::MAX);
        match waiting.dispatcher.stage(function, ticket, timeout_ns, payload) {
            Ok(()) => {
                waiting.next_ticket += 1;
                waiting.shares.take(tenant, 1);
                let number = waiting.dispatcher.staged_last();
                waiting.callers.insert(ticket, Caller { answered: Some(answered), tenant, number });
                waiting.dispatcher.submit();
                Some(ticket)
            }
            Err(refused) => {
                drop(waiting);
                answered(Err(NoAnswer::Refused(refused)));
                None
            }
        }
    }

    /// Gives up a call: its caller is not answered any more, and its place is free within some milliseconds. Does nothing once it has been
    /// answered.
    pub fn cancel(&self, ticket: u64) {
        let mut waiting = self.waiting();
        let Waiting { dispatcher, callers, .. } = &mut *waiting;
        let Some(caller) = callers.get_mut(&ticket) else { return };
        let answered = caller.answered.take();
        if answered.is_some() {
            dispatcher.cancel(caller.number);
        }
        drop(waiting);
        drop(answered);
    }

    /// Runs the loop of this module's thread until [`Invocations::stop`].
    pub fn run(&self) {
        self.bell.answer_here();
        let (mut answers, mut given_up) = (Vec::new(), Vec::new());
        while !self.stopping.load(Ordering::SeqCst) {
            let mut waiting = self.waiting();
            let Waiting { dispatcher, callers, shares, .. } = &mut *waiting;
            dispatcher.poll(|ticket, outcome| {
                let Some(Caller { answered, tenant, number }) = callers.remove(&ticket) else { return };
                shares.give_back(tenant, 1);
                match answered {
                    Some(answered) => answers.push((answered, outcome.map(<[u8]>::to_vec).map_err(NoAnswer::Failed))),
                    None => given_up.push(number),
                }
            });
            given_up.drain(..).for_each(|number| dispatcher.forget_cancelled(number));
            drop(waiting);
            if answers.is_empty() {
                let has_work = || self.waiting().dispatcher.has_answers() || self.stopping.load(Ordering::SeqCst);
                self.bell.sleep(SLEEP_MAX, has_work);
            }
            answers.drain(..).for_each(|(caller, outcome)| caller(outcome));
        }
        // The node stops, so no answer comes any more.
        let callers = std::mem::take(&mut self.waiting().callers);
        let answered = callers.into_values().filter_map(|caller| caller.answered);
        answered.for_each(|answered| answered(Err(NoAnswer::Failed(Failure::Ended))));
    }

    /// Stops the thread; calls under way fail with [`Failure::Ended`].
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
