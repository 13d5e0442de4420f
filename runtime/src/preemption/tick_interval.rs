//! How often the ticker looks while guests run and no other thread looks.
//!
//! Each look takes a core from another thread: from the guests that it watches, or from a client on a core next to them. So the ticker looks
//! often only while guests have to be interrupted, and for a while afterwards. Else it looks rarely, and the first guest that exceeds its
//! quantum exceeds it by more, twice. A single overdue guest is no evidence, because a core that the hypervisor took for a moment looks the
//! same.
//!
//! How rarely depends on how many looks find a guest overdue: each halves the time between rare looks, and each other look adds one part in
//! 256. So that time grows as long as fewer than one look in 180 finds an overdue guest, and functions that keep the core for longer now and
//! then, to find the ticker away, gain less than a hundredth of the core by it.
//!
//! The looks take a tenth of the ticker's core at most, by what they were seen to cost, and a fiftieth while no guest has to be interrupted: on
//! some virtual machines, each timer costs tens of microseconds.

use std::time::Duration;

/// For how long no guest may have exceeded its quantum before the looks become rare.
const CALM: Duration = Duration::from_millis(10);
/// The time between rare looks, at least and at most. It is never less than that between frequent looks.
const RARE_MIN: Duration = Duration::from_micros(100);
const RARE_MAX: Duration = Duration::from_millis(2);
/// By which part of itself the time between rare looks grows with each look that finds no guest overdue.
const GROWTH_SHARE: u32 = 256;
/// The ticker sleeps for so many times of what a look costs, and for so many while it is calm.
const COST_SHARE: u32 = 10;
const CALM_COST_SHARE: u32 = 50;

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
    rare: Duration,
    /// When a guest last exceeded its quantum at two looks in a row, if one has.
    pressed_ns: Option<u64>,
    last_seen: Seen,
}

impl TickInterval {
    pub(super) fn new(quantum: Duration) -> Self {
        Self { often: quantum / 2, rare: RARE_MIN, pressed_ns: None, last_seen: Seen::None }
    }

    /// Returns the time until the next look, if a look costs the core `cost`.
    pub(super) fn until_next(&mut self, seen: Seen, now_ns: u64, cost: Duration) -> Duration {
        let is_calm = |pressed_ns: u64| now_ns.saturating_sub(pressed_ns) >= CALM.as_nanos() as u64;
        self.pressed_ns = self.pressed_ns.filter(|pressed_ns| !is_calm(*pressed_ns));
        let is_again = std::mem::replace(&mut self.last_seen, seen) == Seen::Overdue || self.pressed_ns.is_some();
        if seen == Seen::Overdue && is_again {
            self.pressed_ns = Some(now_ns);
        }
        let rare = if seen == Seen::Overdue { self.rare / 2 } else { self.rare + self.rare / GROWTH_SHARE };
        self.rare = rare.clamp(RARE_MIN, RARE_MAX);
        let (interval, share) = if self.pressed_ns.is_some() {
            (self.often, COST_SHARE)
        } else {
            (self.often.max(self.rare), CALM_COST_SHARE)
        };
        interval.max((cost * share).min(RARE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: Duration = Duration::from_micros(20);
    const MS: u64 = 1_000_000;

    /// Returns the time until the next look, if looks cost nothing.
    fn until_next(pace: &mut TickInterval, seen: Seen, now_ns: u64) -> Duration {
        pace.until_next(seen, now_ns, Duration::ZERO)
    }

    #[test]
    fn looks_are_rare_until_guests_are_overdue_twice_in_a_row_and_become_rare_again_later() {
        let mut pace = TickInterval::new(QUANTUM);
        for (seen, now_us) in [(Seen::Guests, 1000), (Seen::Overdue, 1100), (Seen::Guests, 1200), (Seen::Overdue, 1300)]
        {
            let next = until_next(&mut pace, seen, now_us * 1000);
            assert!((RARE_MIN..RARE_MIN * 2).contains(&next), "{next:?} when {seen:?} after {now_us} us");
        }
        assert_eq!(until_next(&mut pace, Seen::Overdue, 2 * MS), QUANTUM / 2);
        for (seen, now_ms) in [(Seen::Guests, 3), (Seen::None, 11), (Seen::Overdue, 11), (Seen::Guests, 20)] {
            assert_eq!(until_next(&mut pace, seen, now_ms * MS), QUANTUM / 2, "{seen:?} after {now_ms} ms");
        }
        assert!(until_next(&mut pace, Seen::Guests, 21 * MS) >= RARE_MIN);
    }

    #[test]
    fn looks_are_no_more_frequent_than_a_long_quantum_needs() {
        let mut pace = TickInterval::new(Duration::from_millis(5));
        assert_eq!(until_next(&mut pace, Seen::Guests, MS), Duration::from_micros(2_500));
        assert_eq!(until_next(&mut pace, Seen::Overdue, MS), Duration::from_micros(2_500));
    }

    /// Returns the time between looks after a thousand looks, of which one in `overdue_share` found a guest overdue.
    fn after_looks(overdue_share: u64) -> Duration {
        let mut pace = TickInterval::new(QUANTUM);
        let seen = |look: u64| if look.is_multiple_of(overdue_share) { Seen::Overdue } else { Seen::Guests };
        (1..=1_000).map(|look| until_next(&mut pace, seen(look), look * MS)).last().unwrap()
    }

    #[test]
    fn looks_become_very_rare_only_where_hardly_any_finds_an_overdue_guest() {
        assert_eq!(after_looks(100_000), RARE_MAX);
        assert!(after_looks(400) > 2 * RARE_MIN);
        assert!(after_looks(100) < 2 * RARE_MIN);
    }

    #[test]
    fn looks_take_a_fiftieth_of_the_core_at_most_while_no_guest_is_overdue() {
        let mut pace = TickInterval::new(QUANTUM);
        let mut calm = |cost: Duration| pace.until_next(Seen::Guests, MS, cost);
        assert_eq!(calm(Duration::from_micros(4)), Duration::from_micros(200));
        assert_eq!(calm(Duration::from_millis(8)), RARE_MAX);
        assert!(calm(Duration::from_nanos(500)) < 2 * RARE_MIN);
    }

    #[test]
    fn looks_take_a_tenth_of_the_core_at_most() {
        let mut pace = TickInterval::new(QUANTUM);
        let mut pressed =
            |cost: Duration| (0..3).map(|look| pace.until_next(Seen::Overdue, MS + look, cost)).last().unwrap();
        assert_eq!(pressed(Duration::from_micros(4)), Duration::from_micros(40));
        assert_eq!(pressed(Duration::from_nanos(500)), QUANTUM / 2);
        assert_eq!(pressed(Duration::from_millis(8)), RARE_MAX, "the time of an interrupt may be charged to a look");
    }
}
