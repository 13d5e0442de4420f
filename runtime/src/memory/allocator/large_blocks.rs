//! Blocks that the kernel maps one by one, and those of them that a thread keeps for its next allocations.
//!
//! A run of a model allocates blocks of the same sizes as the run before. To map, fault in and unmap them took a sixth of the run. So a thread
//! that runs models keeps some of what it frees ([`keep_here`]), up to a bound, and gives it to the next allocation of that very size.
//! A kept block is not zeroed, so before a run of another tenant it is freed ([`free_kept_here`]). All others return each block to the kernel.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// How many blocks a thread keeps at most.
const BLOCKS: usize = 16;

/// A free block of glibc's, or none.
#[derive(Clone, Copy)]
struct Block {
    address: *mut u8,
    layout: Layout,
}

impl Block {
    const NONE: Self = Self { address: null_mut(), layout: Layout::new::<()>() };

    fn is_none(&self) -> bool {
        self.address.is_null()
    }
}

/// What a thread keeps. It is not freed when the thread ends: those that keep something end with the process.
struct Kept {
    bytes_max: Cell<usize>,
    bytes: Cell<usize>,
    blocks: [Cell<Block>; BLOCKS],
    /// The place of the block that makes room next.
    next: Cell<usize>,
}

thread_local! {
    static KEPT: Kept = const {
        Kept {
            bytes_max: Cell::new(0),
            bytes: Cell::new(0),
            blocks: [const { Cell::new(Block::NONE) }; BLOCKS],
            next: Cell::new(0),
        }
    };
}

impl Kept {
    /// Returns the kept block with this layout, which is the caller's from now on.
    fn take(&self, layout: Layout) -> Option<*mut u8> {
        let place = self.blocks.iter().find(|place| !place.get().is_none() && place.get().layout == layout)?;
        Some(self.clear(place).address)
    }

    /// Keeps a free block, and frees others for it. Returns whether it is kept.
    ///
    /// # Safety
    /// The block is glibc's, has this layout, and is not used any more.
    unsafe fn put(&self, address: *mut u8, layout: Layout) -> bool {
        if layout.size() > self.bytes_max.get() {
            return false;
        }
        let place = loop {
            let fits = self.bytes.get() + layout.size() <= self.bytes_max.get();
            if let Some(free) = self.blocks.iter().find(|place| fits && place.get().is_none()) {
                break free;
            }
            let next = self.next.replace((self.next.get() + 1) % BLOCKS);
            if !self.blocks[next].get().is_none() {
                let block = self.clear(&self.blocks[next]);
                // SAFETY: by the promise of the call that put it here, and it is here no more.
                unsafe { System.dealloc(block.address, block.layout) };
            }
        };
        place.set(Block { address, layout });
        self.bytes.set(self.bytes.get() + layout.size());
        true
    }

    fn clear(&self, place: &Cell<Block>) -> Block {
        let block = place.replace(Block::NONE);
        self.bytes.set(self.bytes.get() - block.layout.size());
        block
    }
}

/// Lets the calling thread keep so many bytes of large blocks that it frees.
pub(crate) fn keep_here(bytes_max: usize) {
    KEPT.with(|kept| kept.bytes_max.set(bytes_max));
}

/// Returns to the kernel what the calling thread keeps, so that its next allocations get nothing of what was in it.
pub(crate) fn free_kept_here() {
    KEPT.with(|kept| {
        for place in kept.blocks.iter().filter(|place| !place.get().is_none()) {
            let block = kept.clear(place);
            // SAFETY: by the promise of the call that put it here, and it is here no more.
            unsafe { System.dealloc(block.address, block.layout) };
        }
    });
}

/// Returns how many bytes the calling thread keeps.
#[cfg(test)]
pub(crate) fn kept_here() -> usize {
    KEPT.with(|kept| kept.bytes.get())
}

/// # Safety
/// As [`GlobalAlloc::alloc`].
pub(super) unsafe fn alloc(layout: Layout) -> *mut u8 {
    // SAFETY: the caller's promises are the allocator's.
    KEPT.with(|kept| kept.take(layout)).unwrap_or_else(|| unsafe { System.alloc(layout) })
}

