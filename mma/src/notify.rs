//! Work is found by notification, never by scanning: who has new work is queued once until somebody looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use crate::doorbell::Doorbell;
use crate::id::FwpId;

/// The FWPs that one thread should look at. Bounded, lock-free, shared by all who notify that thread.
#[derive(Clone)]
pub struct ReadyQueue {
    queue: Arc<ArrayQueue<FwpId>>,
    bell: Doorbell,
}

impl ReadyQueue {
    /// A queue for a thread that deals with at most `fwps_max` FWPs and sleeps at `bell`.
    ///
    /// An FWP is in it at most once; twice the places leave room for ids whose FWP ended while they were queued.
    #[must_use]
    pub fn new(fwps_max: usize, bell: Doorbell) -> Self {
        Self { queue: Arc::new(ArrayQueue::new(fwps_max.max(1) * 2)), bell }
    }

    /// The next FWP to look at.
    #[must_use]
    pub fn pop(&self) -> Option<FwpId> {
        self.queue.pop()
    }

    /// Whether nobody is waiting to be looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// One direction's flag of one FWP: whether it is queued already.
#[derive(Debug, Default)]
pub struct Notice(CachePadded<AtomicBool>);

impl Notice {
    /// Queues the FWP unless it is queued already, and wakes the thread that is to look. What it should find must have
    /// been pushed before.
    pub fn raise(&self, id: FwpId, queue: &ReadyQueue) {
        if self.0.swap(true, Ordering::AcqRel) {
            return;
        }
        if queue.queue.push(id).is_err() {
            // Cannot happen within the bound of `ReadyQueue::new`; the next raise tries again.
            self.0.store(false, Ordering::Release);
        }
        queue.bell.ring();
    }

    /// To be called by the looking thread before it looks, so that whatever comes after raises again.
    pub fn lower(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}
