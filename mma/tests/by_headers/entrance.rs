//! Branches at a chain's entrance.

use pinion_mma::wiring::branch::Entrance;

use super::*;

const PORT: u16 = 3;

fn entered(wiring: Wiring, edges: &[Edge]) -> Wiring {
    wiring.with_entrance(Entrance { forth: Some(branch(edges)), back: None })
}

/// Makes three stages of which none leads to another, entered by a branch at the first.
fn three(edges: &[Edge], backpressure: Backpressure) -> House {
    let mut house = House::new(&Plan::default());
    for stage in 0..3 {
        let wiring = Wiring::new(vec![Edge::Egress(PortIndex(100 + stage as u16))], backpressure);
        let wiring = if stage == 0 { entered(wiring, edges) } else { wiring };
        house.attach_wired(id(stage), Shape::slots(8), wiring);
    }
    house.gateway.lend_empties(8);
    house.mma.poll();
    house
}

/// Gives frames that meet these cases to the first stage, and polls. Returns them.
fn enter(house: &mut House, cases: &[u8]) -> Vec<Vec<u8>> {
    let frames: Vec<_> = (0..).zip(cases).map(|(number, case)| meeting(*case, number)).collect();
    frames.iter().for_each(|frame| house.gateway.inject(frame, PORT, id(0)));
    house.mma.poll();
    frames
}

#[test]
fn frames_enter_by_the_stage_that_they_meet_or_are_dropped() {
    let edges = [Edge::Fwp(id(2)), Edge::Fwp(id(0)), Edge::Drop, Edge::Fwp(id(1))];
    let mut house = three(&edges, Backpressure::Drop);
    let frames = enter(&mut house, &[0, 0, 1, 2, 2, 3, 7, 0, 1, 255, 2]);
    let of = |numbers: &[usize]| numbers.iter().map(|&number| frames[number].clone()).collect::<Vec<_>>();
    let mut noticed = house.noticed();
    noticed.sort_unstable();
    assert_eq!(noticed, [0, 1, 2].map(id));
    assert_eq!(house.gateway.collect(), []);
    assert_eq!([0, 1, 2].map(|stage| seen_by(&mut house, stage)), [of(&[2, 8]), of(&[5, 6, 9]), of(&[0, 1, 7])]);
    assert_eq!(house.fwps[0].moved().dropped_by_graph.value(), 3);
    let entered = [0, 1, 2].map(|stage| house.fwps[stage].moved().entered_bytes.value());
    assert_eq!(entered, [2 * 64, 3 * 64, 3 * 64], "counted at the stage that they enter by");
    assert_eq!(house.copied_bytes(), 8 * 64, "what is dropped is not copied");
    assert_buffers_are_back(&house, 8);
}

#[test]
fn frames_that_are_meant_for_another_stage_enter_by_it() {
    let mut house = three(&[Edge::Drop, Edge::Drop], Backpressure::Drop);
    house.gateway.inject(&meeting(0, 1), PORT, id(1));
    house.gateway.inject(&meeting(0, 2), PORT, id(0));
    house.mma.poll();
    assert_eq!([0, 1, 2].map(|stage| seen_by(&mut house, stage).len()), [0, 1, 0]);
}

#[test]
fn each_stage_that_frames_enter_by_holds_its_own() {
    let mut house = three(&[Edge::Fwp(id(1)), Edge::Fwp(id(2))], Backpressure::Hold { frames_max: 2 });
    // Eight slots and two places each.
    let frames = enter(&mut house, &[[0; 12].as_slice(), &[1; 9]].concat());
    assert_eq!(house.fwps[1].moved().dropped_no_slot.value(), 2);
    assert_eq!(seen_by_and_dropped(&mut house, 1), frames[..8]);
    assert_eq!(seen_by_and_dropped(&mut house, 2), frames[12..20]);
    assert_eq!(seen_by_and_dropped(&mut house, 1), frames[8..10]);
    assert_eq!(seen_by_and_dropped(&mut house, 2), frames[20..]);
    let entered = [0, 1, 2].map(|stage| house.fwps[stage].moved().entered_bytes.value());
    assert_eq!(entered, [0, 10 * 64, 9 * 64], "also what was held first");
    house.gateway.collect();
    assert_buffers_are_back(&house, 8);
}

