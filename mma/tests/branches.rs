//! FWPs with several outputs, and nodes with several MMAs: each frame goes to the output that its descriptor names, and
//! to no other.

mod support;

use pinion_abi::{Descriptor, OUTPUTS_MAX, PORT_DROP, PORT_NEXT, PORT_REPLY};
use pinion_mma::guest::mailbox::Violation;
use pinion_mma::id::{FwpId, MmaIndex, PortIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::notify::ReadyQueue;
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::wiring::{Backpressure, Edge, Wiring};
use support::{House, Left, Plan, Shape, frame, id};

/// Makes stage 0 with these outputs, and stages 1 to `stages` behind it that send out on ports 101, 102 and so on.
fn branching(outputs: Vec<Edge>, stages: u32, backpressure: Backpressure) -> House {
    let mut house = House::new(&Plan::default());
    house.attach_wired(id(0), Shape::slots(32), Wiring::new(outputs, backpressure));
    for stage in 1..=stages {
        let out = vec![Edge::Egress(PortIndex(100 + stage as u16))];
        house.attach_wired(id(stage), Shape::slots(8), Wiring::new(out, backpressure));
    }
    house.mma.poll();
    house
}

/// Makes stage 0 receive a frame per entry of `ports`, on port 3, and send each by its entry; polls.
fn send_by(house: &mut House, ports: &[u16]) {
    for number in 0..ports.len() as u32 {
        house.gateway.inject(&frame(number, 64), 3, id(0));
    }
    house.mma.poll();
    house.gateway.collect();
    let received = house.fwps[0].publish_all();
    assert_eq!(received.len(), ports.len());
    for (&descriptor, &port) in received.iter().zip(ports) {
        house.fwps[0].guest.pass(descriptor, port);
    }
    assert_eq!(house.collect_and_move(0), Ok(ports.len() as u32));
}

fn seen_by(house: &mut House, fwp: usize) -> Vec<Vec<u8>> {
    let received = house.fwps[fwp].publish_all();
    received.iter().map(|descriptor| house.fwps[fwp].guest.frame(descriptor)).collect()
}

fn frames(numbers: &[u32]) -> Vec<Vec<u8>> {
    numbers.iter().map(|&number| frame(number, 64)).collect()
}

#[test]
fn each_frame_goes_by_the_output_that_its_descriptor_names_and_in_order_there() {
    for backpressure in [Backpressure::Drop, Backpressure::Hold { frames_max: 4 }] {
        let outputs = vec![Edge::Fwp(id(1)), Edge::Fwp(id(2)), Edge::Egress(PortIndex(9)), Edge::EgressWhereItCame];
        let mut house = branching(outputs, 2, backpressure);
        house.gateway.lend_empties(16);
        // Runs of all lengths, and changes of the output.
        send_by(&mut house, &[0, 0, 1, 2, 1, 1, 3, 0, PORT_REPLY, PORT_DROP, 2, 2, 0]);
        assert_eq!(seen_by(&mut house, 1), frames(&[0, 1, 7, 12]));
        assert_eq!(seen_by(&mut house, 2), frames(&[2, 4, 5]));
        let expected = [(9, 3), (3, 6), (3, 8), (9, 10), (9, 11)];
        let expected = expected.map(|(port, number)| Left { port, bytes: frame(number, 64) });
        assert_eq!(house.gateway.collect(), expected);
        assert_eq!(house.fwps[0].moved().sent.value(), 12);
    }
}

#[test]
fn two_outputs_may_lead_to_the_same_stage() {
    let mut house = branching(vec![Edge::Fwp(id(1)), Edge::Fwp(id(1))], 1, Backpressure::Drop);
    send_by(&mut house, &[1, 0, 0, 1]);
    assert_eq!(seen_by(&mut house, 1), frames(&[0, 1, 2, 3]));
}

#[test]
fn branches_that_join_again_leave_in_the_order_in_which_they_were_taken() {
    let mut house = House::new(&Plan::default());
    let shape = Shape::slots(8);
    house.attach_wired(id(0), shape, Wiring::new(vec![Edge::Fwp(id(1)), Edge::Fwp(id(2))], Backpressure::Drop));
    house.attach(id(1), shape, Edge::Fwp(id(3)));
    house.attach(id(2), shape, Edge::Fwp(id(3)));
    house.attach(id(3), shape, Edge::EgressWhereItCame);
    house.mma.poll();
    send_by(&mut house, &[0, 1, 0, 1]);
    for stage in [2, 1] {
        assert_eq!(house.fwps[stage].pass_all(PORT_NEXT), 2);
        house.mma.poll();
    }
    assert_eq!(seen_by(&mut house, 3), frames(&[1, 3, 0, 2]));
}

#[test]
fn a_stage_may_have_the_most_outputs_there_are_and_each_leads_somewhere_else() {
    let outputs = (0..OUTPUTS_MAX).map(|port| Edge::Egress(PortIndex(200 + port))).collect();
    let mut house = branching(outputs, 0, Backpressure::Drop);
    house.gateway.lend_empties(16);
    let ports: Vec<u16> = (0..OUTPUTS_MAX).rev().collect();
    send_by(&mut house, &ports);
    let left: Vec<u16> = house.gateway.collect().iter().map(|left| left.port).collect();
    assert_eq!(left, ports.iter().map(|port| 200 + port).collect::<Vec<_>>());
}

#[test]
fn an_output_that_the_chain_does_not_have_is_a_violation_and_nothing_behind_it_moves() {
    for outputs in 1..=OUTPUTS_MAX {
        let beyond = [outputs, outputs + 1, OUTPUTS_MAX, 255, 256, 256 + outputs - 1, 0x7fff, 0xfffd];
        for unknown in beyond.into_iter().filter(|&port| port >= outputs) {
            let edges = (0..outputs).map(|port| Edge::Egress(PortIndex(port))).collect();
            let mut house = branching(edges, 0, Backpressure::Drop);
            for number in 0..3 {
                house.receive(&frame(number, 64), 0);
            }
            let received = house.fwps[0].publish_all();
            for (&descriptor, port) in received.iter().zip([outputs - 1, unknown, 0]) {
                house.fwps[0].guest.pass(descriptor, port);
            }
            let copied = house.copied_bytes();
            assert_eq!(house.collect_and_move(0), Err(Violation::UnknownOutput(unknown)), "{outputs} outputs");
            assert_eq!(house.gateway.collect(), [Left { port: outputs - 1, bytes: frame(0, 64) }]);
            assert_eq!(house.copied_bytes() - copied, 64);
            // The refused descriptor did not take the slot from the guest.
            assert_eq!(house.fwps[0].moved().sent.value(), 1);
        }
    }
}

#[test]
fn an_fwp_without_an_output_or_with_too_many_is_not_wired() {
    let wire = |count: usize| {
        std::panic::catch_unwind(|| Wiring::new(vec![Edge::EgressWhereItCame; count], Backpressure::Drop)).is_ok()
    };
    assert_eq!([0, 1, usize::from(OUTPUTS_MAX), usize::from(OUTPUTS_MAX) + 1].map(wire), [false, true, true, false]);
}

#[test]
fn a_branch_that_has_ended_or_is_full_drops_its_own_frames_only() {
    let outputs = vec![Edge::Fwp(id(1)), Edge::Fwp(id(2)), Edge::Fwp(id(3))];
    let mut house = branching(outputs, 3, Backpressure::Drop);
    house.command(MmaCommand::Detach(id(2)));
    for number in 0..8 {
        house.gateway.inject(&frame(number, 64), 0, id(3));
    }
    house.mma.poll();
    house.gateway.collect();
    send_by(&mut house, &[0, 1, 2, 2, 1, 0]);
    assert_eq!(seen_by(&mut house, 1), frames(&[0, 5]));
    assert_eq!(house.fwps[0].moved().dropped_instance_ended.value(), 2);
    assert_eq!(house.fwps[3].moved().dropped_no_slot.value(), 2);
    house.assert_all_slots_free(0, Shape::slots(32));
}

#[test]
fn the_port_of_a_frame_is_known_on_every_branch() {
    let mut house = House::new(&Plan::default());
    let shape = Shape::slots(4);
    house.attach_wired(id(0), shape, Wiring::new(vec![Edge::Fwp(id(1)), Edge::Fwp(id(2))], Backpressure::Drop));
    house.attach(id(1), shape, Edge::EgressWhereItCame);
    house.attach(id(2), shape, Edge::EgressWhereItCame);
    for port in [5, 6] {
        house.receive(&frame(u32::from(port), 64), port);
    }
    for (descriptor, output) in house.fwps[0].publish_all().into_iter().zip([1, 0]) {
        house.fwps[0].guest.send(Descriptor { port: output, ..descriptor });
    }
    assert_eq!(house.collect_and_move(0), Ok(2));
    for stage in [1, 2] {
        assert_eq!(house.fwps[stage].pass_all(PORT_NEXT), 1);
        house.mma.poll();
    }
    let left: Vec<u16> = house.gateway.collect().iter().map(|left| left.port).collect();
    assert_eq!(left, [6, 5]);
}

#[test]
fn two_mmas_move_the_packets_of_their_own_chains_and_notify_the_same_worker() {
    const CHAINS: u32 = 6;
    let plan = Plan::default();
    let mut worker = ReadyQueue::new(plan.fwps_max, Doorbell::default());
    let mut houses = [(); 2].map(|()| House::with_worker(&plan, worker.notifier()));
    let chain = |number: u32| {
        // Both stages have indices of the same MMA.
        let first = number / 2 * 4 + number % 2;
        [id(first), id(first + 2)]
    };
    for number in 0..CHAINS {
        let [first, second] = chain(number);
        assert_eq!((first.mma(2), second.mma(2)), (MmaIndex(number as usize % 2), first.mma(2)));
        let house = &mut houses[first.mma(2).0];
        house.attach(first, Shape::slots(4), Edge::Fwp(second));
        house.attach(second, Shape::slots(4), Edge::Egress(PortIndex(number as u16)));
        house.mma.poll();
    }
    for round in 0..20 {
        for number in 0..CHAINS {
            let [first, _] = chain(number);
            houses[first.mma(2).0].gateway.inject(&frame(number, 64), 0, first);
        }
        for stage in 0..2 {
            houses.iter_mut().for_each(|house| _ = house.mma.poll());
            let mut noticed: Vec<FwpId> = std::iter::from_fn(|| worker.pop()).collect();
            noticed.sort_unstable();
            let mut expected: Vec<FwpId> = (0..CHAINS).map(|number| chain(number)[stage]).collect();
            expected.sort_unstable();
            assert_eq!(noticed, expected, "round {round}");
            for id in noticed {
                let house = &mut houses[id.mma(2).0];
                let place = house.fwps.iter().position(|fwp| fwp.id == id).expect("it is with this MMA");
                assert_eq!(house.fwps[place].pass_all(PORT_NEXT), 1);
            }
        }
        for (mma, house) in houses.iter_mut().enumerate() {
            house.mma.poll();
            let numbers = (0..CHAINS).filter(|number| *number as usize % 2 == mma);
            let expected: Vec<Left> =
                numbers.map(|number| Left { port: number as u16, bytes: frame(number, 64) }).collect();
            assert_eq!(house.gateway.collect(), expected, "round {round}, MMA {mma}");
            assert_eq!(house.gateway.lent(), 0);
        }
    }
}
