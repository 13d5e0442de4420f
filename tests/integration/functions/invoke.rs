//! Chains and modules called by name: `pinion invoke`, as people and scripts use it, on a node without a device.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pinion_tests::machine::process::errors;
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::until::{SOON, until};
use serde_json::Value;

/// The tenant of the hostile functions; the other functions are in the tenant `default`.
const TENANT: &str = "mallory";

fn node(manifest: &Manifest) -> Node {
    let node = Node::without_devices();
    node.apply(manifest.text());
    node
}

fn word_count() -> Manifest {
    Manifest::of("default").module("word-count", &build::sample("word-count"))
}

/// A chain of a hostile guest, with no instance kept ready.
fn hostile(module: &str) -> Manifest {
    let manifest = Manifest::of(TENANT).module("guest", &build::hostile(module));
    manifest.chain("wild", "guest", "cache_min = 0")
}

#[track_caller]
fn assert_answer(output: &Output, answer: &[u8]) {
    assert_eq!(output.status.code(), Some(0), "{}", errors(output));
    assert_eq!(output.stdout, answer);
}

#[track_caller]
fn assert_failed(output: &Output, status: i32, sentence: &str) {
    let said = errors(output);
    assert!(said.contains(sentence), "{said}");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(status), &b""[..]), "{said}");
}

/// Returns the node's count of frames, for one reason, that answered no call.
fn unasked(node: &Node, reason: &str) -> u64 {
    let status = node.cli().status();
    let port = status["ports"].as_array().unwrap().iter().find(|port| port["name"] == "invoke").cloned().unwrap();
    let drops = port["drops"].as_array().cloned().unwrap_or_default();
    drops.iter().filter(|drop| drop["reason"] == reason).filter_map(|drop| drop["count"].as_u64()).sum()
}

