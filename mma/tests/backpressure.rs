//! Chains that hold: frames that find no room stay upstream, in order and within limits, and do not block other chains.

mod support;

use pinion_abi::{PORT_DROP, PORT_NEXT, PORT_REPLY};
use pinion_mma::accounts::copying::CopyShare;
use pinion_mma::id::{FwpId, PortIndex, TenantIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::wiring::{Backpressure, Edge, Wiring};
use support::{House, Left, Plan, Shape, frame, id};

const HOLD: Backpressure = Backpressure::Hold { frames_max: 8 };
const MALLORY: CopyShare = CopyShare { tenant: TenantIndex(7), weight: 1 };
const ALICE: CopyShare = CopyShare { tenant: TenantIndex(8), weight: 1 };

/// Returns frames `numbers` as they leave on port 0.
fn left(numbers: impl IntoIterator<Item = u32>) -> Vec<Left> {
    numbers.into_iter().map(|number| Left { port: 0, bytes: frame(number, 64) }).collect()
}

impl House {
    /// Injects frames `numbers` for an FWP, and polls.
    fn receive_for(&mut self, target: FwpId, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.gateway.inject(&frame(number, 64), 0, target);
        }
        self.mma.poll();
    }

    /// Returns the frames that FWP `fwp` receives next, and sends them by `port`.
    fn pass_and_poll(&mut self, fwp: usize, port: u16) -> Vec<Vec<u8>> {
        let received = self.fwps[fwp].publish_all();
        let frames = received.iter().map(|descriptor| self.fwps[fwp].guest.frame(descriptor)).collect();
        for &descriptor in &received {
            self.fwps[fwp].guest.pass(descriptor, port);
        }
        assert_eq!(self.collect_and_move(fwp), Ok(received.len() as u32));
        frames
    }

    fn no_slot(&self, fwp: usize) -> u64 {
        self.fwps[fwp].moved().dropped_no_slot.value()
    }
}

fn frames(numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    numbers.map(|number| frame(number, 64)).collect()
}

#[test]
fn before_the_first_stage_frames_wait_in_order_up_to_the_bound_and_beyond_it_are_dropped_and_counted() {
    let shape = Shape::slots(2);
    let mut house = House::holding_chain(&Plan::default(), &[shape], 3, Edge::EgressWhereItCame);
    for round in 1..=10 {
        house.receive_for(id(0), 0..8);
        assert_eq!(house.no_slot(0), 3 * round);
        assert_eq!(house.fwps[0].moved().received.value(), 5 * (round - 1) + 2);
        // The three that wait are in their buffers.
        house.gateway.collect();
        assert_eq!(house.gateway.lent(), 3 + house.gateway.kept_max.min(2 + 3 * round as usize));
        for expected in [0..2, 2..4, 4..5, 5..5] {
            assert_eq!(house.noticed().len(), usize::from(!expected.is_empty()));
            assert_eq!(house.pass_and_poll(0, PORT_NEXT), frames(expected));
        }
        assert_eq!(house.gateway.collect(), left(0..5));
    }
    house.assert_all_slots_free_before_any_is_held(0, shape);
}

#[test]
fn a_frame_too_long_for_any_slot_is_dropped_where_it_waits_and_those_behind_it_go_on() {
    let mut house = House::holding_chain(&Plan::default(), &[Shape::slots(1)], 8, Edge::EgressWhereItCame);
    house.receive_for(id(0), 0..2);
    house.gateway.inject(&frame(9, 1_600), 0, id(0));
    house.receive_for(id(0), 2..3);
    for number in 0..3 {
        assert_eq!(house.pass_and_poll(0, PORT_NEXT), [frame(number, 64)]);
    }
    assert_eq!(house.fwps[0].moved().dropped_too_long.value(), 1);
    assert_eq!((house.no_slot(0), house.gateway.collect()), (0, left(0..3)));
    assert_eq!(house.gateway.lent(), 1, "the buffer that came with what was too long");
}

