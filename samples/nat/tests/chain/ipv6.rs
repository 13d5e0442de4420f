//! IPv6, through firewall and router.

use std::net::Ipv6Addr;

use crate::border::{Border, Left};
use pinion_sdk::testing::Frame;

fn address(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn host() -> Ipv6Addr {
    address("fd00::7")
}

fn peer() -> Ipv6Addr {
    address("2001:db8:1::9")
}

fn next_router() -> Ipv6Addr {
    address("2001:db8:2::fe")
}

/// Returns an ICMPv6 message with this type, code and second word.
fn icmp(from: Ipv6Addr, to: Ipv6Addr, [kind, code]: [u8; 2], word: [u8; 4], payload: &[u8]) -> Frame {
    Frame::icmp(from, to, kind, code, word).payload(payload)
}

/// Returns a datagram of the host to the peer.
fn asked(payload: &[u8]) -> Frame {
    Frame::udp((host(), 5000), (peer(), 443)).payload(payload)
}

/// Returns a datagram of the peer to the host.
fn answered(payload: &[u8]) -> Frame {
    Frame::udp((peer(), 443), (host(), 5000)).payload(payload)
}

fn outside(left: Vec<Left>) -> Vec<u8> {
    match &left[..] {
        [Left::Outside(datagram)] => datagram.clone(),
        other => panic!("{other:?}"),
    }
}

/// Returns sender, type and code, second word and quoted packet of an error to the host.
fn told(left: &[Left]) -> (Ipv6Addr, [u8; 2], [u8; 4], Vec<u8>) {
    let [Left::Inside(datagram)] = left else { panic!("{left:?}") };
    let from = Ipv6Addr::from(<[u8; 16]>::try_from(&datagram[8..24]).unwrap());
    let (kind, word) = ([datagram[40], datagram[41]], datagram[44..48].try_into().unwrap());
    let quoted = datagram[48..].to_vec();
    let expected = icmp(from, host(), kind, word, &quoted).hop_limit(datagram[7]);
    assert_eq!(datagram, &expected.packet(), "lengths and checksum are right");
    (from, kind, word, quoted)
}

#[test]
fn a_trace_of_the_route_shows_each_router_and_the_host_whether_by_udp_or_by_echoes() {
    let by_udp = |hop: u16| Frame::udp((host(), 40_000), (peer(), 33_434 + hop)).payload(&[7; 32]);
    let by_echo = |hop: u16| Frame::echo_request(host(), peer()).echo(77, hop).payload(&[7; 32]);
    type Probe<'a> = &'a dyn Fn(u16) -> Frame;
    let probes: [(Probe<'_>, bool); 2] = [(&by_udp, true), (&by_echo, false)];
    for (probe, is_udp) in probes {
        let mut border = Border::new();
        let sent = probe(0).hop_limit(1);
        let (from, kind, _, quoted) = told(&border.send_from_inside(&sent));
        assert_eq!((from, kind, quoted), (address("2001:db8:ff::fe"), [3, 0], sent.packet()));
        let there = outside(border.send_from_inside(&probe(1).hop_limit(2)));
        for shown in [48, there.len()] {
            let expired = icmp(next_router(), host(), [3, 0], [0; 4], &there[..shown]);
            let (from, kind, _, quoted) = told(&border.send_from_outside(&expired));
            assert_eq!((from, kind, quoted), (next_router(), [3, 0], there[..shown].to_vec()));
        }
        let there = outside(border.send_from_inside(&probe(2).hop_limit(3)));
        if is_udp {
            let closed = icmp(peer(), host(), [1, 4], [0; 4], &there);
            assert_eq!(told(&border.send_from_outside(&closed)), (peer(), [1, 4], [0; 4], there));
        } else {
            let reply = Frame::echo_reply(peer(), host()).echo(77, 2).payload(&[7; 32]);
            assert_eq!(border.send_from_outside(&reply), [Left::Inside(reply.hop_limit(63).packet())]);
        }
    }
}

#[test]
fn hosts_of_both_sides_learn_the_mtu_of_the_way() {
    let mut border = Border::new();
    // The chain's router, to either side.
    let sent = asked(&[7; 1453]);
    let (from, kind, word, quoted) = told(&border.send_from_inside(&sent));
    assert_eq!((from, kind, word), (address("2001:db8:ff::fe"), [2, 0], [0, 0, 0x05, 0x78]));
    assert_eq!(quoted, sent.packet()[..1280 - 48]);
    let answer = answered(&[7; 1300]);
    let back = outside(border.send_from_outside(&answer));
    assert_eq!((&back[40..42], &back[44..48]), (&[2, 0][..], &[0, 0, 0x05, 0x14][..]));
    assert_eq!(back[48..], answer.packet()[..1232]);
    // A router behind it.
    let passed = outside(border.send_from_inside(&asked(&[7; 1352])));
    let too_big = icmp(next_router(), host(), [2, 0], [0, 0, 5, 0], &passed[..1232]);
    let (from, kind, word, quoted) = told(&border.send_from_outside(&too_big));
    assert_eq!((from, kind, word, quoted), (next_router(), [2, 0], [0, 0, 5, 0], passed[..1232].to_vec()));
    // A router before it, inside.
    let sent = answered(&[7; 1252]);
    let arrived = sent.clone().hop_limit(63).packet();
    assert_eq!(border.send_from_outside(&sent), [Left::Inside(arrived.clone())]);
    let too_big = icmp(address("fd00::fe"), peer(), [2, 0], [0, 0, 5, 0], &arrived[..1232]);
    assert_eq!(outside(border.send_from_inside(&too_big)), too_big.hop_limit(63).packet());
}

#[test]
fn forged_errors_and_redirects_do_not_pass() {
    let mut border = Border::new();
    let passed = outside(border.send_from_inside(&asked(&[7; 100])));
    let guess = Frame::udp((host(), 5001), (peer(), 443)).payload(&[7; 100]).packet();
    let redirect = icmp(next_router(), host(), [137, 0], [0; 4], &passed);
    for forged in [icmp(next_router(), host(), [2, 0], [0, 0, 5, 0], &guess), redirect] {
        assert_eq!(border.send_from_outside(&forged), []);
    }
    let real = icmp(next_router(), host(), [2, 0], [0, 0, 5, 0], &passed);
    assert_eq!(told(&border.send_from_outside(&real)).3, passed);
}

#[test]
fn large_datagrams_in_fragments_pass_both_ways_in_whatever_order_they_come() {
    let passed = |part: &Frame| part.clone().hop_limit(63).packet();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
        let mut border = Border::new();
        let asked = asked(&[5; 3000]).fragments(1200);
        let there: Vec<_> = order.iter().flat_map(|at| border.send_from_inside(&asked[*at])).collect();
        assert_eq!(there.len(), 3);
        assert_eq!(there[0], Left::Outside(passed(&asked[0])));
        assert!(asked.iter().all(|part| there.contains(&Left::Outside(passed(part)))));
        let answered = answered(&[6; 2500]).fragments(1200);
        let back: Vec<_> = order.iter().flat_map(|at| border.send_from_outside(&answered[*at])).collect();
        assert_eq!(back.len(), 3);
        assert!(answered.iter().all(|part| back.contains(&Left::Inside(passed(part)))));
    }
}

#[test]
fn an_error_about_a_first_fragment_reaches_its_sender() {
    let mut border = Border::new();
    let asked = asked(&[5; 3000]).fragments(1200);
    let passed = outside(border.send_from_inside(&asked[0]));
    let too_big = icmp(next_router(), host(), [2, 0], [0, 0, 5, 0], &passed[..1232]);
    assert_eq!(told(&border.send_from_outside(&too_big)).3, passed[..1232].to_vec());
}
