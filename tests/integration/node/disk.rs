//! A state directory that fills up, or whose files are damaged: what the node reports, and that it continues.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;

use pinion_tests::machine::disk::SmallDisk;
use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{TENANT, turn};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::until::{SOON, until};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const CONFIG: &str = "[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n";
const MEBIBYTES: u32 = 64;

/// A manifest with a function that answers requests, also from its files.
fn site(folder: &TempDir) -> Manifest {
    fs::write(folder.path().join("greeting"), "hello").expect("the folder is writable");
    let manifest = Manifest::of("default").module("files", &build::hostile("files"));
    let stage = format!("{{ module = \"files\", files = {:?} }}", folder.path());
    manifest.with(format_args!("[[chain]]\nname = \"site\"\nstage = [{stage}]\n"))
}

#[track_caller]
fn assert_answers(node: &Node) {
    assert_eq!(node.cli().run(&["invoke", "site", "--data", "read /greeting"]), "hello");
}

fn rule(number: usize) -> Manifest {
    Manifest::of(TENANT).ping_rule(&format!("rule{number}"), "echo", "shared", &format!("10.9.0.{number}"))
}

fn echo() -> Manifest {
    Manifest::of(TENANT).module("icmp-echo", &build::sample("icmp-echo")).chain("echo", "icmp-echo", "")
}

#[track_caller]
fn try_apply(node: &Node, manifest: &Manifest) -> Output {
    let path = node.path("tried.toml");
    fs::write(&path, manifest.text()).expect("the node's folder is writable");
    node.cli().try_apply(&path)
}

fn rules(node: &Node) -> Vec<String> {
    let mut names: Vec<String> =
        node.cli().get("rules").iter().map(|rule| rule["name"].as_str().unwrap_or_default().to_owned()).collect();
    names.sort();
    names
}

fn warnings(node: &Node) -> String {
    node.cli().status()["warnings"].to_string()
}

/// Makes a module like the echo's, but larger by so many bytes.
fn large_module(folder: &Path, bytes: usize) -> PathBuf {
    let mut module = fs::read(build::sample("icmp-echo")).expect("it was built");
    // A custom section without content, named "x".
    let len = bytes + 2;
    let leb = [0, 7, 14, 21, 28].map(|shift| (len >> shift) as u8 & 0x7f | if shift < 28 { 0x80 } else { 0 });
    module.extend([&[0][..], &leb, &[1, b'x'], &vec![0x5a; bytes]].concat());
    let path = folder.join("large.wasm");
    fs::write(&path, module).expect("the folder is writable");
    path
}

/// Checks that each change is either durable or refused with a message that says what is short, that the functions go on, and that
/// everything works again when there is space.
fn a_full_disk_refuses_changes(log_is_on_it: bool) {
    let _turn = turn();
    let mut node = Node::new(CONFIG);
    let disk = SmallDisk::mounted(&node.path("state"), MEBIBYTES);
    if log_is_on_it {
        std::os::unix::fs::symlink(node.path("state/log"), node.path("log")).expect("a link");
    }
    node.start();
    let files = tempfile::tempdir().expect("a folder");
    node.apply(site(&files).text());
    node.apply(echo().text());
    let pushed = Manifest::of(TENANT).module("large", &large_module(files.path(), 4 << 20));
    disk.fill();
    if log_is_on_it {
        // Fills the rest of the log's last page.
        let mut log = File::options().append(true).open(node.path("state/log")).expect("the node writes it");
        log.write_all(&[b'\n'; 8192]).expect_err("there is no room");
    }

    let upload = try_apply(&node, &pushed);
    assert_eq!(upload.status.code(), Some(3), "{}", errors(&upload));
    assert!(
        errors(&upload).contains("has no space left: free some on its file system, then try again"),
        "{}",
        errors(&upload)
    );
    let mut durable = Vec::new();
    for number in 0..12 {
        let output = try_apply(&node, &rule(number));
        match output.status.code() {
            Some(0) => durable.push(format!("rule{number}")),
            Some(3) => assert!(errors(&output).contains("has no space left"), "{}", errors(&output)),
            other => panic!("{other:?}: {}", errors(&output)),
        }
        durable.sort();
        assert_eq!(rules(&node), durable);
    }
    assert!(warnings(&node).contains("has no space left: changes that need it are refused"), "{}", warnings(&node));
    assert_eq!(node.cli().get("chains").len(), 2);
    node.cli().run(&["get", "uploads", "-A"]);
    assert_answers(&node);

    // A node also starts on a full disk, with the state that was durable.
    node.kill();
    node.start();
    assert_eq!(rules(&node), durable);
    assert_answers(&node);
    let upload = try_apply(&node, &pushed);
    assert!(errors(&upload).contains("has no space left"), "{}", errors(&upload));

    // No restart is needed when there is space again.
    disk.free();
    node.apply(pushed.text());
    for number in 0..12 {
        node.apply(rule(number).text());
    }
    assert_eq!(rules(&node).len(), 12);
    until("status without a warning", SOON, || (!warnings(&node).contains("no space left")).then_some(()));
    node.cli().run(&["delete", "module", "large", "--tenant", TENANT]);
    node.stop();
    node.start();
    assert_eq!(rules(&node).len(), 12);
    assert_answers(&node);
    node.stop();
}

