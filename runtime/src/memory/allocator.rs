//! The process's allocator: mimalloc, which here returns no memory to the kernel, but for large blocks.
//!
//! An instance's store, mailbox and endpoint are a dozen allocations of the launcher's. Outside the main thread, glibc's allocator grows
//! and shrinks the heap a page at a time. Each change of the process's mappings costs the launcher time and interrupts data-plane threads.
//! mimalloc also puts related data on fewer pages.
//!
//! What users upload comes in large blocks, on whichever thread serves the call, and so does what a build makes of it, each on a thread of
//! its own. mimalloc would keep the largest of them for each of the serving threads, and looks for a free place elsewhere for each new one.
//! So blocks from 128 KiB on are glibc's, which maps each of them for itself and returns it to the kernel when it is freed. Threads that run
//! models keep some of theirs, for the next run of the same tenant (`large_blocks.rs`).
#![allow(unsafe_code)] // Is an allocator, and sets options of C libraries.

mod large_blocks;

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_long};

use libmimalloc_sys::mi_option_set;
use mimalloc::MiMalloc;

#[cfg(test)]
pub(crate) use self::large_blocks::kept_here as kept_large_blocks_here;
pub(crate) use self::large_blocks::{
    free_kept_here as free_kept_large_blocks_here, keep_here as keep_large_blocks_here,
};

/// Blocks of this size and more return to the kernel when they are freed, unless their thread keeps some. After its start, the data plane
/// has none.
const LARGE_BYTES: usize = 128 << 10;

/// `mi_option_purge_delay` of mimalloc's header: after how many milliseconds unused memory returns to the kernel; never if negative.
const PURGE_DELAY: c_int = 15;

/// The allocator that a program with a node declares as its `#[global_allocator]`.
pub struct Allocator;

// SAFETY: each block is of one of two allocators, chosen by its size, which is known whenever the block is named. A block that changes its
// allocator is allocated anew, copied and freed.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() < LARGE_BYTES {
            // SAFETY: the caller's promises are the allocator's.
            unsafe { MiMalloc.alloc(layout) }
        } else {
            // SAFETY: the caller's promises are the allocator's.
            unsafe { large_blocks::alloc(layout) }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() < LARGE_BYTES {
            // SAFETY: the caller's promises are the allocator's.
            unsafe { MiMalloc.alloc_zeroed(layout) }
        } else {
            // SAFETY: the caller's promises are the allocator's.
            unsafe { large_blocks::alloc_zeroed(layout) }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() < LARGE_BYTES {
            // SAFETY: the caller's promises are the allocator's, which has this block by its size.
            unsafe { MiMalloc.dealloc(block, layout) }
        } else {
            // SAFETY: the caller's promises are the allocator's, which has this block by its size.
            unsafe { large_blocks::dealloc(block, layout) }
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        match (layout.size() < LARGE_BYTES, new_size < LARGE_BYTES) {
            // SAFETY: the caller's promises are the allocator's, which has this block and will have the new one by their sizes.
            (true, true) => return unsafe { MiMalloc.realloc(block, layout, new_size) },
            // SAFETY: as above.
            (false, false) => return unsafe { large_blocks::realloc(block, layout, new_size) },
            _ => {}
        }
        // SAFETY: the caller promises that the size is not zero and does not overflow when rounded up to the alignment.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: as above; both blocks have so many bytes, and the old one is not used after that.
        unsafe {
            let new_block = self.alloc(new_layout);
            if !new_block.is_null() {
                new_block.copy_from_nonoverlapping(block, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            new_block
        }
    }
}

/// Makes the process keep freed memory for later allocations, but for large blocks.
pub(crate) fn keep_what_is_freed() {
    set_purge_delay(-1);
    // SAFETY: may be called at any time. Without it, glibc would keep blocks of up to 32 MiB once one of that size was freed.
    let is_set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES as c_int) };
    debug_assert_eq!(is_set, 1, "glibc knows this option");
}

fn set_purge_delay(delay_ms: c_long) {
    // SAFETY: the option exists, accepts any value, and may be set at any time.
    unsafe { mi_option_set(PURGE_DELAY, delay_ms) };
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use libmimalloc_sys::mi_collect;

    use super::*;
    use crate::memory::hot_pages::written_pages;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    const BLOCK_BYTES: usize = LARGE_BYTES / 2;
    const BLOCKS: usize = 16;

    /// Writes and frees a number of pages, in blocks. Returns how many of them are still present after the allocator has tidied up.
    fn kept(delay_ms: c_long) -> usize {
        set_purge_delay(delay_ms);
        let memory = std::hint::black_box([(); BLOCKS].map(|()| vec![1_u8; BLOCK_BYTES]));
        let freed = memory.each_ref().map(|block| &raw const block[..]);
        drop(memory);
        // SAFETY: may be called at any time.
        unsafe { mi_collect(true) };
        freed.iter().map(|block| written_pages(*block).unwrap().len()).sum()
    }

    #[test]
    fn freed_memory_returns_to_the_kernel_unless_it_is_to_be_kept() {
        assert!(kept(0) < kept(-1));
        assert_eq!(kept(-1), BLOCKS * BLOCK_BYTES / 4096);
    }

    /// Runs alone in a process of its own: glibc would still have free memory of large blocks that other tests had before.
    #[test]
    fn a_large_block_returns_to_the_kernel_when_it_is_freed() {
        const IS_ALONE: &str = "PINION_TEST_IS_ALONE";
        if std::env::var_os(IS_ALONE).is_none() {
            let mut alone = Command::new(std::env::current_exe().unwrap());
            alone.args(["--exact", "memory::allocator::tests::a_large_block_returns_to_the_kernel_when_it_is_freed"]);
            let output = alone.env(IS_ALONE, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        keep_what_is_freed();
        // glibc's heap, which is there from the start, has room for a single block of the least size.
        for bytes in [2 * LARGE_BYTES, 8 * LARGE_BYTES, 3 * LARGE_BYTES] {
            let is_gone = |_| {
                let memory = std::hint::black_box(vec![1_u8; bytes]);
                let freed = &raw const memory[..];
                drop(memory);
                written_pages(freed).is_ok_and(|pages| pages.is_empty())
            };
            // Another thread may get the same addresses at once.
            assert!((0..100).any(is_gone), "{bytes} bytes stay");
        }
    }

    #[test]
    fn a_block_that_grows_and_shrinks_keeps_its_bytes() {
        let mut bytes: Vec<u8> = Vec::new();
        let expected = |len: usize| (0..len).map(|at| (at * 7) as u8);
        for len in [100, LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES, LARGE_BYTES + 1, LARGE_BYTES - 1, 10] {
            bytes.truncate(len);
            bytes.extend(expected(len).skip(bytes.len()));
            bytes.shrink_to_fit();
            assert!(bytes.iter().copied().eq(expected(len)), "{len} bytes");
        }
        assert!(vec![0_u8; 2 * LARGE_BYTES].iter().all(|byte| *byte == 0));
    }
}
