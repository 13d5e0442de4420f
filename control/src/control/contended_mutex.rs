//! A lock whose holder can ask whether others wait for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock. It guards no data that a panic could leave half changed, so a poisoned one is still usable.
#[derive(Default)]
pub(super) struct ContendedMutex {
    lock: Mutex<()>,
    waiting: AtomicUsize,
}

impl ContendedMutex {
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Returns whether another thread waits for the lock. Asked by its holder.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}
