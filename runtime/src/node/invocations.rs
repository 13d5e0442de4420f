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

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pinion_gateway::invoke::{Dispatcher, Failure, FunctionRef, Refused};
use pinion_mma::doorbell::Doorbell;

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The call was not accepted.
    Refused(Refused),
    /// The call was accepted and failed.
    Failed(Failure),
}

/// Called with the answer's payload, or why there is none.
pub type Answered = Box<dyn FnOnce(Result<Vec<u8>, NoAnswer>) + Send>;

/// The longest sleep if the doorbell does not ring.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

struct Waiting {
    dispatcher: Dispatcher,
    /// Callbacks by ticket.
    callers: HashMap<u64, Answered>,
    next_ticket: u64,
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
        let waiting = Waiting { dispatcher, callers: HashMap::new(), next_ticket: 0 };
        Self { waiting: Mutex::new(waiting), bell, stopping: AtomicBool::new(false) }
    }

    /// Calls a function without waiting. `answered` is called once and must not block. If the call is accepted, another thread calls it.
    pub fn invoke(&self, function: FunctionRef, payload: &[u8], timeout: Duration, answered: Answered) {
        let mut waiting = self.waiting();
        // Checked under the lock: a call that is added before `stopping` is seen is found when `run` answers the remaining callers.
        if self.stopping.load(Ordering::SeqCst) {
            drop(waiting);
            return answered(Err(NoAnswer::Failed(Failure::Ended)));
        }
        let ticket = waiting.next_ticket;
        let timeout_ns = timeout.as_nanos().try_into().unwrap_or(u64::MAX);
        match waiting.dispatcher.stage(function, ticket, timeout_ns, payload) {
            Ok(()) => {
                waiting.next_ticket += 1;
                waiting.callers.insert(ticket, answered);
                waiting.dispatcher.submit();
            }
            Err(refused) => {
                drop(waiting);
                answered(Err(NoAnswer::Refused(refused)));
            }
        }
    }

    /// Runs the loop of this module's thread until [`Invocations::stop`].
    pub fn run(&self) {
        self.bell.answer_here();
        let mut answers = Vec::new();
        while !self.stopping.load(Ordering::SeqCst) {
            let mut waiting = self.waiting();
            let Waiting { dispatcher, callers, .. } = &mut *waiting;
            dispatcher.poll(|ticket, outcome| {
                answers.extend(
                    callers
                        .remove(&ticket)
                        .map(|caller| (caller, outcome.map(<[u8]>::to_vec).map_err(NoAnswer::Failed))),
                );
            });
            drop(waiting);
            if answers.is_empty() {
                let has_work = || self.waiting().dispatcher.has_answers() || self.stopping.load(Ordering::SeqCst);
                self.bell.sleep(SLEEP_MAX, has_work);
            }
            answers.drain(..).for_each(|(caller, outcome)| caller(outcome));
        }
        // The node stops, so no answer comes any more.
        let callers = std::mem::take(&mut self.waiting().callers);
        callers.into_values().for_each(|caller| caller(Err(NoAnswer::Failed(Failure::Ended))));
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
