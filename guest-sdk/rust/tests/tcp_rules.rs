//! What a connection does of its own accord, one rule of an RFC each: options, windows, timers, congestion, reassembly. What it answers to
//! segments that do not fit is in `tcp_segments.rs`.
#![cfg(feature = "net")]

mod segments;

use pinion_sdk::Function;
use segments::peer::{FIRST, Peer};
use segments::{ACK, FIN, Fields, IDLE_NS, PSH, SYN, URG, answers, at_v6, frame, pattern, read};

const MS_NS: u64 = 1_000_000;
/// Steps in which time passes where a test looks at when something is sent.
const STEP_MS: u64 = 10;
/// The least retransmission timeout (RFC 6298, section 2.4).
const RTO_MIN_MS: u64 = 1_000;
const MSS: [u8; 4] = [2, 4, 1460_u16.to_be_bytes()[0], 1460_u16.to_be_bytes()[1]];
/// The maximum segment size that a peer without that option has.
const DEFAULT_MSS: usize = 536;

fn peer_with(options: &[u8]) -> Peer {
    Peer { options: options.to_vec(), ..Peer::new() }
}

fn peer_v6() -> Peer {
    Peer::between("[fd77::11]:4000".parse().unwrap(), at_v6(7))
}

impl Peer {
    /// Returns the options of the answer to a SYN with the peer's options.
    fn options_answered(&mut self) -> Vec<u8> {
        let fields = Fields {
            flags: SYN,
            seq: FIRST,
            ack: 0,
            window: self.window,
            options: self.options.clone(),
            payload: vec![],
        };
        let answers = answers(&mut self.network, &frame(self.from, self.to, &fields));
        read(&answers[0]).options
    }

    /// Finishes a handshake in which the SYN has this window.
    fn connect_with_window(&mut self, window: u16) {
        let later = std::mem::replace(&mut self.window, window);
        self.open(FIRST);
        self.window = later;
        assert!(self.send(ACK, 1, 1, b"").is_empty());
    }

    /// Lets time pass, and returns what is sent, each with its time.
    fn log(&mut self, total_ms: u64) -> Vec<(u64, String)> {
        let mut log = Vec::new();
        for step in 1..=total_ms / STEP_MS {
            log.extend(self.wait(STEP_MS * MS_NS).into_iter().map(|sent| (step * STEP_MS, sent)));
        }
        log
    }

    /// Lets time pass, and returns when something is sent.
    fn times(&mut self, total_ms: u64) -> Vec<u64> {
        self.log(total_ms).into_iter().map(|(at_ms, _)| at_ms).collect()
    }

    /// Has so many segments echoed and acknowledges each echo, so that the congestion window grows; returns both sides' next numbers.
    fn grow(&mut self, segments: usize) -> (i64, i64) {
        let (mut seq, mut ack) = (1, 1);
        for _ in 0..segments {
            let sent = self.send(ACK, seq, ack, &pattern(DEFAULT_MSS));
            seq += DEFAULT_MSS as i64;
            assert_eq!(sent, [format!("ACK {ack} {seq} +{DEFAULT_MSS}")]);
            ack += DEFAULT_MSS as i64;
            assert!(self.send(ACK, seq, ack, b"").is_empty());
        }
        (seq, ack)
    }

    /// Has so many segments echoed without acknowledging any; returns the peer's next number.
    fn fly(&mut self, segments: usize, (mut seq, ack): (i64, i64)) -> i64 {
        for number in 0..segments {
            let sent = self.send(ACK, seq, ack, &pattern(DEFAULT_MSS));
            seq += DEFAULT_MSS as i64;
            let at = ack + (number * DEFAULT_MSS) as i64;
            assert_eq!(sent, [format!("ACK {at} {seq} +{DEFAULT_MSS}")], "the window has room");
        }
        seq
    }
}

fn assert_near(found_ms: u64, expected_ms: u64) {
    assert!(found_ms.abs_diff(expected_ms) <= 2 * STEP_MS, "{found_ms} ms, and it should be {expected_ms} ms");
}

