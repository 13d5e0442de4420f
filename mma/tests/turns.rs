//! Tenants have turns at the MMA: how much one of them sends delays the frames of another by a bounded number of bytes.

mod support;

use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT};
use pinion_mma::accounts::copying::CopyShare;
use pinion_mma::id::{FwpId, PortIndex, TenantIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::wiring::{Backpressure, Edge, Wiring};
use support::{Guest, House, Plan, Shape, id};

/// Large slots, of which all but one are the guest's own.
const LARGE: Shape = Shape { slot_count: 257, slot_size: 32 * 1024, ring_entries: 512 };
const OWN: u32 = 256;
/// Bytes of each large frame.
const LONG: u16 = 30_000;
/// The most bytes that a poll copies: its budget, and one frame beyond.
const POLL_BYTES: u64 = 256 * 1024 + LONG as u64;
/// What a tenant of weight 1 gets in a turn, and one frame beyond.
const TURN_BYTES: u64 = 16 * 1024 + LONG as u64;

const MALLORY: CopyShare = CopyShare { tenant: TenantIndex(7), weight: 1 };
const ALICE: CopyShare = CopyShare { tenant: TenantIndex(8), weight: 1 };

fn plan() -> Plan {
    Plan { fwps_max: 64, buffers: 256, ..Plan::default() }
}

/// Attaches an FWP of another tenant, which does nothing: polls are shorter beside it.
fn attach_bystander(house: &mut House) {
    house.share = CopyShare { tenant: TenantIndex(9), weight: 1 };
    house.attach(id(62), Shape::slots(8), Edge::Egress(PortIndex(1)));
}

/// Attaches two stages of a tenant, of which the second drops what it gets, and lets the first one begin.
fn attach_pair(house: &mut House, first: u32, share: CopyShare) -> [usize; 2] {
    house.share = share;
    let begin = |house: &mut House, index: u32, own_slots: u32, next: Edge| {
        let (fwp, endpoint) = house.make_of(id(index), Guest::owning(LARGE, own_slots), Wiring::to(next));
        house.command(MmaCommand::Attach(endpoint));
        house.gateway.inject(b"begin", 0, id(index));
        house.mma.poll();
        house.fwps[fwp].pass_all(PORT_DROP);
        house.mma.poll();
        fwp
    };
    let second = begin(house, first + 1, 0, Edge::EgressWhereItCame);
    [begin(house, first, OWN, Edge::Fwp(id(first + 1))), second]
}

/// Sends so many large frames, each from a slot of the guest's own.
fn send_large(house: &mut House, fwp: usize, count: u32) {
    for slot in 1..=count as u16 {
        house.fwps[fwp].guest.send(Descriptor { slot, offset: 0, len: LONG, port: PORT_NEXT, ..Descriptor::default() });
    }
    // Slots that were never sent before are collected in several turns.
    let mut collected = 0;
    while collected < count {
        collected += house.fwps[fwp].collect().unwrap();
    }
}

/// Polls once; returns the bytes that were copied.
fn copied_by_a_poll(house: &mut House) -> u64 {
    let before = house.copied_bytes();
    house.mma.poll();
    let copied = house.copied_bytes() - before;
    // The second stages drop what they got, so that there is always room.
    house.fwps.iter_mut().filter(|fwp| fwp.id.index % 2 == 1).for_each(|fwp| _ = fwp.pass_all(PORT_DROP));
    copied
}

fn sent(house: &House, fwp: usize) -> u64 {
    house.fwps[fwp].moved().sent.value()
}

#[test]
fn a_poll_copies_a_bounded_number_of_bytes_whatever_was_sent() {
    let mut house = House::new(&plan());
    let pairs: Vec<_> = (0..8).map(|pair| attach_pair(&mut house, pair * 2, MALLORY)).collect();
    attach_bystander(&mut house);
    pairs.iter().for_each(|[first, _]| send_large(&mut house, *first, OWN));
    let mut polls = 0;
    while house.mma.has_work() {
        let bytes = copied_by_a_poll(&mut house);
        assert!(bytes <= POLL_BYTES, "{bytes} bytes in a poll");
        polls += 1;
    }
    let moved: u64 = pairs.iter().map(|[first, _]| sent(&house, *first)).sum();
    let refused: u64 = pairs.iter().map(|[_, second]| house.fwps[*second].moved().dropped_no_slot.value()).sum();
    assert_eq!(moved + refused, 8 * u64::from(OWN));
    assert!(polls > 2, "{polls}");
}

#[test]
fn a_tenant_that_is_the_only_one_has_four_times_as_much_of_a_poll() {
    let mut house = House::new(&plan());
    let [first, _] = attach_pair(&mut house, 0, MALLORY);
    send_large(&mut house, first, OWN);
    let alone = copied_by_a_poll(&mut house);
    attach_bystander(&mut house);
    let beside_another = copied_by_a_poll(&mut house);
    assert!(alone > POLL_BYTES && alone <= 4 * POLL_BYTES, "{alone} bytes in a poll");
    assert!(beside_another <= POLL_BYTES, "{beside_another} bytes in a poll");
}

#[test]
fn a_frame_of_one_tenant_waits_for_a_poll_and_a_turn_of_another_at_most() {
    let mut house = House::new(&plan());
    let pairs: Vec<_> = (0..8).map(|pair| attach_pair(&mut house, pair * 2, MALLORY)).collect();
    house.share = ALICE;
    let alice = house.attach(id(40), Shape::slots(8), Edge::Egress(PortIndex(1)));
    house.gateway.lend_empties(64);
    for round in 0..16 {
        pairs.iter().for_each(|[first, _]| {
            if round == 0 {
                send_large(&mut house, *first, OWN)
            }
        });
        house.gateway.inject(b"ping", 0, id(40));
        house.mma.poll();
        assert_eq!(house.fwps[alice].pass_all(PORT_NEXT), 1);
        let before = house.copied_bytes();
        let polls = (1..=3).find(|_| {
            copied_by_a_poll(&mut house);
            house.gateway.discard() > 0
        });
        let bytes = house.copied_bytes() - before;
        assert!(polls <= Some(2) && bytes <= POLL_BYTES + TURN_BYTES, "{polls:?} polls and {bytes} bytes");
        assert!(house.mma.has_work(), "the other tenant has more to send");
    }
}

#[test]
fn tenants_that_always_send_share_the_copying_by_weight() {
    let mut house = House::new(&plan());
    let shares = [MALLORY, MALLORY, CopyShare { weight: 3, ..ALICE }];
    let pairs: Vec<_> = (0..).zip(shares).map(|(pair, share)| attach_pair(&mut house, pair * 2, share)).collect();
    pairs.iter().for_each(|[first, _]| send_large(&mut house, *first, OWN));
    for _ in 0..2_000 {
        copied_by_a_poll(&mut house);
        pairs.iter().for_each(|[first, _]| send_again(&mut house, *first));
    }
    let [one, other, heavy] = [0, 1, 2].map(|pair| sent(&house, pairs[pair][0]) as f64);
    let ratio = heavy / (one + other);
    assert!((ratio - 3.0).abs() < 0.1, "{one} and {other} to {heavy}");
}

#[test]
fn another_weight_of_a_tenant_holds_for_the_fwps_that_it_has() {
    let mut house = House::new(&plan());
    let pairs: Vec<_> =
        (0..).zip([MALLORY, ALICE]).map(|(pair, share)| attach_pair(&mut house, pair * 2, share)).collect();
    pairs.iter().for_each(|[first, _]| send_large(&mut house, *first, OWN));
    let sent_in_polls = |house: &mut House| {
        let before = [0, 1].map(|pair| sent(house, pairs[pair][0]));
        for _ in 0..2_000 {
            copied_by_a_poll(house);
            pairs.iter().for_each(|[first, _]| send_again(house, *first));
        }
        let [one, other] = [0, 1].map(|pair: usize| (sent(house, pairs[pair][0]) - before[pair]) as f64);
        other / one
    };
    let ratio = sent_in_polls(&mut house);
    assert!((ratio - 1.0).abs() < 0.1, "{ratio}");
    for weight in [3, 1] {
        house.command(MmaCommand::SetShare(CopyShare { weight, ..ALICE }));
        let ratio = sent_in_polls(&mut house);
        assert!((ratio - f64::from(weight)).abs() < 0.1, "{ratio}");
    }
}

/// Sends all large frames whose slots have come back.
fn send_again(house: &mut House, fwp: usize) {
    let received = house.fwps[fwp].publish_all();
    for returned in received {
        house.fwps[fwp].guest.send(Descriptor { offset: 0, len: LONG, port: PORT_NEXT, ..returned });
    }
    house.fwps[fwp].collect().expect("correct descriptors");
}

#[test]
fn copying_is_timed_for_its_sender_and_not_for_others() {
    let mut house = House::new(&plan());
    let [first, second] = attach_pair(&mut house, 0, MALLORY);
    send_large(&mut house, first, OWN);
    house.settle();
    let [of_first, of_second] = [first, second].map(|fwp| house.fwps[fwp].moved().copying_ns.value());
    assert!(of_first > 0 && of_second == 0, "{of_first} and {of_second} ns");
    assert_eq!(house.fwps[first].mailbox.copying_due_ns(), of_first);
    assert_eq!(house.fwps[first].mailbox.copying_due_ns(), 0, "it is charged once");
}

#[test]
fn an_fwp_that_is_detached_with_much_to_send_is_moved_in_its_tenants_turns() {
    let mut house = House::new(&plan());
    let [first, second] = attach_pair(&mut house, 0, MALLORY);
    attach_bystander(&mut house);
    send_large(&mut house, first, OWN);
    house.command(MmaCommand::Detach(id(0)));
    let mut polls = 0;
    let endpoint = loop {
        assert!(copied_by_a_poll(&mut house) <= POLL_BYTES);
        polls += 1;
        if let Some(endpoint) = house.detached() {
            break endpoint;
        }
    };
    assert!(polls > 10, "{polls}");
    assert_eq!(endpoint.id(), FwpId { index: 0, generation: 0 });
    let refused = house.fwps[second].moved().dropped_no_slot.value();
    assert_eq!(sent(&house, first) + refused, u64::from(OWN));
    assert_eq!(house.fwps[first].moved().dropped_instance_ended.value(), 0);
}

#[test]
fn outputs_that_wait_for_room_are_moved_within_the_same_budget() {
    let mut house = House::new(&plan());
    house.share = MALLORY;
    let hold = Backpressure::Hold { frames_max: 8 };
    let [first, second] = [0, 1].map(|index| {
        let next = if index == 0 { Edge::Fwp(id(1)) } else { Edge::EgressWhereItCame };
        let shape = Shape { slot_count: 129, ..LARGE };
        let (fwp, endpoint) = house.make_of(id(index), Guest::owning(shape, 64), Wiring::new(vec![next], hold));
        house.command(MmaCommand::Attach(endpoint));
        fwp
    });
    attach_bystander(&mut house);
    house.mma.poll();
    house.receive(b"begin", 0);
    house.fwps[first].pass_all(PORT_DROP);
    house.mma.poll();
    for round in 0..4 {
        for slot in 65..129 {
            let sent = Descriptor { slot, offset: 0, len: LONG, port: PORT_NEXT, ..Descriptor::default() };
            house.fwps[first].guest.send(sent);
        }
        let turns = [(); 8].map(|()| house.fwps[first].collect().unwrap());
        assert_eq!(turns.iter().sum::<u32>(), 64, "round {round}");
        // The second stage takes nothing until all of its slots are taken.
        while house.mma.has_work() {
            let before = house.copied_bytes();
            house.mma.poll();
            assert!(house.copied_bytes() - before <= POLL_BYTES);
        }
        house.fwps[second].pass_all(PORT_DROP);
        while house.mma.has_work() {
            let before = house.copied_bytes();
            house.mma.poll();
            assert!(house.copied_bytes() - before <= POLL_BYTES);
        }
        house.fwps[second].pass_all(PORT_DROP);
        house.settle();
        house.fwps[first].publish_all();
    }
    assert_eq!(sent(&house, first), 4 * 64);
}

/// Lets as many frames wait before an FWP as it has slots, and the FWP drop what is in these; returns in how many polls
/// the frames that wait get the slots.
fn polls_until_frames_that_wait_are_copied(slots: u32, frame: &[u8]) -> usize {
    let shape = Shape { slot_count: slots, slot_size: 2048, ring_entries: 512 };
    let mut house = House::new(&Plan { buffers: 2048, ..plan() });
    let hold = Backpressure::Hold { frames_max: slots as usize };
    let fwp = house.attach_wired(id(0), shape, Wiring::new(vec![Edge::EgressWhereItCame], hold));
    attach_bystander(&mut house);
    for _ in 0..2 * slots {
        house.gateway.inject(frame, 0, id(0));
        house.mma.poll();
    }
    assert_eq!(house.fwps[fwp].moved().received.value(), u64::from(slots));
    assert_eq!(house.fwps[fwp].pass_all(PORT_DROP), slots as usize);
    let mut polls = 0;
    while house.mma.has_work() {
        assert!(copied_by_a_poll(&mut house) <= POLL_BYTES);
        polls += 1;
    }
    assert_eq!(house.fwps[fwp].moved().received.value(), 2 * u64::from(slots));
    polls
}

#[test]
fn frames_that_wait_before_an_fwp_are_copied_within_the_budget_when_it_frees_its_slots() {
    assert_eq!(polls_until_frames_that_wait_are_copied(400, &[7; 1_500]), 3);
}

#[test]
fn short_frames_that_wait_before_an_fwp_cost_no_more_than_their_bytes_and_the_moving() {
    assert_eq!(polls_until_frames_that_wait_are_copied(400, &[7; 64]), 1);
}

/// Attaches an FWP for each share, whose 16 frames each wait for a buffer to leave in.
fn waiting_for_buffers(shares: &[CopyShare]) -> (House, Vec<usize>) {
    let mut house = House::new(&Plan { buffers: 64, ..plan() });
    let hold = Backpressure::Hold { frames_max: 4 };
    let attach = |(index, share): (u32, &CopyShare)| {
        house.share = *share;
        house.attach_wired(id(index), Shape::slots(16), Wiring::new(vec![Edge::Egress(PortIndex(0))], hold))
    };
    let fwps: Vec<_> = (0..).zip(shares).map(attach).collect();
    for _ in 0..16 {
        for fwp in &fwps {
            house.gateway.inject(b"frame", 0, id(*fwp as u32));
            house.mma.poll();
            house.gateway.take_spent();
        }
    }
    fwps.iter().for_each(|fwp| assert_eq!(house.fwps[*fwp].pass_all(PORT_NEXT), 16));
    // What leaves now does so in buffers that the MMA had kept.
    house.settle();
    house.gateway.discard();
    (house, fwps)
}

/// Lends two buffers at a time, so many times. Returns how many frames of each FWP left in them.
fn lend_twos(house: &mut House, fwps: &[usize], times: u64) -> Vec<u64> {
    let before: Vec<_> = fwps.iter().map(|fwp| sent(house, *fwp)).collect();
    for _ in 0..times {
        house.gateway.lend_empties(2);
        house.settle();
        house.gateway.discard();
    }
    let since: Vec<_> = fwps.iter().zip(before).map(|(fwp, before)| sent(house, *fwp) - before).collect();
    assert_eq!(since.iter().sum::<u64>(), 2 * times);
    since
}

#[test]
fn fwps_that_wait_for_buffers_have_them_in_turn() {
    let (mut house, fwps) = waiting_for_buffers(&[MALLORY, MALLORY]);
    assert_eq!(lend_twos(&mut house, &fwps, 4), [4, 4]);
}

#[test]
fn tenants_have_turns_at_buffers_however_many_of_their_fwps_wait_and_by_weight() {
    let mut shares = vec![MALLORY; 8];
    shares.push(ALICE);
    let (mut house, fwps) = waiting_for_buffers(&shares);
    assert_eq!(lend_twos(&mut house, &fwps, 12)[8], 12);
    shares[8] = CopyShare { weight: 3, ..ALICE };
    let (mut house, fwps) = waiting_for_buffers(&shares);
    assert_eq!(lend_twos(&mut house, &fwps, 8)[8], 12);
}

#[test]
fn an_fwp_that_ends_while_it_waits_for_a_buffer_leaves_the_others_their_turns() {
    let (mut house, fwps) = waiting_for_buffers(&[MALLORY, ALICE, MALLORY, ALICE]);
    house.command(MmaCommand::Detach(id(1)));
    house.mma.poll();
    assert!(house.detached().is_some());
    let sent = lend_twos(&mut house, &fwps, 8);
    assert_eq!((sent[0] + sent[2], sent[1], sent[3]), (8, 0, 8));
}

#[test]
fn an_fwp_that_never_waits_takes_no_buffer_that_another_waits_for() {
    let mut house = House::new(&Plan { buffers: 64, ..plan() });
    house.share = ALICE;
    let hold = Backpressure::Hold { frames_max: 4 };
    let waits = house.attach_wired(id(0), Shape::slots(16), Wiring::new(vec![Edge::Egress(PortIndex(0))], hold));
    house.share = MALLORY;
    let drops = house.attach(id(1), Shape::slots(16), Edge::Egress(PortIndex(1)));
    for _ in 0..16 {
        house.gateway.inject(b"frame", 0, id(0));
        house.mma.poll();
    }
    house.gateway.take_spent();
    assert_eq!(house.fwps[waits].pass_all(PORT_NEXT), 16);
    house.settle();
    house.gateway.discard();
    let before = sent(&house, waits);
    for _ in 0..4 {
        house.gateway.lend_empties(2);
        // Each frame that comes brings a buffer, too.
        house.gateway.inject(b"frame", 0, id(1));
        house.mma.poll();
        house.fwps[drops].pass_all(PORT_NEXT);
        house.settle();
        house.gateway.discard();
    }
    assert!(sent(&house, waits) >= before + 8, "{} of the 16 frames left", sent(&house, waits));
}

/// Attaches an FWP of a tenant, with small slots of its own, whose output leaves by a port.
fn attach_sender(house: &mut House, index: u32, share: CopyShare) -> usize {
    const SMALL: Shape = Shape { slot_count: 65, slot_size: 2048, ring_entries: 128 };
    house.share = share;
    let wiring = Wiring::to(Edge::Egress(PortIndex(1)));
    let (fwp, endpoint) = house.make_of(id(index), Guest::owning(SMALL, 64), wiring);
    house.command(MmaCommand::Attach(endpoint));
    house.gateway.inject(b"begin", 0, id(index));
    house.mma.poll();
    house.fwps[fwp].pass_all(PORT_DROP);
    house.mma.poll();
    fwp
}

fn send_small(house: &mut House, fwp: usize, count: u16) {
    for slot in 1..=count {
        house.fwps[fwp].guest.send(Descriptor { slot, offset: 0, len: 64, port: PORT_NEXT, ..Descriptor::default() });
    }
    assert_eq!(house.fwps[fwp].collect(), Ok(u32::from(count)));
}

#[test]
fn a_tenant_that_sends_into_all_buffers_it_can_get_leaves_some_to_others() {
    let mut house = House::new(&plan());
    let mallory = attach_sender(&mut house, 0, MALLORY);
    let alice = attach_sender(&mut house, 1, ALICE);
    house.gateway.lend_empties(36);
    send_small(&mut house, mallory, 64);
    house.mma.poll();
    let moved = |house: &House, fwp: usize| {
        let moved = house.fwps[fwp].moved();
        (moved.sent.value(), moved.dropped_egress.value())
    };
    let (sent, dropped) = moved(&house, mallory);
    assert!(sent > 20 && sent + dropped == 64, "{sent} sent, and {dropped} dropped");
    // The gateway has taken none of them meanwhile.
    send_small(&mut house, alice, 4);
    house.mma.poll();
    assert_eq!(moved(&house, alice), (4, 0));
    let leaving = |house: &House| [MALLORY, ALICE].map(|share| house.mma.counters().leaving.of(share.tenant));
    assert_eq!(leaving(&house), [sent as u32, 4]);
    // When it has, and lends as many as before, the other one has its part again.
    let left = house.gateway.discard();
    assert_eq!(leaving(&house), [0, 0]);
    assert_eq!(left as u64, sent + 4);
    house.gateway.lend_empties(left);
    let received = house.fwps[mallory].publish_all();
    for returned in received {
        house.fwps[mallory].guest.send(Descriptor { offset: 0, len: 64, port: PORT_NEXT, ..returned });
    }
    house.fwps[mallory].collect().expect("correct descriptors");
    house.mma.poll();
    assert!(moved(&house, mallory).0 >= 2 * sent - 8, "{:?}", moved(&house, mallory));
}
