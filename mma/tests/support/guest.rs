//! A guest with its own memory: it follows the rules of its rings, or breaks them.

use pinion_abi::{Descriptor, POOL_MAGIC, PoolHeader, RX_HEADROOM, RingHeader, SLOT_SIZE_MIN};
use pinion_mma::guest::pool::{PoolError, PoolLayout};

use super::memory::{Memory, PAGE};

/// The size of a guest's pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) slot_count: u32,
    pub(crate) slot_size: u32,
    pub(crate) ring_entries: u32,
}

impl Shape {
    /// Returns a pool of the smallest slots, with rings that just hold them.
    pub(crate) fn slots(slot_count: u32) -> Self {
        Self { slot_count, slot_size: SLOT_SIZE_MIN, ring_entries: slot_count.next_power_of_two() }
    }

    /// Returns the longest frame that fits after the headroom, in bytes.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        (self.slot_size - RX_HEADROOM) as usize
    }
}

/// A guest: it can do what code inside a linear memory can, and nothing else.
pub(crate) struct Guest {
    pub(super) memory: Memory,
    header: PoolHeader,
    rx_head: u32,
    tx_tail: u32,
    /// Only the first slot's pages are provided.
    is_new: bool,
}

/// Fields of a ring's header, by their offset.
#[derive(Clone, Copy)]
pub(crate) enum Index {
    Head = 0,
    Tail = 4,
}

impl Guest {
    /// Makes a guest whose last slot ends where its memory ends.
    pub(crate) fn new(shape: Shape) -> Self {
        Self::owning(shape, 0)
    }

    /// Makes a guest of which the last `own_slots` slots are its own.
    pub(crate) fn owning(shape: Shape, own_slots: u32) -> Self {
        let Shape { slot_count, slot_size, ring_entries } = shape;
        let ring_bytes = size_of::<RingHeader>() as u32 + ring_entries * size_of::<Descriptor>() as u32;
        let rx_ring = 1024_u32;
        let tx_ring = (rx_ring + ring_bytes).next_multiple_of(64);
        let end = (tx_ring + ring_bytes + slot_count * slot_size).next_multiple_of(PAGE as u32);
        let slots = end - slot_count * slot_size;
        let header =
            PoolHeader { magic: POOL_MAGIC, slot_count, slot_size, slots, ring_entries, rx_ring, tx_ring, own_slots };
        Self::with_header(header, end as usize).unwrap()
    }

    /// Makes a guest with this pool header, in whole pages of memory.
    pub(crate) fn with_header(header: PoolHeader, memory_bytes: usize) -> Result<Self, PoolError> {
        PoolLayout::check(header, memory_bytes)?;
        Ok(Self { memory: Memory::fenced(memory_bytes), header, rx_head: 0, tx_tail: 0, is_new: false })
    }

    /// Gives it memory that was never touched, but for its rings and its first slot.
    pub(crate) fn new_in_memory(self) -> Self {
        let memory = Memory::untouched(self.memory.bytes);
        let layout = PoolLayout::check(self.header, self.memory.bytes).unwrap().new_in_memory();
        let PoolHeader { rx_ring, slots, slot_size, .. } = self.header;
        // The rings lie before the slots.
        let end = slots + u32::from(layout.provided()) * slot_size;
        memory.set_bytes(rx_ring as usize, &vec![0; (end - rx_ring) as usize]);
        Self { memory, is_new: true, ..self }
    }

    /// Lets the MMA use only those slots at first that a new guest has pages for.
    pub(crate) fn with_first_slots_only(self) -> Self {
        Self { is_new: true, ..self }
    }

    /// Returns how many slots the MMA may use at first.
    pub(crate) fn slots_at_first(&self) -> u16 {
        self.layout().provided()
    }

    /// Lets the MMA use all slots from the start, although they have no pages.
    pub(crate) fn with_pages_untouched(self) -> Self {
        Self { is_new: false, ..self }
    }

    pub(super) fn layout(&self) -> PoolLayout {
        let layout = PoolLayout::check(self.header, self.memory.bytes).unwrap();
        if self.is_new { layout.new_in_memory() } else { layout }
    }

