//! The answer to each kind of segment, as RFC 9293 and RFC 5961 require.
#![cfg(feature = "net")]

mod segments;

use pinion_sdk::Function;
use proptest::prelude::*;
use segments::peer::{FIRST, Peer, SECOND_NS, WINDOW, names};
use segments::{
    ACK, FIN, Fields, IDLE_NS, PLACES, PSH, RST, SYN, URG, answers, at_v4, at_v6, echoes, frame, pattern, read, v4,
};

/// Flags, sequence number and acknowledgement number of an answer; `None` if there is no answer.
type Refusal = Option<(u8, u32, u32)>;

#[test]
fn a_closed_port_resets_every_segment_except_resets() {
    let cases: [(u8, u32, u32, &[u8], Refusal); 17] = [
        (SYN, 100, 0, b"", Some((RST | ACK, 0, 101))),
        (SYN, 100, 0, b"data", Some((RST | ACK, 0, 105))),
        (SYN, u32::MAX, 0, b"", Some((RST | ACK, 0, 0))),
        (SYN | PSH, 100, 0, b"", Some((RST | ACK, 0, 101))),
        (SYN | 0xc0, 100, 0, b"", Some((RST | ACK, 0, 101))),
        (FIN, 100, 0, b"", Some((RST | ACK, 0, 101))),
        (FIN | PSH | URG, 100, 0, b"", Some((RST | ACK, 0, 101))),
        (SYN | FIN, 100, 0, b"", Some((RST | ACK, 0, 102))),
        (0, 100, 0, b"", Some((RST | ACK, 0, 100))),
        (0, u32::MAX - 1, 0, b"data", Some((RST | ACK, 0, 2))),
        (PSH, 100, 77, b"data", Some((RST | ACK, 0, 104))),
        (ACK, 100, 77, b"data", Some((RST, 77, 0))),
        (ACK | FIN, 100, 0, b"", Some((RST, 0, 0))),
        (SYN | ACK, 100, 0xffff_ffff, b"", Some((RST, 0xffff_ffff, 0))),
        (RST, 100, 0, b"", None),
        (RST | ACK, 100, 77, b"", None),
        (RST | SYN, 100, 0, b"", None),
    ];
    let mut network = echoes();
    let peers = [((v4(1), 4_000).into(), at_v4(8)), ("[fd77::11]:4000".parse().unwrap(), at_v6(8))];
    for (from, to) in peers {
        for (flags, seq, ack, payload, expected) in cases {
            let fields = Fields { flags, seq, ack, window: 500, options: vec![], payload: payload.to_vec() };
            let answered = answers(&mut network, &frame(from, to, &fields));
            let answered: Vec<_> = answered.iter().map(|frame| read(frame)).collect();
            let found: Vec<_> = answered.iter().map(|it| (it.flags, it.seq, it.ack)).collect();
            let expected: Vec<_> = expected.into_iter().collect();
            assert_eq!(found, expected, "{} {seq} {ack} from {from}", names(flags));
            assert!(answered.iter().all(|it| it.payload.is_empty() && it.window == 0));
        }
    }
}

#[test]
fn a_listening_port_resets_acknowledgements_and_ignores_other_segments_but_syns() {
    let cases: [(u8, &[u8], Refusal); 8] = [
        (ACK, b"", Some((RST, 77, 0))),
        (ACK, b"data", Some((RST, 77, 0))),
        (SYN | ACK, b"", Some((RST, 77, 0))),
        (FIN, b"", None),
        (0, b"data", None),
        (SYN | FIN, b"", None),
        (RST, b"", None),
        (RST | ACK, b"", None),
    ];
    let mut network = echoes();
    for (flags, payload, expected) in cases {
        let fields = Fields { flags, seq: 100, ack: 77, window: 500, options: vec![], payload: payload.to_vec() };
        let answered = answers(&mut network, &frame((v4(1), 4_000).into(), at_v4(7), &fields));
        let found: Vec<_> = answered.iter().map(|it| read(it)).map(|it| (it.flags, it.seq, it.ack)).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{}", names(flags));
    }
}

