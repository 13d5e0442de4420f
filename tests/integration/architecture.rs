//! The map of the house, held by a test: who may depend on whom, and where things lie.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use pinion_tests::build::workspace;
use pinion_tests::process::run;
use serde_json::Value;

/// Each package, from the bottom up, with the packages of the house that it may use.
const HOUSE: [(&str, &[&str]); 31] = [
    ("pinion-abi", &[]),
    ("pinion-sdk", &["pinion-abi"]),
    ("pinion-c-header", &["pinion-abi", "pinion-sdk"]),
    ("pinion-mma", &["pinion-abi"]),
    ("pinion-dpdk-sys", &[]),
    ("pinion-gateway", &["pinion-abi", "pinion-mma", "pinion-dpdk-sys"]),
    ("pinion-control", &[]),
    ("pinion-guest", &["pinion-abi"]),
    ("pinion-builder-client", &["pinion-abi"]),
    ("pinion-cli", &["pinion-control", "pinion-builder-client"]),
    ("pinion-builder", &["pinion-abi", "pinion-guest", "pinion-builder-client"]),
    (
        "pinion-runtime",
        &[
            "pinion-abi",
            "pinion-mma",
            "pinion-gateway",
            "pinion-control",
            "pinion-guest",
            "pinion-builder-client",
            "pinion-builder",
        ],
    ),
    ("balancer", &["pinion-sdk"]),
    ("delay", &["pinion-sdk"]),
    ("firewall", &["pinion-sdk"]),
    ("http-server", &["pinion-sdk"]),
    ("icmp-echo", &["pinion-sdk"]),
    ("lpm-router", &["pinion-sdk"]),
    ("macswap", &["pinion-sdk"]),
    ("monitor", &["pinion-sdk"]),
    ("nat", &["pinion-sdk"]),
    ("notebook", &["pinion-sdk"]),
    ("packet-filter", &["pinion-sdk"]),
    ("policer", &["pinion-sdk"]),
    ("tcp-echo", &["pinion-sdk"]),
    ("udp-echo", &["pinion-abi", "pinion-sdk"]),
    ("word-count", &["pinion-sdk"]),
    ("pinion-hostile-guests", &["pinion-abi", "pinion-sdk"]),
    ("pinion-tests", &[]),
    ("pinion-fuzz", &["pinion-abi", "pinion-mma", "pinion-gateway"]),
    ("pinion-bench", &["pinion-control", "pinion-gateway", "pinion-mma", "pinion-runtime", "pinion-tests"]),
];

/// Libraries that only these packages may use, by what their names begin with.
const RESERVED: [(&str, &[&str]); 6] = [
    ("wasmtime", &["pinion-guest", "pinion-builder", "pinion-runtime"]),
    ("tokio", &["pinion-control", "pinion-cli", "pinion-runtime", "pinion-bench"]),
    ("tonic", &["pinion-control"]),
    ("redb", &["pinion-control"]),
    ("bindgen", &["pinion-dpdk-sys"]),
    ("smoltcp", &["pinion-sdk", "pinion-gateway", "pinion-tests", "pinion-fuzz"]),
];

/// The folders of the house.
const FOLDERS: [&str; 7] = ["control", "gateway", "guest-sdk", "mma", "runtime", "samples", "tests"];

/// The dependencies of each package of the workspace, of whatever kind.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--format-version", "1", "--offline"]).current_dir(workspace());
    let metadata: Value = serde_json::from_str(&run(&mut command)).expect("cargo writes JSON");
    let name = |value: &Value| value["name"].as_str().expect("everything has a name").to_owned();
    let packages = metadata["packages"].as_array().expect("a workspace has packages");
    let dependencies = |package: &Value| package["dependencies"].as_array().expect("a list").iter().map(name).collect();
    packages.iter().map(|package| (name(package), dependencies(package))).collect()
}

#[test]
fn every_package_is_on_the_map() {
    let packages: BTreeSet<String> = dependencies().into_keys().collect();
    let mapped: BTreeSet<String> = HOUSE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(packages, mapped);
}

#[test]
fn the_map_has_no_way_back() {
    for (place, (name, uses)) in HOUSE.iter().enumerate() {
        for used in *uses {
            let below = HOUSE[..place].iter().any(|(other, _)| other == used);
            assert!(below, "{name} may use {used}, which is not below it");
        }
    }
}

#[test]
fn no_package_depends_on_another_against_the_map() {
    let dependencies = dependencies();
    for (name, allowed) in HOUSE {
        for used in dependencies.get(name).into_iter().flatten().filter(|used| dependencies.contains_key(*used)) {
            assert!(allowed.contains(&used.as_str()), "{name} depends on {used}, against the map");
        }
    }
}

#[test]
fn engine_driver_and_control_libraries_stay_in_their_rooms() {
    for (name, uses) in dependencies() {
        for (library, rooms) in RESERVED {
            let used = uses.iter().find(|used| *used == library || used.starts_with(&format!("{library}-")));
            let allowed = used.is_none() || rooms.contains(&name.as_str());
            assert!(allowed, "{name} depends on {used:?}, which is for {rooms:?} only");
        }
    }
}

#[test]
fn the_top_level_has_these_folders_and_no_other() {
    let entries = fs::read_dir(workspace()).expect("the workspace can be listed").flatten();
    let names = entries.filter(|entry| entry.path().is_dir()).filter_map(|entry| entry.file_name().into_string().ok());
    let folders: BTreeSet<String> = names.filter(|name| name != "target" && !name.starts_with('.')).collect();
    assert_eq!(folders, FOLDERS.map(str::to_owned).into());
}
