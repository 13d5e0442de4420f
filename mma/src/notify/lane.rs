//! The fast path from one notifying thread to the thread that looks: ids in a row, eight to a cache line. No other line
//! moves from core to core.
//!
//! ```text
//!   notifier  ---  id  --->  [ a ring of entries with phases ]  -->  looking thread
//!        ^                                                                  |
//!        '------- how many it has taken: read only when the ring is full ---'
//! ```

use crossbeam_utils::CachePadded;

use super::NAMES_MAX;
use crate::id::FwpId;
use crate::rings::phased::{self, Consumer, Entry, Producer, View};
use crate::sync::{Arc, AtomicUsize, Ordering};

/// Largest index, plus one, that an entry can hold: an id and its phase are one word.
pub(super) const PLACES_MAX: usize = 1 << 31;

impl Entry for FwpId {
    #[inline(always)]
    fn to_bits(self) -> u64 {
        u64::from(self.index) << 32 | u64::from(self.generation)
    }

    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Self { index: (bits >> 32) as u32, generation: bits as u32 }
    }
}

/// The notifying end.
pub(super) struct LaneIn {
    names: Producer<FwpId>,
    /// How many the other end had taken when this end last read that.
    taken: usize,
    taken_there: Arc<CachePadded<AtomicUsize>>,
}

/// The looking end.
pub(super) struct LaneOut {
    names: Consumer<FwpId>,
    taken_here: Arc<CachePadded<AtomicUsize>>,
}

/// A view by which other threads can see whether a lane has ids.
#[derive(Clone)]
pub(super) struct LaneView {
    names: View<FwpId>,
    taken: Arc<CachePadded<AtomicUsize>>,
}

pub(super) fn lane() -> (LaneIn, LaneOut) {
    let (producer, consumer) = phased::ring(NAMES_MAX);
    let taken = Arc::new(CachePadded::new(AtomicUsize::new(0)));
    let into = LaneIn { names: producer, taken: 0, taken_there: Arc::clone(&taken) };
    (into, LaneOut { names: consumer, taken_here: taken })
}

impl LaneIn {
    /// Pushes the id of an FWP whose work was pushed before; returns false if the lane is full.
    #[inline(always)]
    pub(super) fn push(&mut self, id: FwpId) -> bool {
        if self.is_full() {
            self.taken = self.taken_there.load(Ordering::Acquire);
            if self.is_full() {
                return false;
            }
        }
        self.names.push(id);
        true
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.names.pushed().wrapping_sub(self.taken) == NAMES_MAX
    }
}

impl LaneOut {
    /// Takes up to `max` ids; returns how many.
    #[inline]
    pub(super) fn take(&mut self, max: usize, take: impl FnMut(FwpId)) -> usize {
        let count = self.names.take_batch(max, take);
        if count > 0 {
            // After they were read, as the notifier may overwrite their entries from here on.
            self.taken_here.store(self.names.taken(), Ordering::Release);
        }
        count
    }

    /// Returns whether the lane is empty.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn view(&self) -> LaneView {
        LaneView { names: self.names.view(), taken: Arc::clone(&self.taken_here) }
    }
}

impl LaneView {
    /// Returns whether the lane was empty a moment ago.
    pub(super) fn is_empty(&self) -> bool {
        !self.names.has(self.taken.load(Ordering::Acquire))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn id(number: usize) -> FwpId {
        FwpId { index: (number % PLACES_MAX) as u32, generation: (number as u32).wrapping_mul(0x9e37_79b9) }
    }

    #[test]
    fn the_last_index_and_the_last_generation_fit_into_an_entry() {
        let last = FwpId { index: PLACES_MAX as u32 - 1, generation: u32::MAX };
        let (mut into, mut out) = lane();
        assert!(into.push(last));
        let mut taken = Vec::new();
        assert_eq!(out.take(usize::MAX, |id| taken.push(id)), 1);
        assert_eq!(taken, [last]);
    }

    proptest! {
        #[test]
        fn ids_come_in_order_none_is_overwritten_and_a_full_lane_is_reported(
            steps in proptest::collection::vec((0..2 * NAMES_MAX, 0..2 * NAMES_MAX), 1..12),
        ) {
            let ((mut into, mut out), mut naive, mut next) = (lane(), VecDeque::new(), 0);
            let view = out.view();
            for (pushes, takes) in steps {
                for _ in 0..pushes {
                    let has_room = naive.len() < NAMES_MAX;
                    prop_assert_eq!(into.push(id(next)), has_room);
                    if has_room {
                        naive.push_back(id(next));
                    }
                    next += 1;
                }
                prop_assert_eq!((out.is_empty(), view.is_empty()), (naive.is_empty(), naive.is_empty()));
                let mut taken = Vec::new();
                let count = out.take(takes, |id| taken.push(id));
                let expected: Vec<FwpId> = naive.drain(..takes.min(naive.len())).collect();
                prop_assert_eq!((count, taken), (expected.len(), expected));
                prop_assert_eq!((out.is_empty(), view.is_empty()), (naive.is_empty(), naive.is_empty()));
            }
        }
    }
}
