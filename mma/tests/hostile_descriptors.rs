//! What hostile guests can write into their rings. Each violation is reported, nothing is copied for it, valid entries
//! before it are delivered, and no other FWP notices.

mod support;

use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY};
use pinion_mma::guest::mailbox::Violation;
use pinion_mma::id::PortIndex;
use pinion_mma::wiring::Edge;
use support::{House, Index, KNOWN_PORTS, Left, Plan, Shape, frame, judged};

const FRAME_BYTES: usize = 100;
/// Slots granted to the guest; its pool has twice as many.
const GRANTED: u16 = 4;

/// Makes two stages with `GRANTED` frames granted to the first one, which is the attacker.
fn besieged(shape: Shape) -> (House, Vec<Descriptor>) {
    let mut house = House::chain(&Plan::default(), 2, shape, Edge::Egress(PortIndex(1)));
    house.gateway.lend_empties(16);
    for number in 0..u32::from(GRANTED) {
        house.receive(&frame(number, FRAME_BYTES), 3);
    }
    let received = house.fwps[0].publish_all();
    assert_eq!(received.len(), usize::from(GRANTED));
    (house, received)
}

/// Makes the attacker send `honest` valid frames to the next stage, then `evil`, then one more valid frame. Checks that
/// it is stopped for `expected`, and that the valid frames before `evil`, and nothing else, have moved.
fn assert_stopped(shape: Shape, honest: usize, evil: Descriptor, expected: Violation) {
    let (mut house, received) = besieged(shape);
    for &descriptor in &received[..honest] {
        house.fwps[0].guest.pass(descriptor, PORT_NEXT);
    }
    house.fwps[0].guest.send(evil);
    house.fwps[0].guest.pass(received[honest], PORT_NEXT);
    let copied = house.copied_bytes();
    let slots = house.fwps[0].guest.slots();
    assert_eq!(house.collect_and_move(0), Err(expected), "{evil:?} after {honest} honest frames");

    assert_eq!(house.copied_bytes() - copied, (honest * FRAME_BYTES) as u64, "{evil:?}");
    assert!(house.fwps[0].guest.slots() == slots, "{evil:?} changed the pool");
    let delivered = house.fwps[1].publish_all();
    let expected: Vec<Vec<u8>> = (0..honest).map(|number| frame(number as u32, FRAME_BYTES)).collect();
    let frames: Vec<Vec<u8>> = delivered.iter().map(|descriptor| house.fwps[1].guest.frame(descriptor)).collect();
    assert_eq!(frames, expected, "{evil:?}");
    assert_eq!(house.gateway.collect(), [], "{evil:?}");
    assert_eq!(house.gateway.lent(), 16 + usize::from(GRANTED), "{evil:?}");
}

fn every_edge_of(shape: Shape) {
    let size = shape.slot_size as u16;
    let places = [0, 1, 63, 64, 65, size / 2, size - 65, size - 64, size - 1, size, size + 1, u16::MAX - 1, u16::MAX];
    let slots = shape.slot_count as u16;
    // Granted, in the pool but not granted, the first beyond it, of the last word of the bitmap, and far off.
    let slots = [0, GRANTED - 1, GRANTED, slots - 1, slots, slots + 1, 63, 64, 127, 1023, 1024, u16::MAX];
    let ports = [PORT_NEXT, PORT_REPLY, PORT_DROP, 1, 2, 0x7fff, 0x8000, 0xfffd];
    let (mut accepted, mut refused) = (0, 0);
    for port in ports {
        for offset in places {
            for len in places {
                for slot in slots {
                    let evil =
                        Descriptor { slot, offset, len, port, flags: u16::MAX, way: u16::MAX, arrived: u32::MAX };
                    // The valid frames before it give up slots 0 and 1.
                    match judged(shape.slot_size, 1, |slot| [2, 3].contains(&slot), |_, _| true, evil) {
                        Err(violation) => {
                            refused += 1;
                            assert_stopped(shape, 2, evil, violation);
                        }
                        Ok(()) => {
                            accepted += 1;
                            let (mut house, _) = besieged(shape);
                            house.fwps[0].guest.send(evil);
                            assert_eq!(house.fwps[0].collect(), Ok(1), "{evil:?}");
                            house.mma.poll();
                        }
                    }
                }
            }
        }
    }
    assert!(accepted > 100 && refused > 10_000, "{accepted} accepted, {refused} refused");
}

#[test]
fn every_edge_of_the_smallest_slots_is_judged_by_the_rules() {
    every_edge_of(Shape { slot_count: 8, slot_size: 1600, ring_entries: 8 });
}

#[test]
fn every_edge_of_larger_slots_in_a_longer_ring_is_judged_by_the_rules() {
    every_edge_of(Shape { slot_count: 8, slot_size: 4096, ring_entries: 32 });
}

