//! Which functions get the core, and for how long: classes, tenants' shares, and budgets. One worker serves all FWPs, unless a test says
//! otherwise, and the misbehaving functions loop for ever.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use pinion_tests::machine::cores::two_cores;
use pinion_tests::machine::load::CoreWaits;
use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{Bed, Device, NODE};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::ping::{flood, pings, poke};
use pinion_tests::until::{SOON, until};
use serde_json::Value;

const THEIRS: [&str; 8] =
    ["10.77.0.60", "10.77.0.61", "10.77.0.62", "10.77.0.63", "10.77.0.64", "10.77.0.65", "10.77.0.66", "10.77.0.67"];
/// The tenant with the misbehaving functions, if there is only one.
const TENANT: &str = "mallory";
/// The quantum of a function's turn, unless a test sets another.
const QUANTUM_US: u64 = 20;

/// Starts a bed whose node has one worker and these further tables in its configuration.
fn bed(tables: &str) -> Bed {
    bed_of(&THEIRS, tables)
}

/// As [`bed`], with these further addresses.
fn bed_of(addresses: &[&str], tables: &str) -> Bed {
    Bed::with_settings(Device::AfPacket, addresses, &format!("{}{tables}", cores()))
}

fn cores() -> String {
    let (first, second) = two_cores();
    format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n")
}

/// Starts a bed whose node has two workers, on a core each; none on a machine with one core.
fn bed_of_two_workers(tables: &str) -> Option<Bed> {
    let (first, second) = two_cores();
    if first == second {
        println!("this machine has one core, and so one worker");
        return None;
    }
    let cores = format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{first}, {second}]\n");
    Some(Bed::with_settings(Device::AfPacket, &THEIRS, &format!("{cores}{tables}")))
}

/// Waits until so many FWPs of a tenant have the cores of both workers.
fn until_on_both_cores(bed: &Bed, tenant: &str, fwps: usize) {
    until("functions on both cores", SOON, || {
        let looping: Vec<_> = bed.node.cli().serving_fwps().into_iter().filter(|fwp| fwp["tenant"] == tenant).collect();
        let cores: BTreeSet<_> = looping.iter().filter_map(|fwp| fwp["worker_core"].as_u64()).collect();
        (looping.len() == fwps && cores.len() == 2).then_some(())
    });
}

/// A tenant's function with an endless loop, for each client that pings an address.
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

/// Returns how long the node's worker has waited for its core since it began.
fn waits(bed: &Bed) -> CoreWaits {
    let (_, second) = two_cores();
    CoreWaits::on_core(&bed.node, second)
}

/// What tenants' FWPs had of the core in a while, by the node's counters.
struct Had {
    /// Of each tenant.
    us: Vec<f64>,
    /// How long the while was, at least and at most: reading the counters takes time.
    elapsed_us: [f64; 2],
    /// The most by which any turn outlasted its quantum, as the kernel had taken the core meanwhile. A turn's time is accounted when it
    /// ends, and made up for in later ones. So the first and the last turn of the while can put a tenant ahead or behind by this much.
    late_us: f64,
    /// How long the worker waited for its core meanwhile: a time that it could give to no function.
    waited_us: f64,
}

impl Had {
    fn in_a_while(bed: &Bed, tenants: &[&str]) -> Self {
        let had = || -> Vec<u64> { tenants.iter().map(|tenant| cpu_us(bed, tenant)).collect() };
        let waits = waits(bed);
        let (before_first, waited) = (Instant::now(), waits.total());
        let (before, after_first) = (had(), Instant::now());
        until("a while", SOON, || (after_first.elapsed() >= Duration::from_secs(2)).then_some(()));
        let at_least_us = after_first.elapsed().as_micros() as f64;
        let after = had();
        let at_most_us = before_first.elapsed().as_micros() as f64;
        let late_ns = bed.node.cli().status()["preemption_lateness"]["max_ns"].as_u64().expect("a number");
        let us = after.iter().zip(before).map(|(after, before)| (after - before) as f64).collect();
        let waited_us = (waits.total() - waited).as_micros() as f64;
        Self { us, elapsed_us: [at_least_us, at_most_us], late_us: late_ns as f64 / 1e3, waited_us }
    }

