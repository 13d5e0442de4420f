//! Pages of pools, on the accounts of those whose pools they are.
//!
//! The kernel provides a page when it is touched for the first time, on the thread that touches it. That is never the
//! MMA, which all tenants share. A new FWP has the pages of its first slot. The MMA delivers into slots that have
//! pages; when it needs more, frames wait, and the FWP's worker provides them in a turn of the FWP:
//!
//! ```text
//!   MMA                                            worker
//!   no slot is free, some have no pages yet
//!   frames wait      -- Delivery::more_slots --->  publish: touches pages, in steps
//!   slots_provided   <-- Provided, notification --
//! ```
//!
//! A guest that computes for long publishes nothing meanwhile. Whenever it is preempted, its worker looks whether frames
//! wait.
//!
//! A guest's own slots have theirs when they are sent for the first time: their worker touches them, too.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Most bytes of slots that a worker provides in one turn.
const STEP_BYTES: u32 = 256 * 1024;

/// How many slots a worker has provided, and how many requests it has read. The worker writes it, and the MMA reads it
/// when it has asked.
#[derive(Debug, Default)]
pub(crate) struct Provided(AtomicU32);

impl Provided {
    /// Notes that the pages of all slots before `slots` were touched.
    pub(crate) fn set(&self, slots: u16, requests: u16) {
        self.0.store(u32::from(slots) | u32::from(requests) << 16, Ordering::Release);
    }

    /// Returns the slots, and the requests.
    pub(crate) fn read(&self) -> (u16, u16) {
        let both = self.0.load(Ordering::Acquire);
        (both as u16, (both >> 16) as u16)
    }
}

/// Whether frames wait for slots with pages. The MMA writes it.
#[derive(Debug, Default)]
pub(crate) struct NeedsSlots(AtomicBool);

impl NeedsSlots {
    pub(crate) fn set(&self, needs: bool) {
        self.0.store(needs, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns the slots that are provided next, for `wanted` frames: at least as many again as there are, so that a pool
/// is complete after a few steps, but no more than a turn should take.
pub(crate) fn next_step(provided: u16, lent: u16, wanted: u16, slot_size: u32) -> Range<u16> {
    let step = wanted.max(provided).min((STEP_BYTES / slot_size).max(1) as u16);
    provided..provided.saturating_add(step).min(lent)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_is_wanted_or_as_much_again_within_what_a_turn_may_take() {
        let step = |provided, wanted, slot_size| next_step(provided, 1024, wanted, slot_size).len();
        assert_eq!([step(2, 1, 2048), step(2, 64, 2048), step(100, 1, 2048)], [2, 64, 100]);
        assert_eq!([step(512, 64, 2048), step(8, 64, 32_768), step(1, 64, 65_472)], [128, 8, 4]);
        assert_eq!(next_step(6, 8, 64, 2048), 6..8, "and no more than there are");
    }

    #[test]
    fn a_pool_is_complete_after_a_few_steps() {
        let steps = |slot_size| {
            let mut provided = 1;
            (1..).find(|_| (provided = next_step(provided, 1024, 1, slot_size).end, provided == 1024).1).unwrap()
        };
        assert_eq!((steps(2048), steps(256)), (14, 10));
    }
}
