//! The function as a client sees it: requests in, replies out.

#![cfg(not(target_family = "wasm"))]

use icmp_echo::IcmpEcho;
use pinion_sdk::checksum;
use pinion_sdk::headers::Ecn;
use pinion_sdk::testing::{Frame, Harness, Outcome, Verdict, advance_clock_ns, take_log};
use proptest::prelude::*;

use Version::{V4, V6};

const NODE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];

#[derive(Clone, Copy)]
enum Version {
    V4,
    V6,
}

impl Version {
    fn client(self) -> &'static str {
        match self {
            V4 => "10.77.0.10",
            V6 => "fd00:0:77::a",
        }
    }

    fn node(self) -> &'static str {
        match self {
            V4 => "10.77.0.2",
            V6 => "fd00:0:77::2",
        }
    }
}

/// A request of the client.
fn request(version: Version) -> Frame {
    let frame = Frame::echo_request(version.client(), version.node()).macs(CLIENT_MAC, NODE_MAC);
    frame.hop_limit(3).dscp(4).ecn(Ecn::Capable0).id(0xabcd).echo(0x1234, 1)
}

/// The reply to it.
fn reply(version: Version) -> Frame {
    let frame = Frame::echo_reply(version.node(), version.client()).macs(NODE_MAC, CLIENT_MAC);
    frame.hop_limit(64).dscp(4).ecn(Ecn::Capable0).id(0xabcd).echo(0x1234, 1)
}

fn ping_v4(payload: &[u8]) -> Vec<u8> {
    request(V4).payload(payload).bytes()
}

fn ping_v6(payload: &[u8]) -> Vec<u8> {
    request(V6).payload(payload).bytes()
}

fn deliver(frame: &[u8]) -> Verdict {
    Harness::<IcmpEcho>::new(b"").unwrap().deliver(&[frame]).remove(0)
}

/// Asserts that a request with these changes is answered by a reply with the same changes.
fn assert_answered(version: Version, change: impl Fn(Frame) -> Frame) {
    let verdict = deliver(&change(request(version)).bytes());
    assert_eq!(verdict.outcome, Outcome::Replied);
    assert_eq!(verdict.bytes, change(reply(version)).bytes());
}

#[test]
fn a_ping_over_either_version_of_ip_is_answered() {
    for version in [V4, V6] {
        assert_answered(version, |frame| frame.payload(b"abcdefgh"));
        assert_answered(version, |frame| frame.payload(b"abcdefg"));
    }
}

/// Returns the IPv4 frames of a request and its reply; `rest` is what follows the checksum: identifier, sequence number
/// and payload, which replace what the frames have.
fn messages(rest: &[u8]) -> [Vec<u8>; 2] {
    let word = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
    [request(V4), reply(V4)].map(|frame| frame.echo(word(0), word(2)).payload(&rest[4..]).bytes())
}

#[test]
fn a_reply_of_zeros_has_the_checksum_0xffff() {
    for payload_len in [0, 1, 2, 7, 8, 56, 1472] {
        let [request, reply] = messages(&vec![0; 4 + payload_len]);
        assert_eq!((&request[36..38], &reply[36..38]), (&[0xf7, 0xff][..], &[0xff, 0xff][..]));
        let verdict = deliver(&request);
        assert_eq!(verdict.outcome, Outcome::Replied);
        assert_eq!(verdict.bytes, reply, "{payload_len} bytes");
    }
}

#[test]
fn a_reply_that_comes_to_zero_without_being_zero_has_the_checksum_0x0000() {
    for rest in [&[0xff, 0xff, 0, 0][..], &[0, 0, 0xff, 0xff], &[0x12, 0x34, 0xed, 0xcb], &[0, 0, 0, 0, 0xff, 0xff]] {
        let [request, reply] = messages(rest);
        assert_eq!(reply[36..38], [0, 0]);
        let verdict = deliver(&request);
        assert_eq!(verdict.bytes, reply, "{rest:?}");
    }
}

#[test]
fn a_request_that_has_the_other_zero_is_answered() {
    // To a receiver 0xffff and 0x0000 are the same, except for data of zeros. The sum of this request comes to zero.
    let request = request(V4).echo(0xf7ff, 0).checksum(0xffff).bytes();
    let verdict = deliver(&request);
    assert_eq!(verdict.bytes, messages(&[0xf7, 0xff, 0, 0])[1]);
}

#[test]
fn ip_options_are_returned() {
    assert_answered(V4, |frame| frame.ip_options(&[7, 7, 4, 0, 0, 0, 0, 0]).payload(b"options"));
}

#[test]
fn one_and_two_vlan_tags_are_returned_and_three_are_dropped() {
    assert_answered(V4, |frame| frame.vlan(7).payload(b"tagged"));
    assert_answered(V4, |frame| frame.vlan(7).vlan(7).payload(b"tagged"));
    assert_eq!(deliver(&request(V4).vlan(7).vlan(7).vlan(7).bytes()).outcome, Outcome::Dropped);
}

#[test]
fn padding_after_a_short_datagram_is_no_part_of_the_message() {
    let padded = |frame: Frame| {
        let mut bytes = frame.payload(b"x").bytes();
        bytes.resize(60, 0xee);
        bytes
    };
    let verdict = deliver(&padded(request(V4)));
    assert_eq!((verdict.outcome, verdict.bytes), (Outcome::Replied, padded(reply(V4))));
}

#[test]
fn fragments_are_dropped() {
    for (offset, more) in [(0, true), (8, false), (0xfff8, false)] {
        let frame = request(V4).payload(b"a part of it").fragment(offset, more).bytes();
        assert_eq!(deliver(&frame).outcome, Outcome::Dropped);
    }
}

#[test]
fn replies_and_other_messages_are_dropped() {
    for kind in [0, 3, 13] {
        let frame = Frame::icmp(V4.client(), V4.node(), kind, 0, [0x12, 0x34, 0, 1]).payload(b"not for us").bytes();
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
        assert_answered(V4, |frame| frame.payload(&payload));
        assert_answered(V6, |frame| frame.payload(&payload));
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
        prop_assert_eq!(&deliver(&request).bytes, &reply);
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
