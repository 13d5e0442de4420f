//! FWPs that wait for a deadline as well as for packets, turn by turn.

mod support;

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use pinion_runtime::clock;
use pinion_runtime::fwp::end_reason::EndReason;
use pinion_runtime::fwp::{Fwp, Turn, TurnReason};
use pinion_runtime::tenants::scheduling_params::CLOCK_STEP_US;
use pinion_runtime::worker::{Worker, WorkerCommand, WorkerEvent};
use support::{Bench, ID, QUANTUM, buffer};

const MEMORY_BYTES_MAX: usize = 1 << 20;
/// The steps of a guest's clock.
const CLOCK_STEP: Duration = Duration::from_micros(CLOCK_STEP_US as u64);
/// The exit status of a guest whose wait reported that its deadline had passed: 100 more than the wait's result.
const PASSED: i32 = 99;

/// Returns a guest that waits for its first packet, and notes the time of its arrival. From then on, `$wait` waits until that time plus its
/// argument, and returns the import's result.
fn guest(run: &str) -> String {
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait_for_packets (result i32)))
            (import "pinion" "wait_until" (func $wait_until (param i64) (result i32)))
            (import "pinion" "clock" (func $clock (result i64)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\10\00\00\04\00\00\00\00\04\00\00\00\08\00\00")
            (global $start (mut i64) (i64.const 0))
            (func (export "pinion_abi_v3"))
            (func (export "pinion_init") (result i32) (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func $wait (param $later_ns i64) (result i32) (local $told i32)
                (loop $again
                    (local.set $told (call $wait_until (i64.add (global.get $start) (local.get $later_ns))))
                    (br_if $again (i32.eqz (local.get $told))))
                (local.get $told))
            (func $exit_with (param $told i32) (call $exit (i32.add (local.get $told) (i32.const 100))))
            (func (export "pinion_run") (local $sent i32) {FIRST_PACKET} {run}))"#
    )
}

const FIRST_PACKET: &str =
    "(loop $first (br_if $first (i32.eqz (call $wait_for_packets)))) (global.set $start (call $clock))";

/// Launches an FWP that has had its first packet, and waits.
#[track_caller]
fn launch(bench: &mut Bench, run: &str) -> Fwp {
    let mut fwp = bench.launch(&guest(run), MEMORY_BYTES_MAX).unwrap();
    bench.send(buffer(), 60);
    while !matches!(bench.resume(&mut fwp), Turn::Waiting { .. }) {}
    fwp
}

/// Gives turns until the FWP has ended; returns its exit status, and the number of turns.
#[track_caller]
fn exit_of(bench: &Bench, fwp: &mut Fwp) -> (i32, u32) {
    let start = Instant::now();
    for turns in 1.. {
        match bench.resume(fwp) {
            Turn::Ended(EndReason::Exited(status)) => return (status, turns),
            Turn::Ended(reason) => panic!("it ended: {reason}"),
            Turn::Waiting { .. } | Turn::Preempted => {}
        }
        assert!(start.elapsed() < Duration::from_secs(10), "it does not end");
    }
    unreachable!()
}

#[test]
fn a_guest_sleeps_exactly_until_its_deadline() {
    const LATER: Duration = Duration::from_millis(20);
    let mut bench = Bench::new();
    let before_ns = clock::now_ns();
    let mut fwp = launch(&mut bench, "(call $exit_with (call $wait (i64.const 20000000)))");
    let deadline_ns = fwp.deadline_ns().expect("it waits for one");
    // The guest's clock is up to two steps behind, and shows the time of the deadline up to a step late.
    let step_ns = CLOCK_STEP.as_nanos() as u64;
    let around = before_ns.saturating_sub(2 * step_ns)..clock::now_ns() + step_ns;
    assert!(around.contains(&(deadline_ns - LATER.as_nanos() as u64)));
    let resumes = fwp.counters().guest.resumes.value();
    while clock::now_ns() < deadline_ns {
        let before_ns = clock::now_ns();
        let is_early = matches!(bench.resume(&mut fwp), Turn::Waiting { sent: 0 });
        assert!(is_early || clock::now_ns() >= deadline_ns, "it was told at {before_ns} of {deadline_ns}");
        if !is_early {
            bench.dismantle(fwp);
            return;
        }
        assert_eq!(fwp.counters().guest.resumes.value(), resumes, "it ran before its time");
    }
    assert_eq!(exit_of(&bench, &mut fwp), (PASSED, 1));
    bench.dismantle(fwp);
}

