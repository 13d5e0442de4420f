//! The exact-match flow cache: from a flow's key to the instance slot that serves it, in one probe of one bucket.
//!
//! Set-associative, like a processor's cache: a key can be in one of the eight ways of one bucket, and when these are
//! taken, the one unseen for longest makes room. So a lookup looks at eight tags and (nearly always) one entry, there
//! is no chain that an attacker could lengthen, and a flood of new flows costs others a walk through the rules, never
//! their instance. An entry says which generation of its slot and which version of the rules it was made under; one
//! that is out of date is a miss, so nothing is swept when an instance ends or the rules change.

use std::hash::{BuildHasher, RandomState};

use crate::flows::instances::SlotRef;
use crate::headers::FlowKey;

const WAYS: usize = 8;
/// The tag of an empty way; tags of keys have the lowest bit set.
const EMPTY: u16 = 0;

#[derive(Clone, Copy)]
struct Entry {
    flow: FlowKey,
    instance: SlotRef,
    rules_version: u32,
    last_seen_ns: u64,
}

pub(crate) struct FlowCache {
    hasher: RandomState,
    tags: Box<[[u16; WAYS]]>,
    entries: Box<[[Option<Entry>; WAYS]]>,
    used: usize,
    sweep_next: usize,
}

impl FlowCache {
    /// Room for at least `flows`.
    pub(crate) fn new(flows: usize) -> Self {
        let buckets = flows.div_ceil(WAYS).next_power_of_two();
        Self {
            hasher: RandomState::new(),
            tags: vec![[EMPTY; WAYS]; buckets].into(),
            entries: vec![[None; WAYS]; buckets].into(),
            used: 0,
            sweep_next: 0,
        }
    }

