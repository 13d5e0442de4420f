//! Which versions of the code and of other programs a measurement is of.

use std::process::Command;

use crate::product::build::workspace;

/// Returns the commit of the working tree, with a plus if files differ from it; "unknown" outside a repository.
#[must_use]
pub fn commit() -> String {
    let git = |words: &[&str]| first_line(Command::new("git").arg("-C").arg(workspace()).args(words));
    let Ok(commit) = git(&["log", "-1", "--format=%h"]) else { return "unknown".to_owned() };
    let differs = git(&["status", "--porcelain", "--untracked-files=no"]).is_ok_and(|line| !line.is_empty());
    if differs { format!("{commit}+") } else { commit }
}

/// Returns the first line that a program prints.
///
/// # Errors
/// If it cannot be started, or fails.
pub fn first_line(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}
