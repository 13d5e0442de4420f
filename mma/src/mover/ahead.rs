//! What the MMA asks for ahead of touching it.

use std::ops::Range;

use crate::id::FwpId;
use crate::link::Inbound;
use crate::mailbox::Transmission;
use crate::phased;
use crate::pool::PoolRegion;
use crate::spsc::Taking;
use crate::wiring::EndpointTable;

/// How many frames ahead of the one being copied memory is asked for.
pub(super) const AHEAD: usize = 24;
/// How many frames or senders ahead of the one being moved an endpoint is asked for, how many ahead what it leads to, and how many ahead what that
/// leads to.
const FAR_AHEAD: usize = 16;
const NEAR_AHEAD: usize = 8;
const NEXT_AHEAD: usize = 4;
/// So many are asked for together: each FWP's memory is on pages of its own, a processor that asks for such a page stops soon if it does not know
/// where that is, and it can look for several at once.
const GROUP: usize = 4;

/// How far it has been asked ahead in a row of frames or senders.
pub(super) struct Ahead {
    /// When these are done, it is asked again.
    done: usize,
}

/// Positions that are to be asked for now.
struct Steps {
    endpoints: Range<usize>,
    /// What endpoints lead to.
    near: Range<usize>,
    /// What that leads to.
    next: Range<usize>,
}

impl Ahead {
    /// Of a row that begins. All that the first ones touch is asked for at once, step by step for all: a new client's frame often comes
    /// alone, and all that is to be touched for it was last touched when its instance was prepared.
    pub(super) fn new() -> Self {
        Self { done: 0 }
    }

    /// Where to ask when so many are done.
    #[inline(always)]
    fn steps(&mut self, done: usize) -> Option<Steps> {
        if done < self.done {
            return None;
        }
        let is_first = self.done == 0;
        self.done = done + GROUP;
        let from = |ahead: usize| if is_first { done } else { done + ahead };
        let steps = |ahead: usize| from(ahead)..done + ahead + GROUP;
        Some(Steps { endpoints: steps(FAR_AHEAD), near: steps(NEAR_AHEAD), next: steps(NEXT_AHEAD) })
    }

    /// Asks for what the frames touch that come soon, of which so many are done. Where each is for another FWP, everything has to be fetched
    /// from afar.
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

/// Asks for the first payloads of a row.
#[inline(always)]
pub(super) fn prefetch_payloads(row: &phased::Taking<'_, Transmission>, pool: &PoolRegion) {
    for sent in (0..AHEAD).map_while(|ahead| row.peek(ahead)) {
        pool.prefetch(sent.slot, sent.offset);
    }
}

/// Asks for the payload that comes some frames after the one being copied.
#[inline(always)]
pub(super) fn prefetch_payload(row: &phased::Taking<'_, Transmission>, pool: &PoolRegion) {
    if let Some(sent) = row.peek(AHEAD) {
        pool.prefetch(sent.slot, sent.offset);
    }
}
