//! Datagrams that are longer than the way to their next hop carries.

#![cfg(not(target_family = "wasm"))]

use lpm_router::Router;
use pinion_sdk::headers::{Headers, ICMP, ICMPV6, UDP};
use pinion_sdk::testing::{Frame, Harness, Outcome, Verdict};
use pinion_sdk::{Direction, Function, SLOT_COUNT_DEFAULT, checksum};
use proptest::prelude::*;

const CONFIG: &str = r#"
mac = "02:00:00:00:00:01"
addresses = ["192.0.2.1", "2001:db8::1"]
errors_per_second = 1000
routes = """
10.0.0.0/8    narrow
fd00::/8      narrow
"""

[[next_hop]]
name = "narrow"
output = 2
mac = "02:00:00:00:01:01"
mtu = 1400
"#;

const MTU: usize = 1400;
const FROM: [u8; 4] = [192, 0, 2, 7];
const TO: [u8; 4] = [10, 0, 0, 9];
const DONT_FRAGMENT: u16 = 0x4000;
const MORE: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

fn router() -> Harness<Router> {
    Harness::new(CONFIG.as_bytes()).unwrap()
}

fn deliver(frame: &[u8]) -> Vec<Verdict> {
    router().deliver(&[frame])
}

/// Returns a frame from [`FROM`] to [`TO`] whose IP header has this field about fragments.
fn ipv4(protocol: u8, ttl: u8, field: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = Frame::other(protocol, FROM, TO).hop_limit(ttl).ip_options(options).payload(payload);
    if field & DONT_FRAGMENT != 0 {
        frame = frame.dont_fragment();
    }
    if field & (OFFSET | MORE) != 0 {
        frame = frame.fragment((field & OFFSET) * 8, field & MORE != 0);
    }
    frame.bytes()
}

fn ipv6(next_header: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    Frame::other(next_header, "2001:db8::7", "fd00::9").hop_limit(hop_limit).payload(payload).bytes()
}

/// Returns a UDP datagram of this length with its header, and without a checksum.
fn datagram(len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (8..len).map(|at| at as u8).collect();
    Frame::udp((FROM, 1), (TO, 2)).payload(&payload).checksum(0).message()
}

#[test]
fn a_datagram_that_must_not_be_fragmented_is_returned_with_the_mtu() {
    let fits = ipv4(UDP, 64, DONT_FRAGMENT, &[], &datagram(MTU - 20));
    assert_eq!(deliver(&fits)[0].outcome, Outcome::SentTo(2));
    let too_long = ipv4(UDP, 64, DONT_FRAGMENT, &[], &datagram(MTU - 19));
    let verdict = deliver(&too_long).remove(0);
    assert_eq!(verdict.outcome, Outcome::Replied);
    let ip = &verdict.bytes[14..];
    assert_eq!(ip[12..20], [&[192, 0, 2, 1], &FROM[..]].concat());
    assert_eq!(
        ip[20..28],
        [&[3, 4][..], &ip[22..24], &[0, 0, 0x05, 0x78]].concat(),
        "fragmentation needed, 1400 bytes"
    );
    assert_eq!((checksum::of(&ip[..20]), checksum::of(&ip[20..])), (0, 0));
    assert_eq!(ip[28..], too_long[14..14 + 576 - 28], "as it was received");

    assert_eq!(deliver(&ipv6(UDP, 64, &datagram(MTU - 40)))[0].outcome, Outcome::SentTo(2));
    let too_long = ipv6(UDP, 64, &datagram(MTU - 39));
    let verdict = deliver(&too_long).remove(0);
    assert_eq!(verdict.outcome, Outcome::Replied);
    let ip = &verdict.bytes[14..];
    assert_eq!(ip[40..48], [&[2, 0][..], &ip[42..44], &[0, 0, 0x05, 0x78]].concat(), "packet too big, 1400 bytes");
    assert_eq!(ip[48..], too_long[14..14 + 1280 - 48]);
    let pseudo_header = [&ip[8..40], &((ip.len() - 40) as u32).to_be_bytes(), &[0, 0, 0, ICMPV6]].concat();
    assert_eq!(checksum::of(&[&pseudo_header, &ip[40..]].concat()), 0);
}

