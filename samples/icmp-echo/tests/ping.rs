//! The function as a client sees it: requests in, replies out.

#![cfg(not(target_family = "wasm"))]

use icmp_echo::IcmpEcho;
use pinion_sdk::checksum;
use pinion_sdk::testing::{Harness, Outcome, Verdict, advance_clock_ns, take_log};
use proptest::prelude::*;

const NODE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];
const CLIENT_V6: [u8; 16] = [0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a];
const NODE_V6: [u8; 16] = [0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02];

fn ethernet(tags: &[u8], ethertype: [u8; 2], datagram: &[u8]) -> Vec<u8> {
    [&NODE_MAC[..], &CLIENT_MAC, tags, &ethertype, datagram].concat()
}

fn ipv4(options: &[u8], fragment: [u8; 2], message: &[u8]) -> Vec<u8> {
    let header_len = 20 + options.len();
    let total_len = ((header_len + message.len()) as u16).to_be_bytes();
    let mut header = vec![0x40 | (header_len / 4) as u8, 0x10, total_len[0], total_len[1], 0xab, 0xcd];
    header.extend(fragment);
    header.extend([3, 1, 0, 0, 10, 77, 0, 10, 10, 77, 0, 2]);
    header.extend(options);
    let sum = checksum::of(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header.extend(message);
    header
}

fn ipv6(message: &[u8]) -> Vec<u8> {
    let len = (message.len() as u16).to_be_bytes();
    [&[0x6a, 0xbc, 0xde, 0xf0, len[0], len[1], 58, 5][..], &CLIENT_V6, &NODE_V6, message].concat()
}

fn pseudo_header_v6(source: &[u8], destination: &[u8], len: usize) -> Vec<u8> {
    [source, destination, &(len as u32).to_be_bytes(), &[0, 0, 0, 58]].concat()
}

fn echo_v4(message_type: u8, payload: &[u8]) -> Vec<u8> {
    let mut message = [&[message_type, 0, 0, 0, 0x12, 0x34, 0, 1][..], payload].concat();
    let sum = checksum::of(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

fn echo_v6(payload: &[u8]) -> Vec<u8> {
    let mut message = [&[128, 0, 0, 0, 0x12, 0x34, 0, 1][..], payload].concat();
    let pseudo = pseudo_header_v6(&CLIENT_V6, &NODE_V6, message.len());
    let sum = checksum::of(&[&pseudo[..], &message].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

fn ping_v4(payload: &[u8]) -> Vec<u8> {
    ethernet(&[], [0x08, 0x00], &ipv4(&[], [0x40, 0], &echo_v4(8, payload)))
}

fn ping_v6(payload: &[u8]) -> Vec<u8> {
    ethernet(&[], [0x86, 0xdd], &ipv6(&echo_v6(payload)))
}

fn deliver(frame: &[u8]) -> Verdict {
    Harness::<IcmpEcho>::new(b"").unwrap().deliver(&[frame]).remove(0)
}

/// Asserts that `reply` answers `request`, whose IPv4 header starts at `at`.
fn assert_answers_v4(reply: &[u8], request: &[u8], at: usize) {
    assert_eq!(reply.len(), request.len());
    assert_eq!(reply[..6], CLIENT_MAC);
    assert_eq!(reply[6..12], NODE_MAC);
    assert_eq!(reply[12..at], request[12..at]);
    let (ip, asked) = (&reply[at..], &request[at..]);
    let header_len = usize::from(ip[0] & 0x0f) * 4;
    let total_len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    assert_eq!(ip[..8], asked[..8]);
    assert_eq!(ip[8], 64, "time to live");
    assert_eq!(ip[12..16], asked[16..20]);
    assert_eq!(ip[16..20], asked[12..16]);
    assert_eq!(ip[20..header_len], asked[20..header_len]);
    assert_eq!(checksum::of(&ip[..header_len]), 0);
    assert_eq!(ip[header_len..header_len + 2], [0, 0]);
    assert_eq!(checksum::of(&ip[header_len..total_len]), 0);
    assert_eq!(ip[header_len + 4..], asked[header_len + 4..]);
}

#[test]
fn a_ping_over_ipv4_is_answered() {
    let request = ping_v4(b"abcdefgh");
    let verdict = deliver(&request);
    assert_eq!(verdict.outcome, Outcome::Replied);
    assert_answers_v4(&verdict.bytes, &request, 14);
}

/// Returns an IPv4 request and its reply; `rest` is what follows the checksum: identifier, sequence number and payload.
fn messages(rest: &[u8]) -> [Vec<u8>; 2] {
    [8, 0].map(|kind| {
        let mut message = [&[kind, 0, 0, 0][..], rest].concat();
        let sum = checksum::of(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        message
    })
}

#[test]
fn a_reply_of_zeros_has_the_checksum_0xffff() {
    for payload_len in [0, 1, 2, 7, 8, 56, 1472] {
        let [request, reply] = messages(&vec![0; 4 + payload_len]);
        assert_eq!((&request[2..4], &reply[2..4]), (&[0xf7, 0xff][..], &[0xff, 0xff][..]));
        let verdict = deliver(&ethernet(&[], [0x08, 0x00], &ipv4(&[], [0, 0], &request)));
        assert_eq!(verdict.outcome, Outcome::Replied);
        assert_eq!(verdict.bytes[34..], reply, "{payload_len} bytes");
    }
}

#[test]
fn a_reply_that_comes_to_zero_without_being_zero_has_the_checksum_0x0000() {
    for rest in [&[0xff, 0xff, 0, 0][..], &[0, 0, 0xff, 0xff], &[0x12, 0x34, 0xed, 0xcb], &[0, 0, 0, 0, 0xff, 0xff]] {
        let [request, reply] = messages(rest);
        assert_eq!(reply[2..4], [0, 0]);
        let verdict = deliver(&ethernet(&[], [0x08, 0x00], &ipv4(&[], [0, 0], &request)));
        assert_eq!(verdict.bytes[34..], reply, "{rest:?}");
    }
}

#[test]
fn a_request_that_has_the_other_zero_is_answered() {
    // To a receiver 0xffff and 0x0000 are the same, except for data of zeros. The sum of this request comes to zero.
    let request = [8, 0, 0xff, 0xff, 0xf7, 0xff, 0, 0];
    let verdict = deliver(&ethernet(&[], [0x08, 0x00], &ipv4(&[], [0, 0], &request)));
    assert_eq!(verdict.bytes[34..], messages(&[0xf7, 0xff, 0, 0])[1]);
}

#[test]
fn a_ping_over_ipv6_is_answered() {
    let request = ping_v6(b"abcdefg");
    let verdict = deliver(&request);
    assert_eq!(verdict.outcome, Outcome::Replied);
    let reply = verdict.bytes;
    assert_eq!(reply[..6], CLIENT_MAC);
    assert_eq!(reply[14..21], request[14..21]);
    assert_eq!(reply[21], 64, "hop limit");
    assert_eq!(reply[22..38], NODE_V6);
    assert_eq!(reply[38..54], CLIENT_V6);
    assert_eq!(reply[54..56], [129, 0]);
    assert_eq!(reply[58..], request[58..]);
    let pseudo = pseudo_header_v6(&NODE_V6, &CLIENT_V6, reply.len() - 54);
    assert_eq!(checksum::of(&[&pseudo[..], &reply[54..]].concat()), 0);
}

#[test]
fn ip_options_are_returned() {
    let request = ethernet(&[], [0x08, 0x00], &ipv4(&[7, 7, 4, 0, 0, 0, 0, 0], [0, 0], &echo_v4(8, b"options")));
    let verdict = deliver(&request);
    assert_eq!(verdict.outcome, Outcome::Replied);
    assert_answers_v4(&verdict.bytes, &request, 14);
}

#[test]
fn one_and_two_vlan_tags_are_returned_and_three_are_dropped() {
    let tag = [0x81, 0, 0, 7];
    for count in 1..=2 {
        let request = ethernet(&tag.repeat(count), [0x08, 0x00], &ipv4(&[], [0, 0], &echo_v4(8, b"tagged")));
        let verdict = deliver(&request);
        assert_eq!(verdict.outcome, Outcome::Replied);
        assert_answers_v4(&verdict.bytes, &request, 14 + 4 * count);
    }
    let request = ethernet(&tag.repeat(3), [0x08, 0x00], &ipv4(&[], [0, 0], &echo_v4(8, b"tagged")));
    assert_eq!(deliver(&request).outcome, Outcome::Dropped);
}

#[test]
fn padding_after_a_short_datagram_is_no_part_of_the_message() {
    let mut request = ping_v4(b"x");
    request.resize(60, 0xee);
    let verdict = deliver(&request);
    assert_eq!(verdict.outcome, Outcome::Replied);
    assert_answers_v4(&verdict.bytes, &request, 14);
}

#[test]
fn fragments_are_dropped() {
    for fragment in [[0x20, 0], [0, 1], [0x1f, 0xff]] {
        let frame = ethernet(&[], [0x08, 0x00], &ipv4(&[], fragment, &echo_v4(8, b"part")));
        assert_eq!(deliver(&frame).outcome, Outcome::Dropped);
    }
}

#[test]
fn replies_and_other_messages_are_dropped() {
    for message_type in [0, 3, 13] {
        let frame = ethernet(&[], [0x08, 0x00], &ipv4(&[], [0, 0], &echo_v4(message_type, b"not for us")));
        assert_eq!(deliver(&frame).outcome, Outcome::Dropped);
    }
}

#[test]
fn groups_are_not_answered() {
    let mut to_group_mac = ping_v4(b"x");
    to_group_mac[0] |= 1;
    let mut from_group_mac = ping_v4(b"x");
    from_group_mac[6] |= 1;
    let mut to_group_v6 = ping_v6(b"x");
    to_group_v6[38] = 0xff;
    for frame in [to_group_mac, from_group_mac, to_group_v6] {
        assert_eq!(deliver(&frame).outcome, Outcome::Dropped);
    }
}

#[test]
fn bad_checksums_are_dropped_and_reported_at_most_every_ten_seconds() {
    let mut message = ping_v4(b"abcdefgh");
    *message.last_mut().unwrap() ^= 1;
    let mut header = ping_v4(b"abcdefgh");
    header[14 + 8] ^= 1;
    let mut message_v6 = ping_v6(b"abcdefgh");
    *message_v6.last_mut().unwrap() ^= 1;

    let mut harness = Harness::<IcmpEcho>::new(b"").unwrap();
    let verdicts = harness.deliver(&[&message, &header, &message_v6]);
    assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Dropped));
    let lines: Vec<_> = take_log().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, ["1 messages with a bad checksum dropped so far"]);

    advance_clock_ns(10_000_000_000);
    let _ = harness.deliver(&[&message, &message]);
    let lines: Vec<_> = take_log().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, ["4 messages with a bad checksum dropped so far"]);
}

#[test]
fn every_truncation_is_dropped() {
    for request in [ping_v4(b"abcdefgh"), ping_v6(b"abcdefgh")] {
        for len in 0..request.len() {
            assert_eq!(deliver(&request[..len]).outcome, Outcome::Dropped, "{len} bytes");
        }
    }
}

#[test]
fn a_configuration_is_refused_with_a_reason() {
    let refusal = Harness::<IcmpEcho>::new(b"x").err().unwrap();
    assert_eq!(refusal.to_string(), "icmp-echo has no configuration, but was given 1 bytes");
}

proptest! {
    #[test]
    fn a_ping_of_any_payload_is_answered(payload in proptest::collection::vec(any::<u8>(), 0..1472)) {
        let request = ping_v4(&payload);
        let verdict = deliver(&request);
        prop_assert_eq!(verdict.outcome, Outcome::Replied);
        assert_answers_v4(&verdict.bytes, &request, 14);
        prop_assert_eq!(deliver(&ping_v6(&payload)).outcome, Outcome::Replied);
    }

    #[test]
    fn a_reply_has_the_checksum_that_a_new_computation_gives(
        words in proptest::collection::vec(prop_oneof![3 => Just(0), 1 => Just(0xffff), 1 => any::<u16>()], 2..8), to_zero: bool,
    ) {
        let mut rest: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        if to_zero {
            rest.extend(checksum::of(&rest).to_be_bytes());
        }
        let [request, reply] = messages(&rest);
        let verdict = deliver(&ethernet(&[], [0x08, 0x00], &ipv4(&[], [0, 0], &request)));
        prop_assert_eq!(&verdict.bytes[34..], &reply[..]);
    }

    #[test]
    fn no_bytes_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        deliver(&frame);
    }

    #[test]
    fn no_change_of_a_request_panics(
        version in 4_u8..=6, changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        len in any::<proptest::sample::Index>(),
    ) {
        let mut frame = if version == 4 { ping_v4(b"abcdefgh") } else { ping_v6(b"abcdefgh") };
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        deliver(&frame[..=len.index(frame.len())]);
    }
}
