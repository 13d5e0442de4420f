//! Branches: frames take an edge by what is in them, from an output or at a chain's entrance. The conditions here look at
//! a frame's first byte; those of real headers are the gateway's, and tested there.

mod entrance;
mod random_graphs;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY};
use pinion_mma::id::PortIndex;
use pinion_mma::mover::MmaCommand;
use pinion_mma::ways::direction::{PortSet, Sides};
use pinion_mma::wiring::branch::{Branch, Conditions};
use pinion_mma::wiring::{Backpressure, Edge, Wiring};
use support::{Guest, House, Left, Plan, Shape, frame, id};

/// A frame meets the case of the number that is its first byte, if there are so many.
#[derive(Debug, Default)]
pub(crate) struct ByFirstByte {
    asked: AtomicU64,
}

impl Conditions for ByFirstByte {
    fn first_met(&self, frame: &[u8], _port: PortIndex) -> Option<usize> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        frame.first().map(|byte| usize::from(*byte))
    }
}

/// Makes a branch with these edges, of which the last one is the default.
pub(crate) fn branch(edges: &[Edge]) -> Branch {
    let (default, cases) = edges.split_last().unwrap();
    Branch::new(Arc::new(ByFirstByte::default()), cases.to_vec(), *default)
}

/// Makes a frame that meets the case of this number.
pub(crate) fn meeting(case: u8, number: u32) -> Vec<u8> {
    let mut bytes = frame(number, 64);
    bytes[0] = case;
    bytes
}

/// Makes stage 0 whose only output is this branch, and stages 1 to `stages` behind it, which send out on port 100 and so on.
fn branching(branch: Branch, stages: u32, backpressure: Backpressure) -> House {
    let mut house = House::new(&Plan::default());
    let wiring = Wiring::new(vec![Edge::Branch(0)], backpressure).with_branches(vec![branch]);
    house.attach_wired(id(0), Shape::slots(32), wiring);
    for stage in 1..=stages {
        let out = vec![Edge::Egress(PortIndex(100 + stage as u16))];
        house.attach_wired(id(stage), Shape::slots(8), Wiring::new(out, backpressure));
    }
    house.gateway.lend_empties(16);
    house.mma.poll();
    house
}

/// Makes stage 0 receive these frames on port 3 and send them on, and polls.
fn pass(house: &mut House, frames: &[Vec<u8>]) {
    frames.iter().for_each(|frame| house.gateway.inject(frame, 3, id(0)));
    house.mma.poll();
    assert_eq!(house.fwps[0].pass_all(PORT_NEXT), frames.len());
    house.mma.poll();
}

pub(crate) fn seen_by(house: &mut House, fwp: usize) -> Vec<Vec<u8>> {
    let received = house.fwps[fwp].publish_all();
    received.iter().map(|descriptor| house.fwps[fwp].guest.frame(descriptor)).collect()
}

pub(crate) fn left(port: u16, bytes: &[u8]) -> Left {
    Left { port, bytes: bytes.to_vec() }
}

#[test]
fn a_frame_takes_the_case_that_it_meets_and_otherwise_the_default_and_frames_keep_their_order() {
    for backpressure in [Backpressure::Drop, Backpressure::Hold { frames_max: 4 }] {
        let edges = [Edge::Fwp(id(1)), Edge::Egress(PortIndex(9)), Edge::EgressWhereItCame, Edge::Fwp(id(2))];
        let mut house = branching(branch(&edges), 2, backpressure);
        // Runs of all lengths.
        let cases = [0, 0, 1, 7, 7, 7, 2, 0, 1, 1, 255, 0];
        let frames: Vec<_> = (0..).zip(cases).map(|(number, case)| meeting(case, number)).collect();
        pass(&mut house, &frames);
        let of = |numbers: &[usize]| numbers.iter().map(|&number| frames[number].clone()).collect::<Vec<_>>();
        assert_eq!(seen_by(&mut house, 1), of(&[0, 1, 7, 11]));
        assert_eq!(seen_by(&mut house, 2), of(&[3, 4, 5, 10]));
        let expected = [(9, 2), (3, 6), (9, 8), (9, 9)].map(|(port, number)| left(port, &frames[number]));
        assert_eq!(house.gateway.collect(), expected);
        assert_eq!(house.fwps[0].moved().sent.value(), 12);
        match backpressure {
            Backpressure::Drop => house.assert_all_slots_free(0, Shape::slots(32)),
            Backpressure::Hold { .. } => house.assert_all_slots_free_before_any_is_held(0, Shape::slots(32)),
        }
    }
}

