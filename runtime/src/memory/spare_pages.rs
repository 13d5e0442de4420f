//! Pages left by FWPs that have ended, for the next FWPs in the same places. They return to the kernel when memory is short, and the oldest of
//! them when there are more than FWPs have, which tenants are charged for.
//!
//! An engine that overwrites memory instead of unmapping it (`memory_reset`) restores an ended FWP's place to what its mapping holds by
//! itself. So the pages of a place without an FWP can be dropped at any time without a visible effect.
#![allow(unsafe_code)] // Returns pages to the kernel.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use rustix::mm::{Advice, madvise};

use crate::ids::{LeftPlace, MemoryPlace};
use crate::templates::engine::{KEEP_MEMORY_BYTES, Reset};

/// This much may be left, however little FWPs have. In bytes.
const LEFT_BYTES_MIN: usize = 16 << 20;
/// Places of which the pages are returned at once, at most: a call to the kernel each. More than one may have to make room for one that has
/// more pages.
const RETURNED_AT_ONCE: usize = 64;

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
    /// Their addresses, in the order in which they were left.
    order: BTreeMap<u64, usize>,
    next: u64,
    /// What is present of all that is left, in bytes.
    left_bytes: usize,
    /// The sizes of FWPs' memories when they were found, by address, and how much of all of them may be present.
    used: FxHashMap<usize, usize>,
    used_bytes: usize,
    /// How many FWPs have a place that is not known yet.
    unknown: usize,
}

/// The place of an FWP that is being prepared. Unless it is kept, its pages are left there when this is dropped.
pub(crate) struct NewPlace {
    spare: SparePages,
    found: Option<MemoryPlace>,
    bytes: Option<Box<dyn Fn() -> usize + Send>>,
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
        let left = places.take(place.address);
        if self.spare.stay {
            places.use_place(&place);
            places.return_surplus();
        }
        let Some(Left { bytes, template, .. }) = left else { return false };
        if bytes > place.bytes {
            // No instance reaches that part before it grows, and nothing looks for pages there when it is reset.
            release(place.address + place.bytes, bytes - place.bytes);
        }
        template == place.template
    }

    /// Notes how to find out the size of its memory later: it may grow before it is prepared.
    pub(crate) fn has_size(&mut self, bytes: impl Fn() -> usize + Send + 'static) {
        self.bytes = Some(Box::new(bytes));
    }

    /// Notes that the FWP has been prepared: from now on its end is reported.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NewPlace {
    fn drop(&mut self) {
        match self.found {
            None => {
                let mut places = self.spare.places();
                places.unknown -= 1;
                places.return_surplus();
            }
            Some(place) if !self.is_kept => {
                let bytes = self.bytes.as_ref().map_or(0, |bytes| bytes());
                let place = MemoryPlace { bytes: place.bytes.max(bytes), ..place };
                self.spare.left(LeftPlace { place, present_bytes: present_bytes_max(place.bytes) });
            }
            Some(_) => {}
        }
    }
}

#[derive(Debug)]
struct Left {
    /// In how many bytes from this address on pages may be present, and how many bytes these have.
    bytes: usize,
    present_bytes: usize,
    /// The template of the instance that left them.
    template: usize,
    /// Its key in the order.
    number: u64,
}

impl Places {
    /// Takes what was left at this address.
    fn take(&mut self, address: usize) -> Option<Left> {
        let left = self.left.remove(&address)?;
        self.order.remove(&left.number);
        self.left_bytes -= left.present_bytes;
        Some(left)
    }

    /// Takes what was left first, if there is more than may be left.
    fn take_surplus(&mut self) -> Option<(usize, Left)> {
        if self.left_bytes <= self.used_bytes.max(LEFT_BYTES_MIN) {
            return None;
        }
        let (_, &address) = self.order.first_key_value()?;
        Some((address, self.take(address)?))
    }

    /// Returns pages of places that were left first to the kernel, if there is more than may be left. Does nothing while an FWP may be in any
    /// place.
    fn return_surplus(&mut self) {
        for _ in 0..RETURNED_AT_ONCE {
            if self.unknown > 0 {
                return;
            }
            let Some((address, Left { bytes, .. })) = self.take_surplus() else { return };
            release(address, bytes);
        }
    }

    fn use_place(&mut self, place: &MemoryPlace) {
        let before = self.used.insert(place.address, place.bytes).unwrap_or_default();
        self.used_bytes = self.used_bytes + present_bytes_max(place.bytes) - present_bytes_max(before);
    }

    fn leave(&mut self, LeftPlace { place, present_bytes }: LeftPlace) {
        let MemoryPlace { address, bytes, template } = place;
        self.used_bytes -= present_bytes_max(self.used.remove(&address).unwrap_or_default());
        self.take(address);
        let number = self.next;
        self.next += 1;
        self.left.insert(address, Left { bytes, present_bytes, template, number });
        self.order.insert(number, address);
        self.left_bytes += present_bytes;
    }
}

/// Returns how many bytes of a memory of this size may be present when it has been reset.
fn present_bytes_max(memory: usize) -> usize {
    memory.min(KEEP_MEMORY_BYTES)
}

/// Returns pages of a place to the kernel that no FWP reaches.
fn release(address: usize, bytes: usize) {
    // SAFETY: linear memory in an engine's reservation, which is never unmapped while FWPs are prepared: of a place without an instance, or
    // beyond an instance's memory. There is no reference into it, and reading it anew finds what is there now. Pages that the kernel refuses
    // stay.
    let _ = unsafe { madvise(std::ptr::without_provenance_mut(address), bytes, Advice::LinuxDontNeed) };
}

