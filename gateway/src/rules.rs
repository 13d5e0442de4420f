//! Flow rules: which chain serves which traffic, and who shares an instance of it.
//!
//! A [`RuleSet`] is made by the launcher's side, with the tree by which rules are found (`classifier`), and never
//! changes; the gateway swaps the whole set. It is asked on a miss of the flow cache only. Looking rules up allocates
//! nothing and doesn't walk through all of them.

mod classifier;
mod pattern;

use std::ops::RangeInclusive;

use ipnet::IpNet;
use pinion_mma::heading::PortSet;
use pinion_mma::id::PortIndex;

use crate::headers::{FlowKey, Vlan};
use crate::id::{CHAINS_MAX, ChainIndex, FunctionRef, Tenure};
use classifier::Classifier;

/// What a flow must look like; `None` is anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The port it comes in by.
    pub port: Option<PortIndex>,
    /// The VLAN it belongs to, which is never left open: what is in a VLAN was kept apart on purpose.
    pub vlan: Vlan,
    /// Where the sender's address lies.
    pub source: Option<IpNet>,
    /// Where the receiver's address lies.
    pub destination: Option<IpNet>,
    /// The IP protocol's number.
    pub protocol: Option<u8>,
    /// The type of message, which only ICMP and ICMPv6 have.
    pub icmp_type: Option<u8>,
    /// The sender's port. Port 0 stands for having none.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The receiver's port. Port 0 stands for having none.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

/// Who shares a chain instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Everybody whom the chain's rules of this policy match.
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
    /// Who shares an instance.
    pub policy: Policy,
    /// The chain; none while it cannot be in force. What the rule matches is dropped then: the next rule was not meant for it.
    pub chain: Option<ChainIndex>,
    /// Of several rules that match, the one with the highest priority holds; of these, the first.
    pub priority: u32,
}

/// What the gateway must know of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainSettings {
    /// The chain.
    pub chain: ChainIndex,
    /// Unlike that of any other chain that has had this place.
    pub tenure: Tenure,
    /// An instance to which nothing came for this long is given up. In nanoseconds.
    pub idle_timeout_ns: u64,
    /// Ports whose frames pass its stages backwards.
    pub back: PortSet,
}

/// Why a set of rules can't be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleSetError {
    /// A chain has no place in the node's tables.
    #[error("chain {0} has no place: a node has at most {CHAINS_MAX} chains, counted from 0")]
    ChainOutOfRange(ChainIndex),
    /// A rule leads nowhere.
    #[error("rule {rule} (counted from 0) leads to chain {chain}, which is not among the chains given with the rules")]
    UnknownChain {
        /// The rule's place in the order given.
        rule: usize,
        /// The chain it names.
        chain: ChainIndex,
    },
}

/// All rules of a node, in the order in which they are asked, and the settings of their chains.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    rules: Box<[Rule]>,
    classifier: Classifier,
    /// By chain; `None` for a chain that isn't there.
    idle_timeouts_ns: Box<[Option<u64>]>,
    /// Likewise.
    tenures: Box<[Option<Tenure>]>,
    /// Likewise, the ports whose frames go back.
    backs: Box<[PortSet]>,
}

impl RuleSet {
    /// Puts rules in order and makes what finds them, which takes some 30 ms for 10,000 rules.
    ///
    /// # Errors
    /// If a chain is out of range or a rule names a chain that isn't among `chains`.
    pub fn new(mut rules: Vec<Rule>, chains: &[ChainSettings]) -> Result<Self, RuleSetError> {
        let places = chains.iter().map(|settings| settings.chain.0 as usize + 1).max().unwrap_or(0);
        if let Some(settings) = chains.iter().find(|settings| settings.chain.0 >= CHAINS_MAX) {
            return Err(RuleSetError::ChainOutOfRange(settings.chain));
        }
        let mut idle_timeouts_ns = vec![None; places].into_boxed_slice();
        let mut tenures = vec![None; places].into_boxed_slice();
        let mut backs = vec![PortSet::EMPTY; places].into_boxed_slice();
        for settings in chains {
            backs[settings.chain.0 as usize] = settings.back;
            idle_timeouts_ns[settings.chain.0 as usize] = Some(settings.idle_timeout_ns);
            tenures[settings.chain.0 as usize] = Some(settings.tenure);
        }
        let known = |chain: ChainIndex| idle_timeouts_ns.get(chain.0 as usize).is_some_and(Option::is_some);
        let unknown = |rule: &Rule| rule.chain.filter(|chain| !known(*chain));
        if let Some((rule, chain)) = rules.iter().map(unknown).enumerate().find_map(|(at, chain)| Some((at, chain?))) {
            return Err(RuleSetError::UnknownChain { rule, chain });
        }
        // Stable: rules of the same priority keep their order.
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.priority));
        let classifier = Classifier::new(rules.iter().map(|rule| &rule.matches));
        Ok(Self { rules: rules.into(), classifier, idle_timeouts_ns, tenures, backs })
    }

    /// The rule that holds for a flow.
    #[must_use]
    pub fn lookup(&self, flow: &FlowKey) -> Option<&Rule> {
        self.classifier.first_match(flow).map(|rank| &self.rules[rank])
    }

    /// Ports whose frames pass the stages of a chain backwards.
    #[must_use]
    pub fn back(&self, chain: Option<ChainIndex>) -> PortSet {
        chain.and_then(|chain| self.backs.get(chain.0 as usize)).copied().unwrap_or(PortSet::EMPTY)
    }

    /// How long an instance of the chain may see nothing; `None` if there is no such chain (any more).
    #[must_use]
    pub fn idle_timeout_ns(&self, chain: ChainIndex) -> Option<u64> {
        self.idle_timeouts_ns.get(chain.0 as usize).copied().flatten()
    }

    /// Whether the chain is there that somebody wants to invoke.
    #[inline]
    #[must_use]
    pub fn has(&self, function: FunctionRef) -> bool {
        self.tenures.get(function.chain.0 as usize).copied().flatten() == Some(function.tenure)
    }

    /// The rules in the order in which they are asked.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

#[cfg(test)]
pub(crate) mod tests;
