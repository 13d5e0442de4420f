//! The fields that are read and changed by methods which take the frame, and whole checksums: compared with smoltcp's view of the same bytes.

#![cfg(not(target_family = "wasm"))]

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pinion_sdk::checksum;
use pinion_sdk::headers::{
    CannotRewrite, Ecn, Headers, ICMP, ICMPV6, Ip, Mac, Pair, TCP, UDP, Unreadable, VlanKind, macs, set_macs,
    set_vlan_id, swap_macs, vlans,
};
use pinion_sdk::testing::Frame;
use pinion_sdk::{Checksum, headers};
use proptest::prelude::*;
use smoltcp::wire::{EthernetFrame, Icmpv4Packet, Icmpv6Packet, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};

const V4: (&str, &str) = ("10.0.0.1:5000", "10.0.0.2:53");
const V6: (&str, &str) = ("[2001:db8::1]:5000", "[2001:db8::2]:53");

/// Makes packets of each kind over both versions of IP.
fn packets(payload: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    for (source, destination) in [V4, V6] {
        frames.extend([Frame::udp(source, destination), Frame::tcp(source, destination)]);
    }
    frames.push(Frame::echo_request("10.0.0.1", "10.0.0.2"));
    frames.push(Frame::echo_request("2001:db8::1", "2001:db8::2"));
    frames.into_iter().map(|frame| frame.payload(payload)).collect()
}

/// Returns the TTL or hop limit, the traffic class, and the packet's length, as smoltcp reads them.
fn network_as_smoltcp_reads_it(frame: &[u8], at: usize) -> (u8, u8, usize) {
    if frame[at] >> 4 == 4 {
        let ip = Ipv4Packet::new_checked(&frame[at..]).unwrap();
        (ip.hop_limit(), (ip.dscp() << 2) | ip.ecn(), ip.total_len().into())
    } else {
        let ip = Ipv6Packet::new_checked(&frame[at..]).unwrap();
        (ip.hop_limit(), ip.traffic_class(), ip.total_len())
    }
}

/// Returns whether smoltcp takes all checksums for correct.
fn are_right(frame: &[u8]) -> bool {
    let headers = Headers::of_part(frame).unwrap();
    let message = &frame[headers.at.transport..headers.at.end];
    let (source, destination) = (headers.addresses.source(), headers.addresses.destination());
    let (from, to) = (source.into(), destination.into());
    let of_ip = source.is_ipv6() || Ipv4Packet::new_unchecked(&frame[headers.at.network..]).verify_checksum();
    let of_message = match (headers.protocol, source, destination) {
        (TCP, ..) => TcpPacket::new_checked(message).unwrap().verify_checksum(&from, &to),
        (UDP, ..) => UdpPacket::new_checked(message).unwrap().verify_checksum(&from, &to),
        (ICMP, ..) => Icmpv4Packet::new_checked(message).unwrap().verify_checksum(),
        (ICMPV6, IpAddr::V6(from), IpAddr::V6(to)) => {
            Icmpv6Packet::new_checked(message).unwrap().verify_checksum(&from, &to)
        }
        _ => panic!("protocol {} has no checksum", headers.protocol),
    };
    of_ip && of_message
}

/// Returns the offset of a message's checksum.
fn sum_at(headers: &Headers) -> usize {
    headers.at.transport
        + match headers.protocol {
            TCP => 16,
            UDP => 6,
            _ => 2,
        }
}

#[test]
fn hardware_addresses_of_any_frame_are_read_and_changed() {
    let mut arp = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[8, 6], &[7; 46]].concat();
    let read = macs(&arp).unwrap();
    assert_eq!((read.destination, read.source), (Mac([0xff; 6]), Mac([2, 0, 0, 0, 0, 9])));
    assert!(read.destination.is_group() && !read.source.is_group());
    swap_macs(&mut arp).unwrap();
    assert_eq!(macs(&arp), Some(read.reversed()));
    let others = Pair { source: Mac([2; 6]), destination: Mac([4; 6]) };
    set_macs(&mut arp, others).unwrap();
    assert_eq!(macs(&arp), Some(others));
    assert_eq!(arp[12..], [&[8, 6][..], &[7; 46]].concat());
    assert_eq!((macs(&[0; 11]), swap_macs(&mut [0; 11])), (None, Err(CannotRewrite::TooShort)));
    assert_eq!(set_macs(&mut [], others), Err(CannotRewrite::TooShort));
}

