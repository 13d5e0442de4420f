//! The node's FWPs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::ping;
use pinion_tests::traffic::strangers;
use pinion_tests::until::{SOON, until};

use crate::clients::{
    address, assert_each_is_answered, not_served_in_time, pings_again, pings_of_new_clients, prove_themselves,
};

/// The tenant that wants all that it can get.
const GREEDY: &str = "mallory";
/// The address of its functions.
const THEIRS: &str = "10.77.0.66";
const FWPS_MAX: u64 = 64;
/// What each of two tenants is guaranteed of them.
const GUARANTEED: u64 = FWPS_MAX / 4;
/// The first address of clients that are made up to fill the node, 10.100.0.0, and how many there are at once.
const FIRST_OF_FILLERS: u32 = 0x0a64_0000;
const FILLERS_AT_ONCE: u32 = 500;

fn bed() -> Bed {
    Bed::with_settings(Device::AfPacket, &[THEIRS], &format!("[limits]\nfwps_max = {FWPS_MAX}\n"))
}

/// Returns the instances of so many of the new clients, by address.
fn instances_of_clients(bed: &Bed, count: u64) -> BTreeMap<String, u64> {
    let clients: BTreeSet<String> = (0..count).map(address).collect();
    // One that has just got its client may be listed without it.
    let serving = bed.node.cli().serving_fwps().into_iter().filter_map(|fwp| {
        Some((fwp["client"].as_str()?.to_owned(), fwp["chain_instance"].as_u64().expect("a number")))
    });
    serving.filter(|(client, _)| clients.contains(client)).collect()
}

/// Returns so many addresses that no client has.
fn made_up(count: u32) -> impl Iterator<Item = Ipv4Addr> {
    (0..count).map(|number| Ipv4Addr::from(0x0a63_0000 + number))
}

/// Makes up clients of a tenant at this address until it has so many FWPs. Of those made up at one moment some may find no instance in time.
fn fill(bed: &Bed, to: &str, tenant: &str, fwps: u64) {
    let mut first = FIRST_OF_FILLERS;
    until("tenant that has all it can get", SOON, || {
        let has = count(bed, tenant, "fwps");
        if has != fwps {
            strangers::ask(bed, to, (first..first + FILLERS_AT_ONCE).map(Ipv4Addr::from));
            first += FILLERS_AT_ONCE;
        }
        (has == fwps).then_some(())
    });
}

/// Returns a count of a tenant from the node's status.
fn count(bed: &Bed, tenant: &str, key: &str) -> u64 {
    let status = bed.node.cli().status();
    let tenants = status["tenants"].as_array().expect("a list of tenants");
    let found = tenants.iter().find(|entry| entry["tenant"] == tenant).expect("the tenant is listed");
    found[key].as_u64().expect("a number")
}

/// Returns a manifest of many chains, each of which wants instances to be ready.
fn many_chains(chains: u32, cache_min: u32) -> Manifest {
    let module = Manifest::of(GREEDY).module("echo", &sample("icmp-echo"));
    (0..chains).fold(module, |manifest, number| {
        manifest.chain(&format!("c{number}"), "echo", &format!("cache_min = {cache_min}"))
    })
}

#[test]
fn a_tenant_whose_caches_fill_the_node_leaves_one_that_comes_later_its_share() {
    let bed = bed();
    bed.node.apply(many_chains(100, 4).text());
    until("node without a free FWP", SOON, || (count(&bed, GREEDY, "fwps") == FWPS_MAX).then_some(()));
    bed.apply_echo("per-client");
    assert_eq!([TENANT, GREEDY].map(|tenant| count(&bed, tenant, "fwps_guaranteed")), [GUARANTEED; 2]);
    assert_each_is_answered(&pings_of_new_clients(&bed, GUARANTEED));
    assert!(count(&bed, GREEDY, "fwps_refused") > 0);
    let fwps = bed.node.cli().resource(GREEDY, "fwps");
    assert_eq!(fwps["guaranteed"], GUARANTEED);
    assert!(fwps["refused"].as_u64() > Some(0) && fwps["used"].as_u64() > Some(GUARANTEED), "{fwps}");
    let has = |name: &str| bed.node.cli().resource(GREEDY, name)["used"].as_u64();
    assert_eq!(has("instances_active"), Some(0));
    assert!(has("instances_cached") > Some(GUARANTEED) && has("preparing_us") > Some(0));
}

#[test]
fn clients_that_are_made_up_for_one_tenant_leave_the_clients_of_another_its_share() {
    let bed = bed();
    bed.apply_echo("per-client");
    let greedy = Manifest::of(GREEDY).module("echo", &sample("icmp-echo")).chain("echo", "echo", "");
    bed.node.apply(greedy.ping_rule("ping", "echo", "per-client", THEIRS).text());
    let at_most = FWPS_MAX - GUARANTEED;
    fill(&bed, THEIRS, GREEDY, at_most);
    assert_each_is_answered(&pings_of_new_clients(&bed, GUARANTEED));
    assert!(count(&bed, GREEDY, "fwps") <= at_most);
}

#[test]
fn clients_that_are_made_up_make_room_for_real_ones_of_their_own_tenant() {
    let bed = bed();
    bed.apply_echo("per-client");
    fill(&bed, NODE, TENANT, FWPS_MAX);
    assert_eq!(not_served_in_time(&bed, 32), [""; 0]);
    // They prove themselves by a second packet; one that was too slow has another instance since then, and may have waited for it in vain.
    prove_themselves(&bed, 32);
    let before = instances_of_clients(&bed, 32);
    assert_eq!(before.len(), 32);
    let refused = count(&bed, TENANT, "fwps_refused");
    strangers::ask(&bed, NODE, made_up(4_000));
    until("clients that wait for room", SOON, || (count(&bed, TENANT, "fwps_refused") > refused).then_some(()));
    assert_each_is_answered(&pings_again(&bed, 32));
    assert_eq!(instances_of_clients(&bed, 32), before, "a client that sent two packets has lost its instance");
}

#[test]
fn clients_that_are_made_up_for_a_tenant_make_room_for_those_of_one_that_comes_later() {
    let bed = bed();
    let greedy = Manifest::of(GREEDY).module("echo", &sample("icmp-echo")).chain("echo", "echo", "");
    bed.node.apply(greedy.ping_rule("ping", "echo", "per-client", THEIRS).text());
    fill(&bed, THEIRS, GREEDY, FWPS_MAX);
    bed.apply_echo("per-client");
    assert_eq!(not_served_in_time(&bed, GUARANTEED), [""; 0]);
}

#[test]
fn a_chain_that_a_client_waits_for_gets_the_place_of_a_cached_instance_that_no_client_uses() {
    let bed = bed();
    bed.node.apply(many_chains(FWPS_MAX as u32, 1).text());
    until("node without a free FWP", SOON, || (count(&bed, GREEDY, "fwps") == FWPS_MAX).then_some(()));
    let late = Manifest::of(GREEDY).module("echo", &sample("icmp-echo")).chain("late", "echo", "");
    bed.node.apply(late.ping_rule("ping", "late", "shared", THEIRS).text());
    let summary = ping(&bed.clients[0].namespace, &format!("-c 10 -i 0.2 -W 5 {THEIRS}"));
    assert!(summary.received > 0, "{summary:?}");
}
