//! Tests of what the built `pinion` command does with revisions, against a control plane with a fake data plane.

use std::fs;
use std::process::{Output, Stdio};
use std::sync::atomic::Ordering;

use crate::support::{Served, wasm};
use tokio::process::Command;

const MANIFEST: &str = r#"version = "pinion.v1"
tenant = "demo"

[[module]]
name = "icmp-echo"
path = "echo.wasm"

[[chain]]
name = "echo"
stage = [{ module = "icmp-echo", config = "hello" }]

[[rule]]
name = "ping"
priority = 100
policy = "per-client"
chain = "echo"
match = { destination = "10.77.0.2", protocol = "icmp" }
"#;

async fn pinion(served: &Served, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
    command.env("PINION_SOCKET", &served.socket).args(arguments).output().await.unwrap()
}

/// Runs the command, which must end with this status, and returns its output and errors.
async fn ends(served: &Served, status: i32, arguments: &[&str]) -> String {
    let output = pinion(served, arguments).await;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    text
}

/// Writes the manifest and its module beside the server's files.
fn write(served: &Served, text: &str) -> String {
    fs::write(served.folder.path().join("echo.wasm"), wasm("echo")).unwrap();
    let path = served.folder.path().join("demo.toml");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Returns the lines of a table as words, without those of the columns with times and users.
fn rows(table: &str) -> Vec<String> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        format!("{}: {}", cells[0], cells[3])
    };
    table.lines().map(row).collect()
}

#[tokio::test]
async fn history_lists_what_was_changed_latest_first() {
    let served = Served::start().await;
    assert_eq!(ends(&served, 0, &["history", "-A"]).await, "There is no revision.\n");
    let of_one = ends(&served, 0, &["history", "-n", "demo"]).await;
    assert_eq!(of_one, "There is no revision of tenant demo; --all-tenants (-A) lists those of all.\n");
    let manifest = write(&served, MANIFEST);
    ends(&served, 0, &["apply", "-f", &manifest]).await;
    let manifest = write(&served, &MANIFEST.replace("hello", "other"));
    ends(&served, 0, &["apply", "-f", &manifest]).await;
    ends(&served, 0, &["delete", "rule", "ping", "--tenant", "demo"]).await;
    let first = "1: module/demo/icmp-echo created, chain/demo/echo created, rule/demo/ping created";
    let third = "3: rule/demo/ping deleted";
    assert_eq!(
        rows(&ends(&served, 0, &["history", "-A"]).await),
        ["REVISION: CHANGES", third, "2: chain/demo/echo configured", first]
    );
    assert_eq!(
        rows(&ends(&served, 0, &["history", "rule/ping", "--tenant", "demo"]).await),
        ["REVISION: CHANGES", "3: rule/ping deleted", "1: rule/ping created"]
    );
    let page = rows(&ends(&served, 0, &["history", "--before", "3", "--limit", "1", "-A"]).await);
    assert_eq!(page[1..], ["2: chain/demo/echo configured"]);
    let json: serde_json::Value =
        serde_json::from_str(&ends(&served, 0, &["history", "chains", "-o", "json", "-A"]).await).unwrap();
    assert_eq!(json[0]["number"], 2);
    assert_eq!(json[0]["changes"][0]["kind"], "chain");
    assert!(json[0]["author"].as_str().unwrap().ends_with("(operator)"));
    assert!(ends(&served, 2, &["history", "thing/x", "-A"]).await.contains("the kinds are tenant, module"));
    served.stop().await;
}

#[tokio::test]
async fn diff_tells_by_its_exit_status_whether_there_are_differences() {
    let served = Served::start().await;
    let manifest = write(&served, MANIFEST);
    let new = ends(&served, 1, &["diff", "-f", &manifest]).await;
    assert!(new.contains("--- /dev/null\n+++ rule demo/ping (the manifest)\n"), "{new}");
    ends(&served, 0, &["apply", "-f", &manifest]).await;
    assert_eq!(ends(&served, 0, &["diff", "-f", &manifest]).await, "");
    let manifest = write(&served, &MANIFEST.replace("priority = 100", "priority = 50"));
    let expected = "--- rule demo/ping (the node)\n+++ rule demo/ping (the manifest)\n";
    let changed = ends(&served, 1, &["diff", "-f", &manifest]).await;
    assert!(changed.starts_with(expected) && changed.contains("\n-priority = 100\n+priority = 50\n"), "{changed}");
    ends(&served, 0, &["apply", "-f", &manifest]).await;
    let between = ends(&served, 1, &["diff", "1", "2", "--tenant", "demo"]).await;
    assert!(between.starts_with("--- rule demo/ping (revision 1)\n+++ rule demo/ping (revision 2)\n"), "{between}");
    assert_eq!(ends(&served, 0, &["diff", "2", "--tenant", "demo"]).await, "");
    let unknown = ends(&served, 2, &["diff", "7", "--tenant", "demo"]).await;
    assert_eq!(unknown, "error: there is no revision 7 yet: the latest is 2\n");
    ends(&served, 2, &["diff", "-f", "/nowhere.toml"]).await;
    let unknown = ends(&served, 2, &["diff", "0", "--tenant", "tpyo"]).await;
    assert!(unknown.starts_with("error: there is no tenant tpyo: "), "{unknown}");

    let mut unread = Command::new(env!("CARGO_BIN_EXE_pinion"));
    unread.env("PINION_SOCKET", &served.socket).args(["diff", "1", "2", "--tenant", "demo"]).stdout(Stdio::piped());
    let mut unread = unread.spawn().unwrap();
    drop(unread.stdout.take());
    assert_eq!(unread.wait().await.unwrap().code(), Some(1), "there are differences, whether or not they are read");
    served.stop().await;
}

