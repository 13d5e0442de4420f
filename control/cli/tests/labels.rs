//! Tests of what the built `pinion` command does with labels, against a control plane with a fake data plane.

use std::fs;

use crate::support::{Served, wasm};
use serde_json::{Value, json};
use tokio::process::Command;

const MODULE: &str = "[[module]]\nname = \"echo\"\npath = \"echo.wasm\"\n[[chain]]\nname = \"echo\"\n\
                      stage = [{ module = \"echo\", config = \"hello\" }]\n";

/// Runs the command for tenant `demo`, which must end with this status, and returns its output and errors.
async fn ends(served: &Served, status: i32, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
    command.env("PINION_SOCKET", &served.socket).env("PINION_TENANT", "demo").args(arguments);
    let output = command.output().await.unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    text
}

/// Writes a manifest with this line at its top, and rules of these names.
fn write(served: &Served, name: &str, top: &str, tables: &str, rules: &[&str]) -> String {
    let rule = |(at, name): (usize, &&str)| {
        format!(
            "[[rule]]\nname = \"{name}\"\npriority = {at}\npolicy = \"shared\"\nchain = \"echo\"\n\
             match = {{ destination = \"10.77.0.2\", protocol = \"icmp\" }}\n"
        )
    };
    let rules: String = rules.iter().enumerate().map(rule).collect();
    fs::write(served.folder.path().join("echo.wasm"), wasm("echo")).unwrap();
    let path = served.folder.path().join(name);
    fs::write(&path, format!("version = \"pinion.v1\"\n{top}\n{tables}{rules}")).unwrap();
    path.display().to_string()
}

const WEB: &str = "label = \"web\"";

#[tokio::test]
async fn prune_deletes_what_the_manifest_of_the_label_has_no_more_and_dry_run_and_diff_show_it_before() {
    let served = Served::start().await;
    let base = write(&served, "base.toml", "", MODULE, &[]);
    ends(&served, 0, &["apply", "-f", &base]).await;
    let manifest = write(&served, "web.toml", WEB, "", &["a", "b", "c"]);
    assert_eq!(
        ends(&served, 0, &["apply", "-f", &manifest, "--prune"]).await,
        "rule/a created\nrule/b created\nrule/c created\n"
    );
    let manifest = write(&served, "web.toml", WEB, "", &["a"]);
    assert_eq!(ends(&served, 0, &["diff", "-f", &manifest]).await, "", "without --prune they are no difference");
    let gone = ends(&served, 1, &["diff", "-f", &manifest, "--prune"]).await;
    for rule in ["b", "c"] {
        assert!(gone.contains(&format!("--- rule demo/{rule} (the node)\n+++ /dev/null\n")), "{gone}");
    }
    assert!(!gone.contains("echo ("), "what has no label stays: {gone}");
    assert_eq!(
        ends(&served, 0, &["apply", "-f", &manifest, "--prune", "--dry-run"]).await,
        "rule/a unchanged (dry run)\nrule/b pruned (dry run)\nrule/c pruned (dry run)\n"
    );
    assert_eq!(ends(&served, 0, &["get", "rules", "-o", "name"]).await, "rule/a\nrule/b\nrule/c\n");
    let done: Value =
        serde_json::from_str(&ends(&served, 0, &["apply", "-f", &manifest, "--prune", "-o", "json"]).await).unwrap();
    let pruned = |name: &str| json!({ "kind": "rule", "tenant": "demo", "name": name, "effect": "pruned" });
    assert_eq!((&done["outcomes"][1], &done["outcomes"][2]), (&pruned("b"), &pruned("c")));
    assert_eq!(done["version"], 3);
    assert_eq!(ends(&served, 0, &["get", "all", "-o", "name"]).await, "module/echo\nchain/echo\nrule/a\n");
    assert_eq!(ends(&served, 0, &["diff", "-f", &manifest, "--prune"]).await, "");
    assert_eq!(ends(&served, 0, &["rollout", "undo"]).await, "rule/b created\nrule/c created\n");
    assert_eq!(ends(&served, 0, &["get", "rules", "-l", "web", "-o", "name"]).await, "rule/a\nrule/b\nrule/c\n");
    served.stop().await;
}

#[tokio::test]
async fn prune_without_a_label_is_refused_with_the_remedy_and_changes_nothing() {
    let served = Served::start().await;
    let manifest = write(&served, "demo.toml", "", MODULE, &["a"]);
    for command in ["apply", "diff"] {
        let error = ends(&served, 2, &[command, "-f", &manifest, "--prune"]).await;
        let expected = format!(
            "error: {manifest}: --prune deletes objects of the manifest's label, and there is none: write label"
        );
        assert!(error.starts_with(&expected), "{error}");
    }
    assert!(ends(&served, 0, &["get", "all", "-o", "name"]).await.starts_with("There is no object"));
    served.stop().await;
}

