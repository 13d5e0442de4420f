//! Whichever roles share a core, and however idle cores behave, each ping passes a chain of three and is answered, and the node reports
//! which role runs on which core. Each plan of roles is a line in [`on_each_plan`].
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use pinion_tests::machine::cores::two_cores;
use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::poke;
use pinion_tests::until::{SOON, until};
use serde_json::Value;

/// Pings of each client. Beside a core that never sleeps, a client's own turns are milliseconds apart.
const PINGS: u64 = 2_000;
const PINGS_BUSY: u64 = 500;

/// Which of the machine's first two cores has which role. A machine with one core has all roles on it.
struct Plan {
    gateway: usize,
    mmas: &'static [usize],
    workers: &'static [usize],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Idle {
    Adaptive,
    Busy,
}

impl Plan {
    /// Returns the cores of a role on this machine.
    fn cores(roles: &[usize]) -> Vec<usize> {
        let (first, second) = two_cores();
        let cores: BTreeSet<usize> = roles.iter().map(|&role| [first, second][role]).collect();
        cores.into_iter().collect()
    }

    fn settings(&self, idle: Idle) -> String {
        let idle = if idle == Idle::Busy { "busy" } else { "adaptive" };
        let [gateway, mmas, workers] = [&[self.gateway], self.mmas, self.workers].map(Self::cores);
        let gateway = gateway[0];
        format!("idle = {idle:?}\n[cores]\ngateway = {gateway}\nmmas = {mmas:?}\nworkers = {workers:?}\n")
    }

    /// Returns the roles that each core should have.
    fn roles(&self) -> BTreeMap<u64, BTreeSet<String>> {
        let mut roles = BTreeMap::<u64, BTreeSet<String>>::new();
        for (role, cores) in [("gateway", &[self.gateway][..]), ("mma", self.mmas), ("worker", self.workers)] {
            for core in Self::cores(cores) {
                roles.entry(core as u64).or_default().insert(role.to_owned());
            }
        }
        roles
    }
}

fn every_ping_goes_through_a_chain_of_three(plan: &Plan, idle: Idle) {
    let bed = Bed::with_settings(Device::AfPacket, &[], &plan.settings(idle));
    assert_eq!(roles_reported(&bed), plan.roles());
    for core in plan.roles().keys() {
        assert_eq!(allowed_cores(&bed, &format!("core-{core}")), core.to_string());
    }
    bed.node.apply(chain_of_three().text());
    let pings = if idle == Idle::Busy { PINGS_BUSY } else { PINGS };
    let asked = bed.assert_floods_are_answered(pings);

    let sent = |fwp: &Value| fwp["counters"]["sent"].as_u64().expect("a count");
    until("count of all pings at each stage", SOON, || {
        let fwps = bed.node.cli().serving_fwps();
        (fwps.iter().map(sent).sum::<u64>() == 3 * asked).then_some(())
    });
    let fwps = bed.node.cli().serving_fwps();
    assert_eq!(fwps.len(), 3 * bed.clients.len());
    assert!(fwps.iter().all(|fwp| sent(fwp) >= pings), "{fwps:?}");
    let serving: BTreeSet<u64> = fwps.iter().filter_map(|fwp| fwp["worker_core"].as_u64()).collect();
    let workers: BTreeSet<u64> = Plan::cores(plan.workers).into_iter().map(|core| core as u64).collect();
    assert_eq!(serving, workers, "the clients' chains are not spread over the workers");
}

/// Two functions that together leave a frame unchanged, then the one that answers it.
fn chain_of_three() -> Manifest {
    let stages = "{ module = \"macswap\" }, { module = \"macswap\" }, { module = \"icmp-echo\" }";
    Manifest::of(TENANT)
        .module("icmp-echo", &build::sample("icmp-echo"))
        .module("macswap", &build::sample("macswap"))
        .with(format_args!("[[chain]]\nname = \"three\"\nstage = [{stages}]\n"))
        .ping_rule("ping", "three", "per-client", NODE)
}

/// An address whose clients get a function with an endless loop.
const LOOPING: &str = "10.77.0.60";
/// How long that function has looped when other instances are placed: longer than the launcher's interval between two checks.
const LOOPED_US: u64 = 1_500_000;
/// Instances that are then created at once.
const OTHERS: usize = 8;

