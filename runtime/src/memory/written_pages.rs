//! Which pages of this process's private memory are no longer what their mapping holds by itself, as the kernel lists them (`PAGEMAP_SCAN`,
//! Linux 6.7 and later; the kernel's documentation, `admin-guide/mm/pagemap`).
//!
//! A page counts whether it is present or not: one that the kernel is moving, or has swapped out, is not present, and not clean either.
#![allow(unsafe_code)] // Lets the kernel fill a list of ranges.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::sync::LazyLock;

/// The kernel's record of this process's pages. Kept open, because opening it takes longer than a scan.
pub(super) static PAGEMAP: LazyLock<std::io::Result<File>> = LazyLock::new(|| File::open("/proc/self/pagemap"));

/// Most runs of adjacent pages in one list.
pub(crate) const RUNS_MAX: usize = 32;

/// Categories of pages: `PAGE_IS_FILE` and `PAGE_IS_PFNZERO` are as the mapping made them, for reading only; a page that is swapped out or
/// is being moved is `PAGE_IS_SWAPPED`.
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;

/// `struct pm_scan_arg` of the kernel's `linux/fs.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    list: u64,
    list_len: u64,
    pages_max: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

/// `struct page_region`
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const PAGEMAP_SCAN: libc::Ioctl = libc::_IOWR::<Scan>(b'f' as u32, 16);

/// A list of written pages.
#[derive(Debug)]
pub(crate) struct Written {
    regions: [Region; RUNS_MAX],
    count: usize,
    /// All addresses before this one were looked at.
    pub(crate) looked_to: usize,
}

impl Written {
    /// Looks for written pages in a range of addresses, until the list is full or has this many pages. Takes a microsecond or two for an FWP.
    ///
    /// # Errors
    /// The kernel's, above all if it has no such list (`ENOTTY`).
    pub(crate) fn list(memory: Range<usize>, pages_max: usize) -> std::io::Result<Self> {
        let pagemap = PAGEMAP.as_ref().map_err(std::io::Error::kind)?;
        let mut regions = [Region::default(); RUNS_MAX];
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: memory.start as u64,
            end: memory.end as u64,
            list: regions.as_mut_ptr().expose_provenance() as u64,
            list_len: RUNS_MAX as u64,
            pages_max: pages_max as u64,
            inverted: FILE | ZERO,
            all_of: FILE | ZERO,
            any_of: PRESENT | SWAPPED,
            returned: SWAPPED,
            ..Scan::default()
        };
        // SAFETY: the record is the kernel's own form, and the list that it names has the length that it gives; both outlive the call. The
        // pages that are looked at are not changed.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        let count = usize::try_from(count).map_err(|_| std::io::Error::last_os_error())?;
        Ok(Self { regions, count: count.min(RUNS_MAX), looked_to: scan.walk_end as usize })
    }

    /// Returns the runs of adjacent written pages that are present, in bytes, in order.
    pub(crate) fn present(&self) -> impl Iterator<Item = Range<usize>> {
        self.of(0)
    }

    /// Returns those that are being moved or swapped out.
    pub(crate) fn absent(&self) -> impl Iterator<Item = Range<usize>> {
        self.of(SWAPPED)
    }

    fn of(&self, categories: u64) -> impl Iterator<Item = Range<usize>> {
        let of_these = self.regions[..self.count].iter().filter(move |region| region.categories == categories);
        of_these.map(|region| region.start as usize..region.end as usize)
    }
}
