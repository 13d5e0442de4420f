//! Packets that a function keeps from one batch to another: [`Held`], and the [`Shelf`] where they lie meanwhile.
//!
//! What is held is no reference but the number of a slot, which stays the function's; taking it up again makes a packet of it. What is dropped instead
//! is noted in [`Kept`], which pool and held packets share, and given back to the node before the next wait.

use core::cell::Cell;
use core::fmt;
use std::rc::Rc;

use pinion_abi::{Descriptor, SLOT_COUNT_MAX};

use crate::Packet;
use crate::pool::Pool;

const WORDS: usize = SLOT_COUNT_MAX as usize / 64;

/// What a pool and the packets that are held in it have in common.
#[derive(Default)]
pub(crate) struct Kept {
    /// Whether any slot is in `dropped`.
    any_dropped: Cell<bool>,
    /// Slots of held packets that were dropped, a bit each.
    dropped: [Cell<u64>; WORDS],
}

impl Kept {
    fn note_dropped(&self, slot: u16) {
        let (word, bit) = (&self.dropped[usize::from(slot) / 64], 1 << (slot % 64));
        word.set(word.get() | bit);
        self.any_dropped.set(true);
    }

    /// Calls `give_back` with each slot that was dropped since the last time.
    pub(crate) fn take_dropped(&self, mut give_back: impl FnMut(u16)) {
        if !self.any_dropped.replace(false) {
            return;
        }
        for (number, word) in self.dropped.iter().enumerate() {
            let mut slots = word.take();
            while slots != 0 {
                give_back((number * 64) as u16 + slots.trailing_zeros() as u16);
                slots &= slots - 1;
            }
        }
    }
}

/// A packet that a function [holds](Packet::hold) for later, of a fixed few words and bound to no batch. It is dropped if this is.
#[must_use = "a packet that is held and let go of is dropped"]
pub struct Held {
    kept: Rc<Kept>,
    /// None once it was taken up.
    descriptor: Option<Descriptor>,
}

impl Held {
    pub(crate) fn new(kept: &Rc<Kept>, descriptor: Descriptor) -> Self {
        Self { kept: Rc::clone(kept), descriptor: Some(descriptor) }
    }

    pub(crate) fn is_of(&self, kept: &Rc<Kept>) -> bool {
        Rc::ptr_eq(&self.kept, kept)
    }

    /// As it was received, but for what has become of offset and length.
    pub(crate) fn into_descriptor(mut self) -> Descriptor {
        self.descriptor.take().expect("it is taken up once")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor {
            self.kept.note_dropped(descriptor.slot);
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("descriptor", &self.descriptor).finish_non_exhaustive()
    }
}

/// Where packets lie that a function [holds](Packet::hold): the way back to them, in a [batch](crate::Batch::shelf) or when a
/// [deadline](crate::Function::expire) has passed.
#[derive(Clone, Copy)]
pub struct Shelf<'a> {
    pool: &'a Pool<'a>,
}

impl<'a> Shelf<'a> {
    pub(crate) fn new(pool: &'a Pool<'a>) -> Self {
        Self { pool }
    }

    /// Makes a packet of these bytes in a slot of the function's [own](crate::Function::OWN_SLOTS), with as much room before it as a received one has. None if all of
    /// them are in use, or the bytes are more than [`PACKET_BYTES_MAX`](crate::PACKET_BYTES_MAX): a slot comes back some time after its packet was sent, at a later batch.
    ///
    /// [`Packet::reply`] has it leave by the port that the last packet came in by.
    #[must_use]
    pub fn make(self, bytes: &[u8]) -> Option<Packet<'a>> {
        let mut packet = self.pool.make()?;
        packet.set_len(bytes.len()).ok()?;
        packet.data_mut().copy_from_slice(bytes);
        Some(packet)
    }

    /// The packet as it was held.
    ///
    /// # Panics
    ///
    /// If another function holds it, as two of one test could.
    pub fn take(self, held: Held) -> Packet<'a> {
        self.pool.take_up(held)
    }
}

impl fmt::Debug for Shelf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf").finish_non_exhaustive()
    }
}
