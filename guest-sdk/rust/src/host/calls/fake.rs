//! Replaces a node in native tests. Everything is per thread, hence per test, and the same in each run.

pub(super) mod keys;
pub(super) mod nn;
pub(super) mod state;

use core::cell::{Cell, RefCell};

use pinion_abi::{CLOCK_STEP_NS, LogLevel};

thread_local! {
    static LOG: RefCell<Vec<(LogLevel, String)>> = const { RefCell::new(Vec::new()) };
    static CLOCK_NS: Cell<u64> = const { Cell::new(0) };
    static RANDOM_STATE: Cell<u64> = const { Cell::new(0) };
    static KEPT_UNTIL_NS: Cell<u64> = const { Cell::new(0) };
    static KEEP_ALIVE_MAX_NS: Cell<u64> = const { Cell::new(KEEP_ALIVE_MAX_NS_DEFAULT) };
}

/// The default of a node: a day.
const KEEP_ALIVE_MAX_NS_DEFAULT: u64 = 24 * 3600 * 1_000_000_000;

/// As on a node: a time that has passed ends the request, and a later time than the maximum is cut to it.
pub(crate) fn keep_alive_until(until_ns: u64) -> u64 {
    let granted_ns = until_ns.min(clock_ns().saturating_add(KEEP_ALIVE_MAX_NS.get()));
    let granted_ns = if granted_ns > clock_ns() { granted_ns } else { 0 };
    KEPT_UNTIL_NS.set(granted_ns);
    granted_ns
}

/// Returns the time until which this thread's function is kept alive, as granted.
pub(crate) fn kept_until_ns() -> Option<u64> {
    Some(KEPT_UNTIL_NS.get()).filter(|until_ns| *until_ns > clock_ns())
}

pub(crate) fn forget_keep_alive() {
    KEPT_UNTIL_NS.set(0);
}

pub(crate) fn set_keep_alive_max_ns(max_ns: u64) {
    KEEP_ALIVE_MAX_NS.set(max_ns);
}

pub(crate) fn yield_now() {}

pub(crate) fn log(level: LogLevel, text: &str) {
    LOG.with_borrow_mut(|lines| lines.push((level, text.to_owned())));
}

pub(crate) fn take_log() -> Vec<(LogLevel, String)> {
    LOG.take()
}

pub(crate) fn clock_ns() -> u64 {
    let now = CLOCK_NS.get();
    now - now % CLOCK_STEP_NS
}

/// Returns the clock in nanoseconds, not rounded to its steps.
pub(crate) fn exact_clock_ns() -> u64 {
    CLOCK_NS.get()
}

pub(crate) fn advance_clock_ns(duration_ns: u64) {
    CLOCK_NS.set(CLOCK_NS.get() + duration_ns);
}

/// SplitMix64: predictable, which suits tests.
pub(crate) fn random(buffer: &mut [u8]) {
    for chunk in buffer.chunks_mut(8) {
        let state = RANDOM_STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        RANDOM_STATE.set(state);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}
