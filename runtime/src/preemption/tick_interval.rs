//! How often the ticker looks while guests run and no other thread looks.
//!
//! Each look takes a core from another thread, most likely from the guests that it watches. On a node with one core whose functions answer
//! packets and wait, looks at half the quantum cost a good part of the core. So the ticker looks that often only while guests have to be
//! interrupted, and for a while afterwards. Else it looks rarely, and the first guest that exceeds its quantum exceeds it by more, twice. A
//! single overdue guest is no evidence, because a core that the hypervisor took for a moment looks the same.

use std::time::Duration;

/// For how long no guest may have exceeded its quantum before the looks become rare.
const CALM: Duration = Duration::from_millis(10);
/// The time between rare looks, unless half a quantum is longer.
const RARE: Duration = Duration::from_micros(100);

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seen {
    None,
    Guests,
    /// A guest has used its quantum, and others wait for the core.
    Overdue,
}

/// See the module. Times are the clock's, in nanoseconds.
#[derive(Debug)]
pub(super) struct TickInterval {
    often: Duration,
    /// When a guest last exceeded its quantum, if one has.
    overdue_ns: Option<u64>,
    last_seen: Seen,
}

impl TickInterval {
    pub(super) fn new(quantum: Duration) -> Self {
        Self { often: quantum / 2, overdue_ns: None, last_seen: Seen::None }
    }

    /// Returns the time until the next look.
    pub(super) fn until_next(&mut self, seen: Seen, now_ns: u64) -> Duration {
        let is_calm = |overdue_ns: u64| now_ns.saturating_sub(overdue_ns) >= CALM.as_nanos() as u64;
        self.overdue_ns = self.overdue_ns.filter(|overdue_ns| !is_calm(*overdue_ns));
        let is_again = std::mem::replace(&mut self.last_seen, seen) == Seen::Overdue || self.overdue_ns.is_some();
        if seen == Seen::Overdue && is_again {
            self.overdue_ns = Some(now_ns);
        }
        if self.overdue_ns.is_some() { self.often } else { self.often.max(RARE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: Duration = Duration::from_micros(20);
    const MS: u64 = 1_000_000;

    #[test]
    fn looks_are_rare_until_guests_are_overdue_twice_in_a_row_and_become_rare_again_later() {
        let mut pace = TickInterval::new(QUANTUM);
        assert_eq!(pace.until_next(Seen::Guests, MS), RARE);
        for (seen, now_us) in [(Seen::Overdue, 1100), (Seen::Guests, 1200), (Seen::Overdue, 1300)] {
            assert_eq!(pace.until_next(seen, now_us * 1000), RARE, "{seen:?} after {now_us} us");
        }
        assert_eq!(pace.until_next(Seen::Overdue, 2 * MS), QUANTUM / 2);
        for (seen, now_ms) in [(Seen::Guests, 3), (Seen::None, 11), (Seen::Overdue, 11), (Seen::Guests, 20)] {
            assert_eq!(pace.until_next(seen, now_ms * MS), QUANTUM / 2, "{seen:?} after {now_ms} ms");
        }
        assert_eq!(pace.until_next(Seen::Guests, 21 * MS), RARE);
    }

    #[test]
    fn looks_are_no_more_frequent_than_a_long_quantum_needs() {
        let mut pace = TickInterval::new(Duration::from_millis(1));
        assert_eq!(pace.until_next(Seen::Guests, MS), Duration::from_micros(500));
        assert_eq!(pace.until_next(Seen::Overdue, MS), Duration::from_micros(500));
    }
}
