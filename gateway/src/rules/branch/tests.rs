//! Tests of [`super`] with frames that are built byte by byte, and against a naive search.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::headers::Vlan;
use crate::rules::tests::{flow, matches, naively_fits};
use crate::test_frames::*;

const PORT: PortIndex = PortIndex(1);
const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const ICMP: u8 = 1;

fn met(cases: &[Match], frame: &[u8]) -> Option<usize> {
    BranchConditions::new(cases).first_met(frame, PORT)
}

fn web() -> Match {
    Match { protocol: Some(TCP), destination_ports: Some(80..=80), ..Match::default() }
}

fn of_protocol(protocol: u8) -> Match {
    Match { protocol: Some(protocol), ..Match::default() }
}

fn to_net(net: &str) -> Match {
    Match { destination: Some(net.parse().unwrap()), ..Match::default() }
}

#[test]
fn a_frame_meets_the_first_case_that_matches_it() {
    let cases = [web(), of_protocol(TCP), to_net("10.0.1.0/24")];
    let frame = |payload: &[u8], protocol| to_station(&ipv4(A, B, protocol, payload));
    assert_eq!(met(&cases, &frame(&tcp(5000, 80, b"x"), TCP)), Some(0));
    assert_eq!(met(&cases, &frame(&tcp(80, 5000, b"x"), TCP)), Some(1));
    assert_eq!(met(&cases, &frame(&udp(1, 80, b"x"), UDP)), Some(2));
    assert_eq!(met(&cases, &to_station(&ipv4(A, A, UDP, &udp(1, 80, b"x")))), None);
    let over_ipv6 = to_station(&ipv6(A6, B6, TCP, 64, &tcp(5000, 80, b"x")));
    assert_eq!(met(&cases, &over_ipv6), Some(0));
    let ended = to_station(&ipv4(A, B, TCP, &segment(5000, 80, FIN | ACK, b"")));
    assert_eq!(met(&cases, &ended), Some(0), "whatever the segment means");
}

#[test]
fn a_case_can_name_the_port_and_the_vlan_and_without_a_vlan_it_meets_untagged_frames_only() {
    let in_vlan = |id| Match { vlan: Vlan { id, inner_id: 0 }, ..web() };
    let here = Match { port: Some(PORT), ..web() };
    let elsewhere = Match { port: Some(PortIndex(2)), ..web() };
    let frame = to_station(&ipv4(A, B, TCP, &tcp(5000, 80, b"x")));
    let tagged = tagged(&frame, &[(0x8100, 7)]);
    assert_eq!(met(&[elsewhere.clone(), here.clone()], &frame), Some(1));
    assert_eq!([met(&[here], &tagged), met(&[in_vlan(8), in_vlan(7)], &tagged)], [None, Some(1)]);
    assert_eq!(met(&[in_vlan(7)], &frame), None);
}

#[test]
fn whom_a_frame_is_for_on_its_link_does_not_count() {
    let packet = ipv4(A, B, TCP, &tcp(5000, 80, b"x"));
    for (to, from) in [([0; 6], [0; 6]), ([0xff; 6], CLIENT), (CLIENT, STATION)] {
        assert_eq!(met(&[web()], &ethernet(to, from, IPV4, &packet)), Some(0), "{to:x?}");
    }
}

#[test]
fn all_fragments_of_a_datagram_meet_the_same_case_and_none_with_ports() {
    let cases = [web(), Match { icmp_type: Some(8), ..of_protocol(ICMP) }, of_protocol(TCP), to_net("10.0.1.0/24")];
    let first = |protocol, payload: &[u8]| to_station(&ipv4_fragment(A, B, protocol, [0x20, 0], payload));
    let later = |protocol| to_station(&ipv4_fragment(A, B, protocol, [0x20, 3], &[80; 24]));
    assert_eq!([met(&cases, &first(TCP, &tcp(5000, 80, b"1234"))), met(&cases, &later(TCP))], [Some(2); 2]);
    assert_eq!([met(&cases, &first(ICMP, &icmp_echo(1)[..16])), met(&cases, &later(ICMP))], [Some(3); 2]);
    let ports = Match { destination_ports: Some(0..=80), ..of_protocol(UDP) };
    assert_eq!(met(&[ports], &later(UDP)), None, "it has no port, not port 0");
    let in_ipv6 = |offset: u8| {
        let header = [TCP, 0, 0, offset | 1, 0, 0, 0, 9];
        to_station(&ipv6(A6, B6, 44, 64, &[&header[..], &tcp(5000, 80, b"1234")].concat()))
    };
    assert_eq!([met(&cases, &in_ipv6(0)), met(&cases, &in_ipv6(64))], [Some(2); 2]);
}

