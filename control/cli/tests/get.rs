//! Tests of `pinion get`: how objects are named, and its outputs.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::support::{Served, wasm};
use serde_json::Value;
use tokio::process::Command;

const MANIFEST: &str = r#"version = "pinion.v1"
tenant = "demo"

[key.site]
file = "site.pem"

[model.cifar]
file = "cifar.onnx"

[state.sessions]
value_bytes = 64
entries = 1000

[[module]]
name = "echo"
path = "echo.wasm"

[[module]]
name = "web"
path = "web.wasm"

[[chain]]
name = "echo"
stage = [{ module = "echo", config = "hello" }]

[[chain]]
name = "web"
egress = "lan"
memory_total_kib = 65536
class = "throughput"
stage = [
    { module = "echo", name = "in", outputs = ["out", "egress"], config_base64 = "/wA=" },
    { module = "web", name = "out", files = "pages", keys = ["site"], models = ["cifar"], state = { sessions = "write" } },
]

[[rule]]
name = "ping"
priority = 100
policy = "per-client"
chain = "echo"
match = { destination = "10.77.0.2/32", protocol = "icmp" }

[[rule]]
name = "web"
policy = "shared"
chain = "web"
match = { destination = "10.77.0.2/32", protocol = "tcp", destination_ports = "80-81" }
"#;

const TENANTS: &str = r#"version = "pinion.v1"

[[tenant]]
name = "demo"

[[tenant]]
name = "lab"
weight = 3
class_max = "latency"
memory_mib = 512
cpu_per_second_ms = 1500
modules_max = 20
ports = ["lan"]
addresses = ["10.77.0.0/16"]
outbound_flows = true
"#;

/// All kinds that can be listed.
const KINDS: [&str; 10] =
    ["tenants", "modules", "keys", "models", "chains", "rules", "uploads", "fwps", "instances", "state"];

async fn pinion(served: &Served, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
    command.env("PINION_SOCKET", &served.socket).env("PINION_TENANT", "demo").args(arguments).output().await.unwrap()
}

/// Runs the command, which must succeed, and returns its output.
async fn ok(served: &Served, arguments: &[&str]) -> String {
    let output = pinion(served, arguments).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command, which must fail for its input, and returns the error.
async fn refused(served: &Served, arguments: &[&str]) -> String {
    let output = pinion(served, arguments).await;
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap().trim_end().to_owned()
}

async fn json(served: &Served, arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(served, &[arguments, &["-o", "json"]].concat()).await).unwrap()
}

fn write(served: &Served, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = served.folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

/// Starts a control plane with objects of all kinds.
async fn start() -> Served {
    let served = Served::start().await;
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../keys/tests/data");
    write(&served, "site.pem", fs::read(data.join("p256.pem")).unwrap());
    write(&served, "cifar.onnx", "onnx");
    let unnamed = write(&served, "unnamed.wasm", wasm("unnamed"));
    for name in ["echo", "web"] {
        write(&served, &format!("{name}.wasm"), wasm(name));
    }
    fs::create_dir(served.folder.path().join("pages")).unwrap();
    write(&served, "pages/index.html", "it works");
    let (tenants, demo) = (write(&served, "tenants.toml", TENANTS), write(&served, "demo.toml", MANIFEST));
    ok(&served, &["apply", "-f", &tenants, &demo]).await;
    ok(&served, &["push", &unnamed]).await;
    served
}

/// Compares a text with the one in the folder `golden`, or writes it there if PINION_WRITE_GOLDEN is set.
fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("PINION_WRITE_GOLDEN").is_some() {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{}: PINION_WRITE_GOLDEN=1 writes it anew", path.display());
}

/// Replaces the time for which an upload is still kept.
fn without_times(kind: &str, text: &str) -> String {
    let line = |(at, line): (usize, &str)| match line.rsplit_once(' ') {
        Some((before, _)) if kind == "uploads" && at > 0 => format!("{before} TIME\n"),
        _ => format!("{line}\n"),
    };
    text.lines().enumerate().map(line).collect()
}

#[tokio::test]
async fn tables_of_each_kind_are_these_on_a_pipe() {
    let served = start().await;
    for kind in KINDS {
        assert_golden(&format!("{kind}.txt"), &without_times(kind, &ok(&served, &["get", kind]).await));
        let wide = ok(&served, &["get", kind, "-o", "wide"]).await;
        assert_golden(&format!("{kind}.wide.txt"), &without_times(kind, &wide));
    }
    assert_golden("all.txt", &ok(&served, &["get", "all"]).await);
    served.stop().await;
}

#[tokio::test]
async fn tables_are_the_same_on_a_terminal_of_80_columns() {
    let served = start().await;
    for kind in KINDS {
        // `script` gives the command a terminal, and writes what came there.
        let get = format!("stty cols 80; {} get {kind}", env!("CARGO_BIN_EXE_pinion"));
        let mut command = Command::new("script");
        command.env("PINION_SOCKET", &served.socket).env("PINION_TENANT", "demo").env("NO_COLOR", "1");
        command.args(["--quiet", "--return", "--command", &get, "/dev/null"]).stdin(Stdio::null());
        let output = command.output().await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n");
        assert_golden(&format!("{kind}.txt"), &without_times(kind, &text));
    }
    served.stop().await;
}

#[tokio::test]
async fn objects_are_named_by_words_or_behind_a_slash_in_all_commands() {
    let served = start().await;
    let names = |value: Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    };
    for words in [&["chain", "web"][..], &["chains/web"], &["ch/web"]] {
        assert_eq!(names(json(&served, &[&["get"], words].concat()).await), ["web"]);
        assert!(ok(&served, &[&["describe"], words].concat()).await.contains("\nName:            web\n"));
    }
    assert_eq!(names(json(&served, &["get", "rule", "web", "ping"]).await), ["ping", "web"]);
    assert_eq!(json(&served, &["get", "fwp/0.0"]).await, json(&served, &["get", "fwps", "0.0"]).await);
    let both = json(&served, &["get", "chain/web", "rule/ping"]).await;
    assert_eq!((&both["chains"][0]["name"], &both["rules"][0]["name"]), (&"web".into(), &"ping".into()));
    let error = refused(&served, &["get", "rule", "ping", "nope"]).await;
    assert_eq!(error, "error: there is no rule \"nope\" of tenant demo");
    assert!(refused(&served, &["get", "rulez"]).await.contains("is no kind that this command takes"));
    assert!(refused(&served, &["describe", "upload/x"]).await.contains("is no kind that this command takes"));

    let deleted = ok(&served, &["delete", "rule/ping", "rule/web", "chain/echo"]).await;
    assert_eq!(deleted, "rule/ping deleted\nrule/web deleted\nchain/echo deleted\n");
    served.stop().await;
}

