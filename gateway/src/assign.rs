//! Decides which chain instance a flow goes to. It asks the memo, the flow cache, the rules, the bound instances and
//! the ready ones, in this order.
//!
//! Owned by the gateway; knows neither ports nor buffers. [`Assigner::read`] and [`Assigner::assign`] are the fast
//! path: they allocate nothing, take no lock and do not call the kernel. A flow that had frames just before costs one
//! lookup in the memo. Otherwise a hit in the flow cache costs one keyed hash, one bucket, one entry and one slot. A
//! miss also costs a search through the rules and two more hashes, and a third one for a client whose source prefix is
//! counted. That no rule matches a flow is cached, too. A segment that begins or ends a TCP connection costs one more
//! lookup in the cache ([`Assigner::assign_milestone`]); it may end the flow's instance, or bind another one.
//!
//! A frame whose key waits for an instance cannot overtake frames that wait already. A chain has ready instances only
//! while no key waits for one: after [`Assigner::add_ready`], the gateway gives the instance to the key that has waited
//! longest.

pub(crate) mod addresses;
mod errors;
mod lifetimes;
pub(crate) mod outbound;
mod rule_for;
mod waiting;

use std::sync::Arc;

use pinion_mma::id::{FwpId, PortIndex, TenantIndex};
use pinion_mma::tuning::upcoming::UpcomingInstances;
use smoltcp::wire::EthernetAddress;

use self::addresses::{Destination, OwnAddresses};
pub(crate) use self::lifetimes::SweepShare;
use self::outbound::Claims;
use crate::drops::DropReason;
use crate::flows::cache::{FlowCache, FlowLookup, Found, Miss, Verdict};
use crate::flows::hash::FlowHash;
use crate::flows::instances::{FlowState, Instances, KeyHash, Released, SlotRef};
use crate::flows::recent_flows::RecentFlows;
use crate::flows::sources::SourcePrefix;
use crate::flows::{ClientLabel, InstanceKey};
use crate::fwp_times::{ActivationClock, KeepAlives};
use crate::headers::plain::{self, PlainFlow};
use crate::headers::stray::{Worth, worth_of};
use crate::headers::{self, FlowKey, Fragment, Headers, TcpEvent, Vlan};
use crate::id::{CHAINS_MAX, ChainIndex, FunctionRef};
use crate::leaving::Origins;
use crate::messages::Event;
use crate::messages::outbox::Outbox;
use crate::neighbors::reverse_path::ReversePaths;
use crate::outbound::{FLOWS_MAX, OutboundFlows};
use crate::rules::{Redelivery, Rule, RuleSet};

/// What a frame is, according to its headers.
#[derive(Clone, Copy)]
pub(crate) enum Read {
    /// A frame of a flow whose frames go to `entry`.
    Known { plain: PlainFlow, entry: FwpId },
    /// A frame of this flow.
    Flow { flow: FlowKey, lead: FlowLookup, plain: PlainFlow },
    /// A frame of this flow that begins or ends its TCP connection.
    TcpEvent { flow: FlowKey, lead: FlowLookup, milestone: TcpEvent },
    /// An ICMP error, and its own flow, which is not that of the packet that it quotes.
    IcmpError { flow: FlowKey, lead: FlowLookup },
    /// A fragment of a datagram.
    Fragment(Fragment),
    /// ARP, in this VLAN.
    Arp(Vlan),
    /// Router or neighbour discovery, in this VLAN.
    NeighborDiscovery(Vlan),
    /// The frame is dropped.
    Drop(DropReason),
}

impl Read {
    /// A placeholder, where there is no frame.
    pub(crate) const NOTHING: Self = Self::Arp(Vlan::UNTAGGED);

    /// A fragment of a datagram of this flow.
    pub(crate) fn piece_of(flow: FlowKey, lead: FlowLookup) -> Self {
        Self::Flow { flow, lead, plain: PlainFlow::NONE }
    }
}

/// What happens to a flow's frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Assignment {
    /// It goes to the instance that is entered by this FWP.
    To(FwpId),
    /// It waits for an instance of its key. `source` is where it comes from, if that counts.
    Wait { key: InstanceKey, source: Option<SourcePrefix> },
    /// It waits if frames of its key wait already, and is dropped otherwise: it is no reason for an instance, or comes from
    /// a source that has its part.
    Join { key: InstanceKey, source: Option<SourcePrefix>, otherwise: DropReason },
    /// It is dropped.
    Drop(DropReason),
}

