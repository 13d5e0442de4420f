//! How and when a frame came into the node: the way by which it came, and the time of its arrival.
//!
//! Both are the host's own records, kept beside each slot. A guest is shown them, and names a way only for frames that
//! it makes itself; the mailbox checks that the FWP has received a frame by that way.
//!
//! ```text
//!   IngressInfo   | arrival: 23 bits, units of 1,024 ns | way: port, 6 bits | backwards, 1 bit |
//! ```

pub mod direction;

use pinion_abi::WAYS_MAX;

use crate::id::PortIndex;
use crate::ways::direction::{Direction, PortSet};

const WAY_BITS: u32 = 7;
const WAY_MASK: u32 = (1 << WAY_BITS) - 1;
/// Such a number of ports fits, and a set of ports holds them.
const _: () = assert!(WAYS_MAX as u32 == 1 << WAY_BITS && 2 * PortSet::PORTS_MAX == WAYS_MAX);

/// The way by which a frame came: the port on which it was received, and its direction through the chain. In a chain
/// without a way back all frames go forth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way(u8);

impl Way {
    /// Makes the way of frames that were received on this port and go in this direction. A gateway has fewer than
    /// [`PortSet::PORTS_MAX`] ports.
    #[must_use]
    #[inline]
    pub fn new(port: PortIndex, direction: Direction) -> Self {
        debug_assert!(port.0 < PortSet::PORTS_MAX, "no gateway has a port {}", port.0);
        Self::of_number(port.0 << 1 | direction as u16)
    }

    /// Returns the way of a number, of which only the lowest bits count.
    #[inline(always)]
    pub(crate) fn of_number(number: u16) -> Self {
        Self(number as u8 & WAY_MASK as u8)
    }

    /// Returns the number by which guests know it.
    #[must_use]
    #[inline(always)]
    pub fn number(self) -> u16 {
        self.0.into()
    }

    /// Returns the port.
    #[must_use]
    #[inline(always)]
    pub fn port(self) -> PortIndex {
        PortIndex(u16::from(self.0 >> 1))
    }

    /// Returns the direction.
    #[must_use]
    #[inline(always)]
    pub fn direction(self) -> Direction {
        if self.0 & 1 == 0 { Direction::Forth } else { Direction::Back }
    }
}

/// A set of ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct WaySet([u64; 2]);

impl WaySet {
    #[inline(always)]
    pub(crate) fn add(&mut self, way: Way) {
        self.0[usize::from(way.0 >> 6) & 1] |= 1 << (way.0 & 63);
    }

    /// Returns whether a guest's number is that of a way in the set.
    #[inline(always)]
    pub(crate) fn has(&self, number: u16) -> bool {
        self.0.get(usize::from(number >> 6)).is_some_and(|ways| ways >> (number & 63) & 1 == 1)
    }
}

/// When a frame came, by the process's clock: the lowest bits of a count of units. They tell times apart that are less
/// than 8 s ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival(u32);

impl Arrival {
    const BITS: u32 = 23;
    const MASK: u32 = (1 << Self::BITS) - 1;
    /// The unit is 2^10 ns.
    const UNIT_SHIFT: u32 = 10;
    /// A stamp may be so many units later than the time that it is compared with, half a second: other threads read that.
    const AHEAD_MAX: u32 = 1 << 19;
    /// No time: the slot has held no frame, or its frame was made.
    pub(crate) const NONE: Self = Self(0);

    /// Makes the stamp of a frame that comes now.
    #[must_use]
    #[inline(always)]
    pub fn at(now_ns: u64) -> Self {
        Self((now_ns >> Self::UNIT_SHIFT) as u32 & Self::MASK)
    }

    /// Returns the time of arrival in nanoseconds, which is `now_ns` or earlier. A frame that came more than 8 s ago
    /// seems to have come later than it did.
    #[must_use]
    #[inline]
    pub fn before(self, now_ns: u64) -> u64 {
        let now_units = now_ns >> Self::UNIT_SHIFT;
        let age = (now_units as u32).wrapping_sub(self.0) & Self::MASK;
        let is_ahead = age > Self::MASK - Self::AHEAD_MAX;
        now_units.saturating_sub(if is_ahead { 0 } else { age.into() }) << Self::UNIT_SHIFT
    }
}

