//! Budgets: how much of the core an FWP or a tenant may have, as far as that is limited.

use pinion_control::model::OverBudget;

const SECOND_NS: u64 = 1_000_000_000;
/// Who is throttled may have as much at once as is granted in this part of a second: what a bandwidth limit of Linux's has for a period.
const THROTTLED_BURST: u64 = 10;

/// A limit on the time of a second, and what becomes of who exceeds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Of each second; from 1 ns to the whole of it.
    pub per_second_ns: u64,
    /// Whether whoever exceeds it waits or is ended.
    pub over_budget: OverBudget,
}

/// The limits of an FWP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// From when it is given packets until it waits for more.
    pub per_batch_ns: Option<u64>,
    /// Of each second.
    pub rate: Option<Rate>,
}

impl Budget {
    pub(super) fn is_unlimited(&self) -> bool {
        self.per_batch_ns.is_none() && self.rate.is_none()
    }
}

/// Which limit was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Overrun {
    /// The time for a batch.
    #[error("it took longer for a batch than the {} us of its chain's cpu_per_batch_us", limit_ns / 1_000)]
    Batch {
        /// What it might have had.
        limit_ns: u64,
    },
    /// The time of a second.
    #[error("it took more of a second than the {} ms of its chain's cpu_per_second_ms", limit_ns / 1_000_000)]
    Second {
        /// What it might have had.
        limit_ns: u64,
    },
}

/// What comes of having had the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Within,
    /// It has no time until then.
    Throttled {
        until_ns: u64,
    },
    Overrun(Overrun),
}

/// A token bucket: time that is granted and not used is kept, up to a burst.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket {
    /// Less than nothing after more was had than there was.
    left_ns: i64,
    filled_at_ns: u64,
}

impl Bucket {
    pub(super) fn full(rate: Rate, now_ns: u64) -> Self {
        Self { left_ns: Self::burst_ns(rate) as i64, filled_at_ns: now_ns }
    }

    fn burst_ns(Rate { per_second_ns, over_budget }: Rate) -> u64 {
        match over_budget {
            OverBudget::Throttle => (per_second_ns / THROTTLED_BURST).max(1),
            OverBudget::Kill => per_second_ns,
        }
    }

    /// Takes what was had; if that was more than there was, when there is some again.
    pub(super) fn take(&mut self, rate: Rate, cpu_ns: u64, now_ns: u64) -> Option<u64> {
        let per_second_ns = u128::from(rate.per_second_ns);
        let elapsed_ns = now_ns.saturating_sub(self.filled_at_ns);
        let granted_ns = u128::from(elapsed_ns) * per_second_ns / u128::from(SECOND_NS);
        // What was granted for less than a nanosecond is not lost by asking often.
        self.filled_at_ns += (granted_ns * u128::from(SECOND_NS)).div_ceil(per_second_ns) as u64;
        let burst_ns = Self::burst_ns(rate);
        let granted_ns = granted_ns.min(u128::from(burst_ns)) as i64;
        self.left_ns = (self.left_ns + granted_ns).min(burst_ns as i64) - cpu_ns as i64;
        let missing_ns = u64::try_from(-self.left_ns).ok().filter(|missing_ns| *missing_ns > 0)?;
        Some(now_ns + (u128::from(missing_ns) * u128::from(SECOND_NS)).div_ceil(per_second_ns) as u64)
    }
}

/// What an FWP has had, where that is limited.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spending {
    budget: Budget,
    batch_ns: u64,
    bucket: Bucket,
}

impl Spending {
    pub(super) fn new(budget: Budget, now_ns: u64) -> Self {
        let bucket = budget.rate.map_or_else(Bucket::default, |rate| Bucket::full(rate, now_ns));
        Self { budget, batch_ns: 0, bucket }
    }

