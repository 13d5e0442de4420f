//! Who has the core, and for how long: classes, tenants' shares, and budgets. One worker serves all FWPs here, and whoever misbehaves loops
//! for ever.
#![forbid(unsafe_code)]

use std::fs;
use std::time::{Duration, Instant};

use pinion_tests::bed::{Bed, Device, NODE, two_cores};
use pinion_tests::build;
use pinion_tests::manifest::Manifest;
use pinion_tests::ping::{flood, ping, poke};
use pinion_tests::process::errors;
use pinion_tests::until::{SOON, until};
use serde_json::Value;

const THEIRS: [&str; 8] =
    ["10.77.0.60", "10.77.0.61", "10.77.0.62", "10.77.0.63", "10.77.0.64", "10.77.0.65", "10.77.0.66", "10.77.0.67"];
/// Whose functions misbehave, unless there are more.
const TENANT: &str = "mallory";
/// How long whoever has the core keeps it, unless it is said otherwise.
const QUANTUM_US: u64 = 20;

/// A bed whose node has one worker and these further tables in its configuration.
fn bed(tables: &str) -> Bed {
    bed_of(&THEIRS, tables)
}

/// The same, with these further addresses.
fn bed_of(addresses: &[&str], tables: &str) -> Bed {
    Bed::with_settings(Device::AfPacket, addresses, &format!("{}{tables}", cores()))
}

fn cores() -> String {
    let (first, second) = two_cores();
    format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n")
}

/// A tenant's function that loops for ever for each client that pings an address.
fn loops(tenant: &str, address: &str, chain: &str) -> Manifest {
    let manifest = Manifest::of(tenant).module("loop", &build::hostile("looper")).chain("loop", "loop", chain);
    manifest.ping_rule("loop", "loop", "per-client", address)
}

fn ended(bed: &Bed) -> Vec<String> {
    let mut instances = bed.node.cli().get("instances");
    instances.retain(|it| it["tenant"] == TENANT && it["state"] == "terminated");
    instances.iter().map(|it| it["ended_because"].as_str().unwrap_or_default().to_owned()).collect()
}

fn cpu_us(bed: &Bed, tenant: &str) -> u64 {
    let fwps = bed.node.cli().get("fwps").into_iter().filter(|fwp| fwp["tenant"] == tenant);
    fwps.filter_map(|fwp| fwp["counters"]["cpu_us"].as_u64()).sum()
}

/// How much of a second each tenant's FWPs have of the core, by the node's own clock and count, over a while.
fn parts_of_a_second(bed: &Bed, tenants: &[&str]) -> Vec<f64> {
    let had = || -> Vec<u64> { tenants.iter().map(|tenant| cpu_us(bed, tenant)).collect() };
    let (before, start) = (had(), Instant::now());
    until("a while", SOON, || (start.elapsed() >= Duration::from_secs(2)).then_some(()));
    let (after, elapsed_us) = (had(), start.elapsed().as_micros() as f64);
    after.iter().zip(before).map(|(after, before)| (after - before) as f64 / elapsed_us).collect()
}

#[test]
fn a_node_full_of_loops_answers_another_tenants_pings() {
    let bed = bed("");
    bed.apply_echo("per-client");
    for (number, address) in THEIRS.iter().enumerate() {
        bed.node.apply(loops(&format!("{TENANT}-{number}"), address, "cache_min = 1").text());
    }
    for client in &bed.clients {
        THEIRS.iter().for_each(|address| poke(&client.namespace, address));
    }
    let looping = |fwp: &Value| fwp["counters"]["preemptions"].as_u64() > Some(0);
    until("all of the loops", SOON, || {
        (bed.node.cli().serving_fwps().into_iter().filter(looping).count() == 24).then_some(())
    });
    let summary = flood(&bed.clients[1].namespace, NODE, 5_000);
    println!("beside 24 loops: {summary:?}");
    summary.assert_all(5_000);
    // A quantum for each tenant that is runnable and 50 us, and what the kernel takes on both sides of a busy core.
    let bound_ms = (9.0 * 20.0 + 50.0) / 1e3 + 2.0;
    assert!(summary.mean_ms < Some(bound_ms), "{summary:?}");
}

