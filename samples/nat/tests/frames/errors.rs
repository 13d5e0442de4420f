//! ICMP errors about translated packets, from outside and from inside (RFC 5508).

use std::net::Ipv4Addr;

use crate::support::*;
use crate::translation::{CONFIG, HOST, IN, OUT, OUTSIDE, PEER, nat, pass, port_of};
use nat::Nat;
use pinion_sdk::headers::UDP;
use pinion_sdk::testing::{Frame, Harness, Outcome};

#[test]
fn an_error_from_outside_reaches_the_sender_of_the_quoted_packet() {
    let router = Ipv4Addr::new(192, 0, 2, 254);
    for kind in [3, 11, 12] {
        for shown in [28, 29, 33, 40, 60] {
            let mut nat = nat(CONFIG);
            let check = |nat: &mut Harness<Nat>, outside: &[u8], inside: &[u8]| {
                let shown = shown.min(outside.len());
                let told = pass(nat, &icmp(router, OUTSIDE, kind, [0, 0, 5, 0], &outside[..shown]));
                let expected = icmp(router, HOST, kind, [0, 0, 5, 0], &inside[..shown]).bytes();
                assert_eq!(told, (IN, expected), "type {kind}, {shown} bytes shown");
            };
            let port = port_of(&mut nat, (HOST, 5000));
            let sent = udp((OUTSIDE, port), (PEER, 53), &[7; 40]).packet();
            check(&mut nat, &sent, &udp((HOST, 5000), (PEER, 53), &[7; 40]).packet());

            let (_, bytes) = pass(&mut nat, &tcp((HOST, 4000), (PEER, 443), SYN, &[]));
            check(&mut nat, &bytes[14..], &tcp((HOST, 4000), (PEER, 443), SYN, &[]).packet());

            let (_, bytes) = pass(&mut nat, &request(HOST, PEER, 77, &[9; 33]));
            check(&mut nat, &bytes[14..], &request(HOST, PEER, 77, &[9; 33]).packet());
        }
    }
}

#[test]
fn an_error_that_quotes_a_first_fragment_is_translated_and_one_about_a_later_one_is_not() {
    let mut nat = nat(CONFIG);
    let port = port_of(&mut nat, (HOST, 5000));
    let first = |from: End| udp(from, (PEER, 53), &[5; 64]).fragments(40).remove(0);
    let plain = [first((OUTSIDE, port)), first((HOST, 5000))];
    let with_options = plain.clone().map(|frame| frame.ip_options(&[1; 4]));
    for [outside, inside] in [plain, with_options].map(|frames| frames.map(|frame| frame.packet())) {
        for shown in [32, 60, outside.len()] {
            let told = pass(&mut nat, &icmp(PEER, OUTSIDE, 3, [0; 4], &outside[..shown]));
            assert_eq!(told, (IN, icmp(PEER, HOST, 3, [0; 4], &inside[..shown]).bytes()), "{shown} bytes shown");
        }
    }
    for (offset, more) in [(8, true), (40, false)] {
        let later = Frame::other(UDP, OUTSIDE, PEER).fragment(offset, more).payload(&[5; 40]).packet();
        assert_eq!(pass(&mut nat, &icmp(PEER, OUTSIDE, 3, [0; 4], &later)).0, Outcome::Dropped);
    }
}

#[test]
fn an_error_from_inside_quotes_what_was_sent_to_the_outside_address() {
    let mut nat = nat(CONFIG);
    let port = port_of(&mut nat, (HOST, 5000));
    let router = Ipv4Addr::new(10, 0, 0, 1);
    for from in [HOST, router] {
        let arrived = udp((PEER, 53), (HOST, 5000), b"late answer").packet();
        let told = pass(&mut nat, &icmp(from, PEER, 3, [0; 4], &arrived));
        let sent = udp((PEER, 53), (OUTSIDE, port), b"late answer").packet();
        assert_eq!(told, (OUT, icmp(OUTSIDE, PEER, 3, [0; 4], &sent).bytes()));
    }
}

#[test]
fn errors_about_packets_that_were_not_sent_and_redirects_are_dropped() {
    let mut nat = nat(CONFIG);
    let port = port_of(&mut nat, (HOST, 5000));
    let known = udp((OUTSIDE, port), (PEER, 53), b"x").packet();
    let unknown = udp((OUTSIDE, port ^ 1), (PEER, 53), b"x").packet();
    let of_others = udp((PEER, port), (PEER, 53), b"x").packet();
    for (kind, quoted) in [(3, &unknown), (3, &of_others), (4, &known), (5, &known)] {
        assert_eq!(pass(&mut nat, &icmp(PEER, OUTSIDE, kind, [0; 4], quoted)).0, Outcome::Dropped, "type {kind}");
    }
    assert_eq!(pass(&mut nat, &icmp(PEER, OUTSIDE, 3, [0; 4], &known[..20])).0, Outcome::Dropped);
    assert_eq!(pass(&mut nat, &icmp(PEER, OUTSIDE, 3, [0; 4], &known)).0, IN);
    // From inside: about a packet to a host without a mapping, and to another host than the quoted packet's sender.
    let router = Ipv4Addr::new(10, 0, 0, 1);
    let arrived = udp((PEER, 53), (HOST, 5000), b"x").packet();
    for (to, quoted) in [(PEER, udp((PEER, 53), (HOST, 5001), b"x").packet()), (Ipv4Addr::new(192, 0, 2, 1), arrived)] {
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
    let arrived = udp((OUTSIDE, one_port), other, b"x").packet();
    let told = pass(&mut nat, &icmp(other.0, OUTSIDE, 3, [0, 0, 5, 0], &arrived));
    let sent = udp(one, (OUTSIDE, other_port), b"x").packet();
    assert_eq!(told, (IN, icmp(OUTSIDE, HOST, 3, [0, 0, 5, 0], &sent).bytes()));
}
