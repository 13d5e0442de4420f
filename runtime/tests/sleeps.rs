//! FWPs that sleep by `poll_oneoff` and read the date, turn by turn.

mod support;

use std::fmt::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pinion_runtime::clock;
use pinion_runtime::fwp::end_reason::EndReason;
use pinion_runtime::fwp::{Fwp, Turn, TurnReason};
use pinion_runtime::worker::{WorkerCommand, WorkerEvent};
use support::{Bench, ID, buffer};

const MEMORY_BYTES_MAX: usize = 1 << 20;

const REALTIME: u32 = 0;
const MONOTONIC: u32 = 1;
const RELATIVE: u16 = 0;
const ABSOLUTE: u16 = 1;
const INVAL: i32 = 28;
const FAULT: i32 = 21;

/// A subscription: where `poll_oneoff` reads it, and what its event repeats.
fn subscription(user_data: u64, kind: u8, of: u32, time_ns: u64, flags: u16) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[..8].copy_from_slice(&user_data.to_le_bytes());
    bytes[8] = kind;
    bytes[16..20].copy_from_slice(&of.to_le_bytes());
    bytes[24..32].copy_from_slice(&time_ns.to_le_bytes());
    bytes[40..42].copy_from_slice(&flags.to_le_bytes());
    bytes
}

fn clock(user_data: u64, clock: u32, time: Duration, flags: u16) -> Vec<u8> {
    subscription(user_data, 0, clock, time.as_nanos() as u64, flags)
}

fn to_read(user_data: u64, fd: u32) -> Vec<u8> {
    subscription(user_data, 1, fd, 0, 0)
}

fn to_write(user_data: u64, fd: u32) -> Vec<u8> {
    subscription(user_data, 2, fd, 0, 0)
}

/// Returns a guest with these subscriptions at 8192, room for events from 16384 on, and the number of events at 8188. It waits for its first
/// packet, if `run` begins so, and ends with a status.
fn guest(subscriptions: &[Vec<u8>], run: &str) -> String {
    let mut data = String::new();
    subscriptions.iter().flatten().for_each(|byte| write!(data, "\\{byte:02x}").unwrap());
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (import "pinion" "clock" (func $clock (result i64)))
            (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "clock_time_get" (func $time (param i32 i64 i32) (result i32)))
            (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 4)
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\40\01\00\04\00\00\00\00\04\00\00\00\08\00\00")
            (data (i32.const 8192) "{data}")
            (func (export "pinion_abi_v3"))
            (func (export "pinion_init") (result i32) (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func $first_packet (loop $first (br_if $first (i32.eqz (call $wait)))))
            (func $sleep (result i32)
                (call $poll (i32.const 8192) (i32.const 16384) (i32.const {count}) (i32.const 8188)))
            (func $check (param $errno i32)
                (if (local.get $errno) (then (call $exit (i32.add (i32.const 1000) (local.get $errno))))))
            (func (export "pinion_run") {run}))"#,
        count = subscriptions.len(),
    )
}

/// Waits for a packet, sleeps, and exits with the number of events.
const SLEEP_AND_COUNT: &str =
    "(call $first_packet) (call $check (call $sleep)) (call $exit (i32.load (i32.const 8188)))";

/// Launches an FWP that gets a packet at once.
#[track_caller]
fn launch(bench: &mut Bench, wat: &str) -> Fwp {
    let fwp = bench.launch(wat, MEMORY_BYTES_MAX).unwrap();
    bench.send(buffer(), 60);
    fwp
}

/// Gives turns until the FWP has ended; returns its exit status, and in how many of its turns its guest ran.
#[track_caller]
fn exit_of(bench: &Bench, fwp: &mut Fwp) -> (i32, u64) {
    let (start, before) = (Instant::now(), fwp.counters().guest.resumes.value());
    loop {
        match bench.resume(fwp) {
            Turn::Ended(EndReason::Exited(status)) => return (status, fwp.counters().guest.resumes.value() - before),
            Turn::Ended(reason) => panic!("it ended: {reason}"),
            Turn::Waiting { .. } | Turn::Preempted => {}
        }
        assert!(start.elapsed() < Duration::from_secs(10), "it does not end");
    }
}

