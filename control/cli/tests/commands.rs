//! Tests of the built `pinion` command against a control plane with a fake data plane.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Served, wasm};
use pinion_control::journal::{Level, LogLine, Origin};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

const MANIFEST: &str = r#"version = "pinion.v1"
tenant = "demo"

[[module]]
name = "icmp-echo"
path = "echo.wasm"

[[chain]]
name = "echo"

[[chain.stage]]
module = "icmp-echo"
config = "hello"

[[rule]]
name = "ping"
priority = 100
policy = "per-client"
chain = "echo"

[rule.match]
destination = "10.77.0.2/32"
protocol = "icmp"
"#;

async fn pinion(socket: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
    command.env("PINION_SOCKET", socket).args(arguments).output().await.unwrap()
}

/// Runs the command, which must succeed, and returns its output.
async fn ok(served: &Served, arguments: &[&str]) -> String {
    let output = pinion(&served.socket, arguments).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command, which must fail, and returns the exit code and the one-line error.
async fn fails(socket: &Path, arguments: &[&str]) -> (i32, String) {
    let output = pinion(socket, arguments).await;
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: ") && error.trim_end().lines().count() == 1, "{error}");
    assert_eq!(output.stdout, b"");
    (output.status.code().unwrap(), error.trim_end().to_owned())
}

/// Writes the manifest and its module beside the server's files.
fn write_manifest(served: &Served, text: &str) -> String {
    fs::write(served.folder.path().join("echo.wasm"), wasm("echo")).unwrap();
    let path = served.folder.path().join("demo.toml");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[tokio::test]
async fn apply_reports_the_effect_on_each_object() {
    let served = Served::start().await;
    let manifest = write_manifest(&served, MANIFEST);
    let created = "module/icmp-echo created\nchain/echo created\nrule/ping created\n";
    assert_eq!(ok(&served, &["apply", "-f", &manifest]).await, created);
    assert_eq!(ok(&served, &["apply", "-f", &manifest]).await, created.replace("created", "unchanged"));
    let manifest = write_manifest(&served, &MANIFEST.replace("priority = 100", "priority = 50"));
    let configured = "module/icmp-echo unchanged\nchain/echo unchanged\nrule/ping configured\n";
    assert_eq!(ok(&served, &["apply", "-f", &manifest]).await, configured);
    let json: serde_json::Value =
        serde_json::from_str(&ok(&served, &["apply", "-o", "json", "-f", &manifest]).await).unwrap();
    assert_eq!(json["version"], 2);
    assert_eq!(
        json["outcomes"][2],
        serde_json::json!({"kind": "rule", "tenant": "demo", "name": "ping", "effect": "unchanged"})
    );
    served.stop().await;
}

#[tokio::test]
async fn several_manifests_and_folders_are_one_change() {
    let served = Served::start().await;
    write_manifest(&served, MANIFEST);
    let (module, rest) = MANIFEST.split_once("[[chain]]\n").unwrap();
    let more = served.folder.path().join("more");
    fs::create_dir(&more).unwrap();
    fs::write(more.join("chain.toml"), format!("version = \"pinion.v1\"\ntenant = \"demo\"\n[[chain]]\n{rest}"))
        .unwrap();
    let module = write_manifest(&served, module);
    let more = more.display().to_string();
    let (code, error) = fails(&served.socket, &["apply", "-f", &more]).await;
    assert_eq!(code, 2);
    assert!(error.starts_with("error: chain demo/echo: stage 1 names the module icmp-echo"), "{error}");
    let printed = ok(&served, &["apply", "-f", &more, "-f", &module]).await;
    assert_eq!(printed, "module/icmp-echo created\nchain/echo created\nrule/ping created\n");
    served.stop().await;
}

#[tokio::test]
async fn a_misspelt_key_is_bad_input_with_file_line_and_key() {
    let served = Served::start().await;
    let manifest = write_manifest(&served, &MANIFEST.replace("priority", "prioritty"));
    let (code, error) = fails(&served.socket, &["apply", "-f", &manifest]).await;
    assert_eq!(code, 2);
    assert!(error.starts_with(&format!("error: {manifest}:17: rule: unknown key `prioritty`")), "{error}");
    assert_eq!(ok(&served, &["get", "modules", "-o", "json", "-A"]).await, "[]\n");
    served.stop().await;
}

#[tokio::test]
async fn a_refused_manifest_is_bad_input_and_leaves_nothing_behind() {
    let served = Served::start().await;
    for (from, to, problem) in [
        ("\"pinion.v1\"", "\"pinion.v9\"", ":1: version is \"pinion.v9\": this pinion reads version = \"pinion.v1\""),
        ("chain = \"echo\"", "chain = \"nope\"", "rule demo/ping names chain demo/nope, which does not exist"),
        ("module = \"icmp-echo\"", "module = \"nope\"", "chain demo/echo: stage 1 names the module nope"),
        ("name = \"echo\"\n", "name = \"echo\"\negress = \"wan\"\n", "chain demo/echo: this node has no port wan"),
        ("config =", "outputs = [\"port:wan\"]\nconfig =", "chain demo/echo: this node has no port wan"),
        (
            "config =",
            "outputs = [\"next\"]\nconfig =",
            ":13: outputs: \"next\" is no stage's name: say the name of a later",
        ),
        (
            "name = \"echo\"\n",
            "name = \"echo\"\nhold_frames = 2000\n",
            ":10: chain echo: hold_frames is 2000: it must be",
        ),
        ("\"10.77.0.2/32\"", "\"10.77.0.2/24\"", ":22: rule.match.destination: 10.77.0.2/24 has bits set"),
        ("\"echo.wasm\"", "\"nope.wasm\"", ":6: path names "),
        ("\"echo.wasm\"", "\"demo.toml\"", "this is not a WebAssembly module"),
    ] {
        let manifest = write_manifest(&served, &MANIFEST.replacen(from, to, 1));
        let (code, error) = fails(&served.socket, &["apply", "-f", &manifest]).await;
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(problem), "{error}");
    }
    let manifest = write_manifest(&served, "version = \"pinion.v1\"\n");
    let (code, error) = fails(&served.socket, &["apply", "-f", &manifest]).await;
    assert_eq!((code, error), (2, format!("error: {manifest}: no object is in there")));
    for kind in ["modules", "chains", "rules"] {
        assert_eq!(ok(&served, &["get", kind, "-o", "json", "-A"]).await, "[]\n");
    }
    served.stop().await;
}

#[tokio::test]
async fn lists_are_plain_tables() {
    let served = Served::start().await;
    ok(&served, &["apply", "-f", &write_manifest(&served, MANIFEST)]).await;
    assert_eq!(
        ok(&served, &["get", "fwps", "-A"]).await,
        "TENANT   CHAIN   INSTANCE   FWP           MODULE      STATE      CLIENT        CORE   RECEIVED   SENT   DROPPED   \
         MEMORY   AGE\n\
         demo     echo    -          demo/echo/0   icmp-echo   template   -             -      0          0      0         \
         0B       1m5s\n\
         demo     echo    0          0.0           icmp-echo   active     10.77.0.101   1      7          5      2         \
         1.1MiB   1m5s\n"
    );
    assert_eq!(
        ok(&served, &["get", "rules", "ping", "--tenant", "demo"]).await,
        "TENANT   NAME   PRIORITY   POLICY       CHAIN   MATCH\n\
         demo     ping   100        per-client   echo    destination 10.77.0.2/32, protocol icmp\n"
    );
    assert_eq!(
        ok(&served, &["get", "chains", "-A"]).await,
        "TENANT   NAME   STAGES      EGRESS   READY   ACTIVE   FAILURES\n\
         demo     echo   icmp-echo   -        4       1        0\n"
    );
    assert_eq!(
        ok(&served, &["get", "instances", "0", "-A"]).await,
        "TENANT   CHAIN   INSTANCE   STATE    CLIENT        FWPS   CORE   AGE    ENDED\n\
         demo     echo    0          active   10.77.0.101   0.0    1      1m5s   -\n"
    );
    assert_eq!(
        ok(&served, &["get", "state", "sessions", "-A"]).await,
        "TENANT   NAME       ENTRIES   OF     MEMORY     LIMIT     HITS   MISSES   WRITES   DENIED   FULL   EVICTED\n\
         demo     sessions   21        1000   301.0KiB   16.0MiB   22     23       24       25       26     27\n"
    );
    assert_eq!(ok(&served, &["get", "state", "--tenant", "other"]).await, "");
    let (code, error) = fails(&served.socket, &["get", "state", "sesions", "-A"]).await;
    assert_eq!((code, &*error), (2, "error: there is no state field \"sesions\""));
    assert!(ok(&served, &["get", "module", "-A"]).await.contains("icmp-echo   sha256:"));
    assert_eq!(ok(&served, &["get", "rules", "--tenant", "other"]).await, "");
    served.stop().await;
}

#[tokio::test]
async fn json_shows_whole_objects() {
    let served = Served::start().await;
    ok(&served, &["apply", "-f", &write_manifest(&served, MANIFEST)]).await;
    let json = async |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&ok(&served, arguments).await).unwrap()
    };
    let rule = json(&["get", "rules", "-o", "json", "-A"]).await;
    assert_eq!(
        rule[0]["match"],
        serde_json::json!({"port": null, "vlan": null, "inner_vlan": null, "source": null, "destination": "10.77.0.2/32",
            "protocol": "icmp", "icmp_type": null, "source_ports": null, "destination_ports": null})
    );
    assert_eq!(rule[0]["policy"], "per-client");
    let chain = json(&["describe", "chain", "echo", "--tenant", "demo", "-o", "json"]).await;
    assert_eq!(
        chain["stages"][0],
        serde_json::json!({"module": "icmp-echo", "name": null, "config": {"text": "hello"}, "files": null,
            "outputs": ["egress"], "state": [], "keys": [], "models": []})
    );
    assert_eq!((&chain["hold_frames"], &chain["idempotent"]), (&0.into(), &false.into()));
    let fwp = json(&["get", "fwps", "-o", "json", "-A"]).await;
    assert_eq!((&fwp[0]["state"], &fwp[0]["id"]), (&"template".into(), &"demo/echo/0".into()));
    assert_eq!((&fwp[1]["state"], &fwp[1]["counters"]["received"]), (&"active".into(), &7.into()));
    let status = json(&["status", "-o", "json"]).await;
    assert_eq!((&status["desired_version"], &status["ports"][0]["name"]), (&1.into(), &"lan".into()));
    assert_eq!((&status["copied_bytes"], &status["dropped_instance_ended"]), (&4096.into(), &1.into()));
    assert_eq!(
        status["activation"],
        serde_json::json!({"count": 7, "p50_ns": 900, "p90_ns": 1200, "p99_ns": 4000, "max_ns": 1500000})
    );
    assert_eq!(
        status["chains"][0]["drops"][1],
        serde_json::json!({"place": "0/icmp-echo", "reason": "no-slot", "count": 4})
    );
    served.stop().await;
}

