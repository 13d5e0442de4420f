//! Tests of [`super`]: frames of all kinds pass through reading, cache, rules and instances. The results are compared with
//! a naive model that knows what was sent and walks through the rules.

use super::*;
use crate::flows::ClientLabel;
use crate::flows::fragments::Fragments;
use crate::flows::instances::GOES_ON_NS;
use crate::headers::{Ingress, Part, Vlan};
use crate::id::{ChainGeneration, InstanceId};
use crate::rules::tests::{any_rule, chains, flow, naive_lookup};
use crate::rules::{ChainSettings, Match, Policy, Redelivery, Rule};
use crate::test_frames::{self as frames, *};
use pinion_mma::id::TenantIndex;
use pinion_mma::ways::direction::PortSet;
use proptest::prelude::*;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

const CHAINS: u32 = 4;
const INSTANCES_PER_CHAIN: u64 = 200;
const MILLISECOND_NS: u64 = 1_000_000;

fn assigner(flows_max: usize) -> Assigner {
    let (events, _) = crossbeam_channel::bounded(4096);
    let mut assigner = Assigner::new(flows_max, 4096, Outbox::new(events, 64));
    for chain in 0..CHAINS {
        for number in 0..INSTANCES_PER_CHAIN {
            let instance = InstanceId(u64::from(chain) * INSTANCES_PER_CHAIN + number);
            let entry = FwpId { index: instance.0 as u32, generation: 0 };
            assert!(assigner.add_ready(ChainIndex(chain), instance, entry.into()));
        }
    }
    assigner
}

/// The chain of the instance with this entry.
fn chain_of(entry: FwpId) -> ChainIndex {
    ChainIndex(entry.index / INSTANCES_PER_CHAIN as u32)
}

/// A frame of the flow, built byte by byte; with these flags if it is TCP.
fn frame_of(flow: &FlowKey, part: Part, identification: u16, flags: u8) -> Vec<u8> {
    let protocol = flow.protocol();
    let transport = match (protocol, part) {
        (_, Part::Later) => vec![0xee; 24],
        (TCP, _) => segment(flow.source_port(), flow.destination_port(), flags, b"data"),
        (UDP, _) => udp(flow.source_port(), flow.destination_port(), b"8 bytes."),
        _ => [&[flow.icmp_type().unwrap_or(0xee)][..], &[0; 23]].concat(),
    };
    let packet = match (flow.source(), flow.destination()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let flags = match part {
                Part::Whole => [0x40, 0],
                Part::First => [0x20, 0],
                Part::Later => [0, 9],
            };
            let mut packet = ipv4_fragment(from, to, protocol, flags, &transport);
            packet[4..6].copy_from_slice(&identification.to_be_bytes());
            reseal_ipv4(&mut packet);
            packet
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let offset_more = match part {
                Part::Whole => return in_vlan(&to_station(&ipv6(from, to, protocol, 64, &transport)), flow),
                Part::First => [0, 1],
                Part::Later => [0, 72],
            };
            let [high, low] = identification.to_be_bytes();
            let header = [protocol, 0, offset_more[0], offset_more[1], 0, 0, high, low];
            ipv6(from, to, 44, 64, &[&header[..], &transport].concat())
        }
        mixed => panic!("{mixed:?}"),
    };
    in_vlan(&to_station(&packet), flow)
}

/// The frame with the tags of the flow's VLAN.
fn in_vlan(frame: &[u8], flow: &FlowKey) -> Vec<u8> {
    match flow.ingress().vlan {
        Vlan::UNTAGGED => frame.to_vec(),
        Vlan { id, inner_id: 0 } => tagged(frame, &[(0x8100, id)]),
        Vlan { id, inner_id } => tagged(frame, &[(0x88a8, id), (0x8100, inner_id)]),
    }
}

fn read(assigner: &mut Assigner, frame: &[u8], port: PortIndex) -> Read {
    let mut read = Read::NOTHING;
    assigner.read(frame, port, EthernetAddress(STATION), &mut read);
    assigner.fetch(&mut read);
    read
}

/// Assigns a frame of the flow and returns the result.
fn send(assigner: &mut Assigner, flow: &FlowKey, part: Part, identification: u16, now_ns: u64) -> Assignment {
    send_frame(assigner, flow, &frame_of(flow, part, identification, ACK), now_ns)
}

