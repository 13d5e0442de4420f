//! The function as a client sees it: datagrams in, their echoes out.

#![cfg(not(target_family = "wasm"))]

use pinion_sdk::headers::Ecn;
use pinion_sdk::testing::{Frame, Harness, Outcome, Verdict, advance_clock_ns, take_log};
use proptest::prelude::*;
use udp_echo::UdpEcho;

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
            V4 => "10.77.0.10:40000",
            V6 => "[fd00:0:77::a]:40000",
        }
    }

    fn service(self) -> &'static str {
        match self {
            V4 => "10.77.0.2:7",
            V6 => "[fd00:0:77::2]:7",
        }
    }
}

/// A datagram of the client.
fn request(version: Version) -> Frame {
    let frame = Frame::udp(version.client(), version.service()).macs(CLIENT_MAC, NODE_MAC);
    frame.hop_limit(3).dscp(4).ecn(Ecn::Capable0).id(0xabcd)
}

/// The answer to it.
fn answer(version: Version) -> Frame {
    let frame = Frame::udp(version.service(), version.client()).macs(NODE_MAC, CLIENT_MAC);
    frame.hop_limit(64).dscp(4).ecn(Ecn::Capable0).id(0xabcd)
}

fn frame_v4(payload: &[u8]) -> Vec<u8> {
    request(V4).payload(payload).bytes()
}

fn frame_v6(payload: &[u8]) -> Vec<u8> {
    request(V6).payload(payload).bytes()
}

fn echo() -> Harness<UdpEcho> {
    Harness::new(b"").unwrap()
}

fn deliver(frame: &[u8]) -> Verdict {
    echo().deliver(&[frame]).remove(0)
}

/// Asserts that a datagram with these changes is answered by one with the same changes.
fn assert_answered(version: Version, change: impl Fn(Frame) -> Frame) {
    let verdict = deliver(&change(request(version)).bytes());
    assert_eq!(verdict.outcome, Outcome::Replied);
    assert_eq!(verdict.bytes, change(answer(version)).bytes());
}

#[test]
fn a_datagram_over_either_version_of_ip_is_answered() {
    for version in [V4, V6] {
        assert_answered(version, |frame| frame.payload(b"abcdefgh"));
        assert_answered(version, |frame| frame.payload(b"abcdefg"));
    }
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
    assert_answered(V4, |frame| frame.ip_options(&[7, 7, 4, 0, 0, 0, 0, 0]).payload(b"options"));
}

#[test]
fn one_and_two_vlan_tags_are_returned_and_three_are_dropped() {
    assert_answered(V4, |frame| frame.vlan(7).payload(b"tagged"));
    assert_answered(V4, |frame| frame.vlan(7).vlan(7).payload(b"tagged"));
    assert_eq!(deliver(&request(V4).vlan(7).vlan(7).vlan(7).bytes()).outcome, Outcome::Dropped);
}

#[test]
fn padding_after_a_short_packet_is_no_part_of_the_datagram() {
    let padded = |frame: Frame| {
        let mut bytes = frame.payload(b"x").bytes();
        bytes.resize(60, 0xee);
        bytes
    };
    let verdict = deliver(&padded(request(V4)));
    assert_eq!((verdict.outcome, verdict.bytes), (Outcome::Replied, padded(answer(V4))));
}

#[test]
fn over_ipv4_a_datagram_without_checksum_is_answered_without_one_and_over_ipv6_dropped() {
    assert_answered(V4, |frame| frame.payload(b"abcdefgh").checksum(0));
    assert_eq!(deliver(&request(V6).payload(b"abcdefgh").checksum(0).bytes()).outcome, Outcome::Dropped);
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
    for (offset, more) in [(0, true), (8, false), (0xfff8, false)] {
        let frame = request(V4).payload(b"a part of it").fragment(offset, more).bytes();
        assert_eq!(deliver(&frame).outcome, Outcome::Dropped);
    }
}

#[test]
fn other_protocols_port_zero_and_groups_are_not_answered() {
    let between = |from: u16, to: u16| Frame::udp(([10, 77, 0, 10], from), ([10, 77, 0, 2], to)).bytes();
    assert_eq!(deliver(&between(1, 65_535)).outcome, Outcome::Replied);
    let tcp_v6 = request(V6).payload(b"x").protocol(6).bytes();
    let mut to_group_mac = frame_v4(b"x");
    to_group_mac[0] |= 1;
    let mut from_group_mac = frame_v4(b"x");
    from_group_mac[6] |= 1;
    let mut to_group_v6 = frame_v6(b"x");
    to_group_v6[38] = 0xff;
    let arp = request(V4).ethertype(0x0806).bytes();
    for frame in [between(0, 7), between(7, 0), tcp_v6, to_group_mac, from_group_mac, to_group_v6, arp] {
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
        assert_answered(V4, |frame| frame.payload(&payload));
        assert_answered(V6, |frame| frame.payload(&payload));
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