#[test]
fn all_chains_together_hold_half_of_the_links_buffers_at_most() {
    let plan = Plan { buffers: 16, ..Plan::default() };
    let mut house = House::new(&plan);
    for chain in 0..3 {
        let hold = Backpressure::Hold { frames_max: 1_000 };
        house.attach_chain(chain, &[Shape::slots(1)], hold, Edge::EgressWhereItCame);
    }
    house.receive_for(id(0), 0..6);
    house.gateway.collect();
    house.receive_for(id(1), 0..6);
    house.gateway.collect();
    assert_eq!([0, 1, 2].map(|fwp| house.no_slot(fwp)), [0, 2, 0]);
    // An FWP with free slots needs no held frame, and one that frees some makes room for all.
    for _ in 0..5 {
        house.receive_for(id(2), 0..2);
        assert_eq!(house.pass_and_poll(2, PORT_NEXT), frames(0..1));
        assert_eq!(house.gateway.collect(), left(0..1));
    }
    assert_eq!(house.no_slot(2), 5);
    assert_eq!(house.pass_and_poll(0, PORT_NEXT), frames(0..1));
    house.gateway.collect();
    house.receive_for(id(2), 0..3);
    assert_eq!(house.no_slot(2), 5 + 1);
    assert_eq!(house.pass_and_poll(2, PORT_NEXT), frames(0..1));
    assert_eq!(house.pass_and_poll(2, PORT_NEXT), frames(1..2));
}

#[test]
fn a_tenant_whose_chains_hold_all_that_they_can_leaves_some_to_another_ones() {
    let mut house = House::new(&Plan { buffers: 256, ..Plan::default() });
    let hold = Backpressure::Hold { frames_max: 1_000 };
    for (chain, share) in [(0, MALLORY), (1, MALLORY), (2, ALICE)] {
        house.share = share;
        house.attach_chain(chain, &[Shape::slots(1)], hold, Edge::EgressWhereItCame);
    }
    // Each has one frame in its slot.
    for chain in [0, 1] {
        house.receive_for(id(chain), 0..101);
        house.gateway.collect();
    }
    assert_eq!(house.no_slot(0), 0);
    // Of the 128 that may wait he has eight ninths.
    assert_eq!(house.no_slot(1), 200 - 114);
    let held = |share: CopyShare| house.mma.counters().held.of(share.tenant);
    assert_eq!([MALLORY, ALICE].map(held), [114, 0]);
    house.receive_for(id(2), 0..11);
    assert_eq!(house.no_slot(2), 0);
    for number in 0..11 {
        assert_eq!(house.pass_and_poll(2, PORT_NEXT), frames(number..number + 1));
        house.gateway.collect();
    }
}

#[test]
fn between_stages_frames_stay_in_the_slots_of_the_stage_before_and_go_on_in_order() {
    let shapes = [Shape::slots(8), Shape::slots(1), Shape::slots(2)];
    let mut house = House::holding_chain(&Plan::default(), &shapes, 4, Edge::EgressWhereItCame);
    house.receive_for(id(0), 0..12);
    assert_eq!(house.pass_and_poll(0, PORT_NEXT), frames(0..8));
    // One slot of the first stage is free, for one of the four that wait before it.
    assert_eq!(house.fwps[0].publish_all().len(), 1);
    assert_eq!((house.fwps[0].moved().sent.value(), house.fwps[1].moved().received.value()), (1, 1));
    assert!(!house.mma.has_work() && house.mma.poll() == 0, "it waits without being polled for");
    for number in 0..8 {
        assert_eq!(house.pass_and_poll(1, PORT_NEXT), [frame(number, 64)]);
        house.settle();
        assert_eq!(house.pass_and_poll(2, PORT_NEXT), [frame(number, 64)]);
    }
    assert_eq!(house.gateway.collect(), left(0..8));
    assert_eq!([0, 1, 2].map(|fwp| house.no_slot(fwp)), [0; 3]);
}

#[test]
fn a_slot_freed_by_the_last_stage_moves_all_stages_before_it() {
    const STAGES: usize = 6;
    let mut house = House::holding_chain(&Plan::default(), &[Shape::slots(1); STAGES], 4, Edge::EgressWhereItCame);
    // In each stage, one sent frame waits for a slot of the next stage. Two more wait before the first stage.
    for number in 0..STAGES {
        house.receive_for(id(0), number as u32..number as u32 + 1);
        for stage in 0..(STAGES - number).min(STAGES - 1) {
            assert_eq!(house.pass_and_poll(stage, PORT_NEXT).len(), 1);
        }
    }
    house.receive_for(id(0), 6..8);
    let received = |house: &House| house.fwps.iter().map(|fwp| fwp.moved().received.value()).collect::<Vec<_>>();
    let before = received(&house);
    assert_eq!(house.pass_and_poll(STAGES - 1, PORT_NEXT), frames(0..1));
    // No other guest does anything: the MMA alone reports further work, and does it.
    house.settle();
    assert_eq!(received(&house), before.iter().map(|count| count + 1).collect::<Vec<_>>());
    let mut seen = Vec::new();
    for _ in 0..2 * STAGES {
        for stage in (0..STAGES).rev() {
            let frames = house.pass_and_poll(stage, PORT_NEXT);
            seen.extend(frames.into_iter().filter(|_| stage + 1 == STAGES));
            house.settle();
        }
    }
    assert_eq!(seen, frames(1..8));
    assert_eq!(house.gateway.collect(), left(0..8));
    assert!((0..STAGES).all(|stage| house.no_slot(stage) == 0));
}

