//! Frames that no instance may get: malformed ones, and fragments that would overwrite what was checked.

use super::*;

#[test]
fn malformed_frames_are_counted_by_reason_and_change_nothing_else() {
    let mut rig = Rig::with_policy(Policy::PerFlow);
    rig.ready(0, 10);
    let mut wrong_sum = ping(1, 1);
    wrong_sum[14 + 10] ^= 1;
    let lldp = ethernet([0xff; 6], CLIENT, 0x88cc, &[0; 46]);
    let mut strangers = ping(1, 1);
    strangers[5] = 9;
    let bad = [
        (ping(1, 1)[..30].to_vec(), DropReason::Truncated),
        (vec![7; 5], DropReason::Truncated),
        (wrong_sum, DropReason::BadChecksum),
        (lldp, DropReason::UnknownEthertype),
        (strangers, DropReason::NotForUs),
        (arp_request((CLIENT, client(1)), client(2)), DropReason::NotForUs),
    ];
    for (frame, reason) in bad {
        let before = rig.gateway.observer().ports().map(|port| port.drops.iter().collect()).collect::<Vec<Vec<_>>>();
        rig.send_and_poll(&[frame]);
        let after: Vec<_> = rig.gateway.observer().ports().next().unwrap().drops.iter().collect();
        for ((name, before), (_, after)) in before[0].iter().zip(after) {
            assert_eq!(after - before, u64::from(*name == reason), "{name} after a {reason}");
        }
    }
    let observer = rig.gateway.observer();
    assert_eq!((observer.flows(), observer.instances_bound(), observer.frames_pending()), (0, 0, 0));
    assert_eq!((rig.targets(), rig.events()), (vec![], vec![]));
    assert!(rig.peers[0].receive().is_none());
    rig.assert_no_buffer_leaked();
}

#[test]
fn fragments_are_delivered_with_the_first_of_their_datagram_and_without_it_dropped() {
    let mut rig = Rig::new(1);
    let to_port_7 = Match { protocol: Some(UDP), destination_ports: Some(7..=7), ..Match::default() };
    rig.set_rules(vec![Rule { matches: to_port_7, ..rule(Policy::PerFlow, 0) }]);
    (10..12).rev().for_each(|instance| rig.ready(0, instance));
    let datagram = udp(50, 7, &[0; 100]);
    let piece = |number, flags_offset, payload: &[u8]| {
        to_station(&ipv4_fragment(client(number), SERVER, UDP, flags_offset, payload))
    };
    let (first, middle, last) = ([0x20, 0], [0x20, 4], [0, 8]);
    let pieces = |number| {
        [(first, 0..32), (middle, 32..64), (last, 64..108)].map(|(at, bytes)| piece(number, at, &datagram[bytes]))
    };
    let mut frames = [pieces(1), pieces(2)].concat();
    frames.swap(2, 3);
    rig.send_and_poll(&frames);
    assert_eq!(rig.targets(), [10, 10, 11, 10, 11, 11]);
    let [first, middle, last] = pieces(3);
    rig.send_and_poll(&[middle, last]);
    assert_eq!((rig.targets(), rig.drops(DropReason::FragmentWithoutFirst)), (vec![], 2));
    rig.send_and_poll(&[first]);
    assert_eq!((rig.targets(), rig.gateway.observer().frames_pending()), (vec![], 1));
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
        }
        assert_eq!(rig.drops(DropReason::OverlappingFragment), 7 * u64::from(number));
        assert_eq!(rig.drops(DropReason::FragmentWithoutFirst), u64::from(number));
    }
    rig.send_and_poll(&[v6(TCP, 1, &web), v6(59, 32, &[7; 16]), v4(TCP, [0x20, 0], &web), v4(TCP, [0, 4], &[7; 16])]);
    assert_eq!(rig.targets(), [10; 4]);
    rig.assert_no_buffer_leaked();
}
