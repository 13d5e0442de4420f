//! Tests of [`super`] against a naive search that shares no code with it.

use super::*;
use crate::headers::{Ingress, Wanted};
use ipnet::{Ipv4Net, Ipv6Net};
use proptest::option;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) fn rule(priority: u32, chain: u32, matches: Match) -> Rule {
    Rule { matches, policy: Policy::Shared, chain: Some(ChainIndex(chain)), priority }
}

pub(crate) fn chains(count: u32) -> Vec<ChainSettings> {
    (0..count)
        .map(|chain| ChainSettings {
            chain: ChainIndex(chain),
            generation: ChainGeneration::default(),
            idle_timeout_ns: u64::from(chain),
            back: PortSet::EMPTY,
            tenant: TenantIndex(0),
            weight: 1,
            fwps: 1,
            redelivery: Redelivery::Never,
            may_send: crate::leaving::MaySend::default(),
        })
        .collect()
}

// Few values, so that rules and flows often match.
fn ipv4() -> impl Strategy<Value = Ipv4Addr> {
    (0_u8..2, 0_u8..4).prop_map(|(c, d)| Ipv4Addr::new(10, 0, c, d))
}

fn ipv6() -> impl Strategy<Value = Ipv6Addr> {
    // Some have the same bits as an IPv4 address.
    (prop_oneof![Just(0), Just(0xfd00_u16)], 0_u16..2, 0_u16..4)
        .prop_map(|(a, g, h)| Ipv6Addr::new(a, 0, 0, 0, 0, 0, 0x0a00, (g << 8) | h))
}

fn net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (ipv4(), 0_usize..4).prop_map(|(v4, kind)| Ipv4Net::new(v4, [0, 24, 31, 32][kind]).unwrap().into()),
        (ipv6(), 0_usize..4).prop_map(|(v6, kind)| Ipv6Net::new(v6, [0, 112, 127, 128][kind]).unwrap().into()),
    ]
}

fn vlan() -> impl Strategy<Value = Vlan> {
    prop_oneof![3 => Just((0, 0)), 2 => (1_u16..3, Just(0)), 1 => (0_u16..3, 1_u16..3)]
        .prop_map(|(id, inner_id)| Vlan { id, inner_id })
}

/// ICMP, TCP, UDP, ICMPv6 and an unassigned protocol.
fn protocol() -> impl Strategy<Value = u8> {
    prop::sample::select(vec![1_u8, 6, 17, 58, 99])
}

pub(crate) fn flow() -> impl Strategy<Value = FlowKey> {
    let ingress = (0_u16..2, vlan()).prop_map(|(port, vlan)| Ingress { port: PortIndex(port), vlan });
    let key = (ipv4(), ipv4(), ipv6(), ipv6(), any::<bool>(), protocol(), ingress).prop_map(
        |(source, destination, source_v6, destination_v6, is_v6, protocol, ingress)| {
            if is_v6 {
                FlowKey::ipv6(source_v6, destination_v6, protocol, ingress)
            } else {
                FlowKey::ipv4(source, destination, protocol, ingress)
            }
        },
    );
    // No types of errors.
    (key, 0_u16..4, 0_u16..4, 128_u8..131).prop_map(|(key, source_port, destination_port, icmp_type)| {
        match (key.protocol(), key.source()) {
            (6 | 17, _) => key.with_ports(source_port, destination_port),
            (1, IpAddr::V4(_)) | (58, IpAddr::V6(_)) => key.with_icmp_type(icmp_type),
            _ => key,
        }
    })
}

fn ports() -> impl Strategy<Value = Option<RangeInclusive<u16>>> {
    option::of((0_u16..4, 0_u16..4).prop_map(|(a, b)| a.min(b)..=a.max(b)))
}

pub(crate) fn matches() -> impl Strategy<Value = Match> {
    let addresses = (option::of(net()), option::of(net()));
    let kind = (option::of(protocol()), option::weighted(0.2, 128_u8..131), ports(), ports());
    (option::of(0_u16..2), vlan(), addresses, kind).prop_map(
        |(port, vlan, (source, destination), (protocol, icmp_type, source_ports, destination_ports))| Match {
            port: port.map(PortIndex),
            vlan,
            source,
            destination,
            protocol,
            icmp_type,
            source_ports,
            destination_ports,
        },
    )
}

