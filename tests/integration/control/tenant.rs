//! A tenant's way from an empty folder to a function that serves traffic, and what the tenant sees of it.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use pinion_tests::machine::process::{errors, output, run};
use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build::{hostile, program, sample};
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::product::tenant::{change, new_crate, pinion};
use pinion_tests::traffic::ping::ping;
use pinion_tests::until::{SOON, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The port at which the template `responder` answers.
const PORT: u16 = 7777;

fn test_natively(folder: &Path) {
    run(Command::new("cargo")
        .args(["test", "--offline", "--quiet"])
        .current_dir(folder)
        .env_remove("CARGO_TARGET_DIR"));
}

/// Sends a datagram; returns the answer, if there is one.
fn answer(bed: &Bed, client: usize, text: &[u8]) -> Option<Vec<u8>> {
    bed.clients[client].namespace.inside(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a client has sockets");
        socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket has a timeout");
        socket.send_to(text, (NODE, PORT)).expect("the node's address is in the client's network");
        let mut answer = [0; 64];
        let len = socket.recv(&mut answer).ok()?;
        Some(answer[..len].to_vec())
    })
}

/// Sends this text over TCP and closes the sending side; returns what the function answers until it closes the connection.
fn asked(bed: &Bed, client: usize, text: &str) -> String {
    let mut stream = bed.clients[client]
        .namespace
        .inside(|| TcpStream::connect((NODE, PORT)).expect("the function takes connections"));
    stream.set_read_timeout(Some(SOON)).expect("a socket has a timeout");
    stream.write_all(text.as_bytes()).expect("the connection is open");
    stream.shutdown(Shutdown::Write).expect("the connection is open");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the function answers, and closes");
    answer
}

fn logs(bed: &Bed, words: &[&str]) -> Vec<Value> {
    let lines = bed.node.cli().run(&[&["logs", "-o", "json"], words].concat());
    lines.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", errors(output));
    errors(output)
}

#[test]
fn a_new_responder_is_tested_built_checked_applied_and_answers_clients() {
    let bed = Bed::new(Device::AfPacket);
    let (_folder, made) = new_crate("responder");
    test_natively(&made);
    let built = run(&mut pinion(&made, &["build"]));
    assert!(built.contains("demo/my-function/0") && built.contains("from a snapshot"), "{built}");
    let checked = run(&mut pinion(&made, &["check"]));
    assert_eq!(checked, built);
    let socket = bed.node.socket();
    let applied = run(pinion(&made, &["apply", "--socket"]).arg(&socket));
    assert_eq!(applied.lines().filter(|line| line.ends_with(" created")).count(), 3, "{applied}");
    for client in 0..2 {
        assert_eq!(until("answer", SOON, || answer(&bed, client, b"hello")), b"HELLO");
    }
    let said = until("line of either client's instance", SOON, || {
        Some(logs(&bed, &["--tenant", "demo"])).filter(|lines| lines.len() == 2)
    });
    for line in &said {
        assert_eq!((&line["chain"], &line["text"]), (&"my-function".into(), &"the first datagram is answered".into()));
    }
    assert_ne!(said[0]["fwp"], said[1]["fwp"]);
}

#[test]
fn a_new_function_in_c_is_tested_built_applied_and_answers_clients() {
    let bed = Bed::new(Device::AfPacket);
    let (_folder, made) = new_crate("c");
    let mut make = Command::new("make");
    make.args(["--silent", "test"]).current_dir(&made).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    let tested = run(&mut make);
    assert!(tested.contains("3 passed, 0 failed"), "{tested}");
    let built = run(&mut pinion(&made, &["build"]));
    assert!(built.contains("demo/my-function/0") && built.contains("from a snapshot"), "{built}");
    let socket = bed.node.socket();
    run(pinion(&made, &["apply", "--socket"]).arg(&socket));
    assert_eq!(until("answer", SOON, || answer(&bed, 0, b"hello")), b"HELLO");
    let said = until("line of the instance", SOON, || logs(&bed, &["--tenant", "demo"]).pop());
    assert_eq!(said["text"], "the first datagram is answered");
}

