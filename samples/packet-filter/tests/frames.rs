//! The function as a chain sees it: frames in, allowed frames out, unchanged.

#![cfg(not(target_family = "wasm"))]

use packet_filter::PacketFilter;
use pinion_sdk::headers::{Headers, Unreadable};
use pinion_sdk::testing::{Harness, Outcome, advance_clock_ns, take_log};
use proptest::prelude::*;

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
const ONLY_WEB: &[u8] = b"allow tcp 80\ndefault deny";
const ALL: &[u8] = b"default allow";

fn ethernet(tags: &[u8], ethertype: [u8; 2], datagram: &[u8]) -> Vec<u8> {
    [&MACS[..], tags, &ethertype, datagram].concat()
}

fn ipv4(protocol: u8, options: &[u8], fragment: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let header_len = 20 + options.len();
    let total_len = ((header_len + payload.len()) as u16).to_be_bytes();
    let start = [0x40 | (header_len / 4) as u8, 0, total_len[0], total_len[1], 0, 1, fragment[0], fragment[1]];
    [&start[..], &[64, protocol, 0, 0, 10, 77, 0, 10, 10, 77, 0, 2], options, payload].concat()
}

fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16).to_be_bytes();
    let (source, destination) = ([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0xfd; 16]);
    [&[0x60, 0, 0, 0, len[0], len[1], next_header, 64][..], &source, &destination, payload].concat()
}

fn tcp(port: u16, flags: u8) -> Vec<u8> {
    let port = port.to_be_bytes();
    let mut header = vec![0x13, 0x88, port[0], port[1], 0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0];
    header.extend(b"payload");
    header
}

fn udp(port: u16) -> Vec<u8> {
    let port = port.to_be_bytes();
    [&[0x13, 0x88, port[0], port[1], 0, 12, 0, 0][..], b"data"].concat()
}

fn web_v4() -> Vec<u8> {
    ethernet(&[], [0x08, 0], &ipv4(6, &[], [0x40, 0], &tcp(80, 2)))
}

fn web_v6() -> Vec<u8> {
    ethernet(&[], [0x86, 0xdd], &ipv6(6, &tcp(80, 2)))
}

fn outcome(policy: &[u8], frame: &[u8]) -> Outcome {
    Harness::<PacketFilter>::new(policy).unwrap().deliver(&[frame]).remove(0).outcome
}

#[test]
fn what_is_allowed_is_sent_on_as_it_came() {
    for frame in [web_v4(), web_v6()] {
        let verdict = Harness::<PacketFilter>::new(ONLY_WEB).unwrap().deliver(&[&frame]).remove(0);
        assert_eq!(verdict.outcome, Outcome::Sent);
        assert_eq!(verdict.bytes, frame);
    }
}

#[test]
fn what_is_not_is_dropped_among_others_that_pass() {
    let ssh = ethernet(&[], [0x08, 0], &ipv4(6, &[], [0, 0], &tcp(22, 2)));
    let dns = ethernet(&[], [0x86, 0xdd], &ipv6(17, &udp(80)));
    let mut harness = Harness::<PacketFilter>::new(ONLY_WEB).unwrap();
    let mut verdicts = harness.deliver(&[&ssh, &web_v4(), &dns, &web_v6()]);
    verdicts.sort_by_key(|verdict| verdict.frame);
    let outcomes: Vec<_> = verdicts.iter().map(|verdict| verdict.outcome).collect();
    assert_eq!(outcomes, [Outcome::Dropped, Outcome::Sent, Outcome::Dropped, Outcome::Sent]);
}

#[test]
fn options_tags_and_extension_headers_are_looked_past() {
    let tag = [0x81, 0, 0, 7];
    let with_options = ipv4(6, &[7, 7, 4, 0, 0, 0, 0, 0], [0, 0], &tcp(80, 2));
    let hop_by_hop = [&[6, 0, 1, 4, 0, 0, 0, 0][..], &tcp(80, 2)].concat();
    for (frame, passes) in [
        (ethernet(&[], [0x08, 0], &with_options), true),
        (ethernet(&tag, [0x08, 0], &with_options), true),
        (ethernet(&tag.repeat(2), [0x08, 0], &with_options), true),
        (ethernet(&tag.repeat(3), [0x08, 0], &with_options), false),
        (ethernet(&[], [0x86, 0xdd], &ipv6(0, &hop_by_hop)), true),
    ] {
        assert_eq!(outcome(ONLY_WEB, &frame) == Outcome::Sent, passes);
    }
}

#[test]
fn a_segment_of_a_connection_is_told_from_its_first() {
    let policy = b"allow tcp established\ndefault deny";
    for (flags, sent) in [(0x02, false), (0x12, true), (0x10, true), (0x04, true), (0x01, false)] {
        let frame = ethernet(&[], [0x08, 0], &ipv4(6, &[], [0, 0], &tcp(80, flags)));
        assert_eq!(outcome(policy, &frame) == Outcome::Sent, sent, "flags {flags:#x}");
    }
}

