//! What ends when a part of the node panics: in a host call the FWP that made one, in a worker's own code all FWPs of that worker.

mod support;

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use pinion_runtime::containment::Panicked;
use pinion_runtime::fwp::end_reason::EndReason;
use pinion_runtime::fwp::template::Template;
use pinion_runtime::tenants::accounts::MemoryAccounts;
use pinion_runtime::worker::{Worker, WorkerCommand, WorkerEvent};
use support::{Bench, ID, UNKNOWN, buffer};

const ECHO: &str = include_str!("support/echo.wat");
const MEMORY_BYTES_MAX: usize = 1 << 20;
const WAIT: &str = r#"(import "pinion" "wait" (func $wait (result i32)))"#;
/// Panics that a worker survives in a short time.
const FAILURES: usize = 8;

/// Returns a bench whose clock panics when a guest reads it.
fn broken_clock() -> Bench {
    let mut bench = Bench::new();
    bench.linker.allow_shadowing(true);
    bench.linker.func_wrap("pinion", "clock", || -> i64 { panic!("as planned") }).unwrap();
    bench
}

/// Returns a guest that reads the clock: with each batch, or before its first wait.
fn reads_clock(at_first: bool) -> String {
    let imports = format!(r#"{WAIT} (import "pinion" "clock" (func $clock (result i64)))"#);
    let taken = "(local.set $left (call $wait))";
    let guest = ECHO.replace(WAIT, &imports);
    if at_first {
        guest.replace("(loop $for_ever", "(drop (call $clock)) (loop $for_ever")
    } else {
        guest.replace(taken, &format!("{taken} (if (local.get $left) (then (drop (call $clock))))"))
    }
}

struct House {
    bench: Bench,
    worker: Worker,
    commands: Sender<WorkerCommand>,
    events: Receiver<WorkerEvent>,
}

impl House {
    fn new(mut bench: Bench) -> Self {
        let (worker, commands, events) = bench.worker();
        Self { bench, worker, commands, events }
    }

    fn adopt(&mut self, template: &Arc<Template>) {
        let fwp = self.bench.launch_from(template, MemoryAccounts::default()).unwrap();
        self.commands.send(WorkerCommand::Adopt(Box::new(fwp))).unwrap();
        self.worker.poll();
    }

    fn take_back(&mut self) {
        self.commands.send(WorkerCommand::Release(ID)).unwrap();
        self.worker.poll();
        let Ok(WorkerEvent::Released(fwp)) = self.events.try_recv() else { panic!("it was not released") };
        self.bench.dismantle(*fwp);
    }

    /// Returns whether a packet comes back.
    fn is_answered(&mut self) -> bool {
        self.bench.send(buffer(), 60);
        self.worker.poll();
        self.bench.mma.poll();
        self.bench.gateway.outbound.pop().is_some()
    }
}

#[test]
fn a_host_call_that_panics_ends_its_fwp_and_no_other() {
    let mut house = House::new(broken_clock());
    let failing = house.bench.template(&reads_clock(false), MEMORY_BYTES_MAX).unwrap();
    let echo = house.bench.template(ECHO, MEMORY_BYTES_MAX).unwrap();
    for _ in 0..2 * FAILURES {
        house.adopt(&failing);
        assert!(!house.is_answered());
        let Ok(WorkerEvent::Ended { id, reason }) = house.events.try_recv() else { panic!("it goes on") };
        assert_eq!((id, reason), (ID, EndReason::HostPanicked(Panicked)));
        // The MMA copies into its memory until it has released it.
        assert!(!house.is_answered(), "it has ended");
        house.take_back();
        house.adopt(&echo);
        assert!(house.is_answered(), "the next FWP in its place");
        house.take_back();
    }
    assert_eq!(house.worker.meters().failures.value(), 0, "the worker has not panicked");
}

#[test]
fn a_host_call_that_panics_before_the_first_wait_fails_the_preparation_only() {
    let mut bench = broken_clock();
    let failed = bench.launch(&reads_clock(true), MEMORY_BYTES_MAX).map(drop);
    assert_eq!(failed, Err(EndReason::HostPanicked(Panicked)));
    let fwp = bench.launch(ECHO, MEMORY_BYTES_MAX).unwrap();
    bench.dismantle(fwp);
}

#[test]
fn a_worker_that_panics_ends_the_fwps_that_it_has_and_serves_the_next_ones() {
    let mut house = House::new(Bench::new());
    let echo = house.bench.template(ECHO, MEMORY_BYTES_MAX).unwrap();
    for failure in 1..=FAILURES {
        house.adopt(&echo);
        assert!(house.is_answered());
        house.commands.send(UNKNOWN).unwrap();
        house.worker.poll();
        assert_eq!(house.worker.meters().failures.value(), failure as u64);
        let Ok(WorkerEvent::Ended { id, reason }) = house.events.try_recv() else { panic!("it goes on") };
        assert_eq!((id, reason), (ID, EndReason::WorkerRestarted), "it did not have its turn");
        // The MMA copies into its memory until it has released it.
        assert!(!house.is_answered(), "it has ended");
        assert!(house.events.is_empty(), "its end is reported once");
        house.take_back();
    }
}

#[test]
fn what_an_fwp_sent_before_its_worker_panicked_leaves() {
    let mut house = House::new(Bench::new());
    let echo = house.bench.template(ECHO, MEMORY_BYTES_MAX).unwrap();
    house.adopt(&echo);
    house.bench.send(buffer(), 60);
    house.worker.poll();
    house.commands.send(UNKNOWN).unwrap();
    house.worker.poll();
    house.bench.mma.poll();
    assert!(house.bench.gateway.outbound.pop().is_some());
    assert!(matches!(house.events.try_recv(), Ok(WorkerEvent::Ended { .. })));
    house.take_back();
}

#[test]
fn no_deadline_of_an_fwp_outlasts_a_panic_of_the_worker() {
    let waits = r#"(import "pinion" "wait_until" (func $wait_until (param i64) (result i32)))
        (import "pinion" "clock" (func $clock (result i64)))"#;
    let in_an_hour = "(call $wait_until (i64.add (call $clock) (i64.const 3600000000000)))";
    let guest = ECHO.replace("(call $wait)", in_an_hour).replace(WAIT, waits);
    let mut house = House::new(Bench::new());
    let template = house.bench.template(&guest, MEMORY_BYTES_MAX).unwrap();
    house.adopt(&template);
    assert!(house.is_answered());
    assert!(house.worker.time_to_deadline().is_some());
    house.commands.send(UNKNOWN).unwrap();
    house.worker.poll();
    assert!(house.worker.time_to_deadline().is_none());
    assert!(matches!(house.events.try_recv(), Ok(WorkerEvent::Ended { .. })));
    house.take_back();
}

#[test]
#[should_panic(expected = "a worker has panicked 9 times within 10 s")]
fn a_worker_that_panics_again_and_again_gives_up() {
    let mut house = House::new(Bench::new());
    for _ in 0..=FAILURES {
        house.commands.send(UNKNOWN).unwrap();
        house.worker.poll();
    }
}
