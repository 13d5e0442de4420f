//! Which memory an FWP's turn touches, so that a worker can prefetch it while other FWPs have their turns.
//!
//! With thousands of FWPs and a packet for each, an FWP's state has left the caches when its turn comes. Cache misses one after the other
//! would then take longer than all else in the turn. These are hints only: if the engine's memory layout is not the expected one, a turn
//! takes longer and nothing else changes.
//!
//! ```text
//!   future  | store: engine's state, FwpContext | engine's context | fiber's stack | FwpShared | the guest's own stack, in its memory
//! ```

use std::num::NonZeroUsize;
use std::ops::Range;

use pinion_mma::prefetch::{self, LINE};

/// Offsets of parts of the engine's state from the FWP's context, in bytes; taken from a trace of a turn, and from where samples found
/// turns stalled.
const AROUND_CONTEXT: [isize; 8] = [-0x2c0, -0x140, -0x100, -0xc0, 0x40, 0x80, 0xc0, 0x100];
/// How far the frames of a turn reach below the stack pointer that a host call finds, in bytes.
const BELOW_CALL: usize = 0x1c0;
/// A fiber's stack ends with a page.
const PAGE: usize = 4096;
/// Cache lines of the future that are prefetched.
const FUTURE_LINES: usize = 5;
/// Cache lines of the guest's own stack that most functions use after their wait.
const GUEST_STACK_LINES: usize = 5;

/// Cache lines of an instance's engine context that are prefetched. The store pointer lies before the context. In it follow the memory and
/// the epoch, the imported functions, and the first global, which compilers use as stack pointer.
const ENGINE_CONTEXT_LINES: Range<isize> = -1..7;

/// The addresses from which a footprint is made.
pub(crate) struct Parts {
    pub(crate) future: usize,
    pub(crate) call: CallSite,
    pub(crate) shared: usize,
    pub(crate) engine_context: usize,
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
    engine_context: usize,
    /// The top of the guest's own stack, which grows downwards, if it is known.
    guest_stack: Option<NonZeroUsize>,
}

/// Stack and context at a host call.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallSite {
    pub(crate) stack: usize,
    pub(crate) context: usize,
}

impl Footprint {
    /// Creates the footprint of an FWP of these parts, after it has called the host.
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { future, call, shared, engine_context, guest_stack } = parts;
        let stack = call.stack.saturating_sub(BELOW_CALL) & !(LINE - 1);
        Self { future, context: call.context & !(LINE - 1), stack, shared, engine_context, guest_stack }
    }

    /// Starts the page walk for the page of the fiber's stack.
    #[inline]
    pub(crate) fn prefetch_page(&self) {
        prefetch::to_read(self.stack as *const u8);
    }

    /// Prefetches all of it.
    #[inline]
    pub(crate) fn prefetch(&self) {
        let line = |address: usize| prefetch::to_read(address as *const u8);
        let top = (self.stack + BELOW_CALL).next_multiple_of(PAGE);
        (self.stack..top).rev().step_by(LINE).for_each(line);
        (0..FUTURE_LINES).for_each(|number| line(self.future + number * LINE));
        ENGINE_CONTEXT_LINES.for_each(|number| line(self.engine_context.wrapping_add_signed(number * LINE as isize)));
        AROUND_CONTEXT.iter().for_each(|distance| line(self.context.wrapping_add_signed(*distance)));
        line(self.shared);
        if let Some(top) = self.guest_stack {
            (1..=GUEST_STACK_LINES).for_each(|number| line(top.get().wrapping_sub(number * LINE)));
        }
    }
}