    /// Entries in use, those included that are out of date and not yet swept.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn buckets(&self) -> usize {
        self.tags.len()
    }

    /// The flow's hash, for the other operations.
    pub(crate) fn hash(&self, flow: &FlowKey) -> u64 {
        self.hasher.hash_one(flow)
    }

    /// The instance that the flow was bound to under these rules, if it is known, which notes that the flow was seen.
    /// Whether the slot is still the same one's is for the caller to see.
    pub(crate) fn lookup(&mut self, hash: u64, flow: &FlowKey, rules_version: u32, now_ns: u64) -> Option<SlotRef> {
        let (bucket, tag) = self.place(hash);
        for way in 0..WAYS {
            if self.tags[bucket][way] == tag
                && let Some(entry) = &mut self.entries[bucket][way]
                && entry.flow == *flow
            {
                entry.last_seen_ns = now_ns;
                return (entry.rules_version == rules_version).then_some(entry.instance);
            }
        }
        None
    }

    /// Notes which instance serves the flow, in place of what was known of it or of whichever flow was unseen for
    /// longest.
    pub(crate) fn insert(&mut self, hash: u64, flow: &FlowKey, instance: SlotRef, rules_version: u32, now_ns: u64) {
        let (bucket, tag) = self.place(hash);
        let way = self.way_for(bucket, flow);
        self.used += usize::from(self.entries[bucket][way].is_none());
        self.tags[bucket][way] = tag;
        self.entries[bucket][way] = Some(Entry { flow: *flow, instance, rules_version, last_seen_ns: now_ns });
    }

    /// Forgets flows unseen since `before_ns` in the next few buckets.
    pub(crate) fn sweep(&mut self, buckets: usize, before_ns: u64) {
        for _ in 0..buckets.min(self.tags.len()) {
            let bucket = self.sweep_next;
            self.sweep_next = (bucket + 1) & (self.tags.len() - 1);
            for way in 0..WAYS {
                if self.tags[bucket][way] != EMPTY
                    && self.entries[bucket][way].is_some_and(|entry| entry.last_seen_ns < before_ns)
                {
                    self.tags[bucket][way] = EMPTY;
                    self.entries[bucket][way] = None;
                    self.used -= 1;
                }
            }
        }
    }

    fn way_for(&self, bucket: usize, flow: &FlowKey) -> usize {
        let mut oldest = (u64::MAX, 0);
        let mut empty = None;
        for (way, entry) in self.entries[bucket].iter().enumerate() {
            match entry {
                Some(entry) if entry.flow == *flow => return way,
                Some(entry) => oldest = oldest.min((entry.last_seen_ns, way)),
                None => empty = empty.or(Some(way)),
            }
        }
        empty.unwrap_or(oldest.1)
    }

    fn place(&self, hash: u64) -> (usize, u16) {
        (hash as usize & (self.tags.len() - 1), (hash >> 48) as u16 | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_mma::id::PortIndex;
    use std::net::Ipv4Addr;

    fn flow(number: u32) -> FlowKey {
        FlowKey {
            source: Ipv4Addr::from(number).into(),
            destination: Ipv4Addr::LOCALHOST.into(),
            protocol: 17,
            source_port: 1,
            destination_port: 2,
            ingress: PortIndex(0),
        }
    }

    fn slot(index: u32) -> SlotRef {
        SlotRef { index, generation: 1 }
    }

    #[test]
    fn a_flow_is_found_under_its_own_rules_only() {
        let mut cache = FlowCache::new(64);
        let hash = cache.hash(&flow(1));
        cache.insert(hash, &flow(1), slot(3), 7, 0);
        assert_eq!(cache.lookup(hash, &flow(1), 7, 0), Some(slot(3)));
        assert_eq!(cache.lookup(hash, &flow(1), 8, 0), None);
        assert_eq!(cache.lookup(hash, &flow(2), 7, 0), None, "another flow with the same hash");
        cache.insert(hash, &flow(1), slot(4), 8, 0);
        assert_eq!((cache.lookup(hash, &flow(1), 8, 0), cache.used()), (Some(slot(4)), 1));
    }

    #[test]
    fn flows_that_differ_in_one_field_are_different_flows() {
        let cache = FlowCache::new(64);
        let base = flow(1);
        let others = [
            FlowKey { source: Ipv4Addr::from(1).to_ipv6_mapped().into(), ..base },
            FlowKey { destination: Ipv4Addr::from(9).into(), ..base },
            FlowKey { protocol: 6, ..base },
            FlowKey { source_port: 2, ..base },
            FlowKey { destination_port: 1, ..base },
            FlowKey { ingress: PortIndex(1), ..base },
        ];
        for other in others {
            assert_ne!((cache.hash(&base), base), (cache.hash(&other), other));
            assert_ne!(cache.hash(&base), cache.hash(&other), "{other:?}");
        }
    }

    #[test]
    fn a_full_bucket_makes_room_by_forgetting_the_flow_unseen_for_longest() {
        let mut cache = FlowCache::new(WAYS);
        for number in 0..WAYS as u32 {
            let hash = cache.hash(&flow(number));
            cache.insert(hash, &flow(number), slot(number), 0, u64::from(number));
        }
        let first = cache.hash(&flow(0));
        assert_eq!(cache.lookup(first, &flow(0), 0, 100), Some(slot(0)));
        let newcomer = cache.hash(&flow(99));
        cache.insert(newcomer, &flow(99), slot(99), 0, 101);
        let known: Vec<u32> = (0..WAYS as u32)
            .filter(|&number| {
                let hash = cache.hash(&flow(number));
                cache.lookup(hash, &flow(number), 0, 102).is_some()
            })
            .collect();
        assert_eq!((known, cache.used()), (vec![0, 2, 3, 4, 5, 6, 7], WAYS));
    }

    #[test]
    fn a_whole_sweep_forgets_exactly_the_flows_unseen_for_too_long() {
        let mut cache = FlowCache::new(4096);
        for number in 0..1000 {
            let hash = cache.hash(&flow(number));
            cache.insert(hash, &flow(number), slot(number), 0, u64::from(number));
        }
        let before = cache.used();
        cache.sweep(cache.buckets(), 500);
        assert!(before > 900);
        for number in 0..500 {
            let hash = cache.hash(&flow(number));
            assert_eq!(cache.lookup(hash, &flow(number), 0, 1000), None);
        }
        assert!(cache.used() >= 450);
        cache.sweep(cache.buckets(), u64::MAX);
        assert_eq!(cache.used(), 0);
    }
}