fn assert_all_near(found_ms: &[u64], expected_ms: &[u64]) {
    assert_eq!(found_ms.len(), expected_ms.len(), "{found_ms:?}, and it should be {expected_ms:?}");
    found_ms.iter().zip(expected_ms).for_each(|(found_ms, expected_ms)| assert_near(*found_ms, *expected_ms));
}

/// RFC 9293, section 3.7.1; RFC 7323, sections 2.2 and 3.2; RFC 2018, section 2.
#[test]
fn the_answer_to_a_syn_has_a_maximum_segment_size_and_of_the_other_options_only_those_that_were_offered() {
    let scale = [3, 3, 7, 1];
    let selective = [4, 2, 1, 1];
    let timestamps = [8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1];
    let kinds = |mut options: &[u8]| {
        let mut kinds = Vec::new();
        while let [kind, rest @ ..] = options {
            match kind {
                0 => break,
                1 => options = rest,
                _ => {
                    kinds.push(*kind);
                    options = &options[usize::from(rest[0])..];
                }
            }
        }
        kinds
    };
    let cases: [(&[u8], &[u8]); 5] =
        [(&[], &[2]), (&MSS, &[2]), (&scale, &[2, 3]), (&selective, &[2, 4]), (&timestamps, &[2])];
    for (offered, expected) in cases {
        let answered = peer_with(offered).options_answered();
        assert_eq!(kinds(&answered), expected, "{offered:?}");
        assert_eq!(answered[..4], MSS, "1500 bytes less two headers");
    }
    assert_eq!(peer_v6().options_answered()[..4], [2, 4, 0x05, 0xa0], "1440, as the header of IPv6 is longer");
}

/// RFC 9293, section 3.7.1.
#[test]
fn no_segment_is_longer_than_the_peers_maximum_segment_size_allows() {
    for (offered, longest) in
        [(None, 536), (Some(100), 100), (Some(1_000), 1_000), (Some(1_460), 1_460), (Some(9_000), 1_460)]
    {
        let options = offered.map_or(vec![], |size: u16| [&[2, 4][..], &size.to_be_bytes()].concat());
        let mut peer = peer_with(&options);
        peer.connect_with_window(0xffff);
        let sent = peer.send(ACK, 1, 1, &pattern(1_460));
        let lens: Vec<usize> = sent.iter().filter_map(|it| it.split_once('+')?.1.parse().ok()).collect();
        assert_eq!(lens.iter().max(), Some(&longest), "{offered:?}: {sent:?}");
    }
}

/// RFC 9293, section 3.7.1: as small as this, headers would be nearly all that is sent.
#[test]
fn a_peer_cannot_have_its_data_in_segments_of_a_few_bytes() {
    for size in [0_u16, 1, 20] {
        let mut peer = peer_with(&[&[2, 4][..], &size.to_be_bytes()].concat());
        peer.connect_with_window(0xffff);
        let sent = peer.send(ACK, 1, 1, &pattern(1_000));
        assert!(!sent.is_empty() && sent.len() <= 1_000_usize.div_ceil(48), "{size}: {sent:?}");
    }
}

/// RFC 9293, section 3.1 (MUST-4, MUST-6); RFC 7323, section 3.2.
#[test]
fn options_that_are_unknown_or_were_not_agreed_on_are_skipped() {
    let unknown = [253, 4, 9, 9];
    let timestamps = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 9];
    let mut peer = peer_with(&[&unknown[..], &MSS].concat());
    assert_eq!(peer.open(FIRST), ["SYN,ACK 0 1"]);
    for (number, options) in [&unknown[..], &timestamps, &[3, 3, 14, 0]].into_iter().enumerate() {
        let at = 1 + number as u32;
        let fields = Fields {
            flags: ACK,
            seq: FIRST.wrapping_add(at),
            ack: peer.theirs.wrapping_add(at),
            window: 1_000,
            options: options.to_vec(),
            payload: b"x".to_vec(),
        };
        let echoed = answers(&mut peer.network, &frame(peer.from, peer.to, &fields));
        assert_eq!(echoed.iter().map(|it| peer.show(it)).collect::<Vec<_>>(), [format!("ACK {at} {} +1", at + 1)]);
    }
}

