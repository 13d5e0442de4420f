//! The steady-state way of a packet allocates nothing: a binary of its own, for it counts what its allocator is asked for.
#![allow(unsafe_code)] // Is the allocator.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use pinion_abi::PORT_NEXT;
use pinion_mma::wiring::Edge;
use support::{House, Plan, Shape, frame, id};

thread_local! {
    /// Allocations counted, while counting.
    static COUNTED: Cell<Option<u64>> = const { Cell::new(None) };
}

struct Counting;

fn count() {
    COUNTED.set(COUNTED.get().map(|count| count + 1));
}

// SAFETY: all is done by the system's allocator; counting neither allocates nor unwinds, as the cell needs no destructor
// and no initialisation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(start, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work` and adds what it allocated or freed to `total`.
fn counted<R>(total: &mut u64, work: impl FnOnce() -> R) -> R {
    COUNTED.set(Some(0));
    let result = work();
    *total += COUNTED.take().unwrap();
    result
}

/// Takes `frames` frames through a chain of two, in bursts; returns what the code under test allocated or freed.
fn allocations_of(house: &mut House, frames: u32) -> u64 {
    const BURST: u32 = 32;
    let mut total = 0;
    let bytes = frame(1, 256);
    for _ in 0..frames.div_ceil(BURST) {
        for _ in 0..BURST {
            house.gateway.inject(&bytes, 0, id(0));
        }
        counted(&mut total, || house.mma.poll());
        for stage in 0..2 {
            let fwp = &mut house.fwps[stage];
            assert_eq!(counted(&mut total, || house.worker_queue.pop()), Some(fwp.id));
            assert_eq!(counted(&mut total, || fwp.mailbox.publish()), BURST);
            while let Some(received) = fwp.guest.receive() {
                fwp.guest.pass(received, PORT_NEXT);
            }
            assert_eq!(counted(&mut total, || fwp.mailbox.collect()), Ok(BURST));
            counted(&mut total, || house.mma.poll());
        }
        assert_eq!(house.gateway.collect().len(), BURST as usize);
        house.gateway.top_up(BURST as usize);
    }
    total
}

#[test]
fn a_hundred_thousand_frames_allocate_nothing() {
    let mut house = House::chain(&Plan::default(), 2, Shape::slots(32), Edge::EgressWhereItCame);
    house.gateway.lend_empties(32);
    allocations_of(&mut house, 1_000);
    assert_eq!(allocations_of(&mut house, 100_000), 0);
    assert_eq!(house.fwps[1].moved().sent.value() / 1_000, 101);
}

#[test]
fn frames_that_are_dropped_allocate_nothing_either() {
    let mut house = House::chain(&Plan { buffers: 8, ..Plan::default() }, 1, Shape::slots(2), Edge::EgressWhereItCame);
    let mut total = 0;
    for round in 0..1_000 {
        // No slot, nobody there, too long; and one transmit buffer for the two that are received.
        for (len, target) in [(64, id(0)), (64, id(0)), (64, id(0)), (64, id(9)), (1_600, id(0))] {
            house.gateway.inject(&frame(round, len), 0, target);
        }
        counted(&mut total, || house.mma.poll());
        house.gateway.collect();
        let fwp = &mut house.fwps[0];
        counted(&mut total, || fwp.mailbox.publish());
        while let Some(received) = fwp.guest.receive() {
            fwp.guest.pass(received, PORT_NEXT);
        }
        assert_eq!(counted(&mut total, || fwp.mailbox.collect()), Ok(2));
        counted(&mut total, || house.mma.poll());
    }
    let moved = house.fwps[0].moved();
    assert_eq!((moved.sent.value(), moved.dropped_egress.value()), (1_000, 1_000));
    assert_eq!((moved.dropped_no_slot.value(), moved.dropped_too_long.value()), (1_000, 1_000));
    assert_eq!(total, 0);
}

#[test]
fn the_counting_allocator_counts() {
    let mut total = 0;
    drop(counted(&mut total, || std::hint::black_box(vec![1_u8; 100])));
    assert_eq!(total, 1);
}
