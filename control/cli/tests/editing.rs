//! Tests of `pinion edit` and `pinion wait`, against a control plane with a fake data plane.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::atomic::Ordering;

use crate::support::{Served, wasm};
use serde_json::{Value, json};
use tokio::process::Command;

const MANIFEST: &str = "version = \"pinion.v1\"\nlabel = \"web\"\n[[module]]\nname = \"echo\"\npath = \"echo.wasm\"\n\
                        [[chain]]\nname = \"echo\"\nstage = [{ module = \"echo\", config = \"hello\" }]\n\
                        [[rule]]\nname = \"ping\"\npolicy = \"shared\"\nchain = \"echo\"\n";

fn command(served: &Served, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
    set_up(served, &mut command);
    command.args(words);
    command
}

fn set_up(served: &Served, command: &mut Command) {
    command.env("PINION_SOCKET", &served.socket).env("PINION_TENANT", "demo");
    let command = command.env_remove("PINION_EDITOR").env_remove("VISUAL");
    command.env("TMPDIR", served.folder.path().join("tmp")).stdin(Stdio::null());
}

/// Returns the output and errors of a command that must end with this status.
#[track_caller]
fn text(output: Output, status: i32) -> String {
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert_eq!(output.status.code(), Some(status), "{text}");
    text
}

async fn ends(served: &Served, status: i32, words: &[&str]) -> String {
    text(command(served, words).output().await.unwrap(), status)
}

/// Edits by a shell's command, which gets the file's path as its last argument.
async fn edit(served: &Served, status: i32, words: &[&str], editor: &str) -> String {
    text(command(served, &[&["edit"], words].concat()).env("EDITOR", editor).output().await.unwrap(), status)
}

/// Starts with a module, a chain and a rule as version 1.
async fn start() -> Served {
    let served = Served::start().await;
    let folder = served.folder.path();
    fs::create_dir(folder.join("tmp")).unwrap();
    fs::write(folder.join("echo.wasm"), wasm("echo")).unwrap();
    fs::write(folder.join("demo.toml"), MANIFEST).unwrap();
    ends(&served, 0, &["apply", "-f", &folder.join("demo.toml").display().to_string()]).await;
    served
}

/// Returns the files that edits have left.
fn left(served: &Served) -> Vec<String> {
    let files = fs::read_dir(served.folder.path().join("tmp")).unwrap();
    files.map(|file| file.unwrap().path().display().to_string()).collect()
}

async fn object(served: &Served, name: &str) -> Value {
    serde_json::from_str::<Value>(&ends(served, 0, &["get", name, "-o", "json"]).await).unwrap()[0].take()
}

#[tokio::test]
async fn what_is_saved_in_the_editor_is_applied_and_the_file_is_removed() {
    let served = start().await;
    assert_eq!(edit(&served, 0, &["chain/echo"], "sed -i s/hello/other/").await, "chain/echo configured\n");
    let chain = object(&served, "chain/echo").await;
    assert_eq!((&chain["stages"][0]["config"]["text"], &chain["label"]), (&"other".into(), &"web".into()));
    assert_eq!(edit(&served, 0, &["rule", "ping"], "sed -i s/web/db/").await, "rule/ping configured\n");
    assert_eq!(object(&served, "rule/ping").await["label"], "db", "the label that was saved is the one that is meant");
    // VISUAL comes before EDITOR, and PINION_EDITOR before both.
    let mut visual = command(&served, &["edit", "rule/ping", "--wait"]);
    let output = visual.env("VISUAL", "sed -i /label/d").env("EDITOR", "false").output().await.unwrap();
    assert_eq!(text(output, 0), "rule/ping configured\n");
    assert_eq!(object(&served, "rule/ping").await["label"], Value::Null);
    let mut own = command(&served, &["edit", "chain/echo"]);
    own.env("PINION_EDITOR", "sed -i s/other/third/").env("VISUAL", "false").env("EDITOR", "false");
    assert_eq!(text(own.output().await.unwrap(), 0), "chain/echo configured\n");
    assert_eq!(left(&served), [""; 0]);
    served.stop().await;
}

#[tokio::test]
async fn a_file_that_is_saved_unchanged_or_empty_changes_nothing() {
    let served = start().await;
    for editor in ["true", "truncate --size 0", "sed -i /^[^#]/d"] {
        let said = edit(&served, 0, &["chain/echo"], editor).await;
        assert_eq!(said, "No changes: chain demo/echo is as it was.\n", "{editor}");
    }
    let output = command(&served, &["edit", "chain/echo", "-o", "json"]).env("EDITOR", "true").output().await.unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json, json!({ "version": 1, "outcomes": [] }));
    assert_eq!(left(&served), [""; 0]);
    served.stop().await;
}

#[tokio::test]
async fn a_refused_edit_keeps_the_file_and_says_where_it_is() {
    let served = start().await;
    let meanwhile = format!("{} delete rule/ping >/dev/null && sed -i s/hello/other/", env!("CARGO_BIN_EXE_pinion"));
    for (editor, problem) in [
        (&*meanwhile, "the request expects revision 1, and revision 2 has changed objects of tenant demo since"),
        ("sed -i s/cache_min/cache_minimum/", "chain: unknown key `cache_minimum`"),
        (
            "sed -i 's/name = \"echo\"/name = \"other\"/'",
            "what is saved defines chain demo/other, and this is an edit of chain demo/echo",
        ),
    ] {
        let error = edit(&served, 2, &["chain/echo"], editor).await;
        let [file] = &left(&served)[..] else { panic!("one file is kept: {error}") };
        assert!(error.starts_with(&format!("error: what you saved is kept in {file}: ")), "{error}");
        assert!(error.contains(problem), "{error}");
        let kept = fs::read_to_string(file).unwrap();
        assert!(kept.starts_with("# This is chain demo/echo.") && kept.contains("[[chain]]"), "{kept}");
        fs::remove_file(file).unwrap();
    }
    assert_eq!(object(&served, "chain/echo").await["stages"][0]["config"]["text"], "hello");
    served.stop().await;
}

