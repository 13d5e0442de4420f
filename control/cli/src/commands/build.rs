//! `pinion build`: a function's crate to a module that a node takes.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;

use super::{BadInput, OWN_MANIFEST, check, read_manifests};
use crate::args::{self, Format};

/// What guests are compiled for.
const TARGET: &str = "wasm32-wasip1";

pub(super) fn run(builder: args::Builder, format: Format) -> anyhow::Result<()> {
    if !Path::new(OWN_MANIFEST).is_file() {
        return Err(BadInput::NoManifest.into());
    }
    let builder = check::builder(builder)?;
    compile()?;
    let manifest = Path::new(OWN_MANIFEST).to_owned();
    let taken = check::contents(&builder, &read_manifests(&[manifest])?.load()?)?;
    check::print(&taken, format)
}

/// Has the function built in the way of its folder.
fn compile() -> anyhow::Result<()> {
    let is_here = |file: &str| Path::new(file).is_file();
    if is_here("Cargo.toml") {
        // Where the manifest looks for the module, whatever cargo's own settings say.
        let program = std::env::var("PINION_CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let words = ["build", "--release", "--target", TARGET, "--target-dir", "target"];
        run_compiler(program, &words, "install Rust (rustup.rs), or say by PINION_CARGO where cargo is")
    } else if is_here("Makefile") {
        run_compiler("make".to_owned(), &[], "install make")
    } else {
        Err(BadInput::NothingToBuild.into())
    }
}

fn run_compiler(program: String, words: &[&str], remedy: &str) -> anyhow::Result<()> {
    let status = Command::new(&program).args(words).stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("{program} did not run: {remedy}"))?;
    if status.success() { Ok(()) } else { Err(BadInput::NotBuilt { program, status }.into()) }
}