#[test]
fn groups_meet_only_cases_that_name_them() {
    let any_udp = of_protocol(UDP);
    let to = |address: [u8; 4]| {
        ethernet([1, 0, 0x5e, 0, 0, 1], CLIENT, IPV4, &ipv4(A, address.into(), UDP, &udp(1, 2, b"x")))
    };
    let cases = [any_udp.clone(), to_net("0.0.0.0/0"), to_net("224.0.0.0/4"), to_net("255.255.255.255/32")];
    assert_eq!(met(&cases, &to([224, 0, 0, 251])), Some(2));
    assert_eq!(met(&cases, &to([255; 4])), Some(3));
    assert_eq!(met(&cases, &to([10, 0, 0, 255])), Some(0), "a broadcast address of some network");
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let over_ipv6 = to_station(&ipv6(A6, group, UDP, 64, &udp(1, 2, b"x")));
    assert_eq!(met(&[any_udp, to_net("::/0"), to_net("ff00::/8")], &over_ipv6), Some(2));
}

#[test]
fn an_icmp_error_meets_the_case_of_the_answers_to_what_it_quotes_or_one_that_names_its_type() {
    let error = |quoted: &[u8]| to_station(&ipv4(B, A, ICMP, &[&[3, 1, 0, 0, 0, 0, 0, 0], &quoted[..28]].concat()));
    // What the server of port 80 has sent, so that the answers are for it.
    let about_web = error(&ipv4(A, B, TCP, &tcp(80, 5000, b"")));
    let about_other = error(&ipv4(A, B, UDP, &udp(80, 5000, b"")));
    let unreachable = Match { icmp_type: Some(3), ..of_protocol(ICMP) };
    let cases = [of_protocol(ICMP), Match::default(), web(), unreachable.clone()];
    assert_eq!(met(&cases, &about_web), Some(1), "everything matches the answers");
    let cases = [of_protocol(ICMP), unreachable, web()];
    assert_eq!([met(&cases, &about_web), met(&cases, &about_other)], [Some(2), Some(1)]);
    assert_eq!(met(&[of_protocol(ICMP)], &about_web), None, "an error as such meets only what names its type");
}

/// Returns a frame as a branch of an output is shown it.
fn at_an_output(frame: &[u8]) -> Vec<u8> {
    let mut shown = frame.to_vec();
    shown.iter_mut().skip(HEAD_BYTES).for_each(|byte| *byte = 0);
    shown
}

/// Returns a packet with so many bytes of destination options in front of this header and what follows it.
fn behind_options(option_bytes: usize, (from, to): (Ipv6Addr, Ipv6Addr), protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut options = vec![0; option_bytes];
    (options[0], options[1]) = (protocol, (option_bytes / 8 - 1) as u8);
    ipv6(from, to, 60, 64, &[&options[..], payload].concat())
}

#[test]
fn a_packet_whose_headers_end_behind_the_first_256_bytes_meets_no_case_at_entrances_and_outputs() {
    let cases = [of_protocol(UDP), of_protocol(TCP), Match { icmp_type: Some(128), ..of_protocol(ICMPV6) }];
    let echo = [&[128, 0, 0, 0][..], &[7; 300]].concat();
    for (case, protocol, payload, fields) in
        [(0, UDP, udp(5000, 80, &[1; 300]), 8), (1, TCP, tcp(5000, 80, &[1; 300]), 20), (2, ICMPV6, echo, 1)]
    {
        for option_bytes in (8..=320).step_by(8) {
            let frame = to_station(&behind_options(option_bytes, (A6, B6), protocol, &payload));
            let expected = (14 + 40 + option_bytes + fields <= HEAD_BYTES).then_some(case);
            assert_eq!(met(&cases, &frame), expected, "{option_bytes} bytes of options before {protocol}");
            assert_eq!(met(&cases, &at_an_output(&frame)), expected, "{option_bytes} bytes at an output");
        }
    }
    let long = to_station(&ipv6(A6, B6, TCP, 64, &tcp(5000, 80, &[1; 1400])));
    assert_eq!([met(&[web()], &long), met(&[web()], &at_an_output(&long))], [Some(0); 2]);
}

