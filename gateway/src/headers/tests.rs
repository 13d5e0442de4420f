//! Tests of [`super`]: each header and each way to be malformed, then arbitrary bytes.

use super::*;
use crate::test_frames::{self as frames, IPV4, IPV6, *};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ICMP: u8 = 1;
const UNTAGGED: Ingress = Ingress { port: PortIndex(3), vlan: Vlan::UNTAGGED };

const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

fn read(frame: &[u8]) -> Result<Headers, DropReason> {
    let read = parse(frame, PortIndex(3), EthernetAddress(STATION));
    if let Some(flow) = plain::read(frame, PortIndex(3), EthernetAddress(STATION)) {
        assert_eq!(read, Ok(Headers::Flow(flow.key(), None)), "the short way leads elsewhere");
        assert_eq!(plain::PlainFlow::of(&flow.key()), Some(flow));
    }
    read
}

fn read_v4(packet: &[u8]) -> Result<Headers, DropReason> {
    read(&ethernet(STATION, CLIENT, IPV4, packet))
}

fn read_v6(packet: &[u8]) -> Result<Headers, DropReason> {
    read(&ethernet(STATION, CLIENT, IPV6, packet))
}

fn key(source: impl Into<IpAddr>, destination: impl Into<IpAddr>, protocol: u8, ports: (u16, u16)) -> FlowKey {
    let key = match (source.into(), destination.into()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => FlowKey::ipv4(source, destination, protocol, UNTAGGED),
        (IpAddr::V6(source), IpAddr::V6(destination)) => FlowKey::ipv6(source, destination, protocol, UNTAGGED),
        mixed => panic!("{mixed:?}"),
    };
    key.with_ports(ports.0, ports.1)
}

fn flow(source: impl Into<IpAddr>, destination: impl Into<IpAddr>, protocol: u8, ports: (u16, u16)) -> Headers {
    Headers::Flow(key(source, destination, protocol, ports), None)
}

/// A fragment of this part of its datagram, which others follow.
fn fragment(flow: FlowKey, identification: u32, bytes: std::ops::Range<u16>) -> Headers {
    let part = if bytes.start == 0 { Part::First } else { Part::Later };
    let extent = Extent { start: bytes.start, end: bytes.end, is_last: false };
    Headers::Fragment(Fragment { flow, identification, part, extent })
}

/// The last fragment of its datagram.
fn last(flow: FlowKey, identification: u32, bytes: std::ops::Range<u16>) -> Headers {
    let extent = Extent { start: bytes.start, end: bytes.end, is_last: true };
    Headers::Fragment(Fragment { flow, identification, part: Part::Later, extent })
}

fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ipv4(CLIENT_V4, SERVER_V4, protocol, payload)
}

fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    ipv6(CLIENT_V6, SERVER_V6, next, 64, payload)
}

/// An IPv4 packet with a changed header and a corrected checksum.
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
fn whole_udp_and_tcp_over_untagged_ipv4_is_read_the_short_way() {
    for packet in [v4(UDP, &udp(68, 67, b"x")), v4(UDP, &udp(68, 67, b"")), v4(TCP, &tcp(4000, 80, b""))] {
        assert!(plain::read(&to_station(&packet), PortIndex(3), EthernetAddress(STATION)).is_some());
    }
}

#[test]
fn protocols_without_ports_have_ports_of_zero() {
    assert_eq!(read_v4(&v4(47, &[])), Ok(flow(CLIENT_V4, SERVER_V4, 47, (0, 0))));
    assert_eq!(read_v6(&v6(47, &[])), Ok(flow(CLIENT_V6, SERVER_V6, 47, (0, 0))));
}

