//! Which bytes of a datagram have come.

use crate::drops::DropReason;
use crate::headers::Extent;

/// The most ranges that are kept account of. In order, or in reverse, fragments make up one.
const RANGES_MAX: usize = 6;

/// The bytes of a datagram that have come, as ranges with gaps between them.
#[derive(Clone, Copy)]
pub(super) struct Ranges {
    /// In order; first byte, and the one after the last.
    ranges: [(u16, u16); RANGES_MAX],
    /// Where the datagram ends; 0 if its last fragment has not come.
    end: u16,
    used: u8,
}

impl Ranges {
    /// Nothing has come.
    pub(super) const NONE: Self = Self { ranges: [(0, 0); RANGES_MAX], end: 0, used: 0 };

    /// Adds what a fragment has.
    ///
    /// # Errors
    /// Why it can't be of the same datagram as what came before, or why there is no room for it.
    pub(super) fn add(&mut self, Extent { start, end, is_last }: Extent) -> Result<(), DropReason> {
        let used = usize::from(self.used);
        let ranges = &self.ranges[..used];
        // How many lie before it.
        let before = ranges.iter().take_while(|(_, range_end)| *range_end <= start).count();
        if ranges.get(before).is_some_and(|(range_start, _)| *range_start < end) {
            return Err(DropReason::OverlappingFragment);
        }
        let ends_too_early = is_last && (self.end != 0 || ranges.last().is_some_and(|(_, last)| *last > end));
        if ends_too_early || self.end != 0 && end > self.end {
            return Err(DropReason::FragmentEnd);
        }
        let touches_lower = before > 0 && ranges[before - 1].1 == start;
        let touches_upper = before < used && ranges[before].0 == end;
        match (touches_lower, touches_upper) {
            (true, true) => {
                self.ranges[before - 1].1 = self.ranges[before].1;
                self.ranges.copy_within(before + 1..used, before);
                self.used -= 1;
            }
            (true, false) => self.ranges[before - 1].1 = end,
            (false, true) => self.ranges[before].0 = start,
            (false, false) if used == RANGES_MAX => return Err(DropReason::ScatteredFragments),
            (false, false) => {
                self.ranges.copy_within(before..used, before + 1);
                self.ranges[before] = (start, end);
                self.used += 1;
            }
        }
        if is_last {
            self.end = end;
        }
        Ok(())
    }

    /// Returns whether all bytes of the datagram have come.
    pub(super) fn is_complete(&self) -> bool {
        self.end != 0 && self.used == 1 && self.ranges[0] == (0, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(start: u16, end: u16, is_last: bool) -> Extent {
        Extent { start, end, is_last }
    }

    #[test]
    fn what_ends_before_bytes_that_came_or_comes_after_the_end_is_no_part_of_the_datagram() {
        let mut ranges = Ranges::NONE;
        ranges.add(extent(0, 8, false)).unwrap();
        ranges.add(extent(32, 40, false)).unwrap();
        assert_eq!(ranges.add(extent(16, 20, true)), Err(DropReason::FragmentEnd));
        let mut ranges = Ranges::NONE;
        ranges.add(extent(16, 20, true)).unwrap();
        assert_eq!(ranges.add(extent(24, 32, false)), Err(DropReason::FragmentEnd));
        assert_eq!(ranges.add(extent(0, 4, true)), Err(DropReason::FragmentEnd), "a second end");
        assert_eq!(ranges.add(extent(16, 20, true)), Err(DropReason::OverlappingFragment));
    }

    #[test]
    fn more_gaps_than_there_is_room_for_are_refused_and_closed_ones_do_not_count() {
        let mut ranges = Ranges::NONE;
        for number in 0..RANGES_MAX as u16 {
            ranges.add(extent(number * 32, number * 32 + 8, false)).unwrap();
        }
        assert_eq!(ranges.add(extent(1000, 1008, false)), Err(DropReason::ScatteredFragments));
        ranges.add(extent(8, 32, false)).unwrap();
        ranges.add(extent(1000, 1008, true)).unwrap();
        assert!(!ranges.is_complete());
    }

    proptest! {
        #[test]
        fn a_datagram_is_complete_once_each_of_its_bytes_has_come_and_none_comes_twice(
            pieces in prop::collection::vec((0_u16..12, 1_u16..4, any::<bool>()), 1..24),
        ) {
            let (mut ranges, mut seen, mut end) = (Ranges::NONE, [false; 16], None);
            for (start, len, is_last) in pieces {
                let bytes = usize::from(start)..usize::from(start + len);
                let overlaps = seen[bytes.clone()].contains(&true);
                let last_seen = seen.iter().rposition(|seen| *seen).map_or(0, |at| at + 1);
                let is_beyond = is_last && (end.is_some() || last_seen > bytes.end)
                    || end.is_some_and(|end| bytes.end > end);
                let gaps = (0..16).filter(|at| seen[*at] && (*at == 15 || !seen[*at + 1])).count();
                let result = ranges.add(extent(start * 8, (start + len) * 8, is_last));
                match result {
                    Err(DropReason::OverlappingFragment) => prop_assert!(overlaps),
                    Err(DropReason::FragmentEnd) => prop_assert!(!overlaps && is_beyond),
                    Err(DropReason::ScatteredFragments) => prop_assert_eq!(gaps, RANGES_MAX),
                    other => {
                        prop_assert_eq!(other, Ok(()));
                        prop_assert!(!overlaps && !is_beyond);
                        seen[bytes.clone()].fill(true);
                        end = end.or(is_last.then_some(bytes.end));
                    }
                }
                let is_complete = end.is_some_and(|end| seen[..end].iter().all(|seen| *seen));
                prop_assert_eq!(ranges.is_complete(), is_complete);
            }
        }
    }
}
