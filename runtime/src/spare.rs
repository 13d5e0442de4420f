//! Pages that stay with places whose FWPs have ended, for the next ones there: they go back to the kernel when memory is short.
//!
//! An engine that overwrites memory instead of unmapping it (`memory_reset`) leaves in an ended FWP's place what the next one is to find
//! there: what the place's mapping holds by itself. So pages of a place that nobody has can be dropped at any time, and nobody can tell.
#![allow(unsafe_code)] // Gives pages back to the kernel.

use rustc_hash::FxHashMap;
use rustix::mm::{Advice, madvise};

use crate::engine::Reset;
use crate::fwp::Place;

/// See the module. Whoever prepares FWPs and takes them apart tells of both.
#[derive(Debug)]
pub struct SparePages {
    /// The engine overwrites.
    stay: bool,
    /// By address.
    left: FxHashMap<usize, Left>,
}

#[derive(Debug)]
struct Left {
    /// How many bytes from there on may be present.
    bytes: usize,
    /// By an instance of this template.
    template: usize,
}

impl SparePages {
    /// None yet, in engines that make memory fresh like that.
    #[must_use]
    pub fn new(reset: Reset) -> Self {
        Self { stay: reset == Reset::Overwrite, left: FxHashMap::default() }
    }

    /// Whether an FWP of this template is likely to find there what the last one of it wrote to. It may not: others had the place since, or the
    /// engine overwrites no more than so much.
    pub(crate) fn has(&self, address: usize, template: usize) -> bool {
        self.left.get(&address).is_some_and(|left| left.template == template)
    }

    /// An FWP has this place now.
    pub fn taken(&mut self, place: Place) {
        self.left.remove(&place.address);
    }

    /// The FWP that had it has been taken apart.
    pub fn left(&mut self, place: Place) {
        if self.stay {
            self.left.insert(place.address, Left { bytes: place.bytes, template: place.template });
        }
    }

    /// Gives all of them back; calls `between` between any two places.
    pub(crate) fn release(&mut self, mut between: impl FnMut()) {
        for (address, Left { bytes, .. }) in self.left.drain() {
            // SAFETY: linear memory in an engine's reservation, which is never unmapped while FWPs are prepared, of a place without an
            // instance: nobody has a reference into it, and reading it anew finds what is there now. What the kernel refuses stays.
            let _ = unsafe { madvise(std::ptr::without_provenance_mut(address), bytes, Advice::LinuxDontNeed) };
            between();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot_pages::written_pages;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    const PAGE: usize = 4096;

    #[test]
    fn pages_that_nobody_has_go_back_and_their_bytes_stay_as_those_of_others_do() {
        let (len, access) = (2 * PAGE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping, used as a slice of its length until it is unmapped.
        let memory: &mut [u8] = unsafe {
            let mapping = mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE).unwrap();
            std::slice::from_raw_parts_mut(mapping.cast(), len)
        };
        let place = |page: usize| Place { address: memory.as_ptr().addr() + page * PAGE, bytes: PAGE, template: 1 };
        let (ended, serving) = (place(0), place(1));
        memory[0] = 0;
        memory[PAGE] = b'x';
        let mut spare = SparePages::new(Reset::Overwrite);
        spare.left(ended);
        spare.left(serving);
        spare.taken(serving);
        let mut between = 0;
        spare.release(|| between += 1);

        assert_eq!((written_pages(memory).unwrap(), between), (vec![1], 1));
        assert_eq!((memory[0], memory[PAGE]), (0, b'x'));
        // SAFETY: nobody uses it any more.
        unsafe { munmap(memory.as_mut_ptr().cast(), len).unwrap() };
    }

    #[test]
    fn a_place_has_what_was_left_by_an_instance_of_the_same_template_until_somebody_takes_it() {
        let place = Place { address: 16 * PAGE, bytes: PAGE, template: 1 };
        let mut spare = SparePages::new(Reset::Overwrite);
        assert!(!spare.has(place.address, 1));
        spare.left(place);
        assert!(spare.has(place.address, 1) && !spare.has(place.address, 2));
        spare.taken(place);
        assert!(!spare.has(place.address, 1));
    }

    #[test]
    fn nothing_is_left_where_memory_is_unmapped() {
        let place = Place { address: 16 * PAGE, bytes: PAGE, template: 1 };
        let mut spare = SparePages::new(Reset::Unmap);
        spare.left(place);
        assert!(!spare.has(place.address, 1));
    }
}
