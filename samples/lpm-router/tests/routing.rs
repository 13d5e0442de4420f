//! The router as its neighbours see it: frames in; forwarded, returned as ICMP errors, or dropped.

#![cfg(not(target_family = "wasm"))]

use std::net::{IpAddr, Ipv4Addr};

use lpm_router::Router;
use pinion_sdk::checksum;
use pinion_sdk::headers::{ICMP, ICMPV6, UDP};
use pinion_sdk::testing::{Address, Frame, Harness, Outcome, Verdict, advance_clock_ns, take_log};
use proptest::prelude::*;

const CONFIG: &str = r#"
mac = "02:00:00:00:00:01"
addresses = ["192.0.2.1", "2001:db8::1"]
routes = """
10.0.0.0/8    lan       # the rest of it
10.1.0.0/16   blackhole
10.2.0.0/16   unreachable
fd00::/8      lan
"""

[[next_hop]]
name = "lan"
mac = "02:00:00:00:01:01"

[[next_hop]]
name = "far"
output = 3
mac = "02:00:00:00:02:01"
source_mac = "02:00:00:00:02:99"

[[route]]
prefix = "10.3.0.0/16"
via = "far"

[[route]]
prefix = "fd03::/16"
via = "far"
"#;

const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
const LAN: [u8; 12] = [2, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 1];
const FAR: [u8; 12] = [2, 0, 0, 0, 2, 1, 2, 0, 0, 0, 2, 0x99];

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn packet(
    source: impl Address<IpAddr>,
    to: impl Address<IpAddr>,
    hop_limit: u8,
    protocol: u8,
    payload: &[u8],
) -> Frame {
    Frame::other(protocol, source, to).macs(CLIENT_MAC, OWN_MAC).hop_limit(hop_limit).payload(payload)
}

fn frame(source: &str, to: &str, hop_limit: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    packet(source, to, hop_limit, protocol, payload).bytes()
}

fn router() -> Harness<Router> {
    Harness::new(CONFIG.as_bytes()).unwrap()
}

fn deliver(frame: &[u8]) -> Verdict {
    router().deliver(&[frame]).remove(0)
}

/// Returns the checksum of ICMPv6, over a pseudo header made here.
fn sum_v6(datagram: &[u8]) -> u16 {
    let message = &datagram[40..];
    checksum::of(&[&datagram[8..40], &(message.len() as u32).to_be_bytes(), &[0, 0, 0, ICMPV6], message].concat())
}

fn assert_error_v4(verdict: &Verdict, about: &[u8], kind: u8) {
    assert_eq!(verdict.outcome, Outcome::Replied);
    let (bytes, asked) = (&verdict.bytes, &about[14..]);
    assert_eq!(bytes[..12], [CLIENT_MAC, OWN_MAC].concat());
    let ip = &bytes[14..];
    assert_eq!(ip.len(), (28 + asked.len()).min(576));
    assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
    assert_eq!(checksum::of(&ip[..20]), 0);
    assert_eq!([ip[0], ip[1], ip[8], ip[9]], [0x45, 0xc0, 64, ICMP]);
    assert_eq!(ip[12..20], [&[192, 0, 2, 1], &asked[12..16]].concat());
    assert_eq!(checksum::of(&ip[20..]), 0);
    assert_eq!([ip[20], ip[21]], [kind, 0]);
    assert_eq!(ip[24..28], [0; 4]);
    assert_eq!(ip[28..], asked[..ip.len() - 28], "as it was received");
}

fn assert_error_v6(verdict: &Verdict, about: &[u8], kind: u8) {
    assert_eq!(verdict.outcome, Outcome::Replied);
    let (bytes, asked) = (&verdict.bytes, &about[14..]);
    assert_eq!(bytes[..12], [CLIENT_MAC, OWN_MAC].concat());
    let ip = &bytes[14..];
    assert_eq!(ip.len(), (48 + asked.len()).min(1280));
    assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), ip.len() - 40);
    assert_eq!([ip[6], ip[7]], [ICMPV6, 64]);
    assert_eq!(IpAddr::from(<[u8; 16]>::try_from(&ip[8..24]).unwrap()), address("2001:db8::1"));
    assert_eq!(ip[24..40], asked[8..24]);
    assert_eq!(sum_v6(ip), 0);
    assert_eq!([ip[40], ip[41]], [kind, 0]);
    assert_eq!(ip[44..48], [0; 4]);
    assert_eq!(ip[48..], asked[..ip.len() - 48], "as it was received");
}

