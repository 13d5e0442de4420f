//! How values are stored, joined and counted.

use super::arena::DATA_BYTES;
use super::item::{HEAD_BYTES, STALE, TOKEN_SENT};
use super::{Id, OutOfMemory, Pin, Store};
use crate::numbers;

/// Items longer than this are no numbers: memcached keeps them in parts.
const NUMBER_ITEM_BYTES_MAX: usize = 512 << 10;

/// When and how a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In any case.
    Set,
    /// If there is none with the key.
    Add,
    /// If there is one with the key.
    Replace,
    /// After the value that there is.
    Append,
    /// Before the value that there is.
    Prepend,
    /// If the one that there is has this CAS value.
    Cas,
}

/// What became of a value that was to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It is stored, and has this CAS value.
    Stored(u64),
    /// The item has another CAS value.
    Exists,
    /// There is no item whose CAS value could match.
    NotFound,
    /// There is an item, or none, or no memory to join both.
    NotStored,
}

/// A change of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Adds, and wraps at 2^64.
    Increment(u64),
    /// Subtracts, and stops at 0.
    Decrement(u64),
}

/// Why a number was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaError {
    /// There is no item.
    NotFound,
    /// The value is no number.
    NonNumeric,
    /// The item has another CAS value.
    CasMismatch,
    /// There is no memory for the new value.
    OutOfMemory,
}

impl Store {
    /// Stores an item that was made and has all of its value. `cas` is compared with that of the item that there is, unless it is 0. With
    /// `set_stale` a lower one counts as equal, and the item is stored as stale.
    pub fn store(&mut self, pin: &Pin, mode: Mode, cas: u64, set_stale: bool) -> Stored {
        let id = pin.id();
        let mut key = [0; super::KEY_BYTES_MAX];
        let key_len = self.key(id, &mut key);
        match self.find(&key[..key_len]) {
            Some(old) => self.store_over(id, old, mode, cas, set_stale),
            None => match mode {
                Mode::Set | Mode::Add => self.stored(id),
                Mode::Cas => {
                    self.counters.cas_misses += 1;
                    Stored::NotFound
                }
                Mode::Replace | Mode::Append | Mode::Prepend => Stored::NotStored,
            },
        }
    }

    fn store_over(&mut self, id: Id, old: Id, mode: Mode, cas: u64, set_stale: bool) -> Stored {
        let old_head = self.head(old);
        match mode {
            Mode::Add => {
                self.change(old, |head, now_s| head.time = now_s);
                self.make_newest(old);
                Stored::NotStored
            }
            Mode::Set | Mode::Replace => self.replace(old, id),
            Mode::Cas if cas != 0 && cas == old_head.cas => {
                self.counters.cas_hits += 1;
                self.replace(old, id)
            }
            Mode::Cas if cas != 0 && set_stale && cas < old_head.cas => {
                self.counters.cas_hits += 1;
                self.change(id, |head, _| {
                    head.exptime = old_head.exptime;
                    head.bits |= STALE | old_head.bits & TOKEN_SENT;
                });
                self.replace(old, id)
            }
            Mode::Cas => {
                self.counters.cas_badval += 1;
                Stored::Exists
            }
            Mode::Append | Mode::Prepend if cas != 0 && cas != old_head.cas => Stored::Exists,
            Mode::Append => self.join(old, [old, id]),
            Mode::Prepend => self.join(old, [id, old]),
        }
    }

    /// Replaces an item by one with the values of two.
    fn join(&mut self, old: Id, parts: [Id; 2]) -> Stored {
        let head = self.head(old);
        let value_len = parts.iter().map(|part| self.head(*part).value_len as usize).sum();
        if !self.fits(head.key_len.into(), head.client_flags, value_len) {
            return Stored::NotStored;
        }
        // An eviction must not take what is copied.
        let pins = parts.map(|part| self.pin(part));
        let mut key = [0; super::KEY_BYTES_MAX];
        let key_len = self.key(old, &mut key);
        let Ok(joined) = self.make(&key[..key_len], head.client_flags, head.exptime) else { return Stored::NotStored };
        let is_complete = pins.iter().all(|part| self.push_value(joined.id(), part.id()).is_ok());
        if is_complete { self.replace(old, joined.id()) } else { Stored::NotStored }
    }

