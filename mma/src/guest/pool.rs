//! Pools: where in an FWP's linear memory its packets lie, and the copies into and out of them.
//!
//! ```text
//!   linear memory   ...| slot 0 | slot 1 | slot 2 | ... | slot n-1 |...      each slot_size bytes
//!                         ^ offset + len, checked before every copy
//! ```
//!
//! Only the MMA thread uses a [`PoolRegion`]. Guest memory is accessed by raw pointer only, never through a reference
//! or slice: the guest may be running and may even write to the bytes being copied. The receiver of a copy validates
//! its own copied bytes.
#![allow(unsafe_code)] // Owns the boundary between the copier and guest memory.

use std::ptr::NonNull;

use pinion_abi::{
    Descriptor, POOL_MAGIC, PoolHeader, RX_HEADROOM, RingHeader, SLOT_ALIGN, SLOT_COUNT_MAX, SLOT_SIZE_MAX,
    SLOT_SIZE_MIN,
};

use crate::guest::memcpy;
use crate::id::SlotIndex;
use crate::tuning::prefetch;

/// Why a guest's pool header is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Not a pool header.
    #[error("pinion_pool names {0:#010x} where a pool header starts with {POOL_MAGIC:#010x}")]
    Magic(u32),
    /// Too few or too many slots.
    #[error("a pool of {0} slots; from 1 to {SLOT_COUNT_MAX} are possible")]
    SlotCount(u32),
    /// A slot size out of range, or no multiple of a cache line.
    #[error("slots of {0} bytes; a multiple of {SLOT_ALIGN} from {SLOT_SIZE_MIN} to {SLOT_SIZE_MAX} is needed")]
    SlotSize(u32),
    /// A ring size that is no power of two or cannot hold every slot.
    #[error("rings of {entries} entries for {slots} slots; a power of two, at least the slots, is needed")]
    RingEntries {
        /// Entries asked for.
        entries: u32,
        /// Slots of the pool.
        slots: u32,
    },
    /// No slot is left for receiving.
    #[error("{own} slots of a pool's {slots} are the guest's own; one at least must be left to receive into")]
    OwnSlots {
        /// Slots of the guest's own.
        own: u32,
        /// Slots of the pool.
        slots: u32,
    },
    /// A part that is misaligned or reaches outside the guest's memory.
    #[error("the {part} at {address:#x} is misaligned or reaches outside the guest's memory")]
    Range {
        /// Which part.
        part: &'static str,
        /// The address that the header gives.
        address: u32,
    },
    /// Two parts overlap.
    #[error("the {0} and the {1} overlap")]
    Overlap(&'static str, &'static str),
}

/// A pool header that has been checked against the memory it lies in.
#[derive(Debug, Clone, Copy)]
pub struct PoolLayout {
    header: PoolHeader,
    /// Number of slots, from the first on, of which the kernel has provided the pages.
    provided: u32,
}

/// The kernel provides memory in pages of this size, in bytes.
pub const PAGE: u32 = 4096;

/// Largest ring a guest may declare; a larger one would only waste its memory.
const RING_ENTRIES_MAX: u32 = SLOT_COUNT_MAX.next_power_of_two();

