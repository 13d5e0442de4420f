//! Finds the programs and guests under test. Builds nothing: `make` does that before it runs tests.

use std::path::{Path, PathBuf};

/// Returns the workspace's folder.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the workspace")
}

/// Returns the path of a program of the workspace.
///
/// # Panics
/// If it has not been built.
#[track_caller]
#[must_use]
pub fn program(name: &str) -> PathBuf {
    artifact(&Path::new("release").join(name))
}

/// Returns the path of a sample's module, by its package's name.
///
/// # Panics
/// If it has not been built.
#[track_caller]
#[must_use]
pub fn sample(name: &str) -> PathBuf {
    artifact(&guests().join(name.replace('-', "_")).with_extension("wasm"))
}

/// Returns the path of a hostile guest's module.
///
/// # Panics
/// If it has not been built.
#[track_caller]
#[must_use]
pub fn hostile(name: &str) -> PathBuf {
    artifact(&guests().join("examples").join(name).with_extension("wasm"))
}

/// Returns the path of the library in Rust for guests in C with sockets.
///
/// # Panics
/// If it has not been built.
#[track_caller]
#[must_use]
pub fn net_library() -> PathBuf {
    artifact(&guests().join("libpinion_net.a"))
}

fn guests() -> &'static Path {
    Path::new("wasm32-wasip1/guest")
}

/// Looks in the folder where the running program was built, then in the workspace's own target folder.
#[track_caller]
fn artifact(within_target: &Path) -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    // target/release/deps/TEST, or target/release/PROGRAM
    let own = program.ancestors().skip(2).take(2).map(Path::to_owned);
    let targets: Vec<PathBuf> = own.chain([workspace().join("target")]).collect();
    let found = targets.iter().map(|target| target.join(within_target)).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("there is no {} in {targets:?}: build it with `make build guests`", within_target.display())
    })
}
