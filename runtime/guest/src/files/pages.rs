//! The bytes of a file that an instance has changed or created: pages of its own over the deployed bytes (copy on write).
//!
//! A page that is no longer needed stays with the instance for reuse, like linear memory: freeing thousands of pages would take too long in
//! one call.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{FileError, Space};

/// The unit of copy on write.
pub(super) const PAGE_BYTES: usize = 4096;
/// The charge for a page, including its index entry.
const PAGE_CHARGE_BYTES: u64 = PAGE_BYTES as u64 + 64;

type Page = Box<[u8; PAGE_BYTES]>;
type Pages = BTreeMap<u32, Page>;

/// The memory that an instance's changes are charged for, and its free pages.
#[derive(Debug, Default)]
pub(super) struct Room {
    bytes: u64,
    /// Free pages. No map is empty.
    spare: Vec<Pages>,
}

impl Room {
    /// Charges for `more` bytes.
    pub(super) fn charge(&mut self, space: &mut dyn Space, more: u64) -> Result<(), FileError> {
        if more == 0 {
            return Ok(());
        }
        if !space.resize(self.bytes + more) {
            return Err(FileError::NoSpace);
        }
        self.bytes += more;
        Ok(())
    }

    /// Reduces the charge by `less` bytes. The account gets the new total with the next charge.
    pub(super) fn give_back(&mut self, less: u64) {
        self.bytes = self.bytes.saturating_sub(less);
    }

    /// Returns a page of zeros: a free one, or a new one that is charged.
    fn page(&mut self, space: &mut dyn Space) -> Result<Page, FileError> {
        if let Some(pages) = self.spare.last_mut() {
            let page = pages.pop_first();
            if pages.is_empty() {
                self.spare.pop();
            }
            if let Some((_, mut page)) = page {
                page.fill(0);
                return Ok(page);
            }
        }
        self.charge(space, PAGE_CHARGE_BYTES)?;
        Ok(Box::new([0; PAGE_BYTES]))
    }

    /// Keeps the pages of a removed file for reuse.
    pub(super) fn keep(&mut self, content: Content) {
        self.keep_pages(content.pages);
    }

    fn keep_pages(&mut self, pages: Pages) {
        if !pages.is_empty() {
            self.spare.push(pages);
        }
    }
}

/// The bytes of one file; see the module.
#[derive(Debug, Default)]
pub(super) struct Content {
    pages: Pages,
    len: u64,
    /// The range of the archive that is read where there is no page. Never longer than the file.
    base: Range<usize>,
}

impl Content {
    /// Returns the content of a deployed file, which is this range of the archive.
    pub(super) fn of(base: Range<usize>) -> Self {
        Self { pages: Pages::new(), len: base.len() as u64, base }
    }

    /// Returns its length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Copies bytes from offset `at` on. Returns how many there were.
    pub(super) fn read(&self, archive: &[u8], at: u64, out: &mut [u8]) -> usize {
        let len = self.len.saturating_sub(at).min(out.len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let (page, within) = place(at + done as u64);
            let step = (PAGE_BYTES - within).min(len - done);
            let out = &mut out[done..done + step];
            match self.pages.get(&page) {
                Some(bytes) => out.copy_from_slice(&bytes[within..within + step]),
                None => self.read_base(archive, at + done as u64, out),
            }
            done += step;
        }
        len
    }

    /// Copies deployed bytes from offset `at` on, followed by zeros.
    fn read_base(&self, archive: &[u8], at: u64, out: &mut [u8]) {
        let base = archive.get(self.base.clone()).unwrap_or(&[]);
        let from = usize::try_from(at).ok().and_then(|at| base.get(at..)).unwrap_or(&[]);
        let shown = from.len().min(out.len());
        out[..shown].copy_from_slice(&from[..shown]);
        out[shown..].fill(0);
    }

    /// Writes from offset `at` on, which must be within the file size limit. Returns how many bytes there was memory for.
    pub(super) fn write(
        &mut self,
        archive: &[u8],
        at: u64,
        bytes: &[u8],
        room: &mut Room,
        space: &mut dyn Space,
    ) -> Result<usize, FileError> {
        let mut done = 0;
        while done < bytes.len() {
            let at = at + done as u64;
            let (index, within) = place(at);
            let step = (PAGE_BYTES - within).min(bytes.len() - done);
            if !self.pages.contains_key(&index) {
                match room.page(space) {
                    Ok(mut page) => {
                        self.read_base(archive, at - within as u64, &mut page[..]);
                        self.pages.insert(index, page);
                    }
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                }
            }
            if let Some(page) = self.pages.get_mut(&index) {
                page[within..within + step].copy_from_slice(&bytes[done..done + step]);
            }
            done += step;
            self.len = self.len.max(at + step as u64);
        }
        Ok(done)
    }

    /// Truncates the file, or extends it with zeros.
    pub(super) fn set_len(&mut self, len: u64, room: &mut Room) {
        if len < self.len {
            let (last, within) = place(len);
            let first_gone = if within == 0 { last } else { last + 1 };
            room.keep_pages(self.pages.split_off(&first_gone));
            if let Some(page) = self.pages.get_mut(&last) {
                page[within..].fill(0);
            }
            let base_len = self.base.len().min(usize::try_from(len).unwrap_or(usize::MAX));
            self.base.end = self.base.start + base_len;
        }
        self.len = len;
    }
}

/// Returns a byte's page and its offset in the page. The file size limit keeps page numbers within `u32`.
fn place(at: u64) -> (u32, usize) {
    ((at / PAGE_BYTES as u64) as u32, (at % PAGE_BYTES as u64) as usize)
}
