//! Chain instances that the gateway knows: ready ones, waiting to be taken, and bound ones, serving their clients.
//!
//! ```text
//!            add              bind              release
//!    free ---------> ready ---------> bound ---------------> free, next generation
//!                      \__________________________________/
//! ```
//!
//! A slot's generation changes when it is released: whoever remembers it by [`SlotRef`] notices. What each packet needs
//! of a slot is kept apart from the rest, close together.

use std::hash::{BuildHasher, RandomState};

use pinion_mma::id::FwpId;

use crate::flows::InstanceKey;
use crate::flows::index::{HashIndex, Links, List};
use crate::id::{CHAINS_MAX, ChainIndex, InstanceId};

/// A slot, as it was at the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRef {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What is needed per packet.
#[derive(Clone, Copy)]
struct Hot {
    last_seen_ns: u64,
    entry: FwpId,
    generation: u32,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Free,
    Ready,
    Bound,
}

#[derive(Clone, Copy)]
struct Cold {
    instance: InstanceId,
    chain: ChainIndex,
    /// Only while bound.
    key: Option<InstanceKey>,
}

/// An instance that the gateway has let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) chain: ChainIndex,
    pub(crate) instance: InstanceId,
}

/// Why an instance can't be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// All slots are taken, or the chain has no place in the tables.
    NoRoom,
    /// The instance is here already.
    Known,
}

pub(crate) struct Instances {
    hasher: RandomState,
    hot: Box<[Hot]>,
    cold: Box<[Cold]>,
    /// Of the free list and of the chains' ready lists.
    links: Links,
    free: List,
    ready: Box<[List]>,
    ready_count: usize,
    bound_count: usize,
    by_key: HashIndex,
    by_instance: HashIndex,
    sweep_next: usize,
}

impl Instances {
    pub(crate) fn new(slots: usize) -> Self {
        let nobody = FwpId { index: 0, generation: 0 };
        let hot = Hot { last_seen_ns: 0, entry: nobody, generation: 0, state: State::Free };
        let cold = Cold { instance: InstanceId(0), chain: ChainIndex(0), key: None };
        let mut links = Links::new(slots);
        let free = List::all(&mut links);
        Self {
            hasher: RandomState::new(),
            hot: vec![hot; slots].into(),
            cold: vec![cold; slots].into(),
            links,
            free,
            ready: vec![List::new(); CHAINS_MAX as usize].into(),
            ready_count: 0,
            bound_count: 0,
            by_key: HashIndex::new(slots),
            by_instance: HashIndex::new(slots),
            sweep_next: 0,
        }
    }

    pub(crate) fn slots(&self) -> usize {
        self.hot.len()
    }

    pub(crate) fn ready_count(&self) -> usize {
        self.ready_count
    }

    pub(crate) fn bound_count(&self) -> usize {
        self.bound_count
    }

    /// The FWP that a bound instance is entered by, if the slot is still the same one's. Notes that it was seen.
    pub(crate) fn entry(&mut self, slot: SlotRef, now_ns: u64) -> Option<FwpId> {
        let hot = &mut self.hot[slot.index as usize];
        if hot.generation != slot.generation || hot.state != State::Bound {
            return None;
        }
        hot.last_seen_ns = now_ns;
        Some(hot.entry)
    }

    /// The chain of a bound instance, if the slot is still the same one's.
    pub(crate) fn chain(&self, slot: SlotRef) -> Option<ChainIndex> {
        let hot = &self.hot[slot.index as usize];
        let same = hot.generation == slot.generation && hot.state == State::Bound;
        same.then(|| self.cold[slot.index as usize].chain)
    }

    /// The instance bound to the key.
    pub(crate) fn bound_to(&self, key: &InstanceKey) -> Option<SlotRef> {
        let hash = self.hasher.hash_one(key);
        let slot = self.by_key.find(hash, |slot| self.cold[slot as usize].key.as_ref() == Some(key))?;
        Some(self.slot_ref(slot))
    }

