//! The steady state of an FWP allocates nothing: neither resuming, nor waiting, nor exchanging the rings.
#![allow(unsafe_code)] // A counting allocator.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use pinion_control::model::{Access, Chain, Field, Grant, Stage, WhenFull};
use pinion_mma::buffer::Buffer;
use pinion_runtime::fwp::Turn;
use pinion_runtime::state::{StateLimits, StateStore};
use support::{Bench, buffer};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ECHO: &str = include_str!("support/echo.wat");

#[test]
fn a_hundred_thousand_packets_through_an_fwp_allocate_nothing() {
    assert_allocates_nothing(Bench::new(), ECHO);
}

#[test]
fn as_many_calls_for_state_allocate_nothing_either() {
    let field = Field {
        name: "counters".parse().unwrap(),
        value_bytes: 64,
        entries: 2000,
        ttl_seconds: Some(3600),
        when_full: WhenFull::Evict,
    };
    let mut stage = Stage::new("m".parse().unwrap(), Vec::new());
    stage.state = vec![Grant { field: field.name.clone(), access: Access::Write }];
    let chain = Chain::new("t".parse().unwrap(), "c".parse().unwrap(), vec![stage]);
    let store = StateStore::new(StateLimits { default_bytes: 1 << 20, by_name: HashMap::new(), total_bytes: u64::MAX });
    let mut bench = Bench::new();
    bench.fields = Arc::new([field.name.to_string()]);
    bench.state = store.open(&Chain { fields: vec![field], ..chain }).unwrap().remove(0);
    // Before each wait: a new entry, until some must be evicted; an addition; and a read.
    let wait = r#"(import "pinion" "wait" (func $wait_for (result i32)))
        (import "pinion" "state_get" (func $get (param i32 i32 i32 i32 i32) (result i32)))
        (import "pinion" "state_put" (func $put (param i32 i32 i32 i32 i32) (result i32)))
        (import "pinion" "state_add" (func $add (param i32 i32 i32 i64 i32) (result i32)))
        (func $wait (result i32)
            (i32.store (i32.const 96) (i32.add (i32.load (i32.const 96)) (i32.const 1)))
            (if (call $put (i32.const 0) (i32.const 96) (i32.const 4) (i32.const 128) (i32.const 64)) (then unreachable))
            (if (call $add (i32.const 0) (i32.const 100) (i32.const 4) (i64.const 1) (i32.const 120)) (then unreachable))
            (drop (call $get (i32.const 0) (i32.const 96) (i32.const 4) (i32.const 128) (i32.const 64)))
            (call $wait_for))"#;
    assert_allocates_nothing(bench, &ECHO.replace(r#"(import "pinion" "wait" (func $wait (result i32)))"#, wait));
    let counted = &store.of_tenant(&"t".parse().unwrap()).0[0];
    assert!(counted.writes > 200_000 && counted.evicted > 90_000, "{counted:?}");
}

#[test]
fn as_many_waits_with_deadlines_allocate_nothing_either() {
    // Its deadlines have always passed. It treats each wait without packets alike, whatever the reason.
    let wait = r#"(import "pinion" "wait_until" (func $wait_until (param i64) (result i32)))
        (func $wait (result i32) (local $told i32)
            (local.set $told (call $wait_until (i64.const 0)))
            (select (local.get $told) (i32.const 0) (i32.gt_s (local.get $told) (i32.const 0))))"#;
    assert_allocates_nothing(
        Bench::new(),
        &ECHO.replace(r#"(import "pinion" "wait" (func $wait (result i32)))"#, wait),
    );
}

fn assert_allocates_nothing(mut bench: Bench, wat: &str) {
    let mut fwp = bench.launch(wat, 1 << 20).unwrap();
    // Frames leave in the buffers in which others arrived. A few more than one, because a guest may be preempted in between.
    let mut spare: Vec<Buffer> = (0..4).map(|_| buffer()).collect();
    let mut round = |bench: &mut Bench| {
        bench.send(spare.pop().unwrap(), 60);
        for _ in 0..2 {
            assert!(matches!(bench.resume(&mut fwp), Turn::Waiting { .. } | Turn::Preempted));
        }
        bench.mma.poll();
        spare.extend(bench.gateway.spent.pop());
        spare.extend(std::iter::from_fn(|| bench.gateway.outbound.pop()).map(|out| out.frame.into_buffer()));
    };
    (0..1000).for_each(|_| round(&mut bench));
    let before = ALLOCATIONS.get();
    (0..100_000).for_each(|_| round(&mut bench));
    assert_eq!(ALLOCATIONS.get() - before, 0);
    bench.dismantle(fwp);
}
