//! What the MMA asks for ahead of touching it.

use crate::id::FwpId;
use crate::link::Inbound;
use crate::mailbox::Transmission;
use crate::phased;
use crate::pool::PoolRegion;
use crate::spsc::Taking;
use crate::wiring::EndpointTable;

/// How many frames ahead of the one being copied memory is asked for.
pub(super) const AHEAD: usize = 24;
/// How many FWPs ahead of the one whose frames are moved its endpoint is asked for, and how many ahead all else of it.
pub(super) const FAR_AHEAD: usize = 16;
pub(super) const NEAR_AHEAD: usize = 8;

/// Asks for what frames touch that come soon and are not for this FWP. Where each is for another, everything has to be fetched
/// from afar.
#[inline(always)]
pub(super) fn prefetch_others(frames: &Taking<'_, Inbound>, target: FwpId, table: &EndpointTable) {
    let others = |ahead: usize| frames.peek(ahead).filter(|inbound| inbound.target != target);
    if let Some(far) = others(FAR_AHEAD) {
        table.prefetch(far.target);
    }
    if let Some(near) = others(NEAR_AHEAD) {
        table.prefetch_inlet(near.target);
        near.frame.prefetch();
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
