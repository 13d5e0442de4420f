//! Buckets of the tables that are searched per packet. Each has eight places, with a tag and the time of last use for
//! each. These lie apart from what the places hold, so that a bucket is searched and aged within half a cache line.
//!
//! Time is counted in ticks of 67 ms, in 15 bits that wrap around after 36 minutes. A table must be swept often enough
//! that no entry gets as old as that.

use crate::flows::hash::FlowHash;

/// Places of a bucket.
pub(crate) const WAYS: usize = 8;

const TICK_SHIFT: u32 = 26;
const TICK_MASK: u16 = 0x7fff;
const MARK: u16 = 0x8000;

/// A part of the hash of what a place holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag(u16);

impl Tag {
    /// The tag of an empty place.
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) fn of(hash: FlowHash) -> Self {
        Self((hash.0 as u16).max(1))
    }

    /// Returns the other one of the two buckets that an entry with this tag may be in. For that bucket, it returns this
    /// one.
    #[inline]
    pub(crate) fn other_bucket(self, bucket: usize, buckets: usize) -> usize {
        let sum = reduce(u32::from(self.0).wrapping_mul(0x9e37_79b1), buckets);
        if sum >= bucket { sum - bucket } else { sum + buckets - bucket }
    }
}

/// Returns the first of the two buckets that an entry with this hash may be in.
#[inline]
pub(crate) fn first_bucket(hash: FlowHash, buckets: usize) -> usize {
    reduce(hash.0, buckets)
}

/// Maps a number evenly to one below the limit.
#[inline]
fn reduce(number: u32, limit: usize) -> usize {
    ((u64::from(number) * limit as u64) >> 32) as usize
}

/// A point in time, in ticks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tick(u16);

impl Tick {
    #[inline]
    pub(crate) const fn at(now_ns: u64) -> Self {
        Self((now_ns >> TICK_SHIFT) as u16 & TICK_MASK)
    }
}

/// Returns how many ticks cover a time, rounded up.
pub(crate) const fn ticks_in(time_ns: u64) -> u16 {
    time_ns.div_ceil(1 << TICK_SHIFT) as u16
}

/// When a place was last used, and a mark.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen(u16);

impl Seen {
    #[inline]
    pub(crate) fn at(tick: Tick) -> Self {
        Self(tick.0)
    }

    #[inline]
    pub(crate) fn marked(self) -> Self {
        Self(self.0 | MARK)
    }

    #[inline]
    pub(crate) fn is_marked(self) -> bool {
        self.0 & MARK != 0
    }

    /// Returns whether both times are in the same period of 64 ticks, some 4 seconds.
    #[inline]
    pub(crate) fn is_in_period_of(self, other: Self) -> bool {
        (self.0 ^ other.0) & TICK_MASK < 64
    }

