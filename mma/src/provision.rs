//! Pages of pools, on the accounts of those whose pools they are.
//!
//! The kernel provides a page when it is touched for the first time, on the thread that touches it. That is never the
//! MMA, which all tenants share. A new FWP has the pages of its first slot, and slots are in circulation from when they
//! have theirs. Frames that find no slot wait, and the FWP's worker provides more in turns of the FWP:
//!
//! ```text
//!   MMA                                                    worker
//!   no slot is free, and some have no pages yet
//!   frames wait          -- wanted, notification ----->    touches pages, a step each turn
//!   puts the slots into
//!   circulation          <-- provided, notification --
//! ```
//!
//! Both numbers are of slots from the pool's first one on, and only grow. So neither side answers the other: each compares
//! them whenever it is notified. A guest that computes for long has no new turn meanwhile; its worker compares them when it
//! is preempted, too.
//!
//! A guest's own slots have pages when it has written to them. Its worker touches those that are sent for the first time.

use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

/// Most bytes of slots that a worker provides in a turn, but for one slot.
const STEP_BYTES: u32 = 16 * 1024;

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

/// Returns the slots that are provided next, as `wanted` are: no more than a turn should take.
pub(crate) fn next_step(provided: u16, wanted: u16, slot_size: u32) -> Range<u16> {
    let most = (STEP_BYTES / slot_size).max(1) as u16;
    provided..wanted.min(provided.saturating_add(most))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_is_wanted_within_what_a_turn_may_take() {
        assert_eq!(next_step(2, 5, 2048), 2..5);
        assert_eq!(next_step(2, 500, 2048), 2..10);
        assert_eq!(next_step(2, 500, 65_472), 2..3, "one at least");
        assert!(next_step(5, 5, 2048).is_empty());
    }

    #[test]
    fn the_worker_is_notified_once_of_what_is_wanted() {
        let numbers = SlotNumbers::default();
        let told = [3, 3, 2, 4].map(|slots| numbers.want(slots));
        assert_eq!((told, numbers.wanted()), ([true, false, false, true], 4));
    }
}
