//! The wasmtime settings that determine compiled code. Builder and node must agree on every one.

use wasmtime::{Config, PoolingAllocationConfig, RegallocAlgorithm, WasmFeatures};

/// What guests may use of WebAssembly beyond its first version: all that Rust and clang emit for `wasm32-wasip1` by default, SIMD and wide
/// arithmetic. The list is closed: a feature that is not in it is off in the engines and in the validation of modules, even if a later
/// release of either adds it.
///
/// | feature | why it is on |
/// |---|---|
/// | `FLOATS` | numbers of the first version, which could be off |
/// | `MUTABLE_GLOBAL`, `SIGN_EXTENSION`, `SATURATING_FLOAT_TO_INT`, `MULTI_VALUE` | compilers emit them by default |
/// | `BULK_MEMORY` | the same: `memory.copy` and `memory.fill` |
/// | `REFERENCE_TYPES` | the same: how `call_indirect` is encoded; of the types, functions only |
/// | `SIMD` | modules compiled with it |
/// | `WIDE_ARITHMETIC` | the same: products of 128 bits, by which elliptic curves take half the time or less |
pub const FEATURES: WasmFeatures = WasmFeatures::FLOATS
    .union(WasmFeatures::MUTABLE_GLOBAL)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::SIMD)
    .union(WasmFeatures::WIDE_ARITHMETIC);

/// Native stack that a guest's calls may use, in bytes. A guest's own data lies in its linear memory; this holds
/// return addresses and spilled registers.
pub const WASM_STACK_BYTES: usize = 128 * 1024;

/// The stack of a guest's fiber, in bytes: the guest's own stack and what host calls need on top of it.
pub const FIBER_STACK_BYTES: usize = WASM_STACK_BYTES + 128 * 1024;

/// Address space reserved per linear memory: all that a 32-bit address can name, so that no access needs a bounds check.
pub const MEMORY_RESERVATION_BYTES: u64 = 4 << 30;

/// Most bytes of linear memory of an instance.
pub const MEMORY_BYTES_MAX: usize = 64 << 20;

/// Most elements of an instance's table.
pub const TABLE_ELEMENTS_MAX: usize = 16 * 1024;
/// What the engine keeps for an element, in bytes.
pub const TABLE_ELEMENT_BYTES: usize = 8;

/// Most bytes of the engine's own record of an instance, besides its memory and its table: its globals, and its functions as far as
/// references to them exist.
pub const INSTANCE_BYTES_MAX: usize = 1 << 20;
/// The most that the fixed part of this record takes, which every instance has in addition.
pub const INSTANCE_BYTES_LEAST: usize = 4096;

/// Returns the configuration of an allocator for `instances` instances, each with a node's limits. The builder tries modules in one, so
/// that modules it accepts fit the nodes' allocators.
#[must_use]
pub fn pool(instances: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(instances)
        .total_memories(instances)
        .total_tables(instances)
        .total_stacks(instances)
        .max_memories_per_module(1)
        .max_tables_per_module(1)
        .max_memory_size(MEMORY_BYTES_MAX)
        .table_elements(TABLE_ELEMENTS_MAX)
        .max_core_instance_size(INSTANCE_BYTES_MAX + INSTANCE_BYTES_LEAST);
    pool
}

/// Returns the settings that both sides start from. The node adds its allocator, the builder nothing.
#[must_use]
pub fn config() -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .memory_may_move(false)
        .memory_reservation(MEMORY_RESERVATION_BYTES)
        .memory_init_cow(true)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(FIBER_STACK_BYTES)
        .cranelift_regalloc_algorithm(RegallocAlgorithm::Backtracking)
        // Wrong hints of a module must have no effect, and interruptible code ignores hints anyway.
        .wasm_branch_hinting(false)
        .wasm_features(FEATURES.complement(), false)
        .wasm_features(FEATURES, true);
    config
}
