//! IPv4, through all three.

use std::net::Ipv4Addr;

use crate::border::{Border, Left};
use crate::support::*;
use firewall::Firewall;
use nat::Nat;
use pinion_sdk::checksum;
use pinion_sdk::testing::Frame;

const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
/// The chain's router, one behind it outside, and one before it inside.
const ROUTER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 254);
const NEXT_ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const INSIDE_ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

/// Returns an error with this type, code and second word.
fn error(from: Ipv4Addr, to: Ipv4Addr, (kind, code): (u8, u8), word: [u8; 4], quoted: &[u8]) -> Frame {
    Frame::icmp(from, to, kind, code, word).payload(quoted)
}

/// Returns the only datagram, which has left outside.
fn outside(left: Vec<Left>) -> Vec<u8> {
    match &left[..] {
        [Left::Outside(datagram)] => datagram.clone(),
        other => panic!("{other:?}"),
    }
}

/// Returns the only datagram, which has left inside.
fn inside(left: Vec<Left>) -> Vec<u8> {
    match &left[..] {
        [Left::Inside(datagram)] => datagram.clone(),
        other => panic!("{other:?}"),
    }
}

/// Returns sender, type, code, second word and quoted packet of an error to the host, whose checksums are right.
fn told(datagram: &[u8]) -> (Ipv4Addr, (u8, u8), [u8; 4], Vec<u8>) {
    assert_eq!((checksum::of(&datagram[..20]), checksum::of(&datagram[20..])), (0, 0));
    assert_eq!(datagram[16..20], HOST.octets());
    let from = Ipv4Addr::new(datagram[12], datagram[13], datagram[14], datagram[15]);
    (from, (datagram[20], datagram[21]), datagram[24..28].try_into().unwrap(), datagram[28..].to_vec())
}

