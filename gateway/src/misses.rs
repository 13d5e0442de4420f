//! When each FWP was given to its client, and when it was invoked last: the moment at which Net-In looked for an instance for the client's first frame.
//!
//! Written by the gateway's thread, once for each new client; read by the worker that then runs the FWP for the first time, on its
//! way behind the frame itself. Both read the same clock.

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use pinion_mma::id::FwpId;
use pinion_mma::stopwatch::Stopwatch;

/// By place of an FWP that chain instances are entered by.
#[derive(Debug)]
pub struct FlowMisses {
    stopwatch: Stopwatch,
    missed_ns: Box<[AtomicU64]>,
    called_ns: Box<[AtomicU64]>,
}

/// No call.
const NOT_CALLED: u64 = u64::MAX;

impl FlowMisses {
    /// For FWPs of so many places. The gateway's clock starts now.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self::by(Stopwatch::start(), places)
    }

    /// The same by a clock that goes already.
    #[must_use]
    pub fn by(stopwatch: Stopwatch, places: usize) -> Self {
        let table = |empty| (0..places).map(|_| AtomicU64::new(empty)).collect();
        Self { stopwatch, missed_ns: table(0), called_ns: table(NOT_CALLED) }
    }

    /// The gateway's clock.
    pub(crate) fn stopwatch(&self) -> Stopwatch {
        self.stopwatch.clone()
    }

    /// The time by the gateway's clock, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.stopwatch.elapsed_ns()
    }

    /// Notes since when the client waits that was given this FWP. To be called before any of its frames goes there.
    pub fn note(&self, entry: FwpId, missed_ns: u64) {
        // Seen by the worker together with the frame: each hands it on with release and acquire.
        if let Some(place) = self.missed_ns.get(entry.index as usize) {
            place.store(missed_ns, Ordering::Relaxed);
        }
    }

    /// Notes when a function was invoked whose message goes to this FWP next.
    #[inline]
    pub(crate) fn note_call(&self, entry: FwpId, called_ns: u64) {
        if let Some(place) = self.called_ns.get(entry.index as usize) {
            place.store(called_ns, Ordering::Relaxed);
        }
    }

    /// The address at which it is noted when the function was invoked whose message goes to this FWP, to be asked for once that has been
    /// delivered.
    #[must_use]
    pub fn called_at(&self, entry: FwpId) -> Option<NonZeroUsize> {
        self.called_ns.get(entry.index as usize).map(|place| NonNull::from(place).addr())
    }

    /// How long ago the function was invoked whose message this FWP has got now, in nanoseconds, if that is not told yet. Of several
    /// messages on their way at once this is the last one's.
    #[must_use]
    pub fn since_call_ns(&self, entry: FwpId) -> Option<u64> {
        // First the clock: to get the line from the gateway's core takes a good part of what is measured.
        let now_ns = self.now_ns();
        let place = self.called_ns.get(entry.index as usize)?;
        // Not exchanged at once, which would wait for all that was written before. A call that is noted in between is not told.
        let called_ns = place.load(Ordering::Relaxed);
        place.store(NOT_CALLED, Ordering::Relaxed);
        (called_ns != NOT_CALLED).then(|| now_ns.saturating_sub(called_ns))
    }

    /// How long ago the client that has this FWP now was missed, in nanoseconds. For whoever has got a frame of the client's.
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
        let misses = FlowMisses::new(2);
        let [first, second] = [0, 1].map(|index| FwpId { index, generation: 3 });
        std::thread::sleep(std::time::Duration::from_millis(2));
        misses.note(second, misses.now_ns());
        assert!(misses.elapsed_ns(second) < misses.elapsed_ns(first));
        assert!(misses.elapsed_ns(first) >= 2_000_000);
    }
}
