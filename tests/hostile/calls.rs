//! Calls by name that are under way.

use std::thread;

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::turn;
use pinion_tests::product::build::hostile;
use pinion_tests::product::cli::Caller;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::until::{SOON, until};

/// How many calls may be under way: an eighth of the buffers.
const CALLS_MAX: usize = 128;
const CONFIG: &str = "[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n[limits]\nbuffers = 1024\n";
/// What each of two tenants is guaranteed of them.
const GUARANTEED: usize = CALLS_MAX / 4;

/// Starts a node on which two tenants have a function that does not answer.
fn node() -> Node {
    let node = Node::started(CONFIG);
    for tenant in ["mallory", "demo"] {
        let manifest = Manifest::of(tenant).module("forger", &hostile("forger"));
        node.apply(manifest.chain("silent", "forger", "").text());
    }
    node
}

/// Starts calls that are not answered for ten minutes.
fn calls(node: &Node, tenant: &str, count: usize) -> Vec<Caller> {
    let call = |_| {
        let mut caller = node.cli().caller_with(&format!("{tenant}/silent"), &["--timeout", "10m"]);
        caller.send(b"silent");
        caller
    };
    (0..count).map(call).collect()
}

/// Waits until as many of these calls have been refused.
fn until_refused(callers: &mut [Caller], count: usize) {
    until("refused calls", SOON, || {
        let ended = callers.iter_mut().filter_map(Caller::has_ended).count();
        assert!(ended <= count, "{ended} calls were refused, and not {count}");
        (ended == count).then_some(())
    });
}

#[test]
fn a_tenant_whose_functions_never_answer_leaves_another_its_share_of_the_calls() {
    let _turn = turn();
    let node = node();
    let mut greedy = calls(&node, "mallory", CALLS_MAX);
    until_refused(&mut greedy, GUARANTEED);
    let mut others = calls(&node, "demo", GUARANTEED + 1);
    until_refused(&mut others, 1);
    let refused = errors(&node.cli().output(&["invoke", "mallory/silent", "-d", "silent"]));
    let sentence =
        format!("{} calls of its tenant are under way, {GUARANTEED} are guaranteed to it", CALLS_MAX - GUARANTEED);
    assert!(refused.contains(&sentence), "{refused}");
}

#[test]
fn the_places_of_calls_are_free_as_soon_as_their_callers_have_gone() {
    let _turn = turn();
    let node = node();
    let mut gone = calls(&node, "mallory", CALLS_MAX);
    until_refused(&mut gone, GUARANTEED);
    drop(gone);
    let cli = node.cli();
    let call = || errors(&cli.output(&["invoke", "mallory/silent", "-d", "silent", "--timeout", "1s"]));
    until("places for as many calls", SOON, || {
        thread::scope(|scope| {
            let calls: Vec<_> = (0..CALLS_MAX - GUARANTEED).map(|_| scope.spawn(call)).collect();
            let outcomes: Vec<String> = calls.into_iter().map(|call| call.join().expect("pinion can be run")).collect();
            outcomes.iter().all(|outcome| outcome.contains("has not answered within 1000 ms")).then_some(())
        })
    });
}
