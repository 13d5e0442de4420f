//! Engines: one per worker, each with an epoch clock of its own, all made from the settings that builder and node share.
//!
//! An engine reserves the address space of every FWP it may ever hold when it is made, so that making one later maps
//! nothing new. What an FWP leaves in its place is overwritten with what the next one is to find there, before any other
//! gets the place. How, is the operator's choice ([`Reset`]): neither lets a byte survive.

use pinion_guest::settings;
use serde::Deserialize;
use wasmtime::{Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// Bytes of linear memory that a chain may grant its FWPs at most.
pub const MEMORY_BYTES_MAX: usize = 64 << 20;
/// Elements of a guest's table of functions at most.
const TABLE_ELEMENTS_MAX: usize = 16 * 1024;

/// What address space this process can give to linear memories, all engines together: 47 bits of it in reservations of
/// 4 GiB and a guard each.
pub const FWPS_MAX: usize = 30_000;

/// Memory that stays with the place of an FWP that has ended, in bytes, if it is overwritten.
const KEEP_MEMORY_BYTES: usize = 1 << 20;
const KEEP_TABLE_BYTES: usize = 64 << 10;
/// Of a fiber's stack, what is overwritten; what lies deeper goes back to the kernel.
const KEEP_STACK_BYTES: usize = 8 << 10;
/// Places that have been used keep what belongs to their module for the next FWP of the same; from so many on, an FWP of
/// another module takes one of these rather than a fresh one.
const WARM_PLACES_MAX: u32 = 64;

/// How the memory of an FWP that has ended is made fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reset {
    /// The pages that were written to, as the kernel tells, are overwritten: several times as fast, as no page is mapped
    /// anew. The kernel does not tell of pages that were swapped out, so there must be no swap.
    Overwrite,
    /// All pages go back to the kernel.
    Unmap,
    /// Overwritten where that is safe: where there is no swap when the node starts.
    #[default]
    Auto,
}

impl Reset {
    /// What `Auto` comes to: `swaps` is the kernel's list of them (`/proc/swaps`), a heading and a line for each.
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
/// wasmtime's, when the address space or the mappings for that many cannot be had.
pub fn engine(fwps_max: usize, reset: Reset) -> wasmtime::Result<Engine> {
    let count = u32::try_from(fwps_max).unwrap_or(u32::MAX);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(count)
        .total_memories(count)
        .total_tables(count)
        .total_stacks(count)
        .max_memories_per_module(1)
        .max_tables_per_module(1)
        .max_memory_size(MEMORY_BYTES_MAX)
        .table_elements(TABLE_ELEMENTS_MAX)
        .max_unused_warm_slots(WARM_PLACES_MAX)
        .async_stack_keep_resident(KEEP_STACK_BYTES);
    if reset == Reset::Overwrite {
        pool.pagemap_scan(Enabled::Yes)
            .linear_memory_keep_resident(KEEP_MEMORY_BYTES)
            .table_keep_resident(KEEP_TABLE_BYTES);
    }
    let mut config = settings::config();
    // Templates come compiled; no compiler runs where tenants run.
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
    fn memory_is_overwritten_by_itself_only_where_there_is_no_swap() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        let swap = format!("{heading}/swapfile                               file\t\t1048572\t\t0\t\t-2\n");
        assert_eq!(Reset::Auto.resolved(Some(heading)), Reset::Overwrite);
        assert_eq!(Reset::Auto.resolved(Some(&swap)), Reset::Unmap);
        assert_eq!(Reset::Auto.resolved(None), Reset::Unmap);
        assert_eq!(Reset::Overwrite.resolved(Some(&swap)), Reset::Overwrite);
    }
}
