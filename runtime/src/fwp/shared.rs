//! What is known of an FWP outside its fiber.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The deadline of an FWP that waits for packets only.
pub(crate) const NEVER_NS: u64 = u64::MAX;
/// The value of [`FwpShared::fresh`] after the number has been taken.
const TOLD: u32 = u32::MAX;

/// What is known of an FWP outside its fiber. Written by its worker and by host calls; read by its worker and by reports.
#[derive(Debug, Default)]
pub struct FwpShared {
    /// It waits for packets. Written by its worker.
    waiting: AtomicBool,
    /// It waits in an async import, for its deadline or for a job only. Written by its worker.
    sleeping: AtomicBool,
    /// It has got no packets yet, and is to record when it does. Written by its worker.
    unserving: AtomicBool,
    /// By when it is to have a turn without input, if it waits. Written by its worker.
    deadline_ns: AtomicU64,
    /// Packets published since the guest last asked; [`TOLD`] if the rings were not exchanged since. Written by its worker.
    fresh: AtomicU32,
    pub(super) memory_bytes: AtomicU64,
    /// Memory taken by its changed files.
    pub(super) files_bytes: AtomicU64,
    /// Bytes that host calls may still move in this turn; negative if one went beyond. Written by its worker.
    allowance_bytes: AtomicI32,
    /// A worker has adopted it. Written by that.
    adopted: AtomicBool,
    /// The stack pointer in the host call of its first wait; zero before that.
    call_stack: AtomicUsize,
}

/// Bytes that host calls may move in one turn. Guest code is interrupted at loops and function entries only. So without a bound, a long
/// straight line of calls would keep the core.
const ALLOWANCE_BYTES: i32 = 256 * 1024;
/// Cost of a call besides the bytes it moves.
const CALL_BYTES: u32 = 256;
/// The allowance that is left when a call has gone beyond it.
const OVERDRAWN: i32 = -1;

impl FwpShared {
    /// Returns whether it waits: for packets, or for its deadline.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Creates the record of an FWP that has not run yet; `is_timed` says whether its first packets are timed.
    pub(super) fn new(is_timed: bool) -> Self {
        Self { unserving: is_timed.into(), fresh: TOLD.into(), ..Self::default() }
    }

    /// Notes that it waits, and until when; called by the `wait` and `wait_until` imports, and so on the fiber's stack.
    #[inline]
    pub(crate) fn wait_until(&self, deadline_ns: u64) {
        self.deadline_ns.store(deadline_ns, Ordering::Relaxed);
        self.waiting.store(true, Ordering::Relaxed);
        if self.call_stack.load(Ordering::Relaxed) == 0 {
            let here = 0_u8;
            self.call_stack.store((&raw const here).expose_provenance(), Ordering::Relaxed);
        }
    }

    /// Notes that it sleeps, and until when; called by async imports, and so on the fiber's stack.
    pub(crate) fn sleep_until(&self, deadline_ns: u64) {
        self.wait_until(deadline_ns);
        self.sleeping.store(true, Ordering::Relaxed);
    }

    /// Lets its sleep be over at its next turn; called by its worker.
    pub(super) fn wake(&self) {
        self.deadline_ns.store(0, Ordering::Relaxed);
    }

    /// Notes that a worker has adopted it; called by that.
    pub(super) fn note_adopted(&self) {
        self.adopted.store(true, Ordering::Relaxed);
    }

    /// Returns whether a worker has adopted it.
    pub(super) fn is_adopted(&self) -> bool {
        self.adopted.load(Ordering::Relaxed)
    }

    /// Returns whether it waits for its deadline only, somewhere between two waits for packets.
    #[inline]
    pub(super) fn sleeps(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }

    /// Returns by when it is to have a turn without input, as far as it waits.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns.load(Ordering::Relaxed)
    }

    /// Takes the number of packets published since the last call, if the rings were exchanged since; called by the `wait` and `wait_until`
    /// imports.
    pub(crate) fn take_fresh(&self) -> Option<u32> {
        let fresh = self.fresh.load(Ordering::Relaxed);
        self.fresh.store(TOLD, Ordering::Relaxed);
        (fresh != TOLD).then_some(fresh)
    }

    /// Notes that the worker has exchanged the rings and published this many packets; none if the guest is not to learn that.
    pub(super) fn note_exchange(&self, fresh: Option<u32>) {
        self.fresh.store(fresh.unwrap_or(TOLD), Ordering::Relaxed);
    }

    /// Notes that its first packets have been recorded.
    pub(super) fn note_serving(&self) {
        self.unserving.store(false, Ordering::Relaxed);
    }

    /// Returns whether it gets its first packets now, which is to be recorded; called by the `wait` import.
    #[inline]
    pub(crate) fn begins_to_serve(&self) -> bool {
        self.unserving.load(Ordering::Relaxed)
    }

    /// Returns the stack pointer in the host call of its first wait; zero before that.
    pub(super) fn call_stack(&self) -> usize {
        self.call_stack.load(Ordering::Relaxed)
    }

    /// Charges a host call that moves this many bytes; returns false if this turn's allowance does not cover it.
    pub(crate) fn charge(&self, bytes: u32) -> bool {
        let now = self.allowance_bytes.load(Ordering::Relaxed);
        let left = i64::from(now) - i64::from(bytes) - i64::from(CALL_BYTES);
        self.allowance_bytes.store(if left < 0 { now.min(0) } else { left as i32 }, Ordering::Relaxed);
        left >= 0
    }

    /// Returns whether a call for which the allowance was not enough may be made all the same: one in each turn.
    pub(crate) fn overdraw(&self) -> bool {
        let is_first = self.allowance_bytes.load(Ordering::Relaxed) >= 0;
        self.allowance_bytes.store(OVERDRAWN, Ordering::Relaxed);
        is_first
    }

    /// Begins a new turn.
    pub(super) fn begin_turn(&self) {
        self.waiting.store(false, Ordering::Relaxed);
        self.sleeping.store(false, Ordering::Relaxed);
        self.allowance_bytes.store(ALLOWANCE_BYTES, Ordering::Relaxed);
    }

    /// Returns the size of its linear memory, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// Returns how much memory its changed files take, in bytes.
    #[must_use]
    pub fn files_bytes(&self) -> u64 {
        self.files_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_calls_move_no_more_than_the_allowance_of_each_turn() {
        const BYTES: u32 = 4096;
        let shared = FwpShared::default();
        for _ in 0..2 {
            shared.begin_turn();
            let calls = (0..1000).take_while(|_| shared.charge(BYTES)).count();
            assert_eq!(calls as u32, ALLOWANCE_BYTES as u32 / (BYTES + CALL_BYTES));
        }
    }

    #[test]
    fn one_host_call_in_each_turn_goes_beyond_the_allowance() {
        let shared = FwpShared::default();
        for _ in 0..2 {
            shared.begin_turn();
            assert!(!shared.charge(u32::MAX), "no allowance covers this");
            assert!(shared.overdraw());
            assert!(!shared.overdraw());
            assert!(!shared.charge(0), "the allowance is used up");
        }
    }
}
