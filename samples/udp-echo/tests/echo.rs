//! The function as a client sees it: datagrams in, their echoes out.

#![cfg(not(target_family = "wasm"))]

use pinion_sdk::checksum;
use pinion_sdk::testing::{Harness, Outcome, Verdict, advance_clock_ns, take_log};
use proptest::prelude::*;
use udp_echo::UdpEcho;

const NODE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];
const CLIENT_V4: [u8; 4] = [10, 77, 0, 10];
const NODE_V4: [u8; 4] = [10, 77, 0, 2];
const CLIENT_V6: [u8; 16] = [0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a];
const NODE_V6: [u8; 16] = [0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02];
const CLIENT_PORT: u16 = 40_000;
const ECHO_PORT: u16 = 7;

fn ethernet(tags: &[u8], ethertype: [u8; 2], packet: &[u8]) -> Vec<u8> {
    [&NODE_MAC[..], &CLIENT_MAC, tags, &ethertype, packet].concat()
}

fn ipv4(options: &[u8], fragment: [u8; 2], datagram: &[u8]) -> Vec<u8> {
    let header_len = 20 + options.len();
    let total_len = ((header_len + datagram.len()) as u16).to_be_bytes();
    let mut header = vec![0x40 | (header_len / 4) as u8, 0x10, total_len[0], total_len[1], 0xab, 0xcd];
    header.extend(fragment);
    header.extend([3, 17, 0, 0]);
    header.extend([CLIENT_V4, NODE_V4].concat());
    header.extend(options);
    let sum = checksum::of(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header.extend(datagram);
    header
}

fn ipv6(datagram: &[u8]) -> Vec<u8> {
    let len = (datagram.len() as u16).to_be_bytes();
    [&[0x6a, 0xbc, 0xde, 0xf0, len[0], len[1], 17, 5][..], &CLIENT_V6, &NODE_V6, datagram].concat()
}

/// Returns the sum over a datagram and the pseudo header: zero if the datagram's checksum is right.
fn sum(source: &[u8], destination: &[u8], datagram: &[u8]) -> u16 {
    let len = (datagram.len() as u32).to_be_bytes();
    checksum::of(&[source, destination, &len, &[0, 0, 0, 17], datagram].concat())
}

fn udp(source: &[u8], destination: &[u8], payload: &[u8]) -> Vec<u8> {
    let [from, to, len] = [CLIENT_PORT, ECHO_PORT, (8 + payload.len()) as u16].map(u16::to_be_bytes);
    let mut datagram = [&from[..], &to, &len, &[0, 0], payload].concat();
    let sum = match sum(source, destination, &datagram) {
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

fn udp_v4(payload: &[u8]) -> Vec<u8> {
    udp(&CLIENT_V4, &NODE_V4, payload)
}

fn frame_v4(payload: &[u8]) -> Vec<u8> {
    ethernet(&[], [0x08, 0x00], &ipv4(&[], [0x40, 0], &udp_v4(payload)))
}

fn frame_v6(payload: &[u8]) -> Vec<u8> {
    ethernet(&[], [0x86, 0xdd], &ipv6(&udp(&CLIENT_V6, &NODE_V6, payload)))
}

fn echo() -> Harness<UdpEcho> {
    Harness::new(b"").unwrap()
}

fn deliver(frame: &[u8]) -> Verdict {
    echo().deliver(&[frame]).remove(0)
}

/// Asserts that this is `asked`'s datagram with its ports swapped.
fn assert_echoes(datagram: &[u8], asked: &[u8]) {
    assert_eq!(datagram[..2], asked[2..4]);
    assert_eq!(datagram[2..4], asked[..2]);
    assert_eq!(datagram[4..], asked[4..]);
}

/// Asserts that `answer` answers `request`, whose IPv4 header starts at `at`.
fn assert_answers_v4(answer: &[u8], request: &[u8], at: usize) {
    assert_eq!(answer.len(), request.len());
    assert_eq!(answer[..6], CLIENT_MAC);
    assert_eq!(answer[6..12], NODE_MAC);
    assert_eq!(answer[12..at], request[12..at]);
    let (ip, asked) = (&answer[at..], &request[at..]);
    let header_len = usize::from(ip[0] & 0x0f) * 4;
    let total_len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    assert_eq!(ip[..8], asked[..8]);
    assert_eq!(ip[8], 64, "time to live");
    assert_eq!(ip[12..16], NODE_V4);
    assert_eq!(ip[16..20], CLIENT_V4);
    assert_eq!(ip[20..header_len], asked[20..header_len]);
    assert_eq!(checksum::of(&ip[..header_len]), 0);
    assert_echoes(&ip[header_len..], &asked[header_len..]);
    let datagram = &ip[header_len..total_len];
    assert!(datagram[6..8] == [0, 0] || sum(&NODE_V4, &CLIENT_V4, datagram) == 0);
}

#[test]
fn a_datagram_over_ipv4_is_answered() {
    let request = frame_v4(b"abcdefgh");
    let verdict = deliver(&request);
    assert_eq!(verdict.outcome, Outcome::Replied);
    assert_answers_v4(&verdict.bytes, &request, 14);
}

#[test]
fn a_datagram_over_ipv6_is_answered() {
    let request = frame_v6(b"abcdefg");
    let verdict = deliver(&request);
    assert_eq!(verdict.outcome, Outcome::Replied);
    let answer = verdict.bytes;
    assert_eq!(answer[..6], CLIENT_MAC);
    assert_eq!(answer[14..21], request[14..21]);
    assert_eq!(answer[21], 64, "hop limit");
    assert_eq!(answer[22..38], NODE_V6);
    assert_eq!(answer[38..54], CLIENT_V6);
    assert_echoes(&answer[54..], &request[54..]);
    assert_eq!(sum(&NODE_V6, &CLIENT_V6, &answer[54..]), 0);
}

#[test]
fn with_once_it_answers_one_datagram_and_finishes() {
    let [datagram, other] = [frame_v4(b"abcdefgh"), vec![0; 60]];
    for config in [&b"once"[..], b"once\n"] {
        let mut harness = Harness::<UdpEcho>::new(config).unwrap();
        assert_eq!(harness.deliver(&[&other])[0].outcome, Outcome::Dropped);
        assert!(!harness.finished());
        let verdicts = harness.deliver(&[&other, &datagram, &datagram]);
        use Outcome::{Dropped, Replied};
        assert_eq!([0, 1, 2].map(|at| verdicts[at].outcome), [Dropped, Replied, Dropped]);
        assert!(harness.finished());
    }
    let mut endless = echo();
    assert!(endless.deliver(&[&datagram[..]; 300]).iter().all(|verdict| verdict.outcome == Outcome::Replied));
    assert!(!endless.finished());
}

#[test]
fn any_other_configuration_is_refused_with_a_message_that_quotes_it() {
    let refusal = |config: &[u8]| Harness::<UdpEcho>::new(config).err().unwrap().to_string();
    assert_eq!(refusal(b"twice"), "udp-echo takes no configuration but `once`, and was given `twice`");
    assert_eq!(refusal(b"\xff\n!"), "udp-echo takes no configuration but `once`, and was given `\\xff\\n!`");
    assert!(refusal(&[b'x'; 60_000]).len() < 150);
}

#[test]
fn ip_options_are_returned() {
    let request = ethernet(&[], [0x08, 0x00], &ipv4(&[7, 7, 4, 0, 0, 0, 0, 0], [0, 0], &udp_v4(b"options")));
    let verdict = deliver(&request);
    assert_eq!(verdict.outcome, Outcome::Replied);
    assert_answers_v4(&verdict.bytes, &request, 14);
}

#[test]
fn one_and_two_vlan_tags_are_returned_and_three_are_dropped() {
    let tag = [0x81, 0, 0, 7];
    for count in 1..=2 {
        let request = ethernet(&tag.repeat(count), [0x08, 0x00], &ipv4(&[], [0, 0], &udp_v4(b"tagged")));
        let verdict = deliver(&request);
        assert_eq!(verdict.outcome, Outcome::Replied);
        assert_answers_v4(&verdict.bytes, &request, 14 + 4 * count);
    }
    let request = ethernet(&tag.repeat(3), [0x08, 0x00], &ipv4(&[], [0, 0], &udp_v4(b"tagged")));
    assert_eq!(deliver(&request).outcome, Outcome::Dropped);
}

#[test]
fn padding_after_a_short_packet_is_no_part_of_the_datagram() {
    let mut request = frame_v4(b"x");
    request.resize(60, 0xee);
    let verdict = deliver(&request);
    assert_eq!(verdict.outcome, Outcome::Replied);
    assert_answers_v4(&verdict.bytes, &request, 14);
}

#[test]
fn over_ipv4_a_datagram_without_checksum_is_answered_without_one_and_over_ipv6_dropped() {
    let mut request = frame_v4(b"abcdefgh");
    request[14 + 20 + 6..][..2].fill(0);
    let verdict = deliver(&request);
    assert_eq!(verdict.outcome, Outcome::Replied);
    assert_answers_v4(&verdict.bytes, &request, 14);
    let mut request = frame_v6(b"abcdefgh");
    request[14 + 40 + 6..][..2].fill(0);
    assert_eq!(deliver(&request).outcome, Outcome::Dropped);
}

#[test]
fn a_checksum_report_of_the_device_is_trusted() {
    let right = frame_v4(b"abcdefgh");
    let mut wrong = right.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let outcome = |flags, frame: &[u8]| echo().deliver_checked(flags, &[frame])[0].outcome;
    assert_eq!(outcome(pinion_abi::RX_L4_CHECKSUM_GOOD, &wrong), Outcome::Replied);
    assert_eq!(outcome(pinion_abi::RX_L4_CHECKSUM_BAD, &right), Outcome::Dropped);
    assert_eq!(outcome(pinion_abi::RX_IP_CHECKSUM_GOOD, &wrong), Outcome::Dropped);
}

#[test]
fn fragments_are_dropped() {
    for fragment in [[0x20, 0], [0, 1], [0x1f, 0xff]] {
        let frame = ethernet(&[], [0x08, 0x00], &ipv4(&[], fragment, &udp_v4(b"part")));
        assert_eq!(deliver(&frame).outcome, Outcome::Dropped);
    }
}

#[test]
fn other_protocols_port_zero_and_groups_are_not_answered() {
    let without_checksum = |from: u16, to: u16| {
        let [from, to] = [from, to].map(u16::to_be_bytes);
        let datagram = [&from[..], &to, &[0, 8, 0, 0]].concat();
        ethernet(&[], [0x08, 0x00], &ipv4(&[], [0, 0], &datagram))
    };
    assert_eq!(deliver(&without_checksum(1, 65_535)).outcome, Outcome::Replied);
    let mut tcp_v6 = frame_v6(b"x");
    tcp_v6[14 + 6] = 6;
    let mut to_group_mac = frame_v4(b"x");
    to_group_mac[0] |= 1;
    let mut from_group_mac = frame_v4(b"x");
    from_group_mac[6] |= 1;
    let mut to_group_v6 = frame_v6(b"x");
    to_group_v6[38] = 0xff;
    let arp = ethernet(&[], [0x08, 0x06], &[0; 46]);
    for frame in
        [without_checksum(0, 7), without_checksum(7, 0), tcp_v6, to_group_mac, from_group_mac, to_group_v6, arp]
    {
        assert_eq!(deliver(&frame).outcome, Outcome::Dropped);
    }
}

#[test]
fn bad_checksums_are_dropped_and_reported_at_most_every_ten_seconds() {
    let mut payload = frame_v4(b"abcdefgh");
    *payload.last_mut().unwrap() ^= 1;
    let mut header = frame_v4(b"abcdefgh");
    header[14 + 8] ^= 1;
    let mut payload_v6 = frame_v6(b"abcdefgh");
    *payload_v6.last_mut().unwrap() ^= 1;

    let mut harness = echo();
    let verdicts = harness.deliver(&[&payload, &header, &payload_v6]);
    assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Dropped));
    let lines: Vec<_> = take_log().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, ["1 datagrams with a bad checksum dropped so far"]);

    advance_clock_ns(10_000_000_000);
    let _ = harness.deliver(&[&payload, &payload]);
    let lines: Vec<_> = take_log().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, ["4 datagrams with a bad checksum dropped so far"]);
}

#[test]
fn every_truncation_is_dropped() {
    for request in [frame_v4(b"abcdefgh"), frame_v6(b"abcdefgh")] {
        for len in 0..request.len() {
            assert_eq!(deliver(&request[..len]).outcome, Outcome::Dropped, "{len} bytes");
        }
    }
}

proptest! {
    #[test]
    fn a_datagram_of_any_payload_is_answered(payload in proptest::collection::vec(any::<u8>(), 0..1472)) {
        let request = frame_v4(&payload);
        let verdict = deliver(&request);
        prop_assert_eq!(verdict.outcome, Outcome::Replied);
        assert_answers_v4(&verdict.bytes, &request, 14);
        prop_assert_eq!(deliver(&frame_v6(&payload)).outcome, Outcome::Replied);
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
        let mut frame = if version == 4 { frame_v4(b"abcdefgh") } else { frame_v6(b"abcdefgh") };
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        deliver(&frame[..=len.index(frame.len())]);
    }
}
