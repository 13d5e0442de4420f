//! Prefetching while the MMA moves frames.

use std::ops::Range;

use crate::guest::mailbox::Transmission;
use crate::guest::pool::PoolRegion;
use crate::id::FwpId;
use crate::link::Inbound;
use crate::rings::phased;
use crate::rings::spsc::Taking;
use crate::tuning;
use crate::wiring::EndpointTable;

/// Distance, in frames, from the frame being copied to the one that is prefetched.
pub(super) const AHEAD: usize = 24;
/// Prefetch distances in frames or senders, from the one being moved: of an endpoint, of what the endpoint points to,
/// and of what that points to.
const FAR_AHEAD: usize = 16;
const NEAR_AHEAD: usize = 8;
const NEXT_AHEAD: usize = 4;
/// So many are prefetched together. Each FWP's memory is on its own pages, and a prefetch that misses the TLB soon
/// stalls the processor; but it can do several page walks at once.
const GROUP: usize = 4;

/// How far a row of frames or senders has been prefetched.
pub(super) struct Ahead {
    /// The next group is prefetched when so many are done.
    done: usize,
}

/// Positions to prefetch now.
struct Steps {
    endpoints: Range<usize>,
    /// What endpoints point to.
    near: Range<usize>,
    /// What that points to.
    next: Range<usize>,
}

impl Ahead {
    /// Makes the state for a row that begins. For the first group everything is prefetched at once, step by step for
    /// all of it: a new client's frame often comes alone, and its instance's memory was last touched when the instance
    /// was prepared.
    pub(super) fn new() -> Self {
        Self { done: 0 }
    }

    /// Returns what to prefetch when `done` are done.
    #[inline(always)]
    fn steps(&mut self, done: usize) -> Option<Steps> {
        if done < self.done || !tuning::is_full() {
            return None;
        }
        let is_first = self.done == 0;
        self.done = done + GROUP;
        let from = |ahead: usize| if is_first { done } else { done + ahead };
        let steps = |ahead: usize| from(ahead)..done + ahead + GROUP;
        Some(Steps { endpoints: steps(FAR_AHEAD), near: steps(NEAR_AHEAD), next: steps(NEXT_AHEAD) })
    }

    /// Prefetches what the next frames touch, of which `done` are done. If each frame is for another FWP, all of it
    /// comes from memory.
    #[inline(always)]
    pub(super) fn of_frames(&mut self, frames: &Taking<'_, Inbound>, done: usize, table: &EndpointTable) {
        let Some(steps) = self.steps(done) else { return };
        let each = |at: Range<usize>| {
            let mut last = None;
            let inbound = at.map_while(|at| frames.peek(at - done));
            inbound.filter(move |inbound| last.replace(inbound.target) != Some(inbound.target))
        };
        each(steps.endpoints).for_each(|inbound| table.prefetch(inbound.target));
        for inbound in each(steps.near) {
            table.prefetch_inlet(inbound.target);
            inbound.frame.prefetch();
        }
    }

    /// The same for senders.
    #[inline(always)]
    pub(super) fn of_senders(&mut self, senders: &[FwpId], done: usize, table: &EndpointTable) {
        let Some(steps) = self.steps(done) else { return };
        let each = |at: Range<usize>| senders.get(at.start..at.end.min(senders.len())).unwrap_or_default().iter();
        each(steps.endpoints).for_each(|id| table.prefetch(*id));
        each(steps.near).for_each(|id| table.prefetch_output(*id));
        each(steps.next).for_each(|id| table.prefetch_payload(*id));
    }
}

/// Prefetches the first payloads of a row.
#[inline(always)]
pub(super) fn prefetch_payloads(row: &phased::Taking<'_, Transmission>, pool: &PoolRegion) {
    if !tuning::is_full() {
        return;
    }
    for sent in (0..AHEAD).map_while(|ahead| row.peek(ahead)) {
        pool.prefetch(sent.slot, sent.offset);
    }
}

/// Prefetches the payload that comes some frames after the one being copied.
#[inline(always)]
pub(super) fn prefetch_payload(row: &phased::Taking<'_, Transmission>, pool: &PoolRegion) {
    if tuning::is_full()
        && let Some(sent) = row.peek(AHEAD)
    {
        pool.prefetch(sent.slot, sent.offset);
    }
}