#[tokio::test]
async fn an_object_of_another_label_is_taken_over_only_if_that_is_said() {
    let served = Served::start().await;
    let manifest = write(&served, "web.toml", WEB, MODULE, &["a"]);
    ends(&served, 0, &["apply", "-f", &manifest]).await;
    let other = write(&served, "db.toml", "label = \"db\"", "", &["a"]);
    let error = ends(&served, 2, &["apply", "-f", &other]).await;
    assert!(error.starts_with("error: rule demo/a belongs to the manifests with label web, "), "{error}");
    assert!(ends(&served, 1, &["diff", "-f", &other]).await.contains("\n-label = \"web\"\n+label = \"db\"\n"));
    let none = write(&served, "none.toml", "", "", &["a"]);
    assert_eq!(ends(&served, 0, &["diff", "-f", &none]).await, "");
    assert_eq!(ends(&served, 0, &["apply", "-f", &none]).await, "rule/a unchanged\n");
    assert_eq!(ends(&served, 0, &["apply", "-f", &other, "--take-over"]).await, "rule/a configured\n");
    assert_eq!(ends(&served, 0, &["apply", "-f", &none, "--take-over"]).await, "rule/a configured\n");
    let other = write(&served, "db.toml", "label = \"db\"", "", &["b"]);
    let both = ends(&served, 2, &["apply", "-f", &manifest, &other]).await;
    assert!(both.contains("has label db, and ") && both.contains("have the same label"), "{both}");
    assert_eq!(ends(&served, 0, &["delete", "-f", &manifest, "--dry-run"]).await.lines().count(), 3);
    served.stop().await;
}

#[tokio::test]
async fn labels_show_in_all_outputs() {
    let served = Served::start().await;
    let manifest = write(&served, "web.toml", WEB, MODULE, &["a"]);
    ends(&served, 0, &["apply", "-f", &manifest]).await;
    for kind in ["modules", "chains", "rules"] {
        let wide = ends(&served, 0, &["get", kind, "-o", "wide"]).await;
        assert!(wide.lines().next().unwrap().ends_with("LABEL") && wide.ends_with("   web\n"), "{wide}");
        assert!(!ends(&served, 0, &["get", kind]).await.contains("LABEL"));
        let json: Value = serde_json::from_str(&ends(&served, 0, &["get", kind, "-o", "json"]).await).unwrap();
        assert_eq!(json[0]["label"], "web");
    }
    for object in ["module/echo", "chain/echo", "rule/a"] {
        let text = ends(&served, 0, &["describe", object]).await;
        assert!(text.lines().any(|line| line.split_whitespace().eq(["Label:", "web"])), "{text}");
    }
    let text = ends(&served, 0, &["get", "all", "-o", "toml"]).await;
    assert!(text.starts_with("version = \"pinion.v1\"\ntenant = \"demo\"\nlabel = \"web\"\n"), "{text}");
    assert!(ends(&served, 0, &["get", "all", "-l", "db", "-o", "name"]).await.starts_with("There is no object"));
    let error = ends(&served, 2, &["get", "fwps", "-l", "web"]).await;
    assert_eq!(error, "error: fwps have no labels: modules, keys, models, chains and rules have\n");
    served.stop().await;
}

#[tokio::test]
async fn a_chain_that_a_call_has_made_is_marked_and_is_in_no_manifest() {
    let served = Served::start().await;
    let manifest =
        write(&served, "demo.toml", "", &MODULE.replace("name = \"echo\"\nstage", "name = \"web\"\nstage"), &[]);
    ends(&served, 0, &["apply", "-f", &manifest]).await;
    assert_eq!(ends(&served, 0, &["invoke", "echo", "-d", "x"]).await, "x for echo");
    let table = ends(&served, 0, &["get", "chains"]).await;
    assert!(table.lines().nth(1).unwrap().starts_with("demo     echo (implicit)   echo"), "{table}");
    assert!(ends(&served, 0, &["describe", "chain/echo"]).await.contains("yes: a call of the module of this name"));
    let toml = ends(&served, 0, &["get", "chains", "-o", "toml"]).await;
    assert!(toml.contains("name = \"web\"") && !toml.contains("name = \"echo\""), "{toml}");
    let error = ends(&served, 2, &["get", "chain/echo", "-o", "toml"]).await;
    assert!(
        error.starts_with("error: chain \"echo\" is implicit: a call of the module of this name has made it"),
        "{error}"
    );
    assert_eq!(ends(&served, 0, &["get", "chains", "-o", "name"]).await, "chain/echo\nchain/web\n");
    assert_eq!(ends(&served, 0, &["delete", "chain/echo"]).await, "chain/echo deleted\n");
    assert_eq!(ends(&served, 0, &["get", "chains", "-o", "name"]).await, "chain/web\n");
    served.stop().await;
}