#[test]
fn a_c_source_that_does_not_compile_is_not_built_and_the_compiler_says_why() {
    let (_folder, made) = new_crate("c");
    std::fs::write(made.join("src/function.c"), "int answer(void) { return missing; }").expect("it can be changed");
    let error = refused(&output(&mut pinion(&made, &["build"])));
    assert!(error.contains("undeclared identifier 'missing'") && error.contains("make has not built"), "{error}");
}

#[test]
fn a_new_packet_filter_is_tested_built_and_checked() {
    let (_folder, made) = new_crate("packet-filter");
    test_natively(&made);
    let built = run(&mut pinion(&made, &["build"]));
    assert!(built.contains("from a snapshot"), "{built}");
    change(&made.join("pinion.toml"), "53 443", "53 http");
    let error = refused(&output(&mut pinion(&made, &["check"])));
    assert!(error.contains("chain demo/my-function: stage 0") && error.contains("\"http\" is no port"), "{error}");
}

#[test]
fn a_new_endpoint_is_tested_built_and_applied_and_keeps_each_clients_notes_over_tcp() {
    // On AF_PACKET, segments would come without a checksum, as the kernel leaves checksums to a network card.
    let bed = Bed::new(Device::Tap);
    let (_folder, made) = new_crate("endpoint");
    test_natively(&made);
    run(&mut pinion(&made, &["build"]));
    run(pinion(&made, &["apply", "--socket"]).arg(bed.node.socket()));
    assert_eq!(asked(&bed, 0, "set colour deep blue\nget colour\n"), "ok\ndeep blue\n");
    assert_eq!(asked(&bed, 0, "get colour\n"), "deep blue\n", "by another connection");
    assert_eq!(asked(&bed, 1, "get colour\n"), "error: there is no such note\n", "by another client");
}

#[test]
fn a_source_that_does_not_compile_is_not_built_and_cargo_says_why() {
    let (_folder, made) = new_crate("responder");
    std::fs::write(made.join("src/lib.rs"), "fn answer() -> u32 {}").expect("the crate can be changed");
    let error = refused(&output(&mut pinion(&made, &["build"])));
    assert!(error.contains("error[E0308]") && error.contains("has not built the function"), "{error}");
}

#[test]
fn a_module_that_no_node_would_take_is_refused_without_one_naming_the_import() {
    let folder = tempfile::tempdir().expect("a folder for the module");
    let path = folder.path().join("wants.wasm");
    let text = r#"(module (import "env" "launch_missiles" (func)) (memory (export "memory") 1)
        (func (export "pinion_abi_v3")) (func (export "pinion_init") (result i32) (i32.const 0))
        (func (export "pinion_pool") (result i32) (i32.const 0)) (func (export "pinion_run")))"#;
    std::fs::write(&path, wat::parse_str(text).expect("it is a module")).expect("the folder is writable");
    let error = refused(&output(&mut pinion(folder.path(), &["check", "wants.wasm"])));
    assert!(error.contains("it imports env.launch_missiles"), "{error}");
}

