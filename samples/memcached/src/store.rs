//! Items by key, within a budget of memory. Least recently used ones are evicted.
//!
//! ```text
//!   key --hash with a secret--> buckets --> item --> next item of the bucket
//!   least recently used <--> item <--> item <--> most recently used
//! ```
//!
//! All items, their heads included, lie in chunks of the arena ([`arena`]), so the budget bounds all that grows. Besides it there is one
//! word of a bucket for every two chunks. Time is given by the caller.

pub mod arena;
pub mod counters;
mod item;
mod update;

use core::hash::Hasher;
use std::rc::Rc;

use siphasher::sip::SipHasher13;

use arena::{Arena, DATA_BYTES, NONE};
use counters::Counters;
pub use item::{Cursor, Id, Pin};
use item::{Dropped, FETCHED, HEAD_BYTES, Head, LINKED};
pub use update::{Delta, DeltaError, Mode, Stored};

/// Longest key.
pub const KEY_BYTES_MAX: usize = 250;
/// Longest expiry that is relative, in seconds; a larger number is a Unix time.
pub const RELATIVE_S_MAX: i64 = 60 * 60 * 24 * 30;
/// The store's clock at its start, in seconds: more than 1, which is an expiry in the past.
const START_S: u32 = 62;
/// Items of which an eviction looks whether they are in use.
const EVICTION_TRIES: usize = 50;
/// Items without use that are removed when one is added.
const RECLAIM_STEPS: usize = 2;
/// Bytes of an item besides key and value as memcached counts them: its head with the CAS value, a NUL and CRLF.
const ITEM_OVERHEAD_BYTES: usize = 48 + 8 + 1 + 2;

/// There is no memory that could be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// The attributes of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are memcached's")]
pub struct Attributes {
    pub value_len: usize,
    pub client_flags: u32,
    /// In seconds of the store's clock; 0 is never.
    pub exptime: u32,
    /// Of the last use, in seconds of the store's clock.
    pub time: u32,
    pub cas: u64,
    pub is_fetched: bool,
    pub is_stale: bool,
    pub is_token_sent: bool,
    pub is_key_binary: bool,
}

/// The items.
pub struct Store {
    arena: Arena,
    buckets: Box<[u32]>,
    /// A hasher that contains the key; each hash starts from a copy of it.
    keyed: SipHasher13,
    oldest: u32,
    newest: u32,
    item_size_max: usize,
    memory_bytes: usize,
    cas: u64,
    /// Items with a lower CAS value were flushed.
    oldest_cas: u64,
    flush_at: Option<u32>,
    started_ns: u64,
    now_s: u32,
    items: u64,
    bytes: u64,
    pins: usize,
    dropped: Dropped,
    /// For `stats`.
    pub counters: Counters,
    /// Open connections, for `stats`.
    pub connections: u32,
}

impl Store {
    /// Makes an empty store for at most `memory_bytes` of items, of which each has at most `item_size_max`.
    #[must_use]
    pub fn new(memory_bytes: usize, item_size_max: usize) -> Self {
        let arena = Arena::new(memory_bytes);
        let buckets = vec![NONE; (arena.chunks_max() / 2).next_power_of_two()].into();
        Self {
            arena,
            buckets,
            keyed: SipHasher13::new_with_keys(0, 0),
            oldest: NONE,
            newest: NONE,
            item_size_max,
            memory_bytes,
            cas: 0,
            oldest_cas: 0,
            flush_at: None,
            started_ns: 0,
            now_s: START_S,
            items: 0,
            bytes: 0,
            pins: 0,
            dropped: Rc::default(),
            counters: Counters::default(),
            connections: 0,
        }
    }

    /// Starts the store's clock at a Unix time, and sets the secret of its hash. To be called before anything is stored.
    pub fn start(&mut self, now_ns: u64, secret: &[u8; 16]) {
        debug_assert_eq!(self.items, 0, "the hash of a store with items has changed");
        self.keyed = SipHasher13::new_with_key(secret);
        self.started_ns = now_ns;
        self.set_now(now_ns);
    }

