//! What happens at the limits: every frame that cannot go on is dropped and counted by reason, no slot or buffer is
//! lost, and traffic goes on afterwards.

mod support;

use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY};
use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::notify::NAMES_MAX;
use pinion_mma::wiring::Edge;
use support::{House, Left, Plan, Shape, frame, id};

#[test]
fn frames_without_a_free_slot_are_dropped_and_counted_until_slots_come_back() {
    let shape = Shape::slots(5);
    let mut house = House::chain(&Plan::default(), 1, shape, Edge::EgressWhereItCame);
    house.gateway.lend_empties(32);
    for round in 1..=3 {
        for number in 0..8 {
            house.receive(&frame(number, 64), 0);
        }
        let moved = house.fwps[0].moved();
        assert_eq!((moved.received.value(), moved.dropped_no_slot.value()), (5 * round, 3 * round));
        assert_eq!(house.fwps[0].pass_all(PORT_NEXT), 5);
        house.mma.poll();
        // The first five are intact: dropped frames overwrote nothing.
        let expected: Vec<Left> = (0..5).map(|number| Left { port: 0, bytes: frame(number, 64) }).collect();
        assert_eq!(house.gateway.collect(), expected);
        // The buffers that the MMA keeps, minus five that have just left.
        assert_eq!(house.gateway.lent(), 32 + house.gateway.kept_max - 5);
    }
}

#[test]
fn a_guest_that_keeps_its_slots_starves_itself_only() {
    let shape = Shape::slots(4);
    let mut house = House::new(&Plan::default());
    house.attach(id(0), shape, Edge::EgressWhereItCame);
    house.attach(id(1), shape, Edge::EgressWhereItCame);
    house.gateway.lend_empties(32);
    for number in 0..20 {
        house.gateway.inject(&frame(number, 64), 0, id(0));
        house.gateway.inject(&frame(number, 64), 1, id(1));
        house.mma.poll();
        house.fwps[0].publish_all();
        assert_eq!(house.fwps[1].pass_all(PORT_NEXT), 1);
        house.mma.poll();
        assert_eq!(house.gateway.collect(), [Left { port: 1, bytes: frame(number, 64) }]);
    }
    assert_eq!(house.fwps[0].moved().dropped_no_slot.value(), 16);
    assert_eq!(house.fwps[1].moved().dropped_no_slot.value(), 0);
}

#[test]
fn a_next_stage_without_slots_drops_on_its_own_account() {
    let shape = Shape::slots(4);
    let mut house = House::new(&Plan::default());
    house.attach(id(0), shape, Edge::Fwp(id(1)));
    house.attach(id(1), Shape::slots(1), Edge::EgressWhereItCame);
    for _ in 0..4 {
        house.receive(b"frame", 0);
    }
    house.fwps[0].pass_all(PORT_NEXT);
    house.mma.poll();
    assert_eq!(house.fwps[0].moved().sent.value(), 1);
    let moved = house.fwps[1].moved();
    assert_eq!((moved.received.value(), moved.dropped_no_slot.value()), (1, 3));
    house.assert_all_slots_free(0, shape);
}

#[test]
fn a_received_frame_longer_than_a_slot_is_counted_and_the_longest_one_passes() {
    let shape = Shape::slots(4);
    let mut house = House::chain(&Plan::default(), 1, shape, Edge::EgressWhereItCame);
    let longest = shape.frame_bytes_max();
    for len in [longest + 1, longest + 64, 2048] {
        house.receive(&frame(0, len), 0);
    }
    let moved = house.fwps[0].moved();
    assert_eq!((moved.received.value(), moved.dropped_too_long.value()), (0, 3));
    assert_eq!(house.copied_bytes(), 0);
    assert!(house.noticed().is_empty());
    house.receive(&frame(1, longest), 0);
    let received = house.fwps[0].publish_all();
    assert_eq!(house.fwps[0].guest.frame(&received[0]), frame(1, longest));
    house.gateway.collect();
    assert_eq!(house.gateway.lent(), 4, "the MMA keeps each one's buffer");
}

