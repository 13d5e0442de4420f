//! Tests that every service passes which answers a frame by the same one, turned around: `udp-echo` and `icmp-echo`.

use pinion_sdk::Function;
use pinion_sdk::headers::Ecn;
use pinion_sdk::testing::{Frame, Harness, Outcome, Verdict, advance_clock_ns, take_log};
use proptest::sample::Index;

pub(crate) use Version::{V4, V6};

const NODE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];

/// Offsets of the IP header, of its checksum in IPv4, and of the destination in IPv6, in a frame without tags.
const IP_AT: usize = 14;
const IPV4_CHECKSUM_AT: usize = IP_AT + 10;
const IPV6_DESTINATION_AT: usize = IP_AT + 24;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Version {
    V4,
    V6,
}

impl Version {
    pub(crate) fn client(self) -> &'static str {
        match self {
            V4 => "10.77.0.10",
            V6 => "fd00:0:77::a",
        }
    }

    pub(crate) fn node(self) -> &'static str {
        match self {
            V4 => "10.77.0.2",
            V6 => "fd00:0:77::2",
        }
    }
}

/// A service, and what it answers.
pub(crate) trait Echo: Function {
    /// What it calls the messages that it counts.
    const MESSAGES: &'static str;

    /// Returns a message from the client to the node. Its payload, and the fields below the message, are set by the tests.
    fn request(version: Version) -> Frame;

    /// Returns the answer to it, likewise.
    fn answer(version: Version) -> Frame;
}

/// Returns a request with fields that are not the usual ones.
pub(crate) fn request<E: Echo>(version: Version) -> Frame {
    E::request(version).macs(CLIENT_MAC, NODE_MAC).hop_limit(3).dscp(4).ecn(Ecn::Capable0).id(0xabcd)
}

/// Returns the answer to it.
pub(crate) fn answer<E: Echo>(version: Version) -> Frame {
    E::answer(version).macs(NODE_MAC, CLIENT_MAC).hop_limit(64).dscp(4).ecn(Ecn::Capable0).id(0xabcd)
}

pub(crate) fn deliver<E: Echo>(frame: &[u8]) -> Verdict {
    Harness::<E>::new(b"").unwrap().deliver(&[frame]).remove(0)
}

/// Asserts that a request with these changes is answered by an answer with the same changes.
pub(crate) fn assert_answered<E: Echo>(version: Version, change: impl Fn(Frame) -> Frame) {
    let verdict = deliver::<E>(&change(request::<E>(version)).bytes());
    assert_eq!(verdict.outcome, Outcome::Replied);
    assert_eq!(verdict.bytes, change(answer::<E>(version)).bytes());
}

pub(crate) fn assert_dropped<E: Echo>(frame: &[u8]) {
    assert_eq!(deliver::<E>(frame).outcome, Outcome::Dropped, "{frame:02x?}");
}

/// Requests of even and of odd length.
pub(crate) fn assert_answers_over_either_version_of_ip<E: Echo>() {
    for version in [V4, V6] {
        assert_answered::<E>(version, |frame| frame.payload(b"abcdefgh"));
        assert_answered::<E>(version, |frame| frame.payload(b"abcdefg"));
    }
}

pub(crate) fn assert_returns_ip_options<E: Echo>() {
    assert_answered::<E>(V4, |frame| frame.ip_options(&[7, 7, 4, 0, 0, 0, 0, 0]).payload(b"options"));
}

pub(crate) fn assert_returns_two_vlan_tags_and_no_more<E: Echo>() {
    assert_answered::<E>(V4, |frame| frame.vlan(7).payload(b"tagged"));
    assert_answered::<E>(V4, |frame| frame.vlan(7).vlan(7).payload(b"tagged"));
    assert_dropped::<E>(&request::<E>(V4).vlan(7).vlan(7).vlan(7).bytes());
}

/// Behind a short packet.
pub(crate) fn assert_leaves_padding_alone<E: Echo>() {
    let padded = |frame: Frame| {
        let mut bytes = frame.payload(b"x").bytes();
        bytes.resize(60, 0xee);
        bytes
    };
    let verdict = deliver::<E>(&padded(request::<E>(V4)));
    assert_eq!((verdict.outcome, verdict.bytes), (Outcome::Replied, padded(answer::<E>(V4))));
}

pub(crate) fn assert_drops_fragments<E: Echo>() {
    for version in [V4, V6] {
        for (offset, more) in [(0, true), (8, false), (0xfff8, false)] {
            assert_dropped::<E>(&request::<E>(version).payload(b"a part of it").fragment(offset, more).bytes());
        }
    }
}

/// Of hardware, and of IPv6.
pub(crate) fn assert_answers_no_groups<E: Echo>() {
    let set = |version, at: usize, byte: u8| {
        let mut frame = request::<E>(version).payload(b"x").bytes();
        frame[at] = byte;
        frame
    };
    for frame in [set(V4, 0, 0x03), set(V4, 6, 0x03), set(V6, IPV6_DESTINATION_AT, 0xff)] {
        assert_dropped::<E>(&frame);
    }
}

pub(crate) fn assert_drops_every_truncation<E: Echo>() {
    for version in [V4, V6] {
        let whole = request::<E>(version).payload(b"abcdefgh").bytes();
        (0..whole.len()).for_each(|len| assert_dropped::<E>(&whole[..len]));
    }
}

pub(crate) fn assert_reports_bad_checksums_at_most_every_ten_seconds<E: Echo>() {
    let damaged = |version, at_end: usize| {
        let mut frame = request::<E>(version).payload(b"abcdefgh").bytes();
        let at = frame.len() - at_end;
        frame[at] ^= 1;
        frame
    };
    let (payload, payload_v6) = (damaged(V4, 1), damaged(V6, 1));
    let header = damaged(V4, payload.len() - IPV4_CHECKSUM_AT);
    let mut harness = Harness::<E>::new(b"").unwrap();
    let lines = |count| [format!("{count} {} with a bad checksum dropped so far", E::MESSAGES)];
    let logged = || take_log().into_iter().map(|(_, line)| line).collect::<Vec<_>>();

    let verdicts = harness.deliver(&[&payload, &header, &payload_v6]);
    assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Dropped));
    assert_eq!(logged(), lines(1));
    advance_clock_ns(10_000_000_000);
    let _ = harness.deliver(&[&payload, &payload]);
    assert_eq!(logged(), lines(4));
}

/// Asserts that the service answers a request with bytes changed and the end cut off, or drops it, and does not panic.
pub(crate) fn assert_survives<E: Echo>(version: Version, changes: Vec<(Index, u8)>, len: Index) {
    let mut frame = request::<E>(version).payload(b"abcdefgh").bytes();
    for (at, byte) in changes {
        let at = at.index(frame.len());
        frame[at] = byte;
    }
    let _ = deliver::<E>(&frame[..=len.index(frame.len())]);
}
