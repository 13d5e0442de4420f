//! Packets that a function keeps for a later batch: [`Held`].
//!
//! A held packet is not a reference, but the number of a slot, which the function keeps. Taking it up makes a packet of it again. If it is
//! dropped instead, [`Kept`] records that; pool and held packets share [`Kept`], and the slot returns to the node before the next wait.

use core::cell::Cell;
use core::fmt;
use std::rc::Rc;

use pinion_abi::{Descriptor, SLOT_COUNT_MAX};

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

/// A packet that a function [holds](crate::Packet::hold) for later. It has a small fixed size and is not bound to a batch. Dropping it drops the
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

    /// Returns the descriptor as it would be taken up.
    #[cfg(feature = "net")]
    pub(crate) fn descriptor(&self) -> Descriptor {
        self.descriptor.unwrap_or_default()
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
