//! Compares the headers read with those that smoltcp reads, and changed checksums with recomputed ones.

#![cfg(not(target_family = "wasm"))]

use pinion_sdk::headers::{
    Addresses, CannotRewrite, Fragment, Headers, ICMP, ICMPV6, NoReport, Offsets, Pair, TCP, UDP, Unreadable,
};
use pinion_sdk::testing::Frame;
use proptest::prelude::*;
use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};

/// The payload's kind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Tcp,
    Udp,
    /// An echo request; the source port is its identifier.
    Echo,
}

const KINDS: [Kind; 3] = [Kind::Tcp, Kind::Udp, Kind::Echo];

fn v4(source: u32, destination: u32) -> Addresses {
    Addresses::V4(Pair { source, destination })
}

fn v6(source: u128, destination: u128) -> Addresses {
    Addresses::V6(Pair { source, destination })
}

/// Makes a whole packet with correct checksums.
fn packet(kind: Kind, addresses: Addresses, source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (addresses.source(), addresses.destination());
    let frame = match kind {
        Kind::Tcp => Frame::tcp((from, source), (to, destination)),
        Kind::Udp => Frame::udp((from, source), (to, destination)),
        Kind::Echo => Frame::echo_request(from, to).echo(source, 1),
    };
    frame.payload(payload).bytes()
}

/// Makes a packet of any protocol.
fn other(protocol: u8, addresses: Addresses, payload: &[u8]) -> Frame {
    Frame::other(protocol, addresses.source(), addresses.destination()).payload(payload)
}

/// Makes a fragment of IPv4.
fn part_v4(protocol: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    other(protocol, v4(1, 2), payload).fragment(offset, more).bytes()
}

/// Makes a fragment of IPv6 with this next header in its own header.
fn part_v6(next_header: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    other(next_header, v6(1, 2), payload).id(0x1_0002).fragment(offset, more).bytes()
}

/// Makes a router's error about a packet with this beginning: destination unreachable.
fn quoting(packet: &[u8]) -> Vec<u8> {
    let error = if packet[0] >> 4 == 4 {
        let back_to: [u8; 4] = packet[12..16].try_into().unwrap();
        Frame::icmp("10.11.12.13", back_to, 3, 0, [0; 4])
    } else {
        let back_to: [u8; 16] = packet[8..24].try_into().unwrap();
        Frame::icmp("::abcd", back_to, 1, 0, [0; 4])
    };
    error.payload(packet).bytes()
}

/// Returns whether every checksum of the frame is correct, as smoltcp computes it.
fn checksums_are_right(frame: &[u8], headers: &Headers) -> bool {
    let at = headers.at;
    let transport = &frame[at.transport..at.end];
    let (source, destination) = (headers.addresses.source().into(), headers.addresses.destination().into());
    let ip_is_right = match headers.addresses {
        Addresses::V4(_) => Ipv4Packet::new_checked(&frame[at.network..]).unwrap().verify_checksum(),
        Addresses::V6(_) => true,
    };
    let transport_is_right = match (headers.protocol, source, destination) {
        (TCP, ..) => TcpPacket::new_checked(transport).unwrap().verify_checksum(&source, &destination),
        (UDP, ..) => UdpPacket::new_checked(transport).unwrap().verify_checksum(&source, &destination),
        (ICMP, ..) => Icmpv4Packet::new_checked(transport).unwrap().verify_checksum(),
        (_, smoltcp::wire::IpAddress::Ipv6(source), smoltcp::wire::IpAddress::Ipv6(destination)) => {
            Icmpv6Packet::new_checked(transport).unwrap().verify_checksum(&source, &destination)
        }
        _ => unreachable!("ICMPv6 goes over IPv6"),
    };
    ip_is_right && transport_is_right
}

#[test]
fn all_headers_are_read_with_their_offsets() {
    let frame = [packet(Kind::Tcp, v4(0x0a00_0001, 0x0a00_0002), 5000, 80, b"hello"), vec![0; 3]].concat();
    let headers = Headers::of(&frame).unwrap();
    assert_eq!(headers.addresses, v4(0x0a00_0001, 0x0a00_0002));
    assert_eq!((headers.protocol, headers.ports), (TCP, Some(Pair { source: 5000, destination: 80 })));
    assert!(headers.tcp_flags.unwrap().syn() && !headers.tcp_flags.unwrap().ack());
    assert_eq!(headers.at, Offsets { network: 14, transport: 34, payload: 54, end: 59 });
    assert_eq!((headers.icmp, headers.fragment, headers.vlan_tags), (None, None, 0));
}

