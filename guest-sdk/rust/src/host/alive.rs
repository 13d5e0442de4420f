//! Keeps an instance alive that gets no packets: [`keep_alive_until`], and [`KeepAlive`] for functions that call it with every batch.

use super::calls;

/// Asks the node not to end this instance for lack of packets before [`clock::now_ns`](crate::clock::now_ns()) is `until_ns`. Returns the
/// time until which the instance is kept, or 0 if it is not kept.
///
/// The node ends an instance that got no packet for its chain's `idle_timeout_ms`, and its memory is lost. A function with longer timers,
/// such as those of flows and mappings, calls this with the time until which it needs its memory. The latest call counts: an earlier time
/// shortens the request, and a time that has passed ends it. In a chain of several stages the latest time of all stages holds.
///
/// The operator's `limits.keep_alive_max_s` is the longest that an instance stays without a packet, and a later time is cut to it. An
/// instance ends nevertheless if its chain changes or is removed, if the connection that it serves ends (`per-flow`), if it fails, or if
/// another client needs the room: then instances end whose clients sent one packet only, and idle ones. In [`Function::init`](crate::Function::init) the call has no effect.
///
/// The call takes about ten nanoseconds: see [`KeepAlive`].
///
/// ```
/// use pinion_sdk::{clock, keep_alive_until, testing};
///
/// const HOUR_NS: u64 = 3600 * 1_000_000_000;
/// let until_ns = clock::now_ns() + 2 * HOUR_NS;
/// assert_eq!(keep_alive_until(until_ns), until_ns);
/// assert_eq!(testing::kept_until_ns(), Some(until_ns));
///
/// // The operator allows no more than an hour.
/// testing::set_keep_alive_max_ns(HOUR_NS);
/// assert_eq!(keep_alive_until(until_ns), clock::now_ns() + HOUR_NS);
///
/// assert_eq!(keep_alive_until(0), 0);
/// assert_eq!(testing::kept_until_ns(), None);
/// ```
pub fn keep_alive_until(until_ns: u64) -> u64 {
    calls::keep_alive_until(until_ns)
}

/// Calls [`keep_alive_until`] only if the time has changed by a second: for functions that know after each batch until when they need their
/// memory.
///
/// ```
/// use pinion_sdk::{Batch, Function, InitError, KeepAlive, clock, testing};
///
/// const MINUTE_NS: u64 = 60 * 1_000_000_000;
///
/// /// Passes answers for ten minutes after something was sent.
/// #[derive(Default)]
/// struct TenMinutes {
///     sent_ns: Option<u64>,
///     keep_alive: KeepAlive,
/// }
///
/// impl Function for TenMinutes {
///     fn init(_config: &[u8]) -> Result<Self, InitError> {
///         Ok(Self::default())
///     }
///
///     fn handle(&mut self, batch: Batch<'_>) {
///         self.sent_ns = Some(clock::now_ns());
///         batch.for_each(pinion_sdk::Packet::send);
///         self.keep_alive.until(self.sent_ns.map(|sent_ns| sent_ns + 10 * MINUTE_NS));
///     }
/// }
///
/// let mut harness = testing::Harness::<TenMinutes>::new(b"").unwrap();
/// harness.deliver(&[&[0; 60]]);
/// assert_eq!(testing::kept_until_ns(), Some(clock::now_ns() + 10 * MINUTE_NS));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepAlive {
    /// The time of the last call; 0 for none.
    told_ns: u64,
}

const SECOND_NS: u64 = 1_000_000_000;

impl KeepAlive {
    /// Keeps the instance alive until a time, rounded up to a second of the clock; `None` ends the request. Calls the node only if the time
    /// has changed.
    #[inline]
    pub fn until(&mut self, until_ns: Option<u64>) {
        let until_ns = until_ns.map_or(0, |until_ns| until_ns.checked_next_multiple_of(SECOND_NS).unwrap_or(u64::MAX));
        if until_ns != self.told_ns {
            self.told_ns = until_ns;
            keep_alive_until(until_ns);
        }
    }
}

#[cfg(all(test, not(target_family = "wasm")))]
mod tests {
    use super::{KeepAlive, SECOND_NS, keep_alive_until};
    use crate::testing::{advance_clock_ns, kept_until_ns};

    #[test]
    fn the_latest_call_counts_and_a_time_that_has_passed_keeps_nothing() {
        assert_eq!(kept_until_ns(), None);
        assert_eq!(keep_alive_until(5 * SECOND_NS), 5 * SECOND_NS);
        assert_eq!(keep_alive_until(3 * SECOND_NS), 3 * SECOND_NS);
        advance_clock_ns(3 * SECOND_NS - 1);
        assert_eq!(kept_until_ns(), Some(3 * SECOND_NS));
        advance_clock_ns(1);
        assert_eq!(kept_until_ns(), None);
        assert_eq!(keep_alive_until(3 * SECOND_NS), 0, "a time that has passed");
    }

    #[test]
    fn the_node_is_called_with_whole_seconds_and_only_when_the_time_changes() {
        let mut keep_alive = KeepAlive::default();
        keep_alive.until(Some(1));
        assert_eq!(kept_until_ns(), Some(SECOND_NS));
        // A direct call that `keep_alive` does not see: it keeps its own record, and has nothing new to report.
        keep_alive_until(9 * SECOND_NS);
        keep_alive.until(Some(SECOND_NS));
        assert_eq!(kept_until_ns(), Some(9 * SECOND_NS));
        keep_alive.until(Some(SECOND_NS + 1));
        assert_eq!(kept_until_ns(), Some(2 * SECOND_NS));
        keep_alive.until(Some(u64::MAX));
        assert!(kept_until_ns().is_some_and(|until_ns| until_ns > 3600 * SECOND_NS));
        keep_alive.until(None);
        assert_eq!(kept_until_ns(), None);
    }
}