#[test]
fn without_a_buffer_frames_wait_in_their_slots_until_there_is_one_and_leave_in_order() {
    // The MMA keeps one buffer, and gives back the others.
    let plan = Plan { buffers: 8, ..Plan::default() };
    let shape = Shape::slots(4);
    for port in [PORT_NEXT, PORT_REPLY] {
        let mut house = House::holding_chain(&plan, &[shape], 2, Edge::EgressWhereItCame);
        house.receive_for(id(0), 0..4);
        house.gateway.collect();
        assert_eq!(house.pass_and_poll(0, port), frames(0..4));
        assert_eq!(house.gateway.collect(), left(0..1));
        assert!(!house.mma.has_work() && house.mma.poll() == 0, "it waits without being polled for");
        house.gateway.lend_empties(1);
        assert!(house.mma.has_work());
        assert_eq!(house.mma.poll(), 1);
        assert_eq!(house.gateway.collect(), left(1..2));
        // It makes no difference which frame a buffer was freed by.
        house.gateway.inject(b"for none", 0, id(9));
        house.mma.poll();
        assert_eq!(house.gateway.collect(), left(2..3));
        house.gateway.lend_empties(1);
        house.mma.poll();
        assert_eq!(house.gateway.collect(), left(3..4));
        assert_eq!((house.fwps[0].moved().dropped_egress.value(), house.gateway.lent()), (0, 0));
        house.assert_all_slots_free_before_any_is_held(0, shape);
    }
}

#[test]
fn fwps_that_wait_for_a_buffer_get_one_in_turn() {
    let plan = Plan { buffers: 8, ..Plan::default() };
    let mut house = House::new(&plan);
    for chain in 0..3 {
        house.attach_chain(chain, &[Shape::slots(2)], HOLD, Edge::Egress(PortIndex(chain as u16)));
    }
    for chain in 0..3 {
        house.receive_for(id(chain), 0..2);
        house.gateway.collect();
    }
    for chain in 0..3 {
        house.pass_and_poll(chain, PORT_NEXT);
    }
    let mut ports: Vec<u16> = house.gateway.collect().iter().map(|left| left.port).collect();
    for _ in 0..5 {
        house.gateway.lend_empties(1);
        house.settle();
        ports.extend(house.gateway.collect().iter().map(|left| left.port));
    }
    ports.sort_unstable();
    assert_eq!(ports, [0, 0, 1, 1, 2, 2]);
}

#[test]
fn a_chain_that_is_stuck_at_every_stage_does_not_block_another() {
    let mut house = House::new(&Plan::default());
    // The second stage of the first chain takes no frames; the second chain goes on.
    house.attach_chain(0, &[Shape::slots(4), Shape::slots(1)], HOLD, Edge::EgressWhereItCame);
    house.attach_chain(2, &[Shape::slots(4), Shape::slots(4)], HOLD, Edge::Egress(PortIndex(7)));
    house.receive_for(id(0), 0..12);
    house.pass_and_poll(0, PORT_NEXT);
    house.receive_for(id(0), 12..13);
    house.gateway.collect();
    let stuck = house.fwps[0].moved().received.value() + house.fwps[1].moved().received.value();
    for round in 0..100 {
        // Frames for both, one behind the other in the same ring.
        for number in 0..4 {
            if house.no_slot(0) < 10 {
                house.gateway.inject(b"for the stuck one", 0, id(0));
            }
            house.gateway.inject(&frame(number, 64), 0, id(2));
        }
        house.mma.poll();
        for stage in [2, 3] {
            assert_eq!(house.pass_and_poll(stage, PORT_NEXT), frames(0..4), "round {round}");
        }
        let expected: Vec<Left> = frames(0..4).into_iter().map(|bytes| Left { port: 7, bytes }).collect();
        assert_eq!(house.gateway.collect(), expected, "round {round}");
    }
    assert_eq!(house.no_slot(2) + house.no_slot(3), 0);
    assert_eq!(house.fwps[0].moved().received.value() + house.fwps[1].moved().received.value(), stuck);
}

