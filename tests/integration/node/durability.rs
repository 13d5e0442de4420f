//! State that a node has acknowledged outlives a crash.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{Bed, Device, NODE, NODE_V6, TENANT, echo, turn};
use pinion_tests::product::build;
use pinion_tests::product::cli::Cli;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::ping::{ping, pings};
use serde_json::Value;

fn desired(cli: &Cli) -> [Vec<Value>; 3] {
    ["modules", "chains", "rules"].map(|kind| cli.get(kind))
}

fn pings_are_answered_again_after_a_crash(device: Device) {
    let mut bed = Bed::new(device);
    bed.apply_echo("per-client");
    pings(&bed.clients[0].namespace, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
    let before = desired(&bed.node.cli());
    assert!(before.iter().all(|kind| !kind.is_empty()), "{before:?}");

    bed.node.kill();
    bed.start_node();

    assert_eq!(desired(&bed.node.cli()), before);
    for client in &bed.clients {
        pings(&client.namespace, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
        pings(&client.namespace, 3, &format!("-i 0.2 {NODE_V6}")).assert_all(3);
    }
}

#[test]
fn pings_are_answered_again_after_a_crash_on_tap() {
    pings_are_answered_again_after_a_crash(Device::Tap);
}

#[test]
fn pings_are_answered_again_after_a_crash_on_af_packet() {
    pings_are_answered_again_after_a_crash(Device::AfPacket);
}

#[test]
fn a_module_is_there_after_a_crash_right_after_its_upload() {
    let mut bed = Bed::new(Device::AfPacket);
    let modules = Manifest::of(TENANT).module("icmp-echo", &build::sample("icmp-echo"));
    bed.node.apply(modules.text());
    bed.node.kill();
    bed.start_node();
    let listed = bed.node.cli().get("modules");
    assert_eq!(listed.len(), 1, "{listed:?}");
    let size_bytes = std::fs::metadata(build::sample("icmp-echo")).expect("it was uploaded").len();
    assert_eq!((&listed[0]["name"], &listed[0]["size_bytes"]), (&"icmp-echo".into(), &size_bytes.into()));
    let chains = Manifest::of(TENANT).chain("echo", "icmp-echo", "").ping_rule("ping", "echo", "per-client", NODE);
    bed.node.apply(chains.text());
    pings(&bed.clients[0].namespace, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
}

#[test]
fn each_of_many_acknowledged_changes_is_there_after_a_crash() {
    let _turn = turn();
    let mut node = Node::without_devices();
    node.apply(echo("per-client").text());
    for crash in 1..=3 {
        let rules = 10 * crash;
        for number in 0..rules {
            let rule = Manifest::of(TENANT).ping_rule(
                &format!("rule{number}"),
                "echo",
                "shared",
                &format!("10.{crash}.0.{number}"),
            );
            node.apply(rule.text());
        }
        let before = desired(&node.cli());
        node.kill();
        node.start();
        assert_eq!(desired(&node.cli()), before, "after crash {crash}");
    }
}

#[test]
fn a_deleted_chain_does_not_come_back() {
    let _turn = turn();
    let mut node = Node::without_devices();
    node.apply(echo("per-client").text());
    for (kind, name) in [("rule", "ping"), ("rule", "ping-v6"), ("chain", "echo")] {
        node.cli().run(&["delete", kind, name, "--tenant", TENANT]);
    }
    node.kill();
    node.start();
    let [modules, chains, rules] = desired(&node.cli());
    assert_eq!((modules.len(), chains.len(), rules.len()), (1, 0, 0));
}

/// Returns the compiled modules that the node keeps.
fn artifacts(node: &Node) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(node.path("state/templates")).expect("a node has a folder of templates");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

/// Records in the node's own file that a function of this template ended the node.
fn hold_back(node: &Node, artifact: &Path) {
    let name = artifact.file_name().and_then(|name| name.to_str()).expect("the node's own name");
    let [module, _, wishes, ..] = *name.split('.').collect::<Vec<_>>() else { panic!("{name} is no template's name") };
    let held = serde_json::json!([{
        "tenant": TENANT, "chain": "guard", "module": "guard", "template": format!("{module}.{wishes}"), "boot": "", "at": 0
    }]);
    fs::write(node.path("state/held.json"), held.to_string()).expect("it is the node's own file");
}

#[test]
fn traffic_of_a_chain_that_cannot_be_in_force_is_dropped() {
    let mut bed = Bed::new(Device::AfPacket);
    bed.apply_echo("per-client");
    let before = artifacts(&bed.node);
    let chain = Manifest::of(TENANT).module("guard", &build::sample("packet-filter"));
    let guard = chain.configured_chain("guard", "guard", "default deny").with(format_args!(
        "[[rule]]\nname = \"guard\"\npolicy = \"shared\"\nchain = \"guard\"\npriority = 9\n\
         match = {{ destination = \"{NODE}\" }}\n"
    ));
    bed.node.apply(guard.text());
    let unanswered = |bed: &Bed| ping(&bed.clients[0].namespace, &format!("-c 3 -i 0.2 -W 1 {NODE}"));
    assert_eq!(unanswered(&bed).received, 0, "the guard lets no packet pass");

    bed.node.kill();
    hold_back(&bed.node, artifacts(&bed.node).difference(&before).next().expect("the guard's template"));
    bed.start_node();

    let warnings = bed.node.cli().status()["warnings"].to_string();
    assert!(warnings.contains(&format!("chain {TENANT}/guard is unavailable")), "{warnings}");
    assert_eq!(unanswered(&bed).received, 0, "a packet passes although the guard is unavailable");
    assert!(bed.node.cli().drops("chain-unavailable") >= 3);
    bed.node.cli().run(&["delete", "rule", "guard", "--tenant", TENANT]);
    pings(&bed.clients[0].namespace, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
}

#[test]
fn a_chain_whose_port_is_gone_is_a_warning_and_keeps_nothing_from_being_changed() {
    const WAN: &str = "[[port]]\nname = \"wan\"\ndevice = \"memory1\"\n";
    let mut node = Node::new(&format!("[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n{WAN}"));
    node.start();
    let swap = |tenant: &str, more: &str| {
        Manifest::of(tenant).module("macswap", &build::sample("macswap")).chain("swap", "macswap", more)
    };
    node.apply(swap("first", "egress = \"wan\"").text());
    node.stop();
    let config = fs::read_to_string(node.config()).expect("the node's configuration");
    fs::write(node.config(), config.replace(WAN, "")).expect("the node's folder is writable");
    node.start();
    let warnings = node.cli().status()["warnings"].to_string();
    assert!(warnings.contains("chain first/swap is unavailable: this node has no port wan; it has lan"), "{warnings}");
    node.apply(swap("second", "egress = \"lan\"").text());
    let path = node.path("again.toml");
    fs::write(&path, swap("first", "egress = \"wan\"\ncache_min = 1").text()).expect("the node's folder is writable");
    let refused = node.cli().try_apply(&path);
    assert_eq!(refused.status.code(), Some(2), "{}", errors(&refused));
    node.apply(swap("first", "egress = \"lan\"").text());
    assert!(!node.cli().status()["warnings"].to_string().contains("first/swap"));
}
