//! The exact-match flow cache: maps a flow's key to the rules' verdict, in one or two buckets of eight entries.
//!
//! ```text
//!               hash --> bucket, and by its tag another one
//!                           |
//!       +-------------------v------------+     +------------------------------------------------+
//!       | 8 tags | 8 times last seen     | --> | flow (48 B) | verdict | version of the rules   |  x 8
//!       +--------------------------------+     +------------------------------------------------+
//!                      32 B                                     64 B, a cache line
//! ```
//!
//! * **Bounded.** A lookup looks at the tags of two buckets and (nearly always) one entry. There is no chain that an
//!   attacker could lengthen.
//! * **Full.** If both buckets of a new flow are full, one of their flows moves to its own other bucket, if there is
//!   room. So the cache holds as many flows as it was made for, whatever their hashes.
//! * **Established flows stay.** If no flow can move, one is evicted. Flows seen only once, like those of a flood, and
//!   flows that no rule matches go first; then the flow unseen for longest. A flow seen twice and within the last
//!   second is never evicted. The new flow then stays uncached: each of its packets costs a search through the rules,
//!   and other flows lose nothing.
//! * **Lossy.** An entry names the generation of its slot and the version of the rules. An outdated entry is a miss, so
//!   nothing has to be swept when an instance ends or the rules change.
//! * **Of fixed size.** 68 bytes per entry, 9 entries for 8 flows: [`BYTES_PER_FLOW_MAX`].

use pinion_mma::tuning::{self, prefetch};

use crate::drops::DropReason;
use crate::flows::bucket::{Bucket, Round, Seen, Tag, Tick, WAYS, first_bucket, ticks_in};
use crate::flows::hash::{FlowHash, FlowHasher};
use crate::flows::instances::SlotRef;
use crate::headers::{FlowKey, Ingress, Vlan};

/// Bytes per flow, if the cache is made for thousands at least.
#[cfg(test)]
pub(crate) const BYTES_PER_FLOW_MAX: usize = 77;

const ENTRIES_PER_8_FLOWS: usize = 9;
/// An established flow seen within this time is not evicted.
const PROTECTED_TICKS: u16 = ticks_in(1_000_000_000);

/// What is known of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This instance serves it.
    Instance(SlotRef),
    /// It answers an outbound flow that this instance has opened.
    Answers(SlotRef),
    /// The rules drop it, for this reason.
    Dropped(DropReason),
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Entry {
    flow: FlowKey,
    verdict: Verdict,
    rules_version: u32,
}

/// What is found of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) verdict: Verdict,
    /// It was not seen in this period of some seconds before.
    pub(crate) begins_period: bool,
}

/// Why nothing is found of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// It has no entry.
    Absent,
    /// Its entry is of other rules.
    Outdated,
}

/// A flow's hash, and the entry where the flow most likely is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowLookup {
    pub(crate) hash: FlowHash,
    /// A bucket and a way, or [`NOWHERE`].
    place: u32,
}

const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Way {
    bucket: usize,
    way: usize,
}

pub(crate) struct FlowCache {
    hasher: FlowHasher,
    /// The mark of a place means that its flow is established.
    buckets: Box<[Bucket]>,
    entries: Box<[[Entry; WAYS]]>,
    used: usize,
    round: Round,
}

impl FlowCache {
    /// Makes room for `flows` flows.
    pub(crate) fn new(flows: usize) -> Self {
        let buckets = (flows * ENTRIES_PER_8_FLOWS).div_ceil(8 * WAYS);
        let nowhere = Ingress { port: pinion_mma::id::PortIndex(0), vlan: Vlan::UNTAGGED };
        let no_flow = FlowKey::ipv4([0; 4].into(), [0; 4].into(), 0, nowhere);
        let entry = Entry { flow: no_flow, verdict: Verdict::Dropped(DropReason::NoRule), rules_version: 0 };
        Self {
            hasher: FlowHasher::new(),
            buckets: vec![Bucket::EMPTY; buckets].into(),
            entries: vec![[entry; WAYS]; buckets].into(),
            used: 0,
            round: Round::default(),
        }
    }

