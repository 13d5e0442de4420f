//! A guest's packet memory: the pool header, both rings and the slots, as the contract lays them out.
//!
//! Contains the only code that turns a slot's number into a reference to its bytes. Used by the exported entry points, and by the fake node
//! of [`crate::testing`]; functions see only [`crate::Packet`]. It must never write to a slot without a packet: a slot that was never
//! touched costs the node no memory.
//!
//! ```text
//!   PoolMemory   | header | what each wait reads besides | rx ring: head, tail, entries | tx ring: likewise | slot 0 | slot 1 | ...
//!                    ^                                                  host writes                  guest writes
//!                    `-- filled in by `pinion_pool`
//! ```
//!
//! Everything here is single-threaded, and all zero until it is used, so that it lies in the module's BSS.

#![allow(unsafe_code)] // turns slot numbers into references

use core::cell::{Cell, OnceCell, UnsafeCell};
use std::rc::Rc;

use pinion_abi::{
    Descriptor, PORT_DROP, PoolHeader, RX_HEADROOM, RingHeader, SLOT_ALIGN, SLOT_COUNT_MAX, SLOT_SIZE_MIN,
};

use super::held::{Held, Kept};
use super::way::Way;
use crate::host::finished;

/// Bytes of a slot. The node leaves 64 free before a received frame, so a frame can have 2,048. The size is an odd number of cache lines:
/// slots at addresses a power of two apart would share few sets of a processor's caches.
pub const SLOT_SIZE: usize = 2112;

/// Most bytes of a packet that a function makes: as many as a received packet can have.
pub const PACKET_BYTES_MAX: usize = SLOT_SIZE - RX_HEADROOM as usize;

/// Slots of a pool unless [`export!`](crate::export) says otherwise.
pub const SLOT_COUNT_DEFAULT: usize = 256;

/// Returns the number of slots if a node would accept it; fails to compile otherwise.
#[doc(hidden)]
#[must_use]
pub const fn checked_slot_count(count: usize) -> usize {
    assert!(count.is_power_of_two(), "`slots` must be a power of two");
    assert!(count <= SLOT_COUNT_MAX as usize, "`slots` must be at most 1024");
    count
}

/// Returns the number of the function's own slots among `slots`, if a node would accept it; fails to compile otherwise.
#[doc(hidden)]
#[must_use]
pub const fn checked_own_slots(own: u16, slots: usize) -> u16 {
    assert!((own as usize) < slots, "`OWN_SLOTS` must leave slots for packets to come into");
    own
}

/// The bytes of one slot.
#[repr(C, align(64))]
struct Slot(UnsafeCell<[u8; SLOT_SIZE]>);

/// A ring as it lies in memory: a [`RingHeader`] and the entries.
#[repr(C, align(16))]
struct RingMemory<const ENTRIES: usize> {
    head: Cell<u32>,
    tail: Cell<u32>,
    reserved: [u32; 2],
    entries: [Cell<Descriptor>; ENTRIES],
}

impl<const ENTRIES: usize> RingMemory<ENTRIES> {
    const fn new() -> Self {
        const EMPTY: Descriptor = Descriptor { slot: 0, offset: 0, len: 0, port: 0, flags: 0, way: 0, arrived: 0 };
        Self {
            head: Cell::new(0),
            tail: Cell::new(0),
            reserved: [0; 2],
            entries: [const { Cell::new(EMPTY) }; ENTRIES],
        }
    }

    fn view(&self) -> Ring<'_> {
        Ring { head: &self.head, tail: &self.tail, entries: &self.entries }
    }
}

/// All the packet memory of a module with `SLOTS` slots. Each ring has as many entries. As a slot is in a ring at most once, no ring can
/// overflow.
#[doc(hidden)]
#[repr(C, align(64))]
pub struct PoolMemory<const SLOTS: usize> {
    header: Cell<PoolHeader>,
    own_in_use: OwnInUse,
    // The fields from here on are read after each wait. They share a cache line with the ring's indices, which the node has fetched.
    kept: OnceCell<Rc<Kept>>,
    open: Cell<bool>,
    finished: Cell<bool>,
    rx: RingMemory<SLOTS>,
    tx: RingMemory<SLOTS>,
    slots: [Slot; SLOTS],
}