impl PoolLayout {
    /// Checks a header that a guest wrote.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(header: PoolHeader, memory_bytes: usize) -> Result<Self, PoolError> {
        let PoolHeader { magic, slot_count, slot_size, slots, ring_entries, rx_ring, tx_ring, own_slots } = header;
        if magic != POOL_MAGIC {
            return Err(PoolError::Magic(magic));
        }
        if slot_count == 0 || slot_count > SLOT_COUNT_MAX {
            return Err(PoolError::SlotCount(slot_count));
        }
        if !(SLOT_SIZE_MIN..=SLOT_SIZE_MAX).contains(&slot_size) || !slot_size.is_multiple_of(SLOT_ALIGN) {
            return Err(PoolError::SlotSize(slot_size));
        }
        if !ring_entries.is_power_of_two() || ring_entries < slot_count || ring_entries > RING_ENTRIES_MAX {
            return Err(PoolError::RingEntries { entries: ring_entries, slots: slot_count });
        }
        if own_slots >= slot_count {
            return Err(PoolError::OwnSlots { own: own_slots, slots: slot_count });
        }
        let ring_bytes = size_of::<RingHeader>() + ring_entries as usize * size_of::<Descriptor>();
        let parts = [
            ("slots", slots, slot_count as usize * slot_size as usize, SLOT_ALIGN as usize),
            ("receive ring", rx_ring, ring_bytes, align_of::<RingHeader>()),
            ("transmit ring", tx_ring, ring_bytes, align_of::<RingHeader>()),
        ];
        for (part, address, bytes, align) in parts {
            let start = address as usize;
            if !start.is_multiple_of(align) || start.checked_add(bytes).is_none_or(|end| end > memory_bytes) {
                return Err(PoolError::Range { part, address });
            }
        }
        for (i, &(a, a_start, a_bytes, _)) in parts.iter().enumerate() {
            for &(b, b_start, b_bytes, _) in &parts[i + 1..] {
                let (a_start, b_start) = (a_start as usize, b_start as usize);
                if a_start < b_start + b_bytes && b_start < a_start + a_bytes {
                    return Err(PoolError::Overlap(a, b));
                }
            }
        }
        Ok(Self { header, provided: slot_count - own_slots })
    }

    /// Assumes only the pages of the first slot to be provided, as they are in a new FWP. Otherwise all pages are.
    #[must_use]
    pub fn new_in_memory(self) -> Self {
        let PoolHeader { slot_count, slot_size, slots, own_slots, .. } = self.header;
        let whole = ((slots + slot_size).next_multiple_of(PAGE) - slots) / slot_size;
        Self { provided: whole.min(slot_count - own_slots), ..self }
    }

    /// Returns how many slots have pages that are provided: the pool's first slots.
    #[must_use]
    pub fn provided(&self) -> u16 {
        self.provided as u16
    }

    /// Returns the checked header.
    #[must_use]
    pub fn header(&self) -> &PoolHeader {
        &self.header
    }
}

/// The slots of one FWP's pool, as the MMA reaches them.
#[derive(Debug, Clone, Copy)]
pub struct PoolRegion {
    slots: NonNull<u8>,
    slot_size: u32,
    slot_count: u32,
    own_slots: u32,
    provided: u16,
}

// SAFETY: the pointer is into linear memory that outlives the region (contract of `new`) and is not bound to a thread.
unsafe impl Send for PoolRegion {}

impl PoolRegion {
    /// Makes the region of the guest whose linear memory starts at `memory`.
    ///
    /// # Safety
    /// `layout` was checked against this memory, which neither moves nor is unmapped while the region or a copy of it exists.
    #[must_use]
    pub unsafe fn new(memory: NonNull<u8>, layout: &PoolLayout) -> Self {
        let header = layout.header();
        // SAFETY: in bounds, as `layout` was checked against this memory.
        let slots = unsafe { memory.add(header.slots as usize) };
        let PoolHeader { slot_size, slot_count, own_slots, .. } = *header;
        Self { slots, slot_size, slot_count, own_slots, provided: layout.provided() }
    }

    /// Returns the number of slots that frames are received into: the pool's first slots.
    #[must_use]
    pub fn lent_count(&self) -> u16 {
        (self.slot_count - self.own_slots) as u16
    }

    /// Returns the number of the guest's own slots: the pool's last slots.
    #[must_use]
    pub fn own_count(&self) -> u16 {
        self.own_slots as u16
    }

    /// Returns the number of slots that had their pages when the region was made.
    #[must_use]
    pub fn provided(&self) -> u16 {
        self.provided
    }

    /// Returns the longest frame that can be received into a slot, in bytes.
    #[must_use]
    pub fn frame_bytes_max(&self) -> u32 {
        self.slot_size - RX_HEADROOM
    }

    #[inline(always)]
    fn range(&self, slot: SlotIndex, offset: u16, len: usize) -> *mut u8 {
        let (slot, offset) = (u32::from(slot.0), usize::from(offset));
        assert!(slot < self.slot_count && offset + len <= self.slot_size as usize, "a descriptor was not validated");
        // SAFETY: within the pool by the assertion, and the pool is mapped by the contract of `new`.
        unsafe { self.slots.as_ptr().add(slot as usize * self.slot_size as usize + offset) }
    }

    /// Prefetches the bytes from `offset` on that a copy reads first.
    #[inline]
    pub fn prefetch(&self, slot: SlotIndex, offset: u16) {
        let distance = usize::from(slot.0) * self.slot_size as usize + usize::from(offset);
        prefetch::to_read(self.slots.as_ptr().wrapping_add(distance));
    }

