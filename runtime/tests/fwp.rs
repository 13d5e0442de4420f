//! The life of one FWP: preparation, turns, and every way in which it can end.

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_control::model::{Chain, Stage};
use pinion_gateway::fwp_times::{ActivationClock, KeepAlives};
use pinion_runtime::fwp::end_reason::EndReason;
use pinion_runtime::fwp::{INIT_TIME_MAX, Preparation, Progress, Turn};
use pinion_runtime::instruments::activation::{Activations, EntryStage, InstanceActivation};
use pinion_runtime::tenants::accounts::{Accounts, MemoryAccounts, TenantLimits};
use support::{Bench, ID, QUANTUM, buffer};

const ECHO: &str = include_str!("support/echo.wat");
const MEMORY_BYTES_MAX: usize = 1 << 20;

/// Returns a module like the echo, with other code in one of its functions.
fn guest(init: &str, run: &str) -> String {
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (import "pinion" "random" (func $random (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\10\00\00\04\00\00\00\00\04\00\00\00\08\00\00")
            (func (export "pinion_abi_v3"))
            (func (export "pinion_init") (result i32) {init})
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func $deep (param i32) (result i32)
                (i32.add (i32.const 1) (call $deep (i32.add (local.get 0) (i32.const 1)))))
            (func (export "pinion_run") {run}))"#
    )
}

const READY: &str = "(i32.const 0)";
const WAIT_ONCE: &str = "(loop $again (br_if $again (i32.eqz (call $wait))))";

/// Runs a guest past its first wait and returns the reason of its end.
fn end_of(run: &str) -> EndReason {
    let mut bench = Bench::new();
    let mut fwp = bench.launch(&guest(READY, &format!("{WAIT_ONCE} {run}")), MEMORY_BYTES_MAX).unwrap();
    bench.send(buffer(), 60);
    let reason = bench.resume_to_end(&mut fwp);
    bench.dismantle(fwp);
    reason
}

/// Takes steps until the guest has used a turn, or comes to its first wait, or ends.
fn next_turn(preparation: &mut Preparation) -> Progress {
    let mut ran_ns = 0;
    loop {
        match preparation.step(&mut ran_ns) {
            Progress::Part => {}
            progress => return progress,
        }
    }
}

#[test]
fn a_guest_that_does_not_come_to_its_first_wait_gives_the_thread_back_after_each_turn_until_its_time_is_over() {
    const LOOP: &str = "(loop $forever (br $forever))";
    // No snapshot can be taken of this one, so that each instance initialises itself: at once in the builder, where the clock stands still.
    let clock = r#"(import "pinion" "clock" (func $clock (result i64))) (memory"#;
    let table = "(table 1 funcref) (func (table.set (i32.const 0) (ref.null func))) (func $deep";
    let init = format!("(if (i64.gt_s (call $clock) (i64.const 1000)) (then {LOOP})) {READY}");
    let in_init = guest(&init, WAIT_ONCE).replacen("(memory", clock, 1).replace("(func $deep", table);
    let mut bench = Bench::new();
    for wat in [guest(READY, LOOP), in_init] {
        let template = bench.template(&wat, MEMORY_BYTES_MAX).unwrap();
        let mut preparation = bench.preparation(&template, MemoryAccounts::default());
        let mut turns = 0;
        let reason = loop {
            match next_turn(&mut preparation) {
                Progress::Done(prepared) => break prepared.err().expect("it never waits"),
                _ => turns += 1,
            }
        };
        assert_eq!(reason, EndReason::InitTime);
        // The machine may keep the thread from its core during a turn, but not during each.
        assert!(turns > 10, "{turns} turns in {INIT_TIME_MAX:?}");
    }
}

