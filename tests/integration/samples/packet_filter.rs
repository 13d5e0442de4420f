//! The sample firewall in front of a service: packets of an allowed client are served, those of any other never reach the service.
#![forbid(unsafe_code)]

use std::fs;

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{Bed, Device, NODE, NODE_V6, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::{ping, pings};
use pinion_tests::until::{SOON, until};
use serde_json::Value;

/// A chain `guarded` of the firewall with this policy, and of the function that answers pings.
fn guarded(policy: &str) -> Manifest {
    let stages = format!("[{{ module = \"packet-filter\", config = {policy:?} }}, {{ module = \"icmp-echo\" }}]");
    Manifest::of(TENANT)
        .module("packet-filter", &build::sample("packet-filter"))
        .module("icmp-echo", &build::sample("icmp-echo"))
        .with(format_args!("[[chain]]\nname = \"guarded\"\nstage = {stages}\n"))
        .ping_rule("ping", "guarded", "per-client", NODE)
        .ping_rule("ping-v6", "guarded", "per-client", NODE_V6)
}

#[test]
fn allowed_clients_are_served_and_others_reach_nothing_behind_the_firewall() {
    let bed = Bed::new(Device::AfPacket);
    let (served, barred) = (&bed.clients[0], &bed.clients[1]);
    let (allowed, allowed_v6) = (&served.address, &served.address_v6);
    let policy = format!("allow icmp from {allowed}\nallow icmp from {allowed_v6}\ndefault deny");
    bed.node.apply(guarded(&policy).text());
    for to in [NODE, NODE_V6] {
        pings(&served.namespace, 3, &format!("-i 0.1 {to}")).assert_all(3);
        assert_eq!(ping(&barred.namespace, &format!("-c 3 -i 0.1 -W 0.5 {to}")).received, 0);
    }
    let of_barred = |fwp: &Value| [&barred.address, &barred.address_v6].iter().any(|own| fwp["client"] == own.as_str());
    let behind = until("FWPs of the client that is barred, two by each address", SOON, || {
        let fwps = bed.node.cli().serving_fwps();
        let fwps: Vec<_> = fwps.into_iter().filter(of_barred).collect();
        (fwps.len() == 4).then_some(fwps)
    });
    for fwp in behind.iter().filter(|fwp| fwp["module"] == "icmp-echo") {
        assert_eq!(fwp["counters"]["received"], 0, "{fwp}");
    }
}

#[test]
fn an_invalid_policy_is_not_applied() {
    let bed = Bed::new(Device::AfPacket);
    let path = bed.node.path("guarded.toml");
    fs::write(&path, guarded("allow everything\ndefault deny").text()).expect("the node's folder is writable");
    let output = bed.node.cli().try_apply(&path);
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("chain demo/guarded: stage 0 (packet-filter): its pinion_init refused"), "{errors}");
    assert!(errors.contains(r#""everything" is not known"#), "{errors}");
    assert!(bed.node.cli().get("chains").is_empty());
}