/// How and when a frame came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngressInfo(u32);

impl IngressInfo {
    /// The number of bits that it takes.
    pub(crate) const BITS: u32 = WAY_BITS + Arrival::BITS;
    /// That of a slot which has held no frame.
    pub(crate) const NONE: Self = Self(0);

    #[inline(always)]
    pub(crate) fn new(way: Way, arrived: Arrival) -> Self {
        Self(u32::from(way.0) | arrived.0 << WAY_BITS)
    }

    #[inline(always)]
    pub(crate) fn way(self) -> Way {
        Way((self.0 & WAY_MASK) as u8)
    }

    #[inline(always)]
    pub(crate) fn arrived(self) -> Arrival {
        Arrival(self.0 >> WAY_BITS)
    }

    /// Returns the same of a frame that goes in this direction from here on.
    #[inline(always)]
    pub(crate) fn going(self, direction: Direction) -> Self {
        Self(self.0 & !1 | direction as u32)
    }

    /// Returns the same of a frame that comes now.
    #[inline(always)]
    pub(crate) fn arriving(self, arrived: Arrival) -> Self {
        Self::new(self.way(), arrived)
    }

    /// Returns it as a number of [`Self::BITS`] bits.
    #[inline(always)]
    pub(crate) fn to_bits(self) -> u64 {
        self.0.into()
    }

    #[inline(always)]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits as u32 & ((1 << Self::BITS) - 1))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn way(port: u16, direction: Direction) -> Way {
        Way::new(PortIndex(port), direction)
    }

    #[test]
    fn each_port_and_direction_is_another_way() {
        let ports = (0..PortSet::PORTS_MAX).flat_map(|port| [Direction::Forth, Direction::Back].map(|to| (port, to)));
        for (number, (port, direction)) in ports.enumerate() {
            let way = way(port, direction);
            assert_eq!((way.number(), way.port(), way.direction()), (number as u16, PortIndex(port), direction));
            assert_eq!(Way::of_number(way.number()), way);
        }
    }

    #[test]
    fn a_set_has_the_ways_that_were_added_and_no_other_number() {
        let mut ways = WaySet::default();
        let added = [0, 63, 64, 127];
        added.into_iter().for_each(|number| ways.add(Way::of_number(number)));
        let had: Vec<u16> = (0..=u16::MAX).filter(|number| ways.has(*number)).collect();
        assert_eq!(had, added);
    }

    proptest! {
        #[test]
        fn a_frames_arrival_is_known_to_a_unit_for_eight_seconds(now_ns in 0..u64::MAX / 2, age_ns in 0..8_000_000_000_u64) {
            let came_ns = now_ns.saturating_sub(age_ns);
            let shown_ns = Arrival::at(came_ns).before(now_ns);
            prop_assert!(shown_ns <= came_ns && came_ns - shown_ns < 1 << 10);
        }

        #[test]
        fn a_frame_never_seems_to_come_later_than_now(now_ns in 0..u64::MAX / 2, came_ns in 0..u64::MAX / 2) {
            prop_assert!(Arrival::at(came_ns).before(now_ns) <= now_ns);
        }

        #[test]
        fn a_stamp_a_little_ahead_of_a_time_that_another_thread_has_read_is_that_time(
            now_ns in 0..u64::MAX / 2, ahead_ns in 0..500_000_000_u64,
        ) {
            prop_assert_eq!(Arrival::at(now_ns + ahead_ns).before(now_ns), now_ns >> 10 << 10);
        }

        #[test]
        fn a_record_keeps_way_and_arrival(number in 0..WAYS_MAX, came_ns in any::<u64>()) {
            let (way, arrived) = (Way::of_number(number), Arrival::at(came_ns));
            let came = IngressInfo::from_bits(IngressInfo::new(way, arrived).to_bits());
            prop_assert_eq!((came.way(), came.arrived()), (way, arrived));
            let turned = came.going(Direction::Back);
            prop_assert_eq!((turned.way().port(), turned.way().direction()), (way.port(), Direction::Back));
            prop_assert_eq!(turned.arrived(), arrived);
        }
    }
}
