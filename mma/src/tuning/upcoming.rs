//! Upcoming instances: the entry FWPs of the chain instances that the next new clients will get, of those after them in
//! case many clients come at once, and the FWP that has a frame on its way.
//!
//! The gateway writes it when the youngest ready instance of a chain changes, when it is idle, and when it hands over
//! the first frame of a batch. Workers and MMAs read it while they are idle, to prefetch what these FWPs will touch. It
//! is a hint: it may be out of date, so a reader checks that the FWP still exists.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use crate::id::FwpId;

/// Number of entries for chains. Chains with the same remainder share an entry.
const PLACES: usize = 16;
/// Number of instances after the next one that are kept, of the chain that changed last. It is enough for one client
/// per millisecond during the time for which the machine takes a core away. What their first stages touch is some
/// hundred KiB in total.
pub const LATER: usize = 16;

/// The upcoming instances; see the module.
#[derive(Debug)]
pub struct UpcomingInstances {
    places: [AtomicU64; PLACES],
    latest: AtomicUsize,
    later: [AtomicU64; LATER],
    /// The FWP that has a frame on its way; on its own cache line, as idle workers read it at each poll.
    expecting: CachePadded<AtomicU64>,
}

impl Default for UpcomingInstances {
    fn default() -> Self {
        Self {
            places: [const { AtomicU64::new(NO_FWP) }; PLACES],
            latest: AtomicUsize::new(0),
            later: [const { AtomicU64::new(NO_FWP) }; LATER],
            expecting: CachePadded::new(AtomicU64::new(NO_FWP)),
        }
    }
}

/// Stands for none: no FWP has the highest index.
const NO_FWP: u64 = u64::MAX;

/// The entry FWP of an instance to prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Of the instance that the next client may get: all of its stages are prefetched.
    First(FwpId),
    /// Of a later instance: only its first stage is prefetched.
    Later(FwpId),
}

impl UpcomingInstances {
    /// Sets the entry FWP that the next client of a chain, by the chain's number, will get.
    #[inline]
    pub fn set(&self, chain: u32, entry: Option<FwpId>) {
        let place = chain as usize % PLACES;
        self.places[place].store(entry.map_or(NO_FWP, pack), Ordering::Relaxed);
        self.latest.store(place, Ordering::Relaxed);
    }

    /// Sets the entry FWP of the instance `place` positions after the next one, in the chain that changed last.
    #[inline]
    pub fn set_later(&self, place: usize, entry: Option<FwpId>) {
        let (place, entry) = (&self.later[place % LATER], entry.map_or(NO_FWP, pack));
        // An unchanged value is not stored, as each store takes the line from all readers.
        if place.load(Ordering::Relaxed) != entry {
            place.store(entry, Ordering::Relaxed);
        }
    }

    /// Returns the entry FWP to prefetch in a round, if there is one. Every other round is for the chain that changed
    /// last; the rounds between alternate between another chain and the later instances.
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

    /// Announces that a frame is on its way to an FWP.
    #[inline]
    pub fn expect(&self, id: FwpId) {
        self.expecting.store(pack(id), Ordering::Relaxed);
    }

    /// Returns the FWP that was last announced to have a frame on its way.
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
    (packed != NO_FWP).then_some(FwpId { index: packed as u32, generation: (packed >> 32) as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_upcoming_instances_are_returned_in_turn_and_the_latest_chain_in_every_other_round() {
        let upcoming = UpcomingInstances::default();
        let id = |index| FwpId { index, generation: 7 };
        for chain in 0..PLACES as u32 {
            upcoming.set(chain, Some(id(chain)));
        }
        upcoming.set(3, None);
        upcoming.set(5 + PLACES as u32, Some(id(100)));
        assert_eq!(upcoming.expecting(), None);
        upcoming.expect(id(9));
        assert_eq!(upcoming.expecting(), Some(id(9)));
        for place in 0..LATER {
            upcoming.set_later(place, Some(id(200 + place as u32)));
        }
        upcoming.set_later(2, None);
        let seen: Vec<Option<Next>> = (0..4 * PLACES).map(|round| upcoming.look(round)).collect();
        assert!(seen.iter().step_by(2).all(|seen| *seen == Some(Next::First(id(100)))));
        let others: Vec<Next> = seen.iter().skip(1).step_by(4).flatten().copied().collect();
        assert_eq!(others, [0, 1, 2, 4, 100, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|index| Next::First(id(index))));
        let later: Vec<Option<Next>> = seen.iter().skip(3).step_by(4).copied().collect();
        let expected = |place: usize| (place != 2).then(|| Next::Later(id(200 + place as u32)));
        assert_eq!(later, (0..LATER).map(expected).collect::<Vec<_>>());
    }
}
