//! What guests are shown of the time at which a frame came, and who has sent a frame that leaves.

mod support;

use pinion_abi::{Descriptor, PORT_NEXT, PORT_REPLY};
use pinion_mma::accounts::copying::CopyShare;
use pinion_mma::id::{Sender, TenantIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::ways::Arrival;
use pinion_mma::wiring::{Edge, Wiring};
use support::{Guest, House, Plan, Shape, frame, id};

/// Publishes to FWP `fwp`; returns what its guest receives, and the arrivals in their order.
fn publish(house: &mut House, fwp: usize) -> (Vec<Descriptor>, Vec<Arrival>) {
    let mut arrivals = Vec::new();
    house.fwps[fwp].mailbox.publish(|arrived| {
        arrivals.push(arrived);
        100 + arrivals.len() as u32
    });
    (house.fwps[fwp].guest.receive_all(), arrivals)
}

#[test]
fn a_frame_came_when_the_mma_took_it_and_all_stages_are_told_the_same() {
    let mut house = House::chain(&Plan::default(), 3, Shape::slots(4), Edge::EgressWhereItCame);
    let clock = house.stopwatch.clone();
    let before_ns = clock.elapsed_ns();
    house.receive(&frame(1, 60), 3);
    let after_ns = clock.elapsed_ns();
    let mut seen = Vec::new();
    for stage in 0..3 {
        let (received, arrivals) = publish(&mut house, stage);
        assert_eq!(received[0].arrived, 101, "it is shown what the worker says");
        seen.extend(arrivals);
        house.fwps[stage].guest.pass(received[0], PORT_NEXT);
        assert_eq!(house.collect_and_move(stage), Ok(1));
    }
    assert!(seen.windows(2).all(|two| two[0] == two[1]), "{seen:?}");
    let came_ns = seen[0].before(after_ns);
    assert!((before_ns >> 10 << 10..=after_ns).contains(&came_ns), "{before_ns} {came_ns} {after_ns}");
}

#[test]
fn all_frames_of_a_poll_came_at_once_and_those_that_waited_keep_their_time() {
    let mut house = House::new(&Plan::default());
    let guest = Guest::new(Shape::slots(4)).new_in_memory();
    let (_, endpoint) = house.make_of(id(0), guest, Wiring::to(Edge::EgressWhereItCame));
    house.command(MmaCommand::Attach(endpoint));
    house.mma.poll();
    for number in 0..4 {
        house.gateway.inject(&frame(number, 60), 0, id(0));
    }
    house.mma.poll();
    let (first, mut arrivals) = publish(&mut house, 0);
    assert!(first.len() < 4, "some wait for slots");
    while arrivals.len() < 4 {
        house.fwps[0].provide();
        house.settle();
        arrivals.extend(publish(&mut house, 0).1);
    }
    assert!(arrivals.windows(2).all(|two| two[0] == two[1]), "{arrivals:?}");
}

#[test]
fn a_frame_that_a_stage_made_came_to_the_next_one_when_it_was_moved() {
    let mut house = House::new(&Plan::default());
    let clock = house.stopwatch.clone();
    let (_, endpoint) = house.make_of(id(0), Guest::owning(Shape::slots(4), 2), Wiring::to(Edge::Fwp(id(1))));
    house.command(MmaCommand::Attach(endpoint));
    house.attach(id(1), Shape::slots(4), Edge::EgressWhereItCame);
    house.mma.poll();
    house.receive(&frame(1, 60), 0);
    let (received, _) = publish(&mut house, 0);
    let before_ns = clock.elapsed_ns();
    house.fwps[0].guest.send(Descriptor { slot: 2, len: 60, way: received[0].way, ..Descriptor::default() });
    assert_eq!(house.collect_and_move(0), Ok(1));
    let came_ns = publish(&mut house, 1).1[0].before(clock.elapsed_ns());
    assert!(came_ns >= before_ns >> 10 << 10, "{came_ns} {before_ns}");
    let (returned, arrivals) = publish(&mut house, 0);
    assert_eq!((returned.len(), returned[0].arrived, arrivals), (1, 0, vec![]), "a slot that comes back has not come");
}

#[test]
fn a_frame_that_leaves_names_the_chain_instance_that_has_sent_it() {
    let mut house = House::new(&Plan::default());
    for index in 0..2 {
        house.share = CopyShare { tenant: TenantIndex(9), weight: 1 };
        let (_, mut endpoint) = house.make(id(index), Shape::slots(4), Wiring::to(Edge::EgressWhereItCame));
        endpoint.set_sender(100 + index as u16, u32::MAX - index);
        endpoint.set_share(CopyShare { tenant: TenantIndex(index as u16), weight: 2 });
        house.command(MmaCommand::Attach(endpoint));
    }
    house.mma.poll();
    for index in [0, 1, 1, 0] {
        house.gateway.inject(&frame(index, 60), 0, id(index));
        house.mma.poll();
        house.fwps[index as usize].pass_all(PORT_REPLY);
        house.mma.poll();
    }
    assert_eq!(house.gateway.collect().len(), 4);
    let sender =
        |index: u16| Sender { tenant: TenantIndex(index), chain: 100 + index, instance: u32::MAX - u32::from(index) };
    assert_eq!(house.gateway.senders, [0, 1, 1, 0].map(sender));
}
