//! Real clients ping through the whole node, over each kind of device that needs no hardware.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use pinion_tests::network::bed::{Bed, Client, Device, NODE, NODE_V6, TENANT, echo};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::{flood, ping, pings};
use pinion_tests::until::{SOON, until};
use serde_json::Value;

const FLOOD_PINGS: u64 = 20_000;

/// Another address of the node, for policies that depend on the destination.
const OTHER: &str = "10.77.0.3";

fn clients_served(bed: &Bed) -> Vec<String> {
    let client = |fwp: &Value| fwp["client"].as_str().map(str::to_owned);
    bed.node.cli().serving_fwps().iter().filter_map(client).collect()
}

fn each_client_is_served_by_an_fwp_of_its_own(device: Device) {
    let bed = Bed::new(device);
    bed.apply_echo("per-client");
    for client in &bed.clients {
        pings(&client.namespace, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
    }
    let fwps = until("three FWPs that serve clients", SOON, || {
        let fwps = bed.node.cli().serving_fwps();
        (fwps.len() == bed.clients.len()).then_some(fwps)
    });
    let mut served: Vec<_> = fwps.iter().map(|fwp| fwp["client"].as_str().unwrap_or_default()).collect();
    served.sort_unstable();
    let addresses: Vec<_> = bed.clients.iter().map(|client| client.address.as_str()).collect();
    assert_eq!(served, addresses);
    let ids: BTreeSet<_> = fwps.iter().map(|fwp| fwp["id"].to_string()).collect();
    assert_eq!(ids.len(), fwps.len(), "FWPs share an id: {fwps:?}");
    for fwp in &fwps {
        let counters = &fwp["counters"];
        let owner = (&fwp["tenant"], &fwp["chain"], &fwp["module"]);
        assert_eq!(owner, (&TENANT.into(), &"echo".into(), &"icmp-echo".into()));
        assert_eq!((&counters["received"], &counters["sent"]), (&3.into(), &3.into()), "{fwp}");
    }
}

fn no_ping_is_lost_of_three_floods_at_once(device: Device) {
    let bed = Bed::new(device);
    bed.apply_echo("per-client");
    bed.assert_floods_are_answered(FLOOD_PINGS);
    assert_eq!(bed.node.cli().serving_fwps().len(), bed.clients.len());
}

fn full_sized_and_ipv6_pings_are_answered(device: Device) {
    let bed = Bed::new(device);
    bed.apply_echo("per-client");
    let Client { namespace, address, address_v6 } = &bed.clients[0];
    pings(namespace, 20, &format!("-i 0.05 -s 1472 -M do {NODE}")).assert_all(20);
    pings(namespace, 20, &format!("-i 0.05 {NODE_V6}")).assert_all(20);
    pings(namespace, 20, &format!("-i 0.05 -s 1452 -M do {NODE_V6}")).assert_all(20);
    flood(namespace, NODE_V6, 2_000).assert_all(2_000);
    let served = until("two clients, one by each address", SOON, || {
        let served: BTreeSet<_> = clients_served(&bed).into_iter().collect();
        (served.len() == 2).then_some(served)
    });
    assert_eq!(served, BTreeSet::from([address.clone(), address_v6.clone()]));
}

macro_rules! on_each_device {
    ($($device:ident $module:ident),*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn each_client_is_served_by_an_fwp_of_its_own() {
                super::each_client_is_served_by_an_fwp_of_its_own(Device::$device);
            }

            #[test]
            fn no_ping_is_lost_of_three_floods_at_once() {
                super::no_ping_is_lost_of_three_floods_at_once(Device::$device);
            }

            #[test]
            fn full_sized_and_ipv6_pings_are_answered() {
                super::full_sized_and_ipv6_pings_are_answered(Device::$device);
            }
        }
    )*};
}

on_each_device!(Tap tap, AfPacket af_packet, AfXdp af_xdp);

#[test]
fn all_clients_share_one_fwp_if_the_rule_says_so() {
    let bed = Bed::new(Device::AfPacket);
    bed.apply_echo("shared");
    for client in &bed.clients {
        pings(&client.namespace, 5, &format!("-i 0.1 {NODE}")).assert_all(5);
    }
    let fwps = bed.node.cli().serving_fwps();
    assert_eq!(fwps.len(), 1, "{fwps:?}");
    assert_eq!((&fwps[0]["client"], &fwps[0]["counters"]["received"]), (&Value::Null, &15.into()));
}

