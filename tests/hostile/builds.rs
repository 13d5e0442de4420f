//! Builds of templates, and the lock that changes take.

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::thread::{self, JoinHandle};

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::turn;
use pinion_tests::product::build::{hostile, sample};
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::until::{SOON, until};

/// More than can be built at a time.
const BUILDS: usize = 8;
/// Chains whose templates take a while to build, all together.
const CHAINS: usize = 12;

/// Writes a manifest of the tenant `mallory`, whose function does not finish its initialisation until it is ended.
fn endless(node: &Node, number: usize) -> PathBuf {
    let path = node.path(&format!("endless-{number}.toml"));
    let manifest = Manifest::of("mallory").module("endless", &hostile("init_looper"));
    let chain = manifest.configured_chain(&format!("endless-{number}"), "endless", &number.to_string());
    fs::write(&path, chain.text()).expect("the node's folder is writable");
    path
}

/// Begins to apply such manifests, and returns once one of them is being built.
fn apply_endless(node: &Node) -> Vec<JoinHandle<Output>> {
    let applying = (0..BUILDS).map(|number| {
        let (cli, path) = (node.cli(), endless(node, number));
        thread::spawn(move || cli.try_apply(&path))
    });
    let applying: Vec<_> = applying.collect();
    until("build", SOON, || (builds(node, "mallory") > 0).then_some(()));
    applying
}

/// How many templates are being built for a tenant, or wait for it.
fn builds(node: &Node, tenant: &str) -> usize {
    let builds = node.cli().status()["builds"].as_array().expect("a list").clone();
    builds.iter().filter(|build| build["tenant"] == tenant).count()
}

/// Returns a manifest of the tenant `demo`, whose function answers calls.
fn echo() -> Manifest {
    Manifest::of("demo").module("echo", &sample("macswap")).chain("echo", "echo", "")
}

#[test]
fn changes_and_builds_of_others_do_not_wait_for_a_tenants_builds() {
    let _turn = turn();
    let node = Node::without_devices();
    node.apply(echo().text());
    let applying = apply_endless(&node);
    node.cli().run(&["delete", "chain", "echo", "--tenant", "demo"]);
    node.apply(echo().text());
    assert!(builds(&node, "mallory") > 0, "the other tenant's changes were made while templates were being built");
    for applied in applying {
        let refused = errors(&applied.join().expect("pinion can be run"));
        assert!(refused.contains("chain mallory/endless-"), "{refused}");
    }
}

#[test]
fn a_configuration_that_was_refused_is_refused_again_without_a_build() {
    let _turn = turn();
    let node = Node::without_devices();
    let path = endless(&node, 0);
    let first = errors(&node.cli().try_apply(&path));
    let again = thread::spawn({
        let cli = node.cli();
        move || errors(&cli.try_apply(&path))
    });
    until("answer", SOON, || {
        assert_eq!(builds(&node, "mallory"), 0, "no build begins");
        again.is_finished().then_some(())
    });
    let again = again.join().expect("pinion can be run");
    assert_eq!(again, first);
}

#[test]
fn a_node_that_is_told_to_stop_ends_the_builds_under_way() {
    let _turn = turn();
    let mut node = Node::without_devices();
    let applying = apply_endless(&node);
    node.stop();
    let answers: Vec<String> =
        applying.into_iter().map(|one| errors(&one.join().expect("pinion can be run"))).collect();
    assert!(answers.iter().any(|answer| answer.contains("the node stops: ask again once it runs")), "{answers:?}");
}

#[test]
fn a_node_that_starts_serves_what_is_built_before_it_builds_the_rest() {
    let _turn = turn();
    let mut node = Node::without_devices();
    let many = Manifest::of("mallory").module("swap", &sample("macswap"));
    let many = (0..CHAINS).fold(many, |manifest, number| {
        // With limits of their own they need templates of their own.
        manifest.chain(&format!("swap-{number}"), "swap", &format!("memory_limit_kib = {}", 4096 + 64 * number))
    });
    node.apply(many.text());
    let templates = node.path("state/templates");
    let files = || fs::read_dir(&templates).expect("the node's templates").map(|file| file.expect("a file").path());
    let others: Vec<PathBuf> = files().collect();
    node.apply(echo().text());
    node.stop();
    others.iter().for_each(|file| fs::remove_file(file).expect("a template of another tenant"));
    node.start();
    until("answer", SOON, || node.cli().output(&["invoke", "demo/echo", "-d", "hello"]).status.success().then_some(()));
    let built = files().count();
    assert!(
        built < others.len(),
        "a function answers before all are built: {built} files of {} and its own",
        others.len()
    );
    until("files of all templates", SOON, || (files().count() > others.len()).then_some(()));
    until("answer", SOON, || {
        node.cli().output(&["invoke", "mallory/swap-0", "-d", "hello"]).status.success().then_some(())
    });
}
