//! The `tuning` of the nodes that tests and benchmarks start.

use std::sync::{Mutex, PoisonError};

/// What was chosen last in this process.
static CHOSEN: Mutex<Option<&str>> = Mutex::new(None);

/// Sets the `tuning` of nodes that are started from now on.
pub fn choose(tuning: &'static str) {
    *CHOSEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(tuning);
}

/// Returns the value of `tuning` for a node: the one chosen, or else the environment's (`make test-integration TUNING=off`), or else the
/// default.
#[must_use]
pub fn tuning() -> String {
    let chosen = *CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    let from_environment = || std::env::var("PINION_TEST_TUNING").unwrap_or_else(|_| "full".to_owned());
    chosen.map_or_else(from_environment, str::to_owned)
}
