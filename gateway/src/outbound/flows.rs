//! The open flows, and those that have ended of late.
//!
//! ```text
//!           open             end               told              rest is over, or room is needed
//!    free --------> open ----------> untold ---------> resting ---------------------------------> free
//!                      \--by the function, or with its instance--^
//! ```
//!
//! A resting flow is its tenant's: it counts for the tenant's share, and gives way to the tenant's next flow.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use pinion_abi::{FlowEnd, FlowRefusal};
use pinion_mma::accounts::shares::Shares;
use pinion_mma::id::{PortIndex, Sender, TENANTS_MAX, TenantIndex};

use crate::flows::index::{HashIndex, List, ListLinks};
use crate::flows::instances::SlotRef;
use crate::headers::{FlowKey, Ingress, TcpEvent, Vlan};

/// Most flows of a node.
pub(crate) const FLOWS_MAX: usize = 8192;
/// One instance may have one part in so many of all flows.
const PART_OF_INSTANCE: usize = 8;
/// Dynamic ports (RFC 6335). There are twice as many as flows, so that a free one is found soon.
const PORTS: RangeInclusive<u16> = 49_152..=65_535;
/// Ports that are tried for one flow, each drawn anew. If half of all are in use, one flow in 65,536 finds none.
const PORTS_TRIED: usize = 16;

/// How long a flow lives without a packet of the function's. In nanoseconds. Packets of the far end do not prolong it
/// (RFC 4787, section 4.3).
const UDP_IDLE_NS: u64 = 60_000_000_000;
const TCP_IDLE_NS: u64 = 300_000_000_000;
/// The same after both sides have closed its connection, or either has reset it: what is late or sent again comes within it.
const OVER_IDLE_NS: u64 = 2_000_000_000;
/// How long a flow rests that has ended.
const REST_NS: u64 = 30_000_000_000;

const TCP: u8 = 6;

/// A flow to be opened.
#[derive(Clone, Copy)]
pub(crate) struct NewFlow {
    pub(crate) sender: Sender,
    pub(crate) slot: SlotRef,
    pub(crate) tag: u64,
    pub(crate) protocol: u8,
    pub(crate) source: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) port: u16,
    pub(crate) ingress: Ingress,
    pub(crate) rules_version: u32,
}

/// Whose flow a packet is of that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// No flow's.
    Nobodys,
    /// The sender's.
    Own,
    /// The sender's, and it has ended.
    Ended,
    /// Another instance's.
    Anothers,
}

/// That a flow has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowEnded;

/// That a flow has ended, to be told to its instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) slot: SlotRef,
    pub(crate) tag: u64,
    pub(crate) number: u64,
    pub(crate) end: FlowEnd,
    pub(crate) answers: FlowKey,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Open,
    Untold(FlowEnd),
    Resting,
}

/// What was seen of a flow's TCP connection.
#[derive(Clone, Copy, Default)]
struct Connection {
    is_closed_here: bool,
    is_closed_there: bool,
    is_reset: bool,
}

impl Connection {
    fn is_over(self) -> bool {
        self.is_reset || self.is_closed_here && self.is_closed_there
    }
}

#[derive(Clone, Copy)]
struct Flow {
    /// The flow of the answers.
    answers: FlowKey,
    sender: Sender,
    slot: SlotRef,
    tag: u64,
    /// Counts the flows that have had this place.
    generation: u32,
    state: State,
    /// When the function sent its last packet; of a flow that has ended, when that was.
    since_ns: u64,
    connection: Connection,
    /// The rules by which it was admitted last.
    rules_version: u32,
}

impl Flow {
    /// Returns why an open flow ends now, if it does.
    fn over(&self, now_ns: u64) -> Option<FlowEnd> {
        let (idle_ns, end) = match (self.answers.protocol(), self.connection.is_over()) {
            (_, true) => (OVER_IDLE_NS, FlowEnd::ByConnection),
            (TCP, _) => (TCP_IDLE_NS, FlowEnd::Idle),
            _ => (UDP_IDLE_NS, FlowEnd::Idle),
        };
        (now_ns.saturating_sub(self.since_ns) >= idle_ns).then_some(end)
    }
}

