//! Removes what killed test runs left behind: namespaces and folders named after a process that has ended.

use std::path::Path;
use std::process::Command;
use std::sync::Once;

use crate::machine::autogroup;

/// The folder in which `ip netns` keeps namespaces.
pub(crate) const NAMESPACES: &str = "/run/netns";

const PREFIX: &str = "pinion-test-";

static SWEEP: Once = Once::new();

/// Returns the prefix for the names of all that this process makes. The first call removes what other runs left, and prepares the machine.
pub(crate) fn prefix() -> String {
    autogroup::switch_off();
    SWEEP.call_once(sweep);
    format!("{PREFIX}{}-", std::process::id())
}

/// Removes a namespace.
pub(crate) fn remove_namespace(name: &str) {
    if let Err(error) = Command::new("ip").args(["netns", "del", name]).status() {
        eprintln!("the namespace {name} stays: {error}");
    }
}

fn sweep() {
    left_in(Path::new(NAMESPACES)).iter().for_each(|name| remove_namespace(name));
    let folder = std::env::temp_dir();
    for name in left_in(&folder) {
        if let Err(error) = std::fs::remove_dir_all(folder.join(&name)) {
            eprintln!("{name} stays: {error}");
        }
    }
}

fn left_in(folder: &Path) -> Vec<String> {
    let is_left = |name: &String| {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        process.is_some_and(|id| !Path::new("/proc").join(id).exists())
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).filter(is_left).collect()
}
