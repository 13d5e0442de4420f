//! TCP connections through the translator: which of them last, and which are evicted.

use crate::support::*;
use crate::translation::*;
use nat::Nat;
use pinion_sdk::testing::{Harness, Outcome, advance_clock_ns};

#[test]
fn a_host_with_its_share_loses_its_own_oldest_connection_that_is_not_established() {
    let to = (PEER, 443);
    for limit in ["connections_per_host_max = 3", "mappings_per_host_max = 3"] {
        let mut nat = nat(&format!("{CONFIG}{limit}"));
        let other = end("10.0.0.8:1");
        assert_eq!(pass(&mut nat, &tcp(other, to, SYN, b"")).0, OUT);
        let kept = establish(&mut nat, (HOST, 1), to);
        // SYNs with the host's address, which another one may have forged.
        for port in 100..200 {
            assert_eq!(pass(&mut nat, &tcp((HOST, port), to, SYN, b"")).0, OUT, "{limit}");
        }
        let _ = establish(&mut nat, (HOST, 2), to);
        // Another connection of an opening connection's port, which has to stay.
        assert_eq!(pass(&mut nat, &tcp((HOST, 3), to, SYN, b"")).0, OUT);
        let _ = establish(&mut nat, (HOST, 3), (PEER, 444));
        assert_eq!(pass(&mut nat, &tcp(to, kept, ACK, b"")).0, IN);
        if limit.starts_with("connections") {
            assert_eq!(pass(&mut nat, &tcp((HOST, 3), to, SYN, b"")).0, Outcome::Dropped, "all are established");
            assert_eq!(nat.function().connection_count(), 4);
        }
        // A closing one is evicted as well.
        assert_eq!(pass(&mut nat, &tcp((HOST, 2), to, RST, b"")).0, OUT);
        assert_eq!(pass(&mut nat, &tcp((HOST, 4), to, SYN, b"")).0, OUT, "{limit}");
        assert_eq!(pass(&mut nat, &tcp(other, to, ACK, b"")).0, OUT, "another host loses none");
    }
}

#[test]
fn a_connection_lasts_for_two_hours_once_it_is_there_and_four_minutes_before_and_after() {
    let (from, to) = ((HOST, 4000), (PEER, 443));
    let connect = |nat: &mut Harness<Nat>| {
        let ((_, port), _) = ends(&pass(nat, &tcp(from, to, SYN, b"")).1);
        (OUTSIDE, port)
    };
    let establish = |nat: &mut Harness<Nat>| {
        let outside = connect(nat);
        assert_eq!(pass(nat, &tcp(to, outside, SYN | ACK, b"")).0, IN);
        assert_eq!(pass(nat, &tcp(from, to, ACK, b"")).0, OUT);
        outside
    };
    let mut nat = nat(CONFIG);
    let outside = connect(&mut nat);
    assert!(lasts(&mut nat, &tcp(to, outside, SYN | ACK, b""), 239));
    assert!(!lasts(&mut nat, &tcp(to, outside, SYN | ACK, b""), 1));

    let outside = establish(&mut nat);
    assert!(lasts(&mut nat, &tcp(to, outside, ACK, b""), 7439));
    assert!(!lasts(&mut nat, &tcp(to, outside, ACK, b""), 1));

    let outside = establish(&mut nat);
    assert_eq!(pass(&mut nat, &tcp(to, outside, ACK | FIN, b"")).0, IN);
    assert!(lasts(&mut nat, &tcp(to, outside, ACK, b""), 3600), "half closed is open");
    assert_eq!(pass(&mut nat, &tcp(from, to, ACK | FIN, b"")).0, OUT);
    assert!(lasts(&mut nat, &tcp(to, outside, ACK, b""), 239));
    assert!(!lasts(&mut nat, &tcp(to, outside, ACK, b""), 1));

    let outside = establish(&mut nat);
    assert_eq!(pass(&mut nat, &tcp(to, outside, RST, b"")).0, IN);
    assert!(!lasts(&mut nat, &tcp(to, outside, ACK, b""), 240));
}

/// Establishes a connection between two ends, with both sides' SYNs acknowledged; returns its outside end.
pub(crate) fn establish(nat: &mut Harness<Nat>, from: End, to: End) -> End {
    let (outcome, bytes) = pass(nat, &tcp(from, to, SYN, b""));
    assert_eq!(outcome, OUT);
    let outside = ends(&bytes).0;
    assert_eq!(pass(nat, &tcp(to, outside, SYN | ACK, b"")).0, IN);
    assert_eq!(pass(nat, &tcp(from, to, ACK, b"")).0, OUT);
    outside
}

