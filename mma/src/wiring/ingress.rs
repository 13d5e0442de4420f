//! How and when the frame in each slot of a pool came.

use crate::guest::mailbox::Transmission;
use crate::id::{PortIndex, SlotIndex};
use crate::ways::direction::Sides;
use crate::ways::{Arrival, IngressInfo, Way};

/// How and when the frame in each slot came. This is the host's own record, so a guest cannot choose the way out of a
/// frame that it received.
#[derive(Debug)]
pub(crate) struct SlotIngress {
    by_slot: Box<[IngressInfo]>,
    /// Which way frames go, by the port on which they were received.
    sides: Sides,
}

impl SlotIngress {
    /// Makes a record for so many slots, none of which has held a frame.
    pub(crate) fn of_slots(lent: u16, sides: Sides) -> Self {
        Self { by_slot: vec![IngressInfo::NONE; lent.into()].into(), sides }
    }

    /// Returns the record of a frame that was just received on a port.
    #[inline]
    pub(crate) fn arriving(&self, port: PortIndex, arrived: Arrival) -> IngressInfo {
        IngressInfo::new(Way::new(port, self.sides.direction_of(port)), arrived)
    }

    /// Returns the flags that tell the guest of a frame's way.
    #[inline]
    pub(crate) fn flags(&self, came: IngressInfo) -> u8 {
        self.sides.flags(came.way())
    }

    /// Returns the address of a slot's record.
    #[inline]
    pub(crate) fn place(&self, slot: SlotIndex) -> *const IngressInfo {
        self.by_slot.as_ptr().wrapping_add(usize::from(slot.0))
    }

    #[inline]
    pub(crate) fn set(&mut self, slot: SlotIndex, came: IngressInfo) {
        self.by_slot[usize::from(slot.0)] = came;
    }

    /// Returns how the frame came that is being sent. A frame in one of the guest's own slots, which the guest has made,
    /// has the way that the guest names, and has not arrived.
    #[inline]
    pub(crate) fn of(&self, sent: &Transmission) -> IngressInfo {
        let made = IngressInfo::new(sent.way, Arrival::NONE);
        self.by_slot.get(usize::from(sent.slot.0)).copied().unwrap_or(made)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::guest::mailbox::TxTarget;
    use crate::ways::direction::{Direction, PortSet};

    #[test]
    fn a_frame_that_the_guest_made_has_the_way_that_it_names_and_a_received_one_the_hosts_record() {
        let back = PortSet::of([PortIndex(8)]).unwrap();
        let mut came_by = SlotIngress::of_slots(2, Sides { back, ..Sides::default() });
        let [forth, back] = [7, 8].map(|port| came_by.arriving(PortIndex(port), Arrival::at(1 << 20)));
        assert_eq!([forth, back].map(|came| came.way().direction()), [Direction::Forth, Direction::Back]);
        came_by.set(SlotIndex(0), forth);
        came_by.set(SlotIndex(1), back);
        let named = Way::new(PortIndex(9), Direction::Back);
        let of = |slot| {
            came_by.of(&Transmission { slot: SlotIndex(slot), offset: 0, len: 1, way: named, to: TxTarget::Reply })
        };
        let made = IngressInfo::new(named, Arrival::NONE);
        assert_eq!([0, 1, 2, 1023].map(of), [forth, back, made, made]);
    }
}