#[test]
fn group_addresses_and_wrong_checksums_get_no_reset() {
    let mut network = echoes();
    let plain = |from: [u8; 4], to: [u8; 4]| {
        let fields = Fields { flags: SYN, seq: 1, ack: 0, window: 500, options: vec![], payload: vec![] };
        frame((from, 4_000).into(), (to, 8).into(), &fields)
    };
    let good = plain([10, 0, 0, 1], [10, 0, 0, 200]);
    assert_eq!(answers(&mut network, &good).len(), 1);
    let mut damaged = good.clone();
    damaged[50] ^= 1;
    let mut by_broadcast = good;
    by_broadcast[..6].fill(0xff);
    let (group, all) = ([224, 0, 0, 1], [255; 4]);
    let host = [10, 0, 0, 1];
    for frame in [damaged, by_broadcast, plain(group, host), plain(host, group), plain(all, host), plain(host, all)] {
        assert!(answers(&mut network, &frame).is_empty());
    }
}

/// A segment that arrives for a connection, and the immediate answers.
type Case<'a> = (u8, i64, i64, &'a [u8], &'a [&'a str]);

#[test]
fn a_half_open_connection_answers_as_the_rfc_says() {
    let window = i64::from(WINDOW);
    let cases: [Case<'_>; 15] = [
        // The SYN again: the answer was lost.
        (SYN, 0, 0, b"", &["SYN,ACK 0 1"]),
        // Other SYNs, outside the window.
        (SYN, -5_000, 0, b"", &["ACK 1 1"]),
        (SYN, 1 + window, 0, b"", &["ACK 1 1"]),
        (SYN | ACK, -5_000, 1, b"", &["ACK 1 1"]),
        // Acknowledgements of what was not sent.
        (ACK, 1, 0, b"", &["RST 0"]),
        (ACK, 1, 2, b"", &["RST 2"]),
        (ACK, 1, 5_000, b"data", &["RST 5000"]),
        // The check of the sequence number precedes that.
        (ACK, -5_000, 2, b"", &["ACK 1 1"]),
        (ACK, 1 + window, 1, b"", &["ACK 1 1"]),
        // Without an acknowledgement.
        (0, 1, 0, b"data", &[]),
        (FIN, 1, 0, b"", &[]),
        // Resets.
        (RST, 2, 0, b"", &["ACK 1 1"]),
        (RST, window, 0, b"", &["ACK 1 1"]),
        (RST, 0, 0, b"", &[]),
        (RST, 1 + window, 0, b"", &[]),
    ];
    for (flags, seq, ack, payload, expected) in cases {
        let mut peer = Peer::half_open();
        assert_eq!(peer.send(flags, seq, ack, payload), expected, "{} {seq} {ack}", names(flags));
        // None of them has ended the handshake.
        assert!(peer.send(ACK, 1, 1, b"").is_empty(), "{} {seq} {ack}", names(flags));
        peer.assert_echoes(1, 1);
    }
}

#[test]
fn a_half_open_connection_is_forgotten_by_a_reset_with_its_number_or_another_syn_in_its_window() {
    let mut peer = Peer::half_open();
    assert!(peer.send(RST, 1, 0, b"").is_empty());
    assert_eq!(peer.send(ACK, 1, 1, b""), ["RST 1"], "there is nothing to acknowledge");
    assert_eq!(peer.network.harness.function().deadline_ns(), None);

    let mut peer = Peer::half_open();
    let first = peer.theirs;
    assert_eq!(peer.open(FIRST.wrapping_add(100)), ["SYN,ACK 0 101"]);
    assert_ne!(peer.theirs, first);
    assert!(peer.send(ACK, 101, 1, b"").is_empty());
    peer.assert_echoes(101, 1);
}

