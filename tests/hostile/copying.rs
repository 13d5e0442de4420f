//! The MMA, which copies what all functions send.

use std::time::Instant;

use pinion_tests::machine::cores::two_cores;
use pinion_tests::network::bed::{Bed, Device, NODE};
use pinion_tests::product::build::hostile;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::{flood, poke};
use pinion_tests::until::{SOON, until};
use serde_json::Value;

/// The tenant whose functions send all that they can.
const GREEDY: &str = "mallory";
/// The address of its functions.
const THEIRS: &str = "10.77.0.66";
/// Bytes copied for it, after which its attack is under way.
const MANY_BYTES: u64 = 16 << 20;

/// Lets an instance for each client of the tenant send all that it can to a stage that drops it.
fn attack(settings: &str) -> Bed {
    let bed = Bed::with_settings(Device::AfPacket, &[THEIRS], &format!("{}{settings}", one_worker()));
    bed.apply_echo("per-client");
    let stages = "{ module = \"copier\" }, { module = \"copier\", config = \"drop\" }";
    let greedy = Manifest::of(GREEDY).module("copier", &hostile("copier"));
    let greedy = greedy.with(format_args!("[[chain]]\nname = \"flood\"\nstage = [{stages}]\n"));
    bed.node.apply(greedy.ping_rule("ping", "flood", "per-client", THEIRS).text());
    bed.clients.iter().for_each(|client| poke(&client.namespace, THEIRS));
    until("attack that is under way", SOON, || (meter(&bed, "copied_bytes") > MANY_BYTES).then_some(()));
    bed
}

/// Returns a core plan with one worker, as budgets are for each.
fn one_worker() -> String {
    let (first, second) = two_cores();
    format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n")
}

/// Returns the longest time by which a function kept the core beyond its quantum, in microseconds: as when the kernel gave it to another
/// process.
fn late_us(bed: &Bed) -> u64 {
    bed.node.cli().status()["preemption_lateness"]["max_ns"].as_u64().expect("a number") / 1_000
}

/// Returns a number of the tenant's meter.
fn meter(bed: &Bed, key: &str) -> u64 {
    let status = bed.node.cli().status();
    let tenants = status["tenants"].as_array().expect("a list of tenants");
    let found = tenants.iter().find(|entry| entry["tenant"] == GREEDY).expect("the tenant is listed");
    found["meter"][key].as_u64().expect("a number")
}

/// Returns the time for which the tenant's functions themselves had the core, in microseconds.
fn ran_us(bed: &Bed) -> u64 {
    let of_greedy = |fwp: &&Value| fwp["tenant"] == GREEDY;
    bed.node.cli().get("fwps").iter().filter(of_greedy).filter_map(|fwp| fwp["counters"]["cpu_us"].as_u64()).sum()
}

#[test]
fn a_tenant_whose_functions_send_all_they_can_leaves_another_its_packets() {
    let bed = attack("");
    let before = meter(&bed, "copied_bytes");
    flood(&bed.clients[0].namespace, NODE, 500).assert_all(500);
    assert!(meter(&bed, "copied_bytes") > before, "the attack went on");
}

#[test]
fn what_the_mma_copies_is_charged_to_its_sender_and_its_budget_holds_with_it() {
    let bed = attack(&format!("[[tenant]]\nname = \"{GREEDY}\"\ncpu_per_second_ms = 100\n"));
    let (began, before_us) = (Instant::now(), meter(&bed, "cpu_us"));
    let had_us =
        until("budget of two seconds", SOON, || Some(meter(&bed, "cpu_us") - before_us).filter(|us| *us > 200_000));
    let elapsed_us = began.elapsed().as_micros() as u64;
    // A tenth, what may be had at once, and a turn whose copying was charged after it.
    let at_once_us = 30_000 + late_us(&bed);
    assert!(had_us <= elapsed_us / 10 + at_once_us, "{had_us} us of {elapsed_us}");
    let (all_us, ran_us) = (meter(&bed, "cpu_us"), ran_us(&bed));
    assert!(all_us > ran_us + ran_us / 10, "{all_us} us were charged, and functions ran for {ran_us}");
}
