//! Outbound flows: what answers them goes to the instance that has opened them, whatever the rules are.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use pinion_abi::FlowRefusal;
use pinion_mma::id::{PortIndex, Sender};

use super::addresses::OwnAddresses;
use super::{Assigner, Assignment};
use crate::drops::DropReason;
use crate::flows::cache::{Miss, Verdict};
use crate::flows::entry_fwp::EntryFwp;
use crate::flows::hash::FlowHash;
use crate::flows::instances::{Instances, SlotRef};
use crate::flows::{ClientLabel, InstanceKey};
use crate::headers::hosts::is_of_host;
use crate::headers::plain::PlainFlow;
use crate::headers::{self, FlowKey, Headers, Ingress, Vlan};
use crate::id::ChainIndex;
use crate::leaving::Leaving;
use crate::outbound::{Claim, NewFlow, OutboundFlows, Told};
use crate::rules::RuleSet;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Whose the outbound flows are.
pub(crate) struct Claims<'a> {
    pub(super) outbound: &'a mut OutboundFlows,
    pub(super) own_addresses: &'a OwnAddresses,
}

impl Claims<'_> {
    /// Returns whether a packet is of an outbound flow of its sender. Those that come from the node's own addresses are looked
    /// at: several tenants may send from these.
    ///
    /// # Errors
    /// Why it must not leave.
    #[inline(always)]
    pub(crate) fn is_of_flow(
        &mut self,
        packet: Leaving<'_>,
        by: (Sender, PortIndex),
        now_ns: u64,
    ) -> Result<bool, DropReason> {
        if self.outbound.has_any() { self.look_up(packet, by, now_ns) } else { Ok(false) }
    }

    #[inline(never)]
    fn look_up(
        &mut self,
        Leaving { vlan, ethertype, packet, source }: Leaving<'_>,
        (sender, port): (Sender, PortIndex),
        now_ns: u64,
    ) -> Result<bool, DropReason> {
        let ingress = Ingress { port, vlan };
        if !self.own_addresses.has(ingress, source) {
            return Ok(false);
        }
        let (flow, event, is_whole) = match headers::parse_packet(ethertype, packet, ingress) {
            Ok(Headers::Flow(flow, event)) => (flow, event, true),
            Ok(Headers::Fragment(fragment)) => (fragment.flow, None, false),
            Ok(_) | Err(DropReason::Redirect) => return Ok(false),
            // What cannot be read could be of any flow.
            Err(_) => return Err(DropReason::Malformed),
        };
        let segment = || is_whole.then(|| headers::segment_in_packet(ethertype, packet)).flatten();
        match self.outbound.claim(&flow.reversed(), sender, event, segment, now_ns) {
            Claim::Nobodys => Ok(false),
            // Only a datagram's first fragment says its flow: it is judged like the others, so that all leave or none.
            Claim::Own => Ok(is_whole),
            Claim::Ended => Err(DropReason::FlowClosed),
            Claim::Anothers => Err(DropReason::ForgedSource),
        }
    }
}

/// A flow that a function asks for.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) tag: u64,
    pub(crate) protocol: u8,
    pub(crate) to: IpAddr,
    pub(crate) port: u16,
    pub(crate) ingress: Ingress,
}

impl Assigner {
    #[cfg(test)]
    pub(crate) fn outbound_flows(&mut self) -> &mut OutboundFlows {
        &mut self.outbound
    }

    /// Returns the bound instance that has sent a frame.
    pub(crate) fn instance_of(&self, sender: Sender) -> Option<(SlotRef, EntryFwp)> {
        let slot = self.instances.bound_with(ChainIndex(sender.chain.into()), sender.instance)?;
        Some((slot, self.instances.entrance(slot)))
    }

    /// Opens a flow for an instance. `source_for` returns the node's address from which packets for an address leave. `tell` is
    /// as for [`Assigner::sweep_outbound`], if another tenant's flow has to end for it. Returns the flow's number, and the flow
    /// of its answers.
    ///
    /// # Errors
    /// Why it is not opened.
    pub(crate) fn open_flow(
        &mut self,
        (sender, slot): (Sender, SlotRef),
        wish: Wish,
        source_for: impl FnOnce(IpAddr) -> Option<IpAddr>,
        tell: impl FnMut(&Told, EntryFwp) -> bool,
        now_ns: u64,
    ) -> Result<(u64, FlowKey), FlowRefusal> {
        let Wish { tag, protocol, to, port, ingress } = wish;
        let is_of_one_host = is_of_one_host(to) && !self.own_addresses.is_of_network(ingress, to);
        if !is_of_one_host || port == 0 || ![TCP, UDP].contains(&protocol) {
            return Err(FlowRefusal::Invalid);
        }
        if !is_granted(&self.rules, sender, (protocol, to, port), ingress.vlan) {
            return Err(FlowRefusal::NotGranted);
        }
        let source = source_for(to).ok_or(FlowRefusal::NoRoute)?;
        if let Some(told) = self.outbound.end_for(sender.tenant, slot, now_ns) {
            self.tell_end(&told, now_ns, tell);
        }
        let rules_version = self.rules_version;
        let new = NewFlow { sender, slot, tag, protocol, source, to, port, ingress, rules_version };
        let ports = self.outbound.ports();
        let Self { outbound, rules, cache, instances, .. } = self;
        let is_anothers = |answers: &FlowKey| {
            let cached = cache.latest(cache.hash(answers), answers);
            let is_served =
                matches!(cached, Some(Verdict::Instance(it)) if it != slot && instances.chain(it).is_some());
            is_served || is_of_others_by_rule(rules, instances, (sender, slot), answers, &ports)
        };
        let (number, answers) = outbound.open(&new, now_ns, is_anothers)?;
        self.forget_flow(&answers);
        let hash = self.cache.hash(&answers);
        self.cache.insert(hash, &answers, Verdict::Answers(slot), rules_version, now_ns);
        Ok((number, answers))
    }