#[test]
fn a_frame_that_grew_beyond_the_next_stages_slot_is_counted_there() {
    let shape = Shape::slots(4);
    let mut house = House::chain(&Plan::default(), 2, shape, Edge::EgressWhereItCame);
    house.receive(&frame(0, shape.frame_bytes_max()), 0);
    let received = house.fwps[0].publish_all()[0];
    let grown = Descriptor { offset: received.offset - 1, len: received.len + 1, port: PORT_NEXT, ..received };
    house.fwps[0].guest.send(grown);
    assert_eq!(house.collect_and_move(0), Ok(1));
    assert_eq!(house.fwps[0].moved().sent.value(), 0);
    assert_eq!(house.fwps[1].moved().dropped_too_long.value(), 1);
    house.assert_all_slots_free(0, shape);
}

#[test]
fn without_an_empty_buffer_frames_are_counted_and_traffic_resumes_with_one() {
    let shape = Shape::slots(4);
    // The MMA keeps one buffer, and gives back the others.
    let mut house = House::chain(&Plan { buffers: 8, ..Plan::default() }, 1, shape, Edge::EgressWhereItCame);
    for (lent, left) in [(0, 1), (1, 2), (0, 1), (2, 3)] {
        for port in [PORT_NEXT, PORT_REPLY] {
            assert_eq!(house.gateway.lend_empties(lent), lent);
            for number in 0..3 {
                house.receive(&frame(number, 64), 0);
            }
            house.fwps[0].pass_all(port);
            house.mma.poll();
            let expected: Vec<Left> = (0..left).map(|number| Left { port: 0, bytes: frame(number, 64) }).collect();
            assert_eq!(house.gateway.collect(), expected);
            assert_eq!(house.gateway.lent(), 0);
        }
    }
    let moved = house.fwps[0].moved();
    assert_eq!((moved.sent.value(), moved.dropped_egress.value()), (14, 10));
    house.assert_all_slots_free(0, shape);
}

#[test]
fn frames_too_long_for_a_transmit_buffer_are_counted_and_cost_no_buffer() {
    // A guest with large slots keeps sending frames that fit no buffer; the gateway lends no more than 16.
    let shape = Shape { slot_count: 8, slot_size: 4096, ring_entries: 8 };
    let plan = Plan { buffers: 16, buffer_bytes: 2048, ..Plan::default() };
    let mut house = House::new(&plan);
    house.attach(id(0), shape, Edge::EgressWhereItCame);
    house.attach(id(1), Shape::slots(4), Edge::EgressWhereItCame);
    for round in 1..=20 {
        house.gateway.top_up(8);
        for _ in 0..4 {
            house.gateway.inject(b"short", 0, id(0));
        }
        house.mma.poll();
        let received = house.fwps[0].publish_all();
        house.gateway.collect();
        let too_long = |house: &mut House, received: &[Descriptor]| {
            for &received in received {
                house.fwps[0].guest.send(Descriptor { offset: 0, len: 2049, port: PORT_REPLY, ..received });
            }
            let lent = house.gateway.lent();
            assert_eq!(house.collect_and_move(0), Ok(2));
            assert_eq!(house.gateway.collect(), []);
            assert_eq!(house.gateway.lent(), lent);
        };
        // While the MMA keeps buffers of received frames.
        too_long(&mut house, &received[..2]);

        // Its neighbour can use all that are left, those that the MMA keeps included.
        for number in 0..4 {
            house.gateway.inject(&frame(number, 1000), 2, id(1));
        }
        house.mma.poll();
        house.fwps[1].pass_all(PORT_NEXT);
        house.mma.poll();
        let expected: Vec<Left> = (0..4).map(|number| Left { port: 2, bytes: frame(number, 1000) }).collect();
        assert_eq!(house.gateway.collect(), expected);
        // While it keeps none, and has empty ones only.
        too_long(&mut house, &received[2..]);
        assert_eq!(house.fwps[0].moved().dropped_too_long.value(), 4 * round);
    }
    house.assert_all_slots_free(0, shape);
}

#[test]
fn frames_for_unknown_fwps_are_counted_and_their_buffers_come_back() {
    let mut house = House::new(&Plan { fwps_max: 2, ..Plan::default() });
    let absent = [
        id(0),
        id(1),
        id(2),
        id(u32::MAX),
        FwpId { index: 0, generation: 7 },
        FwpId { index: 9, generation: u32::MAX },
    ];
    for round in 1..=4 {
        for target in absent {
            house.gateway.inject(b"lost", 0, target);
        }
        assert_eq!(house.mma.poll(), absent.len());
        assert_eq!(house.mma.counters().dropped_instance_ended.value(), (round * absent.len()) as u64);
        assert_eq!(house.copied_bytes(), 0);
        house.gateway.collect();
        assert_eq!(house.gateway.lent(), house.gateway.kept_max.min(round * absent.len()));
    }
}

