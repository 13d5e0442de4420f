//! Input that a node or the operator's command cannot use is answered with one sentence that names it and with exit status 2. No part of
//! such input takes effect.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use pinion_tests::machine::cores::two_cores;
use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{TENANT, echo, turn};
use pinion_tests::network::namespace::Namespace;
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::{Node, refused};
use serde_json::Value;

const EXIT_BAD_INPUT: i32 = 2;

/// Checks that the last line on standard error is one sentence with all expected parts, and that there is no stack trace.
#[track_caller]
fn assert_refused(case: &str, output: &Output, expected: &[&str]) {
    let errors = errors(output);
    let sentence = errors.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(EXIT_BAD_INPUT), "{case}: {errors}");
    for part in expected {
        assert!(sentence.contains(part), "{case}: {sentence:?} does not say {part:?}");
    }
    assert!(!errors.contains("panicked") && !errors.contains("stack backtrace"), "{case}: {errors}");
}

#[track_caller]
fn assert_config_refused(case: &str, config: &str, expected: &[&str]) {
    let _turn = turn();
    let node = Node::new(config);
    let output = refused(&node.config());
    assert_refused(case, &output, expected);
    assert!(!node.socket().exists(), "{case}: the socket is there");
}

const PORT: &str = "[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n";

#[test]
fn a_misspelt_key_of_the_configuration_is_named_with_file_and_line() {
    // Three lines come first: the paths of state and socket, and the tuning.
    assert_config_refused("misspelt key", "quantum_su = 100\n", &["piniond.toml, line 4: ", "`quantum_su`"]);
    assert_config_refused("misspelt key of a port", &format!("{PORT}adresses = []\n"), &["line 7: ", "`adresses`"]);
    assert_config_refused("misspelt key of a table", &format!("{PORT}[limits]\nfwps = 1\n"), &["line 8: ", "`fwps`"]);
}

#[test]
fn an_impossible_value_is_named() {
    assert_config_refused("no TOML", "[[port\n", &["piniond.toml, line 4: "]);
    assert_config_refused("quantum", &format!("quantum_us = 0\n{PORT}"), &["piniond.toml: ", "quantum_us = 0"]);
    assert_config_refused("no port", "", &["piniond.toml: ", "[[port]]"]);
    let address = format!("{PORT}addresses = [\"10.77.0.2\"]\n");
    assert_config_refused("no prefix length", &address, &["piniond.toml, line 7: "]);
    assert_config_refused("core", &format!("{PORT}[cores]\nmmas = [999]\n"), &["cores.mmas = 999"]);
    assert_config_refused("builder", &format!("builder = \"/nowhere/builder\"\n{PORT}"), &["/nowhere/builder"]);
}

#[test]
fn a_missing_configuration_is_named() {
    let output = refused(&PathBuf::from("/nowhere/piniond.toml"));
    assert_refused("no file", &output, &["/nowhere/piniond.toml"]);
}

#[track_caller]
fn assert_device_refused(device: &str, namespace: &str, expected: &[&str]) {
    let config = format!("[[port]]\nname = \"lan\"\ndevice = {device:?}\nnamespace = {namespace:?}\n");
    assert_config_refused(device, &config, &[expected, &[device]].concat());
}

#[test]
fn a_missing_device_is_named() {
    let inside = Namespace::new("devices");
    assert_device_refused("net_nosuch0", inside.name(), &["no driver answers to"]);
    assert_device_refused("0000:ff:1f.7", inside.name(), &["was not found"]);
    assert_device_refused("net_af_packet0,iface=nosuch0", inside.name(), &["`nosuch0`, which does not exist"]);
    assert_device_refused("net_af_xdp0,iface=nosuch0", inside.name(), &["`nosuch0`, which does not exist"]);
    assert_device_refused("net_tap0,nosuch=1", inside.name(), &["`nosuch`, which its driver does not know"]);
    assert_device_refused("net_tap0, iface=x", inside.name(), &["is not a device"]);
}

#[test]
fn a_port_that_does_not_come_up_is_named_with_its_reason() {
    let (inside, far) = (Namespace::new("devices"), Namespace::new("far"));
    inside.ip(&format!("link add port0 type veth peer name port0-far netns {}", far.name()));
    inside.ip("link set port0 up");
    assert_device_refused("net_af_packet0,iface=port0", inside.name(), &["did not come up", "has no carrier"]);
}

#[test]
fn a_missing_namespace_is_named() {
    let config = "[[port]]\nname = \"lan\"\ndevice = \"net_tap0\"\nnamespace = \"nosuch\"\n";
    assert_config_refused("namespace", config, &["port lan: ", "/run/netns/nosuch"]);
}

#[test]
fn a_socket_that_another_node_answers_on_is_named() {
    let _turn = turn();
    let node = Node::without_devices();
    let output = refused(&node.config());
    assert_refused("second node", &output, &["another piniond answers on", "pinion.sock"]);
    assert!(node.cli().is_answered(), "the first node is gone");
}

