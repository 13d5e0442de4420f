//! The worker's tuning: prefetches of what turns to come will touch, and rehearsals that keep the next clients' instances in the caches.
//!
//! Nothing here changes which FWP has a turn when. All of it is off with `tuning = "off"` ([`pinion_mma::tuning`]).

use std::sync::Arc;

use pinion_mma::id::FwpId;
use pinion_mma::tuning::upcoming::{Next, UpcomingInstances};
use pinion_mma::tuning::{self, prefetch};

use super::Worker;
use crate::fwp::{Fwp, TurnReason};

/// How many turns ahead an FWP's record is prefetched, and how many turns ahead all memory that its turn touches.
const FAR_AHEAD: usize = 10;
const NEAR_AHEAD: usize = 3;
/// Between the two distances, the pages of this many FWPs are prefetched together. A prefetch that misses the TLB soon stalls the
/// processor, but several page walks can proceed at once.
const GROUP: usize = 4;
/// State of rehearsals and of prefetching for announced frames.
#[derive(Default)]
pub(super) struct Rehearsals {
    pub(super) upcoming: Arc<UpcomingInstances>,
    rehearsed_ns: u64,
    /// When the worker last had nothing to do.
    idle_ns: u64,
    round: usize,
    /// The next FWP to rehearse, if the instance has several stages.
    at: Option<FwpId>,
    /// The FWP that was announced at the last look.
    expecting: Option<FwpId>,
    /// The FWP that was prefetched then, until the next turn.
    asked: Option<FwpId>,
}

/// Idle time between two rehearsals: about the time of one or two steps of a launcher on the same core.
const REHEARSAL_NS: u64 = 5_000;
/// A thread that polls no more often than this is asleep between polls. A rehearsal would keep nothing in its caches, and each would wake
/// the ticker.
const ASLEEP_NS: u64 = 1_000_000;

impl Worker {
    /// Prefetches the FWP that the gateway announced, while the MMA copies its frame.
    #[inline]
    pub(super) fn prefetch_announced(&mut self) {
        if !tuning::is_full() {
            return;
        }
        let expecting = self.rehearsals.upcoming.expecting();
        if expecting != self.rehearsals.expecting {
            self.rehearsals.expecting = expecting;
            self.rehearsals.asked = expecting;
            let Some(id) = expecting else { return };
            if let Some(Some(fwp)) = self.fwps.get(id.index as usize) {
                self.scheduler.prefetch(id);
                prefetch::all_to_read(fwp);
                fwp.prefetch();
            }
        }
    }

    /// Prefetches what was delivered to the FWP that [`Worker::prefetch_announced`] saw. Done once a notification is there, before it is read.
    #[inline]
    pub(super) fn prefetch_delivered(&self) {
        if let Some(id) = self.rehearsals.asked
            && !self.inputs.is_empty()
            && let Some(Some(fwp)) = self.fwps.get(id.index as usize)
        {
            fwp.prefetch_delivered();
        }
    }

    /// Runs a rehearsal once per [`REHEARSAL_NS`]: an FWP that the next client may get returns to its wait, so that the memory it touches
    /// for that is in the caches. The FWPs take turns. Gives one turn at most, which does not count as work.
    pub(super) fn rehearse(&mut self) {
        if !tuning::is_full() {
            return;
        }
        let Rehearsals { upcoming, rehearsed_ns, idle_ns, round, at, .. } = &mut self.rehearsals;
        let now_ns = self.clock.now_ns();
        if now_ns.saturating_sub(std::mem::replace(idle_ns, now_ns)) > ASLEEP_NS {
            *rehearsed_ns = now_ns;
        }
        if now_ns.saturating_sub(*rehearsed_ns) < REHEARSAL_NS {
            return;
        }
        *rehearsed_ns = now_ns;
        let next = at.take().map(Next::First).or_else(|| {
            *round = round.wrapping_add(1);
            upcoming.look(*round)
        });
        let Some(Next::First(id) | Next::Later(id)) = next else { return };
        let Some(fwp) = self.fwps.get(id.index as usize).and_then(Option::as_deref).filter(|fwp| fwp.id() == id) else {
            return;
        };
        self.rehearsals.at = fwp.next_stage().filter(|_| next == Some(Next::First(id)));
        prefetch::all_to_read(fwp);
        fwp.prefetch();
        if !self.scheduler.claim(id) {
            return;
        }
        let mut now_ns = self.clock.begin();
        self.give_turn(id, TurnReason::Rehearsal, &mut now_ns);
        self.clock.end();
        self.tell_mmas();
    }

    /// Prefetches the memory of the FWPs whose turns come first, one kind of memory at a time for all. This is faster than cache misses one
    /// after the other, even for a single FWP.
    #[inline]
    pub(super) fn prefetch_first(&mut self) {
        if !tuning::is_full() {
            return;
        }
        let asked = self.rehearsals.asked.take();
        let fwps = || self.scheduler.upcoming().filter_map(|index| self.fwps[index as usize].as_deref());
        let first = || fwps().filter(|fwp| Some(fwp.id()) != asked);
        first().take(FAR_AHEAD + 1).for_each(prefetch::all_to_read);
        first().take(NEAR_AHEAD + 1).for_each(|fwp| {
            fwp.prefetch_delivered();
            fwp.prefetch();
        });
    }

    /// Prefetches the memory of FWPs whose turns come soon; `turn` is the number of the turn in this poll. Needed where many FWPs have
    /// little to do each, so that all of their memory has left the caches.
    #[inline]
    pub(super) fn prefetch_upcoming(&self, turn: usize) {
        if !tuning::is_full() {
            return;
        }
        let Self { scheduler, fwps, .. } = self;
        let mut ahead = scheduler.upcoming().skip(NEAR_AHEAD).filter_map(|index| fwps[index as usize].as_deref());
        let Some(near) = ahead.next() else { return };
        near.prefetch_delivered();
        near.prefetch();
        if let Some(far) = ahead.nth(FAR_AHEAD - NEAR_AHEAD - 1) {
            prefetch::all_to_read(far);
        }
        if turn % GROUP == 1 {
            self.prefetch_pages();
        }
    }

    /// Prefetches the pages of some FWPs whose turns come after those that are prefetched as a whole. Not inlined, since it is not used
    /// where few FWPs have turns.
    #[inline(never)]
    pub(super) fn prefetch_pages(&self) {
        let ahead =
            self.scheduler.upcoming().skip(NEAR_AHEAD + 1).filter_map(|index| self.fwps[index as usize].as_deref());
        ahead.take(GROUP).for_each(Fwp::prefetch_pages);
    }

    /// Prefetches the histogram entry for this wait; each length has a cache line of its own.
    #[inline]
    pub(super) fn prefetch_wait(&self, id: FwpId, wait_ns: u64) {
        if !tuning::is_full() {
            return;
        }
        if let Some(fwp) = &self.fwps[id.index as usize] {
            fwp.terms().meter().prefetch_waited(wait_ns);
        }
    }
}
