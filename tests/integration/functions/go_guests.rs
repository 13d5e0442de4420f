//! Functions in Go: the sample answers pings, and Go's own library has time, chance, files and memory as everywhere.
#![forbid(unsafe_code)]

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::until::{SOON, until};

fn answer(node: &Node, chain: &str, order: &str) -> String {
    node.cli().run(&["invoke", chain, "--data", order]).trim().to_owned()
}

#[test]
fn a_function_in_go_answers_the_pings_of_each_client() {
    let bed = Bed::new(Device::AfPacket);
    let manifest = Manifest::of(TENANT)
        .module("icmp-echo-go", &build::sample("icmp-echo-go"))
        .chain("echo", "icmp-echo-go", "")
        .ping_rule("ping", "echo", "per-client", NODE);
    bed.node.apply(manifest.text());
    bed.assert_floods_are_answered(500);
    assert_eq!(bed.node.cli().chain_status(TENANT, "echo")["failures"], 0);
}

// One node for all of it: a template takes Go's runtime some ten seconds of processor time.
#[test]
fn gos_own_library_has_time_chance_files_and_memory_and_each_instance_a_seed_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder for files");
    fs::write(folder.path().join("greeting"), "good morning").unwrap();
    let node = Node::without_devices();
    let stage = format!("{{ module = \"words\", config = \"said\", files = {:?} }}", folder.path());
    let chain = |manifest: Manifest, name| {
        manifest.with(format_args!("[[chain]]\nname = \"{name}\"\nstage = [{stage}]\ncache_min = 0\n"))
    };
    let manifest = Manifest::of("default").module("words", &build::hostile("go_words"));
    node.apply(["one", "two"].into_iter().fold(manifest, chain).text());

    let date_ns = || SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_nanos();
    let before_ns = date_ns();
    let seen_ns: u128 = answer(&node, "one", "date").parse().expect("a number");
    assert!((before_ns - 1_000_000..=date_ns() + 1_000_000).contains(&seen_ns), "{before_ns} {seen_ns}");
    let took_ns: u64 = answer(&node, "one", "sleep 20").parse().expect("a number");
    assert!(took_ns >= 20_000_000, "{took_ns}");
    assert_eq!(answer(&node, "one", "together"), "3 6 9");

    until("ticks", SOON, || (answer(&node, "one", "ticks") != "0").then_some(()));

    let bytes = ["random", "random"].map(|order| answer(&node, "one", order));
    assert!(bytes[0].len() == 32 && bytes[0] != bytes[1], "{bytes:?}");
    let orders = ["one", "two"].map(|chain| answer(&node, chain, "order"));
    assert!(orders[0].len() == orders[1].len() && orders[0] != orders[1], "{orders:?}");
    let log = node.cli().run(&["logs", "-A"]);
    assert!(log.contains("configured with \"said\"") && log.contains("each instance initialises itself"), "{log}");

    assert_eq!(answer(&node, "one", "file"), "good morning");
    assert_eq!(answer(&node, "one", "collect"), (2_000 * (64 << 10)).to_string());
    let output = node.cli().output(&["invoke", "one", "--data", "panic", "--timeout", "20s"]);
    let said = errors(&output);
    assert!(said.contains("it panicked: told to panic"), "{said}");
}

#[test]
fn a_configuration_is_refused_in_the_words_of_a_function_in_go() {
    let node = Node::without_devices();
    let manifest = Manifest::of("default").module("words", &build::hostile("go_words"));
    let path = node.path("refused.toml");
    fs::write(&path, manifest.configured_chain("no", "words", "refused").text()).unwrap();
    let said = errors(&node.cli().try_apply(&path));
    assert!(said.contains("this is refused"), "{said}");
}