#[test]
fn a_preparation_that_is_given_up_leaves_nothing_behind() {
    let accounts = Accounts::new(TenantLimits::default());
    let chain = Chain::new("t".parse().unwrap(), "c".parse().unwrap(), vec![]);
    let memory = accounts.open(&chain);
    let used_kib = || accounts.of_tenants()[0].1.used_kib;
    let mut bench = Bench::new();
    let loops = bench.template(&guest(READY, "(loop $forever (br $forever))"), MEMORY_BYTES_MAX).unwrap();
    // More often than the engine has places.
    for _ in 0..20 {
        let mut preparation = bench.preparation(&loops, memory.clone());
        assert!(matches!(next_turn(&mut preparation), Progress::Turn));
        assert!(used_kib() >= 64);
        drop(preparation);
        assert_eq!(used_kib(), 0);
        drop(bench.preparation(&loops, memory.clone()));
    }
    let fwp = bench.launch(ECHO, MEMORY_BYTES_MAX).unwrap();
    bench.dismantle(fwp);
}

#[test]
fn a_packet_comes_back_as_it_went_in() {
    let mut bench = Bench::new();
    let mut fwp = bench.launch(ECHO, MEMORY_BYTES_MAX).unwrap();
    let mut frame = buffer();
    frame.bytes_mut(60).iter_mut().zip(0..).for_each(|(byte, i)| *byte = i);
    bench.gateway.empty.push(buffer()).unwrap();
    bench.send(frame, 60);
    assert!(matches!(bench.resume(&mut fwp), Turn::Waiting { sent: 1 }));
    bench.mma.poll();
    let out = bench.gateway.outbound.pop().expect("nothing came out");
    assert!(out.frame.bytes().iter().copied().eq(0..60));
    bench.dismantle(fwp);
}

/// Returns the echo, changed so that it returns after the first packets.
fn echo_once() -> String {
    ECHO.replace("(br $for_ever)", "(br_if $for_ever (i32.eqz (global.get $next)))")
}

#[test]
fn packets_sent_before_a_guest_returns_go_out_before_or_when_the_mma_detaches_it() {
    for told_first in [false, true] {
        let mut bench = Bench::new();
        let mut fwp = bench.launch(&echo_once(), MEMORY_BYTES_MAX).unwrap();
        let counters = Arc::clone(fwp.counters());
        // As many as a new FWP has slots for.
        for _ in 0..2 {
            bench.gateway.empty.push(buffer()).unwrap();
            bench.send(buffer(), 60);
        }
        assert_eq!(bench.resume_to_end(&mut fwp), EndReason::Returned);
        if told_first {
            bench.mma.poll();
        }
        // A packet that the guest will never handle.
        bench.send(buffer(), 60);
        bench.dismantle(fwp);
        assert_eq!(std::iter::from_fn(|| bench.gateway.outbound.pop()).count(), 2);
        assert_eq!((counters.moved.sent.value(), counters.moved.dropped_instance_ended.value()), (2, 1));
    }
}

#[test]
fn a_guest_that_broke_a_rule_never_runs_again() {
    let wild = "(i32.store (i32.const 2052) (i32.const 77))";
    for run in ["(drop (call $wait)) (loop $l (br $l))", ""] {
        let mut bench = Bench::new();
        let run = format!("{WAIT_ONCE} {wild} {run}");
        let mut fwp = bench.launch(&guest(READY, &run), MEMORY_BYTES_MAX).unwrap();
        bench.send(buffer(), 60);
        assert!(matches!(bench.resume_to_end(&mut fwp), EndReason::Violation(_)));
        let resumes = fwp.counters().guest.resumes.value();
        for _ in 0..2 {
            assert!(matches!(bench.resume_to_end(&mut fwp), EndReason::Violation(_)));
        }
        assert_eq!(fwp.counters().guest.resumes.value(), resumes);
        bench.dismantle(fwp);
    }
}

