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
const KEEP_MEMORY_BYTES: usize = 1 << 20;
const KEEP_TABLE_BYTES: usize = 64 << 10;
/// The part of a fiber's stack that is overwritten; deeper pages return to the kernel.
const KEEP_STACK_BYTES: usize = 8 << 10;
/// Used places keep their module's mappings for the next FWP of the same module. If there are at least this many, an FWP of another module
/// takes one of these rather than a fresh place.
const WARM_PLACES_MAX: u32 = 64;

/// How the memory of an FWP that has ended is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reset {
    /// Overwrites the pages that were written to, according to the kernel. Several times faster, since no page is mapped anew. The kernel
    /// does not report pages that were swapped out, so there must be no swap.
    Overwrite,
    /// Returns all pages to the kernel.
    Unmap,
    /// Overwrites where that is safe: where there is no swap when the node starts.
    #[default]
    Auto,
}

impl Reset {
    /// Returns what `Auto` resolves to. `swaps` is the kernel's list of swaps (`/proc/swaps`): a heading, and a line for each.
    #[must_use]
    pub fn resolved(self, swaps: Option<&str>) -> Self {
        match self {
            Self::Auto if swaps.is_some_and(|swaps| swaps.trim().lines().count() <= 1) => Self::Overwrite,
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
        pool.pagemap_scan(Enabled::Yes)
            .linear_memory_keep_resident(KEEP_MEMORY_BYTES)
            .table_keep_resident(KEEP_TABLE_BYTES);
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
    fn automatic_reset_overwrites_memory_only_without_swap() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        let swap = format!("{heading}/swapfile                               file\t\t1048572\t\t0\t\t-2\n");
        assert_eq!(Reset::Auto.resolved(Some(heading)), Reset::Overwrite);
        assert_eq!(Reset::Auto.resolved(Some(&swap)), Reset::Unmap);
        assert_eq!(Reset::Auto.resolved(None), Reset::Unmap);
        assert_eq!(Reset::Overwrite.resolved(Some(&swap)), Reset::Overwrite);
    }
}
