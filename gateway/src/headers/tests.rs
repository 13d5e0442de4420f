//! Tests of [`super`]: each header and each way to be malformed, then any bytes at all.

use super::*;
use crate::test_frames::{self as frames, *};
use proptest::prelude::*;
use std::net::Ipv4Addr;

const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

fn read(frame: &[u8]) -> Result<Headers, DropReason> {
    parse(frame, PortIndex(3), EthernetAddress(STATION))
}

fn read_v4(packet: &[u8]) -> Result<Headers, DropReason> {
    read(&ethernet(STATION, CLIENT, IPV4, packet))
}

fn read_v6(packet: &[u8]) -> Result<Headers, DropReason> {
    read(&ethernet(STATION, CLIENT, IPV6, packet))
}

fn flow(source: impl Into<IpAddr>, destination: impl Into<IpAddr>, protocol: u8, ports: (u16, u16)) -> Headers {
    Headers::Flow(FlowKey {
        source: source.into(),
        destination: destination.into(),
        protocol,
        source_port: ports.0,
        destination_port: ports.1,
        ingress: PortIndex(3),
    })
}

fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ipv4(CLIENT_V4, SERVER_V4, protocol, payload)
}

fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    ipv6(CLIENT_V6, SERVER_V6, next, 64, payload)
}

/// An IPv4 packet whose header was changed and whose checksum is right again.
fn changed_v4(payload: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut packet = v4(UDP, payload);
    change(&mut packet);
    reseal_ipv4(&mut packet);
    packet
}

#[test]
fn addresses_protocol_and_ports_are_read() {
    assert_eq!(read_v4(&v4(UDP, &udp(68, 67, b"x"))), Ok(flow(CLIENT_V4, SERVER_V4, UDP, (68, 67))));
    assert_eq!(read_v4(&v4(TCP, &tcp(4000, 80, b""))), Ok(flow(CLIENT_V4, SERVER_V4, TCP, (4000, 80))));
    assert_eq!(read_v6(&v6(UDP, &udp(68, 67, b"x"))), Ok(flow(CLIENT_V6, SERVER_V6, UDP, (68, 67))));
    assert_eq!(read_v6(&v6(TCP, &tcp(4000, 80, b""))), Ok(flow(CLIENT_V6, SERVER_V6, TCP, (4000, 80))));
}

#[test]
fn protocols_without_ports_have_ports_of_zero() {
    assert_eq!(read_v4(&v4(1, &icmp_echo(1))), Ok(flow(CLIENT_V4, SERVER_V4, 1, (0, 0))));
    assert_eq!(read_v6(&v6(ICMPV6, &[128, 0, 0, 0, 0, 1, 0, 1])), Ok(flow(CLIENT_V6, SERVER_V6, ICMPV6, (0, 0))));
    assert_eq!(read_v4(&v4(47, &[])), Ok(flow(CLIENT_V4, SERVER_V4, 47, (0, 0))));
}

#[test]
fn frames_to_the_station_and_to_groups_are_taken_and_others_are_not() {
    let packet = v4(UDP, &udp(1, 2, b""));
    let to = |station| read(&ethernet(station, CLIENT, IPV4, &packet));
    assert!(to(STATION).is_ok() && to([0xff; 6]).is_ok() && to([0x01, 0, 0x5e, 0, 0, 1]).is_ok());
    assert_eq!(to([0x02, 0, 0, 0, 0, 0x02]), Err(DropReason::NotForUs));
    assert_eq!(read(&ethernet(STATION, [0xff; 6], IPV4, &packet)), Err(DropReason::BadSource));
}

#[test]
fn link_control_is_told_from_flows() {
    assert_eq!(read(&arp_request((CLIENT, CLIENT_V4), SERVER_V4)), Ok(Headers::Arp));
    assert_eq!(read(&frames::solicitation(CLIENT_V6, SERVER_V6)), Ok(Headers::NeighborDiscovery));
    for message in 133..=137 {
        assert_eq!(read_v6(&v6(ICMPV6, &[message, 0, 0, 0])), Ok(Headers::NeighborDiscovery));
    }
}

#[test]
fn tags_and_unknown_types_are_told_apart() {
    for (ethertype, reason) in [
        (0x8100, DropReason::VlanTagged),
        (0x88a8, DropReason::VlanTagged),
        (0x88cc, DropReason::UnknownEthertype),
        (0x0026, DropReason::UnknownEthertype),
    ] {
        assert_eq!(read(&ethernet(STATION, CLIENT, ethertype, &v4(UDP, &udp(1, 2, b"")))), Err(reason));
    }
}

