//! Memory of chains and tenants stays within its limits, and is given back when memory is short; well-behaved functions are not affected.
#![forbid(unsafe_code)]

use std::fs;

use pinion_tests::network::bed::{Bed, Device, NODE, turn};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::ping::{flood, poke};
use pinion_tests::until::{SOON, until};
use serde_json::Value;

/// The tenant whose functions allocate all memory that they can get.
const TENANT: &str = "mallory";
/// The address of these functions.
const THEIRS: &str = "10.77.0.66";
/// The memory limit of one FWP of that tenant. A chain has three clients.
const FWP_KIB: u64 = 16 << 10;

/// Starts a bed where pings to [`NODE`] are answered for each client, and those to [`THEIRS`] go to functions that allocate all memory that
/// they can get. `chain` has further keys of their chain, `settings` those of the node.
fn bed_of_bombs(chain: &str, settings: &str) -> Bed {
    let bed = Bed::with_settings(Device::AfPacket, &[THEIRS], settings);
    bed.apply_echo("per-client");
    let chain = format!("memory_limit_kib = {FWP_KIB}\ncache_min = 1\n{chain}");
    let manifest = Manifest::of(TENANT)
        .module("bomb", &build::hostile("memory_bomb"))
        .chain("bombs", "bomb", &chain)
        .ping_rule("bombs", "bombs", "per-client", THEIRS);
    bed.node.apply(manifest.text());
    bed
}

/// Returns the tenant's memory by the status: what its FWPs have, and the limit.
fn tenant(bed: &Bed) -> (u64, Option<u64>) {
    let status = bed.node.cli().status();
    let tenants = status["tenants"].as_array().expect("a list of tenants");
    let found = tenants.iter().find(|entry| entry["tenant"] == TENANT).expect("the tenant is listed");
    (found["memory_kib"].as_u64().expect("a number"), found["memory_limit_kib"].as_u64())
}

/// Returns the memory of the tenant's FWPs that serve or wait for a client.
fn in_fwps(bed: &Bed) -> u64 {
    let lives = |fwp: &&Value| {
        fwp["tenant"] == TENANT && matches!(fwp["state"].as_str(), Some("cached" | "active" | "blocked"))
    };
    bed.node.cli().get("fwps").iter().filter(lives).filter_map(|fwp| fwp["memory_kib"].as_u64()).sum()
}

/// Pings from every client, so that each FWP allocates what it can; the limit of what `used_kib` returns must hold at all times.
fn assert_the_limit_holds(bed: &Bed, limit_kib: u64, used_kib: impl Fn() -> u64) {
    for client in &bed.clients {
        poke(&client.namespace, THEIRS);
        assert!(in_fwps(bed) <= limit_kib, "{} KiB of {limit_kib}", in_fwps(bed));
    }
    // The next page would exceed the limit.
    until("bombs that have all they get", SOON, || (used_kib() + 64 >= limit_kib).then_some(()));
    let mut addresses = (100..200).map(|host| format!("10.77.0.{host}"));
    let failure = until("instance that finds no memory", SOON, || {
        // Another client takes an instance that was made while there was memory.
        if bed.node.cli().chain_status(TENANT, "bombs")["ready"].as_u64() > Some(0) {
            let (client, address) = (&bed.clients[0].namespace, addresses.next().expect("memory for fewer instances"));
            client.ip(&format!("address add {address}/24 dev eth0"));
            poke(client, &format!("-I {address} {THEIRS}"));
        }
        bed.node.cli().chain_status(TENANT, "bombs")["last_failure"].as_str().map(str::to_owned)
    });
    assert!(failure.starts_with("stage 0 (bomb): it could not be instantiated: it needs "), "{failure}");
    assert!(failure.contains(&format!("{limit_kib}")), "{failure}");
    assert!(used_kib() <= limit_kib && in_fwps(bed) <= limit_kib);
    let summary = flood(&bed.clients[1].namespace, NODE, 2_000);
    println!("beside bombs with {} KiB: {summary:?}", used_kib());
    summary.assert_all(2_000);
}

#[test]
fn all_fwps_of_a_chain_together_have_no_more_memory_than_its_limit() {
    let limit_kib = 2 * FWP_KIB;
    let bed = bed_of_bombs(&format!("memory_total_kib = {limit_kib}"), "");
    let of_chain = || bed.node.cli().chain_status(TENANT, "bombs")["memory_kib"].as_u64().expect("a number");
    assert_the_limit_holds(&bed, limit_kib, of_chain);
    let chain = bed.node.cli().chain_status(TENANT, "bombs");
    assert_eq!((&chain["memory_limit_kib"], tenant(&bed).1), (&limit_kib.into(), None));
}

