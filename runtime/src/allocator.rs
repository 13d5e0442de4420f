//! The process's allocator: mimalloc, which gives nothing back to the kernel.
//!
//! An instance's store, mailbox and endpoint are a dozen allocations of the launcher's. glibc's allocator grows the heap of any thread but the
//! first by a page at a time and gives it back likewise; each is a change of the process's mappings, which cost the launcher a tenth of its
//! time and interrupt data-plane threads. And what mimalloc puts together lies on fewer pages: of thousands of functions, one that is called runs a fifth
//! sooner.
#![allow(unsafe_code)] // Sets an option of a C library's.

use std::ffi::{c_int, c_long};

use libmimalloc_sys::mi_option_set;

/// What a program that runs a node declares as its `#[global_allocator]`.
pub use mimalloc::MiMalloc as Allocator;

/// `mi_option_purge_delay` of mimalloc's header: after how many milliseconds the kernel gets back what is not used; never if negative.
const PURGE_DELAY: c_int = 15;

/// Has what was freed stay with the process, for the next who needs it.
pub(crate) fn keep_what_is_freed() {
    set_purge_delay(-1);
}

fn set_purge_delay(delay_ms: c_long) {
    // SAFETY: an option that there is, of which any value is one; may be set at any time.
    unsafe { mi_option_set(PURGE_DELAY, delay_ms) };
}

#[cfg(test)]
mod tests {
    use libmimalloc_sys::mi_collect;

    use super::*;
    use crate::hot_pages::written_pages;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    const BYTES: usize = 8 << 20;

    /// Of as many pages as were written and freed, how many are still there when the allocator has put everything in order.
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
    fn what_is_freed_is_given_back_to_the_kernel_unless_it_is_to_be_kept() {
        assert!(kept(0) < kept(-1));
        assert_eq!(kept(-1), BYTES / 4096);
    }
}
