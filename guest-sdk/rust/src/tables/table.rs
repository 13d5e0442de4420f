//! A table of bounded size with expiring entries: [`Table`] never grows, forgets idle entries, and takes constant time for each operation.
//!
//! ```text
//!   hash of the key -> heads: the first entry of a short list, linked through the entries
//!   entries          in one array, made once; free entries are linked as well
//!   queues           one for each lifetime: all its entries, the longest idle one first
//! ```
//!
//! All entries of a queue have the same lifetime, so the first one is the next to expire, and no operation has to search for it. Expired
//! entries stay in the table until a lookup finds them or an insertion needs the room.

use core::fmt;
use core::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;

use crate::random;

/// No entry. Stored numbers are one higher than indices, so that zeroed memory is an empty table.
const NONE: u32 = 0;

/// A [`Table`] is full: all entries have been used within their lifetimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the table has no place left")
    }
}

impl std::error::Error for Full {}

/// A map of bounded size. An entry expires when it was not touched for its lifetime, which is one of a few.
///
/// If it is made in [`init`](crate::Function::init), an instance pays only for the pages that it uses. Call [`Table::start`] in
/// [`start`](crate::Function::start): otherwise an attacker with access to the module can choose keys that all have the same hash.
///
/// ```
/// use pinion_sdk::table::{Full, Table};
///
/// const SHORT: usize = 0;
/// const LONG: usize = 1;
/// let mut table = Table::<u32, &str>::new(2, &[1_000, 5_000]);
/// table.start();
///
/// table.insert(1, "new", SHORT, 0).unwrap();
/// table.insert(2, "known", LONG, 0).unwrap();
/// assert_eq!(table.insert(3, "newer", SHORT, 500), Err(Full));
/// assert_eq!(table.get(&1, 999), Some(&mut "new"));
/// assert_eq!(table.get(&1, 1_000), None);
/// table.insert(3, "newer", SHORT, 1_000).unwrap();
/// assert_eq!(table.touch(&2, LONG, 4_999), Some(&mut "known"));
/// assert_eq!(table.get(&2, 9_998), Some(&mut "known"));
/// ```
#[derive(Debug)]
pub struct Table<K, V> {
    /// The first entry for each value of the hash.
    heads: Vec<u32>,
    entries: Vec<Entry<K, V>>,
    capacity: usize,
    /// The first free entry, linked by `next_alike`.
    free: u32,
    queues: Vec<Queue>,
    /// A hasher with the secret key.
    keyed: SipHasher13,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    touched_ns: u64,
    /// The next one of the same hash.
    next_alike: u32,
    /// Neighbours in the queue.
    before: u32,
    after: u32,
    lifetime: usize,
}

/// Entries of one lifetime, the longest idle first.
#[derive(Clone, Copy, Debug)]
struct Queue {
    lifetime_ns: u64,
    first: u32,
    last: u32,
}

impl<K: Copy + Eq + Hash, V> Table<K, V> {
    /// Makes a table of at most `capacity` entries. Each entry has one of these lifetimes, given by its index.
    ///
    /// # Panics
    ///
    /// If the capacity is 0 or more than 2^24: check a value that comes from a configuration.
    #[must_use]
    pub fn new(capacity: usize, lifetimes_ns: &[u64]) -> Self {
        assert!((1..=1 << 24).contains(&capacity), "a table of {capacity} entries; 1 to 2^24 are possible");
        let queue = |&lifetime_ns: &u64| Queue { lifetime_ns, first: NONE, last: NONE };
        Self {
            heads: vec![NONE; capacity.next_power_of_two()],
            entries: Vec::with_capacity(capacity),
            capacity,
            free: NONE,
            queues: lifetimes_ns.iter().map(queue).collect(),
            keyed: SipHasher13::new_with_keys(0, 0),
        }
    }

    /// Draws the secret key of the hash, and forgets all entries.
    pub fn start(&mut self) {
        let mut key = [0; 16];
        random::fill(&mut key);
        self.keyed = SipHasher13::new_with_key(&key);
        // When an instance starts, its table is empty, and its memory must not be written to without need.
        if !self.entries.is_empty() {
            self.heads.fill(NONE);
            self.entries.clear();
            self.free = NONE;
            self.queues.iter_mut().for_each(|queue| (queue.first, queue.last) = (NONE, NONE));
        }
    }

