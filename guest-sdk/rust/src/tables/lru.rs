//! A table of bounded size for functions that must see, or choose, which entry is evicted: [`Lru`].
//!
//! If entries only need to expire, use [`table`](crate::table). Here an entry has an index, by which other data may refer to it. The
//! function itself removes entries, so that it can release what belongs to them. All entries can be iterated over.
//!
//! Packets of strangers fill the table. So its size is bounded, its hash has a key that they do not know, and its entries are ordered by
//! their last use. A function that runs out of entries, or that expires them, starts with the oldest.
//!
//! ```text
//!   buckets  | . | 3 | 1 | . | 2 | ...     indices into `entries`, found by hash, with linear probing
//!                  |
//!   entries  | 1 | 2 | 3 | free | ...      never move: an `Id` is good until its entry is removed
//!              ^-------^                   a list per queue, from the least to the most recently used entry
//! ```
//!
//! All memory is allocated when the table is made. Nothing allocates afterwards, and all operations except iteration take constant time.

mod list;

use core::fmt;
use core::hash::{Hash, Hasher};
use core::num::NonZeroU32;

pub use list::{Linked, Links, List};
use siphasher::sip::SipHasher13;

use crate::random;

/// No entry: buckets and links count from 1, so that an unused table is memory of zeroes.
const NONE: u32 = 0;
/// The queue number of a free entry.
const FREE: u8 = u8::MAX;

/// The index of an entry, valid until the entry is removed. An `Option` of it takes no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(NonZeroU32);

impl Id {
    fn new(place: u32) -> Option<Self> {
        NonZeroU32::new(place).map(Self)
    }

    fn place(self) -> u32 {
        self.0.get()
    }
}

/// One entry, with its links in its queue.
#[derive(Clone, Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    hash: u32,
    older: u32,
    newer: u32,
    used_ns: u64,
    queue: u8,
}

/// The ends of a list of entries.
#[derive(Clone, Copy, Debug)]
struct Queue {
    oldest: u32,
    newest: u32,
}

/// A map of bounded size. Each entry is in one of `QUEUES` queues, ordered by the time of its last use.
///
/// If it is made in [`Function::init`](crate::Function::init), its memory is part of the snapshot. Call [`Lru::rekey`] in
/// [`Function::start`](crate::Function::start), as a key drawn earlier is the same in all instances.
///
/// ```
/// use pinion_sdk::lru::Lru;
///
/// let mut seen: Lru<[u8; 4], u32> = Lru::with_capacity(2);
/// seen.rekey();
/// for (now_ns, address) in [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 1]].into_iter().enumerate() {
///     match seen.find(&address) {
///         Some(id) => {
///             *seen.value_mut(id) += 1;
///             seen.touch(id, 0, now_ns as u64);
///         }
///         None => {
///             seen.insert(address, 1, 0, now_ns as u64);
///         }
///     }
/// }
///
/// // It is full: the newcomer replaces the address that was unseen for longest.
/// assert_eq!(seen.insert([10, 0, 0, 3], 1, 0, 3), None);
/// let (oldest, _) = seen.oldest(0).unwrap();
/// assert_eq!(seen.remove(oldest), ([10, 0, 0, 2], 1));
/// assert!(seen.insert([10, 0, 0, 3], 1, 0, 3).is_some());
/// ```
#[derive(Clone)]
pub struct Lru<K, V, const QUEUES: usize = 1> {
    buckets: Box<[u32]>,
    /// Never longer than `capacity`.
    entries: Vec<Entry<K, V>>,
    capacity: usize,
    len: usize,
    /// The first free entry; the others are linked by `newer`.
    free: u32,
    queues: [Queue; QUEUES],
    /// A hasher that contains the key; each hash starts from a copy of it.
    keyed: SipHasher13,
}

