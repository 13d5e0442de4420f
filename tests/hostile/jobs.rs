//! The threads that sign handshakes and run models for functions.
//!
//! One tenant has many clients, another one a few; each has an instance that asks for one job after the other. What each tenant got is counted
//! in jobs, which the functions' own metrics tell.

use std::fmt::Display;
use std::fs;
use std::process::Output;

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{Bed, Device, NODE, TENANT, turn};
use pinion_tests::product::build::{hostile, sample, workspace};
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::ping::poke;
use pinion_tests::traffic::strangers;
use pinion_tests::until::{SOON, until};
use serde_json::Value;

use crate::neighbours::GREEDY;

/// What a stage is granted.
pub(crate) const GRANTS: &str = ", keys = [\"site\"], models = [\"cifar\"]";
/// The addresses of the tenants' functions.
const THEIRS: &str = "10.77.0.60";
/// The clients of the greedy tenant, which are made up, and of the other one.
const GREEDY_CLIENTS: u32 = 24;
const FEW_CLIENTS: usize = 3;
/// More than a tenant could have waiting.
const LIMITS: &str = "[limits]\nfwps_max = 128\nsignatures_per_second = 1000000\n";

/// Returns the key of this file of the tests, called `site`, and the sample `classifier`'s model, called `cifar`.
pub(crate) fn granted_objects(key: &str) -> impl Display {
    let key = workspace().join("control/keys/tests/data").join(key).with_extension("pem");
    let model = workspace().join("samples/classifier/model/cifar.onnx");
    format!("[key.site]\nfile = {key:?}\n[model.cifar]\nfile = {model:?}\n")
}

/// A chain of the guest `hog` with this configuration, for pings to an address.
fn hogs(tenant: &str, config: &str, key: &str, address: &str) -> Manifest {
    let manifest = Manifest::of(tenant).module("hog", &hostile("hog")).with(granted_objects(key));
    let stage = format!("{{ module = \"hog\", config = \"{config}\"{GRANTS} }}");
    let chain = format!("[[chain]]\nname = \"hogs\"\nstage = [{stage}]\nidle_timeout_ms = 600000\n");
    manifest.with(chain).ping_rule("hogs", "hogs", "per-client", address)
}

/// Returns a counter of a tenant's functions, of all their instances together.
fn counter(bed: &Bed, tenant: &str, name: &str) -> u64 {
    let all = bed.node.cli().run(&["metrics", "-o", "json", "--tenant", tenant]);
    let all: Vec<Value> = serde_json::from_str(&all).expect("it is a list");
    all.iter().filter(|metric| metric["name"] == name).filter_map(|metric| metric["value"]["counter"].as_u64()).sum()
}

/// How many jobs were done for the greedy tenant, and for the other one.
#[derive(Clone, Copy, Debug)]
struct Done {
    greedy: u64,
    other: u64,
}

impl Done {
    fn of(bed: &Bed) -> Self {
        Self { greedy: counter(bed, GREEDY, "hog_jobs"), other: counter(bed, TENANT, "hog_jobs") }
    }
}

/// Lets both tenants ask for such jobs, with a key of this kind each. Returns the bed, and what was done for them within so many jobs of the
/// other tenant.
#[track_caller]
fn compete(settings: &str, config: &str, (greedys_key, others_key): (&str, &str), jobs: u64) -> (Bed, Done) {
    let bed = Bed::with_settings(Device::AfPacket, &[THEIRS], &format!("{LIMITS}{settings}"));
    bed.node.apply(hogs(GREEDY, config, greedys_key, THEIRS).text());
    bed.node.apply(hogs(TENANT, config, others_key, NODE).text());
    let serving = |tenant: &str| bed.node.cli().serving_fwps().iter().filter(|fwp| fwp["tenant"] == tenant).count();
    until("instances of the greedy tenant", SOON, || {
        let missing = GREEDY_CLIENTS.saturating_sub(serving(GREEDY) as u32);
        let clients = (0..if missing > 0 { GREEDY_CLIENTS } else { 0 }).map(|number| 0x0a5a_0000 + number);
        strangers::ask(&bed, THEIRS, clients.map(std::net::Ipv4Addr::from));
        (missing == 0).then_some(())
    });
    until("instances of the other tenant", SOON, || {
        bed.clients.iter().for_each(|client| poke(&client.namespace, NODE));
        (serving(TENANT) >= FEW_CLIENTS).then_some(())
    });
    let first = until("jobs of both", SOON, || Some(Done::of(&bed)).filter(|done| done.greedy > 0 && done.other > 0));
    let last = until("jobs of the other tenant", SOON, || {
        Some(Done::of(&bed)).filter(|done| done.other >= first.other + jobs)
    });
    let done = Done { greedy: last.greedy - first.greedy, other: last.other - first.other };
    println!("{config}: {done:?}");
    assert_eq!(counter(&bed, TENANT, "hog_refusals"), 0, "jobs of the other tenant were refused");
    (bed, done)
}

