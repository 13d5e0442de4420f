//! For each FWP, when its client was missed in the flow tables (since then the client waits), and when its function was
//! last invoked.
//!
//! The gateway's thread writes this once for each new client. The worker that then runs the FWP for the first time
//! reads it, after the frame has reached it. Both use the same clock.

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use pinion_mma::id::FwpId;
use pinion_mma::stopwatch::Stopwatch;

/// Indexed by the FWP that a chain instance is entered by.
#[derive(Debug)]
pub struct ActivationClock {
    stopwatch: Stopwatch,
    missed_ns: Box<[AtomicU64]>,
    called_ns: Box<[AtomicU64]>,
}

/// No call is noted.
const NOT_CALLED: u64 = u64::MAX;

impl ActivationClock {
    /// Makes a table for `places` FWPs. Its clock, which becomes the gateway's, starts now.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self::by(Stopwatch::start(), places)
    }

    /// Makes a table with a clock that is already running.
    #[must_use]
    pub fn by(stopwatch: Stopwatch, places: usize) -> Self {
        let table = |empty| (0..places).map(|_| AtomicU64::new(empty)).collect();
        Self { stopwatch, missed_ns: table(0), called_ns: table(NOT_CALLED) }
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

    /// Notes when the function was invoked whose message goes to this FWP next.
    #[inline]
    pub(crate) fn note_call(&self, entry: FwpId, called_ns: u64) {
        if let Some(place) = self.called_ns.get(entry.index as usize) {
            place.store(called_ns, Ordering::Relaxed);
        }
    }

    /// Returns the address where the time of the invocation is noted whose message goes to this FWP. A worker
    /// prefetches it once the message has been delivered.
    #[must_use]
    pub fn called_at(&self, entry: FwpId) -> Option<NonZeroUsize> {
        self.called_ns.get(entry.index as usize).map(|place| NonNull::from(place).addr())
    }

    /// Returns how long ago the function was invoked whose message this FWP has now, in nanoseconds. Returns it once
    /// per call; `None` if it was already returned. If several messages are on their way, the time is the last one's.
    #[must_use]
    pub fn since_call_ns(&self, entry: FwpId) -> Option<u64> {
        // The clock is read first, because to fetch the cache line from the gateway's core takes a good part of the
        // measured time.
        let now_ns = self.now_ns();
        let place = self.called_ns.get(entry.index as usize)?;
        // Load and store instead of an exchange, which would wait for all earlier writes. A call noted in between is
        // not reported.
        let called_ns = place.load(Ordering::Relaxed);
        place.store(NOT_CALLED, Ordering::Relaxed);
        (called_ns != NOT_CALLED).then(|| now_ns.saturating_sub(called_ns))
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