#[tokio::test]
async fn describe_and_status_show_what_belongs_together() {
    let served = Served::start().await;
    ok(&served, &["apply", "-f", &write_manifest(&served, MANIFEST)]).await;
    let chain = ok(&served, &["describe", "chains", "echo", "--tenant", "demo"]).await;
    assert!(chain.contains("\nStages:          0. icmp-echo, config of 5B\n"), "{chain}");
    assert!(chain.contains("\nRules:           ping\n"), "{chain}");
    assert!(chain.contains("\nHeld:            nothing: what finds no room is dropped\n"), "{chain}");
    let drops = "\nDropped:         7\nOf which:        3 at gateway, no-instance\n                 4 at 0/icmp-echo, no-slot\n";
    assert!(chain.ends_with(drops), "{chain}");
    let module = ok(&served, &["describe", "module", "icmp-echo", "--tenant", "demo"]).await;
    assert!(module.ends_with("\nChains:  echo\n"), "{module}");
    let template = ok(&served, &["describe", "fwp", "demo/echo/0", "--tenant", "demo"]).await;
    assert!(template.contains("Worker core:              -\n"), "{template}");
    let fwp = ok(&served, &["describe", "fwp", "0.0", "--tenant", "demo"]).await;
    assert!(fwp.contains("Received:                 7 packets, 0 bytes\n"), "{fwp}");
    let tenant = ok(&served, &["describe", "tenant", "demo"]).await;
    let expected = "Tenant:  demo\nTerms:   the node's defaults: it has none of its own\n\n\
                    RESOURCE            USED     GUARANTEED   LIMIT              REFUSED\n\
                    fwps                4        16           -                  2\n\
                    memory              4.2MiB   -            8.0MiB             -\n\
                    cpu                 1.5s     -            100.0ms a second   -\n\
                    modules             1        -            6144               0\n";
    assert!(tenant.starts_with(expected), "{tenant}");
    let metrics = ok(&served, &["metrics", "--node"]).await;
    assert!(metrics.contains("\npinion_node_worker_panics_total{core=\"1\"} 0\n"), "{metrics}");
    assert!(metrics.contains("\npinion_node_jobs_done_total{tenant=\"demo\",kind=\"inference\"} 9\n"), "{metrics}");
    let status = ok(&served, &["status"]).await;
    assert!(status.contains("version 1, version 1 in effect"), "{status}");
    assert!(
        status.contains("lan    net_tap0   02:00:00:00:00:01   1500   up     12         10     bad-checksum=2"),
        "{status}"
    );
    assert!(status.contains("Copied:              4096 bytes\nDropped, FWP ended:  1\n"), "{status}");
    let meters = "TENANT   CHAIN   READY   ACTIVE   MEMORY   LIMIT   FAILURES   LAST FAILURE\n\
                  demo     echo    4       1        4.2MiB   -       0          -\n\n\
                  TENANT   MEMORY   LIMIT    FWPS   GUARANTEED   REFUSED\n\
                  demo     4.2MiB   8.0MiB   1      2048         3\n\n\
                  TENANT   CHAIN   CPU     ACTIVATIONS   PREEMPTIONS   WAIT P50   WAIT P99   COPIED   DROPPED\n\
                  demo     -       6.0ms   0             6             0ns        0ns        7B       8\n\
                  demo     echo    5.4ms   5             0             1.1us      44.0us     0B       7\n\n\
                  TENANT   JOBS        DONE   CPU       WAITING   REFUSED    DROPPED\n\
                  demo     inference   9      500.0us   1         memory=2   0\n";
    assert!(status.contains(meters), "{status}");
    let drops = "TENANT   CHAIN   DROPPED AT    REASON        COUNT\n\
                 demo     echo    gateway       no-instance   3\n\
                 demo     echo    0/icmp-echo   no-slot       4\n";
    let latencies = "LATENCY      COUNT   P50     P90     P99     MAX\n\
                     activation   7       900ns   1.2us   4.0us   1.5ms\n";
    assert!(status.ends_with(&format!("{drops}\n{latencies}")), "{status}");
    served.stop().await;
}