#[test]
fn each_frame_is_looked_at_once_however_they_alternate() {
    let conditions = Arc::new(ByFirstByte::default());
    let edges = vec![Edge::Fwp(id(1)), Edge::Fwp(id(2)), Edge::Drop];
    let branch = Branch::new(conditions.clone(), edges, Edge::EgressWhereItCame);
    let mut house = branching(branch, 2, Backpressure::Drop);
    let frames: Vec<_> = (0..16).map(|number| meeting(number as u8 % 5, number)).collect();
    pass(&mut house, &frames);
    assert_eq!(conditions.asked.load(Ordering::Relaxed), 16);
    assert_eq!(house.fwps[0].moved().sent.value() + house.fwps[0].moved().dropped_by_graph.value(), 16);
}

#[test]
fn frames_that_lead_nowhere_are_dropped_and_counted_and_their_slots_are_free() {
    let mut house = branching(branch(&[Edge::Drop, Edge::Fwp(id(1))]), 1, Backpressure::Drop);
    let frames = [0, 0, 1, 0].map(|case| meeting(case, 1));
    pass(&mut house, &frames);
    assert_eq!(seen_by(&mut house, 1), [frames[2].clone()]);
    let moved = house.fwps[0].moved();
    assert_eq!((moved.dropped_by_graph.value(), moved.sent.value()), (3, 1));
    house.gateway.collect();
    house.assert_all_slots_free(0, Shape::slots(32));
}

#[test]
fn an_output_that_leads_nowhere_drops_and_counts_its_frames() {
    let mut house = House::new(&Plan::default());
    let wiring = Wiring::new(vec![Edge::Drop, Edge::EgressWhereItCame], Backpressure::Drop);
    house.attach_wired(id(0), Shape::slots(8), wiring);
    house.gateway.lend_empties(8);
    (0..4).for_each(|number| house.gateway.inject(&frame(number, 64), 3, id(0)));
    house.mma.poll();
    for (descriptor, output) in house.fwps[0].publish_all().into_iter().zip([0, 1, 0, PORT_DROP]) {
        house.fwps[0].guest.pass(descriptor, output);
    }
    assert_eq!(house.collect_and_move(0), Ok(4));
    assert_eq!(house.gateway.collect(), [left(3, &frame(1, 64))]);
    assert_eq!(house.fwps[0].moved().dropped_by_graph.value(), 2);
    house.assert_all_slots_free(0, Shape::slots(8));
}

#[test]
fn outputs_with_and_without_branches_may_alternate_in_one_batch() {
    let mut house = House::new(&Plan::default());
    let [first, second] = [1, 2].map(|stage| Edge::Fwp(id(stage)));
    let outputs = vec![Edge::Branch(0), first, Edge::Branch(1)];
    let branches = vec![branch(&[first, second]), branch(&[Edge::Egress(PortIndex(7)), Edge::EgressWhereItCame])];
    let wiring = Wiring::new(outputs, Backpressure::Drop).with_branches(branches);
    house.attach_wired(id(0), Shape::slots(32), wiring);
    [1, 2].iter().for_each(|&stage| _ = house.attach(id(stage), Shape::slots(8), Edge::EgressWhereItCame));
    house.gateway.lend_empties(8);
    let sent = [(0, 0), (0, 1), (1, 1), (2, 0), (0, 1), (2, 5), (2, 0), (1, 0)];
    let frames: Vec<_> = (0..).zip(sent).map(|(number, (_, case))| meeting(case, number)).collect();
    frames.iter().for_each(|frame| house.gateway.inject(frame, 3, id(0)));
    house.mma.poll();
    for (descriptor, (output, _)) in house.fwps[0].publish_all().into_iter().zip(sent) {
        house.fwps[0].guest.pass(descriptor, output);
    }
    assert_eq!(house.collect_and_move(0), Ok(8));
    assert_eq!(seen_by(&mut house, 1), [0, 2, 7].map(|number: usize| frames[number].clone()));
    assert_eq!(seen_by(&mut house, 2), [1, 4].map(|number: usize| frames[number].clone()));
    let expected = [(7, 3), (3, 5), (7, 6)].map(|(port, number)| left(port, &frames[number]));
    assert_eq!(house.gateway.collect(), expected);
}

/// Notes what it is shown.
#[derive(Debug, Default)]
struct Noting {
    shown: std::sync::Mutex<Vec<(Vec<u8>, u16)>>,
}

impl Conditions for Noting {
    fn first_met(&self, frame: &[u8], port: PortIndex) -> Option<usize> {
        self.shown.lock().unwrap().push((frame.to_vec(), port.0));
        None
    }
}

