//! The pages of linear memory to which a template's instances write before they serve a client, learned from the first instance.
//!
//! A page of the image that is first read and then written costs two faults. The second makes every core of the process flush its TLB
//! entry, which is an interrupt for data-plane threads and makes the fault several times as expensive. So these pages are populated for
//! writing before the guest runs. This is only a hint, which the switch of tuning turns off: a page that it misses is provided when it is
//! touched.
#![allow(unsafe_code)] // Asks the kernel to provide pages of linear memory.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::mm::{Advice, madvise};

use super::written_pages::PAGEMAP;

const PAGE: usize = 4096;
/// With more pages or more runs of pages than this, guests differ or write too much for a hint to pay.
const PAGES_MAX: usize = 64;
const RUNS_MAX: usize = 8;
/// Bytes populated per system call: some microseconds' worth.
const AT_ONCE: usize = 4 * PAGE;

/// Bits of an entry in `/proc/self/pagemap`: the page is present; the page belongs to a file.
const PRESENT: u64 = 1 << 63;
const OF_A_FILE: u64 = 1 << 61;

/// See the module. Runs of bytes from the start of linear memory. All chains with a stage of the template share what one instance taught.
#[derive(Debug, Default)]
pub(crate) struct HotPages(OnceLock<Box<[Range<usize>]>>);

impl HotPages {
    /// Learns from the linear memory of an instance that waits for the first time, unless an earlier instance was used already.
    pub(crate) fn learn(&self, memory: *const [u8]) {
        self.0.get_or_init(|| {
            let written = written_pages(memory).unwrap_or_default();
            let runs = runs(&written);
            if written.len() > PAGES_MAX || runs.len() > RUNS_MAX { Box::default() } else { runs.into() }
        });
    }

    /// Returns these pages, a few at a time, by their bytes. With tuning off, there are none.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        let runs = self.0.get().filter(|_| pinion_mma::tuning::is_full()).map_or(&[][..], |runs| runs);
        let few = |run: &Range<usize>| {
            let end = run.end;
            run.clone().step_by(AT_ONCE).map(move |start| start..end.min(start + AT_ONCE))
        };
        runs.iter().flat_map(few)
    }

    /// Populates such a part in a linear memory that was not touched yet. No byte changes.
    pub(crate) fn provide(memory: &mut [u8], part: Range<usize>) {
        let Some(few) = memory.get_mut(part) else { return };
        // SAFETY: the pages are those of a slice that is ours; what they hold does not change. If the kernel does not know the advice, the
        // call fails and the pages are provided when they are touched.
        let _ = unsafe { madvise(few.as_mut_ptr().cast(), few.len(), Advice::LinuxPopulateWrite) };
    }
}

/// Returns the numbers of the pages of this memory that are present and no longer the image's own.
pub(crate) fn written_pages(memory: *const [u8]) -> std::io::Result<Vec<usize>> {
    let mut entries = vec![0; memory.len() / PAGE * size_of::<u64>()];
    let first = memory.addr() / PAGE;
    let pagemap = PAGEMAP.as_ref().map_err(|error| error.kind())?;
    pagemap.read_exact_at(&mut entries, (first * size_of::<u64>()) as u64)?;
    let (entries, _) = entries.as_chunks::<{ size_of::<u64>() }>();
    let is_written = |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & (PRESENT | OF_A_FILE) == PRESENT;
    Ok(entries.iter().enumerate().filter(|(_, entry)| is_written(entry)).map(|(page, _)| page).collect())
}

/// Returns runs of adjacent pages, in bytes.
fn runs(pages: &[usize]) -> Vec<Range<usize>> {
    pages.chunk_by(|page, next| page + 1 == *next).map(|run| run[0] * PAGE..(run[run.len() - 1] + 1) * PAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    const PAGES: usize = 32;

    /// Calls `with` with a private mapping of a file of letters, as images are mapped.
    fn with_image(with: impl FnOnce(&mut [u8])) {
        let file = memfd_create("image", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, (PAGES * PAGE) as u64).unwrap();
        rustix::io::write(&file, &[b'x'; PAGES * PAGE]).unwrap();
        let (len, access) = (PAGES * PAGE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping, used as a slice of its length until it is unmapped.
        unsafe {
            let mapping = mmap(std::ptr::null_mut(), len, access, MapFlags::PRIVATE, &file, 0).unwrap();
            with(std::slice::from_raw_parts_mut(mapping.cast(), len));
            munmap(mapping, len).unwrap();
        }
    }

    fn provide(hot: &HotPages, memory: &mut [u8]) {
        hot.parts().for_each(|part| HotPages::provide(memory, part));
    }

    #[test]
    fn only_pages_that_one_instance_wrote_are_populated_for_the_next() {
        let hot = HotPages::default();
        with_image(|memory| {
            assert_eq!(memory[20 * PAGE], b'x');
            [3, 4, 9].iter().for_each(|page| memory[page * PAGE + 7] = b'y');
            hot.learn(memory);
        });
        with_image(|memory| {
            provide(&hot, memory);
            assert_eq!(written_pages(memory).unwrap(), [3, 4, 9]);
            assert!(memory.iter().all(|byte| *byte == b'x'));
            hot.learn(&raw const memory[..PAGE]);
        });
        with_image(|memory| {
            provide(&hot, &mut memory[..5 * PAGE]);
            assert_eq!(written_pages(memory).unwrap(), [3, 4], "pages beyond a smaller memory");
        });
    }

    #[test]
    fn an_instance_that_writes_much_gives_no_hint() {
        assert_eq!(runs(&[0, 1, 2, 5, 7, 8]), [0..3 * PAGE, 5 * PAGE..6 * PAGE, 7 * PAGE..9 * PAGE]);
        let hot = HotPages::default();
        with_image(|memory| {
            (0..PAGES).step_by(2).for_each(|page| memory[page * PAGE] = b'y');
            hot.learn(memory);
        });
        with_image(|memory| {
            provide(&hot, memory);
            assert!(written_pages(memory).unwrap().is_empty());
        });
    }
}
