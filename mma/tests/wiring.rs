//! FWPs come and go while packets are under way. The MMA applies commands in order with traffic, stops using a pool
//! only when it is done with it, and never takes a later FWP for an earlier one with the same index.

mod support;

use std::time::{Duration, Instant};

use pinion_abi::{PORT_DROP, PORT_NEXT, PORT_REPLY};
use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::wiring::{Backpressure, Edge, Wiring};
use support::{House, Left, Plan, Shape, frame, id};

/// The second FWP at index 0.
const SECOND: FwpId = FwpId { index: 0, generation: 1 };

#[test]
fn what_was_sent_has_moved_before_the_endpoint_comes_back() {
    let shape = Shape::slots(4);
    let mut house = House::chain(&Plan::default(), 2, shape, Edge::EgressWhereItCame);
    house.gateway.lend_empties(4);
    for number in 0..4 {
        house.receive(&frame(number, 64), 5);
    }
    let received = house.fwps[0].publish_all();
    for (&descriptor, port) in received.iter().zip([PORT_NEXT, PORT_REPLY, PORT_NEXT]) {
        house.fwps[0].guest.pass(descriptor, port);
    }
    assert_eq!(house.fwps[0].collect(), Ok(3));
    house.command(MmaCommand::Detach(id(0)));
    assert!(house.detached().is_none());
    house.mma.poll();
    assert_eq!(house.detached().unwrap().id(), id(0));
    assert_eq!(house.gateway.collect(), [Left { port: 5, bytes: frame(1, 64) }]);
    let next = house.fwps[1].publish_all();
    let frames: Vec<Vec<u8>> = next.iter().map(|descriptor| house.fwps[1].guest.frame(descriptor)).collect();
    assert_eq!(frames, [frame(0, 64), frame(2, 64)]);
}

#[test]
fn what_a_leaving_fwp_sent_last_wakes_a_sleeping_gateway() {
    let mut house = House::chain(&Plan::default(), 1, Shape::slots(4), Edge::EgressWhereItCame);
    house.gateway.lend_empties(4);
    house.receive(b"last words", 0);
    house.fwps[0].pass_all(PORT_NEXT);
    house.command(MmaCommand::Detach(id(0)));
    let bell = house.bell();
    bell.answer_here();
    let started = Instant::now();
    // Between announcing its sleep and sleeping: like a gateway that falls asleep while the MMA works.
    bell.sleep(Duration::from_secs(20), || {
        house.mma.poll();
        false
    });
    assert!(started.elapsed() < Duration::from_secs(10), "the gateway was not woken");
    assert_eq!(house.gateway.collect().len(), 1);
}

#[test]
fn a_detached_pool_is_not_touched_again() {
    let mut house = House::chain(&Plan::default(), 2, Shape::slots(4), Edge::EgressWhereItCame);
    house.gateway.lend_empties(4);
    house.receive(b"frame", 0);
    house.fwps[0].pass_all(PORT_NEXT);
    house.mma.poll();
    house.command(MmaCommand::Detach(id(1)));
    house.mma.poll();
    let _endpoint = house.detached().unwrap();
    let before = house.fwps[1].guest.snapshot();
    // Everything that could still refer to it: input, an upstream edge, and its own output.
    house.receive(b"frame", 0);
    house.fwps[0].pass_all(PORT_NEXT);
    house.gateway.inject(b"frame", 0, id(1));
    house.mma.poll();
    assert!(house.fwps[1].guest.snapshot() == before);
    // The worker may not know of it yet.
    house.fwps[1].pass_all(PORT_NEXT);
    house.mma.poll();
    assert_eq!(house.gateway.collect(), []);
    assert!(house.detached().is_none());
}