#[test]
fn conditions_see_the_first_256_bytes_and_the_length_of_a_frame_and_frames_of_any_length_pass_unaltered() {
    let noting = Arc::new(Noting::default());
    let by_noting = Branch::new(noting.clone(), vec![Edge::Drop], Edge::Fwp(id(1)));
    let mut house = branching(by_noting, 1, Backpressure::Drop);
    let longest = Shape::slots(8).frame_bytes_max();
    let frames: Vec<_> = (0..).zip([1, 64, 255, 256, 257, 300, longest]).map(|(seed, len)| frame(seed, len)).collect();
    pass(&mut house, &frames);
    assert_eq!(seen_by(&mut house, 1), frames);
    let shown = std::mem::take(&mut *noting.shown.lock().unwrap());
    let start = |bytes: &Vec<u8>| {
        let mut bytes = bytes.clone();
        bytes.iter_mut().skip(256).for_each(|byte| *byte = 0);
        (bytes, 3)
    };
    assert_eq!(shown, frames.iter().map(start).collect::<Vec<_>>());
    // The same out of the node.
    let by_noting = Branch::new(noting, vec![Edge::Drop], Edge::EgressWhereItCame);
    let mut house = branching(by_noting, 0, Backpressure::Drop);
    pass(&mut house, &frames);
    assert_eq!(house.gateway.collect(), frames.iter().map(|bytes| left(3, bytes)).collect::<Vec<_>>());
}

/// Overwrites a frame in its slot while it is asked about it, as a guest could on another core.
#[derive(Debug, Default)]
struct Overwriting {
    address: AtomicU64,
    with: AtomicU8,
}

impl Conditions for Overwriting {
    #[allow(unsafe_code)] // Plays a guest that writes to its own memory.
    fn first_met(&self, frame: &[u8], _port: PortIndex) -> Option<usize> {
        let (address, with) = (self.address.load(Ordering::Relaxed) as usize, self.with.load(Ordering::Relaxed));
        // SAFETY: the slot of the only frame, in the memory of a guest that lives as long as the test.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(with, frame.len()) };
        Some(usize::from(frame[0]))
    }
}

#[test]
fn a_guest_that_changes_a_frame_while_it_is_matched_sends_what_was_matched() {
    for len in [60, 256, 400] {
        let overwriting = Arc::new(Overwriting::default());
        let by_it = Branch::new(overwriting.clone(), vec![Edge::Fwp(id(1))], Edge::EgressWhereItCame);
        let mut house = branching(by_it, 1, Backpressure::Drop);
        let mut bytes = frame(5, len);
        bytes[0] = 0;
        house.receive(&bytes, 3);
        let received = house.fwps[0].publish_all()[0];
        let address = house.fwps[0].guest.address_of(received.slot, received.offset);
        overwriting.address.store(address as u64, Ordering::Relaxed);
        overwriting.with.store(0xee, Ordering::Relaxed);
        house.fwps[0].guest.pass(received, PORT_NEXT);
        assert_eq!(house.collect_and_move(0), Ok(1));
        let seen = seen_by(&mut house, 1).remove(0);
        let matched = len.min(256);
        assert_eq!(seen[..matched], bytes[..matched], "{len} bytes: the headers are those that were matched");
        assert!(seen[matched..].iter().all(|byte| *byte == 0xee), "what lies behind is the guest's own");
    }
}

#[test]
fn conditions_are_told_the_port_of_a_received_frame_and_of_the_way_of_one_that_was_made() {
    let noting = Arc::new(Noting::default());
    let by_noting = Branch::new(noting.clone(), vec![Edge::Drop], Edge::EgressWhereItCame);
    let mut house = House::new(&Plan::default());
    let shape = Shape { slot_count: 4, slot_size: 1600, ring_entries: 4 };
    let wiring = Wiring::to(Edge::Branch(0)).with_branches(vec![by_noting]);
    let (_, endpoint) = house.make_of(id(0), Guest::owning(shape, 1), wiring);
    house.command(MmaCommand::Attach(endpoint));
    house.gateway.lend_empties(8);
    house.receive(&frame(1, 60), 7);
    house.receive(&frame(2, 60), 9);
    assert_eq!(house.fwps[0].pass_all(PORT_NEXT), 2);
    let made = Descriptor { slot: 3, offset: 0, len: 60, port: PORT_NEXT, way: 7 << 1, ..Descriptor::default() };
    house.fwps[0].guest.send(made);
    assert_eq!(house.collect_and_move(0), Ok(1));
    let ports: Vec<u16> = noting.shown.lock().unwrap().iter().map(|(_, port)| *port).collect();
    assert_eq!(ports, [7, 9, 7]);
    let by: Vec<u16> = house.gateway.collect().iter().map(|left| left.port).collect();
    assert_eq!(by, [7, 9, 7]);
}

