//! Packets that a function keeps for a later batch: [`Held`], and the [`Slots`] that gives access to them.
//!
//! A held packet is not a reference, but the number of a slot, which the function keeps. Taking it up makes a packet of it again. If it is
//! dropped instead, [`Kept`] records that; pool and held packets share [`Kept`], and the slot returns to the node before the next wait.

use core::cell::Cell;
use core::fmt;
use std::rc::Rc;

use pinion_abi::{Descriptor, SLOT_COUNT_MAX};

use crate::Packet;
use crate::pool::Pool;

const WORDS: usize = SLOT_COUNT_MAX as usize / 64;

/// The record that a pool shares with the packets held in it.
#[derive(Default)]
pub(crate) struct Kept {
    /// Set if any slot is in `dropped`.
    any_dropped: Cell<bool>,
    /// Slots of held packets that were dropped, one bit each.
    dropped: [Cell<u64>; WORDS],
}

impl Kept {
    fn note_dropped(&self, slot: u16) {
        let (word, bit) = (&self.dropped[usize::from(slot) / 64], 1 << (slot % 64));
        word.set(word.get() | bit);
        self.any_dropped.set(true);
    }

    /// Calls `give_back` with each slot that was dropped since the last call.
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

/// A packet that a function [holds](Packet::hold) for later. It has a small fixed size and is not bound to a batch. Dropping it drops the
/// packet.
#[must_use = "dropping a held packet drops the packet"]
pub struct Held {
    kept: Rc<Kept>,
    /// `None` after it was taken up.
    descriptor: Option<Descriptor>,
}

impl Held {
    pub(crate) fn new(kept: &Rc<Kept>, descriptor: Descriptor) -> Self {
        Self { kept: Rc::clone(kept), descriptor: Some(descriptor) }
    }

    pub(crate) fn is_of(&self, kept: &Rc<Kept>) -> bool {
        Rc::ptr_eq(&self.kept, kept)
    }

    /// Returns the descriptor as received, except for changes of offset and length.
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

/// Access to the packets that a function [holds](Packet::hold), and to its own slots: available in a [batch](crate::Batch::slots) and when
/// a [deadline](crate::Function::expire) has passed.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    pool: &'a Pool<'a>,
}

impl<'a> Slots<'a> {
    pub(crate) fn new(pool: &'a Pool<'a>) -> Self {
        Self { pool }
    }

    /// Makes a packet of these bytes in one of the function's [own](crate::Function::OWN_SLOTS) slots, with as much headroom as a received
    /// packet has. `None` if all of them are in use, or if the bytes are more than [`PACKET_BYTES_MAX`](crate::PACKET_BYTES_MAX). A slot
    /// returns some time after its packet was sent, with a later batch.
    ///
    /// [`Packet::reply`] sends it out of the ingress port of the last packet received.
    #[must_use]
    pub fn make(self, bytes: &[u8]) -> Option<Packet<'a>> {
        let mut packet = self.pool.make()?;
        packet.set_len(bytes.len()).ok()?;
        packet.data_mut().copy_from_slice(bytes);
        Some(packet)
    }

    /// Returns the packet as it was held.
    ///
    /// # Panics
    ///
    /// If another function holds it; a test can have two functions.
    pub fn take(self, held: Held) -> Packet<'a> {
        self.pool.take_up(held)
    }
}

impl fmt::Debug for Slots<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").finish_non_exhaustive()
    }
}
