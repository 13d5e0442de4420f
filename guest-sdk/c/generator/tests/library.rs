//! Compiles the C library, the C samples, and the README's examples as users do, and runs their own tests.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// Runs `make` in a folder, with another folder for its results. Returns its output.
#[track_caller]
fn make(folder: &Path, words: &[&str]) -> String {
    let build = tempfile::tempdir().unwrap();
    let mut command = Command::new("make");
    command.arg("-C").arg(folder).args(words).arg(format!("BUILD={}", build.path().display()));
    let output = command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn the_library_passes_its_own_tests() {
    let said = make(&workspace().join("guest-sdk/c"), &["test"]);
    assert_eq!(said.matches("passed, 0 failed").count(), 7, "{said}");
}

#[test]
fn the_fake_nodes_of_both_sdks_behave_alike() {
    let said = make(&workspace().join("tests/guests/hostile-c"), &["test", "NAME=notebook"]);
    assert!(said.contains("3 passed, 0 failed"), "{said}");
}

#[test]
fn the_samples_pass_their_own_tests() {
    for sample in ["samples/monitor-c", "samples/packet-filter-c"] {
        let said = make(&workspace().join(sample), &["test"]);
        assert_eq!(said.matches("passed, 0 failed").count(), 2, "{said}");
    }
}

/// Returns the README's code blocks in a language.
fn blocks(language: &str) -> Vec<String> {
    let text = fs::read_to_string(workspace().join("guest-sdk/c/README.md")).unwrap();
    let opening = format!("```{language}\n");
    text.split(&opening).skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// The README's functions, each with its test; the names of their files.
const EXAMPLES: [&str; 2] = ["port_filter", "limit"];

/// Writes one of the README's functions, its test and its Makefile to a folder.
fn example(number: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let code = blocks("c");
    assert_eq!(code.len(), 2 * EXAMPLES.len(), "functions and their tests");
    let [makefile] = blocks("make").try_into().expect("a Makefile");
    let name = EXAMPLES[number];
    fs::write(folder.path().join(name).with_extension("c"), &code[2 * number]).unwrap();
    fs::write(folder.path().join("test.c"), &code[2 * number + 1]).unwrap();
    let sdk = workspace().join("guest-sdk/c");
    let makefile = makefile.replace("/path/to/pinion/guest-sdk/c", sdk.to_str().unwrap()).replace(EXAMPLES[0], name);
    fs::write(folder.path().join("Makefile"), makefile).unwrap();
    folder
}

#[test]
fn the_examples_of_the_readme_pass_their_tests() {
    for number in 0..EXAMPLES.len() {
        let said = make(example(number).path(), &["test", "CFLAGS=-O1 -Werror"]);
        assert!(said.contains("2 passed, 0 failed"), "{said}");
    }
}

#[test]
fn the_examples_of_the_readme_are_modules_of_less_than_100_kib() {
    for number in 0..EXAMPLES.len() {
        let folder = example(number);
        let module = folder.path().join("example.wasm");
        make(folder.path(), &["module", "CFLAGS=-O2 -Werror", &format!("MODULE={}", module.display())]);
        let bytes = fs::metadata(module).unwrap().len();
        assert!((1_000..100 * 1024).contains(&bytes), "{bytes} bytes");
    }
}