    /// Asserts that the only tenant had this part of the while, give or take a turn.
    fn assert_part_of_a_second(&self, parts: RangeInclusive<f64>) {
        let [at_least_us, at_most_us] = self.elapsed_us;
        let bounds_us =
            parts.start() * (at_least_us - self.waited_us) - self.late_us..=parts.end() * at_most_us + self.late_us;
        let [had_us] = self.us[..] else { panic!("one tenant is expected: {:?}", self.us) };
        assert!(bounds_us.contains(&had_us), "it had {had_us} us of {:?} us, not {bounds_us:?}", self.elapsed_us);
    }

    /// Asserts that the first of two tenants had this share of what both had, give or take a turn at each end.
    fn assert_share_of_the_first(&self, shares: RangeInclusive<f64>) {
        let [first_us, second_us] = self.us[..] else { panic!("two tenants are expected: {:?}", self.us) };
        let (both_us, edges_us) = (first_us + second_us, 2.0 * self.late_us);
        let bounds_us = shares.start() * both_us - edges_us..=shares.end() * both_us + edges_us;
        assert!(bounds_us.contains(&first_us), "of {both_us} us the first had {first_us} us, not {bounds_us:?}");
    }
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
    let looping = |fwp: &Value| fwp["chain"] == "loop" && fwp["counters"]["preemptions"].as_u64() > Some(0);
    until("all of the loops", SOON, || {
        (bed.node.cli().serving_fwps().into_iter().filter(looping).count() == 24).then_some(())
    });
    let summary = flood(&bed.clients[1].namespace, NODE, 5_000);
    println!("beside 24 loops: {summary:?}");
    summary.assert_all(5_000);
    assert_eq!(bed.node.cli().serving_fwps().into_iter().filter(looping).count(), 24, "some loops have ended");
}

/// Every way of keeping the core that `brute` implements.
const WAYS: [&str; 7] = ["loops", "recurses", "fills", "stores", "calls", "logs", "waits"];

#[test]
fn an_answer_waits_for_no_turn_of_a_looping_function() {
    const QUANTUM_MS: u64 = 10;
    let bed = Bed::with_settings(Device::AfPacket, &THEIRS, &format!("quantum_us = {QUANTUM_MS}000\n{}", cores()));
    bed.apply_echo("per-client");
    for (number, address) in THEIRS[..2].iter().enumerate() {
        bed.node.apply(loops(&format!("loops-{number}"), address, "").text());
        poke(&bed.clients[0].namespace, address);
    }
    let looping = || (0..2).all(|number| cpu_us(&bed, &format!("loops-{number}")) > 0);
    until("two functions that loop", SOON, || looping().then_some(()));
    let summary = pings(&bed.clients[1].namespace, 300, &format!("-i 0.013 {NODE}"));
    summary.assert_all(300);
    println!("{summary:?}");
    // A request waits for the rest of one turn. If its answer waited for another's turn, each would take a quantum at least.
    let min_ms = summary.min_ms.expect("all were answered");
    assert!(min_ms < QUANTUM_MS as f64, "no answer came within {min_ms} ms, beside quanta of {QUANTUM_MS} ms");
}

/// How many times as long as that of a plain loop, or as a quantum if that is longer, the mean turn of a function that never waits may be.
/// What the kernel gives to other programs in the middle of a turn counts as the turn's, and is left out here. A function that can't be
/// interrupted has turns of thousands of quanta; that a plain loop can be is what the tests above hold.
const MEAN_TURN_TIMES_MAX: u64 = 10;