#[test]
fn a_configuration_and_a_limit_are_checked_with_a_module() {
    let folder = Path::new("/");
    let module = sample("packet-filter").display().to_string();
    let taken = run(&mut pinion(folder, &["check", &module, "--config", "default deny", "-o", "json"]));
    let taken: Value = serde_json::from_str(&taken).expect("it is JSON");
    assert_eq!(taken[0]["snapshot"], true);
    assert_eq!(
        taken[0]["size_bytes"],
        sample("packet-filter").metadata().expect("it is a file").len(),
        "the size is the module's"
    );
    let error = refused(&output(&mut pinion(folder, &["check", &module, "--config", "allow everything"])));
    assert!(error.contains(r#""everything" is not known"#), "{error}");
    let error = refused(&output(&mut pinion(
        folder,
        &["check", &module, "--config", "default deny", "--memory-limit-kib", "64"],
    )));
    assert!(error.contains("memory_limit_kib is 64"), "{error}");
}

#[test]
fn a_configuration_that_does_not_parse_fails_check_and_deploy_with_the_fields_path() {
    let config = r#"
inside = ["10.0.0.0/8"]

[[rule]]
action = "allow"
direction = "out"

[[rule]]
action = "allow"
protocol = "tcp"
ports = ["80-seven"]
"#;
    let stage = format!("{{ module = \"firewall\", config = '''{config}''' }}");
    let manifest = Manifest::of(TENANT).module("firewall", &sample("firewall"));
    let node = Node::without_devices();
    let path = node.path("firewall.toml");
    let text = manifest.with(format_args!("[[chain]]\nname = \"guard\"\nstage = [{stage}]\n"));
    std::fs::write(&path, text.text()).expect("the node's folder is writable");
    let checked = refused(&output(pinion(Path::new("/"), &["check"]).arg(&path)));
    let applied = refused(&node.cli().try_apply(&path));
    for error in [checked, applied] {
        assert!(error.contains("chain demo/guard: stage 0 (firewall)"), "{error}");
        assert!(error.contains("rule[1].ports[0]") && error.contains("80-seven"), "{error}");
    }
    assert!(node.cli().get("chains").is_empty());
}

#[test]
fn a_function_that_panics_tells_its_tenant_why_and_where_and_no_other() {
    let bed = Bed::new(Device::AfPacket);
    let manifest = Manifest::of(TENANT).module("trapper", &hostile("trapper")).chain("faulty", "trapper", "");
    bed.node.apply(manifest.ping_rule("ping", "faulty", "per-client", NODE).text());
    until("instance that is ready", SOON, || {
        (bed.node.cli().chain_status(TENANT, "faulty")["ready"].as_u64() > Some(0)).then_some(())
    });
    let _ = ping(&bed.clients[0].namespace, &format!("-c 1 -W 0.2 {NODE}"));
    let failure = until("line on the panic", SOON, || {
        let lines = logs(&bed, &["--tenant", TENANT, "--chain", "faulty"]);
        let is_it = |line: &Value| line["text"].as_str().is_some_and(|text| text.starts_with("it panicked: "));
        lines.into_iter().find(|line| line["level"] == "error" && is_it(line))
    });
    assert_eq!((&failure["module"], &failure["stage"]), (&"trapper".into(), &0.into()));
    let text = failure["text"].as_str().unwrap_or_default();
    let sentence = text.lines().next().unwrap_or_default();
    assert!(sentence.contains("examples/trapper.rs:13:9: trapper does not like its 1 packets"), "{text}");
    // The functions on the stack, by name.
    assert!(text.lines().skip(1).any(|line| line.contains("pinion_run")), "{text}");
    assert_eq!(logs(&bed, &["--tenant", "other-tenant"]), Vec::<Value>::new());
}

#[test]
fn followed_logs_show_new_lines_until_interrupted() {
    let bed = Bed::new(Device::AfPacket);
    let manifest = Manifest::of(TENANT).module("log-flood", &hostile("log_flood")).chain("loud", "log-flood", "");
    let cli = bed.node.cli();
    let mut command = Command::new(program("pinion"));
    command.arg("--socket").arg(bed.node.socket()).args(["logs", "--follow", "--tenant", TENANT]);
    let mut following = command.stdout(Stdio::piped()).spawn().expect("pinion can be run");
    bed.node.apply(manifest.ping_rule("ping", "loud", "per-client", NODE).text());
    until("instance that is ready", SOON, || {
        (cli.chain_status(TENANT, "loud")["ready"].as_u64() > Some(0)).then_some(())
    });
    let _ = ping(&bed.clients[0].namespace, &format!("-c 1 -W 0.2 {NODE}"));
    let mut lines = BufReader::new(following.stdout.take().expect("it is a pipe")).lines();
    let first = lines.next().expect("something is said").expect("it is text");
    assert!(first.contains(" loud/0["), "{first}");
    kill_process(Pid::from_child(&following), Signal::INT).expect("a child can be signalled");
    let status = following.wait().expect("a child can be waited for");
    assert!(status.success(), "interrupted, pinion logs ended with {status}");
}
