//! What the node knows of the TCP connection of an outbound flow.
//!
//! Anyone can send segments in the far end's name. So what these end counts only if its sequence number is near the one that
//! the function has acknowledged last (RFC 5961, section 3.2), and a reset only until the function goes on (RFC 7857, section
//! 2.2).

use crate::headers::{Segment, TcpEvent};

/// How far a sequence number may be from what the function has acknowledged last: the largest window without scaling.
const NEAR: u32 = 1 << 16;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Connection {
    is_closed_here: bool,
    is_closed_there: bool,
    is_reset_here: bool,
    is_reset_there: bool,
    said: Said,
}

/// What the function has said of its connection's sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Said {
    #[default]
    Nothing,
    /// It asks for a connection, and expects this number to be acknowledged.
    Opens { expected: u32 },
    /// It has acknowledged all up to this number.
    Acknowledged(u32),
}

impl Connection {
    /// Returns whether both sides have closed it, or either has reset it.
    pub(super) fn is_over(self) -> bool {
        self.is_reset_here || self.is_reset_there || self.is_closed_here && self.is_closed_there
    }

    /// Notes a segment of the function's.
    pub(super) fn note_near(&mut self, event: Option<TcpEvent>, segment: Option<Segment>) {
        match event {
            // Another connection by the same ports, or again the same.
            Some(TcpEvent::Opens) => *self = Self::default(),
            Some(TcpEvent::Resets) => self.is_reset_here = true,
            Some(TcpEvent::Closes) => (self.is_closed_here, self.is_reset_there) = (true, false),
            None => self.is_reset_there = false,
        }
        match (event, segment) {
            (Some(TcpEvent::Opens), Some(Segment { sequence, .. })) => {
                self.said = Said::Opens { expected: sequence.wrapping_add(1) };
            }
            // A reset may have any.
            (Some(TcpEvent::Resets), _) => {}
            (_, Some(Segment { acknowledged: Some(number), .. })) => self.said = Said::Acknowledged(number),
            _ => {}
        }
    }

    /// Notes a segment with an event that has come in the far end's name.
    pub(super) fn note_far(&mut self, event: TcpEvent, segment: Option<Segment>) {
        let Some(Segment { sequence, acknowledged }) = segment else { return };
        match (event, self.said) {
            (TcpEvent::Resets, Said::Opens { expected }) => self.is_reset_there |= acknowledged == Some(expected),
            (TcpEvent::Resets, Said::Acknowledged(number)) => self.is_reset_there |= is_near(sequence, number),
            (TcpEvent::Closes, Said::Acknowledged(number)) => self.is_closed_there |= is_near(sequence, number),
            _ => {}
        }
    }
}

fn is_near(sequence: u32, number: u32) -> bool {
    sequence.wrapping_sub(number).wrapping_add(NEAR) <= 2 * NEAR
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(sequence: u32, acknowledged: u32) -> Option<Segment> {
        Some(Segment { sequence, acknowledged: Some(acknowledged) })
    }

    /// A connection that both sides have opened: the function has acknowledged all up to this number.
    fn opened(acknowledged: u32) -> Connection {
        let mut connection = Connection::default();
        connection.note_near(Some(TcpEvent::Opens), Some(Segment { sequence: 700, acknowledged: None }));
        connection.note_near(None, segment(701, acknowledged));
        connection
    }

    fn is_reset_by(mut connection: Connection, reset: Option<Segment>) -> bool {
        connection.note_far(TcpEvent::Resets, reset);
        connection.is_over()
    }

    #[test]
    fn a_reset_counts_only_if_its_sequence_number_is_near_what_was_acknowledged() {
        for number in [5000, 0, u32::MAX, NEAR, u32::MAX - NEAR] {
            for near in [0, 1, NEAR, NEAR.wrapping_neg(), u32::MAX] {
                assert!(is_reset_by(opened(number), segment(number.wrapping_add(near), 0)), "{number} {near}");
            }
            for far in [NEAR + 1, 1 << 31, (NEAR + 1).wrapping_neg()] {
                assert!(!is_reset_by(opened(number), segment(number.wrapping_add(far), 0)), "{number} {far}");
            }
        }
        assert!(!is_reset_by(opened(5000), None) && !is_reset_by(Connection::default(), segment(0, 0)));
    }

    #[test]
    fn a_connection_that_is_asked_for_is_refused_only_by_what_acknowledges_that() {
        let mut asked = Connection::default();
        asked.note_near(Some(TcpEvent::Opens), Some(Segment { sequence: u32::MAX, acknowledged: None }));
        assert!(is_reset_by(asked, segment(0, 0)));
        assert!(
            !is_reset_by(asked, segment(0, 1))
                && !is_reset_by(asked, Some(Segment { sequence: 0, acknowledged: None }))
        );
    }

    #[test]
    fn a_reset_is_forgotten_if_the_function_goes_on_and_its_own_is_not() {
        for event in [None, Some(TcpEvent::Closes)] {
            let mut connection = opened(5000);
            connection.note_far(TcpEvent::Resets, segment(5000, 0));
            assert!(connection.is_over());
            connection.note_near(event, segment(702, 5000));
            assert!(!connection.is_over());
            connection.note_near(Some(TcpEvent::Resets), segment(702, 0));
            connection.note_near(event, segment(702, 5000));
            assert!(connection.is_over());
        }
    }

    #[test]
    fn it_is_closed_when_both_sides_have_closed_it_the_far_one_near_what_was_acknowledged() {
        for (sequence, is_over) in [(5000, true), (5000 + 2 * NEAR, false)] {
            let mut connection = opened(5000);
            connection.note_far(TcpEvent::Closes, segment(sequence, 701));
            connection.note_near(Some(TcpEvent::Closes), segment(701, 5001));
            assert_eq!(connection.is_over(), is_over, "{sequence}");
        }
        let mut again = opened(5000);
        again.note_near(Some(TcpEvent::Resets), segment(701, 0));
        again.note_near(Some(TcpEvent::Opens), Some(Segment { sequence: 9, acknowledged: None }));
        assert!(!again.is_over(), "another connection by the same ports");
    }
}
