//! How often each tenant may ask: the generic cell rate algorithm (ITU-T I.371), a word for each tenant.

use std::sync::atomic::{AtomicU64, Ordering};

/// A tenant may ask for as much at once as in this part of a second, and for one at least.
const BURST_PART: u64 = 4;
const SECOND_NS: u64 = 1_000_000_000;

/// A rate that holds for each of some tenants.
pub(super) struct Rate {
    interval_ns: u64,
    burst_ns: u64,
    /// By tenant: when it will have used up what it asked for so far, on the clock of the callers.
    until_ns: Box<[AtomicU64]>,
}

impl Rate {
    pub(super) fn new(per_second: u32, tenants: usize) -> Self {
        let interval_ns = SECOND_NS / u64::from(per_second.max(1));
        // One more than the burst, as the last one of it may begin just before.
        let burst_ns = (SECOND_NS / BURST_PART).saturating_sub(interval_ns);
        Self { interval_ns, burst_ns, until_ns: (0..tenants).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Returns whether a tenant may ask now, and counts it if so. Takes no lock.
    pub(super) fn admits(&self, tenant: usize, now_ns: u64) -> bool {
        let next = |until_ns: u64| {
            let from_ns = until_ns.max(now_ns);
            (from_ns - now_ns <= self.burst_ns).then_some(from_ns + self.interval_ns)
        };
        self.until_ns[tenant].fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(rate: &Rate, tenant: usize, now_ns: u64) -> usize {
        (0..10_000).take_while(|_| rate.admits(tenant, now_ns)).count()
    }

    #[test]
    fn a_burst_is_a_quarter_of_a_second_and_then_the_rate_holds() {
        let rate = Rate::new(1000, 2);
        let begin_ns = 77 * SECOND_NS;
        assert_eq!(admitted(&rate, 0, begin_ns), 250);
        assert_eq!(admitted(&rate, 0, begin_ns + 10_000_000), 10);
        let in_a_second: usize = (1..=100).map(|step| admitted(&rate, 0, begin_ns + step * 10_000_000)).sum();
        assert_eq!(in_a_second, 990);
        assert_eq!(admitted(&rate, 1, begin_ns), 250, "of another tenant");
    }

    #[test]
    fn the_lowest_rate_lets_one_through() {
        let rate = Rate::new(1, 1);
        let admitted = [0, SECOND_NS / 2, SECOND_NS, 3 * SECOND_NS / 2].map(|now_ns| admitted(&rate, 0, now_ns));
        assert_eq!(admitted, [1, 0, 1, 0]);
    }
}
