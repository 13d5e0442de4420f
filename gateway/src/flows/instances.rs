//! Chain instances that the gateway knows: ready ones, which wait for a client, and bound ones, which serve theirs.
//!
//! ```text
//!            add              bind              release
//!    free ---------> ready ---------> bound ---------------> free, next generation
//!                      \                \ note: FIN, RST    /
//!                       \                `---> lingering --/
//!                        \________________________________/
//! ```
//!
//! A lingering instance still serves the flow that it is bound to, but is released as soon as that flow is quiet for a
//! moment. Only an instance bound to one flow lingers: the end of one flow is not the end of a client that has many.
//!
//! A client proves itself by a second packet. Instances whose clients have proven nothing are in their tenant's list, the
//! one that was bound first in front, so that these can end when others wait for a place. What a client has proven is
//! looked at only then and when the table is swept: it costs packets nothing.
//!
//! What the clients of one source prefix may have is counted in `sources`, from their binding to their release.
//!
//! A slot's generation changes when it is released, so a [`SlotRef`] held elsewhere no longer matches. The fields that
//! each packet needs lie apart from the rest, close together.

mod state;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use pinion_mma::id::{FwpId, PortIndex, TENANTS_MAX, TenantIndex};
use pinion_mma::tuning::prefetch;
use pinion_mma::tuning::upcoming::{LATER, UpcomingInstances};
use pinion_mma::ways::direction::Direction;

pub(crate) use self::state::GOES_ON_NS;
use self::state::State;
#[cfg(test)]
pub(crate) use self::state::{CLOSED_QUIET_NS, RESET_QUIET_NS};
use crate::flows::entry_fwp::{EntryFwp, WayBack};
use crate::flows::index::{HashIndex, List, ListLinks};
use crate::flows::sources::{SourceShare, SourceShares};
use crate::flows::{ClientLabel, InstanceKey};
use crate::headers::TcpEvent;
use crate::id::{CHAINS_MAX, ChainIndex, InstanceId};

/// How long a client may take to prove itself, however many wait: longer than a round trip by satellite, and than most
/// hosts take to send again what was not answered. In nanoseconds.
pub(crate) const PROOF_NS: u64 = 1_000_000_000;
/// Most instances that are looked at for one whose client has proven nothing.
const UNPROVEN_LOOKS: usize = 64;

/// No slot.
const NO_SLOT: u32 = u32::MAX;

/// A slot of a certain generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRef {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A key's hash. Only valid for the table that made it.
#[derive(Clone, Copy)]
pub(crate) struct KeyHash(u64);

/// The fields that each packet needs.
#[derive(Clone, Copy)]
struct Hot {
    last_seen_ns: u64,
    entry: FwpId,
    generation: u32,
    state: State,
    /// Frames of some ports enter by another FWP: see [`Cold::way_back`].
    has_way_back: bool,
    /// It is in a tenant's list of those with unproven clients, [`Cold::unproven_of`]: here for the sweep.
    is_unproven: bool,
}

struct Cold {
    instance: InstanceId,
    chain: ChainIndex,
    /// Only while bound.
    key: Option<InstanceKey>,
    way_back: Option<WayBack>,
    bound_ns: u64,
    /// When its flow's connection was reset, if it was, and what its state was before.
    reset_ns: u64,
    before_reset: State,
    /// Of an instance with a way back: whether its client's frames go back, and when the last of them was seen.
    client: ClientSide,
    /// Whose list of instances with unproven clients it is in.
    unproven_of: Option<TenantIndex>,
    /// What its client has of its source prefix's share.
    source: SourceShare,
}

impl Cold {
    /// What there is of an instance before it is bound.
    fn ready(chain: ChainIndex, instance: InstanceId, way_back: Option<WayBack>) -> Self {
        let (client, source) = (ClientSide::default(), SourceShare::NONE);
        Self {
            instance,
            chain,
            key: None,
            way_back,
            bound_ns: 0,
            reset_ns: 0,
            before_reset: State::Bound,
            client,
            unproven_of: None,
            source,
        }
    }

