//! What code may cost between two looks at the epoch, and what a call of the host costs of it. The units are those of [`super::cost`].

use pinion_abi::{IMPORT_CLOCK, IMPORT_MODULE, IMPORT_WAIT, IMPORT_WAIT_UNTIL, IMPORT_YIELD};
use pinion_guest::calls::WASI_MODULE;

/// The most units that code may cost between two looks at the epoch.
pub const BUDGET: u32 = 8192;

/// The way out of the guest and back: a call of the host, or of the engine.
pub(super) const HOST_CALL: u32 = 1024;
/// There is a look right before such an instruction, and one right after it.
pub(super) const ALL: u32 = BUDGET;

/// Calls that read the clock or pass one word to the host. All other calls may move as much as a turn allows.
const BRIEF_CALLS: [(&str, &str); 6] = [
    (IMPORT_MODULE, IMPORT_WAIT),
    (IMPORT_MODULE, IMPORT_WAIT_UNTIL),
    (IMPORT_MODULE, IMPORT_YIELD),
    (IMPORT_MODULE, IMPORT_CLOCK),
    (WASI_MODULE, "clock_time_get"),
    (WASI_MODULE, "sched_yield"),
];

/// Returns the cost of calling an imported function.
pub(super) fn of_import(module: &str, name: &str) -> u32 {
    if BRIEF_CALLS.contains(&(module, name)) { HOST_CALL } else { ALL }
}
