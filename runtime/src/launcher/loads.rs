//! Estimates how much of its core each worker's FWPs have used recently, for the placement of new ones.
//!
//! Workers count how long they were busy. The launcher samples these counts when it is about to place an instance, at most once per
//! [`LOOK_INTERVAL`]. FWPs placed between two samples are not measured yet, so each is assumed to use a little.

use std::time::{Duration, Instant};

use pinion_mma::id::WorkerIndex;

/// The least time between two samples.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// An interval of this length counts for half of the moving average, and all earlier ones for the other half.
const HALF: Duration = Duration::from_millis(500);
/// The assumed load of an FWP placed since the last sample. Without it a whole burst would go to the worker that was idle a moment ago.
const EXPECTED_PPM: u64 = 2_000;
const WHOLE_CORE_PPM: u64 = 1_000_000;

#[derive(Debug, Clone, Copy, Default)]
struct Load {
    /// The worker's count at the last sample.
    busy_ns: u64,
    /// The moving average of the intervals so far; each weighs less than the one after it.
    used_ppm: u64,
    /// FWPs placed since the last sample.
    placed: u64,
}

/// The loads of all workers; see the module.
#[derive(Debug)]
pub(super) struct Loads {
    workers: Box<[Load]>,
    looked: Instant,
}

impl Loads {
    /// Creates the loads of `workers` workers that have done nothing yet.
    pub(super) fn new(workers: usize, now: Instant) -> Self {
        Self { workers: vec![Load::default(); workers].into(), looked: now }
    }

    /// Samples how long each worker has been busy since its start, unless the last sample is less than [`LOOK_INTERVAL`] old.
    pub(super) fn look(&mut self, now: Instant, busy_ns: impl Fn(WorkerIndex) -> u64) {
        let elapsed = now.saturating_duration_since(self.looked);
        if elapsed < LOOK_INTERVAL {
            return;
        }
        self.looked = now;
        let [elapsed_ns, half_ns] = [elapsed, HALF].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        for (index, load) in self.workers.iter_mut().enumerate() {
            let counted_ns = busy_ns(WorkerIndex(index));
            // A poll is counted at its end, so it may have begun before the interval.
            let had_ns = counted_ns.wrapping_sub(load.busy_ns).min(elapsed_ns);
            let lately_ppm = mean([(WHOLE_CORE_PPM, had_ns), (0, elapsed_ns - had_ns)]);
            *load = Load {
                busy_ns: counted_ns,
                used_ppm: mean([(lately_ppm, elapsed_ns), (load.used_ppm, half_ns)]),
                placed: 0,
            };
        }
    }

    /// Notes that FWPs were placed on a worker.
    pub(super) fn placed(&mut self, worker: WorkerIndex, fwps: usize) {
        self.workers[worker.0].placed += fwps as u64;
    }

    /// Returns what a worker's FWPs use of its core, in millionths, including the assumed load of those just placed.
    pub(super) fn ppm(&self, worker: WorkerIndex) -> u64 {
        let Load { used_ppm, placed, .. } = self.workers[worker.0];
        used_ppm + placed * EXPECTED_PPM
    }
}

/// Returns the weighted mean of two values. Their weights must not both be 0.
fn mean(values: [(u64, u64); 2]) -> u64 {
    let sum = |each: fn((u64, u64)) -> u128| values.into_iter().map(each).sum::<u128>();
    let weights = sum(|(_, weight)| u128::from(weight));
    (sum(|(value, weight)| u128::from(value) * u128::from(weight)) / weights) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerIndex = WorkerIndex(0);

    /// Returns the load after intervals of (length, busy time), in milliseconds.
    fn after(stretches: &[(u64, u64)]) -> u64 {
        let start = Instant::now();
        let (mut loads, mut elapsed_ms, mut busy_ms) = (Loads::new(1, start), 0, 0);
        for (length_ms, more_ms) in stretches {
            (elapsed_ms, busy_ms) = (elapsed_ms + length_ms, busy_ms + more_ms);
            loads.look(start + Duration::from_millis(elapsed_ms), |_| busy_ms * 1_000_000);
        }
        loads.ppm(WORKER)
    }

    #[test]
    fn a_load_follows_what_was_used_lately() {
        assert_eq!(after(&[(500, 500)]), 500_000);
        assert_eq!(after(&[(500, 500), (500, 500)]), 750_000);
        assert_eq!(after(&[(500, 500), (500, 500), (500, 0)]), 375_000);
        assert!(after(&[(100, 30); 40]).abs_diff(300_000) < 1_000);
    }

    #[test]
    fn samples_in_quick_succession_count_as_one() {
        assert_eq!(after(&[(250, 250), (50, 50), (49, 0), (151, 151)]), after(&[(250, 250), (250, 201)]));
    }

    #[test]
    fn a_worker_is_never_busy_for_longer_than_the_interval() {
        assert_eq!(after(&[(500, 5_000)]), 500_000);
    }

    #[test]
    fn fwps_just_placed_count_until_they_can_be_measured() {
        let start = Instant::now();
        let mut loads = Loads::new(2, start);
        loads.placed(WORKER, 3);
        assert_eq!([WORKER, WorkerIndex(1)].map(|worker| loads.ppm(worker)), [3 * EXPECTED_PPM, 0]);
        loads.look(start + LOOK_INTERVAL, |_| 0);
        assert_eq!(loads.ppm(WORKER), 0);
    }
}
