//! Checks the layers inside crates: each top-level module uses only those listed below it.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pinion_tests::product::build::workspace;

/// Crates with their top-level modules, from the top layer to the lowest: folders and files directly in `src`.
const HOUSES: [(&str, &[&str]); 4] = [
    (
        "runtime/src",
        &[
            "main",
            "node",
            "lockdown",
            "supervisor",
            "roles",
            "launcher",
            "reports",
            "worker",
            "fwp",
            "offload",
            "tuning",
            "memory",
            "tenants",
            "state",
            "scheduler",
            "preemption",
            "clock",
            "containment",
            "templates",
            "cores",
            "instruments",
            "ids",
        ],
    ),
    (
        "gateway/src",
        &[
            "gateway",
            "assign",
            "invoke",
            "messages",
            "outbound",
            "flows",
            "neighbors",
            "port",
            "rules",
            "leaving",
            "checksums",
            "headers",
            "drops",
            "fwp_times",
            "id",
            "test_frames",
        ],
    ),
    (
        "mma/src",
        &[
            "mover",
            "fwp",
            "wiring",
            "guest",
            "link",
            "accounts",
            "notify",
            "rings",
            "buffer",
            "tuning",
            "ways",
            "stopwatch",
            "sync",
            "id",
        ],
    ),
    (
        "control/src",
        &[
            "socket", "client", "api", "access", "manifest", "control", "store", "wire", "node", "metrics", "journal",
            "pem", "proto", "model", "document", "disk", "causes",
        ],
    ),
];

/// Returns all Rust sources in a folder and below.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of the workspace").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the top-level module that a file belongs to; none for `lib.rs`, which only lists them.
fn room_of(file: &Path, house: &Path) -> Option<String> {
    let first = file.strip_prefix(house).expect("a file of the crate").components().next()?;
    let name = Path::new(first.as_os_str()).file_stem()?.to_str()?.to_owned();
    (name != "lib").then_some(name)
}

/// Returns whether a file holds tests only; they put together what they like.
fn is_test(file: &Path) -> bool {
    let mut names = file.components().filter_map(|part| Path::new(part.as_os_str()).file_stem()?.to_str());
    names.any(|name| name == "tests" || name.ends_with("_tests"))
}

/// Returns the top-level modules that a source names, by `crate::name` and by `crate::{name, ..}`; names in comments do not count.
fn rooms_used(source: &str) -> BTreeSet<String> {
    let source = source.split("\nmod tests {").next().unwrap_or_default();
    let code: String = source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let mut used = BTreeSet::new();
    let identifier = |text: &str| -> String {
        text.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect()
    };
    for after in code.split("crate::").skip(1) {
        let Some(group) = after.strip_prefix('{') else {
            used.insert(identifier(after));
            continue;
        };
        // The first name of each item of the group; groups within an item are skipped.
        let mut depth = 1;
        let mut item = String::new();
        for letter in group.chars() {
            depth = match letter {
                '{' => depth + 1,
                '}' => depth - 1,
                _ => depth,
            };
            if depth == 0 || (depth == 1 && letter == ',') {
                used.insert(identifier(item.trim()));
                item.clear();
            } else {
                item.push(letter);
            }
            if depth == 0 {
                break;
            }
        }
    }
    used
}

/// Returns the faults of a crate: modules that are not listed, and uses of a module that is listed above.
fn faults(house: &Path, floors: &[&str]) -> Vec<String> {
    let floor = |room: &str| floors.iter().position(|it| *it == room);
    let mut faults = Vec::new();
    for file in sources(house).into_iter().filter(|file| !is_test(file.strip_prefix(house).unwrap_or(file))) {
        let Some(room) = room_of(&file, house) else { continue };
        let Some(own) = floor(&room) else {
            faults.push(format!("{}: {room} is not listed", file.display()));
            continue;
        };
        for used in rooms_used(&fs::read_to_string(&file).expect("a source")) {
            if floor(&used).is_some_and(|used| used < own) {
                faults.push(format!("{}: {room} uses {used}, which is listed above it", file.display()));
            }
        }
    }
    faults
}

#[test]
fn each_module_uses_only_those_listed_below_it() {
    for (house, floors) in HOUSES {
        let faults = faults(&workspace().join(house), floors);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}

#[test]
fn an_import_against_the_order_of_the_modules_is_found() {
    let house = tempfile::tempdir().expect("a folder");
    fs::create_dir(house.path().join("ground")).expect("a folder");
    for (name, text) in [
        ("lib.rs", "mod top;\nmod ground;\n"),
        ("top.rs", "use crate::ground::Thing;\n"),
        ("ground/mod.rs", "//! Used by [`crate::top`].\npub struct Thing;\n"),
        ("ground/one.rs", "use crate::top::Other;\n"),
        ("ground/several.rs", "use crate::{ground::{Thing, Other}, top};\n"),
        ("attic.rs", ""),
    ] {
        fs::write(house.path().join(name), text).expect("a file");
    }
    let mut faults: Vec<String> = faults(house.path(), &["top", "ground"])
        .iter()
        .map(|fault| fault.rsplit('/').next().expect("a file's name").to_owned())
        .collect();
    faults.sort();
    let expected = [
        "attic.rs: attic is not listed",
        "one.rs: ground uses top, which is listed above it",
        "several.rs: ground uses top, which is listed above it",
    ];
    assert_eq!(faults, expected);
}