#[test]
fn a_hardware_address_is_six_bytes_of_two_hexadecimal_digits() {
    assert_eq!("02:aB:00:00:00:ff".parse(), Ok(Mac([2, 0xab, 0, 0, 0, 0xff])));
    for text in
        ["", "02", "02:00:00:00:00", "02:00:00:00:00:00:00", "2:0:0:0:0:1", "+2:00:00:00:00:01", "02-00-00-00-00-01"]
    {
        let refusal = text.parse::<Mac>().unwrap_err().to_string();
        assert_eq!(refusal, format!("{text:?} is no hardware address: write six bytes like 02:00:00:00:00:01"));
    }
}

#[test]
fn at_most_two_vlan_tags_are_read_and_one_that_is_there_gets_another_id() {
    let udp = Frame::udp(V4.0, V4.1);
    let tag = headers::Vlan { id: 7, priority: 5, is_drop_eligible: true, kind: VlanKind::Customer };
    let mut frame = udp.clone().service_vlan(5).tag(tag).bytes();
    let service = headers::Vlan { id: 5, kind: VlanKind::Service, ..headers::Vlan::default() };
    assert_eq!(vlans(&frame)[..], [service, tag]);
    set_vlan_id(&mut frame, 1, 4094).unwrap();
    set_vlan_id(&mut frame, 0, 0).unwrap();
    assert_eq!(vlans(&frame)[..], [headers::Vlan { id: 0, ..service }, headers::Vlan { id: 4094, ..tag }]);
    assert_eq!(Headers::of(&frame).unwrap().vlan_tags, 2);
    let before = frame.clone();
    assert_eq!(set_vlan_id(&mut frame, 2, 1), Err(CannotRewrite::NoTag));
    assert_eq!(set_vlan_id(&mut frame, 0, 4095), Err(CannotRewrite::NoSuchVlan));
    assert_eq!(set_vlan_id(&mut frame[..17], 1, 1), Err(CannotRewrite::NoTag));
    assert_eq!(frame, before);
    assert_eq!(set_vlan_id(&mut udp.bytes(), 0, 1), Err(CannotRewrite::NoTag));
    assert_eq!(vlans(&udp.vlan(1).vlan(2).vlan(3).bytes()).len(), 2);
}

#[test]
fn the_ip_header_alone_is_read_whatever_follows_it() {
    let overlapping = Frame::other(TCP, "10.0.0.1", "10.0.0.2").fragment(8, false).payload(&[0; 16]).bytes();
    let cut = Frame::tcp(V6.0, V6.1).ip_len(4).bytes();
    let many = (0..9).fold(Frame::udp(V6.0, V6.1), |frame, _| frame.extension(60, &[])).bytes();
    for frame in [overlapping, cut, many] {
        let ip = Ip::of(&frame).unwrap();
        assert!(Headers::of(&frame).is_err());
        assert_eq!((ip.at, ip.hop_limit(&frame)), (14, Some(64)));
        assert_eq!(network_as_smoltcp_reads_it(&frame, 14).2, ip.len);
    }
    let udp = Frame::udp(V4.0, V4.1);
    for (frame, refusal) in [
        (udp.clone().ethertype(0x0806), Unreadable::NotIp),
        (udp.clone().ip_version(6), Unreadable::Malformed),
        (udp.clone().ip_header_len(4), Unreadable::Malformed),
        (udp.clone().ip_len(29), Unreadable::Malformed),
        (udp.vlan(1).vlan(2).vlan(3), Unreadable::TooManyHeaders),
    ] {
        assert_eq!(Ip::of(&frame.bytes()), Err(refusal), "{frame:?}");
    }
}

#[test]
fn a_router_counts_hops_down_to_zero_and_no_further() {
    for packet in packets(b"payload") {
        let mut frame = packet.clone().hop_limit(2).bytes();
        let ip = Ip::of(&frame).unwrap();
        assert_eq!(ip.decrement_hop_limit(&mut frame), Ok(1));
        assert_eq!(frame, packet.clone().hop_limit(1).bytes());
        assert_eq!(ip.decrement_hop_limit(&mut frame), Ok(0));
        assert_eq!(ip.decrement_hop_limit(&mut frame), Err(CannotRewrite::NoHopLeft));
        assert_eq!(frame, packet.hop_limit(0).bytes());
    }
}