    /// Takes a ready instance of a chain in.
    pub(crate) fn add(&mut self, chain: ChainIndex, instance: InstanceId, entry: FwpId) -> Result<(), Refused> {
        if self.find(instance).is_some() {
            return Err(Refused::Known);
        }
        let ready = self.ready.get_mut(chain.0 as usize).ok_or(Refused::NoRoom)?;
        let slot = self.free.pop_front(&mut self.links).ok_or(Refused::NoRoom)?;
        ready.push_back(&mut self.links, slot);
        self.ready_count += 1;
        let hot = &mut self.hot[slot as usize];
        (hot.entry, hot.state) = (entry, State::Ready);
        self.cold[slot as usize] = Cold { instance, chain, key: None };
        self.by_instance.insert(self.hasher.hash_one(instance), slot);
        Ok(())
    }

    /// Binds the chain's longest-ready instance to the key; `None` if there is none ready.
    pub(crate) fn bind(&mut self, key: &InstanceKey, now_ns: u64) -> Option<(SlotRef, InstanceId)> {
        let slot = self.ready.get_mut(key.chain.0 as usize)?.pop_front(&mut self.links)?;
        self.ready_count -= 1;
        self.bound_count += 1;
        let hot = &mut self.hot[slot as usize];
        (hot.state, hot.last_seen_ns) = (State::Bound, now_ns);
        self.cold[slot as usize].key = Some(*key);
        self.by_key.insert(self.hasher.hash_one(key), slot);
        Some((self.slot_ref(slot), self.cold[slot as usize].instance))
    }

    /// Lets go of an instance, ready or bound, if it is here.
    pub(crate) fn unbind(&mut self, instance: InstanceId) -> Option<Released> {
        let slot = self.find(instance)?;
        Some(self.release(slot))
    }

    /// Looks at the next few slots and lets go of the first bound instance there that was not seen for its chain's
    /// idle timeout, as told by `timeout_ns`, or whose chain is gone. Also returns the slots looked at.
    pub(crate) fn sweep(
        &mut self,
        slots: usize,
        now_ns: u64,
        timeout_ns: impl Fn(ChainIndex) -> Option<u64>,
    ) -> (usize, Option<Released>) {
        for looked_at in 1..=slots.min(self.hot.len()) {
            let slot = self.sweep_next;
            self.sweep_next = if slot + 1 == self.hot.len() { 0 } else { slot + 1 };
            let hot = &self.hot[slot];
            if hot.state != State::Bound {
                continue;
            }
            let unseen_ns = now_ns.saturating_sub(hot.last_seen_ns);
            if timeout_ns(self.cold[slot].chain).is_none_or(|timeout_ns| unseen_ns >= timeout_ns) {
                return (looked_at, Some(self.release(slot as u32)));
            }
        }
        (slots, None)
    }

    fn release(&mut self, slot: u32) -> Released {
        let Cold { instance, chain, key } = self.cold[slot as usize];
        self.by_instance.remove(self.hasher.hash_one(instance), slot);
        if let Some(key) = key {
            self.by_key.remove(self.hasher.hash_one(key), slot);
            self.cold[slot as usize].key = None;
            self.bound_count -= 1;
        } else {
            self.ready[chain.0 as usize].remove(&mut self.links, slot);
            self.ready_count -= 1;
        }
        let hot = &mut self.hot[slot as usize];
        hot.state = State::Free;
        hot.generation = hot.generation.wrapping_add(1);
        self.free.push_back(&mut self.links, slot);
        Released { chain, instance }
    }

    fn find(&self, instance: InstanceId) -> Option<u32> {
        let hash = self.hasher.hash_one(instance);
        self.by_instance.find(hash, |slot| self.cold[slot as usize].instance == instance)
    }