    /// Returns the value of a key, if it has not expired.
    pub fn get(&mut self, key: &K, now_ns: u64) -> Option<&mut V> {
        let place = self.live(key, now_ns)?;
        Some(&mut self.entries[place].value)
    }

    /// Returns the value of a key, if it has not expired, and restarts the entry with this lifetime.
    pub fn touch(&mut self, key: &K, lifetime: usize, now_ns: u64) -> Option<&mut V> {
        let place = self.live(key, now_ns)?;
        self.unqueue(place);
        self.enqueue(place, lifetime, now_ns);
        Some(&mut self.entries[place].value)
    }

    /// Inserts a value, or replaces the value that the key has.
    ///
    /// # Errors
    ///
    /// The table is full.
    pub fn insert(&mut self, key: K, value: V, lifetime: usize, now_ns: u64) -> Result<(), Full> {
        if let Some(found) = self.touch(&key, lifetime, now_ns) {
            *found = value;
            return Ok(());
        }
        let head = self.head_of(&key);
        let next_alike = self.heads[head];
        let entry =
            |next_alike| Entry { key, value, touched_ns: 0, next_alike, before: NONE, after: NONE, lifetime: 0 };
        let place = if self.entries.len() < self.capacity && self.free == NONE {
            self.entries.push(entry(next_alike));
            self.entries.len() - 1
        } else {
            let place = self.vacancy(now_ns).ok_or(Full)?;
            // The released entry may have been the first with the same hash.
            let next_alike = self.heads[head];
            self.free = self.entries[place].next_alike;
            self.entries[place] = entry(next_alike);
            place
        };
        self.heads[head] = place as u32 + 1;
        self.enqueue(place, lifetime, now_ns);
        Ok(())
    }

    /// Removes a key. Returns whether it was there.
    pub fn remove(&mut self, key: &K) -> bool {
        let found = self.find(key);
        if let Some(place) = found {
            self.release(place);
        }
        found.is_some()
    }

    /// Removes the longest idle entry of a lifetime, if there is one: for functions that would rather lose it than refuse a new entry.
    pub fn evict(&mut self, lifetime: usize) -> Option<K> {
        let place = place(self.queues[lifetime].first)?;
        let key = self.entries[place].key;
        self.release(place);
        Some(key)
    }

    /// Finds a free entry. If there is none, releases an expired one.
    fn vacancy(&mut self, now_ns: u64) -> Option<usize> {
        if self.free == NONE {
            let firsts = self.queues.iter().filter_map(|queue| place(queue.first));
            let expired = { firsts }.find(|place| self.is_expired(*place, now_ns))?;
            self.release(expired);
        }
        place(self.free)
    }

    /// Returns the index of a key's entry, unless it has expired; then the entry is released.
    fn live(&mut self, key: &K, now_ns: u64) -> Option<usize> {
        let place = self.find(key)?;
        if self.is_expired(place, now_ns) {
            self.release(place);
            return None;
        }
        Some(place)
    }

    fn is_expired(&self, place: usize, now_ns: u64) -> bool {
        let entry = &self.entries[place];
        now_ns.saturating_sub(entry.touched_ns) >= self.queues[entry.lifetime].lifetime_ns
    }

    fn head_of(&self, key: &K) -> usize {
        let mut hasher = self.keyed;
        key.hash(&mut hasher);
        hasher.finish() as usize & (self.heads.len() - 1)
    }

    fn find(&self, key: &K) -> Option<usize> {
        let mut next = self.heads[self.head_of(key)];
        while let Some(place) = place(next) {
            if self.entries[place].key == *key {
                return Some(place);
            }
            next = self.entries[place].next_alike;
        }
        None
    }

    /// Unlinks an entry from its list and its queue, and makes it the first free one.
    fn release(&mut self, place: usize) {
        let (index, head) = (place as u32 + 1, self.head_of(&self.entries[place].key));
        let next_alike = self.entries[place].next_alike;
        if self.heads[head] == index {
            self.heads[head] = next_alike;
        } else {
            let mut before = self.heads[head];
            while self.entries[before as usize - 1].next_alike != index {
                before = self.entries[before as usize - 1].next_alike;
            }
            self.entries[before as usize - 1].next_alike = next_alike;
        }
        self.unqueue(place);
        self.entries[place].next_alike = self.free;
        self.free = index;
    }

