//! Which slots of a pool hold nothing, by which ports the frames in the others came in, and which way they go.

use crate::heading::{Heading, Sides};
use crate::id::{PortIndex, SlotIndex};

/// The slots that frames are received into and that hold nothing: a stack, so that few slots stay warm and few pages resident. The slot on top is
/// at hand without another look into memory: of thousands of FWPs whose frames come one by one, each such look is waited for.
///
/// The last slots of a pool may be the guest's own. They are never received into; given back here, they are kept apart until they are returned.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    top: Option<SlotIndex>,
    others: Vec<SlotIndex>,
    /// How many slots are lent to the guest frame by frame, the first ones.
    lent: u16,
    /// Of the guest's own: what was in them was taken out. Room for all of them was made with the pool.
    own: Vec<SlotIndex>,
}

impl FreeSlots {
    /// All of so many, the first on top, and none yet of so many behind them that are the guest's own.
    pub(crate) fn all(lent: u16, own: u16) -> Self {
        let mut others = Vec::with_capacity(lent.into());
        others.extend((0..lent).rev().map(SlotIndex));
        Self { top: others.pop(), others, lent, own: Vec::with_capacity(own.into()) }
    }

    /// How many are somewhere else: frames are in them.
    pub(crate) fn missing(&self) -> usize {
        usize::from(self.lent) - self.others.len() - usize::from(self.top.is_some())
    }

    /// Whether a slot is the guest's own.
    #[inline]
    pub(crate) fn is_own(&self, slot: SlotIndex) -> bool {
        slot.0 >= self.lent
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
        if self.is_own(slot) {
            self.own.push(slot);
        } else if let Some(below) = self.top.replace(slot) {
            self.others.push(below);
        }
    }

    /// One of the guest's own that is to be returned to it.
    #[inline]
    pub(crate) fn pop_own(&mut self) -> Option<SlotIndex> {
        self.own.pop()
    }
}

/// How a frame came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Came {
    /// The port of the node that it came in by.
    pub(crate) port: PortIndex,
    /// Which way it goes through its chain.
    pub(crate) heading: Heading,
}

/// How the frame in each slot came. The host's own record; a guest cannot choose its way out.
#[derive(Debug)]
pub(crate) struct CameBy {
    by_slot: Box<[Came]>,
    /// How the last frame of all came, as what the guest made itself has not come.
    last: Came,
    /// Which way frames go that come in.
    sides: Sides,
}

impl CameBy {
    /// Nothing has come into so many slots.
    pub(crate) fn of_slots(lent: u16, sides: Sides) -> Self {
        let nothing = Came { port: PortIndex(0), heading: Heading::Forth };
        Self { by_slot: vec![nothing; lent.into()].into(), last: nothing, sides }
    }

    /// How a frame comes that has just come in by a port.
    #[inline]
    pub(crate) fn arriving(&self, port: PortIndex) -> Came {
        Came { port, heading: self.sides.heading_of(port) }
    }

    /// Where what is known of a slot lies.
    #[inline]
    pub(crate) fn place(&self, slot: SlotIndex) -> *const Came {
        self.by_slot.as_ptr().wrapping_add(usize::from(slot.0))
    }

    #[inline]
    pub(crate) fn set(&mut self, slot: SlotIndex, came: Came) {
        self.by_slot[usize::from(slot.0)] = came;
        self.last = came;
    }

    /// How the frame in a slot came; of one that the guest has made, how the frame did that came last.
    #[inline]
    pub(crate) fn of(&self, slot: SlotIndex) -> Came {
        self.by_slot.get(usize::from(slot.0)).copied().unwrap_or(self.last)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::heading::PortSet;

    #[test]
    fn the_slot_freed_last_comes_first_and_what_comes_is_seen_ahead() {
        let mut free = FreeSlots::all(4, 0);
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
    fn those_that_are_elsewhere_are_counted_until_all_are() {
        let mut free = FreeSlots::all(2, 0);
        let missing: Vec<_> = (0..3).map(|_| (free.missing(), free.pop()).0).collect();
        assert_eq!(missing, [0, 1, 2]);
        free.push(SlotIndex(1));
        assert_eq!((free.missing(), free.peek(0), free.peek(1)), (1, Some(SlotIndex(1)), None));
    }

    #[test]
    fn the_guests_own_slots_are_never_received_into() {
        let mut free = FreeSlots::all(1, 2);
        assert_eq!([free.pop(), free.pop()], [Some(SlotIndex(0)), None]);
        [2, 1].into_iter().for_each(|slot| free.push(SlotIndex(slot)));
        assert_eq!((free.pop(), free.missing()), (None, 1));
        assert_eq!([free.pop_own(), free.pop_own(), free.pop_own()], [Some(SlotIndex(1)), Some(SlotIndex(2)), None]);
    }

    #[test]
    fn what_the_guest_has_made_came_as_the_last_frame_did() {
        let back = PortSet::of([PortIndex(8)]).unwrap();
        let mut came_by = CameBy::of_slots(2, Sides { back, ..Sides::default() });
        let [forth, back] = [7, 8].map(|port| came_by.arriving(PortIndex(port)));
        assert_eq!([forth.heading, back.heading], [Heading::Forth, Heading::Back]);
        came_by.set(SlotIndex(0), forth);
        came_by.set(SlotIndex(1), back);
        assert_eq!([0, 1, 2, 1023].map(|slot| came_by.of(SlotIndex(slot))), [forth, back, back, back]);
    }
}
