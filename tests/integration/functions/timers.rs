//! Functions that wait for time as well as for packets, on nodes that sleep.
#![forbid(unsafe_code)]

use std::net::UdpSocket;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pinion_tests::machine::load::{CoreWaits, look};
use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::echo::{Echo, echoes};
use pinion_tests::until::until;

/// How long each packet is delayed.
const DELAY: Duration = Duration::from_millis(20);
/// How far a function's clock may be behind when a packet arrives: two steps.
const CLOCK_BEHIND: Duration = Duration::from_micros(200);
/// The most additional delay of all but the slowest few. It is shorter than every timed sleep that could hide a missed deadline. A shared
/// machine stands still at times.
const MORE_MAX: Duration = Duration::from_millis(60);
const SLOW_MAX: usize = 2;

/// FWPs that serve a flow each, and those that wait for one.
const FLOWS: usize = 2000;
const CACHED: usize = 100;
const FIRST_PORT: u16 = 20_000;
const BETWEEN_FLOWS: Duration = Duration::from_micros(500);
/// The period of each FWP's deadlines: all together have some 33 per second.
const PERIOD_MS: u64 = 60_000;
/// The length of one measurement, and how long to wait until the node has no other work.
const WINDOW: Duration = Duration::from_millis(1500);
const QUIET: Duration = Duration::from_secs(60);
/// The most that all threads of the node together may use of one core meanwhile.
const CORE_PERCENT_MAX: f64 = 5.0;

/// Applies a chain for pings with a stage that delays them, and one that answers.
fn apply_delayed_echo(bed: &Bed) {
    let stages =
        format!("{{ module = \"delay\", config = \"{}ms\" }}, {{ module = \"icmp-echo\" }}", DELAY.as_millis());
    let manifest = Manifest::of(TENANT)
        .module("delay", &build::sample("delay"))
        .module("icmp-echo", &build::sample("icmp-echo"))
        .with(format_args!("[[chain]]\nname = \"far\"\nstage = [{stages}]\n"))
        .ping_rule("ping", "far", "per-client", NODE);
    bed.node.apply(manifest.text());
}

fn a_packet_waits_for_its_time_and_hardly_longer(device: Device, settings: &str) {
    let bed = Bed::with_settings(device, &[], settings);
    apply_delayed_echo(&bed);
    // Pauses longer than any thread polls before it sleeps, for a client's first packets and for those after a pause.
    let pauses = [0, 1, 10, 300].map(Duration::from_millis);
    let waits = CoreWaits::of(&bed.node);
    let answers = echoes(&bed.clients[0].namespace, NODE, &waits, pauses.into_iter().cycle().take(40));
    println!("{device:?}: {answers:?}");
    assert!(answers.iter().all(|answer| answer.took + CLOCK_BEHIND >= DELAY), "{answers:?}");
    let is_slow = |answer: &&Echo| answer.took_without_waits() >= DELAY + MORE_MAX;
    assert!(answers.iter().filter(is_slow).count() <= SLOW_MAX, "more than {SLOW_MAX} answers were late: {answers:?}");
}

/// Returns a plan with gateway and MMA on the first core, the worker on the second.
fn two_cores() -> String {
    let (first, second) = pinion_tests::machine::cores::two_cores();
    format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n")
}

/// Returns a plan with all roles on the first core.
fn one_core() -> String {
    let (first, _) = pinion_tests::machine::cores::two_cores();
    format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{first}]\n")
}

#[test]
fn a_packet_waits_for_its_time_and_hardly_longer_on_a_worker_that_sleeps() {
    a_packet_waits_for_its_time_and_hardly_longer(Device::AfPacket, &two_cores());
}

#[test]
fn a_packet_waits_for_its_time_and_hardly_longer_on_a_core_that_sleeps_at_a_device() {
    a_packet_waits_for_its_time_and_hardly_longer(Device::Tap, &one_core());
}

#[test]
fn a_packet_waits_for_its_time_and_hardly_longer_on_a_worker_that_polls() {
    a_packet_waits_for_its_time_and_hardly_longer(Device::AfPacket, &format!("idle = \"busy\"\n{}", two_cores()));
}

/// Returns the times at which a tenant's function saw its clock change, by that clock, in nanoseconds.
fn changes_ns(node: &Node, tenant: &str) -> Vec<u64> {
    let manifest = Manifest::of(tenant).module("watcher", &build::hostile("watcher"));
    node.apply(manifest.chain("watcher", "watcher", "cache_min = 0").text());
    let times = node.cli().run(&["invoke", &format!("{tenant}/watcher"), "--data", ""]);
    times.split_whitespace().map(|time| time.parse().expect("a time")).collect()
}

#[test]
fn a_functions_clock_has_coarse_steps_unless_the_operator_grants_finer_ones() {
    let node = Node::started(
        "[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n[limits]\nclock_step_us = 50\n\
         [[tenant]]\nname = \"trusted\"\nclock_step_us = 1\n",
    );
    let has_steps_of_us = |times: &[u64], us: u64| times.iter().all(|time| time % (us * 1_000) == 0);
    let times = changes_ns(&node, "stranger");
    assert!(times.len() > 10 && has_steps_of_us(&times, 50), "{times:?}");
    let times = changes_ns(&node, "trusted");
    assert!(has_steps_of_us(&times, 1) && !has_steps_of_us(&times, 50), "{times:?}");

    let times = changes_ns(&Node::without_devices(), "stranger");
    assert!(times.len() > 10 && has_steps_of_us(&times, 100), "{times:?}");
}

