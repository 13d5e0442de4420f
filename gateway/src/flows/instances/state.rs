//! The state of an instance's slot, and how TCP events of the flow that it is bound to change it.

use pinion_mma::ways::direction::Direction;

use crate::headers::TcpEvent;

/// How long a flow has to be quiet for its instance to end, after its client has closed the connection. Answers to what
/// the other side still sends come within this time, and so do most retransmitted segments. In nanoseconds.
pub(crate) const CLOSED_QUIET_NS: u64 = 1_000_000_000;
/// The same after the client has reset the connection: covers frames on their way through the chain, and reordered
/// segments. In nanoseconds.
pub(crate) const RESET_QUIET_NS: u64 = 100_000_000;

/// What the side that has reset its connection sends from so long after that on is not late: the connection goes on, and it
/// was a stranger who has reset it. In nanoseconds.
pub(crate) const GOES_ON_NS: u64 = 10_000_000;

/// The state of a slot. From `Bound` on, frames go to the instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    Free,
    Ready,
    Bound,
    /// Bound to a flow whose two sides both come here. One of them has closed the connection.
    HalfClosed(Direction),
    /// Bound to a flow whose client has closed its connection; if both sides come here, both have.
    Closed,
    /// Bound to a flow whose connection was reset by this side: its client or, if both sides come here, either.
    Reset(Direction),
}

impl State {
    /// Returns the state of a bound slot after this TCP event, and after which side caused it if both sides come here.
    /// An opening segment changes nothing: it is retransmitted if the answer is late.
    pub(super) fn after(self, milestone: TcpEvent, by: Option<Direction>) -> Self {
        match (milestone, self, by) {
            (TcpEvent::Resets, ..) => Self::Reset(by.unwrap_or(Direction::Forth)),
            (TcpEvent::Closes, Self::Bound, None) => Self::Closed,
            (TcpEvent::Closes, Self::Bound, Some(side)) => Self::HalfClosed(side),
            (TcpEvent::Closes, Self::HalfClosed(first), Some(side)) if side != first => Self::Closed,
            (TcpEvent::Closes | TcpEvent::Opens, ..) => self,
        }
    }

    /// Returns whether frames go to the instance.
    pub(super) fn is_bound(self) -> bool {
        !matches!(self, Self::Free | Self::Ready)
    }

    /// Returns whether the flow that the instance is bound to has ended.
    pub(super) fn is_over(self) -> bool {
        matches!(self, Self::Closed | Self::Reset(_))
    }

    /// Returns how long the instance may go without a frame before it is released.
    pub(super) fn quiet_ns_max(self, timeout_ns: u64) -> u64 {
        match self {
            Self::Closed => CLOSED_QUIET_NS.min(timeout_ns),
            Self::Reset(_) => RESET_QUIET_NS.min(timeout_ns),
            Self::Free | Self::Ready | Self::Bound | Self::HalfClosed(_) => timeout_ns,
        }
    }
}