    fn push_value(&mut self, to: Id, from: Id) -> Result<(), OutOfMemory> {
        let mut cursor = self.value(from);
        let mut part = [0; DATA_BYTES];
        while cursor.left() > 0 {
            let len = self.copy(&cursor, &mut part);
            self.skip(&mut cursor, len);
            self.push(to, &part[..len])?;
        }
        Ok(())
    }

    fn replace(&mut self, old: Id, new: Id) -> Stored {
        self.remove(old);
        self.stored(new)
    }

    fn stored(&mut self, id: Id) -> Stored {
        self.link(id);
        Stored::Stored(self.cas)
    }

    /// Changes a number; returns its item and its new value. `cas` is compared with the item's, unless it is 0.
    ///
    /// # Errors
    ///
    /// Why it was not changed.
    pub fn add_delta(&mut self, key: &[u8], delta: Delta, cas: u64) -> Result<(Id, u64), DeltaError> {
        let id = self.find(key).ok_or(DeltaError::NotFound)?;
        let head = self.head(id);
        if head.value_len == 0 || Self::size_of(&head) > NUMBER_ITEM_BYTES_MAX as u64 {
            return Err(DeltaError::NonNumeric);
        }
        if cas != 0 && cas != head.cas {
            return Err(DeltaError::CasMismatch);
        }
        let value = self.number(id).ok_or(DeltaError::NonNumeric)?;
        let value = match delta {
            Delta::Increment(delta) => {
                self.counters.incr_hits += 1;
                value.wrapping_add(delta)
            }
            Delta::Decrement(delta) => {
                self.counters.decr_hits += 1;
                value.saturating_sub(delta)
            }
        };
        let digits = value.to_string();
        if digits.len() <= head.value_len as usize && head.refs == 0 {
            self.overwrite(id, digits.as_bytes());
            return Ok((id, value));
        }
        // It is being sent, or the number needs more room.
        let old = self.pin(id);
        let new = self.make(key, head.client_flags, head.exptime).map_err(|_| DeltaError::OutOfMemory)?;
        self.push(new.id(), digits.as_bytes()).map_err(|_| DeltaError::OutOfMemory)?;
        self.replace(old.id(), new.id());
        Ok((new.id(), value))
    }

    fn number(&self, id: Id) -> Option<u64> {
        let mut cursor = self.value(id);
        let bytes = core::iter::from_fn(|| cursor.next(&self.arena, 1).first().copied());
        numbers::unsigned(bytes)
    }

    /// Replaces the beginning of a value, and fills the rest with spaces, as memcached does.
    fn overwrite(&mut self, id: Id, digits: &[u8]) {
        self.cas += 1;
        let cas = self.cas;
        self.change(id, |head, now_s| (head.cas, head.time) = (cas, now_s));
        self.make_newest(id);
        let head = self.head(id);
        let mut chunk = id.0;
        let mut at = HEAD_BYTES + usize::from(head.key_len);
        let mut digits = digits.iter();
        for _ in 0..head.value_len {
            while at >= DATA_BYTES {
                (chunk, at) = (self.arena.next(chunk), at - DATA_BYTES);
            }
            self.arena.data_mut(chunk)[at] = *digits.next().unwrap_or(&b' ');
            at += 1;
        }
    }

    /// Makes an item with this value and stores it. There must be none with its key.
    ///
    /// # Errors
    ///
    /// There is no memory that could be freed.
    pub fn vivify(&mut self, key: &[u8], value: &[u8]) -> Result<Id, OutOfMemory> {
        let pin = self.make(key, 0, 0)?;
        self.push(pin.id(), value)?;
        self.link(pin.id());
        Ok(pin.id())
    }
}
