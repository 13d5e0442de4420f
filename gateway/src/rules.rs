//! Flow rules: which chain serves which traffic, and which clients share an instance of it.
//!
//! The launcher's side makes a [`RuleSet`], including the tree that finds rules (`classifier`). It never changes; the
//! gateway replaces it as a whole. The gateway consults it only on a miss of the flow cache. A lookup allocates nothing
//! and does not walk through all rules.

mod branch;
mod classifier;
mod pattern;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use pinion_mma::id::{PortIndex, Sender, TenantIndex};
use pinion_mma::ways::direction::PortSet;

use crate::headers::{FlowKey, Vlan};
use crate::id::{CHAINS_MAX, ChainGeneration, ChainIndex, FunctionRef};
use crate::leaving::{MaySend, Owner, SenderTerms};
use classifier::Classifier;

pub use branch::BranchConditions;

/// What a flow must look like. `None` matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The port that it comes in by.
    pub port: Option<PortIndex>,
    /// The VLAN that it belongs to. A rule always names one, because VLANs are separate on purpose.
    pub vlan: Vlan,
    /// The network that the sender's address lies in.
    pub source: Option<IpNet>,
    /// The network that the receiver's address lies in. Groups' and broadcast addresses match only if this is given, and
    /// is within multicast's range or one address.
    pub destination: Option<IpNet>,
    /// The IP protocol's number.
    pub protocol: Option<u8>,
    /// The ICMP message type. Only ICMP and ICMPv6 have one. Errors, as such, match only if this is given.
    pub icmp_type: Option<u8>,
    /// The sender's port. Port 0 stands for a protocol without ports.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The receiver's port. Port 0 stands for a protocol without ports.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

/// Which clients share a chain instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// All clients that the chain's rules of this policy match.
    Shared,
    /// One instance per source address in each VLAN.
    PerClient,
    /// One instance per addresses, protocol and ports in each VLAN.
    PerFlow,
}

/// Traffic, and the chain that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The traffic.
    pub matches: Match,
    /// Which clients share an instance.
    pub policy: Policy,
    /// The chain; `None` while it cannot be in force. Traffic that the rule matches is then dropped, because the next
    /// rule is not meant for it.
    pub chain: Option<ChainIndex>,
    /// If several rules match, the one with the highest priority applies; among equals, the first.
    pub priority: u32,
}

/// What the gateway needs to know of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSettings {
    /// The chain.
    pub chain: ChainIndex,
    /// The generation of the chain's index. Differs from that of every other chain that has had this index.
    pub generation: ChainGeneration,
    /// An instance is released when no frame came for it for this long. In nanoseconds.
    pub idle_timeout_ns: u64,
    /// Ports whose frames pass its stages backwards.
    pub back: PortSet,
    /// The tenant whose chain it is.
    pub tenant: TenantIndex,
    /// The tenant's weight, the same for all of its chains.
    pub weight: u32,
    /// FWPs of an instance.
    pub fwps: u32,
    /// What becomes of its calls whose instance ends before it answers.
    pub redelivery: Redelivery,
    /// What its frames may be when they leave.
    pub may_send: MaySend,
}

/// What becomes of calls of a chain whose instance ends before it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redelivery {
    /// They fail: the instance may have done what it was called for.
    #[default]
    Never,
    /// They are delivered again, to another instance: to be called more than once is the same as to be called once.
    Idempotent,
}

/// Why a set of rules cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleSetError {
    /// A chain's index is beyond the node's tables.
    #[error("chain index {0} is too high: a node has at most {CHAINS_MAX} chains, numbered from 0")]
    ChainOutOfRange(ChainIndex),
    /// A rule names a chain that was not given.
    #[error("rule {rule} (counted from 0) leads to chain {chain}, which is not among the chains given with the rules")]
    UnknownChain {
        /// The rule's position in the order given.
        rule: usize,
        /// The chain it names.
        chain: ChainIndex,
    },
}

/// All rules of a node, in the order in which they apply, and the settings of their chains.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    rules: Box<[Rule]>,
    classifier: Classifier,
    /// By chain; `None` for a chain that does not exist.
    idle_timeouts_ns: Box<[Option<u64>]>,
    /// By chain, as above.
    tenures: Box<[Option<ChainGeneration>]>,
    /// By chain: the ports whose frames pass the stages backwards.
    backs: Box<[PortSet]>,
    /// By chain: its tenant.
    tenants: Box<[TenantIndex]>,
    /// By chain: FWPs of an instance.
    fwps: Box<[u32]>,
    /// By chain: what becomes of its calls whose instance ends.
    redeliveries: Box<[Redelivery]>,
    /// By chain; `None` for a chain that does not exist.
    senders: Box<[Option<SenderTerms>]>,
    /// The tenants with chains, each once, and their weights.
    weights: Box<[(TenantIndex, u32)]>,
}

