//! Datagrams in fragments, in whatever order these come.

use std::net::Ipv4Addr;

use crate::support::*;
use crate::translation::{CONFIG, HOST, IN, OUT, OUTSIDE, PEER, nat, port_of};
use nat::Nat;
use pinion_sdk::Direction;
use pinion_sdk::headers::UDP;
use pinion_sdk::testing::{Frame, Harness, Outcome};
use proptest::prelude::*;

const SECOND_NS: u64 = 1_000_000_000;

/// Splits a datagram into frames of fragments with 24 bytes each.
fn split(datagram: &Frame) -> Vec<Vec<u8>> {
    datagram.fragments(24).iter().map(Frame::bytes).collect()
}

/// Delivers frames one by one; returns those that were sent, with their outcomes.
fn pass(nat: &mut Harness<Nat>, frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<(Outcome, Vec<u8>)> {
    let verdicts = frames.into_iter().flat_map(|frame| nat.deliver(&[&frame])).collect::<Vec<_>>();
    { verdicts }
        .into_iter()
        .map(|it| (it.outcome, it.bytes))
        .filter(|(outcome, _)| *outcome != Outcome::Dropped)
        .collect()
}

/// Asserts that the frames are the fragments of a datagram, the first one first.
fn assert_fragments(passed: &[(Outcome, Vec<u8>)], outcome: Outcome, datagram: &Frame) {
    let expected = split(datagram);
    assert_eq!(passed.len(), expected.len());
    assert_eq!(passed[0].1, expected[0]);
    for part in expected {
        assert!(passed.contains(&(outcome, part)));
    }
}

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

#[test]
fn a_datagram_in_fragments_is_translated_both_ways_in_whatever_order_they_come() {
    for order in ORDERS {
        let mut nat = nat(CONFIG);
        let port = port_of(&mut nat, (HOST, 5000));
        let sent = split(&udp((HOST, 5000), (PEER, 53), &[5; 61]));
        let there = pass(&mut nat, order.map(|at| sent[at].clone()));
        // Its checksum is in the first one, and is right for the whole.
        assert_fragments(&there, OUT, &udp((OUTSIDE, port), (PEER, 53), &[5; 61]));
        let answered = split(&udp((PEER, 53), (OUTSIDE, port), &[6; 50]));
        let back = pass(&mut nat, order.map(|at| answered[at].clone()));
        assert_fragments(&back, IN, &udp((PEER, 53), (HOST, 5000), &[6; 50]));
        assert_eq!(nat.function().counters().fragments, 0);
    }
}

#[test]
fn a_datagram_without_a_checksum_stays_without_one_in_fragments() {
    let mut nat = nat(CONFIG);
    let parts = split(&udp((HOST, 5000), (PEER, 53), &[5; 61]).checksum(0));
    let passed = pass(&mut nat, [2, 1, 0].map(|at| parts[at].clone()));
    assert_eq!((passed.len(), &passed[0].1[40..42]), (3, &[0, 0][..]));
}

#[test]
fn a_large_ping_and_its_reply_are_translated_in_fragments() {
    for order in ORDERS {
        let mut nat = nat(CONFIG);
        let asked = split(&request(HOST, PEER, 77, &[9; 60]));
        let there = pass(&mut nat, order.map(|at| asked[at].clone()));
        let id = ends(&there[0].1).0.1;
        assert_fragments(&there, OUT, &request(OUTSIDE, PEER, id, &[9; 60]));
        let answered = split(&reply(PEER, OUTSIDE, id, &[9; 60]));
        let back = pass(&mut nat, order.map(|at| answered[at].clone()));
        assert_fragments(&back, IN, &reply(PEER, HOST, 77, &[9; 60]));
    }
}

#[test]
fn fragments_from_inside_to_inside_by_an_outside_address_are_translated_twice() {
    let mut nat = nat(CONFIG);
    let port = port_of(&mut nat, (HOST, 5000));
    let sent = split(&udp(end("10.0.0.8:6000"), (OUTSIDE, port), &[5; 61]));
    let passed = pass(&mut nat, [1, 2, 0].map(|at| sent[at].clone()));
    let from = ends(&passed[0].1).0;
    assert_eq!(from.0, OUTSIDE);
    assert_fragments(&passed, IN, &udp(from, (HOST, 5000), &[5; 61]));
}

#[test]
fn fragments_of_a_datagram_that_is_not_translated_are_dropped_and_counted() {
    let mut nat = nat(CONFIG);
    let stray = split(&udp((PEER, 53), (OUTSIDE, 5000), &[5; 61]));
    assert_eq!(pass(&mut nat, [1, 0, 2].map(|at| stray[at].clone())), []);
    let counters = nat.function().counters();
    assert_eq!((counters.no_mapping, counters.fragments), (1, 2));
    assert_eq!(nat.metric("nat_packets_dropped", &[("reason", "no-mapping")]), Some(1));
    assert_eq!(nat.metric("nat_fragments_dropped", &[("reason", "refused")]), Some(2));
    // What goes neither in nor out does not wait.
    let elsewhere = split(&udp((PEER, 53), (Ipv4Addr::new(192, 0, 2, 1), 5000), &[5; 61]));
    assert_eq!(nat.deliver(&[&elsewhere[1]])[0].outcome, Outcome::Dropped);
}

#[test]
fn fragments_without_their_first_one_leave_after_two_seconds_and_take_no_more_than_a_part_of_the_slots() {
    let mut nat = nat(CONFIG);
    let stray = split(&udp((HOST, 5000), (PEER, 53), &[5; 61]));
    assert_eq!(nat.deliver(&[&stray[1], &stray[2]]), []);
    let outcomes: Vec<_> = nat.let_pass_ns(2 * SECOND_NS).iter().map(|verdict| verdict.outcome).collect();
    assert_eq!(outcomes, [Outcome::Dropped; 2]);
    // A flood from 200 hosts.
    for host in 0..200 {
        for second in [1, 2] {
            let flood = split(&udp((Ipv4Addr::new(10, 1, second, host), 5000), (PEER, 53), &[5; 61]));
            assert_eq!(pass(&mut nat, [flood[1].clone()]), []);
        }
    }
    assert_eq!(nat.metric("nat_fragments_held", &[]), Some(402));
    assert_eq!(nat.metric("nat_fragments_dropped", &[("reason", "no-room")]), Some(400 - 96));
    assert_eq!(pass(&mut nat, [udp((HOST, 5000), (PEER, 53), b"x").bytes()]).len(), 1);
}

#[test]
fn fragments_that_overlap_end_their_datagram() {
    let mut nat = nat(CONFIG);
    let parts = split(&udp((HOST, 5000), (PEER, 53), &[5; 61]));
    let overlapping = Frame::other(UDP, HOST, PEER).fragment(8, true).payload(&[7; 32]).bytes();
    assert_eq!(pass(&mut nat, [parts[0].clone(), overlapping, parts[1].clone(), parts[2].clone()]).len(), 1);
    assert_eq!(nat.metric("nat_fragments_dropped", &[("reason", "overlap")]), Some(1));
    assert_eq!(nat.metric("nat_fragments_dropped", &[("reason", "ended")]), Some(2));
}

#[test]
fn in_a_chain_with_a_way_back_fragments_follow_their_direction() {
    let mut nat: Harness<Nat> = Harness::new(format!("{CONFIG}[to_inside]\noutput = 0\n").as_bytes()).unwrap();
    let sent = split(&udp((HOST, 5000), (PEER, 53), &[5; 61]));
    assert_eq!(nat.deliver_direction(Direction::Forward, 0, &[&sent[1], &sent[2]]), []);
    let there = nat.deliver_direction(Direction::Forward, 0, &[&sent[0]]);
    assert_eq!(there.iter().map(|verdict| verdict.outcome).collect::<Vec<_>>(), [OUT; 3]);
    let port = ends(&there[0].bytes).0.1;
    let answered = split(&udp((PEER, 53), (OUTSIDE, port), &[6; 50]));
    assert_eq!(nat.deliver_direction(Direction::Backward, 1, &[&answered[2]]), []);
    let back = nat.deliver_direction(Direction::Backward, 1, &[&answered[0], &answered[1]]);
    assert_eq!(back.len(), 3);
    // Of the wrong side.
    assert_eq!(nat.deliver_direction(Direction::Backward, 1, &[&sent[1]])[0].outcome, Outcome::Dropped);
    assert_eq!(nat.function().counters().spoofed, 1);
}

proptest! {
    /// Reassembled, the fragments are the datagram that goes out if it comes whole.
    #[test]
    fn whatever_the_sizes_and_the_order_the_whole_is_what_a_whole_datagram_becomes(
        payload in proptest::collection::vec(any::<u8>(), 17..200), order in any::<u64>(),
    ) {
        let mut nat = nat(CONFIG);
        let port = port_of(&mut nat, (HOST, 5000));
        let mut parts = split(&udp((HOST, 5000), (PEER, 53), &payload));
        for at in 0..parts.len() {
            let count = parts.len() - at;
            parts.swap(at, at + (order >> (3 * at)) as usize % count);
        }
        let mut passed = pass(&mut nat, parts);
        passed.sort_by_key(|(_, bytes)| u16::from_be_bytes([bytes[20] & 0x1f, bytes[21]]));
        let whole: Vec<u8> = passed.iter().flat_map(|(_, bytes)| bytes[34..].to_vec()).collect();
        prop_assert_eq!(whole, udp((OUTSIDE, port), (PEER, 53), &payload).message());
    }
}
