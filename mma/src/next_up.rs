//! Who is going to be next: the entry FWPs of the chain instances that new clients will be given first, and the FWP that has a frame on its
//! way.
//!
//! Written by the gateway when the youngest ready instance of a chain is another than before, and when it hands over the first frame of a batch; read
//! by workers and MMAs while they have nothing else to do, to have all that these will touch near. A hint: it may be out of date, and
//! whoever follows it checks that the FWP is still there.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use crate::id::FwpId;

/// Chains that are kept in mind; others of the same remainder take each other's place.
const PLACES: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct NextUp {
    places: [AtomicU64; PLACES],
    latest: AtomicUsize,
    /// Who has a frame on its way; on a line of its own, as idle workers read it at each poll.
    expecting: CachePadded<AtomicU64>,
}

impl Default for NextUp {
    fn default() -> Self {
        Self {
            places: [const { AtomicU64::new(NOBODY) }; PLACES],
            latest: AtomicUsize::new(0),
            expecting: CachePadded::new(AtomicU64::new(NOBODY)),
        }
    }
}

/// No FWP has the highest index there could be.
const NOBODY: u64 = u64::MAX;

impl NextUp {
    /// Notes which FWP the next client of a chain, by its number, will meet.
    #[inline]
    pub fn set(&self, chain: u32, entry: Option<FwpId>) {
        let place = chain as usize % PLACES;
        self.places[place].store(entry.map_or(NOBODY, pack), Ordering::Relaxed);
        self.latest.store(place, Ordering::Relaxed);
    }

    /// The one to look at in a round, if there is one there: in every other round that of the chain that changed last.
    #[inline]
    #[must_use]
    pub fn look(&self, round: usize) -> Option<FwpId> {
        let place = if round.is_multiple_of(2) { self.latest.load(Ordering::Relaxed) } else { round / 2 };
        unpack(self.places[place % PLACES].load(Ordering::Relaxed))
    }

    /// Notes that a frame is on its way to an FWP.
    #[inline]
    pub fn expect(&self, id: FwpId) {
        self.expecting.store(pack(id), Ordering::Relaxed);
    }

    /// Who was last said to have a frame on its way.
    #[inline]
    #[must_use]
    pub fn expecting(&self) -> Option<FwpId> {
        unpack(self.expecting.load(Ordering::Relaxed))
    }
}

#[inline]
fn pack(id: FwpId) -> u64 {
    u64::from(id.generation) << 32 | u64::from(id.index)
}

#[inline]
fn unpack(packed: u64) -> Option<FwpId> {
    (packed != NOBODY).then_some(FwpId { index: packed as u32, generation: (packed >> 32) as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_are_next_are_seen_in_turn_and_the_latest_in_every_other_round() {
        let next_up = NextUp::default();
        let id = |index| FwpId { index, generation: 7 };
        for chain in 0..PLACES as u32 {
            next_up.set(chain, Some(id(chain)));
        }
        next_up.set(3, None);
        next_up.set(5 + PLACES as u32, Some(id(100)));
        assert_eq!(next_up.expecting(), None);
        next_up.expect(id(9));
        assert_eq!(next_up.expecting(), Some(id(9)));
        let seen: Vec<Option<FwpId>> = (0..2 * PLACES).map(|round| next_up.look(round)).collect();
        assert!(seen.iter().step_by(2).all(|seen| *seen == Some(id(100))));
        let others: Vec<u32> = seen.iter().skip(1).step_by(2).flatten().map(|id| id.index).collect();
        assert_eq!(others, [0, 1, 2, 4, 100, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    }
}
