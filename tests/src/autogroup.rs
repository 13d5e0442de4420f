//! Has the kernel share the cores among threads while tests run, and not among sessions.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Switches the kernel's autogroup scheduling off until this process has ended; the script says why, and puts it back. Without the right to
/// do so it stays on.
///
/// # Panics
/// If the script cannot be run.
#[track_caller]
pub(crate) fn switch_off() {
    static UNTIL_END: OnceLock<Child> = OnceLock::new();
    UNTIL_END.get_or_init(|| {
        let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/setup/without-autogroup.sh"));
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the script can be run");
        let done = BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut String::new());
        done.expect("the script says what it did");
        child
    });
}
