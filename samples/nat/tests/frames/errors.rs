//! ICMP errors about translated packets, from outside and from inside (RFC 5508).

use std::net::Ipv4Addr;

use crate::support::*;
use crate::translation::{CONFIG, HOST, IN, OUT, OUTSIDE, PEER, nat, pass, port_of};
use nat::Nat;
use pinion_sdk::testing::{Harness, Outcome};

#[test]
fn an_error_from_outside_reaches_the_sender_of_the_quoted_packet() {
    let router = Ipv4Addr::new(192, 0, 2, 254);
    for kind in [3, 11, 12] {
        for shown in [28, 29, 33, 40, 60] {
            let mut nat = nat(CONFIG);
            let check = |nat: &mut Harness<Nat>, outside: &[u8], inside: &[u8]| {
                let shown = shown.min(outside.len());
                let told = pass(nat, &icmp(router, OUTSIDE, kind, [0, 0, 5, 0], &outside[..shown]));
                let expected = frame(&icmp(router, HOST, kind, [0, 0, 5, 0], &inside[..shown]));
                assert_eq!(told, (IN, expected), "type {kind}, {shown} bytes shown");
            };
            let port = port_of(&mut nat, (HOST, 5000));
            let sent = udp((OUTSIDE, port), (PEER, 53), &[7; 40]);
            check(&mut nat, &sent, &udp((HOST, 5000), (PEER, 53), &[7; 40]));

            let (_, bytes) = pass(&mut nat, &tcp((HOST, 4000), (PEER, 443), SYN, &[]));
            check(&mut nat, &bytes[14..], &tcp((HOST, 4000), (PEER, 443), SYN, &[]));

            let (_, bytes) = pass(&mut nat, &echo(HOST, PEER, 8, 77, &[9; 33]));
            check(&mut nat, &bytes[14..], &echo(HOST, PEER, 8, 77, &[9; 33]));
        }
    }
}

#[test]
fn an_error_that_quotes_a_first_fragment_is_translated_and_one_about_a_later_one_is_not() {
    let mut nat = nat(CONFIG);
    let port = port_of(&mut nat, (HOST, 5000));
    let parts = |from: End, fragment| ip_part(from.0, PEER, UDP, fragment, &udp(from, (PEER, 53), &[5; 64])[20..60]);
    let with_options = |datagram: Vec<u8>| {
        let mut header = [&[0x46, 0, 0, 64], &datagram[4..10], &[0, 0], &datagram[12..20], &[1; 4]].concat();
        let sum = pinion_sdk::checksum::of(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [&header[..], &datagram[20..]].concat()
    };
    let (outside, inside) = (parts((OUTSIDE, port), [0x20, 0]), parts((HOST, 5000), [0x20, 0]));
    for (outside, inside) in [(outside.clone(), inside.clone()), (with_options(outside), with_options(inside))] {
        for shown in [32, 60, outside.len()] {
            let told = pass(&mut nat, &icmp(PEER, OUTSIDE, 3, [0; 4], &outside[..shown]));
            assert_eq!(told, (IN, frame(&icmp(PEER, HOST, 3, [0; 4], &inside[..shown]))), "{shown} bytes shown");
        }
    }
    for fragment in [[0x20, 1], [0, 5]] {
        let later = parts((OUTSIDE, port), fragment);
        assert_eq!(pass(&mut nat, &icmp(PEER, OUTSIDE, 3, [0; 4], &later)).0, Outcome::Dropped);
    }
}

#[test]
fn an_error_from_inside_quotes_what_was_sent_to_the_outside_address() {
    let mut nat = nat(CONFIG);
    let port = port_of(&mut nat, (HOST, 5000));
    let router = Ipv4Addr::new(10, 0, 0, 1);
    for from in [HOST, router] {
        let arrived = udp((PEER, 53), (HOST, 5000), b"late answer");
        let told = pass(&mut nat, &icmp(from, PEER, 3, [0; 4], &arrived));
        let sent = udp((PEER, 53), (OUTSIDE, port), b"late answer");
        assert_eq!(told, (OUT, frame(&icmp(OUTSIDE, PEER, 3, [0; 4], &sent))));
    }
}

#[test]
fn errors_about_packets_that_were_not_sent_and_redirects_are_dropped() {
    let mut nat = nat(CONFIG);
    let port = port_of(&mut nat, (HOST, 5000));
    let known = udp((OUTSIDE, port), (PEER, 53), b"x");
    let unknown = udp((OUTSIDE, port ^ 1), (PEER, 53), b"x");
    let of_others = udp((PEER, port), (PEER, 53), b"x");
    for (kind, quoted) in [(3, &unknown), (3, &of_others), (4, &known), (5, &known)] {
        assert_eq!(pass(&mut nat, &icmp(PEER, OUTSIDE, kind, [0; 4], quoted)).0, Outcome::Dropped, "type {kind}");
    }
    assert_eq!(pass(&mut nat, &icmp(PEER, OUTSIDE, 3, [0; 4], &known[..20])).0, Outcome::Dropped);
    assert_eq!(pass(&mut nat, &icmp(PEER, OUTSIDE, 3, [0; 4], &known)).0, IN);
    // From inside: about a packet to a host without a mapping, and to another host than the quoted packet's sender.
    let router = Ipv4Addr::new(10, 0, 0, 1);
    let arrived = udp((PEER, 53), (HOST, 5000), b"x");
    for (to, quoted) in [(PEER, udp((PEER, 53), (HOST, 5001), b"x")), (Ipv4Addr::new(192, 0, 2, 1), arrived)] {
        assert_eq!(pass(&mut nat, &icmp(router, to, 3, [0; 4], &quoted)).0, Outcome::Dropped);
    }
    assert_eq!(nat.function().counters().bad_errors, 7);
    assert_eq!(nat.metric("nat_packets_dropped", &[("reason", "bad-error")]), Some(7));
}

#[test]
fn an_error_about_a_packet_between_two_inside_hosts_is_translated_twice() {
    let mut nat = nat(CONFIG);
    let (one, other) = ((HOST, 5000), end("10.0.0.8:6000"));
    let [one_port, other_port] = [one, other].map(|host| port_of(&mut nat, host));
    // The one sends to the other's outside end, which has it from the one's.
    let arrived = udp((OUTSIDE, one_port), other, b"x");
    let told = pass(&mut nat, &icmp(other.0, OUTSIDE, 3, [0, 0, 5, 0], &arrived));
    let sent = udp(one, (OUTSIDE, other_port), b"x");
    assert_eq!(told, (IN, frame(&icmp(OUTSIDE, HOST, 3, [0, 0, 5, 0], &sent))));
}