fn send_frame(assigner: &mut Assigner, flow: &FlowKey, frame: &[u8], now_ns: u64) -> Assignment {
    match read(assigner, frame, flow.ingress().port) {
        read @ (Read::Known { .. } | Read::Flow { .. }) => assigner.assign(&read, frame, now_ns).unwrap(),
        Read::TcpEvent { flow, lead, milestone } => assigner.assign_milestone(lead, &flow, milestone, frame, now_ns),
        Read::IcmpError { flow, lead } => assigner.assign_error(lead, &flow, frame, now_ns),
        Read::Fragment(fragment) => {
            let told = if fragment.part == Part::First { *flow } else { portless(flow) };
            assert_eq!(fragment.flow, told);
            assigner.assign_piece(flow, frame, now_ns)
        }
        Read::Drop(reason) => Assignment::Drop(reason),
        Read::Arp(_) | Read::NeighborDiscovery(_) => panic!("{flow:?} was taken for link control"),
    }
}

/// The flow without ports and ICMP type.
fn portless(flow: &FlowKey) -> FlowKey {
    match (flow.source(), flow.destination()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => FlowKey::ipv4(from, to, flow.protocol(), flow.ingress()),
        (IpAddr::V6(from), IpAddr::V6(to)) => FlowKey::ipv6(from, to, flow.protocol(), flow.ingress()),
        mixed => panic!("{mixed:?}"),
    }
}

#[derive(Default)]
struct Model {
    rules: Vec<Rule>,
    instances: HashMap<InstanceKey, FwpId>,
    /// The flows whose connections were closed or reset.
    over: HashMap<InstanceKey, Over>,
}

/// How a connection came to its end.
struct Over {
    entry: FwpId,
    /// When it was reset, unless it was closed.
    reset_ns: Option<u64>,
    /// Whether it went on so long after its reset that the reset may not have been its end.
    may_go_on: bool,
}

impl Model {
    fn check(&mut self, flow: &FlowKey, part: Part, flags: u8, found: Assignment, now_ns: u64) {
        let Some(rule) = naive_lookup(&self.rules, flow) else {
            return assert_eq!(found, Assignment::Drop(DropReason::NoRule), "{flow:?}");
        };
        let Some(chain) = rule.chain else {
            return assert_eq!(found, Assignment::Drop(DropReason::ChainUnavailable), "{flow:?}");
        };
        let vlan = flow.ingress().vlan;
        let client = match rule.policy {
            Policy::Shared => ClientLabel::All,
            Policy::PerClient => ClientLabel::Address { address: flow.source(), vlan },
            Policy::PerFlow => ClientLabel::Flow { flow: flow.five_tuple(), vlan },
        };
        let key = InstanceKey { chain, client };
        let is_segment = flow.protocol() == TCP && part == Part::Whole;
        let may_be_stray = rule.policy != Policy::Shared && is_segment && flags & (SYN | RST) == RST;
        if may_be_stray && !self.instances.contains_key(&key) {
            return assert_eq!(
                found,
                Assignment::Join { key, source: None, otherwise: DropReason::NoConnection },
                "{flow:?}"
            );
        }
        let Assignment::To(entry) = found else { panic!("{flow:?} was not assigned: {found:?}") };
        assert_eq!(chain_of(entry), chain, "{flow:?}");
        let speaks_for_itself = is_segment && rule.policy == Policy::PerFlow;
        if speaks_for_itself {
            self.note(flow, key, entry, flags, now_ns);
        } else {
            self.note_other(&key, now_ns);
        }
        assert_eq!(*self.instances.entry(key).or_insert(entry), entry, "{flow:?} changed its instance");
        let owners = self.instances.values().filter(|other| **other == entry).count();
        assert_eq!(owners, 1, "{entry} serves several");
    }

    /// Notes what a segment of a flow with an instance of its own does to its connection.
    fn note(&mut self, flow: &FlowKey, key: InstanceKey, entry: FwpId, flags: u8, now_ns: u64) {
        if flags & (SYN | ACK | RST) == SYN {
            let Some(old) = self.over.remove(&key) else { return };
            if !old.may_go_on {
                assert_ne!(entry, old.entry, "{flow:?} begins anew where it had ended");
            }
            if entry != old.entry {
                self.instances.remove(&key);
            }
        } else if flags & (FIN | RST) != 0 {
            let reset_ns = (flags & RST != 0).then_some(now_ns);
            let over = self.over.entry(key).or_insert(Over { entry, reset_ns, may_go_on: false });
            over.reset_ns = over.reset_ns.and(reset_ns.or(over.reset_ns));
        } else {
            self.note_other(&key, now_ns);
        }
    }

