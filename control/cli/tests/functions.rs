//! Tests of the built `pinion` command that need no node: new crates, and errors before anything is built.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Returns the command of the program, or of a copy of it, in this folder.
fn command(program: &Path, folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).current_dir(folder);
    for variable in ["PINION_SDK", "PINION_BUILDER", "PINION_PINIOND", "PINION_SOCKET"] {
        command.env_remove(variable);
    }
    command
}

fn pinion(folder: &Path, words: &[&str]) -> Output {
    command(Path::new(env!("CARGO_BIN_EXE_pinion")), folder, words).output().unwrap()
}

/// Returns the dependency on the SDK in a crate's manifest.
fn dependency(made: &Path) -> toml::Value {
    let manifest = fs::read_to_string(made.join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap_or_else(|error| panic!("{manifest}: {error}"));
    manifest["dependencies"]["pinion-sdk"].clone()
}

/// Runs the command, which must refuse with bad input, and returns the error.
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
fn a_new_crate_names_itself_and_its_sdk_and_has_no_placeholder_left() {
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
        let sdk = dependency(&made);
        assert_eq!(sdk["path"].as_str(), checkout().join("guest-sdk/rust").to_str(), "the one of this checkout");
        let features = (template == "endpoint").then(|| toml::Value::from(vec!["net"]));
        assert_eq!(sdk.get("features"), features.as_ref());
    }
}

