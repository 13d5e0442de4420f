//! The buffers lent to the MMAs: each MMA has its own limit, a part of which is reserved for empty buffers and frames that leave.

use super::*;
use pinion_mma::link::Inbound;

fn to_leave(mut buffer: Buffer) -> Frame {
    buffer.bytes_mut(60).copy_from_slice(&frame_to_leave(0));
    Frame::new(buffer, 60)
}

#[test]
fn mma_is_kept_supplied_with_as_many_empty_buffers_as_configured_while_it_holds_no_more_than_its_link() {
    let mut rig = Rig::new(1);
    let mut lent = Vec::new();
    for _ in 0..4 {
        (0..5).for_each(|_| _ = rig.poll());
        let there = rig.empties_of(0);
        assert_eq!(there.len(), 64);
        lent.extend(there);
    }
    rig.poll();
    assert!(rig.mmas[0].empty.pop().is_none(), "more than the 256 of the link");
    for buffer in lent.drain(..10) {
        rig.mmas[0].outbound.push(leaving(to_leave(buffer))).unwrap();
    }
    rig.poll();
    lent.extend(rig.empties_of(0));
    assert_eq!(lent.len(), 256);
    rig.pool.give(&mut lent);
    rig.assert_no_buffer_leaked();
}

#[test]
fn frames_that_wait_in_mma_never_keep_others_from_leaving() {
    let mut rig = Rig::new(1);
    rig.set_rules(vec![rule(Policy::Shared, 0)]);
    rig.ready(0, 10);
    (0..10).for_each(|_| rig.send_and_poll(&vec![ping(1, 1); 32]));
    // All of the link's 256 except the part for empty buffers.
    let waiting: Vec<Inbound> = std::iter::from_fn(|| rig.mmas[0].inbound.pop()).collect();
    assert_eq!((waiting.len(), rig.drops(DropReason::MmaBusy)), (192, 320 - 192));
    for round in 1..=20 {
        let empties = rig.empties_of(0);
        assert_eq!(empties.len(), 64, "round {round}");
        for buffer in empties {
            rig.mmas[0].outbound.push(leaving(to_leave(buffer))).unwrap();
        }
        rig.send_and_poll(&vec![ping(1, 1); 32]);
        (0..2).for_each(|_| _ = rig.poll());
        assert_eq!(std::iter::from_fn(|| rig.peers[0].receive()).count(), 64, "round {round}");
        assert_eq!(rig.drops(DropReason::MmaBusy), 320 - 192 + 32 * round);
    }
    rig.pool.give(&mut waiting.into_iter().map(|inbound| inbound.frame.into_buffer()).collect());
    rig.assert_no_buffer_leaked();
}

#[test]
fn frames_that_leave_keep_none_from_coming_in_however_many_there_are() {
    let mut rig = Rig::new(1);
    rig.set_rules(vec![rule(Policy::Shared, 0)]);
    rig.ready(0, 10);
    (0..6).for_each(|_| rig.send_and_poll(&vec![ping(1, 1); 32]));
    // The MMA sends in all buffers that it can have: those of received frames, and empty ones.
    let received: Vec<Inbound> = std::iter::from_fn(|| rig.mmas[0].inbound.pop()).collect();
    let mut buffers: Vec<Buffer> = received.into_iter().map(|inbound| inbound.frame.into_buffer()).collect();
    buffers.extend(rig.empties_of(0));
    assert_eq!((buffers.len(), rig.drops(DropReason::MmaBusy)), (256, 0));
    for buffer in buffers {
        rig.mmas[0].outbound.push(leaving(to_leave(buffer))).unwrap();
    }
    // It takes the gateway some polls to transmit them.
    for round in 0..3 {
        rig.send_and_poll(&vec![ping(1, round); 16]);
        assert_eq!((rig.targets(), rig.empties_of(0).len()), (vec![10; 16], 0), "round {round}");
        assert_eq!(std::iter::from_fn(|| rig.peers[0].receive()).count(), 64, "round {round}");
    }
    assert_eq!(rig.drops(DropReason::MmaBusy), 0);
    rig.poll();
    let mut empties = rig.empties_of(0);
    assert_eq!(empties.len(), 64);
    rig.pool.give(&mut empties);
}