pub(crate) struct Assigner {
    rules: Arc<RuleSet>,
    rules_version: u32,
    memo: RecentFlows,
    cache: FlowCache,
    instances: Instances,
    own_addresses: OwnAddresses,
    origins: Origins,
    outbound: OutboundFlows,
    reverse_paths: ReversePaths,
    /// By chain: whether the launcher was asked for an instance.
    wanted: Box<[bool]>,
    misses: Arc<ActivationClock>,
    /// How long idle instances want to live; `None` if that does not count.
    keep_alives: Option<Arc<KeepAlives>>,
    outbox: Outbox,
    /// Whether this poll may cause events.
    open: bool,
    /// How many instances have been bound.
    activations: u64,
    /// Since when the clients have waited that are looked up; `None` for since now.
    waiting_since_ns: Option<u64>,
}

impl Assigner {
    #[cfg(test)]
    pub(crate) fn new(flows_max: usize, instances_max: usize, outbox: Outbox) -> Self {
        Self::timed_by(ActivationClock::new(instances_max), flows_max, instances_max, 0, outbox)
    }

    pub(crate) fn timed_by(
        misses: ActivationClock,
        flows_max: usize,
        instances_max: usize,
        waiting_max: usize,
        outbox: Outbox,
    ) -> Self {
        Self {
            rules: Arc::default(),
            rules_version: 0,
            memo: RecentFlows::new(),
            cache: FlowCache::new(flows_max),
            instances: Instances::new(instances_max, waiting_max),
            own_addresses: OwnAddresses::default(),
            origins: Origins::new(2 * flows_max),
            outbound: OutboundFlows::new(flows_max.min(FLOWS_MAX), instances_max),
            reverse_paths: ReversePaths::default(),
            wanted: vec![false; CHAINS_MAX as usize].into(),
            misses: Arc::new(misses),
            keep_alives: None,
            outbox,
            open: true,
            activations: 0,
            waiting_since_ns: None,
        }
    }

    /// Returns since when clients have waited for the FWPs that they were given, and the clock for it.
    pub(crate) fn misses(&self) -> &Arc<ActivationClock> {
        &self.misses
    }

    /// Sets the addresses of the ports.
    pub(crate) fn set_own_addresses(&mut self, own_addresses: OwnAddresses) {
        self.own_addresses = own_addresses;
    }

    /// Sets a port's hardware address.
    pub(crate) fn set_station(&mut self, port: PortIndex, station: EthernetAddress) {
        self.own_addresses.set_station(port, station);
    }

    /// Drops packets whose sources are not reached as `reverse_paths` ask.
    pub(crate) fn ask_for_reverse_paths(&mut self, reverse_paths: ReversePaths) {
        self.reverse_paths = reverse_paths;
    }

    /// Makes the release of idle instances depend on `keep_alives`.
    pub(crate) fn keep_alive_by(&mut self, keep_alives: Arc<KeepAlives>) {
        self.keep_alives = Some(keep_alives);
    }

    /// Starts a poll and sends the held events. Call it in each poll, unless events are to be held longer and there is
    /// room for that. Returns how many events were sent.
    pub(crate) fn begin_poll(&mut self) -> usize {
        let sent = self.outbox.flush();
        self.open = self.outbox.is_clear();
        sent
    }

    /// Returns whether the events held, and those of this poll, can be held until the next one.
    pub(crate) fn can_keep_events(&self) -> bool {
        self.open && self.outbox.has_room_for_poll()
    }

    /// Forgets the memo. Call it when nothing was swept for longer than usual, so that the next frames are looked up
    /// and noted as seen.
    pub(crate) fn forget_notes(&mut self) {
        self.memo.forget();
    }

    /// Publishes which instances the next clients will get to `upcoming`, so that other threads can prefetch them.
    pub(crate) fn publish_upcoming_to(&mut self, upcoming: Arc<UpcomingInstances>) {
        self.instances.publish_upcoming_to(upcoming);
    }

