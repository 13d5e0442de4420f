//! The checked-in header matches the ABI crate, and C compilers lay it out as Rust does.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../include")
}

#[test]
fn the_header_matches_the_contract() {
    let there = fs::read_to_string(include().join("pinion/abi.h")).unwrap();
    assert!(there == pinion_c_header::header(), "write pinion/abi.h anew: `cargo run -p pinion-c-header`");
}

/// Compiles the assertions. Returns the compiler's output if one does not hold.
fn compile(text: &str, command: &mut Command) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("assertions.c");
    fs::write(&file, text).unwrap();
    let command = command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]).arg(include());
    let output = command.arg(&file).output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn clang() -> Command {
    let mut command = Command::new("clang-19");
    command.args(["--target=wasm32-wasi", "-ffreestanding"]);
    command
}

#[test]
fn c_layouts_match_rust_natively_and_in_webassembly() {
    let assertions = pinion_c_header::assertions();
    let kinds = [
        "sizeof(struct pinion_pool_header) == 32",
        "offsetof(struct pinion_descriptor, flags) == 8",
        "sizeof(struct pinion_metric_text) == 128",
        "(const char *const[]){PINION_METRIC_LABELS_RESERVED} / sizeof(char *) == 4",
    ];
    for kind in kinds {
        assert!(assertions.contains(kind), "{assertions}");
    }
    for mut compiler in [Command::new("cc"), clang()] {
        assert_eq!(compile(&assertions, &mut compiler), Ok(()));
    }
}

#[test]
fn a_wrong_assertion_fails_to_compile() {
    let wrong = pinion_c_header::assertions()
        .replace("sizeof(struct pinion_descriptor) == 16", "sizeof(struct pinion_descriptor) == 24");
    for mut compiler in [Command::new("cc"), clang()] {
        assert!(compile(&wrong, &mut compiler).is_err_and(|said| said.contains("pinion_descriptor")));
    }
}

#[test]
fn the_header_contains_the_whole_contract() {
    let header = pinion_c_header::header();
    let left_out: Vec<&str> = header.lines().filter(|line| line.contains("is nothing that C could say")).collect();
    assert_eq!(left_out, Vec::<&str>::new());
}

#[test]
fn every_call_of_the_contract_is_declared() {
    let header = pinion_c_header::header();
    let imports = header.lines().filter_map(|line| line.strip_prefix("#define PINION_IMPORT_")?.split_once(' '));
    let is_call = |name: &str| !["MODULE", "PREFIX"].into_iter().any(|kind| name.ends_with(kind));
    for (name, import) in imports.filter(|(name, _)| is_call(name)) {
        let declaration = format!("pinion_import_{}(", import.trim_matches('"'));
        assert!(header.contains(&declaration), "IMPORT_{name}'s documentation does not begin with its signature");
    }
}
