//! Stands in for a node in native tests: everything is per thread, hence per test, and the same in each run.

pub(super) mod state;

use core::cell::{Cell, RefCell};

use pinion_abi::{CLOCK_STEP_NS, LogLevel};

thread_local! {
    static LOG: RefCell<Vec<(LogLevel, String)>> = const { RefCell::new(Vec::new()) };
    static CLOCK_NS: Cell<u64> = const { Cell::new(0) };
    static RANDOM_STATE: Cell<u64> = const { Cell::new(0) };
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

/// The same between the steps.
pub(crate) fn exact_clock_ns() -> u64 {
    CLOCK_NS.get()
}

pub(crate) fn advance_clock_ns(duration_ns: u64) {
    CLOCK_NS.set(CLOCK_NS.get() + duration_ns);
}

/// SplitMix64: no secret to anybody, which suits tests.
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