/// RFC 9293, section 3.1 (MUST-7).
#[test]
fn a_segment_with_options_of_impossible_lengths_is_dropped_and_the_connection_goes_on() {
    for options in [[3, 0, 0, 0], [253, 1, 0, 0], [253, 40, 0, 0], [2, 3, 5, 0], [1, 1, 1, 8]] {
        assert_eq!(peer_with(&options).open(FIRST), Vec::<String>::new(), "{options:?}");
        let mut peer = Peer::connected();
        let (seq, ack) = (FIRST.wrapping_add(1), peer.theirs.wrapping_add(1));
        let fields = Fields { flags: ACK, seq, ack, window: 1_000, options: options.to_vec(), payload: b"x".to_vec() };
        answers(&mut peer.network, &frame(peer.from, peer.to, &fields));
        peer.assert_echoes(1, 1);
    }
}

/// RFC 7323, section 2.2.
#[test]
fn the_peers_window_is_scaled_if_it_offered_that() {
    for (options, expected) in [([&MSS[..], &[3, 3, 7, 1]].concat(), 1_280), (MSS.to_vec(), 10)] {
        let mut peer = peer_with(&options);
        peer.window = 10;
        peer.connect_with_window(2_000);
        assert_eq!(peer.send(ACK, 1, 1, &pattern(1_400)), [format!("ACK 1 1401 +{expected}")]);
    }
}

/// RFC 9293, section 3.8.6.1 (SHLD-29, SHLD-30).
#[test]
fn a_closed_window_is_probed_after_the_retransmission_timeout_and_then_half_as_often_each_time() {
    let mut peer = Peer::connected();
    peer.window = 2;
    assert_eq!(peer.send(ACK, 1, 1, b"hello"), ["ACK 1 6 +2"]);
    peer.window = 0;
    assert!(peer.send(ACK, 6, 3, b"").is_empty());
    let mut times = Vec::new();
    for step in 1..=16_000 / STEP_MS {
        for probe in peer.wait(STEP_MS * MS_NS) {
            assert_eq!(probe, "ACK 3 6 +1");
            times.push(step * STEP_MS);
            assert!(peer.send(ACK, 6, 3, b"").is_empty(), "its window is still closed");
        }
    }
    assert_all_near(&times, &[1_000, 3_000, 7_000, 15_000]);
}

/// RFC 6298, sections 2.4 and 5.5.
#[test]
fn data_is_sent_again_after_a_second_and_then_after_twice_as_long_each_time() {
    let mut peer = Peer::connected();
    assert_eq!(peer.send(ACK, 1, 1, b"hi"), ["ACK 1 3 +2"]);
    let log = peer.log(IDLE_NS / MS_NS + 2_000);
    let (last, again) = log.split_last().unwrap();
    assert!(again.iter().all(|(_, sent)| sent == "ACK 1 3 +2"), "{log:?}");
    let times: Vec<u64> = again.iter().map(|(at_ms, _)| *at_ms).collect();
    assert_all_near(&times, &[1_000, 3_000, 7_000, 15_000, 31_000]);
    // In the end the peer is given up.
    assert_eq!(last.1, "RST,ACK 3 3");
    assert_near(last.0, IDLE_NS / MS_NS);
}

/// RFC 6298, section 5; RFC 9293, section 3.8.1.
#[test]
fn the_answer_to_a_syn_is_sent_again_until_the_time_for_a_handshake_is_over() {
    let mut peer = Peer::half_open();
    let log = peer.log(20_000);
    let (last, again) = log.split_last().unwrap();
    assert!(again.iter().all(|(_, sent)| sent == "SYN,ACK 0 1"), "{log:?}");
    assert_eq!(last, &(10_000, "RST,ACK 1 1".into()));
    let times: Vec<u64> = again.iter().map(|(at_ms, _)| *at_ms).collect();
    assert_all_near(&times, &[1_000, 3_000, 7_000]);
    assert_eq!(peer.network.harness.function().deadline_ns(), None, "its place is free");
}

