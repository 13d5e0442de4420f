//! Which pages of linear memory the instances of a template write to before they serve anybody, learned of the first of them.
//!
//! A page of the image that is first read and then written costs two faults, and the second has every core of the process forget what it
//! knew of the page: an interrupt for data-plane threads, and ten times what a page takes else. So the kernel provides these pages
//! as they will be written, before the guest runs. That is a hint: where it is wrong, pages are provided when they are touched.
#![allow(unsafe_code)] // Has the kernel provide pages of linear memory.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{LazyLock, OnceLock};

use rustix::mm::{Advice, madvise};

const PAGE: usize = 4096;
/// Beyond so many pages, or so many runs of them, guests differ too much, or do too much, for a hint.
const PAGES_MAX: usize = 64;
const RUNS_MAX: usize = 8;
/// Bytes that the kernel is asked for at a time: some microseconds' worth.
const AT_ONCE: usize = 4 * PAGE;

/// What the kernel says of this process's pages; to open it takes longer than to ask.
static PAGEMAP: LazyLock<std::io::Result<File>> = LazyLock::new(|| File::open("/proc/self/pagemap"));

/// What the kernel says of a page in `/proc/self/pagemap`: it is there, and it is a file's.
const PRESENT: u64 = 1 << 63;
const OF_A_FILE: u64 = 1 << 61;

/// See the module. Runs of bytes from the start of linear memory. All chains that have a stage of the template learn of the same instance.
#[derive(Debug, Default)]
pub(crate) struct HotPages(OnceLock<Box<[Range<usize>]>>);

impl HotPages {
    /// Learns from the linear memory of an instance that waits for the first time, unless another was there before.
    pub(crate) fn learn(&self, memory: *const [u8]) {
        self.0.get_or_init(|| {
            let written = written_pages(memory).unwrap_or_default();
            let runs = runs(&written);
            if written.len() > PAGES_MAX || runs.len() > RUNS_MAX { Box::default() } else { runs.into() }
        });
    }

    /// Has the kernel provide these pages in a linear memory that nobody has touched yet, a few at a time; calls `between` after each few.
    /// Every byte stays as it is.
    pub(crate) fn provide(&self, memory: &mut [u8], between: &mut dyn FnMut()) {
        for run in self.0.get().map_or(&[][..], |runs| runs) {
            let Some(pages) = memory.get_mut(run.clone()) else { continue };
            for few in pages.chunks_mut(AT_ONCE) {
                // SAFETY: the pages are those of a slice that is ours; what they hold does not change. Fails where the kernel does not
                // know the advice; then there is none.
                let _ = unsafe { madvise(few.as_mut_ptr().cast(), few.len(), Advice::LinuxPopulateWrite) };
                between();
            }
        }
    }
}

/// The pages of this memory, by number, that are there and no longer the image's own.
pub(crate) fn written_pages(memory: *const [u8]) -> std::io::Result<Vec<usize>> {
    let mut entries = vec![0; memory.len() / PAGE * size_of::<u64>()];
    let first = memory.addr() / PAGE;
    let pagemap = PAGEMAP.as_ref().map_err(|error| error.kind())?;
    pagemap.read_exact_at(&mut entries, (first * size_of::<u64>()) as u64)?;
    let (entries, _) = entries.as_chunks::<{ size_of::<u64>() }>();
    let is_written = |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & (PRESENT | OF_A_FILE) == PRESENT;
    Ok(entries.iter().enumerate().filter(|(_, entry)| is_written(entry)).map(|(page, _)| page).collect())
}

/// Pages in a row, as bytes.
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

    #[test]
    fn what_one_instance_wrote_is_provided_for_the_next_and_nothing_else() {
        let hot = HotPages::default();
        with_image(|memory| {
            assert_eq!(memory[20 * PAGE], b'x');
            [3, 4, 9].iter().for_each(|page| memory[page * PAGE + 7] = b'y');
            hot.learn(memory);
        });
        with_image(|memory| {
            hot.provide(memory, &mut || {});
            assert_eq!(written_pages(memory).unwrap(), [3, 4, 9]);
            assert!(memory.iter().all(|byte| *byte == b'x'));
            hot.learn(&raw const memory[..PAGE]);
        });
        with_image(|memory| {
            hot.provide(&mut memory[..5 * PAGE], &mut || {});
            assert_eq!(written_pages(memory).unwrap(), [3, 4], "pages beyond a smaller memory");
        });
    }

    #[test]
    fn who_writes_much_is_no_hint_for_others() {
        assert_eq!(runs(&[0, 1, 2, 5, 7, 8]), [0..3 * PAGE, 5 * PAGE..6 * PAGE, 7 * PAGE..9 * PAGE]);
        let hot = HotPages::default();
        with_image(|memory| {
            (0..PAGES).step_by(2).for_each(|page| memory[page * PAGE] = b'y');
            hot.learn(memory);
        });
        with_image(|memory| {
            hot.provide(memory, &mut || {});
            assert!(written_pages(memory).unwrap().is_empty());
        });
    }
}
