//! Datagrams in fragments, as the network sees them.

#![cfg(not(target_family = "wasm"))]

mod network;

use firewall::Firewall;
use network::{SYN, tcp, udp};
use pinion_sdk::headers::{TCP, UDP};
use pinion_sdk::testing::{Frame, Harness, Outcome, advance_clock_ns, take_log};
use proptest::prelude::*;

const S_NS: u64 = 1_000_000_000;
const POLICY: &str = r#"
inside = ["10.0.0.0/8", "fd00::/8"]

[[rule]]
action = "deny"
protocol = "tcp"
ports = [22]

[[rule]]
action = "allow"
"#;
const ENDS: [[&str; 2]; 2] = [["10.0.0.1", "192.0.2.1"], ["fd00::1", "2001:db8::1"]];

/// Protocols that a fragment may carry: TCP, UDP, no next header, a fragment, options and an unknown one.
const NEXT_HEADERS: [u8; 7] = [TCP, UDP, 59, 44, 0, 60, 254];

fn firewall() -> Harness<Firewall> {
    Harness::new(POLICY.as_bytes()).unwrap()
}

fn passes(firewall: &mut Harness<Firewall>, frame: &Frame) -> bool {
    // A frame that waits for its datagram's first fragment has no verdict yet.
    firewall.deliver(&[&frame.bytes()]).first().is_some_and(|verdict| verdict.outcome == Outcome::Sent)
}

/// Returns a fragment between two hosts. In IPv6 its next header is `next_header`, in IPv4 its protocol.
fn part([from, to]: [&str; 2], id: u16, next_header: u8, offset: u16, more: bool, payload: &[u8]) -> Frame {
    Frame::other(next_header, from, to).id(id.into()).fragment(offset, more).payload(payload)
}

/// Returns the bytes of a segment that begins a connection, with data: 40 bytes.
fn segment([from, to]: [&str; 2], port: u16) -> Vec<u8> {
    tcp(from, 5000, to, port, SYN).payload(&[0; 20]).message()
}

#[test]
fn no_fragment_overwrites_the_header_that_its_datagram_was_judged_by_whatever_it_says() {
    for ends in ENDS {
        let [first, ssh] = [80, 22].map(|port| segment(ends, port));
        for (number, next_header) in (0..).zip(NEXT_HEADERS) {
            for offset in [8, 16, 24, 32] {
                let mut firewall = firewall();
                let id = 100 * number + offset;
                assert!(passes(&mut firewall, &part(ends, id, TCP, 0, true, &first)));
                assert!(!passes(
                    &mut firewall,
                    &part(ends, id, next_header, offset, true, &ssh[usize::from(offset)..])
                ));
            }
        }
        let mut firewall = firewall();
        assert!(!passes(&mut firewall, &part(ends, 1, TCP, 0, true, &ssh)), "a first fragment of a denied packet");
        assert!(!passes(&mut firewall, &part(ends, 1, UDP, 40, false, &[7; 8])), "a later fragment of it");
    }
}

#[test]
fn a_fragment_that_overlaps_ends_its_datagram_and_no_other() {
    for ends in ENDS {
        let first = segment(ends, 80);
        let mut firewall = firewall();
        for id in [1, 2] {
            assert!(passes(&mut firewall, &part(ends, id, TCP, 0, true, &first)));
            assert!(passes(&mut firewall, &part(ends, id, TCP, 40, true, &[7; 16])));
        }
        // Of the second datagram.
        assert!(!passes(&mut firewall, &part(ends, 1, TCP, 48, true, &[9; 16])));
        assert!(!passes(&mut firewall, &part(ends, 1, TCP, 56, false, &[7; 8])));
        assert!(!passes(&mut firewall, &part(ends, 1, TCP, 40, true, &[7; 16])));
        assert!(passes(&mut firewall, &part(ends, 2, TCP, 56, false, &[7; 8])));
    }
}

#[test]
fn a_frame_that_comes_twice_overlaps_nothing() {
    for ends in ENDS {
        let first = segment(ends, 80);
        let mut firewall = firewall();
        for _ in 0..2 {
            assert!(passes(&mut firewall, &part(ends, 1, TCP, 0, true, &first)));
            assert!(passes(&mut firewall, &part(ends, 1, TCP, 48, false, &[7; 5])));
            assert!(passes(&mut firewall, &part(ends, 1, TCP, 40, true, &[7; 8])));
        }
    }
}

#[test]
fn small_fragments_pass_where_they_overlap_nothing() {
    for ends in ENDS {
        let datagram = udp(ends[0], 5000, ends[1], 53).message();
        let mut firewall = firewall();
        assert!(passes(&mut firewall, &part(ends, 1, UDP, 0, true, &datagram[..8])));
        assert!(passes(&mut firewall, &part(ends, 1, UDP, 16, false, &datagram[16..])));
        assert!(passes(&mut firewall, &part(ends, 1, UDP, 8, true, &datagram[8..16])));
    }
}

#[test]
fn another_first_fragment_ends_its_datagram() {
    for ends in ENDS {
        let first = segment(ends, 80);
        let mut firewall = firewall();
        assert!(passes(&mut firewall, &part(ends, 1, TCP, 0, true, &first)));
        assert!(!passes(&mut firewall, &part(ends, 1, TCP, 0, true, &first[..24])));
        assert!(!passes(&mut firewall, &part(ends, 1, TCP, 24, true, &first[..16])));
        assert!(!passes(&mut firewall, &part(ends, 1, TCP, 0, true, &first)));
        // An identification may be used again when the datagram's time has passed.
        advance_clock_ns(30 * S_NS);
        assert!(passes(&mut firewall, &part(ends, 1, TCP, 0, true, &first)));
        assert!(passes(&mut firewall, &part(ends, 1, TCP, 40, true, &[7; 8])));
    }
}

