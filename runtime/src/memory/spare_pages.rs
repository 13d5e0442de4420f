//! Pages left by FWPs that have ended, for the next FWPs in the same places. They return to the kernel when memory is short.
//!
//! An engine that overwrites memory instead of unmapping it (`memory_reset`) restores an ended FWP's place to what its mapping holds by
//! itself. So the pages of a place without an FWP can be dropped at any time without a visible effect.
#![allow(unsafe_code)] // Returns pages to the kernel.

use rustc_hash::FxHashMap;
use rustix::mm::{Advice, madvise};

use crate::ids::MemoryPlace;
use crate::templates::engine::Reset;

/// See the module. The thread that prepares and dismantles FWPs reports both here.
#[derive(Debug)]
pub struct SparePages {
    /// The engine overwrites, so pages stay.
    stay: bool,
    /// By address.
    left: FxHashMap<usize, Left>,
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
        Self { stay: reset == Reset::Overwrite, left: FxHashMap::default() }
    }

    /// Returns whether an FWP of this template is likely to find its pages there. They may be missing if other FWPs had the place since, or
    /// if the engine overwrites less than they are.
    pub(crate) fn has(&self, address: usize, template: usize) -> bool {
        self.left.get(&address).is_some_and(|left| left.template == template)
    }

    /// Notes that an FWP has this place now.
    pub fn taken(&mut self, place: MemoryPlace) {
        self.left.remove(&place.address);
    }

    /// Notes that the FWP in this place has been dismantled.
    pub fn left(&mut self, place: MemoryPlace) {
        if self.stay {
            self.left.insert(place.address, Left { bytes: place.bytes, template: place.template });
        }
    }

    /// Returns all of them to the kernel; calls `between` between any two places.
    pub(crate) fn release(&mut self, mut between: impl FnMut()) {
        for (address, Left { bytes, .. }) in self.left.drain() {
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
        let mut spare = SparePages::new(Reset::Overwrite);
        spare.left(ended);
        spare.left(serving);
        spare.taken(serving);
        let mut between = 0;
        spare.release(|| between += 1);

        assert_eq!((written_pages(memory).unwrap(), between), (vec![1], 1));
        assert_eq!((memory[0], memory[PAGE]), (0, b'x'));
        // SAFETY: the mapping is not used any more.
        unsafe { munmap(memory.as_mut_ptr().cast(), len).unwrap() };
    }

    #[test]
    fn a_place_keeps_the_pages_of_its_last_template_until_it_is_taken() {
        let place = MemoryPlace { address: 16 * PAGE, bytes: PAGE, template: 1 };
        let mut spare = SparePages::new(Reset::Overwrite);
        assert!(!spare.has(place.address, 1));
        spare.left(place);
        assert!(spare.has(place.address, 1) && !spare.has(place.address, 2));
        spare.taken(place);
        assert!(!spare.has(place.address, 1));
    }

    #[test]
    fn nothing_is_left_where_memory_is_unmapped() {
        let place = MemoryPlace { address: 16 * PAGE, bytes: PAGE, template: 1 };
        let mut spare = SparePages::new(Reset::Unmap);
        spare.left(place);
        assert!(!spare.has(place.address, 1));
    }
}