    /// Sets the time, as a Unix time in nanoseconds, and releases what is no longer in use. To be called before the other operations.
    pub fn set_now(&mut self, now_ns: u64) {
        let elapsed_s = now_ns.saturating_sub(self.started_ns) / 1_000_000_000;
        self.now_s = self.now_s.max(START_S + elapsed_s as u32);
        if self.flush_at.is_some_and(|at| at <= self.now_s) {
            self.flush_at = None;
            self.oldest_cas = self.cas + 1;
        }
        self.release_dropped();
    }

    /// Returns the store's time in seconds.
    #[must_use]
    pub fn now_s(&self) -> u32 {
        self.now_s
    }

    /// Returns for how many seconds the store has been running.
    #[must_use]
    pub fn uptime_s(&self) -> u32 {
        self.now_s - START_S
    }

    /// Returns the Unix time at which the store's clock was 0.
    #[must_use]
    pub fn epoch_s(&self) -> i64 {
        (self.started_ns / 1_000_000_000) as i64 - i64::from(START_S)
    }

    /// Returns an expiry in seconds of the store's clock, from what a client says: 0 is never, a negative number at once, at most 30 days
    /// are relative, and what is more is a Unix time.
    #[must_use]
    pub fn expiry(&self, exptime: i32) -> u32 {
        match i64::from(exptime) {
            0 => 0,
            ..0 => 1,
            relative @ ..=RELATIVE_S_MAX => (relative + i64::from(self.now_s)) as u32,
            // At most 2^31, so it is no overflow unless the clock is before 1970.
            absolute => u32::try_from(absolute - self.epoch_s()).map_or(1, |expiry| expiry.max(1)),
        }
    }

    /// Removes all items, now or in `delay_s` seconds. It takes constant time: they are freed when their memory is needed.
    pub fn flush(&mut self, delay_s: i32) {
        self.counters.flush_cmds += 1;
        // As memcached has it, within the second before.
        match self.expiry(delay_s.max(0)).saturating_sub(1) {
            at if at > self.now_s => self.flush_at = Some(at),
            _ => {
                self.flush_at = None;
                self.cas += 1;
                self.oldest_cas = self.cas;
            }
        }
    }

    /// Returns the size of an item as memcached counts it.
    #[must_use]
    pub fn item_size(key_len: usize, client_flags: u32, value_len: usize) -> usize {
        ITEM_OVERHEAD_BYTES + key_len + value_len + if client_flags == 0 { 0 } else { 4 }
    }

    /// Returns whether an item of this size may be stored.
    #[must_use]
    pub fn fits(&self, key_len: usize, client_flags: u32, value_len: usize) -> bool {
        Self::item_size(key_len, client_flags, value_len) <= self.item_size_max
    }

    /// Finds an item. One that has expired, or was flushed, is removed instead.
    pub fn find(&mut self, key: &[u8]) -> Option<Id> {
        let id = self.lookup(key, self.hash(key))?;
        let head = self.head(id);
        if head.cas < self.oldest_cas {
            self.counters.get_flushed += 1;
        } else if self.is_expired(&head) {
            self.counters.get_expired += 1;
        } else {
            return Some(id);
        }
        self.remove(id);
        None
    }

    /// Records a fetch of an item.
    pub fn bump(&mut self, id: Id) {
        self.change(id, |head, now_s| {
            head.bits |= FETCHED;
            head.time = now_s;
        });
        self.make_newest(id);
    }

    /// Returns an item's attributes.
    #[must_use]
    pub fn attributes(&self, id: Id) -> Attributes {
        let head = self.head(id);
        Attributes {
            value_len: head.value_len as usize,
            client_flags: head.client_flags,
            exptime: head.exptime,
            time: head.time,
            cas: head.cas,
            is_fetched: head.has(FETCHED),
            is_stale: head.has(item::STALE),
            is_token_sent: head.has(item::TOKEN_SENT),
            is_key_binary: head.has(item::KEY_BINARY),
        }
    }

