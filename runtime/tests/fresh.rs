//! Nothing of an earlier client survives in an FWP: a guest that hunts for canaries of those before it, over 10^5 restarts for each
//! way in which memory can be made fresh.

mod support;

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pinion_runtime::accounts::MemoryAccounts;
use pinion_runtime::end::EndReason;
use pinion_runtime::engine::Reset;
use pinion_runtime::fwp::Turn;
use support::{Bench, buffer};

const RESTARTS: u32 = 100_000;
const MEMORY_BYTES_MAX: usize = 2 << 16;
/// A machine may stop for a while, and with it an instance that is being prepared.
const STALLS_MAX: u32 = 10;
/// Restarts after which one serves a packet, so that its rings, its pool and its stack are used too.
const RESTARTS_PER_PACKET: u32 = 16;

/// Before its first wait the guest looks through its memory, that which it grows by, its global and its locals for the canary, and traps if
/// it is anywhere. Then it leaves it everywhere. `more` are further declarations; `hunt` and `sing` do the same with these.
fn guest(more: &str, hunt: &str, sing: &str) -> String {
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (memory (export "memory") 1)
            (global $global (mut i64) (i64.const 0))
            {more}
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\10\00\00\04\00\00\00\00\04\00\00\00\08\00\00")
            (func (export "pinion_abi_v2"))
            (func (export "pinion_init") (result i32) (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func $canary (result i64) (i64.const 0x5ca1ab1e0ddba11e))
            (func $find (param $from i32) (param $to i32)
                (loop $on
                    (if (i64.eq (i64.load (local.get $from)) (call $canary)) (then unreachable))
                    (local.set $from (i32.add (local.get $from) (i32.const 8)))
                    (br_if $on (i32.lt_u (local.get $from) (local.get $to)))))
            (func $fill (param $from i32) (param $to i32)
                (loop $on
                    (i64.store (local.get $from) (call $canary))
                    (local.set $from (i32.add (local.get $from) (i32.const 8)))
                    (br_if $on (i32.lt_u (local.get $from) (local.get $to)))))
            (func $bytes (result i32) (i32.mul (memory.size) (i32.const 65536)))
            (func $deep (param $left i32) (local $a i64) (local $b i64)
                (if (i64.ne (i64.or (local.get $a) (local.get $b)) (i64.const 0)) (then unreachable))
                (local.set $a (call $canary))
                (local.set $b (call $canary))
                (if (local.get $left) (then (call $deep (i32.sub (local.get $left) (i32.const 1)))))
                (global.set $global (i64.and (local.get $a) (local.get $b))))
            (func (export "pinion_run")
                (call $find (i32.const 0) (call $bytes))
                (if (i64.ne (global.get $global) (i64.const 0)) (then unreachable))
                {hunt}
                (drop (memory.grow (i32.const 1)))
                (call $find (i32.const 0x10000) (call $bytes))
                {sing}
                (call $deep (i32.const 20))
                ;; Behind the rings, whose indices are not the guest's to choose.
                (call $fill (i32.const 0x1000) (call $bytes))
                (loop $for_ever (drop (call $wait)) (br $for_ever))))"#
    )
}

/// A table is changed only by a guest of which no snapshot is taken.
const TABLE: &str = "(table $table 2 funcref) (elem declare func $fill)";
const HUNT_TABLE: &str = "(if (i32.eqz (ref.is_null (table.get $table (i32.const 1)))) (then unreachable))";
const SING_TABLE: &str = "(table.set $table (i32.const 1) (ref.func $fill))";

/// One hunt at a time: threads that give way as often as these keep each other from their cores for long.
static TURN: Mutex<()> = Mutex::new(());

fn hunt(reset: Reset, wat: &str, restarts: u32) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bench = Bench::with_reset(reset);
    let template = bench.template(wat, MEMORY_BYTES_MAX).unwrap();
    let (mut stalls, start) = (0, Instant::now());
    for restart in 0..restarts {
        let mut fwp = match bench.launch_from(&template, MemoryAccounts::default()) {
            Ok(fwp) => fwp,
            Err(EndReason::InitTime) if stalls < STALLS_MAX => {
                stalls += 1;
                continue;
            }
            Err(reason) => panic!("restart {restart}, {reset:?}: {}", reason.account()),
        };
        if restart.is_multiple_of(RESTARTS_PER_PACKET) {
            bench.send(buffer(), 60);
            loop {
                match bench.resume(&mut fwp) {
                    Turn::Waiting { .. } => break,
                    Turn::Preempted => {}
                    Turn::Ended(reason) => panic!("restart {restart}, {reset:?}: {}", reason.account()),
                }
            }
            while bench.gateway.spent.pop().is_some() {}
        }
        bench.dismantle(fwp);
    }
    println!("{reset:?}: {restarts} restarts in {:?}, {stalls} stalls", start.elapsed());
}

#[test]
fn no_canary_survives_in_memory_that_is_overwritten() {
    hunt(Reset::Overwrite, &guest("", "", ""), RESTARTS);
}

#[test]
fn no_canary_survives_in_memory_that_goes_back_to_the_kernel() {
    hunt(Reset::Unmap, &guest("", "", ""), RESTARTS);
}

#[test]
fn no_canary_survives_in_tables_either() {
    for reset in [Reset::Overwrite, Reset::Unmap] {
        hunt(reset, &guest(TABLE, HUNT_TABLE, SING_TABLE), RESTARTS / 5);
    }
}

#[test]
fn the_hunter_finds_a_canary_wherever_it_is() {
    let in_memory = guest("", "", "").replace(
        "(data (i32.const 16)",
        "(data (i32.const 0xfff8) \"\\1e\\a1\\db\\0d\\1e\\ab\\a1\\5c\") (data (i32.const 16)",
    );
    let in_a_global = guest("", "", "").replace("(mut i64) (i64.const 0)", "(mut i64) (i64.const 1)");
    let in_a_table =
        guest(TABLE, HUNT_TABLE, SING_TABLE).replace("(elem declare func $fill)", "(elem (i32.const 1) $fill)");
    for wat in [in_memory, in_a_global, in_a_table] {
        let mut bench = Bench::new();
        let template = bench.template(&wat, MEMORY_BYTES_MAX).unwrap();
        let reason = bench.launch_from(&template, MemoryAccounts::default()).err();
        assert!(matches!(reason, Some(EndReason::Trapped { .. })), "{reason:?}");
    }
}