    /// Tells an instance that its flow has ended, and drops what still comes. Returns whether an instance was told.
    fn tell_end(&mut self, told: &Told, now_ns: u64, mut tell: impl FnMut(&Told, EntryFwp) -> bool) -> bool {
        self.drop_further(&told.answers, now_ns);
        let is_there = self.instances.chain(told.slot).is_some();
        let is_done = !is_there || tell(told, self.instances.entrance(told.slot));
        if is_done {
            self.outbound.was_told(told);
        }
        is_there && is_done
    }

    /// Undoes the opening of a flow that its instance could not be told of.
    pub(crate) fn forget_opened(&mut self, number: u64, answers: &FlowKey, now_ns: u64) {
        self.outbound.forget(number);
        self.drop_further(answers, now_ns);
    }

    /// Ends a flow of an instance, which asks for that.
    pub(crate) fn close_flow(&mut self, number: u64, sender: Sender, now_ns: u64) {
        if let Some(answers) = self.outbound.close(number, sender, now_ns) {
            self.drop_further(&answers, now_ns);
        }
    }

    /// Returns where a frame goes that answers a flow of this instance.
    #[inline(never)]
    pub(super) fn assign_answers(
        &mut self,
        slot: SlotRef,
        hash: FlowHash,
        flow: &FlowKey,
        frame: &[u8],
        now_ns: u64,
    ) -> Assignment {
        match self.instances.entry_of_answers(slot, flow.ingress().port, now_ns) {
            Some(entry) => Assignment::To(entry),
            None => self.assign_anew(Miss::Outdated, hash, flow, frame, now_ns),
        }
    }

    /// Returns where a frame goes that may be of an outbound flow; `None` if it is of none. That a flow has ended is not cached:
    /// it would be found there also when the flow's rest is over.
    #[inline(never)]
    pub(super) fn assign_outbound(&mut self, hash: FlowHash, flow: &FlowKey, now_ns: u64) -> Option<Assignment> {
        let found = self.outbound.bound_to(flow)?;
        let port = flow.ingress().port;
        let entry = found.ok().and_then(|slot| Some((slot, self.instances.entry_of_answers(slot, port, now_ns)?)));
        let (verdict, assignment) = match (self.judge_addresses(flow), entry) {
            (Err(reason), _) => (Verdict::Dropped(reason), Assignment::Drop(reason)),
            (Ok(_), Some((slot, entry))) => (Verdict::Answers(slot), Assignment::To(entry)),
            (Ok(_), None) => return Some(Assignment::Drop(DropReason::FlowClosed)),
        };
        self.cache.insert(hash, flow, verdict, self.rules_version, now_ns);
        Some(assignment)
    }

    /// Looks at so many flows. `tell` is given those that have ended and where their instance is entered, and returns
    /// whether it was told. Returns how many were told.
    pub(crate) fn sweep_outbound(
        &mut self,
        part: usize,
        now_ns: u64,
        mut tell: impl FnMut(&Told, EntryFwp) -> bool,
    ) -> usize {
        let mut told_count = 0;
        if !self.outbound.has_any() {
            return 0;
        }
        for _ in 0..self.outbound.places().div_ceil(part) {
            let Self { outbound, instances, rules, rules_version, .. } = self;
            let is_bound = |slot: SlotRef| instances.chain(slot).is_some();
            let is_granted = |sender, answers: &FlowKey| {
                let to = (answers.protocol(), answers.source(), answers.source_port());
                is_granted(rules, sender, to, answers.ingress().vlan)
            };
            let Some(told) = outbound.look_at_next(now_ns, *rules_version, is_bound, is_granted) else { continue };
            told_count += usize::from(self.tell_end(&told, now_ns, &mut tell));
        }
        told_count
    }

    /// Forgets where answers of a flow go that has ended: until its rest is over, they are dropped.
    fn drop_further(&mut self, answers: &FlowKey, now_ns: u64) {
        self.forget_flow(answers);
        let (hash, verdict) = (self.cache.hash(answers), Verdict::Dropped(DropReason::FlowClosed));
        // Outdated at once, so that each is looked up.
        self.cache.insert(hash, answers, verdict, self.rules_version.wrapping_sub(1), now_ns);
    }

