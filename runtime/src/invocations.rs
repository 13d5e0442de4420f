//! Invocations for those who wait for one answer: the control API, and whoever embeds a node.
//!
//! ```text
//!   invoke (any thread) --lock--> Dispatcher --> gateway ...
//!   the thread `invocations`, asleep at the dispatcher's bell --> takes answers, calls whoever waits
//! ```
//!
//! Who invokes by the million takes a [`Dispatcher`] of his own instead, from [`crate::node::DataPlane::dispatcher`]. The lock here is between
//! control threads and this module's own; no thread of the data plane ever takes it.

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
    /// It was not taken.
    Refused(Refused),
    /// It was, and failed.
    Failed(Failure),
}

/// Called with the answer's payload, or why there is none.
pub type Answered = Box<dyn FnOnce(Result<Vec<u8>, NoAnswer>) + Send>;

/// The longest sleep without a ring.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

struct Waiting {
    dispatcher: Dispatcher,
    /// By ticket.
    callers: HashMap<u64, Answered>,
    next_ticket: u64,
}

/// See the module.
pub struct Invocations {
    waiting: Mutex<Waiting>,
    bell: Doorbell,
    stopping: AtomicBool,
}

impl Invocations {
    /// By this dispatcher.
    #[must_use]
    pub fn new(dispatcher: Dispatcher) -> Self {
        let bell = dispatcher.bell().clone();
        let waiting = Waiting { dispatcher, callers: HashMap::new(), next_ticket: 0 };
        Self { waiting: Mutex::new(waiting), bell, stopping: AtomicBool::new(false) }
    }

    /// Calls a function. Does not wait; `answered` is called once, by another thread if the call is taken, and must not wait either.
    pub fn invoke(&self, function: FunctionRef, payload: &[u8], timeout: Duration, answered: Answered) {
        let mut waiting = self.waiting();
        // Looked at under the lock: who is in time for the last look at those who wait is found by that.
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

    /// The thread's loop, until [`Invocations::stop`].
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
        // The node stops: nobody answers any more.
        let callers = std::mem::take(&mut self.waiting().callers);
        callers.into_values().for_each(|caller| caller(Err(NoAnswer::Failed(Failure::Ended))));
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