#[test]
fn however_functions_keep_the_core_they_lose_it_after_some_quanta_and_others_pings_are_answered() {
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
    println!("beside {WAYS:?}: {summary:?}");
    summary.assert_all(5_000);
    let serving: Vec<Value> = serving().collect();
    let waited_us = waits(&bed).total().as_micros() as u64;
    let had_us = |fwp: &Value| fwp["counters"]["cpu_us"].as_u64().expect("a number");
    let mean_turn_us = |fwp: &Value| had_us(fwp) / turns(fwp).expect("a number");
    let loops_us = serving.iter().filter(|fwp| fwp["tenant"] == "loops").map(mean_turn_us).max().expect("loops");
    let mean_turn_us_max = MEAN_TURN_TIMES_MAX * loops_us.max(QUANTUM_US);
    for fwp in &serving {
        let most_us = mean_turn_us_max * turns(fwp).expect("a number") + waited_us;
        assert!(
            had_us(fwp) <= most_us,
            "more than {mean_turn_us_max} us in a mean turn, and {waited_us} in all: {fwp}"
        );
    }
    assert_eq!(serving.len(), 21, "some have ended");
}

#[test]
fn tenants_share_a_core_by_their_weights_however_many_fwps_they_have() {
    let bed = bed("[[tenant]]\nname = \"heavy\"\nweight = 3\n");
    bed.node.apply(loops("heavy", THEIRS[0], "").text());
    bed.node.apply(loops("light", THEIRS[1], "").text());
    poke(&bed.clients[0].namespace, THEIRS[0]);
    bed.clients.iter().for_each(|client| poke(&client.namespace, THEIRS[1]));
    until("FWPs that loop", SOON, || (bed.node.cli().serving_fwps().len() == 4).then_some(()));
    Had::in_a_while(&bed, &["heavy", "light"]).assert_share_of_the_first(0.73..=0.77);
    let chain = bed.node.cli().chain_status("light", "loop");
    assert_eq!(chain["meter"]["activations"], 3, "{chain}");
    // Each was preempted many times, got the core each time, and waited for the others.
    let often = |value: &Value| value.as_u64() > Some(1_000);
    let status = until("a thousand preemptions of each", SOON, || {
        let status = bed.node.cli().status();
        let tenants = status["tenants"].as_array().expect("a list");
        let all = tenants.iter().all(|tenant| often(&tenant["meter"]["preemptions"]));
        let fwps = bed.node.cli().serving_fwps();
        (all && fwps.iter().all(|fwp| often(&fwp["run_queue_wait"]["count"]))).then_some(status)
    });
    for tenant in status["tenants"].as_array().expect("a list") {
        println!("{tenant}");
        let meter = |name: &str| tenant["meter"][name].as_u64().expect("a number");
        assert!(meter("cpu_us") > 100_000 && meter("copied_bytes") > 0, "{tenant}");
        assert!(tenant["meter"]["run_queue_wait"]["p99_ns"].as_u64() > Some(10_000), "{tenant}");
    }
    for fwp in bed.node.cli().serving_fwps() {
        assert!(fwp["run_queue_wait"]["p99_ns"].as_u64() > Some(10_000), "{fwp}");
    }
}

#[test]
fn another_weight_of_a_tenant_holds_for_functions_that_run() {
    let bed = bed("");
    for (tenant, address) in ["first", "second"].into_iter().zip(THEIRS) {
        bed.node.apply(loops(tenant, address, "").text());
        poke(&bed.clients[0].namespace, address);
    }
    let serving = || {
        let ids = bed.node.cli().serving_fwps().into_iter().map(|fwp| fwp["id"].to_string());
        ids.collect::<BTreeSet<_>>()
    };
    until("FWPs that loop", SOON, || (serving().len() == 2).then_some(()));
    let before = serving();
    Had::in_a_while(&bed, &["first", "second"]).assert_share_of_the_first(0.48..=0.52);
    bed.node.apply("version = \"pinion.v1\"\n[[tenant]]\nname = \"first\"\nweight = 3\n");
    Had::in_a_while(&bed, &["first", "second"]).assert_share_of_the_first(0.73..=0.77);
    bed.node.cli().run(&["describe", "tenant", "first"]);
    bed.node.apply("version = \"pinion.v1\"\n[[tenant]]\nname = \"first\"\ncpu_per_second_ms = 100\n");
    Had::in_a_while(&bed, &["first"]).assert_part_of_a_second(0.06..=0.13);
    assert_eq!(serving(), before, "they are the same instances");
}