#[tokio::test]
async fn describe_shows_where_the_stages_of_a_chain_lead_and_what_it_holds() {
    let served = Served::start().await;
    let (head, tail) = MANIFEST.split_once("[[chain]]").unwrap();
    let (_, rule) = tail.split_once("[[rule]]").unwrap();
    let stages = "[[chain]]\nname = \"echo\"\nhold_frames = 8\nidempotent = true\nstage = [\n\
        { module = \"icmp-echo\", name = \"sort\", outputs = [\"slow\", \"fast\", \"port:lan\"] },\n\
        { module = \"icmp-echo\", name = \"fast\", outputs = [\"egress\"] },\n\
        { module = \"icmp-echo\", name = \"slow\" },\n]\n";
    ok(&served, &["apply", "-f", &write_manifest(&served, &format!("{head}{stages}[[rule]]{rule}"))]).await;
    let chain = ok(&served, &["describe", "chain", "echo", "--tenant", "demo"]).await;
    let shown = "\nStages:          0. icmp-echo (sort), config of 0B, to slow, fast, port:lan\n                 \
                 1. icmp-echo (fast), config of 0B, to egress\n                 \
                 2. icmp-echo (slow), config of 0B\n";
    assert!(chain.contains(shown), "{chain}");
    assert!(chain.contains("\nHeld:            up to 8 packets\n"), "{chain}");
    assert!(chain.contains("\nIdempotent:      yes: a call whose instance ends is delivered again\n"), "{chain}");
    served.stop().await;
}

