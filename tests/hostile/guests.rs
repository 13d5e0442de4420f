//! What a tenant's functions do.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};

use pinion_tests::network::bed::{Bed, Device};
use pinion_tests::product::build::hostile;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::frames::send;
use pinion_tests::traffic::strangers;
use serde_json::Value;

use crate::jobs::{GRANTS, granted_objects};
use crate::neighbours::{self, Attack, GREEDY, SETTINGS, keep_what_is_theirs};

/// The addresses of the attacking tenant's chains.
const THEIRS: [&str; 7] =
    ["10.77.0.60", "10.77.0.61", "10.77.0.62", "10.77.0.63", "10.77.0.64", "10.77.0.65", "10.77.0.66"];
/// The first address of the clients that are made up for them, 10.90.0.0.
const FIRST_OF_CLIENTS: u32 = 0x0a5a_0000;
/// How many clients all chains get in a wave, about. As long as there is room, each of them has an instance of its own.
const CLIENTS_IN_A_WAVE: usize = 28;
/// An instance without further packets ends soon, whatever it is doing.
const IDLE_MS: u32 = 100;
const CHAIN: &str = "memory_limit_kib = 65536\n";

/// A chain that attacks.
struct Chain {
    tenant: String,
    name: String,
    /// To what its clients send.
    address: String,
}

/// A module, and the chains in which it attacks.
struct Guests {
    bed: Bed,
    manifests: Vec<Manifest>,
    chains: Vec<Chain>,
    /// What each stage is granted.
    grants: &'static str,
}

impl Guests {
    /// Makes guests of one tenant, in chains with another configuration each.
    fn new(module: &str, configs: &[&str]) -> Self {
        Self::that_stay(IDLE_MS, module, configs)
    }

    /// Makes guests whose instances stay for so long without further packets.
    fn that_stay(idle_ms: u32, module: &str, configs: &[&str]) -> Self {
        let settings = format!("idle_timeout_ms = {idle_ms}\n");
        let mut guests = Self::none();
        let manifest = guests.manifest(GREEDY, module);
        let chain =
            |manifest, (config, address): (&&str, &str)| guests.add(manifest, GREEDY, &[config], &settings, address);
        let manifest = configs.iter().zip(THEIRS).fold(manifest, chain);
        guests.manifests.push(manifest);
        guests
    }

    /// Makes guests in a chain of stages with these configurations.
    fn in_stages(module: &str, configs: &[&str]) -> Self {
        let mut guests = Self::none();
        let manifest = guests.manifest(GREEDY, module);
        let settings = format!("idle_timeout_ms = {IDLE_MS}\n");
        let manifest = guests.add(manifest, GREEDY, configs, &settings, THEIRS[0]);
        guests.manifests.push(manifest);
        guests
    }

    /// Makes guests of so many tenants, in a chain each, with one instance that is ready.
    fn of_tenants(tenants: usize, module: &str) -> Self {
        let mut guests = Self::none();
        let settings = format!("idle_timeout_ms = {IDLE_MS}\ncache_min = 1\ncache_max = 1\n");
        for number in 0..tenants {
            let (tenant, address) = (format!("{GREEDY}-{number}"), format!("10.78.0.{}", number + 1));
            let manifest = guests.manifest(&tenant, module);
            let manifest = guests.add(manifest, &tenant, &[""], &settings, &address);
            guests.manifests.push(manifest);
        }
        guests
    }

    fn none() -> Self {
        let bed = Bed::with_settings(Device::AfPacket, &THEIRS, SETTINGS);
        Self { bed, manifests: Vec::new(), chains: Vec::new(), grants: "" }
    }

    fn manifest(&self, tenant: &str, module: &str) -> Manifest {
        Manifest::of(tenant).module("attack", &hostile(module))
    }