#[tokio::test]
async fn names_are_what_delete_takes() {
    let served = start().await;
    let names = ok(&served, &["get", "all", "-o", "name"]).await;
    let expected = "module/echo\nmodule/web\nkey/site\nmodel/cifar\nchain/echo\nchain/web\nrule/ping\nrule/web\n";
    assert_eq!(names, expected);
    let words: Vec<&str> = names.lines().collect();
    ok(&served, &[&["delete"], &words[..]].concat()).await;
    assert_eq!(ok(&served, &["get", "all", "-o", "name"]).await, "");
    served.stop().await;
}

#[tokio::test]
async fn applying_what_was_written_as_toml_changes_nothing() {
    let served = start().await;
    for kinds in ["all", "tenants", "modules", "keys", "models", "chains", "rules", "chain/web", "tenant/lab"] {
        let text = ok(&served, &["get", kinds, "-o", "toml"]).await;
        let manifest = write(&served, "again.toml", &text);
        let effects = ok(&served, &["apply", "-f", &manifest]).await;
        assert!(!effects.is_empty(), "{kinds}: {text}");
        assert!(effects.lines().all(|line| line.ends_with(" unchanged")), "{kinds}: {effects}{text}");
    }
    served.stop().await;
}

#[tokio::test]
async fn a_written_manifest_names_what_it_does_not_have_by_digests() {
    let served = start().await;
    assert_golden("all.toml", &ok(&served, &["get", "all", "-o", "toml"]).await);
    served.stop().await;
}

#[tokio::test]
async fn what_is_in_no_manifest_is_not_written_as_toml() {
    let served = start().await;
    for kind in ["uploads", "fwps", "instances"] {
        let error = refused(&served, &["get", kind, "-o", "toml"]).await;
        assert_eq!(error, format!("error: manifests define no {kind}: take -o json or -o yaml"));
    }
    assert!(refused(&served, &["status", "-o", "toml"]).await.contains("has no output as toml: it has table and json"));
    served.stop().await;
}

#[tokio::test]
async fn yaml_has_the_content_of_json() {
    let served = start().await;
    for words in [&["get", "chains"][..], &["get", "all"], &["get", "fwps"], &["describe", "chain/web"]] {
        let yaml = ok(&served, &[words, &["-o", "yaml"]].concat()).await;
        let read: Value = serde_saphyr::from_str(&yaml).unwrap_or_else(|error| panic!("{error}: {yaml}"));
        assert_eq!(read, json(&served, words).await, "{words:?}");
    }
    served.stop().await;
}
