//! Flows that functions open themselves: what they may, and where answers go.

mod connections;
mod endings;

use super::leaving::{PEER, PEER_STATION, SECOND_NS, from_station, packet, unaddressed};
use super::*;
use crate::leaving::OutboundGrant;
use pinion_abi::{
    FLOW_BYTES, FLOW_DESTINATION_AT, FLOW_DESTINATION_PORT_AT, FLOW_ETHERTYPE, FLOW_IP_AT, FLOW_KIND_AT,
    FLOW_NUMBER_AT, FLOW_PROTOCOL_AT, FLOW_REASON_AT, FLOW_SOURCE_AT, FLOW_SOURCE_PORT_AT, FLOW_TAG_AT, FLOW_VERSION,
    FLOW_VERSION_AT, FLOW_VLAN_AT, FlowEnd, FlowKind, FlowRefusal,
};
use std::net::Ipv6Addr;

const RESOLVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
const RESOLVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x53);
const NODE_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
const TAG: u64 = 0x1234_5678_9abc;

/// What the node says about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    kind: FlowKind,
    reason: u8,
    number: u64,
    source: IpAddr,
    port: u16,
}

impl Said {
    fn refused(self) -> FlowRefusal {
        assert_eq!((self.kind, self.number), (FlowKind::Refused, 0));
        FlowRefusal::of(self.reason)
    }

    fn closed(self) -> FlowEnd {
        assert_eq!(self.kind, FlowKind::Closed);
        FlowEnd::of(self.reason)
    }
}

fn grants(texts: &[(u8, &str, u16)]) -> MaySend {
    let grant = |(protocol, to, port): &(u8, &str, u16)| OutboundGrant {
        protocol: *protocol,
        to: to.parse().unwrap(),
        ports: *port..=*port,
    };
    MaySend { outbound: texts.iter().map(grant).collect(), ..MaySend::default() }
}

fn dns() -> MaySend {
    grants(&[(UDP, "192.0.2.0/24", 53), (UDP, "fd77::/64", 53), (TCP, "192.0.2.0/24", 80)])
}

fn instance(number: u32) -> id::Sender {
    id::Sender { tenant: TenantIndex(0), chain: 0, instance: number }
}

fn message(kind: FlowKind) -> Vec<u8> {
    let mut frame = ethernet([0; 6], [0; 6], FLOW_ETHERTYPE, &[0; FLOW_BYTES - 14]);
    (frame[FLOW_VERSION_AT], frame[FLOW_KIND_AT]) = (FLOW_VERSION, kind as u8);
    frame[FLOW_TAG_AT..FLOW_TAG_AT + 8].copy_from_slice(&TAG.to_le_bytes());
    frame
}

