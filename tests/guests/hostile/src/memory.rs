//! Linear memory as raw addresses: one range of bytes from zero to its end.

#![allow(unsafe_code)] // reads and writes memory by address

use core::arch::wasm32::{memory_grow, memory_size};
use core::cell::Cell;
use core::ops::Range;
use core::ptr;

/// Bytes of a Wasm page.
pub const PAGE_BYTES: usize = 64 * 1024;

const WORD_BYTES: usize = size_of::<u64>();

/// Equal words in a row that count as a written pattern, so that a copy on the stack does not.
const RUN_WORDS_MIN: usize = 8;

/// Returns all of memory but its first words, which a null pointer must not name.
#[must_use]
pub fn all() -> Range<usize> {
    64..memory_size::<0>() * PAGE_BYTES
}

/// Grows memory by `pages`; returns the range of addresses gained, or `None` if the host refuses.
#[must_use]
pub fn grow(pages: usize) -> Option<Range<usize>> {
    let before = memory_grow::<0>(pages);
    (before != usize::MAX).then(|| before * PAGE_BYTES..(before + pages) * PAGE_BYTES)
}

/// Returns the addresses of cells, which may be written there.
#[must_use]
pub fn range_of(cells: &[Cell<u64>]) -> Range<usize> {
    let start = cells.as_ptr().expose_provenance();
    start..start + size_of_val(cells)
}

/// Returns the address in `range` where the word `pattern` is repeated.
#[must_use]
pub fn find(range: Range<usize>, pattern: u64) -> Option<usize> {
    let mut run_words = 0;
    for address in range.step_by(WORD_BYTES) {
        // SAFETY: the caller's ranges come from the functions above, so the aligned word lies in memory; the access is
        // volatile, so nothing is concluded from what the word belongs to.
        let word = unsafe { ptr::with_exposed_provenance::<u64>(address).read_volatile() };
        run_words = if word == pattern { run_words + 1 } else { 0 };
        if run_words == RUN_WORDS_MIN {
            return Some(address);
        }
    }
    None
}

/// Writes `pattern` into every word of a range from [`grow`] or [`range_of`].
pub fn fill(range: Range<usize>, pattern: u64) {
    for address in range.step_by(WORD_BYTES) {
        // SAFETY: the aligned word lies in memory that was grown by `grow`, which no allocator knows of, or is one of
        // the cells of `range_of`.
        unsafe { ptr::with_exposed_provenance_mut::<u64>(address).write_volatile(pattern) }
    }
}

/// Writes `byte` into a whole range from [`grow`], by one instruction.
pub fn fill_at_once(range: Range<usize>, byte: u8) {
    let start = ptr::with_exposed_provenance_mut::<u8>(range.start);
    // SAFETY: the range lies in memory that was grown by `grow`, which no allocator knows of.
    unsafe { start.write_bytes(byte, range.len()) }
}

/// Writes one byte into a range from [`grow`].
#[inline(always)]
pub fn write(address: usize, byte: u8) {
    // SAFETY: as above; the address is one of that range.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(address).write_volatile(byte) }
}
