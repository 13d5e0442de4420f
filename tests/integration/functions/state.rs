//! State that outlives instances: access rights, lifetime, and what is refused. Uses the sample `notebook`, which is called by name, on a
//! node without a device.
#![forbid(unsafe_code)]

use std::process::Output;
use std::thread;
use std::time::Duration;

use pinion_tests::machine::process::errors;
use pinion_tests::product::build;
use pinion_tests::product::cli::Cli;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::until::{SOON, until};
use serde_json::Value;

/// A field with values of up to 24 bytes, and room for 4 entries.
const NOTES: &str = "[state.notes]\nvalue_bytes = 24\nentries = 4\n";

fn notebook(tenant: &str, field: &str) -> Manifest {
    Manifest::of(tenant).module("notebook", &build::sample("notebook")).with(field)
}

/// A chain of the notebook, with no instance kept ready; `more` has further keys of the chain.
fn chain(name: &str, access: &str, more: &str) -> String {
    let stage = format!("{{ module = \"notebook\", config = \"notes\", state = {{ notes = \"{access}\" }} }}");
    format!("[[chain]]\nname = \"{name}\"\nstage = [{stage}]\ncache_min = 0\n{more}\n")
}

fn writer(tenant: &str) -> Manifest {
    notebook(tenant, NOTES).with(chain("writer", "write", ""))
}

fn order(cli: &Cli, function: &str, order: &str) -> String {
    let output = cli.output(&["invoke", function, "--data", order]);
    assert_eq!(output.status.code(), Some(0), "{order}: {}", errors(&output));
    String::from_utf8(output.stdout).expect("the notebook answers in UTF-8")
}

#[track_caller]
fn assert_refused(output: &Output, sentence: &str) {
    let said = errors(output);
    assert!(said.contains(sentence), "{said}");
    assert_eq!(output.status.code(), Some(2), "{said}");
}

/// Returns what `pinion get state` reports about a tenant's field.
fn status(cli: &Cli, tenant: &str) -> Value {
    let found = cli.get("state").into_iter().find(|field| field["tenant"] == tenant && field["name"] == "notes");
    found.unwrap_or_else(|| panic!("{tenant} has no field of notes"))
}

fn applied(node: &Node, manifest: &Manifest) -> Output {
    let path = node.path("manifest.toml");
    std::fs::write(&path, manifest.text()).expect("the node's folder is writable");
    node.cli().try_apply(&path)
}

/// Checks a manifest without the node.
fn checked(node: &Node, manifest: &Manifest) -> Output {
    let path = node.path("checked.toml");
    std::fs::write(&path, manifest.text()).expect("the node's folder is writable");
    node.cli().output(&["check", path.to_str().expect("the folder's path is UTF-8")])
}

/// Ends the instance that answers, and waits until it is gone.
fn end_instance(cli: &Cli, function: &str) {
    let id = cli.serving_fwps()[0]["id"].clone();
    assert_eq!(order(cli, function, "finish"), "ok");
    until("end of the instance", SOON, || cli.serving_fwps().iter().all(|fwp| fwp["id"] != id).then_some(()));
}

#[test]
fn the_node_answers_orders_as_the_sdks_fake_does() {
    let node = Node::without_devices();
    node.apply(writer("default").text());
    let cli = node.cli();
    let orders = include_str!("../../../samples/notebook/tests/orders.txt");
    for line in orders.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(" => ") {
            Some((text, answer)) => assert_eq!(order(&cli, "writer", text), answer, "{text}"),
            None => {
                let ms =
                    line.strip_prefix("wait ").and_then(|ms| ms.parse().ok()).expect("an order, or a time to wait");
                thread::sleep(Duration::from_millis(ms));
            }
        }
    }
}

#[test]
fn state_of_one_chain_is_read_only_for_another_and_invisible_to_other_tenants() {
    let node = Node::without_devices();
    node.apply(writer("default").with(chain("reader", "read", "")).text());
    node.apply(writer("mallory").text());
    let cli = node.cli();
    assert_eq!(order(&cli, "default/writer", "put colour blue"), "ok");
    assert_eq!(order(&cli, "default/reader", "get colour"), "blue");
    for text in ["put colour red", "swap colour blue red", "add count 1", "expire colour 1", "delete colour"] {
        assert_eq!(order(&cli, "default/reader", text), "the stage is granted this state field to read only");
    }
    assert_eq!(order(&cli, "mallory/writer", "get colour"), "none");
    assert_eq!(order(&cli, "mallory/writer", "put colour red"), "ok");
    assert_eq!(order(&cli, "default/reader", "get colour"), "blue");
    let field = status(&cli, "default");
    let counted = ["entries", "entries_max", "hits", "writes", "denied", "full"].map(|key| field[key].as_u64());
    assert_eq!(counted, [1, 4, 2, 1, 5, 0].map(Some), "{field}");
    assert_eq!(status(&cli, "mallory")["misses"], 1);
    let text = cli.run(&["status"]);
    assert!(text.lines().any(|line| line.starts_with("TENANT") && line.contains("DENIED")), "{text}");
    // A chain whose grant changes from read to write may write from then on.
    node.apply(writer("default").with(chain("reader", "write", "")).text());
    until("grant", SOON, || (order(&cli, "default/reader", "put colour red") == "ok").then_some(()));
    assert_eq!(order(&cli, "default/writer", "get colour"), "red");
}