/// Edits chain/echo on a terminal, by a script that does the one in a file as it was, and the other in one that was refused.
async fn edit_on_a_terminal(served: &Served, status: i32, first: &str, refused: &str) -> String {
    let editor = served.folder.path().join("editor.sh");
    fs::write(&editor, format!("if grep -q '^# Refused' \"$1\"; then {refused}; else {first}; fi\n")).unwrap();
    // `script` gives the command a terminal, and writes what came there.
    let edit = format!("{} edit chain/echo", env!("CARGO_BIN_EXE_pinion"));
    let mut command = Command::new("script");
    set_up(served, &mut command);
    command.env("NO_COLOR", "1").env("EDITOR", format!("sh {}", editor.display()));
    command.args(["--quiet", "--return", "--command", &edit, "/dev/null"]);
    text(command.output().await.unwrap(), status).replace("\r\n", "\n")
}

#[tokio::test]
async fn a_refused_edit_on_a_terminal_comes_back_with_the_reason_until_it_is_given_up() {
    let served = start().await;
    let bad = "sed -i 's/hello/other/; s/cache_min/cache_minimum/' \"$1\"";
    let seen = served.folder.path().join("seen");
    let corrected = format!("cp \"$1\" {}; sed -i s/cache_minimum/cache_min/ \"$1\"", seen.display());
    let done = edit_on_a_terminal(&served, 0, bad, &corrected).await;
    assert!(done.ends_with("chain/echo configured\n"), "{done}");
    assert_eq!(object(&served, "chain/echo").await["stages"][0]["config"]["text"], "other");
    let seen = fs::read_to_string(seen).unwrap();
    assert!(seen.starts_with("# Refused, so nothing is changed yet: error: "), "{seen}");
    assert!(seen.contains("unknown key `cache_minimum`") && seen.contains("other"), "{seen}");
    assert_eq!(left(&served), [""; 0]);

    let again = bad.replace("hello/other", "other/third");
    let given_up = edit_on_a_terminal(&served, 2, &again, "true").await;
    let [file] = &left(&served)[..] else { panic!("the file is kept: {given_up}") };
    assert!(given_up.contains(&format!("error: what you saved is kept in {file}: ")), "{given_up}");
    assert!(fs::read_to_string(file).unwrap().contains("third"));
    assert_eq!(object(&served, "chain/echo").await["stages"][0]["config"]["text"], "other");
    served.stop().await;
}

#[tokio::test]
async fn an_editor_that_fails_changes_nothing_and_keeps_only_what_was_changed() {
    let served = start().await;
    let error = edit(&served, 1, &["chain/echo"], "false").await;
    assert!(
        error.starts_with("error: the editor \"false\" has failed (exit status: 1), so nothing is changed"),
        "{error}"
    );
    assert_eq!(left(&served), [""; 0]);
    let error = edit(&served, 1, &["chain/echo"], "sh -c 'sed -i s/hello/other/ \"$0\"; exit 3'").await;
    let [file] = &left(&served)[..] else { panic!("the file is kept: {error}") };
    assert!(error.contains(file) && Path::new(file).extension().is_some_and(|it| it == "toml"), "{error}");
    assert_eq!(ends(&served, 2, &["edit", "chain/nope"]).await, "error: there is no chain \"nope\" of tenant demo\n");
    served.stop().await;
}

#[tokio::test]
async fn wait_ends_once_objects_are_in_force_or_deleted() {
    let served = start().await;
    let both = ["wait", "chain/echo", "rule/ping", "--for=in-force"];
    assert_eq!(ends(&served, 0, &both).await, "chain/echo in-force\nrule/ping in-force\n");
    let mut waiting = command(&served, &["wait", "rule/ping", "--for=deleted", "-o", "json"]);
    let waiting = tokio::spawn(async move { waiting.output().await.unwrap() });
    ends(&served, 0, &["delete", "rule/ping"]).await;
    let json: Value = serde_json::from_str(&text(waiting.await.unwrap(), 0)).unwrap();
    assert_eq!(json, json!([{ "kind": "rule", "tenant": "demo", "name": "ping", "condition": "deleted" }]));
    assert_eq!(ends(&served, 0, &["wait", "rule/never", "--for=delete"]).await, "rule/never deleted\n");
    served.stop().await;
}

#[tokio::test]
async fn wait_tells_what_is_not_there_from_what_takes_too_long() {
    let served = start().await;
    let error = ends(&served, 2, &["wait", "chain/nope"]).await;
    assert_eq!(error, "error: there is no chain \"nope\" of tenant demo\n");
    let error = ends(&served, 1, &["wait", "chain/echo", "--for=deleted", "--timeout", "1ms"]).await;
    assert!(error.starts_with("error: chain demo/echo is still there after 1ms: "), "{error}");
    // The change is durable, but the node does not follow it.
    served.node.panics.store(true, Ordering::Relaxed);
    ends(&served, 1, &["delete", "rule/ping"]).await;
    for words in [&["wait", "chain/echo"][..], &["wait", "rule/ping", "--for=deleted"]] {
        let error = ends(&served, 1, &[words, &["--timeout", "1ms"]].concat()).await;
        assert!(error.starts_with("error: revision 2 is not in force after 1ms; 1 is: "), "{error}");
    }
    assert_eq!(ends(&served, 3, &["wait", "chain/echo", "--socket", "/nonexistent"]).await.lines().count(), 1);
    served.stop().await;
}