    /// Returns whether frames of this port pass the instance's stages backwards.
    fn goes_back(&self, port: PortIndex) -> bool {
        self.way_back.as_ref().is_some_and(|way_back| way_back.from.contains(port))
    }
}

/// The side of the client of an instance with a way back. What comes from the other side proves nothing: it may be the
/// answer to a frame with a made-up sender.
#[derive(Clone, Copy, Default)]
struct ClientSide {
    goes_back: bool,
    seen_ns: u64,
}

/// An instance that the gateway has released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) chain: ChainIndex,
    pub(crate) instance: InstanceId,
    pub(crate) flow: FlowState,
    /// It was released for others of its client's source prefix, as its client had proven nothing.
    pub(crate) for_its_prefix: bool,
}

/// The state of the flow that an instance was bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowState {
    /// As far as known, it could go on; or the instance was not bound to one flow.
    Open,
    /// Its connection was closed or reset.
    Over,
}

/// Why an instance cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// All slots are taken, or the chain's index is out of range.
    NoRoom,
    /// The instance is already in the table.
    Known,
}

pub(crate) struct Instances {
    hasher: RandomState,
    hot: Box<[Hot]>,
    cold: Box<[Cold]>,
    /// Links of the free list, of the chains' ready lists and of the tenants' lists of those with unproven clients.
    links: ListLinks,
    free: List,
    ready: Box<[List]>,
    ready_count: usize,
    bound_count: usize,
    /// By tenant: instances whose clients had proven nothing when they were looked at last, the one bound first in front.
    unproven: Box<[List]>,
    by_key: HashIndex,
    by_instance: HashIndex,
    /// By chain: the slot of the instance that serves all clients, or [`NO_SLOT`].
    shared: Box<[u32]>,
    pub(crate) sources: SourceShares,
    sweep_next: usize,
    upcoming: Arc<UpcomingInstances>,
    announcing: Announcing,
}

/// How far the instances after the next one have been published.
#[derive(Clone, Copy)]
struct Announcing {
    /// The chain whose ready instances changed last.
    chain: ChainIndex,
    /// The position in the order in which the instances would be bound.
    place: usize,
    /// The slot right before that position, if `place` is not 0.
    last: Option<u32>,
}

impl Instances {
    /// Makes room for so many instances, and for the shares of as many clients and `waiting_max` that wait.
    pub(crate) fn new(slots: usize, waiting_max: usize) -> Self {
        let no_fwp = FwpId { index: 0, generation: 0 };
        let hot = Hot {
            last_seen_ns: 0,
            entry: no_fwp,
            generation: 0,
            state: State::Free,
            has_way_back: false,
            is_unproven: false,
        };
        let cold = || Cold::ready(ChainIndex(0), InstanceId(0), None);
        let mut links = ListLinks::new(slots);
        let free = List::all(&mut links);
        Self {
            hasher: RandomState::new(),
            hot: vec![hot; slots].into(),
            cold: (0..slots).map(|_| cold()).collect(),
            links,
            free,
            ready: vec![List::new(); CHAINS_MAX as usize].into(),
            ready_count: 0,
            bound_count: 0,
            unproven: vec![List::new(); TENANTS_MAX].into(),
            by_key: HashIndex::new(slots),
            by_instance: HashIndex::new(slots),
            shared: vec![NO_SLOT; CHAINS_MAX as usize].into(),
            sources: SourceShares::new(slots + waiting_max),
            sweep_next: 0,
            upcoming: Arc::default(),
            announcing: Announcing { chain: ChainIndex(0), place: 0, last: None },
        }
    }

    /// Publishes which instances the next clients will get to `upcoming`, so that other threads can prefetch them.
    pub(crate) fn publish_upcoming_to(&mut self, upcoming: Arc<UpcomingInstances>) {
        self.upcoming = upcoming;
    }

    fn announce(&mut self, chain: ChainIndex) {
        let youngest = self.ready.get(chain.0 as usize).and_then(List::last);
        self.upcoming.set(chain.0, youngest.map(|slot| self.hot[slot as usize].entry));
        self.announcing = Announcing { chain, place: 0, last: None };
    }

