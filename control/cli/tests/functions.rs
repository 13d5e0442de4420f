//! The built `pinion` command where it needs no node: new crates, and what is said before anything is built.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn pinion(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
    command.args(words).current_dir(folder);
    for variable in ["PINION_SDK", "PINION_BUILDER", "PINION_PINIOND", "PINION_SOCKET"] {
        command.env_remove(variable);
    }
    command.output().unwrap()
}

/// The error, which has to be for bad input.
fn refused(folder: &Path, words: &[&str]) -> String {
    let output = pinion(folder, words);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
    error
}

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn a_new_crate_names_itself_and_its_sdk_and_leaves_no_place_unfilled() {
    let folder = tempfile::tempdir().unwrap();
    for template in ["responder", "packet-filter", "endpoint"] {
        let name = format!("my-{template}");
        let output = pinion(folder.path(), &["new", &name, "--template", template]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let made = folder.path().join(&name);
        for file in [
            "Cargo.toml",
            ".cargo/config.toml",
            ".gitignore",
            "README.md",
            "pinion.toml",
            "src/lib.rs",
            "tests/frames.rs",
        ] {
            let text = fs::read_to_string(made.join(file)).unwrap();
            assert!(!text.contains("{{"), "{template}: {file}: {text}");
        }
        let manifest = fs::read_to_string(made.join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{manifest}");
        assert!(
            manifest.contains(concat!("pinion-sdk = { version = \"", env!("CARGO_PKG_VERSION"), "\"")),
            "{manifest}"
        );
    }
}

#[test]
fn a_new_function_in_c_names_itself_and_its_sdk_which_comes_with_a_checkout_only() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["new", "my-c", "--template", "c"];
    let error = refused(folder.path(), &words);
    assert!(error.starts_with("error: the SDK for C comes with Pinion's source"), "{error}");
    let sdk = checkout().join("guest-sdk/c");
    let output = pinion(folder.path(), &[&words[..], &["--sdk", checkout().to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("make test"));
    let made = folder.path().join("my-c");
    for file in ["Makefile", ".gitignore", "README.md", "pinion.toml", "src/function.c", "tests/frames.c"] {
        let text = fs::read_to_string(made.join(file)).unwrap();
        assert!(!text.contains("{{"), "{file}: {text}");
    }
    let makefile = fs::read_to_string(made.join("Makefile")).unwrap();
    assert!(makefile.contains("NAME := my-c\n"), "{makefile}");
    assert!(makefile.contains(&format!("include {}/pinion.mk", sdk.display())), "{makefile}");
}

#[test]
fn a_path_that_make_would_not_understand_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let checkout = folder.path().join("my checkout");
    fs::create_dir(&checkout).unwrap();
    fs::write(checkout.join("pinion.mk"), "").unwrap();
    let error = refused(folder.path(), &["new", "my-c", "--template", "c", "--sdk", checkout.to_str().unwrap()]);
    assert!(error.contains("my checkout: make does not take this path"), "{error}");
    assert!(!folder.path().join("my-c").exists());
}

#[test]
fn a_folder_with_nothing_to_build_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = "version = \"pinion.v1\"\n[[module]]\nname = \"m\"\npath = \"m.wasm\"\n";
    fs::write(folder.path().join("pinion.toml"), manifest).unwrap();
    let builder = env!("CARGO_BIN_EXE_pinion");
    let error = refused(folder.path(), &["build", "--builder", builder]);
    assert!(error.starts_with("error: there is neither a Cargo.toml nor a Makefile in this folder"), "{error}");
}

#[test]
fn the_sdk_of_a_checkout_is_found_from_its_root_and_from_within() {
    let folder = tempfile::tempdir().unwrap();
    let sdk = checkout().join("guest-sdk/rust");
    for (name, given) in [("a", checkout()), ("b", checkout().join("guest-sdk")), ("c", sdk.clone())] {
        let output = pinion(folder.path(), &["new", name, "--sdk", given.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let manifest = fs::read_to_string(folder.path().join(name).join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("pinion-sdk = {{ path = {sdk:?} }}")), "{manifest}");
    }
    let error = refused(folder.path(), &["new", "d", "--sdk", "/nonexistent"]);
    assert!(error.starts_with("error: there is no pinion-sdk at /nonexistent"), "{error}");
    assert!(!folder.path().join("d").exists());
}

#[test]
fn a_folder_with_something_in_it_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("mine")).unwrap();
    fs::write(folder.path().join("mine/notes"), "dear diary").unwrap();
    let error = refused(folder.path(), &["new", "mine"]);
    assert!(error.starts_with("error: mine is not empty"), "{error}");
    assert_eq!(fs::read_dir(folder.path().join("mine")).unwrap().count(), 1);
    fs::create_dir(folder.path().join("empty")).unwrap();
    assert!(pinion(folder.path(), &["new", "empty"]).status.success());
}

