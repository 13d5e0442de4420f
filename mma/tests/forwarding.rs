//! What correct guests see: frames arrive whole, in order, on the way that the chain and the guest's verdict say, and
//! slots and buffers come back.

mod support;

use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY, RX_HEADROOM};
use pinion_mma::id::PortIndex;
use pinion_mma::wiring::Edge;
use support::{House, Left, Plan, Shape, frame, id};

#[test]
fn a_frame_is_received_published_replied_and_comes_out_unaltered() {
    let shape = Shape::slots(4);
    let mut house = House::chain(&Plan::default(), 1, shape, Edge::EgressWhereItCame);
    house.gateway.lend_empties(8);
    for (number, len) in [1, 60, 61, 1514, shape.frame_bytes_max()].into_iter().enumerate() {
        let sent = frame(number as u32, len);
        house.receive(&sent, 3);
        assert_eq!(house.noticed(), [id(0)]);
        assert_eq!(house.fwps[0].mailbox.publish(|_| 0), 1);
        let received = house.fwps[0].guest.receive().unwrap();
        let Descriptor { slot, offset, len: got, port, flags, way, arrived } = received;
        assert_eq!((slot, offset, usize::from(got)), (0, RX_HEADROOM as u16, len));
        assert_eq!((port, flags, way, arrived), (3, 0, 3 << 1, 0));
        assert_eq!(house.fwps[0].guest.frame(&received), sent);
        house.fwps[0].guest.pass(received, PORT_REPLY);
        assert_eq!(house.collect_and_move(0), Ok(1));
        assert_eq!(house.gateway.collect(), [Left { port: 3, bytes: sent }]);
    }
    // Each left in a received frame's buffer.
    assert_eq!(house.gateway.lent(), 8);
    house.assert_all_slots_free(0, shape);
}

#[test]
fn without_anything_to_publish_or_collect_nothing_is_done() {
    let mut house = House::chain(&Plan::default(), 1, Shape::slots(4), Edge::EgressWhereItCame);
    assert_eq!(house.fwps[0].mailbox.publish(|_| 0), 0);
    assert_eq!(house.fwps[0].collect(), Ok(0));
    assert!(!house.mma.has_work());
    assert_eq!(house.mma.poll(), 0);
}

#[test]
fn work_is_announced_at_every_step() {
    let mut house = House::chain(&Plan::default(), 1, Shape::slots(4), Edge::EgressWhereItCame);
    house.gateway.lend_empties(1);
    house.gateway.inject(b"frame", 0, id(0));
    assert!(house.mma.has_work());
    assert_eq!(house.mma.poll(), 1);
    assert!(!house.mma.has_work());
    house.fwps[0].pass_all(PORT_NEXT);
    assert!(house.mma.has_work());
    assert_eq!(house.mma.poll(), 1);
    assert!(!house.mma.has_work());
}

/// Sends `count` frames through a chain of `stages`, in bursts, and compares the output.
fn through_a_chain(stages: u32, count: u32) {
    let shape = Shape::slots(8);
    let mut house = House::chain(&Plan::default(), stages, shape, Edge::Egress(PortIndex(7)));
    house.gateway.lend_empties(32);
    let sent: Vec<Vec<u8>> = (0..count).map(|number| frame(number, 1 + (number as usize * 37) % 1500)).collect();
    let mut left = Vec::new();
    for burst in sent.chunks(5) {
        for bytes in burst {
            house.gateway.inject(bytes, 2, id(0));
        }
        house.mma.poll();
        for stage in 0..stages as usize {
            assert_eq!(house.noticed(), [id(stage as u32)]);
            assert_eq!(house.fwps[stage].pass_all(PORT_NEXT), burst.len());
            house.mma.poll();
        }
        left.extend(house.gateway.collect());
    }
    let expected: Vec<Left> = sent.iter().map(|bytes| Left { port: 7, bytes: bytes.clone() }).collect();
    assert_eq!(left, expected);
    assert_eq!(house.gateway.lent(), 32);
    let bytes: u64 = sent.iter().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(house.copied_bytes(), bytes * u64::from(stages + 1));
    for stage in 0..stages as usize {
        let moved = house.fwps[stage].moved();
        assert_eq!((moved.received.value(), moved.sent.value()), (u64::from(count), u64::from(count)));
        assert_eq!((moved.received_bytes.value(), moved.sent_bytes.value()), (bytes, bytes));
    }
}

#[test]
fn a_chain_of_3_passes_frames_through_in_order() {
    through_a_chain(3, 400);
}

#[test]
fn a_chain_of_16_passes_frames_through_in_order() {
    through_a_chain(16, 200);
}

#[test]
fn what_a_stage_changes_is_what_the_next_one_gets() {
    let shape = Shape::slots(4);
    let mut house = House::chain(&Plan::default(), 3, shape, Edge::Egress(PortIndex(1)));
    house.gateway.lend_empties(4);
    house.receive(b"payload", 0);
    for (stage, header) in [b"three--", b"two----", b"one----"].into_iter().enumerate() {
        let fwp = &mut house.fwps[stage];
        let received = fwp.publish_all()[0];
        // Prepended in the headroom, which is free again at every stage.
        let (offset, len) = (received.offset - header.len() as u16, received.len + header.len() as u16);
        assert_eq!(received.offset, RX_HEADROOM as u16);
        fwp.guest.write_frame(received.slot, offset, header);
        fwp.guest.send(Descriptor { offset, len, port: PORT_NEXT, ..received });
        assert_eq!(house.collect_and_move(stage), Ok(1));
    }
    assert_eq!(house.gateway.collect(), [Left { port: 1, bytes: b"one----two----three--payload".to_vec() }]);
}