#[test]
fn the_first_packets_of_a_client_are_timed_and_no_others() {
    let misses = Arc::new(ActivationClock::new(2));
    // The stages of an instance, in the order in which the first packets reach them.
    for (stages, entered_by) in [
        (vec![0], EntryStage::EitherEnd),
        (vec![0, 1], EntryStage::EitherEnd),
        (vec![1, 0], EntryStage::EitherEnd),
        (vec![0], EntryStage::Any),
        (vec![1, 2, 0], EntryStage::Any),
        (vec![1, 0], EntryStage::AnyOrNone),
    ] {
        let first = u64::from(entered_by != EntryStage::AnyOrNone);
        let activations = Arc::new(Activations::new(Arc::clone(&misses)));
        let instance = InstanceActivation::new(&activations, ID, stages.len(), entered_by);
        let counts = || (activations.entry.snapshot().count(), activations.chain.snapshot().count());
        let start = Instant::now();
        misses.note(ID, misses.now_ns());
        for (before, &stage) in stages.iter().enumerate() {
            let mut bench = Bench::new();
            bench.activation = instance.of_stage(stage);
            let mut fwp = bench.launch(ECHO, MEMORY_BYTES_MAX).unwrap();
            assert_eq!(counts(), (first * u64::from(before > 0), 0), "it has served no client");
            for _ in 0..3 {
                bench.send(buffer(), 60);
                assert!(matches!(bench.resume(&mut fwp), Turn::Waiting { .. }));
            }
            let is_last = before + 1 == stages.len() && entered_by == EntryStage::EitherEnd;
            assert_eq!(counts(), (first, u64::from(is_last)), "stage {stage} of {}", stages.len());
            bench.dismantle(fwp);
        }
        let longest_ns = activations.entry.snapshot().at_ns(100.0).max(activations.chain.snapshot().at_ns(100.0));
        assert!(u128::from(longest_ns) < 2 * start.elapsed().as_nanos(), "{longest_ns} ns");
    }
}

