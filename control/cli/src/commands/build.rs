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

/// Has cargo build where the manifest looks for the module, whatever its own settings say.
fn compile() -> anyhow::Result<()> {
    let program = std::env::var("PINION_CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(&program);
    command.args(["build", "--release", "--target", TARGET, "--target-dir", "target"]).stdin(Stdio::null());
    let status = command.status().with_context(|| {
        format!("{program} did not run: install Rust (rustup.rs), or say by PINION_CARGO where cargo is")
    })?;
    if status.success() { Ok(()) } else { Err(BadInput::NotBuilt { program, status }.into()) }
}
