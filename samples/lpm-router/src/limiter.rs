//! Limits how many ICMP errors are sent per second: a sender of packets that expire must not cause a flood of errors.

/// A rate limiter: so many events per second, with a burst of a tenth of that.
#[derive(Clone, Copy, Debug)]
pub struct Limiter {
    interval_ns: u64,
    burst_ns: u64,
    /// When the next event would be due if events came evenly.
    due_ns: u64,
}

impl Limiter {
    /// Makes an unused limiter; with a rate of zero it lets no event pass.
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        let interval_ns = 1_000_000_000_u64.checked_div(per_second.into()).unwrap_or(u64::MAX);
        Self { interval_ns, burst_ns: 100_000_000, due_ns: 0 }
    }

    /// Returns whether an event may happen now.
    pub fn allows(&mut self, now_ns: u64) -> bool {
        let due_ns = self.due_ns.max(now_ns);
        if self.interval_ns == u64::MAX || due_ns - now_ns > self.burst_ns {
            return false;
        }
        self.due_ns = due_ns + self.interval_ns;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Limiter;

    #[test]
    fn the_rate_and_the_burst_are_limited() {
        let mut limiter = Limiter::new(100);
        let passed = (0..1000).filter(|_| limiter.allows(5_000_000_000)).count();
        assert_eq!(passed, 11);
        let passed = (0..1_000_000).filter(|us| limiter.allows(6_000_000_000 + us * 1_000)).count();
        assert!((100..=111).contains(&passed), "{passed}");
    }

    #[test]
    fn a_limit_of_zero_lets_none_pass() {
        assert!(!Limiter::new(0).allows(1));
    }
}
