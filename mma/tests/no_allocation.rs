//! A packet's steady-state path allocates nothing. It is a binary of its own, as it counts the calls of its allocator.
#![allow(unsafe_code)] // Is the allocator.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use pinion_abi::PORT_NEXT;
use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::wiring::branch::{Branch, Conditions, Entrance};
use pinion_mma::wiring::{Backpressure, Edge, Wiring};
use support::{House, Plan, Shape, frame, id};

thread_local! {
    /// Allocations counted, while counting.
    static COUNTED: Cell<Option<u64>> = const { Cell::new(None) };
}

struct Counting;

fn count() {
    COUNTED.set(COUNTED.get().map(|count| count + 1));
}

// SAFETY: the system's allocator does all the work; counting neither allocates nor unwinds, as the cell needs no
// destructor and no initialisation.
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

/// Sends `frames` frames through a chain of two, in bursts; returns how often the code under test allocated or freed.
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
            assert_eq!(counted(&mut total, || fwp.mailbox.publish(|_| 0)), BURST);
            while let Some(received) = fwp.guest.receive() {
                fwp.guest.pass(received, PORT_NEXT);
            }
            assert_eq!(counted(&mut total, || fwp.collect()), Ok(BURST));
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
        // No slot, no such FWP, too long; and one transmit buffer for the two that are received.
        for (len, target) in [(64, id(0)), (64, id(0)), (64, id(0)), (64, id(9)), (1_600, id(0))] {
            house.gateway.inject(&frame(round, len), 0, target);
        }
        counted(&mut total, || house.mma.poll());
        house.gateway.collect();
        let fwp = &mut house.fwps[0];
        counted(&mut total, || fwp.mailbox.publish(|_| 0));
        while let Some(received) = fwp.guest.receive() {
            fwp.guest.pass(received, PORT_NEXT);
        }
        assert_eq!(counted(&mut total, || fwp.collect()), Ok(2));
        counted(&mut total, || house.mma.poll());
    }
    let moved = house.fwps[0].moved();
    assert_eq!((moved.sent.value(), moved.dropped_egress.value()), (1_000, 1_000));
    assert_eq!((moved.dropped_no_slot.value(), moved.dropped_too_long.value()), (1_000, 1_000));
    assert_eq!(total, 0);
}

/// Makes an FWP receive what there is and send it by `ports` in turn, and polls.
fn pass_by(house: &mut House, fwp: usize, ports: &[u16], total: &mut u64) -> u32 {
    let fwp = &mut house.fwps[fwp];
    let received = counted(total, || fwp.mailbox.publish(|_| 0));
    for &port in ports.iter().cycle() {
        let Some(descriptor) = fwp.guest.receive() else { break };
        fwp.guest.pass(descriptor, port);
    }
    assert_eq!(counted(total, || fwp.collect()), Ok(received));
    counted(total, || house.mma.poll());
    received
}

#[test]
fn frames_that_branch_allocate_nothing() {
    let mut house = House::new(&Plan::default());
    let outputs = vec![Edge::Fwp(id(1)), Edge::Fwp(id(2)), Edge::Egress(PortIndex(3))];
    house.attach_wired(id(0), Shape::slots(16), Wiring::new(outputs, Backpressure::Drop));
    for index in [1, 2] {
        house.attach(id(index), Shape::slots(16), Edge::EgressWhereItCame);
    }
    house.mma.poll();
    let mut total = 0;
    for round in 0..1_000 {
        for number in 0..16 {
            house.gateway.inject(&frame(number, 64 + round as usize), 0, id(0));
        }
        counted(&mut total, || house.mma.poll());
        house.gateway.discard();
        house.gateway.top_up(32);
        assert_eq!(pass_by(&mut house, 0, &[0, 0, 1, 2, 1], &mut total), 16);
        assert_eq!(pass_by(&mut house, 1, &[0], &mut total) + pass_by(&mut house, 2, &[0], &mut total), 13);
        assert_eq!(house.gateway.discard(), 16);
    }
    assert_eq!(total, 0);
}

/// A frame meets the case of the number that is its first byte.
#[derive(Debug)]
struct ByFirstByte;

impl Conditions for ByFirstByte {
    fn first_met(&self, frame: &[u8], _port: PortIndex) -> Option<usize> {
        frame.first().map(|byte| usize::from(*byte))
    }
}

