//! Memory for guests and buffers: zeroed, page-aligned, and with guard pages where accesses past its ends must fault.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

pub(super) const PAGE: usize = 4096;

thread_local! {
    /// Guarded memory that is not in use, with its size: mapping it takes longer than most tests do.
    static FENCED: RefCell<Vec<(NonNull<u8>, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Maps memory between two guard pages; it stays until the process ends.
fn map_fenced(bytes: usize) -> NonNull<u8> {
    // SAFETY: a new mapping anywhere; of it, all but the first and the last page is made usable.
    let start = unsafe {
        let all = mmap_anonymous(ptr::null_mut(), bytes + 2 * PAGE, ProtFlags::empty(), MapFlags::PRIVATE).unwrap();
        let start = all.byte_add(PAGE);
        mprotect(start, bytes, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
        start
    };
    NonNull::new(start.cast()).unwrap()
}

/// Zeroed, page-aligned memory that does not move.
pub(super) struct Memory {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
    kind: MemoryKind,
}

enum MemoryKind {
    /// From the allocator.
    Heap,
    /// Pages of its own between two guard pages: an access past either end faults.
    Fenced,
}

impl Memory {
    pub(super) fn heap(bytes: usize) -> Self {
        assert!(bytes > 0);
        let layout = Layout::from_size_align(bytes, PAGE).unwrap();
        // SAFETY: the layout is not of size zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Self { start: start.unwrap_or_else(|| handle_alloc_error(layout)), bytes, kind: MemoryKind::Heap }
    }

    /// Makes guarded memory of whole pages.
    pub(super) fn fenced(bytes: usize) -> Self {
        assert!(bytes > 0 && bytes.is_multiple_of(PAGE));
        let kept = FENCED.with_borrow_mut(|kept| {
            let fits = kept.iter().position(|(_, size)| *size == bytes)?;
            Some(kept.swap_remove(fits).0)
        });
        let start = kept.unwrap_or_else(|| map_fenced(bytes));
        // SAFETY: mapped, of this size, and not used elsewhere.
        unsafe { start.write_bytes(0, bytes) };
        Self { start, bytes, kind: MemoryKind::Fenced }
    }

    /// The same, of which no page was touched.
    pub(super) fn untouched(bytes: usize) -> Self {
        Self { start: map_fenced(bytes), bytes, kind: MemoryKind::Fenced }
    }

    fn check<T>(&self, address: usize, count: usize) -> *mut T {
        assert!(address.is_multiple_of(align_of::<T>()), "{address:#x} is misaligned");
        assert!(address + count * size_of::<T>() <= self.bytes, "{address:#x} is outside");
        // SAFETY: in bounds by the assertion.
        unsafe { self.start.as_ptr().add(address).cast() }
    }

    pub(super) fn read<T: Copy>(&self, address: usize) -> T {
        // SAFETY: in bounds and aligned by `check`, initialised since it was allocated; `T` is one of the ABI's structs of
        // integers or an integer.
        unsafe { self.check::<T>(address, 1).read_volatile() }
    }

    pub(super) fn write<T: Copy>(&self, address: usize, value: T) {
        // SAFETY: in bounds and aligned by `check`; one thread plays all parties, and no reference into it exists.
        unsafe { self.check::<T>(address, 1).write_volatile(value) }
    }

    pub(super) fn copy(&self, address: usize, len: usize) -> Vec<u8> {
        let mut copy = vec![0; len];
        // SAFETY: in bounds by `check`; the copy is memory of its own.
        unsafe { ptr::copy_nonoverlapping(self.check::<u8>(address, len), copy.as_mut_ptr(), len) };
        copy
    }

    pub(super) fn set_bytes(&self, address: usize, bytes: &[u8]) {
        // SAFETY: in bounds by `check`; a slice never lies in this memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.check::<u8>(address, bytes.len()), bytes.len()) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.kind {
            // SAFETY: allocated with this size and alignment.
            MemoryKind::Heap => unsafe {
                dealloc(self.start.as_ptr(), Layout::from_size_align_unchecked(self.bytes, PAGE));
            },
            // At the end of a thread, the list may be gone already.
            MemoryKind::Fenced => drop(FENCED.try_with(|kept| kept.borrow_mut().push((self.start, self.bytes)))),
        }
    }
}
