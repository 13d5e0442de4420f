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
use pinion_mma::next_up::NextUp;

use crate::flows::entrance::{Entrance, WayBack};
use crate::flows::index::{HashIndex, Links, List};
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
        }
    }

    /// Has whoever looks there know which instances clients will be given next.
    pub(crate) fn announce_to(&mut self, next_up: Arc<NextUp>) {
        self.next_up = next_up;
    }

    fn announce(&self, chain: ChainIndex) {
        let youngest = self.ready.get(chain.0 as usize).and_then(List::last);
        self.next_up.set(chain.0, youngest.map(|slot| self.hot[slot as usize].entry));
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

    /// The instance bound to the key.
    pub(crate) fn bound_to(&self, key: &InstanceKey) -> Option<SlotRef> {
        let hash = self.hasher.hash_one(key);
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

    /// Binds the chain's youngest ready instance to the key, of which most is still near; `None` if there is none ready.
    pub(crate) fn bind(&mut self, key: &InstanceKey, now_ns: u64) -> Option<(SlotRef, InstanceId)> {
        let slot = self.ready.get_mut(key.chain.0 as usize)?.pop_back(&mut self.links)?;
        let hot = &mut self.hot[slot as usize];
        // Before all else: a worker then asks for its memory while what is left here, and the MMA's part, is done.
        self.next_up.expect(hot.entry);
        self.ready_count -= 1;
        self.bound_count += 1;
        (hot.state, hot.last_seen_ns) = (State::Bound, now_ns);
        self.cold[slot as usize].key = Some(*key);
        self.by_key.insert(self.hasher.hash_one(key), slot);
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
mod tests {
    use super::*;
    use crate::headers::{FiveTuple, Vlan};
    use pinion_mma::heading::PortSet;
    use std::net::Ipv4Addr;

    fn key(chain: u32, client: u32) -> InstanceKey {
        let client = ClientLabel::Address { address: Ipv4Addr::from(client).into(), vlan: Vlan::UNTAGGED };
        InstanceKey { chain: ChainIndex(chain), client }
    }

    fn entry(number: u64) -> FwpId {
        FwpId { index: number as u32, generation: 1 }
    }

    const LAN: PortIndex = PortIndex(0);

    fn with_ready(slots: usize, ready: &[(u32, u64)]) -> Instances {
        let mut instances = Instances::new(slots);
        for &(chain, number) in ready {
            instances.add(ChainIndex(chain), InstanceId(number), entry(number).into()).unwrap();
        }
        instances
    }

    #[test]
    fn the_youngest_ready_instance_is_bound_first_and_found_by_its_key() {
        let mut instances = with_ready(4, &[(0, 10), (1, 11), (0, 12)]);
        let (slot, instance) = instances.bind(&key(0, 1), 5).unwrap();
        assert_eq!(instance, InstanceId(12));
        assert_eq!(instances.bound_to(&key(0, 1)), Some(slot));
        assert_eq!(instances.entry(slot, LAN, 6), Some(entry(12)));
        assert_eq!(instances.bound_to(&key(0, 2)), None);
        assert_eq!(instances.bound_to(&key(1, 1)), None, "another chain's");
        assert_eq!((instances.ready_count(), instances.bound_count()), (2, 1));
    }

    #[test]
    fn who_is_next_is_announced_whatever_changes_it() {
        let mut instances = Instances::new(4);
        let next_up = Arc::<NextUp>::default();
        instances.announce_to(Arc::clone(&next_up));
        let announced = || next_up.look(0);
        assert_eq!(announced(), None);
        for number in [10, 11, 12] {
            instances.add(ChainIndex(0), InstanceId(number), entry(number).into()).unwrap();
            assert_eq!(announced(), Some(entry(number)));
        }
        instances.unbind(InstanceId(12)).unwrap();
        assert_eq!(announced(), Some(entry(11)));
        instances.bind(&key(0, 1), 0).unwrap();
        assert_eq!(announced(), Some(entry(10)));
        instances.bind(&key(0, 2), 0).unwrap();
        assert_eq!(announced(), None);
    }

    #[test]
    fn who_remembers_a_slot_of_an_ended_instance_does_not_reach_the_next_one() {
        let mut instances = with_ready(1, &[(0, 10)]);
        let (old, _) = instances.bind(&key(0, 1), 0).unwrap();
        instances.unbind(InstanceId(10)).unwrap();
        assert_eq!(instances.entry(old, LAN, 0), None);
        instances.add(ChainIndex(0), InstanceId(11), entry(11).into()).unwrap();
        let (new, _) = instances.bind(&key(0, 1), 0).unwrap();
        assert_eq!((old.index, instances.entry(old, LAN, 0)), (new.index, None));
        assert_eq!(instances.entry(new, LAN, 0), Some(entry(11)));
    }

    #[test]
    fn an_instance_that_ended_while_it_was_ready_is_never_bound() {
        let mut instances = with_ready(4, &[(0, 10), (0, 11), (0, 12)]);
        let released = Released { chain: ChainIndex(0), instance: InstanceId(11), flow: FlowState::Open };
        assert_eq!(instances.unbind(InstanceId(11)), Some(released));
        assert_eq!(instances.unbind(InstanceId(11)), None);
        let bound: Vec<_> = (0..3).filter_map(|client| Some(instances.bind(&key(0, client), 0)?.1)).collect();
        assert_eq!(bound, [InstanceId(12), InstanceId(10)]);
    }

    #[test]
    fn no_more_instances_are_taken_in_than_there_are_slots_and_none_twice() {
        let mut instances = with_ready(2, &[(0, 10), (0, 11)]);
        assert_eq!(instances.add(ChainIndex(0), InstanceId(12), entry(12).into()), Err(Refused::NoRoom));
        assert_eq!(instances.add(ChainIndex(0), InstanceId(11), entry(11).into()), Err(Refused::Known));
        instances.unbind(InstanceId(10)).unwrap();
        assert_eq!(instances.add(ChainIndex(CHAINS_MAX), InstanceId(12), entry(12).into()), Err(Refused::NoRoom));
        assert_eq!(instances.add(ChainIndex(0), InstanceId(12), entry(12).into()), Ok(()));
    }

    #[test]
    fn a_sweep_lets_go_of_what_was_unseen_for_its_chains_timeout_or_has_no_chain() {
        let mut instances = with_ready(8, &[(0, 10), (0, 11), (1, 12), (2, 13), (0, 14)]);
        let (_, _) = instances.bind(&key(0, 1), 0).unwrap();
        let (seen, _) = instances.bind(&key(0, 2), 0).unwrap();
        instances.bind(&key(1, 1), 0).unwrap();
        instances.bind(&key(2, 1), 0).unwrap();
        instances.entry(seen, LAN, 60).unwrap();
        let timeout_ns = |chain: ChainIndex| [Some(100), Some(200), None][chain.0 as usize];
        let mut idle = Vec::new();
        for _ in 0..16 {
            idle.extend(instances.sweep(1, 100, timeout_ns).1.map(|released| released.instance));
        }
        assert_eq!(idle, [InstanceId(14), InstanceId(13)]);
        assert_eq!((instances.ready_count(), instances.bound_count()), (1, 2));
    }

    fn flow_key(client_port: u16) -> InstanceKey {
        let flow = FiveTuple {
            source: Ipv4Addr::LOCALHOST.into(),
            destination: Ipv4Addr::LOCALHOST.into(),
            protocol: 6,
            source_port: client_port,
            destination_port: 80,
        };
        InstanceKey { chain: ChainIndex(0), client: ClientLabel::Flow { flow, vlan: Vlan::UNTAGGED } }
    }

    #[test]
    fn what_a_client_says_of_its_connection_has_its_instance_linger_or_not() {
        use Milestone::{Closes, Opens, Resets};
        use State::{Bound, Closed, Reset};
        // From, what it says, to; and whether what opens is another flow.
        let table = [
            (Bound, Opens, Bound, false),
            (Bound, Closes, Closed, false),
            (Bound, Resets, Reset, false),
            (Closed, Opens, Closed, true),
            (Closed, Closes, Closed, false),
            (Closed, Resets, Reset, false),
            (Reset, Opens, Reset, true),
            (Reset, Closes, Reset, false),
            (Reset, Resets, Reset, false),
        ];
        for (from, milestone, to, is_another) in table {
            let mut instances = with_ready(1, &[(0, 10)]);
            let (slot, _) = instances.bind(&flow_key(1), 0).unwrap();
            instances.hot[0].state = from;
            assert_eq!(instances.is_over_with(slot, milestone), is_another, "{from:?}, {milestone:?}");
            instances.note(slot, milestone, LAN);
            assert_eq!(instances.hot[0].state, to, "{from:?}, {milestone:?}");
            assert_eq!(instances.entry(slot, LAN, 0), Some(entry(10)), "it serves its flow while it lingers");
            assert_eq!((instances.bound_to(&flow_key(1)), instances.chain(slot)), (Some(slot), Some(ChainIndex(0))));
        }
    }

    #[test]
    fn an_instance_lingers_until_its_flow_was_quiet_for_a_moment_and_no_longer_than_its_chain_allows() {
        const LONG_NS: u64 = 300_000_000_000;
        let cases = [
            (None, LONG_NS, LONG_NS, FlowState::Open),
            (Some(Milestone::Closes), LONG_NS, CLOSED_QUIET_NS, FlowState::Over),
            (Some(Milestone::Resets), LONG_NS, RESET_QUIET_NS, FlowState::Over),
            (Some(Milestone::Closes), 70, 70, FlowState::Over),
            (Some(Milestone::Resets), 70, 70, FlowState::Over),
        ];
        for (milestone, timeout_ns, quiet_ns, flow) in cases {
            let mut instances = with_ready(1, &[(0, 10)]);
            let (slot, _) = instances.bind(&flow_key(1), 0).unwrap();
            milestone.into_iter().for_each(|milestone| instances.note(slot, milestone, LAN));
            let mut seen_ns = 0;
            for _ in 0..3 {
                let sweep = |instances: &mut Instances, now_ns| instances.sweep(1, now_ns, |_| Some(timeout_ns)).1;
                assert_eq!(sweep(&mut instances, seen_ns + quiet_ns - 1), None);
                seen_ns += quiet_ns - 1;
                assert_eq!(instances.entry(slot, LAN, seen_ns), Some(entry(10)), "a frame keeps it");
            }
            let released = instances.sweep(1, seen_ns + quiet_ns, |_| Some(timeout_ns)).1;
            assert_eq!(released, Some(Released { chain: ChainIndex(0), instance: InstanceId(10), flow }));
            assert_eq!((instances.entry(slot, LAN, seen_ns), instances.bound_to(&flow_key(1))), (None, None));
        }
    }

    #[test]
    fn where_both_sides_come_here_a_flow_is_over_when_both_have_closed_it_or_one_has_reset_it() {
        use Milestone::{Closes, Resets};
        use State::{Bound, Closed, HalfClosed, Reset};
        let wan = PortIndex(1);
        let way_back = Some(WayBack { last: entry(20), from: PortSet::of([wan]).unwrap() });
        let cases: [(&[(Milestone, PortIndex)], State); 6] = [
            (&[], Bound),
            (&[(Closes, LAN), (Closes, LAN)], HalfClosed(Heading::Forth)),
            (&[(Closes, wan)], HalfClosed(Heading::Back)),
            (&[(Closes, LAN), (Closes, wan)], Closed),
            (&[(Closes, wan), (Closes, LAN), (Closes, wan)], Closed),
            (&[(Closes, LAN), (Resets, wan)], Reset),
        ];
        for (said, state) in cases {
            let mut instances = Instances::new(1);
            instances.add(ChainIndex(0), InstanceId(10), Entrance { first: entry(10), way_back }).unwrap();
            let (slot, _) = instances.bind(&flow_key(1), 0).unwrap();
            said.iter().for_each(|&(milestone, port)| instances.note(slot, milestone, port));
            assert_eq!(instances.hot[0].state, state, "{said:?}");
            assert_eq!(instances.is_over_with(slot, Milestone::Opens), matches!(state, Closed | Reset), "{said:?}");
            assert_eq!([LAN, wan].map(|port| instances.entry(slot, port, 0)), [Some(entry(10)), Some(entry(20))]);
        }
    }

    #[test]
    fn the_end_of_one_flow_is_not_that_of_a_client_or_of_everybody() {
        let everybody = InstanceKey { chain: ChainIndex(0), client: ClientLabel::Everybody };
        for key in [everybody, key(0, 1)] {
            let mut instances = with_ready(1, &[(0, 10)]);
            let (slot, _) = instances.bind(&key, 0).unwrap();
            for milestone in [Milestone::Closes, Milestone::Resets, Milestone::Opens] {
                assert!(!instances.is_over_with(slot, milestone));
                instances.note(slot, milestone, LAN);
                assert_eq!(instances.hot[0].state, State::Bound);
            }
        }
    }

    #[test]
    fn who_comes_after_one_that_lingered_does_not_linger() {
        let mut instances = with_ready(1, &[(0, 10)]);
        let (slot, _) = instances.bind(&flow_key(1), 0).unwrap();
        instances.note(slot, Milestone::Resets, LAN);
        assert_eq!(instances.release(slot.index).flow, FlowState::Over);
        instances.add(ChainIndex(0), InstanceId(11), entry(11).into()).unwrap();
        let (slot, _) = instances.bind(&flow_key(1), 0).unwrap();
        assert!(!instances.is_over_with(slot, Milestone::Opens));
        assert_eq!(instances.unbind(InstanceId(11)).unwrap().flow, FlowState::Open);
    }
}
