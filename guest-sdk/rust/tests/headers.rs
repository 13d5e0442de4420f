//! What frames' headers say, beside what smoltcp reads of them, and changes of them, beside checksums computed anew.

#![cfg(not(target_family = "wasm"))]

mod frames;

use frames::{Kind, ethernet, ipv4, ipv6, packet, quoting};
use pinion_sdk::headers::{
    Addresses, CannotRewrite, Fragment, Headers, ICMP, ICMPV6, Offsets, Pair, TCP, UDP, Unreadable,
};
use proptest::prelude::*;
use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};

const KINDS: [Kind; 3] = [Kind::Tcp, Kind::Udp, Kind::Echo];

fn v4(source: u32, destination: u32) -> Addresses {
    Addresses::V4(Pair { source, destination })
}

fn v6(source: u128, destination: u128) -> Addresses {
    Addresses::V6(Pair { source, destination })
}

/// Whether every checksum of the frame is right, as smoltcp computes it.
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
fn all_that_a_function_asks_for_is_read_with_its_place() {
    let frame = [packet(Kind::Tcp, v4(0x0a00_0001, 0x0a00_0002), 5000, 80, b"hello"), vec![0; 3]].concat();
    let headers = Headers::of(&frame).unwrap();
    assert_eq!(headers.addresses, v4(0x0a00_0001, 0x0a00_0002));
    assert_eq!((headers.protocol, headers.ports), (TCP, Some(Pair { source: 5000, destination: 80 })));
    assert!(headers.tcp_flags.unwrap().syn() && !headers.tcp_flags.unwrap().ack());
    assert_eq!(headers.at, Offsets { network: 14, transport: 34, payload: 54, end: 59 });
    assert_eq!((headers.icmp, headers.fragment, headers.vlan_tags), (None, None, 0));
}

#[test]
fn tags_and_extension_headers_move_everything_behind_them() {
    let hop_by_hop = [&[UDP, 0, 1, 4, 0, 0, 0, 0][..], &[0x14, 0xe9, 0, 53, 0, 8, 0, 0]].concat();
    let tags = [0x88, 0xa8, 0, 5, 0x81, 0, 0, 7];
    let headers = Headers::of(&ethernet(&tags, [0x86, 0xdd], &ipv6(0, v6(1, 2), &hop_by_hop))).unwrap();
    assert_eq!((headers.vlan_tags, headers.protocol), (2, UDP));
    assert_eq!(headers.ports, Some(Pair { source: 5353, destination: 53 }));
    assert_eq!(headers.at, Offsets { network: 22, transport: 70, payload: 78, end: 78 });
}

#[test]
fn the_parts_of_a_datagram_are_known_by_its_number_and_only_the_first_has_ports() {
    let part = |fragment: [u8; 2]| ethernet(&[], [0x08, 0], &ipv4(UDP, v4(1, 2), fragment, &[7; 16]));
    let first = Headers::of(&part([0x20, 0])).unwrap();
    assert_eq!(first.fragment, Some(Fragment { id: 1, offset: 0, more: true }));
    assert!(first.ports.is_some() && first.flow().is_some());
    let last = Headers::of(&part([0, 2])).unwrap();
    assert_eq!(last.fragment, Some(Fragment { id: 1, offset: 16, more: false }));
    assert_eq!((last.ports, last.flow()), (None, None));
    let of_v6 = [&[UDP, 0, 0, 17, 0, 1, 0, 2][..], &[7; 16]].concat();
    let of_v6 = Headers::of(&ethernet(&[], [0x86, 0xdd], &ipv6(44, v6(1, 2), &of_v6))).unwrap();
    assert_eq!(of_v6.fragment, Some(Fragment { id: 0x1_0002, offset: 16, more: true }));
}

#[test]
fn what_contradicts_itself_is_refused() {
    let tcp = |offset: u8| {
        let mut frame = packet(Kind::Tcp, v4(1, 2), 1, 2, b"");
        frame[46] = offset << 4;
        Headers::of(&frame)
    };
    assert!(tcp(5).is_ok());
    assert_eq!(tcp(4), Err(Unreadable::Malformed));
    assert_eq!(tcp(6), Err(Unreadable::Malformed));
    let overlapping = ethernet(&[], [0x08, 0], &ipv4(TCP, v4(1, 2), [0, 1], &[0; 16]));
    assert_eq!(Headers::of(&overlapping), Err(Unreadable::OverlappingFragment));
    let mut long_header = packet(Kind::Udp, v4(1, 2), 1, 2, b"");
    long_header[14] = 0x4f;
    assert_eq!(Headers::of(&long_header), Err(Unreadable::Malformed));
    assert_eq!(Headers::of(&ethernet(&[], [0x08, 0x06], &[0; 28])), Err(Unreadable::NotIp));
    assert_eq!(
        Headers::of(&ethernet(&[0x81, 0, 0, 7].repeat(3), [0x08, 0], &[0; 40])),
        Err(Unreadable::TooManyHeaders)
    );
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
fn an_error_quotes_the_packet_it_is_about_however_little_of_it() {
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
            assert_eq!(Headers::of(&too_little).unwrap().quoted(&too_little).and_then(|it| it.flow()), None);
        }
    }
    let echo = packet(Kind::Echo, v4(1, 2), 5, 6, &packet(Kind::Udp, v4(1, 2), 5, 6, b"")[14..]);
    assert_eq!(Headers::of(&echo).unwrap().quoted(&echo), None);
}

