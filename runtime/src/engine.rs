//! Engines: one per worker, each with an epoch clock of its own, all made from the builder's settings.
//!
//! An engine reserves the address space of every FWP it may ever hold when it is made, so that making one later maps
//! nothing new.

use pinion_builder::settings;
use wasmtime::{Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// Bytes of linear memory that a chain may grant its FWPs at most.
pub const MEMORY_BYTES_MAX: usize = 64 << 20;
/// Elements of a guest's table of functions at most.
const TABLE_ELEMENTS_MAX: usize = 16 * 1024;

/// What address space this process can give to linear memories, all engines together: 47 bits of it in reservations of
/// 4 GiB and a guard each.
pub const FWPS_MAX: usize = 30_000;

/// Makes an engine for at most `fwps_max` FWPs at a time.
///
/// # Errors
/// wasmtime's, when the address space or the mappings for that many cannot be had.
pub fn engine(fwps_max: usize) -> wasmtime::Result<Engine> {
    let count = u32::try_from(fwps_max).unwrap_or(u32::MAX);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(count)
        .total_memories(count)
        .total_tables(count)
        .total_stacks(count)
        .max_memories_per_module(1)
        .max_tables_per_module(1)
        .max_memory_size(MEMORY_BYTES_MAX)
        .table_elements(TABLE_ELEMENTS_MAX);
    let mut config = settings::config();
    // Artifacts come compiled; no compiler runs where tenants run.
    config.enable_compiler(false).allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config)
}