    /// Sets an item's expiry, in seconds of the store's clock.
    pub fn set_exptime(&mut self, id: Id, exptime: u32) {
        self.change(id, |head, _| head.exptime = exptime);
    }

    /// Records that a client was told to renew the item.
    pub fn set_token_sent(&mut self, id: Id) {
        self.change(id, |head, _| head.bits |= item::TOKEN_SENT);
    }

    /// Records that the item's key was given in base64.
    pub fn set_key_binary(&mut self, id: Id) {
        self.change(id, |head, _| head.bits |= item::KEY_BINARY);
    }

    /// Marks an item as stale: the next client that fetches it is told to renew it. Its CAS value changes.
    pub fn set_stale(&mut self, id: Id) {
        self.cas += 1;
        let cas = self.cas;
        self.change(id, |head, _| {
            head.bits = head.bits & !item::TOKEN_SENT | item::STALE;
            head.cas = cas;
        });
    }

    /// Removes an item. Its memory is freed once no pin needs it.
    pub fn remove(&mut self, id: Id) {
        let mut head = self.head(id);
        assert!(head.has(LINKED), "{id:?} is removed, but it is not in the table");
        let bucket = self.bucket(head.hash);
        if self.buckets[bucket] == id.0 {
            self.buckets[bucket] = head.next_in_bucket;
        } else {
            let mut before = Id(self.buckets[bucket]);
            while self.head(before).next_in_bucket != id.0 {
                before = Id(self.head(before).next_in_bucket);
            }
            self.change(before, |other, _| other.next_in_bucket = head.next_in_bucket);
        }
        self.unlink_use(&head);
        head.bits &= !LINKED;
        self.set_head(id, &head);
        self.items -= 1;
        self.bytes -= Self::size_of(&head);
        self.free_unless_used(id, &head);
    }

    /// Makes an item without value, which is not in the table. It lives as long as its pin, or as it is stored.
    ///
    /// # Errors
    ///
    /// There is no memory that could be freed.
    pub fn make(&mut self, key: &[u8], client_flags: u32, exptime: u32) -> Result<Pin, OutOfMemory> {
        debug_assert!(key.len() <= KEY_BYTES_MAX, "a key has {} bytes", key.len());
        let chunk = self.alloc()?;
        let hash = self.hash(key);
        let head = Head { last: chunk, chunks: 1, hash, client_flags, exptime, time: self.now_s, ..Head::default() };
        let id = Id(chunk);
        self.set_head(id, &head);
        let pin = self.pin(id);
        self.push(id, key)?;
        self.change(id, |head, _| (head.key_len, head.value_len) = (key.len() as u8, 0));
        Ok(pin)
    }

    /// Appends bytes to the value of an item that is not in the table.
    ///
    /// # Errors
    ///
    /// There is no memory that could be freed.
    pub fn push(&mut self, id: Id, mut bytes: &[u8]) -> Result<(), OutOfMemory> {
        let mut head = self.head(id);
        debug_assert!(!head.has(LINKED), "{id:?} changes while it is in the table");
        while !bytes.is_empty() {
            let written = HEAD_BYTES + usize::from(head.key_len) + head.value_len as usize;
            let mut at = written - (head.chunks as usize - 1) * DATA_BYTES;
            if at == DATA_BYTES {
                let chunk = self.alloc()?;
                self.arena.set_next(head.last, chunk);
                (head.last, head.chunks, at) = (chunk, head.chunks + 1, 0);
            }
            let (now, later) = bytes.split_at(bytes.len().min(DATA_BYTES - at));
            self.arena.data_mut(head.last)[at..at + now.len()].copy_from_slice(now);
            head.value_len += now.len() as u32;
            bytes = later;
            // An eviction, which the next allocation may need, does not change this item's head.
            self.set_head(id, &head);
        }
        Ok(())
    }

    /// Keeps an item's memory as it is, until the pin is dropped.
    pub fn pin(&mut self, id: Id) -> Pin {
        self.change(id, |head, _| head.refs += 1);
        self.pins += 1;
        let mut dropped = self.dropped.borrow_mut();
        let room = self.pins - dropped.len();
        dropped.reserve(room);
        Pin::new(id, Rc::clone(&self.dropped))
    }

