//! How a worker goes on after its own code has panicked: with the same FWPs, and with records of them that are made anew.

use std::collections::VecDeque;

use pinion_mma::id::TENANTS_MAX;

use super::{Worker, WorkerEvent};
use crate::fwp::end_reason::EndReason;
use crate::instruments::metrics::Rounds;
use crate::scheduler::Scheduler;
use crate::worker::timers::Timers;

/// How often a worker may fail within [`WINDOW_NS`]. One that fails more often would do nothing else.
const FAILURES_MAX: usize = 8;
const WINDOW_NS: u64 = 10_000_000_000;

/// When the worker failed last.
#[derive(Default)]
pub(super) struct Failures(VecDeque<u64>);

impl Failures {
    /// Notes a failure.
    ///
    /// # Panics
    /// If there are too many.
    fn note(&mut self, now_ns: u64) {
        self.0.retain(|failed_ns| now_ns.saturating_sub(*failed_ns) < WINDOW_NS);
        self.0.push_back(now_ns);
        let count = self.0.len();
        assert!(count <= FAILURES_MAX, "a worker has failed {count} times within {} s", WINDOW_NS / 1_000_000_000);
    }
}

impl Worker {
    /// Goes on after a failure. The FWP that had its turn ends, since it may be in any state; all others are at rest between two turns,
    /// and look for input again. What the scheduler and the timers knew of them is derived from themselves. Tenants' accounts on this
    /// worker begin anew, with what their budgets allow at once. Returns how much work that was. Allocates: it is no part of the fast path.
    ///
    /// # Panics
    /// If the worker fails too often.
    #[cold]
    pub(super) fn begin_anew(&mut self) -> usize {
        self.clock.end();
        let now_ns = self.clock.now_ns();
        self.failures.note(now_ns);
        self.meters.failures.add(1);
        self.finish_release();
        let (fwps_max, quantum_ns) = (self.fwps.len(), self.clock.quantum_ns());
        let before = std::mem::replace(&mut self.scheduler, Scheduler::new(fwps_max, TENANTS_MAX, quantum_ns));
        (self.timers, self.rounds) = (Timers::new(fwps_max), Rounds::new(fwps_max));
        self.noticed.clear();
        self.sent.iter_mut().for_each(Vec::clear);
        let mut ended = Vec::new();
        for fwp in self.fwps.iter_mut().flatten().filter(|fwp| !fwp.is_end_reported()) {
            let id = fwp.id();
            // The MMA may not have been notified of what it has sent.
            self.mmas[id.mma(self.mmas.len()).0].raise(id);
            if before.has_core(id) || fwp.end_reason().is_some() {
                fwp.stop(fwp.end_reason().cloned().unwrap_or(EndReason::WorkerPanicked));
                ended.push(id);
                continue;
            }
            self.scheduler.adopt(id, fwp.terms().share, now_ns);
            // In its next turn it finds what it has missed.
            self.scheduler.wake(id, now_ns);
            if fwp.readings().is_some() {
                self.rounds.ran(id.index, now_ns);
            }
        }
        ended.iter().for_each(|id| self.report_end(*id));
        tracing::error!(ended = ended.len(), "a worker has failed and begun anew");
        1
    }

    /// Releases the FWP whose release was under way when the worker failed.
    fn finish_release(&mut self) {
        let Some(id) = self.releasing.take() else { return };
        if let Some(fwp) = self.fwps.get_mut(id.index as usize).and_then(|fwp| fwp.take_if(|fwp| fwp.id() == id)) {
            self.report(WorkerEvent::Released(fwp));
        }
    }
}

#[cfg(test)]
#[path = "../../tests/support/mod.rs"]
mod support;

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, Sender};

    use super::support::{Bench, ID, buffer};
    use super::*;
    use crate::tenants::accounts::MemoryAccounts;
    use crate::worker::WorkerCommand;

    const ECHO: &str = include_str!("../../tests/support/echo.wat");
    const MEMORY_BYTES_MAX: usize = 1 << 20;

    /// Returns a worker with an FWP of this guest.
    fn worker_with(guest: &str) -> (Bench, Worker, Sender<WorkerCommand>, Receiver<WorkerEvent>) {
        let mut bench = Bench::new();
        let (mut worker, commands, events) = bench.worker();
        let template = bench.template(guest, MEMORY_BYTES_MAX).unwrap();
        let fwp = bench.launch_from(&template, MemoryAccounts::default()).unwrap();
        commands.send(WorkerCommand::Adopt(Box::new(fwp))).unwrap();
        worker.poll();
        (bench, worker, commands, events)
    }

    /// Lets the worker fail, and returns why its only FWP has ended.
    fn end_by_failure(guest: &str) -> EndReason {
        let (mut bench, mut worker, _commands, events) = worker_with(guest);
        // It cannot note what an FWP has sent.
        worker.sent = Box::default();
        bench.send(buffer(), 60);
        worker.poll();
        assert_eq!(worker.meters.failures.value(), 1);
        let Ok(WorkerEvent::Ended { id, reason }) = events.try_recv() else { panic!("its end is not reported") };
        assert_eq!(id, ID);
        assert_eq!((worker.poll(), worker.meters.failures.value()), (0, 1), "it has no further turn");
        assert!(events.is_empty());
        reason
    }

    #[test]
    fn the_fwp_that_has_its_turn_when_its_worker_fails_ends() {
        assert_eq!(end_by_failure(ECHO), EndReason::WorkerPanicked);
    }

    #[test]
    fn an_end_that_was_not_reported_before_its_worker_failed_is_reported_with_its_own_reason() {
        let returns = ECHO
            .replace("(br $for_ever)", "(return)")
            .replace("(block $done", "(if (local.get $left) (then (return))) (block $done");
        assert_eq!(end_by_failure(&returns), EndReason::Returned);
    }

    #[test]
    fn an_fwp_whose_release_fails_is_released_all_the_same() {
        let (mut bench, mut worker, commands, events) = worker_with(ECHO);
        worker.timers = Timers::new(0);
        commands.send(WorkerCommand::Release(ID)).unwrap();
        worker.poll();
        assert_eq!(worker.meters.failures.value(), 1);
        let Ok(WorkerEvent::Released(fwp)) = events.try_recv() else { panic!("it was not released") };
        bench.dismantle(*fwp);
    }

    #[test]
    fn only_failures_of_the_last_ten_seconds_count() {
        let mut failures = Failures::default();
        (0..100).for_each(|number| failures.note(number * WINDOW_NS / FAILURES_MAX as u64));
        let too_many = std::panic::catch_unwind(move || failures.note(99 * WINDOW_NS / FAILURES_MAX as u64 + 1));
        assert!(too_many.is_err());
    }
}