#[tokio::test]
async fn builds_are_shown_in_the_status_and_on_the_terminal_that_waits_for_them() {
    let served = Served::start().await;
    *served.node.build_time.lock().unwrap() = Duration::from_millis(1500);
    let manifest = write_manifest(&served, MANIFEST);
    // `script` gives the command a terminal, and writes what came there.
    let apply = format!("{} apply -f {manifest}", env!("CARGO_BIN_EXE_pinion"));
    let mut command = Command::new("script");
    command.env("PINION_SOCKET", &served.socket).args(["--quiet", "--return", "--command", &apply, "/dev/null"]);
    let applying = tokio::spawn(async move { command.stdin(Stdio::null()).output().await.unwrap() });
    let status = loop {
        let status = ok(&served, &["status"]).await;
        if status.contains("BUILDING") {
            break status;
        }
        assert!(!applying.is_finished(), "{status}");
    };
    assert!(
        status.contains("TENANT   BUILDING           PHASE       SINCE\ndemo     echo/0 icmp-echo   compiling   0s\n"),
        "{status}"
    );
    let output = applying.await.unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("\r\u{1b}[Kcompiling echo/0 icmp-echo ("), "{shown:?}");
    assert!(
        shown.ends_with("\r\u{1b}[Kmodule/icmp-echo created\r\nchain/echo created\r\nrule/ping created\r\n"),
        "{shown:?}"
    );
    assert!(!ok(&served, &["status"]).await.contains("BUILDING"));
    served.stop().await;
}

