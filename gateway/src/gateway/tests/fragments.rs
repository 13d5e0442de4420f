//! Fragments: those of a datagram go where its first one goes, in whatever order they come.

use super::*;

/// A fragment of a datagram of a client's; its identification is 0x1234.
fn piece(number: u8, flags_offset: [u8; 2], payload: &[u8]) -> Vec<u8> {
    to_station(&ipv4_fragment(client(number), SERVER, UDP, flags_offset, payload))
}

/// The three fragments of a datagram of a client's, to port 7.
fn pieces(number: u8) -> [Vec<u8>; 3] {
    let datagram = udp(50, 7, &[0; 100]);
    [([0x20, 0], 0..32), ([0x20, 4], 32..64), ([0, 8], 64..108)].map(|(at, bytes)| piece(number, at, &datagram[bytes]))
}

/// A gateway with a chain for flows to port 7, and two instances.
fn rig() -> Rig {
    let mut rig = Rig::new(1);
    let to_port_7 = Match { protocol: Some(UDP), destination_ports: Some(7..=7), ..Match::default() };
    rig.set_rules(vec![Rule { matches: to_port_7, ..rule(Policy::PerFlow, 0) }]);
    (10..12).rev().for_each(|instance| rig.ready(0, instance));
    rig
}

#[test]
fn fragments_are_delivered_with_the_first_of_their_datagram() {
    let mut rig = rig();
    let mut frames = [pieces(1), pieces(2)].concat();
    frames.swap(2, 3);
    rig.send_and_poll(&frames);
    assert_eq!(rig.targets(), [10, 10, 11, 10, 11, 11]);
    // The next one waits for an instance.
    let [first, ..] = pieces(3);
    rig.send_and_poll(&[first]);
    assert_eq!((rig.targets(), rig.gateway.observer().frames_pending()), (vec![], 1));
    rig.assert_no_buffer_leaked();
}

#[test]
fn fragments_that_come_before_the_first_one_are_delivered_after_it_in_the_order_in_which_they_came() {
    // Within a burst, and in bursts of their own.
    for burst in [3, 1] {
        let mut rig = rig();
        let [first, middle, last] = pieces(1);
        let sent = [last.clone(), middle.clone(), first.clone()];
        for frames in sent.chunks(burst) {
            assert_eq!(rig.delivered(), []);
            rig.send_and_poll(frames);
        }
        let delivered: Vec<_> = rig.delivered().into_iter().map(|(target, _, frame)| (target.index, frame)).collect();
        assert_eq!(delivered, [(10, first), (10, last), (10, middle)]);
        assert_eq!((rig.gateway.observer().frames_pending(), rig.events().len()), (0, 1));
        rig.assert_no_buffer_leaked();
    }
}

#[test]
fn fragments_whose_first_one_does_not_come_within_a_second_are_dropped_and_counted() {
    let mut rig = rig();
    let [_, middle, last] = pieces(3);
    rig.send_and_poll(&[middle, last]);
    assert_eq!((rig.targets(), rig.gateway.observer().frames_pending()), (vec![], 2));
    rig.sweep(1_000_000_000);
    assert_eq!(rig.gateway.observer().frames_pending(), 0);
    assert_eq!(rig.drops(DropReason::FragmentWithoutFirst), 2);
    rig.assert_no_buffer_leaked();
}

#[test]
fn fragments_that_wait_when_the_gateway_ends_go_back_to_the_pool() {
    let mut rig = rig();
    rig.send_and_poll(&pieces(3)[1..]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn fragments_that_wait_for_their_first_one_fill_a_part_of_the_room_for_each_source_and_drop_the_rest() {
    let mut rig = Rig::with(1, Sizes { pending: 64, ..AMPLE });
    // Of each source 4 of 16.
    for source in 1..=5 {
        let frames: Vec<_> = (0..6).map(|number| piece(source, [0x20, 8 + 8 * number], &[0; 8])).collect();
        rig.send_and_poll(&frames);
        rig.now_ns += 1;
    }
    // The fifth that finds no room ends its datagram.
    let observer = rig.gateway.observer();
    assert_eq!(observer.frames_pending(), 0);
    assert_eq!((rig.drops(DropReason::FragmentsFull), rig.drops(DropReason::DatagramEnded)), (5, 25));
    rig.assert_no_buffer_leaked();
}

#[test]
fn an_overlap_is_counted_for_the_chain_of_its_datagram_too() {
    let mut rig = rig();
    let [first, middle, _] = pieces(1);
    rig.send_and_poll(&[first.clone(), middle.clone(), middle.clone(), first]);
    assert_eq!(rig.targets(), [10, 10]);
    assert_eq!(rig.chain_drops(0), [(DropReason::OverlappingFragment, 1)]);
    assert_eq!((rig.drops(DropReason::OverlappingFragment), rig.drops(DropReason::DatagramEnded)), (1, 1));
    rig.assert_no_buffer_leaked();
}

#[test]
fn no_fragment_overwrites_the_ports_that_its_datagram_was_classified_by() {
    let mut rig = Rig::new(1);
    let to_web = Match { protocol: Some(TCP), destination_ports: Some(80..=80), ..Match::default() };
    rig.set_rules(vec![Rule { matches: to_web, ..rule(Policy::Shared, 0) }]);
    rig.ready(0, 10);
    let (web, ssh) = (segment(5000, 80, SYN, &[0; 12]), segment(5000, 22, SYN, &[0; 12]));
    let v4 = |protocol, flags_offset, payload: &[u8]| {
        to_station(&ipv4_fragment(client(1), SERVER, protocol, flags_offset, payload))
    };
    let v6 = |next_header, offset_more: u16, payload: &[u8]| {
        let [high, low] = offset_more.to_be_bytes();
        let part = [&[next_header, 0, high, low, 0, 0, 0, 9], payload].concat();
        to_station(&ipv6("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 44, 64, &part))
    };
    for (number, offset) in (1_u8..).zip([8_u8, 16]) {
        rig.send_and_poll(&[
            v4(TCP, [0x20, 0], &web),
            v4(TCP, [0, offset / 8], &ssh[usize::from(offset)..]),
            v4(TCP, [0, 4], &[7; 16]),
        ]);
        assert_eq!(rig.targets(), [10]);
        // Whatever protocol it claims to carry.
        for next_header in [TCP, UDP, 59, 44, 0, 60] {
            rig.send_and_poll(&[v6(TCP, 1, &web), v6(next_header, offset.into(), &ssh[usize::from(offset)..])]);
            assert_eq!(rig.targets(), [10]);
            // What has ended its datagrams is forgotten.
            rig.sweep(2_100_000_000);
        }
        assert_eq!(rig.drops(DropReason::OverlappingFragment), 7 * u64::from(number));
        assert_eq!(rig.drops(DropReason::DatagramEnded), u64::from(number));
    }
    rig.send_and_poll(&[v6(TCP, 1, &web), v6(59, 32, &[7; 16]), v4(TCP, [0x20, 0], &web), v4(TCP, [0, 4], &[7; 16])]);
    assert_eq!(rig.targets(), [10; 4]);
    rig.assert_no_buffer_leaked();
}
