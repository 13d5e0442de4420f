//! What is known of an FWP outside its fiber.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::FwpContext;
use crate::footprint::CallSite;

/// The deadline of who waits for packets only.
pub(crate) const NEVER_NS: u64 = u64::MAX;
/// What [`FwpShared::fresh`] says in place of a number.
const TOLD: u32 = u32::MAX;

/// What is known of an FWP outside its fiber: by its worker, which host calls tell it, and by those who report.
#[derive(Debug, Default)]
pub struct FwpShared {
    /// It waits for packets. Written by its worker.
    waiting: AtomicBool,
    /// It has got no packets yet, and is to tell when it does. Written by its worker.
    unserving: AtomicBool,
    /// By when it has its turn although nothing has arrived, if it waits. Written by its worker.
    deadline_ns: AtomicU64,
    /// Packets that were published and that it has not been told of; [`TOLD`] if nothing was exchanged since it was. Written by its worker.
    fresh: AtomicU32,
    pub(super) memory_bytes: AtomicU64,
    /// What its changes of its files take.
    pub(super) files_bytes: AtomicU64,
    /// Bytes that host calls may still move in this turn. Written by its worker.
    allowance_bytes: AtomicU32,
    /// Where its first wait found the stack and its context, in memory.
    call_stack: AtomicU64,
    call_context: AtomicU64,
}

/// Bytes that host calls move in one turn. Guest code is interrupted at loops and function entries only, so without a bound
/// a long straight line of calls would hold the core.
const ALLOWANCE_BYTES: u32 = 256 * 1024;
/// What a call costs beside the bytes it moves.
const CALL_BYTES: u32 = 256;

impl FwpShared {
    /// Whether it waits for packets.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Of an FWP that has not run yet, and whose first packets are timed or not.
    pub(super) fn new(is_timed: bool) -> Self {
        Self { unserving: is_timed.into(), fresh: TOLD.into(), ..Self::default() }
    }

    /// Notes that it waits, and until when; called by the `wait` and `wait_until` imports.
    pub(crate) fn wait_until(&self, deadline_ns: u64) {
        self.deadline_ns.store(deadline_ns, Ordering::Relaxed);
        self.waiting.store(true, Ordering::Relaxed);
    }

    /// By when it is to have a turn although nothing has arrived, as far as it waits.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns.load(Ordering::Relaxed)
    }

    /// Packets published since the last time this was asked, if the rings were exchanged since; called by the `wait` and `wait_until`
    /// imports.
    pub(crate) fn take_fresh(&self) -> Option<u32> {
        let fresh = self.fresh.load(Ordering::Relaxed);
        self.fresh.store(TOLD, Ordering::Relaxed);
        (fresh != TOLD).then_some(fresh)
    }

    /// Its worker has exchanged its rings, and published so many packets; none if that is not to be told.
    pub(super) fn note_exchange(&self, fresh: Option<u32>) {
        self.fresh.store(fresh.unwrap_or(TOLD), Ordering::Relaxed);
    }

    /// Whether it is to tell when it gets packets.
    pub(super) fn set_unserving(&self, unserving: bool) {
        self.unserving.store(unserving, Ordering::Relaxed);
    }

    /// Whether it gets its first packets now, which is to be told; called by the `wait` import.
    #[inline]
    pub(crate) fn begins_to_serve(&self) -> bool {
        self.unserving.load(Ordering::Relaxed)
    }

    /// Notes where a host call finds the stack and the FWP's context; called by the `wait` import.
    #[inline]
    pub(crate) fn note_call(&self, context: *const FwpContext) {
        if self.call_context.load(Ordering::Relaxed) == 0 {
            let here = 0_u8;
            self.call_stack.store((&raw const here).addr() as u64, Ordering::Relaxed);
            self.call_context.store(context.addr() as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn call_site(&self) -> CallSite {
        let [stack, context] = [&self.call_stack, &self.call_context].map(|at| at.load(Ordering::Relaxed) as usize);
        CallSite { stack, context }
    }

    /// Charges a host call that moves so many bytes; false if this turn's allowance does not cover it.
    pub(crate) fn charge(&self, bytes: u32) -> bool {
        let left = self.allowance_bytes.load(Ordering::Relaxed).checked_sub(bytes.saturating_add(CALL_BYTES));
        self.allowance_bytes.store(left.unwrap_or(0), Ordering::Relaxed);
        left.is_some()
    }

    /// A new turn begins.
    pub(super) fn begin_turn(&self) {
        self.waiting.store(false, Ordering::Relaxed);
        self.allowance_bytes.store(ALLOWANCE_BYTES, Ordering::Relaxed);
    }

    /// Size of its linear memory, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// What it has changed of its files, in bytes of memory.
    #[must_use]
    pub fn files_bytes(&self) -> u64 {
        self.files_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_calls_move_no_more_than_a_turn_allows_and_as_much_again_in_the_next() {
        const BYTES: u32 = 4096;
        let shared = FwpShared::default();
        for _ in 0..2 {
            shared.begin_turn();
            let calls = (0..1000).take_while(|_| shared.charge(BYTES)).count();
            assert_eq!(calls as u32, ALLOWANCE_BYTES / (BYTES + CALL_BYTES));
        }
    }
}