#[tokio::test]
async fn standard_error_has_only_errors_if_it_is_no_terminal() {
    let served = Served::start().await;
    *served.node.build_time.lock().unwrap() = Duration::from_millis(500);
    let manifest = write_manifest(&served, MANIFEST);
    assert_eq!(pinion(&served.socket, &["apply", "-f", &manifest]).await.stderr, b"");
    served.stop().await;
}

/// Returns a line of the chain `echo`'s first instance.
fn said(tenant: &str, level: Level, text: &str, lost: u64) -> LogLine {
    let (tenant, chain, module) = (tenant.parse().unwrap(), "echo".parse().unwrap(), "m".parse().unwrap());
    let origin = Arc::new(Origin { tenant, chain, stage: 0, module, fwp: "7".into() });
    LogLine { time_unix_ms: 1_769_860_800_123, level, origin, text: text.into(), lost }
}

#[tokio::test]
async fn logs_show_what_functions_say_by_tenant_and_chain() {
    let served = Served::start().await;
    served.node.journal.push(said("demo", Level::Info, "hello", 0));
    served.node.journal.push(said("lab", Level::Error, "it trapped: why\n   0: main", 0));
    served.node.journal.push(said("demo", Level::Warn, "again", 3));
    let shown = "2026-01-31T12:00:00.123Z info  echo/0[7] hello\n\
                 2026-01-31T12:00:00.123Z warn  demo: 3 lines were lost here\n\
                 2026-01-31T12:00:00.123Z warn  echo/0[7] again\n";
    assert_eq!(ok(&served, &["logs", "--tenant", "demo"]).await, shown);
    let shown = "2026-01-31T12:00:00.123Z error lab/echo/0[7] it trapped: why\n       0: main\n";
    assert!(ok(&served, &["logs", "-A"]).await.contains(shown));
    assert_eq!(ok(&served, &["logs", "--chain", "web", "-A"]).await, "");
    let last = ok(&served, &["logs", "--tail", "1", "-o", "json", "-A"]).await;
    let last: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!((&last["text"], &last["tenant"], &last["lost"]), (&"again".into(), &"demo".into(), &3.into()));
    served.stop().await;
}