#[test]
fn a_wrong_ipv4_header_is_dropped_for_what_is_wrong_with_it() {
    let payload = udp(1, 2, b"data");
    let mut wrong_sum = v4(UDP, &payload);
    wrong_sum[8] -= 1;
    assert_eq!(read_v4(&wrong_sum), Err(DropReason::BadChecksum));
    assert_eq!(read_v4(&changed_v4(&payload, |ip| ip[0] = 0x65)), Err(DropReason::BadVersion));
    assert_eq!(read_v4(&changed_v4(&payload, |ip| ip[0] = 0x44)), Err(DropReason::BadLength));
    assert_eq!(read_v4(&changed_v4(&payload, |ip| ip[0] = 0x4f)), Err(DropReason::BadLength));
    assert_eq!(read_v4(&changed_v4(&payload, |ip| ip[2..4].fill(0))), Err(DropReason::BadLength));
    assert_eq!(read_v4(&changed_v4(&payload, |ip| ip[3] += 1)), Err(DropReason::Truncated));
    assert_eq!(read_v4(&changed_v4(&payload, |ip| ip[12..16].fill(224))), Err(DropReason::BadSource));
    assert_eq!(read_v4(&changed_v4(&payload, |ip| ip[12..16].fill(255))), Err(DropReason::BadSource));
}

#[test]
fn padding_behind_a_packet_is_not_part_of_it() {
    let mut packet = v4(UDP, &udp(1, 2, b""));
    packet.resize(46, 0xee);
    assert_eq!(read_v4(&packet), Ok(flow(CLIENT_V4, SERVER_V4, UDP, (1, 2))));
    // The datagram's length must not reach into the padding.
    let mut datagram = udp(1, 2, b"");
    datagram[5] += 1;
    let mut packet = v4(UDP, &datagram);
    packet.resize(46, 0);
    assert_eq!(read_v4(&packet), Err(DropReason::BadLength));
}

#[test]
fn ipv4_options_are_skipped() {
    let mut packet = v4(UDP, &[1, 1, 1, 1, 0, 53, 0, 54, 0, 8, 0, 0]);
    packet[0] = 0x46;
    packet[10..12].fill(0);
    let sum = checksum(&[&packet[..24]]);
    packet[10..12].copy_from_slice(&sum);
    assert_eq!(read_v4(&packet), Ok(flow(CLIENT_V4, SERVER_V4, UDP, (53, 54))));
}

#[test]
fn a_wrong_transport_header_is_dropped_for_what_is_wrong_with_it() {
    assert_eq!(read_v4(&v4(TCP, &tcp(1, 2, b"")[..19])), Err(DropReason::Truncated));
    let mut long_header = tcp(1, 2, b"");
    long_header[12] = 0x60;
    assert_eq!(read_v4(&v4(TCP, &long_header)), Err(DropReason::BadLength));
    assert_eq!(read_v6(&v6(UDP, &udp(1, 2, b"")[..7])), Err(DropReason::Truncated));
    let mut short = udp(1, 2, b"");
    short[5] = 7;
    assert_eq!(read_v6(&v6(UDP, &short)), Err(DropReason::BadLength));
}

#[test]
fn only_the_first_fragment_has_ports() {
    let datagram = udp(68, 67, &[0; 100]);
    let piece =
        |flags_offset, payload: &[u8]| read_v4(&ipv4_fragment(CLIENT_V4, SERVER_V4, UDP, flags_offset, payload));
    assert_eq!(piece([0x20, 0], &datagram[..64]), Ok(flow(CLIENT_V4, SERVER_V4, UDP, (68, 67))));
    assert_eq!(piece([0x20, 8], &datagram[64..80]), Ok(flow(CLIENT_V4, SERVER_V4, UDP, (0, 0))));
    assert_eq!(piece([0x00, 10], &datagram[80..]), Ok(flow(CLIENT_V4, SERVER_V4, UDP, (0, 0))));
    let piece = |offset_more: [u8; 2], payload: &[u8]| {
        let header = [UDP, 0xaa, offset_more[0], offset_more[1], 0, 0, 0, 1];
        read_v6(&v6(44, &[&header, payload].concat()))
    };
    assert_eq!(piece([0, 1], &datagram[..64]), Ok(flow(CLIENT_V6, SERVER_V6, UDP, (68, 67))));
    assert_eq!(piece([0, 64 | 1], &datagram[64..80]), Ok(flow(CLIENT_V6, SERVER_V6, UDP, (0, 0))));
    assert_eq!(piece([0, 80], &datagram[80..]), Ok(flow(CLIENT_V6, SERVER_V6, UDP, (0, 0))));
    assert_eq!(piece([0, 0], &datagram), Ok(flow(CLIENT_V6, SERVER_V6, UDP, (68, 67))));
    assert_eq!(piece([0, 0], &datagram[..64]), Err(DropReason::BadLength), "whole, but for the datagram's length");
}