#[test]
fn a_full_disk_refuses_changes_with_what_is_short_and_the_next_ones_work_when_there_is_space() {
    a_full_disk_refuses_changes(false);
}

#[test]
fn with_the_log_on_the_full_disk_each_answer_matches_the_durable_state() {
    a_full_disk_refuses_changes(true);
}

/// Returns the files of one kind that the node derives itself.
fn derived(node: &Node, extension: &str) -> Vec<PathBuf> {
    let folder = if extension == "tar" { "state/files" } else { "state/templates" };
    let entries = fs::read_dir(node.path(folder)).expect("a node has such a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

fn alter(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("the node has written it");
    change(&mut bytes);
    fs::write(path, bytes).expect("it is a file");
}

type Damage = (&'static str, fn(&Path));

const DAMAGES: [Damage; 7] = [
    ("missing", |path| fs::remove_file(path).expect("it is a file")),
    ("cut short", |path| alter(path, |bytes| bytes.truncate(bytes.len() / 2))),
    ("altered by one byte", |path| {
        alter(path, |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
    }),
    ("empty", |path| alter(path, Vec::clear)),
    ("replaced by a directory", |path| {
        fs::remove_file(path).expect("it is a file");
        fs::create_dir_all(path.join("within")).expect("a folder");
    }),
    ("a link to itself", |path| {
        fs::remove_file(path).expect("it is a file");
        std::os::unix::fs::symlink(path, path).expect("a link");
    }),
    ("left beside a directory where it is to be written first", |path| {
        fs::remove_file(path).expect("it is a file");
        fs::create_dir_all(path.with_extension("partial").join("within")).expect("a folder");
    }),
];

#[test]
fn derived_files_are_made_again_whatever_happened_to_them() {
    let _turn = turn();
    let mut node = Node::without_devices();
    let files = tempfile::tempdir().expect("a folder");
    node.apply(site(&files).text());
    for extension in ["facts", "cwasm", "tar"] {
        for (what, damage) in DAMAGES {
            node.stop();
            let found = derived(&node, extension);
            assert_eq!(found.len(), 1, "{extension}: {found:?}");
            damage(&found[0]);
            node.start();
            // It starts with what is there, and makes the rest behind.
            let said = until("node that has made it again", SOON, || {
                let said = warnings(&node);
                (!said.contains("unavailable") && !derived(&node, extension).is_empty()).then_some(said)
            });
            // If an archive is missing, the node cannot know that it existed.
            assert!(
                said.contains("found damaged, 1 since it started") || extension == "tar",
                "{extension} is {what}: {said}"
            );
            assert_answers(&node);
            assert_eq!(derived(&node, extension).len(), 1, "{extension} is {what}");
            assert!(derived(&node, "partial").is_empty(), "{extension} is {what}");
        }
    }
    node.stop();
    node.start();
    assert_eq!(warnings(&node), "[]", "all is well again");
}

/// A chain whose function never finishes its start.
fn starting() -> Manifest {
    Manifest::of("mallory").module("loop", &build::hostile("run_looper")).chain("loop", "loop", "cache_min = 1")
}

/// Ends the node as a fault of the engine would, while that function is being started.
#[track_caller]
fn crash_while_starting(node: &Node) {
    let record = node.path("state/trial");
    // Each start may take half a second, and the node tries again and again.
    until("instance that is being started", SOON, || {
        fs::read(&record).is_ok_and(|record| record.starts_with(b"{")).then_some(())
    });
    node.crash(Signal::ABORT);
}

#[test]
fn a_chain_whose_function_ended_the_node_while_it_was_started_is_held_back_until_it_is_applied_again() {
    let _turn = turn();
    let mut node = Node::without_devices();
    let files = tempfile::tempdir().expect("a folder");
    node.apply(site(&files).text());
    node.apply(starting().text());
    crash_while_starting(&node);

    let held = "chain mallory/loop is unavailable: module loop: the node ended at ";
    for _ in 0..2 {
        let said = warnings(&node);
        assert!(said.contains(held) && said.contains("apply the chain again to try it once more"), "{said}");
        assert_eq!(chain_failures(&node), 0, "it is not started");
        assert_answers(&node);
        // Changes of other objects do not cause another try.
        node.apply(echo().text());
        assert!(warnings(&node).contains(held));
        node.kill();
        node.start();
    }
    node.apply(starting().text());
    assert!(!warnings(&node).contains(held), "{}", warnings(&node));
    until("failure of its instance", SOON, || (chain_failures(&node) > 0).then_some(()));
    let waited = node.cli().output(&["rollout", "status", "--timeout", "500ms"]);
    assert_eq!(waited.status.code(), Some(1));
    assert!(errors(&waited).contains("no instance is ready of chain mallory/loop: "), "{}", errors(&waited));

    crash_while_starting(&node);
    assert!(warnings(&node).contains(held));
    node.apply(Manifest::of("mallory").module("loop", &build::sample("icmp-echo")).text());
    node.cli().run(&["rollout", "status"]);
    assert!(node.cli().chain_status("mallory", "loop")["ready"].as_u64() > Some(0), "what replaces it has an instance");
    assert!(!warnings(&node).contains(held));
    node.stop();
}

fn chain_failures(node: &Node) -> u64 {
    let failures: Value = node.cli().chain_status("mallory", "loop")["failures"].clone();
    failures.as_u64().expect("a number of failures")
}
