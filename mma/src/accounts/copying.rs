//! Copying as a resource: on whose account the MMA copies, what that costs, and how long it took.
//!
//! Costs are in bytes: those of a frame, and something for the frame itself. They are known beforehand, so turns are
//! given by them. Times are what tenants are charged.

use crate::accounts::counters::MovedCounters;
use crate::id::TenantIndex;
use crate::stopwatch::Stopwatch;

/// What a frame costs besides its bytes: a short one takes as long to move as to copy so many bytes.
pub(crate) const FRAME_COST: u32 = 128;

/// On whose account an FWP's output is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyShare {
    /// The FWP's tenant.
    pub tenant: TenantIndex,
    /// The tenant's weight against other tenants; not 0.
    pub weight: u32,
}

/// The most nanoseconds that a unit of cost is charged with: a thread that lost its core meanwhile has not copied for so
/// long. Copying to pages that the kernel must provide first takes about a fifth of that.
const COST_NS_MAX: u64 = 2;
/// What copying costs before its time is published, and before a worker looks for that. So of short frames, the counter,
/// which two cores use, is seldom touched.
const STEP_COST: u64 = 32 * 1024;

/// How long copying an FWP's output took, as far as that is not published: the MMA's side.
#[derive(Debug, Default)]
pub(crate) struct CopyingTime {
    ticks: u64,
    cost: u64,
}

impl CopyingTime {
    #[inline(always)]
    pub(crate) fn add(&mut self, ticks: u64, cost: u64) {
        self.ticks += ticks;
        self.cost += cost;
    }

    /// Returns whether so much was copied that it is to be published.
    #[inline(always)]
    pub(crate) fn is_much(&self) -> bool {
        self.cost >= STEP_COST
    }

    #[cold]
    pub(crate) fn publish(&mut self, stopwatch: &Stopwatch, moved: &MovedCounters) {
        let Self { ticks, cost } = std::mem::take(self);
        moved.copying_ns.add(stopwatch.ticks_ns(ticks).min(cost * COST_NS_MAX));
    }
}

/// What of an FWP's copying has been charged to its tenant: the worker's side.
#[derive(Debug, Default)]
pub(crate) struct CopyingBill {
    cost: u64,
    charged_ns: u64,
}

impl CopyingBill {
    /// Notes that frames were sent, with so many bytes to be copied.
    #[inline(always)]
    pub(crate) fn note(&mut self, frames: u64, bytes: u64) {
        self.cost += frames * u64::from(FRAME_COST) + bytes;
    }

    /// Returns the time that is to be charged now, in nanoseconds; 0 as long as little was sent.
    #[inline(always)]
    pub(crate) fn due_ns(&mut self, moved: &MovedCounters) -> u64 {
        if self.cost < STEP_COST { 0 } else { self.settle_ns(moved) }
    }

    /// Returns all of the time that was published and not charged yet, in nanoseconds.
    #[cold]
    pub(crate) fn settle_ns(&mut self, moved: &MovedCounters) -> u64 {
        let copying_ns = moved.copying_ns.value();
        let due_ns = copying_ns - std::mem::replace(&mut self.charged_ns, copying_ns);
        // What was sent in this turn is copied after it, so the next turn looks again.
        if due_ns > 0 {
            self.cost = 0;
        }
        due_ns
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_copied_is_charged_once_and_not_before_enough_was_sent() {
        let (moved, mut bill) = (MovedCounters::default(), CopyingBill::default());
        bill.note(1, STEP_COST - u64::from(FRAME_COST));
        assert_eq!(bill.due_ns(&moved), 0, "it is not copied yet");
        moved.copying_ns.add(500);
        assert_eq!([bill.due_ns(&moved), bill.due_ns(&moved), bill.settle_ns(&moved)], [500, 0, 0]);
        moved.copying_ns.add(7);
        assert_eq!([bill.due_ns(&moved), bill.settle_ns(&moved)], [0, 7]);
    }

    #[test]
    fn a_thread_that_lost_its_core_charges_no_more_than_copying_can_take() {
        let (moved, mut time, stopwatch) = (MovedCounters::default(), CopyingTime::default(), Stopwatch::start());
        time.add(1 << 40, STEP_COST);
        assert!(time.is_much());
        time.publish(&stopwatch, &moved);
        assert_eq!(moved.copying_ns.value(), STEP_COST * COST_NS_MAX);
        time.add(0, 1);
        assert!(!time.is_much());
    }
}
