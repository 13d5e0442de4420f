//! Makes the two sides of an FWP: the worker's mailbox and the MMA's endpoint, joined by two rings.
#![allow(unsafe_code)] // Hands guest memory to the two modules that touch it.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::accounts::copying::CopyShare;
use crate::accounts::counters::FwpCounters;
use crate::guest::mailbox::{Mailbox, MailboxParts};
use crate::guest::pool::{PoolLayout, PoolRegion};
use crate::id::{FwpId, WorkerIndex};
use crate::rings::phased;
use crate::wiring::{Endpoint, EndpointParts, Wiring};

/// Makes the worker's and the MMA's side of a new FWP whose linear memory starts at `memory`. `worker` is the index by
/// which its MMA knows the worker; `share`, on whose account the MMA moves what it sends.
///
/// # Safety
/// * `layout` was checked against this memory. Pages that it takes for provided are.
/// * The memory neither moves nor is unmapped until both sides are dropped. When detached, the MMA's side comes back by
///   [`crate::mover::MmaEvent::Detached`]: from then on the MMA no longer uses the memory.
/// * The mailbox is used only while the guest is not running.
#[must_use]
pub unsafe fn connect(
    id: FwpId,
    memory: NonNull<u8>,
    layout: &PoolLayout,
    worker: WorkerIndex,
    share: CopyShare,
    wiring: Wiring,
) -> (Mailbox, Box<Endpoint>) {
    // Each slot is in each of these rings at most once.
    let slot_count = layout.header().slot_count;
    let (deliver_tx, deliver_rx) = phased::ring(slot_count as usize);
    let (transmit_tx, transmit_rx) = phased::ring(slot_count as usize);
    let counters = Arc::new(FwpCounters::default());
    let parts = MailboxParts {
        outputs: wiring.outputs(),
        deliver: deliver_rx,
        transmit: transmit_tx,
        counters: Arc::clone(&counters),
    };
    // SAFETY: the caller's promise is theirs.
    let (mailbox, pool) = unsafe { (Mailbox::new(memory, layout, parts), PoolRegion::new(memory, layout)) };
    let parts = EndpointParts { id, pool, deliver: deliver_tx, transmit: transmit_rx, worker, share, counters };
    (mailbox, Box::new(Endpoint::new(parts, wiring)))
}
