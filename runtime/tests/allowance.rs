//! What a guest's calls do once they have moved all the bytes that they may in a turn.

mod support;

use pinion_control::journal::LogLine;
use pinion_runtime::fwp::end_reason::EndReason;
use support::{Bench, buffer};

const MEMORY_BYTES_MAX: usize = 1 << 20;
/// Uses up a turn's 256 KiB, of which each call takes 4,096 bytes and 256 for itself, but for less than a line of the log takes.
const USE_UP: &str = "(loop $again
    (br_if $fail (call $random (i32.const 8192) (i32.const 4096)))
    (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 60))))";

/// Returns a guest that does this once it has got a packet, in the first turn from its beginning. Its memory holds the lines "one", "two"
/// and "three" at 64, 80 and 96, and I/O vectors of two lines at 128.
fn guest(run: &str) -> String {
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (import "pinion" "yield" (func $yield))
            (import "pinion" "log" (func $log (param i32 i32 i32)))
            (import "pinion" "random" (func $random (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "random_get" (func $random_get (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\10\00\00\04\00\00\00\00\04\00\00\00\08\00\00")
            (data (i32.const 64) "one")
            (data (i32.const 80) "two")
            (data (i32.const 96) "three\0afour\0a")
            (data (i32.const 128) "\60\00\00\00\0b\00\00\00")
            (func (export "pinion_abi_v3"))
            (func (export "pinion_init") (result i32) (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func (export "pinion_run") (local $n i32) (local $m i32)
                (loop $l (br_if $l (i32.eqz (call $wait))))
                (block $fail {run} (call $exit (i32.const 0)))
                unreachable))"#
    )
}

/// Runs a guest that does this and then exits. Returns what it logged, and how many lines of it were lost.
#[track_caller]
fn logged(run: &str) -> (Vec<String>, u64) {
    let mut bench = Bench::new();
    let mut fwp = bench.launch(&guest(run), MEMORY_BYTES_MAX).unwrap();
    bench.send(buffer(), 60);
    assert_eq!(bench.resume_to_end(&mut fwp), EndReason::Exited(0));
    bench.dismantle(fwp);
    let lines = bench.logged();
    let lost = lines.iter().map(|line: &LogLine| line.lost).sum();
    (lines.into_iter().map(|line| line.text.to_string()).collect(), lost)
}

/// Does something of which nothing follows.
const BOUNDARY: &str = "(loop $here)";

#[test]
fn a_line_for_which_a_turns_allowance_is_not_enough_is_written_and_the_turn_ends_after_it() {
    let line = "(call $log (i32.const 3) (i32.const 64) (i32.const 3))";
    assert_eq!(logged(&format!("{USE_UP} {line}")), (vec!["one".to_owned()], 0));
    let printed = "(br_if $fail (call $write (i32.const 1) (i32.const 128) (i32.const 1) (i32.const 160)))
        (br_if $fail (i32.ne (i32.load (i32.const 160)) (i32.const 11)))";
    let (lines, lost) = logged(&format!("{USE_UP} {printed} {BOUNDARY} {line}"));
    assert_eq!((lines, lost), (["three", "four", "one"].map(str::to_owned).to_vec(), 0));
}

#[test]
fn lines_beyond_an_allowance_that_the_guest_gives_no_boundary_to_end_the_turn_at_are_counted() {
    let lines = [64, 80, 80, 80].map(|at| format!("(call $log (i32.const 3) (i32.const {at}) (i32.const 3))"));
    let last = "(call $log (i32.const 3) (i32.const 64) (i32.const 3))";
    let (lines, lost) = logged(&format!("{USE_UP} {} {BOUNDARY} {last}", lines.concat()));
    assert_eq!((lines.first().map(String::as_str), lines.last().map(String::as_str)), (Some("one"), Some("one")));
    assert_eq!(lines.len() as u64 + lost, 5, "{lines:?}");
}

#[test]
fn a_standard_library_gets_its_random_bytes_beyond_a_turns_allowance() {
    let seeds = "(br_if $fail (call $random_get (i32.const 8192) (i32.const 4096)))";
    assert_eq!(logged(&format!("{USE_UP} {seeds} {BOUNDARY} {seeds}")), (Vec::new(), 0));
}

#[test]
fn a_guest_that_prints_in_a_loop_loses_no_line_to_the_allowance() {
    // A guest may log 50 lines at once, so that it is the random bytes between them that use up the allowance of a turn each.
    let print = "(br_if $fail (call $write (i32.const 2) (i32.const 128) (i32.const 1) (i32.const 160)))";
    let line = "(call $log (i32.const 3) (i32.const 64) (i32.const 3))";
    let in_a_turn = format!("(call $yield) {BOUNDARY} (local.set $n (i32.const 0)) {USE_UP} {print} {BOUNDARY} {line}");
    let ten_times = "(br_if $lines (i32.lt_u (local.tee $m (i32.add (local.get $m) (i32.const 1))) (i32.const 10)))";
    let (lines, lost) = logged(&format!("(loop $lines {in_a_turn} {ten_times})"));
    assert_eq!((lines.len(), lost), (30, 0));
}
