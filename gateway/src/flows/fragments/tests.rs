//! Tests of [`super`]: what passes, what waits and what ends a datagram.

use super::*;
use crate::headers::Extent;
use crate::port::BufferPool;
use crate::port::heap::HeapPool;
use pinion_mma::id::PortIndex;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

const INGRESS: Ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };
const BUFFERS: usize = 128;
const WAITING_MAX: usize = 16;
const MS: u64 = NS_PER_MS;

fn portless(client: u32, ingress: Ingress) -> FlowKey {
    FlowKey::ipv4(Ipv4Addr::from_bits(client), Ipv4Addr::LOCALHOST, 17, ingress)
}

fn flow(client: u32, port: u16) -> FlowKey {
    portless(client, INGRESS).with_ports(port, 53)
}

/// The first fragment of a datagram: 64 bytes.
fn first(client: u32, port: u16, identification: u32) -> Fragment {
    let extent = Extent { start: 0, end: 64, is_last: false };
    Fragment { flow: flow(client, port), identification, part: Part::First, extent }
}

/// A later fragment with these bytes.
fn piece(client: u32, identification: u32, start: u16, end: u16) -> Fragment {
    let extent = Extent { start, end, is_last: false };
    Fragment { flow: portless(client, INGRESS), identification, part: Part::Later, extent }
}

/// The last fragment of a datagram of 128 bytes: the second half.
fn last(client: u32, identification: u32) -> Fragment {
    let Fragment { flow, part, .. } = piece(client, identification, 0, 8);
    Fragment { flow, identification, part, extent: Extent { start: 64, end: 128, is_last: true } }
}

fn at(fragment: Fragment, ingress: Ingress) -> Fragment {
    let client = fragment.flow.source_bits() as u32;
    let flow = portless(client, ingress).with_ports(fragment.flow.source_port(), fragment.flow.destination_port());
    Fragment { flow, ..fragment }
}

/// What became of a fragment, or of several at once: of each frame, by its mark, the flow it went to, or why not.
type Outcome = Vec<(u32, Result<FlowKey, DropReason>)>;

struct Rig {
    fragments: Fragments,
    pool: HeapPool,
}

impl Rig {
    fn new(datagrams: usize) -> Self {
        Self::with_ports(1, datagrams)
    }

    fn with_ports(ports: usize, datagrams: usize) -> Self {
        Self { fragments: Fragments::of(ports, datagrams, WAITING_MAX), pool: HeapPool::new(BUFFERS, 2048) }
    }

    /// Takes a fragment, in a frame whose length is the mark.
    fn take(&mut self, mark: u32, fragment: &Fragment, now_ns: u64) -> Outcome {
        let mut buffers = Vec::new();
        assert_eq!(self.pool.take(&mut buffers, 1), 1, "a buffer was lost");
        let frame = Frame::new(buffers.pop().unwrap(), mark);
        let (mut outcome, mut done) = (Vec::new(), Vec::new());
        let passing = self.fragments.take(frame, fragment, now_ns, |Refused { frame, reason, .. }| {
            outcome.push((frame.len(), Err(reason)));
            done.push(frame);
        });
        if let Some(Passing { frame, flow, first_of }) = passing {
            let waited = || first_of.and_then(|datagram| self.fragments.next_waiting(datagram));
            for frame in std::iter::once(frame).chain(std::iter::from_fn(waited)) {
                outcome.push((frame.len(), Ok(flow)));
                done.push(frame);
            }
        }
        self.pool.give(&mut done.into_iter().map(Frame::into_buffer).collect());
        outcome
    }

    /// Takes a fragment that passes or is dropped at once.
    fn pass(&mut self, fragment: &Fragment, now_ns: u64) -> Result<FlowKey, DropReason> {
        match self.take(1, fragment, now_ns)[..] {
            [(1, result)] => result,
            ref other => panic!("{other:?}"),
        }
    }

    fn sweep(&mut self, now_ns: u64) -> Outcome {
        let (mut outcome, mut done) = (Vec::new(), Vec::new());
        self.fragments.sweep(now_ns, |Refused { frame, reason, .. }| {
            outcome.push((frame.len(), Err(reason)));
            done.push(frame.into_buffer());
        });
        self.pool.give(&mut done);
        outcome
    }

    fn datagrams(&self) -> u32 {
        self.fragments.ports.iter().map(|of_port| of_port.count).sum()
    }

