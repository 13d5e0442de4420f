//! How many instances of a chain are kept ready: between its `cache_min` and its `cache_max`, by the arrival rate of clients.
//!
//! ```text
//!   rate      clients per second, over the last quarter of a second
//!   wanted    cache_min, plus the clients that come at this rate while the launcher is busy with other chains
//!   size      wanted; a larger size decays towards it, by half in ten seconds
//! ```
//!
//! The rate is a sum over clients that decays with time, so no record of each client is kept.
//!
//! Preparing an instance takes tens of microseconds on a core that the launcher may share with functions, and evicts their data from its
//! caches. So while clients come, they get ready instances, and missing ones are prepared in the next pause; or at once, when few are left.

use std::time::{Duration, Instant};

/// The time over which clients are counted.
const RATE_TIME: Duration = Duration::from_millis(250);
/// How long the launcher may be busy with other chains: there are ready instances for the clients of this time.
const AHEAD: Duration = Duration::from_millis(25);
/// The surplus of a cache halves in this time.
const HALF_LIFE: Duration = Duration::from_secs(10);

/// A time of this length without a new client is a pause.
const PAUSE: Duration = Duration::from_millis(5);
/// One part in so many of a cache is kept filled even while clients come.
const KEPT_SHARE: u32 = 4;

/// A size that exceeds the minimum by less counts as the minimum.
const LEAST_SLACK: f64 = 0.25;

/// The size of one chain's cache; see the module.
#[derive(Debug, Clone)]
pub(super) struct CacheSize {
    min: f64,
    max: f64,
    /// A decaying sum of clients: the longer ago a client came, the less it counts.
    clients: f64,
    size: f64,
    at: Instant,
    last_client: Option<Instant>,
}

impl CacheSize {
    /// Creates the size of a cache between these bounds; it begins at `min`.
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

    /// Returns how many instances are to be ready.
    pub(super) fn size(&self, now: Instant) -> u32 {
        let mut then = self.clone();
        then.pass(now);
        then.size.round() as u32
    }

    /// Returns when missing instances are to be prepared, with `ready` of `wanted` instances ready; none for at once.
    pub(super) fn refilled_at(&self, ready: u32, wanted: u32) -> Option<Instant> {
        self.last_client.filter(|_| ready > wanted / KEPT_SHARE).map(|at| at + PAUSE)
    }

    /// Returns whether the size is at its minimum, and stays there if no client comes.
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

    /// Returns the size after clients came for `time`, one in each `interval`, and the time then.
    fn after(size: &mut CacheSize, start: Instant, interval: Duration, time: Duration) -> (u32, Instant) {
        let mut now = start;
        while now < start + time {
            now += interval;
            size.client_came(now);
        }
        (size.size(now), now)
    }

    #[test]
    fn a_chain_without_clients_has_its_minimum() {
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
    fn a_cache_shrinks_slowly_to_its_minimum_when_no_more_clients_come() {
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
    fn a_cache_is_at_its_minimum_before_clients_come_and_long_after() {
        let start = Instant::now();
        let mut size = CacheSize::new(0, 64, start);
        assert!(size.is_least(start));
        let (_, now) = after(&mut size, start, Duration::from_micros(100), Duration::from_secs(1));
        assert!(!size.is_least(now));
        assert!(!size.is_least(now + Duration::from_secs(5)));
        assert!(size.is_least(now + Duration::from_secs(300)));
    }

    #[test]
    fn missing_instances_wait_for_a_pause_between_clients_unless_few_are_left() {
        let start = Instant::now();
        let mut size = CacheSize::new(100, 1024, start);
        assert_eq!(size.refilled_at(99, 100), None, "no client has come");
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