#[test]
fn what_finds_no_stage_is_counted_and_its_buffer_comes_back() {
    let mut house = three(&[Edge::Fwp(id(1)), Edge::Drop], Backpressure::Drop);
    house.command(MmaCommand::Detach(id(1)));
    house.mma.poll();
    enter(&mut house, &[0, 0, 1]);
    let moved = house.fwps[0].moved();
    assert_eq!((moved.dropped_instance_ended.value(), moved.dropped_by_graph.value()), (2, 1));
    assert_eq!(house.gateway.collect(), []);
    assert_buffers_are_back(&house, 8);
}

#[test]
fn looking_at_frames_is_charged_to_the_stage_that_they_were_meant_for() {
    let mut house = three(&[Edge::Drop, Edge::Fwp(id(1))], Backpressure::Drop);
    // As much as is published at once.
    for _ in 0..16 {
        enter(&mut house, &[0; 16]);
        house.gateway.collect();
    }
    let charged = [0, 1, 2].map(|stage| house.fwps[stage].moved().copying_ns.value() > 0);
    assert_eq!(charged, [true, false, false]);
}

#[test]
fn an_entrance_leads_to_stages_or_nowhere() {
    for out in [Edge::EgressWhereItCame, Edge::Egress(PortIndex(9))] {
        let made = std::panic::catch_unwind(|| drop(entered(Wiring::to(Edge::Drop), &[Edge::Fwp(id(1)), out])));
        assert!(made.is_err(), "{out:?}");
    }
}

/// Makes a first stage that leads to a second, which frames of case 0 enter by. Both hold, and the second has so many
/// slots.
fn two_that_hold(slots: u32) -> House {
    let mut house = House::new(&Plan::default());
    let hold = Backpressure::Hold { frames_max: 8 };
    let first = Wiring::new(vec![Edge::Fwp(id(1))], hold);
    house.attach_wired(id(0), Shape::slots(4), entered(first, &[Edge::Fwp(id(1)), Edge::Fwp(id(0))]));
    house.attach_wired(id(1), Shape::slots(slots), Wiring::new(vec![Edge::EgressWhereItCame], hold));
    house.mma.poll();
    house
}

/// Returns the numbers of the frames that the second stage receives; it drops them.
fn numbers_seen(house: &mut House, numbered: &[Vec<u8>]) -> Vec<usize> {
    let seen = seen_by_and_dropped(house, 1);
    house.gateway.collect();
    seen.iter().map(|seen| numbered.iter().position(|frame| frame == seen).unwrap()).collect()
}

#[test]
fn frames_that_enter_and_those_of_the_stage_before_share_the_slots_of_a_stage_that_both_wait_for() {
    // The frames that enter, and how many there are of the stage before. What the second stage gets with each turn: numbers
    // from 20 on are of the stage before.
    for (slots, entering, of_first, expected) in [
        (4, 12, 4, vec![vec![0, 1, 2, 3], vec![4, 5, 20, 21], vec![6, 7, 22, 23], vec![8, 9, 10, 11]]),
        (4, 8, 1, vec![vec![0, 1, 2, 3], vec![4, 5, 20, 6], vec![7]]),
        (1, 4, 3, [0, 20, 1, 21, 2, 22, 3].map(|number| vec![number]).to_vec()),
    ] {
        let mut house = two_that_hold(slots);
        let mut frames: Vec<Vec<u8>> = (0..20).map(|number| meeting(0, number)).collect();
        frames.extend((20..24).map(|number| meeting(1, number)));
        let inject = |house: &mut House, range: std::ops::Range<usize>| {
            range.for_each(|number| house.gateway.inject(&frames[number], PORT, id(0)));
            house.mma.poll();
        };
        inject(&mut house, 0..entering);
        inject(&mut house, 20..20 + of_first);
        assert_eq!(house.fwps[0].pass_all(PORT_NEXT), of_first);
        house.settle();
        for expected in &expected {
            assert_eq!(&numbers_seen(&mut house, &frames), expected, "{slots} slots, {entering} and {of_first} frames");
        }
        assert!(numbers_seen(&mut house, &frames).is_empty());
        assert_eq!([0, 1].map(|stage| house.fwps[stage].moved().dropped_no_slot.value()), [0; 2]);
    }
}