#[test]
fn a_packet_goes_where_the_longest_prefix_says_with_the_neighbours_address() {
    for (source, to, outcome, macs) in [
        ("192.0.2.7", "10.0.0.9", Outcome::Sent, LAN),
        ("192.0.2.7", "10.3.0.9", Outcome::SentTo(3), FAR),
        ("2001:db8::7", "fd00::9", Outcome::Sent, LAN),
        ("2001:db8::7", "fd03::9", Outcome::SentTo(3), FAR),
    ] {
        let verdict = deliver(&frame(source, to, 64, UDP, b"payload"));
        let expected = frame(source, to, 63, UDP, b"payload");
        assert_eq!(verdict.outcome, outcome, "{to}");
        assert_eq!(verdict.bytes[..12], macs, "{to}");
        assert_eq!(verdict.bytes[12..], expected[12..], "{to}");
    }
}

#[test]
fn tags_and_padding_stay_as_they_are() {
    let datagram = |ttl| packet("192.0.2.7", "10.0.0.9", ttl, UDP, b"x");
    let mut tagged = datagram(9).service_vlan(5).vlan(7).bytes();
    tagged.resize(68, 0xee);
    let verdict = deliver(&tagged);
    assert_eq!(verdict.outcome, Outcome::Sent);
    assert_eq!(verdict.bytes[12..22], tagged[12..22]);
    assert_eq!(verdict.bytes[22..43], datagram(8).packet());
    assert_eq!(verdict.bytes[43..], [0xee; 25]);

    let thrice = datagram(9).vlan(7).vlan(7).vlan(7).bytes();
    assert_eq!(deliver(&thrice).outcome, Outcome::Dropped);
}

#[test]
fn the_sender_of_a_packet_with_a_used_up_hop_limit_gets_an_error() {
    for ttl in [0, 1] {
        for payload in [&b"short"[..], &[7; 1400]] {
            let expired = frame("192.0.2.7", "10.0.0.9", ttl, UDP, payload);
            assert_error_v4(&deliver(&expired), &expired, 11);
            let expired = frame("2001:db8::7", "fd00::9", ttl, UDP, payload);
            assert_error_v6(&deliver(&expired), &expired, 3);
        }
    }
}

#[test]
fn a_packet_without_a_route_gets_an_error_and_one_to_a_black_hole_gets_none() {
    for to in ["172.16.0.1", "10.2.0.1"] {
        let lost = frame("192.0.2.7", to, 64, UDP, b"payload");
        assert_error_v4(&deliver(&lost), &lost, 3);
    }
    let lost = frame("2001:db8::7", "2001:db8:9::1", 64, UDP, b"odd bytes");
    assert_error_v6(&deliver(&lost), &lost, 1);
    assert_eq!(deliver(&frame("192.0.2.7", "10.1.0.1", 64, UDP, b"payload")).outcome, Outcome::Dropped);
}

#[test]
fn an_error_keeps_the_tags_of_what_it_is_about_and_none_of_its_padding() {
    let datagram = packet("192.0.2.7", "10.0.0.9", 1, UDP, b"x");
    let mut expired = datagram.clone().vlan(7).bytes();
    expired.resize(64, 0xee);
    let verdict = deliver(&expired);
    assert_eq!(verdict.outcome, Outcome::Replied);
    assert_eq!(verdict.bytes[..18], [&CLIENT_MAC[..], &OWN_MAC, &[0x81, 0, 0, 7, 8, 0]].concat());
    assert_eq!(verdict.bytes[46..], datagram.packet());
}

