//! The distance of the two cores. The host of a virtual machine may place its cores on a shared cache or not, and moves them between two
//! runs. Figures of data that passes from one core to the other differ by a factor of two for that reason.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::measurement::run::Cores;

/// The number of samples, whose median counts.
const SAMPLES: usize = 21;
const ROUND_TRIPS_PER_SAMPLE: u32 = 1_000;

/// Returns the time in nanoseconds in which a cache line that one core has written reaches the other core and, after a write there, comes
/// back. Uses both cores for some milliseconds; returns none if they are the same.
pub(crate) fn round_trip_ns(cores: Cores) -> anyhow::Result<Option<f64>> {
    if cores.first == cores.second {
        return Ok(None);
    }
    // No other thread writes to this stack meanwhile, as its own thread waits.
    let line = AtomicU32::new(0);
    let (samples, pinned) = thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = pin(cores.second);
            (0..SAMPLES as u32 * ROUND_TRIPS_PER_SAMPLE).for_each(|trip| hand_over(&line, 2 * trip + 1));
            pinned
        });
        let caller = scope.spawn(|| {
            let pinned = pin(cores.first);
            let samples: Vec<f64> = (0..SAMPLES as u32).map(|sample| sample_ns(&line, sample)).collect();
            (samples, pinned)
        });
        let (samples, pinned) = caller.join().expect("a thread that only counts does not panic");
        (samples, pinned.and(echo.join().expect("nor does this one")))
    });
    pinned?;
    Ok(Some(median(samples)))
}

fn sample_ns(line: &AtomicU32, sample: u32) -> f64 {
    let start = Instant::now();
    let first = sample * ROUND_TRIPS_PER_SAMPLE;
    (first..first + ROUND_TRIPS_PER_SAMPLE).for_each(|trip| hand_over(line, 2 * trip));
    start.elapsed().as_nanos() as f64 / f64::from(ROUND_TRIPS_PER_SAMPLE)
}

/// Waits until the number arrives, and stores the next one.
fn hand_over(line: &AtomicU32, number: u32) {
    while line.load(Ordering::Acquire) != number {
        std::hint::spin_loop();
    }
    line.store(number + 1, Ordering::Release);
}

fn pin(core: usize) -> anyhow::Result<()> {
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).with_context(|| format!("a thread on core {core}"))
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_line_takes_time_between_two_cores_and_a_single_core_has_none() {
        let cores = Cores::chosen(&[]).unwrap();
        let told = round_trip_ns(cores).unwrap();
        assert_eq!(told.is_some(), cores.first != cores.second);
        assert!(told.is_none_or(|time_ns| time_ns > 1.0), "{told:?}");
        assert_eq!(round_trip_ns(cores.together()).unwrap(), None);
    }

    #[test]
    fn one_sample_of_a_busy_machine_does_not_count() {
        assert_eq!(median(vec![80.0, 1e6, 82.0]), 82.0);
    }
}
