//! Which slots of a pool hold nothing.

use crate::id::SlotIndex;

/// A stack, so that few slots stay warm and few pages resident. The slot on top is at hand without another look into memory: of thousands of
/// FWPs whose frames come one by one, each such look is waited for.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    top: Option<SlotIndex>,
    others: Vec<SlotIndex>,
}

impl FreeSlots {
    /// All of so many, the first on top.
    pub(crate) fn all(slots: u16) -> Self {
        let mut others = Vec::with_capacity(slots.into());
        others.extend((0..slots).rev().map(SlotIndex));
        Self { top: others.pop(), others }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.others.len() + usize::from(self.top.is_some())
    }

    /// The one that comes after so many others.
    #[inline]
    pub(crate) fn peek(&self, ahead: usize) -> Option<SlotIndex> {
        match ahead {
            0 => self.top,
            _ => self.others.len().checked_sub(ahead).and_then(|at| self.others.get(at)).copied(),
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<SlotIndex> {
        let slot = self.top?;
        self.top = self.others.pop();
        Some(slot)
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: SlotIndex) {
        if let Some(below) = self.top.replace(slot) {
            self.others.push(below);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_slot_freed_last_comes_first_and_what_comes_is_seen_ahead() {
        let mut free = FreeSlots::all(4);
        assert_eq!((free.pop(), free.pop()), (Some(SlotIndex(0)), Some(SlotIndex(1))));
        free.push(SlotIndex(1));
        free.push(SlotIndex(0));
        let ahead: Vec<_> = (0..5).map(|ahead| free.peek(ahead)).collect();
        let popped: Vec<_> = (0..5).map(|_| free.pop()).collect();
        assert_eq!(ahead, popped);
        assert_eq!(
            popped,
            [0, 1, 2, 3].map(|slot| Some(SlotIndex(slot))).into_iter().chain([None]).collect::<Vec<_>>()
        );
    }

    #[test]
    fn those_that_are_free_are_counted_down_to_none() {
        let mut free = FreeSlots::all(2);
        let counts: Vec<_> = (0..3).map(|_| (free.len(), free.pop()).0).collect();
        assert_eq!(counts, [2, 1, 0]);
        free.push(SlotIndex(1));
        assert_eq!((free.len(), free.peek(0), free.peek(1)), (1, Some(SlotIndex(1)), None));
        assert_eq!(FreeSlots::all(0).peek(0), None);
    }
}
