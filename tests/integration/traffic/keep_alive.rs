//! Functions that remember flows and announce it: the chain's idle timeout does not end their instances, the operator's maximum does.
#![forbid(unsafe_code)]

use std::time::Duration;

use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::ping;
use pinion_tests::until::{SOON, until};
use serde_json::Value;

/// The address of a chain without a firewall.
const OPEN: &str = "10.77.0.3";
const IDLE: &str = "idle_timeout_ms = 200\ncache_min = 0";
const IDLE_END: &str = "nothing came for its chain's idle time";

/// A chain `guarded` of a firewall that remembers each ping for so many seconds, and of the function that answers pings.
fn guarded(seconds: u32) -> Manifest {
    let config = format!(
        "inside = [\"10.77.0.0/24\"]\nidle = {{ opening_s = {seconds} }}\n[[rule]]\naction = \"allow\"\ndirection = \"out\"\n"
    );
    Manifest::of(TENANT)
        .module("icmp-echo", &build::sample("icmp-echo"))
        .module("firewall", &build::sample("firewall"))
        .with(format_args!(
            "[[chain]]\nname = \"guarded\"\nstage = [{{ module = \"firewall\", config = {config:?} }}, {{ module = \"icmp-echo\" }}]\n\
             {IDLE}\n"
        ))
        .ping_rule("guarded", "guarded", "per-client", NODE)
}

/// Returns the chain's instances that are in this state.
fn instances(bed: &Bed, chain: &str, state: &str) -> Vec<Value> {
    let is_such = |instance: &Value| instance["chain"] == chain && instance["state"] == state;
    bed.node.cli().get("instances").into_iter().filter(is_such).collect()
}

#[track_caller]
fn until_ended(bed: &Bed, chain: &str, limit: Duration) -> Value {
    until(&format!("instance of {chain} that ended"), limit, || instances(bed, chain, "terminated").into_iter().next())
}

#[test]
fn an_instance_outlives_its_chains_idle_time_while_it_remembers_a_flow_and_ends_afterwards() {
    let bed = Bed::with_addresses(Device::AfPacket, &[OPEN]);
    let manifest = guarded(10).chain("open", "icmp-echo", IDLE).ping_rule("open", "open", "per-client", OPEN);
    bed.node.apply(manifest.text());
    let client = &bed.clients[0].namespace;
    ping(client, &format!("-c 1 {OPEN}")).assert_all(1);
    ping(client, &format!("-c 1 {NODE}")).assert_all(1);
    // When it ended, the instance with nothing to remember had been idle no longer than the other one.
    assert_eq!(until_ended(&bed, "open", SOON)["ended_because"], IDLE_END);
    ping(client, &format!("-c 1 {OPEN}")).assert_all(1);
    until("second instance of open that ended", SOON, || {
        (instances(&bed, "open", "terminated").len() == 2).then_some(())
    });
    assert_eq!(instances(&bed, "guarded", "terminated"), [] as [Value; 0], "it remembers a ping still");
    assert_eq!(until_ended(&bed, "guarded", 4 * SOON)["ended_because"], IDLE_END);
    ping(client, &format!("-c 1 {NODE}")).assert_all(1);
}

#[test]
fn no_instance_stays_longer_without_a_packet_than_the_operator_allows() {
    let bed = Bed::with_settings(Device::AfPacket, &[], "[limits]\nkeep_alive_max_s = 1\n");
    bed.node.apply(guarded(3600).text());
    ping(&bed.clients[0].namespace, &format!("-c 1 {NODE}")).assert_all(1);
    assert_eq!(until_ended(&bed, "guarded", SOON)["ended_because"], IDLE_END);
}

#[test]
fn without_a_free_fwp_an_idle_instance_ends_for_another_client_despite_keep_alive() {
    let bed = Bed::with_settings(Device::AfPacket, &[], "[limits]\nfwps_max = 2\n");
    bed.node.apply(guarded(3600).text());
    // A client with one packet only would lose its instance sooner.
    ping(&bed.clients[0].namespace, &format!("-c 2 -i 0.1 {NODE}")).assert_all(2);
    // The next client waits until the first instance has been idle for its timeout, and is served then.
    let summary = ping(&bed.clients[1].namespace, &format!("-c 50 -i 0.1 -W 1 {NODE}"));
    assert!(summary.received > 0, "{summary:?}");
    let ended = until_ended(&bed, "guarded", SOON);
    assert_eq!(
        (&ended["client"], &ended["ended_because"]),
        (&bed.clients[0].address.as_str().into(), &IDLE_END.into())
    );
}