#[test]
fn fragments_that_come_before_their_first_one_pass_with_it_if_it_is_allowed() {
    for ends in ENDS {
        for (port, allowed) in [(80, true), (22, false)] {
            let first = segment(ends, port);
            let mut firewall = firewall();
            let [second, third] = [(40, true), (48, false)].map(|(at, more)| part(ends, 1, TCP, at, more, &[7; 8]));
            let [first, second, third] = [part(ends, 1, TCP, 0, true, &first), second, third].map(|part| part.bytes());
            assert_eq!(firewall.deliver(&[&third, &second]), []);
            let verdicts = firewall.deliver(&[&first]);
            let sent: Vec<_> = verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Sent).collect();
            let expected: &[&[u8]] = if allowed { &[&first, &second, &third] } else { &[] };
            assert_eq!(sent.iter().map(|verdict| &verdict.bytes[..]).collect::<Vec<_>>(), expected);
            let counted = |reason| firewall.metric("firewall_fragments_dropped", &[("reason", reason)]);
            assert_eq!(firewall.metric("firewall_fragments_held", &[]), Some(2));
            assert_eq!(counted("refused"), Some(if allowed { 0 } else { 2 }));
        }
    }
}

#[test]
fn fragments_whose_first_one_does_not_come_are_dropped_and_logged() {
    let mut firewall = firewall();
    assert_eq!(firewall.deliver(&[&part(ENDS[0], 1, TCP, 40, false, &[7; 8]).bytes()]), []);
    let verdicts = firewall.let_pass_ns(2 * S_NS);
    assert_eq!(verdicts.iter().map(|verdict| verdict.outcome).collect::<Vec<_>>(), [Outcome::Dropped]);
    assert_eq!(firewall.deliver(&[&[0; 60]])[0].outcome, Outcome::Dropped);
    let line = take_log().remove(0).1;
    assert!(line.ends_with("1 unreadable, 1 fragments"), "{line}");
}

#[test]
fn fragments_of_the_two_sides_are_fragments_of_two_datagrams() {
    let ends = ENDS[0];
    let first = segment(ends, 80);
    let mut firewall: Harness<Firewall> = Harness::new(format!("inside_ports = [1]\n{POLICY}").as_bytes()).unwrap();
    let [first, later] = [(0, true, &first[..]), (40, false, &[7; 8])]
        .map(|(at, more, payload)| part(ends, 1, TCP, at, more, payload).bytes());
    let forged = firewall.deliver_from(0, &[&later]);
    assert_eq!(forged[0].outcome, Outcome::Dropped, "a source of the other side does not wait");
    assert_eq!(firewall.deliver_from(1, &[&first]).len(), 1);
    assert_eq!(firewall.deliver_from(1, &[&later])[0].outcome, Outcome::Sent);
}

#[test]
fn extension_headers_before_the_ports_may_be_long_as_nothing_overwrites_them() {
    let ends = ENDS[1];
    let mut options = vec![0; 64];
    options[..4].copy_from_slice(&[TCP, 7, 1, 60]);
    let first = [options, segment(ends, 80)].concat();
    for offset in (8..first.len() as u16).step_by(8) {
        let mut firewall = firewall();
        assert!(passes(&mut firewall, &part(ends, 1, 60, 0, true, &first)));
        assert!(!passes(&mut firewall, &part(ends, 1, 60, offset, true, &[7; 8])));
    }
    let mut firewall = firewall();
    assert!(passes(&mut firewall, &part(ends, 1, 60, 0, true, &first)));
    assert!(passes(&mut firewall, &part(ends, 1, 59, first.len() as u16, false, &[7; 9])));
}

#[test]
fn a_datagram_that_would_be_too_long_ends() {
    for ends in ENDS {
        let first = segment(ends, 80);
        for (offset, len, fits) in [(65_528, 7, true), (65_528, 8, false), (65_520, 16, false), (1448, 0, false)] {
            let mut firewall = firewall();
            assert!(passes(&mut firewall, &part(ends, 1, TCP, 0, true, &first)));
            assert_eq!(passes(&mut firewall, &part(ends, 1, TCP, offset, false, &vec![7; len])), fits);
            assert_eq!(passes(&mut firewall, &part(ends, 1, TCP, 40, true, &[7; 8])), fits);
        }
    }
}

proptest! {
    /// The model is the list of bytes that have come.
    #[test]
    fn what_passes_overlaps_nothing_that_passed(
        is_v6: bool, parts in proptest::collection::vec((4_u16..40, 1_u16..4), 0..30), next_header in proptest::sample::select(&NEXT_HEADERS[..]),
    ) {
        let ends = ENDS[usize::from(is_v6)];
        let first = segment(ends, 80);
        let mut firewall = firewall();
        prop_assert!(passes(&mut firewall, &part(ends, 1, TCP, 0, true, &first)));
        let (mut seen, mut is_over) = (vec![(0, 5)], false);
        for (start, len) in parts {
            let end = start + len;
            let is_repeated = seen.contains(&(start, end));
            let overlaps = seen.iter().any(|(other, other_end)| (start..end).any(|at| (*other..*other_end).contains(&at)));
            is_over |= overlaps && !is_repeated;
            seen.push((start, end));
            let says = if is_v6 { next_header } else { TCP };
            let frame = part(ends, 1, says, 8 * start, true, &vec![7; 8 * usize::from(len)]);
            prop_assert_eq!(passes(&mut firewall, &frame), !is_over);
        }
    }
}