#[test]
fn extension_headers_are_walked_and_no_more_than_eight() {
    let chained = |count: usize| {
        let mut payload = Vec::new();
        for place in 0..count {
            let next = if place + 1 == count { UDP } else { [43, 60][place % 2] };
            payload.extend([next, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        payload.extend(udp(68, 67, b""));
        v6(if count == 0 { UDP } else { 0 }, &payload)
    };
    for count in 0..=EXTENSIONS_MAX {
        assert_eq!(read_v6(&chained(count)), Ok(flow(CLIENT_V6, SERVER_V6, UDP, (68, 67))), "{count}");
    }
    for count in [EXTENSIONS_MAX + 1, 20, 80] {
        assert_eq!(read_v6(&chained(count)), Err(DropReason::TooManyExtensions), "{count}");
    }
    assert_eq!(read_v6(&v6(0, &[UDP, 9, 0, 0, 0, 0, 0, 0])), Err(DropReason::Truncated));
    assert_eq!(read_v6(&v6(59, &[])), Ok(flow(CLIENT_V6, SERVER_V6, 59, (0, 0))));
}

#[test]
fn a_wrong_ipv6_header_is_dropped_for_what_is_wrong_with_it() {
    let packet = v6(UDP, &udp(1, 2, b""));
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut packet = packet.clone();
        change(&mut packet);
        read_v6(&packet)
    };
    assert_eq!(changed(|ip| ip[0] = 0x40), Err(DropReason::BadVersion));
    assert_eq!(changed(|ip| ip[5] += 1), Err(DropReason::Truncated));
    assert_eq!(changed(|ip| ip[8] = 0xff), Err(DropReason::BadSource));
}

#[test]
fn flows_are_shown_as_an_operator_would_write_them() {
    let shown = |frame: &[u8]| match read(frame) {
        Ok(Headers::Flow(flow)) => flow.five_tuple().to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(shown(&to_station(&v4(TCP, &tcp(4000, 80, b"")))), "tcp 10.0.0.9:4000 -> 10.0.0.2:80");
    assert_eq!(shown(&to_station(&v6(UDP, &udp(1, 2, b"")))), "udp [fd00::9]:1 -> [fd00::2]:2");
    assert_eq!(shown(&to_station(&v4(1, &icmp_echo(1)))), "icmp 10.0.0.9 -> 10.0.0.2");
}

/// Valid frames of each kind, none with padding.
fn valid_frames() -> Vec<Vec<u8>> {
    let fragment = [UDP, 0, 0, 1, 0, 0, 0, 1];
    vec![
        to_station(&v4(UDP, &udp(68, 67, b"data"))),
        to_station(&v4(TCP, &tcp(4000, 80, b"data"))),
        to_station(&v4(1, &icmp_echo(7))),
        to_station(&ipv4_fragment(CLIENT_V4, SERVER_V4, UDP, [0x20, 8], &[0; 64])),
        to_station(&v6(UDP, &udp(68, 67, b"data"))),
        to_station(&v6(TCP, &tcp(4000, 80, b"data"))),
        to_station(&v6(44, &[&fragment[..], &udp(68, 67, b"data")].concat())),
        to_station(&v6(0, &[&[60, 0, 0, 0, 0, 0, 0, 0, UDP, 0, 0, 0, 0, 0, 0, 0][..], &udp(68, 67, b"")].concat())),
        frames::solicitation(CLIENT_V6, SERVER_V6),
        arp_request((CLIENT, CLIENT_V4), SERVER_V4),
    ]
}

#[test]
fn every_truncation_of_a_valid_frame_is_dropped_as_truncated() {
    for frame in valid_frames() {
        let whole = read(&frame);
        assert!(whole.is_ok());
        // What ARP carries is read by who answers it.
        let len_min = if whole == Ok(Headers::Arp) { 14 } else { frame.len() };
        for len in 0..len_min {
            assert_eq!(read(&frame[..len]), Err(DropReason::Truncated), "{len} bytes of {frame:02x?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn no_bytes_at_all_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
        let _ = read_v4(&bytes);
        let _ = read_v6(&bytes);
    }

    #[test]
    fn no_change_to_a_valid_frame_makes_the_parser_panic(
        kind in 0_usize..10,
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        reseal in any::<bool>(),
        len in any::<proptest::sample::Index>(),
    ) {
        let mut frame = valid_frames().swap_remove(kind);
        for (place, value) in changes {
            let place = place.index(frame.len());
            frame[place] = value;
        }
        // Else the checksum would stop most of what was changed.
        if reseal && frame[12..14] == [0x08, 0x00] {
            reseal_ipv4(&mut frame[14..]);
        }
        let _ = read(&frame);
        let _ = read(&frame[..len.index(frame.len())]);
    }
}
