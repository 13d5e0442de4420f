//! A node whose own log cannot be written or is not read: only the operator loses lines, and no tenant is affected.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pinion_tests::machine::process::{require_root, run};
use pinion_tests::network::bed::turn;
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::until::{SOON, until};
use serde_json::Value;

/// The capacity of a pipe with default settings.
const PIPE_BYTES: usize = 64 << 10;
/// The longest interval between the node's attempts to write a log that it could not write.
const RETRIES: Duration = Duration::from_secs(15);
const WITHOUT_DEVICES: &str = "[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n";

/// A file system of some pages, full.
struct FullDisk {
    folder: PathBuf,
}

impl FullDisk {
    #[track_caller]
    fn new(folder: PathBuf) -> Self {
        require_root();
        fs::create_dir(&folder).expect("the node's folder is writable");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&folder));
        let disk = Self { folder };
        let mut filler = File::create(disk.filler()).expect("there is room for a name");
        while filler.write_all(&[0; 4096]).is_ok() {}
        disk
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn make_room(&self) {
        fs::remove_file(self.filler()).expect("the filler is there");
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        // Fails only if it was never mounted.
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

fn status(node: &Node) -> Value {
    node.cli().status()
}

fn lost(node: &Node) -> u64 {
    status(node)["log_lines_lost"].as_u64().expect("the status has it")
}

fn warning(node: &Node) -> Option<String> {
    let status = status(node);
    let warnings = status["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    warnings.map(str::to_owned).find(|warning| warning.starts_with("the node's log: "))
}

/// A manifest with a chain of a function that logs, by this name, and a chain of one that counts words.
fn chains(name: &str) -> Manifest {
    Manifest::of("demo")
        .module("flood", &build::hostile("log_flood"))
        .module("word-count", &build::sample("word-count"))
        .configured_chain(&format!("flood-{name}"), "flood", "50")
        .chain(&format!("count-{name}"), "word-count", "cache_min = 0")
}

/// Applies new chains, whose functions log and answer for the first time: log thread, launcher and data plane are at work.
#[track_caller]
fn assert_serves_new_clients(node: &Node, name: &str) {
    node.apply(chains(name).text());
    let cli = node.cli();
    cli.run(&["invoke", &format!("demo/flood-{name}"), "-d", "a"]);
    assert_eq!(cli.run(&["invoke", &format!("demo/count-{name}"), "-d", "one two"]), "0 2 7\n");
    let logs = ["logs", "--tenant", "demo", "--chain", &format!("flood-{name}")];
    until("line of the function's for its tenant", SOON, || cli.run(&logs).contains("flood 0").then_some(()));
    cli.run(&["delete", "chain", &format!("flood-{name}"), "--tenant", "demo"]);
}

#[test]
fn a_full_disk_under_the_log_costs_lines_only_and_the_log_says_so_when_there_is_room_again() {
    let _turn = turn();
    let mut node = Node::new(WITHOUT_DEVICES);
    let disk = FullDisk::new(node.path("disk"));
    node.start_writing_to(File::options().create(true).append(true).open(disk.log()).expect("a name").into());
    assert_serves_new_clients(&node, "first");
    assert!(lost(&node) > 0);
    let said = warning(&node).expect("the status warns while the disk is full");
    assert!(said.contains("No space left on device") && said.contains("make room"), "{said}");

    disk.make_room();
    until("status without a warning", RETRIES, || warning(&node).is_none().then_some(()));
    assert_serves_new_clients(&node, "second");
    let log = fs::read_to_string(disk.log()).expect("the log can be read");
    assert!(log.contains(" lines of this log are lost here: it could not be written: No space left"), "{log}");
    assert!(log.contains("flood 0") && lost(&node) > 0, "{log}");
    node.stop();
}

#[test]
fn standard_error_that_never_takes_a_byte_is_no_reason_to_panic() {
    let _turn = turn();
    let mut node = Node::new(WITHOUT_DEVICES);
    node.start_writing_to(File::options().write(true).open("/dev/full").expect("the kernel has it").into());
    assert_serves_new_clients(&node, "first");
    assert!(lost(&node) > 0 && warning(&node).is_some());
    node.stop();
}

#[test]
fn a_pipe_that_is_not_read_holds_up_no_change_no_client_and_no_end() {
    let _turn = turn();
    let mut node = Node::new(WITHOUT_DEVICES);
    let (unread, mut full) = std::io::pipe().expect("a pipe");
    full.write_all(&[b'.'; PIPE_BYTES]).expect("so much it holds");
    node.start_writing_to(full.into());
    assert_serves_new_clients(&node, "first");
    let said = until("warning in the status", SOON, || warning(&node));
    assert!(said.contains("has taken nothing for") && said.contains("read it"), "{said}");
    assert_serves_new_clients(&node, "second");
    node.stop();
    drop(unread);
}

#[test]
fn a_pipe_whose_reader_is_gone_holds_up_nothing_either() {
    let _turn = turn();
    let mut node = Node::new(WITHOUT_DEVICES);
    let (gone, closed) = std::io::pipe().expect("a pipe");
    node.start_writing_to(closed.into());
    drop(gone);
    assert_serves_new_clients(&node, "first");
    let said = until("warning in the status", SOON, || warning(&node));
    assert!(said.contains("Broken pipe") && lost(&node) > 0, "{said}");
    node.stop();
}

/// Returns how many lines of the node's log come from functions of this tenant.
fn lines_of(log: &str, tenant: &str) -> usize {
    let field = format!("tenant={tenant} ");
    log.lines().filter(|line| line.contains(" guest: ") && line.contains(&field)).count()
}

#[test]
fn a_tenant_whose_functions_log_much_gets_its_share_of_the_nodes_log_and_the_rest_is_counted() {
    const FUNCTIONS: usize = 20;
    let _turn = turn();
    let node = Node::started(WITHOUT_DEVICES);
    let mut loud = Manifest::of("loud").module("flood", &build::hostile("log_flood"));
    for number in 0..FUNCTIONS {
        loud = loud.configured_chain(&format!("flood-{number}"), "flood", "50");
    }
    node.apply(loud.text());
    for number in 0..FUNCTIONS {
        node.cli().run(&["invoke", &format!("loud/flood-{number}"), "-d", "a"]);
    }
    let quiet = Manifest::of("quiet").module("flood", &build::hostile("log_flood"));
    node.apply(quiet.configured_chain("word", "flood", "1").text());
    node.cli().run(&["invoke", "quiet/word", "-d", "a"]);

    until("line of the quiet tenant's in the log", SOON, || (lines_of(&node.log(), "quiet") == 1).then_some(()));
    let (log, status) = (node.log(), status(&node));
    let (written, left_out) = (lines_of(&log, "loud"), status["guest_lines_left_out"].as_u64().expect("a count"));
    assert!((50..=300).contains(&written), "{written} lines were written");
    assert!(left_out > 0 && left_out <= (FUNCTIONS * 50) as u64, "{status}");
    assert!(log.contains("functions said more than this log takes of them"), "{log}");
    assert!(!log.chars().any(|c| c.is_control() && c != '\n'), "a control character is in the log");
    // What `pinion logs` keeps for the tenant is not affected.
    let kept = node.cli().run(&["logs", "--tenant", "loud"]).lines().filter(|line| line.contains("flood ")).count();
    assert!(kept > written, "{kept} lines are kept, {written} are written");
}

#[test]
fn names_in_a_module_forge_neither_log_lines_nor_messages_of_the_builder() {
    let _turn = turn();
    let node = Node::started(WITHOUT_DEVICES);
    let folder = node.path("modules");
    fs::create_dir(&folder).expect("the node's folder is writable");
    for (number, name) in [
        "phase: compiling",
        "\\n{\\22phase\\22:\\22compiling\\22}\\n",
        "\\0d\\0aerror: forged\\0a",
        "\\1b[2J\\1b]0;forged\\07\\7f\\c2\\9b",
        "\\e2\\80\\ae\\e2\\81\\a6\\e2\\80\\a8\\e2\\80\\8b\\ef\\b8\\8f",
    ]
    .iter()
    .enumerate()
    {
        let text = format!(
            "(module (import \"env\" \"{name}\" (func)) (memory (export \"memory\") 1) (func (export \"pinion_abi_v3\"))
               (func (export \"pinion_run\")) (func (export \"pinion_init\") (result i32) i32.const 0)
               (func (export \"pinion_pool\") (result i32) i32.const 0))"
        );
        let path = folder.join(format!("{number}.wasm"));
        fs::write(&path, wat::parse_str(text).expect("it is a module")).expect("the folder is writable");
        assert_refused_in_one_line(&node, &["check", "--builder", &program("pinion-builder"), &shown(&path)]);
        assert_refused_in_one_line(&node, &["push", &shown(&path)]);
        fs::write(node.path("m.toml"), Manifest::of("demo").module("m", &path).text()).expect("the folder is writable");
        assert_refused_in_one_line(&node, &["apply", "-f", &shown(&node.path("m.toml"))]);
    }
    let log = node.log();
    assert!(!log.contains("forged\n") && log.lines().all(|line| !line.starts_with("error: ")), "{log}");
}

fn program(name: &str) -> String {
    shown(&build::program(name))
}

fn shown(path: &Path) -> String {
    path.to_str().expect("paths of tests are text").to_owned()
}

#[track_caller]
fn assert_refused_in_one_line(node: &Node, words: &[&str]) {
    let output = node.cli().output(words);
    let said = String::from_utf8(output.stderr).expect("it is text");
    assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{words:?}: {said:?}");
    assert!(said.contains("it imports env.") && said.contains(", which this node does not offer"), "{words:?}: {said}");
    let is_plain = |c: char| c == '\n' || c == ' ' || c.is_ascii_graphic();
    assert!(said.chars().all(is_plain), "{words:?}: {said:?}");
}