#[test]
fn a_stage_whose_output_and_whose_own_clients_come_without_end_lets_both_through() {
    let mut house = two_that_hold(2);
    let (mut of_first, mut direct) = (0_u64, 0_u64);
    for round in 0..200_u32 {
        // More than the second stage takes, of both.
        for number in 0..3 {
            house.gateway.inject(&meeting(0, round * 8 + number), PORT, id(0));
            house.gateway.inject(&meeting(1, round * 8 + number), PORT, id(0));
        }
        house.mma.poll();
        house.fwps[0].pass_all(PORT_NEXT);
        house.settle();
        for frame in seen_by_and_dropped(&mut house, 1) {
            *(if frame[0] == 0 { &mut direct } else { &mut of_first }) += 1;
        }
        house.settle();
        house.gateway.collect();
    }
    assert!(of_first >= 150 && direct >= 150, "{of_first} of the stage before, {direct} that enter");
}

#[test]
fn a_stage_before_that_ends_leaves_the_slots_to_frames_that_enter() {
    let mut house = two_that_hold(2);
    let frames: Vec<Vec<u8>> = (0..6).map(|number| meeting(0, number)).collect();
    frames.iter().for_each(|frame| house.gateway.inject(frame, PORT, id(0)));
    house.gateway.inject(&meeting(1, 9), PORT, id(0));
    house.mma.poll();
    assert_eq!(house.fwps[0].pass_all(PORT_NEXT), 1);
    house.mma.poll();
    // The slots come back in the poll in which the first stage ends.
    assert_eq!(house.fwps[1].pass_all(PORT_DROP), 2);
    house.command(MmaCommand::Detach(id(0)));
    house.settle();
    assert_eq!(house.detached().expect("it has ended").id(), id(0));
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.extend(seen_by_and_dropped(&mut house, 1));
    }
    let lost = house.fwps[0].moved().dropped_instance_ended.value();
    assert_eq!(seen.iter().filter(|frame| frame[0] == 0).count(), 4, "all that waited");
    assert_eq!(seen.len() as u64 + lost, 5);
    assert!(!house.mma.has_work());
}

/// Checks that the MMA has no more buffers than these empty ones, and those that it keeps.
fn assert_buffers_are_back(house: &House, empty: usize) {
    let (lent, kept_max) = (house.gateway.lent(), house.gateway.kept_max);
    assert!(lent <= empty + kept_max, "{lent} are lent, and it keeps {kept_max} at most");
}

#[test]
fn each_direction_has_an_entrance_of_its_own() {
    const OUTSIDE: u16 = 1;
    let set = |port| PortSet::of([PortIndex(port)]).unwrap();
    let sides = Sides { forth: set(PORT), back: set(OUTSIDE) };
    let out = |port| Edge::Egress(PortIndex(port));
    let mut house = House::new(&Plan::default());
    for stage in 0..2 {
        let wiring = Wiring::both_ways(vec![out(OUTSIDE)], vec![out(PORT)], sides);
        let edges = [Edge::Fwp(id(0)), Edge::Fwp(id(1))];
        let entrance = match stage {
            0 => Entrance { forth: Some(branch(&edges)), back: None },
            _ => Entrance { forth: None, back: Some(branch(&edges)) },
        };
        house.attach_wired(id(stage), Shape::slots(8), wiring.with_entrance(entrance));
    }
    house.gateway.lend_empties(8);
    house.mma.poll();
    let frames = [0, 1].map(|case| meeting(case, 7));
    for (port, target) in [(PORT, 0), (OUTSIDE, 1)] {
        frames.iter().for_each(|frame| house.gateway.inject(frame, port, id(target)));
        house.mma.poll();
        assert_eq!([0, 1].map(|stage| house.fwps[stage].pass_all(PORT_NEXT)), [1, 1]);
        house.mma.poll();
        let way_out = if port == PORT { OUTSIDE } else { PORT };
        assert_eq!(house.gateway.collect(), frames.each_ref().map(|frame| left(way_out, frame)));
    }
    // The other direction's branch does not count.
    house.gateway.inject(&frames[0], OUTSIDE, id(0));
    house.gateway.inject(&frames[1], OUTSIDE, id(0));
    house.mma.poll();
    assert_eq!(house.fwps[0].pass_all(PORT_NEXT), 2);
}