#[test]
fn an_error_of_which_the_quoted_headers_end_behind_the_first_256_bytes_meets_no_case() {
    let unreachable = Match { icmp_type: Some(1), ..of_protocol(ICMPV6) };
    let cases = [unreachable, web()];
    let error = |quote: &[u8]| to_station(&ipv6(B6, A6, ICMPV6, 64, &[&[1, 0, 0, 0, 0, 0, 0, 0], quote].concat()));
    for option_bytes in (8..=240).step_by(8) {
        let frame = error(&behind_options(option_bytes, (A6, B6), TCP, &tcp(80, 5000, &[1; 300])));
        let expected = (14 + 40 + 8 + 40 + option_bytes + 4 <= HEAD_BYTES).then_some(1);
        assert_eq!(met(&cases, &frame), expected, "{option_bytes} bytes of options");
        assert_eq!(met(&cases, &at_an_output(&frame)), expected, "{option_bytes} bytes at an output");
    }
    // A quote that ends before ports does so wherever it is looked at, also if padding is behind it.
    let cut = error(&ipv6(A6, B6, TCP, 64, &tcp(80, 5000, b""))[..42]);
    let padded = [&cut[..], &[0; 300]].concat();
    assert_eq!([met(&cases, &cut), met(&cases, &padded)], [Some(0); 2]);
}

#[test]
fn what_is_no_packet_meets_no_case() {
    let everything = [Match::default(), to_net("0.0.0.0/0"), to_net("::/0")];
    let whole = to_station(&ipv4(A, B, TCP, &tcp(5000, 80, b"")));
    for len in 0..whole.len() {
        assert_eq!(met(&everything, &whole[..len]), None, "{len} bytes");
    }
    assert_eq!(met(&everything, &whole), Some(0));
    let mut broken = whole.clone();
    broken[24] ^= 1;
    let arp = arp_request((CLIENT, A), B);
    let neighbor = solicitation(A6, B6);
    let message = ethernet(STATION, CLIENT, 0x88b5, &[0; 60]);
    for frame in [broken, arp, neighbor, message] {
        assert_eq!(met(&everything, &frame), None, "{frame:x?}");
    }
}

/// Returns a frame of a flow.
fn frame_of(flow: &FlowKey) -> Vec<u8> {
    let payload = match (flow.protocol(), flow.icmp_type()) {
        (TCP, _) => tcp(flow.source_port(), flow.destination_port(), b"x"),
        (UDP, _) => udp(flow.source_port(), flow.destination_port(), b"x"),
        (_, Some(icmp_type)) => vec![icmp_type; 8],
        _ => vec![0; 8],
    };
    let frame = to_station(&match (flow.source(), flow.destination()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4(from, to, flow.protocol(), &payload),
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6(from, to, flow.protocol(), 64, &payload),
        mixed => panic!("{mixed:?}"),
    });
    match flow.ingress().vlan {
        Vlan::UNTAGGED => frame,
        Vlan { id, inner_id: 0 } => tagged(&frame, &[(0x8100, id)]),
        Vlan { id, inner_id } => tagged(&frame, &[(0x88a8, id), (0x8100, inner_id)]),
    }
}

proptest! {
    #[test]
    fn a_frame_meets_what_a_naive_search_finds(
        cases in proptest::collection::vec(matches(), 1..17),
        flows in proptest::collection::vec(flow(), 1..40),
    ) {
        let conditions = BranchConditions::new(&cases);
        for flow in flows {
            let expected = cases.iter().position(|matches| naively_fits(matches, &flow));
            prop_assert_eq!(conditions.first_met(&frame_of(&flow), flow.ingress().port), expected, "{:?}", flow);
        }
    }

    #[test]
    fn no_bytes_make_a_branch_panic(
        cases in proptest::collection::vec(matches(), 1..17),
        frame in proptest::collection::vec(any::<u8>(), 0..200),
        (flow, at, byte) in (flow(), any::<prop::sample::Index>(), any::<u8>()),
    ) {
        let conditions = BranchConditions::new(&cases);
        conditions.first_met(&frame, PORT);
        let mut changed = frame_of(&flow);
        *at.get_mut(&mut changed) = byte;
        conditions.first_met(&changed, PORT);
        conditions.first_met(&changed[..at.index(changed.len())], PORT);
    }
}
