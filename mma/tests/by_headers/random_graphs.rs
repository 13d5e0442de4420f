//! Random graphs with random branches: each frame takes the way that a walk through the graph by hand takes, and frames
//! that take the same way keep their order.

use pinion_mma::wiring::branch::Entrance;
use proptest::prelude::*;

use super::*;

const STAGES_MAX: usize = 5;
const PORT: u16 = 3;

/// Where an edge leads, by distance for stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Stage(usize),
    Port(u16),
    WhereItCame,
    Drop,
}

/// Targets of a plain output, or of a branch with the default last.
type Targets = Vec<To>;

fn target() -> impl Strategy<Value = To> {
    prop_oneof![
        5 => (1..=STAGES_MAX).prop_map(To::Stage),
        1 => (40..43_u16).prop_map(To::Port),
        1 => Just(To::WhereItCame),
        1 => Just(To::Drop),
    ]
}

/// Draws the entrance, and the outputs of each stage.
fn graphs() -> impl Strategy<Value = (Targets, Vec<Vec<Targets>>)> {
    let targets = || proptest::collection::vec(target(), 1..5);
    let outputs = proptest::collection::vec(targets(), 1..4);
    (targets(), proptest::collection::vec(outputs, 1..=STAGES_MAX))
}

/// Returns where a target leads from a place, with a stage that there is. The entrance is before stage 0, and leads to no
/// port.
fn resolved(from: Option<usize>, to: To, stages: usize) -> To {
    match (from, to) {
        (None, To::Stage(distance)) => To::Stage((distance - 1) % stages),
        (None, _) => To::Drop,
        (Some(from), To::Stage(distance)) => {
            let stage = from + distance;
            if stage < stages { To::Stage(stage) } else { To::Port(50 + distance as u16) }
        }
        (Some(_), other) => other,
    }
}

fn edge(to: To) -> Edge {
    match to {
        To::Stage(stage) => Edge::Fwp(id(stage as u32)),
        To::Port(port) => Edge::Egress(PortIndex(port)),
        To::WhereItCame => Edge::EgressWhereItCame,
        To::Drop => Edge::Drop,
    }
}

/// Returns where a frame goes whose byte for this hop is `byte`.
fn chosen(targets: &[To], byte: u8) -> To {
    *targets.get(usize::from(byte)).unwrap_or(&targets[targets.len() - 1])
}

/// Walks through the graph by hand: which stages a frame passes, and where it ends.
fn walked((entrance, outputs): &(Targets, Vec<Vec<Targets>>), case: u8, by: u8) -> (Vec<usize>, To) {
    let (mut passed, mut at) = (Vec::new(), resolved(None, chosen(entrance, case), outputs.len()));
    while let To::Stage(stage) = at {
        passed.push(stage);
        let targets = &outputs[stage][usize::from(by) % outputs[stage].len()];
        at = resolved(Some(stage), chosen(targets, case), outputs.len());
    }
    (passed, at)
}

/// Makes the graph's FWPs.
fn house_of((entrance, outputs): &(Targets, Vec<Vec<Targets>>)) -> House {
    let mut house = House::new(&Plan { buffers: 256, ..Plan::default() });
    for (stage, all) in outputs.iter().enumerate() {
        let (mut edges, mut branches) = (Vec::new(), Vec::new());
        for targets in all {
            let of: Vec<Edge> = targets.iter().map(|to| edge(resolved(Some(stage), *to, outputs.len()))).collect();
            edges.push(if of.len() == 1 { of[0] } else { Edge::Branch(branches.len() as u8) });
            branches.extend((of.len() > 1).then(|| branch(&of)));
        }
        let mut wiring = Wiring::new(edges, Backpressure::Drop).with_branches(branches);
        if stage == 0 {
            // A branch has a case at least.
            let mut of: Vec<Edge> = entrance.iter().map(|to| edge(resolved(None, *to, outputs.len()))).collect();
            of.extend((of.len() == 1).then(|| of[0]));
            wiring = wiring.with_entrance(Entrance { forth: Some(branch(&of)), back: None });
        }
        house.attach_wired(id(stage as u32), Shape::slots(128), wiring);
    }
    house.gateway.lend_empties(128);
    house.mma.poll();
    house
}

proptest! {
    #[test]
    fn frames_take_the_ways_that_a_walk_by_hand_finds(
        graph in graphs(),
        frames in proptest::collection::vec((0..6_u8, 0..4_u8), 1..64),
    ) {
        let mut house = house_of(&graph);
        let bytes: Vec<Vec<u8>> = (0..).zip(&frames).map(|(number, (case, by))| {
            let mut bytes = meeting(*case, number);
            bytes[1] = *by;
            bytes[2] = number as u8;
            bytes
        }).collect();
        bytes.iter().for_each(|bytes| house.gateway.inject(bytes, PORT, id(0)));
        let stages = graph.1.len();
        let mut seen = vec![Vec::new(); stages];
        house.mma.poll();
        // Edges lead forward: each stage is done when those before it are.
        for (stage, seen) in seen.iter_mut().enumerate() {
            for descriptor in house.fwps[stage].publish_all() {
                let frame = house.fwps[stage].guest.frame(&descriptor);
                let output = usize::from(frame[1]) % graph.1[stage].len();
                seen.push(frame[2]);
                house.fwps[stage].guest.pass(descriptor, output as u16);
            }
            house.fwps[stage].collect().unwrap();
            house.settle();
        }
        let mut dropped = 0;
        let mut leaving = Vec::new();
        let mut expected = vec![Vec::new(); stages];
        for (number, (case, by)) in frames.iter().enumerate() {
            let (passed, end) = walked(&graph, *case, *by);
            passed.iter().for_each(|stage| expected[*stage].push(number as u8));
            match end {
                To::Port(port) => leaving.push((port, number)),
                To::WhereItCame => leaving.push((PORT, number)),
                To::Drop => dropped += 1,
                To::Stage(_) => unreachable!("a walk ends"),
            }
        }
        // From several stages before it a stage gets frames in another order.
        seen.iter_mut().for_each(|seen| seen.sort_unstable());
        prop_assert_eq!(seen, expected);
        let mut left: Vec<(u16, usize)> =
            house.gateway.collect().iter().map(|left| (left.port, usize::from(left.bytes[2]))).collect();
        left.sort_unstable();
        leaving.sort_unstable();
        prop_assert_eq!(left, leaving);
        let counted: u64 = house.fwps.iter().map(|fwp| fwp.moved().dropped_by_graph.value()).sum();
        prop_assert_eq!(counted, dropped);
        prop_assert!(house.gateway.lent() <= 128 + house.gateway.kept_max);
    }
}
