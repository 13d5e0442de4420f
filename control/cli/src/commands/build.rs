//! `pinion build`: builds a function's crate into a module for a node.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;

use super::{BadInput, check, folder_of, read_manifests};
use crate::args::{self, Format};
use crate::contexts::Target;

/// The compilation target of guests.
const TARGET: &str = "wasm32-wasip1";

pub(super) fn run(target: &Target, manifest: &Path, builder: args::Builder, format: Format) -> anyhow::Result<()> {
    let bundle = read_manifests(&target.tenant_or(None), &[manifest.to_owned()])?;
    let builder = check::builder(builder)?;
    compile(folder_of(manifest))?;
    let taken = check::contents(&builder, &bundle.load()?)?;
    check::print(&taken, format)
}

/// How the function of a folder is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Cargo,
    Make,
}

impl Way {
    /// Detects it from the files in the folder; none if they do not tell.
    pub(super) fn of(folder: &Path) -> Option<Self> {
        let is_there = |files: &[&str]| files.iter().any(|file| folder.join(file).is_file());
        match () {
            () if is_there(&["Cargo.toml"]) => Some(Self::Cargo),
            // In the order in which GNU make looks for them.
            () if is_there(&["GNUmakefile", "makefile", "Makefile"]) => Some(Self::Make),
            () => None,
        }
    }
}

/// Builds the function with the build system of its folder.
pub(super) fn compile(folder: &Path) -> anyhow::Result<()> {
    match Way::of(folder) {
        Some(Way::Cargo) => {
            // The manifest expects the module here, whatever cargo's own settings are.
            let program = std::env::var("PINION_CARGO").unwrap_or_else(|_| "cargo".to_owned());
            let words = ["build", "--release", "--target", TARGET, "--target-dir", "target"];
            run_compiler(program, &words, folder, "install Rust (rustup.rs), or say by PINION_CARGO where cargo is")
        }
        Some(Way::Make) => run_compiler("make".to_owned(), &[], folder, "install make"),
        None => Err(BadInput::NothingToBuild.into()),
    }
}

fn run_compiler(program: String, words: &[&str], folder: &Path, remedy: &str) -> anyhow::Result<()> {
    let status = Command::new(&program).args(words).current_dir(folder).stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("{program} did not run: {remedy}"))?;
    if status.success() { Ok(()) } else { Err(BadInput::NotBuilt { program, status }.into()) }
}
