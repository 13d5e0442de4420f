//! A field's entries: a hash table of fixed size that many cores use at once.
//!
//! ```text
//!   shard      lock | buckets of 8 tags | cells, one for each tag         by hash; up to 64 shards of at least 1024 entries
//!   cell       expires, written, lengths | key, 64 bytes | value          all cells of a field have one size
//! ```
//!
//! A key may lie in either of two buckets of one shard, so a search looks at sixteen tags for any key. A new entry goes into the bucket with more
//! free cells. If both are full, it takes the cell of an expired entry; if there is none, one of the sixteen entries moves to its own other
//! bucket, as in cuckoo hashing (Pagh and Rodler, "Cuckoo hashing"), one step deep. There are cells for twice as many entries as the field is declared for.
//! So a field with fewer entries than declared is full for a new key only if eighteen particular buckets are all full of live entries. With
//! at most half of all cells in use, millions of random test steps have never met that. All memory is allocated and touched before the
//! first call.
//!
//! The work under a shard's lock is bounded. A search compares sixteen tags. A new key in two full buckets looks at sixteen more buckets, and moves one
//! entry at most. No thread waits for a lock longer than some microseconds, because its holder may have lost its core: the caller is told to try
//! again ([`Errno::Again`]). Existing tables grow, allocate under their locks, and wait for them, so this one is our own.

use std::sync::{Mutex, MutexGuard, TryLockError};

use crossbeam_utils::CachePadded;
use pinion_abi::{Errno, STATE_KEY_BYTES_MAX};
use pinion_control::model::{Field, WhenFull};
use pinion_guest::calls::state::Key;
use pinion_mma::accounts::counters::Counter;

use super::hash::{Hasher, Hashes};

/// Tags of a bucket.
const BUCKET: usize = 8;
/// The fewest entries of a shard, so that shards differ little in how full they are, and the most shards.
const SHARD_ENTRIES_MIN: usize = 1024;
const SHARDS_MAX: usize = 64;
/// Attempts to take a lock before the caller is told to try again.
const LOOKS: u32 = 200;
/// The expiry time of entries that do not expire.
const NEVER_NS: u64 = u64::MAX;

/// Offsets in a cell.
const EXPIRES_AT: usize = 0;
const WRITTEN_AT: usize = 8;
const KEY_LEN_AT: usize = 16;
const VALUE_LEN_AT: usize = 18;
const KEY_AT: usize = 24;
const VALUE_AT: usize = KEY_AT + STATE_KEY_BYTES_MAX;

/// The size of a field's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    shards: usize,
    /// Per shard.
    buckets: usize,
    cell_bytes: usize,
}

impl Size {
    fn of(field: &Field) -> Self {
        let entries = field.entries as usize;
        let shards = (entries / SHARD_ENTRIES_MIN).clamp(1, SHARDS_MAX);
        // At least two, so that each key has two buckets.
        let buckets = (2 * entries.div_ceil(shards)).div_ceil(BUCKET).max(2);
        Self { shards, buckets, cell_bytes: VALUE_AT + field.value_bytes as usize }
    }

    fn bytes(self) -> usize {
        self.shards * self.buckets * (size_of::<Bucket>() + BUCKET * self.cell_bytes)
    }
}

/// For each cell, a part of its key's hash; zero if the cell is empty.
type Bucket = [u16; BUCKET];

/// Counters of a shard; written under its lock.
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

/// Counters of a table since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Entries now, including expired ones that no call has met since.
    pub(super) entries: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) writes: u64,
    pub(super) full: u64,
    pub(super) evicted: u64,
}

/// See the module. Operations read the time through `now_ns`, only where it matters.
#[derive(Debug)]
pub(super) struct Table {
    hasher: Hasher,
    shards: Box<[CachePadded<Shard>]>,
    value_bytes: usize,
    ttl_ns: Option<u64>,
    when_full: WhenFull,
}

impl Table {
    /// Returns how many bytes of memory a field's table takes.
    pub(super) fn bytes(field: &Field) -> u64 {
        Size::of(field).bytes() as u64
    }

    /// Creates an empty table. Touches all of its memory.
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
        // Read in this order, the difference is never negative.
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

    /// Copies the start of a value, as much as fits; returns its full length.
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

    /// Stores a value; the field's time to live starts again.
    #[inline]
    pub(super) fn put(&self, key: &Key, value: &[u8], now_ns: impl Fn() -> u64) -> Result<(), Errno> {
        self.fits(value)?;
        let (place, mut shard) = self.enter(key)?;
        let found = shard.find(&place, key, &now_ns);
        self.write(&mut shard, &place, key, found, value, &now_ns)
    }