/// Every way to keep the core that `brute` knows.
const WAYS: [&str; 7] = ["loops", "recurses", "fills", "stores", "calls", "logs", "waits"];

#[test]
fn an_answer_waits_for_no_turn_of_those_who_loop() {
    const QUANTUM_MS: u64 = 10;
    let bed = Bed::with_settings(Device::AfPacket, &THEIRS, &format!("quantum_us = {QUANTUM_MS}000\n{}", cores()));
    bed.apply_echo("per-client");
    for (number, address) in THEIRS[..2].iter().enumerate() {
        bed.node.apply(loops(&format!("loops-{number}"), address, "").text());
        poke(&bed.clients[0].namespace, address);
    }
    let looping = || (0..2).all(|number| cpu_us(&bed, &format!("loops-{number}")) > 0);
    until("two functions that loop", SOON, || looping().then_some(()));
    let summary = ping(&bed.clients[1].namespace, &format!("-q -c 300 -i 0.013 {NODE}"));
    summary.assert_all(300);
    println!("{summary:?}");
    // A request comes anywhere in somebody's turn: half a quantum in the mean. Another's turn after its answer would be one more.
    let mean_ms = summary.mean_ms.expect("all were answered");
    assert!(
        mean_ms < 0.8 * QUANTUM_MS as f64,
        "an answer took {mean_ms} ms in the mean, beside quanta of {QUANTUM_MS} ms"
    );
}

#[test]
fn whatever_functions_keep_the_core_by_they_lose_it_in_time_and_others_pings_are_answered() {
    let bed = bed("");
    bed.apply_echo("per-client");
    for (way, address) in WAYS.iter().zip(THEIRS) {
        let manifest = Manifest::of(way).module("brute", &build::hostile("brute"));
        let manifest = manifest.configured_chain("brute", "brute", way);
        bed.node.apply(manifest.ping_rule("brute", "brute", "per-client", address).text());
    }
    for client in &bed.clients {
        THEIRS[..WAYS.len()].iter().for_each(|address| poke(&client.namespace, address));
    }
    let turns = |fwp: &Value| fwp["counters"]["resumes"].as_u64();
    let serving = || bed.node.cli().serving_fwps().into_iter().filter(|fwp| fwp["tenant"] != "demo");
    until("turns of all of them", SOON, || {
        (serving().filter(|fwp| turns(fwp) > Some(100)).count() == 21).then_some(())
    });
    let summary = flood(&bed.clients[1].namespace, NODE, 5_000);
    let lateness = bed.node.cli().status()["preemption_lateness"].clone();
    println!("beside {WAYS:?}: {summary:?}, preempted with a lateness of {lateness}");
    summary.assert_all(5_000);
    let runnable = WAYS.len() as f64 + 1.0;
    let bound_ms = (runnable * QUANTUM_US as f64 + 50.0) / 1e3 + 2.0;
    assert!(summary.mean_ms < Some(bound_ms), "{summary:?}");
    let late_us = |part: &str| lateness[part].as_u64().expect("a number") / 1_000;
    // What takes longest between two looks are pages that the kernel provides, sixteen at most.
    assert!(late_us("p50_ns") <= 20 && late_us("p90_ns") <= 60, "{lateness}");
    assert_eq!(serving().count(), 21, "some have ended");
}