#[test]
fn a_connection_answers_as_the_rfc_says() {
    let window = i64::from(WINDOW);
    let many = pattern(100);
    let cases: [Case<'_>; 26] = [
        // A SYN, wherever it is: the sender may have been restarted.
        (SYN, 0, 0, b"", &["ACK 1 1"]),
        (SYN, 1, 0, b"", &["ACK 1 1"]),
        (SYN, 500, 0, b"", &["ACK 1 1"]),
        (SYN, -100_000, 0, b"", &["ACK 1 1"]),
        (SYN, 1_000_000, 0, b"", &["ACK 1 1"]),
        (SYN | ACK, 0, 1, b"", &["ACK 1 1"]),
        (SYN | ACK, 1, 1, b"", &["ACK 1 1"]),
        (SYN | FIN, 1, 0, b"", &["ACK 1 1"]),
        // A reset with any number but the next.
        (RST, 2, 0, b"", &["ACK 1 1"]),
        (RST | ACK, window, 1, b"", &["ACK 1 1"]),
        (RST, 1 + window, 0, b"", &[]),
        (RST, 0, 0, b"", &[]),
        (RST | ACK, -1_000, 1, b"", &[]),
        // Acknowledgements: none, of what was not sent, of what was sent long ago.
        (0, 1, 0, b"data", &[]),
        (FIN, 1, 0, b"", &[]),
        (ACK, 1, 2, b"data", &["ACK 1 1"]),
        (ACK, 1, 1_000_000, b"data", &["ACK 1 1"]),
        (ACK, 1, -70_000, b"data", &["ACK 1 1"]),
        // Keepalive probes, with and without a byte.
        (ACK, 0, 1, b"", &["ACK 1 1"]),
        (ACK, 0, 1, b"\0", &["ACK 1 1"]),
        (ACK, 0, 0, b"", &["ACK 1 1"]),
        // Data received before, and data out of the window.
        (ACK, -99, 1, &many, &["ACK 1 1"]),
        (ACK | FIN, -100, 1, &many, &["ACK 1 1"]),
        (ACK, 1 + window, 1, b"data", &["ACK 1 1"]),
        (ACK, 1 + window, 1, b"", &["ACK 1 1"]),
        (ACK, -100_000, -100_000, b"", &["ACK 1 1"]),
    ];
    for (flags, seq, ack, payload, expected) in cases {
        let mut peer = Peer::connected();
        assert_eq!(peer.send(flags, seq, ack, payload), expected, "{} {seq} {ack}", names(flags));
        // None of them has ended the connection, or was accepted as data.
        peer.assert_echoes(1, 1);
    }
}

#[test]
fn payload_with_an_old_acknowledgement_is_accepted() {
    for mut peer in Peer::of_both_versions() {
        peer.assert_echoes(1, 1);
        assert!(peer.send(ACK, 3, 3, b"").is_empty());
        assert_eq!(peer.send(ACK, 3, 2, b"late"), ["ACK 3 7 +4"]);
    }
}

#[test]
fn an_acknowledgement_is_as_old_as_the_largest_window_allows() {
    // No option; a window scale of 7; a window scale above the maximum.
    for (options, oldest) in [(vec![], 0xffff), (vec![3, 3, 7, 1], 0xffff << 7), (vec![3, 3, 200, 1], 0xffff << 14)] {
        let mut peer = Peer { options, ..Peer::new() };
        peer.open(FIRST);
        assert!(peer.send(ACK, 1, 1, b"").is_empty());
        assert!(peer.send(ACK, 1, 1 - oldest, b"").is_empty(), "{:?}", peer.options);
        assert_eq!(peer.send(ACK, 1, -oldest, b""), ["ACK 1 1"], "{:?}", peer.options);
    }
}