#[test]
fn tags_and_extension_headers_shift_the_offsets() {
    let frame = Frame::udp("[::1]:5353", "[::2]:53").service_vlan(5).vlan(7).extension(0, &[1, 4]).bytes();
    let headers = Headers::of(&frame).unwrap();
    assert_eq!((headers.vlan_tags, headers.protocol), (2, UDP));
    assert_eq!(headers.ports, Some(Pair { source: 5353, destination: 53 }));
    assert_eq!(headers.at, Offsets { network: 22, transport: 70, payload: 78, end: 78 });
}

#[test]
fn fragments_share_an_identification_and_only_the_first_has_ports() {
    let first = Headers::of(&part_v4(UDP, 0, true, &[7; 16])).unwrap();
    assert_eq!(first.fragment, Some(Fragment { id: 1, offset: 0, more: true }));
    assert!(first.ports.is_some() && first.flow().is_some());
    let last = Headers::of(&part_v4(UDP, 16, false, &[7; 16])).unwrap();
    assert_eq!(last.fragment, Some(Fragment { id: 1, offset: 16, more: false }));
    assert_eq!((last.ports, last.flow()), (None, None));
    let of_v6 = Headers::of(&part_v6(UDP, 32, true, &[7; 16])).unwrap();
    assert_eq!(of_v6.fragment, Some(Fragment { id: 0x1_0002, offset: 32, more: true }));
    assert_eq!((of_v6.ports, of_v6.flow()), (None, None));
}

/// Protocols that a later fragment may state: TCP and others.
const NEXT_HEADERS: [u8; 8] = [TCP, UDP, ICMPV6, 59, 44, 0, 60, 255];

#[test]
fn no_later_fragment_of_ipv6_may_overlap_its_datagrams_headers() {
    for next_header in NEXT_HEADERS {
        for offset in (8..64).step_by(8) {
            for more in [false, true] {
                let frame = part_v6(next_header, offset, more, &[0; 16]);
                let read = Headers::of(&frame);
                if offset < 24 {
                    assert_eq!(read, Err(Unreadable::OverlappingFragment), "{next_header} at {offset}");
                } else {
                    assert_eq!((read.unwrap().ports, read.unwrap().flow()), (None, None), "{next_header} at {offset}");
                }
                let part = Headers::of_part(&frame).unwrap();
                assert_eq!(part.part(&frame), Some(offset.into()..usize::from(offset) + 16));
                assert_eq!(part.fragment.map(|it| (it.offset, it.more)), Some((offset, more)));
                assert_eq!((part.ports, part.flow()), (None, None));
            }
        }
    }
}