    /// Returns the age in ticks.
    #[inline]
    pub(crate) fn age(self, now: Tick) -> u16 {
        now.0.wrapping_sub(self.0) & TICK_MASK
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Bucket {
    /// Four tags in each word, so that four are compared at a time; see [`lane`].
    tags: [u64; 2],
    pub(crate) seen: [Seen; WAYS],
}

/// Returns the word that holds a place's tag, and the tag's shift in it.
#[inline]
fn lane(way: usize) -> (usize, u32) {
    (way & 1, (way as u32 >> 1) * 16)
}

const LANES: u64 = 0x0001_0001_0001_0001;
const LANES_LOW: u64 = 0x7fff * LANES;

impl Bucket {
    pub(crate) const EMPTY: Self = Self { tags: [0; 2], seen: [Seen(0); WAYS] };

    #[inline]
    pub(crate) fn tag(&self, way: usize) -> Tag {
        let (word, shift) = lane(way);
        Tag((self.tags[word] >> shift) as u16)
    }

    #[inline]
    pub(crate) fn set(&mut self, way: usize, tag: Tag, seen: Seen) {
        let (word, shift) = lane(way);
        self.tags[word] = (self.tags[word] & !(0xffff << shift)) | (u64::from(tag.0) << shift);
        self.seen[way] = seen;
    }

    #[inline]
    pub(crate) fn set_empty(&mut self, way: usize) {
        self.set(way, Tag::NONE, self.seen[way]);
    }

    /// Returns the places with this tag.
    #[inline(always)]
    pub(crate) fn ways_with(&self, tag: Tag) -> Ways {
        let wanted = LANES * u64::from(tag.0);
        // The lowest bit of each lane says whether the lane matches. No sum below carries into the next lane.
        let [even, odd] = self.tags.map(|tags| {
            let different = tags ^ wanted;
            !(((different & LANES_LOW) + LANES_LOW) | different | LANES_LOW) >> 15
        });
        Ways(even | (odd << 1))
    }

    /// Empties the places that were last used at least `age_min` ticks ago. Returns how many that were.
    pub(crate) fn empty_older(&mut self, now: Tick, age_min: u16) -> usize {
        let mut emptied = 0;
        for way in 0..WAYS {
            if self.tag(way) != Tag::NONE && self.seen[way].age(now) >= age_min {
                self.set_empty(way);
                emptied += 1;
            }
        }
        emptied
    }

    #[inline]
    pub(crate) fn empty_way(&self) -> Option<usize> {
        self.ways_with(Tag::NONE).next()
    }
}

/// Iterates over a table's buckets, a few at a time, round after round.
#[derive(Default)]
pub(crate) struct Round {
    next: usize,
}

impl Round {
    /// Calls `visit` for the next `count` buckets, but for each at most once.
    pub(crate) fn go_on(&mut self, buckets: &mut [Bucket], count: usize, mut visit: impl FnMut(&mut Bucket)) {
        for _ in 0..count.min(buckets.len()) {
            visit(&mut buckets[self.next]);
            self.next = if self.next + 1 == buckets.len() { 0 } else { self.next + 1 };
        }
    }
}

/// Some places of a bucket. The lowest two bits of each lane of 16 bits stand for one place each.
pub(crate) struct Ways(u64);

impl Iterator for Ways {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some((bit >> 4) * 2 + (bit & 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_other_bucket_of_the_other_bucket_is_the_first(hash: u32, buckets in 1_usize..100_000) {
            let (tag, first) = (Tag::of(FlowHash(hash)), first_bucket(FlowHash(hash), buckets));
            let other = tag.other_bucket(first, buckets);
            prop_assert!(first < buckets && other < buckets);
            prop_assert_eq!(tag.other_bucket(other, buckets), first);
        }

        #[test]
        fn the_places_with_a_tag_are_found_and_no_others(tags: [u16; WAYS], wanted in 0..WAYS, few: bool) {
            let mut bucket = Bucket::EMPTY;
            // Few different tags, so that equal ones are frequent, also next to each other.
            let tags = tags.map(|tag| if few { tag % 3 } else { tag });
            for (way, tag) in tags.iter().enumerate() {
                bucket.set(way, Tag(*tag), Seen::at(Tick(way as u16)));
            }
            let mut found: Vec<usize> = bucket.ways_with(Tag(tags[wanted])).collect();
            found.sort_unstable();
            prop_assert_eq!(found, (0..WAYS).filter(|way| tags[*way] == tags[wanted]).collect::<Vec<_>>());
            for (way, tag) in tags.iter().enumerate() {
                prop_assert!(bucket.tag(way) == Tag(*tag) && bucket.seen[way] == Seen::at(Tick(way as u16)));
            }
        }

        #[test]
        fn an_age_is_the_time_that_has_passed(since_ns in 0..1_u64 << 50, age in 0..TICK_MASK) {
            let now_ns = since_ns + (u64::from(age) << TICK_SHIFT);
            let seen = Seen::at(Tick::at(since_ns));
            prop_assert_eq!(seen.age(Tick::at(now_ns)), age);
            prop_assert_eq!(seen.marked().age(Tick::at(now_ns)), age);
            prop_assert!(seen.marked().is_marked() && !seen.is_marked());
        }
    }
}
