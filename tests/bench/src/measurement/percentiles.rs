//! Percentiles of all samples, in a histogram of three digits.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Longer times are counted as this long.
const LONGEST: Duration = Duration::from_secs(60);

/// Times of all samples.
#[derive(Clone, Debug)]
pub(crate) struct Percentiles {
    times_ns: Histogram<u64>,
}

impl Default for Percentiles {
    fn default() -> Self {
        Self::new()
    }
}

impl Percentiles {
    /// Makes an empty histogram.
    pub(crate) fn new() -> Self {
        let longest_ns = LONGEST.as_nanos() as u64;
        Self { times_ns: Histogram::new_with_bounds(1, longest_ns, 3).expect("the bounds are right") }
    }

    /// Adds a sample.
    pub(crate) fn record(&mut self, time: Duration) {
        self.times_ns.saturating_record(time.as_nanos() as u64);
    }

    /// Adds all samples of another one.
    pub(crate) fn add(&mut self, other: &Self) {
        self.times_ns.add(&other.times_ns).expect("all have the same bounds");
    }

    /// Returns how many samples there are.
    pub(crate) fn count(&self) -> u64 {
        self.times_ns.len()
    }

    /// Returns the time that so many percent of the samples do not exceed, in microseconds.
    pub(crate) fn at_us(&self, percent: f64) -> f64 {
        self.times_ns.value_at_percentile(percent) as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_sample_that_so_many_do_not_exceed() {
        let mut times = Percentiles::new();
        (1..=1000).for_each(|micros| times.record(Duration::from_micros(micros)));
        assert_eq!(times.count(), 1000);
        assert!((times.at_us(50.0) - 500.0).abs() < 1.0, "{}", times.at_us(50.0));
        assert!((times.at_us(99.0) - 990.0).abs() < 1.0, "{}", times.at_us(99.0));
    }
}
