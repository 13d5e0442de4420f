//! What is counted per FWP and per node, readable at any time by anybody, written by one thread each.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// A number that one thread adds to and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. A plain load and store, not an atomic addition: only one thread may add to a counter.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// The count so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One FWP's traffic. Each half has one writer and a cache line of its own.
#[derive(Debug, Default)]
pub struct FwpCounters {
    /// Written by the MMA thread.
    pub moved: CachePadded<MovedCounters>,
    /// Written by the FWP's worker.
    pub guest: CachePadded<GuestCounters>,
}

/// What the MMA did for an FWP.
#[derive(Debug, Default)]
pub struct MovedCounters {
    /// Frames copied into the pool.
    pub received: Counter,
    /// Bytes of these.
    pub received_bytes: Counter,
    /// Frames copied out of the pool and delivered onward.
    pub sent: Counter,
    /// Bytes of these.
    pub sent_bytes: Counter,
    /// Frames that found no free slot: the FWP is slower than its traffic.
    pub dropped_no_slot: Counter,
    /// Frames longer than a slot.
    pub dropped_too_long: Counter,
    /// Frames it sent that found no transmit buffer, or no room on the way to Net-Out.
    pub dropped_egress: Counter,
    /// Frames it sent to a stage that has ended.
    pub dropped_gone: Counter,
}

/// What the guest asked for.
#[derive(Debug, Default)]
pub struct GuestCounters {
    /// Frames the guest dropped.
    pub dropped: Counter,
    /// Times it was resumed.
    pub resumes: Counter,
    /// Times it was preempted.
    pub preemptions: Counter,
    /// Time it ran, in nanoseconds.
    pub cpu_ns: Counter,
    /// Time it waited for its turns, from when it had something to do, in nanoseconds.
    pub wait_ns: Counter,
}

/// What the MMA counts that belongs to no FWP.
#[derive(Debug, Default)]
pub struct MmaCounters {
    /// Frames for an FWP that has ended.
    pub dropped_gone: Counter,
    /// Bytes copied, in all.
    pub copied_bytes: Counter,
}
