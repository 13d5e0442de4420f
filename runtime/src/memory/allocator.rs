//! The process's allocator: mimalloc, which here returns no memory to the kernel.
//!
//! An instance's store, mailbox and endpoint are a dozen allocations of the launcher's. Outside the main thread, glibc's allocator grows
//! and shrinks the heap a page at a time. Each change of the process's mappings costs the launcher time and interrupts data-plane threads.
//! mimalloc also puts related data on fewer pages.
#![allow(unsafe_code)] // Sets an option of a C library's.

use std::ffi::{c_int, c_long};

use libmimalloc_sys::mi_option_set;

/// The allocator that a program with a node declares as its `#[global_allocator]`.
pub use mimalloc::MiMalloc as Allocator;

/// `mi_option_purge_delay` of mimalloc's header: after how many milliseconds unused memory returns to the kernel; never if negative.
const PURGE_DELAY: c_int = 15;

/// Makes the process keep freed memory for later allocations.
pub(crate) fn keep_what_is_freed() {
    set_purge_delay(-1);
}

fn set_purge_delay(delay_ms: c_long) {
    // SAFETY: the option exists, accepts any value, and may be set at any time.
    unsafe { mi_option_set(PURGE_DELAY, delay_ms) };
}

#[cfg(test)]
mod tests {
    use libmimalloc_sys::mi_collect;

    use super::*;
    use crate::memory::hot_pages::written_pages;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    const BYTES: usize = 8 << 20;

    /// Writes and frees a number of pages. Returns how many of them are still present after the allocator has tidied up.
    fn kept(delay_ms: c_long) -> usize {
        set_purge_delay(delay_ms);
        let memory = std::hint::black_box(vec![1_u8; BYTES]);
        let freed = &raw const memory[..];
        drop(memory);
        // SAFETY: may be called at any time.
        unsafe { mi_collect(true) };
        written_pages(freed).unwrap().len()
    }

    #[test]
    fn freed_memory_returns_to_the_kernel_unless_it_is_to_be_kept() {
        assert!(kept(0) < kept(-1));
        assert_eq!(kept(-1), BYTES / 4096);
    }
}
