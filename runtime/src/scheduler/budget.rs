//! Budgets: how much CPU time an FWP or a tenant may use, where that is limited.

use pinion_control::model::OverBudget;

const SECOND_NS: u64 = 1_000_000_000;
/// The burst of a throttled FWP or tenant is the time granted in this part of a second. Linux's bandwidth control grants the same for its
/// period.
const THROTTLED_BURST: u64 = 10;

/// A limit on the CPU time per second, and what happens when it is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// CPU time per second; not 0. That of a tenant may be more than a second, on several cores.
    pub per_second_ns: u64,
    /// Whether the FWP is throttled or ended when it exceeds the limit.
    pub over_budget: OverBudget,
}

/// The limits of an FWP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// CPU time from when the FWP is given packets until it waits for more.
    pub per_batch_ns: Option<u64>,
    /// CPU time per second.
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
    /// The limit of a batch.
    #[error("it took longer for a batch than the {} us of its chain's cpu_per_batch_us", limit_ns / 1_000)]
    Batch {
        /// The limit that was exceeded, in nanoseconds.
        limit_ns: u64,
    },
    /// The limit of a second.
    #[error("it took more of a second than the {} ms of its chain's cpu_per_second_ms", limit_ns / 1_000_000)]
    Second {
        /// The limit that was exceeded, in nanoseconds.
        limit_ns: u64,
    },
}

/// The consequence of a turn for an FWP's budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Within,
    /// The budget is used up until then.
    Throttled {
        until_ns: u64,
    },
    Overrun(Overrun),
}

/// A token bucket: time that is granted and not used is kept, up to a burst.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket {
    /// Negative after more was used than was available.
    left_ns: i64,
    filled_at_ns: u64,
    /// What was granted beyond a burst since it was last known what was used elsewhere.
    cut_ns: u64,
}

impl Bucket {
    pub(super) fn full(rate: Rate, now_ns: u64) -> Self {
        Self { left_ns: Self::burst_ns(rate) as i64, filled_at_ns: now_ns, cut_ns: 0 }
    }

    fn burst_ns(Rate { per_second_ns, over_budget }: Rate) -> u64 {
        match over_budget {
            OverBudget::Throttle => (per_second_ns / THROTTLED_BURST).max(1),
            OverBudget::Kill => per_second_ns,
        }
    }

    /// Takes the time that was used. If that was more than was available, returns when there is some again.
    pub(super) fn take(&mut self, rate: Rate, cpu_ns: u64, now_ns: u64) -> Option<u64> {
        let burst_ns = Self::burst_ns(rate) as i64;
        let filled_ns = self.left_ns + self.granted_ns(rate, now_ns);
        self.cut_ns = self.cut_ns.saturating_add((filled_ns - burst_ns).max(0) as u64);
        self.left_ns = filled_ns.min(burst_ns) - cpu_ns as i64;
        self.some_at_ns(rate, now_ns)
    }

    /// Takes the time that was used elsewhere since the last such call. It counts first against what was granted meanwhile beyond a burst.
    pub(super) fn take_elsewhere(&mut self, rate: Rate, cpu_ns: u64, now_ns: u64) -> Option<u64> {
        let burst_ns = Self::burst_ns(rate) as i64;
        let used_ns = cpu_ns.saturating_sub(std::mem::take(&mut self.cut_ns)).min(i64::MAX as u64 / 4) as i64;
        self.left_ns = (self.left_ns + self.granted_ns(rate, now_ns) - used_ns).min(burst_ns);
        self.some_at_ns(rate, now_ns)
    }

    /// Lets another rate hold from now on; what is left is cut to its burst. Returns when there is some time again, if more was used than
    /// was available.
    pub(super) fn change_rate(&mut self, before: Rate, rate: Rate, now_ns: u64) -> Option<u64> {
        let granted_ns = self.granted_ns(before, now_ns);
        self.left_ns = (self.left_ns + granted_ns).min(Self::burst_ns(before) as i64).min(Self::burst_ns(rate) as i64);
        (self.filled_at_ns, self.cut_ns) = (now_ns, 0);
        self.some_at_ns(rate, now_ns)
    }

    /// Returns the time that was granted since the last call, at most some years.
    fn granted_ns(&mut self, rate: Rate, now_ns: u64) -> i64 {
        let per_second_ns = u128::from(rate.per_second_ns);
        let elapsed_ns = now_ns.saturating_sub(self.filled_at_ns);
        let granted_ns = u128::from(elapsed_ns) * per_second_ns / u128::from(SECOND_NS);
        // The fill time advances only by what was granted, so that frequent calls lose no fraction of a nanosecond.
        self.filled_at_ns += (granted_ns * u128::from(SECOND_NS)).div_ceil(per_second_ns) as u64;
        granted_ns.min(i64::MAX as u128 / 4) as i64
    }

    /// Returns when there is some time again, if more was used than was available.
    fn some_at_ns(&self, rate: Rate, now_ns: u64) -> Option<u64> {
        let per_second_ns = u128::from(rate.per_second_ns);
        let missing_ns = u64::try_from(-self.left_ns).ok().filter(|missing_ns| *missing_ns > 0)?;
        Some(now_ns + (u128::from(missing_ns) * u128::from(SECOND_NS)).div_ceil(per_second_ns) as u64)
    }
}

/// What an FWP has used, where that is limited.
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

    /// Accounts time that was not spent by the guest, which is no part of a batch. What follows from it, follows with the next turn.
    pub(super) fn note_besides(&mut self, spent_ns: u64, now_ns: u64) {
        if let Some(rate) = self.budget.rate {
            let _ = self.bucket.take(rate, spent_ns, now_ns);
        }
    }

    /// Accounts a turn's time.
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

/// Whether an FWP has finished what it was given.
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
    fn a_batch_beyond_its_limit_is_an_overrun_and_many_short_batches_are_not() {
        let mut spending = limited(Budget { per_batch_ns: Some(100), rate: None });
        for now_ns in 0..50 {
            assert_eq!(spending.spend(60, now_ns, Batch::Done), Verdict::Within);
        }
        assert_eq!(spending.spend(60, 50, Batch::UnderWay), Verdict::Within);
        assert_eq!(spending.spend(60, 51, Batch::UnderWay), Verdict::Overrun(Overrun::Batch { limit_ns: 100 }));
    }

    #[test]
    fn a_throttled_fwp_gets_its_rate_and_no_more() {
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
    fn an_fwp_that_exceeds_a_kill_rate_is_ended() {
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
        // More was granted while it had the core.
        assert!((333 * MS..=334 * MS).contains(&had_ns), "{had_ns}");
    }

    #[test]
    fn what_was_granted_while_it_was_used_elsewhere_is_not_owed_here() {
        let rate = rate(100, OverBudget::Throttle);
        let second_ns = 1_000 * MS;
        for own_takes in [0, 1, 60] {
            let mut bucket = Bucket::full(rate, 0);
            (1..=own_takes).for_each(|take| _ = bucket.take(rate, 0, take * 60 * second_ns / own_takes));
            assert_eq!(bucket.take_elsewhere(rate, 6 * second_ns, 60 * second_ns), None, "{own_takes}");
            assert_eq!(bucket.left_ns, 10 * MS as i64);
            // From then on it counts.
            assert!(bucket.take_elsewhere(rate, 21 * MS, 60 * second_ns + 100 * MS).is_some());
        }
    }

    #[test]
    fn frequent_takes_lose_no_granted_time() {
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