#[test]
fn a_wrong_checksum_of_an_ipv4_header_stays_wrong() {
    let mut frame = Frame::udp(V4.0, V4.1).ip_checksum(0x1234).bytes();
    let ip = Headers::of(&frame).unwrap().ip();
    let is_right = |frame: &[u8]| ip.checksum(frame);
    assert_eq!(is_right(&frame), Checksum::Bad);
    ip.set_hop_limit(&mut frame, 3).unwrap();
    ip.set_dscp(&mut frame, 46).unwrap();
    assert_eq!(is_right(&frame), Checksum::Bad);
    ip.set_dscp(&mut frame, 0).unwrap();
    ip.set_hop_limit(&mut frame, 64).unwrap();
    assert_eq!(frame, Frame::udp(V4.0, V4.1).ip_checksum(0x1234).bytes());
}

#[test]
fn values_that_no_field_has_and_other_frames_are_refused_and_change_nothing() {
    for packet in packets(b"payload") {
        let mut frame = packet.bytes();
        let (before, mut headers) = (frame.clone(), Headers::of(&frame).unwrap());
        let ip = headers.ip();
        assert_eq!(ip.set_dscp(&mut frame, 64), Err(CannotRewrite::NoSuchDscp));
        for len in 0..frame.len() {
            let frame = &mut frame[..len];
            let other = Err(CannotRewrite::OtherFrame);
            assert_eq!(
                [ip.set_hop_limit(frame, 1), ip.set_dscp(frame, 1), ip.set_ecn(frame, Ecn::Capable0)],
                [other; 3]
            );
            assert_eq!(ip.decrement_hop_limit(frame), Err(CannotRewrite::OtherFrame));
            assert_eq!(headers.recompute_checksums(frame), other);
            if headers.icmp.is_some() {
                assert_eq!(headers.set_icmp(frame, 3, 1), other);
            }
            assert_eq!((ip.hop_limit(frame), ip.dscp(frame), ip.ecn(frame)), (None, None, None));
            assert!(headers.payload(frame).is_none() && headers.payload_mut(frame).is_none());
            assert_eq!((ip.checksum(frame), headers.l4_checksum(frame)), (Checksum::Unknown, Checksum::Unknown));
        }
        assert_eq!(frame, before);
        if headers.icmp.is_none() {
            assert_eq!(headers.set_icmp(&mut frame, 0, 0), Err(CannotRewrite::NoIcmp));
        }
    }
}

#[test]
fn a_payload_is_neither_padding_nor_what_lies_behind_a_datagram() {
    for packet in packets(b"some data") {
        let frame = packet.padded_to(100).bytes();
        assert_eq!(Headers::of(&frame).unwrap().payload(&frame), Some(&b"some data"[..]));
    }
    let payload = |frame: &Frame| {
        let frame = frame.bytes();
        Headers::of(&frame).unwrap().payload(&frame).unwrap().to_vec()
    };
    let udp = Frame::udp(V4.0, V4.1).payload(b"some data");
    assert_eq!(payload(&udp.clone().message_len(12)), b"some");
    for impossible in [0, 7, 18] {
        assert_eq!(payload(&udp.clone().message_len(impossible)), b"some data");
    }
    // A first fragment states the length of the whole datagram, and a later one has no header.
    assert_eq!(payload(&udp.clone().fragment(0, true).message_len(4000)), b"some data");
    assert_eq!(payload(&udp.fragment(8, true)), b"some data");
    assert_eq!(payload(&Frame::other(47, "10.0.0.1", "10.0.0.2").payload(b"tunnel")), b"tunnel");
    let options = Frame::tcp(V6.0, V6.1).tcp_options(&[1, 1, 1]).extension(60, &[1, 4]).payload(b"data");
    assert_eq!(payload(&options), b"data");
}