#[test]
fn the_stages_own_frames_behind_one_that_waits_keep_their_order_whichever_way_they_go() {
    let mut house = House::new(&Plan::default());
    let outputs = vec![Edge::Fwp(id(1)), Edge::Egress(PortIndex(0))];
    house.attach_wired(id(0), Shape::slots(4), Wiring::new(outputs, HOLD));
    house.attach_chain(1, &[Shape::slots(1)], HOLD, Edge::Egress(PortIndex(0)));
    house.receive_for(id(0), 0..4);
    let received = house.fwps[0].publish_all();
    for (&descriptor, port) in received.iter().zip([0, 0, 1, PORT_DROP]) {
        house.fwps[0].guest.pass(descriptor, port);
    }
    assert_eq!(house.collect_and_move(0), Ok(4));
    assert_eq!(house.gateway.collect(), []);
    assert_eq!(house.pass_and_poll(1, PORT_NEXT), frames(0..1));
    assert_eq!(house.pass_and_poll(1, PORT_NEXT), frames(1..2));
    assert_eq!(house.gateway.collect(), left([0, 2, 1]));
    house.assert_all_slots_free_before_any_is_held(0, Shape::slots(4));
}

/// Makes a stage with four frames, of which one has gone on and three wait for the next stage's only slot.
fn stuck() -> House {
    let shapes = [Shape::slots(4), Shape::slots(1)];
    let mut house = House::holding_chain(&Plan::default(), &shapes, 4, Edge::EgressWhereItCame);
    house.receive_for(id(0), 0..4);
    assert_eq!(house.pass_and_poll(0, PORT_NEXT).len(), 4);
    assert_eq!(house.fwps[1].moved().received.value(), 1);
    house
}

#[test]
fn a_leaving_fwp_gives_up_what_waits_and_counts_it() {
    let mut house = stuck();
    house.command(MmaCommand::Detach(id(0)));
    house.mma.poll();
    assert_eq!(house.detached().unwrap().id(), id(0));
    assert_eq!(house.fwps[0].moved().dropped_instance_ended.value(), 3);
    for expected in [0..1, 1..1] {
        assert_eq!(house.pass_and_poll(1, PORT_NEXT), frames(expected));
    }
    assert_eq!(house.gateway.collect(), left(0..1));
    assert!(!house.mma.has_work());
}

#[test]
fn what_a_leaving_guest_has_dropped_itself_is_counted_once() {
    let mut house =
        House::holding_chain(&Plan::default(), &[Shape::slots(4), Shape::slots(1)], 0, Edge::EgressWhereItCame);
    house.receive_for(id(0), 0..4);
    for (descriptor, port) in house.fwps[0].publish_all().into_iter().zip([PORT_NEXT, PORT_NEXT, PORT_DROP, PORT_REPLY])
    {
        house.fwps[0].guest.pass(descriptor, port);
    }
    assert_eq!(house.collect_and_move(0), Ok(4));
    house.command(MmaCommand::Detach(id(0)));
    house.mma.poll();
    let (counters, moved) = (house.fwps[0].mailbox.counters(), house.fwps[0].moved());
    assert_eq!((moved.sent.value(), moved.dropped_instance_ended.value(), counters.guest.dropped.value()), (1, 2, 1));
}

#[test]
fn a_leaving_fwp_sends_what_there_is_room_for_since_it_was_stopped() {
    let mut house = stuck();
    // The slot comes back in the same poll in which the command is applied.
    house.fwps[1].pass_all(PORT_NEXT);
    house.command(MmaCommand::Detach(id(1)));
    house.mma.poll();
    assert_eq!(house.gateway.collect(), left(0..1));
    // Here a buffer comes back in that poll.
    let plan = Plan { buffers: 8, ..Plan::default() };
    let mut house = House::holding_chain(&plan, &[Shape::slots(4)], 0, Edge::EgressWhereItCame);
    house.receive_for(id(0), 0..4);
    house.gateway.collect();
    house.pass_and_poll(0, PORT_NEXT);
    assert_eq!(house.gateway.collect(), left(0..1));
    house.gateway.lend_empties(2);
    house.command(MmaCommand::Detach(id(0)));
    house.mma.poll();
    assert_eq!(house.gateway.collect(), left(1..3));
    assert_eq!(house.fwps[0].moved().dropped_instance_ended.value(), 1);
    assert!(!house.mma.has_work());
}