#[test]
fn one_connection_of_a_port_does_not_shorten_the_time_of_another() {
    let (from, to, other) = ((HOST, 4000), (PEER, 443), end("192.0.2.80:80"));
    type Happening<'a> = &'a dyn Fn(&mut Harness<Nat>, End);
    let others: [Happening<'_>; 5] = [
        &|nat, _| assert_eq!(pass(nat, &tcp(from, other, SYN, b"")).0, OUT),
        &|nat, outside| {
            assert_eq!(establish(nat, from, other), outside, "one mapping for all peers");
            assert_eq!(pass(nat, &tcp(other, outside, RST, b"")).0, IN);
        },
        &|nat, outside| {
            let _ = establish(nat, from, other);
            assert_eq!(pass(nat, &tcp(from, other, FIN | ACK, b"")).0, OUT);
            assert_eq!(pass(nat, &tcp(other, outside, FIN | ACK, b"")).0, IN);
        },
        // Segments of other hosts, which may come to the port.
        &|nat, outside| assert_eq!(pass(nat, &tcp(other, outside, RST, b"")).0, IN),
        &|nat, outside| assert_eq!(pass(nat, &tcp((PEER, 444), outside, SYN, b"")).0, IN),
    ];
    for (number, happens) in others.into_iter().enumerate() {
        let mut nat = nat(CONFIG);
        let outside = establish(&mut nat, from, to);
        happens(&mut nat, outside);
        assert!(lasts(&mut nat, &tcp(to, outside, ACK, b""), 7439), "case {number}");
        assert_eq!(nat.function().connection_count(), 1, "case {number}");
        assert!(!lasts(&mut nat, &tcp(to, outside, ACK, b""), 1), "case {number}");
    }
}

#[test]
fn a_mapping_lasts_as_long_as_the_last_of_its_connections() {
    let (from, first, second) = ((HOST, 4000), (PEER, 443), end("192.0.2.80:80"));
    let mut nat = nat(CONFIG);
    let outside = establish(&mut nat, from, first);
    advance_clock_ns(7000 * SECOND_NS);
    assert_eq!(establish(&mut nat, from, second), outside);
    assert!(lasts(&mut nat, &tcp(second, outside, ACK, b""), 7439));
    assert_eq!((nat.function().connection_count(), nat.function().mapping_count()), (1, 1));
    assert!(!lasts(&mut nat, &tcp(second, outside, ACK, b""), 1));
    assert_eq!((nat.function().connection_count(), nat.function().mapping_count()), (0, 0));
}

#[test]
fn a_reset_with_a_guessed_sequence_number_ends_no_connection() {
    let (from, to) = ((HOST, 4000), (PEER, 443));
    for (guess, lasts_long) in [(0x4000_0000, true), (NUMBER + 1, false)] {
        let mut nat = nat(CONFIG);
        let outside = establish(&mut nat, from, to);
        let reset = tcp_with(to, outside, RST, [guess, NUMBER], b"");
        assert_eq!(pass(&mut nat, &reset).0, IN, "its receiver judges it");
        assert_eq!(lasts(&mut nat, &tcp(to, outside, ACK, b""), 7439), lasts_long);
    }
}

#[test]
fn a_connection_is_established_by_acknowledgements_of_what_the_other_side_has_sent_and_by_no_guess() {
    let (from, to, other) = ((HOST, 4000), (PEER, 443), end("192.0.2.80:80"));
    let guess = NUMBER.wrapping_add(0x4000_0000);
    for (answer, acknowledgement, lasts_long) in
        [(NUMBER, NUMBER, true), (guess, NUMBER, false), (NUMBER, guess, false)]
    {
        let mut nat = nat(CONFIG);
        let outside = ends(&pass(&mut nat, &tcp(from, to, SYN, b"")).1).0;
        assert_eq!(pass(&mut nat, &tcp_with(to, outside, SYN | ACK, [NUMBER, answer], b"")).0, IN);
        assert_eq!(pass(&mut nat, &tcp_with(from, to, ACK, [NUMBER, acknowledgement], b"")).0, OUT);
        assert_eq!(lasts(&mut nat, &tcp(to, outside, ACK, b""), 7439), lasts_long);

        // One that the peer begins, to a port that is mapped.
        let outside = establish(&mut nat, from, to);
        assert_eq!(pass(&mut nat, &tcp(other, outside, SYN, b"")).0, IN);
        assert_eq!(pass(&mut nat, &tcp(from, other, SYN | ACK, b"")).0, OUT);
        assert_eq!(pass(&mut nat, &tcp_with(other, outside, ACK, [NUMBER, answer], b"")).0, IN);
        assert_eq!(pass(&mut nat, &tcp_with(from, other, ACK, [NUMBER, acknowledgement], b"x")).0, OUT);
        advance_clock_ns(240 * SECOND_NS);
        let _ = pass(&mut nat, &tcp(from, to, ACK, b""));
        assert_eq!(nat.function().connection_count(), 1 + usize::from(lasts_long));
    }
}

