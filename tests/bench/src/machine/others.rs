//! The other programs' use of the machine during a measurement: a figure is worthless if other programs had the cores, and its report says
//! so.

use std::fs;
use std::time::Instant;

use anyhow::Context;

/// The unit in which the kernel reports CPU time, whatever its own clock: `USER_HZ`.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time so far, of all processes and of this process with the children that it has waited for, in the kernel's ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Others {
    since: Instant,
    all: u64,
    own: u64,
}

impl Others {
    /// Begins the measurement.
    pub(crate) fn watch() -> anyhow::Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| path.to_owned());
        let all = busy_ticks(&read("/proc/stat")?).context("/proc/stat has no line for all CPUs")?;
        let own = process_ticks(&read("/proc/self/stat")?).context("/proc/self/stat lacks fields")?;
        Ok(Self { since: Instant::now(), all, own })
    }

    /// Returns the share of one core that other processes have used since then, in percent. Children that still run count as others.
    pub(crate) fn percent_of_a_core(&self) -> anyhow::Result<f64> {
        let now = Self::watch()?;
        let others = (now.all - self.all).saturating_sub(now.own - self.own);
        Ok(others as f64 / TICKS_PER_SECOND / self.since.elapsed().as_secs_f64() * 100.0)
    }
}

/// user, nice, system, then idle and iowait, then irq and softirq. The time of virtual machines is within user.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some(ticks.get(..3)?.iter().sum::<u64>() + ticks.get(5..7)?.iter().sum::<u64>())
}

/// utime, stime, cutime, cstime, which are the 14th to the 17th field. The second field may contain anything, in parentheses.
fn process_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let fields = after_name.split_whitespace().skip(11).take(4);
    fields.map(|word| word.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_busy() {
        assert_eq!(busy_ticks("cpu  10 20 30 4000 500 6 7 8 9 1\ncpu0 1 1 1 1 1 1 1\n"), Some(10 + 20 + 30 + 6 + 7));
    }

    #[test]
    fn a_process_counts_with_the_children_it_has_waited_for() {
        assert_eq!(process_ticks("42 (a ) name) S 1 42 42 0 -1 4194560 1 2 3 4 100 20 3000 400 20 0 1"), Some(3520));
    }
}
