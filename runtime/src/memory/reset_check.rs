//! Makes certain that each page that an FWP wrote to is reset before another FWP has its place.
//!
//! An engine that overwrites memory (`memory_reset`) asks the kernel which pages were written to. It takes pages that are not present for
//! clean. So it would leave those as they are that the kernel is moving at this moment (compaction, NUMA balancing), or has swapped out. So
//! its work is looked at, each time:
//!
//! ```text
//!   look for written pages --> mark each with a word --> [the engine resets the memory] --> is a mark still there?
//! ```
//!
//! A page with its mark was missed. It returns to the kernel, as pages do at once that are not present when they are listed, and all if they
//! cannot be listed.
#![allow(unsafe_code)] // Writes to and reads linear memory that no instance uses, and returns its pages to the kernel.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::written_pages::Written;

const PAGE: usize = 4096;
/// Pages that the engine overwrites, at most; it returns further ones to the kernel.
const PAGES_MAX: usize = crate::templates::engine::KEEP_MEMORY_BYTES / PAGE;

/// A word that no image has by chance. No guest knows it: it is in memory only while no instance is.
static MARK: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));

/// Pages that were missed, of all memories.
static MISSED: AtomicU64 = AtomicU64::new(0);

/// Returns how many pages were missed since the process began, those of [`self_test`] included.
#[must_use]
pub fn missed() -> u64 {
    MISSED.load(Ordering::Relaxed)
}

/// What was found in memory that had been reset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LookedAt {
    /// Pages that kept their marks.
    missed: usize,
    /// What the others have, in bytes: they stay where they are.
    pub(crate) left_bytes: usize,
}

/// Linear memory whose written pages are marked.
#[derive(Debug)]
#[must_use = "the marks are to be looked for"]
pub(crate) struct Marked {
    written: Option<Written>,
    /// Bytes in which written pages may be that were not marked.
    unmarked: Range<usize>,
}

impl Marked {
    /// Marks the written pages of a linear memory.
    ///
    /// # Safety
    /// No guest runs in this memory any more, the MMA has released it, and there is no reference into it.
    pub(crate) unsafe fn new(memory: Range<usize>) -> Self {
        let Ok(written) = Written::list(memory.clone(), PAGES_MAX) else {
            return Self { written: None, unmarked: memory };
        };
        for pages in written.absent() {
            // SAFETY: pages of this memory, of which the caller has told the rest. They need not be read back to be reset.
            unsafe { return_to_kernel(pages) };
        }
        for word in words(&written) {
            // SAFETY: the first word of a page that the kernel has just listed as this memory's. If it is being moved since, that is waited
            // for.
            unsafe { word.write_volatile(*MARK) };
        }
        let unmarked = written.looked_to..memory.end;
        Self { written: Some(written), unmarked }
    }

    /// Returns pages that were not reset to the kernel. Call it when the memory has been reset.
    ///
    /// # Safety
    /// The memory is still mapped, and no instance has it.
    pub(crate) unsafe fn return_missed(self) -> LookedAt {
        // SAFETY: mapped memory, without an instance that could write to it.
        let is_missed = |word: &*mut u64| unsafe { word.read_volatile() } == *MARK;
        let marked: usize = self.written.iter().flat_map(Written::present).map(|run| run.len()).sum();
        let mut missed = 0;
        for word in self.written.iter().flat_map(words).filter(is_missed) {
            // SAFETY: the same.
            unsafe { return_to_kernel(word.addr()..word.addr() + PAGE) };
            missed += 1;
        }
        MISSED.fetch_add(missed as u64, Ordering::Relaxed);
        if !self.unmarked.is_empty() {
            // SAFETY: the same.
            unsafe { return_to_kernel(self.unmarked) };
        }
        LookedAt { missed, left_bytes: marked - missed * PAGE }
    }
}

/// Returns the first word of each written page.
fn words(written: &Written) -> impl Iterator<Item = *mut u64> {
    written.present().flat_map(|run| run.step_by(PAGE)).map(std::ptr::with_exposed_provenance_mut)
}

/// Lets pages be again what their mapping holds by itself.
///
/// # Safety
/// Mapped private memory, with nothing in it that is used.
unsafe fn return_to_kernel(pages: Range<usize>) {
    let address = std::ptr::with_exposed_provenance_mut(pages.start);
    // SAFETY: as told.
    let returned = unsafe { madvise(address, pages.len(), Advice::LinuxDontNeed) };
    // Only memory that is locked, or not mapped, is refused. Nothing that a client left may stay.
    returned.expect("the memory of FWPs is mapped, and not locked");
}