impl<K: Copy + Eq + Hash, V: Copy, const QUEUES: usize> Lru<K, V, QUEUES> {
    /// Makes an empty table for `capacity` entries.
    ///
    /// # Panics
    ///
    /// If `capacity` is more than 2^24.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        const { assert!(QUEUES >= 1 && QUEUES < FREE as usize, "a table has 1 to 254 queues") };
        assert!(capacity <= 1 << 24, "a table cannot have {capacity} entries: at most 16777216");
        Self {
            // At least half of the buckets stay empty, so that probes are short.
            buckets: vec![NONE; (capacity.max(1) * 2).next_power_of_two()].into(),
            entries: Vec::with_capacity(capacity),
            capacity,
            len: 0,
            free: NONE,
            queues: [Queue { oldest: NONE, newest: NONE }; QUEUES],
            keyed: SipHasher13::new_with_keys(0, 0),
        }
    }

    /// Empties the table and draws a new key for its hash, so that an attacker cannot choose keys that collide.
    pub fn rekey(&mut self) {
        let mut key = [0; 16];
        random::fill(&mut key);
        self.keyed = SipHasher13::new_with_key(&key);
        // When an instance starts, its table is empty, and its memory must not be written to without need.
        if !self.is_empty() {
            self.buckets.fill(NONE);
            self.entries.clear();
            self.free = NONE;
            self.len = 0;
            self.queues = [Queue { oldest: NONE, newest: NONE }; QUEUES];
        }
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the most entries that the table can have.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Finds the entry with this key.
    #[must_use]
    pub fn find(&self, key: &K) -> Option<Id> {
        self.find_hashed(key, self.hash(key))
    }

    fn find_hashed(&self, key: &K, hash: u32) -> Option<Id> {
        let mut bucket = self.home(hash);
        while self.buckets[bucket] != NONE {
            let place = self.buckets[bucket];
            let entry = self.at(place);
            if entry.hash == hash && entry.key == *key {
                return Id::new(place);
            }
            bucket = self.after(bucket);
        }
        None
    }

    /// Adds an entry, with its last use now, or replaces the entry with this key. `None` if the table is full.
    ///
    /// # Panics
    ///
    /// If there is no such queue.
    pub fn insert(&mut self, key: K, value: V, queue: usize, now_ns: u64) -> Option<Id> {
        let hash = self.hash(&key);
        if let Some(id) = self.find_hashed(&key, hash) {
            *self.value_mut(id) = value;
            self.touch(id, queue, now_ns);
            return Some(id);
        }
        let entry = Entry { key, value, hash, older: NONE, newer: NONE, used_ns: now_ns, queue: FREE };
        let place = self.store(entry)?;
        let mut bucket = self.home(hash);
        while self.buckets[bucket] != NONE {
            bucket = self.after(bucket);
        }
        self.buckets[bucket] = place;
        self.len += 1;
        self.append(place, queue, now_ns);
        Id::new(place)
    }

    /// Returns the key of an entry.
    ///
    /// # Panics
    ///
    /// Here and below: if the entry was removed, and its index not reused since.
    #[must_use]
    pub fn key(&self, id: Id) -> &K {
        &self.live(id).key
    }

    /// Returns the value of an entry.
    #[must_use]
    pub fn value(&self, id: Id) -> &V {
        &self.live(id).value
    }

    /// Returns the value of an entry, to be changed. This does not count as a use.
    #[must_use]
    pub fn value_mut(&mut self, id: Id) -> &mut V {
        let entry = self.at_mut(id.place());
        assert_ne!(entry.queue, FREE, "{id:?} was removed from its table");
        &mut entry.value
    }

    /// Returns the time of an entry's last use.
    #[must_use]
    pub fn used_ns(&self, id: Id) -> u64 {
        self.live(id).used_ns
    }

    /// Records a use of an entry now, and moves the entry to the end of `queue`. Times must not decrease.
    ///
    /// # Panics
    ///
    /// If there is no such queue.
    pub fn touch(&mut self, id: Id, queue: usize, now_ns: u64) {
        let newest = self.queues[queue].newest;
        let entry = self.at_mut(id.place());
        assert_ne!(entry.queue, FREE, "{id:?} was removed from its table");
        if newest == id.place() {
            entry.used_ns = now_ns;
        } else {
            self.move_to(id.place(), queue, now_ns);
        }
    }

    /// Returns the least recently used entry of a queue, and the time of its last use.
    ///
    /// # Panics
    ///
    /// If there is no such queue.
    #[must_use]
    pub fn oldest(&self, queue: usize) -> Option<(Id, u64)> {
        let place = self.queues[queue].oldest;
        Id::new(place).map(|id| (id, self.at(place).used_ns))
    }

    /// Returns the most recently used entry of a queue, and the time of its last use.
    ///
    /// # Panics
    ///
    /// If there is no such queue.
    #[must_use]
    pub fn newest(&self, queue: usize) -> Option<(Id, u64)> {
        let place = self.queues[queue].newest;
        Id::new(place).map(|id| (id, self.at(place).used_ns))
    }

    /// Removes an entry.
    pub fn remove(&mut self, id: Id) -> (K, V) {
        let (key, value, hash) = {
            let entry = self.live(id);
            (entry.key, entry.value, entry.hash)
        };
        self.unlink(id.place());
        let mut bucket = self.home(hash);
        while self.buckets[bucket] != id.place() {
            bucket = self.after(bucket);
        }
        self.close_gap(bucket);
        let free = self.free;
        let entry = self.at_mut(id.place());
        (entry.queue, entry.newer) = (FREE, free);
        self.free = id.place();
        self.len -= 1;
        (key, value)
    }

    /// Iterates over keys and values of a queue, from the least recently used entry on.
    ///
    /// # Panics
    ///
    /// If there is no such queue.
    pub fn iter(&self, queue: usize) -> impl Iterator<Item = (&K, &V)> {
        let mut place = self.queues[queue].oldest;
        core::iter::from_fn(move || {
            let entry = (place != NONE).then(|| self.at(place))?;
            place = entry.newer;
            Some((&entry.key, &entry.value))
        })
    }

    fn hash(&self, key: &K) -> u32 {
        let mut hasher = self.keyed;
        key.hash(&mut hasher);
        hasher.finish() as u32
    }

    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.buckets.len() - 1)
    }

    fn at(&self, place: u32) -> &Entry<K, V> {
        &self.entries[place as usize - 1]
    }

    fn at_mut(&mut self, place: u32) -> &mut Entry<K, V> {
        &mut self.entries[place as usize - 1]
    }

    fn live(&self, id: Id) -> &Entry<K, V> {
        let entry = self.at(id.place());
        assert_ne!(entry.queue, FREE, "{id:?} was removed from its table");
        entry
    }

    fn store(&mut self, entry: Entry<K, V>) -> Option<u32> {
        if self.free != NONE {
            let place = self.free;
            self.free = self.at(place).newer;
            *self.at_mut(place) = entry;
            return Some(place);
        }
        if self.entries.len() == self.capacity {
            return None;
        }
        self.entries.push(entry);
        Some(self.entries.len() as u32)
    }

    fn move_to(&mut self, place: u32, queue: usize, now_ns: u64) {
        self.unlink(place);
        self.append(place, queue, now_ns);
    }

    fn append(&mut self, place: u32, queue: usize, now_ns: u64) {
        let newest = self.queues[queue].newest;
        let entry = self.at_mut(place);
        (entry.older, entry.newer, entry.used_ns, entry.queue) = (newest, NONE, now_ns, queue as u8);
        match newest {
            NONE => self.queues[queue].oldest = place,
            _ => self.at_mut(newest).newer = place,
        }
        self.queues[queue].newest = place;
    }

    fn unlink(&mut self, place: u32) {
        let &Entry { older, newer, queue, .. } = self.at(place);
        let queue = usize::from(queue);
        match older {
            NONE => self.queues[queue].oldest = newer,
            _ => self.at_mut(older).newer = newer,
        }
        match newer {
            NONE => self.queues[queue].newest = older,
            _ => self.at_mut(newer).older = older,
        }
    }

    /// Empties a bucket and moves the following buckets up, as a probe ends at the first empty bucket.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.buckets.len() - 1;
        let mut bucket = self.after(gap);
        while self.buckets[bucket] != NONE {
            let home = self.home(self.at(self.buckets[bucket]).hash);
            // The entry may move to the gap unless the gap lies before the entry's home.
            if bucket.wrapping_sub(home) & mask >= bucket.wrapping_sub(gap) & mask {
                self.buckets[gap] = self.buckets[bucket];
                gap = bucket;
            }
            bucket = self.after(bucket);
        }
        self.buckets[gap] = NONE;
    }
}