    /// Returns the number of entries in use, including outdated ones that are not yet swept.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Returns the bytes of memory that it takes, which never change.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.entries)
    }

    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the flow's hash, for the other operations.
    #[inline]
    pub(crate) fn hash(&self, flow: &FlowKey) -> FlowHash {
        self.hasher.hash(flow)
    }

    /// Prefetches the bucket that an entry with this hash is most likely in.
    #[inline(always)]
    pub(crate) fn lead(&self, hash: FlowHash) -> FlowLookup {
        if tuning::is_full() {
            prefetch::to_read(&raw const self.buckets[first_bucket(hash, self.buckets.len())]);
        }
        FlowLookup { hash, place: NOWHERE }
    }

    /// Prefetches the entry that the flow is most likely in, once its bucket has arrived.
    #[inline(always)]
    pub(crate) fn go_on(&self, lead: &mut FlowLookup) {
        if !tuning::is_full() {
            return;
        }
        let (bucket, tag) = (first_bucket(lead.hash, self.buckets.len()), Tag::of(lead.hash));
        match self.buckets[bucket].ways_with(tag).next() {
            Some(way) => {
                lead.place = (bucket * WAYS + way) as u32;
                prefetch::to_read(&raw const self.entries[bucket][way]);
            }
            None => prefetch::to_read(&raw const self.buckets[tag.other_bucket(bucket, self.buckets.len())]),
        }
    }

    /// Returns the flow's verdict under these rules, and notes that the flow was seen. The caller must check the slot's
    /// generation.
    ///
    /// # Errors
    /// If it is not cached.
    #[inline(always)]
    pub(crate) fn lookup(
        &mut self,
        lead: FlowLookup,
        flow: &FlowKey,
        rules_version: u32,
        now_ns: u64,
    ) -> Result<Found, Miss> {
        let Way { bucket, way } = match self.at_end_of(lead, flow) {
            Some(place) => place,
            None => self.find(lead.hash, flow).ok_or(Miss::Absent)?,
        };
        let entry = &self.entries[bucket][way];
        if entry.rules_version != rules_version {
            return Err(Miss::Outdated);
        }
        let seen = match entry.verdict {
            Verdict::Instance(_) | Verdict::Answers(_) => Seen::at(Tick::at(now_ns)).marked(),
            Verdict::Dropped(_) => Seen::at(Tick::at(now_ns)),
        };
        let noted = &mut self.buckets[bucket].seen[way];
        // Mostly the tick is still the same; then the cache line is not written.
        let begins_period = *noted != seen && !noted.is_in_period_of(seen);
        if *noted != seen {
            *noted = seen;
        }
        Ok(Found { verdict: entry.verdict, begins_period })
    }

    /// Returns whether the flow had an instance when it was seen last, under whatever rules.
    pub(crate) fn had_instance(&self, hash: FlowHash, flow: &FlowKey) -> bool {
        matches!(self.latest(hash, flow), Some(Verdict::Instance(_)))
    }

    /// Returns the flow's latest verdict, under whatever rules. Does not count as seeing the flow.
    pub(crate) fn latest(&self, hash: FlowHash, flow: &FlowKey) -> Option<Verdict> {
        self.find(hash, flow).map(|Way { bucket, way }| self.entries[bucket][way].verdict)
    }

    /// Caches a verdict for a flow, in place of the flow's old entry or of another flow, unless there is no room.
    pub(crate) fn insert(&mut self, hash: FlowHash, flow: &FlowKey, verdict: Verdict, rules_version: u32, now_ns: u64) {
        self.insert_at(self.find(hash, flow), hash, flow, verdict, rules_version, now_ns);
    }

    /// Does the same for a flow that was looked up just before, in vain.
    pub(crate) fn insert_missed(
        &mut self,
        miss: Miss,
        hash: FlowHash,
        flow: &FlowKey,
        verdict: Verdict,
        rules_version: u32,
        now_ns: u64,
    ) {
        let old = match miss {
            Miss::Absent => None,
            Miss::Outdated => self.find(hash, flow),
        };
        self.insert_at(old, hash, flow, verdict, rules_version, now_ns);
    }

    fn insert_at(
        &mut self,
        old: Option<Way>,
        hash: FlowHash,
        flow: &FlowKey,
        verdict: Verdict,
        rules_version: u32,
        now_ns: u64,
    ) {
        let now = Tick::at(now_ns);
        let mut seen = Seen::at(now);
        let place = match old {
            Some(place) => {
                let was_established = self.buckets[place.bucket].seen[place.way].is_marked();
                if was_established && !matches!(verdict, Verdict::Dropped(_)) {
                    seen = seen.marked();
                }
                place
            }
            None => match self.make_room(hash, now) {
                Some(place) => place,
                None => return,
            },
        };
        let bucket = &mut self.buckets[place.bucket];
        self.used += usize::from(bucket.tag(place.way) == Tag::NONE);
        bucket.set(place.way, Tag::of(hash), seen);
        self.entries[place.bucket][place.way] = Entry { flow: *flow, verdict, rules_version };
    }

    /// Evicts flows unseen for `idle_ns` from the next few buckets.
    pub(crate) fn sweep(&mut self, buckets: usize, now_ns: u64, idle_ns: u64) {
        let (now, idle) = (Tick::at(now_ns), ticks_in(idle_ns));
        let Self { round, used, .. } = self;
        round.go_on(&mut self.buckets, buckets, |bucket| *used -= bucket.empty_older(now, idle));
    }

    fn both_buckets(&self, hash: FlowHash) -> [usize; 2] {
        let first = first_bucket(hash, self.buckets.len());
        [first, Tag::of(hash).other_bucket(first, self.buckets.len())]
    }

    /// Returns the place that the lead points to, if the flow is there: entries may have moved since.
    #[inline(always)]
    fn at_end_of(&self, lead: FlowLookup, flow: &FlowKey) -> Option<Way> {
        let (bucket, way) = (lead.place as usize / WAYS, lead.place as usize % WAYS);
        let is_taken = self.buckets.get(bucket)?.tag(way) == Tag::of(lead.hash);
        (is_taken && self.entries[bucket][way].flow == *flow).then_some(Way { bucket, way })
    }

    fn find(&self, hash: FlowHash, flow: &FlowKey) -> Option<Way> {
        let (bucket, tag) = (first_bucket(hash, self.buckets.len()), Tag::of(hash));
        if let Some(place) = self.find_in(bucket, tag, flow) {
            return Some(place);
        }
        self.find_in(tag.other_bucket(bucket, self.buckets.len()), tag, flow)
    }

    #[inline(always)]
    fn find_in(&self, bucket: usize, tag: Tag, flow: &FlowKey) -> Option<Way> {
        let entries = &self.entries[bucket];
        let way = self.buckets[bucket].ways_with(tag).find(|way| entries[*way].flow == *flow)?;
        Some(Way { bucket, way })
    }

    /// Returns a place for a new entry with this hash: an empty one, or that of a flow that moves or is evicted.
    fn make_room(&mut self, hash: FlowHash, now: Tick) -> Option<Way> {
        let both = self.both_buckets(hash);
        let empty = |bucket: usize| Some(Way { bucket, way: self.buckets[bucket].empty_way()? });
        if let Some(place) = both.into_iter().find_map(empty) {
            return Some(place);
        }
        // If nearly everything is full, as in a flood, no flow can move, and a search for one is wasted.
        let room = self.buckets.len() * WAYS - self.used;
        if room * 32 >= self.buckets.len()
            && let Some(place) = self.move_one_of(both)
        {
            return Some(place);
        }
        self.least_worth(both, now)
    }

    /// Moves a flow from one of these full buckets to its other bucket, if any can move. Returns the place it had.
    fn move_one_of(&mut self, both: [usize; 2]) -> Option<Way> {
        for bucket in both {
            for way in 0..WAYS {
                let (tag, seen) = (self.buckets[bucket].tag(way), self.buckets[bucket].seen[way]);
                let other = tag.other_bucket(bucket, self.buckets.len());
                if let Some(free) = self.buckets[other].empty_way() {
                    self.buckets[other].set(free, tag, seen);
                    self.entries[other][free] = self.entries[bucket][way];
                    self.buckets[bucket].set_empty(way);
                    return Some(Way { bucket, way });
                }
            }
        }
        None
    }

    /// Returns the place in these full buckets whose eviction costs least; `None` if all flows are established and
    /// recently seen.
    fn least_worth(&self, both: [usize; 2], now: Tick) -> Option<Way> {
        let mut least = (0, None);
        for bucket in both {
            for (way, seen) in self.buckets[bucket].seen.iter().enumerate() {
                let age = seen.age(now);
                let established = seen.is_marked();
                if established && age < PROTECTED_TICKS {
                    continue;
                }
                let loss = 1 + u32::from(age) + if established { 0 } else { 1 << 16 };
                if loss > least.0 {
                    least = (loss, Some(Way { bucket, way }));
                }
            }
        }
        least.1
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