#[test]
fn all_fwps_of_a_tenant_together_have_no_more_memory_than_the_operator_grants() {
    let limit_kib = 2 * FWP_KIB;
    let limits =
        format!("[limits]\ntenant_memory_mib = 1000\n[[tenant]]\nname = {TENANT:?}\nmemory_mib = {}", limit_kib >> 10);
    let bed = bed_of_bombs("", &limits);
    assert_the_limit_holds(&bed, limit_kib, || tenant(&bed).0);
    assert_eq!(tenant(&bed).1, Some(limit_kib));
    let gone = format!(
        "version = \"pinion.v1\"\ntenant = {TENANT:?}\n[[rule]]\nname = \"bombs\"\npolicy = \"per-client\"\nchain = \"bombs\"\n[[chain]]\nname = \"bombs\"\nstage = [{{ module = \"bomb\" }}]\n"
    );
    let path = bed.node.path("gone.toml");
    fs::write(&path, gone).expect("the node's folder is writable");
    bed.node.cli().run(&["delete", "-f", path.to_str().expect("a path of text")]);
    until("end of the tenant's memory", SOON, || {
        let status = bed.node.cli().status();
        let tenants = status["tenants"].as_array().expect("a list of tenants").clone();
        tenants.iter().all(|entry| entry["tenant"] != TENANT || entry["memory_kib"] == 0).then_some(())
    });
}

fn states(node: &Node) -> Vec<String> {
    let state = |fwp: &Value| fwp["state"].as_str().unwrap_or_default().to_owned();
    let mut states: Vec<String> = node.cli().get("fwps").iter().map(state).collect();
    states.sort();
    states
}

/// Returns how many FWPs and templates are in a state.
fn count(node: &Node, state: &str) -> usize {
    states(node).iter().filter(|it| *it == state).count()
}

#[test]
fn as_memory_gets_short_caches_go_first_then_templates_of_idle_chains_and_never_serving_instances() {
    let cgroup = tempfile::tempdir().expect("a folder");
    let fill = |per_cent: u64| {
        // The file is replaced atomically, as a reader never sees half of the kernel's own file.
        let partial = cgroup.path().join("partial");
        fs::write(&partial, format!("{}\n", per_cent * 10_000)).expect("the folder is writable");
        fs::rename(&partial, cgroup.path().join("memory.current")).expect("the folder is writable");
    };
    fill(10);
    fs::write(cgroup.path().join("memory.max"), "1000000\n").expect("the folder is writable");
    let bed = Bed::with_settings(Device::AfPacket, &[THEIRS], &format!("memory_cgroup = {:?}", cgroup.path()));
    bed.apply_echo("per-client");
    let idle = Manifest::of(TENANT)
        .module("echo", &build::sample("icmp-echo"))
        .chain("idle", "echo", "cache_min = 3")
        .ping_rule("idle", "idle", "per-client", THEIRS);
    bed.node.apply(idle.text());
    let node = &bed.node;
    until("full caches", SOON, || (count(node, "cached") == 4 + 3).then_some(()));
    poke(&bed.clients[0].namespace, NODE);
    until("FWP that serves", SOON, || (node.cli().serving_fwps().len() == 1).then_some(()));
    let serving = node.cli().serving_fwps()[0]["id"].clone();
    until("full caches again", SOON, || (count(node, "cached") == 4 + 3).then_some(()));
    assert_eq!(count(node, "template"), 2);

    fill(90);
    until("one cached instance of each chain", SOON, || (count(node, "cached") == 2).then_some(()));
    until("instances that were taken back", SOON, || (count(node, "reclaimed") == 5).then_some(()));
    assert_eq!((count(node, "template"), count(node, "object")), (2, 0));
    let status = node.cli().status();
    assert!(status["warnings"].to_string().contains("memory: it is short"), "{status}");

    fill(99);
    until("no cached instance", SOON, || (count(node, "cached") == 0).then_some(()));
    until("template that was unloaded", SOON, || (count(node, "object") == 1).then_some(()));
    assert_eq!((count(node, "template"), &node.cli().serving_fwps()[0]["id"]), (1, &serving));
    flood(&bed.clients[0].namespace, NODE, 1_000).assert_all(1_000);

    // A client of the chain whose templates were unloaded is served all the same.
    poke(&bed.clients[1].namespace, THEIRS);
    until("FWP of the chain that was idle", SOON, || (node.cli().serving_fwps().len() == 2).then_some(()));
    assert_eq!((count(node, "template"), count(node, "object")), (2, 0));

    fill(10);
    until("full caches, as memory is there again", SOON * 3, || (count(node, "cached") == 4 + 3).then_some(()));
    assert!(node.cli().serving_fwps().iter().any(|fwp| fwp["id"] == serving));
    // The last step down takes longer.
    until("end of the warning", SOON * 3, || {
        (!node.cli().status()["warnings"].to_string().contains("memory:")).then_some(())
    });
}

