//! A tenant's work on its own machine: `pinion` in the folder of a function's crate.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::machine::process::run;
use crate::product::build::{program, workspace};

/// Returns a command for `pinion` in a folder, with this machine's toolchain for guests and the SDK of this workspace.
///
/// # Panics
/// If it has not been built.
#[track_caller]
#[must_use]
pub fn pinion(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program("pinion"));
    command.args(words).current_dir(folder);
    set_up(&mut command);
    command
}

/// Sets the environment in which a command that runs `pinion` finds toolchain and SDK.
///
/// # Panics
/// If the toolchain cannot be looked for.
pub fn set_up(command: &mut Command) {
    command.env("PINION_SDK", workspace()).env_remove("PINION_SOCKET");
    guest_toolchain(command);
}

/// As `tests/setup/build-guests.sh` does if cargo has the target's standard library only as source.
fn guest_toolchain(command: &mut Command) {
    let script = ". tests/setup/guest-toolchain.sh; guest_toolchain; echo $debian_cargo $debian_rustc $debian_libc";
    let found = run(Command::new("bash").args(["-c", script]).current_dir(workspace()));
    if let [kind, cargo, rustc, libc] = found.split_whitespace().collect::<Vec<_>>()[..]
        && kind == "debian"
    {
        command.envs([("PINION_CARGO", cargo), ("RUSTC", rustc), ("RUSTC_BOOTSTRAP", "1")]);
        command.env("CARGO_UNSTABLE_BUILD_STD", "std,panic_abort");
        command.env("CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS", format!("-L {libc}"));
    }
}

/// Makes a crate from this template. Returns its temporary folder, which is removed when dropped, and the crate's path.
///
/// # Panics
/// If it cannot be made.
#[track_caller]
#[must_use]
pub fn new_crate(template: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder for the crate");
    run(&mut pinion(folder.path(), &["new", "my-function", "--template", template]));
    let made = folder.path().join("my-function");
    (folder, made)
}

/// Replaces a text in a file, as somebody does in an editor.
///
/// # Panics
/// If the file does not contain the text, or cannot be changed.
#[track_caller]
pub fn change(file: &Path, old: &str, new: &str) {
    let text = std::fs::read_to_string(file).expect("it can be read");
    assert!(text.contains(old), "{} has no {old:?}", file.display());
    std::fs::write(file, text.replace(old, new)).expect("it can be changed");
}