    /// Publishes one more instance of those that follow the next one, of the chain whose ready list changed last.
    /// Starts over after the last one, which also keeps these slots in the cache. Call it when idle.
    pub(crate) fn announce_later(&mut self) {
        let Announcing { chain, place, last } = self.announcing;
        let last = if place == 0 { self.ready.get(chain.0 as usize).and_then(List::last) } else { last };
        let slot = last.and_then(|last| List::before(&self.links, last));
        if let Some(slot) = slot {
            prefetch::to_read(&raw const self.cold[slot as usize]);
        }
        self.upcoming.set_later(place, slot.map(|slot| self.hot[slot as usize].entry));
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

    /// Returns the FWP by which frames of this port enter the bound instance, unless the slot was reused. Notes that
    /// the instance was seen.
    pub(crate) fn entry(&mut self, slot: SlotRef, port: PortIndex, now_ns: u64) -> Option<FwpId> {
        let hot = &mut self.hot[slot.index as usize];
        if hot.generation != slot.generation || !hot.state.is_bound() {
            return None;
        }
        hot.last_seen_ns = now_ns;
        if hot.has_way_back { Some(self.entry_by(slot, port, now_ns)) } else { Some(hot.entry) }
    }

    /// Returns the FWP by which answers to the instance's outbound flows enter that come by this port, unless the slot was
    /// reused. They come from those that its function asks, and prove nothing of its client: until that has proven itself,
    /// they do not count as seen.
    pub(crate) fn entry_of_answers(&mut self, slot: SlotRef, port: PortIndex, now_ns: u64) -> Option<FwpId> {
        let is_unproven = self.hot[slot.index as usize].is_unproven && !self.is_proven(slot.index);
        let hot = &mut self.hot[slot.index as usize];
        if hot.generation != slot.generation || !hot.state.is_bound() {
            return None;
        }
        if !is_unproven {
            hot.last_seen_ns = now_ns;
        }
        Some(self.entrance(slot).of(port))
    }

    /// Returns the FWP by which frames of this port enter an instance with a way back. Notes whether its client sent one.
    fn entry_by(&mut self, slot: SlotRef, port: PortIndex, now_ns: u64) -> FwpId {
        let cold = &mut self.cold[slot.index as usize];
        let goes_back = cold.goes_back(port);
        if now_ns == cold.bound_ns {
            cold.client = ClientSide { goes_back, seen_ns: now_ns };
        } else if goes_back == cold.client.goes_back {
            cold.client.seen_ns = now_ns;
        }
        self.entrance(slot).of(port)
    }

    /// Returns the FWPs by which the instance in this slot is entered.
    pub(crate) fn entrance(&self, slot: SlotRef) -> EntryFwp {
        let at = slot.index as usize;
        EntryFwp { first: self.hot[at].entry, way_back: self.cold[at].way_back }
    }

    /// Returns the first FWP of the chain's instance that serves all clients, if there is one. Notes that it was seen.
    #[inline]
    pub(crate) fn shared(&mut self, chain: ChainIndex, now_ns: u64) -> Option<FwpId> {
        let slot = *self.shared.get(chain.0 as usize)?;
        let hot = self.hot.get_mut(slot as usize)?;
        hot.last_seen_ns = now_ns;
        Some(hot.entry)
    }

    /// Returns whether an instance serves all clients.
    pub(crate) fn is_shared(&self, instance: InstanceId) -> bool {
        let key = self.find(instance).and_then(|slot| self.cold[slot as usize].key);
        key.is_some_and(|key| key.client == ClientLabel::All)
    }

    /// Returns the chain of a bound instance, unless the slot was reused.
    pub(crate) fn chain(&self, slot: SlotRef) -> Option<ChainIndex> {
        let hot = &self.hot[slot.index as usize];
        let same = hot.generation == slot.generation && hot.state.is_bound();
        same.then(|| self.cold[slot.index as usize].chain)
    }

    /// Returns whether the connection of the flow that the instance is bound to has ended: the next one begins another flow.
    pub(crate) fn is_over(&self, slot: SlotRef) -> bool {
        self.hot[slot.index as usize].state.is_over()
    }

    /// Returns whether the connection of the flow that a bound instance serves was reset.
    #[inline(always)]
    pub(crate) fn was_reset(&self, slot: SlotRef) -> bool {
        matches!(self.hot[slot.index as usize].state, State::Reset(_))
    }

    /// Notes that a frame of a connection that was reset has come by this port. If it is of the side that was said to have
    /// reset the connection, that goes on.
    #[cold]
    #[inline(never)]
    pub(crate) fn go_on(&mut self, slot: SlotRef, port: PortIndex, now_ns: u64) {
        let (hot, cold) = (&mut self.hot[slot.index as usize], &self.cold[slot.index as usize]);
        let side = if cold.goes_back(port) { Direction::Back } else { Direction::Forth };
        if hot.state == State::Reset(side) && now_ns.saturating_sub(cold.reset_ns) >= GOES_ON_NS {
            hot.state = cold.before_reset;
        }
    }

    /// Notes a TCP event of the flow that a bound instance serves. The port tells which side sent it.
    pub(crate) fn note(&mut self, slot: SlotRef, milestone: TcpEvent, port: PortIndex, now_ns: u64) {
        let of_flow = |key: &InstanceKey| matches!(key.client, ClientLabel::Flow { .. });
        let Cold { key, way_back, .. } = &self.cold[slot.index as usize];
        if key.as_ref().is_some_and(of_flow) {
            let side =
                |way_back: &WayBack| if way_back.from.contains(port) { Direction::Back } else { Direction::Forth };
            let side = way_back.as_ref().map(side);
            let (state, cold) = (&mut self.hot[slot.index as usize].state, &mut self.cold[slot.index as usize]);
            if milestone == TcpEvent::Resets {
                cold.reset_ns = now_ns;
                if !matches!(state, State::Reset(_)) {
                    cold.before_reset = *state;
                }
            }
            *state = state.after(milestone, side);
        }
    }

    /// Returns a key's hash. Looking up and binding share it, because hashing takes a good part of the time of either.
    pub(crate) fn hash(&self, key: &InstanceKey) -> KeyHash {
        KeyHash(self.hasher.hash_one(key))
    }

    /// Returns the instance that is bound to the key with this hash.
    pub(crate) fn bound_to(&self, key: &InstanceKey, KeyHash(hash): KeyHash) -> Option<SlotRef> {
        let slot = self.by_key.find(hash, |slot| self.cold[slot as usize].key.as_ref() == Some(key))?;
        Some(self.slot_ref(slot))
    }

    /// Adds a ready instance of a chain.
    pub(crate) fn add(&mut self, chain: ChainIndex, instance: InstanceId, entrance: EntryFwp) -> Result<(), Refused> {
        if self.find(instance).is_some() {
            return Err(Refused::Known);
        }
        let ready = self.ready.get_mut(chain.0 as usize).ok_or(Refused::NoRoom)?;
        let slot = self.free.pop_back(&mut self.links).ok_or(Refused::NoRoom)?;
        ready.push_back(&mut self.links, slot);
        self.ready_count += 1;
        let hot = &mut self.hot[slot as usize];
        let EntryFwp { first, way_back } = entrance;
        (hot.entry, hot.state, hot.has_way_back) = (first, State::Ready, way_back.is_some());
        self.cold[slot as usize] = Cold::ready(chain, instance, way_back);
        self.by_instance.insert(self.hash_of(instance.0 as u32), slot);
        self.announce(chain);
        Ok(())
    }

    /// Binds the chain's youngest ready instance, most of whose memory is still cached, to the key with this hash. The
    /// chain is this tenant's. Returns `None` if none is ready.
    pub(crate) fn bind(
        &mut self,
        key: &InstanceKey,
        KeyHash(hash): KeyHash,
        tenant: TenantIndex,
        now_ns: u64,
    ) -> Option<(SlotRef, InstanceId)> {
        let slot = self.ready.get_mut(key.chain.0 as usize)?.pop_back(&mut self.links)?;
        let hot = &mut self.hot[slot as usize];
        // Published first: a worker then prefetches its memory while the rest here, and the MMA's part, is done.
        self.upcoming.expect(hot.entry);
        self.ready_count -= 1;
        self.bound_count += 1;
        (hot.state, hot.last_seen_ns) = (State::Bound, now_ns);
        let cold = &mut self.cold[slot as usize];
        (cold.key, cold.bound_ns) = (Some(*key), now_ns);
        self.by_key.insert(hash, slot);
        if key.client == ClientLabel::All {
            self.shared[key.chain.0 as usize] = slot;
        } else {
            (cold.unproven_of, hot.is_unproven) = (Some(tenant), true);
            self.unproven[usize::from(tenant.0)].push_back(&mut self.links, slot);
        }
        self.announce(key.chain);
        Some((self.slot_ref(slot), self.cold[slot as usize].instance))
    }

    /// Charges the client of a bound instance for it, until its release.
    pub(crate) fn charge(&mut self, slot: SlotRef, share: SourceShare) {
        let charged = std::mem::replace(&mut self.cold[slot.index as usize].source, share);
        self.sources.give_back(charged);
    }

    /// Releases an instance if it is in the table and ready.
    pub(crate) fn reclaim(&mut self, instance: InstanceId) -> Option<Released> {
        let slot = self.find(instance)?;
        let is_ready = self.hot[slot as usize].state == State::Ready;
        is_ready.then(|| self.release(slot))
    }

    /// Releases an instance, ready or bound, if it is in the table.
    pub(crate) fn unbind(&mut self, instance: InstanceId) -> Option<Released> {
        let slot = self.find(instance)?;
        Some(self.release(slot))
    }

    /// Releases the instance of this tenant that was bound first of those whose clients have proven nothing, and have had
    /// [`PROOF_NS`] to. Looks at a bounded number of instances.
    pub(crate) fn end_unproven(&mut self, tenant: TenantIndex, now_ns: u64) -> Option<Released> {
        for _ in 0..UNPROVEN_LOOKS {
            let slot = self.unproven[usize::from(tenant.0)].first()?;
            let bound_ns = self.cold[slot as usize].bound_ns;
            if self.is_proven(slot) {
                self.forget_unproven(slot);
            } else if now_ns.saturating_sub(bound_ns) < PROOF_NS {
                return None;
            } else {
                return Some(self.release(slot));
            }
        }
        None
    }

    /// Returns whether the client of a bound instance has sent a frame since it got the instance.
    fn is_proven(&self, slot: u32) -> bool {
        let (hot, cold) = (&self.hot[slot as usize], &self.cold[slot as usize]);
        let seen_ns = if hot.has_way_back { cold.client.seen_ns } else { hot.last_seen_ns };
        seen_ns > cold.bound_ns
    }

    /// Returns whether the client of a bound instance, which has proven nothing, has had [`PROOF_NS`] to, and others of its
    /// source prefix were refused since one of them gave back its part.
    fn is_in_the_way(&self, slot: usize, now_ns: u64) -> bool {
        let Cold { bound_ns, source, .. } = &self.cold[slot];
        self.sources.has_refused(source) && now_ns.saturating_sub(*bound_ns) >= PROOF_NS
    }

    /// Notes that the first frame of the client of a bound instance came in by `port`, and whether it has sent more.
    pub(crate) fn note_client(&mut self, slot: SlotRef, port: PortIndex, has_sent_more: bool) {
        let cold = &mut self.cold[slot.index as usize];
        cold.client = ClientSide { goes_back: cold.goes_back(port), seen_ns: cold.bound_ns };
        if has_sent_more {
            self.forget_unproven(slot.index);
        }
    }

    /// Takes an instance out of its tenant's list of those with unproven clients, if it is in one.
    fn forget_unproven(&mut self, slot: u32) {
        self.hot[slot as usize].is_unproven = false;
        if let Some(tenant) = self.cold[slot as usize].unproven_of.take() {
            self.unproven[usize::from(tenant.0)].remove(&mut self.links, slot);
        }
    }

    /// Looks at the next few slots and releases the first bound instance there that has been idle for too long, or
    /// whose chain no longer exists, or that is in the way of others of its source prefix. `timeout_ns` returns a chain's
    /// idle timeout, `None` if the chain does not exist; a lingering instance has a shorter one. If the flow has not ended,
    /// an idle instance stays unless `may_end` agrees. That is called with the first FWP and with how long the instance was
    /// unseen. Also returns how many slots were looked at.
    pub(crate) fn sweep(
        &mut self,
        slots: usize,
        now_ns: u64,
        timeout_ns: impl Fn(ChainIndex) -> Option<u64>,
        may_end: impl Fn(FwpId, u64) -> bool,
    ) -> (usize, Option<Released>) {
        for looked_at in 1..=slots.min(self.hot.len()) {
            let slot = self.sweep_next;
            self.sweep_next = if slot + 1 == self.hot.len() { 0 } else { slot + 1 };
            if !self.hot[slot].state.is_bound() {
                continue;
            }
            if self.hot[slot].is_unproven {
                if self.is_proven(slot as u32) {
                    self.forget_unproven(slot as u32);
                } else if self.is_in_the_way(slot, now_ns) {
                    let released = self.release(slot as u32);
                    return (looked_at, Some(Released { for_its_prefix: true, ..released }));
                }
            }
            let hot = &self.hot[slot];
            let unseen_ns = now_ns.saturating_sub(hot.last_seen_ns);
            let is_over = |timeout_ns| {
                unseen_ns >= hot.state.quiet_ns_max(timeout_ns)
                    && (hot.state.is_over() || may_end(hot.entry, unseen_ns))
            };
            if timeout_ns(self.cold[slot].chain).is_none_or(is_over) {
                return (looked_at, Some(self.release(slot as u32)));
            }
        }
        (slots, None)
    }

    /// Releases an instance, ready or bound.
    pub(crate) fn release(&mut self, slot: u32) -> Released {
        let Cold { instance, chain, key, source, .. } = &mut self.cold[slot as usize];
        let (instance, chain, key) = (*instance, *chain, *key);
        self.sources.give_back(std::mem::replace(source, SourceShare::NONE));
        self.by_instance.remove(self.hasher.hash_one(instance.0 as u32), slot);
        if let Some(key) = key {
            self.by_key.remove(self.hasher.hash_one(key), slot);
            if key.client == ClientLabel::All {
                self.shared[chain.0 as usize] = NO_SLOT;
            }
            self.cold[slot as usize].key = None;
            self.forget_unproven(slot);
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
        Released { chain, instance, flow, for_its_prefix: false }
    }

    fn find(&self, instance: InstanceId) -> Option<u32> {
        self.by_instance.find(self.hash_of(instance.0 as u32), |slot| self.cold[slot as usize].instance == instance)
    }

    /// Returns the bound instance of a chain whose number has these lowest bits.
    pub(crate) fn bound_with(&self, chain: ChainIndex, lowest: u32) -> Option<SlotRef> {
        let is_it = |slot: u32| {
            let Cold { instance, chain: its_chain, .. } = &self.cold[slot as usize];
            instance.0 as u32 == lowest && *its_chain == chain && self.hot[slot as usize].state.is_bound()
        };
        self.by_instance.find(self.hash_of(lowest), is_it).map(|slot| self.slot_ref(slot))
    }

    /// Returns the hash of an instance's number, of which only the lowest bits count: senders are named by these.
    fn hash_of(&self, lowest: u32) -> u64 {
        self.hasher.hash_one(lowest)
    }

    fn slot_ref(&self, slot: u32) -> SlotRef {
        SlotRef { index: slot, generation: self.hot[slot as usize].generation }
    }
}

#[cfg(test)]
mod tests;