#[test]
fn state_outlives_instances_and_updates_but_not_the_last_chain_nor_the_node() {
    let mut node = Node::without_devices();
    let version = |more: &str| notebook("default", NOTES).with(chain("writer", "write", more));
    node.apply(version("idle_timeout_ms = 100").text());
    let cli = node.cli();
    assert_eq!(order(&cli, "writer", "put colour blue"), "ok");
    end_instance(&cli, "writer");
    assert_eq!(order(&cli, "writer", "get colour"), "blue");
    until("end of the idle instance", SOON, || cli.serving_fwps().is_empty().then_some(()));
    assert_eq!(order(&cli, "writer", "get colour"), "blue");
    node.apply(version("memory_limit_kib = 8192").text());
    assert_eq!(order(&cli, "writer", "get colour"), "blue");
    // With another declaration it is another field.
    let larger = NOTES.replace("entries = 4", "entries = 5");
    node.apply(notebook("default", &larger).with(chain("writer", "write", "drain_timeout_ms = 0")).text());
    until("field that is empty", SOON, || (order(&cli, "writer", "get colour") == "none").then_some(()));
    assert_eq!(order(&cli, "writer", "put colour red"), "ok");
    cli.run(&["delete", "chain", "writer"]);
    assert_eq!(cli.get("state"), Vec::<Value>::new());
    node.apply(version("").text());
    assert_eq!(order(&cli, "writer", "get colour"), "none");
    assert_eq!(order(&cli, "writer", "put colour green"), "ok");
    node.stop();
    node.start();
    assert_eq!(order(&node.cli(), "writer", "get colour"), "none");
}

#[test]
fn a_full_field_refuses_new_entries_and_keeps_the_ones_that_it_has() {
    let node = Node::without_devices();
    node.apply(writer("default").text());
    let cli = node.cli();
    let mut taken = 0;
    let refused = loop {
        match &*order(&cli, "writer", &format!("put key{taken} {taken}")) {
            "ok" => taken += 1,
            refused => break refused.to_owned(),
        }
    };
    assert_eq!(refused, "the state field has no room for another entry");
    assert!(taken >= 4, "{taken}");
    for key in 0..taken {
        assert_eq!(order(&cli, "writer", &format!("get key{key}")), key.to_string());
    }
    assert_eq!(
        (status(&cli, "default")["full"].as_u64(), status(&cli, "default")["entries"].as_u64()),
        (Some(1), Some(taken))
    );
    assert_eq!(order(&cli, "writer", "delete key0"), "ok");
    assert_eq!(order(&cli, "writer", &format!("put key{taken} x")), "ok");
}

#[test]
fn a_module_that_asks_for_state_without_a_grant_is_refused_with_and_without_a_node_naming_the_import() {
    let node = Node::without_devices();
    let manifest = notebook("default", "").configured_chain("writer", "notebook", "notes");
    for output in [checked(&node, &manifest), applied(&node, &manifest)] {
        assert_refused(&output, "it imports pinion.state_");
        assert_refused(&output, "its stage is granted no state: grant it the fields that it uses");
    }
    assert_eq!(node.cli().get("chains"), Vec::<Value>::new());
    // A module that is called by its own name has no stage that could be granted state.
    node.apply(notebook("default", "").text());
    assert_refused(&node.cli().output(&["invoke", "notebook", "-d", "get x"]), "granted no state");
}

#[test]
fn an_impossible_grant_is_refused_in_a_sentence_and_changes_nothing() {
    let node = Node::without_devices();
    node.apply(writer("default").text());
    let both = |output: Output, sentence: &str| assert_refused(&output, sentence);
    // Granted under a name that the function does not use.
    let renamed = notebook("default", &NOTES.replace("notes", "other"))
        .with(chain("second", "read", "").replace("{ notes = ", "{ other = "));
    for output in [checked(&node, &renamed), applied(&node, &renamed)] {
        both(output, "state field \"notes\": the stage is granted no state field of this name");
    }
    let undeclared = notebook("default", "").with(chain("second", "read", ""));
    for output in [checked(&node, &undeclared), applied(&node, &undeclared)] {
        both(output, "toml:8: chain second: stage 1 is granted the state field notes, which is not declared");
    }
    let differently = notebook("default", &NOTES.replace("= 4", "= 8")).with(chain("second", "read", ""));
    let sentence = "chain default/second and chain default/writer declare the state field notes differently";
    both(applied(&node, &differently), sentence);
    let large =
        notebook("mallory", "[state.notes]\nvalue_bytes = 1024\nentries = 10000\n").with(chain("large", "read", ""));
    both(applied(&node, &large), "tenant mallory: the tenant's state would take 21");
    assert_eq!(node.cli().get("chains").len(), 1);
    assert_eq!(order(&node.cli(), "writer", "put colour blue"), "ok");
}
