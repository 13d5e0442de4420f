//! Waits for an expected event: polls for it, never longer than a limit.

use std::time::{Duration, Instant};

/// The longest wait for what a healthy node does within milliseconds, on a machine that has other work too. Only a failing test waits as
/// long.
pub const SOON: Duration = Duration::from_secs(60);

const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Returns what `look` finds, as soon as it finds something.
///
/// # Panics
/// If it finds nothing within `limit`; `what` completes the sentence.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "within {limit:?} there was no {what}");
        std::thread::sleep(LOOK_INTERVAL);
    }
}