#[test]
fn what_is_no_name_of_a_crate_makes_none() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["7up", "My-Function", "a_b", "../up", "test", "-x", "", "match"] {
        refused(folder.path(), &["new", "--", name]);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_without_a_manifest_has_nothing_to_build_check_or_apply() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["build", "check", "apply", "push"] {
        // Not about the builder, which need not have been built here.
        let error = refused(folder.path(), &[command]);
        assert!(
            error.starts_with("error: there is no pinion.toml in this folder, nor in one above"),
            "{command}: {error}"
        );
    }
}

#[test]
fn a_builder_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = refused(folder.path(), &["check", "m.wasm", "--builder", "/nonexistent/builder"]);
    assert!(error.starts_with("error: there is no builder at /nonexistent/builder"), "{error}");
}

const MANIFEST: &str = r#"version = "pinion.v1"

[[module]]
name = "m"
path = "m.wasm"

[[chain]]
name = "one"
stage = [{ module = "m" }]

[[chain]]
name = "two"
stage = [{ module = "m" }]
"#;

/// `pinion dev` with programs that are there and never run.
fn dev<'w>(words: &[&'w str]) -> Vec<&'w str> {
    [&["dev", "--piniond", "/bin/false", "--builder", "/bin/false"], words].concat()
}

#[test]
fn who_works_on_a_function_says_where_its_frames_come_from() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pinion.toml"), MANIFEST).unwrap();
    for words in [
        &[][..],
        &["--read", "in.pcap", "--tap", "tap0"],
        &["--tap", "tap0", "--write", "out.pcap"],
        &["--read", "in.pcap", "--address", "10.0.0.1/24"],
        &["--read", "in.pcap", "--burst", "0"],
        &["--read", "in.pcap", "--by-rules", "--chain", "one"],
        &["--tap", "tap0", "--watch", "--no-watch"],
    ] {
        refused(folder.path(), &dev(words));
    }
}

#[test]
fn what_a_function_cannot_be_worked_on_with_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let error = refused(here, &dev(&["--read", "in.pcap"]));
    assert!(error.starts_with("error: there is no pinion.toml in this folder"), "{error}");
    fs::write(here.join("pinion.toml"), MANIFEST).unwrap();
    let error = refused(here, &["dev", "--read", "in.pcap", "--builder", "/bin/false", "--piniond", "/nonexistent"]);
    assert!(error.starts_with("error: there is no piniond at /nonexistent"), "{error}");
    let error = refused(here, &["dev", "--read", "in.pcap", "--piniond", "/bin/false", "--builder", "/nonexistent"]);
    assert!(error.starts_with("error: there is no builder at /nonexistent"), "{error}");
    let error = refused(here, &dev(&["--read", "in.pcap"]));
    assert!(error.starts_with("error: in.pcap: No such file"), "{error}");
    fs::write(here.join("in.pcap"), "this is no capture of any kind").unwrap();
    let error = refused(here, &dev(&["--read", "in.pcap"]));
    assert!(error.starts_with("error: in.pcap: it is neither pcap nor pcapng"), "{error}");
    let empty = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat();
    fs::write(here.join("in.pcap"), &empty).unwrap();
    let error = refused(here, &dev(&["--read", "in.pcap", "--write", "./in.pcap"]));
    assert!(error.starts_with("error: in.pcap: it is read: have what comes out written to another"), "{error}");
    assert_eq!(fs::read(here.join("in.pcap")).unwrap(), empty);
    let error = refused(here, &dev(&["--tap", "a-name-that-is-too-long"]));
    assert!(error.contains("is no name for a device"), "{error}");
}
