//! The time that guests, workers and roles go by.

use std::sync::LazyLock;
use std::time::Duration;

use pinion_mma::stopwatch::Stopwatch;

/// The clock of the whole process. Guests are told its time, so that a guest's deadline is the worker's deadline without conversion.
static STOPWATCH: LazyLock<Stopwatch> = LazyLock::new(Stopwatch::start);

/// Returns a stopwatch that started with the process's clock.
pub(crate) fn stopwatch() -> Stopwatch {
    STOPWATCH.clone()
}

/// Returns the time of the process's clock, in nanoseconds.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    STOPWATCH.elapsed_ns()
}

/// A point in time of the process's clock. Polling threads read it in each poll, so it has to be cheaper than the system's clock.
#[derive(Debug, Clone, Copy)]
pub struct TscInstant(u64);

impl TscInstant {
    /// Returns the time now.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        Self(now_ns())
    }

    /// Returns the time since then.
    #[inline]
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(now_ns().saturating_sub(self.0))
    }
}
