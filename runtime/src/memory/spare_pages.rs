//! Pages left by FWPs that have ended, for the next FWPs in the same places. They return to the kernel when memory is short.
//!
//! An engine that overwrites memory instead of unmapping it (`memory_reset`) restores an ended FWP's place to what its mapping holds by
//! itself. So the pages of a place without an FWP can be dropped at any time without a visible effect.
#![allow(unsafe_code)] // Returns pages to the kernel.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use rustix::mm::{Advice, madvise};

use crate::ids::MemoryPlace;
use crate::templates::engine::Reset;

/// See the module. The thread that prepares and dismantles FWPs reports both here; clones are the same record.
#[derive(Debug, Clone)]
pub struct SparePages {
    /// The engine overwrites, so pages stay.
    stay: bool,
    places: Arc<Mutex<Places>>,
}

#[derive(Debug, Default)]
struct Places {
    /// By address.
    left: FxHashMap<usize, Left>,
    /// How many FWPs have a place that is not known yet.
    unknown: usize,
}

/// The place of an FWP that is being prepared. Unless it is kept, its pages are left there when this is dropped.
#[derive(Debug)]
pub(crate) struct NewPlace {
    spare: SparePages,
    found: Option<MemoryPlace>,
    is_kept: bool,
}

impl NewPlace {
    /// Notes where it is. Returns whether it is likely to have pages of its template there. They may be missing if the engine overwrites
    /// less than they are.
    pub(crate) fn found(&mut self, place: MemoryPlace) -> bool {
        let mut places = self.spare.places();
        if self.found.replace(place).is_none() {
            places.unknown -= 1;
        }
        places.left.remove(&place.address).is_some_and(|left| left.template == place.template)
    }

    /// Notes that the FWP has been prepared: from now on its end is reported.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NewPlace {
    fn drop(&mut self) {
        match self.found {
            None => self.spare.places().unknown -= 1,
            Some(place) if !self.is_kept => self.spare.left(place),
            Some(_) => {}
        }
    }
}

#[derive(Debug)]
struct Left {
    /// How many bytes from this address on may be present.
    bytes: usize,
    /// The template of the instance that left them.
    template: usize,
}

impl SparePages {
    /// Creates an empty record, for engines that reset memory in this way.
    #[must_use]
    pub fn new(reset: Reset) -> Self {
        Self { stay: reset == Reset::Overwrite, places: Arc::default() }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an FWP is about to get a place. Its guest may already run there before it is known which one it is.
    pub(crate) fn new_place(&self) -> NewPlace {
        self.places().unknown += 1;
        NewPlace { spare: self.clone(), found: None, is_kept: false }
    }

    /// Notes that the FWP in this place has been dismantled.
    pub fn left(&self, place: MemoryPlace) {
        if self.stay {
            self.places().left.insert(place.address, Left { bytes: place.bytes, template: place.template });
        }
    }

    /// Returns all of them to the kernel; calls `between` between any two places. Does nothing while the place of any FWP is not known.
    pub(crate) fn release(&self, mut between: impl FnMut()) {
        let left = match &mut *self.places() {
            Places { unknown: 0, left } => std::mem::take(left),
            _ => return,
        };
        for (address, Left { bytes, .. }) in left {
            // SAFETY: linear memory in an engine's reservation, which is never unmapped while FWPs are prepared, of a place without an
            // instance. There is no reference into it, and reading it anew finds what is there now. Pages that the kernel refuses stay.
            let _ = unsafe { madvise(std::ptr::without_provenance_mut(address), bytes, Advice::LinuxDontNeed) };
            between();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::hot_pages::written_pages;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    const PAGE: usize = 4096;

    #[test]
    fn unused_pages_return_to_the_kernel_and_no_byte_changes() {
        let (len, access) = (2 * PAGE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping, used as a slice of its length until it is unmapped.
        let memory: &mut [u8] = unsafe {
            let mapping = mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE).unwrap();
            std::slice::from_raw_parts_mut(mapping.cast(), len)
        };
        let place =
            |page: usize| MemoryPlace { address: memory.as_ptr().addr() + page * PAGE, bytes: PAGE, template: 1 };
        let (ended, serving) = (place(0), place(1));
        memory[0] = 0;
        memory[PAGE] = b'x';
        let spare = SparePages::new(Reset::Overwrite);
        spare.left(ended);
        spare.left(serving);
        let mut new = spare.new_place();
        let mut between = 0;
        // It may be in either place.
        spare.release(|| between += 1);
        assert_eq!(between, 0);
        new.found(serving);
        new.keep();
        spare.release(|| between += 1);

        assert_eq!((written_pages(memory).unwrap(), between), (vec![1], 1));
        assert_eq!((memory[0], memory[PAGE]), (0, b'x'));
        // SAFETY: the mapping is not used any more.
        unsafe { munmap(memory.as_mut_ptr().cast(), len).unwrap() };
    }

    #[test]
    fn a_place_keeps_the_pages_of_its_last_template_until_it_is_taken() {
        let place = MemoryPlace { address: 16 * PAGE, bytes: PAGE, template: 1 };
        let spare = SparePages::new(Reset::Overwrite);
        assert!(!has_pages(&spare, place));
        spare.left(place);
        assert!(!has_pages(&spare, MemoryPlace { template: 2, ..place }), "pages of another template");
        spare.left(place);
        assert!(has_pages(&spare, place));
        assert!(!has_pages(&spare, place));
        // An FWP that is not prepared to its end leaves its pages.
        spare.new_place().found(place);
        assert!(has_pages(&spare, place));
        drop(spare.new_place());
        assert_eq!(spare.places().unknown, 0);
    }

    /// Returns whether an FWP that gets this place finds pages of its template.
    fn has_pages(spare: &SparePages, place: MemoryPlace) -> bool {
        let mut new = spare.new_place();
        let has_pages = new.found(place);
        new.keep();
        has_pages
    }

    #[test]
    fn nothing_is_left_where_memory_is_unmapped() {
        let place = MemoryPlace { address: 16 * PAGE, bytes: PAGE, template: 1 };
        let spare = SparePages::new(Reset::Unmap);
        spare.left(place);
        assert!(!has_pages(&spare, place));
    }
}
