//! A token bucket. Tokens are counted in billionths of a byte, so that no fraction is lost or gained.

const NS_PER_S: u128 = 1_000_000_000;

/// The rate and the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    rate_bytes_per_s: u64,
    burst_bytes: u64,
}

impl Limit {
    /// Makes a limit of a rate, and of the burst that passes after a pause. Neither may be zero, nor more than a
    /// tebibyte.
    #[must_use]
    pub fn new(rate_bytes_per_s: u64, burst_bytes: u64) -> Self {
        Self { rate_bytes_per_s, burst_bytes }
    }

    /// Returns how long an empty bucket takes to fill.
    #[must_use]
    pub fn time_to_fill_ns(&self) -> u64 {
        // In steps, as a 128-bit division would be the largest part of the code.
        let rate = self.rate_bytes_per_s.max(1);
        let (seconds, left) = (self.burst_bytes / rate, self.burst_bytes % rate * 1_000_000);
        let (microseconds, left) = (left / rate, left % rate * 1_000);
        seconds.saturating_mul(1_000_000_000).saturating_add(microseconds * 1_000 + left.div_ceil(rate))
    }

    /// Returns the capacity in billionths of a byte.
    fn capacity(&self) -> u128 {
        u128::from(self.burst_bytes) * NS_PER_S
    }
}

/// A bucket: the tokens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// In billionths of a byte.
    tokens: u128,
    at_ns: u64,
}

impl Bucket {
    /// Makes a full bucket.
    #[must_use]
    pub fn full(limit: &Limit, now_ns: u64) -> Self {
        Self { tokens: limit.capacity(), at_ns: now_ns }
    }

    /// Takes so many bytes if the bucket has them; returns whether it had.
    #[inline]
    pub fn take(&mut self, limit: &Limit, bytes: usize, now_ns: u64) -> bool {
        // A rate in bytes per second is one in billionths of a byte per nanosecond.
        let earned = u128::from(now_ns.saturating_sub(self.at_ns)) * u128::from(limit.rate_bytes_per_s);
        let there = (self.tokens + earned).min(limit.capacity());
        let wanted = bytes as u128 * NS_PER_S;
        self.at_ns = now_ns;
        self.tokens = there.checked_sub(wanted).unwrap_or(there);
        there >= wanted
    }
}