#[test]
fn no_error_answers_an_error_that_is_too_long_or_such_a_later_fragment_of_ipv4() {
    let long = |start: &[u8]| [start, &vec![0; MTU]].concat();
    for kind in [3, 4, 5, 11, 12] {
        let frame = ipv4(ICMP, 64, DONT_FRAGMENT, &[], &long(&[kind, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(deliver(&frame)[0].outcome, Outcome::Dropped, "type {kind}");
    }
    for kind in [1, 2, 3, 4, 137] {
        let frame = ipv6(ICMPV6, 64, &long(&[kind, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(deliver(&frame)[0].outcome, Outcome::Dropped, "type {kind}");
    }
    assert_eq!(deliver(&ipv4(UDP, 64, DONT_FRAGMENT | 9, &[], &datagram(MTU)))[0].outcome, Outcome::Dropped);
    // Of IPv6 only the first fragment of a ping may be known to be none, but no error is as long as this.
    let later = [&[ICMPV6, 0, 0, 200, 0, 0, 0, 1][..], &[0; MTU]].concat();
    let verdict = deliver(&ipv6(44, 64, &later)).remove(0);
    assert_eq!((verdict.outcome, &verdict.bytes[54..56]), (Outcome::Replied, &[2, 0][..]), "packet too big");
    assert_eq!(deliver(&ipv6(44, 1, &later))[0].outcome, Outcome::Dropped, "its hop limit is used up");
    let mut router = router();
    let _ = router.deliver(&[&ipv6(ICMPV6, 64, &long(&[2, 0, 0, 0, 0, 0, 0, 0]))]);
    assert_eq!((router.function().counters().too_long, router.function().counters().errors), (1, 0));
}

#[test]
fn errors_are_forwarded_like_other_packets() {
    let quoted = ipv4(UDP, 1, 0, &[], &datagram(20))[14..].to_vec();
    for kind in [3, 11, 12] {
        let message = [&[kind, 4, 0, 0, 0, 0, 5, 0][..], &quoted].concat();
        let verdict = deliver(&ipv4(ICMP, 64, 0, &[], &message)).remove(0);
        assert_eq!(
            (verdict.outcome, &verdict.bytes[14..]),
            (Outcome::SentTo(2), &ipv4(ICMP, 63, 0, &[], &message)[14..])
        );
    }
    for kind in 1..=4 {
        let message = [&[kind, 0, 0, 0, 0, 0, 5, 0][..], &ipv6(UDP, 1, &datagram(20))[14..]].concat();
        let verdict = deliver(&ipv6(ICMPV6, 64, &message)).remove(0);
        assert_eq!((verdict.outcome, &verdict.bytes[14..]), (Outcome::SentTo(2), &ipv6(ICMPV6, 63, &message)[14..]));
    }
}

/// Asserts that two frames are the fragments of a datagram; returns the payload of both.
fn reassembled(verdicts: &[Verdict], field: u16) -> Vec<u8> {
    assert_eq!(verdicts.iter().map(|verdict| verdict.outcome).collect::<Vec<_>>(), [Outcome::SentTo(2); 2]);
    let mut next = usize::from(field & OFFSET) * 8;
    let mut payload = Vec::new();
    for (number, Verdict { bytes, .. }) in verdicts.iter().enumerate() {
        let headers = Headers::of_part(bytes).unwrap();
        let part = headers.part(bytes).unwrap();
        assert_eq!((part.start, headers.at.end), (next, bytes.len()));
        next = part.end;
        let more = number == 0 || field & MORE != 0;
        assert_eq!(headers.fragment.unwrap().more, more);
        assert!(bytes.len() - 14 <= MTU);
        assert_eq!(checksum::of(&bytes[14..headers.at.transport]), 0);
        assert_eq!((bytes[22], &bytes[26..34]), (63, &[FROM, TO].concat()[..]));
        payload.extend_from_slice(&bytes[headers.at.transport..]);
    }
    payload
}

#[test]
fn a_datagram_that_may_be_fragmented_leaves_in_two_fragments() {
    let payload = datagram(1480);
    for field in [0, MORE | 185, 185] {
        let verdicts = deliver(&ipv4(UDP, 64, field, &[], &payload));
        assert_eq!(reassembled(&verdicts, field), payload);
    }
    // A record of the route is in the first one only, and a source route in both.
    let options = [7, 7, 4, 0, 0, 0, 0, 0x83, 3, 4, 0, 0];
    let verdicts = deliver(&ipv4(UDP, 64, 0, &options, &payload));
    assert_eq!(reassembled(&verdicts, 0), payload);
    assert_eq!(verdicts[0].bytes[34..46], options);
    assert_eq!((verdicts[1].bytes[14], &verdicts[1].bytes[34..38]), (0x46, &[0x83, 3, 4, 0][..]));
}

#[test]
fn there_is_a_slot_for_the_second_fragment_of_each_packet_of_a_batch_and_it_comes_back() {
    let mut router = router();
    let frame = ipv4(UDP, 64, 0, &[], &datagram(1480));
    for _ in 0..3 {
        let verdicts = router.deliver(&[&frame[..]; SLOT_COUNT_DEFAULT - Router::OWN_SLOTS as usize]);
        assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::SentTo(2)));
        assert_eq!((verdicts.len(), router.function().counters().too_long), (SLOT_COUNT_DEFAULT, 0));
    }
}

#[test]
fn in_a_chain_with_a_way_back_both_fragments_go_the_way_of_their_datagram() {
    let mut router = router();
    let frame = ipv4(UDP, 64, 0, &[], &datagram(1480));
    for (direction, port) in [(Direction::Forward, 0), (Direction::Backward, 1)] {
        let verdicts = router.deliver_direction(direction, port, &[&frame]);
        let ways = verdicts.iter().map(|verdict| (verdict.outcome, verdict.ingress_port, verdict.direction));
        assert!(ways.eq([(Outcome::SentTo(2), port, Some(direction)); 2]), "{verdicts:?}");
    }
    let asked = ipv4(UDP, 64, DONT_FRAGMENT, &[], &datagram(1480));
    assert_eq!(router.deliver_direction(Direction::Forward, 0, &[&asked])[0].outcome, Outcome::Replied);
    assert_eq!(router.function().counters().too_long, 1);
}

proptest! {
    #[test]
    fn whatever_its_length_and_offset_two_fragments_have_the_bytes_of_their_datagram(
        len in 1381_usize..2010, offset in 0_u16..7000, more: bool, options in 0_usize..6,
    ) {
        let field = offset | if more { MORE } else { 0 };
        let len = if more { len.next_multiple_of(8) } else { len };
        // Without the bit for copies.
        let options = vec![1; 4 * options];
        let payload: Vec<u8> = datagram(len.min(2030 - options.len() - 20) & if more { !7 } else { !0 });
        let verdicts = deliver(&ipv4(UDP, 64, field, &options, &payload));
        prop_assert_eq!(reassembled(&verdicts, field), payload);
    }

    #[test]
    fn no_bytes_of_a_long_datagram_panic(
        changes in proptest::collection::vec((0_usize..60, any::<u8>()), 0..6), field in any::<u16>(),
    ) {
        let mut frame = ipv4(UDP, 64, field & !DONT_FRAGMENT, &[0x83, 7, 4, 10, 0, 0, 1, 1], &datagram(1480));
        for (at, byte) in changes {
            frame[14 + at] = byte;
        }
        // Its checksum counts as right.
        let _ = router().deliver_checked(1, &[&frame]);
    }
}
