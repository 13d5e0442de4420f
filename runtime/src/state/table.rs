//! A field's entries: a hash table of fixed size that many cores use at once.
//!
//! ```text
//!   shard      lock | buckets of 8 tags | cells, one for each tag         by hash; up to 64 shards of at least 1024 entries
//!   cell       expires, written, lengths | key, 64 bytes | value          all of a field's are of one size
//! ```
//!
//! A key may lie in either of two buckets of one shard, so sixteen tags are looked at for any key, and a new one goes where there is more
//! room. Buckets are made for twice as many entries as the field is declared for: then those find room, whatever their keys. All
//! memory is there, and touched, before the first call.
//!
//! What is done under a shard's lock is bounded: sixteen tags, as many cells, and a value. Nobody waits for a lock longer than some
//! microseconds, as whoever has it may have lost its core: then the caller is told to come again ([`Errno::Again`]). A table of our
//! own, as those there are grow, allocate under their locks, and wait for them.

use std::sync::{Mutex, MutexGuard, TryLockError};

use crossbeam_utils::CachePadded;
use pinion_abi::{Errno, STATE_KEY_BYTES_MAX};
use pinion_control::model::{Field, WhenFull};
use pinion_guest::calls::state::Key;
use pinion_mma::counters::Counter;

use super::hash::Hasher;

/// Tags of a bucket.
const BUCKET: usize = 8;
/// Entries of a shard at least, so that shards differ little in how full they are, and shards at most.
const SHARD_ENTRIES_MIN: usize = 1024;
const SHARDS_MAX: usize = 64;
/// Looks at a lock before the caller is told to come again.
const LOOKS: u32 = 200;
/// What does not expire.
const NEVER_NS: u64 = u64::MAX;

/// Where in a cell what is.
const EXPIRES_AT: usize = 0;
const WRITTEN_AT: usize = 8;
const KEY_LEN_AT: usize = 16;
const VALUE_LEN_AT: usize = 18;
const KEY_AT: usize = 24;
const VALUE_AT: usize = KEY_AT + STATE_KEY_BYTES_MAX;

/// How large a field's table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    shards: usize,
    /// Of each shard.
    buckets: usize,
    cell_bytes: usize,
}

impl Size {
    fn of(field: &Field) -> Self {
        let entries = field.entries as usize;
        let shards = (entries / SHARD_ENTRIES_MIN).clamp(1, SHARDS_MAX);
        // Two at least, so that each key has two.
        let buckets = (2 * entries.div_ceil(shards)).div_ceil(BUCKET).max(2);
        Self { shards, buckets, cell_bytes: VALUE_AT + field.value_bytes as usize }
    }

    fn bytes(self) -> usize {
        self.shards * self.buckets * (size_of::<Bucket>() + BUCKET * self.cell_bytes)
    }
}

/// Of each cell a part of its key's hash; zero if there is nothing in it.
type Bucket = [u16; BUCKET];

/// What is counted of a shard; written under its lock.
#[derive(Debug, Default)]
struct Counts {
    hits: Counter,
    misses: Counter,
    writes: Counter,
    full: Counter,
    evicted: Counter,
    added: Counter,
    removed: Counter,
}

#[derive(Debug)]
struct Shard {
    cells: Mutex<Cells>,
    counts: Counts,
}

/// What of a table is counted, since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Entries now, with those that have expired and that nobody has met since.
    pub(super) entries: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) writes: u64,
    pub(super) full: u64,
    pub(super) evicted: u64,
}

/// See the module. What the time is, is asked by way of `now_ns`, and only when it matters.
#[derive(Debug)]
pub(super) struct Table {
    hasher: Hasher,
    shards: Box<[CachePadded<Shard>]>,
    value_bytes: usize,
    ttl_ns: Option<u64>,
    when_full: WhenFull,
}

impl Table {
    /// How many bytes of memory a field's table takes.
    pub(super) fn bytes(field: &Field) -> u64 {
        Size::of(field).bytes() as u64
    }

    /// An empty table. Touches all of its memory.
    pub(super) fn new(field: &Field) -> Self {
        let size = Size::of(field);
        let shard = || Shard { cells: Mutex::new(Cells::new(size)), counts: Counts::default() };
        Self {
            hasher: Hasher::new(),
            shards: (0..size.shards).map(|_| CachePadded::new(shard())).collect(),
            value_bytes: field.value_bytes as usize,
            ttl_ns: field.ttl_seconds.map(|seconds| u64::from(seconds) * 1_000_000_000),
            when_full: field.when_full,
        }
    }

