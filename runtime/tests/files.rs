//! Files of real guests on a real engine: across turns, and across instances.

mod support;

use std::sync::Arc;

use pinion_guest::files::Bundle;
use pinion_runtime::fwp::end_reason::EndReason;
use pinion_runtime::tenants::accounts::MemoryAccounts;
use support::Bench;

const MEMORY_BYTES_MAX: usize = 4 << 16;
/// More than the host calls of three turns may move.
const LARGE_BYTES: usize = 1 << 20;
const RESTARTS: u32 = 2_000;

/// Returns a guest that does this when it runs, and then waits for ever. `$open` opens the file whose five-byte name is at 1024. `$read`
/// and `$write` use the vector at 1040, which covers the 64 KiB of the second page. The number of bytes is at 1032.
fn guest(run: &str) -> String {
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (import "wasi_snapshot_preview1" "path_open"
                (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 3)
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\10\00\00\04\00\00\00\00\04\01\00\00\08\01\00")
            (data (i32.const 1024) "large")
            (data (i32.const 1040) "\00\00\02\00\00\00\01\00")
            (func (export "pinion_abi_v3"))
            (func (export "pinion_init") (result i32) (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func $open (param $flags i32) (param $rights i64) (result i32)
                (call $path_open (i32.const 3) (i32.const 0) (i32.const 1024) (i32.const 5) (local.get $flags)
                    (local.get $rights) (i64.const 0) (i32.const 0) (i32.const 1036)))
            (func $read (result i32)
                (call $fd_read (i32.load (i32.const 1036)) (i32.const 1040) (i32.const 1) (i32.const 1032)))
            (func $write (result i32)
                (call $fd_write (i32.load (i32.const 1036)) (i32.const 1040) (i32.const 1) (i32.const 1032)))
            (func $expect (param $found i32) (param $expected i32)
                (if (i32.ne (local.get $found) (local.get $expected)) (then unreachable)))
            (func (export "pinion_run") (local $total i32)
                {run}
                (loop $for_ever (drop (call $wait)) (br $for_ever))))"#
    )
}

fn bundle() -> Arc<Bundle> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(LARGE_BYTES as u64);
    archive.append_data(&mut header, "large", &vec![1; LARGE_BYTES][..]).unwrap();
    Arc::new(Bundle::read(archive.into_inner().unwrap()).unwrap())
}

#[test]
fn a_large_file_is_read_over_several_turns() {
    let read_all = format!(
        "(call $expect (call $open (i32.const 0) (i64.const 2)) (i32.const 0))
         (loop $more
             (call $expect (call $read) (i32.const 0))
             (local.set $total (i32.add (local.get $total) (i32.load (i32.const 1032))))
             (br_if $more (i32.load (i32.const 1032))))
         (call $expect (local.get $total) (i32.const {LARGE_BYTES}))"
    );
    let mut bench = Bench::new();
    let template = bench.template_with(&guest(&read_all), Some(bundle()), MEMORY_BYTES_MAX).unwrap();
    let fwp = bench.launch_from(&template, MemoryAccounts::default()).unwrap();
    assert!(fwp.counters().guest.preemptions.value() > 0, "it could not do it in one turn");
    assert_eq!(fwp.shared().files_bytes(), 0);
    bench.dismantle(fwp);
}

#[test]
fn no_instance_sees_what_another_one_has_written() {
    // The file begins as it was deployed, and is overwritten.
    let write = "(call $expect (call $open (i32.const 0) (i64.const 66)) (i32.const 0))
         (call $expect (call $read) (i32.const 0))
         (call $expect (i32.load8_u (i32.const 0x20000)) (i32.const 1))
         (call $expect (call $open (i32.const 0) (i64.const 66)) (i32.const 0))
         (i32.store8 (i32.const 0x20000) (i32.const 7))
         (call $expect (call $write) (i32.const 0))
         ;; Another name, too, which is new.
         (i32.store8 (i32.const 1024) (i32.const 120))
         (call $expect (call $open (i32.const 0) (i64.const 2)) (i32.const 44))
         (call $expect (call $open (i32.const 1) (i64.const 66)) (i32.const 0))
         (call $expect (i32.load (i32.const 1036)) (i32.const 6))
         (call $expect (call $write) (i32.const 0))";
    let mut bench = Bench::new();
    let template = bench.template_with(&guest(write), Some(bundle()), 2 * MEMORY_BYTES_MAX).unwrap();
    for restart in 0..RESTARTS {
        let fwp = bench.launch_from(&template, MemoryAccounts::default());
        let fwp = fwp.unwrap_or_else(|reason| panic!("restart {restart}: {}", reason.account()));
        assert!(fwp.shared().files_bytes() > 16 * 1024);
        bench.dismantle(fwp);
    }
}

#[test]
fn memory_and_files_together_stay_within_the_limit() {
    // Memory has three of four pages, so that files have less than one.
    let fill = "(call $expect (call $open (i32.const 5) (i64.const 66)) (i32.const 20))
         (i32.store8 (i32.const 1024) (i32.const 120))
         (call $expect (call $open (i32.const 1) (i64.const 66)) (i32.const 0))
         (call $expect (call $write) (i32.const 0))
         (call $expect (i32.lt_u (i32.load (i32.const 1032)) (i32.const 0x10000)) (i32.const 1))
         (call $expect (call $write) (i32.const 51))
         (call $expect (memory.grow (i32.const 1)) (i32.const -1))";
    let mut bench = Bench::new();
    let template = bench.template_with(&guest(fill), Some(bundle()), MEMORY_BYTES_MAX).unwrap();
    let fwp = bench.launch_from(&template, MemoryAccounts::default()).unwrap();
    let (memory, files) = (fwp.shared().memory_bytes(), fwp.shared().files_bytes());
    assert_eq!(memory, 3 << 16);
    assert!(files > 50_000 && memory + files <= MEMORY_BYTES_MAX as u64, "{files}");
    bench.dismantle(fwp);
}

#[test]
fn without_files_nothing_is_open() {
    let look = "(call $expect (call $open (i32.const 0) (i64.const 2)) (i32.const 8))
         (i32.store (i32.const 1036) (i32.const 4))
         (call $expect (call $read) (i32.const 8))
         (call $expect (call $write) (i32.const 8))";
    let mut bench = Bench::new();
    let template = bench.template_with(&guest(look), None, MEMORY_BYTES_MAX).unwrap();
    let fwp = bench.launch_from(&template, MemoryAccounts::default()).unwrap();
    bench.dismantle(fwp);
    // The same guest, where there are files, does not find them closed.
    let template = bench.template_with(&guest(look), Some(bundle()), MEMORY_BYTES_MAX).unwrap();
    let reason = bench.launch_from(&template, MemoryAccounts::default()).err();
    assert!(matches!(reason, Some(EndReason::Trapped { .. })), "{reason:?}");
}