#[test]
fn a_forged_answer_does_not_keep_the_real_one_from_establishing_a_connection() {
    let (from, to) = ((HOST, 4000), (PEER, 443));
    let far = NUMBER.wrapping_add(0x4000_0000);
    for forged_first in [true, false] {
        let mut nat = nat(CONFIG);
        let outside = ends(&pass(&mut nat, &tcp(from, to, SYN, b"")).1).0;
        let mut answers = [[far; 2], [NUMBER; 2]];
        if !forged_first {
            answers.reverse();
        }
        for numbers in answers {
            assert_eq!(pass(&mut nat, &tcp_with(to, outside, SYN | ACK, numbers, b"")).0, IN);
        }
        assert_eq!(pass(&mut nat, &tcp(from, to, ACK, b"")).0, OUT);
        assert!(lasts(&mut nat, &tcp(to, outside, ACK, b""), 7439));
    }
}

#[test]
fn a_connection_whose_resets_sender_goes_on_was_not_reset() {
    let (from, to) = ((HOST, 4000), (PEER, 443));
    let near = |number: i32| [NUMBER.wrapping_add_signed(number), NUMBER];
    for (next, lasts_long) in [(None, false), (Some(near(1)), true), (Some(near(1 << 21)), false)] {
        let mut nat = nat(CONFIG);
        let outside = establish(&mut nat, from, to);
        assert_eq!(pass(&mut nat, &tcp_with(to, outside, RST, near(1000), b"")).0, IN);
        assert_eq!(pass(&mut nat, &tcp(from, to, ACK, b"")).0, OUT, "it does not come from the reset's sender");
        if let Some(next) = next {
            assert_eq!(pass(&mut nat, &tcp_with(to, outside, ACK, next, b"x")).0, IN);
        }
        assert_eq!(lasts(&mut nat, &tcp(to, outside, ACK, b""), 7439), lasts_long);
    }
    // From inside as well.
    let mut nat = nat(CONFIG);
    let outside = establish(&mut nat, from, to);
    assert_eq!(pass(&mut nat, &tcp(from, to, RST, b"")).0, OUT);
    assert_eq!(pass(&mut nat, &tcp(from, to, ACK, b"")).0, OUT);
    assert!(lasts(&mut nat, &tcp(to, outside, ACK, b""), 7439));
}

#[test]
fn a_fin_with_a_guessed_sequence_number_closes_no_side() {
    let (from, to) = ((HOST, 4000), (PEER, 443));
    let mut nat = nat(CONFIG);
    let outside = establish(&mut nat, from, to);
    assert_eq!(pass(&mut nat, &tcp_with(to, outside, FIN | ACK, [NUMBER ^ (1 << 30), NUMBER], b"")).0, IN);
    assert_eq!(pass(&mut nat, &tcp(from, to, FIN | ACK, b"")).0, OUT);
    assert!(lasts(&mut nat, &tcp(to, outside, ACK, b""), 7439), "half closed is open");
}

#[test]
fn a_connection_that_the_peer_begins_again_is_established_again() {
    let (from, to) = ((HOST, 4000), (PEER, 443));
    let mut nat = nat(CONFIG);
    let outside = establish(&mut nat, from, to);
    assert_eq!(pass(&mut nat, &tcp(to, outside, FIN | ACK, b"")).0, IN);
    assert_eq!(pass(&mut nat, &tcp(from, to, FIN | ACK, b"")).0, OUT);
    let anew = NUMBER.wrapping_add(1 << 30);
    assert_eq!(pass(&mut nat, &tcp_with(to, outside, SYN, [anew, 0], b"")).0, IN);
    assert_eq!(pass(&mut nat, &tcp_with(from, to, SYN | ACK, [anew, anew], b"")).0, OUT);
    assert_eq!(pass(&mut nat, &tcp_with(to, outside, ACK, [anew; 2], b"")).0, IN);
    assert_eq!(pass(&mut nat, &tcp_with(from, to, ACK, [anew; 2], b"x")).0, OUT);
    assert!(lasts(&mut nat, &tcp_with(to, outside, ACK, [anew; 2], b""), 7439));
}

