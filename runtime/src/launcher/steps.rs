//! The launcher's steps: how long it works before it yields its core to other threads (see `inbox.rs`).
//!
//! A polling thread without work on this core would poll in vain and yield again. Each time that costs two context switches, the poll, and
//! the launcher's cached data. So if such a thread has declared what it waits for, the launcher checks that itself, more often than it
//! would yield, and continues as long as there is nothing.

use std::sync::Arc;
use std::time::Duration;

use pinion_mma::notify::ReadyView;

use super::inbox::LauncherInbox;
use crate::clock::TscInstant;
use crate::cores::plan::CoreId;

/// How long the launcher works before it yields.
const STEP: Duration = Duration::from_micros(5);
/// The same on a core without a data-plane thread. The ticker may run there, which must run at the end of each quantum.
const STEP_APART: Duration = Duration::from_micros(20);
/// The same on the core of a thread that waits for its ready queue, while that is empty.
pub(crate) const UNCALLED_STEP: Duration = Duration::from_micros(100);

/// The launcher's steps; see the module.
pub struct Steps {
    inbox: Arc<LauncherInbox>,
    /// The ready queue of the worker on each core.
    inputs: Vec<(CoreId, ReadyView)>,
    began: TscInstant,
}

/// Whether a data-plane thread on this core needs the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neighbour {
    /// No data-plane thread polls here.
    None,
    /// One polls here, and it is not known whether it has work.
    MayHaveWork,
    /// One has yielded until its ready queue is raised, and the queue is empty.
    Waits,
    /// One has yielded until its ready queue is raised, and the queue is not empty.
    Called,
}

impl Steps {
    /// Creates the steps of a launcher with this inbox; `inputs` are the workers' ready queues, with their cores.
    pub(crate) fn new(inbox: Arc<LauncherInbox>, inputs: Vec<(CoreId, ReadyView)>) -> Self {
        Self { inbox, inputs, began: TscInstant::now() }
    }

    /// Begins a step. Called after a sleep.
    pub fn begin(&mut self) {
        self.began = TscInstant::now();
    }

    /// Yields the core if the step is over, or if a thread is known to need the core. Called between any two operations that take a while.
    pub fn give_way(&mut self) {
        let is_over = match self.neighbour() {
            Neighbour::Called => true,
            Neighbour::Waits => self.began.elapsed() >= UNCALLED_STEP,
            Neighbour::None => self.began.elapsed() >= STEP_APART,
            Neighbour::MayHaveWork => self.began.elapsed() >= STEP,
        };
        if is_over {
            std::thread::yield_now();
            self.began = TscInstant::now();
        }
    }

    /// Returns whether the launcher runs on a core without a role.
    pub fn are_apart(&self) -> bool {
        self.neighbour() == Neighbour::None
    }

    fn neighbour(&self) -> Neighbour {
        let here = rustix::thread::sched_getcpu();
        // A core on which the launcher runs beside roles always has a worker: otherwise the launcher runs on a core without a role.
        match self.inputs.iter().find(|(core, _)| usize::from(core.0) == here) {
            None => Neighbour::None,
            Some((core, _)) if self.inbox.patient_on() != Some(*core) => Neighbour::MayHaveWork,
            Some((_, inputs)) if inputs.is_empty() => Neighbour::Waits,
            Some(_) => Neighbour::Called,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::plan::pin_here;
    use crate::launcher::inbox::{Receivers, WakeHandle, Yielded};
    use crossbeam_channel::unbounded;
    use pinion_mma::id::FwpId;
    use pinion_mma::notify::ReadyQueue;
    use pinion_mma::notify::doorbell::Doorbell;

    const FWP: FwpId = FwpId { index: 3, generation: 0 };

    /// Returns what the launcher finds when a thread on its core has yielded with `given`, and that core's ready queue is raised or not.
    fn neighbour_of(given: Yielded, called: bool) -> Neighbour {
        let core = crate::cores::plan::available_cores().unwrap()[0];
        let receivers =
            Receivers { orders: unbounded().1, gateway: unbounded().1, mmas: unbounded().1, workers: unbounded().1 };
        let (inbox, mut inputs) = (Arc::new(LauncherInbox::new(receivers)), ReadyQueue::new(8, Doorbell::default()));
        let mut notifier = inputs.notifier();
        if called {
            notifier.raise(FWP);
        }
        let steps = Steps::new(Arc::clone(&inbox), vec![(core, inputs.view())]);
        let mut caller = WakeHandle::new(inbox, Some(core));
        std::thread::scope(|scope| {
            let launcher = scope.spawn(|| {
                pin_here(&[core]).unwrap();
                loop {
                    let found = steps.neighbour();
                    if found != Neighbour::MayHaveWork || given == Yielded::ForAStep {
                        return found;
                    }
                    std::thread::yield_now();
                }
            });
            while !launcher.is_finished() {
                caller.give_way(given);
            }
            launcher.join().unwrap()
        })
    }

    #[test]
    fn a_thread_that_waits_for_its_ready_queue_needs_the_core_once_that_is_raised() {
        assert_eq!(neighbour_of(Yielded::UntilCalled, false), Neighbour::Waits);
        assert_eq!(neighbour_of(Yielded::UntilCalled, true), Neighbour::Called);
    }

    #[test]
    fn a_thread_that_yielded_for_one_step_may_have_work() {
        assert_eq!(neighbour_of(Yielded::ForAStep, false), Neighbour::MayHaveWork);
    }

    #[test]
    fn on_a_core_without_a_worker_no_thread_polls() {
        let receivers =
            Receivers { orders: unbounded().1, gateway: unbounded().1, mmas: unbounded().1, workers: unbounded().1 };
        let elsewhere = (CoreId(u16::MAX), ReadyQueue::new(8, Doorbell::default()).view());
        let steps = Steps::new(Arc::new(LauncherInbox::new(receivers)), vec![elsewhere]);
        assert_eq!(steps.neighbour(), Neighbour::None);
    }
}