/// Tries the mechanism on memory of both kinds that an engine has: of an image, and without one. Dirties pages far apart, looks whether the
/// kernel lists just these, resets most of them, and looks whether all bytes are as at first.
///
/// # Errors
/// Returns what does not work on this machine.
pub fn self_test() -> Result<(), String> {
    /// Enough for several full lists.
    const PAGES: usize = 8 * super::written_pages::RUNS_MAX;
    const LETTER: u8 = b'i';
    let failed = |error: rustix::io::Errno| format!("memory for a trial could not be mapped: {error}");
    let (len, access) = (PAGES * PAGE, ProtFlags::READ | ProtFlags::WRITE);
    // Some machines refuse files without this flag, and old kernels do not know it.
    let image = memfd_create("reset-trial", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create("reset-trial", MemfdFlags::CLOEXEC))
        .map_err(failed)?;
    ftruncate(&image, len as u64).map_err(failed)?;
    for page in 0..PAGES {
        rustix::io::pwrite(&image, &[LETTER; PAGE], (page * PAGE) as u64).map_err(failed)?;
    }
    for original in [LETTER, 0] {
        // SAFETY: a new mapping, used as a slice of its length, but while it is marked, until it is unmapped.
        unsafe {
            let mapping = match original {
                0 => mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE),
                _ => mmap(std::ptr::null_mut(), len, access, MapFlags::PRIVATE, &image, 0),
            };
            let mapping = mapping.map_err(failed)?;
            // Otherwise one write may provide several pages.
            let _ = madvise(mapping, len, Advice::LinuxNoHugepage);
            let tried = try_on(mapping.cast(), len, original);
            munmap(mapping, len).map_err(failed)?;
            tried?;
        }
    }
    Ok(())
}

/// See [`self_test`].
///
/// # Safety
/// Private memory of this length, which is this call's, and holds nothing but `original`.
unsafe fn try_on(memory: *mut u8, len: usize, original: u8) -> Result<(), String> {
    /// Of three pages, one is written to, one is read, and one is not touched.
    const STRIDE: usize = 3;
    /// Of so many written pages, the reset that is tried misses one.
    const MISSED: usize = 4;
    const CANARY: u8 = b'c';
    let range = memory.expose_provenance()..memory.addr() + len;
    let mut from = range.start;
    // SAFETY: the caller's memory.
    let slice = || unsafe { std::slice::from_raw_parts_mut(memory, len) };
    for (at, page) in slice().chunks_mut(PAGE).enumerate() {
        match at % STRIDE {
            0 => page[0] = CANARY,
            1 if page[0] != original => return Err("a new mapping does not hold what it was made from".to_owned()),
            _ => {}
        }
    }
    let mut next = range.start;
    while from < range.end {
        let written = Written::list(from..range.end, usize::MAX).map_err(|error| {
            format!(
                "the kernel does not list the pages that were written to (PAGEMAP_SCAN, Linux 6.7 and later): {error}"
            )
        })?;
        for word in words(&written) {
            if word.addr() != next {
                return Err("the kernel's list of the pages that were written to is not right".to_owned());
            }
            next += STRIDE * PAGE;
        }
        if written.looked_to <= from {
            return Err("the kernel's list of the pages that were written to has no end".to_owned());
        }
        from = written.looked_to;
    }
    if next < range.end {
        return Err("the kernel's list of the pages that were written to lacks some of them".to_owned());
    }
    // SAFETY: memory of the caller, with no reference into it; it stays mapped.
    let missed = unsafe {
        let marked = Marked::new(range);
        let pages = marked.written.iter().flat_map(words).enumerate();
        for (_, word) in pages.filter(|(at, _)| !at.is_multiple_of(MISSED)) {
            word.cast::<u8>().write_bytes(original, PAGE);
        }
        marked.return_missed().missed
    };
    let is_clean = slice().iter().all(|byte| *byte == original);
    if missed == 0 || !is_clean {
        return Err("pages that were missed are not found again".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn pages_that_a_reset_has_missed_are_found_and_return_to_the_kernel() {
        super::self_test().unwrap();
    }
}
