//! A chain's next version takes over while the earlier one serves, and no client loses a packet.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pinion_tests::network::bed::{Bed, Client, Device, NODE, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::{flood, pings};
use pinion_tests::until::{SOON, until};
use serde_json::Value;

const REPLACED: &str = "its chain was deleted or replaced";
const LONG: &str = "drain_timeout_ms = 600000";
const CACHED: usize = 4;

/// A manifest whose chain answers pings. Versions differ in their memory limit.
fn version(number: u32, policy: &str, more: &str) -> Manifest {
    Manifest::of(TENANT)
        .module("icmp-echo", &build::sample("icmp-echo"))
        .chain("echo", "icmp-echo", &format!("memory_limit_kib = {}\ncache_min = {CACHED}\n{more}", 2048 * number))
        .ping_rule("ping", "echo", policy, NODE)
}

fn instances(bed: &Bed) -> Vec<Value> {
    bed.node.cli().get("instances")
}

fn id(instance: &Value) -> u64 {
    instance["id"].as_u64().or_else(|| instance["id"].as_str()?.parse().ok()).expect("an instance has a number")
}

fn newest(bed: &Bed) -> u64 {
    instances(bed).iter().map(id).max().expect("there are instances")
}

/// Returns the instances that the client has had, the oldest first.
fn instances_of(bed: &Bed, client: &Client) -> Vec<Value> {
    let mut of_client: Vec<_> =
        instances(bed).into_iter().filter(|instance| instance["client"] == client.address.as_str()).collect();
    of_client.sort_by_key(id);
    of_client
}

/// Pings from the first client for as long as `meanwhile` takes, and fails if a ping is lost.
fn with_pings<T>(bed: &Bed, meanwhile: impl FnOnce() -> T) -> T {
    const PINGS: u64 = 500;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let pings = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                flood(&bed.clients[0].namespace, NODE, PINGS).assert_all(PINGS);
            }
        });
        let result = meanwhile();
        is_over.store(true, Ordering::Relaxed);
        pings.join().expect("no ping is lost");
        result
    })
}

fn is_ready(bed: &Bed, count: usize) -> Option<()> {
    (bed.node.cli().chain_status(TENANT, "echo")["ready"] == count).then_some(())
}

#[test]
fn clients_keep_their_instances_through_an_update_and_new_ones_get_the_new_version() {
    let bed = Bed::new(Device::AfPacket);
    bed.node.apply(version(1, "per-client", LONG).text());
    pings(&bed.clients[0].namespace, 1, NODE).assert_all(1);
    until("cache that is full", SOON, || is_ready(&bed, CACHED));
    let newest_old = newest(&bed);
    with_pings(&bed, || bed.node.apply(version(2, "per-client", LONG).text()));

    pings(&bed.clients[1].namespace, 1, NODE).assert_all(1);
    let new = until("instance of the new client", SOON, || instances_of(&bed, &bed.clients[1]).pop());
    assert!(id(&new) > newest_old, "the new client has instance {} of the old version", id(&new));
    let kept = instances_of(&bed, &bed.clients[0]);
    assert_eq!((kept.len(), &kept[0]["ended_because"]), (1, &Value::Null), "{kept:?}");
    until("end of the old version's instances without a client", SOON, || {
        let (old, served) = (|it: &&Value| id(it) <= newest_old, |it: &Value| id(it) == id(&kept[0]));
        instances(&bed).iter().filter(old).all(|it| served(it) || it["ended_because"] == REPLACED).then_some(())
    });
    assert_eq!(bed.node.cli().chain_status(TENANT, "echo")["failures"], 0);
}

#[test]
fn clients_that_stay_get_the_new_version_after_the_time_to_drain_and_lose_nothing() {
    let bed = Bed::new(Device::AfPacket);
    bed.node.apply(version(1, "per-client", "drain_timeout_ms = 300").text());
    let had = with_pings(&bed, || {
        until("instance of the client", SOON, || (!instances_of(&bed, &bed.clients[0]).is_empty()).then_some(()));
        bed.node.apply(version(2, "per-client", "drain_timeout_ms = 300").text());
        until("end of the old instance", SOON, || {
            let had = instances_of(&bed, &bed.clients[0]);
            (had.len() == 2 && had[0]["ended_because"] == REPLACED).then_some(had)
        })
    });
    assert_eq!(had[1]["ended_because"], Value::Null, "{had:?}");
}

