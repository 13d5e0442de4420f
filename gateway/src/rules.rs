//! Flow rules: which chain serves which traffic, and who shares an instance of it.
//!
//! A [`RuleSet`] is made by the launcher's side and never changes; the gateway swaps the whole set. It is asked on a
//! miss of the flow cache only, so [`RuleSet::lookup`] walks the rules in order: a hundred rules cost about as much as
//! a copied packet. Looking rules up allocates nothing.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use pinion_mma::id::PortIndex;

use crate::headers::FlowKey;
use crate::id::{CHAINS_MAX, ChainIndex};

/// What a flow must look like; `None` is anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The port it comes in by.
    pub port: Option<PortIndex>,
    /// Where the sender's address lies.
    pub source: Option<IpNet>,
    /// Where the receiver's address lies.
    pub destination: Option<IpNet>,
    /// The IP protocol's number.
    pub protocol: Option<u8>,
    /// The sender's port. Port 0 stands for having none.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The receiver's port. Port 0 stands for having none.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

impl Match {
    /// Whether the flow looks like this.
    #[must_use]
    pub fn covers(&self, flow: &FlowKey) -> bool {
        self.port.is_none_or(|port| port == flow.ingress)
            && self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && self.destination.is_none_or(|net| lies_in(flow.destination, &net))
            && self.source.is_none_or(|net| lies_in(flow.source, &net))
            && self.destination_ports.as_ref().is_none_or(|ports| ports.contains(&flow.destination_port))
            && self.source_ports.as_ref().is_none_or(|ports| ports.contains(&flow.source_port))
    }
}

fn lies_in(address: IpAddr, net: &IpNet) -> bool {
    net.contains(&address)
}

/// Who shares a chain instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Everybody whom the chain's rules of this policy match.
    Shared,
    /// One instance per source address.
    PerClient,
    /// One instance per addresses, protocol and ports.
    PerFlow,
}

/// Traffic, and the chain that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The traffic.
    pub matches: Match,
    /// Who shares an instance.
    pub policy: Policy,
    /// The chain.
    pub chain: ChainIndex,
    /// Of several rules that match, the one with the highest priority holds; of these, the first.
    pub priority: u32,
}

/// What the gateway must know of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainSettings {
    /// The chain.
    pub chain: ChainIndex,
    /// An instance to which nothing came for this long is given up. In nanoseconds.
    pub idle_timeout_ns: u64,
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
    /// By chain; `None` for a chain that isn't there.
    idle_timeouts_ns: Box<[Option<u64>]>,
}