    /// Publishes one more of the instances that follow the next one. Call it when idle.
    pub(crate) fn announce_later(&mut self) {
        self.instances.announce_later();
    }

    /// Returns whether there are events to send.
    pub(crate) fn has_events(&self) -> bool {
        !self.outbox.is_clear()
    }

    /// Returns whether this poll may cause events.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Returns how many instances have been bound since the start.
    #[inline(always)]
    pub(crate) fn activations(&self) -> u64 {
        self.activations
    }

    /// Sets since when new clients count as missed; `None` for the time of their lookup.
    pub(crate) fn set_arrival_time(&mut self, waiting_since_ns: Option<u64>) {
        self.waiting_since_ns = waiting_since_ns;
    }

    pub(crate) fn flows(&self) -> usize {
        self.cache.used()
    }

    pub(crate) fn bound(&self) -> usize {
        self.instances.bound_count()
    }

    pub(crate) fn ready(&self) -> usize {
        self.instances.ready_count()
    }

    /// Reads a frame that came in by `port`, whose hardware address is `station`, and prefetches the bucket of its
    /// flow. Writes what the frame is to `into`.
    ///
    /// Best called for all frames of a burst, then [`Assigner::fetch`] for all, then [`Assigner::assign`]. With a
    /// million flows, each step waits for memory; this way, the waits of several frames overlap.
    // Writes in place: a key that is copied, word by word, right after it was made would have to wait for the writes.
    #[inline(always)]
    pub(crate) fn read(&mut self, frame: &[u8], port: PortIndex, station: EthernetAddress, into: &mut Read) {
        match plain::read(frame, port, station) {
            Some(plain) => match self.memo.entry(plain) {
                Some(entry) => *into = Read::Known { plain, entry },
                None => *into = self.prefetch_upcoming(plain.key(), plain),
            },
            None => *into = self.read_other(frame, port, station),
        }
    }

    #[inline(never)]
    fn read_other(&mut self, frame: &[u8], port: PortIndex, station: EthernetAddress) -> Read {
        match headers::parse(frame, port, station) {
            Ok(Headers::Flow(flow, None)) => self.prefetch_upcoming(flow, PlainFlow::NONE),
            Ok(Headers::Flow(flow, Some(milestone))) => self.read_milestone(flow, milestone),
            Ok(Headers::IcmpError(flow)) => Read::IcmpError { flow, lead: self.lead(&flow) },
            Ok(Headers::Fragment(fragment)) => Read::Fragment(fragment),
            Ok(Headers::Arp(vlan)) => Read::Arp(vlan),
            Ok(Headers::NeighborDiscovery(vlan)) => Read::NeighborDiscovery(vlan),
            Err(reason) => Read::Drop(reason),
        }
    }

    fn read_milestone(&mut self, flow: FlowKey, milestone: TcpEvent) -> Read {
        // If this begins another flow, that flow gets another instance in `assign`. Frames behind it are read before
        // that.
        if milestone == TcpEvent::Opens
            && let Some(plain) = PlainFlow::of(&flow)
        {
            self.memo.forget_flow(plain);
        }
        Read::TcpEvent { flow, lead: self.lead(&flow), milestone }
    }

    /// Prefetches the bucket of a flow.
    #[inline(always)]
    pub(crate) fn lead(&self, flow: &FlowKey) -> FlowLookup {
        self.cache.lead(self.cache.hash(flow))
    }

    #[inline(always)]
    fn prefetch_upcoming(&self, flow: FlowKey, plain: PlainFlow) -> Read {
        Read::Flow { flow, lead: self.lead(&flow), plain }
    }

    /// Returns the reading as if the memo were empty: what the memo holds is valid for one poll only.
    pub(crate) fn long_way(&self, read: &Read) -> Read {
        match read {
            Read::Known { plain, .. } => self.prefetch_upcoming(plain.key(), *plain),
            other => *other,
        }
    }

    /// Prefetches the cache entry of the frame's flow.
    #[inline(always)]
    pub(crate) fn fetch(&self, read: &mut Read) {
        if let Read::Flow { lead, .. } | Read::TcpEvent { lead, .. } = read {
            self.cache.go_on(lead);
        }
    }