/// See the module.
pub(crate) struct OutboundFlows {
    hasher: RandomState,
    flows: Box<[Flow]>,
    links: ListLinks,
    free: List,
    /// By tenant: the flows that rest, the one that ended first in front.
    resting: Box<[List]>,
    by_answers: HashIndex,
    shares: Shares,
    /// By slot of an instance: how many flows it has that have not ended, for the generation that had the latest one.
    of_instances: Box<[(u32, u32)]>,
    of_instance_max: u32,
    ports: RangeInclusive<u16>,
    draws: u64,
    used: usize,
    sweep_next: usize,
}

impl OutboundFlows {
    /// Makes room for so many flows of so many instances.
    pub(crate) fn new(flows: usize, instances: usize) -> Self {
        let nowhere = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };
        let free = Flow {
            answers: FlowKey::ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED, 0, nowhere),
            sender: Sender::of(TenantIndex(0)),
            slot: SlotRef { index: 0, generation: 0 },
            tag: 0,
            generation: 0,
            state: State::Free,
            since_ns: 0,
            connection: Connection::default(),
            rules_version: 0,
        };
        let mut links = ListLinks::new(flows);
        Self {
            hasher: RandomState::new(),
            flows: vec![free; flows].into(),
            free: List::all(&mut links),
            links,
            resting: vec![List::new(); TENANTS_MAX].into(),
            by_answers: HashIndex::new(flows),
            shares: Shares::new(flows as u32),
            of_instances: vec![(0, 0); instances].into(),
            of_instance_max: flows.div_ceil(PART_OF_INSTANCE) as u32,
            ports: PORTS,
            draws: 0,
            used: 0,
            sweep_next: 0,
        }
    }

    /// Returns whether there are flows, open or at rest.
    #[inline(always)]
    pub(crate) fn has_any(&self) -> bool {
        self.used > 0
    }

    /// Returns how many flows there is room for.
    pub(crate) fn places(&self) -> usize {
        self.flows.len()
    }

    /// Divides what is guaranteed among these tenants, by their weights.
    pub(crate) fn divide(&mut self, weights: &[(TenantIndex, u32)]) {
        self.shares.divide(weights);
    }

    /// Leaves only these source ports, for tests.
    #[cfg(test)]
    pub(crate) fn set_ports(&mut self, ports: RangeInclusive<u16>) {
        self.ports = ports;
    }

    /// Returns the ports that sources have.
    pub(crate) fn ports(&self) -> RangeInclusive<u16> {
        self.ports.clone()
    }

    /// Opens a flow. Returns its number, and the flow of the answers. `is_anothers` says whether packets of a flow go to another
    /// instance already.
    ///
    /// # Errors
    /// Why it is not opened.
    pub(crate) fn open(
        &mut self,
        new: &NewFlow,
        now_ns: u64,
        is_anothers: impl Fn(&FlowKey) -> bool,
    ) -> Result<(u64, FlowKey), FlowRefusal> {
        let of_instance = self.of_instance(new.slot);
        if of_instance >= self.of_instance_max || !self.make_room(new.sender.tenant) {
            return Err(FlowRefusal::Quota);
        }
        let (answers, hash) = self.answers(new, is_anothers).ok_or(FlowRefusal::NoPort)?;
        let place = self.free.pop_front(&mut self.links).ok_or(FlowRefusal::Quota)?;
        self.shares.take(new.sender.tenant, 1);
        self.of_instances[new.slot.index as usize] = (new.slot.generation, of_instance + 1);
        self.used += 1;
        self.by_answers.insert(hash, place);
        let generation = self.flows[place as usize].generation.wrapping_add(1).max(1);
        self.flows[place as usize] = Flow {
            answers,
            sender: new.sender,
            slot: new.slot,
            tag: new.tag,
            generation,
            state: State::Open,
            since_ns: now_ns,
            connection: Connection::default(),
            rules_version: new.rules_version,
        };
        Ok((number(place, generation), answers))
    }

    /// Returns how many flows an instance has that have not ended.
    fn of_instance(&self, slot: SlotRef) -> u32 {
        let (generation, count) = self.of_instances[slot.index as usize];
        if generation == slot.generation { count } else { 0 }
    }

    /// Returns whether there is room for another flow of a tenant, and may end the rest of one for that.
    fn make_room(&mut self, tenant: TenantIndex) -> bool {
        let has_room = |flows: &Self| flows.shares.has_room(tenant, 1) && flows.free.first().is_some();
        if !has_room(self)
            && let Some(resting) = self.resting[usize::from(tenant.0)].first()
        {
            self.set_free(resting);
        }
        has_room(self)
    }

    /// Chooses a source port that is not in use for the destination. If there are few ports, it tries all.
    fn answers(&mut self, new: &NewFlow, is_anothers: impl Fn(&FlowKey) -> bool) -> Option<(FlowKey, u64)> {
        let portless = match (new.to, new.source) {
            (IpAddr::V4(to), IpAddr::V4(source)) => FlowKey::ipv4(to, source, new.protocol, new.ingress),
            (IpAddr::V6(to), IpAddr::V6(source)) => FlowKey::ipv6(to, source, new.protocol, new.ingress),
            _ => return None,
        };
        self.draws = self.draws.wrapping_add(1);
        let (first, count) = (*self.ports.start(), usize::from(*self.ports.end() - *self.ports.start()) + 1);
        (0..PORTS_TRIED).find_map(|tried| {
            let drawn = if count <= PORTS_TRIED { tried } else { self.hasher.hash_one((self.draws, tried)) as usize };
            let answers = portless.with_ports(new.port, first + (drawn % count) as u16);
            let hash = self.hasher.hash_one(answers.words());
            (self.find(&answers, hash).is_none() && !is_anothers(&answers)).then_some((answers, hash))
        })
    }

    fn find(&self, answers: &FlowKey, hash: u64) -> Option<u32> {
        self.by_answers.find(hash, |place| self.flows[place as usize].answers == *answers)
    }

    fn find_flow(&mut self, answers: &FlowKey) -> Option<&mut Flow> {
        let place = self.find(answers, self.hasher.hash_one(answers.words()))?;
        Some(&mut self.flows[place as usize])
    }

    /// Returns the instance that gets the packets of this flow, or that the flow has ended.
    pub(crate) fn bound_to(&mut self, answers: &FlowKey) -> Option<Result<SlotRef, FlowEnded>> {
        let flow = self.find_flow(answers)?;
        Some(if flow.state == State::Open { Ok(flow.slot) } else { Err(FlowEnded) })
    }

    /// Notes what a packet of the far end does to its connection. Returns whether it is of a flow.
    pub(crate) fn note_far(&mut self, answers: &FlowKey, event: TcpEvent) -> bool {
        let Some(flow) = self.find_flow(answers) else { return false };
        match event {
            TcpEvent::Opens => {}
            TcpEvent::Closes => flow.connection.is_closed_there = true,
            TcpEvent::Resets => flow.connection.is_reset = true,
        }
        true
    }

    /// Returns whose flow a packet is of that an instance sends. Prolongs its life if it is the instance's own.
    pub(crate) fn claim(&mut self, answers: &FlowKey, sender: Sender, event: Option<TcpEvent>, now_ns: u64) -> Claim {
        let Some(flow) = self.find_flow(answers) else { return Claim::Nobodys };
        if flow.sender != sender {
            return Claim::Anothers;
        }
        if flow.state != State::Open {
            return Claim::Ended;
        }
        flow.since_ns = now_ns;
        match event {
            // Another connection by the same ports.
            Some(TcpEvent::Opens) => flow.connection = Connection::default(),
            Some(TcpEvent::Closes) => flow.connection.is_closed_here = true,
            Some(TcpEvent::Resets) => flow.connection.is_reset = true,
            None => {}
        }
        Claim::Own
    }

    /// Ends a flow of an instance, which asks for it. Returns the flow of its answers, if it was open.
    pub(crate) fn close(&mut self, number: u64, sender: Sender, now_ns: u64) -> Option<FlowKey> {
        let place = number as u32;
        let flow = self.flows.get(place as usize)?;
        let is_it = number >> 32 == u64::from(flow.generation) && flow.sender == sender && flow.state == State::Open;
        let answers = is_it.then_some(flow.answers)?;
        self.end(place, None, now_ns);
        Some(answers)
    }

    /// Undoes the opening of a flow that its instance has not been told of.
    pub(crate) fn forget(&mut self, number: u64) {
        self.end(number as u32, None, 0);
        self.set_free(number as u32);
    }

    /// Looks at the next place. Returns what is to be told of the flow there.
    ///
    /// `is_bound` says whether an instance is there; `is_granted`, whether a flow may be under the rules of this version.
    pub(crate) fn look_at_next(
        &mut self,
        now_ns: u64,
        rules_version: u32,
        is_bound: impl FnOnce(SlotRef) -> bool,
        is_granted: impl FnOnce(Sender, &FlowKey) -> bool,
    ) -> Option<Told> {
        let place = self.sweep_next;
        self.sweep_next = (place + 1) % self.flows.len();
        let flow = &mut self.flows[place];
        match flow.state {
            State::Free => {}
            State::Open if !is_bound(flow.slot) => self.end(place as u32, None, now_ns),
            State::Open => {
                let is_gone = flow.rules_version != rules_version && !is_granted(flow.sender, &flow.answers);
                flow.rules_version = rules_version;
                let end = if is_gone { Some(FlowEnd::NotGranted) } else { flow.over(now_ns) };
                if end.is_some() {
                    self.end(place as u32, end, now_ns);
                }
            }
            State::Resting if now_ns.saturating_sub(flow.since_ns) >= REST_NS => self.set_free(place as u32),
            State::Untold(_) | State::Resting => {}
        }
        let Flow { answers, slot, tag, generation, state, .. } = self.flows[place];
        let State::Untold(end) = state else { return None };
        Some(Told { slot, tag, number: number(place as u32, generation), end, answers })
    }

    /// Notes that an instance was told that its flow has ended, or that there is none to tell.
    pub(crate) fn was_told(&mut self, told: &Told) {
        self.rest(told.number as u32);
    }

    /// Ends an open flow. It rests at once if its instance is not to be told.
    fn end(&mut self, place: u32, told: Option<FlowEnd>, now_ns: u64) {
        let flow = &mut self.flows[place as usize];
        flow.since_ns = now_ns;
        let (generation, count) = &mut self.of_instances[flow.slot.index as usize];
        if *generation == flow.slot.generation {
            *count -= 1;
        }
        match told {
            Some(end) => flow.state = State::Untold(end),
            None => self.rest(place),
        }
    }

    fn rest(&mut self, place: u32) {
        let flow = &mut self.flows[place as usize];
        flow.state = State::Resting;
        self.resting[usize::from(flow.sender.tenant.0)].push_back(&mut self.links, place);
    }

    /// Ends the rest of a flow.
    fn set_free(&mut self, place: u32) {
        let flow = &mut self.flows[place as usize];
        flow.state = State::Free;
        let (answers, tenant) = (flow.answers, flow.sender.tenant);
        self.resting[usize::from(tenant.0)].remove(&mut self.links, place);
        self.by_answers.remove(self.hasher.hash_one(answers.words()), place);
        self.shares.give_back(tenant, 1);
        self.free.push_back(&mut self.links, place);
        self.used -= 1;
    }
}

