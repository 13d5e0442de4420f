//! `pinion build`: a function's crate to a module that a node takes.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;

use super::{BadInput, check, folder_of, read_manifests};
use crate::args::{self, Format};

/// What guests are compiled for.
const TARGET: &str = "wasm32-wasip1";

pub(super) fn run(manifest: &Path, builder: args::Builder, format: Format) -> anyhow::Result<()> {
    let bundle = read_manifests(&[manifest.to_owned()])?;
    let builder = check::builder(builder)?;
    compile(folder_of(manifest))?;
    let taken = check::contents(&builder, &bundle.load()?)?;
    check::print(&taken, format)
}

/// Has the function built in the way of its folder.
pub(super) fn compile(folder: &Path) -> anyhow::Result<()> {
    let is_there = |file: &str| folder.join(file).is_file();
    if is_there("Cargo.toml") {
        // Where the manifest looks for the module, whatever cargo's own settings say.
        let program = std::env::var("PINION_CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let words = ["build", "--release", "--target", TARGET, "--target-dir", "target"];
        run_compiler(program, &words, folder, "install Rust (rustup.rs), or say by PINION_CARGO where cargo is")
    } else if is_there("Makefile") {
        run_compiler("make".to_owned(), &[], folder, "install make")
    } else {
        Err(BadInput::NothingToBuild.into())
    }
}

fn run_compiler(program: String, words: &[&str], folder: &Path, remedy: &str) -> anyhow::Result<()> {
    let status = Command::new(&program).args(words).current_dir(folder).stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("{program} did not run: {remedy}"))?;
    if status.success() { Ok(()) } else { Err(BadInput::NotBuilt { program, status }.into()) }
}