    /// Returns where a frame goes, or `None` if that is another function's to say: [`Assigner::assign_milestone`]'s,
    /// [`Assigner::assign_error`]'s or, for fragments, [`Assigner::assign_piece`]'s. `frame` is what was read.
    #[inline(always)]
    pub(crate) fn assign(&mut self, read: &Read, frame: &[u8], now_ns: u64) -> Option<Assignment> {
        match read {
            Read::Known { entry, .. } => Some(Assignment::To(*entry)),
            Read::Flow { flow, lead, plain } => {
                let assignment = self.assign_flow(*lead, flow, frame, now_ns);
                if let Assignment::To(entry) = assignment
                    && *plain != PlainFlow::NONE
                {
                    self.memo.note(*plain, entry);
                }
                Some(assignment)
            }
            Read::TcpEvent { .. }
            | Read::IcmpError { .. }
            | Read::Fragment(_)
            | Read::Arp(_)
            | Read::NeighborDiscovery(_)
            | Read::Drop(_) => None,
        }
    }

    /// Returns where a frame goes that begins or ends its flow's connection. This may release an instance, so frames
    /// staged for that instance must be handed over before.
    pub(crate) fn assign_milestone(
        &mut self,
        lead: FlowLookup,
        flow: &FlowKey,
        milestone: TcpEvent,
        frame: &[u8],
        now_ns: u64,
    ) -> Assignment {
        if milestone == TcpEvent::Opens
            && let Some(slot) = self.over_with(lead, flow, now_ns)
            && !self.make_way(slot)
        {
            return Assignment::Drop(DropReason::LauncherBusy);
        }
        let assignment = self.assign_flow(lead, flow, frame, now_ns);
        let Assignment::To(_) = assignment else { return assignment };
        // What its function asks others for is not its client's connection.
        if self.outbound.has_any() && self.outbound.note_far(flow, milestone, || headers::segment_in_frame(frame)) {
            return assignment;
        }
        let Some(slot) = self.serving(lead, flow, now_ns) else { return assignment };
        // The cache did not know the flow.
        if milestone == TcpEvent::Opens && self.instances.is_over(slot) {
            return match self.make_way(slot) {
                true => self.assign_flow(lead, flow, frame, now_ns),
                false => Assignment::Drop(DropReason::LauncherBusy),
            };
        }
        self.instances.note(slot, milestone, flow.ingress().port, now_ns);
        assignment
    }

    /// Releases an instance whose flow's connection is over, as another begins. Returns whether it was released.
    fn make_way(&mut self, slot: SlotRef) -> bool {
        if self.open {
            // Another client may have the ports now.
            self.memo.forget();
            let released = self.instances.release(slot.index);
            self.give_up(released);
        }
        self.open
    }

    /// Returns the instance that serves this flow as the cache knows it, if its connection is over: an opening segment begins
    /// another one.
    fn over_with(&mut self, lead: FlowLookup, flow: &FlowKey, now_ns: u64) -> Option<SlotRef> {
        if self.outbound.has_any() && self.outbound.bound_to(flow).is_some() {
            return None;
        }
        let found = self.cache.lookup(lead, flow, self.rules_version, now_ns).ok()?;
        let Verdict::Instance(slot) = found.verdict else { return None };
        (self.instances.chain(slot).is_some() && self.instances.is_over(slot)).then_some(slot)
    }

    /// Returns the instance that is bound to the sender of this flow.
    fn serving(&mut self, lead: FlowLookup, flow: &FlowKey, now_ns: u64) -> Option<SlotRef> {
        match self.cache.lookup(lead, flow, self.rules_version, now_ns).map(|found| found.verdict) {
            Ok(Verdict::Instance(slot)) => Some(slot),
            Ok(Verdict::Answers(_) | Verdict::Dropped(_)) => None,
            // The cache had no room for the flow.
            Err(_) => self.bound_to(&self.key(self.rule_for(flow).ok()?.0, flow)?),
        }
    }

    /// Returns where a fragment goes of a datagram of this flow.
    pub(crate) fn assign_piece(&mut self, flow: &FlowKey, frame: &[u8], now_ns: u64) -> Assignment {
        self.assign_flow(self.lead(flow), flow, frame, now_ns)
    }