#[test]
fn checksums_are_judged_as_a_receiver_does() {
    let judged = |frame: &Frame| {
        let frame = frame.bytes();
        Headers::of(&frame).unwrap().l4_checksum(&frame)
    };
    for packet in packets(b"some data!") {
        assert_eq!(judged(&packet), Checksum::Good);
        assert_eq!(judged(&packet.clone().checksum(0x1234)), Checksum::Bad);
        assert_eq!(judged(&packet.clone().padded_to(90)), Checksum::Good, "padding does not count");
        assert_eq!(judged(&packet.fragment(0, true)), Checksum::Unknown);
    }
    assert_eq!(judged(&Frame::udp(V4.0, V4.1).checksum(0)), Checksum::Unknown, "there is none");
    assert_eq!(judged(&Frame::udp(V6.0, V6.1).checksum(0)), Checksum::Bad, "IPv6 requires one");
    assert_eq!(judged(&Frame::udp(V4.0, V4.1).message_len(9)), Checksum::Bad);
    assert_eq!(judged(&Frame::other(47, "10.0.0.1", "10.0.0.2")), Checksum::Unknown);
    let cut = Frame::udp(V6.0, V6.1).extension(60, &[]).extension(43, &[0, 0]);
    assert_eq!(judged(&cut), Checksum::Good);
    assert_eq!(judged(&Frame::udp(V6.0, V6.1).extension(43, &[0, 1])), Checksum::Unknown, "a stop is to come");
}

#[test]
fn of_what_is_not_whole_only_the_ipv4_header_gets_a_checksum() {
    let about = Frame::udp(V4.0, V4.1).payload(&[7; 100]).checksum(0x1234).ip_checksum(0x1234);
    let first = about.clone().fragment(0, true);
    let later = Frame::other(UDP, "10.0.0.1", "10.0.0.2").fragment(8, false).payload(&[7; 16]).ip_checksum(9);
    for frame in [first, later] {
        let mut bytes = frame.bytes();
        let headers = Headers::of(&bytes).unwrap();
        headers.recompute_checksums(&mut bytes).unwrap();
        assert_eq!(headers.ip().checksum(&bytes), Checksum::Good);
        assert_eq!((&bytes[..24], &bytes[26..]), (&frame.bytes()[..24], &frame.bytes()[26..]));
    }
    let mut error = Frame::icmp("10.0.0.9", "10.0.0.1", 3, 0, [0; 4]).payload(&about.packet()[..28]).bytes();
    let quoted = Headers::of(&error).unwrap().quoted(&error).unwrap();
    let before = error.clone();
    quoted.recompute_checksums(&mut error).unwrap();
    assert_eq!(quoted.ip().checksum(&error), Checksum::Good);
    assert_eq!((&error[..52], &error[54..]), (&before[..52], &before[54..]));
}

#[test]
fn a_packet_with_stops_to_come_and_a_datagram_of_impossible_length_keep_their_checksums() {
    for frame in [
        Frame::udp(V6.0, V6.1).extension(43, &[0, 1]).checksum(0x1234).bytes(),
        Frame::udp(V6.0, V6.1).message_len(7).checksum(0x1234).bytes(),
        Frame::other(47, "2001:db8::1", "2001:db8::2").payload(&[1; 40]).bytes(),
    ] {
        let mut recomputed = frame.clone();
        Headers::of(&frame).unwrap().recompute_checksums(&mut recomputed).unwrap();
        assert_eq!(recomputed, frame);
    }
}

#[test]
fn a_recomputed_udp_checksum_is_never_zero() {
    for (source, destination) in [V4, V6] {
        let udp = Frame::udp(source, destination);
        // With its own sum as payload, the sum of the datagram is zero.
        let without = udp.clone().payload(&[0, 0]).bytes();
        let at = sum_at(&Headers::of(&without).unwrap());
        let sum = [without[at], without[at + 1]];
        let mut frame = udp.payload(&sum).checksum(7).bytes();
        Headers::of(&frame).unwrap().recompute_checksums(&mut frame).unwrap();
        assert_eq!(frame[at..at + 2], [0xff, 0xff]);
        assert!(are_right(&frame));
    }
}

#[test]
fn the_kind_of_an_icmp_message_is_changed_with_its_checksum() {
    // Data of zeros have another checksum than data that sum up to zero.
    for (id, sequence, payload) in
        [(1, 1, &b"ping"[..]), (0, 0, &[0; 8]), (0, 0, &[]), (0xffff, 0, &[]), (0x1234, 0xedcb, &[0; 3])]
    {
        for (from, to, reply_kind) in [("10.0.0.1", "10.0.0.2", 0), ("2001:db8::1", "2001:db8::2", 129)] {
            let mut frame = Frame::echo_request(from, to).echo(id, sequence).payload(payload).bytes();
            let mut headers = Headers::of(&frame).unwrap();
            headers.set_icmp(&mut frame, reply_kind, 0).unwrap();
            assert_eq!(frame, Frame::echo_reply(from, to).echo(id, sequence).payload(payload).bytes());
            assert_eq!(Headers::of(&frame), Ok(headers));
            headers.set_icmp(&mut frame, 3, 1).unwrap();
            assert_eq!((Headers::of(&frame), headers.l4_checksum(&frame)), (Ok(headers), Checksum::Good));
        }
    }
}