#[test]
fn new_instances_go_to_the_worker_that_has_less_to_do() {
    let plan = Plan { gateway: 0, mmas: &[0], workers: &[0, 1] };
    if Plan::cores(plan.workers).len() == 1 {
        println!("this machine has one core, and so one worker");
        return;
    }
    let bed = Bed::with_settings(Device::AfPacket, &[LOOPING], &plan.settings(Idle::Adaptive));
    let looper = Manifest::of("mallory").module("loop", &build::hostile("looper")).chain("loop", "loop", "");
    bed.node.apply(looper.ping_rule("loop", "loop", "per-client", LOOPING).text());
    poke(&bed.clients[0].namespace, LOOPING);
    let busy = until("function that has looped for a while", SOON, || {
        let fwp = bed.node.cli().serving_fwps().pop()?;
        (fwp["counters"]["cpu_us"].as_u64() > Some(LOOPED_US)).then(|| fwp["worker_core"].clone())
    });
    let others = Manifest::of(TENANT).module("icmp-echo", &build::sample("icmp-echo"));
    bed.node.apply(others.chain("echo", "icmp-echo", &format!("cache_min = {OTHERS}")).text());
    let cores: Vec<_> = until("instances of another tenant's", SOON, || {
        let fwps = bed.node.cli().get("fwps").into_iter();
        let ready = fwps.filter(|fwp| fwp["tenant"] == TENANT && fwp["state"] == "cached");
        let cores: Vec<_> = ready.map(|fwp| fwp["worker_core"].clone()).collect();
        (cores.len() == OTHERS).then_some(cores)
    });
    assert!(!cores.contains(&busy), "the one that loops is on core {busy}, and the others are on {cores:?}");
}

fn roles_reported(bed: &Bed) -> BTreeMap<u64, BTreeSet<String>> {
    let status = bed.node.cli().status();
    let cores = status["cores"].as_array().expect("a node has cores");
    let roles = |core: &serde_json::Value| {
        let roles = core["roles"].as_array().expect("a core has roles");
        roles.iter().map(|role| role.as_str().expect("a role is a word").to_owned()).collect()
    };
    cores.iter().map(|core| (core["core"].as_u64().expect("a core has a number"), roles(core))).collect()
}

#[test]
fn threads_without_a_role_keep_off_the_cores_of_roles() {
    let plan = Plan { gateway: 0, mmas: &[0], workers: &[0] };
    let bed = Bed::with_settings(Device::AfPacket, &[], &plan.settings(Idle::Adaptive));
    let (first, second) = two_cores();
    let threads = threads(&bed);
    let of_all = ["ticker", "launcher", "log", "guest-log", "invocations", "pressure", "tokio-rt-worker", "piniond"];
    let numbered = [format!("core-{first}"), format!("signer-{second}"), format!("inference-{second}")];
    for name in of_all.map(str::to_owned).into_iter().chain(numbered) {
        let expected = if name.starts_with("core-") { first } else { second };
        let allowed: Vec<&String> = threads.iter().filter(|thread| thread.0 == name).map(|thread| &thread.1).collect();
        assert!(!allowed.is_empty(), "the node has no thread {name}: {threads:?}");
        assert!(allowed.iter().all(|cores| **cores == expected.to_string()), "{name} may run on {allowed:?}");
    }
}

#[test]
fn the_ticker_takes_no_core_from_guests_where_there_is_one_without() {
    let plan = Plan { gateway: 0, mmas: &[0], workers: &[1] };
    let bed = Bed::with_settings(Device::AfPacket, &[], &plan.settings(Idle::Adaptive));
    assert_eq!(allowed_cores(&bed, "ticker"), two_cores().0.to_string());
}

/// Returns the cores on which the kernel may run the node's thread of this name.
fn allowed_cores(bed: &Bed, thread: &str) -> String {
    let found = threads(bed).into_iter().find(|(name, _)| name == thread);
    found.unwrap_or_else(|| panic!("the node has no thread {thread}")).1
}

/// Returns the names of the node's threads, each with the cores on which the kernel may run it.
fn threads(bed: &Bed) -> Vec<(String, String)> {
    let tasks = format!("/proc/{}/task", bed.node.process().as_raw_nonzero());
    let statuses = fs::read_dir(tasks)
        .expect("the node has threads")
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let field =
        |status: &str, name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
    let facts = |status: String| Some((field(&status, "Name:")?, field(&status, "Cpus_allowed_list:")?));
    statuses.map(|status| facts(status).expect("the kernel says where a thread may run")).collect()
}

macro_rules! on_each_plan {
    ($($plan:ident: gateway $gateway:literal, mmas $mmas:expr, workers $workers:expr;)*) => {$(
        mod $plan {
            use super::*;

            const PLAN: Plan = Plan { gateway: $gateway, mmas: &$mmas, workers: &$workers };

            #[test]
            fn answers_every_ping() {
                every_ping_goes_through_a_chain_of_three(&PLAN, Idle::Adaptive);
            }

            #[test]
            fn answers_every_ping_when_busy() {
                every_ping_goes_through_a_chain_of_three(&PLAN, Idle::Busy);
            }
        }
    )*};
}

on_each_plan! {
    one_core_for_all: gateway 0, mmas [0], workers [0];
    a_core_for_the_gateway: gateway 0, mmas [1], workers [1];
    a_core_for_the_mma: gateway 0, mmas [1], workers [0];
    a_core_for_the_worker: gateway 0, mmas [0], workers [1];
    workers_on_both_cores: gateway 0, mmas [0], workers [0, 1];
    a_gateway_and_a_worker_beside_all: gateway 0, mmas [1], workers [0, 1];
    mmas_on_both_cores: gateway 0, mmas [0, 1], workers [1];
    mmas_and_workers_on_both_cores: gateway 0, mmas [0, 1], workers [0, 1];
}
