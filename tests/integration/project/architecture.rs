//! Checks the architecture: which package may depend on which, and which folders exist.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pinion_tests::machine::process::run;
use pinion_tests::product::build::workspace;
use serde_json::Value;

/// Each package, from the bottom up, with the workspace packages that it may use.
const HOUSE: [(&str, &[&str]); 40] = [
    ("pinion-abi", &[]),
    ("pinion-sdk", &["pinion-abi"]),
    ("pinion-c-header", &["pinion-abi", "pinion-sdk"]),
    ("pinion-c-net", &["pinion-abi", "pinion-sdk"]),
    ("pinion-mma", &["pinion-abi"]),
    ("pinion-text", &[]),
    ("pinion-keys", &[]),
    ("pinion-dpdk-sys", &[]),
    ("pinion-gateway", &["pinion-abi", "pinion-mma", "pinion-dpdk-sys"]),
    ("pinion-control", &["pinion-text", "pinion-keys"]),
    ("pinion-guest", &["pinion-abi", "pinion-text"]),
    ("pinion-confinement", &[]),
    ("pinion-inference", &[]),
    ("pinion-builder-client", &["pinion-abi", "pinion-text"]),
    ("pinion-cli", &["pinion-text", "pinion-control", "pinion-builder-client"]),
    (
        "pinion-builder",
        &[
            "pinion-abi",
            "pinion-mma",
            "pinion-text",
            "pinion-guest",
            "pinion-confinement",
            "pinion-inference",
            "pinion-builder-client",
        ],
    ),
    (
        "pinion-runtime",
        &[
            "pinion-abi",
            "pinion-mma",
            "pinion-text",
            "pinion-keys",
            "pinion-gateway",
            "pinion-control",
            "pinion-guest",
            "pinion-confinement",
            "pinion-inference",
            "pinion-builder-client",
            "pinion-builder",
        ],
    ),
    ("balancer", &["pinion-sdk"]),
    ("delay", &["pinion-sdk"]),
    ("firewall", &["pinion-sdk"]),
    ("http-server", &["pinion-sdk"]),
    ("classifier", &["pinion-sdk", "http-server"]),
    ("icmp-echo", &["pinion-sdk"]),
    ("lpm-router", &["pinion-sdk"]),
    ("macswap", &["pinion-sdk"]),
    ("memcached", &["pinion-sdk"]),
    ("monitor", &["pinion-sdk"]),
    ("nat", &["pinion-sdk", "firewall", "lpm-router"]),
    ("notebook", &["pinion-sdk"]),
    ("packet-filter", &["pinion-sdk"]),
    ("policer", &["pinion-sdk"]),
    ("tcp-echo", &["pinion-sdk"]),
    ("tls-proxy", &["pinion-sdk", "pinion-keys", "http-server"]),
    ("udp-echo", &["pinion-abi", "pinion-sdk"]),
    ("word-count", &["pinion-sdk"]),
    ("pinion-hostile-guests", &["pinion-abi", "pinion-sdk"]),
    ("pinion-tests", &[]),
    (
        "pinion-fuzz",
        &[
            "pinion-abi",
            "pinion-mma",
            "pinion-keys",
            "pinion-gateway",
            "pinion-guest",
            "pinion-inference",
            "pinion-builder",
        ],
    ),
    (
        "pinion-counts",
        &[
            "pinion-abi",
            "pinion-mma",
            "pinion-gateway",
            "pinion-control",
            "pinion-guest",
            "pinion-builder-client",
            "pinion-builder",
            "pinion-runtime",
            "pinion-tests",
        ],
    ),
    (
        "pinion-bench",
        &[
            "pinion-builder",
            "pinion-confinement",
            "pinion-control",
            "pinion-gateway",
            "pinion-inference",
            "pinion-mma",
            "pinion-runtime",
            "pinion-tests",
        ],
    ),
];

/// Libraries that only these packages may use, by the prefixes of their names.
const RESERVED: [(&str, &[&str]); 7] = [
    ("wasmtime", &["pinion-guest", "pinion-builder", "pinion-runtime", "pinion-counts", "pinion-fuzz"]),
    ("tokio", &["pinion-control", "pinion-cli", "pinion-runtime", "pinion-bench"]),
    ("tonic", &["pinion-control"]),
    ("redb", &["pinion-control"]),
    ("tract", &["pinion-inference", "pinion-builder", "pinion-fuzz"]),
    ("bindgen", &["pinion-dpdk-sys"]),
    ("smoltcp", &["pinion-sdk", "pinion-gateway", "pinion-mma", "pinion-tests", "pinion-fuzz", "pinion-counts"]),
];

/// The folders at the top level.
const FOLDERS: [&str; 8] = ["control", "docs", "gateway", "guest-sdk", "mma", "runtime", "samples", "tests"];

