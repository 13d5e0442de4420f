//! The builder's own process: its messages when it refuses its input.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use pinion_builder_client::protocol::BuilderMessage;

const MODULE_BYTES_MAX: usize = 16 << 20;
const EXIT_REFUSED: i32 = 2;

fn builder(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pinion-builder"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Returns the refusal; messages before it are left out.
#[track_caller]
fn refusal(arguments: &[&str], input: &[u8]) -> String {
    let output = builder(arguments, input);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(EXIT_REFUSED), "{:?}: {said}", output.status);
    match BuilderMessage::of_line(said.lines().last().unwrap_or_default().as_bytes()) {
        BuilderMessage::Sentence(sentence) => sentence,
        other => panic!("its last word is {other:?}"),
    }
}

const BUILD: [&str; 3] = ["build", "--config-bytes=0", "--memory-bytes-max=1048576"];

/// Returns a module that takes a compiler many seconds, some for each of its functions, which all have names.
fn long() -> Vec<u8> {
    let calls = "(call $long-0)".repeat(15_000);
    let functions: String = (0..11).map(|number| format!("(func $long-{number} {calls})")).collect();
    let text = format!(
        r#"(module {functions} (memory (export "memory") 1)
            (func (export "pinion_abi_v3")) (func (export "pinion_run"))
            (func (export "pinion_init") (result i32) (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 0)))"#
    );
    wat::parse_str(text).unwrap()
}

#[test]
fn a_module_that_takes_too_much_cpu_time_is_refused_with_the_limit_and_the_function_that_was_being_compiled() {
    let refused = refusal(&[&["--cpu-time-ms-max=500"], &BUILD[..]].concat(), &long());
    let start = "building it took more than the 0.5 s of processor time that a module may have: its function ";
    assert!(refused.starts_with(start), "{refused}");
    // The machine's speed decides which one it is.
    assert!(refused.contains(" (long-") && refused.contains(") was being compiled, after "), "{refused}");
}

#[test]
fn a_module_that_takes_too_long_is_refused_with_the_limit() {
    // The machine's load decides what it is doing then.
    let refused = refusal(&[&["--time-ms-max=500"], &BUILD[..]].concat(), &long());
    assert!(refused.starts_with("building it took more than the 0.5 s that a module may have: it"), "{refused}");
}

#[test]
fn a_module_that_takes_too_much_memory_is_refused_with_the_limit_and_the_function_that_was_being_compiled() {
    // Far from what the builder has before it compiles the first function, some 100 MiB, and from what that takes, more than 500 MiB.
    let refused = refusal(&[&["--memory-mib-max=300"], &BUILD[..]].concat(), &long());
    assert!(
        refused.starts_with("building it took more than the 300 MiB of memory that a module may have: "),
        "{refused}"
    );
    assert!(refused.contains(" was being compiled, after "), "{refused}");
}

#[test]
fn a_module_archive_or_configuration_that_is_too_large_is_refused_with_the_bound() {
    let module = vec![0; MODULE_BYTES_MAX + 1];
    let expected = "it has more bytes than a module may have, 16777216";
    assert_eq!(refusal(&["check"], &module), expected);
    assert_eq!(refusal(&BUILD, &module), expected);
    let archive = "it has more bytes than the archive of a stage's files may have, 16777216";
    assert_eq!(refusal(&["check-files"], &module), archive);
    let files = ["build", "--config-bytes=0", "--memory-bytes-max=1048576", "--files-bytes=16777217"];
    assert_eq!(refusal(&files, b""), archive);
    let config = ["build", "--config-bytes=65537", "--memory-bytes-max=1048576"];
    assert_eq!(refusal(&config, b""), "it has more bytes than a configuration may have, 65536");
    // One byte less is within the bound.
    assert!(refusal(&["check"], &module[1..]).starts_with("it is not a WebAssembly module"), "the bound is the most");
}

#[test]
fn an_empty_module_is_refused_as_empty() {
    assert_eq!(refusal(&["check"], b""), "it is empty: a WebAssembly module starts with \\0asm");
}
