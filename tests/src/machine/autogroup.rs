//! Makes the kernel share the cores among threads while tests run, and not among sessions.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// The script that holds the setting; none if it is left as it is.
static HOLDER: OnceLock<Option<Child>> = OnceLock::new();

/// Leaves the setting as it is for the rest of this process: benchmarks measure the machine that they find, and their peers on the same.
pub fn leave() {
    HOLDER.get_or_init(|| None);
}

/// Switches the kernel's autogroup scheduling off until this process has ended; the script says why, and puts it back. Without the right to
/// do so it stays on.
///
/// # Panics
/// If the script cannot be run.
#[track_caller]
pub(crate) fn switch_off() {
    HOLDER.get_or_init(|| {
        let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/setup/without-autogroup.sh"));
        // A group of its own outlives what ends this one.
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = script.spawn().expect("the script can be run");
        let mut said = String::new();
        let read = BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut said);
        assert!(read.is_ok_and(|bytes| bytes > 0), "the script ended early");
        if !said.starts_with("autogroup is off") {
            eprint!("{said}");
        }
        Some(child)
    });
}
