//! For each FWP, when its client was missed in the flow tables, since when the client waits.
//!
//! The gateway's thread writes this once for each new client. The worker that then runs the FWP for the first time
//! reads it, after the frame has reached it. Both use the same clock.

use std::sync::atomic::{AtomicU64, Ordering};

use pinion_mma::id::FwpId;
use pinion_mma::stopwatch::Stopwatch;

/// Indexed by the FWP that a chain instance is entered by.
#[derive(Debug)]
pub struct ActivationClock {
    stopwatch: Stopwatch,
    missed_ns: Box<[AtomicU64]>,
}

impl ActivationClock {
    /// Makes a table for `places` FWPs. Its clock, which becomes the gateway's, starts now.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self::by(Stopwatch::start(), places)
    }

    /// Makes a table with a clock that is already running.
    #[must_use]
    pub fn by(stopwatch: Stopwatch, places: usize) -> Self {
        Self { stopwatch, missed_ns: (0..places).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Returns the gateway's clock.
    pub(crate) fn stopwatch(&self) -> Stopwatch {
        self.stopwatch.clone()
    }

    /// Returns the time by the gateway's clock, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.stopwatch.elapsed_ns()
    }

    /// Notes since when the client that was given this FWP has waited. Must be called before any of its frames goes
    /// there.
    pub fn note(&self, entry: FwpId, missed_ns: u64) {
        // The worker sees this together with the frame: the ring that carries the frame publishes with release and
        // acquire.
        if let Some(place) = self.missed_ns.get(entry.index as usize) {
            place.store(missed_ns, Ordering::Relaxed);
        }
    }

    /// Returns how long ago the client that has this FWP now was missed, in nanoseconds. Meant for the thread that has
    /// received a frame of that client.
    #[must_use]
    pub fn elapsed_ns(&self, entry: FwpId) -> u64 {
        let now_ns = self.now_ns();
        let missed_ns = self.missed_ns.get(entry.index as usize).map_or(now_ns, |place| place.load(Ordering::Relaxed));
        now_ns.saturating_sub(missed_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_waits_from_the_time_that_was_noted_for_its_fwp() {
        let misses = ActivationClock::new(2);
        let [first, second] = [0, 1].map(|index| FwpId { index, generation: 3 });
        std::thread::sleep(std::time::Duration::from_millis(2));
        misses.note(second, misses.now_ns());
        assert!(misses.elapsed_ns(second) < misses.elapsed_ns(first));
        assert!(misses.elapsed_ns(first) >= 2_000_000);
    }
}
