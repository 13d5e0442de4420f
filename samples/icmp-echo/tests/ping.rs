//! The function as a client sees it: requests in, replies out.

#![cfg(not(target_family = "wasm"))]

#[path = "../../udp-echo/tests/echoes/mod.rs"]
mod echoes;

use echoes::{Echo, V4, V6, Version, answer, assert_answered, assert_dropped, deliver, request};
use icmp_echo::IcmpEcho;
use pinion_sdk::checksum;
use pinion_sdk::testing::{Frame, Harness, Outcome};
use proptest::prelude::*;

impl Echo for IcmpEcho {
    const MESSAGES: &'static str = "messages";

    fn request(version: Version) -> Frame {
        Frame::echo_request(version.client(), version.node()).echo(0x1234, 1)
    }

    fn answer(version: Version) -> Frame {
        Frame::echo_reply(version.node(), version.client()).echo(0x1234, 1)
    }
}

#[test]
fn a_ping_over_either_version_of_ip_is_answered() {
    echoes::assert_answers_over_either_version_of_ip::<IcmpEcho>();
}

/// Returns the IPv4 frames of a request and its reply; `rest` is what follows the checksum: identifier, sequence number
/// and payload, which replace what the frames have.
fn messages(rest: &[u8]) -> [Vec<u8>; 2] {
    let word = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
    let frames = [request::<IcmpEcho>(V4), answer::<IcmpEcho>(V4)];
    frames.map(|frame| frame.echo(word(0), word(2)).payload(&rest[4..]).bytes())
}

#[test]
fn a_reply_of_zeros_has_the_checksum_0xffff() {
    for payload_len in [0, 1, 2, 7, 8, 56, 1472] {
        let [request, reply] = messages(&vec![0; 4 + payload_len]);
        assert_eq!((&request[36..38], &reply[36..38]), (&[0xf7, 0xff][..], &[0xff, 0xff][..]));
        let verdict = deliver::<IcmpEcho>(&request);
        assert_eq!(verdict.outcome, Outcome::Replied);
        assert_eq!(verdict.bytes, reply, "{payload_len} bytes");
    }
}

#[test]
fn a_reply_that_comes_to_zero_without_being_zero_has_the_checksum_0x0000() {
    for rest in [&[0xff, 0xff, 0, 0][..], &[0, 0, 0xff, 0xff], &[0x12, 0x34, 0xed, 0xcb], &[0, 0, 0, 0, 0xff, 0xff]] {
        let [request, reply] = messages(rest);
        assert_eq!(reply[36..38], [0, 0]);
        let verdict = deliver::<IcmpEcho>(&request);
        assert_eq!(verdict.bytes, reply, "{rest:?}");
    }
}

#[test]
fn a_request_that_has_the_other_zero_is_answered() {
    // To a receiver 0xffff and 0x0000 are the same, except for data of zeros. The sum of this request comes to zero.
    let request = request::<IcmpEcho>(V4).echo(0xf7ff, 0).checksum(0xffff).bytes();
    let verdict = deliver::<IcmpEcho>(&request);
    assert_eq!(verdict.bytes, messages(&[0xf7, 0xff, 0, 0])[1]);
}

#[test]
fn ip_options_are_returned() {
    echoes::assert_returns_ip_options::<IcmpEcho>();
}

#[test]
fn one_and_two_vlan_tags_are_returned_and_three_are_dropped() {
    echoes::assert_returns_two_vlan_tags_and_no_more::<IcmpEcho>();
}

#[test]
fn padding_after_a_short_datagram_is_no_part_of_the_message() {
    echoes::assert_leaves_padding_alone::<IcmpEcho>();
}

#[test]
fn fragments_are_dropped() {
    echoes::assert_drops_fragments::<IcmpEcho>();
}

#[test]
fn replies_and_other_messages_are_dropped() {
    for kind in [0, 3, 13] {
        let frame = Frame::icmp(V4.client(), V4.node(), kind, 0, [0x12, 0x34, 0, 1]).payload(b"not for us");
        assert_dropped::<IcmpEcho>(&frame.bytes());
    }
    for kind in [1, 127, 129, 135] {
        let frame = Frame::icmp(V6.client(), V6.node(), kind, 0, [0x12, 0x34, 0, 1]).payload(b"not for us");
        assert_dropped::<IcmpEcho>(&frame.bytes());
    }
}

#[test]
fn requests_with_a_code_and_of_the_other_versions_icmp_are_dropped() {
    for (version, kind, other) in [(V4, 8, 58), (V6, 128, 1)] {
        let (client, node) = (version.client(), version.node());
        assert_dropped::<IcmpEcho>(&Frame::icmp(client, node, kind, 1, [0; 4]).bytes());
        assert_dropped::<IcmpEcho>(&request::<IcmpEcho>(version).protocol(other).bytes());
    }
}

#[test]
fn groups_are_not_answered() {
    echoes::assert_answers_no_groups::<IcmpEcho>();
}

#[test]
fn bad_checksums_are_dropped_and_reported_at_most_every_ten_seconds() {
    echoes::assert_reports_bad_checksums_at_most_every_ten_seconds::<IcmpEcho>();
}

#[test]
fn every_truncation_is_dropped() {
    echoes::assert_drops_every_truncation::<IcmpEcho>();
}

#[test]
fn a_configuration_is_refused_with_a_reason() {
    let refusal = Harness::<IcmpEcho>::new(b"x").err().unwrap();
    assert_eq!(refusal.to_string(), "icmp-echo has no configuration, but was given 1 bytes");
}

proptest! {
    #[test]
    fn a_ping_of_any_payload_is_answered(payload in proptest::collection::vec(any::<u8>(), 0..1472)) {
        assert_answered::<IcmpEcho>(V4, |frame| frame.payload(&payload));
        assert_answered::<IcmpEcho>(V6, |frame| frame.payload(&payload));
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
        prop_assert_eq!(&deliver::<IcmpEcho>(&request).bytes, &reply);
    }

    #[test]
    fn no_bytes_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = deliver::<IcmpEcho>(&frame);
    }

    #[test]
    fn no_change_of_a_request_panics(
        is_v4: bool, changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        len in any::<proptest::sample::Index>(),
    ) {
        echoes::assert_survives::<IcmpEcho>(if is_v4 { V4 } else { V6 }, changes, len);
    }
}