impl SparePages {
    /// Creates an empty record, for engines that reset memory in this way.
    #[must_use]
    pub fn new(reset: Reset) -> Self {
        Self { stay: reset == Reset::Overwrite, places: Arc::default() }
    }

    /// Returns whether the engine overwrites memory, so that pages stay where they are.
    pub(crate) fn stay(&self) -> bool {
        self.stay
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an FWP is about to get a place. Its guest may already run there before it is known which one it is.
    pub(crate) fn new_place(&self) -> NewPlace {
        self.places().unknown += 1;
        NewPlace { spare: self.clone(), found: None, bytes: None, is_kept: false }
    }

    /// Notes that the FWP in this place has been dismantled. May return the pages of places that others left to the kernel.
    pub fn left(&self, place: LeftPlace) {
        if !self.stay {
            return;
        }
        let mut places = self.places();
        places.leave(place);
        places.return_surplus();
    }

    /// Returns all of them to the kernel; calls `between` between any two places. Does nothing while the place of any FWP is not known.
    pub(crate) fn release(&self, mut between: impl FnMut()) {
        let left = match &mut *self.places() {
            places @ Places { unknown: 0, .. } => {
                (places.order, places.left_bytes) = (BTreeMap::new(), 0);
                std::mem::take(&mut places.left)
            }
            _ => return,
        };
        for (address, Left { bytes, .. }) in left {
            release(address, bytes);
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

    fn whole(place: MemoryPlace) -> LeftPlace {
        LeftPlace { place, present_bytes: place.bytes }
    }

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
        spare.left(whole(ended));
        spare.left(whole(serving));
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
        spare.left(whole(place));
        assert!(!has_pages(&spare, MemoryPlace { template: 2, ..place }), "pages of another template");
        spare.left(whole(place));
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
    fn no_more_is_left_than_fwps_have_and_what_was_left_first_goes_first() {
        const COUNT: usize = 40;
        let spare = SparePages::new(Reset::Overwrite);
        let len = (COUNT + 2) * KEEP_MEMORY_BYTES;
        // SAFETY: a new mapping, in which nothing is used.
        let memory =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE).unwrap() };
        let place = |number: usize| {
            let address = memory.addr() + number * KEEP_MEMORY_BYTES;
            MemoryPlace { address, bytes: KEEP_MEMORY_BYTES, template: 1 }
        };
        let take = |number: usize| {
            let mut new = spare.new_place();
            new.found(place(number));
            new.keep();
        };
        (1..=COUNT).for_each(take);
        let left = || {
            let places = spare.places();
            assert_eq!(
                (places.left.len(), places.left_bytes),
                (places.order.len(), places.left.len() * KEEP_MEMORY_BYTES)
            );
            let number = |address: &usize| (address - memory.addr()) / KEEP_MEMORY_BYTES;
            let mut numbers: Vec<usize> = places.left.keys().map(number).collect();
            numbers.sort_unstable();
            numbers
        };
        (1..=COUNT / 2).for_each(|number| spare.left(whole(place(number))));
        assert_eq!(left(), (1..=COUNT / 2).collect::<Vec<_>>(), "as much as FWPs have");
        (COUNT / 2 + 1..=COUNT).for_each(|number| spare.left(whole(place(number))));
        assert_eq!(left(), (COUNT - 15..=COUNT).collect::<Vec<_>>(), "16 MiB, as no FWP is left");
        take(COUNT);
        assert_eq!(left(), (COUNT - 15..COUNT).collect::<Vec<_>>());
        let new = spare.new_place();
        spare.left(whole(place(COUNT)));
        spare.left(whole(place(COUNT + 1)));
        assert_eq!(left().len(), 17, "the place of an FWP that is being made is not known");
        drop(new);
        // SAFETY: the mapping is not used any more.
        unsafe { munmap(memory, len).unwrap() };
    }

    #[test]
    fn what_is_left_counts_by_the_pages_that_are_present() {
        const COUNT: usize = 1_000;
        let spare = SparePages::new(Reset::Overwrite);
        for number in 1..=COUNT {
            let place = MemoryPlace { address: number * KEEP_MEMORY_BYTES, bytes: KEEP_MEMORY_BYTES, template: 1 };
            spare.left(LeftPlace { place, present_bytes: LEFT_BYTES_MIN / COUNT });
        }
        assert_eq!(spare.places().left.len(), COUNT);
    }

    #[test]
    fn places_with_few_pages_make_room_for_those_with_many() {
        let spare = SparePages::new(Reset::Overwrite);
        let len = 2_000 * KEEP_MEMORY_BYTES;
        // SAFETY: a new mapping, in which nothing is used.
        let memory =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE).unwrap() };
        let leave = |number: usize, present_bytes: usize| {
            let address = memory.addr() + number * KEEP_MEMORY_BYTES;
            spare.left(LeftPlace {
                place: MemoryPlace { address, bytes: KEEP_MEMORY_BYTES, template: 1 },
                present_bytes,
            });
            assert!(spare.places().left_bytes <= LEFT_BYTES_MIN, "after place {number}");
        };
        (0..1_000).for_each(|number| leave(number, 4 * PAGE));
        (1_000..1_250).for_each(|number| leave(number, KEEP_MEMORY_BYTES));
        // SAFETY: the mapping is not used any more.
        unsafe { munmap(memory, len).unwrap() };
    }

    #[test]
    fn nothing_is_left_where_memory_is_unmapped() {
        let place = MemoryPlace { address: 16 * PAGE, bytes: PAGE, template: 1 };
        let spare = SparePages::new(Reset::Unmap);
        spare.left(whole(place));
        assert!(!has_pages(&spare, place));
    }
}
