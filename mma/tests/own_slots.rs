//! Slots of a guest's own: frames that it makes leave as received ones do, and their slots come back to it.

mod support;

use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY};
use pinion_mma::guest::mailbox::Violation;
use pinion_mma::mover::MmaCommand;
use pinion_mma::wiring::{Edge, Wiring};
use support::{Guest, House, Left, Plan, Shape, frame, id};

/// Of four slots, the last two are the guest's own.
const SHAPE: Shape = Shape { slot_count: 4, slot_size: 1600, ring_entries: 4 };
const OWN: [u16; 2] = [2, 3];

/// Makes a house whose one guest has slots of its own. It has received a packet on port 7, which it keeps.
fn house() -> House {
    let mut house = newcomer();
    house.receive(&frame(1, 60), 7);
    assert_eq!(house.fwps[0].publish_all().len(), 1);
    house.gateway.collect();
    house.noticed();
    house
}

fn newcomer() -> House {
    let mut house = House::new(&Plan::default());
    let (_, endpoint) = house.make_of(id(0), Guest::owning(SHAPE, 2), Wiring::to(Edge::EgressWhereItCame));
    house.command(MmaCommand::Attach(endpoint));
    house.mma.poll();
    house.gateway.lend_empties(8);
    house
}

/// The way of a frame that came on a port, in a chain without a way back.
fn way(port: u16) -> u16 {
    port << 1
}

/// Makes the guest write a frame into a slot and send it by an output, on the way of port 7.
fn make(house: &mut House, slot: u16, output: u16) -> Result<u32, Violation> {
    make_by(house, slot, output, way(7))
}

fn make_by(house: &mut House, slot: u16, output: u16, way: u16) -> Result<u32, Violation> {
    let guest = &mut house.fwps[0].guest;
    guest.write_frame(slot, 0, &frame(slot.into(), 100));
    guest.send(Descriptor { slot, offset: 0, len: 100, port: output, way, ..Descriptor::default() });
    house.collect_and_move(0)
}

fn slots_and_lengths(house: &mut House) -> Vec<(u16, u16)> {
    house.fwps[0].publish_all().iter().map(|it| (it.slot, it.len)).collect()
}

#[test]
fn a_packet_that_a_guest_made_leaves_by_the_port_of_its_way_whatever_came_last() {
    let mut house = house();
    for (number, port) in [(2, 9), (3, 5)] {
        house.receive(&frame(number, 60), port);
        assert_eq!(house.fwps[0].pass_all(PORT_DROP), 1);
        house.mma.poll();
    }
    for (slot, output, port) in [(OWN[0], PORT_REPLY, 9), (OWN[1], PORT_NEXT, 7), (OWN[0], PORT_REPLY, 5)] {
        assert_eq!(make_by(&mut house, slot, output, way(port)), Ok(1));
        assert_eq!(house.gateway.collect(), [Left { port, bytes: frame(slot.into(), 100) }]);
        house.fwps[0].publish_all();
    }
}

#[test]
fn frames_made_by_different_ways_in_one_batch_keep_apart() {
    let mut house = house();
    house.receive(&frame(2, 60), 9);
    house.fwps[0].publish_all();
    house.gateway.lend_empties(8);
    for (slot, port) in OWN.into_iter().zip([9, 7]) {
        let guest = &mut house.fwps[0].guest;
        guest.write_frame(slot, 0, &frame(slot.into(), 100));
        let made = Descriptor { slot, len: 100, port: PORT_REPLY, way: way(port), ..Descriptor::default() };
        guest.send(made);
    }
    assert_eq!(house.collect_and_move(0), Ok(2));
    let left = house.gateway.collect();
    assert_eq!(left.iter().map(|it| it.port).collect::<Vec<_>>(), [9, 7]);
}

#[test]
fn a_way_by_which_no_frame_has_come_ends_the_guest_and_its_frame_does_not_leave() {
    for unknown in [way(6), way(7) + 1, way(8), 127, 128, way(7) + 128, u16::MAX] {
        let mut house = house();
        assert_eq!(make_by(&mut house, OWN[0], PORT_REPLY, unknown), Err(Violation::UnknownWay(unknown)));
        assert_eq!(house.gateway.collect(), []);
    }
}

#[test]
fn a_slot_that_comes_back_is_no_frame_that_came_by_a_way() {
    let mut house = house();
    assert_eq!(make(&mut house, OWN[0], PORT_NEXT), Ok(1));
    let [returned] = house.fwps[0].publish_all()[..] else { panic!("the slot comes back") };
    assert_eq!(returned, Descriptor { slot: OWN[0], offset: 64, ..Descriptor::default() });
    assert_eq!(make_by(&mut house, OWN[0], PORT_NEXT, returned.way), Err(Violation::UnknownWay(0)));
}