    /// Tells the launcher that an instance was released.
    fn give_up(&mut self, Released { chain, instance, flow, for_its_prefix }: Released) {
        self.outbox.send(match flow {
            _ if for_its_prefix => Event::Unproven { chain, instance },
            FlowState::Open => Event::Idle { chain, instance },
            FlowState::Over => Event::FlowEnded { chain, instance },
        });
    }

    #[inline(always)]
    fn assign_flow(&mut self, lead: FlowLookup, flow: &FlowKey, frame: &[u8], now_ns: u64) -> Assignment {
        match self.cache.lookup(lead, flow, self.rules_version, now_ns) {
            Ok(Found { verdict: Verdict::Instance(slot), begins_period }) => {
                let Some(entry) = self.instances.entry(slot, flow.ingress().port, now_ns) else {
                    return self.assign_anew(Miss::Outdated, lead.hash, flow, frame, now_ns);
                };
                if self.instances.was_reset(slot) {
                    self.instances.go_on(slot, flow.ingress().port, now_ns);
                }
                if begins_period {
                    self.note_origins_again(slot, flow, now_ns);
                }
                Assignment::To(entry)
            }
            Ok(Found { verdict: Verdict::Dropped(reason), .. }) => Assignment::Drop(reason),
            Ok(Found { verdict: Verdict::Answers(slot), .. }) => {
                self.assign_answers(slot, lead.hash, flow, frame, now_ns)
            }
            Err(miss) => self.assign_anew(miss, lead.hash, flow, frame, now_ns),
        }
    }

    // Apart from `assign_flow`, so that the code for a hit stays small.
    #[inline(never)]
    fn assign_anew(&mut self, miss: Miss, hash: FlowHash, flow: &FlowKey, frame: &[u8], now_ns: u64) -> Assignment {
        if self.outbound.has_any()
            && let Some(assignment) = self.assign_outbound(hash, flow, now_ns)
        {
            return assignment;
        }
        let missed_ns = self.waiting_since_ns.unwrap_or_else(|| self.misses.now_ns());
        let key_of = |(rule, to): (&Rule, Destination)| Some((self.key(rule, flow)?, to));
        let applied = self.rule_for(flow).and_then(|applied| key_of(applied).ok_or(DropReason::ChainUnavailable));
        let (key, destination) = match applied {
            Ok(applied) => applied,
            Err(reason) => {
                self.cache.insert_missed(miss, hash, flow, Verdict::Dropped(reason), self.rules_version, now_ns);
                return Assignment::Drop(reason);
            }
        };
        self.note_origins(key.chain, flow, destination, now_ns);
        let of_key = self.instances.hash(&key);
        let slot = match self.instances.bound_to(&key, of_key) {
            Some(slot) => slot,
            None => {
                if self.is_stray(&key, hash, flow, frame) {
                    return Assignment::Join { key, source: None, otherwise: DropReason::NoConnection };
                }
                let source = SourcePrefix::of(flow, &key.client);
                if source.is_some_and(|source| !self.admits(key.chain, source)) {
                    return Assignment::Join { key, source, otherwise: DropReason::SourceLimit };
                }
                let Some(slot) = self.bind(&key, of_key, missed_ns, now_ns) else { return self.want(&key, source) };
                if source.is_some() {
                    let share = self.take_share(key.chain, source);
                    self.instances.charge(slot, share);
                }
                slot
            }
        };
        self.cache.insert_missed(miss, hash, flow, Verdict::Instance(slot), self.rules_version, now_ns);
        match self.instances.entry(slot, flow.ingress().port, now_ns) {
            Some(entry) => Assignment::To(entry),
            None => Assignment::Drop(DropReason::NoInstance),
        }
    }

    /// Notes that the addresses of a flow came in by this chain. That of a group is no sender's.
    #[inline(always)]
    fn note_origins(&mut self, chain: ChainIndex, flow: &FlowKey, destination: Destination, now_ns: u64) {
        let Some(owner) = self.rules.owner_of_origins(chain) else { return };
        match destination {
            Destination::Host => self.origins.note_flow(owner, flow, now_ns),
            Destination::Group => self.origins.note_source(owner, flow, now_ns),
        }
    }

