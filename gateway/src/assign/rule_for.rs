//! Which rule applies to a flow, and so which chain and which client its frames are of.

use super::addresses::Destination;
use super::{Assigner, Read};
use crate::drops::DropReason;
use crate::flows::InstanceKey;
use crate::flows::cache::{FlowLookup, Verdict};
use crate::headers::{FlowKey, Wanted};
use crate::id::ChainIndex;
use crate::rules::Rule;

impl Assigner {
    /// Returns the rule that applies to a flow, and whom its packets are for; or why its frames are dropped if there is
    /// none.
    pub(super) fn rule_for(&self, flow: &FlowKey) -> Result<(&Rule, Destination), DropReason> {
        let destination = self.judge_addresses(flow)?;
        let (group, error) = (destination == Destination::Group, flow.is_icmp_error());
        let rule = self.rules.lookup(&flow.wanted_by(Wanted { group, error }));
        rule.map(|rule| (rule, destination)).ok_or(match (group, error) {
            (true, _) => DropReason::GroupNotAsked,
            (_, true) => DropReason::ErrorWithoutFlow,
            _ => DropReason::NoRule,
        })
    }

    /// Returns whom a packet is for, if one that comes in there can have the addresses of this flow.
    ///
    /// # Errors
    /// Why it is dropped.
    #[inline]
    pub(crate) fn judge_addresses(&self, flow: &FlowKey) -> Result<Destination, DropReason> {
        let destination = self.own_addresses.judge(flow)?;
        match self.reverse_paths.admits(flow.ingress(), flow.source()) {
            true => Ok(destination),
            false => Err(DropReason::ReversePath),
        }
    }

    /// Returns the key of a flow that this rule matches; `None` while the rule's chain is unavailable.
    pub(super) fn key(&self, rule: &Rule, flow: &FlowKey) -> Option<InstanceKey> {
        InstanceKey::new(rule, flow, self.rules.back(rule.chain))
    }

    /// Returns the chain of a frame that is dropped. As cheap as [`Assigner::assign`].
    #[cold]
    pub(crate) fn chain_of(&mut self, read: &Read, frame: &[u8], now_ns: u64) -> Option<ChainIndex> {
        let (flow, lead) = match self.long_way(read) {
            Read::Flow { flow, lead, .. } | Read::TcpEvent { flow, lead, .. } => (flow, lead),
            Read::IcmpError { flow, .. } => return self.chain_of_error(&flow, frame),
            _ => return None,
        };
        self.chain_of_flow(&flow, lead, now_ns)
    }

    /// Returns the chain that frames of this flow go to.
    pub(crate) fn chain_of_flow(&mut self, flow: &FlowKey, lead: FlowLookup, now_ns: u64) -> Option<ChainIndex> {
        let bound = match self.cache.lookup(lead, flow, self.rules_version, now_ns).map(|found| found.verdict) {
            Ok(Verdict::Instance(slot) | Verdict::Answers(slot)) => self.instances.chain(slot),
            Ok(Verdict::Dropped(_)) => return None,
            Err(_) => None,
        };
        bound.or_else(|| self.rule_for(flow).ok().and_then(|(rule, _)| rule.chain))
    }
}
