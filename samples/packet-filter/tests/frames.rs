//! The function as a chain sees it: frames in, allowed frames out, unchanged.

#![cfg(not(target_family = "wasm"))]

use packet_filter::PacketFilter;
use pinion_sdk::headers::{Headers, TCP, UDP, Unreadable};
use pinion_sdk::testing::{Frame, Harness, Outcome, advance_clock_ns, take_log};
use proptest::prelude::*;

/// A client and a server.
const V4: [&str; 2] = ["10.77.0.10", "10.77.0.2"];
const V6: [&str; 2] = ["fd00::1", "fd00::2"];

const SYN: u8 = 0x02;

const ONLY_WEB: &[u8] = b"allow tcp 80\ndefault deny";
const ALL: &[u8] = b"default allow";

fn tcp([from, to]: [&str; 2], port: u16, flags: u8) -> Frame {
    Frame::tcp((from, 5000), (to, port)).tcp_flags(flags).payload(b"some payload")
}

fn udp([from, to]: [&str; 2], port: u16) -> Frame {
    Frame::udp((from, 5000), (to, port)).payload(b"data")
}

/// Returns a fragment whose next header, or protocol in IPv4, is this.
fn part([from, to]: [&str; 2], next_header: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    Frame::other(next_header, from, to).id(9).fragment(offset, more).payload(payload).bytes()
}

fn web(ends: [&str; 2]) -> Vec<u8> {
    tcp(ends, 80, SYN).bytes()
}

fn outcome(policy: &[u8], frame: &[u8]) -> Outcome {
    Harness::<PacketFilter>::new(policy).unwrap().deliver(&[frame]).remove(0).outcome
}

#[test]
fn what_is_allowed_is_sent_on_as_it_came() {
    for frame in [web(V4), web(V6)] {
        let verdict = Harness::<PacketFilter>::new(ONLY_WEB).unwrap().deliver(&[&frame]).remove(0);
        assert_eq!(verdict.outcome, Outcome::Sent);
        assert_eq!(verdict.bytes, frame);
    }
}

#[test]
fn what_is_not_is_dropped_among_others_that_pass() {
    let (ssh, dns) = (tcp(V4, 22, SYN).bytes(), udp(V6, 80).bytes());
    let mut harness = Harness::<PacketFilter>::new(ONLY_WEB).unwrap();
    let mut verdicts = harness.deliver(&[&ssh, &web(V4), &dns, &web(V6)]);
    verdicts.sort_by_key(|verdict| verdict.frame);
    let outcomes: Vec<_> = verdicts.iter().map(|verdict| verdict.outcome).collect();
    assert_eq!(outcomes, [Outcome::Dropped, Outcome::Sent, Outcome::Dropped, Outcome::Sent]);
}

#[test]
fn options_tags_and_extension_headers_are_looked_past() {
    let with_options = tcp(V4, 80, SYN).ip_options(&[7, 7, 4, 0, 0, 0, 0, 0]);
    let tagged = |tags: u16| (0..tags).fold(with_options.clone(), |frame, _| frame.vlan(7)).bytes();
    let behind_hop_by_hop_options = tcp(V6, 80, SYN).extension(0, &[1, 4]).bytes();
    for (frame, passes) in
        [(tagged(0), true), (tagged(1), true), (tagged(2), true), (tagged(3), false), (behind_hop_by_hop_options, true)]
    {
        assert_eq!(outcome(ONLY_WEB, &frame) == Outcome::Sent, passes);
    }
}

#[test]
fn a_segment_of_a_connection_is_told_from_its_first() {
    let policy = b"allow tcp established\ndefault deny";
    for (flags, sent) in [(0x02, false), (0x12, true), (0x10, true), (0x04, true), (0x01, false)] {
        assert_eq!(outcome(policy, &tcp(V4, 80, flags).bytes()) == Outcome::Sent, sent, "flags {flags:#x}");
    }
}

#[test]
fn a_first_fragment_is_judged_by_its_ports_and_a_later_one_without() {
    let first = udp(V4, 53).fragment(0, true).bytes();
    let [later, later_v6] = [V4, V6].map(|ends| part(ends, UDP, 72, false, &udp(ends, 53).message()));
    assert_eq!(
        [outcome(b"allow udp 53\ndefault deny", &first), outcome(b"deny udp 53\ndefault allow", &first)],
        [Outcome::Sent, Outcome::Dropped]
    );
    assert_eq!(
        [outcome(b"allow udp 53\ndefault deny", &later), outcome(b"deny udp 53\ndefault allow", &later)],
        [Outcome::Dropped, Outcome::Sent]
    );
    assert_eq!(outcome(b"allow udp 53\ndefault deny", &later_v6), Outcome::Dropped);
    assert_eq!(outcome(b"allow udp\ndefault deny", &later_v6), Outcome::Sent);
}