    /// Returns whether an item's memory stays as it is.
    #[must_use]
    pub fn is_pinned(&self, id: Id) -> bool {
        self.head(id).refs > 0
    }

    /// Returns the place of an item's value.
    #[must_use]
    pub fn value(&self, id: Id) -> Cursor {
        let head = self.head(id);
        let key_len = usize::from(head.key_len);
        let mut cursor = Cursor { chunk: id.0, at: HEAD_BYTES, left: key_len + head.value_len as usize };
        cursor.skip(&self.arena, key_len);
        cursor
    }

    /// Copies bytes from a place, as many as the buffer has room for; returns how many. The cursor stays where it is.
    pub fn copy(&self, cursor: &Cursor, buffer: &mut [u8]) -> usize {
        let mut cursor = *cursor;
        let mut len = 0;
        loop {
            let bytes = cursor.next(&self.arena, buffer.len() - len);
            if bytes.is_empty() {
                return len;
            }
            buffer[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        }
    }

    /// Moves a cursor on by `len` bytes, or to its end.
    pub fn skip(&self, cursor: &mut Cursor, len: usize) {
        cursor.skip(&self.arena, len);
    }

    /// Copies an item's key; returns its length.
    pub fn key(&self, id: Id, buffer: &mut [u8; KEY_BYTES_MAX]) -> usize {
        let left = usize::from(self.head(id).key_len);
        self.copy(&Cursor { chunk: id.0, at: HEAD_BYTES, left }, buffer)
    }

    /// Returns the number of items, and of their bytes as memcached counts them. Items that have expired, or were flushed, count until they
    /// are removed.
    #[must_use]
    pub fn len(&self) -> (u64, u64) {
        (self.items, self.bytes)
    }

    /// Returns the chunks.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Returns the number of buckets.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the budget, and the size of the largest item.
    #[must_use]
    pub fn limits(&self) -> (usize, usize) {
        (self.memory_bytes, self.item_size_max)
    }

    /// Returns for how many seconds the least recently used item was not used.
    #[must_use]
    pub fn age_s(&self) -> u32 {
        if self.oldest == NONE { 0 } else { self.now_s - self.head(Id(self.oldest)).time }
    }

    /// Returns when a flush is due, in seconds of the store's clock.
    #[must_use]
    pub fn flush_at(&self) -> u32 {
        self.flush_at.unwrap_or(0)
    }

    fn head(&self, id: Id) -> Head {
        Head::read(self.arena.data(id.0))
    }

    fn set_head(&mut self, id: Id, head: &Head) {
        head.write(self.arena.data_mut(id.0));
    }

    fn change(&mut self, id: Id, change: impl FnOnce(&mut Head, u32)) {
        let mut head = self.head(id);
        change(&mut head, self.now_s);
        self.set_head(id, &head);
    }

    fn size_of(head: &Head) -> u64 {
        Self::item_size(head.key_len.into(), head.client_flags, head.value_len as usize) as u64
    }

    fn is_expired(&self, head: &Head) -> bool {
        head.exptime != 0 && head.exptime <= self.now_s
    }

    fn hash(&self, key: &[u8]) -> u32 {
        let mut hasher = self.keyed;
        hasher.write(key);
        hasher.finish() as u32
    }

    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn lookup(&self, key: &[u8], hash: u32) -> Option<Id> {
        let mut id = self.buckets[self.bucket(hash)];
        while id != NONE {
            let head = self.head(Id(id));
            if head.hash == hash && usize::from(head.key_len) == key.len() && self.has_key(Id(id), key) {
                return Some(Id(id));
            }
            id = head.next_in_bucket;
        }
        None
    }

    fn has_key(&self, id: Id, mut key: &[u8]) -> bool {
        let mut cursor = Cursor { chunk: id.0, at: HEAD_BYTES, left: key.len() };
        while !key.is_empty() {
            let bytes = cursor.next(&self.arena, key.len());
            match key.strip_prefix(bytes) {
                Some(rest) => key = rest,
                None => return false,
            }
        }
        true
    }

    /// Adds an item to the table, with a new CAS value. There must be none with its key.
    fn link(&mut self, id: Id) {
        self.cas += 1;
        let mut head = self.head(id);
        let bucket = self.bucket(head.hash);
        head.bits |= LINKED;
        head.next_in_bucket = self.buckets[bucket];
        (head.older, head.newer, head.cas, head.time) = (self.newest, NONE, self.cas, self.now_s);
        self.set_head(id, &head);
        self.buckets[bucket] = id.0;
        self.link_newest(id);
        self.items += 1;
        self.bytes += Self::size_of(&head);
        self.counters.total_items += 1;
        self.reclaim(id);
    }

    fn link_newest(&mut self, id: Id) {
        match self.newest {
            NONE => self.oldest = id.0,
            newest => self.change(Id(newest), |other, _| other.newer = id.0),
        }
        self.newest = id.0;
    }

    fn unlink_use(&mut self, head: &Head) {
        match head.older {
            NONE => self.oldest = head.newer,
            older => self.change(Id(older), |other, _| other.newer = head.newer),
        }
        match head.newer {
            NONE => self.newest = head.older,
            newer => self.change(Id(newer), |other, _| other.older = head.older),
        }
    }

    fn make_newest(&mut self, id: Id) {
        if self.newest == id.0 {
            return;
        }
        self.unlink_use(&self.head(id));
        let newest = self.newest;
        self.change(id, |head, _| (head.older, head.newer) = (newest, NONE));
        self.link_newest(id);
    }

    fn free_unless_used(&mut self, id: Id, head: &Head) {
        if head.refs == 0 && !head.has(LINKED) {
            self.arena.free(id.0, head.last, head.chunks);
        }
    }

    fn release_dropped(&mut self) {
        loop {
            let Some(id) = self.dropped.borrow_mut().pop() else { return };
            self.pins -= 1;
            let mut head = self.head(Id(id));
            head.refs -= 1;
            self.set_head(Id(id), &head);
            self.free_unless_used(Id(id), &head);
        }
    }

    /// Allocates a chunk, and evicts for that what was not used for longest.
    fn alloc(&mut self) -> Result<u32, OutOfMemory> {
        loop {
            if let Some(chunk) = self.arena.alloc() {
                return Ok(chunk);
            }
            let used = self.arena.used();
            self.release_dropped();
            if self.arena.used() == used && !self.evict() {
                self.counters.outofmemory += 1;
                return Err(OutOfMemory);
            }
        }
    }

    fn evict(&mut self) -> bool {
        for _ in 0..EVICTION_TRIES {
            let id = Id(self.oldest);
            if id.0 == NONE {
                return false;
            }
            let head = self.head(id);
            if head.refs == 0 {
                self.count_eviction(&head);
                self.remove(id);
                return true;
            }
            // It is being sent, so it is in use.
            self.counters.lrutail_reflocked += 1;
            self.make_newest(id);
        }
        false
    }

    /// Removes items at the end of the order of use that no client can get.
    fn reclaim(&mut self, linked: Id) {
        for _ in 0..RECLAIM_STEPS {
            let id = Id(self.oldest);
            if id.0 == NONE || id == linked {
                return;
            }
            let head = self.head(id);
            if head.refs > 0 || !(head.cas < self.oldest_cas || self.is_expired(&head)) {
                return;
            }
            self.count_eviction(&head);
            self.remove(id);
        }
    }

    fn count_eviction(&mut self, head: &Head) {
        let is_expired = self.is_expired(head);
        let counters = &mut self.counters;
        if head.cas < self.oldest_cas || is_expired {
            counters.reclaimed += 1;
            counters.expired_unfetched += u64::from(!head.has(FETCHED));
        } else {
            counters.evictions += 1;
            counters.evicted_nonzero += u64::from(head.exptime != 0);
            counters.evicted_unfetched += u64::from(!head.has(FETCHED));
            counters.evicted_time = (self.now_s - head.time).into();
        }
    }
}