/// RFC 6298, sections 2.2 and 2.3.
#[test]
fn the_retransmission_timeout_follows_the_round_trip_time_and_its_variation() {
    // Of the handshake, and then of data that the peer acknowledges late.
    let samples_ms = [0_u64, 900, 900, 300, 900, 900, 100, 900, 900];
    let mut peer = Peer::connected();
    let (mut smoothed, mut variation) = (0.0, 0.0);
    let mut at = 1;
    for sample_ms in &samples_ms[1..] {
        assert_eq!(peer.send(ACK, at, at, b"x"), [format!("ACK {at} {} +1", at + 1)]);
        at += 1;
        assert_eq!(peer.times(*sample_ms), [0_u64; 0], "nothing is sent twice");
        assert!(peer.send(ACK, at, at, b"").is_empty());
        let sample = *sample_ms as f64;
        variation = 0.75 * variation + 0.25 * f64::abs(smoothed - sample);
        smoothed = 0.875 * smoothed + 0.125 * sample;
    }
    let expected_ms = smoothed + 4.0 * variation;
    assert!(expected_ms > 1.2 * RTO_MIN_MS as f64, "the least timeout does not hide it: {expected_ms}");
    peer.send(ACK, at, at, b"x");
    let times = peer.times(3_000);
    // Times are rounded up to milliseconds.
    assert!((times[0] as f64 - expected_ms).abs() < 30.0, "{times:?}, and it should be {expected_ms} ms");
}

/// RFC 6298, section 3 (Karn's algorithm) and section 5.5.
#[test]
fn the_acknowledgement_of_data_that_was_sent_twice_tells_no_round_trip_time_and_the_timeout_stays() {
    let mut peer = Peer::connected();
    peer.send(ACK, 1, 1, b"x");
    assert_all_near(&peer.times(1_900), &[1_000]);
    assert!(peer.send(ACK, 2, 2, b"").is_empty());
    // Taken for a sample, 1900 ms would make it nearly six seconds; the least one would be a second.
    peer.send(ACK, 2, 2, b"x");
    assert_near(peer.times(5_000)[0], 2_000);
}

/// RFC 5681, section 3.2.
#[test]
fn the_third_repeated_acknowledgement_and_no_earlier_one_has_the_first_missing_segment_sent_again() {
    let mut peer = Peer::connected();
    let (seq, ack) = peer.grow(8);
    let seq = peer.fly(6, (seq, ack));
    for _ in 0..2 {
        assert_eq!(peer.send(ACK, seq, ack, b""), Vec::<String>::new());
    }
    let sent = peer.send(ACK, seq, ack, b"");
    assert_eq!(sent[0], format!("ACK {ack} {seq} +{DEFAULT_MSS}"));
    assert!(sent[1..].iter().all(|it| !it.starts_with(&format!("ACK {ack} "))), "once: {sent:?}");
    // What was sent after it has arrived, so that nothing else is sent again.
    assert!(peer.send(ACK, seq, ack + 6 * DEFAULT_MSS as i64, b"").is_empty());
    assert_eq!(peer.times(5_000), [0_u64; 0]);
}

/// RFC 5681, section 2.
#[test]
fn acknowledgements_with_data_or_another_window_are_no_repeated_ones() {
    let mut peer = Peer::connected();
    let (seq, ack) = peer.grow(8);
    let seq = peer.fly(4, (seq, ack));
    for window in [60_000, 50_000, 40_000, 30_000] {
        peer.window = window;
        assert_eq!(peer.send(ACK, seq, ack, b""), Vec::<String>::new(), "a window of {window}");
    }
    for number in 0..4 {
        let sent = peer.send(ACK, seq + number, ack, b"x");
        assert!(sent.iter().all(|it| !it.starts_with(&format!("ACK {ack} "))), "{sent:?}");
    }
}

