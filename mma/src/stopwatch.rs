//! A clock for polling loops: monotonic nanoseconds that cost little to read.
//!
//! It reads the time-stamp counter and converts it by a rate that was calibrated once against the system's clock. Where
//! the counter is unreliable, it reads the system's clock, which takes as long as handling half a packet.

use quanta::Clock;

/// Time since its start. Clones share the start, and all threads read the same time.
#[derive(Clone, Debug)]
pub struct Stopwatch {
    clock: Clock,
    started: u64,
}

impl Stopwatch {
    /// Starts the stopwatch now. The first call in a process takes some milliseconds, to calibrate the counter's rate.
    #[must_use]
    pub fn start() -> Self {
        let clock = Clock::new();
        let started = clock.raw();
        Self { clock, started }
    }

    /// Returns the counter that it reads, in ticks of unknown length.
    #[inline]
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.clock.raw()
    }

    /// Returns how long so many ticks are, in nanoseconds.
    #[must_use]
    pub fn ticks_ns(&self, ticks: u64) -> u64 {
        self.clock.delta_as_nanos(0, ticks)
    }

    /// Returns the nanoseconds since the start.
    #[inline]
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        self.clock.delta_as_nanos(self.started, self.clock.raw())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Stopwatch;

    #[test]
    fn it_goes_as_fast_as_the_systems_clock() {
        let (stopwatch, system) = (Stopwatch::start(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        let (before, now_ns, after) = (system.elapsed(), stopwatch.elapsed_ns(), system.elapsed());
        // A thousandth, and the time between the two starts.
        let slack = Duration::from_millis(1);
        let now = Duration::from_nanos(now_ns);
        assert!(now + slack >= before && now <= after + slack, "{before:?} {now:?} {after:?}");
    }

    #[test]
    fn it_never_goes_back() {
        let stopwatch = Stopwatch::start();
        let times: Vec<u64> = (0..100_000).map(|_| stopwatch.elapsed_ns()).collect();
        assert!(times.is_sorted());
    }
}