#[test]
fn a_shared_instance_is_replaced_at_once_and_no_packet_is_lost() {
    let bed = Bed::new(Device::AfPacket);
    bed.node.apply(version(1, "shared", LONG).text());
    with_pings(&bed, || {
        let serving = |instance: &Value| {
            instance["ended_because"].is_null() && ["active", "blocked"].iter().any(|it| instance["state"] == *it)
        };
        let old = until("instance that serves", SOON, || instances(&bed).into_iter().find(serving));
        bed.node.apply(version(2, "shared", LONG).text());
        until("end of the old instance", SOON, || {
            let old = instances(&bed).into_iter().find(|instance| instance["id"] == old["id"]);
            old.is_none_or(|old| old["ended_because"] == REPLACED).then_some(())
        });
    });
    assert_eq!(bed.node.cli().chain_status(TENANT, "echo")["drops"], Value::Array(Vec::new()));
}

/// Applies versions 1 and 2 in turns, and goes back to the one before after each tenth: a hundred changes of the version.
fn swap_a_hundred_times(bed: &Bed, policy: &str, more: &str) {
    for swap in 0..100 {
        if swap % 10 == 9 {
            bed.node.cli().run(&["rollout", "undo", "--tenant", TENANT]);
        } else {
            bed.node.apply(version(1 + swap % 2, policy, more).text());
        }
    }
}

#[test]
fn a_hundred_versions_in_a_row_lose_no_packet_of_clients_that_have_an_instance_each() {
    let bed = Bed::new(Device::AfPacket);
    let more = "drain_timeout_ms = 100";
    bed.node.apply(version(2, "per-client", more).text());
    with_pings(&bed, || swap_a_hundred_times(&bed, "per-client", more));
    let chain = bed.node.cli().chain_status(TENANT, "echo");
    assert_eq!((&chain["drops"], &chain["failures"]), (&Value::Array(Vec::new()), &Value::from(0)));
    assert!(instances_of(&bed, &bed.clients[0]).len() > 1, "no instance of the client was replaced");
}

#[test]
fn a_hundred_versions_in_a_row_lose_no_packet_of_clients_that_share_an_instance() {
    let bed = Bed::new(Device::AfPacket);
    bed.node.apply(version(2, "shared", LONG).text());
    with_pings(&bed, || swap_a_hundred_times(&bed, "shared", LONG));
    let chain = bed.node.cli().chain_status(TENANT, "echo");
    assert_eq!((&chain["drops"], &chain["failures"]), (&Value::Array(Vec::new()), &Value::from(0)));
}

#[test]
fn no_instance_ends_when_only_times_and_the_cache_of_a_chain_change() {
    let bed = Bed::new(Device::AfPacket);
    bed.node.apply(version(1, "per-client", LONG).text());
    pings(&bed.clients[0].namespace, 1, NODE).assert_all(1);
    until("cache that is full", SOON, || is_ready(&bed, CACHED));
    let before: Vec<u64> = instances(&bed).iter().map(id).collect();
    let more = "cache_max = 100\nidle_timeout_ms = 400000\nmemory_total_kib = 1000000";
    bed.node.apply(version(1, "per-client", more).text().replace("cache_min = 4", "cache_min = 9").as_str());
    until("cache that has grown", SOON, || is_ready(&bed, 9));
    let after = instances(&bed);
    let goes_on = |id_before: &u64| after.iter().any(|it| id(it) == *id_before && it["ended_because"].is_null());
    assert!(before.iter().all(goes_on), "of {before:?} there are {after:#?}");
}

#[test]
fn an_update_makes_its_own_room_on_a_node_that_is_full() {
    let bed = Bed::with_settings(Device::AfPacket, &[], &format!("[limits]\nfwps_max = {CACHED}\n"));
    bed.node.apply(version(1, "per-client", LONG).text());
    until("cache that is full", SOON, || is_ready(&bed, CACHED));
    let newest_old = newest(&bed);
    bed.node.apply(version(2, "per-client", LONG).text());
    pings(&bed.clients[0].namespace, 1, NODE).assert_all(1);
    let instance = until("instance of the client", SOON, || instances_of(&bed, &bed.clients[0]).pop());
    assert!(id(&instance) > newest_old);
}
