//! Other programs: run to their end, with what they said in the message if that is a bad one.

use std::process::{Command, Output};

/// Fails unless this process is root's, in one sentence.
///
/// # Panics
/// If it is not.
#[track_caller]
pub fn require_root() {
    assert!(rustix::process::geteuid().is_root(), "these tests make network namespaces and devices: run them as root");
}

/// Runs a program to its end, whatever that is.
///
/// # Panics
/// If it can't be started.
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?} cannot be run ({error}): `make install` installs what tests need"),
    }
}

/// Runs a program that has to succeed; what it wrote.
///
/// # Panics
/// If it fails.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{command:?} failed with {}: {}", output.status, errors(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a program wrote to its standard error.
#[must_use]
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