#[test]
fn a_guest_that_asks_to_be_kept_alive_is_told_the_granted_time() {
    const ASK: &str = r#"(import "pinion" "wait" (func $wait (result i32)))
        (import "pinion" "clock" (func $clock (result i64)))
        (import "pinion" "keep_alive_until" (func $keep (param i64) (result i64)))"#;
    const HOUR_NS: u64 = 3600 * 1_000_000_000;
    // The guest exits with 7 if the result of the call is as expected: for `asked`, `granted`.
    let exit_of = |max_ns: Option<u64>, asked: &str, granted: &str| {
        let mut bench = Bench::new();
        bench.keep_alives =
            max_ns.map(|max_ns| Arc::new(KeepAlives::new(4, max_ns, Arc::new(ActivationClock::new(4)))));
        let run = format!(
            "(local $now i64) (local $told i64) {WAIT_ONCE}
             (local.set $now (call $clock))
             (local.set $told (call $keep {asked}))
             (call $exit (select (i32.const 7) (i32.const 8) {granted}))"
        );
        let module = guest(READY, &run).replacen(r#"(import "pinion" "wait" (func $wait (result i32)))"#, ASK, 1);
        let mut fwp = bench.launch(&module, MEMORY_BYTES_MAX).unwrap();
        bench.send(buffer(), 60);
        let reason = bench.resume_to_end(&mut fwp);
        bench.dismantle(fwp);
        reason
    };
    let two_hours = "(i64.add (local.get $now) (i64.const 7200000000000))";
    let as_asked = format!("(i64.eq (local.get $told) {two_hours})");
    // Its clock may have advanced in between, by less than a minute.
    let an_hour = "(i64.lt_u (i64.sub (i64.sub (local.get $told) (local.get $now)) (i64.const 3600000000000)) \
                   (i64.const 60000000000))";
    let not_kept = "(i64.eqz (local.get $told))";
    for (max_ns, asked, granted) in [
        (Some(3 * HOUR_NS), two_hours, &*as_asked),
        (Some(HOUR_NS), two_hours, an_hour),
        (Some(HOUR_NS), "(i64.const 0x7fffffffffffffff)", an_hour),
        (Some(HOUR_NS), "(local.get $now)", not_kept),
        (Some(HOUR_NS), "(i64.const -1)", not_kept),
        (Some(0), two_hours, not_kept),
        (None, two_hours, not_kept),
    ] {
        assert_eq!(exit_of(max_ns, asked, granted), EndReason::Exited(7), "{max_ns:?}, {asked}");
    }
}

#[test]
fn a_looping_guest_loses_the_core_when_its_quantum_is_over() {
    let mut bench = Bench::new();
    let looping = guest(READY, &format!("{WAIT_ONCE} (loop $l (br $l))"));
    let mut fwp = bench.launch(&looping, MEMORY_BYTES_MAX).unwrap();
    bench.send(buffer(), 60);
    let mut turns: Vec<Duration> = (0..200)
        .map(|_| {
            let started = Instant::now();
            assert!(matches!(bench.resume(&mut fwp), Turn::Preempted));
            started.elapsed()
        })
        .collect();
    turns.sort_unstable();
    assert!(turns[0] >= QUANTUM / 2, "it was preempted after {:?} of {QUANTUM:?}", turns[0]);
    // The median, because the machine may take the ticker's core away at times.
    assert!(turns[100] <= QUANTUM * 20, "it ran for {:?} of {QUANTUM:?}", turns[100]);
    bench.dismantle(fwp);
}

#[test]
fn a_guest_loses_the_core_within_a_bulk_memory_operation() {
    // Sixteen operations, each over nearly all of the largest possible memory; exits with a byte that the last one wrote.
    let all = "(i32.const 65536) (i32.const 7) (i32.const 67043328)";
    let fills = format!("(memory.fill {all})").repeat(8);
    let copies = "(memory.copy (i32.const 65536) (i32.const 65537) (i32.const 67043327))".repeat(8);
    let run =
        format!("(drop (memory.grow (i32.const 1023))) {fills} {copies} (call $exit (i32.load8_u (i32.const 65536)))");
    let mut bench = Bench::new();
    let mut fwp = bench.launch(&guest(READY, &format!("{WAIT_ONCE} {run}")), 64 << 20).unwrap();
    bench.send(buffer(), 60);
    let reason = bench.resume_to_end(&mut fwp);
    assert_eq!(reason, EndReason::Exited(7));
    // There is neither loop nor call, so preemptions beyond one per operation happened within an operation.
    let preemptions = fwp.counters().guest.preemptions.value();
    assert!(preemptions > 32, "it was preempted {preemptions} times");
    bench.dismantle(fwp);
}

#[test]
fn each_end_has_its_reason() {
    assert_eq!(end_of(""), EndReason::Returned);
    assert_eq!(end_of("(call $exit (i32.const 3))"), EndReason::Exited(3));
    let trapped = end_of("unreachable").account();
    assert!(trapped.starts_with("it trapped: wasm trap: wasm `unreachable` instruction executed\n"), "{trapped}");
    let deep = end_of("(drop (call $deep (i32.const 0)))").to_string();
    assert_eq!(deep, "it trapped: wasm trap: call stack exhausted");
    // An invalid transmit index.
    let wild = end_of("(i32.store (i32.const 2052) (i32.const 77)) (drop (call $wait)) (loop)").to_string();
    assert_eq!(wild, "it was stopped: its transmit index moved from 0 to 77, in a ring of 4");
}

/// Returns the same module in a form of which no snapshot can be taken.
fn without_snapshot(wat: &str) -> String {
    wat.replace("(func $deep", "(table 1 funcref) (func (table.set (i32.const 0) (ref.null func))) (func $deep")
}

fn refusal(wat: &str) -> String {
    let refused = Bench::new().launch(wat, MEMORY_BYTES_MAX).err().map(|reason| reason.to_string());
    refused.unwrap_or_else(|| "it was prepared".to_owned())
}

#[test]
fn a_failed_preparation_has_a_reason() {
    assert_eq!(refusal(&guest(READY, "(loop $l (br $l))")), "it did not reach its first wait within 500 ms");
    assert_eq!(refusal(&guest(READY, "")), "its run function returned");
    assert_eq!(refusal(&guest(READY, WAIT_ONCE)), "it was prepared");
}

/// Returns an initialisation that does this only where the clock advances. In the builder, which tries it, the module is ready.
fn on_a_node(init: &str) -> String {
    format!("(if (result i32) (i64.gt_s (call $clock) (i64.const 1000)) (then {init}) (else (i32.const 0)))")
}

#[test]
fn a_failed_initialisation_in_an_instance_has_a_reason() {
    let refusal = |wat: &str| {
        let clock = "(import \"pinion\" \"clock\" (func $clock (result i64))) (memory (export";
        refusal(&without_snapshot(&wat.replacen("(memory (export", clock, 1)))
    };
    let init = |init: &str| refusal(&guest(&on_a_node(init), WAIT_ONCE));
    assert_eq!(init("(i32.const 1)"), "its pinion_init refused with status 1; see its log");
    assert_eq!(init("(drop (call $wait)) (i32.const 0)"), "it called pinion.wait during its initialisation");
    assert_eq!(init("(loop $l (br $l)) (i32.const 0)"), "it did not reach its first wait within 500 ms");
    // Its header is gone.
    let no_pool = init("(memory.fill (i32.const 0) (i32.const 0) (i32.const 1024)) (i32.const 0)");
    assert!(no_pool.starts_with("its packet pool is unusable: pinion_pool names"), "{no_pool}");
    assert_eq!(refusal(&guest(READY, WAIT_ONCE)), "it was prepared");
}

#[test]
fn a_module_that_fails_in_each_instance_is_refused_by_the_builder() {
    let refusal = |init: &str| refusal(&without_snapshot(&guest(init, "")));
    assert_eq!(refusal("(i32.const 1)"), "it could not be instantiated: its pinion_init refused with status 1");
    let waits = refusal("(drop (call $wait)) (i32.const 0)");
    assert!(waits.ends_with("it called pinion.wait during its initialisation"), "{waits}");
}

#[test]
fn memory_grows_up_to_the_limit_and_no_further() {
    // Exits with the number of pages it got.
    let grow = "(block $full (loop $more
                  (br_if $full (i32.eq (memory.grow (i32.const 1)) (i32.const -1))) (br $more)))
                (call $exit (memory.size))";
    assert_eq!(end_of(grow), EndReason::Exited((MEMORY_BYTES_MAX / 65_536) as i32));
}