/// Returns a flow's number, which no other flow had or will have soon. Never 0.
fn number(place: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const SECOND_NS: u64 = 1_000_000_000;

    fn new_flow(tenant: u16, instance: u32) -> NewFlow {
        NewFlow {
            sender: Sender { tenant: TenantIndex(tenant), chain: tenant, instance },
            slot: SlotRef { index: instance, generation: 1 },
            tag: 7,
            protocol: 17,
            source: Ipv4Addr::new(10, 0, 0, 1).into(),
            to: Ipv4Addr::new(192, 0, 2, 53).into(),
            port: 53,
            ingress: Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED },
            rules_version: 0,
        }
    }

    fn open(flows: &mut OutboundFlows, tenant: u16, instance: u32) -> Result<u64, FlowRefusal> {
        flows.open(&new_flow(tenant, instance), 0, |_| false).map(|(number, _)| number)
    }

    fn look_at_all(flows: &mut OutboundFlows, now_ns: u64, is_bound: bool) -> Vec<Told> {
        (0..flows.places()).filter_map(|_| flows.look_at_next(now_ns, 0, |_| is_bound, |_, _| true)).collect()
    }

    #[test]
    fn no_tenant_gets_what_is_guaranteed_to_another() {
        let mut flows = OutboundFlows::new(64, 64);
        flows.divide(&[(TenantIndex(1), 1), (TenantIndex(2), 1)]);
        let opened = (0..64).map(|at| open(&mut flows, 1, at / 8)).take_while(Result::is_ok).count();
        assert_eq!(opened, 48, "its guaranteed quarter, and the half that is not guaranteed");
        assert_eq!(open(&mut flows, 1, 20), Err(FlowRefusal::Quota));
        assert_eq!((0..17).map(|at| open(&mut flows, 2, 30 + at / 8)).filter(Result::is_ok).count(), 16);
    }

    #[test]
    fn flows_of_an_instance_that_has_ended_count_until_they_are_looked_at() {
        let mut flows = OutboundFlows::new(16, 64);
        flows.divide(&[(TenantIndex(1), 1)]);
        (0..8).for_each(|instance| assert!((0..2).all(|_| open(&mut flows, 1, instance).is_ok())));
        assert_eq!(open(&mut flows, 1, 8), Err(FlowRefusal::Quota));
        assert!(look_at_all(&mut flows, SECOND_NS, false).is_empty(), "there is no instance to tell");
        assert!(open(&mut flows, 1, 8).is_ok(), "one that rests gives way");
        look_at_all(&mut flows, SECOND_NS + REST_NS, true);
        let left = flows.flows.iter().filter(|flow| flow.state != State::Free).count();
        assert_eq!(left, 1);
    }

    #[test]
    fn a_later_instance_in_the_same_slot_has_a_part_of_its_own() {
        let mut flows = OutboundFlows::new(16, 4);
        flows.divide(&[(TenantIndex(1), 1)]);
        let later = NewFlow { slot: SlotRef { index: 3, generation: 2 }, ..new_flow(1, 3) };
        assert!((0..2).all(|_| open(&mut flows, 1, 3).is_ok()));
        assert!((0..2).all(|_| flows.open(&later, 0, |_| false).is_ok()));
        let is_later = |slot: SlotRef| slot.generation == 2;
        (0..16).for_each(|_| assert!(flows.look_at_next(0, 0, is_later, |_, _| true).is_none()));
        assert_eq!(
            flows.open(&later, 0, |_| false),
            Err(FlowRefusal::Quota),
            "what the earlier one had is not taken off"
        );
    }

    #[test]
    fn a_number_ends_only_the_flow_that_has_it() {
        let mut flows = OutboundFlows::new(1, 1);
        flows.divide(&[(TenantIndex(1), 1)]);
        let sender = new_flow(1, 0).sender;
        let first = open(&mut flows, 1, 0).unwrap();
        assert!(flows.close(first, sender, 0).is_some());
        let second = open(&mut flows, 1, 0).unwrap();
        for number in [first, 0, u64::MAX, second ^ 1 << 32, second | 1] {
            assert_eq!(flows.close(number, sender, 0), None, "{number:#x}");
        }
        assert_eq!(flows.close(second, Sender { instance: 9, ..sender }, 0), None);
        assert!(flows.close(second, sender, 0).is_some());
    }

    proptest! {
        #[test]
        fn whatever_is_asked_for_no_two_flows_agree_and_nothing_is_lost(
            steps in prop::collection::vec((0_u8..6, 0_u16..3, 0_u32..4), 0..300),
        ) {
            let mut flows = OutboundFlows::new(24, 4);
            flows.divide(&[(TenantIndex(0), 1), (TenantIndex(1), 1)]);
            flows.set_ports(50_000..=50_010);
            let (mut open_ones, mut now_ns) = (BTreeMap::new(), 0);
            for (step, tenant, instance) in steps {
                match step {
                    0..=2 => if let Ok((number, answers)) = flows.open(&new_flow(tenant, instance), now_ns, |_| false) {
                        prop_assert_eq!(flows.bound_to(&answers), Some(Ok(new_flow(tenant, instance).slot)));
                        prop_assert!(open_ones.insert(number, (answers, new_flow(tenant, instance).sender)).is_none());
                    },
                    3 => if let Some((number, (answers, sender))) = open_ones.pop_first() {
                        prop_assert_eq!(flows.close(number, sender, now_ns), Some(answers));
                        prop_assert!(matches!(flows.bound_to(&answers), None | Some(Err(FlowEnded))));
                    },
                    4 => now_ns += 10 * SECOND_NS,
                    _ => for told in look_at_all(&mut flows, now_ns, true) {
                        prop_assert_eq!(open_ones.remove(&told.number).map(|(answers, _)| answers), Some(told.answers));
                        flows.was_told(&told);
                    },
                }
                let taken = flows.flows.iter().filter(|flow| flow.state != State::Free);
                prop_assert_eq!(taken.count(), flows.used);
                let ports: BTreeSet<_> = open_ones.values().map(|(answers, _)| answers.destination_port()).collect();
                prop_assert_eq!(ports.len(), open_ones.len());
                let counted: u32 = (0..3).map(|tenant| flows.shares.of(TenantIndex(tenant)).used).sum();
                prop_assert_eq!(counted as usize, flows.used);
                let of_instances: u32 = flows.of_instances.iter().map(|(_, count)| count).sum();
                prop_assert_eq!(of_instances as usize, open_ones.len());
            }
        }
    }
}
