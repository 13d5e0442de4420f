//! The switch for code whose only reason is a cache: prefetches, and turns that keep memory near.
//!
//! Behaviour is the same either way; what differs is how long things take. The switch is for the whole process, and is set before its
//! data-plane threads start. It is asked once for each group of hints, not for each hint.

pub mod prefetch;
pub mod upcoming;

use std::sync::atomic::{AtomicBool, Ordering};

static IS_OFF: AtomicBool = AtomicBool::new(false);

/// How much is done for caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tuning {
    /// Everything.
    #[default]
    Full,
    /// Nothing.
    Off,
}

/// Sets the switch. To be called before data-plane threads start: they may read it at different times.
pub fn set(tuning: Tuning) {
    IS_OFF.store(tuning == Tuning::Off, Ordering::Relaxed);
}

/// Returns whether hints are to be given.
#[inline(always)]
#[must_use]
pub fn is_full() -> bool {
    !IS_OFF.load(Ordering::Relaxed)
}
