//! The function as a network sees it, compared with a policer that remembers all that ever passed.

#![cfg(not(target_family = "wasm"))]

use std::collections::HashMap;

use pinion_sdk::testing::{Frame, Harness, Outcome, advance_clock_ns, take_log};
use policer::Policer;
use policer::bucket::Limit;
use proptest::prelude::*;

const MS_NS: u64 = 1_000_000;

/// Returns a UDP packet of a flow, of that length, at least 42 bytes.
fn frame(flow: u8, len: usize) -> Vec<u8> {
    let payload = vec![0; len.saturating_sub(42)];
    Frame::udp(([10, 0, 0, flow], 7), ([10, 0, 1, 0], 7)).payload(&payload).bytes()
}

fn policer(config: &str) -> Harness<Policer> {
    Harness::new(config.as_bytes()).unwrap()
}

fn passes(harness: &mut Harness<Policer>, frame: &[u8]) -> bool {
    let verdict = harness.deliver(&[frame]).remove(0);
    assert_eq!(verdict.bytes, frame, "frames are left as they are");
    verdict.outcome == Outcome::Sent
}

#[test]
fn a_burst_passes_at_once_and_then_the_rate() {
    let mut harness = policer("rate_bytes_per_s = 10_000\nburst_bytes = 3_000\nper = \"all\"");
    assert!((0..3).all(|flow| passes(&mut harness, &frame(flow, 1_000))));
    assert!(!passes(&mut harness, &frame(0, 1_000)));
    advance_clock_ns(100 * MS_NS - 1_000);
    assert!(!passes(&mut harness, &frame(0, 1_000)));
    advance_clock_ns(1_000);
    assert!(passes(&mut harness, &frame(0, 1_000)));
    advance_clock_ns(3_600_000 * MS_NS);
    assert_eq!((0..9).filter(|_| passes(&mut harness, &frame(0, 1_000))).count(), 3, "a pause earns one burst");
}

#[test]
fn the_lowest_burst_lets_a_full_frame_pass_and_a_longer_one_takes_nothing() {
    for per in ["all", "flow"] {
        let mut harness = policer(&format!("rate_bytes_per_s = 1_000\nburst_bytes = 1518\nper = \"{per}\""));
        assert!(!passes(&mut harness, &frame(0, 1519)));
        assert!(passes(&mut harness, &frame(0, 1518)));
        assert!(!passes(&mut harness, &frame(0, 60)));
        advance_clock_ns(1_518 * MS_NS);
        assert!(passes(&mut harness, &frame(0, 1518)));
    }
}

#[test]
fn each_flow_has_a_bucket_of_its_own() {
    let mut harness = policer("rate_bytes_per_s = 20_000\nburst_bytes = 2_000\nper = \"flow\"");
    for _ in 0..2 {
        assert!((0..50).all(|flow| passes(&mut harness, &frame(flow, 2_000))));
        assert!((0..50).all(|flow| !passes(&mut harness, &frame(flow, 2_000))));
        advance_clock_ns(100 * MS_NS);
    }
}

#[test]
fn flows_without_a_bucket_share_one_until_one_is_free() {
    let mut harness = policer("rate_bytes_per_s = 20_000\nburst_bytes = 2_000\nper = \"flow\"\nflows_max = 2");
    assert!((0..3).all(|flow| passes(&mut harness, &frame(flow, 2_000))));
    assert!((3..200).all(|flow| !passes(&mut harness, &frame(flow, 2_000))));
    assert_eq!(harness.function().counters().without_bucket, 198);
    // Full buckets are freed.
    advance_clock_ns(100 * MS_NS);
    assert!((100..102).all(|flow| passes(&mut harness, &frame(flow, 2_000))));
    assert_eq!(harness.function().counters().without_bucket, 198);
}

#[test]
fn packets_without_a_flow_share_a_bucket() {
    let mut harness = policer("rate_bytes_per_s = 1_000\nburst_bytes = 1_600\nper = \"flow\"");
    assert!(passes(&mut harness, &[1; 1_000]));
    assert!(!passes(&mut harness, &[2; 1_000]));
    assert!(passes(&mut harness, &frame(1, 1_600)));
}

#[test]
fn counts_are_logged_at_most_every_ten_seconds() {
    let mut harness = policer("rate_bytes_per_s = 1\nburst_bytes = 1_518\nper = \"all\"");
    let _ = harness.deliver(&[&frame(0, 1_518), &frame(0, 100), &frame(0, 100)]);
    let _ = harness.deliver(&[&frame(0, 100)]);
    let lines: Vec<_> = take_log().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, ["packets so far: 1 passed, 2 dropped; 0 of flows without a bucket"]);
    advance_clock_ns(10_000 * MS_NS);
    let _ = harness.deliver(&[&frame(0, 100)]);
    assert_eq!(take_log().len(), 1);
}

