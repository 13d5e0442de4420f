//! Chains with a way back: frames of some ports pass the stages in the opposite order, and replies go towards the port
//! of their frames.

mod support;

use pinion_abi::{Descriptor, PORT_NEXT, PORT_REPLY, RX_BACKWARD, RX_FORWARD, RX_REPLY};
use pinion_mma::id::PortIndex;
use pinion_mma::mover::MmaCommand;
use pinion_mma::ways::direction::{PortSet, Sides};
use pinion_mma::wiring::{Edge, Wiring};
use support::{Guest, House, Left, Plan, Shape, frame, id};

const INSIDE: u16 = 0;
const OUTSIDE: u16 = 1;
/// A port on neither side, as that of messages.
const ASIDE: u16 = 2;
/// Where the second output of each stage leads.
const SPAN: u16 = 9;

const STAGES: u32 = 3;

/// Returns the wiring of a stage: output 0 to the next stage, output 1 out on [`SPAN`].
fn wiring(stage: u32) -> Wiring {
    let span = Edge::Egress(PortIndex(SPAN));
    let on = if stage + 1 < STAGES { Edge::Fwp(id(stage + 1)) } else { Edge::Egress(PortIndex(OUTSIDE)) };
    let back = if stage > 0 { Edge::Fwp(id(stage - 1)) } else { Edge::Egress(PortIndex(INSIDE)) };
    let set = |port| PortSet::of([PortIndex(port)]).unwrap();
    Wiring::both_ways(vec![on, span], vec![back, span], Sides { forth: set(INSIDE), back: set(OUTSIDE) })
}

/// Makes three stages between an inside and an outside.
fn between() -> House {
    let mut house = House::new(&Plan::default());
    for stage in 0..STAGES {
        house.attach_wired(id(stage), Shape::slots(8), wiring(stage));
    }
    house.gateway.lend_empties(16);
    house.mma.poll();
    house
}

/// Makes a stage send all its frames by this port; returns how many.
fn send_all(house: &mut House, stage: u32, port: u16) -> usize {
    let count = house.fwps[stage as usize].pass_all(port);
    house.mma.poll();
    count
}

fn left(port: u16, number: u32) -> Left {
    Left { port, bytes: frame(number, 64) }
}

#[test]
fn frames_that_go_back_pass_the_stages_in_the_opposite_order() {
    let mut house = between();
    house.gateway.inject(&frame(1, 64), INSIDE, id(0));
    house.gateway.inject(&frame(2, 64), OUTSIDE, id(2));
    house.mma.poll();
    assert_eq!([0, 1, 2].map(|stage| house.fwps[stage].pass_all(PORT_NEXT)), [1, 0, 1]);
    house.mma.poll();
    assert_eq!(send_all(&mut house, 1, PORT_NEXT), 2, "both are in the middle now");
    assert_eq!(send_all(&mut house, 0, PORT_NEXT), 1);
    assert_eq!(send_all(&mut house, 2, PORT_NEXT), 1);
    assert_eq!(house.gateway.collect(), [left(INSIDE, 2), left(OUTSIDE, 1)]);
}

#[test]
fn frames_both_ways_in_one_batch_keep_apart_and_in_order() {
    let mut house = between();
    for (number, port) in [INSIDE, OUTSIDE, OUTSIDE, INSIDE, OUTSIDE, INSIDE, INSIDE].into_iter().enumerate() {
        house.gateway.inject(&frame(number as u32, 64), port, id(1));
    }
    house.mma.poll();
    assert_eq!(send_all(&mut house, 1, PORT_NEXT), 7);
    assert_eq!((send_all(&mut house, 2, PORT_NEXT), send_all(&mut house, 0, PORT_NEXT)), (4, 3));
    let forth = [0, 3, 5, 6].map(|number| left(OUTSIDE, number));
    let back = [1, 2, 4].map(|number| left(INSIDE, number));
    assert_eq!(house.gateway.collect(), [forth.as_slice(), &back].concat());
}

#[test]
fn a_further_output_leads_out_both_ways() {
    let mut house = between();
    house.gateway.inject(&frame(1, 64), INSIDE, id(1));
    house.gateway.inject(&frame(2, 64), OUTSIDE, id(1));
    house.mma.poll();
    assert_eq!(send_all(&mut house, 1, 1), 2);
    assert_eq!(house.gateway.collect(), [left(SPAN, 1), left(SPAN, 2)]);
}