#[test]
fn a_peer_that_was_restarted_or_uses_its_port_again_is_served_after_a_challenge() {
    for (name, seq) in [("below the window", -70_000_i64), ("in it", 700), ("above it", 2_000_000)] {
        let mut peer = Peer::connected();
        peer.assert_echoes(1, 1);
        let syn = FIRST.wrapping_add(seq as u32);
        assert_eq!(peer.open(syn), ["ACK 3 3"], "{name}");
        // The peer knows of no connection, and sends a reset with the acknowledged number.
        assert!(peer.send(RST, 3, 0, b"").is_empty(), "{name}");
        let answered = peer.open(syn);
        assert_eq!(answered, [format!("SYN,ACK 0 {}", seq + 1)], "{name}");
        assert!(peer.send(ACK, seq + 1, 1, b"").is_empty());
        peer.assert_echoes(seq + 1, 1);
        assert!(peer.wait(IDLE_NS / 2).iter().all(|it| !it.starts_with("RST")), "the old one says no more");
    }
}

#[test]
fn a_reset_frees_its_slot_and_port_at_once() {
    for (flags, payload) in
        [(RST, &b""[..]), (RST | ACK, b""), (RST | ACK, b"sorry"), (RST | FIN, b""), (RST | SYN, b"")]
    {
        let mut peer = Peer::connected();
        assert!(peer.send(flags, 1, 1, payload).is_empty(), "{}", names(flags));
        assert_eq!(peer.network.harness.function().deadline_ns(), None, "{}", names(flags));
        // Also in the same batch as its reset.
        let mut peer = Peer::connected();
        let (reset, syn) = (peer.frame(flags, 1, 1, payload), peer.frame(SYN, 9_000, 0, b""));
        let verdicts = peer.network.harness.deliver(&[&reset, &syn]);
        let replies = verdicts.iter().filter(|it| it.bytes != reset && it.bytes != syn);
        assert_eq!(replies.map(|it| read(&it.bytes).flags).collect::<Vec<_>>(), [SYN | ACK], "{}", names(flags));
    }
}

#[test]
fn challenge_acks_are_rate_limited_per_connection() {
    let mut peer = Peer::connected();
    let answered = |peer: &mut Peer| (0..1_000).filter(|_| !peer.send(RST, 2, 0, b"").is_empty()).count();
    assert_eq!(answered(&mut peer), 10);
    // Another connection of the same function has its own limit.
    let (from, theirs) = (peer.from, peer.theirs);
    peer.from = (v4(2), 4_000).into();
    peer.open(FIRST);
    assert!(peer.send(ACK, 1, 1, b"").is_empty());
    assert_eq!(answered(&mut peer), 10);
    // A segment with data is acknowledged without limit: the peer may have missed the acknowledgement.
    (peer.from, peer.theirs) = (from, theirs);
    for _ in 0..100 {
        assert_eq!(peer.send(ACK, 0, 1, b"\0"), ["ACK 1 1"]);
    }
    assert!(peer.wait(5 * SECOND_NS).is_empty());
    assert_eq!(answered(&mut peer), 10);
    peer.assert_echoes(1, 1);
}

#[test]
fn probes_keep_a_connection_for_hours() {
    for (payload, ack) in [(&b""[..], 3), (b"\0", 3), (b"", 2)] {
        let mut peer = Peer::connected();
        peer.assert_echoes(1, 1);
        assert!(peer.send(ACK, 3, 3, b"").is_empty());
        for number in 0..2_000 {
            assert!(peer.wait(5 * SECOND_NS).is_empty(), "after probe {number}");
            assert_eq!(peer.send(ACK, 2, ack, payload), ["ACK 3 3"], "probe {number}");
        }
        peer.assert_echoes(3, 3);
        assert!(peer.send(ACK, 5, 5, b"").is_empty());
        // A segment with another sequence number is not a probe.
        for _ in 0..11 {
            peer.wait(5 * SECOND_NS);
            peer.send(ACK, 3_000_000, 5, b"");
        }
        assert_eq!(peer.wait(5 * SECOND_NS), ["RST,ACK 5 5"]);
    }
}

