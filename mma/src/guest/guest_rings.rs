//! The two rings in a guest's memory, and the bytes of its slots, as its worker reaches them: by raw pointer, and only while the guest is not
//! running.
#![allow(unsafe_code)] // Reads and writes guest memory.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use pinion_abi::{Descriptor, RingHeader};

use crate::guest::pool::{PAGE, PoolLayout};
use crate::id::SlotIndex;
use crate::tuning::prefetch;

/// The two rings in guest memory, accessed by raw pointer.
pub(super) struct GuestRings {
    pub(super) rx: NonNull<RingHeader>,
    pub(super) tx: NonNull<RingHeader>,
    entries: u32,
    slots: NonNull<u8>,
    slot_size: u32,
}

// SAFETY: pointers into linear memory that outlives the value (contract of `new`), not bound to a thread.
unsafe impl Send for GuestRings {}

impl GuestRings {
    /// # Safety
    /// `layout` was checked against this memory, which neither moves nor is unmapped while the value exists; methods are
    /// called only while the guest is not running.
    pub(super) unsafe fn new(memory: NonNull<u8>, layout: &PoolLayout) -> Self {
        let header = layout.header();
        // SAFETY: in bounds and aligned, as `layout` was checked against this memory, which itself is page-aligned.
        let ring = |address: u32| unsafe { memory.add(address as usize).cast::<RingHeader>() };
        Self {
            rx: ring(header.rx_ring),
            tx: ring(header.tx_ring),
            entries: header.ring_entries,
            // SAFETY: in bounds, as `layout` was checked against this memory.
            slots: unsafe { memory.add(header.slots as usize) },
            slot_size: header.slot_size,
        }
    }

    /// Prefetches the frame's first bytes to this core while the guest has not reached them yet.
    pub(super) fn prefetch_payload(&self, slot: SlotIndex, offset: u16) {
        let distance = usize::from(slot.0) * self.slot_size as usize + usize::from(offset);
        prefetch::to_read(self.slots.as_ptr().wrapping_add(distance));
    }

    /// Makes the kernel provide the pages of slots. No byte changes.
    pub(super) fn touch_slots(&self, slots: Range<u16>) {
        let start = self.slots.as_ptr().addr();
        let [from, to] = [slots.start, slots.end].map(|slot| usize::from(slot) * self.slot_size as usize);
        let page = PAGE as usize;
        let later = ((start + from + 1).next_multiple_of(page) - start..to).step_by(page);
        for at in std::iter::once(from).filter(|_| from < to).chain(later) {
            // SAFETY: a byte of the pool, which is mapped; the guest is not running, and the MMA neither has a slot before it
            // is told of it nor one that the guest owns.
            let byte = unsafe { AtomicU8::from_ptr(self.slots.as_ptr().add(at)) };
            // Written at once: a read would map the image's own page first, and replacing that interrupts every core.
            byte.fetch_or(std::hint::black_box(0), Ordering::Relaxed);
        }
    }

    /// Prefetches both rings' headers, and the entries at these indices.
    #[inline]
    pub(super) fn prefetch(&self, rx: u32, tx: u32) {
        prefetch::to_write(self.rx.as_ptr());
        prefetch::to_write(self.tx.as_ptr());
        prefetch::to_write(self.entry(self.rx, rx));
        prefetch::to_write(self.entry(self.tx, tx));
    }

    /// Returns bytes of a slot.
    ///
    /// # Safety
    /// The range is within the slot, which the guest has given up and the MMA was not told of. So nothing else reads or
    /// writes it while the guest is not running.
    pub(super) unsafe fn slot_bytes(&mut self, slot: SlotIndex, range: Range<usize>) -> &mut [u8] {
        let distance = usize::from(slot.0) * self.slot_size as usize + range.start;
        // SAFETY: within the pool, which is mapped, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.slots.as_ptr().add(distance), range.len()) }
    }

    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    pub(super) fn entry(&self, ring: NonNull<RingHeader>, index: u32) -> *mut Descriptor {
        let place = (index & (self.entries - 1)) as usize;
        // SAFETY: `entries` descriptors follow the header, and `place` is below `entries`.
        unsafe { ring.add(1).cast::<Descriptor>().add(place).as_ptr() }
    }

    pub(super) fn tx_tail(&self) -> u32 {
        // SAFETY: mapped and aligned; volatile, so that it is read exactly once.
        unsafe { (&raw const (*self.tx.as_ptr()).tail).read_volatile() }
    }

    pub(super) fn tx_entry(&self, index: u32) -> Descriptor {
        // SAFETY: mapped and aligned; volatile, so that what is judged is what is used.
        unsafe { self.entry(self.tx, index).read_volatile() }
    }

    pub(super) fn set_tx_head(&self, head: u32) {
        // SAFETY: mapped and aligned.
        unsafe { (&raw mut (*self.tx.as_ptr()).head).write_volatile(head) }
    }

    pub(super) fn set_rx_entry(&self, index: u32, descriptor: Descriptor) {
        // SAFETY: mapped and aligned.
        unsafe { self.entry(self.rx, index).write_volatile(descriptor) }
    }

    pub(super) fn set_rx_tail(&self, tail: u32) {
        // SAFETY: mapped and aligned.
        unsafe { (&raw mut (*self.rx.as_ptr()).tail).write_volatile(tail) }
    }
}
