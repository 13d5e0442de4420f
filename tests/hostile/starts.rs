//! The launcher's time: functions that do not come to their first wait.

use std::path::Path;
use std::time::Instant;

use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build::{hostile, sample};
use pinion_tests::product::manifest::Manifest;
use pinion_tests::until::{SOON, until};

use crate::clients::{ask_again, pings_of_new_clients};

/// The tenant with these functions.
const GREEDY: &str = "mallory";
/// Its chains, one of which is being started all the time.
const CHAINS: u64 = 100;
/// How much time a function's start may take before the node gives it up.
const START_MS: f64 = 500.0;
const NEW_CLIENTS: u64 = 20;
/// Chains that are changed at once, and are started one after the other.
const SLOW_CHAINS: u64 = 40;

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
    fails_after(0);
    let (began, before) = (Instant::now(), failures(&bed));
    let summaries = pings_of_new_clients(&bed, NEW_CLIENTS);
    let (elapsed_ms, after) = (began.elapsed().as_secs_f64() * 1_000.0, failures(&bed));
    // Until each has failed once there is always one to be started.
    assert!(after < CHAINS, "{after} starts have failed: there may be none under way");
    // On a busy machine one may have waited for longer than a second, in vain.
    ask_again(&bed, &summaries);
    let mut waits_ms: Vec<f64> = summaries.iter().map(|summary| summary.min_ms.unwrap_or(f64::INFINITY)).collect();
    waits_ms.sort_by(f64::total_cmp);
    // The median, as the machine may keep some of them waiting.
    let median_ms = waits_ms[waits_ms.len() / 2];
    // On a busy machine a start takes longer than the node lets it: as long as the launcher has needed for those meanwhile.
    let start_ms = START_MS.max(elapsed_ms / (after - before).max(1) as f64);
    assert!(median_ms < start_ms / 5.0, "half waited for {median_ms} ms, and a start takes {start_ms}: {waits_ms:?}");
}

#[test]
fn a_change_of_chains_that_take_long_to_start_delays_no_other_tenants_changes() {
    let bed = Bed::with_settings(Device::AfPacket, &[], "");
    let chains = |module: &Path| {
        let manifest = Manifest::of(GREEDY).module("function", module);
        (0..SLOW_CHAINS)
            .fold(manifest, |manifest, number| manifest.chain(&format!("slow-{number}"), "function", "cache_min = 1"))
    };
    bed.node.apply(chains(&sample("icmp-echo")).text());
    let echo = |more: &str| Manifest::of(TENANT).module("echo", &sample("icmp-echo")).chain("echo", "echo", more);
    bed.node.apply(echo("cache_min = 1").text());
    let slow = chains(&hostile("run_looper"));
    std::thread::scope(|scope| {
        // Alone, this takes effect when each chain's start has succeeded or failed.
        scope.spawn(|| bed.node.apply(slow.text()));
        let before = until("start that fails", SOON, || Some(failures(&bed)).filter(|failures| *failures > 0));
        bed.node.apply(echo("cache_min = 2").text());
        bed.node.cli().run(&["delete", "chain", "echo", "--tenant", TENANT]);
        let meanwhile = failures(&bed) - before;
        assert!(meanwhile < SLOW_CHAINS / 4, "{meanwhile} of {SLOW_CHAINS} starts have failed meanwhile");
    });
}

#[test]
fn a_function_that_is_being_started_leaves_nothing_when_its_chain_is_deleted() {
    // So few FWPs that each round would fail if an earlier one had kept its own.
    let bed = Bed::with_settings(Device::AfPacket, &[], "[limits]\nfwps_max = 4\n");
    let held_kib = || {
        let status = bed.node.cli().status();
        let tenants = status["tenants"].as_array().cloned().unwrap_or_default();
        let theirs = tenants.iter().find(|tenant| tenant["tenant"] == GREEDY);
        theirs.and_then(|tenant| tenant["memory_kib"].as_u64()).unwrap_or(0)
    };
    for _ in 0..6 {
        let module = Manifest::of(GREEDY).module("loop", &hostile("run_looper"));
        bed.node.apply(module.chain("loop", "loop", "cache_min = 1").text());
        until("function that is being started", SOON, || (held_kib() > 0).then_some(()));
        bed.node.cli().run(&["delete", "chain", "loop", "--tenant", GREEDY]);
        until("end of what it held", SOON, || (held_kib() == 0).then_some(()));
    }
}
