//! The open flows, and those that have ended of late.
//!
//! ```text
//!           open             end               told              rest is over, or room is needed
//!    free --------> open ----------> untold ---------> resting ---------------------------------> free
//!                      \--by the function, or with its instance--^
//! ```
//!
//! A resting flow is its tenant's: it counts for the tenant's share, and gives way to the tenant's next flow. If no place is
//! free for a tenant below its guaranteed share, a flow of a tenant above its own gives way: one that rests, else an open one.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use pinion_abi::{FlowEnd, FlowRefusal};
use pinion_mma::accounts::shares::Shares;
use pinion_mma::id::{PortIndex, Sender, TENANTS_MAX, TenantIndex};

use super::connection::Connection;
use crate::flows::index::{HashIndex, List, ListLinks};
use crate::flows::instances::SlotRef;
use crate::headers::{FlowKey, Ingress, Segment, TcpEvent, Vlan};

/// Most flows of a node.
pub(crate) const FLOWS_MAX: usize = 8192;
/// One instance may have one part in so many of all flows.
const PART_OF_INSTANCE: usize = 8;
/// Open flows that are looked at for one that was used least of late.
const LEAST_USED_LOOKS: usize = 16;
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
    /// By tenant: the flows that are open, in front those that were opened, or looked at to end one of them, first.
    open: Box<[List]>,
    /// Flows that have ended to make room and whose instances do not know yet. No other does meanwhile.
    giving_way: usize,
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
            open: vec![List::new(); TENANTS_MAX].into(),
            giving_way: 0,
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

    /// Divides what is guaranteed among these tenants, by their weights. Flows above a share that became smaller end as others
    /// below theirs open some.
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
        self.open[usize::from(new.sender.tenant.0)].push_back(&mut self.links, place);
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

    /// Returns whether there is room for another flow of a tenant, and may end the rest of one for that: of one of its own, or
    /// if the tenant is below its guaranteed share, of a tenant above its own.
    fn make_room(&mut self, tenant: TenantIndex) -> bool {
        let has_room = |flows: &Self| flows.shares.has_room(tenant, 1) && flows.free.first().is_some();
        if !has_room(self)
            && let Some(resting) = self.resting[usize::from(tenant.0)].first()
        {
            self.set_free(resting);
        }
        if !has_room(self)
            && self.shares.is_guaranteed(tenant, 1)
            && let Some(above) = self.most_above(&self.resting)
            && let Some(resting) = self.resting[usize::from(above.0)].first()
        {
            self.set_free(resting);
        }
        has_room(self)
    }

    /// Returns the tenant that is most above its guaranteed share, of those with a flow in one of these lists.
    #[cold]
    fn most_above(&self, lists: &[List]) -> Option<TenantIndex> {
        let has_one = |tenant: &TenantIndex| lists[usize::from(tenant.0)].first().is_some();
        self.shares.above().filter(has_one).max_by_key(|tenant| self.shares.of(*tenant).excess())
    }

    /// Ends an open flow of a tenant above its guaranteed share, if an instance of a tenant below its own may have another
    /// flow and there is no room for that. There is once the end was told.
    pub(crate) fn end_for(&mut self, tenant: TenantIndex, slot: SlotRef, now_ns: u64) -> Option<Told> {
        if self.giving_way > 0 || self.of_instance(slot) >= self.of_instance_max || self.make_room(tenant) {
            return None;
        }
        let above = self.most_above(&self.open).filter(|_| self.shares.is_guaranteed(tenant, 1))?;
        let place = self.least_used(above)?;
        self.end(place, Some(FlowEnd::Quota), now_ns);
        Some(self.told(place, FlowEnd::Quota))
    }

    /// Returns an open flow of a tenant by which its function has sent nothing for longer than by others. Looks at some of
    /// them, the next time at others.
    fn least_used(&mut self, tenant: TenantIndex) -> Option<u32> {
        let open = &mut self.open[usize::from(tenant.0)];
        let (first, mut least) = (open.first()?, open.first()?);
        for _ in 0..LEAST_USED_LOOKS {
            let place = open.pop_front(&mut self.links)?;
            open.push_back(&mut self.links, place);
            if self.flows[place as usize].since_ns < self.flows[least as usize].since_ns {
                least = place;
            }
            if open.first() == Some(first) {
                break;
            }
        }
        Some(least)
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

    /// Notes what a segment of the far end does to its connection. Returns whether it is of a flow.
    pub(crate) fn note_far(
        &mut self,
        answers: &FlowKey,
        event: TcpEvent,
        segment: impl FnOnce() -> Option<Segment>,
    ) -> bool {
        let Some(flow) = self.find_flow(answers) else { return false };
        flow.connection.note_far(event, segment());
        true
    }

    /// Returns whose flow a packet is of that an instance sends. Prolongs its life if it is the instance's own. `segment` reads
    /// its numbers if it is a segment of TCP.
    pub(crate) fn claim(
        &mut self,
        answers: &FlowKey,
        sender: Sender,
        event: Option<TcpEvent>,
        segment: impl FnOnce() -> Option<Segment>,
        now_ns: u64,
    ) -> Claim {
        let Some(flow) = self.find_flow(answers) else { return Claim::Nobodys };
        if flow.sender != sender {
            return Claim::Anothers;
        }
        if flow.state != State::Open {
            return Claim::Ended;
        }
        flow.since_ns = now_ns;
        if answers.protocol() == TCP {
            flow.connection.note_near(event, segment());
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
        let State::Untold(end) = self.flows[place].state else { return None };
        Some(self.told(place as u32, end))
    }

    /// Returns what is to be told of a flow.
    fn told(&self, place: u32, end: FlowEnd) -> Told {
        let Flow { answers, slot, tag, generation, .. } = self.flows[place as usize];
        Told { slot, tag, number: number(place, generation), end, answers }
    }

    /// Notes that an instance was told that its flow has ended, or that there is none to tell.
    pub(crate) fn was_told(&mut self, told: &Told) {
        self.rest(told.number as u32);
    }

    /// Ends an open flow. It rests at once if its instance is not to be told.
    fn end(&mut self, place: u32, told: Option<FlowEnd>, now_ns: u64) {
        let flow = &mut self.flows[place as usize];
        flow.since_ns = now_ns;
        self.open[usize::from(flow.sender.tenant.0)].remove(&mut self.links, place);
        let (generation, count) = &mut self.of_instances[flow.slot.index as usize];
        if *generation == flow.slot.generation {
            *count -= 1;
        }
        self.giving_way += usize::from(told == Some(FlowEnd::Quota));
        match told {
            Some(end) => flow.state = State::Untold(end),
            None => self.rest(place),
        }
    }

    fn rest(&mut self, place: u32) {
        let flow = &mut self.flows[place as usize];
        self.giving_way -= usize::from(flow.state == State::Untold(FlowEnd::Quota));
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
mod tests;
