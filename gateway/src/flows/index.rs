//! Two ways to find places in a table of fixed size: by hash, and in order of arrival. Neither allocates after it was
//! made.
//!
//! Both keep their links beside the table. So an entry can be in several of them and be removed from the middle, and
//! nothing is ever swept or rehashed.

/// No place.
const NONE: u32 = u32::MAX;

/// Finds places by the hash of what they hold. Chained: an operation walks the places of one bucket, with keyed hashes
/// one or two.
pub(crate) struct HashIndex {
    heads: Box<[u32]>,
    next: Box<[u32]>,
}

impl HashIndex {
    /// Makes an index for a table of `places`.
    pub(crate) fn new(places: usize) -> Self {
        let buckets = places.next_power_of_two();
        Self { heads: vec![NONE; buckets].into(), next: vec![NONE; places].into() }
    }

    /// Returns the bytes of memory that it takes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.heads) + size_of_val(&*self.next)
    }

    /// Returns the place with this hash for which `is_it` holds.
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut place = self.heads[self.bucket(hash)];
        while place != NONE {
            if is_it(place) {
                return Some(place);
            }
            place = self.next[place as usize];
        }
        None
    }

    /// Inserts a place that is not in the index.
    pub(crate) fn insert(&mut self, hash: u64, place: u32) {
        let bucket = self.bucket(hash);
        self.next[place as usize] = self.heads[bucket];
        self.heads[bucket] = place;
    }

    /// Removes a place that was inserted with this hash.
    pub(crate) fn remove(&mut self, hash: u64, place: u32) {
        let bucket = self.bucket(hash);
        let after = self.next[place as usize];
        if self.heads[bucket] == place {
            self.heads[bucket] = after;
            return;
        }
        let mut before = self.heads[bucket];
        while before != NONE {
            if self.next[before as usize] == place {
                self.next[before as usize] = after;
                return;
            }
            before = self.next[before as usize];
        }
        debug_assert!(false, "place {place} was not in its bucket");
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.heads.len() - 1)
    }
}

/// The links of any number of [`List`]s over one table. A place is in at most one of these lists at a time.
pub(crate) struct ListLinks {
    before: Box<[u32]>,
    after: Box<[u32]>,
}

impl ListLinks {
    /// Makes the links for a table of `places`.
    pub(crate) fn new(places: usize) -> Self {
        Self { before: vec![NONE; places].into(), after: vec![NONE; places].into() }
    }

    /// Returns the bytes of memory that they take.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.before) + size_of_val(&*self.after)
    }
}

/// Places in order of arrival.
#[derive(Clone, Copy)]
pub(crate) struct List {
    first: u32,
    last: u32,
}

impl List {
    /// Makes an empty list.
    pub(crate) const fn new() -> Self {
        Self { first: NONE, last: NONE }
    }

    /// Makes a list of all places of a table, in order.
    pub(crate) fn all(links: &mut ListLinks) -> Self {
        let mut list = Self::new();
        for place in 0..links.before.len() as u32 {
            list.push_back(links, place);
        }
        list
    }

    /// Returns the place that has been in the list longest.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(crate) fn push_back(&mut self, links: &mut ListLinks, place: u32) {
        links.before[place as usize] = self.last;
        links.after[place as usize] = NONE;
        match self.last {
            NONE => self.first = place,
            last => links.after[last as usize] = place,
        }
        self.last = place;
    }

    /// Returns the place that was added last.
    pub(crate) fn last(&self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }

    /// Returns the place that was added right before this one, which must be in the list.
    pub(crate) fn before(links: &ListLinks, place: u32) -> Option<u32> {
        Some(links.before[place as usize]).filter(|before| *before != NONE)
    }

    pub(crate) fn pop_front(&mut self, links: &mut ListLinks) -> Option<u32> {
        let place = self.first()?;
        self.remove(links, place);
        Some(place)
    }

    pub(crate) fn pop_back(&mut self, links: &mut ListLinks) -> Option<u32> {
        let place = self.last()?;
        self.remove(links, place);
        Some(place)
    }

    /// Removes a place that is in this list.
    pub(crate) fn remove(&mut self, links: &mut ListLinks, place: u32) {
        let (before, after) = (links.before[place as usize], links.after[place as usize]);
        match before {
            NONE => self.first = after,
            before => links.after[before as usize] = after,
        }
        match after {
            NONE => self.last = before,
            after => links.before[after as usize] = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    proptest! {
        #[test]
        fn a_hash_index_holds_what_was_put_in_and_not_taken_out(
            operations in proptest::collection::vec((0_u32..16, 0_u64..4, any::<bool>()), 0..200),
        ) {
            let mut index = HashIndex::new(16);
            let mut model = BTreeMap::new();
            for (place, hash, put) in operations {
                match (put, model.get(&place).copied()) {
                    (true, None) => {
                        index.insert(hash, place);
                        model.insert(place, hash);
                    }
                    (false, Some(hash)) => {
                        index.remove(hash, place);
                        model.remove(&place);
                    }
                    _ => {}
                }
                for place in 0..16 {
                    for hash in 0..4 {
                        let expected = (model.get(&place) == Some(&hash)).then_some(place);
                        prop_assert_eq!(index.find(hash, |found| found == place), expected);
                    }
                }
            }
        }

        #[test]
        fn lists_over_the_same_links_keep_their_order(
            operations in proptest::collection::vec((0_usize..3, 0_u32..16), 0..200),
        ) {
            let mut links = ListLinks::new(16);
            let mut lists = [List::all(&mut links), List::new(), List::new()];
            let mut models: [VecDeque<u32>; 3] = [(0..16).collect(), VecDeque::new(), VecDeque::new()];
            for (to, place) in operations {
                let from = models.iter().position(|model| model.contains(&place)).unwrap();
                lists[from].remove(&mut links, place);
                models[from].retain(|&other| other != place);
                lists[to].push_back(&mut links, place);
                models[to].push_back(place);
                if let Some(first) = lists[0].pop_front(&mut links) {
                    prop_assert_eq!(models[0].pop_front(), Some(first));
                    lists[1].push_back(&mut links, first);
                    models[1].push_back(first);
                }
                for (list, model) in lists.iter().zip(&models) {
                    prop_assert_eq!(list.first(), model.front().copied());
                }
            }
            for (list, model) in lists.iter_mut().zip(&models) {
                let popped: Vec<u32> = std::iter::from_fn(|| list.pop_front(&mut links)).collect();
                prop_assert_eq!(popped, model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