    fn forget_flow(&mut self, answers: &FlowKey) {
        if let Some(plain) = PlainFlow::of(answers) {
            self.memo.forget_flow(plain);
        }
    }
}

fn is_of_one_host(address: IpAddr) -> bool {
    is_of_host(address) && !matches!(address, IpAddr::V6(it) if it.is_unicast_link_local())
}

/// Returns whether the rule that applies to a flow is of another chain than the sender's and names the port that the flow
/// goes to, or gives another instance this very flow. A rule that names all `ports` asks for none in particular: then only
/// what is in use already is another's.
fn is_of_others_by_rule(
    rules: &RuleSet,
    instances: &Instances,
    (sender, slot): (Sender, SlotRef),
    flow: &FlowKey,
    ports: &RangeInclusive<u16>,
) -> bool {
    let Some(rule) = rules.lookup(flow) else { return false };
    let names_all = |named: &RangeInclusive<u16>| named.start() <= ports.start() && ports.end() <= named.end();
    let names_port = rule.matches.destination_ports.as_ref().is_some_and(|named| !names_all(named));
    if names_port && rule.chain != Some(ChainIndex(sender.chain.into())) {
        return true;
    }
    let key = InstanceKey::new(rule, flow, rules.back(rule.chain));
    let of_flow = key.filter(|key| matches!(key.client, ClientLabel::Flow { .. }));
    of_flow.and_then(|key| instances.bound_to(&key, instances.hash(&key))).is_some_and(|bound| bound != slot)
}

/// Returns whether a sender may have a flow to this protocol, address and port in a VLAN.
fn is_granted(rules: &RuleSet, sender: Sender, (protocol, to, port): (u8, IpAddr, u16), vlan: Vlan) -> bool {
    let Some(terms) = rules.sender(sender) else { return false };
    let mut grants = terms.may_send.outbound.iter();
    terms.vlans.contains(&vlan) && grants.any(|grant| grant.admits(protocol, to, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::cache::FlowCache;
    use crate::id::{ChainGeneration, InstanceId};
    use crate::leaving::{MaySend, OutboundGrant};
    use crate::messages::outbox::Outbox;
    use crate::rules::{ChainSettings, Match, Policy, Redelivery, Rule};
    use pinion_mma::id::{FwpId, TenantIndex};
    use pinion_mma::ways::direction::PortSet;
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
    const INGRESS: Ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };

    /// An assigner of two chains that serve each flow apart: the first one flows to the far end's port 1, the second one all
    /// others.
    fn assigner() -> Assigner {
        let (events, _) = crossbeam_channel::bounded(64);
        let mut assigner = Assigner::new(64, 64, Outbox::new(events, 64));
        let grant = OutboundGrant { protocol: UDP, to: "0.0.0.0/0".parse().unwrap(), ports: 0..=u16::MAX };
        let chains = [0, 1].map(|chain| ChainSettings {
            chain: ChainIndex(chain),
            generation: ChainGeneration(0),
            idle_timeout_ns: 1,
            back: PortSet::EMPTY,
            tenant: TenantIndex(chain as u16),
            weight: 1,
            fwps: 1,
            redelivery: Redelivery::Never,
            may_send: MaySend { outbound: Arc::new([grant.clone()]), ..MaySend::default() },
        });
        let of_first = Match { source_ports: Some(1..=1), ..Match::default() };
        let rule =
            |matches, chain| Rule { matches, policy: Policy::PerFlow, chain: Some(ChainIndex(chain)), priority: 0 };
        let rules = vec![rule(of_first, 0), rule(Match::default(), 1)];
        assigner.set_rules(Arc::new(RuleSet::new(rules, &chains).unwrap()));
        for chain in 0..2 {
            let entry = FwpId { index: chain, generation: 0 };
            assert!(assigner.add_ready(ChainIndex(chain), InstanceId(chain.into()), entry.into()));
        }
        assigner
    }

    fn flow(from: u16, to: u16) -> FlowKey {
        FlowKey::ipv4(FAR, SOURCE, UDP, INGRESS).with_ports(from, to)
    }

    fn open(assigner: &mut Assigner) -> Result<u16, FlowRefusal> {
        let sender = Sender { tenant: TenantIndex(0), chain: 0, instance: 0 };
        let slot = assigner.instance_of(sender).unwrap().0;
        let wish = Wish { tag: 0, protocol: UDP, to: FAR.into(), port: 53, ingress: INGRESS };
        let opened = assigner.open_flow((sender, slot), wish, |_| Some(SOURCE.into()), |_, _| true, 0);
        opened.map(|(_, answers)| answers.destination_port())
    }

    #[test]
    fn a_flow_that_an_instance_serves_alone_is_not_taken_over_though_it_is_not_cached() {
        let mut assigner = assigner();
        for flow in [flow(1, 7), flow(53, 50_001)] {
            assert!(matches!(assigner.assign_piece(&flow, &[], 0), Assignment::To(_)));
        }
        assigner.cache = FlowCache::new(64);
        assigner.outbound.set_ports(50_000..=50_001);
        assert_eq!([open(&mut assigner), open(&mut assigner)], [Ok(50_000), Err(FlowRefusal::NoPort)]);
    }
}