    /// Makes guests as [`Guests::new`], which are granted the key `site` and the model `cifar`.
    fn that_are_granted(module: &str, configs: &[&str]) -> Self {
        let mut guests = Self { grants: GRANTS, ..Self::none() };
        let settings = format!("idle_timeout_ms = {IDLE_MS}\n");
        let manifest = guests.manifest(GREEDY, module).with(granted_objects("p256"));
        let manifest = configs
            .iter()
            .zip(THEIRS)
            .fold(manifest, |manifest, (config, address)| guests.add(manifest, GREEDY, &[config], &settings, address));
        guests.manifests.push(manifest);
        guests
    }

    /// Adds a chain of stages with these configurations to its tenant's manifest.
    fn add(&mut self, manifest: Manifest, tenant: &str, configs: &[&str], settings: &str, address: &str) -> Manifest {
        let (name, grants) = (format!("c{}", self.chains.len()), self.grants);
        let stage = |config: &&str| format!("{{ module = \"attack\", config = \"{config}\"{grants} }}");
        let stages = configs.iter().map(stage).collect::<Vec<_>>().join(", ");
        let chain = format!("[[chain]]\nname = \"{name}\"\nstage = [{stages}]\n{settings}{CHAIN}");
        let manifest = manifest.with(chain).ping_rule(&name, &name, "per-client", address);
        self.chains.push(Chain { tenant: tenant.to_owned(), name, address: address.to_owned() });
        manifest
    }

    /// Lets them attack, and checks with `happened`, given each chain's status, that they did.
    #[track_caller]
    fn are_withstood(&self, happened: impl Fn(&Value)) {
        let (station, clients) = (strangers::station(&self.bed), AtomicU32::new(FIRST_OF_CLIENTS));
        let of_each = (CLIENTS_IN_A_WAVE / self.chains.len()).clamp(1, 4) as u32;
        let wave = || {
            let of_chain = |chain: &Chain| {
                let first = clients.fetch_add(of_each, Ordering::Relaxed);
                strangers::requests(station, &chain.address, (first..first + of_each).map(Ipv4Addr::from))
            };
            let frames: Vec<_> = self.chains.iter().flat_map(of_chain).collect();
            send(self.bed.switch(), self.bed.wire(), &frames);
        };
        let attack = Attack {
            manifests: &self.manifests,
            wave: &wave,
            is_over: &|| neighbours::is_at_rest(&self.bed),
            is_for_the_cores: true,
        };
        keep_what_is_theirs(&self.bed, &attack, || {
            for Chain { tenant, name, .. } in &self.chains {
                let chain = self.bed.node.cli().chain_status(tenant, name);
                assert!(chain["meter"]["activations"].as_u64() > Some(7), "{chain}");
                happened(&chain);
            }
        });
    }
}

fn meter(chain: &Value, key: &str) -> u64 {
    chain["meter"][key].as_u64().expect("a number")
}

/// Checks that instances of a chain have failed.
fn failed(chain: &Value) {
    assert!(chain["failures"].as_u64() > Some(0), "{chain}");
}

#[test]
fn functions_that_keep_the_core_in_every_way() {
    Guests::new("brute", &["loops", "recurses", "fills", "stores", "calls", "logs", "waits"])
        .are_withstood(|chain| assert!(meter(chain, "turns") > 100, "{chain}"));
}

#[test]
fn functions_that_break_the_rules_of_their_rings_in_every_way() {
    let misdeeds = ["slot-range", "not-owned", "twice", "length", "length-wrap", "way", "tail-jump", "tail-back"];
    Guests::new("wild_descriptor", &misdeeds).are_withstood(failed);
}

#[test]
#[ignore = "part of `make hostile`"]
fn functions_that_fail_in_the_middle_of_a_packet() {
    Guests::new("trapper", &[""; 4]).are_withstood(failed);
}

#[test]
#[ignore = "part of `make hostile`"]
fn functions_that_end_on_their_first_packet() {
    let guests = Guests::new("returner", &[""; 4]);
    guests.are_withstood(|_| {
        let instances = guests.bed.node.cli().get("instances");
        let returned = instances.iter().filter(|instance| instance["ended_because"] == "its run function returned");
        assert!(returned.count() > 0, "{instances:?}");
    });
}