#[test]
fn messages_of_icmp_have_their_type_and_others_have_none() {
    let echo_v4 = key(CLIENT_V4, SERVER_V4, ICMP, (0, 0)).with_icmp_type(8);
    assert_eq!(read_v4(&v4(ICMP, &icmp_echo(1))), Ok(Headers::Flow(echo_v4, None)));
    let echo_v6 = key(CLIENT_V6, SERVER_V6, ICMPV6, (0, 0)).with_icmp_type(128);
    assert_eq!(read_v6(&v6(ICMPV6, &[128, 0, 0, 0, 0, 1, 0, 1])), Ok(Headers::Flow(echo_v6, None)));
    let reply = key(CLIENT_V4, SERVER_V4, ICMP, (0, 0)).with_icmp_type(0);
    assert_eq!(read_v4(&v4(ICMP, &[0; 8])), Ok(Headers::Flow(reply, None)));
    assert_eq!((reply.icmp_type(), echo_v6.icmp_type()), (Some(0), Some(128)));
    // The other IP version's ICMP is a protocol like any other.
    let (odd_v4, odd_v6) = (read_v4(&v4(ICMPV6, &[128; 8])), read_v6(&v6(ICMP, &[8; 8])));
    assert_eq!(odd_v4, Ok(flow(CLIENT_V4, SERVER_V4, ICMPV6, (0, 0))));
    assert_eq!(odd_v6, Ok(flow(CLIENT_V6, SERVER_V6, ICMP, (0, 0))));
    assert_eq!(read_v4(&v4(ICMP, &[])), Err(DropReason::Truncated));
    assert_eq!(read_v6(&v6(ICMPV6, &[])), Err(DropReason::Truncated));
}

#[test]
fn errors_and_redirects_are_told_from_other_messages_of_icmp() {
    let error = |flow: FlowKey, icmp_type| Ok(Headers::IcmpError(flow.with_icmp_type(icmp_type)));
    let (of_v4, of_v6) = (key(CLIENT_V4, SERVER_V4, ICMP, (0, 0)), key(CLIENT_V6, SERVER_V6, ICMPV6, (0, 0)));
    for icmp_type in 0..=255 {
        let (message, flow_v4, flow_v6) =
            ([icmp_type; 16], of_v4.with_icmp_type(icmp_type), of_v6.with_icmp_type(icmp_type));
        let (found_v4, found_v6) = (read_v4(&v4(ICMP, &message)), read_v6(&v6(ICMPV6, &message)));
        match icmp_type {
            3 | 4 | 11 | 12 => assert_eq!(found_v4, error(of_v4, icmp_type)),
            5 => assert_eq!(found_v4, Err(DropReason::Redirect)),
            _ => assert_eq!(found_v4, Ok(Headers::Flow(flow_v4, None))),
        }
        match icmp_type {
            1..=4 => assert_eq!(found_v6, error(of_v6, icmp_type)),
            133..=137 => assert_eq!(found_v6, Ok(Headers::NeighborDiscovery(Vlan::UNTAGGED))),
            _ => assert_eq!(found_v6, Ok(Headers::Flow(flow_v6, None))),
        }
    }
    assert_eq!(v4_fragment(ICMP, [0x20, 0], &[3; 16]), Err(DropReason::BadQuote), "in fragments");
    assert_eq!(v6_fragment(ICMPV6, 1, &[3; 16]), Err(DropReason::BadQuote), "in fragments");
    assert_eq!(v4_fragment(ICMP, [0x20, 0], &[5; 16]), Err(DropReason::Redirect));
}

#[test]
fn tunnels_and_encryption_are_the_protocol_of_the_outer_packet_alike_in_both_versions_of_ip() {
    // GRE, ESP, AH, IPv4 and IPv6 in IP, SCTP, VXLAN; mobility, HIP, Shim6; no next header; experiments.
    let inner = [&udp(68, 67, b"inner")[..], &[0; 20]].concat();
    for protocol in [47, 50, 51, 4, 41, 132, 135, 139, 140, 59, 253] {
        assert_eq!(read_v4(&v4(protocol, &inner)), Ok(flow(CLIENT_V4, SERVER_V4, protocol, (0, 0))), "{protocol}");
        assert_eq!(read_v6(&v6(protocol, &inner)), Ok(flow(CLIENT_V6, SERVER_V6, protocol, (0, 0))), "{protocol}");
        // Behind extension headers, which are skipped.
        for extension in [0, 43, 60] {
            let packet = v6(extension, &[&[protocol, 0, 4, 0, 0, 0, 0, 0], &inner[..]].concat());
            assert_eq!(read_v6(&packet), Ok(flow(CLIENT_V6, SERVER_V6, protocol, (0, 0))), "{protocol}");
        }
    }
    let vxlan = udp(50_000, 4789, &to_station(&v4(TCP, &tcp(1, 2, b""))));
    assert_eq!(read_v4(&v4(UDP, &vxlan)), Ok(flow(CLIENT_V4, SERVER_V4, UDP, (50_000, 4789))));
    assert_eq!(read_v6(&v6(UDP, &vxlan)), Ok(flow(CLIENT_V6, SERVER_V6, UDP, (50_000, 4789))));
    // The header of authentication hides what is behind it, also if that is UDP.
    let authenticated = [&[UDP, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1][..], &[7; 12], &udp(68, 67, b"")].concat();
    assert_eq!(read_v4(&v4(51, &authenticated)), Ok(flow(CLIENT_V4, SERVER_V4, 51, (0, 0))));
    assert_eq!(read_v6(&v6(51, &authenticated)), Ok(flow(CLIENT_V6, SERVER_V6, 51, (0, 0))));
}