#[test]
fn no_error_is_about_an_error_and_a_ping_may_have_one() {
    for (kind, told) in [(3, false), (4, false), (5, false), (11, false), (12, false), (8, true), (0, true)] {
        let expired = frame("192.0.2.7", "10.0.0.9", 1, ICMP, &[kind, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(deliver(&expired).outcome == Outcome::Replied, told, "type {kind}");
    }
    for (kind, told) in [(1, false), (2, false), (3, false), (4, false), (137, false), (128, true), (129, true)] {
        let message = [kind, 0, 0, 0, 0, 0, 0, 0];
        let expired = frame("2001:db8::7", "fd00::9", 1, ICMPV6, &message);
        assert_eq!(deliver(&expired).outcome == Outcome::Replied, told, "type {kind}");
        let expired = packet("2001:db8::7", "fd00::9", 1, ICMPV6, &message).extension(60, &[1, 4]).bytes();
        assert_eq!(deliver(&expired).outcome == Outcome::Replied, told, "type {kind} behind options");
    }
    assert_eq!(deliver(&frame("192.0.2.7", "10.0.0.9", 1, ICMP, &[])).outcome, Outcome::Dropped, "cut short");
}

#[test]
fn no_error_is_about_a_fragment_but_the_first() {
    for (source, to) in [("192.0.2.7", "10.0.0.9"), ("2001:db8::7", "fd00::9")] {
        for (offset, more, told) in [(0, true, true), (0, false, true), (8, false, false), (64, true, false)] {
            let expired = packet(source, to, 1, UDP, &[0; 64]).fragment(offset, more).bytes();
            assert_eq!(deliver(&expired).outcome == Outcome::Replied, told, "{offset} to {to}");
        }
    }
}

#[test]
fn groups_links_and_the_host_itself_are_not_forwarded_to_nor_from() {
    let frames = [
        ("192.0.2.7", "224.0.0.5"),
        ("192.0.2.7", "255.255.255.255"),
        ("192.0.2.7", "127.0.0.1"),
        ("192.0.2.7", "169.254.1.1"),
        ("0.0.0.0", "10.0.0.9"),
        ("239.1.1.1", "10.0.0.9"),
        ("2001:db8::7", "ff02::1"),
        ("2001:db8::7", "fe80::1"),
        ("fe80::1", "fd00::9"),
        ("::", "fd00::9"),
        ("::1", "fd00::9"),
        ("192.0.2.7", "192.0.2.1"),
        ("2001:db8::7", "2001:db8::1"),
    ];
    for (source, to) in frames {
        for hop_limit in [1, 64] {
            assert_eq!(deliver(&frame(source, to, hop_limit, UDP, b"x")).outcome, Outcome::Dropped, "{source} to {to}");
        }
    }
    let mut to_group = frame("192.0.2.7", "10.0.0.9", 64, UDP, b"x");
    to_group[0] |= 1;
    assert_eq!(deliver(&to_group).outcome, Outcome::Dropped);
}

#[test]
fn a_header_with_a_wrong_checksum_goes_nowhere() {
    let mut wrong = frame("192.0.2.7", "10.0.0.9", 64, UDP, b"x");
    wrong[24] ^= 1;
    assert_eq!(deliver(&wrong).outcome, Outcome::Dropped);
}

#[test]
fn every_truncation_is_dropped() {
    for whole in [frame("192.0.2.7", "10.0.0.9", 64, UDP, b"x"), frame("2001:db8::7", "fd00::9", 64, UDP, b"x")] {
        for len in 1..whole.len() {
            assert_eq!(deliver(&whole[..len]).outcome, Outcome::Dropped, "{len} bytes");
        }
    }
}

#[test]
fn so_many_errors_are_sent_in_a_second_and_no_more() {
    // Of one source, and of many.
    for (sources, errors) in [(1, 75..=81), (200, 300..=311)] {
        let mut router = router();
        for number in 0..3000 {
            advance_clock_ns(1_000_000);
            let _ = router.deliver(&[&frame(&format!("192.0.2.{}", 7 + number % sources), "10.0.0.9", 1, UDP, b"x")]);
        }
        let counters = router.function().counters();
        assert_eq!(counters.expired, 3000);
        assert!(errors.contains(&counters.errors), "{}", counters.errors);
    }
}

#[test]
fn what_cannot_be_told_takes_no_error_from_others() {
    let config = "mac = \"02:00:00:00:00:01\"\naddresses = [\"192.0.2.1\"]";
    let mut router = Harness::<Router>::new(config.as_bytes()).unwrap();
    let (v4, v6) = (frame("192.0.2.7", "10.0.0.9", 64, UDP, b"x"), frame("2001:db8::7", "fd00::9", 64, UDP, b"x"));
    (0..100).for_each(|_| assert_eq!(router.deliver(&[&v6])[0].outcome, Outcome::Dropped));
    assert_eq!(router.deliver(&[&v4])[0].outcome, Outcome::Replied);
}

#[test]
fn without_an_address_to_send_them_from_there_are_no_errors() {
    let config = "mac = \"02:00:00:00:00:01\"\naddresses = [\"192.0.2.1\"]";
    let mut router = Harness::<Router>::new(config.as_bytes()).unwrap();
    let v4 = frame("192.0.2.7", "10.0.0.9", 64, UDP, b"x");
    let v6 = frame("2001:db8::7", "fd00::9", 64, UDP, b"x");
    let verdicts = router.deliver(&[&v4, &v6]);
    assert_eq!([0, 1].map(|at| verdicts[at].outcome), [Outcome::Replied, Outcome::Dropped]);
}

#[test]
fn what_is_not_forwarded_is_logged_at_most_every_ten_seconds() {
    let mut router = router();
    let hole = frame("192.0.2.7", "10.1.0.1", 64, UDP, b"x");
    let _ = router.deliver(&[&hole]);
    let _ = router.deliver(&[&hole]);
    assert_eq!(take_log().len(), 1);
    advance_clock_ns(10_000_000_000);
    let _ = router.deliver(&[&hole]);
    let line = take_log().remove(0).1;
    assert!(line.contains("3 to a black hole"), "{line}");
}

#[test]
fn a_wrong_configuration_is_refused_with_what_is_wrong() {
    let mac = "mac = \"02:00:00:00:00:01\"\n";
    let hop = "[[next_hop]]\nname = \"a\"\nmac = \"02:00:00:00:00:02\"\n";
    for (config, reason) in [
        (hop.into(), "next hop \"a\" has a mac: give the router's own, too"),
        ("[[next_hop]]\nname = \"a\"\nsource_mac = \"02:00:00:00:00:02\"".into(), "\"a\" has a source_mac and no mac"),
        ("mac = \"2:0:0:0:0:1\"".into(), "\"2:0:0:0:0:1\" is no hardware address of a station"),
        ("mac = \"03:00:00:00:00:01\"".into(), "is no hardware address of a station"),
        (format!("{mac}rotes = \"\""), "rotes"),
        (format!("{mac}{hop}output = 16"), "output 16; 0 to 15 are possible"),
        (format!("{mac}{hop}mtu = 1279"), "\"a\": mtu 1279; at least 1280 is needed"),
        (format!("{mac}{hop}{hop}"), "\"a\" is there already"),
        (format!("{mac}routes = \"\"\"\n\n10.0.0.0/33 a\"\"\""), "routes, line 2: \"10.0.0.0/33\" is no prefix"),
        (format!("{mac}routes = \"10.0.0.0/8\""), "routes, line 1: after 10.0.0.0/8 comes"),
        (format!("{mac}routes = \"10.0.0.1/8 a\"\n{hop}"), "10.0.0.1/8 has bits behind its length: write 10.0.0.0/8"),
        (format!("{mac}routes = \"10.0.0.0/8 b\"\n{hop}"), "10.0.0.0/8 goes to \"b\", which is no next hop"),
        (format!("{mac}routes = \"10.0.0.0/8 a\\n10.0.0.0/8 a\"\n{hop}"), "10.0.0.0/8 has two routes"),
        (format!("{mac}addresses = [\"10.0.0.1\", \"10.0.0.2\"]"), "10.0.0.2 is the second of its version"),
    ] {
        let refusal = Harness::<Router>::new(config.as_bytes()).err().unwrap().to_string();
        assert!(refusal.contains(reason), "{refusal:?} instead of {reason:?}");
    }
}

#[test]
fn without_hardware_addresses_the_node_addresses_what_is_forwarded_and_errors() {
    let config = "addresses = [\"192.0.2.1\"]\nroutes = \"10.0.0.0/8 lan\"\n[[next_hop]]\nname = \"lan\"\n";
    let mut router = Harness::<Router>::new(config.as_bytes()).unwrap();
    let forwarded = frame("192.0.2.7", "10.0.0.9", 64, UDP, b"x");
    let expired = frame("192.0.2.7", "10.0.0.9", 1, UDP, b"x");
    let verdicts = router.deliver(&[&forwarded, &expired]);
    assert_eq!([0, 1].map(|at| verdicts[at].outcome), [Outcome::Sent, Outcome::Replied]);
    assert!(verdicts.iter().all(|verdict| verdict.bytes[..12] == [0; 12]), "{verdicts:?}");
}

/// Returns the outcome for an IPv4 datagram, according to the configuration above.
fn expected_outcome(to: Ipv4Addr, ttl: u8) -> Outcome {
    match (to.octets(), ttl) {
        (_, 0 | 1) => Outcome::Replied,
        ([10, 1, ..], _) => Outcome::Dropped,
        ([10, 3, ..], _) => Outcome::SentTo(3),
        ([10, 2, ..], _) => Outcome::Replied,
        ([10, ..], _) => Outcome::Sent,
        _ => Outcome::Replied,
    }
}

#[test]
fn a_header_that_comes_to_zero_with_its_new_hop_limit_has_the_checksum_zero() {
    for (ttl, protocol) in (2..=255).flat_map(|ttl| [(ttl, UDP), (ttl, 0)]) {
        let datagram = |source: [u8; 4], ttl| packet(source, "10.0.0.9", ttl, protocol, &[7; 8]);
        let after = datagram([192, 0, 0, 0], ttl - 1).packet();
        // What the header's sum lacks to zero.
        let source = [192, 0, after[10], after[11]];
        let verdict = deliver(&datagram(source, ttl).bytes());
        assert_eq!(verdict.bytes[14..], datagram(source, ttl - 1).packet(), "{ttl}, protocol {protocol}");
        assert_eq!(verdict.bytes[24..26], [0, 0]);
    }
}

proptest! {
    #[test]
    fn any_datagram_goes_where_it_should_with_a_right_checksum(
        to in prop_oneof![(0..5_u8).prop_map(|second| [10, second, 0, 1]), Just([11, 0, 0, 1])],
        ttl: u8, payload in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let datagram = packet("192.0.2.7", to, ttl, UDP, &payload);
        let verdict = deliver(&datagram.bytes());
        prop_assert_eq!(verdict.outcome, expected_outcome(to.into(), ttl));
        match verdict.outcome {
            // Computed anew, not updated.
            Outcome::Sent | Outcome::SentTo(_) => {
                prop_assert_eq!(&verdict.bytes[14..], datagram.hop_limit(ttl - 1).packet());
            }
            Outcome::Replied => {
                let kind = if ttl <= 1 { 11 } else { 3 };
                assert_error_v4(&verdict, &datagram.bytes(), kind);
            }
            _ => {}
        }
    }

    #[test]
    fn no_bytes_panic(frame in proptest::collection::vec(any::<u8>(), 1..200)) {
        deliver(&frame);
    }

    #[test]
    fn no_change_of_a_frame_panics(
        v6: bool, hop_limit in 0..3_u8, protocol in prop_oneof![Just(UDP), Just(ICMP), Just(ICMPV6), Just(44), Just(60)],
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        len in any::<proptest::sample::Index>(),
    ) {
        let mut frame = if v6 {
            frame("2001:db8::7", "fd00::9", hop_limit, protocol, &[0; 24])
        } else {
            frame("192.0.2.7", "10.0.0.9", hop_limit, protocol, &[0; 24])
        };
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        deliver(&frame[..=len.index(frame.len())]);
    }
}