/// Returns the dependencies of each package of the workspace, of every kind.
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
fn every_package_is_listed() {
    let packages: BTreeSet<String> = dependencies().into_keys().collect();
    let mapped: BTreeSet<String> = HOUSE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(packages, mapped);
}

#[test]
fn packages_may_use_only_those_listed_before_them() {
    for (place, (name, uses)) in HOUSE.iter().enumerate() {
        for used in *uses {
            let below = HOUSE[..place].iter().any(|(other, _)| other == used);
            assert!(below, "{name} may use {used}, which is not listed before it");
        }
    }
}

#[test]
fn no_package_depends_on_one_that_it_may_not_use() {
    let dependencies = dependencies();
    for (name, allowed) in HOUSE {
        for used in dependencies.get(name).into_iter().flatten().filter(|used| dependencies.contains_key(*used)) {
            assert!(allowed.contains(&used.as_str()), "{name} depends on {used}, which is not listed for it");
        }
    }
}

#[test]
fn engine_driver_and_control_libraries_are_used_by_their_packages_only() {
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

#[test]
fn the_specification_states_the_rust_that_the_workspace_builds_with() {
    let read = |name: &str| fs::read_to_string(workspace().join(name)).expect("a file of the workspace");
    let (manifest, specification) = (read("Cargo.toml"), read("SPECIFICATION.md"));
    let value = |key: &str| {
        let line = manifest.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        line.unwrap_or_else(|| panic!("Cargo.toml has {key}")).trim_matches('"').to_owned()
    };
    let row = format!("| Rust | {} or later, edition {} |", value("rust-version"), value("edition"));
    assert!(specification.contains(&row), "section 10 has a row that begins {row:?}");
}

/// Returns all Rust sources below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of the workspace").flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the integration tests by the name of their file, which the specification cites without its folder.
fn integration_tests() -> BTreeMap<String, PathBuf> {
    let mut tests = BTreeMap::new();
    for path in sources(&workspace().join("tests/integration")) {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8").to_owned();
        if let Some(other) = tests.insert(name, path.clone()) {
            panic!("{} and {} have one name", path.display(), other.display());
        }
    }
    tests
}

#[test]
fn where_a_package_has_one_test_program_every_file_of_its_tests_belongs_to_it() {
    for package in ["control", "control/cli"] {
        let tests = workspace().join(package).join("tests");
        let main = fs::read_to_string(tests.join("main.rs")).unwrap();
        let files = fs::read_dir(&tests).unwrap().map(|entry| entry.unwrap().path());
        for file in files.filter(|file| file.extension().is_some_and(|it| it == "rs") && !file.ends_with("main.rs")) {
            let name = file.file_stem().unwrap().to_str().unwrap();
            assert!(main.lines().any(|line| line == format!("mod {name};")), "{} runs in no program", file.display());
        }
    }
}

#[test]
fn the_tests_and_files_that_the_specification_names_are_there() {
    let specification = fs::read_to_string(workspace().join("SPECIFICATION.md")).expect("a file of the workspace");
    let files = FOLDERS.iter().flat_map(|folder| sources(&workspace().join(folder)));
    let text: String = files.map(|file| fs::read_to_string(file).expect("a file of the workspace")).collect();
    let integration_tests = integration_tests();
    let name = |text: &str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().map(str::to_owned);
    let functions: BTreeSet<String> = text.split("fn ").filter_map(name).collect();
    let mut named = 0;
    // Every second piece is between backticks.
    for reference in specification.split('`').skip(1).step_by(2) {
        let Some((file, function)) = reference.split_once("::") else { continue };
        // The specification itself explains what `::test` stands for.
        if !(file.is_empty() || file.ends_with(".rs")) || function == "test" {
            continue;
        }
        let function = function.rsplit("::").next().unwrap_or(function);
        let is_there = match file.strip_prefix("it/") {
            Some(file) => integration_tests.contains_key(file),
            None => workspace().join(file).exists(),
        };
        assert!(is_there, "{reference}");
        assert!(functions.contains(function), "{reference}");
        named += 1;
    }
    assert!(named > 300, "{named}");
}

#[test]
fn each_number_of_the_specification_belongs_to_one_promise() {
    let specification = fs::read_to_string(workspace().join("SPECIFICATION.md")).expect("a file of the workspace");
    let number = |line: &str| {
        let number = line.strip_prefix("| ")?.split_once(" | ")?.0;
        let (letter, digits) = number.split_at_checked(1)?;
        (letter.chars().all(|letter| letter.is_ascii_uppercase()) && digits.parse::<u32>().is_ok())
            .then(|| number.to_owned())
    };
    let mut seen = BTreeSet::new();
    for number in specification.lines().filter_map(number) {
        assert!(seen.insert(number.clone()), "{number} is the number of two promises");
    }
    assert!(seen.len() > 100, "{seen:?}");
}
