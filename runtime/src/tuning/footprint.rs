//! Which memory an FWP's turn touches, so that a worker can prefetch it while other FWPs have their turns.
//!
//! With thousands of FWPs and a packet for each, an FWP's state has left the caches when its turn comes. Cache misses one after the other
//! would then take longer than all else in the turn. These are hints only: if one is wrong, a turn takes longer and nothing else changes.
//! Each address is one that the runtime made or saw itself, or was found by what is there ([`super::engine_parts`]).
//!
//! ```text
//!   future  | store: engine's part, FwpContext | engine's context | fiber's stack | FwpShared | the guest's own stack, in its memory
//! ```

use std::num::NonZeroUsize;

use pinion_mma::tuning::prefetch::{self, LINE};

use super::engine_parts::EngineParts;

/// A fiber's stack ends with a page.
const PAGE: usize = 4096;
/// Cache lines that are prefetched of the future, and of the context, from their beginning on.
const LINES: usize = 5;
/// Cache lines that are prefetched of the engine's context of an instance: memory and epoch, imported functions, and the first global, which
/// compilers use as stack pointer.
const ENGINE_CONTEXT_LINES: usize = 7;
/// Cache lines that are prefetched of the engine's part of the store.
const STORE_PART_LINES: usize = 3;
/// Cache lines of the guest's own stack that most functions use after their wait.
const GUEST_STACK_LINES: usize = 5;

/// The addresses from which a footprint is made.
pub(crate) struct Parts {
    pub(crate) future: usize,
    pub(crate) context: usize,
    /// Where the native stack ends while the guest waits; it ends there again in each turn, as guests wait in one place.
    pub(crate) stack_end: usize,
    pub(crate) shared: usize,
    pub(crate) engine: Option<EngineParts>,
    /// The top of the guest's own stack, which grows downwards, if it is known.
    pub(crate) guest_stack: Option<NonZeroUsize>,
}

/// Addresses only; nothing is ever read or written through them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Footprint {
    future: usize,
    context: usize,
    stack: usize,
    shared: usize,
    engine_context: Option<NonZeroUsize>,
    store_part: Option<NonZeroUsize>,
    /// The top of the guest's own stack, which grows downwards, if it is known.
    guest_stack: Option<NonZeroUsize>,
}

impl Footprint {
    /// Creates the footprint of an FWP of these parts, after its first wait.
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { future, context, stack_end, shared, engine, guest_stack } = parts;
        let [context, stack] = [context, stack_end].map(|address| address & !(LINE - 1));
        let engine_context = engine.and_then(|parts| NonZeroUsize::new(parts.context));
        let store_part = engine.and_then(|parts| NonZeroUsize::new(parts.store_part?));
        Self { future, context, stack, shared, engine_context, store_part, guest_stack }
    }

    /// Starts the page walk for the page of the fiber's stack.
    #[inline]
    pub(crate) fn prefetch_page(&self) {
        line(self.stack);
    }

    /// Prefetches all of it.
    #[inline]
    pub(crate) fn prefetch(&self) {
        let top = self.stack.next_multiple_of(PAGE);
        (self.stack..top).rev().step_by(LINE).for_each(line);
        (0..LINES).for_each(|number| line(self.future + number * LINE));
        (0..LINES).for_each(|number| line(self.context + number * LINE));
        line(self.shared);
        if let Some(first) = self.engine_context {
            (0..ENGINE_CONTEXT_LINES).for_each(|number| line(first.get() + number * LINE));
        }
        if let Some(first) = self.store_part {
            (0..STORE_PART_LINES).for_each(|number| line(first.get() + number * LINE));
        }
        if let Some(top) = self.guest_stack {
            (1..=GUEST_STACK_LINES).for_each(|number| line(top.get().wrapping_sub(number * LINE)));
        }
    }
}

#[inline]
fn line(address: usize) {
    prefetch::to_read(address as *const u8);
}