fn request(protocol: u8, to: impl Into<IpAddr>, port: u16) -> Vec<u8> {
    let mut frame = message(FlowKind::Open);
    frame[FLOW_PROTOCOL_AT] = protocol;
    frame[FLOW_DESTINATION_PORT_AT..FLOW_DESTINATION_PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
    let (version, octets) = match to.into() {
        IpAddr::V4(to) => (4, to.octets().to_vec()),
        IpAddr::V6(to) => (6, to.octets().to_vec()),
    };
    frame[FLOW_IP_AT] = version;
    frame[FLOW_DESTINATION_AT..FLOW_DESTINATION_AT + octets.len()].copy_from_slice(&octets);
    frame
}

fn read(frame: &[u8]) -> Said {
    assert_eq!((frame.len(), &frame[12..14]), (FLOW_BYTES, &FLOW_ETHERTYPE.to_be_bytes()[..]));
    assert_eq!(frame[FLOW_TAG_AT..FLOW_TAG_AT + 8], TAG.to_le_bytes());
    let octets: [u8; 16] = frame[FLOW_SOURCE_AT..FLOW_SOURCE_AT + 16].try_into().unwrap();
    Said {
        kind: FlowKind::of(frame[FLOW_KIND_AT]).unwrap(),
        reason: frame[FLOW_REASON_AT],
        number: u64::from_le_bytes(frame[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].try_into().unwrap()),
        source: match frame[FLOW_IP_AT] {
            4 => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
            _ => Ipv6Addr::from(octets).into(),
        },
        port: u16::from_be_bytes(frame[FLOW_SOURCE_PORT_AT..FLOW_SOURCE_PORT_AT + 2].try_into().unwrap()),
    }
}

impl Rig {
    /// A gateway whose chain has an instance for each client, and may open these flows. Clients 1 and 2 have instances 10 and
    /// 11.
    fn outbound(may_send: MaySend) -> Self {
        let mut rig = Self::routed(may_send);
        rig.serve_clients();
        rig
    }

    fn serve_clients(&mut self) {
        let in_vlan = Match { vlan: Vlan { id: 100, inner_id: 0 }, ..Match::default() };
        self.set_rules(vec![rule(Policy::PerClient, 0), Rule { matches: in_vlan, ..rule(Policy::PerClient, 0) }]);
        self.ready(0, 11);
        self.send_and_poll(&[ping(1, 1), ping(2, 1)]);
        let mut targets = self.targets();
        targets.sort_unstable();
        assert_eq!(targets, [10, 11]);
        self.events();
    }

    /// Lets an instance ask the node, and returns what it says.
    fn ask(&mut self, from: id::Sender, frame: &[u8]) -> Said {
        self.leave_from(from, frame);
        assert_eq!(self.left(), Vec::<Vec<u8>>::new(), "a request does not leave");
        let delivered = self.delivered();
        let [(target, port, frame)] = &delivered[..] else { panic!("{delivered:?}") };
        assert_eq!((*target, *port), (entry(from.instance.into()), PortIndex(0)));
        read(frame)
    }

    /// Opens a flow of the first instance to the resolver.
    fn open(&mut self) -> Said {
        let opened = self.ask(first(), &request(UDP, RESOLVER, 53));
        assert_eq!((opened.kind, opened.reason), (FlowKind::Opened, 0));
        opened
    }

    /// Passes time in which both clients keep their instances. Returns what the node tells these of flows.
    fn pass_with_clients(&mut self, seconds: u64) -> Vec<(u32, Said)> {
        let mut told = Vec::new();
        for _ in 0..seconds {
            self.pass(SECOND_NS);
            self.send_and_poll(&[ping(1, 1), ping(2, 1)]);
            let delivered = self.delivered();
            let news = delivered.iter().filter(|(_, _, frame)| frame[12..14] == FLOW_ETHERTYPE.to_be_bytes());
            told.extend(news.map(|(target, _, frame)| (target.index, read(frame))));
        }
        told
    }

    fn told(&mut self) -> Vec<(u32, Said)> {
        self.delivered().into_iter().map(|(target, _, frame)| (target.index, read(&frame))).collect()
    }
}

/// The instance that serves client 1 or client 2: whichever was ready last is given first.
fn first() -> id::Sender {
    instance(11)
}

fn second() -> id::Sender {
    instance(10)
}

fn question(port: u16) -> Vec<u8> {
    unaddressed(&ipv4(SERVER, RESOLVER, UDP, &udp(port, 53, b"who?")))
}

fn answer(port: u16) -> Vec<u8> {
    to_station(&ipv4(RESOLVER, SERVER, UDP, &udp(53, port, b"them")))
}

#[test]
fn a_flow_has_a_source_of_the_nodes_and_its_answers_reach_its_instance_and_no_rules() {
    let mut rig = Rig::outbound(dns());
    let opened = rig.open();
    assert_eq!(opened.source, IpAddr::from(SERVER));
    assert!((49_152..=65_535).contains(&opened.port) && opened.number != 0);
    rig.leave_from(first(), &from_station(PEER_STATION, &question(opened.port)[14..]));
    assert_eq!(rig.left(), [from_station(PEER_STATION, &question(opened.port)[14..])]);
    rig.send_and_poll(&[answer(opened.port), answer(opened.port)]);
    assert_eq!(rig.delivered(), vec![(entry(11), PortIndex(0), answer(opened.port)); 2]);
    // Not even those that lead to another chain.
    let other = Match { protocol: Some(UDP), ..Match::default() };
    rig.set_rules(vec![rule(Policy::PerClient, 0), Rule { matches: other, priority: 9, ..rule(Policy::Shared, 1) }]);
    rig.send_and_poll(&[answer(opened.port)]);
    assert_eq!(rig.targets(), [11]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_flow_of_ipv6_works_the_same() {
    let mut rig = Rig::outbound(dns());
    let opened = rig.ask(first(), &request(UDP, RESOLVER_V6, 53));
    assert_eq!((opened.kind, opened.source), (FlowKind::Opened, IpAddr::from(NODE_V6)));
    let question = ipv6(NODE_V6, RESOLVER_V6, UDP, 64, &udp(opened.port, 53, b"who?"));
    rig.leave_from(first(), &from_station(PEER_STATION, &question));
    assert_eq!(rig.left(), [from_station(PEER_STATION, &question)]);
    let answer = to_station(&ipv6(RESOLVER_V6, NODE_V6, UDP, 64, &udp(53, opened.port, b"them")));
    let error = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &question].concat();
    let error = to_station(&ipv6(RESOLVER_V6, NODE_V6, ICMPV6, 64, &icmpv6(RESOLVER_V6, NODE_V6, &error)));
    rig.send_and_poll(&[answer.clone(), error.clone()]);
    assert_eq!(rig.delivered(), [(entry(11), PortIndex(0), answer), (entry(11), PortIndex(0), error)]);
}

#[test]
fn only_what_the_chain_is_granted_is_opened() {
    let mut rig = Rig::outbound(dns());
    let mut refusal = |frame: &[u8]| rig.ask(first(), frame).refused();
    for (protocol, to, port) in [(TCP, RESOLVER, 53), (UDP, RESOLVER, 54), (UDP, PEER, 53), (TCP, PEER, 80)] {
        assert_eq!(refusal(&request(protocol, to, port)), FlowRefusal::NotGranted, "{protocol} {to} {port}");
    }
    for (protocol, to, port) in [
        (1, IpAddr::from(RESOLVER), 53),
        (UDP, RESOLVER.into(), 0),
        (UDP, Ipv4Addr::BROADCAST.into(), 53),
        (UDP, Ipv4Addr::new(224, 0, 0, 251).into(), 53),
        (UDP, Ipv4Addr::LOCALHOST.into(), 53),
        (UDP, "ff02::fb".parse().unwrap(), 53),
    ] {
        assert_eq!(refusal(&request(protocol, to, port)), FlowRefusal::Invalid, "{protocol} {to} {port}");
    }
    let mut in_vlan = request(UDP, RESOLVER, 53);
    in_vlan[FLOW_VLAN_AT] = 101;
    assert_eq!(refusal(&in_vlan), FlowRefusal::NotGranted, "a VLAN that no rule of the chain names");
    in_vlan[FLOW_VLAN_AT] = 100;
    assert_eq!(refusal(&in_vlan), FlowRefusal::NoRoute, "no route leads there in this VLAN");
    let mut without_version = request(UDP, RESOLVER, 53);
    without_version[FLOW_IP_AT] = 5;
    rig.leave_from(first(), &without_version);
    assert_eq!(rig.delivered()[0].2[FLOW_REASON_AT], FlowRefusal::Invalid as u8);
    rig.assert_no_buffer_leaked();
}

#[test]
fn the_address_of_a_network_on_the_link_and_the_one_for_broadcast_to_it_are_no_destinations() {
    let mut rig = Rig::outbound(grants(&[(UDP, "0.0.0.0/0", 53)]));
    for to in [[10, 77, 0, 255], [10, 77, 0, 0]] {
        assert_eq!(rig.ask(first(), &request(UDP, Ipv4Addr::from(to), 53)).refused(), FlowRefusal::Invalid, "{to:?}");
    }
    for to in [[10, 77, 1, 0], [10, 77, 1, 255]] {
        assert_eq!(rig.ask(first(), &request(UDP, Ipv4Addr::from(to), 53)).kind, FlowKind::Opened, "{to:?}");
    }
}

#[test]
fn the_fragments_of_a_datagram_of_a_flow_are_judged_alike() {
    for sources in [None, Some("10.77.0.2/32")] {
        let sources = sources.iter().map(|net| net.parse().unwrap()).collect();
        let mut rig = Rig::routed(MaySend { sources, ..dns() });
        let own = rig.may_send.sources.len();
        rig.send_and_poll(&[to_station(&ipv4(client(1), PEER, 1, &icmp_echo(1)))]);
        rig.delivered();
        let opened = rig.ask(instance(10), &request(UDP, RESOLVER, 53));
        let datagram = udp(opened.port, 53, &[7; 40]);
        let (start, rest) = datagram.split_at(24);
        for fragment in
            [ipv4_fragment(SERVER, RESOLVER, UDP, [0x20, 0], start), ipv4_fragment(SERVER, RESOLVER, UDP, [0, 3], rest)]
        {
            rig.leave_from(instance(10), &from_station(PEER_STATION, &fragment));
        }
        let leave = if own == 0 { (0, vec![(DropReason::ForgedSource, 2)]) } else { (2, vec![]) };
        assert_eq!((rig.left().len(), rig.chain_drops(0)), leave);
    }
}

#[test]
fn a_chain_without_grants_opens_nothing_and_is_told() {
    let mut rig = Rig::outbound(MaySend::default());
    assert_eq!(rig.ask(first(), &request(UDP, RESOLVER, 53)).refused(), FlowRefusal::NotGranted);
    let mut rig = Rig::routed(MaySend::anything());
    let frame = [&PEER_STATION[..], &request(UDP, RESOLVER, 53)[6..]].concat();
    rig.leave(&frame);
    assert_eq!(rig.left(), [frame], "one that may send anything passes frames of others on");
}

#[test]
fn a_chain_that_may_open_no_flow_does_not_send_as_one_that_has() {
    let mut rig = Rig::outbound(dns());
    rig.second_may_send = Some(MaySend::default());
    let of_other = Match { source: Some("10.77.0.103/32".parse().unwrap()), ..Match::default() };
    rig.set_rules(vec![rule(Policy::PerClient, 0), Rule { matches: of_other, priority: 9, ..rule(Policy::Shared, 1) }]);
    rig.ready(1, 20);
    // It has seen the node's address, from which the flow comes, too.
    rig.send_and_poll(&[ping(3, 1)]);
    assert_eq!(rig.targets(), [20]);
    let opened = rig.open();
    let other = id::Sender { tenant: TenantIndex(0), chain: 1, instance: 20 };
    let as_the_flow = from_station(PEER_STATION, &question(opened.port)[14..]);
    rig.leave_from(other, &as_the_flow);
    assert_eq!((rig.left(), rig.chain_drops(1)), (vec![], vec![(DropReason::ForgedSource, 1)]));
    let own = from_station(PEER_STATION, &question(opened.port ^ 1)[14..]);
    rig.leave_from(other, &own);
    assert_eq!(rig.left(), [own]);
}

#[test]
fn the_node_itself_is_no_destination() {
    let mut rig = Rig::outbound(grants(&[(UDP, "0.0.0.0/0", 53)]));
    assert_eq!(rig.ask(first(), &request(UDP, SERVER, 53)).refused(), FlowRefusal::NoRoute);
}

#[test]
fn frames_that_are_no_requests_are_dropped() {
    let mut rig = Rig::outbound(dns());
    let mut later = request(UDP, RESOLVER, 53);
    later[FLOW_VERSION_AT] += 1;
    for frame in [&later[..], &message(FlowKind::Opened), &message(FlowKind::Open)[..FLOW_BYTES - 1]] {
        rig.leave_from(first(), frame);
    }
    assert_eq!(rig.chain_drops(0), [(DropReason::Malformed, 3)]);
    rig.leave_from(instance(99), &request(UDP, RESOLVER, 53));
    assert_eq!(rig.drops(DropReason::NoInstance), 1, "an instance that has ended");
    assert_eq!(rig.delivered(), []);
    rig.assert_no_buffer_leaked();
}

#[test]
fn no_other_instance_may_send_from_the_source_of_a_flow() {
    let mut rig = Rig::outbound(dns());
    // Its chain has seen packets to this address, so that its functions may answer from it.
    let to_client = from_station(CLIENT, &packet(SERVER, client(2)));
    rig.leave_from(second(), &to_client);
    assert_eq!(rig.left(), [to_client]);
    let opened = rig.open();
    rig.leave_from(second(), &question(opened.port));
    assert_eq!((rig.left(), rig.chain_drops(0)), (vec![], vec![(DropReason::ForgedSource, 1)]));
    rig.leave_from(second(), &from_station(CLIENT, &packet(SERVER, client(2))));
    assert_eq!(rig.left().len(), 1, "but from the address with other ports");
    // Nor end it.
    let mut close = message(FlowKind::Close);
    close[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].copy_from_slice(&opened.number.to_le_bytes());
    rig.leave_from(second(), &close);
    rig.delivered();
    rig.send_and_poll(&[answer(opened.port)]);
    assert_eq!(rig.targets(), [11]);
}

#[test]
fn what_a_flow_does_not_cover_is_judged_as_ever() {
    let mut rig = Rig::routed(dns());
    rig.send_and_poll(&[to_station(&ipv4(client(1), RESOLVER, 1, &icmp_echo(1)))]);
    rig.delivered();
    let opened = rig.ask(instance(10), &request(UDP, RESOLVER, 53));
    let other_port = from_station(PEER_STATION, &ipv4(SERVER, RESOLVER, UDP, &udp(opened.port, 54, b"")));
    rig.leave(&other_port);
    let other_address = from_station(PEER_STATION, &ipv4(SERVER, PEER, UDP, &udp(opened.port, 53, b"")));
    rig.leave(&other_address);
    assert_eq!((rig.left(), rig.chain_drops(0)), (vec![], vec![(DropReason::ForgedSource, 2)]));
}

#[test]
fn an_instance_has_no_more_flows_than_its_part_and_no_two_of_the_same_ports() {
    let mut rig = Rig::outbound(dns());
    let of_instance = 256 / 8;
    let ports: std::collections::HashSet<_> = (0..of_instance).map(|_| rig.open().port).collect();
    assert_eq!(ports.len(), of_instance);
    assert_eq!(rig.ask(first(), &request(UDP, RESOLVER, 53)).refused(), FlowRefusal::Quota);
    assert_eq!(rig.ask(second(), &request(UDP, RESOLVER, 53)).kind, FlowKind::Opened);
}

#[test]
fn a_flow_that_ends_for_another_tenant_is_told_to_its_function() {
    let mut rig = Rig::outbound(dns());
    let rules = || {
        let of_second = Match { source: Some("10.77.0.110/32".parse().unwrap()), ..Match::default() };
        vec![rule(Policy::PerClient, 0), Rule { matches: of_second, priority: 9, ..rule(Policy::Shared, 1) }]
    };
    rig.set_rules(rules());
    for number in 12..18 {
        rig.ready(0, number.into());
        rig.send_and_poll(&[ping(number - 9, 1)]);
    }
    rig.ready(1, 20);
    rig.send_and_poll(&[ping(10, 1)]);
    assert_eq!(rig.targets(), [12, 13, 14, 15, 16, 17, 20]);
    let opened: Vec<_> = (10..18)
        .flat_map(|from| vec![from; 256 / 8])
        .map(|from| rig.ask(instance(from), &request(UDP, RESOLVER, 53)))
        .collect();
    assert!(opened.iter().all(|said| said.kind == FlowKind::Opened));
    rig.events();
    // Then the second chain is another tenant's.
    let mut chains = rig.chains(PortSet::EMPTY);
    chains[1].tenant = TenantIndex(1);
    rig.set_rules_of(rules(), &chains);
    let later = id::Sender { tenant: TenantIndex(1), chain: 1, instance: 20 };
    rig.leave_from(later, &request(UDP, RESOLVER, 53));
    let told = rig.told();
    let [(ended, closed), (20, said)] = told[..] else { panic!("{told:?}") };
    assert_eq!((ended, closed.closed(), said.kind), (10, FlowEnd::Quota, FlowKind::Opened));
    assert!(opened[..32].contains(&Said { kind: FlowKind::Opened, reason: 0, ..closed }));
    rig.send_and_poll(&[answer(said.port)]);
    assert_eq!(rig.targets(), [20]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn when_all_ports_are_in_use_for_a_destination_others_can_still_be_reached() {
    let mut rig = Rig::outbound(grants(&[(UDP, "192.0.2.0/24", 53), (UDP, "192.0.2.0/24", 54)]));
    rig.gateway.assigner.outbound_flows().set_ports(50_000..=50_003);
    let mut ports: Vec<_> = (0..4).map(|_| rig.open().port).collect();
    ports.sort_unstable();
    assert_eq!(ports, [50_000, 50_001, 50_002, 50_003]);
    assert_eq!(rig.ask(second(), &request(UDP, RESOLVER, 53)).refused(), FlowRefusal::NoPort);
    assert_eq!(rig.ask(second(), &request(UDP, RESOLVER, 54)).kind, FlowKind::Opened);
    assert_eq!(rig.ask(second(), &request(UDP, Ipv4Addr::new(192, 0, 2, 54), 53)).kind, FlowKind::Opened);
}

#[test]
fn what_answers_a_flow_proves_nothing_of_a_client_and_prolongs_life_only_once_that_has_proven_itself() {
    for waits in [true, false] {
        let mut rig = Rig::outbound(dns());
        let [of_first, of_second] = [first(), second()].map(|from| rig.ask(from, &request(UDP, RESOLVER, 53)).port);
        rig.pass(SECOND_NS);
        rig.send_and_poll(&[answer(of_first), answer(of_second), ping(2, 2)]);
        assert_eq!(rig.targets(), [11, 10, 10]);
        if waits {
            rig.command(Command::EndUnproven { tenant: TenantIndex(0), count: 16 });
            assert_eq!(rig.events(), [Event::Unproven { chain: ChainIndex(0), instance: InstanceId(11) }]);
        }
        for _ in 0..2 {
            rig.pass(3 * SECOND_NS);
            rig.send_and_poll(&[answer(of_second)]);
        }
        assert_eq!(rig.targets(), [10, 10]);
        let idle = Event::Idle { chain: ChainIndex(0), instance: InstanceId(11) };
        assert_eq!(rig.events(), if waits { vec![] } else { vec![idle] });
        rig.send_and_poll(&[answer(of_first)]);
        assert_eq!(rig.drops(DropReason::FlowClosed), 1);
        rig.assert_no_buffer_leaked();
    }
}

/// A rule for the second chain, which serves its clients at these ports, or at all.
fn served_by_second(ports: Option<std::ops::RangeInclusive<u16>>) -> Rule {
    let matches = Match { protocol: Some(UDP), destination_ports: ports, ..Match::default() };
    Rule { matches, priority: 9, ..rule(Policy::Shared, 1) }
}

#[test]
fn a_flow_takes_no_packets_over_that_another_instance_gets_already() {
    let mut rig = Rig::outbound(dns());
    rig.gateway.assigner.outbound_flows().set_ports(50_000..=50_001);
    rig.set_rules(vec![rule(Policy::PerClient, 0), served_by_second(None)]);
    rig.ready(1, 20);
    rig.send_and_poll(&[answer(50_001)]);
    assert_eq!(rig.targets(), [20], "the resolver is a client of the second chain, from its port 53");
    assert_eq!(rig.open().port, 50_000);
    assert_eq!(rig.ask(second(), &request(UDP, RESOLVER, 53)).refused(), FlowRefusal::NoPort);
    rig.send_and_poll(&[answer(50_001)]);
    assert_eq!(rig.targets(), [20]);
    rig.command(Command::Unbind { instance: InstanceId(20) });
    assert_eq!(rig.ask(second(), &request(UDP, RESOLVER, 53)).port, 50_001, "once that has ended");
}

#[test]
fn a_port_that_a_rule_of_another_chain_names_is_no_source() {
    let mut rig = Rig::outbound(dns());
    rig.gateway.assigner.outbound_flows().set_ports(50_000..=50_001);
    rig.set_rules(vec![rule(Policy::PerClient, 0), served_by_second(Some(50_000..=50_000))]);
    assert_eq!(rig.open().port, 50_001);
    assert_eq!(rig.ask(first(), &request(UDP, RESOLVER, 53)).refused(), FlowRefusal::NoPort);
    // A rule for all ports asks for none in particular.
    rig.set_rules(vec![rule(Policy::PerClient, 0), served_by_second(Some(1024..=65_535))]);
    assert_eq!(rig.open().port, 50_000);
}

#[test]
fn an_error_about_a_packet_of_a_flow_reaches_its_instance() {
    let mut rig = Rig::outbound(dns());
    let opened = rig.open();
    let quoted = &question(opened.port)[14..];
    let error = to_station(&ipv4(RESOLVER, SERVER, 1, &[&[3, 3, 0, 0, 0, 0, 0, 0], &quoted[..28]].concat()));
    rig.send_and_poll(std::slice::from_ref(&error));
    assert_eq!(rig.delivered(), [(entry(11), PortIndex(0), error.clone())]);
    rig.command(Command::Unbind { instance: InstanceId(11) });
    rig.send_and_poll(&[error]);
    assert_eq!((rig.delivered(), rig.drops(DropReason::FlowClosed)), (vec![], 1));
}

#[test]
fn a_request_is_answered_also_while_the_mma_takes_no_more_frames() {
    let mut rig = Rig::outbound(dns());
    for number in 0.. {
        rig.send_and_poll(&[ping(1, number)]);
        if rig.drops(DropReason::MmaBusy) > 0 {
            break;
        }
    }
    rig.leave_from(first(), &request(UDP, RESOLVER, 53));
    let (_, _, last) = rig.delivered().pop().unwrap();
    assert_eq!(read(&last).kind, FlowKind::Opened, "the answer takes the request's place");
    // The MMA's buffers come back, some in each poll.
    rig.pass(SECOND_NS);
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_chain_that_may_send_anything_keeps_its_flows_by_what_it_sends() {
    let mut rig = Rig::outbound(MaySend { transparent: true, ..dns() });
    let opened = rig.open();
    for _ in 0..3 {
        assert_eq!(rig.pass_with_clients(40), []);
        rig.leave_from(first(), &from_station(PEER_STATION, &question(opened.port)[14..]));
    }
    assert_eq!(rig.left().len(), 3);
    assert_eq!(rig.pass_with_clients(65).len(), 1);
}
