//! The wasmtime settings that decide what compiled code looks like; builder and node must agree on every one.

use wasmtime::{Config, RegallocAlgorithm};

/// Native stack that a guest's calls may use, in bytes. A guest's own data lies in its linear memory; this holds
/// return addresses and spilled registers.
pub const WASM_STACK_BYTES: usize = 128 * 1024;

/// A guest's fiber: its own stack and what host calls need on top of it.
pub const FIBER_STACK_BYTES: usize = WASM_STACK_BYTES + 128 * 1024;

/// Address space reserved per linear memory: all that a 32-bit address can name, so that no access needs a bounds check.
pub const MEMORY_RESERVATION_BYTES: u64 = 4 << 30;

/// The settings both sides start from. The node adds its allocator, the builder nothing.
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
        .wasm_bulk_memory(true)
        .wasm_multi_value(true)
        .wasm_simd(true)
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_tail_call(false);
    config
}
