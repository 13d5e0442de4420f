//! A chain's next version takes over while the earlier one serves, and no client loses a packet.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pinion_tests::network::bed::{Bed, Client, Device, NODE, TENANT};
use pinion_tests::network::inline::Inline;
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::iperf::{Moved, assert_tcp_flows, iperf};
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
fn swap_a_hundred_times(node: &Node, version: impl Fn(u32) -> Manifest) {
    for swap in 0..100 {
        if swap % 10 == 9 {
            node.cli().run(&["rollout", "undo", "--tenant", TENANT]);
        } else {
            node.apply(version(1 + swap % 2).text());
        }
    }
}

/// A manifest whose chains lead between two networks, a shared instance for each direction. Versions differ in their memory limit.
fn between_networks(number: u32) -> Manifest {
    let stages = "[{ module = \"macswap\" }, { module = \"macswap\" }]";
    let mut manifest = Manifest::of(TENANT).module("macswap", &build::sample("macswap"));
    for (from, to) in [("lan", "wan"), ("wan", "lan")] {
        manifest = manifest.with(format_args!(
            "[[chain]]\nname = \"to-{to}\"\nstage = {stages}\negress = \"{to}\"\nmemory_limit_kib = {}\n{LONG}\n\
             [[rule]]\nname = \"from-{from}\"\npolicy = \"shared\"\nchain = \"to-{to}\"\nmatch = {{ port = \"{from}\" }}\n",
            2048 * number
        ));
    }
    manifest
}

#[test]
fn a_hundred_versions_in_a_row_lose_no_packet_of_clients_that_have_an_instance_each() {
    let bed = Bed::new(Device::AfPacket);
    let more = "drain_timeout_ms = 100";
    bed.node.apply(version(2, "per-client", more).text());
    with_pings(&bed, || swap_a_hundred_times(&bed.node, |number| version(number, "per-client", more)));
    let chain = bed.node.cli().chain_status(TENANT, "echo");
    assert_eq!((&chain["drops"], &chain["failures"]), (&Value::Array(Vec::new()), &Value::from(0)));
    assert!(instances_of(&bed, &bed.clients[0]).len() > 1, "no instance of the client was replaced");
}

#[test]
fn a_hundred_versions_in_a_row_lose_no_packet_of_clients_that_share_an_instance() {
    let bed = Bed::new(Device::AfPacket);
    bed.node.apply(version(2, "shared", LONG).text());
    with_pings(&bed, || swap_a_hundred_times(&bed.node, |number| version(number, "shared", LONG)));
    let chain = bed.node.cli().chain_status(TENANT, "echo");
    assert_eq!((&chain["drops"], &chain["failures"]), (&Value::Array(Vec::new()), &Value::from(0)));
}

#[test]
fn a_hundred_versions_in_a_row_lose_nothing_of_datagrams_and_connections_between_two_networks() {
    const DATAGRAMS: u64 = 2_000;
    // What a socket holds at most when it is closed, which no kernel counts: each datagram takes 768 of its 212,992 bytes at least.
    const LEFT_IN_SOCKET: u64 = 212_992 / 768;
    let inline = Inline::new(Device::AfPacket);
    inline.node.apply(between_networks(2).text());
    ["to-wan", "to-lan"].into_iter().for_each(|chain| inline.node.await_instance(TENANT, chain));
    let (left, right) = (&inline.left, &inline.right);
    let words = format!("--udp --bitrate 16M --length 1000 --blockcount {DATAGRAMS}");
    let is_over = AtomicBool::new(false);
    let moved: Vec<Moved> = thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut moved = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                moved.push(iperf(&left.namespace, &right.namespace, &right.address, &words));
                assert_tcp_flows(&right.namespace, &left.namespace, &left.address_v6, "");
            }
            moved
        });
        swap_a_hundred_times(&inline.node, between_networks);
        is_over.store(true, Ordering::Relaxed);
        traffic.join().expect("all came through")
    });
    // A connection sends as fast as it can, so stages may be full. No other frame is lost.
    let mut full = 0;
    for chain in ["to-wan", "to-lan"] {
        let chain = inline.node.cli().chain_status(TENANT, chain);
        assert_eq!(chain["failures"], 0);
        for drop in chain["drops"].as_array().expect("a list of drops") {
            assert_eq!(drop["reason"], "no-slot", "{chain}");
            full += drop["count"].as_u64().expect("a count");
        }
    }
    let lost: u64 = moved.iter().map(|moved| moved.lost).sum();
    // The device's count of missed frames is read once a second.
    until("count of all that is missing", SOON, || {
        let is_at_port = |place: &str| place.starts_with("port ") && !place.contains("not-for-us");
        let drops = inline.drops();
        let at_ports: u64 = drops.iter().filter(|(place, _)| is_at_port(place)).map(|(_, count)| count).sum();
        let counted = full + at_ports + inline.dropped_by_kernels();
        (lost <= counted + LEFT_IN_SOCKET * moved.len() as u64).then_some(())
    });
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
