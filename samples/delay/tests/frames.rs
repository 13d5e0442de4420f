//! The function as a chain sees it: frames in, and out after the delay.

#![cfg(not(target_family = "wasm"))]

use delay::Delay;
use pinion_sdk::testing::{Harness, Outcome, Verdict};

const MS_NS: u64 = 1_000_000;

fn sent(verdicts: &[Verdict]) -> Vec<u8> {
    assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Sent));
    verdicts.iter().map(|verdict| verdict.bytes[0]).collect()
}

#[test]
fn each_packet_goes_on_when_its_time_is_over_and_in_its_order() {
    let mut harness = Harness::<Delay>::new(b"20ms").unwrap();
    assert_eq!(harness.deliver(&[&[1; 60], &[2; 60]]), []);
    assert_eq!(harness.let_pass_ns(15 * MS_NS), []);
    assert_eq!(harness.deliver(&[&[3; 60]]), []);
    assert_eq!(sent(&harness.let_pass_ns(5 * MS_NS)), [1, 2]);
    assert_eq!(sent(&harness.let_pass_ns(15 * MS_NS)), [3]);
    assert_eq!(harness.let_pass_ns(60_000 * MS_NS), []);
}

#[test]
fn due_packets_go_on_however_many_come() {
    let mut harness = Harness::<Delay>::new(b"3 ms").unwrap();
    let mut gone = Vec::new();
    for number in 0..100 {
        gone.extend(sent(&harness.deliver(&[&[number; 60]])));
        pinion_sdk::testing::advance_clock_ns(MS_NS);
    }
    assert_eq!(gone, (0..97).collect::<Vec<_>>());
}

#[test]
fn a_time_that_is_none_or_too_long_is_refused_with_a_reason() {
    for config in ["", "20", "ms", "20 m", "-1ms", "11s", "99999999999999999999s"] {
        let refusal = Harness::<Delay>::new(config.as_bytes()).err().unwrap().to_string();
        assert!(refusal.ends_with(&format!("and was given `{config}`")), "{refusal}");
    }
    assert!(["0us", "10s", " 500 us\n"].iter().all(|config| Harness::<Delay>::new(config.as_bytes()).is_ok()));
}