pub(crate) fn any_rule() -> impl Strategy<Value = Rule> {
    // One of five has no chain in force.
    (matches(), 0_u32..4, 0_u32..5).prop_map(|(matches, priority, chain)| Rule {
        chain: (chain < 4).then_some(ChainIndex(chain)),
        ..rule(priority, 0, matches)
    })
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

pub(crate) fn naively_fits(m: &Match, flow: &FlowKey) -> bool {
    let mut fits = m.vlan == flow.ingress().vlan;
    fits &= m.port.is_none() || m.port == Some(flow.ingress().port);
    fits &= m.protocol.is_none() || m.protocol == Some(flow.protocol());
    fits &= m.icmp_type.is_none() || m.icmp_type == flow.icmp_type();
    fits &= m.source.is_none() || naively_in(flow.source(), m.source.unwrap());
    fits &= m.destination.is_none() || naively_in(flow.destination(), m.destination.unwrap());
    for (range, port) in [(&m.source_ports, flow.source_port()), (&m.destination_ports, flow.destination_port())] {
        fits &= range.as_ref().is_none_or(|range| *range.start() <= port && port <= *range.end());
    }
    fits
}

/// The best so far wins unless a later one has a strictly higher priority.
pub(crate) fn naive_lookup<'a>(rules: &'a [Rule], flow: &FlowKey) -> Option<&'a Rule> {
    let mut best: Option<&Rule> = None;
    for rule in rules {
        if naively_fits(&rule.matches, flow) && best.is_none_or(|best| rule.priority > best.priority) {
            best = Some(rule);
        }
    }
    best
}

proptest! {
    #[test]
    fn a_rule_set_finds_what_a_naive_search_finds(
        rules in proptest::collection::vec(any_rule(), 0..200),
        flows in proptest::collection::vec(flow(), 1..40),
    ) {
        let set = RuleSet::new(rules.clone(), &chains(4)).unwrap();
        for flow in flows {
            prop_assert_eq!(set.lookup(&flow), naive_lookup(&rules, &flow));
        }
    }
}

fn searched(set: &RuleSet, flow: FlowKey, wanted: Wanted) -> Option<ChainIndex> {
    set.lookup(&flow.wanted_by(wanted)).and_then(|rule| rule.chain)
}

#[test]
fn groups_match_rules_only_that_name_them_as_destination() {
    let ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };
    let (to_v4, to_v6) = (
        |to: &str| FlowKey::ipv4([10, 0, 0, 1].into(), to.parse().unwrap(), 17, ingress),
        |to: &str| FlowKey::ipv6(Ipv6Addr::LOCALHOST, to.parse().unwrap(), 17, ingress),
    );
    let named =
        ["224.0.0.0/4", "239.255.255.250/32", "255.255.255.255/32", "10.0.0.255/32", "ff00::/8", "ff02::1:2/128"];
    let wide = ["0.0.0.0/0", "128.0.0.0/1", "224.0.0.0/3", "10.0.0.0/24", "255.255.255.254/31", "::/0", "f000::/4"];
    let to_net = |chain: usize, net: &str| {
        let matches = Match { destination: Some(net.parse().unwrap()), ..Match::default() };
        // The wide ones come first.
        rule(wide.contains(&net).into(), chain as u32, matches)
    };
    let everything = rule(9, 99, Match { protocol: Some(17), ..Match::default() });
    let mut rules: Vec<Rule> = named.iter().chain(&wide).enumerate().map(|(chain, net)| to_net(chain, net)).collect();
    rules.push(everything);
    let set = RuleSet::new(rules, &chains(100)).unwrap();
    let group = Wanted { group: true, error: false };
    for (flow, chain) in [
        (to_v4("224.0.0.1"), Some(0)),
        (to_v4("239.255.255.250"), Some(0)),
        (to_v4("255.255.255.255"), Some(2)),
        (to_v4("10.0.0.255"), Some(3)),
        (to_v4("10.0.1.255"), None),
        (to_v6("ff02::1"), Some(4)),
        (to_v6("ff02::1:2"), Some(4)),
    ] {
        assert_eq!(searched(&set, flow, group), chain.map(ChainIndex), "{flow:?}");
        assert_eq!(searched(&set, flow, Wanted::default()), Some(ChainIndex(99)), "{flow:?}, as a host's address");
    }
}