#[test]
#[ignore = "part of `make hostile`"]
fn functions_that_take_all_memory_that_they_can_get() {
    // 64 MiB, each page of which the kernel has to provide.
    let guests = Guests::that_stay(2_000, "memory_bomb", &[""; 2]);
    guests.are_withstood(|_| assert!(guests.bed.node.log().contains("memory refused at"), "they have taken it"));
}

#[test]
#[ignore = "part of `make hostile`"]
fn functions_that_search_their_memory_for_what_others_left() {
    let guests = Guests::new("canary", &[""; 2]);
    guests.are_withstood(|chain| {
        assert_eq!(chain["failures"], 0, "it found a pattern of another: {chain}");
    });
}

#[test]
#[ignore = "part of `make hostile`"]
fn functions_that_write_as_many_log_lines_as_they_can() {
    let guests = Guests::new("log_flood", &["100000"; 4]);
    guests.are_withstood(|_| {
        assert!(
            guests.bed.node.cli().status()["guest_lines_left_out"].as_u64() > Some(1_000),
            "they have written many"
        );
    });
}

#[test]
#[ignore = "part of `make hostile`"]
fn functions_that_ask_for_absurd_amounts_at_absurd_addresses() {
    Guests::new("absurd", &["some"; 4]).are_withstood(|chain| {
        assert_eq!(chain["failures"], 0, "a call succeeded, or ended it: {chain}");
        assert!(meter(chain, "copied_bytes") > 0, "{chain}");
    });
}

#[test]
#[ignore = "part of `make hostile`"]
fn functions_that_ask_for_signatures_without_a_key() {
    Guests::new("signer", &[""; 4]).are_withstood(|chain| {
        assert_eq!(chain["failures"], 0, "a call succeeded, or ended it: {chain}");
        assert!(meter(chain, "turns") > 8, "{chain}");
    });
}

#[test]
#[ignore = "part of `make hostile`"]
fn functions_that_ask_for_signatures_with_a_key() {
    let guests = Guests::that_are_granted("signer", &["site"; 4]);
    guests.are_withstood(|chain| {
        assert_eq!(chain["failures"], 0, "a call succeeded that must not, or ended it: {chain}");
        assert!(meter(chain, "turns") > 8, "{chain}");
    });
}

/// Their instances end while they wait for a job, one after the other.
#[test]
#[ignore = "part of `make hostile`"]
fn functions_that_have_all_signed_run_and_sealed_that_they_can_and_end_meanwhile() {
    let greed = ["signs site", "runs cifar", "seals site", "holds cifar"];
    Guests::that_are_granted("hog", &greed).are_withstood(|chain| {
        assert_eq!(chain["failures"], 0, "{chain}");
        assert!(meter(chain, "turns") > 8, "{chain}");
    });
}

#[test]
#[ignore = "part of `make hostile`"]
fn functions_that_call_themselves_without_end() {
    Guests::new("deep", &[""; 4]).are_withstood(failed);
}

#[test]
fn functions_that_send_all_they_can() {
    Guests::new("copier", &[""; 4]).are_withstood(|chain| assert!(meter(chain, "copied_bytes") > 1 << 20, "{chain}"));
}

#[test]
#[ignore = "part of `make hostile`"]
fn functions_of_many_tenants_that_send_all_they_can() {
    let guests = Guests::of_tenants(64, "copier");
    guests.are_withstood(|chain| assert!(meter(chain, "copied_bytes") > 1 << 16, "{chain}"));
}

#[test]
#[ignore = "part of `make hostile`"]
fn functions_that_rewrite_what_they_send_while_it_is_copied() {
    Guests::in_stages("rewriter", &["", "check"]).are_withstood(|chain| {
        assert_eq!(chain["failures"], 0, "a packet had bytes that were never sent, or changed: {chain}");
        assert!(meter(chain, "copied_bytes") > 1 << 20, "{chain}");
    });
}