#[test]
fn an_fwp_is_attached_before_a_frame_that_followed_the_command() {
    let mut house = House::new(&Plan { fwps_max: 100, ..Plan::default() });
    for index in 0..100 {
        house.attach(id(index), Shape::slots(1), Edge::EgressWhereItCame);
        if index.is_multiple_of(10) {
            house.gateway.inject(b"already", 0, id(index));
        }
    }
    assert_eq!(house.mma.poll(), 110);
    assert_eq!(house.mma.counters().dropped_instance_ended.value(), 0);
    assert!((0..100).step_by(10).all(|index| house.fwps[index].publish_all().len() == 1));
}

#[test]
fn an_fwp_is_detached_before_a_frame_that_followed_the_command() {
    let mut house = House::chain(&Plan::default(), 1, Shape::slots(4), Edge::EgressWhereItCame);
    house.command(MmaCommand::Detach(id(0)));
    house.gateway.inject(b"late", 0, id(0));
    house.mma.poll();
    assert_eq!(house.mma.counters().dropped_instance_ended.value(), 1);
    assert!(house.fwps[0].publish_all().is_empty());
}

#[test]
fn a_stale_id_never_reaches_a_new_fwp_at_the_same_index() {
    let shape = Shape::slots(4);
    let mut house = House::new(&Plan::default());
    let upstream = house.attach(id(1), shape, Edge::Fwp(id(0)));
    let old = house.attach(id(0), shape, Edge::Egress(PortIndex(1)));
    house.gateway.lend_empties(4);
    house.gateway.inject(b"to the old one", 0, id(0));
    house.gateway.inject(b"on the way to the old one", 0, id(1));
    house.mma.poll();
    // Output of the old FWP that is notified but not moved, and input that was not looked at yet.
    house.fwps[old].pass_all(PORT_NEXT);
    house.fwps[upstream].pass_all(PORT_NEXT);
    house.command(MmaCommand::Detach(id(0)));
    let new = house.attach(SECOND, shape, Edge::Egress(PortIndex(2)));
    let before = house.fwps[new].guest.snapshot();
    house.gateway.inject(b"to the old one, late", 0, id(0));
    house.mma.poll();
    house.command(MmaCommand::Detach(id(0)));
    house.mma.poll();

    assert!(house.fwps[new].guest.snapshot() == before);
    assert_eq!(house.fwps[new].mailbox.publish(|_| 0), 0);
    assert_eq!(house.fwps[new].moved().received.value(), 0);
    assert_eq!(house.mma.counters().dropped_instance_ended.value(), 1);
    assert_eq!(house.fwps[upstream].moved().dropped_instance_ended.value(), 1);
    assert_eq!(house.gateway.collect(), [Left { port: 1, bytes: b"to the old one".to_vec() }]);
    assert_eq!(house.detached().unwrap().id(), id(0));
    assert!(house.detached().is_none(), "the new tenant was detached by the old one's id");

    house.gateway.inject(b"to the new one", 0, SECOND);
    house.mma.poll();
    assert!(house.noticed().contains(&SECOND));
    assert_eq!(house.fwps[new].pass_all(PORT_NEXT), 1);
    house.mma.poll();
    assert_eq!(house.gateway.collect(), [Left { port: 2, bytes: b"to the new one".to_vec() }]);
}

#[test]
fn an_index_can_be_reused_a_thousand_times() {
    let shape = Shape::slots(2);
    let mut house = House::new(&Plan { fwps_max: 1, ..Plan::default() });
    house.gateway.lend_empties(4);
    for generation in 0..1000 {
        let tenant = FwpId { index: 0, generation };
        house.attach(tenant, shape, Edge::EgressWhereItCame);
        house.gateway.inject(&frame(generation, 64), 0, tenant);
        house.mma.poll();
        assert_eq!(house.fwps[0].pass_all(PORT_NEXT), 1);
        house.command(MmaCommand::Detach(tenant));
        house.mma.poll();
        assert_eq!(house.gateway.collect(), [Left { port: 0, bytes: frame(generation, 64) }]);
        assert_eq!(house.gateway.lent(), 4);
        drop(house.detached().unwrap());
        house.fwps.clear();
    }
    // The worker has not taken one id in all this time. It finds each of them; only the last one's FWP still exists.
    assert!(house.noticed().iter().copied().eq((0..1000).map(|generation| FwpId { index: 0, generation })));
}