#[test]
fn a_new_function_in_c_names_itself_and_its_sdk() {
    let folder = tempfile::tempdir().unwrap();
    let sdk = checkout().join("guest-sdk/c");
    let output = pinion(folder.path(), &["new", "my-c", "--template", "c"]);
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
fn a_new_service_in_c_names_itself_and_its_sdk_and_asks_for_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let sdk = checkout().join("guest-sdk/c");
    let output = pinion(folder.path(), &["new", "my-service", "--template", "c-service"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "my-service/ is there. Next:\n  cd my-service\n  pinion build\n  pinion apply\n"
    );
    let made = folder.path().join("my-service");
    for file in ["Makefile", ".gitignore", "README.md", "pinion.toml", "src/service.c"] {
        let text = fs::read_to_string(made.join(file)).unwrap();
        assert!(!text.contains("{{"), "{file}: {text}");
    }
    let makefile = fs::read_to_string(made.join("Makefile")).unwrap();
    assert!(makefile.contains(&format!("NET := 1\n\ninclude {}/pinion.mk", sdk.display())), "{makefile}");
}

#[test]
fn without_an_sdk_beside_the_program_new_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("prefix/bin/pinion");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    // Another process copies: a file that this one has open for writing could be inherited by a program that another test starts meanwhile,
    // and it can't be run as long as that is so.
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_pinion")).arg(&program).status().unwrap().success());
    for (template, sdk) in [("responder", "pinion-sdk"), ("endpoint", "pinion-sdk"), ("c", "C SDK")] {
        let output = command(&program, folder.path(), &["new", "mine", "--template", template]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.starts_with(&format!("error: there is no {sdk} beside this program")), "{error}");
        assert!(error.contains("--sdk or PINION_SDK"), "{error}");
        assert!(!folder.path().join("mine").exists());
    }
    // An installed SDK is in share, and is also found when the program runs through a link.
    let installed = folder.path().join("prefix/share/pinion/guest-sdk");
    for (file, text) in [("rust/Cargo.toml", "[package]\nname = \"pinion-sdk\"\n"), ("c/pinion.mk", "")] {
        fs::create_dir_all(installed.join(file).parent().unwrap()).unwrap();
        fs::write(installed.join(file), text).unwrap();
    }
    let linked = folder.path().join("linked");
    std::os::unix::fs::symlink(&program, &linked).unwrap();
    for (program, name) in [(&program, "one"), (&linked, "two")] {
        let output = command(program, folder.path(), &["new", name]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = installed.join("rust").canonicalize().unwrap();
        assert_eq!(dependency(&folder.path().join(name))["path"].as_str(), path.to_str());
    }
    let output = command(&program, folder.path(), &["new", "three", "--template", "c"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Names of folders that need quoting in TOML or in Rust strings.
const ODD: [&str; 14] = [
    "cafe\u{301}",
    "caf\u{e9}",
    "no\u{a0}break",
    "with space",
    "it's",
    "\"quoted\"",
    "back\\slash",
    "\\u{301}",
    "line\nfeed",
    "tab\tand\u{7f}",
    "'''",
    "\u{202e}\u{2028}\u{1f980}",
    "a#b=c,[d]{e}",
    "$HOME ~ %41",
];

#[test]
fn an_sdk_in_a_folder_of_any_name_is_named_so_that_cargo_finds_it() {
    let folder = tempfile::tempdir().unwrap();
    for (number, odd) in ODD.iter().enumerate() {
        let sdk = folder.path().join(odd);
        fs::create_dir_all(sdk.join("src")).unwrap();
        let manifest =
            "[package]\nname = \"pinion-sdk\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[features]\nnet = []\n";
        fs::write(sdk.join("Cargo.toml"), manifest).unwrap();
        fs::write(sdk.join("src/lib.rs"), "").unwrap();
        let name = format!("f{number}");
        let words = ["new", &name, "--template", "endpoint", "--sdk", sdk.to_str().unwrap()];
        let output = pinion(folder.path(), &words);
        assert!(output.status.success(), "{odd:?}: {}", String::from_utf8_lossy(&output.stderr));
        let made = folder.path().join(&name);
        assert_eq!(dependency(&made)["path"].as_str(), sdk.canonicalize().unwrap().to_str());
        let words = ["metadata", "--offline", "--format-version", "1"];
        let output = Command::new(env!("CARGO")).args(words).current_dir(&made).output().unwrap();
        assert!(output.status.success(), "{odd:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn an_sdk_in_a_folder_that_no_text_can_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let sdk = folder.path().join(OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&sdk).unwrap();
    fs::write(sdk.join("Cargo.toml"), "[package]\nname = \"pinion-sdk\"\n").unwrap();
    fs::write(sdk.join("pinion.mk"), "").unwrap();
    for (template, sentence) in [("responder", "this path is not UTF-8"), ("c", "make does not take this path")] {
        let mut command =
            command(Path::new(env!("CARGO_BIN_EXE_pinion")), folder.path(), &["new", "mine", "--template", template]);
        let output = command.arg("--sdk").arg(&sdk).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(sentence), "{error}");
        assert!(!folder.path().join("mine").exists());
    }
}

#[test]
fn a_path_that_make_or_its_shell_would_not_understand_is_refused_and_any_other_taken() {
    let folder = tempfile::tempdir().unwrap();
    let new = |number: usize, odd: &str| {
        let sdk = folder.path().join(odd);
        fs::create_dir(&sdk).unwrap();
        // Prints where it was found, as make and a shell see it.
        let rules = "PINION_C := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))\n\
            .DEFAULT_GOAL := where\nwhere: $(PINION_C)/pinion.mk\n\t@echo $(PINION_C) $<\n";
        fs::write(sdk.join("pinion.mk"), rules).unwrap();
        let name = format!("c{number}");
        (pinion(folder.path(), &["new", &name, "--template", "c", "--sdk", sdk.to_str().unwrap()]), sdk, name)
    };
    for (number, odd) in [
        "my checkout",
        "a#b",
        "a$b",
        "a%b",
        "a:b",
        "a;b",
        "a&b",
        "(a)",
        "a'b",
        "a\"b",
        "a*b",
        "a?",
        "[a]",
        "~a",
        "a=b",
        "a|b",
        "a\\b",
        "a\tb",
        "a\nb",
        "a<b",
        "a`b",
        "a!b",
        "{a,b}",
        "a^b",
        "a\u{85}b",
    ]
    .into_iter()
    .enumerate()
    {
        let (output, _, name) = new(number, odd);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{odd:?}: {error}");
        assert!(error.contains("make does not take this path"), "{odd:?}: {error}");
        assert!(!folder.path().join(name).exists());
    }
    for (number, odd) in ["a-b_c.d+e,f@g", "cafe\u{301}", "no\u{a0}break", "\u{1f980}\u{2028}"].into_iter().enumerate()
    {
        let (output, sdk, name) = new(100 + number, odd);
        assert!(output.status.success(), "{odd:?}: {}", String::from_utf8_lossy(&output.stderr));
        let made = folder.path().join(name);
        let mut make = Command::new("make");
        // As if typed in a shell, although these tests are run by make themselves.
        let output = make.current_dir(made).env_remove("MAKEFLAGS").env_remove("MAKELEVEL").output().unwrap();
        let sdk = sdk.canonicalize().unwrap();
        let expected = format!("{0} {0}/pinion.mk\n", sdk.display());
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A pipe whose reader has gone away.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn an_unwritable_standard_error_does_not_change_the_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pinion.toml"), MANIFEST).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_pinion"));
    let beside = dev(&["--read", "none.pcap"]);
    for (words, status) in [
        (&["status", "--socket", "/nonexistent"][..], 3),
        (&["get", "rulez"], 2),
        (&["delete"], 2),
        (&[], 2),
        (&["apply", "-f", "/nonexistent.toml"], 2),
        (&["check", "/nonexistent.wasm", "--builder", "/bin/true"], 2),
        (&["push", "/nonexistent.wasm"], 2),
        (&["new", "match"], 2),
        (&["build", "--builder", "/bin/true"], 2),
        (&beside, 2),
    ] {
        for stderr in [closed, full] {
            let found = command(program, folder.path(), words).stderr(stderr()).stdout(Stdio::null()).status().unwrap();
            assert_eq!(found.code(), Some(status), "{words:?}");
        }
        let both = command(program, folder.path(), words).stderr(full()).stdout(full()).status().unwrap();
        assert_eq!(both.code(), Some(status), "{words:?}");
    }
}

#[test]
fn a_standard_output_that_is_full_is_a_failure_and_one_that_nothing_reads_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_pinion"));
    for (when_full, when_closed) in [
        (&["--help"][..], &["--help"][..]),
        (&["--version"], &["--version"]),
        (&["help", "apply"], &["help", "apply"]),
        (&["new", "one"], &["new", "two"]),
    ] {
        let output = command(program, folder.path(), when_full).stdout(full()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{when_full:?}: {error}");
        assert!(error.starts_with("error: No space left on device"), "{error}");
        let output = command(program, folder.path(), when_closed).stdout(closed()).output().unwrap();
        assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]), "{when_closed:?}");
    }
}

#[test]
fn the_cause_of_a_missing_file_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pinion.toml"), MANIFEST).unwrap();
    let unpacked = MANIFEST.replacen("{ module = \"m\" }", "{ module = \"m\", files = \"nowhere\" }", 1);
    fs::write(folder.path().join("files.toml"), unpacked).unwrap();
    fs::write(folder.path().join("m.wasm"), "").unwrap();
    for words in [
        &["apply", "-f", "none.toml"][..],
        &["check", "none.toml"],
        &["check", "none.wasm"],
        &["push", "none.wasm"],
        &["delete", "-f", "none.toml"],
        &["apply", "-f", "files.toml"],
        &["check", "--files", "nowhere", "m.wasm"],
        &["dev", "--read", "none.pcap"],
    ] {
        let programs = ["--builder", "/bin/true", "--piniond", "/bin/true"];
        let wants = match words[0] {
            "check" => &programs[..2],
            "dev" => &programs,
            _ => &[],
        };
        let error = refused(folder.path(), &[words, wants].concat());
        assert_eq!(error.lines().count(), 1, "{error}");
        assert_eq!(error.matches("No such file or directory").count(), 1, "{words:?}: {error}");
    }
}

