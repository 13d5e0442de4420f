//! How an item lies in its chain of chunks, and what refers to it from outside of the store.
//!
//! ```text
//!   first chunk  [ head | key | value ... ] -> [ value ... ] -> ...
//! ```

use std::cell::RefCell;
use std::rc::Rc;

use super::arena::{Arena, DATA_BYTES};

/// Bytes of a head.
pub(super) const HEAD_BYTES: usize = 56;

/// Bits of [`Head::bits`]: the item is in the table.
pub(super) const LINKED: u8 = 1;
/// It was fetched since it was stored.
pub(super) const FETCHED: u8 = 2;
/// It was marked as stale.
pub(super) const STALE: u8 = 4;
/// A client was told to renew it.
pub(super) const TOKEN_SENT: u8 = 8;
/// Its key was given in base64.
pub(super) const KEY_BINARY: u8 = 16;

/// What the store knows of an item besides key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The next item with the same bucket.
    pub(super) next_in_bucket: u32,
    /// Neighbours in the order of use.
    pub(super) older: u32,
    pub(super) newer: u32,
    /// The last chunk of the chain, and the number of chunks.
    pub(super) last: u32,
    pub(super) chunks: u32,
    pub(super) hash: u32,
    pub(super) value_len: u32,
    pub(super) client_flags: u32,
    /// In seconds of the store's clock; 0 is never.
    pub(super) exptime: u32,
    /// When it was last used, in seconds of the store's clock.
    pub(super) time: u32,
    pub(super) cas: u64,
    /// Those who need its memory: senders, receivers, and the store while it works with it. Being linked is none.
    pub(super) refs: u32,
    pub(super) key_len: u8,
    pub(super) bits: u8,
}

impl Head {
    pub(super) fn read(data: &[u8; DATA_BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        Self {
            next_in_bucket: word(0),
            older: word(4),
            newer: word(8),
            last: word(12),
            chunks: word(16),
            hash: word(20),
            value_len: word(24),
            client_flags: word(28),
            exptime: word(32),
            time: word(36),
            cas: u64::from(word(40)) | u64::from(word(44)) << 32,
            refs: word(48),
            key_len: data[52],
            bits: data[53],
        }
    }

    pub(super) fn write(&self, data: &mut [u8; DATA_BYTES]) {
        let words = [
            self.next_in_bucket,
            self.older,
            self.newer,
            self.last,
            self.chunks,
            self.hash,
            self.value_len,
            self.client_flags,
            self.exptime,
            self.time,
            self.cas as u32,
            (self.cas >> 32) as u32,
            self.refs,
        ];
        for (at, word) in words.into_iter().enumerate() {
            data[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        (data[52], data[53]) = (self.key_len, self.bits);
    }

    pub(super) fn has(&self, bit: u8) -> bool {
        self.bits & bit != 0
    }
}

/// The index of an item. It is good until the store next allocates or removes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(pub(super) u32);

/// The indices of pins that were dropped, until the store releases their items.
pub(super) type Dropped = Rc<RefCell<Vec<u32>>>;

/// A reference to an item, whose memory stays as it is until the pin was dropped, even if the item is removed.
#[derive(Debug)]
pub struct Pin {
    pub(super) id: Id,
    dropped: Dropped,
}

impl Pin {
    pub(super) fn new(id: Id, dropped: Dropped) -> Self {
        Self { id, dropped }
    }

    /// Returns the index of the item.
    #[must_use]
    pub fn id(&self) -> Id {
        self.id
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // The store has reserved room for as many as there are.
        self.dropped.borrow_mut().push(self.id.0);
    }
}

/// A place in a chain, and how many bytes are to be read from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub(super) chunk: u32,
    pub(super) at: usize,
    pub(super) left: usize,
}

impl Cursor {
    /// Returns how many bytes are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Returns the next bytes, as many as are in one chunk, and moves on. Empty at the end.
    pub(super) fn next<'a>(&mut self, arena: &'a Arena, len_max: usize) -> &'a [u8] {
        if self.left > 0 && self.at == DATA_BYTES {
            (self.chunk, self.at) = (arena.next(self.chunk), 0);
        }
        let len = self.left.min(DATA_BYTES - self.at).min(len_max);
        if len == 0 {
            return &[];
        }
        let bytes = &arena.data(self.chunk)[self.at..self.at + len];
        self.at += len;
        self.left -= len;
        bytes
    }

    /// Moves on by `len` bytes.
    pub(super) fn skip(&mut self, arena: &Arena, mut len: usize) {
        while len > 0 {
            match self.next(arena, len).len() {
                0 => return,
                skipped => len -= skipped,
            }
        }
    }
}