/// A node with an applied manifest, which a refused change must not alter.
struct Applied {
    node: Node,
    before: [Vec<Value>; 3],
}

impl Applied {
    fn new() -> Self {
        Self::to(Node::without_devices())
    }

    fn to(node: Node) -> Self {
        node.apply(echo("per-client").text());
        let before = desired(&node);
        Self { node, before }
    }

    /// Checks that a manifest of this text is refused, and that the sentence has its path and the rest of `expected`.
    #[track_caller]
    fn assert_refused(&self, case: &str, manifest: impl AsRef<str>, expected: &[&str]) {
        let path = self.node.path("bad.toml");
        fs::write(&path, manifest.as_ref()).expect("the node's folder is writable");
        assert_refused(case, &self.node.cli().try_apply(&path), expected);
        assert_eq!(desired(&self.node), self.before, "{case}");
    }

    /// Checks that a manifest is refused because of its module, which consists of these bytes.
    #[track_caller]
    fn assert_module_refused(&self, case: &str, wasm: &[u8], expected: &[&str]) {
        let path = self.node.path("bad.wasm");
        fs::write(&path, wasm).expect("the node's folder is writable");
        // The manifest also has a good rule, which must not be applied either.
        let manifest = good().module("bad", &path);
        self.assert_refused(case, manifest.text(), &[expected, &["bad"]].concat());
    }
}

fn desired(node: &Node) -> [Vec<Value>; 3] {
    ["modules", "chains", "rules"].map(|kind| node.cli().get(kind))
}

/// A change that the node would accept on its own.
fn good() -> Manifest {
    Manifest::of(TENANT).module("good", &build::sample("macswap")).chain("good", "good", "").ping_rule(
        "good",
        "good",
        "shared",
        "10.99.0.1",
    )
}