    pub(super) fn counted(&self) -> Counted {
        let sum = |of: fn(&Counts) -> &Counter| self.shards.iter().map(|shard| of(&shard.counts).value()).sum::<u64>();
        // In this order there are never fewer than none.
        let removed = sum(|counts| &counts.removed);
        let entries = sum(|counts| &counts.added) - removed;
        Counted {
            entries,
            hits: sum(|counts| &counts.hits),
            misses: sum(|counts| &counts.misses),
            writes: sum(|counts| &counts.writes),
            full: sum(|counts| &counts.full),
            evicted: sum(|counts| &counts.evicted),
        }
    }

    /// The start of a value, as much as fits; its full length.
    #[inline]
    pub(super) fn get(&self, key: &Key, value: &mut [u8], now_ns: impl Fn() -> u64) -> Result<u32, Errno> {
        let (place, mut shard) = self.enter(key)?;
        let Some(cell) = shard.find(&place, key, now_ns) else {
            shard.counts.misses.add(1);
            return Err(Errno::NoEntry);
        };
        shard.counts.hits.add(1);
        let stored = shard.cells.value(cell);
        let fits = stored.len().min(value.len());
        value[..fits].copy_from_slice(&stored[..fits]);
        Ok(stored.len() as u32)
    }

    /// Stores a value, from when the field's time to live begins anew.
    #[inline]
    pub(super) fn put(&self, key: &Key, value: &[u8], now_ns: impl Fn() -> u64) -> Result<(), Errno> {
        self.fits(value)?;
        let (place, mut shard) = self.enter(key)?;
        let found = shard.find(&place, key, &now_ns);
        self.write(&mut shard, &place, key, found, value, &now_ns)
    }

    /// The same, if what is there is what is expected.
    #[inline]
    pub(super) fn compare_and_swap(
        &self,
        key: &Key,
        expected: Option<&[u8]>,
        value: &[u8],
        now_ns: impl Fn() -> u64,
    ) -> Result<(), Errno> {
        self.fits(value)?;
        let (place, mut shard) = self.enter(key)?;
        let found = shard.find(&place, key, &now_ns);
        if found.map(|cell| shard.cells.value(cell)) != expected {
            return Err(Errno::Mismatch);
        }
        self.write(&mut shard, &place, key, found, value, &now_ns)
    }

    /// Adds to a number, which is zero before it is there; wraps around. A time to live goes on.
    #[inline]
    pub(super) fn add(&self, key: &Key, delta: i64, now_ns: impl Fn() -> u64) -> Result<i64, Errno> {
        self.fits(&[0; size_of::<i64>()])?;
        let (place, mut shard) = self.enter(key)?;
        let Some(cell) = shard.find(&place, key, &now_ns) else {
            self.write(&mut shard, &place, key, None, &delta.to_le_bytes(), &now_ns)?;
            return Ok(delta);
        };
        let number = shard.cells.value(cell).try_into().map_err(|_| Errno::Mismatch)?;
        let sum = i64::from_le_bytes(number).wrapping_add(delta);
        shard.cells.set_value(cell, &sum.to_le_bytes());
        shard.counts.writes.add(1);
        Ok(sum)
    }

    /// Has an entry end after so long, or never.
    pub(super) fn expire(&self, key: &Key, ttl_ns: Option<u64>, now_ns: impl Fn() -> u64) -> Result<(), Errno> {
        let (place, mut shard) = self.enter(key)?;
        let cell = shard.find(&place, key, &now_ns).ok_or(Errno::NoEntry)?;
        shard.counts.writes.add(1);
        match ttl_ns {
            Some(0) => shard.remove(cell),
            ttl_ns => shard.cells.set_expires_ns(cell, expires_ns(ttl_ns, now_ns)),
        }
        Ok(())
    }

    /// Removes an entry.
    pub(super) fn delete(&self, key: &Key, now_ns: impl Fn() -> u64) -> Result<(), Errno> {
        let (place, mut shard) = self.enter(key)?;
        let cell = shard.find(&place, key, now_ns).ok_or(Errno::NoEntry)?;
        shard.counts.writes.add(1);
        shard.remove(cell);
        Ok(())
    }

    fn fits(&self, value: &[u8]) -> Result<(), Errno> {
        if value.len() > self.value_bytes { Err(Errno::TooLong) } else { Ok(()) }
    }