/// Without turns, the other tenant would get 3 jobs of 27.
#[test]
#[ignore = "part of `make hostile`"]
fn a_tenant_that_signs_as_fast_as_it_can_leaves_another_its_turns() {
    let (_bed, done) = compete("", "signs site", ("rsa2048", "rsa2048"), 300);
    assert!(done.other >= done.greedy / 3, "{done:?}");
}

#[test]
fn a_tenant_whose_signatures_take_long_gets_fewer_of_them_than_another_with_short_ones() {
    let (_bed, done) = compete("", "signs site", ("rsa4096", "p256"), 300);
    assert!(done.other >= done.greedy, "{done:?}");
}

#[test]
#[ignore = "part of `make hostile`"]
fn a_tenant_that_fills_its_queue_is_refused_and_another_is_not() {
    let (bed, done) = compete("jobs_max = 8\n", "signs site", ("rsa4096", "p256"), 300);
    assert!(counter(&bed, GREEDY, "hog_refusals") > 0, "it has more instances than it may have jobs");
    assert!(done.other >= done.greedy, "{done:?}");
}

#[test]
fn a_tenant_that_runs_its_model_from_many_instances_leaves_another_its_turns() {
    let (_bed, done) = compete("", "runs cifar", ("p256", "p256"), 100);
    assert!(done.other >= done.greedy / 3, "{done:?}");
}

/// Models that take more than they say, as seeds of the fuzz target for models.
const BOMBS: [&str; 4] = ["bomb-concat", "bomb-outer-product", "bomb-weight", "bomb-constants"];

#[test]
#[ignore = "part of `make hostile`"]
fn models_that_are_bombs_are_refused_and_another_tenants_changes_do_not_wait_for_them() {
    let _turn = turn();
    let node = Node::without_devices();
    let apply = |bomb: &str| -> Output {
        let model = workspace().join("tests/fuzz/seeds/models").join(bomb);
        let path = node.path(&format!("{bomb}.toml"));
        let manifest = Manifest::of(GREEDY).module("hog", &hostile("hog")).with(format_args!(
            "[model.bomb]\nfile = {model:?}\n[[chain]]\nname = \"{bomb}\"\n\
             stage = [{{ module = \"hog\", config = \"runs bomb\", models = [\"bomb\"] }}]\n"
        ));
        fs::write(&path, manifest.text()).expect("the node's folder is writable");
        node.cli().try_apply(&path)
    };
    std::thread::scope(|scope| {
        let applying: Vec<_> = BOMBS.iter().map(|bomb| (*bomb, scope.spawn(move || apply(bomb)))).collect();
        let echo = Manifest::of(TENANT).module("echo", &sample("macswap")).chain("echo", "echo", "");
        let mut changes = 0;
        while changes < 3 || !applying.iter().all(|(_, applying)| applying.is_finished()) {
            node.apply(echo.text());
            node.cli().run(&["delete", "chain", "echo", "--tenant", TENANT]);
            changes += 1;
        }
        for (bomb, applying) in applying {
            let applied = applying.join().expect("pinion can be run");
            assert!(!applied.status.success(), "{bomb} was taken");
            assert!(errors(&applied).contains("bomb"), "{bomb}: {}", errors(&applied));
        }
    });
    assert!(!node.log().contains("panicked at"), "{}", node.log());
}