#[test]
fn a_tenant_with_functions_on_two_cores_leaves_one_of_them_to_another() {
    let Some(bed) = bed_of_two_workers("") else { return };
    bed.node.apply(loops("wide", THEIRS[0], "").text());
    bed.clients.iter().for_each(|client| poke(&client.namespace, THEIRS[0]));
    until_on_both_cores(&bed, "wide", 3);
    bed.node.apply(loops("narrow", THEIRS[1], "").text());
    poke(&bed.clients[0].namespace, THEIRS[1]);
    until("FWPs that loop", SOON, || (bed.node.cli().serving_fwps().len() == 4).then_some(()));
    // Of the core that they share the first gets nineteen parts in twenty, and would get half if only that core counted. The first core has
    // other work, too.
    Had::in_a_while(&bed, &["narrow", "wide"]).assert_share_of_the_first(0.38..=0.53);
}

#[test]
fn functions_of_a_tenant_on_two_cores_have_no_more_of_a_second_together_than_the_operator_says() {
    let tables = format!("[[tenant]]\nname = {TENANT:?}\ncpu_per_second_ms = 200\n");
    let Some(bed) = bed_of_two_workers(&tables) else { return };
    bed.node.apply(loops(TENANT, THEIRS[0], "").text());
    bed.clients.iter().for_each(|client| poke(&client.namespace, THEIRS[0]));
    until_on_both_cores(&bed, TENANT, 3);
    // Each worker learns within 10 ms what the tenant has had of the other.
    Had::in_a_while(&bed, &[TENANT]).assert_part_of_a_second(0.14..=0.25);
}

#[test]
fn a_class_above_leaves_those_below_a_twentieth() {
    let bed = bed("[[tenant]]\nname = \"first\"\nclass_max = \"latency\"\n");
    bed.node.apply(loops("first", THEIRS[0], "class = \"latency\"").text());
    bed.node.apply(loops("second", THEIRS[1], "").text());
    THEIRS[..2].iter().for_each(|address| poke(&bed.clients[0].namespace, address));
    until("FWPs that loop", SOON, || (bed.node.cli().serving_fwps().len() == 2).then_some(()));
    // The second has 0.04 to 0.06 of what the first has.
    Had::in_a_while(&bed, &["first", "second"]).assert_share_of_the_first(1.0 / 1.06..=1.0 / 1.04);
}

#[test]
fn a_class_that_the_operator_does_not_grant_is_refused() {
    let bed = bed(
        "[[tenant]]\nname = \"ops\"\nclass_max = \"system\"\n[[tenant]]\nname = \"soon\"\nclass_max = \"latency\"\n\
         [[tenant]]\nname = \"weighty\"\nweight = 9\n",
    );
    // A tenant's rules may not match another's address, so each tenant has its own.
    let tenants = [TENANT, "ops", "soon", "weighty"];
    let apply = |tenant: &str, class: &str| {
        let path = bed.node.path("class.toml");
        let address = THEIRS[tenants.iter().position(|other| *other == tenant).expect("one of the tenants")];
        fs::write(&path, loops(tenant, address, &format!("class = {class:?}")).text())
            .expect("the node's folder is writable");
        let output = bed.node.cli().try_apply(&path);
        (output.status.code(), errors(&output))
    };
    // A tenant without an entry, or without a class in it, has the lowest class.
    for (tenant, class, class_max) in [
        (TENANT, "system", "throughput"),
        (TENANT, "latency", "throughput"),
        ("weighty", "latency", "throughput"),
        ("soon", "system", "latency"),
    ] {
        let (status, message) = apply(tenant, class);
        assert_eq!(status, Some(2), "{message}");
        let expected = format!(
            "chain {tenant}/loop: class is {class}, and the highest that the operator grants the tenant is {class_max}"
        );
        assert!(message.contains(&expected), "{message}");
    }
    for (tenant, class) in [(TENANT, "throughput"), ("soon", "latency"), ("soon", "throughput"), ("ops", "system")] {
        assert_eq!(apply(tenant, class), (Some(0), String::new()), "{tenant}");
    }
}

