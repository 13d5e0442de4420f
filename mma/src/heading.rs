//! Which way a frame goes through its chain: forth, as nearly all do, or back, where a chain has a way back.
//!
//! ```text
//!   frames of a port in `Sides::forth`   --> first stage --> ... --> last stage -->   Forth
//!   frames of a port in `Sides::back`    <-- first stage <-- ... <-- last stage <--   Back
//! ```
//!
//! A frame's heading follows from the port that it came in by. A reply of a stage's turns it, towards that port: once, as any
//! further reply leads the same way. So no frame passes a stage more than twice, whatever guests ask for.

use crate::id::PortIndex;

/// A direction through a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heading {
    /// From the first stage to the last.
    Forth,
    /// From the last stage to the first.
    Back,
}

/// Some of the node's ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortSet(u64);

impl PortSet {
    /// None.
    pub const EMPTY: Self = Self(0);
    /// Ports from this one on can be in no set. DPDK has fewer.
    pub const PORTS_MAX: u16 = u64::BITS as u16;

    /// These ports; none, if one of them is [`PortSet::PORTS_MAX`] or more.
    #[must_use]
    pub fn of(ports: impl IntoIterator<Item = PortIndex>) -> Option<Self> {
        let add = |set: u64, port: PortIndex| Some(set | 1_u64.checked_shl(port.0.into())?);
        ports.into_iter().try_fold(0, add).map(Self)
    }

    /// Whether a port is one of them.
    #[must_use]
    #[inline]
    pub fn contains(self, port: PortIndex) -> bool {
        self.0.checked_shr(port.0.into()).unwrap_or(0) & 1 == 1
    }
}

/// On which side of a chain with a way back the node's ports are. Frames that came by a port on neither side go forth, and replies
/// to them leave at once: messages, which have no side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sides {
    /// Ports whose frames go forth.
    pub forth: PortSet,
    /// Ports whose frames go back.
    pub back: PortSet,
}

impl Sides {
    /// Which way frames go that came in by this port.
    #[must_use]
    #[inline]
    pub fn heading_of(self, port: PortIndex) -> Heading {
        if self.back.contains(port) { Heading::Back } else { Heading::Forth }
    }

    /// Which way replies go to frames that came in by this port; none, if they leave at once.
    #[must_use]
    #[inline]
    pub(crate) fn heading_of_reply(self, port: PortIndex) -> Option<Heading> {
        match (self.forth.contains(port), self.back.contains(port)) {
            (_, true) => Some(Heading::Forth),
            (true, false) => Some(Heading::Back),
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
        let of = |port| (sides.heading_of(PortIndex(port)), sides.heading_of_reply(PortIndex(port)));
        assert_eq!([0, 1].map(of), [(Heading::Forth, Some(Heading::Back)); 2]);
        assert_eq!(of(2), (Heading::Back, Some(Heading::Forth)));
        assert_eq!(of(3), (Heading::Forth, None));
        assert_eq!(Sides::default().heading_of(PortIndex(0)), Heading::Forth);
    }
}
