//! What one tenant's function does to itself does not affect another tenant's clients. One worker serves all FWPs here.
#![forbid(unsafe_code)]

use std::fs;
use std::thread;

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{Bed, Device, NODE};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::{flood, ping, poke};
use pinion_tests::until::{SOON, until};
use serde_json::Value;

/// The tenant with the misbehaving functions.
const TENANT: &str = "mallory";
/// The address of these functions.
const THEIRS: &str = "10.77.0.66";

/// Starts a bed where pings to [`NODE`] are answered for each client, and those to [`THEIRS`] go to a chain `wild` of this module. `chain`
/// has further keys of that chain.
fn bed_with(module: &str, chain: &str) -> Bed {
    bed_on(Device::AfPacket, module, chain)
}

fn bed_on(device: Device, module: &str, chain: &str) -> Bed {
    let bed = Bed::with_addresses(device, &[THEIRS]);
    bed.apply_echo("per-client");
    bed.node.apply(wild(module, chain).text());
    bed
}

fn wild(module: &str, chain: &str) -> Manifest {
    let manifest = Manifest::of(TENANT).module("wild", &build::hostile(module)).chain("wild", "wild", chain);
    manifest.ping_rule("wild", "wild", "per-client", THEIRS)
}

fn assert_others_are_served(bed: &Bed) {
    let summary = flood(&bed.clients[1].namespace, NODE, 2_000);
    println!("beside it: {summary:?}");
    summary.assert_all(2_000);
}