#[test]
fn a_frame_that_has_come_by_a_way_makes_it_known_only_once_it_is_published() {
    let mut house = house();
    house.receive(&frame(2, 60), 9);
    assert_eq!(make_by(&mut house, OWN[0], PORT_REPLY, way(9)), Err(Violation::UnknownWay(way(9))));
}

#[test]
fn of_a_received_frame_the_way_that_the_guest_writes_does_not_count() {
    let mut house = house();
    house.receive(&frame(2, 60), 9);
    let received = house.fwps[0].publish_all().remove(0);
    for named in [way(7), u16::MAX] {
        house.fwps[0].guest.send(Descriptor { port: PORT_REPLY, way: named, ..received });
        assert_eq!(house.collect_and_move(0), Ok(1));
        assert_eq!(house.gateway.collect(), [Left { port: 9, bytes: frame(2, 60) }]);
        house.receive(&frame(2, 60), 9);
        assert_eq!(house.fwps[0].publish_all(), [received]);
    }
}

#[test]
fn a_packet_that_a_guest_made_leaves_and_its_slot_comes_back_empty() {
    let mut house = house();
    for port in [PORT_NEXT, PORT_REPLY, PORT_NEXT] {
        for slot in OWN {
            assert_eq!(make(&mut house, slot, port), Ok(1));
            assert_eq!(house.gateway.collect(), [Left { port: 7, bytes: frame(slot.into(), 100) }]);
        }
        assert_eq!(slots_and_lengths(&mut house), OWN.map(|slot| (slot, 0)));
    }
    assert!(house.noticed().is_empty(), "a slot that comes back is no reason for a turn");
}

#[test]
fn slots_of_the_guests_own_are_never_received_into() {
    let mut house = house();
    for slot in OWN {
        make(&mut house, slot, PORT_NEXT).unwrap();
    }
    house.gateway.collect();
    for number in 2..6 {
        house.receive(&frame(number, 60), 7);
        house.gateway.collect();
    }
    assert_eq!(house.fwps[0].moved().dropped_no_slot.value(), 3);
    let mut seen = slots_and_lengths(&mut house);
    seen.sort_unstable();
    assert_eq!(seen, [(1, 60), (2, 0), (3, 0)]);
}

#[test]
fn before_its_first_packet_a_guest_has_nothing_to_send() {
    let mut house = newcomer();
    assert_eq!(make(&mut house, OWN[0], PORT_NEXT), Err(Violation::SlotNotOwned(OWN[0])));
    assert!(house.gateway.collect().is_empty());
}

#[test]
fn a_slot_that_has_not_come_back_is_not_the_guests() {
    let mut house = house();
    assert_eq!(make(&mut house, OWN[0], PORT_NEXT), Ok(1));
    assert_eq!(make(&mut house, OWN[0], PORT_NEXT), Err(Violation::SlotNotOwned(OWN[0])));
}

#[test]
fn a_made_and_dropped_packet_does_not_leave_and_its_slot_comes_back() {
    let mut house = house();
    assert_eq!(make(&mut house, OWN[1], PORT_DROP), Ok(1));
    assert!(house.gateway.collect().is_empty());
    assert_eq!(slots_and_lengths(&mut house), [(OWN[1], 0)]);
}

#[test]
fn a_packet_that_a_guest_made_reaches_the_next_stage_with_the_port_of_its_way() {
    let mut house = House::new(&Plan::default());
    let (_, endpoint) = house.make_of(id(0), Guest::owning(SHAPE, 2), Wiring::to(Edge::Fwp(id(1))));
    house.command(MmaCommand::Attach(endpoint));
    house.attach(id(1), Shape::slots(4), Edge::EgressWhereItCame);
    house.mma.poll();
    house.receive(&frame(1, 60), 7);
    house.fwps[0].publish_all();
    assert_eq!(make(&mut house, OWN[0], PORT_NEXT), Ok(1));
    let received = house.fwps[1].publish_all();
    assert_eq!((received.len(), received[0].port), (1, 7));
    assert_eq!(house.fwps[1].guest.frame(&received[0]), frame(OWN[0].into(), 100));
    assert_eq!(slots_and_lengths(&mut house), [(OWN[0], 0)]);
}

#[test]
fn frames_that_an_ending_guest_made_or_kept_are_counted_once() {
    let mut house = house();
    let guest = &mut house.fwps[0].guest;
    guest.write_frame(OWN[0], 0, &frame(2, 100));
    guest.send(Descriptor { slot: OWN[0], len: 100, way: way(7), ..Descriptor::default() });
    assert_eq!(house.fwps[0].mailbox.collect(), Ok(1));
    house.command(MmaCommand::Detach(id(0)));
    house.mma.poll();
    let mut endpoint = house.detached().expect("it was attached");
    endpoint.settle();
    let left = house.gateway.collect().len() as u64;
    let moved = house.fwps[0].moved();
    assert_eq!((left, moved.dropped_instance_ended.value() + moved.dropped_egress.value()), (1, 1));
}