#[test]
fn a_closed_window_is_probed_and_opened_again_by_either_side() {
    // The peer's window: it accepts 2 bytes, and then none.
    let mut peer = Peer::connected();
    peer.window = 2;
    assert_eq!(peer.send(ACK, 1, 1, b"hello"), ["ACK 1 6 +2"]);
    peer.window = 0;
    assert!(peer.send(ACK, 6, 3, b"").is_empty());
    for _ in 0..3 {
        let mut probes = Vec::new();
        while probes.is_empty() {
            probes = peer.wait(SECOND_NS);
        }
        assert_eq!(probes[0], "ACK 3 6 +1");
        assert!(peer.send(ACK, 6, 3, b"").is_empty(), "it has no room yet");
    }
    peer.window = 1_000;
    assert_eq!(peer.send(ACK, 6, 4, b""), ["ACK 4 6 +2"], "one was taken, and there is room for the rest");

    // The service's window: it does not read, as it cannot write.
    let mut peer = Peer::connected();
    peer.window = 0;
    let mut at = 1;
    let mut window = u16::MAX;
    while window > 0 {
        peer.send(ACK, at, 1, &[7; 1_000]);
        // The delayed acknowledgement arrives, and is the last segment sent.
        if let Some(last) = peer.network.harness.let_pass_ns(20_000_000).last().map(|last| read(&last.bytes)) {
            (at, window) = (last.ack.wrapping_sub(FIRST).into(), last.window);
        }
        assert!(at < 1 << 18, "the window closes");
    }
    assert_eq!(peer.send(ACK, at, 1, b"!"), [format!("ACK 2 {at}")], "a probe with a byte, which is not taken");
    assert_eq!(peer.send(ACK, at - 1, 1, b""), [format!("ACK 1 {at}")], "a probe without");
    // An acknowledgement and its window count even if there is no room for the segment's data.
    peer.window = 4_000;
    let answers = peer.send(ACK, at, 2, b"!");
    assert!(answers.iter().any(|it| it.ends_with("+1460") || it.ends_with("+536")), "{answers:?}");
}

#[test]
fn a_window_that_closes_over_what_was_sent_is_probed() {
    let mut peer = Peer::connected();
    assert_eq!(peer.send(ACK, 1, 1, b"hello"), ["ACK 1 6 +5"]);
    // The peer shrinks its window, which it should not, and has dropped the data (RFC 9293, section 3.8.6).
    peer.window = 0;
    assert!(peer.send(ACK, 6, 1, b"").is_empty());
    let mut probes = 0;
    for _ in 0..20 {
        for sent in peer.wait(SECOND_NS) {
            assert_eq!(sent, "ACK 1 6 +1");
            probes += 1;
            assert!(peer.send(ACK, 6, 1, b"").is_empty());
        }
    }
    assert!(probes >= 3, "{probes} probes");
    peer.window = 1_000;
    assert_eq!(peer.send(ACK, 6, 2, b""), ["ACK 2 6 +4"]);
}

#[test]
fn a_peer_that_only_answers_probes_is_disconnected() {
    let mut peer = Peer::connected();
    peer.window = 0;
    peer.send(ACK, 1, 1, b"hello");
    let mut waited_s = 0;
    loop {
        let sent = peer.wait(SECOND_NS);
        waited_s += 1;
        if sent.iter().any(|it| it.starts_with("RST")) {
            break;
        }
        assert!(waited_s < 120, "it is served for ever");
        peer.send(ACK, 6, 1, b"");
    }
    assert_eq!(waited_s, IDLE_NS / SECOND_NS);
    assert_eq!(peer.network.harness.function().deadline_ns(), None, "and its place is free");
}

