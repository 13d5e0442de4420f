//! How many instances of a chain are kept ready: between its `cache_min` and its `cache_max`, by how fast clients come.
//!
//! ```text
//!   rate      clients per second, over the last quarter of a second
//!   wanted    cache_min, and what comes at this rate while the launcher is about other things
//!   size      wanted; once it was larger, it comes down by half in ten seconds
//! ```
//!
//! The rate is a sum over clients that decays with time, so nothing is kept of each.
//!
//! Preparing takes tens of microseconds of a core that it shares with functions, and leaves nothing of theirs in its caches. So while clients
//! come, those that are ready serve them, and what is lacking is prepared in the next pause; or at once, when few are left.

use std::time::{Duration, Instant};

/// The time over which clients are counted.
const RATE_TIME: Duration = Duration::from_millis(250);
/// How long the launcher may be about other things: instances for so long are ready.
const AHEAD: Duration = Duration::from_millis(25);
/// In this time a cache that is larger than it needs to be comes down by half.
const HALF_LIFE: Duration = Duration::from_secs(10);

/// What nobody comes in is a pause.
const PAUSE: Duration = Duration::from_millis(5);
/// This part of a cache is kept filled though clients come.
const KEPT_SHARE: u32 = 4;

/// So much above its minimum a cache is rounded to it.
const LEAST_SLACK: f64 = 0.25;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct CacheSize {
    min: f64,
    max: f64,
    /// Clients, each counting the less the longer ago it came.
    clients: f64,
    size: f64,
    at: Instant,
    last_client: Option<Instant>,
}

impl CacheSize {
    /// Between these bounds.
    pub(super) fn new(min: u32, max: u32, now: Instant) -> Self {
        let min = f64::from(min);
        Self { min, max: f64::from(max).max(min), clients: 0.0, size: min, at: now, last_client: None }
    }

    /// Notes that a client has come.
    pub(super) fn client_came(&mut self, now: Instant) {
        self.pass(now);
        self.clients += 1.0;
        self.last_client = Some(now);
        self.size = self.size.max(self.wanted());
    }

    /// How many instances are to be ready.
    pub(super) fn size(&self, now: Instant) -> u32 {
        let mut then = self.clone();
        then.pass(now);
        then.size.round() as u32
    }

    /// When what is lacking is to be prepared, with so many ready of so many wanted, if not at once.
    pub(super) fn refilled_at(&self, ready: u32, wanted: u32) -> Option<Instant> {
        self.last_client.filter(|_| ready > wanted / KEPT_SHARE).map(|at| at + PAUSE)
    }

    /// Whether it is as small as it gets, and stays so if no client comes.
    pub(super) fn is_least(&self, now: Instant) -> bool {
        let mut then = self.clone();
        then.pass(now);
        then.size < then.min + LEAST_SLACK && then.wanted() < then.min + LEAST_SLACK
    }

    fn wanted(&self) -> f64 {
        let per_second = self.clients / RATE_TIME.as_secs_f64();
        (self.min + per_second * AHEAD.as_secs_f64()).clamp(self.min, self.max)
    }

    fn pass(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.clients *= (-passed / RATE_TIME.as_secs_f64()).exp();
        let above = (self.size - self.wanted()).max(0.0);
        self.size = self.wanted() + above * (-passed / HALF_LIFE.as_secs_f64()).exp2();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size after clients came for so long, one in each interval.
    fn after(size: &mut CacheSize, start: Instant, interval: Duration, time: Duration) -> (u32, Instant) {
        let mut now = start;
        while now < start + time {
            now += interval;
            size.client_came(now);
        }
        (size.size(now), now)
    }

    #[test]
    fn a_chain_to_which_nobody_comes_has_its_minimum() {
        let start = Instant::now();
        let size = CacheSize::new(4, 64, start);
        assert_eq!(size.size(start), 4);
        assert_eq!(size.size(start + Duration::from_secs(3600)), 4);
    }

    #[test]
    fn the_cache_grows_with_the_rate_and_not_beyond_its_maximum() {
        let start = Instant::now();
        let (slow, fast) = (Duration::from_millis(1), Duration::from_micros(50));
        let second = Duration::from_secs(1);
        // A client a millisecond: 25 in 25 ms. Twenty a millisecond: 500.
        let (size, _) = after(&mut CacheSize::new(4, 1024, start), start, slow, second);
        assert!((27..=31).contains(&size), "{size}");
        let (size, _) = after(&mut CacheSize::new(4, 1024, start), start, fast, second);
        assert!((490..=520).contains(&size), "{size}");
        assert_eq!(after(&mut CacheSize::new(4, 64, start), start, fast, second).0, 64);
    }

    #[test]
    fn a_cache_that_was_needed_comes_down_slowly_to_its_minimum() {
        let start = Instant::now();
        let mut size = CacheSize::new(4, 1024, start);
        let (top, now) = after(&mut size, start, Duration::from_micros(50), Duration::from_secs(1));
        let soon = size.size(now + Duration::from_secs(1));
        assert!(soon > top * 8 / 10, "{soon} of {top}");
        let later = size.size(now + Duration::from_secs(11));
        assert!((top * 4 / 10..top * 6 / 10).contains(&later), "{later} of {top}");
        assert_eq!(size.size(now + Duration::from_secs(300)), 4);
    }

    #[test]
    fn a_cache_is_least_before_clients_come_and_long_after() {
        let start = Instant::now();
        let mut size = CacheSize::new(0, 64, start);
        assert!(size.is_least(start));
        let (_, now) = after(&mut size, start, Duration::from_micros(100), Duration::from_secs(1));
        assert!(!size.is_least(now));
        assert!(!size.is_least(now + Duration::from_secs(5)));
        assert!(size.is_least(now + Duration::from_secs(300)));
    }

    #[test]
    fn what_is_lacking_waits_for_a_pause_between_clients_unless_few_are_left() {
        let start = Instant::now();
        let mut size = CacheSize::new(100, 1024, start);
        assert_eq!(size.refilled_at(99, 100), None, "nobody has come");
        size.client_came(start);
        assert_eq!(size.refilled_at(99, 100), Some(start + PAUSE));
        size.client_came(start + PAUSE / 2);
        assert_eq!(size.refilled_at(26, 100), Some(start + PAUSE / 2 + PAUSE));
        assert_eq!(size.refilled_at(25, 100), None);
        assert_eq!(size.refilled_at(0, 1), None);
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_changes_nothing() {
        let start = Instant::now() + Duration::from_secs(10);
        let mut size = CacheSize::new(1, 1024, start);
        for _ in 0..100 {
            size.client_came(start);
        }
        assert_eq!(size.size(start), 11);
        assert_eq!(size.size(start - Duration::from_secs(5)), 11);
    }
}
