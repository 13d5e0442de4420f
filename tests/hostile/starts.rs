//! The launcher's time: functions that do not come to their first wait.

use pinion_tests::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::build::{hostile, sample};
use pinion_tests::manifest::Manifest;
use pinion_tests::until::{SOON, until};

use crate::clients::{assert_each_is_answered, pings_of_new_clients};

/// The tenant with these functions.
const GREEDY: &str = "mallory";
/// Its chains, one of which is being started all the time.
const CHAINS: u32 = 16;
/// How much time a function's start may take before the node gives it up.
const START_MS: f64 = 500.0;
const NEW_CLIENTS: u64 = 20;

/// Returns how often starts of the tenant's functions have failed.
fn failures(bed: &Bed) -> u64 {
    let chains = bed.node.cli().status()["chains"].as_array().cloned().unwrap_or_default();
    let theirs = chains.iter().filter(|chain| chain["tenant"] == GREEDY);
    theirs.filter_map(|chain| chain["failures"].as_u64()).sum()
}

#[test]
fn functions_that_never_come_to_their_first_wait_delay_no_other_tenants_new_clients_by_a_start() {
    let bed = Bed::with_settings(Device::AfPacket, &[], "");
    let echo = Manifest::of(TENANT).module("echo", &sample("icmp-echo"));
    let echo = echo.chain("echo", "echo", "cache_min = 0\ncache_max = 1");
    bed.node.apply(echo.ping_rule("ping", "echo", "per-client", NODE).text());
    let module = Manifest::of(GREEDY).module("loop", &hostile("run_looper"));
    let loops =
        (0..CHAINS).fold(module, |manifest, number| manifest.chain(&format!("loop-{number}"), "loop", "cache_min = 1"));
    bed.node.apply(loops.text());
    let fails_after = |before| until("start that fails", SOON, || Some(failures(&bed)).filter(|now| *now > before));
    let before = fails_after(0);
    let summaries = pings_of_new_clients(&bed, NEW_CLIENTS);
    // So one was under way all the time.
    fails_after(before);
    assert_each_is_answered(&summaries);
    let mut waits_ms: Vec<f64> = summaries.iter().filter_map(|summary| summary.min_ms).collect();
    waits_ms.sort_by(f64::total_cmp);
    // The median, as the machine may keep some of them waiting.
    let median_ms = waits_ms[waits_ms.len() / 2];
    assert!(median_ms < START_MS / 5.0, "half of the new clients waited for {median_ms} ms: {waits_ms:?}");
}