#[test]
fn the_template_of_each_stage_is_listed() {
    let _turn = turn();
    let node = Node::without_devices();
    let manifest =
        Manifest::of("lab").module("echo", &build::sample("icmp-echo")).chain("echo", "echo", "cache_min = 1");
    node.apply(manifest.text());
    let fwps = node.cli().get("fwps");
    let template = fwps.iter().find(|fwp| fwp["id"] == "lab/echo/0").expect("the template is listed");
    assert_eq!((&template["state"], &template["module"]), (&"template".into(), &"echo".into()));
    let described = node.cli().run(&["describe", "fwp", "lab/echo/0", "--tenant", "lab"]);
    assert!(described.contains("template"), "{described}");
}

#[test]
fn a_chain_whose_templates_find_no_room_as_the_node_starts_gets_them_when_there_is_some() {
    let _turn = turn();
    let mut node = Node::without_devices();
    let manifest =
        Manifest::of(TENANT).module("echo", &build::sample("icmp-echo")).chain("first", "echo", "cache_min = 0");
    // With a limit of its own it has a template of its own.
    node.apply(manifest.chain("second", "echo", "cache_min = 1\nmemory_limit_kib = 8192").text());
    node.stop();
    let path = node.path("piniond.toml");
    let config = fs::read_to_string(&path).expect("the node's configuration");
    fs::write(&path, format!("{config}\n[[tenant]]\nname = {TENANT:?}\nmemory_mib = 1\n")).expect("it is writable");
    node.start();
    let fails = |words: &str| {
        until("failure of the chain", SOON, || {
            let failure = node.cli().chain_status(TENANT, "second")["last_failure"].as_str()?.to_owned();
            failure.contains(words).then_some(())
        });
    };
    fails("its code and files take");
    node.cli().run(&["delete", "chain", "first", "--tenant", TENANT]);
    // Now it is loaded, and its instance finds no room.
    fails("it needs");
}

#[test]
fn another_limit_of_a_tenant_holds_without_a_restart() {
    let _turn = turn();
    let node = Node::without_devices();
    let terms = |memory_mib: u32| format!("[[tenant]]\nname = {TENANT:?}\nmemory_mib = {memory_mib}\n");
    let apply_terms = |memory_mib| node.apply(&format!("version = \"pinion.v1\"\n{}", terms(memory_mib)));
    apply_terms(1);
    let echo = |name: &str, keys: &str| {
        Manifest::of(TENANT).module("echo", &build::sample("icmp-echo")).chain(name, "echo", keys)
    };
    node.apply(echo("first", "cache_min = 0").text());
    // Its templates find no room, unless the tenant gets more in the same change.
    let (second, tenants) = (node.path("second.toml"), node.path("tenants.toml"));
    let keys = "cache_min = 2\nmemory_limit_kib = 8192";
    fs::write(&second, echo("second", keys).text()).expect("the node's folder is writable");
    fs::write(&tenants, format!("version = \"pinion.v1\"\n{}", terms(64))).expect("the node's folder is writable");
    let refused = node.cli().try_apply(&second);
    let refusal = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && refusal.contains("its code and files take"), "{refusal}");
    let [second, tenants] = [&second, &tenants].map(|path| path.to_str().expect("a path of text"));
    node.cli().run(&["apply", "-f", second, tenants]);
    let ready = |count: u64| {
        until("instances that are ready", SOON, || {
            (node.cli().chain_status(TENANT, "second")["ready"].as_u64() == Some(count)).then_some(())
        });
    };
    ready(2);
    // Less than it has: what is there stays, and more is refused.
    apply_terms(1);
    node.apply(echo("second", "cache_min = 4\nmemory_limit_kib = 8192").text());
    until("refused memory", SOON, || {
        let failure = node.cli().chain_status(TENANT, "second")["last_failure"].as_str()?.to_owned();
        failure.contains("the node grants the tenant").then_some(())
    });
    ready(2);
    apply_terms(64);
    ready(4);
}

#[test]
fn an_apply_that_is_refused_for_want_of_memory_leaves_none_of_its_templates_on_the_disk() {
    let _turn = turn();
    let limit = format!("[[tenant]]\nname = {TENANT:?}\nmemory_mib = 1\n");
    let node = Node::started(&format!("[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n{limit}"));
    let templates = || fs::read_dir(node.path("state/templates")).expect("a folder of templates").count();
    let chain = |name: &str, limit_kib: u32| {
        // With a limit of its own each has a template of its own.
        let keys = format!("cache_min = 0\nmemory_limit_kib = {limit_kib}");
        Manifest::of(TENANT).module("echo", &build::sample("icmp-echo")).chain(name, "echo", &keys)
    };
    node.apply(chain("first", 4_096).text());
    let of_first = templates();
    for limit_kib in [5_120, 6_144] {
        fs::write(node.path("second.toml"), chain("second", limit_kib).text()).expect("the node's folder is writable");
        let refused = node.cli().try_apply(&node.path("second.toml"));
        let refusal = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && refusal.contains("its code and files take"), "{refusal}");
        assert_eq!(templates(), of_first, "files in the folder of templates");
    }
}