    fn write(
        &self,
        shard: &mut Entered<'_>,
        place: &Place,
        key: &Key,
        found: Option<usize>,
        value: &[u8],
        now_ns: &impl Fn() -> u64,
    ) -> Result<(), Errno> {
        let cell = match found {
            Some(cell) => cell,
            None => {
                let cell = shard.room(place, self.when_full, now_ns)?;
                shard.cells.begin(cell, place.tag, key);
                shard.counts.added.add(1);
                cell
            }
        };
        shard.cells.set_expires_ns(cell, expires_ns(self.ttl_ns, now_ns));
        shard.cells.set_value(cell, value);
        shard.counts.writes.add(1);
        Ok(())
    }

    /// The key's place, and its shard to oneself.
    #[inline]
    fn enter(&self, key: &Key) -> Result<(Place, Entered<'_>), Errno> {
        let [first, second, third] = self.hasher.hash(key).0;
        // By its upper half: the lower one is the tag.
        let shard = &self.shards[scaled(third & !0xffff, self.shards.len())];
        let cells = shard.lock()?;
        let buckets = cells.tags.len();
        let first = scaled(first, buckets);
        // Another one.
        let second = (first + 1 + scaled(second, buckets - 1)) % buckets;
        let tag = (third as u16).max(1);
        Ok((Place { buckets: [first, second], tag }, Entered { cells, counts: &shard.counts }))
    }
}

/// A hash as a number below `count`.
#[inline(always)]
fn scaled(hash: u32, count: usize) -> usize {
    ((u64::from(hash) * count as u64) >> 32) as usize
}

#[inline]
fn expires_ns(ttl_ns: Option<u64>, now_ns: impl Fn() -> u64) -> u64 {
    ttl_ns.map_or(NEVER_NS, |ttl_ns| now_ns().saturating_add(ttl_ns))
}

impl Shard {
    #[inline]
    fn lock(&self) -> Result<MutexGuard<'_, Cells>, Errno> {
        for _ in 0..LOOKS {
            match self.cells.try_lock() {
                Ok(cells) => return Ok(cells),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        Err(Errno::Again)
    }
}

/// Where a key may be.
struct Place {
    buckets: [usize; 2],
    tag: u16,
}

/// A shard that nobody else is at.
struct Entered<'t> {
    cells: MutexGuard<'t, Cells>,
    counts: &'t Counts,
}

impl Entered<'_> {
    /// The cell of an entry. One that has expired is removed.
    #[inline]
    fn find(&mut self, place: &Place, key: &Key, now_ns: impl Fn() -> u64) -> Option<usize> {
        let cell = self.cells.find(place, key)?;
        let expires_ns = self.cells.expires_ns(cell);
        if expires_ns != NEVER_NS && now_ns() >= expires_ns {
            self.remove(cell);
            return None;
        }
        Some(cell)
    }

    fn remove(&mut self, cell: usize) {
        self.cells.tags[cell / BUCKET][cell % BUCKET] = 0;
        self.counts.removed.add(1);
    }

    /// A cell with nothing in it: in the emptier bucket; else that of an entry that has expired; else as the field says.
    fn room(&mut self, place: &Place, when_full: WhenFull, now_ns: &impl Fn() -> u64) -> Result<usize, Errno> {
        let free = |bucket: usize| self.cells.tags[bucket].iter().filter(|tag| **tag == 0).count();
        let emptier = place.buckets.into_iter().max_by_key(|bucket| free(*bucket));
        let bucket = emptier.unwrap_or(place.buckets[0]);
        if let Some(slot) = self.cells.tags[bucket].iter().position(|tag| *tag == 0) {
            return Ok(bucket * BUCKET + slot);
        }
        let now_ns = now_ns();
        let all = || place.buckets.into_iter().flat_map(|bucket| bucket * BUCKET..(bucket + 1) * BUCKET);
        let expired = all().find(|cell| now_ns >= self.cells.expires_ns(*cell));
        let cell = match (expired, when_full) {
            (Some(cell), _) => cell,
            (None, WhenFull::Refuse) => {
                self.counts.full.add(1);
                return Err(Errno::Full);
            }
            (None, WhenFull::Evict) => {
                self.counts.evicted.add(1);
                all().min_by_key(|cell| self.cells.written(*cell)).ok_or(Errno::Full)?
            }
        };
        self.remove(cell);
        Ok(cell)
    }
}