#[test]
fn a_burst_below_a_full_frame_is_refused_with_the_bound() {
    for burst in [0_u64, 1, 100, 1_500, 1_514, 1_517, (1 << 40) + 1] {
        let config = format!("rate_bytes_per_s = 1\nburst_bytes = {burst}\nper = \"flow\"");
        assert_eq!(
            Harness::<Policer>::new(config.as_bytes())
                .err()
                .unwrap()
                .to_string()
                .split_once("burst_bytes: ")
                .unwrap()
                .1,
            format!("{burst} bytes; at least 1518 are needed for a full frame to pass, and 1099511627776 are the most")
        );
    }
    for burst in [1_518_u64, 1 << 40] {
        let _ = policer(&format!("rate_bytes_per_s = 1\nburst_bytes = {burst}\nper = \"flow\""));
    }
}

#[test]
fn a_wrong_configuration_is_refused_with_the_fields_path() {
    for (config, message) in [
        ("burst_bytes = 1518\nper = \"all\"", "missing field `rate_bytes_per_s`"),
        ("rate_bytes_per_s = 0", "rate_bytes_per_s: 0 bytes per second; 1 to 1099511627776 are possible"),
        ("rate_bytes_per_s = 1\nburst_bytes = -1", "burst_bytes: invalid value: integer `-1`"),
        ("per = \"client\"", "per: unknown variant `client`, expected `flow` or `all`"),
        ("flows_max = 65537", "flows_max: 65537 flows; 1 to 65536 are possible"),
        ("rate = 1", "rate: unknown field `rate`"),
    ] {
        let refusal = Harness::<Policer>::new(config.as_bytes()).err().unwrap().to_string();
        assert!(refusal.contains(message), "{refusal}");
    }
}

/// Returns whether a packet of so many bytes fits now. It does if, for each moment since the start, the bytes passed
/// since then plus this packet are at most the burst plus what was earned since then.
fn fits(passed: &[(u64, usize)], bytes: usize, now_ns: u64, rate: u64, burst: u64) -> bool {
    let mut since = bytes as u128;
    let scaled = |bytes: u128| bytes * 1_000_000_000;
    scaled(since) <= scaled(burst.into())
        && passed.iter().rev().all(|(at_ns, passed_bytes)| {
            since += *passed_bytes as u128;
            scaled(since) <= scaled(burst.into()) + u128::from(now_ns - at_ns) * u128::from(rate)
        })
}

proptest! {
    #[test]
    fn an_empty_bucket_is_full_when_the_rate_has_brought_the_burst(rate in 1u64..=1 << 40, burst in 1u64..=1 << 40) {
        let exact = (u128::from(burst) * 1_000_000_000).div_ceil(rate.into());
        prop_assert_eq!(Limit::new(rate, burst).time_to_fill_ns(), u64::try_from(exact).unwrap_or(u64::MAX));
    }

    #[test]
    fn it_lets_the_same_packets_pass_as_one_that_remembers_all(
        per_flow: bool, rate in 1_u64..2_000_000, burst in 1_518_u64..6_000,
        packets in proptest::collection::vec((0_u8..4, 42_usize..1500, 0_u64..3_000), 1..200),
    ) {
        let per = if per_flow { "flow" } else { "all" };
        let mut harness = policer(&format!("rate_bytes_per_s = {rate}\nburst_bytes = {burst}\nper = \"{per}\""));
        let mut passed = HashMap::<u8, Vec<(u64, usize)>>::new();
        let mut now_ns = 0;
        for (flow, bytes, pause_us) in packets {
            now_ns += pause_us * 1_000;
            advance_clock_ns(pause_us * 1_000);
            let passed = passed.entry(if per_flow { flow } else { 0 }).or_default();
            let fits = fits(passed, bytes, now_ns, rate, burst);
            if fits {
                passed.push((now_ns, bytes));
            }
            prop_assert_eq!(passes(&mut harness, &frame(flow, bytes)), fits);
        }
    }

    #[test]
    fn no_bytes_panic(frame in proptest::collection::vec(any::<u8>(), 0..100)) {
        let mut harness = policer("rate_bytes_per_s = 1\nburst_bytes = 1_518\nper = \"flow\"");
        for start in [&[0x08, 0, 0x45][..], &[0x86, 0xdd, 0x60], &[]] {
            let _ = harness.deliver(&[&[&[2; 12][..], start, &frame].concat()]);
        }
    }
}