    /// Prefetches bytes that are about to be written.
    #[inline(always)]
    pub(crate) fn prefetch_to_write(&self, slot: SlotIndex, offset: u16) {
        let distance = usize::from(slot.0) * self.slot_size as usize + usize::from(offset);
        prefetch::to_write(self.slots.as_ptr().wrapping_add(distance));
    }

    /// Copies a frame into a slot.
    ///
    /// # Panics
    /// If the range is not within the slot: ranges are validated before this call.
    #[inline(always)]
    pub fn copy_in(&self, slot: SlotIndex, offset: u16, frame: &[u8]) {
        let to = self.range(slot, offset, frame.len());
        // SAFETY: `to` has room for the frame (checked by `range`); a Rust slice never lies in guest memory.
        unsafe { memcpy::exactly(frame.as_ptr(), to, frame.len()) };
    }

    /// Copies a slot's bytes into a frame.
    ///
    /// # Panics
    /// If the range is not within the slot.
    #[inline(always)]
    pub fn copy_out(&self, slot: SlotIndex, offset: u16, frame: &mut [u8]) {
        let from = self.range(slot, offset, frame.len());
        // SAFETY: as for `copy_in`, the other way round.
        unsafe { memcpy::exactly(from, frame.as_mut_ptr(), frame.len()) };
    }

    /// Copies from a slot of this pool to a slot of another FWP's.
    ///
    /// # Panics
    /// If either range is not within its slot.
    #[inline(always)]
    pub fn copy_across(&self, from: (SlotIndex, u16), len: u16, to_pool: &Self, to: (SlotIndex, u16)) {
        let len = usize::from(len);
        let source = self.range(from.0, from.1, len);
        let target = to_pool.range(to.0, to.1, len);
        // SAFETY: both in bounds; two FWPs' linear memories never overlap, and an FWP is never its own successor (the
        // wiring refuses it), so the ranges do not overlap either.
        unsafe { memcpy::exactly(source, target, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> PoolHeader {
        PoolHeader {
            magic: POOL_MAGIC,
            slot_count: 4,
            slot_size: 2048,
            slots: 4096,
            ring_entries: 4,
            rx_ring: 1024,
            tx_ring: 2048,
            own_slots: 3,
        }
    }

    #[test]
    fn a_sound_header_is_accepted() {
        assert!(PoolLayout::check(header(), 4096 + 4 * 2048).is_ok());
    }

    #[test]
    fn every_unsound_header_is_refused_with_its_reason() {
        let memory = 64 * 1024;
        let cases: [(PoolHeader, PoolError); 13] = [
            (PoolHeader { magic: 7, ..header() }, PoolError::Magic(7)),
            (PoolHeader { slot_count: 0, ..header() }, PoolError::SlotCount(0)),
            (PoolHeader { slot_count: 1025, ..header() }, PoolError::SlotCount(1025)),
            (PoolHeader { slot_size: 2047, ..header() }, PoolError::SlotSize(2047)),
            (PoolHeader { slot_size: 64, ..header() }, PoolError::SlotSize(64)),
            (PoolHeader { slot_size: 1 << 16, ..header() }, PoolError::SlotSize(1 << 16)),
            (PoolHeader { ring_entries: 2, ..header() }, PoolError::RingEntries { entries: 2, slots: 4 }),
            (PoolHeader { ring_entries: 6, ..header() }, PoolError::RingEntries { entries: 6, slots: 4 }),
            (PoolHeader { own_slots: 4, ..header() }, PoolError::OwnSlots { own: 4, slots: 4 }),
            (PoolHeader { slots: 4100, ..header() }, PoolError::Range { part: "slots", address: 4100 }),
            (
                PoolHeader { slots: u32::MAX - 63, ..header() },
                PoolError::Range { part: "slots", address: u32::MAX - 63 },
            ),
            (PoolHeader { rx_ring: 65_520, ..header() }, PoolError::Range { part: "receive ring", address: 65_520 }),
            (PoolHeader { tx_ring: 1040, ..header() }, PoolError::Overlap("receive ring", "transmit ring")),
        ];
        for (header, expected) in cases {
            assert_eq!(PoolLayout::check(header, memory).unwrap_err(), expected, "{header:?}");
        }
        let short = PoolLayout::check(header(), 4096 + 4 * 2048 - 1).unwrap_err();
        assert_eq!(short, PoolError::Range { part: "slots", address: 4096 });
    }
}