    /// Notes a frame that neither opens nor ends a connection.
    fn note_other(&mut self, key: &InstanceKey, now_ns: u64) {
        if let Some(over) = self.over.get_mut(key) {
            over.may_go_on |= over.reset_ns.is_some_and(|reset_ns| now_ns >= reset_ns + GOES_ON_NS);
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    Send { flow: usize, part: Part, identification: u16, flags: u8 },
    SetRules(Vec<Rule>),
    Wait { time_ns: u64 },
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let policy = prop::sample::select(vec![Policy::Shared, Policy::PerClient, Policy::PerFlow]);
    let rule = (any_rule(), policy).prop_map(|(rule, policy)| Rule { policy, ..rule });
    prop::collection::vec(rule, 0..40)
}

/// The flags of a TCP segment; sometimes all at once.
fn flags() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(ACK), 1 => Just(SYN), 1 => Just(FIN | ACK), 1 => Just(RST), 1 => any::<u8>()]
}

fn action() -> impl Strategy<Value = Action> {
    let part = prop::sample::select(vec![Part::Whole, Part::Whole, Part::First, Part::Later, Part::Later]);
    let send = (0_usize..40, part, 0_u16..2, flags()).prop_map(|(flow, part, identification, flags)| Action::Send {
        flow,
        part,
        identification,
        flags,
    });
    prop_oneof![
        30 => send,
        1 => rules().prop_map(Action::SetRules),
        1 => (0..100 * MILLISECOND_NS).prop_map(|time_ns| Action::Wait { time_ns }),
    ]
}

fn set_rules(assigner: &mut Assigner, rules: &[Rule]) {
    let set = RuleSet::new(rules.to_vec(), &chains(CHAINS)).unwrap();
    assigner.set_rules(Arc::new(set));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_frame_goes_where_a_naive_search_says(
        flows in prop::collection::vec(flow(), 40),
        first_rules in rules(),
        actions in prop::collection::vec(action(), 1..150),
        // Either so few that flows evict each other, or enough for all.
        flows_max in prop::sample::select(vec![1_usize, 16, 4096]),
    ) {
        let mut assigner = assigner(flows_max);
        let (mut model, mut now_ns) = (Model { rules: first_rules, ..Model::default() }, 0);
        set_rules(&mut assigner, &model.rules);
        for action in actions {
            match action {
                Action::Send { flow, part, identification, flags } => {
                    let frame = frame_of(&flows[flow], part, identification, flags);
                    let found = send_frame(&mut assigner, &flows[flow], &frame, now_ns);
                    model.check(&flows[flow], part, flags, found, now_ns);
                }
                Action::SetRules(rules) => {
                    set_rules(&mut assigner, &rules);
                    model.rules = rules;
                }
                Action::Wait { time_ns } => now_ns += time_ns,
            }
        }
    }
}

fn everything(policy: Policy, vlan: Vlan) -> Rule {
    Rule { matches: Match { vlan, ..Match::default() }, policy, chain: Some(ChainIndex(0)), priority: 0 }
}

fn client_in(vlan: Vlan) -> FlowKey {
    let ingress = Ingress { port: PortIndex(0), vlan };
    FlowKey::ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), UDP, ingress).with_ports(7, 7)
}

#[test]
fn the_same_address_in_two_vlans_is_two_clients_and_in_none_without_a_rule() {
    let vlans = [(0, 0), (5, 0), (5, 6), (6, 0)].map(|(id, inner_id)| Vlan { id, inner_id });
    for policy in [Policy::PerClient, Policy::PerFlow] {
        let mut assigner = assigner(64);
        set_rules(&mut assigner, &vlans[..3].iter().map(|vlan| everything(policy, *vlan)).collect::<Vec<_>>());
        let found = vlans.map(|vlan| send(&mut assigner, &client_in(vlan), Part::Whole, 0, 0));
        let [Assignment::To(none), Assignment::To(outer), Assignment::To(inner), last] = found else {
            panic!("{found:?}")
        };
        assert!(none != outer && outer != inner && none != inner, "{found:?}");
        assert_eq!(last, Assignment::Drop(DropReason::NoRule));
    }
}