#[test]
fn a_peer_that_accepts_little_at_a_time_is_served() {
    let mut peer = Peer::connected();
    peer.window = 700;
    assert_eq!(peer.send(ACK, 1, 1, &pattern(1_400)), ["ACK 1 1401 +536", "ACK 537 1401 +164"]);
    for received in [700, 1_400] {
        peer.wait(50 * SECOND_NS);
        peer.send(ACK, 1_401, 1 + received, b"");
    }
    peer.assert_echoes(1_401, 1_401);
}

#[test]
fn slots_of_disconnected_peers_are_reused() {
    let mut peer = Peer::new();
    peer.window = 0;
    for round in 0..3 {
        for port in 0..PLACES {
            peer.from = (v4(1), 4_000 + 100 * round + port).into();
            assert_eq!(peer.open(FIRST), ["SYN,ACK 0 1"], "in round {round}");
            peer.send(ACK, 1, 1, b"hello");
        }
        for _ in 0..62 {
            peer.wait(SECOND_NS);
        }
    }
}

#[test]
fn both_sides_may_close_in_any_order() {
    // The peer closes first, and the service still has data to send.
    let mut peer = Peer::connected();
    peer.window = 2;
    assert_eq!(peer.send(ACK | FIN, 1, 1, b"bye"), ["ACK 1 5 +2"]);
    peer.window = 1_000;
    assert_eq!(peer.send(ACK, 5, 3, b""), ["FIN,ACK 3 5 +1"]);
    // Data after a FIN is not part of the connection.
    assert_eq!(peer.send(ACK, 5, 3, b"more"), ["ACK 5 5"]);
    // The FIN again: its acknowledgement was lost.
    assert_eq!(peer.send(ACK | FIN, 4, 3, b""), ["ACK 5 5"]);
    assert!(peer.send(ACK, 5, 5, b"").is_empty());
    assert_eq!(peer.send(ACK, 5, 5, b""), ["RST 5"], "the connection is over");
}

#[test]
fn both_sides_may_close_at_once() {
    let mut peer = Peer::closed_by_service();
    // Its FIN does not acknowledge the service's.
    assert_eq!(peer.send(ACK | FIN, 4, 1, b""), ["ACK 2 5"]);
    assert!(peer.send(ACK, 5, 2, b"").is_empty());
    // TIME-WAIT: the repeated FIN is acknowledged, and the time restarts.
    for _ in 0..5 {
        peer.wait(8 * SECOND_NS);
        assert_eq!(peer.send(ACK | FIN, 4, 2, b""), ["ACK 2 5"]);
    }
    peer.wait(11 * SECOND_NS);
    assert_eq!(peer.send(ACK | FIN, 4, 2, b""), ["RST 2"], "it is over");
}

#[test]
fn a_peer_that_never_closes_after_the_service_has_is_forgotten_though_it_sends_probes() {
    let mut peer = Peer::closed_by_service();
    assert!(peer.send(ACK, 4, 2, b"").is_empty());
    for _ in 0..11 {
        peer.wait(5 * SECOND_NS);
        assert_eq!(peer.send(ACK, 3, 2, b""), ["ACK 2 4"]);
    }
    peer.wait(10 * SECOND_NS);
    assert_eq!(peer.send(ACK, 3, 2, b""), ["RST 2"]);
}

#[test]
fn a_connection_that_is_over_answers_as_the_rfc_says() {
    let window = i64::from(WINDOW);
    let cases: [Case<'_>; 11] = [
        (ACK | FIN, 4, 2, b"", &["ACK 2 5"]),
        (ACK | FIN, 1, 1, b"bye", &["ACK 2 5"]),
        (ACK, 4, 2, b"", &["ACK 2 5"]),
        (ACK, 5, 2, b"", &[]),
        (ACK, 5, 2, b"more", &["ACK 2 5"]),
        (SYN, 0, 0, b"", &["ACK 2 5"]),
        (SYN, 4, 0, b"", &["ACK 2 5"]),
        (SYN, -1_000_000, 0, b"", &["ACK 2 5"]),
        (RST, 4, 0, b"", &[]),
        (RST, 6, 0, b"", &["ACK 2 5"]),
        (RST, 6 + window, 0, b"", &[]),
    ];
    for (flags, seq, ack, payload, expected) in cases {
        let mut peer = Peer::over();
        assert_eq!(peer.send(flags, seq, ack, payload), expected, "{} {seq} {ack}", names(flags));
        assert_eq!(peer.send(ACK | FIN, 4, 2, b""), ["ACK 2 5"], "it is still there: {} {seq} {ack}", names(flags));
    }
}