#[test]
fn the_edges_of_the_largest_slots_do_not_overflow() {
    let shape = Shape { slot_count: 8, slot_size: 32 * 1024, ring_entries: 8 };
    for (offset, len) in
        [(u16::MAX, u16::MAX), (u16::MAX, 1), (1, u16::MAX), (0x8000, 0x8000), (0x8000, 1), (1, 0x8000), (0, 0x8001)]
    {
        let evil = Descriptor { slot: 1, offset, len, port: PORT_NEXT, ..Descriptor::default() };
        assert_stopped(shape, 1, evil, Violation::Range { offset, len, slot_size: 32 * 1024 });
    }
}

#[test]
fn a_violation_anywhere_in_a_batch_lets_earlier_descriptors_pass() {
    let shape = Shape::slots(8);
    for honest in 0..usize::from(GRANTED) {
        let evil = Descriptor { slot: 8, offset: 64, len: 1, port: PORT_NEXT, ..Descriptor::default() };
        assert_stopped(shape, honest, evil, Violation::SlotNotOwned(8));
    }
}

#[test]
fn a_slot_sent_twice_in_one_batch_moves_once() {
    for port in KNOWN_PORTS {
        let (mut house, received) = besieged(Shape::slots(8));
        house.fwps[0].guest.pass(received[2], PORT_NEXT);
        house.fwps[0].guest.pass(received[2], port);
        let copied = house.copied_bytes();
        assert_eq!(house.collect_and_move(0), Err(Violation::SlotNotOwned(2)));
        assert_eq!(house.copied_bytes() - copied, FRAME_BYTES as u64);
        assert_eq!(house.fwps[1].publish_all().len(), 1);
    }
}

#[test]
fn a_slot_sent_again_in_a_later_batch_does_not_move() {
    // Before and after the MMA has moved it: in neither case does the guest own the slot.
    for move_between in [true, false] {
        let (mut house, received) = besieged(Shape::slots(8));
        house.fwps[0].guest.pass(received[0], PORT_REPLY);
        assert_eq!(house.fwps[0].collect(), Ok(1));
        if move_between {
            house.mma.poll();
        }
        house.fwps[0].guest.pass(received[0], PORT_REPLY);
        assert_eq!(house.collect_and_move(0), Err(Violation::SlotNotOwned(0)));
        assert_eq!(house.gateway.collect(), [Left { port: 3, bytes: frame(0, FRAME_BYTES) }]);
    }
}

#[test]
fn a_dropped_slot_cannot_be_sent_nor_dropped_again() {
    for port in KNOWN_PORTS {
        let (mut house, received) = besieged(Shape::slots(8));
        house.fwps[0].guest.pass(received[1], PORT_DROP);
        house.fwps[0].guest.pass(received[1], port);
        let copied = house.copied_bytes();
        assert_eq!(house.collect_and_move(0), Err(Violation::SlotNotOwned(1)));
        assert_eq!(house.copied_bytes(), copied);
        assert_eq!(house.fwps[0].mailbox.counters().guest.dropped.value(), 1);
    }
}

#[test]
fn a_slot_that_the_mma_has_filled_is_not_the_guests_before_it_is_published() {
    let (mut house, received) = besieged(Shape::slots(8));
    house.receive(&frame(9, FRAME_BYTES), 3);
    house.fwps[0].guest.pass(Descriptor { slot: 4, ..received[0] }, PORT_REPLY);
    assert_eq!(house.fwps[0].collect(), Err(Violation::SlotNotOwned(4)));
}

#[test]
fn a_slot_is_the_guests_again_once_it_is_received_into_again() {
    let (mut house, received) = besieged(Shape::slots(4));
    for round in 0..20 {
        house.fwps[0].guest.pass(received[1], PORT_DROP);
        assert_eq!(house.collect_and_move(0), Ok(1), "round {round}");
        house.receive(&frame(round, FRAME_BYTES), 3);
        assert_eq!(house.fwps[0].publish_all(), [received[1]]);
    }
}

#[test]
fn a_jump_of_the_transmit_index_is_reported_and_nothing_moves() {
    // Rings longer than the pool, so that a jump within the ring is not one over the slots.
    let shape = Shape { slot_count: 8, slot_size: 1600, ring_entries: 16 };
    for progress in 0..u32::from(GRANTED) {
        let jumps =
            [progress.wrapping_sub(1), 0, progress + 17, progress + 32, 1 << 16, 1 << 31, u32::MAX - 16, u32::MAX];
        for tail in jumps.into_iter().filter(|&tail| tail != progress) {
            let (mut house, received) = besieged(shape);
            for &descriptor in &received[..progress as usize] {
                house.fwps[0].guest.pass(descriptor, PORT_REPLY);
            }
            assert_eq!(house.collect_and_move(0), Ok(progress));
            assert_eq!(house.gateway.collect().len(), progress as usize);
            // The ring's contents are valid; only the index is not.
            house.fwps[0].guest.write_entry(progress, received[progress as usize]);
            house.fwps[0].guest.set_tx(Index::Tail, tail);
            let copied = house.copied_bytes();
            let expected = Violation::IndexJump { head: progress, tail, entries: 16 };
            assert_eq!(house.collect_and_move(0), Err(expected));
            assert_eq!(house.copied_bytes(), copied);
            assert_eq!(house.gateway.collect(), []);
        }
    }
}