#[test]
fn packets_before_the_deadline_come_first() {
    let mut bench = Bench::new();
    let mut fwp = launch(&mut bench, "(call $exit_with (call $wait (i64.const 3600000000000)))");
    for _ in 0..3 {
        assert!(matches!(bench.resume(&mut fwp), Turn::Waiting { sent: 0 }));
    }
    bench.send(buffer(), 60);
    assert_eq!(exit_of(&bench, &mut fwp), (101, 1));
    bench.dismantle(fwp);
}

#[test]
fn packets_at_the_deadline_come_first_too() {
    let mut bench = Bench::new();
    let mut fwp = launch(&mut bench, "(call $exit_with (call $wait (i64.const 0)))");
    bench.send(buffer(), 60);
    assert_eq!(exit_of(&bench, &mut fwp), (101, 1));
    bench.dismantle(fwp);
}

#[test]
fn a_wait_for_packets_only_after_one_with_a_deadline_has_none() {
    let wait = "(drop (call $wait (i64.const 0))) (loop $rest (drop (call $wait_for_packets)) (br $rest))";
    let mut bench = Bench::new();
    let mut fwp = launch(&mut bench, wait);
    assert!(fwp.deadline_ns().is_some());
    let resumes = fwp.counters().guest.resumes.value();
    for _ in 0..2 {
        assert!(matches!(bench.resume(&mut fwp), Turn::Waiting { sent: 0 }));
        assert_eq!(fwp.deadline_ns(), None);
    }
    assert_eq!(fwp.counters().guest.resumes.value(), resumes + 1);
    bench.dismantle(fwp);
}

#[test]
fn repeated_waits_for_past_deadlines_yield_the_core_each_time() {
    let forever = "(loop $forever (drop (call $wait_until (i64.const -5))) (br $forever))";
    let mut bench = Bench::new();
    let mut fwp = launch(&mut bench, forever);
    let mut preempted = 0;
    for _ in 0..1000 {
        let start = Instant::now();
        match bench.resume(&mut fwp) {
            Turn::Waiting { sent } => assert_eq!(sent, 0),
            // Possible if the machine had the core for itself during the turn.
            Turn::Preempted => {
                assert!(start.elapsed() > QUANTUM / 2, "it was preempted at once");
                preempted += 1;
            }
            Turn::Ended(reason) => panic!("it ended: {reason}"),
        }
    }
    assert!(preempted < 100, "{preempted} of 1000 turns lasted until their quantum was over");
    bench.dismantle(fwp);
}

#[test]
fn rings_are_exchanged_during_waits_for_past_deadlines() {
    // Drops its first packet, and sends one more each time it is told of any.
    let echo = r"(local.set $sent (i32.const 1))
        (memory.copy (i32.const 2064) (i32.const 1040) (i32.const 16))
        (i32.store16 (i32.const 2070) (i32.const 0xffff)) (i32.store (i32.const 2052) (i32.const 1))
        (loop $forever
            (if (i32.gt_s (call $wait (i64.const 0)) (i32.const 0)) (then
                (memory.copy (i32.add (i32.const 2064) (i32.shl (i32.and (local.get $sent) (i32.const 3)) (i32.const 4)))
                             (i32.add (i32.const 1040) (i32.shl (i32.and (local.get $sent) (i32.const 3)) (i32.const 4)))
                             (i32.const 16))
                (local.set $sent (i32.add (local.get $sent) (i32.const 1)))
                (i32.store (i32.const 2052) (local.get $sent))))
            (br $forever))";
    let mut bench = Bench::new();
    let mut fwp = launch(&mut bench, echo);
    for _ in 0..10 {
        bench.send(buffer(), 60);
        let mut sent = 0;
        for _ in 0..3 {
            match bench.resume(&mut fwp) {
                Turn::Waiting { sent: count } => sent += count,
                Turn::Preempted => {}
                Turn::Ended(reason) => panic!("it ended: {reason}"),
            }
        }
        assert_eq!(sent, 1);
        bench.mma.poll();
        assert!(bench.gateway.outbound.pop().is_some());
    }
    bench.dismantle(fwp);
}

