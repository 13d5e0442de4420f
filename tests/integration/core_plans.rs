//! Whatever roles share a core, every ping is answered, and the node says who runs where.
#![forbid(unsafe_code)]

use std::fs;

use pinion_tests::bed::{Bed, Device, NODE, two_cores};
use pinion_tests::ping::flood;
use serde_json::{Value, json};

const PINGS: u64 = 2_000;

/// Floods a node of these settings from all clients at once; its cores and their roles, as it reports them.
fn cores_of_a_node_that_answers(settings: &str) -> Value {
    let bed = Bed::with_settings(Device::Tap, &[], settings);
    bed.apply_echo("per-client");
    bed.assert_floods_are_answered(PINGS);
    let cores = bed.node.cli().status()["cores"].clone();
    for core in cores.as_array().into_iter().flatten() {
        let core = core["core"].as_u64().expect("a core has a number");
        assert_eq!(allowed_cores(&bed, &format!("core-{core}")), core.to_string());
    }
    cores
}

/// Where the kernel lets the node's thread of this name run.
fn allowed_cores(bed: &Bed, thread: &str) -> String {
    let tasks = format!("/proc/{}/task", bed.node.process().as_raw_nonzero());
    let statuses = fs::read_dir(tasks)
        .expect("the node has threads")
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let field =
        |status: &str, name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
    let found = statuses.into_iter().find(|status| field(status, "Name:").as_deref() == Some(thread));
    let status = found.unwrap_or_else(|| panic!("the node has no thread {thread}"));
    field(&status, "Cpus_allowed_list:").expect("the kernel says where a thread may run")
}

#[test]
fn one_core_does_everything() {
    let (core, _) = two_cores();
    let cores = cores_of_a_node_that_answers(&format!("[cores]\ngateway = {core}\nmma = {core}\nworkers = [{core}]\n"));
    assert_eq!(cores, json!([{ "core": core, "roles": ["gateway", "mma", "worker"] }]));
}

#[test]
fn the_gateway_has_a_core_and_the_mma_shares_one_with_a_worker() {
    let (first, second) = two_cores();
    let plan = format!("[cores]\ngateway = {first}\nmma = {second}\nworkers = [{second}]\n");
    let cores = cores_of_a_node_that_answers(&plan);
    if first != second {
        let expected = [("gateway", first), ("mma", second), ("worker", second)];
        let has = |(role, core): (&str, usize)| {
            let here = cores.as_array().into_iter().flatten().find(|it| it["core"] == core);
            here.is_some_and(|it| it["roles"].as_array().is_some_and(|roles| roles.contains(&role.into())))
        };
        assert!(expected.into_iter().all(has), "{cores}");
    }
}

#[test]
fn two_workers_share_the_clients() {
    let (first, second) = two_cores();
    let workers = if first == second { format!("{first}") } else { format!("{first}, {second}") };
    let plan = format!("[cores]\ngateway = {first}\nmma = {first}\nworkers = [{workers}]\n");
    let bed = Bed::with_settings(Device::AfPacket, &[], &plan);
    bed.apply_echo("per-client");
    for client in &bed.clients {
        flood(&client.namespace, NODE, PINGS).assert_all(PINGS);
    }
    let mut cores: Vec<u64> =
        bed.node.cli().serving_fwps().iter().filter_map(|fwp| fwp["worker_core"].as_u64()).collect();
    cores.sort_unstable();
    cores.dedup();
    assert_eq!(cores.len(), if first == second { 1 } else { 2 }, "clients are served on {cores:?}");
}

#[test]
fn a_busy_node_answers_too() {
    let (first, second) = two_cores();
    let settings = format!("idle = \"busy\"\n[cores]\ngateway = {first}\nmma = {first}\nworkers = [{second}]\n");
    let cores = cores_of_a_node_that_answers(&settings);
    assert!(cores.is_array(), "{cores}");
}