#[test]
fn a_trace_of_the_route_shows_each_router_and_the_host_whether_by_udp_or_by_echoes() {
    let by_udp = |hop: u16| udp((HOST, 40_000), (PEER, 33_434 + hop), &[7; 32]);
    let by_echo = |hop: u16| request(HOST, PEER, 77, &[hop as u8; 32]);
    type Probe<'a> = &'a dyn Fn(u16) -> Frame;
    let probes: [(Probe<'_>, bool); 2] = [(&by_udp, true), (&by_echo, false)];
    for (probe, is_udp) in probes {
        let mut border = Border::new();
        // The chain's router tells by itself, and quotes what the host has sent.
        let sent = probe(0).hop_limit(1);
        let (from, kind, _, quoted) = told(&inside(border.send_from_inside(&sent)));
        assert_eq!((from, kind, quoted), (ROUTER, (11, 0), sent.packet()));
        // The router behind it has the packet with its outside address.
        let sent = probe(1).hop_limit(2);
        let there = outside(border.send_from_inside(&sent));
        assert_eq!((there[8], &there[12..16]), (1, &OUTSIDE.octets()[..]));
        for shown in [28, there.len()] {
            let expired = error(NEXT_ROUTER, OUTSIDE, (11, 0), [0; 4], &there[..shown]);
            let (from, kind, _, quoted) = told(&inside(border.send_from_outside(&expired)));
            assert_eq!((from, kind), (NEXT_ROUTER, (11, 0)));
            assert_eq!(quoted, sent.clone().hop_limit(1).packet()[..shown]);
        }
        // The host answers: that its port is closed, or the echo.
        let sent = probe(2).hop_limit(3);
        let there = outside(border.send_from_inside(&sent));
        if is_udp {
            let closed = error(PEER, OUTSIDE, (3, 3), [0; 4], &there);
            let (from, kind, _, quoted) = told(&inside(border.send_from_outside(&closed)));
            assert_eq!((from, kind, quoted), (PEER, (3, 3), sent.hop_limit(2).packet()));
        } else {
            let id = u16::from_be_bytes([there[24], there[25]]);
            let replied = inside(border.send_from_outside(&reply(PEER, OUTSIDE, id, &[2; 32])));
            assert_eq!(replied, reply(PEER, HOST, 77, &[2; 32]).hop_limit(63).packet());
        }
    }
}

/// Begins a connection from inside; returns its outside end.
fn connect(border: &mut Border) -> End {
    let syn = outside(border.send_from_inside(&tcp((HOST, 5000), (PEER, 443), SYN, b"")));
    let outside_end = (OUTSIDE, u16::from_be_bytes([syn[20], syn[21]]));
    let answer = tcp((PEER, 443), outside_end, SYN | ACK, b"");
    let _ = inside(border.send_from_outside(&answer));
    outside_end
}

#[test]
fn a_host_inside_learns_the_mtu_of_the_way_from_each_router_on_it() {
    let mut border = Border::new();
    let _ = connect(&mut border);
    let segment = |len: usize| tcp((HOST, 5000), (PEER, 443), ACK, &vec![7; len - 40]);
    // The chain's router, whose way outside carries 1400 bytes.
    let sent = segment(1500);
    let (from, kind, word, quoted) = told(&inside(border.send_from_inside(&sent)));
    assert_eq!((from, kind, word), (ROUTER, (3, 4), [0, 0, 0x05, 0x78]));
    assert_eq!(quoted, sent.packet()[..548]);
    // The next one, whose way carries 1280.
    let sent = segment(1400);
    let there = outside(border.send_from_inside(&sent));
    let needed = error(NEXT_ROUTER, OUTSIDE, (3, 4), [0, 0, 5, 0], &there[..28]);
    let (from, kind, word, quoted) = told(&inside(border.send_from_outside(&needed)));
    assert_eq!((from, kind, word), (NEXT_ROUTER, (3, 4), [0, 0, 5, 0]));
    assert_eq!(quoted, sent.hop_limit(63).packet()[..28]);
    assert_eq!(outside(border.send_from_inside(&segment(1280))).len(), 1280);
}

#[test]
fn a_host_outside_learns_the_mtu_of_the_way_inside() {
    let mut border = Border::new();
    let end = connect(&mut border);
    // The chain's router, whose way inside carries 1300 bytes.
    let sent = tcp((PEER, 443), end, ACK, &[7; 1400 - 40]);
    let told = outside(border.send_from_outside(&sent));
    assert_eq!(told[12..20], [ROUTER.octets(), PEER.octets()].concat());
    assert_eq!(
        (&told[20..22], &told[24..28], &told[28..]),
        (&[3, 4][..], &[0, 0, 0x05, 0x14][..], &sent.packet()[..548])
    );
    // A router inside has the packet with the host's address, and tells the peer of the outside one.
    let sent = tcp((PEER, 443), end, ACK, &[7; 1300 - 40]);
    let arrived = inside(border.send_from_outside(&sent));
    assert_eq!(arrived[16..20], HOST.octets());
    let needed = error(INSIDE_ROUTER, PEER, (3, 4), [0, 0, 5, 0], &arrived[..40]);
    let told = outside(border.send_from_inside(&needed));
    let quoted = &sent.hop_limit(63).packet()[..40];
    assert_eq!(told, error(OUTSIDE, PEER, (3, 4), [0, 0, 5, 0], quoted).hop_limit(63).packet());
}

#[test]
fn forged_errors_pass_neither_translator_nor_firewall() {
    let mut border = Border::new();
    let end = connect(&mut border);
    let about = |from: End, to: End| tcp(from, to, ACK, b"guess").packet();
    let forged = |quoted: &[u8]| error(NEXT_ROUTER, OUTSIDE, (3, 4), [0, 0, 5, 0], quoted);
    // A port without a mapping, and another sender than the error's receiver.
    for quoted in [about((OUTSIDE, end.1 ^ 1), (PEER, 443)), about((PEER, end.1), (PEER, 443))] {
        assert_eq!(border.send_from_outside(&forged(&quoted)), []);
    }
    assert_eq!(border.v4.harness::<Nat>(1).function().counters().bad_errors, 2);
    // The port of a mapping, but a peer with which there is no connection.
    assert_eq!(border.send_from_outside(&forged(&about(end, (PEER, 444)))), []);
    let denied = border.v4.harness::<Firewall>(0).metric("firewall_packets_denied", &[("reason", "bad-error")]);
    assert_eq!(denied, Some(1));
    assert_eq!(inside(border.send_from_outside(&forged(&about(end, (PEER, 443)))))[20..22], [3, 4]);
}

/// Puts the payloads of fragments together.
fn together(mut parts: Vec<Vec<u8>>) -> Vec<u8> {
    parts.sort_by_key(|part| u16::from_be_bytes([part[6] & 0x1f, part[7]]));
    parts.iter().flat_map(|part| part[20..].to_vec()).collect()
}

#[test]
fn large_datagrams_in_fragments_pass_both_ways_in_whatever_order_they_come() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
        let mut border = Border::new();
        let asked = udp((HOST, 5000), (PEER, 53), &[5; 3000]).fragments(1200);
        let there: Vec<_> = order.iter().flat_map(|at| border.send_from_inside(&asked[*at])).collect();
        let parts: Vec<_> = there.into_iter().map(|left| outside(vec![left])).collect();
        assert_eq!(parts.len(), 3);
        let there = together(parts);
        let port = u16::from_be_bytes([there[0], there[1]]);
        assert_eq!(there, udp((OUTSIDE, port), (PEER, 53), &[5; 3000]).message());
        let answered = udp((PEER, 53), (OUTSIDE, port), &[6; 2500]).fragments(1200);
        let back: Vec<_> = order.iter().flat_map(|at| border.send_from_outside(&answered[*at])).collect();
        let parts: Vec<_> = back.into_iter().map(|left| inside(vec![left])).collect();
        assert_eq!(parts.len(), 3);
        assert_eq!(together(parts), udp((PEER, 53), (HOST, 5000), &[6; 2500]).message());
    }
}

#[test]
fn an_error_about_a_first_fragment_reaches_its_sender() {
    let mut border = Border::new();
    let asked = udp((HOST, 5000), (PEER, 53), &[5; 3000]).hop_limit(2).fragments(1200);
    // Its later fragment has come before it.
    assert_eq!(border.send_from_inside(&asked[1]), []);
    let left = border.send_from_inside(&asked[0]);
    let [Left::Outside(first), Left::Outside(_)] = &left[..] else { panic!("{left:?}") };
    let expired = error(NEXT_ROUTER, OUTSIDE, (11, 0), [0; 4], &first[..28]);
    let (from, kind, _, quoted) = told(&inside(border.send_from_outside(&expired)));
    assert_eq!((from, kind, quoted), (NEXT_ROUTER, (11, 0), asked[0].clone().hop_limit(1).packet()[..28].to_vec()));
}