/// What a shard's lock guards.
#[derive(Debug)]
struct Cells {
    tags: Box<[Bucket]>,
    bytes: Box<[u8]>,
    cell_bytes: usize,
    /// Counts up with each value that is written.
    writes: u64,
}

impl Cells {
    fn new(size: Size) -> Self {
        let count = size.buckets * BUCKET * size.cell_bytes;
        let tags = vec![[0; BUCKET]; size.buckets].into();
        // Not zero, so that the pages are there: memory that is zero from the start would come when it is used.
        let bytes = vec![u8::MAX; count].into();
        Self { tags, bytes, cell_bytes: size.cell_bytes, writes: 0 }
    }

    #[inline]
    fn find(&self, place: &Place, key: &Key) -> Option<usize> {
        for bucket in place.buckets {
            let tags = &self.tags[bucket];
            // Without branches, so that all are compared at once.
            let mut alike = (0..BUCKET).fold(0_u32, |alike, at| alike | u32::from(tags[at] == place.tag) << at);
            while alike != 0 {
                let cell = bucket * BUCKET + alike.trailing_zeros() as usize;
                let bytes = self.cell(cell);
                if bytes[KEY_AT..VALUE_AT] == key.padded()[..] && bytes[KEY_LEN_AT] == key.len() {
                    return Some(cell);
                }
                alike &= alike - 1;
            }
        }
        None
    }

    #[inline]
    fn cell(&self, cell: usize) -> &[u8] {
        &self.bytes[cell * self.cell_bytes..][..self.cell_bytes]
    }

    #[inline]
    fn cell_mut(&mut self, cell: usize) -> &mut [u8] {
        &mut self.bytes[cell * self.cell_bytes..][..self.cell_bytes]
    }

    #[inline]
    fn word(&self, cell: usize, at: usize) -> u64 {
        u64::from_le_bytes(*self.cell(cell)[at..].first_chunk().expect("a cell is longer than its words"))
    }

    #[inline]
    fn expires_ns(&self, cell: usize) -> u64 {
        self.word(cell, EXPIRES_AT)
    }

    #[inline]
    fn set_expires_ns(&mut self, cell: usize, expires_ns: u64) {
        self.cell_mut(cell)[EXPIRES_AT..][..8].copy_from_slice(&expires_ns.to_le_bytes());
    }

    /// When its value was written: how many had been before.
    fn written(&self, cell: usize) -> u64 {
        self.word(cell, WRITTEN_AT)
    }

    #[inline]
    fn value(&self, cell: usize) -> &[u8] {
        let cell = self.cell(cell);
        let len = u16::from_le_bytes([cell[VALUE_LEN_AT], cell[VALUE_LEN_AT + 1]]);
        &cell[VALUE_AT..][..len.into()]
    }

    #[inline]
    fn set_value(&mut self, cell: usize, value: &[u8]) {
        let written = self.writes;
        self.writes += 1;
        let cell = self.cell_mut(cell);
        cell[WRITTEN_AT..][..8].copy_from_slice(&written.to_le_bytes());
        cell[VALUE_LEN_AT..][..2].copy_from_slice(&(value.len() as u16).to_le_bytes());
        cell[VALUE_AT..][..value.len()].copy_from_slice(value);
    }

    /// Has an entry begin where there is none.
    #[inline]
    fn begin(&mut self, cell: usize, tag: u16, key: &Key) {
        self.tags[cell / BUCKET][cell % BUCKET] = tag;
        let cell = self.cell_mut(cell);
        cell[KEY_LEN_AT] = key.len();
        cell[KEY_AT..VALUE_AT].copy_from_slice(key.padded());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_somebody_at_the_entry_for_too_long_is_told_to_come_again_and_nothing_has_changed() {
        let name = "field".parse().unwrap();
        let field = Field { name, value_bytes: 8, entries: 10, ttl_seconds: None, when_full: WhenFull::Refuse };
        let (table, key) = (Table::new(&field), Key::new(b"key").unwrap());
        let at_it = table.shards[0].cells.lock().unwrap();
        assert_eq!(table.put(&key, b"value", || 0), Err(Errno::Again));
        assert_eq!(table.get(&key, &mut [0; 8], || 0), Err(Errno::Again));
        assert_eq!(table.add(&key, 1, || 0), Err(Errno::Again));
        drop(at_it);
        assert_eq!(table.get(&key, &mut [0; 8], || 0), Err(Errno::NoEntry));
        assert_eq!(table.put(&key, b"value", || 0), Ok(()));
    }
}