#[test]
fn each_flow_of_a_client_has_an_fwp_of_its_own_if_the_rule_says_so() {
    let bed = Bed::with_addresses(Device::AfPacket, &[OTHER]);
    let manifest = Manifest::of(TENANT)
        .module("icmp-echo", &build::sample("icmp-echo"))
        .chain("echo", "icmp-echo", "")
        .ping_rule("ping", "echo", "per-flow", "10.77.0.0/24");
    bed.node.apply(manifest.text());
    let Client { namespace, address, .. } = &bed.clients[0];
    for _ in 0..2 {
        pings(namespace, 2, &format!("-i 0.2 {NODE}")).assert_all(2);
        pings(namespace, 2, &format!("-i 0.2 {OTHER}")).assert_all(2);
    }
    let flow = |to| format!("icmp {address} -> {to}");
    let flows: BTreeSet<_> = clients_served(&bed).into_iter().collect();
    assert_eq!(flows, BTreeSet::from([flow(NODE), flow(OTHER)]));
    assert_eq!(bed.node.cli().serving_fwps().len(), 2);
}

#[test]
fn a_chain_instance_that_sees_no_packet_for_its_idle_time_ends() {
    let bed = Bed::new(Device::AfPacket);
    let manifest = Manifest::of(TENANT)
        .module("icmp-echo", &build::sample("icmp-echo"))
        .chain("echo", "icmp-echo", "idle_timeout_ms = 200")
        .ping_rule("ping", "echo", "per-client", NODE);
    bed.node.apply(manifest.text());
    pings(&bed.clients[0].namespace, 1, NODE).assert_all(1);
    let ended = until("chain instance that ended", SOON, || {
        bed.node.cli().get("instances").into_iter().find(|instance| instance["state"] == "terminated")
    });
    assert_eq!(ended["client"], bed.clients[0].address.as_str());
    assert_eq!(ended["ended_because"], "nothing came for its chain's idle time");
    pings(&bed.clients[0].namespace, 1, NODE).assert_all(1);
}

#[test]
fn a_chain_of_several_functions_passes_packets_from_one_to_the_next() {
    let bed = Bed::new(Device::AfPacket);
    // An even number of swaps: the echo receives the frame unchanged.
    let stages = "{ module = \"macswap\" }, { module = \"macswap\" }, { module = \"icmp-echo\" }";
    let manifest = Manifest::of(TENANT)
        .module("icmp-echo", &build::sample("icmp-echo"))
        .module("macswap", &build::sample("macswap"))
        .with(format_args!("[[chain]]\nname = \"long\"\nstage = [{stages}]\n"))
        .ping_rule("ping", "long", "per-client", NODE);
    bed.node.apply(manifest.text());
    let summary = flood(&bed.clients[0].namespace, NODE, 1_000);
    summary.assert_all(1_000);
    let expected = ["macswap", "macswap", "icmp-echo"].map(|module| (module.to_owned(), Some(summary.sent)));
    until("all requests, passed on by each function", SOON, || {
        let fwps = bed.node.cli().serving_fwps();
        let passed = fwps.iter().map(|fwp| {
            let module = fwp["module"].as_str().expect("an FWP has a module").to_owned();
            (module, fwp["counters"]["sent"].as_u64())
        });
        passed.eq(expected.iter().cloned()).then_some(())
    });
}

#[test]
fn a_deleted_rule_serves_no_client() {
    let bed = Bed::new(Device::AfPacket);
    bed.node.apply(echo("per-client").text());
    pings(&bed.clients[0].namespace, 2, &format!("-i 0.2 {NODE}")).assert_all(2);
    bed.node.cli().run(&["delete", "rule", "ping", "--tenant", TENANT]);
    let unanswered = until("ping without an answer", SOON, || {
        Some(ping(&bed.clients[0].namespace, &format!("-c 1 -W 0.1 {NODE}"))).filter(|it| it.received == 0)
    });
    assert_eq!(unanswered.sent, 1);
    assert!(bed.node.cli().drops("no-rule") > 0);
}

#[test]
fn packets_that_a_function_creates_go_on_like_received_ones_as_often_as_its_slots_come_back() {
    let bed = Bed::new(Device::AfPacket);
    let stages = "[{ module = \"doubler\" }, { module = \"icmp-echo\" }]";
    let doubled = Manifest::of(TENANT)
        .module("doubler", &build::hostile("doubler"))
        .module("icmp-echo", &build::sample("icmp-echo"))
        .with(format_args!("[[chain]]\nname = \"doubled\"\nstage = {stages}\n"))
        .ping_rule("ping", "doubled", "per-client", NODE);
    bed.node.apply(doubled.text());
    // Several times the slots that the function has for its copies, and slowly enough that they do not wait for one another.
    let count = 24;
    let summary = ping(&bed.clients[0].namespace, &format!("-q -c {count} -i 0.1 -W 2 {NODE}"));
    // `ping` does not wait for the second answer to its last request.
    assert!(summary.received == count && (count - 1..=count).contains(&summary.duplicates), "{summary:?}");
}