#[tokio::test]
async fn an_undo_returns_to_the_revision_before_or_to_the_one_that_is_named() {
    let served = Served::start().await;
    let manifest = write(&served, MANIFEST);
    ends(&served, 0, &["apply", "-f", &manifest]).await;
    let manifest = write(&served, &MANIFEST.replace("priority = 100", "priority = 50"));
    ends(&served, 0, &["apply", "-f", &manifest, "--wait"]).await;
    let undo = ["rollout", "undo", "--tenant", "demo"];
    assert_eq!(ends(&served, 0, &[&undo[..], &["--dry-run"]].concat()).await, "rule/ping configured (dry run)\n");
    assert_eq!(ends(&served, 0, &undo).await, "rule/ping configured\n");
    assert_eq!(ends(&served, 0, &["diff", "1", "--tenant", "demo"]).await, "");
    let same = ends(&served, 0, &[&undo[..], &["--to-revision", "1"]].concat()).await;
    assert_eq!(same, "Tenant demo is as it was at revision 1 already.\n");
    let all = ends(&served, 0, &[&undo[..], &["--to-revision", "0", "-o", "json"]].concat()).await;
    let json: serde_json::Value = serde_json::from_str(&all).unwrap();
    assert_eq!((&json["version"], &json["restored"]), (&4.into(), &0.into()));
    assert_eq!(ends(&served, 0, &["get", "modules", "-o", "json", "-A"]).await, "[]\n");
    assert_eq!(ends(&served, 0, &["rollout", "status"]).await, "revision 4 is in force\n");
    served.stop().await;
}

#[tokio::test]
async fn a_wait_ends_when_each_chain_has_an_instance_and_names_those_without_one() {
    let served = Served::start().await;
    let manifest = write(&served, MANIFEST);
    served.node.has_no_instances.store(true, Ordering::Relaxed);
    let wait = ["apply", "-f", &manifest, "--wait", "--timeout", "200ms"];
    let done = "module/icmp-echo created\nchain/echo created\nrule/ping created\n";
    let why = "error: revision 1 is followed, but after 200ms no instance is ready of chain demo/echo: ";
    let late = ends(&served, 1, &wait).await;
    assert!(late.starts_with(&format!("{done}{why}")), "{late}");
    let late = ends(&served, 1, &["rollout", "status", "--timeout", "200ms"]).await;
    assert!(late.starts_with(why), "{late}");
    let undo = ["rollout", "undo", "--tenant", "demo", "--wait", "--timeout", "200ms"];
    let undone = ends(&served, 0, &undo).await;
    assert_eq!(undone, "module/icmp-echo deleted\nchain/echo deleted\nrule/ping deleted\n");
    let again = ends(&served, 1, &[&undo[..], &["-o", "json"]].concat()).await;
    assert!(
        again.starts_with("{") && again.contains("\"version\": 3") && again.contains("no instance is ready"),
        "{again}"
    );

    let manifest = write(&served, &MANIFEST.replace("stage =", "cache_min = 0\nstage ="));
    ends(&served, 0, &["apply", "-f", &manifest, "--wait"]).await;
    served.node.has_no_instances.store(false, Ordering::Relaxed);
    let manifest = write(&served, MANIFEST);
    ends(&served, 0, &["apply", "-f", &manifest, "--wait"]).await;
    let useless = ends(&served, 2, &["apply", "-f", &manifest, "--timeout", "1s"]).await;
    assert!(useless.contains("--wait"), "{useless}");
    served.stop().await;
}

#[tokio::test]
async fn dry_runs_change_nothing_and_outdated_changes_are_bad_input() {
    let served = Served::start().await;
    let manifest = write(&served, MANIFEST);
    let planned = "module/icmp-echo created (dry run)\nchain/echo created (dry run)\nrule/ping created (dry run)\n";
    assert_eq!(ends(&served, 0, &["apply", "-f", &manifest, "--dry-run"]).await, planned);
    assert_eq!(ends(&served, 0, &["get", "chains", "-o", "json", "-A"]).await, "[]\n");
    ends(&served, 0, &["apply", "-f", &manifest, "--expected-revision", "0"]).await;
    let outdated = ends(&served, 2, &["delete", "-f", &manifest, "--expected-revision", "0"]).await;
    assert!(
        outdated.starts_with("error: the request expects revision 0, and revision 1 has changed objects"),
        "{outdated}"
    );
    let planned = ends(&served, 0, &["delete", "rule", "ping", "--tenant", "demo", "--dry-run"]).await;
    assert_eq!(planned, "rule/ping deleted (dry run)\n");
    ends(&served, 0, &["delete", "-f", &manifest, "--expected-revision", "1"]).await;
    served.stop().await;
}
