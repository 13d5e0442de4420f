//! Chain instances that the gateway knows: ready ones, waiting to be taken, and bound ones, serving their clients.
//!
//! ```text
//!            add              bind              release
//!    free ---------> ready ---------> bound ---------------> free, next generation
//!                      \                \ note: FIN, RST    /
//!                       \                `---> lingering --/
//!                        \________________________________/
//! ```
//!
//! One that lingers serves the flow that it is bound to as before, but is let go of as soon as that is quiet for a moment. Only what
//! is bound to one flow lingers: one flow's end is not that of a client, nor of everybody.
//!
//! A slot's generation changes when it is released: whoever remembers it by [`SlotRef`] notices. What each packet needs
//! of a slot is kept apart from the rest, close together.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use pinion_mma::heading::Heading;
use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::next_up::{LATER, NextUp};

use crate::flows::entrance::{Entrance, WayBack};
use crate::flows::index::{HashIndex, Links, List};
use crate::flows::prefetch::prefetch;
use crate::flows::{ClientLabel, InstanceKey};
use crate::headers::Milestone;
use crate::id::{CHAINS_MAX, ChainIndex, InstanceId};

/// How long a flow has to be quiet for its instance to end, after its client has closed the connection. The answers to what the other
/// side still sends come within this time, and so do most of the segments that are sent again.
pub(crate) const CLOSED_QUIET_NS: u64 = 1_000_000_000;
/// The same after the client has reset it: for what is on its way through the chain, and for segments that overtook each other.
pub(crate) const RESET_QUIET_NS: u64 = 100_000_000;

/// No slot.
const NOBODY: u32 = u32::MAX;

/// A slot, as it was at the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRef {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A key's hash. Means nothing to other tables than the one that made it.
#[derive(Clone, Copy)]
pub(crate) struct KeyHash(u64);

/// What is needed per packet.
#[derive(Clone, Copy)]
struct Hot {
    last_seen_ns: u64,
    entry: FwpId,
    generation: u32,
    state: State,
    /// Frames of some ports enter by another FWP: see [`Cold::way_back`].
    has_way_back: bool,
}

/// From `Bound` on frames go there.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Free,
    Ready,
    Bound,
    /// Bound to a flow both of whose sides come here, of which the client has closed its connection, or the other side.
    HalfClosed(Heading),
    /// Bound to a flow whose client has closed its connection, or both sides have, if both come here.
    Closed,
    /// Bound to a flow whose client, or either side, has reset its connection.
    Reset,
}

impl State {
    /// What a bound one becomes when this is said; by which side, if both come here. That the connection opens is said again if the
    /// answer is late.
    fn after(self, milestone: Milestone, by: Option<Heading>) -> Self {
        match (milestone, self, by) {
            (Milestone::Resets, ..) => Self::Reset,
            (Milestone::Closes, Self::Bound, None) => Self::Closed,
            (Milestone::Closes, Self::Bound, Some(side)) => Self::HalfClosed(side),
            (Milestone::Closes, Self::HalfClosed(first), Some(side)) if side != first => Self::Closed,
            (Milestone::Closes | Milestone::Opens, ..) => self,
        }
    }

    /// Whether frames go there.
    fn is_bound(self) -> bool {
        !matches!(self, Self::Free | Self::Ready)
    }

    /// Whether the flow is over that it is bound to.
    fn is_over(self) -> bool {
        matches!(self, Self::Closed | Self::Reset)
    }

    /// How long nothing may come for it before it is let go of.
    fn quiet_ns_max(self, timeout_ns: u64) -> u64 {
        match self {
            Self::Closed => CLOSED_QUIET_NS.min(timeout_ns),
            Self::Reset => RESET_QUIET_NS.min(timeout_ns),
            Self::Free | Self::Ready | Self::Bound | Self::HalfClosed(_) => timeout_ns,
        }
    }
}

#[derive(Clone, Copy)]
struct Cold {
    instance: InstanceId,
    chain: ChainIndex,
    /// Only while bound.
    key: Option<InstanceKey>,
    way_back: Option<WayBack>,
}

/// An instance that the gateway has let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) chain: ChainIndex,
    pub(crate) instance: InstanceId,
    pub(crate) flow: FlowState,
}

/// How the flow was that an instance was bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowState {
    /// As far as one knew, it could go on; or the instance was not bound to one.
    Open,
    /// Its client had closed or reset the connection.
    Over,
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
    /// By chain: the slot of the instance that serves everybody, or [`NOBODY`].
    everybodys: Box<[u32]>,
    sweep_next: usize,
    next_up: Arc<NextUp>,
    announcing: Announcing,
}

/// How far it has been announced who comes after the next one.
#[derive(Clone, Copy)]
struct Announcing {
    /// The chain whose ready instances changed last.
    chain: ChainIndex,
    /// In the order in which they would be bound.
    place: usize,
    /// Who comes right before, if `place` is not 0.
    last: Option<u32>,
}