#[test]
fn tenants_share_a_core_by_their_weights_however_many_fwps_they_have() {
    let bed = bed("[[tenant]]\nname = \"heavy\"\nweight = 3\n");
    bed.node.apply(loops("heavy", THEIRS[0], "").text());
    bed.node.apply(loops("light", THEIRS[1], "").text());
    poke(&bed.clients[0].namespace, THEIRS[0]);
    bed.clients.iter().for_each(|client| poke(&client.namespace, THEIRS[1]));
    until("FWPs that loop", SOON, || (bed.node.cli().serving_fwps().len() == 4).then_some(()));
    let parts = parts_of_a_second(&bed, &["heavy", "light"]);
    let share = parts[0] / (parts[0] + parts[1]);
    assert!((0.73..=0.77).contains(&share), "of both the one of weight 3 has {share}: {parts:?}");
    let chain = bed.node.cli().chain_status("light", "loop");
    assert_eq!(chain["meter"]["activations"], 3, "{chain}");
    let status = bed.node.cli().status();
    for tenant in status["tenants"].as_array().expect("a list") {
        println!("{tenant}");
        let meter = |name: &str| tenant["meter"][name].as_u64().expect("a number");
        // Each was preempted again and again, had the core each time, and waited for the others.
        assert!(meter("preemptions") > 1_000 && meter("cpu_us") > 100_000 && meter("copied_bytes") > 0, "{tenant}");
        assert!(tenant["meter"]["run_queue_wait"]["p99_ns"].as_u64() > Some(10_000), "{tenant}");
    }
    for fwp in bed.node.cli().serving_fwps() {
        let wait = |part: &str| fwp["run_queue_wait"][part].as_u64();
        assert!(wait("count") > Some(1_000) && wait("p99_ns") > Some(10_000), "{fwp}");
    }
}

#[test]
fn a_class_above_leaves_those_below_a_twentieth() {
    let bed = bed("");
    bed.node.apply(loops("first", THEIRS[0], "class = \"latency\"").text());
    bed.node.apply(loops("second", THEIRS[1], "").text());
    THEIRS[..2].iter().for_each(|address| poke(&bed.clients[0].namespace, address));
    until("FWPs that loop", SOON, || (bed.node.cli().serving_fwps().len() == 2).then_some(()));
    let parts = parts_of_a_second(&bed, &["first", "second"]);
    let share = parts[1] / parts[0];
    assert!((0.04..=0.06).contains(&share), "the class below has {share} of what that above has: {parts:?}");
}

#[test]
fn a_class_that_the_operator_does_not_grant_is_refused() {
    let bed = bed(
        "[[tenant]]\nname = \"ops\"\nclass_max = \"system\"\n[[tenant]]\nname = \"batch\"\nclass_max = \"throughput\"\n",
    );
    let apply = |tenant: &str, class: &str| {
        let path = bed.node.path("class.toml");
        fs::write(&path, loops(tenant, THEIRS[0], &format!("class = {class:?}")).text())
            .expect("the node's folder is writable");
        let output = bed.node.cli().try_apply(&path);
        (output.status.code(), errors(&output))
    };
    let (status, message) = apply(TENANT, "system");
    assert_eq!(status, Some(2), "{message}");
    let expected =
        "chain mallory/loop: class is system, and the highest that the operator grants the tenant is latency";
    assert!(message.contains(expected), "{message}");
    assert_eq!(apply("batch", "latency").0, Some(2));
    assert_eq!(apply("ops", "system").0, Some(0));
}

#[test]
fn a_batch_that_takes_too_long_ends_its_instance_and_again_and_again_its_modules_chains_rest() {
    let bed = bed("");
    bed.node.apply(loops(TENANT, THEIRS[0], "cpu_per_batch_us = 2000").text());
    let namespace = &bed.clients[0].namespace;
    for count in 1..=3 {
        poke(namespace, THEIRS[0]);
        until("an end", SOON, || (ended(&bed).len() >= count).then_some(()));
    }
    let because = "it was stopped: it took longer for a batch than the 2000 us of its chain's cpu_per_batch_us";
    assert!(ended(&bed).iter().all(|reason| reason == because), "{:?}", ended(&bed));
    until("a ban", SOON, || {
        poke(namespace, THEIRS[0]);
        let warnings = bed.node.cli().status()["warnings"].to_string();
        warnings.contains("module mallory/loop exceeds its budgets again and again").then_some(())
    });
    until("an empty cache", SOON, || (bed.node.cli().chain_status(TENANT, "loop")["ready"] == 0).then_some(()));
    until("the ban's end", SOON, || {
        bed.node.cli().chain_status(TENANT, "loop")["ready"].as_u64().filter(|ready| *ready > 0)
    });
}