    fn slot_ref(&self, slot: u32) -> SlotRef {
        SlotRef { index: slot, generation: self.hot[slot as usize].generation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::ClientLabel;
    use crate::headers::Vlan;
    use std::net::Ipv4Addr;

    fn key(chain: u32, client: u32) -> InstanceKey {
        let client = ClientLabel::Address { address: Ipv4Addr::from(client).into(), vlan: Vlan::UNTAGGED };
        InstanceKey { chain: ChainIndex(chain), client }
    }

    fn entry(number: u64) -> FwpId {
        FwpId { index: number as u32, generation: 1 }
    }

    fn with_ready(slots: usize, ready: &[(u32, u64)]) -> Instances {
        let mut instances = Instances::new(slots);
        for &(chain, number) in ready {
            instances.add(ChainIndex(chain), InstanceId(number), entry(number)).unwrap();
        }
        instances
    }

    #[test]
    fn the_instance_ready_for_longest_is_bound_first_and_found_by_its_key() {
        let mut instances = with_ready(4, &[(0, 10), (1, 11), (0, 12)]);
        let (slot, instance) = instances.bind(&key(0, 1), 5).unwrap();
        assert_eq!(instance, InstanceId(10));
        assert_eq!(instances.bound_to(&key(0, 1)), Some(slot));
        assert_eq!(instances.entry(slot, 6), Some(entry(10)));
        assert_eq!(instances.bound_to(&key(0, 2)), None);
        assert_eq!(instances.bound_to(&key(1, 1)), None, "another chain's");
        assert_eq!((instances.ready_count(), instances.bound_count()), (2, 1));
    }

    #[test]
    fn who_remembers_a_slot_of_an_ended_instance_does_not_reach_the_next_one() {
        let mut instances = with_ready(1, &[(0, 10)]);
        let (old, _) = instances.bind(&key(0, 1), 0).unwrap();
        instances.unbind(InstanceId(10)).unwrap();
        assert_eq!(instances.entry(old, 0), None);
        instances.add(ChainIndex(0), InstanceId(11), entry(11)).unwrap();
        let (new, _) = instances.bind(&key(0, 1), 0).unwrap();
        assert_eq!((old.index, instances.entry(old, 0)), (new.index, None));
        assert_eq!(instances.entry(new, 0), Some(entry(11)));
    }

    #[test]
    fn an_instance_that_ended_while_it_was_ready_is_never_bound() {
        let mut instances = with_ready(4, &[(0, 10), (0, 11), (0, 12)]);
        let released = Released { chain: ChainIndex(0), instance: InstanceId(11) };
        assert_eq!(instances.unbind(InstanceId(11)), Some(released));
        assert_eq!(instances.unbind(InstanceId(11)), None);
        let bound: Vec<_> = (0..3).filter_map(|client| Some(instances.bind(&key(0, client), 0)?.1)).collect();
        assert_eq!(bound, [InstanceId(10), InstanceId(12)]);
    }

    #[test]
    fn no_more_instances_are_taken_in_than_there_are_slots_and_none_twice() {
        let mut instances = with_ready(2, &[(0, 10), (0, 11)]);
        assert_eq!(instances.add(ChainIndex(0), InstanceId(12), entry(12)), Err(Refused::NoRoom));
        assert_eq!(instances.add(ChainIndex(0), InstanceId(11), entry(11)), Err(Refused::Known));
        instances.unbind(InstanceId(10)).unwrap();
        assert_eq!(instances.add(ChainIndex(CHAINS_MAX), InstanceId(12), entry(12)), Err(Refused::NoRoom));
        assert_eq!(instances.add(ChainIndex(0), InstanceId(12), entry(12)), Ok(()));
    }

    #[test]
    fn a_sweep_lets_go_of_what_was_unseen_for_its_chains_timeout_or_has_no_chain() {
        let mut instances = with_ready(8, &[(0, 10), (0, 11), (1, 12), (2, 13), (0, 14)]);
        let (_, _) = instances.bind(&key(0, 1), 0).unwrap();
        let (seen, _) = instances.bind(&key(0, 2), 0).unwrap();
        instances.bind(&key(1, 1), 0).unwrap();
        instances.bind(&key(2, 1), 0).unwrap();
        instances.entry(seen, 60).unwrap();
        let timeout_ns = |chain: ChainIndex| [Some(100), Some(200), None][chain.0 as usize];
        let mut idle = Vec::new();
        for _ in 0..16 {
            idle.extend(instances.sweep(1, 100, timeout_ns).1.map(|released| released.instance));
        }
        assert_eq!(idle, [InstanceId(10), InstanceId(13)]);
        assert_eq!((instances.ready_count(), instances.bound_count()), (1, 2));
    }
}
