//! What memory an FWP's turn touches, so that a worker can have it brought near while others have their turns.
//!
//! With thousands of FWPs and a packet each, all of an FWP's state has left the caches when its turn comes, and a turn that
//! waited for it line by line would take longer than everything else it does. Only hints come of it: where they are wrong, as
//! the engine lays its state out otherwise than expected, a turn takes longer and nothing else.
//!
//! ```text
//!   future  | store: engine's state, FwpContext | engine's context | fiber's stack | FwpShared | the guest's own stack, in its memory
//! ```

use std::num::NonZeroUsize;
use std::ops::Range;

use pinion_mma::prefetch::{self, LINE};

/// Where parts of the engine's state lie, from the FWP's context on, in bytes; as seen in a trace of a turn, and where samples found turns waiting.
const AROUND_CONTEXT: [isize; 8] = [-0x2c0, -0x140, -0x100, -0xc0, 0x40, 0x80, 0xc0, 0x100];
/// How far a turn's frames go below where a host call finds the stack, in bytes.
const BELOW_CALL: usize = 0x1c0;
/// A fiber's stack ends with a page.
const PAGE: usize = 4096;
/// Lines of the future that are asked for.
const FUTURE_LINES: usize = 5;
/// Lines of the guest's own stack that it uses from its wait on, in most functions.
const GUEST_STACK_LINES: usize = 5;

/// Lines of the engine's context of an instance that are asked for: where its store is, before the context; where its memory and its epoch are, the
/// calls it may make, its first global, which is the stack pointer of what compilers make.
const ENGINE_CONTEXT_LINES: Range<isize> = -1..7;

/// What a footprint is made of: where each part of an FWP lies.
pub(crate) struct Parts {
    pub(crate) future: usize,
    pub(crate) call: CallSite,
    pub(crate) shared: usize,
    pub(crate) engine_context: usize,
    /// Where it is noted when it was called, if anybody asks.
    pub(crate) called_at: Option<NonZeroUsize>,
    /// Where the guest's own stack begins, downwards, if anybody knows.
    pub(crate) guest_stack: Option<NonZeroUsize>,
}

/// Addresses only; nothing is ever reached through them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Footprint {
    future: usize,
    context: usize,
    stack: usize,
    shared: usize,
    engine_context: usize,
    called_at: Option<NonZeroUsize>,
    /// Where the guest's own stack begins, downwards, if anybody knows.
    guest_stack: Option<NonZeroUsize>,
}

/// Where a host call found itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallSite {
    pub(crate) stack: usize,
    pub(crate) context: usize,
}

impl Footprint {
    /// Of an FWP of these parts, after it has called the host.
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { future, call, shared, engine_context, called_at, guest_stack } = parts;
        let stack = call.stack.saturating_sub(BELOW_CALL) & !(LINE - 1);
        Self { future, context: call.context & !(LINE - 1), stack, shared, engine_context, called_at, guest_stack }
    }

    /// Asks for what was written for it with what was delivered.
    #[inline]
    pub(crate) fn prefetch_delivered(&self) {
        if let Some(called_at) = self.called_at {
            prefetch::to_write(called_at.get() as *const u8);
        }
    }

    /// Has the processor find the page that the fiber's stack is on.
    #[inline]
    pub(crate) fn prefetch_page(&self) {
        prefetch::to_read(self.stack as *const u8);
    }

    /// Asks for all of it.
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