#[test]
fn a_case_whose_stage_is_full_or_has_ended_drops_its_own_frames_only() {
    let mut house = branching(branch(&[Edge::Fwp(id(1)), Edge::Fwp(id(2))]), 2, Backpressure::Drop);
    house.command(MmaCommand::Detach(id(2)));
    house.mma.poll();
    let frames: Vec<_> = (0..12).map(|number| meeting(u8::from(number % 6 == 5), number)).collect();
    pass(&mut house, &frames);
    let first: Vec<_> = frames.iter().filter(|frame| frame[0] == 0).take(8).cloned().collect();
    assert_eq!(seen_by(&mut house, 1), first);
    assert_eq!(house.fwps[1].moved().dropped_no_slot.value(), 2);
    assert_eq!(house.fwps[0].moved().dropped_instance_ended.value(), 2);
    house.gateway.collect();
    house.assert_all_slots_free(0, Shape::slots(32));
}

#[test]
fn a_stage_that_holds_waits_for_the_stage_that_a_frame_has_chosen_and_loses_none() {
    let mut house = branching(branch(&[Edge::Fwp(id(1)), Edge::Fwp(id(2))]), 2, Backpressure::Hold { frames_max: 32 });
    let frames: Vec<_> = (0..20).map(|number| meeting(u8::from(number >= 10), number)).collect();
    pass(&mut house, &frames);
    assert_eq!(seen_by(&mut house, 2), Vec::<Vec<u8>>::new(), "they wait behind those for the other stage");
    let mut seen = seen_by_and_dropped(&mut house, 1);
    assert_eq!(seen, frames[..8]);
    house.settle();
    seen.extend(seen_by_and_dropped(&mut house, 1));
    assert_eq!(seen, frames[..10]);
    let mut seen = Vec::new();
    for _ in 0..2 {
        house.settle();
        seen.extend(seen_by_and_dropped(&mut house, 2));
    }
    assert_eq!(seen, frames[10..]);
}

/// Returns what an FWP receives; it drops all of it.
fn seen_by_and_dropped(house: &mut House, fwp: usize) -> Vec<Vec<u8>> {
    let received = house.fwps[fwp].publish_all();
    for descriptor in &received {
        house.fwps[fwp].guest.pass(*descriptor, PORT_DROP);
    }
    let frames = received.iter().map(|descriptor| house.fwps[fwp].guest.frame(descriptor)).collect();
    house.fwps[fwp].collect().unwrap();
    house.mma.poll();
    frames
}

#[test]
fn an_fwp_that_waits_for_a_stage_of_a_branch_can_end_and_so_can_that_stage() {
    for gone in [[0, 1], [1, 0]] {
        let mut house = branching(branch(&[Edge::Fwp(id(1)), Edge::Drop]), 1, Backpressure::Hold { frames_max: 4 });
        let frames: Vec<_> = (0..10).map(|number| meeting(0, number)).collect();
        pass(&mut house, &frames);
        for index in gone {
            house.command(MmaCommand::Detach(id(index)));
            house.settle();
            assert_eq!(house.detached().expect("it was detached").id(), id(index));
        }
        assert_eq!(house.fwps[0].moved().dropped_instance_ended.value(), 2);
    }
}

#[test]
fn a_reply_towards_later_stages_takes_the_branch_of_the_first_output_and_otherwise_its_own_port() {
    const INSIDE: u16 = 0;
    const OUTSIDE: u16 = 1;
    let set = |port| PortSet::of([PortIndex(port)]).unwrap();
    let sides = Sides { forth: set(INSIDE), back: set(OUTSIDE) };
    let [inside, outside] = [INSIDE, OUTSIDE].map(|port| Edge::Egress(PortIndex(port)));
    let mut house = House::new(&Plan::default());
    let first = Wiring::both_ways(vec![Edge::Branch(0)], vec![inside], sides)
        .with_branches(vec![branch(&[Edge::Fwp(id(1)), Edge::Egress(PortIndex(9))])]);
    house.attach_wired(id(0), Shape::slots(8), first);
    let second = Wiring::both_ways(vec![outside], vec![Edge::Fwp(id(0))], sides);
    house.attach_wired(id(1), Shape::slots(8), second);
    house.gateway.lend_empties(16);
    house.mma.poll();
    let frames = [0, 1].map(|case| meeting(case, u32::from(case)));
    // Frames that have come back to the first stage, which answers them.
    frames.iter().for_each(|frame| house.gateway.inject(frame, OUTSIDE, id(0)));
    house.mma.poll();
    assert_eq!(house.fwps[0].pass_all(PORT_REPLY), 2);
    house.mma.poll();
    assert_eq!(house.gateway.collect(), [left(OUTSIDE, &frames[1])], "no stage is on its way");
    assert_eq!(seen_by(&mut house, 1), [frames[0].clone()]);
    // On the way back the branch does not count.
    frames.iter().for_each(|frame| house.gateway.inject(frame, OUTSIDE, id(0)));
    house.mma.poll();
    assert_eq!(house.fwps[0].pass_all(PORT_NEXT), 2);
    house.mma.poll();
    assert_eq!(house.gateway.collect(), frames.each_ref().map(|frame| left(INSIDE, frame)));
}