#[test]
fn the_judged_headers_of_a_first_ipv6_fragment_lie_before_any_later_one() {
    let tcp = [&[0, 7, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2][..], &[0; 14]].concat();
    let udp = [0, 7, 0, 80, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    // Destination options, announced by the fragment header.
    let options = |len: usize, next: u8| {
        let mut options = vec![0; len];
        options[..4].copy_from_slice(&[next, (len / 8 - 1) as u8, 1, (len - 4) as u8]);
        options
    };
    for (protocol, transport, options_max) in [(TCP, &tcp[..], 8), (UDP, &udp, 16), (47, &udp, 24)] {
        let plain = Headers::of(&part_v6(protocol, 0, true, transport)).unwrap();
        assert_eq!((plain.protocol, plain.ports.is_some()), (protocol, protocol != 47));
        for len in [8, 16, 24, 32] {
            let frame = part_v6(60, 0, true, &[&options(len, protocol), transport].concat());
            let (read, part) = (Headers::of(&frame), Headers::of_part(&frame).unwrap());
            assert_eq!((part.protocol, part.part(&frame)), (protocol, Some(0..len + transport.len())));
            if len <= options_max {
                assert_eq!(read, Ok(part))
            } else {
                assert_eq!(read, Err(Unreadable::TooManyHeaders))
            }
            // No fragment can overlap a whole datagram in one fragment.
            let whole = part_v6(60, 0, false, &[&options(len, protocol), transport].concat());
            assert_eq!(Headers::of(&whole).map(|it| (it.protocol, it.fragment)), Ok((protocol, None)));
        }
    }
    let twice = part_v6(44, 0, true, &[&[UDP, 0, 0, 1, 0, 0, 0, 9], &udp[..]].concat());
    assert_eq!(Headers::of(&twice), Err(Unreadable::TooManyHeaders));
}

#[test]
fn a_first_fragment_contains_the_type_of_its_icmp_message() {
    // An error behind destination options: a later fragment would bring it.
    let options = [ICMPV6, 0, 1, 4, 0, 0, 0, 0];
    for (message, is_read) in [(&[1, 0, 0, 0, 0, 0, 0, 0][..], true), (&[1, 0, 0, 0], false), (&[], false)] {
        let v6 = part_v6(60, 0, true, &[&options, message].concat());
        for frame in [v6, part_v4(ICMP, 0, true, message)] {
            let read = Headers::of_part(&frame);
            assert_eq!(read.map(|it| it.icmp.is_some()).ok(), is_read.then_some(true), "{read:?}");
            assert_eq!(Headers::of(&frame), read);
        }
        // In one piece nothing can follow, so the receiver judges it.
        let whole = other(ICMP, v4(1, 2), message).bytes();
        assert_eq!(Headers::of(&whole).map(|it| it.icmp.is_some()), Ok(is_read));
    }
}

#[test]
fn fragments_of_a_datagram_are_alike_without_ports() {
    let udp = [0, 7, 0, 80, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let of_first = Headers::of(&part_v6(UDP, 0, true, &udp)).unwrap().without_ports();
    for next_header in NEXT_HEADERS {
        assert_eq!(Headers::of(&part_v6(next_header, 32, false, &udp)).unwrap().without_ports(), of_first);
    }
    let of_v4 = |offset, more| Headers::of(&part_v4(UDP, offset, more, &udp)).unwrap();
    assert_eq!(of_v4(0, true).without_ports(), of_v4(16, false).without_ports());
    assert_eq!(of_v4(0, false).without_ports().protocol, UDP);
}

#[test]
fn contradictory_headers_are_refused() {
    let tcp = |offset: u8| {
        let mut frame = packet(Kind::Tcp, v4(1, 2), 1, 2, b"");
        frame[46] = offset << 4;
        Headers::of(&frame)
    };
    assert!(tcp(5).is_ok());
    assert_eq!(tcp(4), Err(Unreadable::Malformed));
    assert_eq!(tcp(6), Err(Unreadable::Malformed));
    assert_eq!(Headers::of(&part_v4(TCP, 8, false, &[0; 16])), Err(Unreadable::OverlappingFragment));
    let mut long_header = packet(Kind::Udp, v4(1, 2), 1, 2, b"");
    long_header[14] = 0x4f;
    assert_eq!(Headers::of(&long_header), Err(Unreadable::Malformed));
    let udp = other(UDP, v4(1, 2), &[0; 8]);
    assert_eq!(Headers::of(&udp.clone().ethertype(0x0806).bytes()), Err(Unreadable::NotIp));
    assert_eq!(Headers::of(&udp.vlan(7).vlan(7).vlan(7).bytes()), Err(Unreadable::TooManyHeaders));
}

#[test]
fn an_answer_is_of_the_reversed_flow_and_of_the_same_both_ways() {
    for kind in KINDS {
        for (there, back) in [(v4(1, 2), v4(2, 1)), (v6(1, 2), v6(2, 1))] {
            let request = Headers::of(&packet(kind, there, 5, 6, b"")).unwrap().flow().unwrap();
            let (source, destination) = if kind == Kind::Echo { (5, 5) } else { (6, 5) };
            let answer = Headers::of(&packet(kind, back, source, destination, b"")).unwrap().flow().unwrap();
            assert_eq!(answer, request.reversed());
            assert_ne!(answer, request);
            assert_eq!(answer.both_ways(), request.both_ways());
        }
    }
}

#[test]
fn an_error_quotes_its_packet_even_if_truncated() {
    for kind in KINDS {
        for (addresses, header) in [(v4(9, 2), 20), (v6(9, 2), 40)] {
            let about = packet(kind, addresses, 5, 6, b"some payload");
            let flow = Headers::of(&about).unwrap().flow();
            let error = quoting(&about[14..14 + header + 8]);
            let outer = Headers::of(&error).unwrap();
            let quoted = outer.quoted(&error).unwrap();
            assert_eq!(quoted.flow(), flow);
            assert_eq!(quoted.at.network, outer.at.payload);
            assert_eq!(outer.flow(), None);
            let too_little = quoting(&about[14..14 + header + 3]);
            let quoted = Headers::of(&too_little).unwrap().quoted(&too_little).unwrap();
            assert_eq!((quoted.addresses, quoted.flow()), (addresses, None));
            let not_even_ip = quoting(&about[14..14 + header - 1]);
            assert_eq!(Headers::of(&not_even_ip).unwrap().quoted(&not_even_ip), None);
        }
    }
    let echo = packet(Kind::Echo, v4(1, 2), 5, 6, &packet(Kind::Udp, v4(1, 2), 5, 6, b"")[14..]);
    assert_eq!(Headers::of(&echo).unwrap().quoted(&echo), None);
}

#[test]
fn an_error_that_hosts_act_on_reports_on_a_packet_of_the_host_that_it_is_addressed_to() {
    for (addresses, others) in [(v4(9, 2), v4(8, 2)), (v6(9, 2), v6(8, 2))] {
        let about = packet(Kind::Udp, addresses, 5, 6, b"some payload");
        let mut error = quoting(&about[14..]);
        let headers = Headers::of(&error).unwrap();
        assert_eq!(headers.reported(&error), Ok(headers.quoted(&error)));
        let of_another = packet(Kind::Udp, others, 5, 6, b"some payload")[14..].to_vec();
        error[headers.at.payload..].copy_from_slice(&of_another);
        assert_eq!(Headers::of(&error).unwrap().reported(&error), Err(NoReport::OtherSender));
        let cut = quoting(&about[14..45]);
        let is_cut_in_its_header = matches!(addresses, Addresses::V6(_));
        let expected = if is_cut_in_its_header { Err(NoReport::QuotesTooLittle) } else { Ok(true) };
        assert_eq!(Headers::of(&cut).unwrap().reported(&cut).map(|quoted| quoted.is_some()), expected);
        let mut error = quoting(&about[14..]);
        for kind in 0..=255 {
            error[headers.at.transport] = kind;
            let read = Headers::of(&error).unwrap();
            let (reports, is_error) = match addresses {
                Addresses::V4(_) => (matches!(kind, 3 | 11 | 12), matches!(kind, 3 | 4 | 5 | 11 | 12)),
                Addresses::V6(_) => ((1..=4).contains(&kind), (1..128).contains(&kind)),
            };
            let expected = if reports || !is_error { Ok(reports) } else { Err(NoReport::Kind) };
            assert_eq!(read.reported(&error).map(|quoted| quoted.is_some()), expected, "type {kind}");
        }
        assert_eq!(Headers::of(&about).unwrap().reported(&about), Ok(None));
    }
}

#[test]
fn a_quoted_first_fragment_has_ports_and_a_later_one_has_none() {
    let ports = [0x13, 0x88, 0, 53, 0, 40, 0, 0];
    for (offset, has_ports) in [(0, true), (8, false), (1448, false)] {
        let part = |addresses| other(UDP, addresses, &ports).fragment(offset, true);
        let frames = [part(v4(9, 2)), part(v4(9, 2)).ip_options(&[1; 4]), part(v6(9, 2))];
        for about in frames.map(|frame| frame.packet()) {
            let error = quoting(&about);
            let quoted = Headers::of(&error).unwrap().quoted(&error).unwrap();
            assert_eq!(quoted.ports, has_ports.then_some(Pair { source: 5000, destination: 53 }));
            assert_eq!(quoted.flow().is_some(), has_ports);
        }
    }
}

#[test]
fn an_absent_udp_checksum_stays_absent() {
    let mut frame = packet(Kind::Udp, v4(1, 2), 5, 6, b"data");
    frame[40..42].fill(0);
    let mut headers = Headers::of(&frame).unwrap();
    headers.set_addresses(&mut frame, v4(0x0b00_0001, 7)).unwrap();
    headers.set_ports(&mut frame, Pair { source: 9, destination: 10 }).unwrap();
    assert_eq!(frame[40..42], [0, 0]);
    assert_eq!(Headers::of(&frame), Ok(headers));
}

#[test]
fn only_the_addresses_of_a_later_fragment_change() {
    let mut frame = part_v4(UDP, 16, false, &[7; 16]);
    let mut headers = Headers::of(&frame).unwrap();
    headers.set_addresses(&mut frame, v4(3, 4)).unwrap();
    assert_eq!(frame[34..], [7; 16]);
    assert!(Ipv4Packet::new_checked(&frame[14..]).unwrap().verify_checksum());
    assert_eq!(headers.set_ports(&mut frame, Pair { source: 1, destination: 2 }), Err(CannotRewrite::NoPorts));
}

#[test]
fn a_change_that_does_not_apply_is_refused() {
    let mut frame = packet(Kind::Tcp, v4(1, 2), 5, 6, b"data");
    let before = frame.clone();
    let mut headers = Headers::of(&frame).unwrap();
    assert_eq!(headers.set_addresses(&mut frame, v6(1, 2)), Err(CannotRewrite::OtherVersion));
    assert_eq!(headers.set_addresses(&mut frame[..30], v4(3, 4)), Err(CannotRewrite::OtherFrame));
    assert_eq!(headers.set_ports(&mut [], Pair { source: 1, destination: 2 }), Err(CannotRewrite::OtherFrame));
    assert_eq!((&frame, Headers::of(&frame)), (&before, Ok(headers)));
}

#[test]
fn a_reply_of_zeros_keeps_a_checksum_that_receivers_accept() {
    // The fields after the checksum of an IPv4 echo reply: identifier, sequence number, payload.
    let reply = |id: u16, rest: &[u8]| {
        let sequence = u16::from_be_bytes([rest[0], rest[1]]);
        Frame::echo_reply("0.0.0.1", "0.0.0.2").echo(id, sequence).payload(&rest[2..]).bytes()
    };
    for rest in [&[0, 0][..], &[0, 0, 0], &[0; 34], &[0xff, 0xff], &[0, 0, 0xff, 0xff], &[0, 1, 0xff, 0xfe]] {
        for old in [0, 1, 0x1234, 0xfffe, 0xffff] {
            for new in [0, 1, 0x1234, 0xfffe, 0xffff] {
                let mut frame = reply(old, rest);
                let mut headers = Headers::of(&frame).unwrap();
                headers.set_ports(&mut frame, Pair { source: new, destination: 0 }).unwrap();
                assert_eq!(frame, reply(new, rest), "{old} to {new} before {rest:?}");
                headers.set_addresses(&mut frame, v4(0, 0)).unwrap();
                assert!(checksums_are_right(&frame, &headers));
            }
        }
    }
    assert_eq!(reply(0, &[0, 0])[36..38], [0xff, 0xff]);
}

#[test]
fn checksums_of_incomplete_packets_are_updated_without_the_missing_data() {
    // The part of a reply that is present, with the checksum of the whole.
    let reply = |sum: u16, id: u16| [&[0, 0][..], &sum.to_be_bytes(), &id.to_be_bytes(), &[0; 10]].concat();
    let first = |sum, id| part_v4(ICMP, 0, true, &reply(sum, id));
    let mut frame = first(!7, 7);
    Headers::of(&frame).unwrap().set_ports(&mut frame, Pair { source: 0, destination: 0 }).unwrap();
    assert_eq!(frame, first(0xffff, 0));
    let mut error = quoting(&first(!7, 7)[14..]);
    let mut quoted = Headers::of(&error).unwrap().quoted(&error).unwrap();
    quoted.set_ports(&mut error, Pair { source: 0, destination: 0 }).unwrap();
    assert_eq!(error[42..], first(0xffff, 0)[14..]);
}

#[test]
fn icmp_of_the_other_ip_version_is_not_changed() {
    for (mut frame, addresses) in
        [(other(ICMPV6, v4(1, 2), &[7; 16]).bytes(), v4(3, 4)), (other(ICMP, v6(1, 2), &[7; 16]).bytes(), v6(3, 4))]
    {
        let mut headers = Headers::of(&frame).unwrap();
        headers.set_addresses(&mut frame, addresses).unwrap();
        assert_eq!(frame[headers.at.transport..], [7; 16]);
    }
}

#[test]
fn over_ipv6_a_udp_checksum_of_zero_is_wrong_and_stays_so() {
    let mut frame = packet(Kind::Udp, v6(1, 2), 5, 6, b"data");
    frame[60..62].fill(0);
    let mut headers = Headers::of(&frame).unwrap();
    headers.set_addresses(&mut frame, v6(3, 4)).unwrap();
    headers.set_ports(&mut frame, Pair { source: 9, destination: 10 }).unwrap();
    assert_eq!(frame[60..62], [0, 0]);
}

/// Returns the transport's checksum.
fn sum_of(frame: &[u8]) -> u16 {
    let headers = Headers::of(frame).unwrap();
    let offset = match headers.protocol {
        TCP => 16,
        UDP => 6,
        _ => 2,
    };
    u16::from_be_bytes([frame[headers.at.transport + offset], frame[headers.at.transport + offset + 1]])
}

#[test]
fn an_ipv4_header_with_sum_zero_has_the_checksum_zero() {
    for source in [0, 0x0000_ffff, 0x0a00_0001, 0xffff_ffff] {
        let without = packet(Kind::Udp, v4(source, 0), 5, 6, b"");
        let destination = u16::from_be_bytes([without[24], without[25]]).into();
        for old in [v4(0, 0), v4(!0, !0), v4(0x0a0b_0c0d, 7)] {
            let mut frame = packet(Kind::Udp, old, 5, 6, b"");
            Headers::of(&frame).unwrap().set_addresses(&mut frame, v4(source, destination)).unwrap();
            assert_eq!(frame, packet(Kind::Udp, v4(source, destination), 5, 6, b""));
            assert_eq!(frame[24..26], [0, 0]);
        }
    }
}

/// Generates words with sums of zero far more often than by chance.
fn special_word() -> impl Strategy<Value = u16> {
    prop_oneof![3 => Just(0), 2 => Just(0xffff), 1 => any::<u16>()]
}

fn special_addresses() -> impl Strategy<Value = Addresses> {
    let number = |words: [u16; 8]| words.iter().fold(0, |number, word| (number << 16) | u128::from(*word));
    let words = || proptest::array::uniform8(special_word());
    (any::<bool>(), words(), words()).prop_map(move |(is_v4, source, destination)| {
        let (source, destination) = (number(source), number(destination));
        if is_v4 { v4(source as u32, destination as u32) } else { v6(source, destination) }
    })
}

fn any_addresses() -> impl Strategy<Value = Addresses> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(source, destination)| v4(source, destination)),
        any::<(u128, u128)>().prop_map(|(source, destination)| v6(source, destination)),
    ]
}

