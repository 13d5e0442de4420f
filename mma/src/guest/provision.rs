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
//! Both numbers ([`crate::accounts::slot_numbers`]) are of slots from the pool's first one on, and only grow. So neither
//! side answers the other: each compares them whenever it is notified. A guest that computes for long has no new turn
//! meanwhile; its worker compares them when it is preempted, too.
//!
//! A guest's own slots have pages when it has written to them. Its worker touches those that are sent for the first time.

use std::ops::Range;

/// Most bytes of slots that a worker provides in a turn, but for one slot.
const STEP_BYTES: u32 = 16 * 1024;

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
}