#[test]
fn packets_whose_sender_prescribes_their_route_are_dropped() {
    for segments_left in [0, 1] {
        let routed = [&[UDP, 2, 0, segments_left, 0, 0, 0, 0][..], &[0xfd; 16], &udp(68, 67, b"")].concat();
        assert_eq!(read_v6(&v6(43, &routed)), Err(DropReason::SourceRoute));
    }
    let with_options = |options: [u8; 8]| {
        let mut packet = v4(UDP, &[&options[..], &udp(53, 54, b"")].concat());
        packet[0] = 0x47;
        packet[10..12].fill(0);
        let sum = checksum(&[&packet[..28]]);
        packet[10..12].copy_from_slice(&sum);
        read_v4(&packet)
    };
    for option in [131, 137] {
        assert_eq!(with_options([option, 7, 4, 10, 0, 0, 1, 0]), Err(DropReason::SourceRoute), "{option}");
        assert_eq!(with_options([1, option, 7, 4, 10, 0, 0, 1]), Err(DropReason::SourceRoute), "{option}");
        assert_eq!(with_options([148, 4, 0, 0, option, 3, 4, 0]), Err(DropReason::SourceRoute), "{option}");
        // Within another option, and behind the end of all options.
        assert!(with_options([7, 7, 4, option, 0, 0, 1, 0]).is_ok());
        assert!(with_options([1, 0, option, 3, 4, 0, 0, 0]).is_ok());
    }
    for malformed in
        [[7, 0, 0, 0, 0, 0, 0, 0], [7, 1, 0, 0, 0, 0, 0, 0], [7, 200, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 7]]
    {
        assert!(with_options(malformed).is_ok(), "{malformed:?}");
    }
}

#[test]
fn frames_to_the_station_and_to_groups_are_taken_and_others_are_not() {
    let packet = v4(UDP, &udp(1, 2, b""));
    let to = |station| read(&ethernet(station, CLIENT, IPV4, &packet));
    assert_eq!(to(STATION), Ok(flow(CLIENT_V4, SERVER_V4, UDP, (1, 2))));
    let in_group_frames = key(CLIENT_V4, SERVER_V4, UDP, (1, 2)).received_by(Receiver::Group);
    for group in [[0xff; 6], [0x01, 0, 0x5e, 0, 0, 1]] {
        assert_eq!(to(group), Ok(Headers::Flow(in_group_frames, None)));
    }
    assert_eq!(to([0x02, 0, 0, 0, 0, 0x02]), Err(DropReason::NotForUs));
    assert_eq!(read(&ethernet(STATION, [0xff; 6], IPV4, &packet)), Err(DropReason::BadSource));
}

#[test]
fn link_control_is_distinguished_from_flows() {
    assert_eq!(read(&arp_request((CLIENT, CLIENT_V4), SERVER_V4)), Ok(Headers::Arp(Vlan::UNTAGGED)));
    assert_eq!(read(&frames::solicitation(CLIENT_V6, SERVER_V6)), Ok(Headers::NeighborDiscovery(Vlan::UNTAGGED)));
    for message in 133..=137 {
        assert_eq!(read_v6(&v6(ICMPV6, &[message, 0, 0, 0])), Ok(Headers::NeighborDiscovery(Vlan::UNTAGGED)));
    }
}