/// Of each module so many overruns are borne.
const BORNE: usize = 3;

#[test]
fn batches_that_take_too_long_are_ended_within_their_budget_and_a_quantum() {
    const LIMIT_US: u64 = 20_000;
    // What an FWP has the core for before its client's packet: to come to its first wait, and to rehearse.
    const BEFORE_US: u64 = 200;
    let addresses: Vec<String> = (60..77).map(|last| format!("10.77.0.{last}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let bed = bed_of(&addresses, "");
    // As many modules as it takes for none to be banned, each for the clients of an address.
    let mut manifest = Manifest::of(TENANT);
    for (number, address) in addresses.iter().enumerate() {
        let name = format!("loop-{number}");
        let chain = format!("cpu_per_batch_us = {LIMIT_US}");
        manifest = manifest.module(&name, &build::hostile("looper")).chain(&name, &name, &chain);
        manifest = manifest.ping_rule(&name, &name, "per-client", address);
    }
    bed.node.apply(manifest.text());
    for client in &bed.clients[..BORNE] {
        addresses.iter().for_each(|address| poke(&client.namespace, address));
    }
    let kills = BORNE * addresses.len();
    let fwps = until("end of an instance for each client", SOON, || {
        let fwps = bed.node.cli().get("fwps").into_iter().filter(|fwp| fwp["state"] == "terminated");
        Some(fwps.collect::<Vec<_>>()).filter(|ended| ended.len() == kills)
    });
    let mut had_us: Vec<u64> = fwps.iter().filter_map(|fwp| fwp["counters"]["cpu_us"].as_u64()).collect();
    had_us.sort_unstable();
    let [least, median, most] = [0, kills / 2, kills - 1].map(|at| had_us[at]);
    let late_us = bed.node.cli().status()["preemption_lateness"]["p50_ns"].as_u64().expect("a number") / 1_000;
    println!("{kills} were ended after {least} to {most} us, the median {median}; turns ended {late_us} us late");
    assert!(least >= LIMIT_US, "one was ended after {least} us");
    // The median, as the machine takes the core from some just then.
    let bound_us = LIMIT_US + QUANTUM_US + late_us + BEFORE_US;
    assert!(median <= bound_us, "half of them had more than {median} us, of {bound_us}");
}

#[test]
fn an_fwp_has_no_more_of_a_second_than_its_chain_says() {
    let bed = bed("");
    bed.node.apply(loops(TENANT, THEIRS[0], "cpu_per_second_ms = 100").text());
    poke(&bed.clients[0].namespace, THEIRS[0]);
    until("FWP that loops", SOON, || bed.node.cli().serving_fwps().pop());
    let part = parts_of_a_second(&bed, &[TENANT])[0];
    assert!((0.08..=0.106).contains(&part), "it had {part} of a second, of 0.1");
    assert!(ended(&bed).is_empty(), "{:?}", ended(&bed));
}

#[test]
fn an_fwp_that_is_to_be_ended_for_having_more_of_a_second_is() {
    let bed = bed("");
    bed.node.apply(loops(TENANT, THEIRS[0], "cpu_per_second_ms = 100\nover_budget = \"kill\"").text());
    poke(&bed.clients[0].namespace, THEIRS[0]);
    let reason = until("an end", SOON, || ended(&bed).pop());
    assert_eq!(reason, "it was stopped: it took more of a second than the 100 ms of its chain's cpu_per_second_ms");
}

#[test]
fn all_fwps_of_a_tenant_together_have_no_more_of_a_second_than_the_operator_says() {
    let bed = bed(&format!("[[tenant]]\nname = {TENANT:?}\ncpu_per_second_ms = 200\n"));
    bed.node.apply(loops(TENANT, THEIRS[0], "").text());
    bed.clients.iter().for_each(|client| poke(&client.namespace, THEIRS[0]));
    until("FWPs that loop", SOON, || (bed.node.cli().serving_fwps().len() == 3).then_some(()));
    let part = parts_of_a_second(&bed, &[TENANT])[0];
    assert!((0.16..=0.212).contains(&part), "they had {part} of a second, of 0.2");
}