    fn assert_no_buffer_leaked(mut self) {
        while let Some(frame) = self.fragments.pop_waiting() {
            self.pool.give(&mut vec![frame.into_buffer()]);
        }
        assert_eq!((self.fragments.waiting(), self.pool.available()), (0, BUFFERS));
    }
}

#[test]
fn later_fragments_follow_the_first_one_of_their_datagram_only() {
    let mut rig = Rig::new(64);
    let datagrams = [(1, 1000, 7), (1, 1001, 8), (2, 1002, 7)];
    for (client, port, identification) in datagrams {
        assert_eq!(rig.pass(&first(client, port, identification), 0), Ok(flow(client, port)));
    }
    for (client, port, identification) in datagrams {
        assert_eq!(rig.pass(&piece(client, identification, 64, 72), 1), Ok(flow(client, port)));
        assert_eq!(rig.pass(&piece(client, identification, 128, 136), 1), Ok(flow(client, port)), "with a gap");
    }
    assert_eq!(rig.take(1, &piece(2, 8, 64, 72), 1), [], "of another datagram");
    rig.assert_no_buffer_leaked();
}

#[test]
fn what_comes_by_another_port_or_vlan_with_the_same_source_and_identification_disturbs_no_datagram() {
    let elsewhere = [
        Ingress { vlan: Vlan { id: 5, inner_id: 0 }, ..INGRESS },
        Ingress { vlan: Vlan { id: 0, inner_id: 5 }, ..INGRESS },
        Ingress { port: PortIndex(1), ..INGRESS },
    ];
    let mut rig = Rig::with_ports(2, 64);
    for (number, ingress) in elsewhere.into_iter().enumerate() {
        let identification = number as u32;
        rig.pass(&first(1, 1000, identification), 0).unwrap();
        let forged = at(first(1, 666, identification), ingress);
        assert_eq!(rig.pass(&forged, 0), Ok(forged.flow));
        assert_eq!(rig.pass(&at(piece(1, identification, 64, 72), ingress), 0).unwrap().ingress(), ingress);
        assert_eq!(rig.pass(&forged, 0), Err(DropReason::OverlappingFragment));
        assert_eq!(rig.pass(&last(1, identification), 0), Ok(flow(1, 1000)), "{ingress:?}");
    }
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_second_first_fragment_ends_its_datagram_and_takes_over_nothing() {
    for port in [1000, 2000] {
        let mut rig = Rig::new(64);
        rig.pass(&first(1, 1000, 7), 0).unwrap();
        assert_eq!(rig.pass(&first(1, port, 7), 0), Err(DropReason::OverlappingFragment));
        for late in [first(1, port, 7), first(1, 1000, 7), last(1, 7), piece(1, 7, 256, 264)] {
            assert_eq!(rig.pass(&late, 1), Err(DropReason::DatagramEnded));
        }
        assert!(rig.pass(&first(1, 1000, 8), 1).is_ok(), "no other datagram");
        // Its end lasts no longer for what came since.
        let forgotten_ns = FRAGMENTS_IDLE_NS + MS;
        assert_eq!(rig.pass(&first(1, port, 7), forgotten_ns), Ok(flow(1, port)));
    }
}

#[test]
fn an_overlap_of_any_kind_ends_its_datagram() {
    // Of what came: 0 to 64, and 128 to 192.
    for (start, end) in
        [(0, 8), (56, 64), (56, 72), (56, 200), (120, 136), (128, 192), (136, 144), (184, 200), (64, 136)]
    {
        let mut rig = Rig::new(64);
        rig.pass(&first(1, 1000, 7), 0).unwrap();
        rig.pass(&piece(1, 7, 128, 192), 0).unwrap();
        assert_eq!(rig.pass(&piece(1, 7, start, end), 0), Err(DropReason::OverlappingFragment), "{start} to {end}");
        assert_eq!(rig.pass(&piece(1, 7, 64, 128), 0), Err(DropReason::DatagramEnded));
    }
    let mut rig = Rig::new(64);
    rig.pass(&first(1, 1000, 7), 0).unwrap();
    rig.pass(&piece(1, 7, 128, 192), 0).unwrap();
    assert_eq!(rig.pass(&last(1, 7), 0), Err(DropReason::FragmentEnd), "it ends before bytes that came");
    assert_eq!(rig.pass(&piece(1, 7, 64, 72), 0), Err(DropReason::DatagramEnded));
}

#[test]
fn a_first_fragment_that_overlaps_one_that_waits_ends_the_datagram_and_none_passes() {
    let mut rig = Rig::new(64);
    for (mark, start) in [(10, 64), (11, 16)] {
        assert_eq!(rig.take(mark, &piece(1, 7, start, start + 8), 0), []);
    }
    let ended = [(10, Err(DropReason::DatagramEnded)), (11, Err(DropReason::DatagramEnded))];
    assert_eq!(
        rig.take(12, &first(1, 1000, 7), 0),
        [&ended[..], &[(12, Err(DropReason::OverlappingFragment))]].concat()
    );
    assert_eq!(rig.pass(&first(1, 1000, 7), 0), Err(DropReason::DatagramEnded));
    rig.assert_no_buffer_leaked();
}

#[test]
fn fragments_that_come_before_the_first_one_wait_and_follow_it_in_order_of_arrival() {
    let mut rig = Rig::new(64);
    assert_eq!(rig.take(10, &last(1, 7), 0), []);
    assert_eq!(rig.take(20, &piece(2, 7, 64, 72), 0), []);
    assert_eq!(rig.take(21, &piece(2, 7, 128, 136), 0), []);
    assert_eq!(rig.take(22, &piece(2, 7, 72, 128), 0), []);
    assert_eq!(rig.fragments.waiting(), 4);
    let of_second = Ok(flow(2, 1002));
    let expected = [23, 20, 21, 22].map(|mark| (mark, of_second));
    assert_eq!(rig.take(23, &first(2, 1002, 7), MS), expected);
    assert_eq!(rig.pass(&piece(2, 7, 136, 144), MS), of_second);
    assert_eq!(rig.take(11, &first(1, 1001, 7), MS), [11, 10].map(|mark| (mark, Ok(flow(1, 1001)))));
    assert_eq!(rig.datagrams(), 1, "the first one is complete");
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_fragment_whose_first_one_does_not_come_in_time_is_dropped_with_all_others_of_its_datagram() {
    let mut rig = Rig::new(64);
    assert_eq!(rig.take(10, &piece(1, 7, 64, 72), 0), []);
    assert_eq!(rig.take(11, &piece(1, 7, 72, 80), 900 * MS), []);
    assert_eq!(rig.take(20, &piece(2, 7, 64, 72), 900 * MS), []);
    assert_eq!(rig.sweep(999 * MS), []);
    assert_eq!(rig.sweep(1000 * MS), [10, 11].map(|mark| (mark, Err(DropReason::FragmentWithoutFirst))));
    assert_eq!(rig.take(21, &first(2, 1000, 7), 1000 * MS).len(), 2);
    assert_eq!(rig.take(12, &first(1, 1000, 7), 1000 * MS), [(12, Ok(flow(1, 1000)))]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn one_source_gets_a_part_of_the_room_to_wait_in_and_all_together_no_more_than_there_is() {
    let mut rig = Rig::new(256);
    let part = WAITING_MAX / 4;
    let mut waited = Vec::new();
    for client in 0..6 {
        for identification in 0..6 {
            // Each of another datagram.
            match rig.take(1, &piece(client, identification, 64, 72), 0)[..] {
                [] => waited.push(client),
                [(1, Err(DropReason::FragmentsFull))] => {}
                ref other => panic!("{other:?}"),
            }
        }
    }
    let expected: Vec<u32> = (0..4).flat_map(|client| vec![client; part]).collect();
    assert_eq!((waited, rig.fragments.waiting()), (expected, WAITING_MAX));
    assert_eq!(rig.datagrams() as usize, WAITING_MAX, "what can't wait takes no place in the table");
    assert_eq!(rig.take(1, &first(0, 1000, 0), 0).len(), 2, "that makes room");
    assert_eq!(rig.take(1, &piece(0, 9, 64, 72), 0), []);
    rig.assert_no_buffer_leaked();
}

#[test]
fn one_port_of_several_leaves_half_of_the_room_to_wait_in_to_the_others() {
    let mut rig = Rig::with_ports(2, 256);
    let other = Ingress { port: PortIndex(1), ..INGRESS };
    let waits = |rig: &mut Rig, client, ingress| rig.take(1, &at(piece(client, 7, 64, 72), ingress), 0).is_empty();
    // Each from another source.
    assert_eq!((0..100).filter(|client| waits(&mut rig, *client, INGRESS)).count(), WAITING_MAX / 2);
    assert_eq!((0..100).filter(|client| waits(&mut rig, *client, other)).count(), WAITING_MAX / 2);
    rig.assert_no_buffer_leaked();
}

#[test]
fn what_has_waited_for_longer_than_reordering_takes_gives_way_to_others_of_its_port() {
    let mut rig = Rig::with_ports(2, 256);
    let other = Ingress { port: PortIndex(1), ..INGRESS };
    // All the room, in the names of four sources on one port and two on the other.
    let forged = (0..8).map(|number| (number, INGRESS)).chain((8..16).map(|number| (number, other)));
    for (number, ingress) in forged {
        assert_eq!(rig.take(number, &at(piece(number / 4, number, 64, 72), ingress), 0), []);
    }
    let overtaken = |rig: &mut Rig, mark, now| rig.take(mark, &piece(99, 1000 + mark, 64, 72), now);
    assert_eq!(overtaken(&mut rig, 20, 49 * MS), [(20, Err(DropReason::FragmentsFull))]);
    assert_eq!(overtaken(&mut rig, 21, 50 * MS), [(0, Err(DropReason::FragmentWithoutFirst))]);
    assert_eq!(rig.take(22, &first(99, 1000, 1021), 51 * MS).len(), 2, "it has met its first one");
    // The other port keeps its half.
    for mark in 23..60 {
        overtaken(&mut rig, mark, 200 * MS);
    }
    assert_eq!(rig.fragments.waiting(), WAITING_MAX);
    rig.assert_no_buffer_leaked();
}

#[test]
fn addresses_of_one_ipv6_network_are_one_source_and_long_frames_take_more_of_the_room() {
    let mut rig = Rig::new(256);
    let from = |host: u128, identification| {
        let source = Ipv6Addr::from_bits(0xfd00 << 112 | host);
        let flow = FlowKey::ipv6(source, Ipv6Addr::LOCALHOST, 44, INGRESS);
        Fragment { flow, ..piece(0, identification, 64, 72) }
    };
    let waits = |rig: &mut Rig, mark, host| rig.take(mark, &from(host, 1), 0).is_empty();
    // Of 4 frames of 1536 bytes: three of the longest that a buffer holds.
    assert_eq!([1, 2, 3, 4].map(|host| waits(&mut rig, 2048, host)), [true, true, true, false]);
    assert!(!waits(&mut rig, 60, 5));
    assert!(waits(&mut rig, 60, 1 << 64), "from another network");
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_datagram_that_finds_no_room_to_wait_in_ends_and_makes_room() {
    let mut rig = Rig::new(64);
    let part = WAITING_MAX as u16 / 4;
    for number in 0..part {
        assert_eq!(rig.take(1, &piece(1, 7, 64 + number * 8, 72 + number * 8), 0), []);
    }
    let mut outcome = rig.take(2, &last(1, 7), 0);
    assert_eq!(outcome.pop(), Some((2, Err(DropReason::OverlappingFragment))));
    assert_eq!(outcome, vec![(1, Err(DropReason::DatagramEnded)); part.into()]);
    for number in 0..part {
        assert_eq!(rig.take(1, &piece(1, 8, 64 + number * 8, 72 + number * 8), 0), []);
    }
    let mut outcome = rig.take(2, &piece(1, 8, 640, 648), 0);
    assert_eq!(outcome.pop(), Some((2, Err(DropReason::FragmentsFull))));
    assert_eq!(outcome, vec![(1, Err(DropReason::DatagramEnded)); part.into()]);
    assert_eq!((rig.pass(&first(1, 1000, 8), 0), rig.fragments.waiting()), (Err(DropReason::DatagramEnded), 0));
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_datagram_that_is_complete_is_forgotten_so_that_its_identification_can_be_used_again() {
    let mut rig = Rig::new(64);
    for port in [1000, 2000] {
        assert_eq!(rig.pass(&first(1, port, 7), 0), Ok(flow(1, port)));
        assert_eq!(rig.pass(&last(1, 7), 0), Ok(flow(1, port)));
        assert_eq!(rig.datagrams(), 0);
    }
}

#[test]
fn fragments_that_come_too_late_do_not_follow_the_first_one_swept_or_not() {
    for swept in [false, true] {
        let mut rig = Rig::new(64);
        rig.pass(&first(1, 1000, 7), 0).unwrap();
        assert!(rig.pass(&piece(1, 7, 64, 72), FRAGMENTS_IDLE_NS).is_ok());
        let late_ns = 2 * FRAGMENTS_IDLE_NS + MS;
        if swept {
            assert_eq!((rig.sweep(late_ns), rig.datagrams()), (vec![], 0));
        }
        assert_eq!(rig.take(1, &piece(1, 7, 72, 80), late_ns), [], "it waits for another first one");
        rig.assert_no_buffer_leaked();
    }
}

#[test]
fn a_flood_of_first_fragments_misdirects_none_and_evicts_none_that_was_just_seen() {
    let mut rig = Rig::new(64);
    let mut begun = Vec::new();
    for client in 0..10_000 {
        // Eight in each millisecond: the table holds what comes in eight.
        let now_ns = u64::from(client) * MS / 8;
        assert!(rig.pass(&first(client, client as u16, 7), now_ns).is_ok(), "{client}");
        begun.push(client);
        assert_eq!(rig.datagrams(), 64.min(begun.len() as u32));
    }
    // Faster than that, new ones find no place, and those in progress go on.
    let now_ns = 10_000 * MS / 8;
    for client in 20_000..20_008 {
        assert_eq!(rig.pass(&first(client, 1, 7), now_ns), Ok(flow(client, 1)));
    }
    assert_eq!(rig.pass(&first(20_008, 1, 7), now_ns), Err(DropReason::FragmentsFull));
    assert_eq!(rig.pass(&last(9_990, 7), now_ns), Ok(flow(9_990, 9_990)));
    assert_eq!(rig.pass(&first(20_008, 1, 7), now_ns), Ok(flow(20_008, 1)), "it has left its place");
}

#[test]
fn a_flood_by_one_port_evicts_no_datagram_of_another() {
    let mut rig = Rig::with_ports(3, 64);
    let other = Ingress { port: PortIndex(2), ..INGRESS };
    for client in 0..30 {
        rig.pass(&at(first(client, 1000, 7), other), 0).unwrap();
    }
    for client in 0..1000 {
        rig.pass(&first(client, 1, 7), u64::from(client) * MS).unwrap();
    }
    // Then the other port's take the places of the flood's, however young.
    for client in 30..32 {
        rig.pass(&at(first(client, 1000, 7), other), 1000 * MS).unwrap();
    }
    for client in 0..32 {
        assert!(rig.pass(&at(last(client, 7), other), 1000 * MS).is_ok(), "{client}");
    }
}

proptest! {
    /// Whatever comes in whatever order: no byte of a datagram passes twice, all that passes goes where one first fragment
    /// goes, and no buffer is lost.
    #[test]
    fn no_two_fragments_that_pass_have_a_byte_of_a_datagram_in_common(
        sent in prop::collection::vec((0_u32..2, 0_u32..2, 0_u16..10, 1_u16..4, any::<bool>(), 0_u16..2), 1..60),
    ) {
        let mut rig = Rig::new(64);
        let mut extents = Vec::new();
        let mut passed: Vec<(u32, FlowKey, Extent)> = Vec::new();
        for (mark, (client, identification, start, len, is_last, port)) in (0..).zip(sent) {
            let extent = Extent { start: start * 8, end: (start + len) * 8, is_last: is_last && start > 0 };
            let (part, flow) = match start {
                0 => (Part::First, flow(client, port)),
                _ => (Part::Later, portless(client, INGRESS)),
            };
            let fragment = Fragment { flow, identification, part, extent };
            extents.push((client * 2 + identification, extent));
            for (mark, result) in rig.take(mark, &fragment, u64::from(mark)) {
                let (datagram, extent) = extents[mark as usize];
                let Ok(flow) = result else { continue };
                let is_new = extent.start == 0;
                if is_new {
                    // Only a complete datagram leaves its identification to another.
                    let before = passed.iter().filter(|(of, ..)| *of == datagram).map(|(.., extent)| extent);
                    let len: u16 = before.clone().map(|extent| extent.end - extent.start).sum();
                    let end = before.filter(|extent| extent.is_last).map(|extent| extent.end).max();
                    prop_assert_eq!(len, end.unwrap_or(0));
                    passed.retain(|(of, ..)| *of != datagram);
                }
                for (of, other_flow, other) in &passed {
                    if *of == datagram {
                        prop_assert_eq!(flow, *other_flow);
                        prop_assert!(extent.end <= other.start || other.end <= extent.start);
                    }
                }
                prop_assert!(is_new || passed.iter().any(|(of, ..)| *of == datagram), "without a first one");
                passed.push((datagram, flow, extent));
            }
        }
        rig.assert_no_buffer_leaked();
    }
}