#[test]
fn a_port_is_used_again_at_once_with_a_number_that_follows_and_after_a_challenge_with_another() {
    for seq in [5, 6, 1_000, 2_000_000_000] {
        let mut peer = Peer::over();
        let last = peer.theirs.wrapping_add(2);
        assert_eq!(peer.open(FIRST.wrapping_add(seq)), [format!("SYN,ACK 0 {}", seq + 1)]);
        assert!((peer.theirs.wrapping_sub(last) as i32) > 0, "so does the service's own");
    }
    let mut peer = Peer::over();
    assert_eq!(peer.open(FIRST.wrapping_sub(9)), ["ACK 2 5"]);
    assert!(peer.send(RST, 5, 0, b"").is_empty());
    assert_eq!(peer.open(FIRST.wrapping_sub(9)), ["SYN,ACK 0 -8"]);
}

#[test]
fn an_early_fin_waits_for_the_data_before_it() {
    for mut peer in Peer::of_both_versions() {
        assert_eq!(peer.send(ACK | FIN, 3, 1, b"cd"), ["ACK 1 1"]);
        assert_eq!(peer.send(ACK, 1, 1, b"ab").last().unwrap(), "ACK 1 5 +4");
        assert_eq!(peer.send(ACK | FIN, 3, 5, b"cd"), ["FIN,ACK 5 6"]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn edge_case_segments_get_few_answers_and_leak_no_slot(segments in prop::collection::vec(edges(), 1..60)) {
        let mut peer = Peer::half_open();
        for (flags, seq, ack, len, window, wait_ms) in segments {
            peer.window = window;
            let answers = peer.send(flags, seq, ack, &pattern(len));
            // Data to be sent, in segments of a full or a tiny window, and an acknowledgement.
            prop_assert!(answers.len() <= 33, "{answers:?}");
            if flags & RST != 0 {
                prop_assert!(answers.iter().all(|it| !it.starts_with("RST")), "{answers:?}");
            }
            peer.wait(wait_ms * 1_000_000);
        }
        peer.wait(5 * IDLE_NS);
        prop_assert_eq!(peer.network.harness.function().deadline_ns(), None);
        prop_assert_eq!(peer.open(77), [format!("SYN,ACK 0 {}", 78 - i64::from(FIRST as i32))]);
    }
}

/// Generates flags, numbers, length, window and time, mostly near valid values.
fn edges() -> impl Strategy<Value = (u8, i64, i64, usize, u16, u64)> {
    let window = i64::from(WINDOW);
    let flags = prop_oneof![4 => Just(ACK), 1 => Just(ACK | FIN), 1 => Just(RST), 1 => Just(SYN), 1 => any::<u8>()];
    let seq = prop_oneof![4 => 0_i64..8, 1 => window - 2..window + 8, 1 => any::<i32>().prop_map(i64::from)];
    let ack = prop_oneof![4 => 0_i64..8, 1 => 1_000_i64..1_010, 1 => any::<i32>().prop_map(i64::from)];
    let len = prop_oneof![2 => Just(0_usize), 2 => 1_usize..4, 1 => Just(1_400)];
    let window = prop_oneof![Just(0_u16), Just(1), Just(1_000), Just(0xffff)];
    (flags, seq, ack, len, window, prop_oneof![3 => Just(0_u64), 1 => 0_u64..3_000])
}