    fn enqueue(&mut self, place: usize, lifetime: usize, now_ns: u64) {
        let queue = &mut self.queues[lifetime];
        let last = core::mem::replace(&mut queue.last, place as u32 + 1);
        let entry = &mut self.entries[place];
        (entry.before, entry.after, entry.lifetime, entry.touched_ns) = (last, NONE, lifetime, now_ns);
        match self::place(last) {
            Some(last) => self.entries[last].after = place as u32 + 1,
            None => self.queues[lifetime].first = place as u32 + 1,
        }
    }

    fn unqueue(&mut self, place: usize) {
        let Entry { before, after, lifetime, .. } = self.entries[place];
        match self::place(before) {
            Some(before) => self.entries[before].after = after,
            None => self.queues[lifetime].first = after,
        }
        match self::place(after) {
            Some(after) => self.entries[after].before = before,
            None => self.queues[lifetime].last = before,
        }
    }
}

/// Converts a stored number into an index.
fn place(index: u32) -> Option<usize> {
    index.checked_sub(1).map(|place| place as usize)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::{Full, Table};

    const LIFETIMES_NS: [u64; 2] = [10, 30];

    /// The model: a list of key, value, lifetime and time of the last touch, the longest idle first.
    #[derive(Default)]
    struct Model(Vec<(u8, u32, usize, u64)>);

    impl Model {
        fn forget_expired(&mut self, now_ns: u64) {
            self.0.retain(|(_, _, lifetime, touched_ns)| now_ns - touched_ns < LIFETIMES_NS[*lifetime]);
        }

        fn take(&mut self, key: u8) -> Option<(u8, u32, usize, u64)> {
            let at = self.0.iter().position(|entry| entry.0 == key)?;
            Some(self.0.remove(at))
        }
    }

    proptest! {
        #[test]
        fn it_does_what_a_list_does(steps in proptest::collection::vec((0_u8..5, 0_u8..12, 0_usize..2, 0_u64..6), 0..300)) {
            const CAPACITY: usize = 6;
            let mut table = Table::<u8, u32>::new(CAPACITY, &LIFETIMES_NS);
            table.start();
            let (mut model, mut now_ns) = (Model::default(), 0);
            for (number, (what, key, lifetime, pause_ns)) in steps.into_iter().enumerate() {
                now_ns += pause_ns;
                model.forget_expired(now_ns);
                let value = number as u32;
                match what {
                    0 | 1 => {
                        let old = model.take(key);
                        let fits = model.0.len() < CAPACITY;
                        prop_assert!(fits || old.is_none());
                        if fits {
                            model.0.push((key, value, lifetime, now_ns));
                        }
                        prop_assert_eq!(table.insert(key, value, lifetime, now_ns), if fits { Ok(()) } else { Err(Full) });
                    }
                    2 => {
                        let touched = model.take(key).map(|entry| (key, entry.1, lifetime, now_ns));
                        model.0.extend(touched);
                        prop_assert_eq!(table.touch(&key, lifetime, now_ns).copied(), touched.map(|entry| entry.1));
                    }
                    3 => {
                        // An expired entry may still be in the table, and then counts as removed.
                        let was_live = model.take(key).is_some();
                        prop_assert!(table.remove(&key) || !was_live);
                    }
                    _ => {
                        let oldest = model.0.iter().find(|entry| entry.2 == lifetime).map(|entry| entry.0);
                        let is_expired = |key: &u8| !model.0.iter().any(|entry| entry.0 == *key);
                        let evicted = core::iter::from_fn(|| table.evict(lifetime)).find(|key| !is_expired(key));
                        prop_assert_eq!(evicted, oldest);
                        oldest.and_then(|key| model.take(key));
                    }
                }
                let model: HashMap<u8, u32> = model.0.iter().map(|entry| (entry.0, entry.1)).collect();
                for key in 0..12 {
                    prop_assert_eq!(table.get(&key, now_ns).copied(), model.get(&key).copied());
                }
            }
        }
    }
}
