//! The parts of one datagram that have come: [`Parts`]. Finds those that contradict each other.

use core::ops::Range;

use crate::headers::Headers;

/// Most fragments of a datagram: more than the longest datagram has with an MTU of 576, if each is as long as it may be.
const PARTS_MAX: usize = 128;
/// The longest datagram.
const BYTES_MAX: usize = 65_535;

/// A fragment's part of its datagram, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) start: u16,
    end: u16,
    is_last: bool,
}

impl Part {
    /// Reads the part of a fragment with these headers. `None` if no datagram can have it: it is empty, it ends beyond
    /// the longest datagram, or another part follows it that could not begin where it ends.
    pub(super) fn of(headers: &Headers, frame: &[u8]) -> Option<Self> {
        let is_last = !headers.fragment?.more;
        let Range { start, end } = headers.part(frame)?;
        let is_possible = start < end && end <= BYTES_MAX && (is_last || (end - start).is_multiple_of(8));
        is_possible.then_some(Self { start: start as u16, end: end as u16, is_last })
    }

    /// Returns whether it contains the datagram's ports.
    pub(super) fn is_first(self) -> bool {
        self.start == 0
    }
}

/// How a part relates to those that came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// It overlaps none of them.
    New,
    /// It is the same as one of them, as of a frame that came twice.
    Repeated,
    /// It overlaps one of them, or is beyond the datagram's end, or states another end.
    Contradicts,
    /// The datagram has as many parts as can be remembered, and this is one more.
    TooMany,
}

/// The parts that have come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    ranges: [(u16, u16); PARTS_MAX],
    count: u8,
    /// The end of the datagram, once its last part has come.
    end: Option<u16>,
    /// Bytes of all parts together.
    bytes: u32,
}

impl Parts {
    pub(super) const NONE: Self = Self { ranges: [(0, 0); PARTS_MAX], count: 0, end: None, bytes: 0 };

    /// Adds a part, unless it contradicts the others.
    pub(super) fn add(&mut self, part: Part) -> Relation {
        let Part { start, end, is_last } = part;
        let seen = &self.ranges[..usize::from(self.count)];
        if seen.contains(&(start, end)) {
            let is_same = is_last == (self.end == Some(end));
            return if is_same { Relation::Repeated } else { Relation::Contradicts };
        }
        let overlaps = seen.iter().any(|(other, other_end)| start < *other_end && *other < end);
        let is_beyond = match self.end {
            Some(stated) => is_last || end > stated,
            None => is_last && seen.iter().any(|(_, other_end)| *other_end > end),
        };
        if overlaps || is_beyond {
            return Relation::Contradicts;
        }
        if seen.len() == PARTS_MAX {
            return Relation::TooMany;
        }
        self.ranges[usize::from(self.count)] = (start, end);
        self.count += 1;
        self.bytes += u32::from(end - start);
        if is_last {
            self.end = Some(end);
        }
        Relation::New
    }

    /// Returns whether all parts of the datagram have come. As no two overlap, their bytes tell.
    pub(super) fn are_complete(&self) -> bool {
        self.end.is_some_and(|end| u32::from(end) == self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, Parts, Relation};

    fn part(start: u16, end: u16, is_last: bool) -> Part {
        Part { start, end, is_last }
    }

    #[test]
    fn a_datagram_is_complete_when_all_its_bytes_have_come_in_whatever_order() {
        let all = [part(0, 8, false), part(8, 24, false), part(24, 27, true)];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut parts = Parts::NONE;
            for (number, at) in order.into_iter().enumerate() {
                assert!(!parts.are_complete());
                assert_eq!(parts.add(all[at]), Relation::New, "{number} of {order:?}");
                assert_eq!(parts.add(all[at]), Relation::Repeated);
            }
            assert!(parts.are_complete());
        }
    }

    #[test]
    fn parts_that_overlap_or_state_two_ends_contradict_each_other() {
        let mut parts = Parts::NONE;
        assert_eq!(parts.add(part(16, 32, false)), Relation::New);
        for contradiction in [
            part(8, 24, false),
            part(24, 40, false),
            part(16, 24, false),
            part(0, 64, false),
            part(16, 32, true),
            part(8, 16, true),
        ] {
            assert_eq!(parts.add(contradiction), Relation::Contradicts, "{contradiction:?}");
        }
        assert_eq!(parts.add(part(40, 44, true)), Relation::New);
        for contradiction in [part(44, 48, true), part(48, 56, false), part(32, 40, true), part(40, 44, false)] {
            assert_eq!(parts.add(contradiction), Relation::Contradicts, "{contradiction:?}");
        }
    }

    #[test]
    fn a_datagram_has_a_hundred_and_twenty_eight_parts_at_most() {
        let mut parts = Parts::NONE;
        assert!((0..128).all(|at| parts.add(part(8 * at, 8 * at + 8, false)) == Relation::New));
        assert_eq!(parts.add(part(1024, 1032, false)), Relation::TooMany);
        assert_eq!(parts.add(part(1020, 1032, false)), Relation::Contradicts);
        assert_eq!(parts.add(part(0, 8, false)), Relation::Repeated);
    }
}