impl RuleSet {
    /// Puts rules in order.
    ///
    /// # Errors
    /// If a chain is out of range or a rule names a chain that isn't among `chains`.
    pub fn new(mut rules: Vec<Rule>, chains: &[ChainSettings]) -> Result<Self, RuleSetError> {
        let places = chains.iter().map(|settings| settings.chain.0 as usize + 1).max().unwrap_or(0);
        if let Some(settings) = chains.iter().find(|settings| settings.chain.0 >= CHAINS_MAX) {
            return Err(RuleSetError::ChainOutOfRange(settings.chain));
        }
        let mut idle_timeouts_ns = vec![None; places].into_boxed_slice();
        for settings in chains {
            idle_timeouts_ns[settings.chain.0 as usize] = Some(settings.idle_timeout_ns);
        }
        let known = |chain: ChainIndex| idle_timeouts_ns.get(chain.0 as usize).is_some_and(Option::is_some);
        if let Some((rule, unknown)) = rules.iter().enumerate().find(|(_, rule)| !known(rule.chain)) {
            return Err(RuleSetError::UnknownChain { rule, chain: unknown.chain });
        }
        // Stable: rules of the same priority keep their order.
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.priority));
        Ok(Self { rules: rules.into(), idle_timeouts_ns })
    }

    /// The rule that holds for a flow. Walks the rules: for misses of the flow cache only.
    #[must_use]
    pub fn lookup(&self, flow: &FlowKey) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.matches.covers(flow))
    }

    /// How long an instance of the chain may see nothing; `None` if there is no such chain (any more).
    #[must_use]
    pub fn idle_timeout_ns(&self, chain: ChainIndex) -> Option<u64> {
        self.idle_timeouts_ns.get(chain.0 as usize).copied().flatten()
    }

    /// The rules in the order in which they are asked.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipnet::{Ipv4Net, Ipv6Net};
    use proptest::option;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn rule(priority: u32, chain: u32, matches: Match) -> Rule {
        Rule { matches, policy: Policy::Shared, chain: ChainIndex(chain), priority }
    }

    fn chains(count: u32) -> Vec<ChainSettings> {
        (0..count).map(|chain| ChainSettings { chain: ChainIndex(chain), idle_timeout_ns: u64::from(chain) }).collect()
    }

    // Few values, so that rules and flows meet often.
    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            (0_u8..2, 0_u8..4).prop_map(|(c, d)| IpAddr::V4(Ipv4Addr::new(10, 0, c, d))),
            (0_u16..2, 0_u16..4).prop_map(|(g, h)| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, g, h))),
        ]
    }

    fn net() -> impl Strategy<Value = IpNet> {
        (address(), 0_usize..4).prop_map(|(address, kind)| match address {
            IpAddr::V4(v4) => Ipv4Net::new(v4, [0, 24, 31, 32][kind]).unwrap().into(),
            IpAddr::V6(v6) => Ipv6Net::new(v6, [0, 112, 127, 128][kind]).unwrap().into(),
        })
    }

    fn flow() -> impl Strategy<Value = FlowKey> {
        (address(), address(), 0_u8..3, 0_u16..4, 0_u16..4, 0_u16..2).prop_map(
            |(source, destination, protocol, source_port, destination_port, ingress)| FlowKey {
                source,
                destination,
                protocol,
                source_port,
                destination_port,
                ingress: PortIndex(ingress),
            },
        )
    }

    fn ports() -> impl Strategy<Value = Option<RangeInclusive<u16>>> {
        option::of((0_u16..4, 0_u16..4).prop_map(|(a, b)| a.min(b)..=a.max(b)))
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let parts = (option::of(0_u16..2), option::of(net()), option::of(net()), option::of(0_u8..3), ports(), ports());
        (parts, 0_u32..4, 0_u32..4).prop_map(
            |((port, source, destination, protocol, source_ports, destination_ports), priority, chain)| {
                let port = port.map(PortIndex);
                rule(priority, chain, Match { port, source, destination, protocol, source_ports, destination_ports })
            },
        )
    }

    fn bits(address: IpAddr) -> (u32, u128) {
        match address {
            IpAddr::V4(v4) => (32, u128::from(u32::from(v4))),
            IpAddr::V6(v6) => (128, u128::from(v6)),
        }
    }

    fn naively_in(address: IpAddr, net: IpNet) -> bool {
        let ((width, address), (net_width, base)) = (bits(address), bits(net.addr()));
        let host_bits = net_width - u32::from(net.prefix_len());
        width == net_width && (host_bits == 128 || address >> host_bits == base >> host_bits)
    }

    /// The best so far wins unless a later one has a strictly higher priority.
    fn naive_lookup<'a>(rules: &'a [Rule], flow: &FlowKey) -> Option<&'a Rule> {
        let mut best: Option<&Rule> = None;
        for rule in rules {
            let m = &rule.matches;
            let mut fits = true;
            fits &= m.port.is_none() || m.port == Some(flow.ingress);
            fits &= m.protocol.is_none() || m.protocol == Some(flow.protocol);
            fits &= m.source.is_none() || naively_in(flow.source, m.source.unwrap());
            fits &= m.destination.is_none() || naively_in(flow.destination, m.destination.unwrap());
            for (range, port) in [(&m.source_ports, flow.source_port), (&m.destination_ports, flow.destination_port)] {
                fits &= range.as_ref().is_none_or(|range| *range.start() <= port && port <= *range.end());
            }
            if fits && best.is_none_or(|best| rule.priority > best.priority) {
                best = Some(rule);
            }
        }
        best
    }

    proptest! {
        #[test]
        fn a_rule_set_finds_what_a_naive_search_finds(
            rules in proptest::collection::vec(any_rule(), 0..12),
            flows in proptest::collection::vec(flow(), 1..20),
        ) {
            let set = RuleSet::new(rules.clone(), &chains(4)).unwrap();
            for flow in flows {
                prop_assert_eq!(set.lookup(&flow), naive_lookup(&rules, &flow));
            }
        }
    }

    #[test]
    fn of_two_rules_alike_in_priority_the_first_holds() {
        let rules = vec![rule(1, 0, Match::default()), rule(2, 1, Match::default()), rule(2, 2, Match::default())];
        let set = RuleSet::new(rules, &chains(3)).unwrap();
        let flow = FlowKey {
            source: IpAddr::V4(Ipv4Addr::LOCALHOST),
            destination: IpAddr::V4(Ipv4Addr::LOCALHOST),
            protocol: 1,
            source_port: 0,
            destination_port: 0,
            ingress: PortIndex(0),
        };
        assert_eq!(set.lookup(&flow).unwrap().chain, ChainIndex(1));
    }

    #[test]
    fn rules_to_chains_that_are_not_there_are_refused_by_name() {
        let leads_nowhere = RuleSet::new(vec![rule(0, 0, Match::default()), rule(0, 3, Match::default())], &chains(3));
        assert_eq!(leads_nowhere, Err(RuleSetError::UnknownChain { rule: 1, chain: ChainIndex(3) }));
        let settings = ChainSettings { chain: ChainIndex(CHAINS_MAX), idle_timeout_ns: 1 };
        assert_eq!(RuleSet::new(vec![], &[settings]), Err(RuleSetError::ChainOutOfRange(ChainIndex(CHAINS_MAX))));
    }

    #[test]
    fn a_chain_that_is_not_in_the_set_has_no_idle_timeout() {
        let set = RuleSet::new(vec![], &chains(2)).unwrap();
        let timeouts = [0, 1, 2].map(|chain| set.idle_timeout_ns(ChainIndex(chain)));
        assert_eq!(timeouts, [Some(0), Some(1), None]);
    }
}