#[test]
fn a_reply_leaves_by_its_own_port_if_no_edge_of_the_first_outputs_branch_leads_to_a_stage() {
    const INSIDE: u16 = 0;
    const OUTSIDE: u16 = 1;
    let set = |port| PortSet::of([PortIndex(port)]).unwrap();
    let sides = Sides { forth: set(INSIDE), back: set(OUTSIDE) };
    let mut house = House::new(&Plan::default());
    let wiring = Wiring::both_ways(vec![Edge::Branch(0)], vec![Edge::Egress(PortIndex(INSIDE))], sides);
    house.attach_wired(
        id(0),
        Shape::slots(8),
        wiring.with_branches(vec![branch(&[Edge::Drop, Edge::Egress(PortIndex(9))])]),
    );
    house.gateway.lend_empties(8);
    house.mma.poll();
    let frames = [0, 1].map(|case| meeting(case, 5));
    frames.iter().for_each(|frame| house.gateway.inject(frame, OUTSIDE, id(0)));
    house.mma.poll();
    assert_eq!(house.fwps[0].pass_all(PORT_REPLY), 2);
    house.mma.poll();
    assert_eq!(house.gateway.collect(), frames.each_ref().map(|frame| left(OUTSIDE, frame)));
    assert_eq!(house.fwps[0].moved().dropped_by_graph.value(), 0);
}

#[test]
fn a_new_stage_is_asked_for_no_more_slots_than_frames_are_known_to_be_for_it() {
    let mut house = House::new(&Plan::default());
    let by_case = branch(&[Edge::Fwp(id(1)), Edge::Drop]);
    let first = Wiring::to(Edge::Branch(0)).with_branches(vec![by_case]);
    house.attach_wired(id(0), Shape::slots(32), first);
    let guest = Guest::new(Shape::slots(32)).with_first_slots_only();
    let at_first = usize::from(guest.slots_at_first());
    let (_, endpoint) = house.make_of(id(1), guest, Wiring::to(Edge::EgressWhereItCame));
    house.command(MmaCommand::Attach(endpoint));
    house.mma.poll();
    let for_it = at_first as u32 + 1;
    let frames: Vec<_> = (0..31).map(|number| meeting(u8::from(number >= for_it), number)).collect();
    pass(&mut house, &frames);
    for _ in 0..8 {
        seen_by_and_dropped(&mut house, 1);
        house.settle();
    }
    assert_eq!(house.fwps[1].moved().received.value(), u64::from(for_it));
    assert_eq!(house.fwps[1].mailbox.counters().guest.slots_provided(), for_it as u16);
}

#[test]
fn what_is_no_branch_is_not_made() {
    let makes = |make: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(make)).is_ok();
    let out = Edge::EgressWhereItCame;
    assert!(makes(&|| drop(branch(&[out; 17]))));
    assert!(!makes(&|| drop(branch(&[out; 18]))) && !makes(&|| drop(branch(&[out]))));
    assert!(!makes(&|| drop(branch(&[Edge::Branch(0), out]))) && !makes(&|| drop(branch(&[out, Edge::Branch(0)]))));
    let wired = |count: usize, edge| drop(Wiring::to(edge).with_branches(vec![branch(&[out; 2]); count]));
    assert!(makes(&|| wired(1, Edge::Branch(0))) && makes(&|| wired(1, out)));
    assert!(!makes(&|| wired(1, Edge::Branch(1))) && !makes(&|| wired(0, Edge::Branch(0))));
    // A branch that leads to the FWP itself.
    let mut house = House::new(&Plan::default());
    house.attach_wired(
        id(0),
        Shape::slots(4),
        Wiring::to(Edge::Branch(0)).with_branches(vec![branch(&[Edge::Fwp(id(0)), out])]),
    );
    house.mma.poll();
    assert_eq!(house.detached().expect("it was refused").id(), id(0));
}
