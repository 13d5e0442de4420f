//! Runs other programs to their end. If one fails, the message contains its output.

use std::process::{Command, Output};

/// Fails with one sentence unless this process runs as root.
///
/// # Panics
/// If it does not.
#[track_caller]
pub fn require_root() {
    assert!(rustix::process::geteuid().is_root(), "these tests make network namespaces and devices: run them as root");
}

/// Runs a program to its end, whether or not it succeeds.
///
/// # Panics
/// If it cannot be started.
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?} cannot be run ({error}): `make install` installs what tests need"),
    }
}

/// Runs a program that must succeed; returns its output.
///
/// # Panics
/// If it fails.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{command:?} failed with {}: {}", output.status, errors(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns what a program wrote to its standard error.
#[must_use]
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
