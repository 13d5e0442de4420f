//! No data of an earlier client survives in an FWP: a guest searches for canaries of its predecessors, over 10^5 restarts for each way of
//! resetting memory.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pinion_runtime::fwp::Turn;
use pinion_runtime::fwp::end_reason::EndReason;
use pinion_runtime::memory::reset_check;
use pinion_runtime::templates::engine::Reset;
use pinion_runtime::tenants::accounts::MemoryAccounts;
use support::{Bench, buffer};

const RESTARTS: u32 = 100_000;
/// Pages of WebAssembly of the guest that writes far apart.
const WIDE_PAGES: usize = 64;
const MEMORY_BYTES_MAX: usize = (WIDE_PAGES + 1) << 16;
/// The machine may be busy for longer than an instance may take to its first wait; one such failure in a hundred is not the node's fault.
const STALLS_PART: u32 = 100;
/// Restarts after which an instance serves a packet, so that its rings, its pool and its stack are used too.
const RESTARTS_PER_PACKET: u32 = 16;

/// Returns a guest that searches its memory, the memory that it grows by, its global and its locals for the canary before its first wait.
/// It traps if the canary is in any of them. Then it writes the canary to all of them. `more` are further declarations; `hunt` and `sing`
/// search and write these.
fn guest(more: &str, hunt: &str, sing: &str) -> String {
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (memory (export "memory") 1)
            (global $global (mut i64) (i64.const 0))
            {more}
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\10\00\00\04\00\00\00\00\04\00\00\00\08\00\00")
            (func (export "pinion_abi_v3"))
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
                ;; Behind the rings: the guest must not choose their indices.
                (call $fill (i32.const 0x1000) (call $bytes))
                (loop $for_ever (drop (call $wait)) (br $for_ever))))"#
    )
}

/// Only a guest of which no snapshot is taken can change a table.
const TABLE: &str = "(table $table 2 funcref) (elem declare func $fill)";
const HUNT_TABLE: &str = "(if (i32.eqz (ref.is_null (table.get $table (i32.const 1)))) (then unreachable))";
const SING_TABLE: &str = "(table.set $table (i32.const 1) (ref.func $fill))";

/// A guest that writes to one page of three, in more of them than the kernel lists at a time, and than stay in their place.
fn wide_guest() -> String {
    let fill = r#"(func $fill_far (local $at i32)
        (local.set $at (i32.const 0x1000))
        (loop $on
            (i64.store offset=2048 (local.get $at) (call $canary))
            (local.set $at (i32.add (local.get $at) (i32.const 0x3000)))
            (br_if $on (i32.lt_u (local.get $at) (i32.sub (call $bytes) (i32.const 0x1000))))))"#;
    guest(fill, "", "")
        .replace(r#"(memory (export "memory") 1)"#, &format!(r#"(memory (export "memory") {WIDE_PAGES})"#))
        .replace("(call $fill (i32.const 0x1000) (call $bytes))", "(call $fill_far)")
}

/// Searches while the kernel moves the pages of all processes together, again and again. It does so for root only.
fn beside_compaction(search: impl FnOnce()) {
    const COMPACT: &str = "/proc/sys/vm/compact_memory";
    if let Err(error) = std::fs::write(COMPACT, "1") {
        println!("not searched: {COMPACT} cannot be written to: {error}");
        return;
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::fs::write(COMPACT, "1").unwrap();
            }
        });
        let ends = Ends(&is_over);
        search();
        drop(ends);
    });
}

/// Ends the compaction, also if the search panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One search at a time: threads that yield as often as these delay each other for long.
static TURN: Mutex<()> = Mutex::new(());

fn hunt(reset: Reset, wat: &str, restarts: u32) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bench = Bench::with_reset(reset);
    let template = bench.template(wat, MEMORY_BYTES_MAX).unwrap();
    let (mut stalls, start) = (0, Instant::now());
    for restart in 0..restarts {
        let mut fwp = match bench.launch_from(&template, MemoryAccounts::default()) {
            Ok(fwp) => fwp,
            Err(EndReason::InitTime) if stalls < restarts.div_ceil(STALLS_PART) => {
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
    let missed = reset_check::missed();
    println!(
        "{reset:?}: {restarts} restarts in {:?}, {stalls} stalls, {missed} pages missed by the engine",
        start.elapsed()
    );
}

#[test]
fn no_canary_survives_in_memory_that_is_overwritten() {
    hunt(Reset::Overwrite, &guest("", "", ""), RESTARTS);
}

#[test]
fn no_canary_survives_in_memory_that_returns_to_the_kernel() {
    hunt(Reset::Unmap, &guest("", "", ""), RESTARTS);
}

#[test]
fn no_canary_survives_in_tables_either() {
    for reset in [Reset::Overwrite, Reset::Unmap] {
        hunt(reset, &guest(TABLE, HUNT_TABLE, SING_TABLE), RESTARTS / 5);
    }
}

#[test]
fn no_canary_survives_in_many_pages_far_apart() {
    for reset in [Reset::Overwrite, Reset::Unmap] {
        hunt(reset, &wide_guest(), RESTARTS / 200);
    }
}

#[test]
fn no_canary_survives_in_pages_that_the_kernel_moves_meanwhile() {
    beside_compaction(|| {
        hunt(Reset::Overwrite, &guest("", "", ""), RESTARTS / 10);
        hunt(Reset::Overwrite, &wide_guest(), RESTARTS / 500);
    });
}

#[test]
fn the_search_finds_a_canary_wherever_it_is() {
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