/// Returns the exit status of a guest with these subscriptions that does this.
#[track_caller]
fn status_of(subscriptions: &[Vec<u8>], run: &str) -> i32 {
    let mut bench = Bench::new();
    let mut fwp = launch(&mut bench, &guest(subscriptions, run));
    let (status, _) = exit_of(&bench, &mut fwp);
    bench.dismantle(fwp);
    status
}

#[test]
fn a_guest_that_sleeps_runs_again_at_its_deadline_and_packets_wait_meanwhile() {
    const LATER: Duration = Duration::from_millis(20);
    let mut bench = Bench::new();
    let mut fwp = launch(&mut bench, &guest(&[clock(7, MONOTONIC, LATER, RELATIVE)], SLEEP_AND_COUNT));
    while fwp.deadline_ns().is_none() {
        bench.resume(&mut fwp);
    }
    let (deadline_ns, resumes) = (fwp.deadline_ns().unwrap(), fwp.counters().guest.resumes.value());
    (0..3).for_each(|_| bench.send(buffer(), 60));
    while clock::now_ns() < deadline_ns {
        let turn = bench.resume(&mut fwp);
        if clock::now_ns() < deadline_ns {
            assert!(matches!(turn, Turn::Waiting { sent: 0 }), "it was woken");
            assert!(!fwp.has_input(), "packets wait until its next wait");
            assert_eq!(fwp.counters().guest.resumes.value(), resumes, "it ran before its time");
        }
    }
    assert_eq!(exit_of(&bench, &mut fwp).0, 1);
    bench.dismantle(fwp);
}

#[test]
fn a_sleep_takes_as_long_as_the_guests_own_clock_says() {
    // Exits with the microseconds that the sleep took.
    let run = "(local $before i64) (call $first_packet) (local.set $before (call $clock)) (call $check (call $sleep))
        (call $exit (i32.wrap_i64 (i64.div_u (i64.sub (call $clock) (local.get $before)) (i64.const 1000))))";
    for of in [REALTIME, MONOTONIC] {
        let took_us = status_of(&[clock(1, of, Duration::from_millis(5), RELATIVE)], run);
        assert!(took_us >= 5_000, "{took_us} us by clock {of}");
    }
}

#[test]
fn the_earliest_of_several_subscriptions_ends_the_sleep_and_all_that_are_due_are_reported() {
    let (soon, late) = (Duration::from_millis(2), Duration::from_secs(3600));
    // Exits with the first event's user data, and a thousand for each event.
    let run = "(call $first_packet) (call $check (call $sleep))
        (call $exit (i32.add (i32.load (i32.const 16384)) (i32.mul (i32.const 1000) (i32.load (i32.const 8188)))))";
    let subscriptions = [clock(5, MONOTONIC, late, RELATIVE), clock(6, REALTIME, soon, RELATIVE)];
    assert_eq!(status_of(&subscriptions, run), 1_006);
    let subscriptions = [
        clock(1, MONOTONIC, late, RELATIVE),
        clock(2, MONOTONIC, Duration::ZERO, RELATIVE),
        clock(3, MONOTONIC, soon, ABSOLUTE),
        clock(4, REALTIME, late, ABSOLUTE),
    ];
    assert_eq!(status_of(&subscriptions, run), 3_002);
    // Streams are ready, and then no clock is waited for.
    assert_eq!(status_of(&[clock(1, MONOTONIC, late, RELATIVE), to_write(9, 1)], run), 1_009);
}

#[test]
fn a_guest_sleeps_until_a_date() {
    let mut bench = Bench::new();
    let until = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_millis(20);
    let mut fwp = launch(&mut bench, &guest(&[clock(1, REALTIME, until, ABSOLUTE)], SLEEP_AND_COUNT));
    assert_eq!(exit_of(&bench, &mut fwp).0, 1);
    // Its date is behind.
    assert!(SystemTime::now().duration_since(UNIX_EPOCH).unwrap() >= until);
    bench.dismantle(fwp);
}