#[test]
fn a_file_that_is_no_module_of_this_abi_is_refused_with_the_reason() {
    let _turn = turn();
    let applied = Applied::new();
    applied.assert_module_refused("text", b"#!/bin/sh\n", &["not a WebAssembly module"]);
    applied.assert_module_refused("nothing", b"", &["WebAssembly"]);
    let sample = fs::read(build::sample("macswap")).expect("it is built");
    applied.assert_module_refused("half a module", &sample[..sample.len() / 2], &[]);

    let module = |text: &str| wat::parse_str(text).expect("the test's own text is right");
    let exports = |abi: &str, more: &str| {
        module(&format!(
            "(module {more} (memory (export \"memory\") 1) (func (export \"{abi}\")) (func (export \"pinion_run\"))
               (func (export \"pinion_init\") (result i32) i32.const 0)
               (func (export \"pinion_pool\") (result i32) i32.const 0))"
        ))
    };
    applied.assert_module_refused("other ABI", &exports("pinion_abi_v1", ""), &["version 1 of the Pinion ABI"]);
    applied.assert_module_refused("no ABI", &module("(module)"), &["pinion_abi_v3"]);
    let imports = exports("pinion_abi_v3", "(import \"env\" \"system\" (func))");
    applied.assert_module_refused("foreign import", &imports, &["env.system"]);
    let mistyped = exports("pinion_abi_v3", "(import \"wasi_snapshot_preview1\" \"random_get\" (func))");
    applied.assert_module_refused("mistyped import", &mistyped, &["random_get"]);
    let tables = exports("pinion_abi_v3", "(table 1 funcref) (table 1 funcref)");
    applied.assert_module_refused("two tables", &tables, &["table"]);
}

#[test]
fn a_chain_whose_memory_limit_is_too_low_for_its_module_is_refused() {
    let _turn = turn();
    let applied = Applied::new();
    let chain = good().chain("small", "good", "memory_limit_kib = 64");
    applied.assert_refused("small chain", chain.text(), &["small", "good", "memory_limit_kib", "64"]);
}

#[test]
fn a_limit_for_all_instances_that_is_too_low_for_one_is_refused_with_and_without_a_template_to_build() {
    let _turn = turn();
    let applied = Applied::new();
    let needles = &["memory_total_kib is 64: raise it"];
    // The first has a template already, the second needs one of its own.
    for more in ["memory_total_kib = 64", "memory_total_kib = 64\nmemory_limit_kib = 4096"] {
        let chain = Manifest::of(TENANT).module("good", &build::sample("macswap")).chain("good", "good", more);
        applied.assert_refused(more, chain.text(), needles);
    }
}

#[test]
fn a_chain_of_more_stages_than_a_worker_has_places_is_refused() {
    let _turn = turn();
    let (core, _) = two_cores();
    let plan = format!("[cores]\ngateway = {core}\nmmas = [{core}]\nworkers = [{core}]\n[limits]\nfwps_max = 2\n");
    let node = Node::started(&format!("{plan}[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n"));
    let stages = "{ module = \"good\" }, ".repeat(3);
    let chain = good().with(format_args!("[[chain]]\nname = \"long\"\nstage = [{stages}]\n"));
    Applied::to(node).assert_refused("long chain", chain.text(), &["long", "3 stages", "2", "limits.fwps_max"]);
}

#[test]
fn references_to_unknown_objects_are_named() {
    let _turn = turn();
    let applied = Applied::new();
    let chain = good().chain("lost", "nosuch", "");
    applied.assert_refused("unknown module", chain.text(), &["lost", "nosuch"]);
    let rule = good().ping_rule("lost", "nosuch", "shared", "10.99.0.2");
    applied.assert_refused("unknown chain", rule.text(), &["lost", "nosuch"]);
    let port = good().chain("lost", "good", "egress = \"nosuch\"");
    applied.assert_refused("unknown port", port.text(), &["lost", "nosuch", "lan"]);
    let file = good().module("lost", &PathBuf::from("nosuch.wasm"));
    applied.assert_refused("unknown file", file.text(), &["bad.toml:", "nosuch.wasm"]);
}

#[test]
fn two_rules_with_the_same_match_are_both_named() {
    let _turn = turn();
    let applied = Applied::new();
    let within =
        good().ping_rule("first", "good", "shared", "10.99.0.3").ping_rule("second", "good", "shared", "10.99.0.3");
    applied.assert_refused("in one manifest", within.text(), &["first", "second", "10.99.0.3"]);
    let with_old = good().ping_rule("second", "good", "shared", "10.77.0.2");
    applied.assert_refused("with one there", with_old.text(), &["ping", "second", "10.77.0.2"]);
    let twice = good().ping_rule("good", "good", "shared", "10.99.0.4");
    applied.assert_refused("one name twice", twice.text(), &["bad.toml:", "good"]);
}

#[test]
fn a_manifest_that_cannot_be_read_is_named_with_key_and_line() {
    let _turn = turn();
    let applied = Applied::new();
    let other = good().text().replace("pinion.v1", "pinion.v2");
    applied.assert_refused("other version", other, &["bad.toml:1: ", "pinion.v2", "pinion.v1"]);
    applied.assert_refused("no version", "tenant = \"demo\"\n", &["bad.toml: ", "version"]);
    let lines = good().text().lines().count();
    let line = format!("bad.toml:{}: ", lines + 1);
    let unknown = good().with("polycy = \"shared\"\n");
    applied.assert_refused("unknown key", unknown.text(), &[&line, "polycy"]);
    let value = good().text().replace("\"shared\"", "\"sharde\"");
    applied.assert_refused("unknown value", value, &["bad.toml:", "sharde"]);
    let prefix = good().text().replace("10.99.0.1", "10.99.0.256");
    applied.assert_refused("no prefix", prefix, &["bad.toml:", "10.99.0.256"]);
    applied.assert_refused("no TOML", "version = \n", &["bad.toml:1: "]);
    let limit = good().chain("big", "good", "memory_limit_kib = 1");
    applied.assert_refused("memory limit", limit.text(), &["bad.toml:", "memory_limit_kib is 1"]);
}

#[test]
fn a_missing_manifest_is_named() {
    let _turn = turn();
    let applied = Applied::new();
    let output = applied.node.cli().try_apply(&PathBuf::from("/nowhere/demo.toml"));
    assert_refused("no file", &output, &["/nowhere/demo.toml"]);
    assert_eq!(desired(&applied.node), applied.before);
}

#[test]
fn the_command_names_a_socket_that_no_node_answers_on() {
    let node = Node::new(PORT);
    let output = node.cli().output(&["get", "fwps"]);
    let errors = errors(&output);
    assert!(!output.status.success());
    assert!(errors.contains("no piniond at") && errors.contains("pinion.sock"), "{errors}");
}

#[test]
fn unknown_arguments_of_the_command_are_named() {
    let _turn = turn();
    let node = Node::without_devices();
    for words in [&["get", "nosuch"][..], &["nosuch"], &["status", "--nosuch"], &["get", "fwps", "-o", "nosuch"]] {
        let output = node.cli().output(words);
        assert_eq!(output.status.code(), Some(EXIT_BAD_INPUT), "{words:?}");
        assert!(errors(&output).contains("nosuch"), "{words:?}: {}", errors(&output));
    }
}

#[test]
fn caches_that_the_node_has_no_room_for_are_a_warning() {
    let _turn = turn();
    let node = Node::started(&format!("{PORT}[limits]\nfwps_max = 4\n"));
    let module = Manifest::of(TENANT).module("icmp-echo", &build::sample("icmp-echo"));
    let manifest = module.chain("first", "icmp-echo", "cache_min = 3").chain("second", "icmp-echo", "cache_min = 3");
    node.apply(manifest.text());
    let warnings = node.cli().status()["warnings"].to_string();
    assert!(warnings.contains("cache_min asks for 6 FWPs") && warnings.contains("limits.fwps_max is 4"), "{warnings}");
}