#[tokio::test]
async fn following_logs_shows_new_lines_and_does_not_delay_a_node_that_stops() {
    let served = Served::start().await;
    served.node.journal.push(said("demo", Level::Info, "before", 0));
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
    command.env("PINION_SOCKET", &served.socket).args(["logs", "-f", "-A"]).stdout(Stdio::piped());
    let mut following = command.spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().ends_with("before"));
    served.node.journal.push(said("demo", Level::Info, "after", 0));
    assert!(lines.next_line().await.unwrap().unwrap().ends_with("after"));
    served.stop().await;
    assert!(
        following.wait().await.unwrap().success(),
        "the node broke off what was under way, as its time to end was over"
    );
}

#[tokio::test]
async fn a_pushed_module_is_known_by_its_digest_and_changes_nothing_until_a_manifest_names_it() {
    let served = Served::start().await;
    let manifest = write_manifest(&served, MANIFEST);
    let pushed = ok(&served, &["push", "-f", &manifest]).await;
    let digest = pushed.strip_prefix("module/icmp-echo ").unwrap().trim_end();
    assert!(digest.starts_with("sha256:"), "{pushed}");
    let module = served.folder.path().join("echo.wasm").display().to_string();
    assert_eq!(ok(&served, &["push", &module, "--tenant", "demo"]).await.trim_end(), digest);
    assert_eq!(ok(&served, &["get", "modules", "-o", "json", "-A"]).await, "[]\n");
    let uploads = ok(&served, &["get", "uploads", "--tenant", "demo"]).await;
    let line = uploads.lines().nth(1).unwrap();
    assert!(line.starts_with(&format!("demo     {digest}   9B     ")), "{uploads}");
    let json: serde_json::Value =
        serde_json::from_str(&ok(&served, &["get", "uploads", digest, "-o", "json", "-A"]).await).unwrap();
    assert_eq!((&json[0]["digest"], &json[0]["size_bytes"]), (&digest.into(), &9.into()));
    let (code, error) = fails(&served.socket, &["get", "uploads", "sha256:7", "-A"]).await;
    assert_eq!((code, error.as_str()), (2, "error: there is no upload \"sha256:7\""));

    // Applying a pushed module needs no file.
    fs::remove_file(&module).unwrap();
    let named = MANIFEST.replace("path = \"echo.wasm\"", &format!("digest = \"{digest}\""));
    let path = served.folder.path().join("demo.toml");
    fs::write(&path, &named).unwrap();
    let created = "module/icmp-echo created\nchain/echo created\nrule/ping created\n";
    assert_eq!(ok(&served, &["apply", "-f", &manifest]).await, created);
    assert_eq!(ok(&served, &["get", "uploads", "-o", "json", "-A"]).await, "[]\n");
    let (code, error) = fails(&served.socket, &["push", "-f", &manifest]).await;
    assert_eq!(
        (code, error),
        (2, format!("error: {manifest}: it names no file of a module, key or model: there is nothing to push"))
    );
    fs::write(&path, named.replace(digest, &format!("sha256:{}", "0".repeat(64)))).unwrap();
    let (code, error) = fails(&served.socket, &["apply", "-f", &manifest]).await;
    assert_eq!(code, 2);
    assert!(error.contains("its tenant has uploaded nothing with the digest sha256:000"), "{error}");
    served.stop().await;
}