#[test]
fn a_class_that_is_no_longer_granted_is_a_warning_and_keeps_nothing_from_being_changed() {
    const PORT: &str = "[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n";
    let mut node = Node::new(&format!("{PORT}[[tenant]]\nname = \"soon\"\nclass_max = \"latency\"\n"));
    node.start();
    let asking = |more: &str| loops("soon", NODE, &format!("class = \"latency\"\n{more}"));
    node.apply(asking("").text());
    let warnings = |node: &Node| node.cli().status()["warnings"].to_string();
    assert!(!warnings(&node).contains("loop"), "{}", warnings(&node));

    node.apply("version = \"pinion.v1\"\n[[tenant]]\nname = \"soon\"\n");
    let differs = "tenant soon has other terms than in the node's configuration (class_max)";
    assert!(warnings(&node).contains(differs), "{}", warnings(&node));
    let expected =
        "chain soon/loop has the class throughput and not latency, which its tenant is not granted: grant it";
    assert!(warnings(&node).contains(expected), "{}", warnings(&node));
    node.stop();
    node.start();
    assert!(warnings(&node).contains(expected), "{}", warnings(&node));
    assert_eq!(node.cli().chain_status("soon", "loop")["last_failure"], Value::Null);
    // Other tenants' chains and this tenant's other chains can be changed; the chain itself only to a granted class.
    node.apply(loops("other", "10.77.0.60", "").text());
    node.apply(asking("").text());
    let path = node.path("more.toml");
    fs::write(&path, asking("cache_min = 2\n").text()).expect("the node's folder is writable");
    let refused = node.cli().try_apply(&path);
    assert_eq!(refused.status.code(), Some(2), "{}", errors(&refused));
    node.apply(loops("soon", NODE, "cache_min = 2").text());
    assert!(!warnings(&node).contains("soon/loop"), "{}", warnings(&node));
}

#[test]
fn a_batch_over_budget_ends_its_instance_and_repeated_ones_ban_the_module() {
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

/// So many overruns of a module are tolerated.
const BORNE: usize = 3;

/// The most quanta for which a batch goes on beyond its limit.
const QUANTA_BEYOND_LIMIT_MAX: u64 = 10;

#[test]
fn batches_that_take_too_long_are_ended_within_some_quanta_of_their_budget() {
    const LIMIT_US: u64 = 20_000;
    // An FWP's time on the core before its client's packet: its way to its first wait, and the warm-up.
    const BEFORE_US: u64 = 200;
    let addresses: Vec<String> = (60..77).map(|last| format!("10.77.0.{last}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let bed = bed_of(&addresses, "");
    // Enough modules that none is banned, each for the clients of an address.
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
    println!("{kills} were ended after {least} to {most} us, the median {median}");
    assert!(least >= LIMIT_US, "one was ended after {least} us");
    // The minimum, as the kernel may take the core from any of them in its last turn.
    let bound_us = LIMIT_US + QUANTA_BEYOND_LIMIT_MAX * QUANTUM_US + BEFORE_US;
    assert!(least <= bound_us, "each had more than {bound_us} us: the least {least} us");
}

#[test]
fn an_fwp_has_no_more_of_a_second_than_its_chain_says() {
    let bed = bed("");
    bed.node.apply(loops(TENANT, THEIRS[0], "cpu_per_second_ms = 100").text());
    poke(&bed.clients[0].namespace, THEIRS[0]);
    until("FWP that loops", SOON, || bed.node.cli().serving_fwps().pop());
    Had::in_a_while(&bed, &[TENANT]).assert_part_of_a_second(0.08..=0.106);
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
    Had::in_a_while(&bed, &[TENANT]).assert_part_of_a_second(0.16..=0.212);
}
