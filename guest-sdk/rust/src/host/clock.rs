//! The node's clock: monotonic, and coarse, so that it is of little use for observing other tenants. For the date there is
//! [`std::time::SystemTime`], in the same steps.

use super::calls;

/// Returns the nanoseconds since some time in the past, in steps that the node's operator chooses: 100 us unless a finer clock is granted.
/// Never goes back, and is behind by less than two steps.
///
/// In a test it has steps of a microsecond, and stands still until [`testing::advance_clock_ns`](crate::testing::advance_clock_ns).
///
/// ```
/// let started_ns = pinion_sdk::clock::now_ns();
/// pinion_sdk::testing::advance_clock_ns(5_000);
/// assert_eq!(pinion_sdk::clock::now_ns() - started_ns, 5_000);
/// ```
#[must_use]
pub fn now_ns() -> u64 {
    calls::clock_ns()
}