proptest! {
    #[test]
    fn checksums_stay_correct_after_any_change(
        kind in proptest::sample::select(&KINDS[..]), old in any_addresses(), new: (u128, u128), old_ports: (u16, u16), ports: (u16, u16),
        payload in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut frame = packet(kind, old, old_ports.0, old_ports.1, &payload);
        let mut headers = Headers::of(&frame).unwrap();
        prop_assert!(checksums_are_right(&frame, &headers));
        let new = match old {
            Addresses::V4(_) => v4(new.0 as u32, new.1 as u32),
            Addresses::V6(_) => v6(new.0, new.1),
        };
        let ports = Pair { source: ports.0, destination: ports.1 };
        let (mut at_once, mut headers_at_once) = (frame.clone(), headers);
        headers_at_once.set_ends(&mut at_once, new, ports).unwrap();
        headers.set_addresses(&mut frame, new).unwrap();
        headers.set_ports(&mut frame, ports).unwrap();
        prop_assert_eq!((&at_once, headers_at_once), (&frame, headers));
        prop_assert!(checksums_are_right(&frame, &headers));
        prop_assert_eq!(&frame, &packet(kind, new, ports.source, ports.destination, &payload));
        prop_assert_eq!(Headers::of(&frame), Ok(headers));
    }

    /// The payload ends with a word that brings the sum to zero once addresses and ports are the new ones.
    #[test]
    fn an_updated_zero_checksum_equals_the_recomputed_one(
        kind in proptest::sample::select(&KINDS[..]), new in special_addresses(), old: (u128, u128),
        old_ports: (u16, u16), ports in (special_word(), special_word()), mut payload in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        payload.truncate(payload.len() & !1);
        payload.extend([0, 0]);
        let sum = sum_of(&packet(kind, new, ports.0, ports.1, &payload));
        let len = payload.len();
        payload[len - 2..].copy_from_slice(&sum.to_be_bytes());
        let old = match new {
            Addresses::V4(_) => v4(old.0 as u32, old.1 as u32),
            Addresses::V6(_) => v6(old.0, old.1),
        };
        let mut frame = packet(kind, old, old_ports.0, old_ports.1, &payload);
        let mut headers = Headers::of(&frame).unwrap();
        headers.set_ports(&mut frame, Pair { source: ports.0, destination: ports.1 }).unwrap();
        headers.set_addresses(&mut frame, new).unwrap();
        let expected = packet(kind, new, ports.0, ports.1, &payload);
        prop_assert_eq!(sum_of(&expected), if kind == Kind::Udp { 0xffff } else { 0 });
        prop_assert_eq!(&frame, &expected);
    }

    #[test]
    fn headers_are_read_as_smoltcp_reads_them(
        kind in proptest::sample::select(&KINDS[..]), addresses in any_addresses(),
        changes in proptest::collection::vec((0_usize..60, any::<u8>()), 0..4), len in any::<proptest::sample::Index>(),
    ) {
        let mut frame = packet(kind, addresses, 1, 2, b"payload");
        for (at, byte) in changes {
            // The first bytes decide which headers there are.
            let at = 14 + at % (frame.len() - 14);
            frame[at] = byte;
        }
        let frame = &frame[..=len.index(frame.len())];
        if frame.len() < 14 {
            prop_assert_eq!(Headers::of(frame), Err(Unreadable::Malformed));
            return Ok(());
        }
        match addresses {
            Addresses::V4(_) => {
                let read = Ipv4Packet::new_checked(&frame[14..]).ok().filter(|ip| ip.version() == 4 && ip.header_len() >= 20);
                let Some(ip) = read else {
                    prop_assert_eq!(Headers::of(frame), Err(Unreadable::Malformed));
                    return Ok(());
                };
                if let Ok(headers) = Headers::of(frame) {
                    let pair = (ip.src_addr().to_bits(), ip.dst_addr().to_bits());
                    prop_assert_eq!(headers.addresses, v4(pair.0, pair.1));
                    prop_assert_eq!(headers.protocol, u8::from(ip.next_header()));
                    prop_assert_eq!(&frame[headers.at.transport..headers.at.end], ip.payload());
                    prop_assert_eq!(headers.fragment.is_some(), ip.more_frags() || ip.frag_offset() != 0);
                }
            }
            Addresses::V6(_) => {
                let Some(ip) = Ipv6Packet::new_checked(&frame[14..]).ok().filter(|ip| ip.version() == 6) else {
                    prop_assert_eq!(Headers::of(frame), Err(Unreadable::Malformed));
                    return Ok(());
                };
                if let Ok(headers) = Headers::of(frame) {
                    prop_assert_eq!(headers.addresses, v6(ip.src_addr().to_bits(), ip.dst_addr().to_bits()));
                    prop_assert_eq!(&frame[..headers.at.end], &frame[..14 + ip.total_len()]);
                }
            }
        }
    }

    #[test]
    fn no_bytes_panic(frame in proptest::collection::vec(any::<u8>(), 0..120), ports: (u16, u16)) {
        for start in [&[][..], &[0x08, 0, 0x45], &[0x86, 0xdd, 0x60]] {
            let mut frame = [&[2; 12][..], start, &frame].concat();
            if let Ok(mut headers) = Headers::of(&frame) {
                let _ = (headers.flow(), headers.quoted(&frame));
                let _ = headers.set_addresses(&mut frame, headers.addresses.reversed());
                let _ = headers.set_ports(&mut frame, Pair { source: ports.0, destination: ports.1 });
            }
        }
    }
}

#[test]
fn icmp_of_the_other_ip_version_is_not_read() {
    let message = [8, 0, 0, 0, 0, 1, 0, 1];
    for (frame, is_icmp) in [
        (other(ICMP, v4(1, 2), &message), true),
        (other(ICMPV6, v4(1, 2), &message), false),
        (other(ICMP, v6(1, 2), &message), false),
    ] {
        assert_eq!(Headers::of(&frame.bytes()).unwrap().icmp.is_some(), is_icmp);
    }
}
