//! Counters per FWP and per node. Each is written by one thread and can be read by any thread at any time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::accounts::leaving::LeavingCounts;
use crate::accounts::slot_numbers::SlotNumbers;
use crate::accounts::tenant_counts::TenantCounts;

/// A number that one thread adds to and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. A plain load and store, not an atomic addition: only one thread may add to a counter.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Returns the count so far.
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

/// Traffic of one FWP, counted by the MMA.
#[derive(Debug, Default)]
pub struct MovedCounters {
    /// Frames copied into the pool.
    pub received: Counter,
    /// Bytes of the frames received.
    pub received_bytes: Counter,
    /// Frames copied out of the pool and delivered onward.
    pub sent: Counter,
    /// Bytes of the frames sent.
    pub sent_bytes: Counter,
    /// Frames that found no free slot: the FWP is slower than its traffic.
    pub dropped_no_slot: Counter,
    /// Frames longer than a slot.
    pub dropped_too_long: Counter,
    /// Frames it sent that found no transmit buffer, or no room in the ring to Net-Out.
    pub dropped_egress: Counter,
    /// Frames it sent to a stage that has ended.
    pub dropped_instance_ended: Counter,
    /// How long copying what it sent took, in nanoseconds.
    pub copying_ns: Counter,
    /// Frames that its chain's graph drops: sent by an output or met by a branch that leads nowhere.
    pub dropped_by_graph: Counter,
    /// Bytes of those of the frames received that came from the gateway.
    pub entered_bytes: Counter,
}

/// Activity of one guest, counted by its worker.
#[derive(Debug, Default)]
pub struct GuestCounters {
    /// Frames the guest dropped.
    pub dropped: Counter,
    /// Times the guest was resumed.
    pub resumes: Counter,
    /// Times the guest was preempted.
    pub preemptions: Counter,
    /// Time the guest ran, in nanoseconds.
    pub cpu_ns: Counter,
    /// Time it waited for its turns, from when it had work to do, in nanoseconds.
    pub wait_ns: Counter,
    /// A histogram of these waits.
    pub waits: WaitCounts,
    /// The slots that are wanted, which the MMA writes, and those that its worker has provided.
    pub(crate) slots: SlotNumbers,
}

impl GuestCounters {
    /// Returns how many slots of a pool of which not all had their pages its worker has provided: the pool's first ones.
    #[must_use]
    pub fn slots_provided(&self) -> u16 {
        self.slots.provided()
    }
}

/// A histogram of waits with power-of-two buckets, in microseconds. It is small enough to share the cache lines of an
/// FWP's other counters, which its worker writes after each turn anyway.
#[derive(Debug, Default)]
pub struct WaitCounts([AtomicU32; WaitCounts::LEN]);

impl WaitCounts {
    /// Number of buckets.
    pub const LEN: usize = 20;

    /// Returns the longest wait that a bucket counts, in nanoseconds. The last bucket also counts all longer ones.
    #[must_use]
    pub const fn longest_ns(length: usize) -> u64 {
        (1000 << length) - 1
    }

    /// Counts one wait. Only one thread may call it.
    #[inline]
    pub fn add(&self, wait_ns: u64) {
        let length = (u64::BITS - (wait_ns / 1000).leading_zeros()) as usize;
        let count = &self.0[length.min(Self::LEN - 1)];
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the counts so far, the shortest waits first.
    #[must_use]
    pub fn values(&self) -> [u32; Self::LEN] {
        std::array::from_fn(|length| self.0[length].load(Ordering::Relaxed))
    }
}

/// What the MMA counts and cannot assign to an FWP.
pub struct MmaCounters {
    /// Frames for an FWP that has ended.
    pub dropped_instance_ended: Counter,
    /// Bytes copied in total.
    pub copied_bytes: Counter,
    /// Frames that wait before stages by which they enter: of chains that hold, or for pages.
    pub held: TenantCounts,
    /// Frames that wait to leave.
    pub leaving: LeavingCounts,
}

impl MmaCounters {
    pub(crate) fn new(leaving: LeavingCounts) -> Self {
        let [dropped_instance_ended, copied_bytes] = [Counter::default(), Counter::default()];
        Self { dropped_instance_ended, copied_bytes, held: TenantCounts::default(), leaving }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_counts_as_the_shortest_length_that_holds_it() {
        let lengths = |wait_ns: u64| {
            let counts = WaitCounts::default();
            counts.add(wait_ns);
            counts.values().iter().position(|count| *count == 1)
        };
        for length in 0..WaitCounts::LEN - 1 {
            let longest_ns = WaitCounts::longest_ns(length);
            assert_eq!((lengths(longest_ns), lengths(longest_ns + 1)), (Some(length), Some(length + 1)));
        }
        assert_eq!((lengths(0), lengths(u64::MAX)), (Some(0), Some(WaitCounts::LEN - 1)));
    }

    #[test]
    fn all_counters_of_an_fwp_that_one_thread_writes_are_adjacent() {
        assert_eq!(size_of::<CachePadded<GuestCounters>>(), size_of::<CachePadded<u8>>());
        assert_eq!(size_of::<CachePadded<MovedCounters>>(), size_of::<CachePadded<u8>>());
    }
}