/// Returns the reasons for which instances of one of the tenant's chains ended.
fn ended(bed: &Bed, chain: &str) -> Vec<String> {
    let mut instances = bed.node.cli().get("instances");
    instances.retain(|it| it["tenant"] == TENANT && it["chain"] == chain && it["state"] == "terminated");
    instances.iter().map(|it| it["ended_because"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until as many instances of a chain have ended; returns their reason, which must be the same for all.
#[track_caller]
fn end_of(bed: &Bed, chain: &str, count: usize) -> String {
    let ended = until("end of a chain instance", SOON, || Some(ended(bed, chain)).filter(|it| it.len() >= count));
    assert_eq!(ended, vec![ended[0].clone(); count]);
    ended[0].clone()
}

fn serving(bed: &Bed) -> Vec<Value> {
    bed.node.cli().serving_fwps().into_iter().filter(|fwp| fwp["tenant"] == TENANT).collect()
}

#[test]
fn a_function_that_loops_for_ever_costs_others_no_ping() {
    let bed = bed_with("looper", "");
    poke(&bed.clients[0].namespace, THEIRS);
    let looper = until("FWP that loops", SOON, || serving(&bed).pop());
    assert_others_are_served(&bed);
    let later = serving(&bed).pop().expect("it loops still");
    let grown = |name: &str| (looper["counters"][name].as_u64(), later["counters"][name].as_u64());
    let (before, after) = grown("preemptions");
    assert!(after > before, "it was not preempted: {before:?}, then {after:?} times");
    assert!(ended(&bed, "wild").is_empty());
}

fn no_ping_is_lost_of_three_floods_beside_a_loop(device: Device) {
    let bed = bed_on(device, "looper", "");
    poke(&bed.clients[0].namespace, THEIRS);
    until("FWP that loops", SOON, || serving(&bed).pop());
    bed.assert_floods_are_answered(20_000);
    assert!(ended(&bed, "wild").is_empty());
}

#[test]
fn no_ping_is_lost_of_three_floods_beside_a_loop_on_af_packet() {
    no_ping_is_lost_of_three_floods_beside_a_loop(Device::AfPacket);
}

#[test]
fn no_ping_is_lost_of_three_floods_beside_a_loop_on_tap() {
    no_ping_is_lost_of_three_floods_beside_a_loop(Device::Tap);
}

#[test]
fn two_clients_of_a_looping_function_cost_a_third_no_ping() {
    let bed = bed_with("looper", "");
    poke(&bed.clients[0].namespace, THEIRS);
    poke(&bed.clients[2].namespace, THEIRS);
    until("two FWPs that loop", SOON, || (serving(&bed).len() == 2).then_some(()));
    assert_others_are_served(&bed);
}

#[test]
fn a_function_whose_deadline_has_always_passed_costs_others_no_ping() {
    let bed = Bed::with_addresses(Device::AfPacket, &[THEIRS]);
    bed.apply_echo("per-client");
    let manifest = Manifest::of(TENANT).module("wild", &build::hostile("timer"));
    let manifest = manifest.configured_chain("wild", "wild", "past").with("cache_min = 16\n");
    bed.node.apply(manifest.ping_rule("wild", "wild", "per-client", THEIRS).text());
    poke(&bed.clients[0].namespace, THEIRS);
    // It also receives its own packets.
    until("FWP that answered", SOON, || serving(&bed).pop().filter(|fwp| fwp["counters"]["sent"].as_u64() >= Some(1)));
    assert_others_are_served(&bed);
    assert!(ended(&bed, "wild").is_empty());
}

#[test]
fn a_function_that_panics_is_replaced_for_the_next_packet_and_others_are_unaffected() {
    let bed = bed_with("trapper", "");
    let (others, theirs) = (&bed.clients[1].namespace, &bed.clients[0].namespace);
    thread::scope(|scope| {
        let beside = scope.spawn(|| flood(others, NODE, 5_000));
        for count in 1..=2 {
            poke(theirs, THEIRS);
            let reason = end_of(&bed, "wild", count);
            assert!(reason.starts_with("it panicked: "), "{reason}");
        }
        beside.join().expect("ping runs to its end").assert_all(5_000);
    });
    let chain = bed.node.cli().chain_status(TENANT, "wild");
    assert_eq!(chain["failures"], 2, "{chain}");
    assert!(chain["last_failure"].as_str().is_some_and(|failure| failure.starts_with("it panicked: ")), "{chain}");
}

#[test]
fn a_function_that_returns_ends_its_chain_instance() {
    let bed = bed_with("returner", "");
    poke(&bed.clients[0].namespace, THEIRS);
    assert_eq!(end_of(&bed, "wild", 1), "its run function returned");
    assert_others_are_served(&bed);
}

#[test]
fn each_invalid_entry_in_a_transmit_ring_ends_its_function_with_the_reason() {
    let lies = [
        ("slot-range", "it sent slot 64, which it does not own"),
        ("not-owned", "which it does not own"),
        ("twice", "which it does not own"),
        ("length", "of a slot of 2048"),
        ("length-wrap", "it sent 100 bytes at offset 65535 of a slot of 2048"),
        ("way", "by way 127, by which none has come: name the way of a received packet"),
        ("tail-jump", "its transmit index moved from 0 to 65, in a ring of 64"),
        ("tail-back", "its transmit index moved from 0 to 4294967295, in a ring of 64"),
    ];
    let address = |lie: usize| format!("10.77.0.{}", 100 + lie);
    let addresses: Vec<String> = (0..lies.len()).map(address).collect();
    let bed = Bed::with_addresses(Device::AfPacket, &addresses.iter().map(String::as_str).collect::<Vec<_>>());
    bed.apply_echo("per-client");
    let mut manifest = Manifest::of(TENANT).module("wild", &build::hostile("wild_descriptor"));
    for ((lie, _), address) in lies.iter().zip(&addresses) {
        manifest = manifest.configured_chain(lie, "wild", lie).ping_rule(lie, lie, "per-client", address);
    }
    bed.node.apply(manifest.text());
    for ((lie, reason), address) in lies.iter().zip(&addresses) {
        poke(&bed.clients[0].namespace, address);
        let because = end_of(&bed, lie, 1);
        assert!(because.starts_with("it was stopped: ") && because.ends_with(reason), "{lie}: {because}");
        let chain = bed.node.cli().chain_status(TENANT, lie);
        assert_eq!((&chain["failures"], &chain["last_failure"]), (&1.into(), &because.into()));
    }
    assert_others_are_served(&bed);
}

#[test]
fn a_function_that_wants_all_memory_gets_what_its_chain_allows() {
    let limit_kib = 4096;
    let bed = bed_with("memory_bomb", &format!("memory_limit_kib = {limit_kib}"));
    poke(&bed.clients[0].namespace, THEIRS);
    let fwp = until("FWP that answered", SOON, || {
        serving(&bed).pop().filter(|fwp| fwp["counters"]["sent"].as_u64() >= Some(1))
    });
    let memory_kib = fwp["memory_kib"].as_u64().expect("a number");
    assert!((limit_kib - 64..=limit_kib).contains(&memory_kib), "{memory_kib} KiB of {limit_kib}");
    assert_others_are_served(&bed);
}

/// Checks that a chain `wild` of this module is refused with these words, while other clients are served as before.
fn assert_chain_refused(module: &str, expected: &[&str]) -> Bed {
    let bed = Bed::with_addresses(Device::AfPacket, &[THEIRS]);
    bed.apply_echo("per-client");
    let path = bed.node.path("wild.toml");
    fs::write(&path, wild(module, "").text()).expect("the node's folder is writable");
    let output = thread::scope(|scope| {
        let refused = scope.spawn(|| bed.node.cli().try_apply(&path));
        assert_others_are_served(&bed);
        refused.join().expect("the command runs to its end")
    });
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    for words in expected {
        assert!(errors.contains(words), "{errors:?} does not say {words:?}");
    }
    assert!(bed.node.cli().get("chains").iter().all(|chain| chain["name"] != "wild"));
    bed
}

#[test]
fn a_function_that_refuses_its_configuration_is_not_applied() {
    let refused = "stage 0 (wild): its pinion_init refused with status 1: config_refuser refuses";
    let bed = assert_chain_refused("config_refuser", &["chain mallory/wild: ", refused]);
    until("line of the function's in the log", SOON, || {
        bed.node.log().contains("config_refuser refuses").then_some(())
    });
}

#[test]
fn a_function_that_never_gets_ready_is_not_applied() {
    assert_chain_refused("init_looper", &["chain mallory/wild: stage 0 (wild): its initialisation took longer than"]);
}

#[test]
fn a_function_that_floods_the_log_neither_fills_it_nor_forges_a_line_of_it() {
    let bed = bed_with("log_flood", "");
    let theirs = &bed.clients[0].namespace;
    thread::scope(|scope| {
        // The function's answers are not ping replies, so this `ping` takes two seconds and gets none.
        let noise = scope.spawn(|| ping(theirs, &format!("-q -c 200 -i 0.01 -W 0.1 {THEIRS}")));
        assert_others_are_served(&bed);
        assert_eq!(noise.join().expect("ping runs to its end").sent, 200);
    });
    let log = bed.node.log();
    let flooded = log.lines().filter(|line| line.contains("flood ")).count();
    assert!((1..=200).contains(&flooded), "{flooded} of 200,000 lines are in the log");
    assert!(!log.chars().any(|c| c.is_control() && c != '\n'), "a control character is in the log");
    until("account of the lines that were lost", SOON, || {
        poke(theirs, THEIRS);
        let lines = bed.node.cli().resource(TENANT, "log_lines");
        (lines["used"].as_u64() >= Some(flooded as u64) && lines["refused"].as_u64() > Some(100_000)).then_some(())
    });
    let forged = |line: &&str| line.starts_with("ERROR another tenant's line");
    assert_eq!(log.lines().find(forged), None);
}

#[test]
fn memory_of_an_instance_that_ended_is_fresh_for_the_next() {
    let bed = bed_with("canary", "idle_timeout_ms = 200\ncache_min = 1");
    for count in 1..=5 {
        poke(&bed.clients[0].namespace, THEIRS);
        assert_eq!(end_of(&bed, "wild", count), "nothing came for its chain's idle time");
    }
    let chain = bed.node.cli().chain_status(TENANT, "wild");
    assert_eq!(chain["failures"], 0, "{chain}");
}