#[test]
fn a_chain_answers_what_comes_by_argument_file_and_standard_input() {
    let manifest = word_count().chain("count", "word-count", "cache_min = 0");
    let node = node(&manifest);
    let cli = node.cli();
    assert_eq!(cli.get("instances"), Vec::<Value>::new(), "nothing is kept ready");
    assert_answer(&cli.output(&["invoke", "default/count", "--data", "to be or not\nto be"]), b"1 6 18\n");
    assert_answer(&cli.output(&["invoke", "count"]), b"0 0 0\n");
    let file = node.path("message");
    std::fs::write(&file, "a b\n").unwrap();
    assert_answer(&cli.output(&["invoke", "count", "--file", file.to_str().unwrap()]), b"1 2 4\n");
    let mut command = Command::new(build::program("pinion"));
    command.arg("--socket").arg(node.socket()).args(["invoke", "count"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"by the standard input").unwrap();
    assert_answer(&child.wait_with_output().unwrap(), b"0 4 21\n");
    let json = cli.run(&["invoke", "count", "-d", "x", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["payload"]["text"], "0 1 1\n");
    let serving = cli.serving_fwps();
    assert_eq!((serving.len(), &serving[0]["counters"]["received"]), (1, &5.into()), "one instance serves all");
}

#[test]
fn a_module_is_called_by_its_name_and_a_chain_of_that_name_comes_first() {
    let node = node(&word_count());
    let cli = node.cli();
    assert_answer(&cli.output(&["invoke", "word-count", "-d", "one two"]), b"0 2 7\n");
    let [chain] = &cli.get("chains")[..] else { panic!("the call has made a chain") };
    assert_eq!((&chain["name"], &chain["implicit"]), (&"word-count".into(), &true.into()));
    assert_eq!(cli.chain_status("default", "word-count")["active"], 1);
    cli.run(&["delete", "chain/word-count"]);
    assert_eq!(cli.get("chains"), Vec::<Value>::new());
    until("the end of its instance", SOON, || cli.serving_fwps().is_empty().then_some(()));
    assert_answer(&cli.output(&["invoke", "word-count", "-d", "three"]), b"0 1 5\n");
    // Sends its input back, with only the addresses swapped.
    let macswap = Manifest::of("default").module("macswap", &build::sample("macswap"));
    node.apply(macswap.chain("word-count", "macswap", "").text());
    until("the chain in the module's place", SOON, || {
        (cli.output(&["invoke", "word-count", "-d", "one two"]).stdout == b"one two").then_some(())
    });
    cli.run(&["delete", "chain", "word-count"]);
    assert_answer(&cli.output(&["invoke", "word-count", "-d", "one two"]), b"0 2 7\n");
    cli.run(&["delete", "module", "word-count"]);
    let output = cli.output(&["invoke", "word-count"]);
    assert_failed(&output, 2, "there is no chain default/word-count, nor a module of that name");
}

#[test]
fn the_longest_message_passes_and_a_longer_one_is_refused_with_the_bound() {
    let node = node(&word_count());
    let text = "x".repeat(1487);
    let output = node.cli().output(&["invoke", "word-count", "-d", &text]);
    assert_failed(&output, 2, "a payload of 1487 bytes: a message holds at most 1486");
    assert_answer(&node.cli().output(&["invoke", "word-count", "-d", &text[1..]]), b"0 1 1486\n");
}

#[test]
fn a_caller_without_an_answer_in_time_is_told_so_once_its_time_is_over() {
    let node = node(&hostile("forger"));
    let start = Instant::now();
    let output = node.cli().output(&["invoke", "mallory/wild", "-d", "silent", "--timeout", "300ms"]);
    assert_failed(&output, 1, "mallory/wild has not answered within 300 ms");
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(300) && took < SOON, "{took:?}");
}

#[test]
fn a_function_that_ends_before_it_answers_is_named_with_its_reason_and_the_next_call_meets_another_instance() {
    let node = node(&hostile("trapper"));
    for _ in 0..2 {
        let output = node.cli().output(&["invoke", "mallory/wild", "-d", "text", "--timeout", "20s"]);
        assert_failed(&output, 1, "mallory/wild ended before it answered: it panicked");
    }
    let instances = node.cli().get("instances");
    assert_eq!(instances.iter().filter(|it| it["state"] == "terminated").count(), 2);
}

#[test]
fn a_call_of_an_idempotent_chain_meets_another_instance_until_it_has_ended_four() {
    let manifest = Manifest::of(TENANT).module("guest", &build::hostile("trapper"));
    let node = node(&manifest.chain("wild", "guest", "cache_min = 0\nidempotent = true"));
    let cli = node.cli();
    let output = cli.output(&["invoke", "mallory/wild", "-d", "text", "--timeout", "20s"]);
    let sentence = "mallory/wild ended before it answered, each of the 4 times that it was called: it panicked";
    assert_failed(&output, 1, sentence);
    let instances = cli.get("instances");
    assert_eq!(instances.iter().filter(|it| it["state"] == "terminated").count(), 4);
    assert_eq!(cli.status()["calls_redelivered"], 3);
    assert!(cli.run(&["describe", "chain", "wild", "--tenant", TENANT]).contains("Idempotent"));
}

#[test]
fn no_forged_answer_reaches_the_caller_of_another_function() {
    let node = node(&hostile("forger"));
    node.apply(word_count().text());
    let cli = node.cli();
    thread::scope(|scope| {
        let victim = || cli.output(&["invoke", "mallory/wild", "-d", "silent", "--timeout", "4s"]);
        let victims = [scope.spawn(victim), scope.spawn(victim)];
        let received = || cli.serving_fwps().first().and_then(|fwp| fwp["counters"]["received"].as_u64());
        until("calls that are not answered", SOON, || (received() >= Some(2)).then_some(()));
        // The two pending calls have numbers of these; the call of the forger itself has another one.
        for number in ["0", "1", "2", "3", "4", "1000", "4294967295"] {
            // The forger's own call may have that number by chance; otherwise it is not answered.
            let _ = cli.output(&["invoke", "mallory/wild", "-d", number, "--timeout", "100ms"]);
        }
        assert!(unasked(&node, "answer-unknown") >= 5, "{}", cli.run(&["status"]));
        for victim in victims {
            assert_failed(&victim.join().unwrap(), 1, "mallory/wild has not answered within 4000 ms");
        }
    });
    assert_answer(&cli.output(&["invoke", "word-count", "-d", "as ever"]), b"0 2 7\n");
}

#[test]
fn a_call_that_is_impossible_is_refused_in_a_sentence() {
    let node = node(&word_count());
    for (words, sentence) in [
        (&["invoke", "default/nothing"][..], "there is no chain default/nothing, nor a module of that name"),
        (&["invoke", "unknown/word-count"], "there is no chain unknown/word-count, nor a module of that name"),
        (&["invoke", "A/b"], "\"A\" is not a tenant name"),
        (&["invoke", "a", "--timeout", "soon"], "a time is a number and a unit: 500ms, 10s, 2m"),
        (&["invoke", "a", "--timeout", "11m"], "timeout_ms: 660000: it must be from 1 to 600000"),
        (&["invoke", "a", "--file", "/nowhere/at/all"], "/nowhere/at/all: No such file or directory"),
    ] {
        assert_failed(&node.cli().output(words), 2, sentence);
    }
}