#[test]
fn both_ends_may_begin_a_connection_at_once_and_one_outside_may_begin_to_a_port_that_is_mapped() {
    let (from, to, other) = ((HOST, 4000), (PEER, 443), end("192.0.2.80:80"));
    let mut nat = nat(CONFIG);
    let outside = ends(&pass(&mut nat, &tcp(from, to, SYN, b"")).1).0;
    assert_eq!(pass(&mut nat, &tcp(to, outside, SYN, b"")).0, IN);
    assert_eq!(pass(&mut nat, &tcp(from, to, SYN | ACK, b"")).0, OUT);
    assert_eq!(pass(&mut nat, &tcp(to, outside, SYN | ACK, b"")).0, IN);
    assert_eq!(pass(&mut nat, &tcp(from, to, ACK, b"")).0, OUT);
    assert!(lasts(&mut nat, &tcp(to, outside, ACK, b""), 7000));
    // RFC 5382, REQ-3. The answer of the inside host begins the connection, and prolongs the mapping.
    assert_eq!(pass(&mut nat, &tcp(other, outside, SYN, b"")).0, IN);
    assert_eq!(nat.function().connection_count(), 1);
    assert_eq!(pass(&mut nat, &tcp(from, other, SYN | ACK, b"")).0, OUT);
    assert_eq!(pass(&mut nat, &tcp(other, outside, ACK, b"")).0, IN);
    assert_eq!(pass(&mut nat, &tcp(from, other, ACK, b"answer")).0, OUT);
    assert!(lasts(&mut nat, &tcp(other, outside, ACK, b""), 7439));
    assert!(!lasts(&mut nat, &tcp(other, outside, ACK, b""), 1));
}

#[test]
fn connections_that_are_not_established_are_evicted_and_established_ones_are_not() {
    let to = (PEER, 443);
    for limit in ["mappings_max = 4", "connections_max = 4", "port_min = 2000\nport_max = 2003"] {
        let mut nat = nat(&format!("{CONFIG}{limit}"));
        let kept = establish(&mut nat, (HOST, 1), to);
        for port in 100..200 {
            assert_eq!(pass(&mut nat, &tcp((HOST, port), to, SYN, b"")).0, OUT, "{limit}");
        }
        assert_eq!(pass(&mut nat, &tcp(to, kept, ACK, b"")).0, IN, "{limit}");
        for port in 2..5 {
            let _ = establish(&mut nat, (HOST, port), to);
        }
        assert_eq!(pass(&mut nat, &tcp((HOST, 5), to, SYN, b"")).0, Outcome::Dropped, "{limit}");
        assert_eq!(nat.function().counters().no_room, 1, "{limit}");
        assert_eq!(pass(&mut nat, &tcp(to, kept, ACK, b"")).0, IN, "{limit}");
        // A closing connection is evicted as well.
        assert_eq!(pass(&mut nat, &tcp((HOST, 2), to, RST, b"")).0, OUT, "{limit}");
        let _ = establish(&mut nat, (HOST, 5), to);
    }
}

#[test]
fn no_host_has_more_connections_or_mappings_than_its_share() {
    let to = |port| (PEER, port);
    let mut nat = nat(&format!("{CONFIG}connections_per_host_max = 3"));
    for port in 1..4 {
        let _ = establish(&mut nat, (HOST, 4000), to(port));
    }
    assert_eq!(pass(&mut nat, &tcp((HOST, 4000), to(4), SYN, b"")).0, Outcome::Dropped);
    assert_eq!(pass(&mut nat, &tcp((HOST, 4001), to(4), SYN, b"")).0, Outcome::Dropped);
    let _ = establish(&mut nat, end("10.0.0.8:4000"), to(4));
    assert_eq!(nat.function().counters().no_room, 2);
    advance_clock_ns(7440 * SECOND_NS);
    let _ = establish(&mut nat, (HOST, 4000), to(4));
    // A quarter of all, by default.
    let mut nat = self::nat(&format!("{CONFIG}mappings_max = 400"));
    assert!((1..=200).all(|port| pass(&mut nat, &udp((HOST, port), (PEER, 53), b"x")).0 == OUT));
    assert_eq!(nat.function().mapping_count(), 100);
}
