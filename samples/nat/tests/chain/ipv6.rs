//! IPv6, through firewall and router.

use std::net::Ipv6Addr;

use crate::border::{Border, Left};
use pinion_sdk::checksum;

const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;

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

fn ipv6(from: Ipv6Addr, to: Ipv6Addr, next_header: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16).to_be_bytes();
    [&[0x60, 0, 0, 0, len[0], len[1], next_header, hop_limit][..], &from.octets(), &to.octets(), payload].concat()
}

fn sum(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, message: &[u8]) -> u16 {
    let len = (message.len() as u32).to_be_bytes();
    checksum::of(&[&from.octets()[..], &to.octets(), &len, &[0, 0, 0, protocol], message].concat())
}

fn udp(from: (Ipv6Addr, u16), to: (Ipv6Addr, u16), hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len() as u16).to_be_bytes();
    let mut datagram = [&from.1.to_be_bytes()[..], &to.1.to_be_bytes(), &len, &[0, 0], payload].concat();
    let sum = sum(from.0, to.0, UDP, &datagram);
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    ipv6(from.0, to.0, UDP, hop_limit, &datagram)
}

/// Returns an ICMPv6 message with this type, code and second word.
fn icmp(from: Ipv6Addr, to: Ipv6Addr, [kind, code]: [u8; 2], word: [u8; 4], hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], &word, payload].concat();
    let sum = sum(from, to, ICMPV6, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ipv6(from, to, ICMPV6, hop_limit, &message)
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
    let of = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&datagram[at..at + 16]).unwrap());
    assert_eq!(of(24), host());
    assert_eq!(sum(of(8), host(), ICMPV6, &datagram[40..]), 0);
    (of(8), [datagram[40], datagram[41]], datagram[44..48].try_into().unwrap(), datagram[48..].to_vec())
}

fn with_hop_limit(datagram: &[u8], hop_limit: u8) -> Vec<u8> {
    let mut datagram = datagram.to_vec();
    datagram[7] = hop_limit;
    datagram
}