/// Returns a node with functions that use Rust's own library for time and chance. Each of these chains has an instance of its own.
fn sleepers(chains: &[&str]) -> Node {
    let node = Node::without_devices();
    let manifest = Manifest::of("default").module("sleeper", &build::hostile("sleeper"));
    let chain = |manifest: Manifest, name: &&str| manifest.chain(name, "sleeper", "cache_min = 0");
    node.apply(chains.iter().fold(manifest, chain).text());
    node
}

fn number(node: &Node, chain: &str, order: &str) -> u64 {
    node.cli().run(&["invoke", chain, "--data", order]).trim().parse().expect("a number")
}

#[test]
fn a_function_sees_the_hosts_date_and_sleeps_by_its_standard_library() {
    let node = sleepers(&["sleeper"]);
    let date_ns = || SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_nanos() as u64;
    let before_ns = date_ns();
    let seen_ns = number(&node, "sleeper", "date");
    let behind_ns = 2 * CLOCK_BEHIND.as_nanos() as u64;
    assert!((before_ns - behind_ns..=date_ns() + behind_ns).contains(&seen_ns), "{before_ns} {seen_ns}");
    for ms in [0, 1, 30] {
        let took_ns = number(&node, "sleeper", &format!("sleep {ms}"));
        assert!(took_ns >= ms * 1_000_000, "{took_ns} ns for {ms} ms");
    }
}

#[test]
fn an_instance_that_sleeps_costs_no_core_and_is_ended_in_its_sleep() {
    let node = sleepers(&["sleeper"]);
    let caller = node.cli().output(&["invoke", "sleeper", "--data", "sleep 3600000", "--timeout", "300ms"]);
    assert!(!caller.status.success(), "it has answered");
    let blocked = || node.cli().get("fwps").iter().filter(|fwp| fwp["state"] == "blocked").count();
    assert_eq!(blocked(), 1);
    node.cli().run(&["delete", "chain", "sleeper"]);
    until("end of the instance", QUIET, || (blocked() == 0).then_some(()));
}

#[test]
fn hash_tables_made_during_initialisation_have_a_seed_of_each_instance() {
    let node = sleepers(&["one", "two"]);
    let seeds = ["one", "one", "two"].map(|chain| number(&node, chain, "seed"));
    assert!(seeds[0] == seeds[1] && seeds[0] != seeds[2], "{seeds:?}");
    let log = node.cli().run(&["logs", "-A"]);
    assert!(log.contains("each instance initialises itself"), "{log}");
}

/// Makes so many FWPs serve a flow each, with datagrams from as many ports.
fn serve_flows(bed: &Bed, flows: usize) {
    let client = &bed.clients[0];
    let serving = || bed.node.cli().serving_fwps().len();
    until("FWP for each flow", QUIET, || {
        client.namespace.inside(|| {
            for port in 0..flows {
                let from = (client.address.as_str(), FIRST_PORT + port as u16);
                UdpSocket::bind(from).and_then(|socket| socket.send_to(b"mine", (NODE, 7))).expect("a datagram leaves");
                // No faster than instances are created.
                std::thread::sleep(BETWEEN_FLOWS);
            }
        });
        (serving() == flows).then_some(())
    });
}

#[test]
fn thousands_of_fwps_that_wait_for_time_cost_an_idle_node_next_to_nothing() {
    let bed = Bed::new(Device::AfPacket);
    let manifest = Manifest::of(TENANT).module("timer", &build::hostile("timer"));
    let manifest = manifest.configured_chain("timer", "timer", &PERIOD_MS.to_string()).with(format_args!(
        "cache_min = {CACHED}\ncache_max = {CACHED}\n[[rule]]\nname = \"each\"\npolicy = \"per-flow\"\nchain = \"timer\"\n\
         match = {{ destination = \"{NODE}\", protocol = \"udp\" }}\n"
    ));
    bed.node.apply(manifest.text());
    serve_flows(&bed, FLOWS);
    // The last ones are made when the flows have taken theirs.
    let cached = || bed.node.cli().get("fwps").iter().filter(|fwp| fwp["state"] == "cached").count();
    until("cached FWPs", QUIET, || (cached() == CACHED).then_some(()));
    let resumes = |states: &[&str]| {
        let fwps = bed.node.cli().get("fwps");
        let counted = fwps.iter().filter(|fwp| states.iter().any(|state| fwp["state"] == *state));
        counted.filter_map(|fwp| fwp["counters"]["resumes"].as_u64()).sum::<u64>()
    };
    let serving = || resumes(&["active", "blocked"]);
    until("time in which the node is idle but for deadlines", QUIET, || {
        let before = serving();
        let load = look(&bed.node, WINDOW);
        let turns = serving() - before;
        println!("{FLOWS} FWPs with deadlines, {turns} turns: {load:?}");
        (load.core_percent <= CORE_PERCENT_MAX && turns > 0).then_some(())
    });
    // FWPs without a client wait for one, and for nothing else.
    let cached = resumes(&["cached"]);
    std::thread::sleep(WINDOW);
    assert_eq!(resumes(&["cached"]), cached);
}
