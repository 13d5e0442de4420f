//! What one host with many addresses leaves to its tenant's other clients.

use std::net::Ipv6Addr;

use pinion_tests::network::bed::{Bed, Device, NODE, NODE_V6, TENANT};
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::strangers;
use pinion_tests::until::{SOON, until};

use crate::clients::{assert_each_is_answered, pings_of_new_clients};

const FWPS_MAX: u64 = 64;
/// The tenant has the node to itself, so that this is half of what it can have.
const OF_ONE_PREFIX: u64 = FWPS_MAX / 2;
/// The cache of the chain is the tenant's, too.
const CACHED: u64 = 4;
/// The first of the host's addresses.
const FIRST: u128 = 0xfd88 << 112 | 1;
/// How many of its addresses the host uses.
const ADDRESSES: u128 = 500;

fn addresses() -> impl Iterator<Item = Ipv6Addr> {
    (FIRST..FIRST + ADDRESSES).map(Ipv6Addr::from_bits)
}

/// How many instances the host has.
fn instances_of_host(bed: &Bed) -> u64 {
    let is_of_host = |client: &str| client.parse().is_ok_and(|client: Ipv6Addr| client.to_bits() >> 64 == FIRST >> 64);
    let fwps = bed.node.cli().serving_fwps();
    fwps.iter().filter(|fwp| fwp["client"].as_str().is_some_and(is_of_host)).count() as u64
}

/// How many packets of clients were dropped because their prefix had its part.
fn refused(bed: &Bed) -> u64 {
    let chain = bed.node.cli().chain_status(TENANT, "echo");
    let drops = chain["drops"].as_array().cloned().unwrap_or_default();
    drops.iter().filter(|drop| drop["reason"] == "source-limit").filter_map(|drop| drop["count"].as_u64()).sum()
}

#[test]
fn one_host_that_sends_from_all_addresses_of_its_network_leaves_half_of_the_tenants_instances_to_others() {
    let bed = Bed::with_settings(Device::AfPacket, &[], &format!("[limits]\nfwps_max = {FWPS_MAX}\n"));
    let chain = format!("cache_min = {CACHED}\ncache_max = {CACHED}");
    let manifest = Manifest::of(TENANT).module("echo", &sample("icmp-echo")).chain("echo", "echo", &chain);
    let manifest = manifest.ping_rule("ping", "echo", "per-client", NODE);
    bed.node.apply(manifest.ping_rule("ping-v6", "echo", "per-client", NODE_V6).text());
    // Again and again, so that all clients have proven themselves and keep what they have.
    until("host that has all it can get", SOON, || {
        strangers::ask(&bed, NODE_V6, addresses());
        (instances_of_host(&bed) >= OF_ONE_PREFIX && refused(&bed) > 1_000).then_some(())
    });
    assert_each_is_answered(&pings_of_new_clients(&bed, FWPS_MAX - OF_ONE_PREFIX - CACHED));
    assert_eq!(instances_of_host(&bed), OF_ONE_PREFIX);
    let has = |name: &str| bed.node.cli().resource(TENANT, name)["used"].as_u64();
    assert!(has("instances_active") >= Some(OF_ONE_PREFIX) && has("copied_bytes") > Some(0));
}