#[test]
fn a_first_fragment_is_judged_by_its_ports_and_a_later_one_without() {
    let first = ethernet(&[], [0x08, 0], &ipv4(17, &[], [0x20, 0], &udp(53)));
    let later = ethernet(&[], [0x08, 0], &ipv4(17, &[], [0, 9], &udp(53)));
    assert_eq!(
        [outcome(b"allow udp 53\ndefault deny", &first), outcome(b"deny udp 53\ndefault allow", &first)],
        [Outcome::Sent, Outcome::Dropped]
    );
    assert_eq!(
        [outcome(b"allow udp 53\ndefault deny", &later), outcome(b"deny udp 53\ndefault allow", &later)],
        [Outcome::Dropped, Outcome::Sent]
    );
    let later_v6 = [&[17, 0, 0, 72, 0, 0, 0, 1][..], &udp(53)].concat();
    let later_v6 = ethernet(&[], [0x86, 0xdd], &ipv6(44, &later_v6));
    assert_eq!(outcome(b"allow udp 53\ndefault deny", &later_v6), Outcome::Dropped);
    assert_eq!(outcome(b"allow udp\ndefault deny", &later_v6), Outcome::Sent);
}

#[test]
fn no_fragment_reaches_into_a_tcp_header() {
    for (offset, passes) in [(1, false), (2, false), (3, true)] {
        let frame = ethernet(&[], [0x08, 0], &ipv4(6, &[], [0, offset], &tcp(80, 2)));
        assert_eq!(outcome(ALL, &frame) == Outcome::Sent, passes, "offset {offset}");
    }
    let tiny_first = ethernet(&[], [0x08, 0], &ipv4(6, &[], [0x20, 0], &tcp(80, 2)[..8]));
    assert_eq!(outcome(ALL, &tiny_first), Outcome::Dropped);
}

/// Returns an IPv6 fragment whose next header is this protocol.
fn part_v6(next_header: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (offset | u16::from(more)).to_be_bytes();
    ethernet(&[], [0x86, 0xdd], &ipv6(44, &[&[next_header, 0, high, low, 0, 0, 0, 9][..], payload].concat()))
}

/// Protocols that a fragment may carry: TCP, UDP, no next header, a fragment, options, ESP and an unknown one.
const NEXT_HEADERS: [u8; 8] = [6, 17, 59, 44, 0, 60, 50, 254];

#[test]
fn no_fragment_of_ipv6_reaches_into_a_header_already_judged_whatever_it_says() {
    const NO_SSH: &[u8] = b"deny tcp 22\ndefault allow";
    // Destination options before the header move it to where a later fragment could begin.
    let options = |len: usize| [&[6, (len / 8 - 1) as u8, 1, (len - 4) as u8][..], &vec![0; len - 4]].concat();
    let web = [tcp(80, 2), vec![0; 5]].concat();
    let first_fragments = [part_v6(6, 0, true, &web), part_v6(60, 0, true, &[options(8), web.clone()].concat())];
    for first in &first_fragments {
        assert_eq!(outcome(NO_SSH, first), Outcome::Sent);
    }
    for next_header in NEXT_HEADERS {
        for (offset, passes) in [(8, false), (16, false), (24, true), (1232, true)] {
            for more in [true, false] {
                let later = part_v6(next_header, offset, more, &tcp(22, 2)[4..]);
                assert_eq!(outcome(NO_SSH, &later) == Outcome::Sent, passes, "{next_header} at {offset}");
                assert_eq!(outcome(ALL, &later) == Outcome::Sent, passes, "{next_header} at {offset}");
            }
        }
    }
    // Dropped, as a later fragment could replace the bytes by which they would be judged.
    for len in [16, 24, 64] {
        assert_eq!(outcome(ALL, &part_v6(60, 0, true, &[options(len), web.clone()].concat())), Outcome::Dropped);
        assert_eq!(outcome(ALL, &part_v6(60, 0, false, &[options(len), web.clone()].concat())), Outcome::Sent);
    }
    // Another first fragment is judged like the first one.
    assert_eq!(outcome(NO_SSH, &part_v6(6, 0, true, &[tcp(22, 2), vec![0; 5]].concat())), Outcome::Dropped);
    assert_eq!(outcome(NO_SSH, &part_v6(6, 0, true, &tcp(80, 2)[..16])), Outcome::Dropped, "not all of a header");
}

#[test]
fn what_is_not_ip_is_dropped_whatever_the_policy() {
    let arp = ethernet(&[], [0x08, 0x06], &[0; 28]);
    assert_eq!(outcome(ALL, &arp), Outcome::Dropped);
    assert_eq!(Headers::of(&arp), Err(Unreadable::NotIp));
}

#[test]
fn every_truncation_is_dropped() {
    for frame in [web_v4(), web_v6()] {
        for len in 0..frame.len() {
            assert_eq!(outcome(ALL, &frame[..len]), Outcome::Dropped, "{len} bytes");
        }
    }
}

#[test]
fn denials_are_reported_at_most_every_ten_seconds() {
    let frame = web_v4();
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
        let mut frame = if v6 { web_v6() } else { web_v4() };
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        outcome(ALL, &frame[..=len.index(frame.len())]);
    }
}