/// # Safety
/// As [`GlobalAlloc::alloc_zeroed`].
pub(super) unsafe fn alloc_zeroed(layout: Layout) -> *mut u8 {
    match KEPT.with(|kept| kept.take(layout)) {
        Some(block) => {
            // SAFETY: the block has this size, and is this caller's alone.
            unsafe { block.write_bytes(0, layout.size()) };
            block
        }
        // SAFETY: the caller's promises are the allocator's.
        None => unsafe { System.alloc_zeroed(layout) },
    }
}

/// # Safety
/// As [`GlobalAlloc::dealloc`].
pub(super) unsafe fn dealloc(block: *mut u8, layout: Layout) {
    // SAFETY: the caller promises that the block has this layout, and uses it no more.
    unsafe {
        if !KEPT.with(|kept| kept.put(block, layout)) {
            System.dealloc(block, layout);
        }
    }
}

/// # Safety
/// As [`GlobalAlloc::realloc`], and the new size is that of a large block, too.
pub(super) unsafe fn realloc(block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
    // SAFETY: the caller's promises are the allocator's.
    unsafe { System.realloc(block, layout, new_size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 4 << 20;

    fn layout(kib: usize) -> Layout {
        Layout::from_size_align(kib << 10, 64).unwrap()
    }

    /// Allocates blocks of these sizes, writes them, and frees them. Returns where they were.
    fn written_and_freed(sizes_kib: &[usize]) -> Vec<*mut u8> {
        let new = |kib: &usize| {
            // SAFETY: no size is zero, and each block has the size that is written.
            unsafe {
                let block = alloc(layout(*kib));
                block.write_bytes(0xa5, *kib << 10);
                block
            }
        };
        let blocks: Vec<_> = sizes_kib.iter().map(new).collect();
        for (block, kib) in blocks.iter().zip(sizes_kib) {
            // SAFETY: it was allocated above with this layout, and is not used after that.
            unsafe { dealloc(*block, layout(*kib)) };
        }
        blocks
    }

    fn kept_bytes() -> usize {
        KEPT.with(|kept| {
            let sum: usize = kept.blocks.iter().map(|place| place.get().layout.size()).sum();
            assert_eq!(sum, kept.bytes.get());
            sum
        })
    }

    /// Each test is a thread of its own.
    #[test]
    fn a_thread_that_keeps_blocks_gets_them_again_by_their_sizes() {
        keep_here(MAX);
        let first = written_and_freed(&[256, 512, 256]);
        assert_eq!(kept_bytes(), 1 << 20);
        let mut again = written_and_freed(&[512, 256, 256]);
        again.swap(0, 1);
        assert!(first.iter().all(|block| again.contains(block)), "{first:?}, then {again:?}");
        assert_eq!(kept_bytes(), 1 << 20);
    }

    #[test]
    fn a_zeroed_block_has_nothing_of_the_one_that_was_kept() {
        keep_here(MAX);
        let kept = written_and_freed(&[256])[0];
        // SAFETY: the size is not zero; the block is read in its bounds, and freed with its layout.
        unsafe {
            let block = alloc_zeroed(layout(256));
            assert_eq!(block, kept);
            assert!(std::slice::from_raw_parts(block, 256 << 10).iter().all(|byte| *byte == 0));
            dealloc(block, layout(256));
        }
    }

    #[test]
    fn a_thread_keeps_no_more_than_it_may_and_the_newest_of_it() {
        keep_here(MAX);
        written_and_freed(&[1024; 9]);
        assert_eq!(kept_bytes(), MAX);
        written_and_freed(&[256]);
        assert!(kept_bytes() <= MAX);
        let is_kept = |kib| KEPT.with(|kept| kept.blocks.iter().any(|place| place.get().layout == layout(kib)));
        assert!(is_kept(256));
        written_and_freed(&[8 * 1024]);
        assert!(!is_kept(8 * 1024), "more than all that may be kept");
        written_and_freed(&[128; 2 * BLOCKS]);
        assert_eq!(kept_bytes(), BLOCKS * (128 << 10), "as many as there are places");
    }

    #[test]
    fn what_is_kept_can_be_freed_and_more_is_kept_after_that() {
        keep_here(MAX);
        written_and_freed(&[256, 512]);
        free_kept_here();
        assert_eq!(kept_bytes(), 0);
        written_and_freed(&[256]);
        assert_eq!(kept_bytes(), 256 << 10);
    }

    #[test]
    fn other_threads_keep_none() {
        written_and_freed(&[256, 512]);
        assert_eq!(kept_bytes(), 0);
    }
}
