//! How many slots of a pool are in use: what an MMA and a worker tell each other of that, as [`crate::guest::provision`] says.

use std::sync::atomic::{AtomicU16, Ordering};

/// How many slots the MMA wants, and how many have their pages. The first number is written by the MMA, seldom, and the
/// second one by the FWP's worker.
#[derive(Debug, Default)]
pub(crate) struct SlotNumbers {
    wanted: AtomicU16,
    provided: AtomicU16,
}

impl SlotNumbers {
    /// Wants so many slots, if not more are wanted already. Returns whether the worker is to be notified.
    pub(crate) fn want(&self, slots: u16) -> bool {
        let is_more = slots > self.wanted();
        if is_more {
            self.wanted.store(slots, Ordering::Relaxed);
        }
        is_more
    }

    #[inline]
    pub(crate) fn wanted(&self) -> u16 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Notes that the pages of so many slots were touched.
    pub(crate) fn provide(&self, slots: u16) {
        self.provided.store(slots, Ordering::Release);
    }

    pub(crate) fn provided(&self) -> u16 {
        self.provided.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_worker_is_notified_once_of_what_is_wanted() {
        let numbers = SlotNumbers::default();
        let told = [3, 3, 2, 4].map(|slots| numbers.want(slots));
        assert_eq!((told, numbers.wanted()), ([true, false, false, true], 4));
    }
}