#[test]
fn frames_for_a_detached_fwp_are_gone_from_both_directions() {
    let shape = Shape::slots(4);
    let mut house = House::chain(&Plan::default(), 2, shape, Edge::EgressWhereItCame);
    house.receive(b"first", 0);
    house.command(MmaCommand::Detach(id(1)));
    house.fwps[0].pass_all(PORT_NEXT);
    let last = house.fwps[1].guest.snapshot();
    house.mma.poll();
    house.gateway.inject(b"second", 0, id(1));
    house.mma.poll();
    assert_eq!(house.fwps[0].moved().dropped_instance_ended.value(), 1);
    assert_eq!(house.mma.counters().dropped_instance_ended.value(), 1);
    assert_eq!(house.detached().unwrap().id(), id(1));
    assert!(house.fwps[1].guest.snapshot() == last);
    house.gateway.collect();
    assert_eq!(house.gateway.lent(), 2, "the MMA keeps each one's buffer");
    house.assert_all_slots_free(0, shape);
}

#[test]
fn more_frames_than_a_batch_are_moved_over_several_polls() {
    let shape = Shape { slot_count: 512, slot_size: 1600, ring_entries: 512 };
    let mut house = House::chain(&Plan { buffers: 512, ..Plan::default() }, 1, shape, Edge::Egress(PortIndex(0)));
    for number in 0..300 {
        house.gateway.inject(&frame(number, 64), 0, id(0));
    }
    assert_eq!([(); 4].map(|()| house.mma.poll()), [128, 128, 44, 0]);
    assert_eq!(house.fwps[0].publish_all().len(), 300);
}

#[test]
fn more_fwps_with_output_than_a_batch_are_served_over_several_polls() {
    let mut house = House::new(&Plan { fwps_max: 300, buffers: 1024, ..Plan::default() });
    for index in 0..300 {
        house.attach(id(index), Shape::slots(1), Edge::EgressWhereItCame);
    }
    house.gateway.lend_empties(300);
    for index in 0..300 {
        house.gateway.inject(b"hello", 0, id(index));
    }
    while house.mma.has_work() {
        house.mma.poll();
    }
    for fwp in &mut house.fwps {
        assert_eq!(fwp.pass_all(PORT_NEXT), 1);
    }
    assert_eq!([(); 4].map(|()| house.mma.poll()), [128, 128, 44, 0]);
    assert_eq!(house.gateway.collect().len(), 300);
}

#[test]
fn an_fwp_is_found_within_two_looks_however_often_its_neighbour_was_notified() {
    // Its worker takes no id from the queue meanwhile, as during another guest's quantum.
    let mut house = House::new(&Plan { fwps_max: 2, ..Plan::default() });
    house.attach(id(0), Shape::slots(4), Edge::EgressWhereItCame);
    house.attach(id(1), Shape::slots(4), Edge::EgressWhereItCame);
    for number in 0..NAMES_MAX as u32 + 100 {
        house.receive(&frame(number, 64), 0);
        assert_eq!(house.fwps[0].pass_all(PORT_DROP), 1);
        house.mma.poll();
        house.gateway.collect();
    }
    house.gateway.inject(b"for the neighbour", 0, id(1));
    house.mma.poll();
    let mut noticed = Vec::new();
    let looks = [(); 3].map(|()| house.worker_queue.take(NAMES_MAX, |id| noticed.push(id)));
    assert_eq!(looks, [NAMES_MAX, 2, 0]);
    assert_eq!((noticed[0], &noticed[NAMES_MAX..]), (id(0), &[id(0), id(1)][..]));
}

#[test]
fn a_full_fwp_is_still_notified_once_it_has_room() {
    let mut house = House::chain(&Plan::default(), 1, Shape::slots(1), Edge::EgressWhereItCame);
    for round in 0..10 {
        house.receive(&frame(round, 64), 0);
        house.receive(&frame(round, 64), 0);
        assert_eq!(house.noticed(), [id(0)]);
        assert_eq!(house.fwps[0].pass_all(PORT_DROP), 1);
        house.mma.poll();
        house.gateway.collect();
    }
    assert_eq!(house.fwps[0].moved().dropped_no_slot.value(), 10);
}