#[test]
fn a_guest_that_waits_for_a_far_date_looks_at_the_date_every_second() {
    let mut bench = Bench::new();
    let in_a_year = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(365 * 86_400);
    let mut fwp = launch(&mut bench, &guest(&[clock(1, REALTIME, in_a_year, ABSOLUTE)], SLEEP_AND_COUNT));
    while fwp.deadline_ns().is_none() {
        bench.resume(&mut fwp);
    }
    let second = Duration::from_secs(1).as_nanos() as u64;
    assert!(fwp.deadline_ns().unwrap() <= clock::now_ns() + second + 300_000);
    bench.dismantle(fwp);
}

#[test]
fn the_date_is_the_hosts_and_its_steps_are_those_of_the_clock() {
    // Exits with the seconds of the date, and then with the rest of its nanoseconds by steps of 100 us.
    let read = "(call $first_packet) (call $check (call $time (i32.const 0) (i64.const 1) (i32.const 8192)))";
    let seconds =
        format!("{read} (call $exit (i32.wrap_i64 (i64.div_u (i64.load (i32.const 8192)) (i64.const 1000000000))))");
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i32;
    let shown = status_of(&[], &seconds);
    let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i32;
    assert!((before - 1..=after).contains(&shown), "{before} {shown} {after}");
    let rest = format!("{read} (call $exit (i32.wrap_i64 (i64.rem_u (i64.load (i32.const 8192)) (i64.const 100000))))");
    assert_eq!(status_of(&[], &rest), 0);
    let unknown = "(call $first_packet) (call $exit (call $time (i32.const 2) (i64.const 1) (i32.const 8192)))";
    assert_eq!(status_of(&[], unknown), INVAL);
}

#[test]
fn a_call_that_makes_no_sense_fails_with_its_errno_at_once() {
    let call = |subscriptions: &str, events: &str, count: u32, stored: &str| {
        let arguments =
            format!("(i32.const {subscriptions}) (i32.const {events}) (i32.const {count}) (i32.const {stored})");
        let run = format!("(call $first_packet) (call $exit (call $poll {arguments}))");
        status_of(&[clock(1, MONOTONIC, Duration::from_secs(3600), RELATIVE)], &run)
    };
    assert_eq!(call("8192", "16384", 0, "8188"), INVAL);
    assert_eq!(call("8192", "16384", 257, "8188"), INVAL);
    assert_eq!(call("8192", "16384", u32::MAX, "8188"), INVAL);
    for wild in ["-1", "262140"] {
        assert_eq!(call(wild, "16384", 1, "8188"), FAULT);
        assert_eq!(call("8192", wild, 1, "8188"), FAULT);
    }
    assert_eq!(call("8192", "16384", 1, "262141"), FAULT);
    assert_eq!(status_of(&[subscription(1, 3, 0, 0, 0)], "(call $first_packet) (call $exit (call $sleep))"), INVAL);
}

#[test]
fn a_subscription_that_cannot_be_waited_for_is_an_event_with_its_errno() {
    // Exits with the first event's errno.
    let run = "(call $first_packet) (call $check (call $sleep)) (call $exit (i32.load16_u (i32.const 16392)))";
    assert_eq!(status_of(&[clock(1, 3, Duration::ZERO, RELATIVE)], run), INVAL);
    const BADF: i32 = 8;
    for (descriptor, errno) in
        [(to_read(1, 0), 0), (to_write(1, 0), BADF), (to_read(1, 2), BADF), (to_read(1, 3), BADF)]
    {
        assert_eq!(status_of(&[descriptor], run), errno);
    }
}

#[test]
fn before_its_first_packet_a_guest_that_sleeps_has_no_deadline() {
    let run = "(call $check (call $sleep)) (call $first_packet) (call $exit (i32.const 5))";
    let mut bench = Bench::new();
    let wat = guest(&[clock(1, MONOTONIC, Duration::from_millis(2), RELATIVE)], run);
    let mut fwp = bench.launch(&wat, MEMORY_BYTES_MAX).unwrap();
    let resumes = fwp.counters().guest.resumes.value();
    std::thread::sleep(Duration::from_millis(4));
    for occasion in [TurnReason::Work, TurnReason::Rehearsal, TurnReason::Work] {
        let started_ns = bench.clock.begin();
        let (turn, _) = fwp.turn(occasion, &bench.clock, started_ns);
        bench.clock.end();
        assert!(matches!(turn, Turn::Waiting { sent: 0 }));
        assert_eq!((fwp.deadline_ns(), fwp.counters().guest.resumes.value()), (None, resumes));
    }
    bench.send(buffer(), 60);
    assert_eq!(exit_of(&bench, &mut fwp).0, 5);
    bench.dismantle(fwp);
}