/// Exits with the number of pages it has when `memory.grow` gives no more.
const GROW: &str = "(block $full (loop $more
                      (br_if $full (i32.eq (memory.grow (i32.const 1)) (i32.const -1))) (br $more)))
                    (call $exit (memory.size))";

fn chain_of_one_stage() -> Chain {
    let stage = Stage::new("m".parse().unwrap(), Vec::new());
    Chain::new("t".parse().unwrap(), "c".parse().unwrap(), vec![stage])
}

#[test]
fn memory_of_all_fwps_of_a_chain_stays_within_its_limit() {
    let wat = guest(READY, &format!("{WAIT_ONCE} {GROW}"));
    let chain = Chain { memory_total_kib: Some(640), ..chain_of_one_stage() };
    let accounts = Accounts::new(TenantLimits::default());
    let key = (chain.tenant.clone(), chain.name.clone());
    let used_kib = || accounts.of_chain(&key).unwrap().used_kib;
    let memory = accounts.open(&chain);
    let (mut first, mut second) = (Bench::new(), Bench::new());
    let mut bomb = first.launch_under(&wat, MEMORY_BYTES_MAX, memory.clone()).unwrap();
    let bystander = second.launch_under(&wat, MEMORY_BYTES_MAX, memory.clone()).unwrap();
    assert_eq!(used_kib(), 2 * 64);
    first.send(buffer(), 60);
    let reason = first.resume_to_end(&mut bomb);
    assert_eq!((reason, used_kib()), (EndReason::Exited(9), 640));
    let refused = Bench::new().launch_under(&wat, MEMORY_BYTES_MAX, memory.clone()).err().unwrap().to_string();
    assert!(refused.starts_with("it could not be instantiated: it needs 64 KiB"), "{refused}");
    assert!(refused.contains("memory_total_kib of 640"), "{refused}");
    first.dismantle(bomb);
    assert_eq!(used_kib(), 64);
    second.dismantle(bystander);
    assert_eq!(used_kib(), 0);
}