impl<const SLOTS: usize> PoolMemory<SLOTS> {
    /// Makes memory that is not in use yet.
    #[must_use]
    pub const fn new() -> Self {
        const BLANK: PoolHeader = PoolHeader {
            magic: 0,
            slot_count: 0,
            slot_size: 0,
            slots: 0,
            ring_entries: 0,
            rx_ring: 0,
            tx_ring: 0,
            own_slots: 0,
        };
        Self {
            header: Cell::new(BLANK),
            own_in_use: OwnInUse::none(),
            kept: OnceCell::new(),
            open: Cell::new(false),
            finished: Cell::new(false),
            rx: RingMemory::new(),
            tx: RingMemory::new(),
            slots: [const { Slot(UnsafeCell::new([0; SLOT_SIZE])) }; SLOTS],
        }
    }

    /// Fills in the header and returns its address, for the node to read.
    ///
    /// From here on the node writes to this memory during a wait; exposing the addresses tells the compiler so.
    #[cfg(target_family = "wasm")]
    pub fn publish(&self, own_slots: u16) -> u32 {
        fn address<T>(place: &T) -> u32 {
            let address = core::ptr::from_ref(place).expose_provenance();
            u32::try_from(address).expect("Wasm addresses have 32 bits")
        }
        self.header.set(PoolHeader {
            magic: pinion_abi::POOL_MAGIC,
            slot_count: SLOTS as u32,
            slot_size: SLOT_SIZE as u32,
            slots: address(&self.slots),
            ring_entries: SLOTS as u32,
            rx_ring: address(&self.rx),
            tx_ring: address(&self.tx),
            own_slots: own_slots.into(),
        });
        address(self)
    }

    /// Returns the only view of this memory, with this number of the function's own slots.
    ///
    /// # Panics
    ///
    /// If a view exists already.
    pub(crate) fn open(&self, own_slots: u16) -> Pool<'_> {
        assert!(!self.open.replace(true), "the pool is in use already: `pinion_run` was called twice");
        let own_from = SLOTS as u16 - own_slots;
        let Self { open, finished, kept, own_in_use, slots, .. } = self;
        // A request from before the snapshot would count in every instance.
        finished.set(false);
        finished::set_flag(Some(finished));
        Pool {
            open,
            #[cfg(target_family = "wasm")]
            finished,
            kept,
            own_in_use,
            own_from,
            rx: self.rx.view(),
            tx: self.tx.view(),
            slots,
        }
    }
}

impl<const SLOTS: usize> Default for PoolMemory<SLOTS> {
    fn default() -> Self {
        Self::new()
    }
}

const OWN_WORDS: usize = SLOT_COUNT_MAX as usize / 64;

/// One bit per own slot that is in use: it contains a packet, or was sent and has not been returned.
struct OwnInUse([Cell<u64>; OWN_WORDS]);

impl OwnInUse {
    const fn none() -> Self {
        Self([const { Cell::new(0) }; OWN_WORDS])
    }

    /// Returns the first of these slots that is free, and marks it as in use.
    fn take(&self, own: core::ops::Range<u16>) -> Option<u16> {
        let mut slots = own;
        slots.find(|slot| {
            let (word, bit) = self.bit(*slot);
            let is_free = word.get() & bit == 0;
            word.set(word.get() | bit);
            is_free
        })
    }

    fn give_back(&self, slot: u16) {
        let (word, bit) = self.bit(slot);
        word.set(word.get() & !bit);
    }

    fn bit(&self, slot: u16) -> (&Cell<u64>, u64) {
        (&self.0[usize::from(slot) / 64], 1 << (slot % 64))
    }
}

/// One of the two rings.
pub(crate) struct Ring<'m> {
    head: &'m Cell<u32>,
    tail: &'m Cell<u32>,
    entries: &'m [Cell<Descriptor>],
}