#[test]
fn frames_still_come_in_while_mma_keeps_buffers_and_nothing_leaves() {
    let mut rig = Rig::with(1, Sizes { link: 16, ..AMPLE });
    rig.set_rules(vec![rule(Policy::Shared, 0)]);
    rig.ready(0, 10);
    // An eighth of the link's buffers.
    rig.send_and_poll(&[ping(1, 1), ping(1, 2)]);
    let mut kept: Vec<Buffer> =
        std::iter::from_fn(|| rig.mmas[0].inbound.pop()).map(|inbound| inbound.frame.into_buffer()).collect();
    assert_eq!(kept.len(), 2);
    for round in 0..100 {
        rig.send_and_poll(&(0..6).map(|sequence| ping(1, sequence)).collect::<Vec<_>>());
        assert_eq!(rig.targets(), [10; 6], "round {round}");
    }
    assert_eq!(rig.drops(DropReason::MmaBusy), 0);
    rig.pool.give(&mut kept);
    rig.assert_no_buffer_leaked();
}

#[test]
fn each_frame_is_handed_to_the_mma_that_has_its_instance_and_each_mma_has_a_loan_of_its_own() {
    let mut rig = Rig::with(1, Sizes { mmas: 2, link: 16, ..AMPLE });
    rig.set_rules(vec![rule(Policy::PerClient, 0)]);
    (10..14).rev().for_each(|instance| rig.ready(0, instance));
    rig.send_and_poll(&(1..5).flat_map(|number| [ping(number, 1), ping(number, 2)]).collect::<Vec<_>>());
    let targets = |rig: &mut Rig, mma| -> Vec<u32> {
        rig.delivered_to(mma).into_iter().map(|(target, ..)| target.index).collect()
    };
    assert_eq!((targets(&mut rig, 0), targets(&mut rig, 1)), (vec![10, 10, 12, 12], vec![11, 11, 13, 13]));
    assert!([10, 11, 12, 13].map(|instance| entry(instance).mma(2).0) == [0, 1, 0, 1]);
    // The first MMA does not get to its frames; those of the second go on.
    rig.poll();
    rig.send_and_poll(&vec![ping(1, 3); 20]);
    assert_eq!(rig.drops(DropReason::MmaBusy), 12);
    for round in 0..10 {
        rig.send_and_poll(&vec![ping(2, round); 8]);
        assert_eq!(targets(&mut rig, 1), [11; 8], "round {round}");
    }
    assert_eq!(rig.drops(DropReason::MmaBusy), 12);
    assert_eq!(targets(&mut rig, 0), [10; 8]);
    // Frames that either MMA sends leave, and both are supplied again.
    for mma in [0, 1] {
        let empties = rig.empties_of(mma);
        assert_eq!(empties.len(), 8);
        for buffer in empties {
            rig.mmas[mma].outbound.push(leaving(to_leave(buffer))).unwrap();
        }
    }
    rig.poll();
    assert_eq!(std::iter::from_fn(|| rig.peers[0].receive()).count(), 16);
    for mma in [0, 1] {
        let mut empties = rig.empties_of(mma);
        assert_eq!(empties.len(), 8);
        rig.pool.give(&mut empties);
    }
    rig.assert_no_buffer_leaked();
}

#[test]
fn frames_are_dropped_and_counted_while_mma_holds_as_many_as_it_may() {
    let mut rig = Rig::with(1, Sizes { link: 16, ..AMPLE });
    rig.set_rules(vec![rule(Policy::Shared, 0)]);
    rig.ready(0, 10);
    rig.send_and_poll(&(0..20).map(|sequence| ping(1, sequence)).collect::<Vec<_>>());
    // Half of the link's buffers are reserved for empty ones.
    assert_eq!(rig.drops(DropReason::MmaBusy), 12);
    assert_eq!(rig.targets(), [10; 8]);
    // Their buffers are on their way back, so MMA may hold as many again.
    rig.send_and_poll(&(0..8).map(|sequence| ping(1, sequence)).collect::<Vec<_>>());
    assert_eq!((rig.targets(), rig.drops(DropReason::MmaBusy)), (vec![10; 8], 12));
    rig.assert_no_buffer_leaked();
}