#[test]
fn a_udp_checksum_that_is_not_there_stays_away() {
    let mut frame = packet(Kind::Udp, v4(1, 2), 5, 6, b"data");
    frame[40..42].fill(0);
    let mut headers = Headers::of(&frame).unwrap();
    headers.set_addresses(&mut frame, v4(0x0b00_0001, 7)).unwrap();
    headers.set_ports(&mut frame, Pair { source: 9, destination: 10 }).unwrap();
    assert_eq!(frame[40..42], [0, 0]);
    assert_eq!(Headers::of(&frame), Ok(headers));
}

#[test]
fn a_later_fragment_gets_other_addresses_and_no_other_bytes() {
    let mut frame = ethernet(&[], [0x08, 0], &ipv4(UDP, v4(1, 2), [0, 2], &[7; 16]));
    let mut headers = Headers::of(&frame).unwrap();
    headers.set_addresses(&mut frame, v4(3, 4)).unwrap();
    assert_eq!(frame[34..], [7; 16]);
    assert!(Ipv4Packet::new_checked(&frame[14..]).unwrap().verify_checksum());
    assert_eq!(headers.set_ports(&mut frame, Pair { source: 1, destination: 2 }), Err(CannotRewrite::NoPorts));
}

#[test]
fn what_a_packet_has_not_is_not_changed() {
    let mut frame = packet(Kind::Tcp, v4(1, 2), 5, 6, b"data");
    let before = frame.clone();
    let mut headers = Headers::of(&frame).unwrap();
    assert_eq!(headers.set_addresses(&mut frame, v6(1, 2)), Err(CannotRewrite::OtherVersion));
    assert_eq!(headers.set_addresses(&mut frame[..30], v4(3, 4)), Err(CannotRewrite::OtherFrame));
    assert_eq!(headers.set_ports(&mut [], Pair { source: 1, destination: 2 }), Err(CannotRewrite::OtherFrame));
    assert_eq!((&frame, Headers::of(&frame)), (&before, Ok(headers)));
}

fn any_addresses() -> impl Strategy<Value = Addresses> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(source, destination)| v4(source, destination)),
        any::<(u128, u128)>().prop_map(|(source, destination)| v6(source, destination)),
    ]
}

proptest! {
    #[test]
    fn checksums_stay_right_whatever_is_changed(
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
        headers.set_addresses(&mut frame, new).unwrap();
        headers.set_ports(&mut frame, ports).unwrap();
        prop_assert!(checksums_are_right(&frame, &headers));
        prop_assert_eq!(&frame, &packet(kind, new, ports.source, ports.destination, &payload));
        prop_assert_eq!(Headers::of(&frame), Ok(headers));
    }

    #[test]
    fn what_smoltcp_reads_is_read_alike(
        kind in proptest::sample::select(&KINDS[..]), addresses in any_addresses(),
        changes in proptest::collection::vec((0_usize..60, any::<u8>()), 0..4), len in any::<proptest::sample::Index>(),
    ) {
        let mut frame = packet(kind, addresses, 1, 2, b"payload");
        for (at, byte) in changes {
            // The start's bytes decide what there is to read.
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
fn icmp_of_the_other_version_is_none() {
    let message = [8, 0, 0, 0, 0, 1, 0, 1];
    for (frame, is_icmp) in [
        (ethernet(&[], [0x08, 0], &ipv4(ICMP, v4(1, 2), [0, 0], &message)), true),
        (ethernet(&[], [0x08, 0], &ipv4(ICMPV6, v4(1, 2), [0, 0], &message)), false),
        (ethernet(&[], [0x86, 0xdd], &ipv6(ICMP, v6(1, 2), &message)), false),
    ] {
        assert_eq!(Headers::of(&frame).unwrap().icmp.is_some(), is_icmp);
    }
}