#[test]
fn a_flood_of_one_flow_without_a_rule_is_looked_up_in_the_rules_once() {
    let mut assigner = assigner(64);
    let flow = client_in(Vlan::UNTAGGED);
    assert_eq!(send(&mut assigner, &flow, Part::Whole, 0, 0), Assignment::Drop(DropReason::NoRule));
    assert_eq!(assigner.flows(), 1);
    // If these were not cached, they would match the new rules, which the assigner was not told of.
    assigner.rules = Arc::new(RuleSet::new(vec![everything(Policy::Shared, Vlan::UNTAGGED)], &chains(1)).unwrap());
    for now_ns in 1..1000 {
        assert_eq!(send(&mut assigner, &flow, Part::Whole, 0, now_ns), Assignment::Drop(DropReason::NoRule));
    }
    set_rules(&mut assigner, &[everything(Policy::Shared, Vlan::UNTAGGED)]);
    assert!(matches!(send(&mut assigner, &flow, Part::Whole, 0, 1000), Assignment::To(_)));
}

#[test]
fn established_flows_stay_assigned_through_a_flood_of_ten_times_the_table() {
    const FLOWS: u32 = 4096;
    let mut assigner = assigner(FLOWS as usize);
    let settings = ChainSettings {
        chain: ChainIndex(0),
        generation: ChainGeneration::default(),
        idle_timeout_ns: 1 << 40,
        back: PortSet::EMPTY,
        tenant: TenantIndex(0),
        weight: 1,
        fwps: 1,
        redelivery: Redelivery::Never,
        may_send: crate::leaving::MaySend::default(),
    };
    let all = RuleSet::new(vec![everything(Policy::Shared, Vlan::UNTAGGED)], &[settings]).unwrap();
    assigner.set_rules(Arc::new(all));
    let flow = |number: u32| {
        let ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };
        FlowKey::ipv4(Ipv4Addr::from_bits(0x0a00_0000 + number), Ipv4Addr::new(10, 0, 0, 2), UDP, ingress)
            .with_ports(1, 2)
    };
    let established = FLOWS / 2;
    for number in (0..established).chain(0..established) {
        assert!(matches!(send(&mut assigner, &flow(number), Part::Whole, 0, 0), Assignment::To(_)));
    }
    let mut evicted = 0;
    for newcomer in 0..10 * FLOWS {
        let now_ns = u64::from(newcomer) * 1000;
        assert!(matches!(send(&mut assigner, &flow(FLOWS + newcomer), Part::Whole, 0, now_ns), Assignment::To(_)));
        let known = flow(newcomer % established);
        let lead = assigner.cache.lead(assigner.cache.hash(&known));
        evicted += u32::from(assigner.cache.lookup(lead, &known, assigner.rules_version, now_ns).is_err());
        assert!(matches!(send(&mut assigner, &known, Part::Whole, 0, now_ns), Assignment::To(_)));
    }
    assert!(evicted * 1000 <= established, "{evicted} of {established}");
    assert!(assigner.flows() <= FLOWS as usize * 9 / 8 + 8);
}

#[test]
fn flows_take_no_more_memory_than_the_configuration_says() {
    const FLOWS: usize = 1_000_000;
    let assigner = assigner(FLOWS);
    let bytes = assigner.cache.bytes() + Fragments::new(1, FLOWS, 0).bytes();
    assert!(bytes <= 80 << 20, "{bytes}");
    assert!(bytes.div_ceil(FLOWS) <= 84, "{bytes}");
}

#[test]
fn link_control_is_read_as_such() {
    let mut assigner = assigner(64);
    let arp = arp_request((CLIENT, Ipv4Addr::new(10, 0, 0, 1)), Ipv4Addr::new(10, 0, 0, 2));
    assert!(matches!(read(&mut assigner, &arp, PortIndex(0)), Read::Arp(Vlan::UNTAGGED)));
    let solicitation = frames::solicitation("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
    assert!(matches!(read(&mut assigner, &solicitation, PortIndex(0)), Read::NeighborDiscovery(Vlan::UNTAGGED)));
    assert!(matches!(read(&mut assigner, &arp[..9], PortIndex(0)), Read::Drop(DropReason::Truncated)));
}
