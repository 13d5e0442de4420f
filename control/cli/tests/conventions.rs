//! Tests of what all commands have in common: the tenant that they mean, errors, exit statuses, and help.

use std::fs;
use std::process::Output;

use crate::support::{Served, wasm};
use serde_json::{Value, json};
use tokio::process::Command;

/// A manifest that names no tenant.
const MANIFEST: &str = "version = \"pinion.v1\"\n[[module]]\nname = \"echo\"\npath = \"echo.wasm\"\n\
                        [[chain]]\nname = \"echo\"\nstage = [{ module = \"echo\" }]\n\
                        [[rule]]\nname = \"ping\"\npolicy = \"shared\"\nchain = \"echo\"\n";

/// A user with a socket, and perhaps a tenant by variable.
struct User<'a> {
    served: &'a Served,
    tenant: Option<&'a str>,
}

impl User<'_> {
    async fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
        command.env("PINION_SOCKET", &self.served.socket).env_remove("PINION_TENANT").args(words);
        command.env("PINION_CONFIG", self.served.folder.path().join("contexts.toml"));
        if let Some(tenant) = self.tenant {
            command.env("PINION_TENANT", tenant);
        }
        command.output().await.unwrap()
    }

    async fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words).await;
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs the command, which must fail, and returns its exit status and what it says.
    async fn fails(&self, words: &[&str]) -> (i32, String) {
        let output = self.run(words).await;
        assert_eq!(output.stdout, b"", "{words:?}");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap().trim_end().to_owned())
    }
}

/// Starts a control plane, and returns the path of the manifest too.
async fn start() -> (Served, String) {
    let served = Served::start().await;
    fs::write(served.folder.path().join("echo.wasm"), wasm("echo")).unwrap();
    let path = served.folder.path().join("echo.toml");
    fs::write(&path, MANIFEST).unwrap();
    (served, path.display().to_string())
}

/// Returns the tenants in the first column of a table.
fn tenants(table: &str) -> Vec<&str> {
    table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect()
}

#[tokio::test]
async fn an_option_beats_the_variable_which_beats_the_context_and_without_any_it_is_default() {
    let (served, manifest) = start().await;
    let (none, variable) = (User { served: &served, tenant: None }, User { served: &served, tenant: Some("b") });
    let empty = User { served: &served, tenant: Some("") };
    for user in [&none, &variable] {
        user.ok(&["apply", "-f", &manifest]).await;
    }
    none.ok(&["apply", "-f", &manifest, "-n", "c"]).await;
    let socket = served.socket.display().to_string();
    none.ok(&["context", "add", "of-d", "--socket", &socket, "--tenant", "d"]).await;
    none.ok(&["--context", "of-d", "apply", "-f", &manifest]).await;

    let get = ["get", "chains"];
    assert_eq!(tenants(&none.ok(&get).await), ["default"]);
    assert_eq!(tenants(&empty.ok(&get).await), ["default"]);
    assert_eq!(tenants(&variable.ok(&get).await), ["b"]);
    assert_eq!(tenants(&variable.ok(&["-n", "c", "get", "chains"]).await), ["c"]);
    assert_eq!(tenants(&none.ok(&["get", "chains", "--context", "of-d"]).await), ["d"]);
    assert_eq!(tenants(&variable.ok(&["get", "chains", "--context", "of-d"]).await), ["b"]);
    assert_eq!(tenants(&variable.ok(&["get", "chains", "-A"]).await), ["b", "c", "d", "default"]);
    served.stop().await;
}