#[test]
fn a_sleep_of_more_than_some_milliseconds_during_initialisation_is_refused_by_name() {
    let init = r#"(func (export "pinion_init") (result i32) (i32.const 0))"#;
    let sleeps = r#"(func (export "pinion_init") (result i32) (call $sleep))"#;
    let said = |wat: &str| Bench::new().launch(wat, MEMORY_BYTES_MAX).err().map(|reason| reason.to_string());
    let wat = |time: Duration| guest(&[clock(1, MONOTONIC, time, RELATIVE)], SLEEP_AND_COUNT).replace(init, sleeps);
    // Of the second module no snapshot can be taken, so that each instance initialises itself.
    let table = "(table 1 funcref) (func (table.set (i32.const 0) (ref.null func))) (func $check";
    for wat in [wat(Duration::from_millis(11)), wat(Duration::from_millis(11)).replace("(func $check", table)] {
        let refused = said(&wat).unwrap_or_default();
        assert!(refused.contains("it slept (poll_oneoff) for longer than 10 ms"), "{refused}");
    }
    // In all, not each time.
    let twice = wat(Duration::from_millis(9))
        .replace("(result i32) (call $sleep)", "(result i32) (drop (call $sleep)) (call $sleep)");
    for wat in [twice.clone(), twice.replace("(func $check", table)] {
        let refused = said(&wat).unwrap_or_default();
        assert!(refused.contains("it slept (poll_oneoff) for longer than 10 ms"), "{refused}");
    }
    for wat in [wat(Duration::from_micros(300)), wat(Duration::from_micros(300)).replace("(func $check", table)] {
        assert_eq!(said(&wat), None);
    }
}

#[test]
fn a_guest_that_sleeps_is_woken_by_its_worker_and_let_go_in_its_sleep() {
    let mut bench = Bench::new();
    let sleep_twice = "(call $first_packet) (call $check (call $sleep))
        (i64.store (i32.const 8216) (i64.const 3600000000000)) (call $check (call $sleep)) unreachable";
    let fwp = launch(&mut bench, &guest(&[clock(1, MONOTONIC, Duration::from_millis(5), RELATIVE)], sleep_twice));
    let (mut worker, commands, events) = bench.worker();
    commands.send(WorkerCommand::Adopt(Box::new(fwp))).unwrap();
    let start = Instant::now();
    (0..3).for_each(|_| bench.send(buffer(), 60));
    let is_long = |left: Option<Duration>| left.is_some_and(|left| left > Duration::from_secs(1800));
    while !is_long(worker.time_to_deadline()) {
        worker.poll();
        assert!(start.elapsed() < Duration::from_secs(10), "it does not wake");
    }
    commands.send(WorkerCommand::Release(ID)).unwrap();
    worker.poll();
    let Ok(WorkerEvent::Released(fwp)) = events.try_recv() else { panic!("it was not released") };
    bench.dismantle(*fwp);
}

#[test]
fn random_bytes_come_in_as_many_turns_as_they_take() {
    // Exits with one if a byte of the last page is not zero.
    let run = "(local $i i32) (call $first_packet) (call $check (call $random (i32.const 100000) (i32.const 100000)))
        (local.set $i (i32.const 196000))
        (loop $next
            (if (i32.load8_u (local.get $i)) (then (call $exit (i32.const 1))))
            (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 200000))))";
    let mut bench = Bench::new();
    let mut fwp = launch(&mut bench, &guest(&[], run));
    let (status, turns) = exit_of(&bench, &mut fwp);
    assert_eq!(status, 1);
    assert!(turns >= 25, "each of {turns} turns ends after 4096 bytes");
    bench.dismantle(fwp);
    assert_eq!(
        status_of(&[], "(call $first_packet) (call $exit (call $random (i32.const 262140) (i32.const 5)))"),
        FAULT
    );
}