#[test]
fn frames_that_take_their_edges_by_their_headers_allocate_nothing() {
    let mut house = House::new(&Plan::default());
    let branch = |edges: [Edge; 4]| Branch::new(Arc::new(ByFirstByte), edges[..3].to_vec(), edges[3]);
    let [out, first, second] = [Edge::EgressWhereItCame, Edge::Fwp(id(1)), Edge::Fwp(id(2))];
    let wiring = Wiring::to(Edge::Branch(0)).with_branches(vec![branch([first, second, Edge::Drop, out])]);
    let entrance = Entrance { forth: Some(branch([Edge::Fwp(id(0)), second, Edge::Drop, first])), back: None };
    house.attach_wired(id(0), Shape::slots(16), wiring.with_entrance(entrance));
    for index in [1, 2] {
        house.attach(id(index), Shape::slots(16), Edge::EgressWhereItCame);
    }
    house.mma.poll();
    let mut total = 0;
    for round in 0..1_000 {
        house.gateway.top_up(32);
        for number in 0..16_u8 {
            let mut bytes = frame(number.into(), 64 + round as usize);
            bytes[0] = number % 4;
            house.gateway.inject(&bytes, 0, id(0));
        }
        counted(&mut total, || house.mma.poll());
        // Four are the first stage's, and branch behind it as well; eight enter by the others, and four are dropped.
        for descriptor in house.fwps[0].publish_all() {
            house.fwps[0].guest.write_frame(descriptor.slot, descriptor.offset, &[round as u8 % 5]);
            house.fwps[0].guest.pass(descriptor, PORT_NEXT);
        }
        assert_eq!(house.fwps[0].collect(), Ok(4));
        counted(&mut total, || house.mma.poll());
        for stage in [1, 2] {
            pass_by(&mut house, stage, &[PORT_NEXT], &mut total);
        }
        house.gateway.discard();
    }
    assert_eq!(total, 0);
    let sums = house.fwps.iter().map(|fwp| fwp.moved().sent.value()).sum::<u64>();
    assert!(sums > 4_000 && house.fwps[0].moved().dropped_by_graph.value() > 4_000);
}

#[test]
fn frames_that_wait_before_between_and_behind_stages_allocate_nothing() {
    // The MMA keeps two buffers.
    let plan = Plan { buffers: 16, ..Plan::default() };
    let mut house = House::holding_chain(&plan, &[Shape::slots(3), Shape::slots(2)], 8, Edge::EgressWhereItCame);
    let (mut total, mut injected, mut left) = (0, 0, 0);
    for round in 0..5_000 {
        while house.gateway.lent() < 8 {
            house.gateway.inject(&frame(injected, 64), 0, id(0));
            injected += 1;
        }
        counted(&mut total, || house.mma.poll());
        // Each of the three stops for some rounds, so that the others wait for it.
        if round % 3 != 0 {
            pass_by(&mut house, 0, &[PORT_NEXT], &mut total);
        }
        if round % 5 != 0 {
            pass_by(&mut house, 1, &[PORT_NEXT], &mut total);
        }
        counted(&mut total, || {
            while house.mma.has_work() {
                house.mma.poll();
            }
        });
        if round % 7 != 0 {
            left += house.gateway.discard();
        }
    }
    assert!(left > 5_000, "only {left} frames left");
    let dropped = [0, 1].map(|fwp| house.fwps[fwp].moved().dropped_no_slot.value());
    assert_eq!((dropped, house.fwps[1].moved().dropped_egress.value()), ([0; 2], 0));
    assert_eq!(total, 0);
}

#[test]
fn stuck_fwps_that_leave_allocate_and_free_nothing_in_the_mma() {
    // A chain of two and a single FWP take all indices; the MMA keeps one buffer.
    let plan = Plan { fwps_max: 3, buffers: 8, ..Plan::default() };
    let hold = Backpressure::Hold { frames_max: 4 };
    let mut total = 0;
    // If the second stage ends first, the first one's slots are free again for frames that wait before it.
    for (later, gone_first) in [([0, 1], 4), ([1, 0], 2)] {
        let mut house = House::new(&plan);
        for generation in 0..200 {
            let ids = [0, 1, 2].map(|index| FwpId { index, generation });
            house.attach_wired(ids[0], Shape::slots(2), Wiring::new(vec![Edge::Fwp(ids[1])], hold));
            house.attach_wired(ids[1], Shape::slots(1), Wiring::new(vec![Edge::EgressWhereItCame], hold));
            house.attach_wired(ids[2], Shape::slots(3), Wiring::new(vec![Edge::EgressWhereItCame], hold));
            counted(&mut total, || house.mma.poll());
            // Two frames that wait before the first stage, and two behind it.
            (0..6).for_each(|number| house.gateway.inject(&frame(number, 64), 0, ids[0]));
            counted(&mut total, || house.mma.poll());
            for stage in [0, 1, 0] {
                pass_by(&mut house, stage, &[PORT_NEXT], &mut total);
            }
            house.gateway.discard();
            // And two that wait for a buffer.
            (0..3).for_each(|number| house.gateway.inject(&frame(number, 64), 0, ids[2]));
            counted(&mut total, || house.mma.poll());
            house.gateway.take_spent();
            pass_by(&mut house, 2, &[PORT_NEXT], &mut total);
            let leaving = [2, later[0], later[1]];
            leaving.iter().for_each(|&index| house.command(MmaCommand::Detach(ids[index])));
            counted(&mut total, || house.mma.poll());
            let left = leaving.map(|_| house.detached().expect("it was detached").id());
            assert_eq!(left, leaving.map(|index| ids[index]));
            let gone = [0, 2].map(|fwp| house.fwps[fwp].moved().dropped_instance_ended.value());
            assert_eq!(gone, [gone_first, 2], "frames that were stuck");
            house.gateway.discard();
            house.fwps.clear();
        }
    }
    assert_eq!(total, 0);
}

#[test]
fn the_counting_allocator_counts() {
    let mut total = 0;
    drop(counted(&mut total, || std::hint::black_box(vec![1_u8; 100])));
    assert_eq!(total, 1);
}