/// RFC 5681, section 3.1.
#[test]
fn a_connection_begins_with_no_more_than_the_initial_window() {
    for (options, most) in [(&MSS[..], 3 * 1_460), (&[], 4 * DEFAULT_MSS)] {
        let mut peer = peer_with(options);
        peer.connect_with_window(0xffff);
        let mut sent_bytes = 0;
        for number in 0..8 {
            let sent = peer.send(ACK, 1 + number * 1_000, 1, &pattern(1_000));
            sent_bytes += sent.iter().filter_map(|it| it.split_once('+')?.1.parse::<usize>().ok()).sum::<usize>();
        }
        assert!((1_000..=most).contains(&sent_bytes), "{sent_bytes} bytes before the first acknowledgement");
    }
}

/// RFC 5681, sections 3.1 and 5; RFC 6298, section 5.4.
#[test]
fn after_the_retransmission_timeout_one_segment_is_sent_and_each_acknowledgement_makes_it_more() {
    let mut peer = Peer::connected();
    let (seq, ack) = peer.grow(10);
    let seq = peer.fly(8, (seq, ack));
    let mss = DEFAULT_MSS as i64;
    assert_eq!(peer.wait(1_500 * MS_NS), [format!("ACK {ack} {seq} +{mss}")]);
    let sent = peer.send(ACK, seq, ack + mss, b"");
    let expected = [1, 2].map(|number| format!("ACK {} {seq} +{mss}", ack + number * mss));
    assert_eq!(sent, expected, "two, after the first was acknowledged");
}

/// RFC 5681, section 4.2; RFC 2018, section 3.
#[test]
fn a_segment_behind_a_gap_is_acknowledged_at_once_with_the_number_of_the_gap_and_so_is_one_that_fills_it() {
    let mut peer = peer_with(&[4, 2, 1, 1]);
    peer.open(FIRST);
    assert!(peer.send(ACK, 1, 1, b"").is_empty());
    for seq in [5, 9, 3] {
        assert_eq!(peer.send(ACK, seq, 1, b"zz"), ["ACK 1 1"], "{seq}");
    }
    // The latest piece is the first that is told of.
    let last = peer.frame(ACK, 13, 1, b"zz");
    let sent = answers(&mut peer.network, &last);
    let options = read(&sent[0]).options;
    let at = options.iter().position(|kind| *kind == 5).expect("a selective acknowledgement");
    let edge = |at: usize| u32::from_be_bytes(options[at..at + 4].try_into().unwrap()).wrapping_sub(FIRST);
    assert_eq!((edge(at + 2), edge(at + 6)), (13, 15));
    let sent = peer.send(ACK, 1, 1, b"zz");
    assert!(sent.iter().all(|it| it.starts_with("ACK 1 7")), "up to the next gap: {sent:?}");
    assert!(sent.iter().any(|it| it.ends_with("+6")), "{sent:?}");
}

/// RFC 9293, section 3.10.7.4: the order of arrival, repetition and overlap change nothing.
#[test]
fn segments_that_overlap_are_put_together_to_what_was_sent() {
    let sent = b"the quick brown fox jumps over the lazy dog";
    for order in [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 0, 5, 1, 4, 2], [2, 2, 4, 0, 5, 3]] {
        let mut peer = Peer::connected();
        let mut echoed = Vec::new();
        for number in order.into_iter().chain(0..6) {
            let range = number * 6..(number * 6 + 13).min(sent.len());
            let frame = peer.frame(ACK, 1 + range.start as i64, 1, &sent[range]);
            for answer in answers(&mut peer.network, &frame) {
                echoed.push(read(&answer));
            }
        }
        let mut received = vec![0; sent.len()];
        for part in echoed.iter().filter(|it| !it.payload.is_empty()) {
            let at = part.seq.wrapping_sub(peer.theirs) as usize - 1;
            received[at..at + part.payload.len()].copy_from_slice(&part.payload);
        }
        assert_eq!(received.escape_ascii().to_string(), sent.escape_ascii().to_string(), "{order:?}");
    }
}