#[test]
fn the_last_stage_sends_out_where_the_frame_came_in_if_so_wired() {
    let mut house = House::chain(&Plan::default(), 3, Shape::slots(4), Edge::EgressWhereItCame);
    house.gateway.lend_empties(4);
    house.gateway.inject(b"by five", 5, id(0));
    house.gateway.inject(b"by nine", 9, id(0));
    house.mma.poll();
    for stage in 0..3 {
        house.fwps[stage].pass_all(PORT_NEXT);
        house.mma.poll();
    }
    let expected = [(5, b"by five"), (9, b"by nine")].map(|(port, bytes)| Left { port, bytes: bytes.to_vec() });
    assert_eq!(house.gateway.collect(), expected);
}

#[test]
fn a_reply_goes_back_where_it_came_in_from_any_stage() {
    for replying in 0..4 {
        let mut house = House::chain(&Plan::default(), 4, Shape::slots(4), Edge::Egress(PortIndex(1)));
        house.gateway.lend_empties(4);
        house.receive(b"question", 6);
        for stage in 0..replying {
            house.fwps[stage].pass_all(PORT_NEXT);
            house.mma.poll();
        }
        house.fwps[replying].pass_all(PORT_REPLY);
        house.mma.poll();
        assert_eq!(house.gateway.collect(), [Left { port: 6, bytes: b"question".to_vec() }]);
        assert!((0..4).all(|stage| house.fwps[stage].publish_all().is_empty()));
    }
}

#[test]
fn a_dropped_frame_gives_its_slot_back_and_goes_nowhere() {
    let shape = Shape::slots(4);
    let mut house = House::chain(&Plan::default(), 2, shape, Edge::EgressWhereItCame);
    house.gateway.lend_empties(4);
    for _ in 0..3 {
        house.receive(b"unwanted", 0);
    }
    let copied = house.copied_bytes();
    assert_eq!(house.fwps[0].pass_all(PORT_DROP), 3);
    house.mma.poll();
    assert_eq!(house.copied_bytes(), copied);
    assert_eq!(house.fwps[0].mailbox.counters().guest.dropped.value(), 3);
    assert_eq!(house.fwps[0].moved().sent.value(), 0);
    assert!(house.fwps[1].publish_all().is_empty());
    assert_eq!(house.gateway.collect(), []);
    // The MMA keeps the buffers of the three for later frames.
    assert_eq!(house.gateway.lent(), 4 + 3);
    house.assert_all_slots_free(0, shape);
}

#[test]
fn slots_may_be_given_up_in_any_order() {
    let shape = Shape::slots(8);
    let mut house = House::chain(&Plan::default(), 1, shape, Edge::EgressWhereItCame);
    house.gateway.lend_empties(32);
    for round in 0..50 {
        let frames: Vec<Vec<u8>> = (0..8).map(|number| frame(round * 8 + number, 100)).collect();
        for bytes in &frames {
            house.receive(bytes, 0);
        }
        let received = house.fwps[0].publish_all();
        let order = [3, 7, 0, 1, 6, 2, 5, 4];
        for place in order {
            house.fwps[0].guest.pass(received[place], PORT_NEXT);
        }
        assert_eq!(house.collect_and_move(0), Ok(8));
        let expected = order.map(|place| Left { port: 0, bytes: frames[place].clone() });
        assert_eq!(house.gateway.collect(), expected);
        house.gateway.top_up(32);
    }
}

#[test]
fn two_fwps_may_feed_each_other() {
    let shape = Shape::slots(4);
    let mut house = House::new(&Plan::default());
    house.attach(id(0), shape, Edge::Fwp(id(1)));
    house.attach(id(1), shape, Edge::Fwp(id(0)));
    house.gateway.lend_empties(1);
    house.receive(b"round and round", 2);
    for turn in 0..10 {
        assert_eq!(house.fwps[turn % 2].pass_all(PORT_NEXT), 1);
        house.mma.poll();
    }
    house.fwps[0].pass_all(PORT_REPLY);
    house.mma.poll();
    assert_eq!(house.gateway.collect(), [Left { port: 2, bytes: b"round and round".to_vec() }]);
}

#[test]
fn a_pool_of_the_largest_size_and_one_of_the_smallest_work_together() {
    let large = Shape { slot_count: 1024, slot_size: 32 * 1024, ring_entries: 1024 };
    let mut house = House::new(&Plan { buffer_bytes: 32 * 1024, ..Plan::default() });
    house.attach(id(0), Shape::slots(1), Edge::Fwp(id(1)));
    house.attach(id(1), large, Edge::EgressWhereItCame);
    house.gateway.lend_empties(32);
    for number in 0..1500 {
        let sent = frame(number, 1 + number as usize);
        house.receive(&sent, 0);
        assert_eq!(house.fwps[0].pass_all(PORT_NEXT), 1);
        house.mma.poll();
        assert_eq!(house.fwps[1].pass_all(PORT_NEXT), 1);
        house.mma.poll();
        assert_eq!(house.gateway.collect(), [Left { port: 0, bytes: sent }]);
        assert_eq!(house.gateway.lent(), 32);
    }
    let jumbo = frame(1, large.frame_bytes_max());
    house.gateway.inject(&jumbo, 0, id(1));
    house.mma.poll();
    house.fwps[1].pass_all(PORT_NEXT);
    house.mma.poll();
    assert_eq!(house.gateway.collect(), [Left { port: 0, bytes: jumbo }]);
}