#[test]
fn a_reply_passes_the_stages_between_it_and_where_its_frame_came_in() {
    // Which stage replies, and which ones the reply passes.
    for (port, replier, passes) in
        [(INSIDE, 2, [1, 0].as_slice()), (INSIDE, 1, &[0]), (INSIDE, 0, &[]), (OUTSIDE, 0, &[1, 2]), (OUTSIDE, 2, &[])]
    {
        let mut house = between();
        house.gateway.inject(&frame(1, 64), port, id(replier));
        house.mma.poll();
        assert_eq!(send_all(&mut house, replier, PORT_REPLY), 1);
        for &stage in passes {
            assert_eq!(send_all(&mut house, stage, PORT_NEXT), 1, "of port {port}, stage {stage}");
        }
        assert_eq!(house.gateway.collect(), [left(port, 1)]);
    }
}

#[test]
fn replies_of_a_last_stage_without_a_port_behind_it_pass_the_stages_before_and_leave_where_their_frames_came_in() {
    let mut house = House::new(&Plan::default());
    let sides = Sides { forth: PortSet::of([INSIDE, OUTSIDE].map(PortIndex)).unwrap(), back: PortSet::EMPTY };
    let out = Edge::EgressWhereItCame;
    for (stage, on, back) in [(0, Edge::Fwp(id(1)), out), (1, out, Edge::Fwp(id(0)))] {
        house.attach_wired(id(stage), Shape::slots(8), Wiring::both_ways(vec![on], vec![back], sides));
    }
    house.gateway.lend_empties(16);
    for (number, port) in [(1, INSIDE), (2, OUTSIDE)] {
        house.gateway.inject(&frame(number, 64), port, id(0));
        house.mma.poll();
        assert_eq!(send_all(&mut house, 0, PORT_NEXT), 1);
        assert_eq!(send_all(&mut house, 1, PORT_REPLY), 1);
        assert_eq!(send_all(&mut house, 0, PORT_NEXT), 1);
        assert_eq!(house.gateway.collect(), [left(port, number)]);
    }
}

#[test]
fn each_stage_is_told_which_way_a_frame_goes_and_whether_it_is_a_reply() {
    const FORWARD_REPLY: u16 = RX_FORWARD | RX_REPLY;
    const BACKWARD_REPLY: u16 = RX_BACKWARD | RX_REPLY;
    // Per row: a frame's port and its first stage; by what each stage sends it on, and what each is told then.
    type Way<'a> = (u16, u32, &'a [(u32, u16)], &'a [u16]);
    let ways: [Way<'_>; 5] = [
        (INSIDE, 0, &[(0, PORT_NEXT), (1, PORT_NEXT), (2, PORT_NEXT)], &[RX_FORWARD; 3]),
        (OUTSIDE, 2, &[(2, PORT_NEXT), (1, PORT_NEXT), (0, PORT_NEXT)], &[RX_BACKWARD; 3]),
        (INSIDE, 0, &[(0, PORT_NEXT), (1, PORT_REPLY), (0, PORT_NEXT)], &[RX_FORWARD, RX_FORWARD, BACKWARD_REPLY]),
        (OUTSIDE, 2, &[(2, PORT_NEXT), (1, PORT_REPLY), (2, PORT_NEXT)], &[RX_BACKWARD, RX_BACKWARD, FORWARD_REPLY]),
        (ASIDE, 0, &[(0, PORT_NEXT), (1, PORT_NEXT), (2, PORT_NEXT)], &[0; 3]),
    ];
    for (port, first, steps, told) in ways {
        let mut house = between();
        house.gateway.inject(&frame(1, 64), port, id(first));
        house.mma.poll();
        for (&(stage, to), &flags) in steps.iter().zip(told) {
            let received = house.fwps[stage as usize].publish_all().remove(0);
            assert_eq!((received.flags, received.port), (flags, port), "of port {port}, at stage {stage}");
            house.fwps[stage as usize].guest.pass(received, to);
            assert_eq!(house.collect_and_move(stage as usize), Ok(1));
        }
    }
    // Without a way back, stages are told nothing of it.
    let mut house = House::new(&Plan::default());
    house.attach_wired(id(0), Shape::slots(8), Wiring::to(Edge::EgressWhereItCame));
    house.mma.poll();
    house.gateway.inject(&frame(1, 64), INSIDE, id(0));
    house.mma.poll();
    assert_eq!(house.fwps[0].publish_all()[0].flags, 0);
}