    /// Stores a value, if the present one is the expected one.
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

    /// Adds to a number, which counts as zero if it does not exist; wraps around. The time to live does not change.
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

    /// Makes an entry expire after this time, or never.
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
        place: &BucketPair,
        key: &Key,
        found: Option<usize>,
        value: &[u8],
        now_ns: &impl Fn() -> u64,
    ) -> Result<(), Errno> {
        let cell = match found {
            Some(cell) => cell,
            None => {
                let cell = shard.free_cell(place, self, now_ns)?;
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

    /// Returns the key's buckets, with its shard locked.
    #[inline]
    fn enter(&self, key: &Key) -> Result<(BucketPair, Entered<'_>), Errno> {
        let hashes = self.hasher.hash(key);
        // Selected by the upper half of the hash; the lower half is the tag.
        let shard = &self.shards[scaled(hashes.0[2] & !0xffff, self.shards.len())];
        let cells = shard.lock()?;
        Ok((BucketPair::of(hashes, cells.tags.len()), Entered { cells, counts: &shard.counts }))
    }
}

/// Maps a hash to a number below `count`.
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
                Err(TryLockError::Poisoned(poisoned)) => return Ok(self.emptied(poisoned.into_inner())),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        Err(Errno::Again)
    }

    /// Removes all entries: a call has panicked, and may have left any of them in any state.
    #[cold]
    fn emptied<'s>(&'s self, mut cells: MutexGuard<'s, Cells>) -> MutexGuard<'s, Cells> {
        cells.tags.fill([0; BUCKET]);
        self.counts.removed.add(self.counts.added.value().wrapping_sub(self.counts.removed.value()));
        self.cells.clear_poison();
        cells
    }
}

/// The two buckets in which a key may be.
struct BucketPair {
    buckets: [usize; 2],
    tag: u16,
}

impl BucketPair {
    /// Returns the buckets of a key with these hashes, in a shard of `buckets`: two different ones, always in the same order.
    #[inline]
    fn of(hashes: Hashes, buckets: usize) -> Self {
        let [first, second, third] = hashes.0;
        let first = scaled(first, buckets);
        // Always a different one.
        let second = (first + 1 + scaled(second, buckets - 1)) % buckets;
        Self { buckets: [first, second], tag: (third as u16).max(1) }
    }
}

/// A shard that this thread has locked.
struct Entered<'t> {
    cells: MutexGuard<'t, Cells>,
    counts: &'t Counts,
}

impl Entered<'_> {
    /// Returns the cell of an entry. Removes the entry if it has expired.
    #[inline]
    fn find(&mut self, place: &BucketPair, key: &Key, now_ns: impl Fn() -> u64) -> Option<usize> {
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

    /// Returns a free cell for a new key: one in the bucket with more of them, that of an expired entry, that of an entry that moves to its
    /// other bucket, or as the field says. Looks at 18 buckets and moves one entry at most.
    fn free_cell(&mut self, place: &BucketPair, table: &Table, now_ns: &impl Fn() -> u64) -> Result<usize, Errno> {
        let free = |bucket: usize| self.cells.tags[bucket].iter().filter(|tag| **tag == 0).count();
        let emptier = place.buckets.into_iter().max_by_key(|bucket| free(*bucket));
        let bucket = emptier.unwrap_or(place.buckets[0]);
        if let Some(cell) = self.cells.unused(bucket) {
            return Ok(cell);
        }
        let now_ns = now_ns();
        let expired = place.buckets.into_iter().find_map(|bucket| self.cells.expired(bucket, now_ns));
        if let Some(cell) = expired {
            self.remove(cell);
            return Ok(cell);
        }
        if (table.when_full == WhenFull::Refuse || !self.is_nearly_full())
            && let Some(cell) = self.move_one_away(place, &table.hasher, now_ns)
        {
            return Ok(cell);
        }
        match table.when_full {
            WhenFull::Refuse => {
                self.counts.full.add(1);
                Err(Errno::Full)
            }
            WhenFull::Evict => {
                let oldest = cells_of(place.buckets).min_by_key(|cell| self.cells.written(*cell)).ok_or(Errno::Full)?;
                self.counts.evicted.add(1);
                self.remove(oldest);
                Ok(oldest)
            }
        }
    }

    /// Returns whether more than seven eighths of the shard's cells are in use, including those of expired entries. That is the normal
    /// state of a field that evicts. There, each new key would search in vain for an entry to move.
    fn is_nearly_full(&self) -> bool {
        let in_use = self.counts.added.value() - self.counts.removed.value();
        in_use > (self.cells.tags.len() * BUCKET * 7 / 8) as u64
    }

    /// Moves one of the entries in two full buckets to its other bucket, into a free cell or that of an expired entry. Returns the cell it had.
    fn move_one_away(&mut self, place: &BucketPair, hasher: &Hasher, now_ns: u64) -> Option<usize> {
        let other_bucket = |cell: usize| {
            let [first, second] = BucketPair::of(hasher.hash(&self.cells.key(cell)), self.cells.tags.len()).buckets;
            if cell / BUCKET == first { second } else { first }
        };
        let moves: [(usize, usize); 2 * BUCKET] = std::array::from_fn(|at| {
            let cell = place.buckets[at / BUCKET] * BUCKET + at % BUCKET;
            (cell, other_bucket(cell))
        });
        let unused = moves.iter().find_map(|(from, bucket)| Some((*from, self.cells.unused(*bucket)?)));
        let (from, to) = unused.or_else(|| {
            let found = moves.iter().find_map(|(from, bucket)| Some((*from, self.cells.expired(*bucket, now_ns)?)));
            found.inspect(|(_, to)| self.remove(*to))
        })?;
        self.cells.move_entry(from, to);
        Some(from)
    }
}