#[test]
fn a_frame_in_a_vlan_is_a_flow_of_that_vlan() {
    let datagrams = [
        (to_station(&v4(UDP, &udp(68, 67, b"x"))), key(CLIENT_V4, SERVER_V4, UDP, (68, 67))),
        (to_station(&v6(UDP, &udp(68, 67, b"x"))), key(CLIENT_V6, SERVER_V6, UDP, (68, 67))),
    ];
    let vlan = |id, inner_id| Vlan { id, inner_id };
    for (frame, untagged) in datagrams {
        let known = |tags: &[(u16, u16)]| match read(&tagged(&frame, tags)) {
            Ok(Headers::Flow(flow, _)) => {
                assert_eq!(flow.five_tuple(), untagged.five_tuple());
                assert_eq!(flow == untagged, flow.ingress().vlan == Vlan::UNTAGGED);
                flow.ingress().vlan
            }
            other => panic!("{other:?}"),
        };
        for tag in [0x8100, 0x88a8] {
            assert_eq!(known(&[(tag, 100)]), vlan(100, 0));
            assert_eq!(known(&[(tag, 0xf000 | 4094)]), vlan(4094, 0), "priority and eligibility are no part of the id");
            assert_eq!(known(&[(tag, 100), (0x8100, 0xe000 | 20)]), vlan(100, 20));
            assert_eq!(known(&[(tag, 100), (0x8100, 0xe000)]), vlan(100, 0));
            assert_eq!(known(&[(tag, 0xe000)]), Vlan::UNTAGGED, "a priority is no VLAN");
            assert_eq!(known(&[(tag, 0xe000), (0x8100, 0)]), Vlan::UNTAGGED);
            assert_eq!(known(&[(tag, 0xe000), (0x8100, 20)]), vlan(0, 20), "an inner tag is no way into a VLAN");
        }
    }
}

#[test]
fn a_third_tag_and_unknown_types_are_dropped_with_and_without_tags() {
    let frame = to_station(&v4(UDP, &udp(1, 2, b"")));
    let tags = [(0x88a8, 1), (0x8100, 2), (0x8100, 3)];
    assert_eq!(read(&tagged(&frame, &tags)), Err(DropReason::TooManyTags));
    for ethertype in [0x88cc, 0x0026, 0x9100] {
        let frame = ethernet(STATION, CLIENT, ethertype, &v4(UDP, &udp(1, 2, b"")));
        for tags in [&[][..], &tags[..1], &tags[..2]] {
            assert_eq!(read(&tagged(&frame, tags)), Err(DropReason::UnknownEthertype));
        }
    }
}