impl Ring<'_> {
    fn entry(&self, index: u32) -> &Cell<Descriptor> {
        &self.entries[index as usize & (self.entries.len() - 1)]
    }

    /// Appends an entry, as the producer. The caller knows that there is room.
    pub(crate) fn push(&self, descriptor: Descriptor) {
        let tail = self.tail.get();
        self.entry(tail).set(descriptor);
        self.tail.set(tail.wrapping_add(1));
    }

    /// Takes the next entry, as the consumer.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn pop(&self) -> Option<Descriptor> {
        let head = self.head.get();
        (head != self.tail.get()).then(|| {
            self.head.set(head.wrapping_add(1));
            self.entry(head).get()
        })
    }

    /// Consumes `count` entries at once, and returns the index of the first.
    fn advance(&self, count: u32) -> u32 {
        let head = self.head.get();
        self.head.set(head.wrapping_add(count));
        head
    }
}

/// A slot that contains a packet, or is to contain one, and that nothing else refers to.
pub(crate) struct TakenSlot<'a> {
    pub(crate) bytes: &'a mut [u8; SLOT_SIZE],
    pub(crate) descriptor: Descriptor,
}

/// A module's packet memory in use: only one exists at a time.
pub(crate) struct Pool<'m> {
    open: &'m Cell<bool>,
    #[cfg(target_family = "wasm")]
    finished: &'m Cell<bool>,
    kept: &'m OnceCell<Rc<Kept>>,
    own_in_use: &'m OwnInUse,
    /// The first of the function's own slots.
    own_from: u16,
    rx: Ring<'m>,
    tx: Ring<'m>,
    slots: &'m [Slot],
}

impl<'m> Pool<'m> {
    /// Returns whether the instance has finished.
    #[cfg(target_family = "wasm")]
    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.get()
    }

    /// Returns whether the instance has finished.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn is_finished(&self) -> bool {
        finished::is_asked()
    }

    /// Takes the next `count` published descriptors: packets, and the function's own slots that are returned.
    pub(crate) fn grants(&self, count: u32) -> Grants<'_> {
        let next = self.rx.advance(count);
        let returned = if self.has_own_slots() { self.take_returned(next, count) } else { 0 };
        Grants { pool: self, next, remaining: count - returned }
    }

    /// Takes back the own slots that the `count` descriptors from index `next` on return. Returns how many these are.
    #[cold]
    fn take_returned(&self, next: u32, count: u32) -> u32 {
        let descriptors = (0..count).map(|step| self.rx.entry(next.wrapping_add(step)).get());
        descriptors
            .filter(|descriptor| descriptor.len == 0)
            .map(|returned| self.own_in_use.give_back(returned.slot))
            .count() as u32
    }

    /// Returns whether one of the next `count` descriptors is a packet.
    pub(crate) fn has_packet(&self, count: u32) -> bool {
        let next = self.rx.head.get();
        !self.has_own_slots() || (0..count).any(|step| self.rx.entry(next.wrapping_add(step)).get().len > 0)
    }

    fn has_own_slots(&self) -> bool {
        usize::from(self.own_from) < self.slots.len()
    }

    /// Takes one of the function's own slots for an empty packet that goes this way. `None` if all of them are in use.
    pub(crate) fn make(&self, way: Way) -> Option<TakenSlot<'_>> {
        let slot = self.own_in_use.take(self.own_from..self.slots.len() as u16)?;
        let Way { number, port } = way;
        let descriptor = Descriptor { slot, offset: RX_HEADROOM as u16, port, way: number, ..Descriptor::default() };
        // SAFETY: the slot is the function's own and was in no use: no packet is in it, held, or given to the node and not yet back.
        // It is in use from here until the packet's transmit descriptor has been acted upon.
        let bytes = unsafe { &mut *self.slots[usize::from(slot)].0.get() };
        Some(TakenSlot { bytes, descriptor })
    }

    /// Puts a slot that the function owns, and that no longer contains a packet, into the transmit ring.
    #[inline]
    pub(crate) fn transmit(&self, descriptor: Descriptor) {
        if descriptor.slot >= self.own_from && descriptor.port == PORT_DROP {
            // A packet that was made and not sent does not concern the node.
            return self.own_in_use.give_back(descriptor.slot);
        }
        self.tx.push(descriptor);
    }

    /// Returns the record of the packets that the function holds.
    pub(crate) fn kept(&self) -> &Rc<Kept> {
        self.kept.get_or_init(Rc::default)
    }

    /// Returns to the node the slots of packets that were held and then dropped.
    #[inline]
    pub(crate) fn give_back_dropped(&self) {
        if let Some(kept) = self.kept.get() {
            kept.take_dropped(|slot| self.transmit(Descriptor { slot, port: PORT_DROP, ..Descriptor::default() }));
        }
    }

    /// Returns the slot of a packet that was held.
    ///
    /// # Panics
    ///
    /// If it was held in another pool.
    pub(crate) fn take_up(&self, held: Held) -> TakenSlot<'_> {
        assert!(
            self.kept.get().is_some_and(|kept| held.is_of(kept)),
            "a function takes up only what it has held itself"
        );
        let descriptor = held.into_descriptor();
        // SAFETY: what is held is made of a packet, which it consumes, and consumed here, and both belong to this pool. So it is the
        // only one of its slot, which the node was not given back: no other reference to these bytes exists.
        let bytes = unsafe { &mut *self.slots[usize::from(descriptor.slot)].0.get() };
        TakenSlot { bytes, descriptor }
    }

    /// Returns the host's side of the receive ring, for the fake node.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn receive_ring(&self) -> &Ring<'m> {
        &self.rx
    }

    /// Returns the host's side of the transmit ring, for the fake node.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn transmit_ring(&self) -> &Ring<'m> {
        &self.tx
    }

    /// Returns the bytes of a slot that the fake node owns.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn host_slot(&mut self, slot: u16) -> &mut [u8; SLOT_SIZE] {
        // SAFETY: packets borrow the pool, so none is alive while it is borrowed mutably here.
        unsafe { &mut *self.slots[usize::from(slot)].0.get() }
    }
}