/// Returns the cells of two buckets.
fn cells_of(buckets: [usize; 2]) -> impl Iterator<Item = usize> {
    buckets.into_iter().flat_map(|bucket| bucket * BUCKET..(bucket + 1) * BUCKET)
}

/// What a shard's lock protects.
#[derive(Debug)]
struct Cells {
    tags: Box<[Bucket]>,
    bytes: Box<[u8]>,
    cell_bytes: usize,
    /// Incremented with each value that is written.
    writes: u64,
}

impl Cells {
    fn new(size: Size) -> Self {
        let count = size.buckets * BUCKET * size.cell_bytes;
        let tags = vec![[0; BUCKET]; size.buckets].into();
        // Not zero, so that the pages are present: zeroed memory would be provided only when it is used.
        let bytes = vec![u8::MAX; count].into();
        Self { tags, bytes, cell_bytes: size.cell_bytes, writes: 0 }
    }

    #[inline]
    fn find(&self, place: &BucketPair, key: &Key) -> Option<usize> {
        for bucket in place.buckets {
            let tags = &self.tags[bucket];
            // Without branches, so that all tags are compared at once.
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

    /// Returns an empty cell of a bucket.
    #[inline]
    fn unused(&self, bucket: usize) -> Option<usize> {
        Some(bucket * BUCKET + self.tags[bucket].iter().position(|tag| *tag == 0)?)
    }

    /// Returns a cell with an expired entry; all cells of the bucket have entries.
    fn expired(&self, bucket: usize, now_ns: u64) -> Option<usize> {
        (bucket * BUCKET..(bucket + 1) * BUCKET).find(|cell| now_ns >= self.expires_ns(*cell))
    }

    /// Moves an entry to an empty cell.
    fn move_entry(&mut self, from: usize, to: usize) {
        let tag = std::mem::take(&mut self.tags[from / BUCKET][from % BUCKET]);
        self.tags[to / BUCKET][to % BUCKET] = tag;
        self.bytes.copy_within(from * self.cell_bytes..(from + 1) * self.cell_bytes, to * self.cell_bytes);
    }

    /// Returns the key of a cell's entry.
    fn key(&self, cell: usize) -> Key {
        let cell = self.cell(cell);
        Key::new(&cell[KEY_AT..][..cell[KEY_LEN_AT].into()]).expect("a cell has the bytes of one key")
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

    /// Returns when its value was written, as the count of earlier writes.
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

    /// Creates an entry in an empty cell.
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
    fn a_shard_in_which_a_call_has_panicked_is_empty_and_can_be_used_again() {
        let name = "field".parse().unwrap();
        let field = Field { name, value_bytes: 8, entries: 10, ttl_seconds: None, when_full: WhenFull::Refuse };
        let (table, key) = (Table::new(&field), Key::new(b"key").unwrap());
        table.put(&key, b"value", || 0).unwrap();
        let panics = std::panic::AssertUnwindSafe(|| {
            let _cells = table.shards[0].cells.lock().unwrap();
            panic!("as planned");
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(table.get(&key, &mut [0; 8], || 0), Err(Errno::NoEntry));
        assert_eq!(table.counted().entries, 0);
        table.put(&key, b"value", || 0).unwrap();
        assert_eq!(table.counted().entries, 1);
    }

    #[test]
    fn a_call_that_finds_the_shard_locked_for_too_long_returns_again_and_changes_nothing() {
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