#[tokio::test]
async fn a_file_that_is_no_module_cannot_be_pushed() {
    let served = Served::start().await;
    let manifest = write_manifest(&served, MANIFEST);
    let (code, error) = fails(&served.socket, &["push", &manifest]).await;
    assert_eq!(code, 2);
    assert!(error.starts_with(&format!("error: {manifest}: this is not a WebAssembly module")), "{error}");
    let (code, error) = fails(&served.socket, &["push", "/nonexistent/m.wasm"]).await;
    assert_eq!((code, error.starts_with("error: /nonexistent/m.wasm: ")), (2, true), "{error}");
    assert_eq!(ok(&served, &["get", "uploads", "-o", "json", "-A"]).await, "[]\n");
    served.stop().await;
}

#[tokio::test]
async fn without_a_file_the_manifest_of_the_nearest_folder_above_is_taken() {
    let served = Served::start().await;
    let root = served.folder.path().join("mine");
    let deep = root.join("src/deep");
    fs::create_dir_all(&deep).unwrap();
    fs::write(root.join("echo.wasm"), wasm("echo")).unwrap();
    fs::write(root.join("pinion.toml"), MANIFEST).unwrap();
    let run = async |folder: &Path, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
        let output =
            command.env("PINION_SOCKET", &served.socket).args(words).current_dir(folder).output().await.unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let pushed = run(&deep, &["push"]).await;
    assert_eq!(run(&root, &["push"]).await, pushed);
    assert_eq!(run(Path::new("/"), &["push", "--manifest-path", root.to_str().unwrap()]).await, pushed);
    assert!(run(&deep, &["apply"]).await.contains("chain/echo created\n"));
    let manifest = root.join("pinion.toml");
    assert!(run(Path::new("/"), &["apply", "--manifest-path", manifest.to_str().unwrap()]).await.contains("unchanged"));
    served.stop().await;
}

#[tokio::test]
async fn metrics_are_shown_for_prometheus_and_as_json_by_tenant_and_chain() {
    let served = Served::start().await;
    let manifest = write_manifest(&served, MANIFEST);
    ok(&served, &["apply", "-f", &manifest]).await;
    let shown = ok(&served, &["metrics", "--tenant", "demo", "--chain", "echo"]).await;
    let series =
        "pinion_function_depth{tenant=\"demo\",chain=\"echo\",stage=\"0\",module=\"icmp-echo\",way=\"in\"} -7\n";
    assert!(shown.contains(series) && shown.contains("# TYPE pinion_function_hits_total counter\n"), "{shown}");
    let json = ok(&served, &["metrics", "-o", "json", "-A"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["name"], &json[0]["value"]["counter"]), (&"hits".into(), &u64::MAX.into()));
    assert_eq!(json[1]["value"]["gauge"], -7);
    for elsewhere in [&["--tenant", "lab"][..], &["-A", "--chain", "web"]] {
        assert_eq!(ok(&served, &[&["metrics"][..], elsewhere].concat()).await, "");
    }
    served.stop().await;
}

#[tokio::test]
async fn delete_takes_names_or_manifests() {
    let served = Served::start().await;
    let manifest = write_manifest(&served, MANIFEST);
    ok(&served, &["apply", "-f", &manifest]).await;
    let (code, error) = fails(&served.socket, &["delete", "chain", "echo", "--tenant", "demo"]).await;
    assert_eq!(code, 2);
    assert!(error.starts_with("error: chain demo/echo is in use by rule demo/ping"), "{error}");
    assert_eq!(ok(&served, &["delete", "rules", "ping", "--tenant", "demo"]).await, "rule/ping deleted\n");
    let (code, error) = fails(&served.socket, &["delete", "-f", &manifest]).await;
    assert_eq!((code, error.as_str()), (2, "error: there is no rule demo/ping"));
    ok(&served, &["apply", "-f", &manifest]).await;
    fs::remove_file(served.folder.path().join("echo.wasm")).unwrap();
    let deleted = "module/icmp-echo deleted\nchain/echo deleted\nrule/ping deleted\n";
    assert_eq!(ok(&served, &["delete", "-f", &manifest]).await, deleted);
    served.stop().await;
}

