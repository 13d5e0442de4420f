//! The launcher's steps: how long it is about something before it lets others have its core (see `desk.rs`).
//!
//! A thread that polls there and has nothing to do would find nothing, and give way again: each time that costs two switches, what its
//! poll takes, and what the launcher had near. So if such a thread has said what it waits for, the launcher looks for that by itself, more
//! often than it would give way, and goes on for as long as there is nothing.

use std::sync::Arc;
use std::time::Duration;

use pinion_mma::notify::ReadyView;

use super::desk::Desk;
use crate::clock::Moment;
use crate::plan::CoreId;

/// How long the launcher is about something before it gives way.
const STEP: Duration = Duration::from_micros(5);
/// The same where no data-plane thread is: the ticker may be there, which is to come at the end of a quantum.
const STEP_APART: Duration = Duration::from_micros(20);
/// The same beside a thread that waits to be called, and has not been.
pub(crate) const UNCALLED_STEP: Duration = Duration::from_micros(100);

/// See the module.
pub struct Steps {
    desk: Arc<Desk>,
    /// What calls the worker on each core.
    inputs: Vec<(CoreId, ReadyView)>,
    began: Moment,
}

/// Whether somebody on this core waits to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neighbour {
    /// Nobody polls here.
    Nobody,
    MayHaveWork,
    Waits,
    Called,
}

impl Steps {
    /// Of a launcher at this desk, beside workers that these queues call.
    pub(crate) fn new(desk: Arc<Desk>, inputs: Vec<(CoreId, ReadyView)>) -> Self {
        Self { desk, inputs, began: Moment::now() }
    }

    /// To be called after a rest: the next step begins now.
    pub fn begin(&mut self) {
        self.began = Moment::now();
    }

    /// To be called between any two things that take a while: lets others have the core if the last time is some microseconds past,
    /// or somebody is known to need it.
    pub fn give_way(&mut self) {
        let is_over = match self.neighbour() {
            Neighbour::Called => true,
            Neighbour::Waits => self.began.elapsed() >= UNCALLED_STEP,
            Neighbour::Nobody => self.began.elapsed() >= STEP_APART,
            Neighbour::MayHaveWork => self.began.elapsed() >= STEP,
        };
        if is_over {
            std::thread::yield_now();
            self.began = Moment::now();
        }
    }

    /// Whether it is on a core without a role.
    pub fn are_apart(&self) -> bool {
        self.neighbour() == Neighbour::Nobody
    }

    fn neighbour(&self) -> Neighbour {
        let here = rustix::thread::sched_getcpu();
        // Where any role is a worker is: else the launcher would be on a core without.
        match self.inputs.iter().find(|(core, _)| usize::from(core.0) == here) {
            None => Neighbour::Nobody,
            Some((core, _)) if self.desk.patient_on() != Some(*core) => Neighbour::MayHaveWork,
            Some((_, inputs)) if inputs.is_empty() => Neighbour::Waits,
            Some(_) => Neighbour::Called,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::desk::{Caller, Ears, GivenWay};
    use crate::plan::pin_here;
    use crossbeam_channel::unbounded;
    use pinion_mma::doorbell::Doorbell;
    use pinion_mma::id::FwpId;
    use pinion_mma::notify::ReadyQueue;

    const FWP: FwpId = FwpId { index: 3, generation: 0 };

    /// What the launcher finds beside it when a thread on this core has given way like that, and on that core's worker's queue are
    /// so many.
    fn neighbour_of(given: GivenWay, called: bool) -> Neighbour {
        let core = crate::plan::available_cores().unwrap()[0];
        let ears = Ears { orders: unbounded().1, gateway: unbounded().1, mmas: unbounded().1, workers: unbounded().1 };
        let (desk, mut inputs) = (Arc::new(Desk::new(ears)), ReadyQueue::new(8, Doorbell::default()));
        let mut notifier = inputs.notifier();
        if called {
            notifier.raise(FWP);
        }
        let steps = Steps::new(Arc::clone(&desk), vec![(core, inputs.view())]);
        let mut caller = Caller::new(desk, Some(core));
        std::thread::scope(|scope| {
            let launcher = scope.spawn(|| {
                pin_here(&[core]).unwrap();
                loop {
                    let found = steps.neighbour();
                    if found != Neighbour::MayHaveWork || given == GivenWay::ForAStep {
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
    fn a_thread_that_waits_to_be_called_does_not_need_the_core_until_it_is() {
        assert_eq!(neighbour_of(GivenWay::UntilCalled, false), Neighbour::Waits);
        assert_eq!(neighbour_of(GivenWay::UntilCalled, true), Neighbour::Called);
    }

    #[test]
    fn a_thread_that_gave_way_for_a_step_may_have_work() {
        assert_eq!(neighbour_of(GivenWay::ForAStep, false), Neighbour::MayHaveWork);
    }

    #[test]
    fn on_a_core_without_a_worker_there_is_nobody() {
        let ears = Ears { orders: unbounded().1, gateway: unbounded().1, mmas: unbounded().1, workers: unbounded().1 };
        let elsewhere = (CoreId(u16::MAX), ReadyQueue::new(8, Doorbell::default()).view());
        let steps = Steps::new(Arc::new(Desk::new(ears)), vec![elsewhere]);
        assert_eq!(steps.neighbour(), Neighbour::Nobody);
    }
}
