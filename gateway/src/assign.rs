//! Decides which chain instance a flow goes to: memo, then flow cache, then rules, then bound instances, then ready ones.
//!
//! Owned by the gateway; knows neither ports nor buffers. [`Assigner::read`] and [`Assigner::assign`] are the fast path: they
//! allocate nothing, take no lock, call no kernel. A flow that others were of right before costs a look at the memo; else a hit
//! costs one keyed hash, one bucket and one entry of the cache, and one slot; a miss costs in addition a search through the
//! rules and two more hashes. That no rule matches a flow is cached, too. A segment with which a TCP connection begins or ends costs one
//! more look at the cache ([`Assigner::assign_milestone`]): it may have the flow's instance end, or another one take over.
//!
//! A frame whose key waits for an instance can't overtake those that wait already: a chain has ready instances only
//! while nobody waits for it, since [`Assigner::add_ready`] is followed by handing the instance to whoever waits.

use std::sync::Arc;

use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::next_up::NextUp;
use smoltcp::wire::EthernetAddress;

use crate::drops::DropReason;
use crate::flows::cache::{FlowCache, Lead, Verdict};
use crate::flows::entrance::Entrance;
use crate::flows::fragments::Fragments;
use crate::flows::hash::FlowHash;
use crate::flows::instances::{FlowState, Instances, KeyHash, Refused, Released, SlotRef};
use crate::flows::memo::Memo;
use crate::flows::{ClientLabel, InstanceKey};
use crate::headers::plain::{self, PlainFlow};
use crate::headers::{self, FlowKey, Headers, Milestone};
use crate::id::{CHAINS_MAX, ChainIndex, FunctionRef, InstanceId};
use crate::messages::Event;
use crate::misses::FlowMisses;
use crate::outbox::Outbox;
use crate::rules::{Rule, RuleSet};

/// A flow unseen for this long leaves the flow cache; should it go on, it is found again through the rules.
const FLOW_IDLE_NS: u64 = 60_000_000_000;
/// All of the flow cache is looked at for such flows once in this time.
const FLOW_SWEEP_PERIOD_NS: u64 = 15_000_000_000;
/// For so many flows one datagram in fragments may be under way.
const FLOWS_PER_FRAGMENTED: usize = 16;
const FRAGMENTED_MIN: usize = 64;

/// What a frame is, by its headers and those of fragments before it.
#[derive(Clone, Copy)]
pub(crate) enum Read {
    /// Of a flow whose frames go there.
    Known { plain: PlainFlow, entry: FwpId },
    /// Of this flow.
    Flow { flow: FlowKey, lead: Lead, plain: PlainFlow },
    /// Of this flow, and its TCP connection begins or ends.
    Milestone { flow: FlowKey, lead: Lead, milestone: Milestone },
    /// ARP.
    Arp,
    /// Router or neighbour discovery.
    NeighborDiscovery,
    /// It is dropped.
    Drop(DropReason),
}

impl Read {
    /// Of no frame.
    pub(crate) const NOTHING: Self = Self::Arp;
}

/// What is to be done with a flow's frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Assignment {
    /// It goes to the instance with this entry.
    To(FwpId),
    /// It waits for an instance.
    Wait(InstanceKey),
    /// It is dropped.
    Drop(DropReason),
}

pub(crate) struct Assigner {
    rules: Arc<RuleSet>,
    rules_version: u32,
    memo: Memo,
    cache: FlowCache,
    fragments: Fragments,
    instances: Instances,
    /// By chain: the launcher was told that an instance is wanted.
    wanted: Box<[bool]>,
    misses: Arc<FlowMisses>,
    outbox: Outbox,
    /// Whether this poll may cause events.
    open: bool,
    /// How many instances have been given.
    given: u64,
    /// Since when those wait who are looked up, if not since just now.
    waiting_since_ns: Option<u64>,
}

impl Assigner {
    #[cfg(test)]
    pub(crate) fn new(flows_max: usize, instances_max: usize, outbox: Outbox) -> Self {
        Self::timed_by(FlowMisses::new(instances_max), flows_max, instances_max, outbox)
    }