#[test]
fn errors_match_rules_only_that_name_their_type() {
    let ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };
    let icmp = |icmp_type| Match { protocol: Some(1), icmp_type, ..Match::default() };
    let rules = vec![rule(9, 0, Match::default()), rule(8, 1, icmp(None)), rule(0, 2, icmp(Some(3)))];
    let set = RuleSet::new(rules, &chains(3)).unwrap();
    let flow = FlowKey::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 1, ingress);
    let error = Wanted { group: false, error: true };
    assert_eq!(searched(&set, flow.with_icmp_type(3), error), Some(ChainIndex(2)));
    assert_eq!(searched(&set, flow.with_icmp_type(11), error), None);
}

#[test]
fn of_two_rules_alike_in_priority_the_first_holds() {
    let rules = vec![rule(1, 0, Match::default()), rule(2, 1, Match::default()), rule(2, 2, Match::default())];
    let set = RuleSet::new(rules, &chains(3)).unwrap();
    let ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };
    let flow = FlowKey::ipv4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 1, ingress);
    assert_eq!(set.lookup(&flow).unwrap().chain, Some(ChainIndex(1)));
}

#[test]
fn rules_to_chains_that_are_not_there_are_refused_by_name() {
    let leads_nowhere = RuleSet::new(vec![rule(0, 0, Match::default()), rule(0, 3, Match::default())], &chains(3));
    assert_eq!(leads_nowhere, Err(RuleSetError::UnknownChain { rule: 1, chain: ChainIndex(3) }));
    let settings = ChainSettings {
        chain: ChainIndex(CHAINS_MAX),
        generation: ChainGeneration::default(),
        idle_timeout_ns: 1,
        back: PortSet::EMPTY,
        tenant: TenantIndex(0),
        weight: 1,
        fwps: 1,
        redelivery: Redelivery::Never,
        may_send: crate::leaving::MaySend::default(),
    };
    assert_eq!(RuleSet::new(vec![], &[settings]), Err(RuleSetError::ChainOutOfRange(ChainIndex(CHAINS_MAX))));
}

#[test]
fn a_chain_that_is_not_in_the_set_has_no_idle_timeout() {
    let set = RuleSet::new(vec![], &chains(2)).unwrap();
    let timeouts = [0, 1, 2].map(|chain| set.idle_timeout_ns(ChainIndex(chain)));
    assert_eq!(timeouts, [Some(0), Some(1), None]);
}

/// Rules that have little in common, of four kinds: by address, by port range, by both nets, and by client and VLAN.
fn unlike_rules(count: u32) -> Vec<Rule> {
    let net =
        |bits: u32, len: u32| Some(IpNet::from(Ipv4Net::new(Ipv4Addr::from_bits(bits), len as u8).unwrap().trunc()));
    let matches = |number: u32| match number % 4 {
        0 => Match { destination: net(0x0a00_0000 + number, 32), protocol: Some(17), ..Match::default() },
        1 => {
            let first = number as u16 * 3 / 2;
            let destination_ports = Some(first..=first + (number % 7) as u16);
            Match { destination: net(0x0b00_0000, 8), protocol: Some(6), destination_ports, ..Match::default() }
        }
        2 => {
            let destination = net(number.wrapping_mul(0x9e37_79b1), 12 + number % 13);
            Match { source: net(number << 16, 8 + number % 17), destination, ..Match::default() }
        }
        _ => {
            let vlan = Vlan { id: (number % 97) as u16, inner_id: 0 };
            Match { source: net(0x0c00_0000 + number * 64, 26), vlan, ..Match::default() }
        }
    };
    (0..count).map(|number| rule(number % 10, 0, matches(number))).collect()
}