#[test]
fn a_packet_is_turned_around_without_a_change_of_its_checksums() {
    let frames = [V4, V6].into_iter().flat_map(|(source, destination)| {
        let udp = |from, to| Frame::udp(from, to).payload(b"data");
        let tcp = |from, to| Frame::tcp(from, to).payload(b"data").tcp_options(&[1]);
        let without = |from, to| udp(from, to).checksum(0);
        [
            [udp(source, destination), udp(destination, source)],
            [tcp(source, destination), tcp(destination, source)],
            [without(source, destination), without(destination, source)],
        ]
    });
    let echo = ["10.0.0.1", "10.0.0.2"];
    let later = |from, to| Frame::other(UDP, from, to).fragment(80, true).payload(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let others = [
        [Frame::echo_request(echo[0], echo[1]).echo(7, 8), Frame::echo_request(echo[1], echo[0]).echo(7, 8)],
        [later(echo[0], echo[1]), later(echo[1], echo[0])],
        [later("fd00::1", "fd00::2"), later("fd00::2", "fd00::1")],
    ];
    for [there, back] in frames.chain(others) {
        let mut frame = there.bytes();
        let mut headers = Headers::of(&frame).unwrap();
        assert_eq!(headers.ip().protocol(&frame), Some(frame[if frame[14] >> 4 == 4 { 23 } else { 20 }]));
        let len = frame.len();
        assert_eq!(headers.reverse(&mut frame[..len - 1]), Err(CannotRewrite::OtherFrame));
        assert_eq!((&frame, Headers::of(&frame)), (&there.bytes(), Ok(headers)));
        headers.reverse(&mut frame).unwrap();
        assert_eq!((&frame, Headers::of(&frame)), (&back.bytes(), Ok(headers)));
    }
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let payload = proptest::collection::vec(any::<u8>(), 0..60);
    let network = (any::<(u8, u8, u8)>(), 0_usize..3, 0_usize..20, any::<bool>());
    (any::<[u16; 8]>(), any::<[u16; 8]>(), any::<(u16, u16)>(), 0..3, network, payload).prop_map(
        |(source, destination, ports, kind, ((hop_limit, dscp, ecn), tags, padding, has_options), payload)| {
            let of = |words: [u16; 8], is_v4: bool| match is_v4 {
                true => IpAddr::from(Ipv4Addr::from_bits((u32::from(words[0]) << 16) | u32::from(words[1]))),
                false => Ipv6Addr::from(words).into(),
            };
            let (source, destination) = (of(source, ports.0 & 1 == 0), of(destination, ports.0 & 1 == 0));
            let ends = ((source, ports.0), (destination, ports.1));
            let frame = match kind {
                0 => Frame::udp(ends.0, ends.1),
                1 => Frame::tcp(ends.0, ends.1)
                    .sequence(u32::from(ports.0) << 7)
                    .acknowledged(u32::from(ports.1) << 16)
                    .window(ports.1)
                    .tcp_flags(ecn),
                _ => Frame::echo_request(source, destination).echo(ports.0, ports.1),
            };
            let ecn = [Ecn::NotCapable, Ecn::Capable1, Ecn::Capable0, Ecn::CongestionExperienced][usize::from(ecn & 3)];
            let frame = (0..tags).fold(frame, |frame, tag| frame.vlan(tag as u16));
            let frame = if has_options { frame.ip_options(&[1, 1, 1]).extension(60, &[1, 4]) } else { frame };
            let len = 14 + 4 * tags + frame.packet().len() + payload.len() + padding;
            frame.hop_limit(hop_limit).dscp(dscp & 63).ecn(ecn).payload(&payload).padded_to(len)
        },
    )
}

proptest! {
    #[test]
    fn fields_are_read_as_smoltcp_reads_them(frame in any_frame()) {
        let bytes = frame.bytes();
        let headers = Headers::of(&bytes).unwrap();
        let ip = headers.ip();
        let ethernet = EthernetFrame::new_checked(&bytes[..]).unwrap();
        let macs = macs(&bytes).unwrap();
        prop_assert_eq!((macs.source.0, macs.destination.0), (ethernet.src_addr().0, ethernet.dst_addr().0));
        prop_assert_eq!(vlans(&bytes).len(), usize::from(headers.vlan_tags));
        let class = (ip.dscp(&bytes).unwrap() << 2) | ip.ecn(&bytes).unwrap() as u8;
        let read = (ip.hop_limit(&bytes).unwrap(), class, ip.len);
        prop_assert_eq!(read, network_as_smoltcp_reads_it(&bytes, headers.at.network));
        prop_assert_eq!(Ip::of(&bytes), Ok(ip));
        let message = &bytes[headers.at.transport..headers.at.end];
        let payload = headers.payload(&bytes).unwrap();
        match headers.protocol {
            TCP => {
                let (tcp, read) = (TcpPacket::new_checked(message).unwrap(), headers.segment(&bytes).unwrap());
                prop_assert_eq!((read.sequence, read.acknowledged), (tcp.seq_number().0 as u32, tcp.ack_number().0 as u32));
                prop_assert_eq!((read.window, read.header_len), (tcp.window_len(), usize::from(tcp.header_len())));
                let flags = [read.flags.fin(), read.flags.syn(), read.flags.rst(), read.flags.psh(), read.flags.ack(), read.flags.urg()];
                prop_assert_eq!(flags, [tcp.fin(), tcp.syn(), tcp.rst(), tcp.psh(), tcp.ack(), tcp.urg()]);
                prop_assert_eq!([read.flags.ece(), read.flags.cwr()], [message[13] & 0x40 != 0, message[13] & 0x80 != 0]);
                prop_assert_eq!((payload, read.len as usize), (&message[usize::from(tcp.header_len())..], payload.len()));
            }
            UDP => prop_assert_eq!(payload, UdpPacket::new_checked(message).unwrap().payload()),
            _ => prop_assert_eq!(payload, &message[8..]),
        }
    }

    #[test]
    fn frames_of_tests_have_the_checksums_that_smoltcp_computes(frame in any_frame()) {
        prop_assert!(are_right(&frame.bytes()));
    }

    /// The frame with other fields is also the one that is made with them from the start.
    #[test]
    fn fields_are_changed_with_the_checksums_that_cover_them(
        frame in any_frame(), hop_limit: u8, dscp in 0_u8..64, ecn in 0_usize..4,
    ) {
        let ecn = [Ecn::NotCapable, Ecn::Capable1, Ecn::Capable0, Ecn::CongestionExperienced][ecn];
        let mut bytes = frame.bytes();
        let ip = Headers::of(&bytes).unwrap().ip();
        ip.set_hop_limit(&mut bytes, hop_limit).unwrap();
        ip.set_dscp(&mut bytes, dscp).unwrap();
        ip.set_ecn(&mut bytes, ecn).unwrap();
        prop_assert_eq!(network_as_smoltcp_reads_it(&bytes, ip.at), (hop_limit, (dscp << 2) | ecn as u8, ip.len));
        prop_assert!(are_right(&bytes));
        prop_assert_eq!(bytes, frame.hop_limit(hop_limit).dscp(dscp).ecn(ecn).bytes());
    }

    #[test]
    fn checksums_are_right_after_they_are_recomputed(
        frame in any_frame(), wrong: (u16, u16), changes in proptest::collection::vec(any::<(prop::sample::Index, u8)>(), 0..4),
    ) {
        let mut bytes = frame.clone().ip_checksum(wrong.0).checksum(wrong.1).bytes();
        let headers = Headers::of(&bytes).unwrap();
        let payload = headers.payload_mut(&mut bytes).unwrap();
        let len = payload.len();
        for (at, byte) in changes.iter().filter(|_| len > 0) {
            payload[at.index(len)] = *byte;
        }
        let payload = payload.to_vec();
        headers.recompute_checksums(&mut bytes).unwrap();
        prop_assert!(are_right(&bytes));
        prop_assert_eq!(&bytes, &frame.payload(&payload).bytes());
        prop_assert_eq!(headers.l4_checksum(&bytes), Checksum::Good);
        prop_assert_eq!(headers.ip().checksum(&bytes) != Checksum::Bad, true);
        let at = sum_at(&headers);
        bytes[at] ^= 1;
        prop_assert_eq!((headers.l4_checksum(&bytes), are_right(&bytes)), (Checksum::Bad, false));
    }

    #[test]
    fn no_bytes_make_an_accessor_panic(
        frame in proptest::collection::vec(any::<u8>(), 0..120), other in proptest::collection::vec(any::<u8>(), 0..140), which in 0_usize..4,
    ) {
        for start in [&[][..], &[0x08, 0, 0x45], &[0x86, 0xdd, 0x60], &[0x81, 0, 0, 1, 0x08, 0, 0x45]] {
            let mut frame = [&[2; 12][..], start, &frame].concat();
            let (read, mut other) = (Headers::of_part(&frame), [&[2; 12][..], start, &other].concat());
            let _ = (macs(&frame), vlans(&frame), set_vlan_id(&mut frame, which, 7));
            let quoted = read.and_then(|headers| headers.quoted(&frame).ok_or(Unreadable::NotIp));
            for mut headers in [read, quoted].into_iter().flatten() {
                for frame in [&mut frame, &mut other] {
                    let ip = headers.ip();
                    let _ = (ip.hop_limit(frame), ip.dscp(frame), ip.ecn(frame), ip.packet(frame), ip.checksum(frame));
                    let _ = (headers.segment(frame), headers.payload(frame).is_some(), headers.l4_checksum(frame));
                    let _ = (ip.decrement_hop_limit(frame), ip.set_dscp(frame, 3), ip.set_ecn(frame, Ecn::Capable1));
                    let _ = (headers.set_icmp(frame, 0, 0), headers.recompute_checksums(frame), headers.reverse(frame));
                }
            }
        }
    }

    #[test]
    fn of_a_whole_message_of_one_protocol_the_same_headers_are_read(
        frame in any_frame(), fragment in proptest::option::of((0_u16..3, any::<bool>())),
        changes in proptest::collection::vec((0_usize..60, any::<u8>()), 0..3), len in any::<prop::sample::Index>(), is_cut: bool,
    ) {
        let frame = match fragment {
            Some((offset, more)) => frame.fragment(8 * offset, more),
            None => frame,
        };
        let mut frame = frame.bytes();
        for (at, byte) in changes {
            let at = 12 + at % (frame.len() - 12);
            frame[at] = byte;
        }
        if is_cut {
            frame.truncate(len.index(frame.len()));
        }
        let read = Headers::of(&frame);
        let is_alone = |headers: &Headers| headers.fragment.is_none() && headers.at.transport - headers.at.network == headers.ip().header_len;
        let expected = |protocols: [u8; 2]| read.ok().filter(|it| is_alone(it) && protocols.contains(&it.protocol));
        prop_assert_eq!(Headers::of_udp(&frame).ok().flatten(), expected([UDP; 2]));
        let icmp = |it: &Headers| it.protocol == it.addresses.icmp();
        prop_assert_eq!(Headers::of_icmp(&frame).ok().flatten(), expected([ICMP, ICMPV6]).filter(icmp));
        for alone in [Headers::of_udp(&frame), Headers::of_icmp(&frame)] {
            prop_assert!(alone.is_ok() || read.is_err(), "what cannot be read of one protocol cannot be read at all");
        }
    }

    /// All that [`Headers::of`] reads has the IP header that [`Ip::of`] reads.
    #[test]
    fn the_ip_header_alone_is_that_of_the_headers(frame in any_frame(), changes in proptest::collection::vec((0_usize..60, any::<u8>()), 0..4)) {
        let mut frame = frame.bytes();
        for (at, byte) in changes {
            let at = 12 + at % (frame.len() - 12);
            frame[at] = byte;
        }
        if let Ok(headers) = Headers::of(&frame) {
            prop_assert_eq!(Ip::of(&frame), Ok(headers.ip()));
            let header = &frame[headers.at.network..headers.at.network + headers.ip().header_len];
            let is_right = headers.ip().checksum(&frame) == Checksum::Good;
            prop_assert_eq!(is_right, headers.addresses.source().is_ipv4() && checksum::of(header) == 0);
        }
    }
}