#[tokio::test]
async fn commands_that_name_no_tenant_mean_the_same_one() {
    let (served, manifest) = start().await;
    let user = User { served: &served, tenant: Some("b") };
    user.ok(&["apply", "-f", &manifest]).await;
    assert!(user.ok(&["describe", "chain/echo"]).await.starts_with("Tenant:          b\n"));
    assert_eq!(user.ok(&["invoke", "echo", "-d", "x"]).await, "x for echo");
    assert!(user.ok(&["metrics"]).await.contains("tenant=\"b\""));
    assert_eq!(user.ok(&["metrics", "-n", "c"]).await, "");
    assert!(user.ok(&["history"]).await.contains("chain/echo created"));
    assert_eq!(user.ok(&["history", "-n", "c"]).await, "");
    let (status, error) = user.fails(&["invoke", "echo", "-d", "x", "-n", "c"]).await;
    assert!(status == 2 && error.contains("c/echo"), "{error}");
    assert_eq!(user.ok(&["delete", "rule/ping"]).await, "rule/ping deleted\n");
    assert!(user.ok(&["rollout", "undo"]).await.contains("rule/ping created"));
    served.stop().await;
}

#[tokio::test]
async fn a_tenant_that_is_no_name_and_two_answers_to_whose_objects_are_bad_input() {
    let (served, _) = start().await;
    let user = User { served: &served, tenant: Some("No_Name") };
    let (status, error) = user.fails(&["get", "chains"]).await;
    assert!(status == 2 && error.starts_with("error: PINION_TENANT: \"No_Name\" is not a tenant name"), "{error}");
    let user = User { served: &served, tenant: None };
    for (words, option) in [
        (&["get", "chains", "-A", "-n", "b"][..], "--all-tenants"),
        (&["-n", "b", "get", "chains", "-A"], "--all-tenants"),
        (&["metrics", "--node", "--tenant", "b"], "--node"),
    ] {
        let (status, error) = user.fails(words).await;
        let expected = format!("error: --tenant and {option} both say what to show: give one of them");
        assert!(status == 2 && error.starts_with(&expected), "{words:?}: {error}");
    }
    served.stop().await;
}