    pub(crate) fn timed_by(misses: FlowMisses, flows_max: usize, instances_max: usize, outbox: Outbox) -> Self {
        Self {
            rules: Arc::default(),
            rules_version: 0,
            memo: Memo::new(),
            cache: FlowCache::new(flows_max),
            fragments: Fragments::new((flows_max / FLOWS_PER_FRAGMENTED).max(FRAGMENTED_MIN)),
            instances: Instances::new(instances_max),
            wanted: vec![false; CHAINS_MAX as usize].into(),
            misses: Arc::new(misses),
            outbox,
            open: true,
            given: 0,
            waiting_since_ns: None,
        }
    }

    /// Since when clients wait for the FWPs that they are given, and the clock for it.
    pub(crate) fn misses(&self) -> &Arc<FlowMisses> {
        &self.misses
    }

    /// To be called at the start of each poll, unless what was kept is to be kept for longer, and can be: sends it. Returns how many events
    /// that were.
    pub(crate) fn begin_poll(&mut self) -> usize {
        let sent = self.outbox.flush();
        self.open = self.outbox.is_clear();
        sent
    }

    /// Whether what is kept, and what this poll causes, can be kept until the next one.
    pub(crate) fn can_keep_events(&self) -> bool {
        self.open && self.outbox.has_room_for_poll()
    }

    /// To be called when nothing was swept for longer than usual: what comes now is looked up, and noted as seen.
    pub(crate) fn forget_notes(&mut self) {
        self.memo.forget();
    }

    /// Has whoever looks there know which instances clients will be given next.
    pub(crate) fn announce_to(&mut self, next_up: Arc<NextUp>) {
        self.instances.announce_to(next_up);
    }

    /// To be called when there is nothing else to do: has those who look there know one more of the instances that come after the next.
    pub(crate) fn announce_later(&mut self) {
        self.instances.announce_later();
    }

    /// Whether there are events to be sent.
    pub(crate) fn has_events(&self) -> bool {
        !self.outbox.is_clear()
    }

    /// Whether this poll may cause events.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// How many instances have been given, since the start.
    #[inline(always)]
    pub(crate) fn given(&self) -> u64 {
        self.given
    }

