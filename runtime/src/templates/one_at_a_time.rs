//! Work that is done by one thread at a time for each key, by threads that may block.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// See the module.
pub struct OneAtATime<K> {
    taken: Mutex<BTreeSet<K>>,
    freed: Condvar,
}

impl<K> Default for OneAtATime<K> {
    fn default() -> Self {
        Self { taken: Mutex::default(), freed: Condvar::new() }
    }
}

impl<K: Ord + Copy> OneAtATime<K> {
    /// Waits until the key is free. It is taken until the returned value is dropped.
    pub fn take(&self, key: K) -> Taken<'_, K> {
        let mut taken = self.taken();
        while !taken.insert(key) {
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        Taken { of: self, key }
    }

    fn taken(&self) -> MutexGuard<'_, BTreeSet<K>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key that is taken.
#[must_use = "the key is free when this is dropped"]
pub struct Taken<'o, K: Ord + Copy> {
    of: &'o OneAtATime<K>,
    key: K,
}

impl<K: Ord + Copy> Drop for Taken<'_, K> {
    fn drop(&mut self) {
        self.of.taken().remove(&self.key);
        self.of.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_thread_at_a_time_has_a_key_and_other_keys_are_free() {
        let (keys, inside) = (OneAtATime::default(), AtomicU32::new(0));
        let other = keys.take(2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let _taken = keys.take(1);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        drop(other);
        assert!(keys.taken().is_empty());
    }
}