impl Instances {
    pub(crate) fn new(slots: usize) -> Self {
        let nobody = FwpId { index: 0, generation: 0 };
        let hot = Hot { last_seen_ns: 0, entry: nobody, generation: 0, state: State::Free, has_way_back: false };
        let cold = Cold { instance: InstanceId(0), chain: ChainIndex(0), key: None, way_back: None };
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
            everybodys: vec![NOBODY; CHAINS_MAX as usize].into(),
            sweep_next: 0,
            next_up: Arc::default(),
            announcing: Announcing { chain: ChainIndex(0), place: 0, last: None },
        }
    }

    /// Has whoever looks there know which instances clients will be given next.
    pub(crate) fn announce_to(&mut self, next_up: Arc<NextUp>) {
        self.next_up = next_up;
    }

    fn announce(&mut self, chain: ChainIndex) {
        let youngest = self.ready.get(chain.0 as usize).and_then(List::last);
        self.next_up.set(chain.0, youngest.map(|slot| self.hot[slot as usize].entry));
        self.announcing = Announcing { chain, place: 0, last: None };
    }

    /// Announces one more of those who come after the next, of the chain whose ready instances changed last, and begins again after
    /// the last of them, so that what is known of them here stays near as well. To be called when there is nothing else to do.
    pub(crate) fn announce_later(&mut self) {
        let Announcing { chain, place, last } = self.announcing;
        let last = if place == 0 { self.ready.get(chain.0 as usize).and_then(List::last) } else { last };
        let slot = last.and_then(|last| List::before(&self.links, last));
        if let Some(slot) = slot {
            prefetch(&self.cold[slot as usize]);
        }
        self.next_up.set_later(place, slot.map(|slot| self.hot[slot as usize].entry));
        self.announcing = Announcing { chain, place: (place + 1) % LATER, last: slot };
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

    /// The FWP that frames of this port enter a bound instance by, if the slot is still the same one's. Notes that it was seen.
    pub(crate) fn entry(&mut self, slot: SlotRef, port: PortIndex, now_ns: u64) -> Option<FwpId> {
        let hot = &mut self.hot[slot.index as usize];
        if hot.generation != slot.generation || !hot.state.is_bound() {
            return None;
        }
        hot.last_seen_ns = now_ns;
        if hot.has_way_back { Some(self.entrance(slot).of(port)) } else { Some(hot.entry) }
    }

    /// By which FWPs the instance is entered that has the slot.
    pub(crate) fn entrance(&self, slot: SlotRef) -> Entrance {
        let at = slot.index as usize;
        Entrance { first: self.hot[at].entry, way_back: self.cold[at].way_back }
    }

    /// The first FWP of the instance of a chain that serves everybody, if there is one. Notes that it was seen.
    #[inline]
    pub(crate) fn everybodys(&mut self, chain: ChainIndex, now_ns: u64) -> Option<FwpId> {
        let slot = *self.everybodys.get(chain.0 as usize)?;
        let hot = self.hot.get_mut(slot as usize)?;
        hot.last_seen_ns = now_ns;
        Some(hot.entry)
    }

    /// Whether an instance serves everybody.
    pub(crate) fn serves_everybody(&self, instance: InstanceId) -> bool {
        let key = self.find(instance).and_then(|slot| self.cold[slot as usize].key);
        key.is_some_and(|key| key.client == ClientLabel::Everybody)
    }

    /// The chain of a bound instance, if the slot is still the same one's.
    pub(crate) fn chain(&self, slot: SlotRef) -> Option<ChainIndex> {
        let hot = &self.hot[slot.index as usize];
        let same = hot.generation == slot.generation && hot.state.is_bound();
        same.then(|| self.cold[slot.index as usize].chain)
    }

    /// Whether a bound instance serves a flow that is over, now that its client says this: the flow that begins is another one.
    pub(crate) fn is_over_with(&self, slot: SlotRef, milestone: Milestone) -> bool {
        milestone == Milestone::Opens && self.hot[slot.index as usize].state.is_over()
    }

    /// Notes what the client of a bound instance says of its connection, or whoever it is that speaks by this port.
    pub(crate) fn note(&mut self, slot: SlotRef, milestone: Milestone, port: PortIndex) {
        let of_flow = |key: InstanceKey| matches!(key.client, ClientLabel::Flow { .. });
        let Cold { key, way_back, .. } = self.cold[slot.index as usize];
        if key.is_some_and(of_flow) {
            let side = |way_back: WayBack| if way_back.from.contains(port) { Heading::Back } else { Heading::Forth };
            let state = &mut self.hot[slot.index as usize].state;
            *state = state.after(milestone, way_back.map(side));
        }
    }

    /// For who asks for an instance and then binds one: to hash a key takes a good part of either.
    pub(crate) fn hash(&self, key: &InstanceKey) -> KeyHash {
        KeyHash(self.hasher.hash_one(key))
    }

    /// The instance bound to the key of this hash.
    pub(crate) fn bound_to(&self, key: &InstanceKey, KeyHash(hash): KeyHash) -> Option<SlotRef> {
        let slot = self.by_key.find(hash, |slot| self.cold[slot as usize].key.as_ref() == Some(key))?;
        Some(self.slot_ref(slot))
    }

    /// Takes a ready instance of a chain in.
    pub(crate) fn add(&mut self, chain: ChainIndex, instance: InstanceId, entrance: Entrance) -> Result<(), Refused> {
        if self.find(instance).is_some() {
            return Err(Refused::Known);
        }
        let ready = self.ready.get_mut(chain.0 as usize).ok_or(Refused::NoRoom)?;
        let slot = self.free.pop_back(&mut self.links).ok_or(Refused::NoRoom)?;
        ready.push_back(&mut self.links, slot);
        self.ready_count += 1;
        let hot = &mut self.hot[slot as usize];
        let Entrance { first, way_back } = entrance;
        (hot.entry, hot.state, hot.has_way_back) = (first, State::Ready, way_back.is_some());
        self.cold[slot as usize] = Cold { instance, chain, key: None, way_back };
        self.by_instance.insert(self.hasher.hash_one(instance), slot);
        self.announce(chain);
        Ok(())
    }

    /// Binds the chain's youngest ready instance, of which most is still near, to the key of this hash; `None` if there is none ready.
    pub(crate) fn bind(
        &mut self,
        key: &InstanceKey,
        KeyHash(hash): KeyHash,
        now_ns: u64,
    ) -> Option<(SlotRef, InstanceId)> {
        let slot = self.ready.get_mut(key.chain.0 as usize)?.pop_back(&mut self.links)?;
        let hot = &mut self.hot[slot as usize];
        // Before all else: a worker then asks for its memory while what is left here, and the MMA's part, is done.
        self.next_up.expect(hot.entry);
        self.ready_count -= 1;
        self.bound_count += 1;
        (hot.state, hot.last_seen_ns) = (State::Bound, now_ns);
        self.cold[slot as usize].key = Some(*key);
        self.by_key.insert(hash, slot);
        if key.client == ClientLabel::Everybody {
            self.everybodys[key.chain.0 as usize] = slot;
        }
        self.announce(key.chain);
        Some((self.slot_ref(slot), self.cold[slot as usize].instance))
    }

    /// Lets go of an instance if it is here and ready.
    pub(crate) fn reclaim(&mut self, instance: InstanceId) -> Option<Released> {
        let slot = self.find(instance)?;
        let is_ready = self.hot[slot as usize].state == State::Ready;
        is_ready.then(|| self.release(slot))
    }

    /// Lets go of an instance, ready or bound, if it is here.
    pub(crate) fn unbind(&mut self, instance: InstanceId) -> Option<Released> {
        let slot = self.find(instance)?;
        Some(self.release(slot))
    }

    /// Looks at the next few slots and lets go of the first bound instance there that was not seen for its chain's
    /// idle timeout, as told by `timeout_ns`, or for less if it lingers, or whose chain is gone. Also returns the slots
    /// looked at.
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
            if !hot.state.is_bound() {
                continue;
            }
            let unseen_ns = now_ns.saturating_sub(hot.last_seen_ns);
            let is_over = |timeout_ns| unseen_ns >= hot.state.quiet_ns_max(timeout_ns);
            if timeout_ns(self.cold[slot].chain).is_none_or(is_over) {
                return (looked_at, Some(self.release(slot as u32)));
            }
        }
        (slots, None)
    }

    /// Lets go of an instance, ready or bound.
    pub(crate) fn release(&mut self, slot: u32) -> Released {
        let Cold { instance, chain, key, .. } = self.cold[slot as usize];
        self.by_instance.remove(self.hasher.hash_one(instance), slot);
        if let Some(key) = key {
            self.by_key.remove(self.hasher.hash_one(key), slot);
            if key.client == ClientLabel::Everybody {
                self.everybodys[chain.0 as usize] = NOBODY;
            }
            self.cold[slot as usize].key = None;
            self.bound_count -= 1;
        } else {
            self.ready[chain.0 as usize].remove(&mut self.links, slot);
            self.ready_count -= 1;
            self.announce(chain);
        }
        let hot = &mut self.hot[slot as usize];
        let flow = if hot.state.is_over() { FlowState::Over } else { FlowState::Open };
        hot.state = State::Free;
        hot.generation = hot.generation.wrapping_add(1);
        self.free.push_back(&mut self.links, slot);
        Released { chain, instance, flow }
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
mod tests;