impl<K, V, const QUEUES: usize> fmt::Debug for Lru<K, V, QUEUES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lru").field("len", &self.len).field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(target_family = "wasm")))]
mod tests {
    use super::Lru;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, usize),
        Touch(u8, usize),
        Remove(u8),
        RemoveOldest(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..24_u8, 0..2_usize).prop_map(|(key, queue)| Step::Insert(key, queue)),
            2 => (0..24_u8, 0..2_usize).prop_map(|(key, queue)| Step::Touch(key, queue)),
            2 => (0..24_u8).prop_map(Step::Remove),
            1 => (0..2_usize).prop_map(Step::RemoveOldest),
        ]
    }

    proptest! {
        /// The model is two vectors, in order of use.
        #[test]
        fn it_does_what_vectors_in_order_of_use_do(steps in proptest::collection::vec(step(), 0..300)) {
            let mut table: Lru<u8, usize, 2> = Lru::with_capacity(9);
            table.rekey();
            let mut model: [Vec<(u8, usize)>; 2] = [vec![], vec![]];
            for (number, step) in steps.into_iter().enumerate() {
                let place = |model: &[Vec<(u8, usize)>; 2], key| (0..2).find_map(|queue| {
                    model[queue].iter().position(|entry| entry.0 == key).map(|at| (queue, at))
                });
                match step {
                    Step::Insert(key, queue) => {
                        let there = place(&model, key);
                        if let Some((queue, at)) = there {
                            model[queue].remove(at);
                        }
                        let room = there.is_some() || model[0].len() + model[1].len() < 9;
                        prop_assert_eq!(table.insert(key, number, queue, number as u64).is_some(), room);
                        if room {
                            model[queue].push((key, number));
                        }
                    }
                    Step::Touch(key, queue) => {
                        prop_assert_eq!(table.find(&key).is_some(), place(&model, key).is_some());
                        if let Some((from, at)) = place(&model, key) {
                            let entry = model[from].remove(at);
                            model[queue].push(entry);
                            table.touch(table.find(&key).unwrap(), queue, number as u64);
                        }
                    }
                    Step::Remove(key) => {
                        prop_assert_eq!(table.find(&key).is_some(), place(&model, key).is_some());
                        if let Some((from, at)) = place(&model, key) {
                            prop_assert_eq!(table.remove(table.find(&key).unwrap()), model[from].remove(at));
                        }
                    }
                    Step::RemoveOldest(queue) => {
                        let oldest = table.oldest(queue).map(|(id, _)| table.remove(id));
                        prop_assert_eq!(oldest, (!model[queue].is_empty()).then(|| model[queue].remove(0)));
                    }
                }
                prop_assert_eq!(table.len(), model[0].len() + model[1].len());
                for (queue, expected) in model.iter().enumerate() {
                    let ends = [table.oldest(queue), table.newest(queue)].map(|end| end.map(|(id, _)| *table.key(id)));
                    prop_assert_eq!(ends, [expected.first(), expected.last()].map(|end| end.map(|entry| entry.0)));
                    let entries: Vec<_> = table.iter(queue).map(|(key, value)| (*key, *value)).collect();
                    prop_assert_eq!(&entries, expected);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "was removed from its table")]
    fn an_entry_that_was_removed_is_no_longer_there() {
        let mut table: Lru<u8, u8> = Lru::with_capacity(1);
        let id = table.insert(1, 1, 0, 0).unwrap();
        table.remove(id);
        let _ = table.value(id);
    }

    #[test]
    fn a_table_of_capacity_zero_accepts_no_entry() {
        assert_eq!(Lru::<u8, u8>::with_capacity(0).insert(1, 1, 0, 0), None);
    }
}
