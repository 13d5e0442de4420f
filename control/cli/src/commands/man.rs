//! What is made of the definition of the command line: completions of shells, and man pages.

use std::path::Path;

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;

use crate::output;

/// Prints the script that completes commands and options in a shell.
pub(super) fn completion(mut command: Command, shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "pinion", &mut script);
    output::write(&String::from_utf8(script)?)
}

/// Writes `pinion.1` and a page for each command into a folder.
pub(super) fn pages(command: Command, folder: &Path) -> anyhow::Result<()> {
    clap_mangen::generate_to(command, folder).with_context(|| folder.display().to_string())
}
