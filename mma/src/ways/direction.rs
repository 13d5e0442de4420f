//! Which way a frame goes through its chain: forth, as nearly all do, or back, if the chain has a way back.
//!
//! ```text
//!   frames of a port in `Sides::forth`   --> first stage --> ... --> last stage -->   Forth
//!   frames of a port in `Sides::back`    <-- first stage <-- ... <-- last stage <--   Back
//! ```
//!
//! A frame's direction follows from the port on which it was received. A reply from a stage turns it towards that port.
//! It turns once only, as any further reply leads the same way. So no frame passes a stage more than twice, whatever
//! guests ask for.

use pinion_abi::{RX_BACKWARD, RX_FORWARD, RX_REPLY};

use crate::id::PortIndex;
use crate::ways::Way;

/// A direction through a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// From the first stage to the last.
    Forth = 0,
    /// From the last stage to the first.
    Back = 1,
}

/// A set of the node's ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortSet(u64);

impl PortSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);
    /// All ports that can be in a set.
    pub const ALL: Self = Self(u64::MAX);
    /// Ports from this one on cannot be in a set. A gateway has fewer.
    pub const PORTS_MAX: u16 = u64::BITS as u16;

    /// Makes a set of these ports; none, if one of them is [`PortSet::PORTS_MAX`] or more.
    #[must_use]
    pub fn of(ports: impl IntoIterator<Item = PortIndex>) -> Option<Self> {
        let add = |set: u64, port: PortIndex| Some(set | 1_u64.checked_shl(port.0.into())?);
        ports.into_iter().try_fold(0, add).map(Self)
    }

    /// Returns whether a port is in the set.
    #[must_use]
    #[inline]
    pub fn contains(self, port: PortIndex) -> bool {
        self.0.checked_shr(port.0.into()).unwrap_or(0) & 1 == 1
    }
}

/// On which side of a chain with a way back the node's ports are. Frames received on a port on neither side go forth,
/// and replies to them leave at once. Messages are such frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sides {
    /// Ports whose frames go forth.
    pub forth: PortSet,
    /// Ports whose frames go back.
    pub back: PortSet,
}

impl Sides {
    /// Returns which way frames go that were received on this port.
    #[must_use]
    #[inline]
    pub fn direction_of(self, port: PortIndex) -> Direction {
        if self.back.contains(port) { Direction::Back } else { Direction::Forth }
    }

    /// Returns what a guest is told about a frame that goes this way: `RX_` of [`pinion_abi`]. A frame that goes towards
    /// its port is a reply. Returns 0 for a frame whose port is on neither side.
    #[must_use]
    #[inline]
    pub(crate) fn flags(self, way: Way) -> u8 {
        let (port, direction) = (way.port(), way.direction());
        let [forward, backward, reply] = [RX_FORWARD, RX_BACKWARD, RX_REPLY].map(|flag| flag as u8);
        if self == Self::default() || !(self.forth.contains(port) || self.back.contains(port)) {
            return 0;
        }
        let flag = match direction {
            Direction::Forth => forward,
            Direction::Back => backward,
        };
        if direction == self.direction_of(port) { flag } else { flag | reply }
    }

    /// Returns which way replies go to frames that were received on this port; none, if they leave at once.
    #[must_use]
    #[inline]
    pub(crate) fn direction_of_reply(self, port: PortIndex) -> Option<Direction> {
        match (self.forth.contains(port), self.back.contains(port)) {
            (_, true) => Some(Direction::Forth),
            (true, false) => Some(Direction::Back),
            (false, false) => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn set(ports: &[u16]) -> Option<PortSet> {
        PortSet::of(ports.iter().copied().map(PortIndex))
    }

    #[test]
    fn a_set_has_the_ports_that_it_was_made_of_and_no_others() {
        let ports = set(&[0, 5, 63, 5]).unwrap();
        let had: Vec<u16> = (0..=u16::MAX).filter(|port| ports.contains(PortIndex(*port))).collect();
        assert_eq!(had, [0, 5, 63]);
        assert_eq!(set(&[]), Some(PortSet::EMPTY));
        assert_eq!((set(&[1, PortSet::PORTS_MAX]), set(&[u16::MAX])), (None, None));
    }

    #[test]
    fn frames_go_away_from_their_port_and_replies_towards_it_unless_it_has_no_side() {
        let sides = Sides { forth: set(&[0, 1]).unwrap(), back: set(&[2]).unwrap() };
        let of = |port| (sides.direction_of(PortIndex(port)), sides.direction_of_reply(PortIndex(port)));
        assert_eq!([0, 1].map(of), [(Direction::Forth, Some(Direction::Back)); 2]);
        assert_eq!(of(2), (Direction::Back, Some(Direction::Forth)));
        assert_eq!(of(3), (Direction::Forth, None));
        assert_eq!(Sides::default().direction_of(PortIndex(0)), Direction::Forth);
    }

    #[test]
    fn a_guest_is_told_which_way_a_frame_goes_and_whether_it_is_a_reply() {
        let sides = Sides { forth: set(&[0, 1]).unwrap(), back: set(&[2]).unwrap() };
        let told = |port, direction| u16::from(sides.flags(Way::new(PortIndex(port), direction)));
        assert_eq!(told(1, Direction::Forth), RX_FORWARD);
        assert_eq!(told(1, Direction::Back), RX_BACKWARD | RX_REPLY);
        assert_eq!(told(2, Direction::Back), RX_BACKWARD);
        assert_eq!(told(2, Direction::Forth), RX_FORWARD | RX_REPLY);
        assert_eq!([told(3, Direction::Forth), told(63, Direction::Forth)], [0; 2], "a message");
        assert_eq!(Sides::default().flags(Way::new(PortIndex(0), Direction::Forth)), 0, "a chain without a way back");
    }
}