#[test]
fn an_endpoint_without_a_valid_index_comes_back_at_once() {
    let shape = Shape::slots(1);
    let mut house = House::new(&Plan { fwps_max: 2, ..Plan::default() });
    house.attach(id(0), shape, Edge::EgressWhereItCame);
    let refused = [
        (SECOND, Edge::EgressWhereItCame),
        (id(0), Edge::EgressWhereItCame),
        (id(2), Edge::EgressWhereItCame),
        (id(u32::MAX), Edge::EgressWhereItCame),
        (id(1), Edge::Fwp(id(1))),
    ];
    for (refused, next) in refused {
        house.attach(refused, shape, next);
        house.mma.poll();
        assert_eq!(house.detached().expect("it comes back").id(), refused);
    }
    let to_itself = vec![Edge::EgressWhereItCame, Edge::Fwp(id(0)), Edge::Fwp(id(1))];
    house.attach_wired(id(1), shape, Wiring::new(to_itself, Backpressure::Drop));
    house.mma.poll();
    assert_eq!(house.detached().expect("it comes back").id(), id(1));
    house.gateway.inject(b"still here", 0, id(0));
    house.mma.poll();
    assert_eq!(house.fwps[0].publish_all().len(), 1);
}

#[test]
fn detaching_an_unknown_fwp_does_nothing() {
    let mut house = House::new(&Plan { fwps_max: 2, ..Plan::default() });
    for absent in [id(0), id(2), id(u32::MAX)] {
        house.command(MmaCommand::Detach(absent));
        house.mma.poll();
        assert!(house.detached().is_none());
    }
}

#[test]
fn a_buffer_for_a_sleeping_gateway_rings_once_it_is_there() {
    let mut house = House::chain(&Plan::default(), 1, Shape::slots(4), Edge::EgressWhereItCame);
    let bell = house.bell();
    bell.answer_here();
    // One more than the number of buffers that the MMA keeps.
    for _ in 0..=house.gateway.kept_max {
        house.gateway.inject(b"frame", 0, id(0));
    }
    let started = Instant::now();
    bell.sleep(Duration::from_secs(20), || {
        house.mma.poll();
        false
    });
    assert!(started.elapsed() < Duration::from_secs(10), "the gateway was not woken");
    assert_eq!(house.gateway.collect(), []);
    assert_eq!(house.gateway.lent(), house.gateway.kept_max);
}

#[test]
fn what_an_fwp_has_when_it_ends_is_counted_as_gone() {
    let mut house = House::new(&Plan::default());
    house.attach(id(0), Shape::slots(8), Edge::EgressWhereItCame);
    house.mma.poll();
    (0..6).for_each(|number| house.receive(&frame(number, 64), 0));
    let received = house.fwps[0].publish_all();
    house.fwps[0].guest.pass(received[0], PORT_NEXT);
    assert_eq!(house.collect_and_move(0), Ok(1));
    house.receive(&frame(6, 64), 0);
    house.command(MmaCommand::Detach(id(0)));
    house.mma.poll();
    let mut endpoint = house.detached().unwrap();
    // The worker stops using it later than the MMA does.
    house.fwps[0].guest.pass(received[1], PORT_DROP);
    house.fwps[0].guest.pass(received[2], PORT_NEXT);
    assert_eq!(house.fwps[0].collect(), Ok(2));
    endpoint.settle();
    let (moved, guest) = (house.fwps[0].moved(), &house.fwps[0].mailbox.counters().guest);
    assert_eq!((moved.sent.value(), guest.dropped.value(), moved.dropped_instance_ended.value()), (1, 1, 5));
}