#[tokio::test]
async fn with_json_an_error_is_json_and_says_whether_a_retry_may_help() {
    let (served, manifest) = start().await;
    let user = User { served: &served, tenant: None };
    let wrong = served.folder.path().join("wrong.toml").display().to_string();
    fs::write(&wrong, "version = \"pinion.v1\"\nnope = 1\n").unwrap();
    user.ok(&["apply", "-f", &manifest]).await;
    for (words, status, code, retryable) in [
        (&["get", "chain/nope"][..], 2, "NOT_FOUND", false),
        (&["delete", "chain/nope"], 2, "NOT_FOUND", false),
        (&["get", "rulez"], 2, "INVALID_ARGUMENT", false),
        (&["get", "chains", "--nosuch"], 2, "INVALID_ARGUMENT", false),
        (&["apply", "-f", &wrong], 2, "INVALID_ARGUMENT", false),
        (&["apply", "-f", &manifest, "--expected-revision", "0"], 2, "ABORTED", false),
        (&["get", "chains", "--context", "nowhere"], 2, "NOT_FOUND", false),
        (&["get", "chains", "--socket", "/nonexistent"], 3, "UNAVAILABLE", true),
    ] {
        let (found, text) = user.fails(&[words, &["-o", "json"]].concat()).await;
        let error: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(text.lines().count(), 1, "{text}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.starts_with("error: "), "{message}");
        let expected = json!({ "error": { "message": message, "code": code, "retryable": retryable } });
        assert_eq!((found, error), (status, expected), "{words:?}");
    }
    served.stop().await;
}

#[tokio::test]
async fn the_exit_status_tells_a_node_that_is_away_from_one_that_refuses() {
    let (served, manifest) = start().await;
    let user = User { served: &served, tenant: None };
    assert_eq!(user.fails(&["diff", "-f", &manifest, "--socket", "/nonexistent"]).await.0, 3);
    assert_eq!(user.fails(&["status", "--socket", "/nonexistent"]).await.0, 3);
    assert_eq!(user.fails(&["delete", "chain/nope"]).await.0, 2);
    let help = user.ok(&["help"]).await;
    assert!(help.contains("3  not now:"), "{help}");
    served.stop().await;
}

#[tokio::test]
async fn the_version_is_that_of_the_command_and_of_the_node_if_there_is_one() {
    let (served, _) = start().await;
    let user = User { served: &served, tenant: None };
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(user.ok(&["version"]).await, format!("Client:  {own}\nNode:    0.0.0-test\n"));
    let versions: Value = serde_json::from_str(&user.ok(&["version", "-o", "json"]).await).unwrap();
    assert_eq!(versions, json!({ "client": own, "node": "0.0.0-test" }));
    let alone = user.ok(&["version", "--socket", "/nonexistent", "-o", "json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&alone).unwrap(), json!({ "client": own, "node": null }));
    served.stop().await;
}

#[tokio::test]
async fn shells_get_a_script_that_completes_commands_and_kinds() {
    let (served, _) = start().await;
    let user = User { served: &served, tenant: None };
    for shell in ["bash", "zsh", "fish"] {
        let script = user.ok(&["completion", shell]).await;
        for word in ["rollout", "describe", "all-tenants"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    let checked = Command::new("bash").args(["-n", "-c", &user.ok(&["completion", "bash"]).await]).output().await;
    assert!(checked.unwrap().status.success());
    served.stop().await;
}

#[tokio::test]
async fn manifests_keys_are_explained_by_table_and_by_key() {
    let (served, _) = start().await;
    let user = User { served: &served, tenant: None };
    let top = user.ok(&["explain"]).await;
    assert!(top.contains("\nversion ") && top.contains("\nchain "), "{top}");
    let chain = user.ok(&["explain", "chains"]).await;
    assert!(chain.starts_with("Table:    [[chain]]\n") && chain.contains("\nidle_timeout_ms "), "{chain}");
    let key = user.ok(&["explain", "chain.cache_min"]).await;
    let expected = "Key:      chain.cache_min\nValues:   a whole number from 0 to 1024\nDefault:  4\n\
                    Meaning:  The fewest instances that are kept ready\n";
    assert_eq!(key, expected);
    let key: Value = serde_json::from_str(&user.ok(&["explain", "rule.policy", "-o", "json"]).await).unwrap();
    assert_eq!((&key["name"], &key["default"]), (&"policy".into(), &"required".into()));
    let (status, error) = user.fails(&["explain", "chain.nosuch"]).await;
    assert!(status == 2 && error.starts_with("error: manifests have no chain.nosuch: "), "{error}");
    served.stop().await;
}

#[tokio::test]
async fn each_command_has_a_man_page() {
    let (served, _) = start().await;
    let user = User { served: &served, tenant: None };
    let folder = served.folder.path().join("man");
    fs::create_dir(&folder).unwrap();
    user.ok(&["man", &folder.display().to_string()]).await;
    for page in ["pinion.1", "pinion-get.1", "pinion-rollout-undo.1"] {
        let text = fs::read_to_string(folder.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".SH NAME"), "{page}");
    }
    served.stop().await;
}

#[tokio::test]
async fn no_color_turns_colours_off_on_a_terminal() {
    let (served, manifest) = start().await;
    for (no_color, is_coloured) in [("", true), ("1", false)] {
        for words in [format!("diff -f {manifest}"), "get --nosuch".to_owned(), "help".to_owned()] {
            // `script` gives the command a terminal, and writes what came there.
            let command_line = format!("{} {words}", env!("CARGO_BIN_EXE_pinion"));
            let mut command = Command::new("script");
            command.env("PINION_SOCKET", &served.socket).env("NO_COLOR", no_color).env("TERM", "xterm");
            command.args(["--quiet", "--command", &command_line, "/dev/null"]).stdin(std::process::Stdio::null());
            let text = String::from_utf8(command.output().await.unwrap().stdout).unwrap();
            assert_eq!(text.contains('\u{1b}'), is_coloured, "{words}: {text}");
        }
    }
    served.stop().await;
}
