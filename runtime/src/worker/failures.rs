//! How a worker goes on after its own code has panicked: without the FWPs that it had, and with fresh records. Their clients get other
//! instances. Other workers share nothing with it that a panic could leave half changed.

use std::collections::VecDeque;

use pinion_mma::id::{FwpId, TENANTS_MAX};

use super::{Worker, WorkerEvent};
use crate::fwp::end_reason::EndReason;
use crate::instruments::metrics::Rounds;
use crate::scheduler::Scheduler;
use crate::worker::timers::Timers;

/// How often a worker may panic within [`WINDOW_NS`]. One that panics more often would do nothing else.
const FAILURES_MAX: usize = 8;
const WINDOW_NS: u64 = 10_000_000_000;

/// When the worker panicked last.
#[derive(Default)]
pub(super) struct Failures(VecDeque<u64>);

impl Failures {
    /// Notes a panic.
    ///
    /// # Panics
    /// If there are too many.
    fn note(&mut self, now_ns: u64) {
        self.0.retain(|failed_ns| now_ns.saturating_sub(*failed_ns) < WINDOW_NS);
        self.0.push_back(now_ns);
        let count = self.0.len();
        assert!(count <= FAILURES_MAX, "a worker has panicked {count} times within {} s", WINDOW_NS / 1_000_000_000);
    }
}

impl Worker {
    /// Begins anew after a panic. All FWPs of the worker end: any of them may share what the panic left in any state. The one that the worker
    /// worked for ends with a reason of its own, and is reported first, so that the launcher can ban its chain. Nothing of what scheduler,
    /// timers and readings of metrics knew is kept; tenants' accounts on this worker begin with what their budgets allow at once. The worker
    /// keeps the FWPs until they are released, as the MMA copies into their memory. Returns how much work that was. Allocates: it is no part
    /// of the fast path.
    ///
    /// # Panics
    /// If the worker panics too often.
    #[cold]
    pub(super) fn begin_anew(&mut self) -> usize {
        self.clock.end();
        self.failures.note(self.clock.now_ns());
        self.meters.failures.add(1);
        let culprit = self.culprit();
        self.finish_release();
        let fwps_max = self.fwps.len();
        self.scheduler = Scheduler::new(fwps_max, TENANTS_MAX, self.clock.quantum_ns());
        (self.timers, self.rounds) = (Timers::new(fwps_max), Rounds::new(fwps_max));
        let upcoming = std::mem::take(&mut self.rehearsals).upcoming;
        self.keep_warm(upcoming);
        (self.passed_on, self.kept_to_itself) = (false, false);
        self.noticed.clear();
        self.sent.iter_mut().for_each(Vec::clear);
        let mut ended = Vec::new();
        for fwp in self.fwps.iter_mut().flatten().filter(|fwp| !fwp.is_end_reported()) {
            let id = fwp.id();
            // The MMA may not have been notified of what it sent.
            self.mmas[id.mma(self.mmas.len()).0].raise(id);
            if Some(id) == culprit {
                fwp.stop(EndReason::WorkerPanicked);
                ended.insert(0, id);
            } else {
                if fwp.end_reason().is_none() {
                    fwp.stop(EndReason::WorkerRestarted);
                }
                ended.push(id);
            }
        }
        ended.iter().for_each(|id| self.report_end(*id));
        tracing::error!(ended = ended.len(), "a worker has panicked: its instances end, and it begins anew");
        1
    }

    /// Returns the FWP that the worker worked for: which had its turn, or was adopted or released.
    fn culprit(&mut self) -> Option<FwpId> {
        let had_turn = || self.fwps.iter().flatten().map(|fwp| fwp.id()).find(|id| self.scheduler.has_core(*id));
        self.commanded.take().or_else(had_turn)
    }

    /// Releases the FWP whose release was under way when the worker panicked.
    fn finish_release(&mut self) {
        let Some(id) = self.releasing.take() else { return };
        if let Some(fwp) = self.fwps.get_mut(id.index as usize).and_then(|fwp| fwp.take_if(|fwp| fwp.id() == id)) {
            self.report(WorkerEvent::Ended { id, reason: EndReason::WorkerPanicked });
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

    /// Lets the worker panic in its only FWP's turn, and returns why that has ended.
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
    fn the_fwp_that_has_its_turn_when_its_worker_panics_ends_with_a_reason_of_its_own() {
        assert_eq!(end_by_failure(ECHO), EndReason::WorkerPanicked);
    }

    #[test]
    fn an_fwp_in_whose_last_turn_its_worker_panics_is_reported_as_the_one_that_had_its_turn() {
        let returns = ECHO
            .replace("(br $for_ever)", "(return)")
            .replace("(block $done", "(if (local.get $left) (then (return))) (block $done");
        assert_eq!(end_by_failure(&returns), EndReason::WorkerPanicked);
    }

    #[test]
    fn an_fwp_whose_adoption_fails_ends_with_the_reason_of_the_one_that_had_its_turn() {
        let mut bench = Bench::new();
        let (mut worker, commands, events) = bench.worker();
        worker.scheduler = Scheduler::new(0, TENANTS_MAX, 1);
        let fwp = bench.launch(ECHO, MEMORY_BYTES_MAX).unwrap();
        commands.send(WorkerCommand::Adopt(Box::new(fwp))).unwrap();
        worker.poll();
        let Ok(WorkerEvent::Ended { id, reason }) = events.try_recv() else { panic!("its end is not reported") };
        assert_eq!((id, reason), (ID, EndReason::WorkerPanicked));
        commands.send(WorkerCommand::Release(ID)).unwrap();
        worker.poll();
        let Ok(WorkerEvent::Released(fwp)) = events.try_recv() else { panic!("it was not released") };
        bench.dismantle(*fwp);
    }

    #[test]
    fn an_fwp_whose_release_fails_is_released_all_the_same_and_named() {
        let (mut bench, mut worker, commands, events) = worker_with(ECHO);
        worker.timers = Timers::new(0);
        commands.send(WorkerCommand::Release(ID)).unwrap();
        worker.poll();
        assert_eq!(worker.meters.failures.value(), 1);
        let Ok(WorkerEvent::Ended { id, reason }) = events.try_recv() else { panic!("it is not named") };
        assert_eq!((id, reason), (ID, EndReason::WorkerPanicked));
        let Ok(WorkerEvent::Released(fwp)) = events.try_recv() else { panic!("it was not released") };
        bench.dismantle(*fwp);
    }

    #[test]
    fn only_panics_of_the_last_ten_seconds_count() {
        let mut failures = Failures::default();
        (0..100).for_each(|number| failures.note(number * WINDOW_NS / FAILURES_MAX as u64));
        let too_many = std::panic::catch_unwind(move || failures.note(99 * WINDOW_NS / FAILURES_MAX as u64 + 1));
        assert!(too_many.is_err());
    }
}