#[test]
fn memory_of_all_fwps_of_a_tenant_with_their_stacks_and_tables_stays_within_its_limit() {
    const LIMIT_KIB: u64 = 1_536;
    const STACK_KIB: u64 = 256;
    const TABLE_KIB: u64 = 128;
    let table = "(table 16384 funcref) (memory (export \"memory\")";
    let wat = guest(READY, &format!("{WAIT_ONCE} {GROW}")).replace("(memory (export \"memory\")", table);
    let limits = TenantLimits { default_bytes: Some(LIMIT_KIB * 1024), by_name: HashMap::new() };
    let accounts = Accounts::new(limits);
    let used_kib = || accounts.of_tenants()[0].1.used_kib;
    let memory = accounts.open(&chain_of_one_stage());
    let (mut first, mut second) = (Bench::new(), Bench::new());
    let mut bomb = first.launch_under(&wat, MEMORY_BYTES_MAX, memory.clone()).unwrap();
    let of_one_kib = used_kib();
    // Besides, there are the engine's records.
    assert!((64 + STACK_KIB + TABLE_KIB..=64 + STACK_KIB + TABLE_KIB + 8).contains(&of_one_kib), "{of_one_kib} KiB");
    let bystander = second.launch_under(&wat, MEMORY_BYTES_MAX, memory.clone()).unwrap();
    first.send(buffer(), 60);
    let reason = first.resume_to_end(&mut bomb);
    let pages = 1 + (LIMIT_KIB - 2 * of_one_kib) / 64;
    assert_eq!(reason, EndReason::Exited(pages as i32));
    assert!(used_kib() <= LIMIT_KIB);
    let refused = Bench::new().launch_under(&wat, MEMORY_BYTES_MAX, memory.clone()).err().unwrap().to_string();
    let expected = format!("it could not be instantiated: it needs {} KiB of memory", of_one_kib + 1);
    assert!(refused.starts_with(&expected) && refused.contains("the 1536 KiB"), "{refused}");
    first.dismantle(bomb);
    second.dismantle(bystander);
    assert_eq!(used_kib(), 0);
}

#[test]
fn memory_beyond_a_modules_declared_maximum_is_not_charged() {
    let accounts = Accounts::new(TenantLimits::default());
    let chain = Chain::new("t".parse().unwrap(), "c".parse().unwrap(), Vec::new());
    let memory = accounts.open(&chain);
    let grow = "(drop (memory.grow (i32.const 5))) (loop $rest (drop (call $wait)) (br $rest))";
    let wat = guest(READY, &format!("{WAIT_ONCE} {grow}")).replace("\"memory\") 1", "\"memory\") 1 2");
    let mut bench = Bench::new();
    let mut fwp = bench.launch_under(&wat, MEMORY_BYTES_MAX, memory.clone()).unwrap();
    let of_tenant_kib = || accounts.of_tenants()[0].1.used_kib;
    let before_kib = of_tenant_kib();
    bench.send(buffer(), 60);
    bench.resume(&mut fwp);
    assert_eq!(of_tenant_kib(), before_kib);
    bench.dismantle(fwp);
}