    /// Adds what was had of the core.
    pub(super) fn spend(&mut self, cpu_ns: u64, now_ns: u64, batch: Batch) -> Verdict {
        self.batch_ns += cpu_ns;
        if let Some(limit_ns) = self.budget.per_batch_ns
            && self.batch_ns > limit_ns
        {
            return Verdict::Overrun(Overrun::Batch { limit_ns });
        }
        if batch == Batch::Done {
            self.batch_ns = 0;
        }
        let Some(rate) = self.budget.rate else { return Verdict::Within };
        match (self.bucket.take(rate, cpu_ns, now_ns), rate.over_budget) {
            (None, _) => Verdict::Within,
            (Some(until_ns), OverBudget::Throttle) => Verdict::Throttled { until_ns },
            (Some(_), OverBudget::Kill) => Verdict::Overrun(Overrun::Second { limit_ns: rate.per_second_ns }),
        }
    }
}

/// Whether an FWP is done with what it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Batch {
    Done,
    UnderWay,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn rate(per_second_ms: u64, over_budget: OverBudget) -> Rate {
        Rate { per_second_ns: per_second_ms * MS, over_budget }
    }

    fn limited(budget: Budget) -> Spending {
        Spending::new(budget, 0)
    }

    #[test]
    fn a_batch_that_takes_longer_than_it_may_is_an_overrun_and_many_short_ones_are_none() {
        let mut spending = limited(Budget { per_batch_ns: Some(100), rate: None });
        for now_ns in 0..50 {
            assert_eq!(spending.spend(60, now_ns, Batch::Done), Verdict::Within);
        }
        assert_eq!(spending.spend(60, 50, Batch::UnderWay), Verdict::Within);
        assert_eq!(spending.spend(60, 51, Batch::UnderWay), Verdict::Overrun(Overrun::Batch { limit_ns: 100 }));
    }

    #[test]
    fn who_is_throttled_gets_its_part_of_the_time_and_not_more() {
        let rate = rate(250, OverBudget::Throttle);
        let (mut spending, mut now_ns, mut had_ns) = (limited(Budget { per_batch_ns: None, rate: Some(rate) }), 0, 0);
        while now_ns < 4_000 * MS {
            now_ns += 20_000;
            had_ns += 20_000;
            if let Verdict::Throttled { until_ns } = spending.spend(20_000, now_ns, Batch::UnderWay) {
                now_ns = until_ns;
            }
        }
        assert!((1_000 * MS..=1_026 * MS).contains(&had_ns), "{had_ns} ns of 4 s");
    }

    #[test]
    fn who_is_to_be_ended_is_when_it_has_had_more_than_its_time_of_a_second() {
        let (mut spending, mut had_ns) =
            (limited(Budget { per_batch_ns: None, rate: Some(rate(250, OverBudget::Kill)) }), 0);
        let overrun = (0..).find_map(|turn| {
            had_ns += 20_000;
            match spending.spend(20_000, turn * 20_000, Batch::Done) {
                Verdict::Within => None,
                other => Some(other),
            }
        });
        assert_eq!(overrun, Some(Verdict::Overrun(Overrun::Second { limit_ns: 250 * MS })));
        // It was granted some more while it had the core.
        assert!((333 * MS..=334 * MS).contains(&had_ns), "{had_ns}");
    }

    #[test]
    fn asking_often_loses_nothing_that_is_granted() {
        let rate = Rate { per_second_ns: 1_000_003, over_budget: OverBudget::Throttle };
        let mut bucket = Bucket::default();
        (1..=10_000_000).for_each(|step| _ = bucket.take(rate, 0, step * 100));
        let full = Bucket::burst_ns(rate) as i64;
        assert_eq!(bucket.left_ns, full);
        let mut bucket = Bucket::default();
        (1..=100_000).for_each(|step| _ = bucket.take(rate, 0, step * 100));
        assert!((9_999..=10_001).contains(&bucket.left_ns), "{} ns of 10 ms", bucket.left_ns);
    }
}