    /// Does the same for a flow that goes on, as others may have pushed its addresses out.
    #[cold]
    #[inline(never)]
    fn note_origins_again(&mut self, slot: SlotRef, flow: &FlowKey, now_ns: u64) {
        if let (Some(chain), Ok(destination)) = (self.instances.chain(slot), self.own_addresses.judge(flow)) {
            self.note_origins(chain, flow, destination, now_ns);
        }
    }

    /// Returns whether a frame is no reason to give its client an instance: it ends a connection, or acknowledges without data in one that
    /// is not known. One that is known goes on, as its instance may have been replaced or have failed. What all clients share, strangers
    /// cannot multiply.
    #[inline]
    fn is_stray(&self, key: &InstanceKey, hash: FlowHash, flow: &FlowKey, frame: &[u8]) -> bool {
        key.client != ClientLabel::All
            && match worth_of(flow, frame) {
                Worth::Something => false,
                Worth::Acknowledges => !self.cache.had_instance(hash, flow),
                Worth::Ends => true,
            }
    }

    /// Returns where the message of a call goes that was made at `called_ns`. All calls of a chain share the instance
    /// that serves all clients. As fast as the fast path, if that instance exists.
    #[inline]
    pub(crate) fn assign_call(&mut self, function: FunctionRef, called_ns: u64, now_ns: u64) -> Assignment {
        if !self.rules.has(function) {
            return Assignment::Drop(DropReason::ChainUnavailable);
        }
        if let Some(entry) = self.instances.shared(function.chain, now_ns) {
            return Assignment::To(entry);
        }
        let key = InstanceKey { chain: function.chain, client: ClientLabel::All };
        match self.bind(&key, self.instances.hash(&key), called_ns, now_ns) {
            Some(slot) => Assignment::To(self.instances.entrance(slot).first),
            None => self.want(&key, None),
        }
    }

    /// Returns what becomes of calls of this chain whose instance ends before it answers.
    pub(crate) fn redelivery(&self, chain: ChainIndex) -> Redelivery {
        self.rules.redelivery(chain)
    }

    fn bound_to(&self, key: &InstanceKey) -> Option<SlotRef> {
        self.instances.bound_to(key, self.instances.hash(key))
    }

    /// Binds a ready instance of the key's chain, if there is one, and tells the launcher. The key has waited since
    /// `missed_ns`.
    fn bind(&mut self, key: &InstanceKey, hash: KeyHash, missed_ns: u64, now_ns: u64) -> Option<SlotRef> {
        if !self.open {
            return None;
        }
        let (slot, instance) = self.instances.bind(key, hash, self.rules.tenant(key.chain), now_ns)?;
        self.activations += 1;
        self.misses.note(self.instances.entrance(slot).first, missed_ns);
        self.outbox.send(Event::Taken { chain: key.chain, instance, client: key.client });
        Some(slot)
    }

    fn want(&mut self, key: &InstanceKey, source: Option<SourcePrefix>) -> Assignment {
        let wanted = &mut self.wanted[key.chain.0 as usize];
        if !*wanted {
            if !self.open {
                return Assignment::Drop(DropReason::LauncherBusy);
            }
            *wanted = true;
            self.outbox.send(Event::Wanted { chain: key.chain });
        }
        Assignment::Wait { key: *key, source }
    }

    /// Replaces the rules. Everything cached under the old ones is looked up again.
    pub(crate) fn set_rules(&mut self, rules: Arc<RuleSet>) {
        self.rules_version = self.rules_version.wrapping_add(1);
        self.memo.forget();
        self.origins.forget_latest();
        self.outbound.divide(rules.weights());
        let old = std::mem::replace(&mut self.rules, rules);
        // The launcher may have forgotten its requests, together with the chains that no longer exist.
        self.wanted.fill(false);
        self.outbox.send(Event::RulesReplaced { old });
    }

    /// Returns the rules in force, the addresses that came in by their chains, and whose the outbound flows are.
    #[inline]
    pub(crate) fn known_of_leaving(&mut self) -> (&RuleSet, &mut Origins, Claims<'_>) {
        let Self { rules, origins, outbound, own_addresses, .. } = self;
        (rules, origins, Claims { outbound, own_addresses })
    }

    /// Returns the tenant whose chain it is.
    pub(crate) fn tenant(&self, chain: ChainIndex) -> TenantIndex {
        self.rules.tenant(chain)
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod timing;