    /// Has new clients counted as missed since then, or, with none, since they are looked up.
    pub(crate) fn count_from(&mut self, waiting_since_ns: Option<u64>) {
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

    /// Reads a frame that came in by `port`, whose hardware address is `station`, and fetches the bucket of its flow. Says
    /// in `into` what it is.
    ///
    /// Best done for all frames of a burst, then [`Assigner::fetch`] for all, then [`Assigner::assign`]: with a million
    /// flows each step would wait for memory, and so they wait for several at a time.
    // Into its place: a key copied right after it was made, word by word, would have to wait until it is written.
    #[inline(always)]
    pub(crate) fn read(
        &mut self,
        frame: &[u8],
        port: PortIndex,
        station: EthernetAddress,
        now_ns: u64,
        into: &mut Read,
    ) {
        match plain::read(frame, port, station) {
            Some(plain) => match self.memo.entry(plain) {
                Some(entry) => *into = Read::Known { plain, entry },
                None => *into = self.look_ahead(plain.key(), plain),
            },
            None => *into = self.read_other(frame, port, station, now_ns),
        }
    }

    #[inline(never)]
    fn read_other(&mut self, frame: &[u8], port: PortIndex, station: EthernetAddress, now_ns: u64) -> Read {
        match headers::parse(frame, port, station) {
            Ok(Headers::Flow(flow, None)) => self.look_ahead(flow, PlainFlow::NONE),
            Ok(Headers::Flow(flow, Some(milestone))) => self.read_milestone(flow, milestone),
            Ok(Headers::Fragment(fragment)) => match self.fragments.flow_of(&fragment, now_ns) {
                Ok(flow) => self.look_ahead(flow, PlainFlow::NONE),
                Err(reason) => Read::Drop(reason),
            },
            Ok(Headers::Arp) => Read::Arp,
            Ok(Headers::NeighborDiscovery) => Read::NeighborDiscovery,
            Err(reason) => Read::Drop(reason),
        }
    }

    fn read_milestone(&mut self, flow: FlowKey, milestone: Milestone) -> Read {
        // If this begins another flow, it gets another instance when its turn comes; frames behind it are read before that.
        if milestone == Milestone::Opens
            && let Some(plain) = PlainFlow::of(&flow)
        {
            self.memo.forget_flow(plain);
        }
        Read::Milestone { flow, lead: self.cache.lead(self.cache.hash(&flow)), milestone }
    }

    #[inline(always)]
    fn look_ahead(&self, flow: FlowKey, plain: PlainFlow) -> Read {
        let lead = self.cache.lead(self.cache.hash(&flow));
        Read::Flow { flow, lead, plain }
    }

    /// As if nothing had been noted: what is noted holds for a poll.
    pub(crate) fn long_way(&self, read: &Read) -> Read {
        match read {
            Read::Known { plain, .. } => self.look_ahead(plain.key(), *plain),
            other => *other,
        }
    }

    /// Fetches the entry of the frame's flow.
    #[inline(always)]
    pub(crate) fn fetch(&self, read: &mut Read) {
        if let Read::Flow { lead, .. } | Read::Milestone { lead, .. } = read {
            self.cache.go_on(lead);
        }
    }

    /// Where a frame goes that was read, if it is of a flow, and its connection goes on: else it is for
    /// [`Assigner::assign_milestone`].
    #[inline(always)]
    pub(crate) fn assign(&mut self, read: &Read, now_ns: u64) -> Option<Assignment> {
        match read {
            Read::Known { entry, .. } => Some(Assignment::To(*entry)),
            Read::Flow { flow, lead, plain } => {
                let assignment = self.assign_flow(*lead, flow, now_ns);
                if let Assignment::To(entry) = assignment
                    && *plain != PlainFlow::NONE
                {
                    self.memo.note(*plain, entry);
                }
                Some(assignment)
            }
            Read::Milestone { .. } | Read::Arp | Read::NeighborDiscovery | Read::Drop(_) => None,
        }
    }

    /// Where a frame goes with which its flow's connection begins or ends. An instance may be given up for it: what was staged for
    /// that one is to be handed over before.
    pub(crate) fn assign_milestone(
        &mut self,
        lead: Lead,
        flow: &FlowKey,
        milestone: Milestone,
        now_ns: u64,
    ) -> Assignment {
        let assignment = self.assign_flow(lead, flow, now_ns);
        let Assignment::To(_) = assignment else { return assignment };
        let Some(slot) = self.serving(lead, flow, now_ns) else { return assignment };
        if !self.instances.is_over_with(slot, milestone) {
            self.instances.note(slot, milestone, flow.ingress().port);
            return assignment;
        }
        if !self.open {
            return Assignment::Drop(DropReason::LauncherBusy);
        }
        // Whoever has the ports now may be another one than who had them before.
        self.memo.forget();
        let released = self.instances.release(slot.index);
        self.give_up(released);
        self.assign_flow(lead, flow, now_ns)
    }

    /// The instance bound to who sends this flow.
    fn serving(&mut self, lead: Lead, flow: &FlowKey, now_ns: u64) -> Option<SlotRef> {
        match self.cache.lookup(lead, flow, self.rules_version, now_ns) {
            Some(Verdict::Instance(slot)) => Some(slot),
            Some(Verdict::Dropped(_)) => None,
            // There was no room in the cache.
            None => self.bound_to(&self.key(self.rules.lookup(flow)?, flow)?),
        }
    }

    /// Which instance serves a flow that this rule matches; none while the rule's chain is not in force.
    fn key(&self, rule: &Rule, flow: &FlowKey) -> Option<InstanceKey> {
        InstanceKey::new(rule, flow, self.rules.back(rule.chain))
    }

    /// Tells the launcher of an instance that was let go of.
    fn give_up(&mut self, Released { chain, instance, flow }: Released) {
        self.outbox.send(match flow {
            FlowState::Open => Event::Idle { chain, instance },
            FlowState::Over => Event::FlowEnded { chain, instance },
        });
    }

    #[inline(always)]
    fn assign_flow(&mut self, lead: Lead, flow: &FlowKey, now_ns: u64) -> Assignment {
        match self.cache.lookup(lead, flow, self.rules_version, now_ns) {
            Some(Verdict::Instance(slot)) => match self.instances.entry(slot, flow.ingress().port, now_ns) {
                Some(entry) => Assignment::To(entry),
                None => self.assign_anew(lead.hash, flow, now_ns),
            },
            Some(Verdict::Dropped(reason)) => Assignment::Drop(reason),
            None => self.assign_anew(lead.hash, flow, now_ns),
        }
    }

    // Apart from `assign`, so that the hit stays small.
    #[inline(never)]
    fn assign_anew(&mut self, hash: FlowHash, flow: &FlowKey, now_ns: u64) -> Assignment {
        let missed_ns = self.waiting_since_ns.unwrap_or_else(|| self.misses.now_ns());
        let rule = self.rules.lookup(flow);
        let Some(key) = rule.and_then(|rule| self.key(rule, flow)) else {
            let reason = if rule.is_some() { DropReason::ChainNotInForce } else { DropReason::NoRule };
            self.cache.insert(hash, flow, Verdict::Dropped(reason), self.rules_version, now_ns);
            return Assignment::Drop(reason);
        };
        let of_key = self.instances.hash(&key);
        let bound = self.instances.bound_to(&key, of_key).or_else(|| self.bind(&key, of_key, missed_ns, now_ns));
        let Some(slot) = bound else {
            return self.want(&key);
        };
        self.cache.insert(hash, flow, Verdict::Instance(slot), self.rules_version, now_ns);
        match self.instances.entry(slot, flow.ingress().port, now_ns) {
            Some(entry) => Assignment::To(entry),
            None => Assignment::Drop(DropReason::NoInstance),
        }
    }

    /// Where the message of a call goes that was made at `called_ns`. All calls of a chain share an instance with all others that share
    /// one. As the fast path, if there is one.
    #[inline]
    pub(crate) fn assign_call(&mut self, function: FunctionRef, called_ns: u64, now_ns: u64) -> Assignment {
        if !self.rules.has(function) {
            return Assignment::Drop(DropReason::ChainNotInForce);
        }
        if let Some(entry) = self.instances.everybodys(function.chain, now_ns) {
            return Assignment::To(entry);
        }
        let key = InstanceKey { chain: function.chain, client: ClientLabel::Everybody };
        match self.bind(&key, self.instances.hash(&key), called_ns, now_ns) {
            Some(slot) => Assignment::To(self.instances.entrance(slot).first),
            None => self.want(&key),
        }
    }

    /// The chain that a frame is for which is dropped: as cheap as [`Assigner::assign`] is.
    #[cold]
    pub(crate) fn chain_of(&mut self, read: &Read, now_ns: u64) -> Option<ChainIndex> {
        let (flow, lead) = match self.long_way(read) {
            Read::Flow { flow, lead, .. } | Read::Milestone { flow, lead, .. } => (flow, lead),
            _ => return None,
        };
        let flow = &flow;
        let bound = match self.cache.lookup(lead, flow, self.rules_version, now_ns) {
            Some(Verdict::Instance(slot)) => self.instances.chain(slot),
            Some(Verdict::Dropped(_)) => return None,
            None => None,
        };
        bound.or_else(|| self.rules.lookup(flow).and_then(|rule| rule.chain))
    }

    fn bound_to(&self, key: &InstanceKey) -> Option<SlotRef> {
        self.instances.bound_to(key, self.instances.hash(key))
    }

    /// Gives the key, which waits since `missed_ns`, a ready instance of its chain, if there is one, and tells the launcher.
    fn bind(&mut self, key: &InstanceKey, hash: KeyHash, missed_ns: u64, now_ns: u64) -> Option<SlotRef> {
        if !self.open {
            return None;
        }
        let (slot, instance) = self.instances.bind(key, hash, now_ns)?;
        self.given += 1;
        self.misses.note(self.instances.entrance(slot).first, missed_ns);
        self.outbox.send(Event::Taken { chain: key.chain, instance, client: key.client });
        Some(slot)
    }

    fn want(&mut self, key: &InstanceKey) -> Assignment {
        let wanted = &mut self.wanted[key.chain.0 as usize];
        if !*wanted {
            if !self.open {
                return Assignment::Drop(DropReason::LauncherBusy);
            }
            *wanted = true;
            self.outbox.send(Event::Wanted { chain: key.chain });
        }
        Assignment::Wait(*key)
    }

    /// Other rules hold from now on. All that was cached under the old ones is looked up again.
    pub(crate) fn set_rules(&mut self, rules: Arc<RuleSet>) {
        self.rules_version = self.rules_version.wrapping_add(1);
        self.memo.forget();
        let old = std::mem::replace(&mut self.rules, rules);
        // The launcher may have forgotten what was wanted together with the chains that are gone.
        self.wanted.fill(false);
        self.outbox.send(Event::RulesReplaced { old });
    }

    /// Takes a ready instance in; returns whether it is there now.
    pub(crate) fn add_ready(&mut self, chain: ChainIndex, instance: InstanceId, entrance: Entrance) -> bool {
        let added = self.instances.add(chain, instance, entrance);
        if let Some(wanted) = self.wanted.get_mut(chain.0 as usize) {
            // Even if there was no room: else nobody would ask again once there is.
            *wanted = false;
        }
        match added {
            Ok(()) => true,
            Err(Refused::NoRoom) => {
                self.outbox.send(Event::Withdrawn { chain, instance });
                false
            }
            // A slip of the launcher's. Giving it back would end an instance that serves somebody.
            Err(Refused::Known) => false,
        }
    }

    /// Lets go of an instance that is ready still.
    pub(crate) fn reclaim(&mut self, instance: InstanceId) {
        if let Some(Released { chain, instance, .. }) = self.instances.reclaim(instance) {
            self.outbox.send(Event::Withdrawn { chain, instance });
        }
    }

    /// Binds a ready instance to a key that waits since `missed_ns`; returns how it is entered.
    pub(crate) fn bind_waiting(&mut self, key: &InstanceKey, missed_ns: u64, now_ns: u64) -> Option<Entrance> {
        let slot = self.bind(key, self.instances.hash(key), missed_ns, now_ns)?;
        Some(self.instances.entrance(slot))
    }

    /// Notes what frames that have waited say of the connection of whoever sent them, by this port.
    pub(crate) fn note_waited(&mut self, key: &InstanceKey, milestone: Milestone, port: PortIndex) {
        if let Some(slot) = self.bound_to(key) {
            self.instances.note(slot, milestone, port);
        }
    }

    /// Others wait for the chain still.
    pub(crate) fn want_more(&mut self, key: &InstanceKey) {
        self.want(key);
    }

    /// Forgets an instance; its chain, if it served everybody.
    pub(crate) fn unbind(&mut self, instance: InstanceId) -> Option<ChainIndex> {
        self.memo.forget();
        let was_everybodys = self.instances.serves_everybody(instance);
        let released = self.instances.unbind(instance);
        self.outbox.send(Event::Unbound { instance });
        released.filter(|_| was_everybodys).map(|released| released.chain)
    }

    /// Looks at a part of the tables, the greater the longer the last time is past, and gives up what is idle; returns
    /// how many instances that were.
    pub(crate) fn sweep(&mut self, now_ns: u64, share: SweepShare, idle_max: usize) -> usize {
        // What was seen since the last sweep is to be noted as seen at least once before the next.
        self.memo.forget();
        let slowly = SweepShare { period_ns: FLOW_SWEEP_PERIOD_NS, ..share };
        self.cache.sweep(slowly.of(self.cache.buckets()), now_ns, FLOW_IDLE_NS);
        self.fragments.sweep(slowly.of(self.fragments.buckets()), now_ns);
        if !self.open {
            return 0;
        }
        let (mut left, mut idle) = (share.of(self.instances.slots()), 0);
        while left > 0 && idle < idle_max {
            let (looked_at, released) = self.instances.sweep(left, now_ns, |chain| self.rules.idle_timeout_ns(chain));
            left -= looked_at;
            if let Some(released) = released {
                self.give_up(released);
                idle += 1;
            }
        }
        idle
    }
}

/// How much of a table to sweep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SweepShare {
    /// Time since the last sweep.
    pub(crate) elapsed_ns: u64,
    /// Time in which all of the table is to be swept.
    pub(crate) period_ns: u64,
    /// Places to be looked at in one sweep at most.
    pub(crate) places_max: usize,
}

impl SweepShare {
    fn of(self, places: usize) -> usize {
        let elapsed_ns = self.elapsed_ns.min(self.period_ns);
        let due = (places as u64 * elapsed_ns).div_ceil(self.period_ns) as usize;
        due.min(self.places_max).min(places)
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod timing;