#[test]
fn a_full_transmit_ring_is_no_jump_but_must_hold_what_the_guest_owns() {
    let shape = Shape { slot_count: 8, slot_size: 1600, ring_entries: 16 };
    let (mut house, received) = besieged(shape);
    for place in 0..16 {
        house.fwps[0].guest.pass(received[place % received.len()], PORT_REPLY);
    }
    assert_eq!(house.collect_and_move(0), Err(Violation::SlotNotOwned(received[0].slot)));
    assert_eq!(house.gateway.collect().len(), received.len());
}

#[test]
fn indices_that_belong_to_the_host_are_not_trusted() {
    let (mut house, received) = besieged(Shape::slots(8));
    for (round, value) in [0, 1, 7, 8, 9, 1 << 31, u32::MAX].into_iter().enumerate() {
        let guest = &mut house.fwps[0].guest;
        guest.set_tx(Index::Head, value);
        guest.set_rx(Index::Head, value);
        guest.set_rx(Index::Tail, value);
        guest.pass(received[0], PORT_REPLY);
        assert_eq!(house.collect_and_move(0), Ok(1), "round {round}");
        assert_eq!(house.gateway.collect().len(), 1);
        house.receive(&frame(round as u32, FRAME_BYTES), 3);
        // The host's own index overwrites the guest's.
        assert_eq!(house.fwps[0].publish_all(), [received[0]]);
    }
}

#[test]
fn a_descriptor_rewritten_after_it_was_collected_changes_nothing() {
    let (mut house, received) = besieged(Shape::slots(8));
    house.fwps[0].guest.pass(received[0], PORT_REPLY);
    assert_eq!(house.fwps[0].collect(), Ok(1));
    let guest = &house.fwps[0].guest;
    guest.write_entry(0, Descriptor { slot: 7, offset: u16::MAX, len: u16::MAX, port: 9, ..Descriptor::default() });
    house.mma.poll();
    assert_eq!(house.gateway.collect(), [Left { port: 3, bytes: frame(0, FRAME_BYTES) }]);
}

#[test]
fn a_payload_rewritten_after_it_was_copied_is_not_seen_downstream() {
    let (mut house, received) = besieged(Shape::slots(8));
    house.fwps[0].guest.pass(received[0], PORT_NEXT);
    assert_eq!(house.collect_and_move(0), Ok(1));
    house.fwps[0].guest.write_frame(received[0].slot, received[0].offset, &[0xee; FRAME_BYTES]);
    let delivered = house.fwps[1].publish_all();
    assert_eq!(house.fwps[1].guest.frame(&delivered[0]), frame(0, FRAME_BYTES));
}

#[test]
fn a_guest_cannot_choose_its_way_out_by_what_it_writes() {
    let (mut house, received) = besieged(Shape::slots(8));
    let guest = &mut house.fwps[0].guest;
    guest.send(Descriptor { port: PORT_REPLY, flags: u16::MAX, way: 7, arrived: 9, ..received[0] });
    assert_eq!(house.collect_and_move(0), Ok(1));
    assert_eq!(house.gateway.collect()[0].port, 3);
}

#[test]
fn a_sent_range_anywhere_in_the_slot_is_copied_exactly() {
    let shape = Shape::slots(8);
    let content = frame(77, shape.slot_size as usize);
    for (offset, len) in [(0, 1600), (0, 1), (1599, 1), (1, 1599), (63, 65), (64, 1536), (800, 800)] {
        let (mut house, received) = besieged(shape);
        let guest = &mut house.fwps[0].guest;
        guest.write_frame(received[2].slot, 0, &content);
        guest.send(Descriptor { offset, len, port: PORT_REPLY, ..received[2] });
        assert_eq!(house.collect_and_move(0), Ok(1));
        let (start, end) = (usize::from(offset), usize::from(offset) + usize::from(len));
        assert_eq!(house.gateway.collect(), [Left { port: 3, bytes: content[start..end].to_vec() }]);
    }
}

#[test]
fn neighbours_of_a_slot_keep_every_byte() {
    let shape = Shape::slots(8);
    let mut house = House::chain(&Plan::default(), 1, shape, Edge::EgressWhereItCame);
    for slot in 0..8 {
        house.fwps[0].guest.write_frame(slot, 0, &[0xaa; 1600]);
    }
    let before = house.fwps[0].guest.snapshot();
    house.receive(&[0x55; 1536], 0);
    let after = house.fwps[0].guest.snapshot();
    let changed: Vec<usize> = (0..before.len()).filter(|&place| before[place] != after[place]).collect();
    assert_eq!(changed.len(), 1536);
    assert_eq!(changed[1535] - changed[0], 1535);
    assert!(changed[0].is_multiple_of(64));
}
