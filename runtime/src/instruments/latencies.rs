//! Latency histograms: one thread adds to a histogram, and any other thread can read it at any time.

use std::time::Duration;

use histogram::Histogram;
use pinion_control::node::LatencyStatus;
use pinion_mma::accounts::counters::{Counter, WaitCounts};
use pinion_mma::tuning::prefetch;

/// The histogram's resolution is one part in two to this power. It covers this many powers of two of nanoseconds: 18 minutes.
const GROUPING_POWER: u8 = 8;
const VALUE_POWER_MAX: u8 = 40;
const LONGEST_NS: u64 = (1 << VALUE_POWER_MAX) - 1;

/// A histogram of all times since its creation. Adding allocates nothing, takes no lock and touches one cache line.
///
/// Only one thread adds: an atomic addition would wait for all pending writes of the processor.
pub struct Latencies {
    /// By the buckets of [`Histogram`].
    counts: Box<[Counter]>,
    grouping_power: u8,
}

impl Default for Latencies {
    fn default() -> Self {
        Self::grouped(GROUPING_POWER)
    }
}

/// The resolution where there are many histograms: one part in two to this power, in a few KiB.
const COARSE_GROUPING_POWER: u8 = 4;

impl Latencies {
    /// Creates a histogram with a resolution of one part in sixteen, for use in large numbers.
    #[must_use]
    pub fn coarse() -> Self {
        Self::grouped(COARSE_GROUPING_POWER)
    }

    fn grouped(grouping_power: u8) -> Self {
        let buckets = usize::from(VALUE_POWER_MAX - grouping_power + 1) << grouping_power;
        Self { counts: (0..buckets).map(|_| Counter::default()).collect(), grouping_power }
    }

    /// Returns the bucket of a time: one bucket per value at first, then a fixed number per power of two.
    #[inline]
    fn bucket(&self, time_ns: u64) -> usize {
        let time_ns = time_ns.min(LONGEST_NS);
        let shift = time_ns.max(1).ilog2().saturating_sub(self.grouping_power.into());
        ((u64::from(shift) << self.grouping_power) + (time_ns >> shift)) as usize
    }

    /// Prefetches the cache line that adding this time will touch.
    #[inline]
    pub fn prefetch(&self, time_ns: u64) {
        prefetch::to_write(self.counts.as_ptr().wrapping_add(self.bucket(time_ns)));
    }

    /// Adds a time. A time beyond the longest counts as the longest. To be called by one thread.
    #[inline]
    pub fn record_ns(&self, time_ns: u64) {
        if let Some(count) = self.counts.get(self.bucket(time_ns)) {
            count.add(1);
        }
    }

    /// Adds a time.
    pub fn record(&self, time: Duration) {
        self.record_ns(time.as_nanos().min(u128::from(LONGEST_NS)) as u64);
    }

    /// Returns all times so far.
    #[must_use]
    pub fn snapshot(&self) -> LatencySnapshot {
        let counts = self.counts.iter().map(Counter::value).collect();
        let buckets = Histogram::from_buckets(self.grouping_power, VALUE_POWER_MAX, counts);
        LatencySnapshot(buckets.expect("the powers are possible, and there are as many buckets"))
    }
}

/// The contents of a histogram at one time.
#[derive(Clone, Debug)]
pub struct LatencySnapshot(Histogram);

impl LatencySnapshot {
    /// Returns the sum of several histograms; either all are coarse or none is.
    #[must_use]
    pub fn all<'a>(latencies: impl Iterator<Item = &'a Latencies>) -> Self {
        let none = || Self(Histogram::new(GROUPING_POWER, VALUE_POWER_MAX).expect("the powers are possible"));
        latencies.map(Latencies::snapshot).reduce(|sum, more| sum.and(&more)).unwrap_or_else(none)
    }

    /// Returns the sum of both; either both are coarse or neither is.
    #[must_use]
    pub fn and(&self, others: &Self) -> Self {
        Self(self.0.wrapping_add(&others.0).expect("all are alike"))
    }

    /// Returns the times that were added after `earlier`, a snapshot of the same histograms.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(self.0.wrapping_sub(&earlier.0).expect("all are alike"))
    }

    /// Returns the number of times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.as_slice().iter().sum()
    }

    /// Returns the time that this percentage of them does not exceed, in nanoseconds; 0 if there are none.
    #[must_use]
    pub fn at_ns(&self, percent: f64) -> u64 {
        let bucket = self.0.quantile_bucket(percent / 100.0).ok().flatten();
        bucket.map_or(0, |bucket| bucket.end())
    }

    /// Returns the form for reports.
    #[must_use]
    pub fn status(&self) -> LatencyStatus {
        let [p50_ns, p90_ns, p99_ns, max_ns] = [50.0, 90.0, 99.0, 100.0].map(|percent| self.at_ns(percent));
        LatencyStatus { count: self.count(), p50_ns, p90_ns, p99_ns, max_ns }
    }
}

