//! The function as a client sees it: datagrams in, their echoes out.

#![cfg(not(target_family = "wasm"))]

mod echoes;

use echoes::{Echo, V4, V6, Version, assert_answered, assert_dropped, request};
use pinion_sdk::testing::{Frame, Harness, Outcome};
use proptest::prelude::*;
use udp_echo::UdpEcho;

impl Echo for UdpEcho {
    const MESSAGES: &'static str = "datagrams";

    fn request(version: Version) -> Frame {
        Frame::udp((version.client(), 40_000), (version.node(), 7))
    }

    fn answer(version: Version) -> Frame {
        Frame::udp((version.node(), 7), (version.client(), 40_000))
    }
}

/// Returns a datagram of eight bytes.
fn datagram(version: Version) -> Frame {
    request::<UdpEcho>(version).payload(b"abcdefgh")
}

fn echo() -> Harness<UdpEcho> {
    Harness::new(b"").unwrap()
}

#[test]
fn a_datagram_over_either_version_of_ip_is_answered() {
    echoes::assert_answers_over_either_version_of_ip::<UdpEcho>();
}

#[test]
fn with_once_it_answers_one_datagram_and_finishes() {
    let [datagram, other] = [datagram(V4).bytes(), vec![0; 60]];
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
    echoes::assert_returns_ip_options::<UdpEcho>();
}

#[test]
fn one_and_two_vlan_tags_are_returned_and_three_are_dropped() {
    echoes::assert_returns_two_vlan_tags_and_no_more::<UdpEcho>();
}

#[test]
fn padding_after_a_short_packet_is_no_part_of_the_datagram() {
    echoes::assert_leaves_padding_alone::<UdpEcho>();
}

#[test]
fn over_ipv4_a_datagram_without_checksum_is_answered_without_one_and_over_ipv6_dropped() {
    assert_answered::<UdpEcho>(V4, |frame| frame.payload(b"abcdefgh").checksum(0));
    let without = datagram(V6).checksum(0).bytes();
    assert_dropped::<UdpEcho>(&without);
    let outcome = echo().deliver_checked(pinion_abi::RX_L4_CHECKSUM_GOOD, &[&without])[0].outcome;
    assert_eq!(outcome, Outcome::Dropped, "whatever the device says");
}

#[test]
fn a_checksum_report_of_the_device_is_trusted() {
    for version in [V4, V6] {
        let right = datagram(version).bytes();
        let mut wrong = right.clone();
        *wrong.last_mut().unwrap() ^= 1;
        let outcome = |flags, frame: &[u8]| echo().deliver_checked(flags, &[frame])[0].outcome;
        assert_eq!(outcome(pinion_abi::RX_L4_CHECKSUM_GOOD, &wrong), Outcome::Replied);
        assert_eq!(outcome(pinion_abi::RX_L4_CHECKSUM_BAD, &right), Outcome::Dropped);
        assert_eq!(outcome(pinion_abi::RX_IP_CHECKSUM_GOOD, &wrong), Outcome::Dropped);
    }
}

#[test]
fn fragments_are_dropped() {
    echoes::assert_drops_fragments::<UdpEcho>();
}

#[test]
fn other_protocols_port_zero_and_groups_are_not_answered() {
    let between = |from: u16, to: u16| Frame::udp((V4.client(), from), (V4.node(), to)).bytes();
    assert_eq!(echo().deliver(&[&between(1, 65_535)])[0].outcome, Outcome::Replied);
    let tcp_v6 = datagram(V6).protocol(6).bytes();
    let arp = datagram(V4).ethertype(0x0806).bytes();
    for frame in [between(0, 7), between(7, 0), tcp_v6, arp] {
        assert_dropped::<UdpEcho>(&frame);
    }
    echoes::assert_answers_no_groups::<UdpEcho>();
}

#[test]
fn a_datagram_behind_extension_headers_is_not_answered() {
    assert_dropped::<UdpEcho>(&datagram(V6).extension(60, &[1, 4]).bytes());
}

#[test]
fn bad_checksums_are_dropped_and_reported_at_most_every_ten_seconds() {
    echoes::assert_reports_bad_checksums_at_most_every_ten_seconds::<UdpEcho>();
}

#[test]
fn every_truncation_is_dropped() {
    echoes::assert_drops_every_truncation::<UdpEcho>();
}

proptest! {
    #[test]
    fn a_datagram_of_any_payload_is_answered(payload in proptest::collection::vec(any::<u8>(), 0..1472)) {
        assert_answered::<UdpEcho>(V4, |frame| frame.payload(&payload));
        assert_answered::<UdpEcho>(V6, |frame| frame.payload(&payload));
    }

    #[test]
    fn no_bytes_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = echo().deliver(&[&frame]);
    }

    #[test]
    fn no_change_of_a_request_panics(
        is_v4: bool, changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        len in any::<proptest::sample::Index>(),
    ) {
        echoes::assert_survives::<UdpEcho>(if is_v4 { V4 } else { V6 }, changes, len);
    }
}
