//! The function as a chain sees it: frames in, frames out.

#![cfg(not(target_family = "wasm"))]

use macswap::MacSwap;
use pinion_sdk::testing::{Harness, Outcome};

#[test]
fn the_addresses_change_places_and_the_rest_stays() {
    let frame: Vec<u8> = (0..60).collect();
    let verdicts = Harness::<MacSwap>::new(b"").unwrap().deliver(&[&frame]);
    assert_eq!(verdicts[0].outcome, Outcome::Sent);
    assert_eq!(verdicts[0].bytes[..6], frame[6..12]);
    assert_eq!(verdicts[0].bytes[6..12], frame[..6]);
    assert_eq!(verdicts[0].bytes[12..], frame[12..]);
}

#[test]
fn what_is_too_short_for_addresses_is_dropped() {
    let verdicts = Harness::<MacSwap>::new(b"").unwrap().deliver(&[&[0; 11], &[]]);
    assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Dropped));
}

#[test]
fn a_configuration_is_refused_with_a_reason() {
    let refusal = Harness::<MacSwap>::new(b"speed = 9").err().unwrap();
    assert_eq!(refusal.to_string(), "macswap has no configuration, but was given 9 bytes");
}