/// Returns an FWP's waits for reports. Each counts as the longest time of its bucket; times in the last bucket count as the longest that
/// can be told.
#[must_use]
pub fn wait_status(waits: &WaitCounts) -> LatencyStatus {
    let counts = waits.values().map(u64::from);
    let count: u64 = counts.iter().sum();
    let at_ns = |percent: u64| {
        let rank = (count * percent).div_ceil(100);
        let mut seen = 0;
        let length = counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        length.filter(|_| count > 0).map_or(0, WaitCounts::longest_ns)
    };
    let [p50_ns, p90_ns, p99_ns, max_ns] = [50, 90, 99, 100].map(at_ns);
    LatencyStatus { count, p50_ns, p90_ns, p99_ns, max_ns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_time_is_counted_in_its_bucket_of_the_histogram(
            (power, low) in (0..64_u32, any::<u64>()), is_coarse in any::<bool>(),
        ) {
            let time_ns = low >> power;
            let latencies = if is_coarse { Latencies::coarse() } else { Latencies::default() };
            let mut naive = Histogram::new(latencies.grouping_power, VALUE_POWER_MAX).unwrap();
            latencies.record_ns(time_ns);
            naive.increment(time_ns.min(LONGEST_NS)).unwrap();
            let snapshot = latencies.snapshot();
            prop_assert_eq!(snapshot.0.as_slice(), naive.as_slice());
        }
    }

    #[test]
    fn an_fwps_waits_are_rounded_up_to_a_power_of_two_of_microseconds() {
        let waits = WaitCounts::default();
        assert_eq!(wait_status(&waits), LatencyStatus::default());
        (0..90).for_each(|_| waits.add(300));
        (0..9).for_each(|_| waits.add(5_000));
        waits.add(70_000);
        let expected = LatencyStatus { count: 100, p50_ns: 999, p90_ns: 999, p99_ns: 7_999, max_ns: 127_999 };
        assert_eq!(wait_status(&waits), expected);
    }

    #[test]
    fn a_percentile_is_exact_to_one_part_in_two_hundred() {
        let latencies = Latencies::default();
        (1..=1000).for_each(|us| latencies.record(Duration::from_micros(us)));
        let status = latencies.snapshot().status();
        let close = |got_ns: u64, us: u64| (us * 1000..=us * 1005).contains(&got_ns);
        assert_eq!(status.count, 1000);
        let LatencyStatus { p50_ns, p90_ns, p99_ns, max_ns, .. } = status;
        assert!(close(p50_ns, 500) && close(p90_ns, 900) && close(p99_ns, 990) && close(max_ns, 1000), "{status:?}");
    }

    #[test]
    fn later_times_are_separated_from_a_snapshot() {
        let latencies = Latencies::default();
        latencies.record_ns(100);
        let before = latencies.snapshot();
        latencies.record_ns(5);
        let after = latencies.snapshot().since(&before);
        assert_eq!((after.count(), after.at_ns(50.0)), (1, 5));
    }

    #[test]
    fn several_histograms_are_read_as_one_and_no_histograms_have_no_times() {
        let both = [3, 9].map(|time_ns| {
            let latencies = Latencies::default();
            latencies.record_ns(time_ns);
            latencies
        });
        let all = LatencySnapshot::all(both.iter());
        assert_eq!((all.count(), all.at_ns(50.0), all.at_ns(100.0)), (2, 3, 9));
        assert_eq!(LatencySnapshot::all([].into_iter()).status(), LatencyStatus::default());
    }

    #[test]
    fn a_time_beyond_the_longest_is_counted() {
        let latencies = Latencies::default();
        latencies.record(Duration::from_secs(3_000_000));
        assert_eq!(latencies.snapshot().count(), 1);
    }
}