#[test]
fn an_fwp_goes_on_when_the_one_it_waits_for_is_detached() {
    let mut house = stuck();
    house.command(MmaCommand::Detach(id(1)));
    house.settle();
    assert_eq!(house.detached().unwrap().id(), id(1));
    assert_eq!(house.fwps[0].moved().dropped_instance_ended.value(), 3);
    assert_eq!((house.fwps[0].moved().sent.value(), house.no_slot(1)), (1, 0));
    house.receive_for(id(0), 4..6);
    assert_eq!(house.pass_and_poll(0, PORT_REPLY), frames(4..6));
    assert_eq!(house.gateway.collect(), left(4..6));
    house.assert_all_slots_free_before_any_is_held(0, Shape::slots(4));
}

#[test]
fn frames_that_wait_before_a_leaving_fwp_are_counted_and_give_back_their_buffers_and_their_part_of_the_bound() {
    let plan = Plan { buffers: 16, ..Plan::default() };
    let mut house = House::new(&plan);
    house.attach_chain(1, &[Shape::slots(1)], HOLD, Edge::EgressWhereItCame);
    for generation in 0..100 {
        let leaving = FwpId { index: 0, generation };
        house.attach_wired(leaving, Shape::slots(1), Wiring::new(vec![Edge::EgressWhereItCame], HOLD));
        house.receive_for(leaving, 0..9);
        assert_eq!(house.fwps[1].moved().dropped_no_slot.value(), 0);
        house.gateway.collect();
        assert_eq!(house.gateway.lent(), 8 + house.gateway.kept_max.min(generation as usize * 9 + 1));
        house.command(MmaCommand::Detach(leaving));
        house.mma.poll();
        drop(house.detached().unwrap());
        assert_eq!(house.fwps[1].moved().dropped_instance_ended.value(), 8);
        house.gateway.collect();
        assert_eq!(house.gateway.lent(), house.gateway.kept_max);
        house.fwps.truncate(1);
    }
    // The whole limit is available again.
    house.receive_for(id(1), 0..9);
    assert_eq!(house.no_slot(0), 0);
}

#[test]
fn an_fwp_that_ended_while_waiting_takes_no_room_from_later_ones() {
    let mut house = House::new(&Plan::default());
    house.attach_chain(1, &[Shape::slots(1)], HOLD, Edge::EgressWhereItCame);
    house.receive_for(id(1), 0..1);
    for generation in 0..200 {
        let waiting = FwpId { index: 0, generation };
        house.attach_wired(waiting, Shape::slots(2), Wiring::new(vec![Edge::Fwp(id(1))], HOLD));
        house.receive_for(waiting, 0..2);
        house.gateway.collect();
        house.pass_and_poll(1, PORT_NEXT);
        assert_eq!(house.no_slot(0), 0, "what is to be held is dropped after {generation} tenants");
        house.command(MmaCommand::Detach(waiting));
        house.mma.poll();
        drop(house.detached().unwrap());
        assert_eq!(house.fwps[1].moved().dropped_instance_ended.value(), 2);
        house.fwps.truncate(1);
    }
    assert_eq!(house.pass_and_poll(0, PORT_NEXT), frames(0..1));
    house.settle();
    assert_eq!(house.pass_and_poll(0, PORT_NEXT), frames(0..0));
}

#[test]
fn predecessors_beyond_those_that_can_wait_drop_and_count() {
    const PREDECESSORS: u32 = 22;
    let mut house = House::new(&Plan { fwps_max: 100, buffers: 256, ..Plan::default() });
    house.attach_chain(0, &[Shape::slots(1)], HOLD, Edge::EgressWhereItCame);
    for index in 1..=PREDECESSORS {
        house.attach_chain(index, &[Shape::slots(1)], HOLD, Edge::Fwp(id(0)));
        house.receive_for(id(index), index..index + 1);
    }
    house.gateway.collect();
    house.gateway.lend_empties(PREDECESSORS as usize);
    for index in 1..=PREDECESSORS {
        house.fwps[index as usize].pass_all(PORT_NEXT);
    }
    house.settle();
    // One is in the slot, and 16 wait.
    assert_eq!(house.no_slot(0), u64::from(PREDECESSORS) - 17);
    let mut seen = Vec::new();
    for _ in 0..17 {
        let frames = house.pass_and_poll(0, PORT_NEXT);
        assert_eq!(frames.len(), 1, "after {} frames", seen.len());
        seen.extend(frames);
        house.settle();
    }
    assert_eq!(seen, frames(1..18));
    assert_eq!(house.pass_and_poll(0, PORT_NEXT), frames(0..0));
}