#[test]
fn symbols_in_an_account_are_truncated_and_forge_no_line() {
    let name = format!("evil\\n2026 ERROR forged\\1b[2J{}", "x".repeat(100_000));
    let run = format!("{WAIT_ONCE} unreachable) (func (@name \"{name}\")");
    let mut bench = Bench::new();
    let wat =
        guest(READY, &run).replace(r#"(export "pinion_run")"#, &format!("(@name \"{name}\") (export \"pinion_run\")"));
    let mut fwp = bench.launch(&wat, MEMORY_BYTES_MAX).unwrap();
    bench.send(buffer(), 60);
    let reason = bench.resume_to_end(&mut fwp);
    bench.dismantle(fwp);
    let account = reason.account();
    assert_eq!(account.lines().count(), 2, "{account}");
    assert!(account.contains("evil\\n2026 ERROR forged\\u{1b}[2Jxxx"), "{account}");
    assert!(account.len() < 1000, "an account of {} bytes", account.len());
}

#[test]
fn a_long_straight_line_of_host_calls_is_interrupted_and_goes_on() {
    // Most calls find the turn's allowance used up and are refused, in some nanoseconds each.
    let line = "(drop (call $random (i32.const 8192) (i32.const 4096)))".repeat(10_000);
    assert!(preemptions_of(&"(call $line)".repeat(50), &line) >= 1, "500,000 calls fit into a quantum");
}

#[test]
fn a_guest_that_retries_refused_calls_is_only_slowed_down() {
    // Of 256 KiB a turn, each call takes 4,096 bytes and 256 for itself.
    let patient = "(loop $again (br_if $again (call $random (i32.const 8192) (i32.const 4096))))".repeat(600);
    assert!(preemptions_of(&patient, "") >= 600 * (4096 + 256) / (256 * 1024));
}

/// Returns how often a guest that does this once and finishes is preempted; `line` is the body of its function `$line`.
fn preemptions_of(what: &str, line: &str) -> usize {
    let mut bench = Bench::new();
    let run = format!("{WAIT_ONCE} {what} (call $exit (i32.const 0))) (func $line {line}");
    let mut fwp = bench.launch(&guest(READY, &run), MEMORY_BYTES_MAX).unwrap();
    bench.send(buffer(), 60);
    let mut preemptions = 0;
    loop {
        match bench.resume(&mut fwp) {
            Turn::Preempted => preemptions += 1,
            Turn::Ended(reason) => {
                assert_eq!(reason, EndReason::Exited(0));
                break;
            }
            Turn::Waiting { .. } => panic!("it waits"),
        }
    }
    bench.dismantle(fwp);
    preemptions
}

#[test]
fn a_guest_that_waits_sleeps_until_a_packet_arrives() {
    // Two waits without a loop between them count as one.
    let run = format!("{WAIT_ONCE} (drop (call $wait)) (drop (call $wait)) (loop $l (br $l))");
    let mut bench = Bench::new();
    let mut fwp = bench.launch(&guest(READY, &run), MEMORY_BYTES_MAX).unwrap();
    bench.send(buffer(), 60);
    for _ in 0..3 {
        assert!(matches!(bench.resume(&mut fwp), Turn::Waiting { sent: 0 }));
    }
    bench.send(buffer(), 60);
    assert!(
        matches!(bench.resume(&mut fwp), Turn::Preempted),
        "it was not woken, or was taken for waiting while it ran"
    );
    bench.dismantle(fwp);
}

#[test]
fn packets_for_a_preempted_guest_are_seen_when_it_waits() {
    let busy = "(local $left i32) (local.set $left (i32.const 100000000))";
    let count = "(loop $count (br_if $count (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))";
    let rest = "(loop $rest (drop (call $wait)) (br $rest))";
    let mut bench = Bench::new();
    let mut fwp = bench.launch(&guest(READY, &format!("{busy} {WAIT_ONCE} {count} {rest}")), MEMORY_BYTES_MAX).unwrap();
    bench.send(buffer(), 60);
    assert!(matches!(bench.resume(&mut fwp), Turn::Preempted));
    bench.send(buffer(), 60);
    while !matches!(bench.resume(&mut fwp), Turn::Waiting { .. }) {}
    assert!(fwp.has_input());
    bench.dismantle(fwp);
}
