//! Engines: one per worker, each with its own epoch counter, all made from the settings that builder and node share.
//!
//! When it is made, an engine reserves the address space of every FWP that it may ever hold, so that making an FWP maps nothing new. An
//! ended FWP's memory is reset before another FWP gets the place. The operator chooses how ([`Reset`]); in either way, no byte survives.

use pinion_guest::settings;
use serde::Deserialize;
use wasmtime::{Enabled, Engine, InstanceAllocationStrategy};

/// Address space that this process can give to linear memories, of all engines together: 47 bits of it, in reservations of 4 GiB and a
/// guard each.
pub const FWPS_MAX: usize = 30_000;

/// Memory of an ended FWP that stays in its place, in bytes, if it is overwritten.
pub(crate) const KEEP_MEMORY_BYTES: usize = 1 << 20;
/// The part of a fiber's stack that is overwritten; deeper pages return to the kernel.
const KEEP_STACK_BYTES: usize = 8 << 10;
/// Used places keep their module's mappings for the next FWP of the same module. If there are at least this many, an FWP of another module
/// takes one of these rather than a fresh place.
const WARM_PLACES_MAX: u32 = 64;

/// How the memory of an FWP that has ended is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reset {
    /// Overwrites the pages that were written to, according to the kernel (`PAGEMAP_SCAN`, Linux 6.7 and later). Several times faster, since
    /// no page is mapped anew. Each time it is looked at afterwards whether all were: see [`crate::memory::reset_check`].
    Overwrite,
    /// Returns all pages to the kernel.
    Unmap,
    /// Overwrites where that has worked in a trial when the node started, and there was no swap then: where memory is short enough for swap,
    /// pages that no instance has are better given back.
    #[default]
    Auto,
}

impl Reset {
    /// Returns what `Auto` resolves to. `works` says whether memory can be overwritten ([`crate::memory::reset_check::self_test`]), and
    /// `swaps` whether pages may be swapped out.
    #[must_use]
    pub fn resolved(self, works: bool, swaps: bool) -> Self {
        match self {
            Self::Auto if works && !swaps => Self::Overwrite,
            Self::Auto => Self::Unmap,
            chosen => chosen,
        }
    }
}

/// Makes an engine for at most `fwps_max` FWPs at a time.
///
/// # Errors
/// wasmtime's, if the address space or the mappings for that many are not available.
pub fn engine(fwps_max: usize, reset: Reset) -> wasmtime::Result<Engine> {
    let count = u32::try_from(fwps_max).unwrap_or(u32::MAX);
    let mut pool = settings::pool(count);
    pool.max_unused_warm_slots(WARM_PLACES_MAX).async_stack_keep_resident(KEEP_STACK_BYTES);
    if reset == Reset::Overwrite {
        // Tables hold addresses of functions, which cannot be marked and looked at: their pages return to the kernel.
        pool.pagemap_scan(Enabled::Yes).linear_memory_keep_resident(KEEP_MEMORY_BYTES);
    }
    let mut config = settings::config();
    // Templates come compiled: no compiler runs where tenants run.
    config
        .enable_compiler(false)
        .async_stack_zeroing(true)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_reset_overwrites_memory_only_where_that_works_and_without_swap() {
        assert_eq!(Reset::Auto.resolved(true, false), Reset::Overwrite);
        assert_eq!(Reset::Auto.resolved(false, false), Reset::Unmap);
        assert_eq!(Reset::Auto.resolved(true, true), Reset::Unmap);
        assert_eq!(Reset::Overwrite.resolved(true, true), Reset::Overwrite);
    }
}