#[test]
fn a_trace_of_the_route_shows_each_router_and_the_host_whether_by_udp_or_by_echoes() {
    let by_udp = |hop: u16, hop_limit| udp((host(), 40_000), (peer(), 33_434 + hop), hop_limit, &[7; 32]);
    let by_echo = |hop: u16, hop_limit| icmp(host(), peer(), [128, 0], [0, 77, 0, hop as u8], hop_limit, &[7; 32]);
    type Probe<'a> = &'a dyn Fn(u16, u8) -> Vec<u8>;
    let probes: [(Probe<'_>, bool); 2] = [(&by_udp, true), (&by_echo, false)];
    for (probe, is_udp) in probes {
        let mut border = Border::new();
        let sent = probe(0, 1);
        let (from, kind, _, quoted) = told(&border.send_from_inside(&sent));
        assert_eq!((from, kind, quoted), (address("2001:db8:ff::fe"), [3, 0], sent));
        let there = outside(border.send_from_inside(&probe(1, 2)));
        for shown in [48, there.len()] {
            let expired = icmp(next_router(), host(), [3, 0], [0; 4], 64, &there[..shown]);
            let (from, kind, _, quoted) = told(&border.send_from_outside(&expired));
            assert_eq!((from, kind, quoted), (next_router(), [3, 0], there[..shown].to_vec()));
        }
        let there = outside(border.send_from_inside(&probe(2, 3)));
        if is_udp {
            let closed = icmp(peer(), host(), [1, 4], [0; 4], 64, &there);
            assert_eq!(told(&border.send_from_outside(&closed)), (peer(), [1, 4], [0; 4], there));
        } else {
            let reply = icmp(peer(), host(), [129, 0], [0, 77, 0, 2], 64, &[7; 32]);
            assert_eq!(border.send_from_outside(&reply), [Left::Inside(with_hop_limit(&reply, 63))]);
        }
    }
}

#[test]
fn hosts_of_both_sides_learn_the_mtu_of_the_way() {
    let mut border = Border::new();
    let (here, there) = ((host(), 5000), (peer(), 443));
    // The chain's router, to either side.
    let sent = udp(here, there, 64, &[7; 1453]);
    let (from, kind, word, quoted) = told(&border.send_from_inside(&sent));
    assert_eq!((from, kind, word), (address("2001:db8:ff::fe"), [2, 0], [0, 0, 0x05, 0x78]));
    assert_eq!(quoted, sent[..1280 - 48]);
    let answer = udp(there, here, 64, &[7; 1300]);
    let back = outside(border.send_from_outside(&answer));
    assert_eq!((&back[40..42], &back[44..48], &back[48..]), (&[2, 0][..], &[0, 0, 0x05, 0x14][..], &answer[..1232]));
    // A router behind it.
    let passed = outside(border.send_from_inside(&udp(here, there, 64, &[7; 1352])));
    let too_big = icmp(next_router(), host(), [2, 0], [0, 0, 5, 0], 64, &passed[..1232]);
    let (from, kind, word, quoted) = told(&border.send_from_outside(&too_big));
    assert_eq!((from, kind, word, quoted), (next_router(), [2, 0], [0, 0, 5, 0], passed[..1232].to_vec()));
    // A router before it, inside.
    let arrived = udp(there, here, 63, &[7; 1252]);
    assert_eq!(border.send_from_outside(&with_hop_limit(&arrived, 64)), [Left::Inside(arrived.clone())]);
    let too_big = icmp(address("fd00::fe"), peer(), [2, 0], [0, 0, 5, 0], 64, &arrived[..1232]);
    assert_eq!(outside(border.send_from_inside(&too_big)), with_hop_limit(&too_big, 63));
}

#[test]
fn forged_errors_and_redirects_do_not_pass() {
    let mut border = Border::new();
    let passed = outside(border.send_from_inside(&udp((host(), 5000), (peer(), 443), 64, &[7; 100])));
    let guess = udp((host(), 5001), (peer(), 443), 63, &[7; 100]);
    let redirect = icmp(next_router(), host(), [137, 0], [0; 4], 64, &passed);
    for forged in [icmp(next_router(), host(), [2, 0], [0, 0, 5, 0], 64, &guess), redirect] {
        assert_eq!(border.send_from_outside(&forged), []);
    }
    let real = icmp(next_router(), host(), [2, 0], [0, 0, 5, 0], 64, &passed);
    assert_eq!(told(&border.send_from_outside(&real)).3, passed);
}

/// Splits a datagram into fragments with this many bytes.
fn split(datagram: &[u8], bytes: usize) -> Vec<Vec<u8>> {
    let of = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&datagram[at..at + 16]).unwrap());
    let pieces: Vec<&[u8]> = datagram[40..].chunks(bytes).collect();
    let part = |(number, piece): (usize, &&[u8])| {
        let [high, low] = ((number * bytes) as u16 | u16::from(number + 1 < pieces.len())).to_be_bytes();
        let header = [datagram[6], 0, high, low, 0, 0, 0, 9];
        ipv6(of(8), of(24), FRAGMENT, 64, &[&header[..], piece].concat())
    };
    pieces.iter().enumerate().map(part).collect()
}

#[test]
fn large_datagrams_in_fragments_pass_both_ways_in_whatever_order_they_come() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
        let mut border = Border::new();
        let asked = split(&udp((host(), 5000), (peer(), 53), 64, &[5; 3000]), 1200);
        let there: Vec<_> = order.iter().flat_map(|at| border.send_from_inside(&asked[*at])).collect();
        assert_eq!(there.len(), 3);
        assert_eq!(there[0], Left::Outside(with_hop_limit(&asked[0], 63)));
        assert!(asked.iter().all(|part| there.contains(&Left::Outside(with_hop_limit(part, 63)))));
        let answered = split(&udp((peer(), 53), (host(), 5000), 64, &[6; 2500]), 1200);
        let back: Vec<_> = order.iter().flat_map(|at| border.send_from_outside(&answered[*at])).collect();
        assert_eq!(back.len(), 3);
        assert!(answered.iter().all(|part| back.contains(&Left::Inside(with_hop_limit(part, 63)))));
    }
}

#[test]
fn an_error_about_a_first_fragment_reaches_its_sender() {
    let mut border = Border::new();
    let asked = split(&udp((host(), 5000), (peer(), 53), 64, &[5; 3000]), 1200);
    let passed = outside(border.send_from_inside(&asked[0]));
    let too_big = icmp(next_router(), host(), [2, 0], [0, 0, 5, 0], 64, &passed[..1232]);
    assert_eq!(told(&border.send_from_outside(&too_big)).3, passed[..1232].to_vec());
}