#[test]
fn a_module_that_is_not_built_yet_is_named_with_what_builds_it() {
    let folder = tempfile::tempdir().unwrap();
    assert!(pinion(folder.path(), &["new", "fresh", "--template", "c"]).status.success());
    assert!(pinion(folder.path(), &["new", "fresh-too"]).status.success());
    for (made, module) in [("fresh", "build/fresh.wasm"), ("fresh-too", "wasm32-wasip1/release/fresh_too.wasm")] {
        for words in [&["apply"][..], &["push"], &["check", "--builder", "/bin/true"]] {
            let error = refused(&folder.path().join(made), words);
            assert!(error.contains(module) && error.contains("pinion build does that"), "{error}");
            assert_eq!(error.matches("No such file or directory").count(), 1, "{error}");
        }
    }
}

#[test]
fn files_to_check_are_told_apart_by_their_content() {
    let folder = tempfile::tempdir().unwrap();
    let module = b"\0asm\x01\0\0\0";
    let said = |name: &str, bytes: &[u8]| {
        fs::write(folder.path().join(name), bytes).unwrap();
        // The false builder reports nothing, so there is no verdict.
        let output = pinion(folder.path(), &["check", name, "--builder", "/bin/false"]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for name in ["m", "M.WASM", "m.bin", "m.toml"] {
        let (code, error) = said(name, module);
        assert_eq!(code, Some(1), "it came to the builder: {error}");
        assert!(error.contains("builder") && !error.contains("TOML"), "{error}");
    }
    // By its name.
    assert_eq!(said("text.WASM", b"hello").0, Some(1));
    let neither = "this is neither a WebAssembly module, which begins with \\0asm, nor a manifest, which is TOML";
    for (name, bytes, sentence) in [
        ("noise", &b"\xff\xfe\0\x01"[..], neither),
        ("m.png", b"\x89PNG\r\n\x1a\n\0\0\0", neither),
        ("m.wat", b";; a module\n (module)", "this is a WebAssembly module as text"),
        ("m.toml", b"hello = 1", "the key version is missing"),
        ("manifest", b"version = \"pinion.v1\"\nnope = 1", "unknown key `nope`"),
    ] {
        let (code, error) = said(name, bytes);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.starts_with(&format!("error: {name}:")) && error.contains(sentence), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    fs::write(folder.path().join("m"), module).unwrap();
    let text = "a WebAssembly module as text";
    for (name, what) in [("m", "a WebAssembly module"), ("noise", "not text"), ("m.wat", text)] {
        let error = refused(folder.path(), &["apply", "-f", name]);
        assert!(error.starts_with(&format!("error: {name}: this is {what}")), "{error}");
        assert!(error.contains("no manifest, which is TOML"), "{error}");
    }
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
        assert_eq!(dependency(&folder.path().join(name))["path"].as_str(), sdk.to_str());
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
fn an_invalid_crate_name_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["7up", "My-Function", "a_b", "../up", "test", "-x", "", "match", "std", "panic-unwind", "caf\u{e9}"] {
        refused(folder.path(), &["new", "--", name]);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_without_a_manifest_has_nothing_to_build_check_or_apply() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["build", "check", "apply", "push"] {
        // The error is not about the builder, which need not have been built here.
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

/// Returns arguments of `pinion dev` with programs that exist and are never run.
fn dev<'w>(words: &[&'w str]) -> Vec<&'w str> {
    [&["dev", "--piniond", "/bin/false", "--builder", "/bin/false"], words].concat()
}

#[test]
fn dev_requires_a_source_of_frames() {
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
fn dev_names_the_input_that_it_cannot_use() {
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
    assert!(error.starts_with("error: in.pcap: it is also the input: write the output to another"), "{error}");
    assert_eq!(fs::read(here.join("in.pcap")).unwrap(), empty);
    let error = refused(here, &dev(&["--tap", "a-name-that-is-too-long"]));
    assert!(error.contains("is no name for a device"), "{error}");
}