    pub(crate) fn header(&self) -> &PoolHeader {
        &self.header
    }

    fn entry(&self, ring: u32, index: u32) -> usize {
        let place = (index % self.header.ring_entries) as usize;
        ring as usize + size_of::<RingHeader>() + place * size_of::<Descriptor>()
    }

    /// Takes the next descriptor from the receive ring, as a correct guest does.
    pub(crate) fn receive(&mut self) -> Option<Descriptor> {
        if self.rx_head == self.memory.read::<u32>(self.header.rx_ring as usize + Index::Tail as usize) {
            return None;
        }
        let descriptor = self.memory.read(self.entry(self.header.rx_ring, self.rx_head));
        self.rx_head = self.rx_head.wrapping_add(1);
        self.set_rx(Index::Head, self.rx_head);
        Some(descriptor)
    }

    /// Takes all descriptors from the receive ring.
    pub(crate) fn receive_all(&mut self) -> Vec<Descriptor> {
        std::iter::from_fn(|| self.receive()).collect()
    }

    /// Appends any descriptor to the transmit ring.
    pub(crate) fn send(&mut self, descriptor: Descriptor) {
        self.write_entry(self.tx_tail, descriptor);
        self.tx_tail = self.tx_tail.wrapping_add(1);
        self.set_tx(Index::Tail, self.tx_tail);
    }

    /// Sends a received frame as it is.
    pub(crate) fn pass(&mut self, received: Descriptor, port: u16) {
        self.send(Descriptor { port, ..received });
    }

    /// Overwrites an entry of the transmit ring.
    pub(crate) fn write_entry(&self, index: u32, descriptor: Descriptor) {
        self.memory.write(self.entry(self.header.tx_ring, index), descriptor);
    }

    pub(crate) fn set_tx(&self, field: Index, value: u32) {
        self.memory.write(self.header.tx_ring as usize + field as usize, value);
    }

    pub(crate) fn tx(&self, field: Index) -> u32 {
        self.memory.read(self.header.tx_ring as usize + field as usize)
    }

    pub(crate) fn set_rx(&self, field: Index, value: u32) {
        self.memory.write(self.header.rx_ring as usize + field as usize, value);
    }

    fn place(&self, slot: u16, offset: u16) -> usize {
        self.header.slots as usize + usize::from(slot) * self.header.slot_size as usize + usize::from(offset)
    }

    pub(crate) fn frame(&self, descriptor: &Descriptor) -> Vec<u8> {
        self.memory.copy(self.place(descriptor.slot, descriptor.offset), usize::from(descriptor.len))
    }

    /// Returns the address of a byte of a slot, for those who play this guest on another thread.
    pub(crate) fn address_of(&self, slot: u16, offset: u16) -> usize {
        self.memory.start.as_ptr().expose_provenance() + self.place(slot, offset)
    }

    pub(crate) fn write_frame(&self, slot: u16, offset: u16, bytes: &[u8]) {
        self.memory.set_bytes(self.place(slot, offset), bytes);
    }

    /// Writes any bytes to any address within its memory.
    pub(crate) fn scribble(&self, address: usize, bytes: &[u8]) {
        let room = self.memory.bytes.saturating_sub(address);
        self.memory.set_bytes(address.min(self.memory.bytes), &bytes[..bytes.len().min(room)]);
    }

    /// Sets the guest's own indices, as if it had come to these.
    pub(crate) fn resume_at(&mut self, rx_head: u32, tx_tail: u32) {
        (self.rx_head, self.tx_tail) = (rx_head, tx_tail);
        self.set_tx(Index::Tail, tx_tail);
    }

    /// Returns a copy of its whole memory.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        self.memory.copy(0, self.memory.bytes)
    }

    /// Returns a copy of all its slots.
    pub(crate) fn slots(&self) -> Vec<u8> {
        self.memory.copy(self.header.slots as usize, (self.header.slot_count * self.header.slot_size) as usize)
    }
}