#[test]
fn before_its_first_packet_an_fwp_has_no_deadline_though_it_waits_for_one() {
    let run = "(drop (call $wait (i64.const 0))) (call $exit_with (call $wait (i64.const 0)))";
    let mut bench = Bench::new();
    let mut fwp = bench.launch(&guest(run).replace(FIRST_PACKET, ""), MEMORY_BYTES_MAX).unwrap();
    assert_eq!(fwp.deadline_ns(), None);
    for occasion in [TurnReason::Work, TurnReason::Rehearsal, TurnReason::Work] {
        let started_ns = bench.clock.begin();
        let (turn, _) = fwp.turn(occasion, &bench.clock, started_ns);
        assert!(matches!(turn, Turn::Waiting { sent: 0 }), "it was told, at {occasion:?}");
        bench.clock.end();
    }
    bench.send(buffer(), 60);
    // Together with the packet, it gets the next deadline.
    assert!(matches!(bench.resume(&mut fwp), Turn::Waiting { .. }));
    assert!(fwp.deadline_ns().is_some());
    assert_eq!(exit_of(&bench, &mut fwp), (PASSED, 1));
    bench.dismantle(fwp);
}

#[test]
fn a_wait_with_a_deadline_during_initialisation_is_refused_by_name() {
    let init = r#"(func (export "pinion_init") (result i32) (i32.const 0))"#;
    let waits = r#"(func (export "pinion_init") (result i32) (call $wait_until (i64.const 0)))"#;
    let wat = guest("").replace(init, waits);
    let said = |wat: &str| Bench::new().launch(wat, MEMORY_BYTES_MAX).err().map(|reason| reason.to_string());
    let refused = said(&wat).unwrap_or_default();
    assert!(refused.ends_with("it called pinion.wait_until during its initialisation"), "{refused}");
    // A module of which no snapshot can be taken, and which initialises itself.
    let table = "(table 1 funcref) (func (table.set (i32.const 0) (ref.null func))) (func $exit_with";
    let refused = said(&wat.replace("(func $exit_with", table)).unwrap_or_default();
    assert!(refused.ends_with("it called pinion.wait_until during its initialisation"), "{refused}");
}

#[test]
fn a_worker_gives_an_fwp_its_turn_at_its_deadline_without_a_notification() {
    const LATER: Duration = Duration::from_millis(5);
    let mut bench = Bench::new();
    let fwp = bench.launch(&guest("(call $exit_with (call $wait (i64.const 5000000)))"), MEMORY_BYTES_MAX).unwrap();
    let (mut worker, commands, events) = bench.worker();
    commands.send(WorkerCommand::Adopt(Box::new(fwp))).unwrap();
    worker.poll();
    assert_eq!(worker.time_to_deadline(), None);
    let start = Instant::now();
    bench.send(buffer(), 60);
    while worker.time_to_deadline().is_none() {
        worker.poll();
    }
    // Its clock shows the time of the deadline up to a step late, and a tick of the worker's timers may pass until then.
    assert!(worker.time_to_deadline() <= Some(LATER + CLOCK_STEP + Duration::from_micros(17)));
    let reason = loop {
        worker.poll();
        if let Ok(WorkerEvent::Ended { reason, .. }) = events.try_recv() {
            break reason;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "it was not woken");
    };
    assert_eq!((reason, worker.time_to_deadline()), (EndReason::Exited(PASSED), None));
    // Its clock was up to two steps behind when it chose the deadline.
    assert!(start.elapsed() + 2 * CLOCK_STEP >= LATER);
    release(bench, worker, &commands, &events);
}

#[test]
fn a_worker_forgets_a_deadline_with_its_fwp() {
    let mut bench = Bench::new();
    let fwp = bench.launch(&guest("(drop (call $wait (i64.const 3600000000000)))"), MEMORY_BYTES_MAX).unwrap();
    let (mut worker, commands, events) = bench.worker();
    commands.send(WorkerCommand::Adopt(Box::new(fwp))).unwrap();
    bench.send(buffer(), 60);
    while worker.time_to_deadline().is_none() {
        worker.poll();
    }
    release(bench, worker, &commands, &events);
}

/// Makes the worker give its FWP back, and dismantles the FWP.
#[track_caller]
fn release(mut bench: Bench, mut worker: Worker, commands: &Sender<WorkerCommand>, events: &Receiver<WorkerEvent>) {
    commands.send(WorkerCommand::Release(ID)).unwrap();
    worker.poll();
    assert_eq!(worker.time_to_deadline(), None);
    let Ok(WorkerEvent::Released(fwp)) = events.try_recv() else { panic!("it was not released") };
    bench.dismantle(*fwp);
}