/// Flows of all sorts, some of which rules match.
fn unlike_flows() -> Vec<FlowKey> {
    let ingress = |number: u32| {
        let vlan = if number % 4 == 3 { Vlan { id: (number % 97) as u16, inner_id: 0 } } else { Vlan::UNTAGGED };
        Ingress { port: PortIndex(0), vlan }
    };
    let flow = |number: u32| {
        let scattered = number.wrapping_mul(0x9e37_79b1);
        let (from, to) = match number % 4 {
            0 => (scattered, 0x0a00_0000 + number * 5),
            1 => (scattered, 0x0b00_0000 + number),
            2 => (number << 16, scattered),
            _ => (0x0c00_0000 + number * 64, scattered),
        };
        let protocol = if number % 4 == 1 { 6 } else { 17 };
        let key = FlowKey::ipv4(Ipv4Addr::from_bits(from), Ipv4Addr::from_bits(to), protocol, ingress(number));
        key.with_ports((scattered >> 16) as u16, scattered as u16)
    };
    (0..4096).map(flow).collect()
}

#[test]
fn ten_thousand_rules_are_searched_as_a_naive_search_does() {
    let rules = unlike_rules(10_000);
    let set = RuleSet::new(rules.clone(), &chains(1)).unwrap();
    let mut found = 0;
    for flow in unlike_flows().iter().step_by(16) {
        let expected = naive_lookup(&rules, flow);
        assert_eq!(set.lookup(flow), expected, "{flow:?}");
        found += u32::from(expected.is_some());
    }
    assert!((16..240).contains(&found), "{found} of 256 flows found a rule: the test tests too little");
}

#[test]
fn the_tree_of_ten_thousand_rules_has_one_copy_of_each_and_is_shallow() {
    let rules = unlike_rules(10_000);
    let set = RuleSet::new(rules.clone(), &chains(1)).unwrap();
    let (depth, copies) = set.classifier.shape();
    assert_eq!(copies, rules.len());
    assert!(depth <= 40, "{depth}");
}

#[test]
fn a_search_through_a_thousand_times_the_rules_takes_a_fraction_of_a_thousand_times_the_time() {
    let flows = unlike_flows();
    let time_of = |count: u32| {
        let set = RuleSet::new(unlike_rules(count), &chains(1)).unwrap();
        let round = || {
            let started = std::time::Instant::now();
            assert!(flows.iter().filter(|flow| set.lookup(std::hint::black_box(flow)).is_some()).count() < flows.len());
            started.elapsed()
        };
        // The best of many rounds: other load on the machine only makes a round longer.
        (0..20).map(|_| round()).min().unwrap()
    };
    let (few, many) = (time_of(10), time_of(10_000));
    // A walk through all rules takes far longer than this bound.
    assert!(many < 60 * few, "{few:?} with 10 rules, {many:?} with 10,000");
}

#[test]
fn rules_that_no_flow_can_match_are_accepted_and_never_found() {
    let mixed = Match {
        source: Some("10.0.0.0/8".parse().unwrap()),
        destination: Some("fd00::/8".parse().unwrap()),
        ..Match::default()
    };
    #[expect(clippy::reversed_empty_ranges)]
    let empty = Match { destination_ports: Some(9..=3), ..Match::default() };
    let rules: Vec<Rule> =
        (0..40).map(|number| rule(number, 0, [&mixed, &empty][number as usize % 2].clone())).collect();
    let set = RuleSet::new(rules, &chains(1)).unwrap();
    assert!(unlike_flows().iter().all(|flow| set.lookup(flow).is_none()));
}

#[test]
fn rules_that_all_overlap_are_searched_in_order() {
    let nested = |number: u32| Match { source_ports: Some(0..=number as u16), ..Match::default() };
    let rules: Vec<Rule> = (0..2000).map(|number| rule(number % 3, number, nested(number % 1000))).collect();
    let set = RuleSet::new(rules.clone(), &chains(2000)).unwrap();
    for flow in unlike_flows().iter().step_by(64) {
        assert_eq!(set.lookup(flow), naive_lookup(&rules, flow));
    }
}