/// Receive descriptors that were taken off the ring and not yet read.
pub(crate) struct Grants<'a> {
    pool: &'a Pool<'a>,
    next: u32,
    remaining: u32,
}

impl<'a> Grants<'a> {
    pub(crate) fn remaining(&self) -> u32 {
        self.remaining
    }

    pub(crate) fn pool(&self) -> &'a Pool<'a> {
        self.pool
    }

    /// Returns the slot of the next descriptor that is a packet.
    ///
    /// # Panics
    ///
    /// If the node named a slot or a range that does not exist.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<TakenSlot<'a>> {
        self.remaining = self.remaining.checked_sub(1)?;
        let descriptor = loop {
            let descriptor = self.pool.rx.entry(self.next).get();
            self.next = self.next.wrapping_add(1);
            // Returned slots were taken before.
            if descriptor.len > 0 || !self.pool.has_own_slots() {
                break descriptor;
            }
        };
        let slot = &self.pool.slots[usize::from(descriptor.slot)];
        assert!(usize::from(descriptor.offset) + usize::from(descriptor.len) <= SLOT_SIZE, "the node's descriptor");
        // SAFETY: the node names a slot only when the slot is its own, and each descriptor is looked at once: taking
        // it off the ring and counting it off here see to that. So no other reference to these bytes exists, until
        // the packet made here is gone and its transmit descriptor has given the slot back. That descriptor is not
        // acted upon before the next wait, by when no batch, hence no packet, is alive.
        let bytes = unsafe { &mut *slot.0.get() };
        Some(TakenSlot { bytes, descriptor })
    }
}

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        self.open.set(false);
        finished::set_flag(None);
    }
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(offset_of!(RingMemory<1>, head) == offset_of!(RingHeader, head));
    assert!(offset_of!(RingMemory<1>, tail) == offset_of!(RingHeader, tail));
    assert!(offset_of!(RingMemory<1>, entries) == size_of::<RingHeader>());
    assert!(size_of::<Slot>() == SLOT_SIZE);
    assert!(align_of::<Slot>() == SLOT_ALIGN as usize);
    assert!(SLOT_SIZE >= SLOT_SIZE_MIN as usize + RX_HEADROOM as usize);
};
