//! What a look of the ticker costs the core that it is on, where others are too: roles, or the control plane, other programs, clients.

use std::time::Duration;

use rustix::thread::ClockId;
use rustix::time::{Timespec, clock_gettime};

/// The weight of the last look in the mean, as one part in so many.
const MEAN_OF: u32 = 8;

/// The mean CPU time of the calling thread between two looks: of the look itself, of going to sleep and of waking up.
pub(super) struct LookCost {
    mean: Duration,
    before: Duration,
}

impl LookCost {
    pub(super) fn new() -> Self {
        Self { mean: Duration::ZERO, before: cpu_time() }
    }

    /// Counts a look, and returns what one costs.
    pub(super) fn of_a_look(&mut self) -> Duration {
        let now = cpu_time();
        let cost = now.saturating_sub(std::mem::replace(&mut self.before, now));
        self.mean = (self.mean * (MEAN_OF - 1) + cost) / MEAN_OF;
        self.mean
    }

    /// Leaves out what the thread has done since the last look.
    pub(super) fn skip(&mut self) {
        self.before = cpu_time();
    }
}

/// Returns the CPU time that the calling thread has had.
fn cpu_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec as u64, tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps the core for this much CPU time of the calling thread.
    fn work(time: Duration) {
        let start = cpu_time();
        while cpu_time() - start < time {}
    }

    #[test]
    fn a_look_costs_the_cpu_time_since_the_last_one_unless_that_was_for_something_else() {
        let mut cost = LookCost::new();
        work(Duration::from_millis(8));
        assert!(cost.of_a_look() >= Duration::from_millis(1));
        let mean = cost.mean;
        work(Duration::from_millis(80));
        cost.skip();
        assert!(cost.of_a_look() < mean);
    }
}