#[test]
fn link_control_is_of_its_vlan_and_with_a_priority_tag_of_the_untagged_network() {
    let asked = [arp_request((CLIENT, CLIENT_V4), SERVER_V4), frames::solicitation(CLIENT_V6, SERVER_V6)];
    let kinds = [Headers::Arp as fn(Vlan) -> Headers, Headers::NeighborDiscovery];
    for (frame, kind) in asked.iter().zip(kinds) {
        let vlan = |id, inner_id| Ok(kind(Vlan { id, inner_id }));
        assert_eq!(read(frame), vlan(0, 0));
        assert_eq!(read(&tagged(frame, &[(0x8100, 0xe000)])), vlan(0, 0));
        assert_eq!(read(&tagged(frame, &[(0x8100, 100)])), vlan(100, 0));
        assert_eq!(read(&tagged(frame, &[(0x88a8, 100), (0x8100, 20)])), vlan(100, 20));
        assert_eq!(read(&tagged(frame, &[(0x8100, 0), (0x8100, 20)])), vlan(0, 20));
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
    // Too short for its own header, 0 as in a jumbogram, and longer than the packet.
    for len in [7, 0, 9] {
        short[5] = len;
        assert_eq!(read_v6(&v6(UDP, &short)), Err(DropReason::BadLength), "{len}");
        assert_eq!(read_v4(&v4(UDP, &short)), Err(DropReason::BadLength), "{len}");
    }
}

/// An IPv6 fragment of a datagram with identification 0x09080706.
fn v6_fragment(next: u8, offset_more: u16, payload: &[u8]) -> Result<Headers, DropReason> {
    let [high, low] = offset_more.to_be_bytes();
    read_v6(&v6(44, &[&[next, 0xaa, high, low, 9, 8, 7, 6], payload].concat()))
}

fn v4_fragment(protocol: u8, flags_offset: [u8; 2], payload: &[u8]) -> Result<Headers, DropReason> {
    read_v4(&ipv4_fragment(CLIENT_V4, SERVER_V4, protocol, flags_offset, payload))
}

#[test]
fn only_the_first_fragment_has_ports() {
    let datagram = udp(68, 67, &[0; 100]);
    let (whole, portless) = (key(CLIENT_V4, SERVER_V4, UDP, (68, 67)), key(CLIENT_V4, SERVER_V4, UDP, (0, 0)));
    let piece = |flags_offset, payload: &[u8]| v4_fragment(UDP, flags_offset, payload);
    assert_eq!(piece([0x20, 0], &datagram[..64]), Ok(fragment(whole, 0x1234, 0..64)));
    assert_eq!(piece([0x20, 8], &datagram[64..80]), Ok(fragment(portless, 0x1234, 64..80)));
    assert_eq!(piece([0x00, 10], &datagram[80..]), Ok(last(portless, 0x1234, 80..108)));
    let (whole, portless) = (key(CLIENT_V6, SERVER_V6, UDP, (68, 67)), key(CLIENT_V6, SERVER_V6, UDP, (0, 0)));
    let piece = |offset_more, payload: &[u8]| v6_fragment(UDP, offset_more, payload);
    assert_eq!(piece(1, &datagram[..64]), Ok(fragment(whole, 0x0908_0706, 0..64)));
    assert_eq!(piece(64 | 1, &datagram[64..80]), Ok(fragment(portless, 0x0908_0706, 64..80)));
    assert_eq!(piece(80, &datagram[80..]), Ok(last(portless, 0x0908_0706, 80..108)));
    assert_eq!(piece(0, &datagram), Ok(Headers::Flow(whole, None)));
    assert_eq!(piece(0, &datagram[..64]), Err(DropReason::BadLength), "whole, but for the datagram's length");
}

#[test]
fn a_first_fragment_without_the_headers_to_classify_it_by_is_dropped_as_tiny() {
    for (protocol, payload) in [(TCP, &segment(1, 2, SYN, b"")[..16]), (UDP, &[]), (TCP, &segment(1, 2, SYN, b"")[..8])]
    {
        let expected = if payload.is_empty() { DropReason::FragmentLength } else { DropReason::TinyFragment };
        assert_eq!(v4_fragment(protocol, [0x20, 0], payload), Err(expected));
        assert_eq!(v6_fragment(protocol, 1, payload), Err(expected));
    }
    // Its extension headers, too: the transport's is not there, or not even all of them are.
    assert_eq!(v6_fragment(60, 1, &[TCP, 0, 1, 4, 0, 0, 0, 0]), Err(DropReason::TinyFragment));
    assert_eq!(v6_fragment(60, 1, &[TCP, 1, 1, 4, 0, 0, 0, 0]), Err(DropReason::TinyFragment));
    assert!(v4_fragment(UDP, [0x20, 0], &udp(1, 2, b"")).is_ok());
}

#[test]
fn a_fragment_that_no_sender_makes_is_dropped_for_what_is_wrong_with_it() {
    for len in [0, 1, 7, 9, 63] {
        assert_eq!(v4_fragment(UDP, [0x20, 8], &vec![0; len]), Err(DropReason::FragmentLength), "{len}");
        assert_eq!(v6_fragment(UDP, 64 | 1, &vec![0; len]), Err(DropReason::FragmentLength), "{len}");
        assert_eq!(v4_fragment(UDP, [0, 8], &vec![0; len]).is_ok(), len > 0, "the last one, of {len}");
        assert_eq!(v6_fragment(UDP, 64, &vec![0; len]).is_ok(), len > 0, "the last one, of {len}");
    }
    // The longest packet has 65,535 bytes: 65,515 behind an IPv4 header, all of them behind an IPv6 header.
    let portless = key(CLIENT_V4, SERVER_V4, UDP, (0, 0));
    assert_eq!(v4_fragment(UDP, [0x1f, 0xfd], &[0; 3]), Ok(last(portless, 0x1234, 65_512..65_515)));
    assert_eq!(v4_fragment(UDP, [0x1f, 0xfd], &[0; 4]), Err(DropReason::FragmentTooFar));
    assert_eq!(v4_fragment(UDP, [0x1f, 0xff], &[0; 1000]), Err(DropReason::FragmentTooFar), "a ping of death");
    let portless = key(CLIENT_V6, SERVER_V6, UDP, (0, 0));
    assert_eq!(v6_fragment(UDP, 0xfff8, &[0; 7]), Ok(last(portless, 0x0908_0706, 65_528..65_535)));
    assert_eq!(v6_fragment(UDP, 0xfff8, &[0; 8]), Err(DropReason::FragmentTooFar));
    let behind_options = [&[44, 0, 1, 4, 0, 0, 0, 0, UDP, 0, 0xff, 0xf8, 0, 0, 0, 9][..], &[0; 1]].concat();
    assert_eq!(read_v6(&v6(0, &behind_options)), Err(DropReason::FragmentTooFar), "with its other headers");
}

#[test]
fn a_first_fragment_of_ipv6_has_the_headers_behind_the_fragment_header() {
    let tcp = segment(4000, 80, SYN, &[0; 12]);
    let part = read_v4(&ipv4_fragment(CLIENT_V4, SERVER_V4, TCP, [0x20, 0], &tcp));
    assert_eq!(part, Ok(fragment(key(CLIENT_V4, SERVER_V4, TCP, (4000, 80)), 0x1234, 0..32)));
    let expected = key(CLIENT_V6, SERVER_V6, TCP, (4000, 80));
    for options in [0, 8, 16, 64] {
        let mut header = vec![0; options];
        if options > 0 {
            (header[0], header[1]) = (TCP, (options / 8 - 1) as u8);
        }
        let next = if options > 0 { 60 } else { TCP };
        // Headers before the fragment header are not part of the datagram.
        let hop_by_hop = [44, 0, 1, 4, 0, 0, 0, 0];
        let piece = [next, 0, 0, 1, 0, 0, 0, 9];
        let packet = v6(0, &[&hop_by_hop[..], &piece, &header, &tcp].concat());
        assert_eq!(read_v6(&packet), Ok(fragment(expected, 9, 0..options as u16 + 32)));
    }
    let piece = [44, 0, 0, 1, 0, 0, 0, 9];
    let nested = [&piece[..], &[TCP, 0, 0, 1, 0, 0, 0, 7], &tcp].concat();
    assert_eq!(read_v6(&v6(44, &nested)), Err(DropReason::TooManyExtensions), "a fragment of a fragment");
}

#[test]
fn all_fragments_of_a_datagram_share_one_key_that_no_flow_has() {
    let name = |flow: FlowKey| flow.datagram(7);
    let v4 = key(CLIENT_V4, SERVER_V4, UDP, (0, 0));
    assert_eq!(name(v4.with_ports(68, 67)), name(v4));
    let icmp = key(CLIENT_V4, SERVER_V4, ICMP, (0, 0));
    assert_eq!(name(icmp.with_icmp_type(8)), name(icmp));
    assert_ne!(name(icmp), name(v4));
    assert_ne!(v4.datagram(7), v4.datagram(8));
    assert_ne!(v4.datagram(7), v4.with_ports(0, 7));
    // Fragments of an IPv6 packet may name different next headers.
    let v6 = |protocol| key(CLIENT_V6, SERVER_V6, protocol, (0, 0));
    assert_eq!(name(v6(UDP).with_ports(68, 67)), name(v6(60)));
    for flow in [v4.with_ports(68, 67), icmp.with_icmp_type(8), v6(UDP).with_ports(68, 67), v6(58).with_icmp_type(128)]
    {
        assert_eq!(name(flow).of_datagram(flow.beyond_datagram()), flow);
    }
}

#[test]
fn extension_headers_are_walked_and_no_more_than_eight() {
    let chained = |count: usize| {
        let mut payload = Vec::new();
        for place in 0..count {
            let next = if place + 1 == count { UDP } else { [43, 60][place % 2] };
            // As a routing header, one of type 4.
            payload.extend([next, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
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
    assert_eq!(changed(|ip| ip[4..6].fill(0)), Err(DropReason::Truncated), "a jumbogram has no place in a frame");
}

#[test]
fn flows_are_shown_as_an_operator_would_write_them() {
    let shown = |frame: &[u8]| match read(frame) {
        Ok(Headers::Flow(flow, _)) => flow.five_tuple().to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(shown(&to_station(&v4(TCP, &tcp(4000, 80, b"")))), "tcp 10.0.0.9:4000 -> 10.0.0.2:80");
    assert_eq!(shown(&to_station(&v6(UDP, &udp(1, 2, b"")))), "udp [fd00::9]:1 -> [fd00::2]:2");
    assert_eq!(shown(&to_station(&v4(ICMP, &icmp_echo(1)))), "icmp 10.0.0.9 -> 10.0.0.2");
}

#[test]
fn segments_that_begin_or_end_a_connection_are_recognised_and_never_take_the_short_way() {
    const PSH: u8 = 0x08;
    const ECE: u8 = 0x40;
    use TcpEvent::{Closes, Opens, Resets};
    let told = [
        (ACK, None),
        (ACK | PSH, None),
        (0, None),
        (SYN, Some(Opens)),
        (SYN | ECE, Some(Opens)),
        (SYN | ACK, None),
        (FIN, Some(Closes)),
        (FIN | ACK | PSH, Some(Closes)),
        (RST, Some(Resets)),
        (RST | ACK, Some(Resets)),
        // No compliant sender sends these.
        (SYN | FIN, Some(Opens)),
        (SYN | FIN | ACK, Some(Closes)),
        (SYN | FIN | RST | ACK, Some(Resets)),
    ];
    for (flags, milestone) in told {
        let segment = segment(4000, 80, flags, b"data");
        let frames = [to_station(&v4(TCP, &segment)), to_station(&v6(TCP, &segment))];
        let tagged = frames.each_ref().map(|frame| tagged(frame, &[(0x8100, 100)]));
        for frame in frames.iter().chain(&tagged) {
            let Ok(Headers::Flow(_, found)) = read(frame) else { panic!("{:?}", read(frame)) };
            assert_eq!(found, milestone, "flags {flags:#x}");
            assert_eq!(super::milestone(frame), milestone);
        }
        let plain = plain::read(&frames[0], PortIndex(3), EthernetAddress(STATION));
        assert_eq!(plain.is_some(), flags & (SYN | FIN | RST) == 0, "flags {flags:#x}");
    }
    let fragment = to_station(&ipv4_fragment(CLIENT_V4, SERVER_V4, TCP, [0x20, 0], &segment(4000, 80, FIN, b"data")));
    assert!(matches!(read(&fragment), Ok(Headers::Fragment(_))));
    assert_eq!(super::milestone(&fragment), None);
}

/// Valid frames of each kind, none with padding.
fn valid_frames() -> Vec<Vec<u8>> {
    let fragment = [UDP, 0, 0, 1, 0, 0, 0, 1];
    vec![
        to_station(&v4(UDP, &udp(68, 67, b"data"))),
        to_station(&v4(TCP, &tcp(4000, 80, b"data"))),
        to_station(&v4(ICMP, &icmp_echo(7))),
        to_station(&v6(ICMPV6, &[128, 0, 0, 0, 0, 1, 0, 1])),
        tagged(&to_station(&v4(UDP, &udp(68, 67, b"data"))), &[(0x8100, 100)]),
        tagged(&to_station(&v4(TCP, &tcp(4000, 80, b"data"))), &[(0x88a8, 100), (0x8100, 20)]),
        tagged(&to_station(&v6(UDP, &udp(68, 67, b"data"))), &[(0x8100, 100), (0x8100, 20)]),
        tagged(&arp_request((CLIENT, CLIENT_V4), SERVER_V4), &[(0x8100, 0)]),
        tagged(&frames::solicitation(CLIENT_V6, SERVER_V6), &[(0x8100, 0)]),
        to_station(&ipv4_fragment(CLIENT_V4, SERVER_V4, ICMP, [0x20, 0], &icmp_echo(7)[..16])),
        to_station(&ipv4_fragment(CLIENT_V4, SERVER_V4, UDP, [0x20, 8], &[0; 64])),
        to_station(&v6(UDP, &udp(68, 67, b"data"))),
        to_station(&v6(TCP, &tcp(4000, 80, b"data"))),
        to_station(&v6(44, &[&fragment[..], &udp(68, 67, b"8 bytes.")].concat())),
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
        // The contents of ARP are read only when it is answered.
        let len_min = if matches!(whole, Ok(Headers::Arp(_))) { payload_offset(&frame) } else { frame.len() };
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
        kind in any::<proptest::sample::Index>(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        reseal in any::<bool>(),
        len in any::<proptest::sample::Index>(),
    ) {
        let mut frame = kind.get(&valid_frames()).clone();
        for (place, value) in changes {
            let place = place.index(frame.len());
            frame[place] = value;
        }
        // Otherwise the checksum would reject most of the changes.
        if reseal && frame[12..14] == [0x08, 0x00] {
            reseal_ipv4(&mut frame[14..]);
        }
        let _ = read(&frame);
        let _ = read(&frame[..len.index(frame.len())]);
    }
}
