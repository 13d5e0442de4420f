//! The free slots of a pool.

use crate::id::SlotIndex;

/// The free list of the slots that frames are received into. It is a stack, so that few slots are in use, which keeps
/// them in the cache and few pages resident. The top slot is stored in place: with thousands of FWPs whose frames come
/// one by one, each further load would be a cache miss.
///
/// Slots are in circulation from when their pages are provided: see [`crate::guest::provision`].
///
/// The last slots of a pool may be the guest's own. Frames are never received into them. When freed, they are kept
/// apart until they are returned to the guest.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    top: Option<SlotIndex>,
    others: Vec<SlotIndex>,
    /// Number of slots that are lent to the guest frame by frame: the pool's first slots.
    lent: u16,
    /// Number of slots in circulation, of those.
    circulating: u16,
    /// Slots of the guest's own whose frames were taken out. Its capacity for all of them is allocated with the pool.
    own: Vec<SlotIndex>,
}

impl FreeSlots {
    /// Makes a list of slots 0 to `lent`-1, of which the first `circulating` are free, slot 0 on top. The `own` slots
    /// behind them are the guest's own, and none of these is free yet.
    pub(crate) fn new(lent: u16, circulating: u16, own: u16) -> Self {
        let others = Vec::with_capacity(lent.into());
        let mut free = Self { top: None, others, lent, circulating: 0, own: Vec::with_capacity(own.into()) };
        free.put_into_circulation(circulating);
        free
    }

    /// Frees the slots before `upto` that were not in circulation.
    pub(crate) fn put_into_circulation(&mut self, upto: u16) {
        let upto = upto.min(self.lent);
        for slot in (self.circulating..upto).rev() {
            self.push(SlotIndex(slot));
        }
        self.circulating = self.circulating.max(upto);
    }

    /// Returns the number of lent slots that are in circulation.
    pub(crate) fn circulating(&self) -> u16 {
        self.circulating
    }

    /// Returns the number of lent slots that are not in circulation.
    #[inline]
    pub(crate) fn to_come(&self) -> u16 {
        self.lent - self.circulating
    }

    /// Returns whether there are some.
    #[inline]
    pub(crate) fn can_grow(&self) -> bool {
        self.to_come() > 0
    }

    /// Returns the number of lent slots that are free.
    pub(crate) fn count(&self) -> usize {
        self.others.len() + usize::from(self.top.is_some())
    }

    /// Returns the number of lent slots that are in circulation and not free.
    pub(crate) fn missing(&self) -> usize {
        usize::from(self.circulating) - self.count()
    }

    /// Returns whether a slot is the guest's own.
    #[inline]
    pub(crate) fn is_own(&self, slot: SlotIndex) -> bool {
        slot.0 >= self.lent
    }

    /// Returns the free slot that `ahead` further calls of `pop` would come to.
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
        if self.is_own(slot) {
            self.own.push(slot);
        } else if let Some(below) = self.top.replace(slot) {
            self.others.push(below);
        }
    }

    /// Takes one of the guest's own slots that is to be returned to it.
    #[inline]
    pub(crate) fn pop_own(&mut self) -> Option<SlotIndex> {
        self.own.pop()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_slot_freed_last_is_used_first_and_later_ones_can_be_peeked() {
        let mut free = FreeSlots::new(4, 4, 0);
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
    fn missing_slots_are_counted_until_all_are_missing() {
        let mut free = FreeSlots::new(2, 2, 0);
        let missing: Vec<_> = (0..3).map(|_| (free.missing(), free.pop()).0).collect();
        assert_eq!(missing, [0, 1, 2]);
        free.push(SlotIndex(1));
        assert_eq!((free.missing(), free.peek(0), free.peek(1)), (1, Some(SlotIndex(1)), None));
        assert_eq!(free.count(), 1);
    }

    #[test]
    fn slots_are_used_and_missing_from_when_they_are_in_circulation() {
        let mut free = FreeSlots::new(4, 1, 1);
        assert_eq!([free.pop(), free.pop()], [Some(SlotIndex(0)), None]);
        assert_eq!((free.missing(), free.can_grow()), (1, true));
        free.put_into_circulation(3);
        assert_eq!((free.missing(), free.can_grow()), (1, true));
        assert_eq!([free.pop(), free.pop(), free.pop()], [Some(SlotIndex(1)), Some(SlotIndex(2)), None]);
        free.put_into_circulation(u16::MAX);
        assert_eq!((free.missing(), free.can_grow()), (3, false));
        free.put_into_circulation(2);
        assert_eq!([free.pop(), free.pop()], [Some(SlotIndex(3)), None]);
    }

    #[test]
    fn the_guests_own_slots_are_never_received_into() {
        let mut free = FreeSlots::new(1, 1, 2);
        assert_eq!([free.pop(), free.pop()], [Some(SlotIndex(0)), None]);
        [2, 1].into_iter().for_each(|slot| free.push(SlotIndex(slot)));
        assert_eq!((free.pop(), free.missing()), (None, 1));
        assert_eq!([free.pop_own(), free.pop_own(), free.pop_own()], [Some(SlotIndex(1)), Some(SlotIndex(2)), None]);
    }
}