/// RFC 9293, section 3.8.6.3; RFC 5681, section 4.2.
#[test]
fn data_is_acknowledged_within_half_a_second_and_every_second_full_segment_at_once() {
    // The service has closed, so that no data of its own takes the acknowledgement along.
    let mut peer = Peer::closed_by_service();
    assert!(peer.send(ACK, 4, 2, b"").is_empty());
    let first = peer.send(ACK, 4, 2, b"x");
    let times = peer.times(500);
    assert_eq!(first.len() + times.len(), 1, "{first:?}, {times:?}");
    let (full, mut acknowledged) = (pattern(DEFAULT_MSS), 0);
    for number in 0..4 {
        acknowledged += peer.send(ACK, 5 + number * DEFAULT_MSS as i64, 2, &full).len();
    }
    assert!(acknowledged >= 2, "of four segments {acknowledged} are acknowledged at once");
}

/// RFC 9293, section 3.6.
#[test]
fn what_a_peer_sends_after_the_service_has_closed_is_acknowledged_until_it_closes_too() {
    let mut peer = Peer::closed_by_service();
    assert!(peer.send(ACK, 4, 2, b"").is_empty());
    let mut at = 4;
    for _ in 0..50 {
        peer.send(ACK, at, 2, &pattern(1_000));
        at += 1_000;
        peer.wait(100 * MS_NS);
    }
    assert_eq!(peer.send(ACK | FIN, at, 2, b"").last().unwrap(), &format!("ACK 2 {}", at + 1));
}

/// RFC 6298, section 5; RFC 9293, section 3.6: repeated acknowledgements do not stop the timer of a FIN.
#[test]
fn a_fin_is_sent_again_until_it_is_acknowledged() {
    for repeated in [0, 3, 5] {
        let mut peer = Peer::closed_by_service();
        for _ in 0..repeated {
            peer.send(ACK, 4, 1, b"");
        }
        let log = peer.log(8_000);
        let fins: Vec<u64> = log.iter().filter(|(_, sent)| sent == "FIN,ACK 1 4").map(|(at_ms, _)| *at_ms).collect();
        assert_all_near(&fins, &[1_000, 3_000, 7_000]);
        assert!(peer.send(ACK, 4, 2, b"").is_empty());
        assert!(peer.times(8_000).is_empty());
    }
}

/// RFC 9293, section 3.8.5; RFC 6093, section 3: the bytes are part of the stream.
#[test]
fn urgent_data_is_data() {
    const GOOD: u16 = pinion_abi::RX_L4_CHECKSUM_GOOD | pinion_abi::RX_IP_CHECKSUM_GOOD;
    for pointer in [0_u8, 1, 3, 200] {
        let mut peer = Peer::connected();
        let mut frame = peer.frame(ACK | PSH | URG, 1, 1, b"abc");
        // The pointer's low byte; the checksum is found right by the device.
        frame[14 + 20 + 19] = pointer;
        let verdicts = peer.network.harness.deliver_checked(GOOD, &[&frame]);
        let echoed = verdicts.iter().find(|it| it.bytes != frame).map(|it| read(&it.bytes).payload);
        assert_eq!(echoed.as_deref(), Some(&b"abc"[..]), "{pointer}");
        peer.send(ACK, 4, 4, b"");
        peer.assert_echoes(4, 4);
    }
}

/// RFC 9293, section 3.8.4 (MUST-25).
#[test]
fn an_idle_connection_sends_no_probes_of_its_own() {
    let mut peer = Peer::connected();
    peer.assert_echoes(1, 1);
    assert!(peer.send(ACK, 3, 3, b"").is_empty());
    assert_eq!(peer.times(IDLE_NS / MS_NS - 1_000), [0_u64; 0]);
}
