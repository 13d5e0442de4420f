//! Who is going to be next: the entry FWPs of the chain instances that new clients will be given first, those that come after these if many
//! clients come at once, and the FWP that has a frame on its way.
//!
//! Written by the gateway when the youngest ready instance of a chain is another than before, when it has nothing else to do, and when it hands over
//! the first frame of a batch; read by workers and MMAs while they have nothing else to do, to have all that these will touch near. A hint: it may be
//! out of date, and whoever follows it checks that the FWP is still there.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use crate::id::FwpId;

/// Chains that are kept in mind; others of the same remainder take each other's place.
const PLACES: usize = 16;
/// Instances after the next one that are kept in mind, of the chain that changed last: as many clients as come in the time for which machines
/// take a core, at one each millisecond. All that their first stages touch is some hundred KiB.
pub const LATER: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct NextUp {
    places: [AtomicU64; PLACES],
    latest: AtomicUsize,
    later: [AtomicU64; LATER],
    /// Who has a frame on its way; on a line of its own, as idle workers read it at each poll.
    expecting: CachePadded<AtomicU64>,
}

impl Default for NextUp {
    fn default() -> Self {
        Self {
            places: [const { AtomicU64::new(NOBODY) }; PLACES],
            latest: AtomicUsize::new(0),
            later: [const { AtomicU64::new(NOBODY) }; LATER],
            expecting: CachePadded::new(AtomicU64::new(NOBODY)),
        }
    }
}

/// No FWP has the highest index there could be.
const NOBODY: u64 = u64::MAX;

/// The entry of an instance that is to be kept near.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Of one that the next client may be given: all of its stages are.
    First(FwpId),
    /// Of one that comes after: only its first stage is.
    Later(FwpId),
}

impl NextUp {
    /// Notes which FWP the next client of a chain, by its number, will meet.
    #[inline]
    pub fn set(&self, chain: u32, entry: Option<FwpId>) {
        let place = chain as usize % PLACES;
        self.places[place].store(entry.map_or(NOBODY, pack), Ordering::Relaxed);
        self.latest.store(place, Ordering::Relaxed);
    }

    /// Notes who comes so many places after the next one, in the chain that changed last.
    #[inline]
    pub fn set_later(&self, place: usize, entry: Option<FwpId>) {
        let (place, entry) = (&self.later[place % LATER], entry.map_or(NOBODY, pack));
        // Those who read it would all lose the line.
        if place.load(Ordering::Relaxed) != entry {
            place.store(entry, Ordering::Relaxed);
        }
    }

    /// The one to look at in a round, if there is one there: in every other round that of the chain that changed last, and in
    /// between one of another chain and one of those that come after.
    #[inline]
    #[must_use]
    pub fn look(&self, round: usize) -> Option<Next> {
        let place = match round % 4 {
            1 => &self.places[round / 4 % PLACES],
            3 => return unpack(self.later[round / 4 % LATER].load(Ordering::Relaxed)).map(Next::Later),
            _ => &self.places[self.latest.load(Ordering::Relaxed) % PLACES],
        };
        unpack(place.load(Ordering::Relaxed)).map(Next::First)
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
    fn all_that_are_next_or_come_later_are_seen_in_turn_and_the_latest_in_every_other_round() {
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
        for place in 0..LATER {
            next_up.set_later(place, Some(id(200 + place as u32)));
        }
        next_up.set_later(2, None);
        let seen: Vec<Option<Next>> = (0..4 * PLACES).map(|round| next_up.look(round)).collect();
        assert!(seen.iter().step_by(2).all(|seen| *seen == Some(Next::First(id(100)))));
        let others: Vec<Next> = seen.iter().skip(1).step_by(4).flatten().copied().collect();
        assert_eq!(others, [0, 1, 2, 4, 100, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|index| Next::First(id(index))));
        let later: Vec<Option<Next>> = seen.iter().skip(3).step_by(4).copied().collect();
        let expected = |place: usize| (place != 2).then(|| Next::Later(id(200 + place as u32)));
        assert_eq!(later, (0..LATER).map(expected).collect::<Vec<_>>());
    }
}