#[tokio::test]
async fn an_unknown_name_is_bad_input() {
    let served = Served::start().await;
    for (arguments, problem) in [
        (&["get", "rule", "nope"][..], "there is no rule \"nope\" of tenant default"),
        (
            &["get", "instances", "nope"],
            "\"nope\" is not a chain instance: these have numbers, see pinion get instances",
        ),
        (&["describe", "chain", "nope"], "there is no chain \"nope\" of tenant default"),
        (&["describe", "tenant", "nope"], "tenant nope has nothing on this node"),
        (
            &["describe", "tenant", "No_Name"],
            "\"No_Name\" is not a tenant name: use 1 to 63 of a-z, 0-9 and '-', with no '-' first or last",
        ),
        (&["delete", "module", "No_Name"], "there is no module \"No_Name\" of tenant default"),
        (&["delete", "module", "nope"], "there is no module default/nope"),
    ] {
        assert_eq!(fails(&served.socket, arguments).await, (2, format!("error: {problem}")));
    }
    served.stop().await;
}

#[tokio::test]
async fn without_a_node_the_error_says_so_after_the_manifest_was_checked() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");
    let (code, error) = fails(&socket, &["status"]).await;
    assert_eq!((code, error), (3, format!("error: no piniond at {}: is it running?", socket.display())));
    let manifest = folder.path().join("bad.toml");
    fs::write(&manifest, "version = \"pinion.v1\"\nnope = 1\n").unwrap();
    assert_eq!(fails(&socket, &["apply", "-f", manifest.to_str().unwrap()]).await.0, 2);
}

#[tokio::test]
async fn output_that_cannot_be_written_is_a_failure_and_output_that_nothing_reads_is_not() {
    let served = Served::start().await;
    ok(&served, &["apply", "-f", &write_manifest(&served, MANIFEST)]).await;
    served.node.journal.push(said("demo", Level::Info, "hello", 0));
    for words in [
        &["get", "rules", "-A"][..],
        &["get", "rules", "-o", "json", "-A"],
        &["describe", "chain", "echo", "--tenant", "demo"],
        &["status"],
        &["metrics", "-A"],
        &["logs", "-A"],
    ] {
        let run = async |stdout: Stdio, stderr: Stdio| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
            command.env("PINION_SOCKET", &served.socket).args(words).stdout(stdout).stderr(stderr);
            command.spawn().unwrap().wait_with_output().await.unwrap()
        };
        let full = || Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap());
        let closed = || Stdio::from(std::io::pipe().unwrap().1);
        let output = run(full(), Stdio::piped()).await;
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(error.contains("No space left on device (os error 28)"), "{words:?}: {error}");
        assert_eq!(run(full(), full()).await.status.code(), Some(1), "{words:?}");
        assert_eq!(run(closed(), full()).await.status.code(), Some(0), "{words:?}");
    }
    // A note on standard error, in addition to the requested output.
    for stderr in ["/dev/full", "/dev/null"] {
        let stderr = fs::File::options().write(true).open(stderr).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
        command.env("PINION_SOCKET", &served.socket).args(["get", "rules", "--tenant", "none"]).stderr(stderr);
        assert!(command.output().await.unwrap().status.success());
    }
    served.stop().await;
}

#[tokio::test]
async fn a_command_line_that_makes_no_sense_is_bad_input() {
    let nowhere = Path::new("/nonexistent");
    for arguments in
        [&["get", "rulez"][..], &["apply"], &["delete", "chain"], &["delete", "-f", "x", "--tenant", "t"], &[]]
    {
        let output = pinion(nowhere, arguments).await;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