#[test]
fn a_reply_to_a_reply_goes_on_towards_where_the_frame_came_in() {
    let mut house = between();
    house.gateway.inject(&frame(1, 64), INSIDE, id(2));
    house.mma.poll();
    for stage in [2, 1, 0] {
        assert_eq!(send_all(&mut house, stage, PORT_REPLY), 1, "stage {stage}");
    }
    assert_eq!(house.gateway.collect(), [left(INSIDE, 1)]);
}

#[test]
fn frames_of_no_side_go_forth_and_replies_to_them_leave_at_once() {
    let mut house = between();
    for number in [1, 2] {
        house.gateway.inject(&frame(number, 64), ASIDE, id(0));
    }
    house.mma.poll();
    assert_eq!(send_all(&mut house, 0, PORT_NEXT), 2);
    let received = house.fwps[1].publish_all();
    for (descriptor, port) in received.into_iter().zip([PORT_REPLY, PORT_NEXT]) {
        house.fwps[1].guest.pass(descriptor, port);
    }
    assert_eq!(house.collect_and_move(1), Ok(2));
    assert_eq!(house.gateway.collect(), [left(ASIDE, 1)]);
    assert_eq!(send_all(&mut house, 2, PORT_NEXT), 1);
    assert_eq!(house.gateway.collect(), [left(OUTSIDE, 2)]);
}

#[test]
fn a_frame_that_a_stage_made_takes_the_direction_of_the_way_that_it_names_whatever_came_last() {
    let mut house = House::new(&Plan::default());
    for stage in 0..STAGES {
        let guest = Guest::owning(Shape::slots(8), 4);
        let (_, endpoint) = house.make_of(id(stage), guest, wiring(stage));
        house.command(MmaCommand::Attach(endpoint));
    }
    house.gateway.lend_empties(16);
    house.mma.poll();
    house.gateway.inject(&frame(1, 64), INSIDE, id(1));
    house.gateway.inject(&frame(2, 64), OUTSIDE, id(1));
    house.mma.poll();
    let [inside, outside] = house.fwps[1].publish_all()[..] else { panic!("two frames came") };
    // Both ways, by each of its outputs: which stage gets the frame, or by which port it leaves, and what that stage is told.
    let cases = [
        (inside, PORT_NEXT, Some(2), 0, RX_FORWARD),
        (outside, PORT_NEXT, Some(0), 0, RX_BACKWARD),
        (inside, PORT_REPLY, Some(0), 0, RX_BACKWARD | RX_REPLY),
        (outside, PORT_REPLY, Some(2), 0, RX_FORWARD | RX_REPLY),
        (inside, 1, None, SPAN, 0),
        (outside, 1, None, SPAN, 0),
    ];
    for (slot, (by, output, next, port, flags)) in [4, 5, 6, 7, 4, 5].into_iter().zip(cases) {
        house.fwps[1].guest.write_frame(slot, 0, &frame(7, 64));
        let made = Descriptor { slot, len: 64, port: output, way: by.way, ..Descriptor::default() };
        house.fwps[1].guest.send(made);
        assert_eq!(house.collect_and_move(1), Ok(1));
        match next {
            Some(stage) => {
                let received = house.fwps[stage].publish_all().remove(0);
                assert_eq!((received.port, received.flags), (by.port, flags), "by {output}, of port {}", by.port);
                // A reply goes back as a frame of the opposite direction would, but is of the same port.
                assert_eq!(received.way >> 1, by.way >> 1);
            }
            None => assert_eq!(house.gateway.collect(), [left(port, 7)]),
        }
        house.fwps[1].publish_all();
    }
}

#[test]
fn both_directions_of_a_port_are_ways_of_their_own() {
    let mut house = House::new(&Plan::default());
    let (_, endpoint) = house.make_of(id(0), Guest::owning(Shape::slots(4), 2), wiring(0));
    house.command(MmaCommand::Attach(endpoint));
    house.attach_wired(id(1), Shape::slots(4), wiring(1));
    house.mma.poll();
    house.gateway.inject(&frame(1, 64), INSIDE, id(0));
    house.gateway.inject(&frame(2, 64), INSIDE, id(1));
    house.mma.poll();
    let forth = house.fwps[0].publish_all()[0];
    // The second stage replies, which goes back towards the port that the first stage's frame came from.
    send_all(&mut house, 1, PORT_REPLY);
    let back = house.fwps[0].publish_all()[0];
    assert_eq!((forth.port, back.port, back.flags), (INSIDE, INSIDE, RX_BACKWARD | RX_REPLY));
    assert_ne!(forth.way, back.way);
}