#[test]
fn no_fragment_reaches_into_a_tcp_header() {
    let segment = tcp(V4, 80, SYN).message();
    for (offset, passes) in [(8, false), (16, false), (24, true)] {
        let frame = part(V4, TCP, offset, false, &segment);
        assert_eq!(outcome(ALL, &frame) == Outcome::Sent, passes, "offset {offset}");
    }
    assert_eq!(outcome(ALL, &part(V4, TCP, 0, true, &segment[..8])), Outcome::Dropped);
}

/// Protocols that a fragment may carry: TCP, UDP, no next header, a fragment, options, ESP and an unknown one.
const NEXT_HEADERS: [u8; 8] = [TCP, UDP, 59, 44, 0, 60, 50, 254];

#[test]
fn no_fragment_of_ipv6_reaches_into_a_header_already_judged_whatever_it_says() {
    const NO_SSH: &[u8] = b"deny tcp 22\ndefault allow";
    // Destination options before the header move it to where a later fragment could begin.
    let options = |len: usize| [&[TCP, (len / 8 - 1) as u8, 1, (len - 4) as u8][..], &vec![0; len - 4]].concat();
    let [web, ssh] = [80, 22].map(|port| tcp(V6, port, SYN).message());
    let first_fragments = [part(V6, TCP, 0, true, &web), part(V6, 60, 0, true, &[options(8), web.clone()].concat())];
    for first in &first_fragments {
        assert_eq!(outcome(NO_SSH, first), Outcome::Sent);
    }
    for next_header in NEXT_HEADERS {
        for (offset, passes) in [(8, false), (16, false), (24, true), (1232, true)] {
            for more in [true, false] {
                let later = part(V6, next_header, offset, more, &ssh);
                assert_eq!(outcome(NO_SSH, &later) == Outcome::Sent, passes, "{next_header} at {offset}");
                assert_eq!(outcome(ALL, &later) == Outcome::Sent, passes, "{next_header} at {offset}");
            }
        }
    }
    // Dropped, as a later fragment could replace the bytes by which they would be judged.
    for len in [16, 24, 64] {
        assert_eq!(outcome(ALL, &part(V6, 60, 0, true, &[options(len), web.clone()].concat())), Outcome::Dropped);
        assert_eq!(outcome(ALL, &part(V6, 60, 0, false, &[options(len), web.clone()].concat())), Outcome::Sent);
    }
    // Another first fragment is judged like the first one.
    assert_eq!(outcome(NO_SSH, &part(V6, TCP, 0, true, &ssh)), Outcome::Dropped);
    assert_eq!(outcome(NO_SSH, &part(V6, TCP, 0, true, &web[..16])), Outcome::Dropped, "not all of a header");
}

#[test]
fn what_is_not_ip_is_dropped_whatever_the_policy() {
    let arp = udp(V4, 53).ethertype(0x0806).bytes();
    assert_eq!(outcome(ALL, &arp), Outcome::Dropped);
    assert_eq!(Headers::of(&arp), Err(Unreadable::NotIp));
}

#[test]
fn every_truncation_is_dropped() {
    for frame in [web(V4), web(V6)] {
        for len in 0..frame.len() {
            assert_eq!(outcome(ALL, &frame[..len]), Outcome::Dropped, "{len} bytes");
        }
    }
}

#[test]
fn denials_are_reported_at_most_every_ten_seconds() {
    let frame = web(V4);
    let mut harness = Harness::<PacketFilter>::new(b"default deny").unwrap();
    let _ = harness.deliver(&[&frame, &frame]);
    let _ = harness.deliver(&[&frame]);
    assert_eq!(take_log().into_iter().map(|(_, line)| line).collect::<Vec<_>>(), ["2 packets denied so far"]);
    advance_clock_ns(10_000_000_000);
    let _ = harness.deliver(&[&frame]);
    assert_eq!(take_log().into_iter().map(|(_, line)| line).collect::<Vec<_>>(), ["4 packets denied so far"]);
}

#[test]
fn a_wrong_configuration_is_refused_with_a_reason() {
    let refusal = |config: &[u8]| Harness::<PacketFilter>::new(config).err().unwrap().to_string();
    assert_eq!(refusal(b"allow tcp 80"), "the policy has no default: end it with `default deny` or `default allow`");
    assert!(refusal(&[0xff]).starts_with("the policy is no text: "));
}

proptest! {
    #[test]
    fn no_bytes_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        outcome(ALL, &frame);
    }

    #[test]
    fn no_change_of_a_frame_panics(
        v6: bool, changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        len in any::<proptest::sample::Index>(),
    ) {
        let mut frame = if v6 { web(V6) } else { web(V4) };
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        outcome(ALL, &frame[..=len.index(frame.len())]);
    }
}