impl RuleSet {
    /// Sorts the rules and builds the tree that finds them.
    ///
    /// # Errors
    /// If a chain is out of range, or a rule names a chain that is not among `chains`.
    pub fn new(mut rules: Vec<Rule>, chains: &[ChainSettings]) -> Result<Self, RuleSetError> {
        let places = chains.iter().map(|settings| settings.chain.0 as usize + 1).max().unwrap_or(0);
        if let Some(settings) = chains.iter().find(|settings| settings.chain.0 >= CHAINS_MAX) {
            return Err(RuleSetError::ChainOutOfRange(settings.chain));
        }
        let mut idle_timeouts_ns = vec![None; places].into_boxed_slice();
        let mut tenures = vec![None; places].into_boxed_slice();
        let mut backs = vec![PortSet::EMPTY; places].into_boxed_slice();
        let mut tenants = vec![TenantIndex(0); places].into_boxed_slice();
        let mut fwps = vec![1; places].into_boxed_slice();
        let mut redeliveries = vec![Redelivery::Never; places].into_boxed_slice();
        let weights: BTreeMap<_, _> = chains.iter().map(|settings| (settings.tenant, settings.weight)).collect();
        for settings in chains {
            tenants[settings.chain.0 as usize] = settings.tenant;
            fwps[settings.chain.0 as usize] = settings.fwps;
            redeliveries[settings.chain.0 as usize] = settings.redelivery;
            backs[settings.chain.0 as usize] = settings.back;
            idle_timeouts_ns[settings.chain.0 as usize] = Some(settings.idle_timeout_ns);
            tenures[settings.chain.0 as usize] = Some(settings.generation);
        }
        let known = |chain: ChainIndex| idle_timeouts_ns.get(chain.0 as usize).is_some_and(Option::is_some);
        let unknown = |rule: &Rule| rule.chain.filter(|chain| !known(*chain));
        if let Some((rule, chain)) = rules.iter().map(unknown).enumerate().find_map(|(at, chain)| Some((at, chain?))) {
            return Err(RuleSetError::UnknownChain { rule, chain });
        }
        let senders = senders(&rules, chains, places);
        // Stable: rules of the same priority keep their order.
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.priority));
        let classifier = Classifier::new((0..).zip(rules.iter().map(|rule| &rule.matches)));
        let weights = weights.into_iter().collect();
        let rules = rules.into();
        Ok(Self { rules, classifier, idle_timeouts_ns, tenures, backs, tenants, fwps, redeliveries, senders, weights })
    }

    /// Returns the rule that applies to a flow. For flows to groups, and of ICMP errors, the flow says that it wants to be
    /// named (`FlowKey::wanted_by`).
    #[must_use]
    pub fn lookup(&self, flow: &FlowKey) -> Option<&Rule> {
        self.classifier.first_match(flow).map(|rank| &self.rules[rank])
    }

    /// Returns the ports whose frames pass the stages of a chain backwards.
    #[must_use]
    pub fn back(&self, chain: Option<ChainIndex>) -> PortSet {
        chain.and_then(|chain| self.backs.get(chain.0 as usize)).copied().unwrap_or(PortSet::EMPTY)
    }

    /// Returns the tenant whose chain it is.
    #[must_use]
    pub fn tenant(&self, chain: ChainIndex) -> TenantIndex {
        self.tenants.get(chain.0 as usize).copied().unwrap_or(TenantIndex(0))
    }

    /// Returns the number of FWPs of an instance of the chain.
    #[must_use]
    pub fn fwps(&self, chain: ChainIndex) -> u32 {
        self.fwps.get(chain.0 as usize).copied().unwrap_or(1)
    }

    /// Returns what becomes of calls of the chain whose instance ends before it answers.
    #[must_use]
    pub fn redelivery(&self, chain: ChainIndex) -> Redelivery {
        self.redeliveries.get(chain.0 as usize).copied().unwrap_or_default()
    }

    /// Returns what the chain that has sent a frame may send; `None` if it is not in force any more.
    #[inline]
    pub(crate) fn sender(&self, sender: Sender) -> Option<&SenderTerms> {
        let terms = self.senders.get(usize::from(sender.chain))?.as_ref()?;
        (terms.owner.tenant == sender.tenant).then_some(terms)
    }

    /// Returns by whom addresses are owned that come in by a chain; `None` if its frames may have any.
    #[inline]
    pub(crate) fn owner_of_origins(&self, chain: ChainIndex) -> Option<Owner> {
        let terms = self.senders.get(chain.0 as usize)?.as_ref()?;
        (!terms.may_send.transparent).then_some(terms.owner)
    }

    /// Returns the tenants with chains, each once, and their weights.
    #[must_use]
    pub fn weights(&self) -> &[(TenantIndex, u32)] {
        &self.weights
    }

    /// Returns how long an instance of the chain may go without a frame, in nanoseconds; `None` if the chain does not
    /// exist (any more).
    #[must_use]
    pub fn idle_timeout_ns(&self, chain: ChainIndex) -> Option<u64> {
        self.idle_timeouts_ns.get(chain.0 as usize).copied().flatten()
    }

    /// Returns whether the chain that a caller names exists, with the same generation.
    #[inline]
    #[must_use]
    pub fn has(&self, function: FunctionRef) -> bool {
        self.tenures.get(function.chain.0 as usize).copied().flatten() == Some(function.generation)
    }

    /// Returns the rules in the order in which they apply.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

/// Returns what each chain may send, by chain.
fn senders(rules: &[Rule], chains: &[ChainSettings], places: usize) -> Box<[Option<SenderTerms>]> {
    let mut vlans = vec![BTreeSet::new(); places];
    for rule in rules {
        if let Some(chain) = rule.chain {
            vlans[chain.0 as usize].insert(rule.matches.vlan);
        }
    }
    let mut senders = vec![None; places];
    for ChainSettings { chain, generation, tenant, may_send, .. } in chains {
        let of_rules = std::mem::take(&mut vlans[chain.0 as usize]);
        senders[chain.0 as usize] = Some(SenderTerms {
            owner: Owner { chain: *chain, generation: *generation, tenant: *tenant },
            may_send: may_send.clone(),
            vlans: of_rules.into_iter().collect(),
        });
    }
    senders.into()
}

#[cfg(test)]
pub(crate) mod tests;
