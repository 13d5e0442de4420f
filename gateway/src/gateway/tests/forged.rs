//! What a hostile function or sender makes up: sources, kinds of frames, and ways in and out.

use super::leaving::{PEER, PEER_STATION, SECOND_NS, from_station, packet};
use super::*;
use crate::neighbors::reverse_path::ReversePaths;
use std::net::Ipv6Addr;

/// A router on the way, from which nothing but errors comes.
const FAR_ROUTER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

fn icmp(from: Ipv4Addr, to: Ipv4Addr, message: &[u8]) -> Vec<u8> {
    ipv4(from, to, 1, message)
}

/// An error of the far router's about what the server has sent to a client.
fn error_of_router() -> Vec<u8> {
    let quoted = ipv4(SERVER, client(1), UDP, &udp(7, 50, b"answer"));
    let message = [&[11, 0, 0, 0, 0, 0, 0, 0], &quoted[..28]].concat();
    to_station(&icmp(FAR_ROUTER, SERVER, &message))
}

/// A gateway with these reverse paths asked for at its port, which is the way to 10.77.0.0/24 only.
fn with_reverse_path(asked: ReversePath) -> Rig {
    let mut rig = Rig::with_policy(Policy::Shared);
    let network = |net: &str| {
        let setup = NetworkSetup { addresses: vec![net.parse().unwrap()], ..NetworkSetup::default() };
        Network::new(&setup, EthernetAddress(STATION))
    };
    let ingress = |port| Ingress { port: PortIndex(port), vlan: Vlan::UNTAGGED };
    let networks = vec![(ingress(0), network("10.77.0.2/24")), (ingress(1), network("10.99.0.2/24"))];
    rig.gateway.assigner.ask_for_reverse_paths(ReversePaths::new(networks, vec![asked; 2]));
    rig
}

#[test]
fn an_error_of_a_router_on_the_way_may_be_passed_on() {
    for policy in [Policy::Shared, Policy::PerClient, Policy::PerFlow] {
        let mut rig = Rig::routed(MaySend::default());
        rig.set_rules(vec![rule(policy, 0)]);
        rig.ready(0, 11);
        rig.send_and_poll(&[datagram(1, 50, 0)]);
        let passed_on = from_station(PEER_STATION, &icmp(FAR_ROUTER, client(1), &[11, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(rig.refused(&passed_on), [(DropReason::ForgedSource, 1)]);
        rig.send_and_poll(&[error_of_router()]);
        assert_eq!(rig.targets().len(), 2, "the error reaches the instance");
        rig.leave(&passed_on);
        assert_eq!(rig.left(), [passed_on], "{policy:?}");
    }
}

#[test]
fn a_tenant_sends_only_by_ports_that_it_is_granted_whatever_its_instances_have_received_before() {
    let mut rig = Rig::routed(MaySend::anything());
    let frame = from_station(PEER_STATION, &packet(SERVER, PEER));
    rig.leave(&frame);
    assert_eq!(rig.left(), std::slice::from_ref(&frame));
    for transparent in [true, false] {
        rig.may_send = MaySend { ports: PortSet::of([PortIndex(1)]).unwrap(), transparent, ..MaySend::default() };
        rig.set_rules(vec![rule(Policy::Shared, 0)]);
        assert_eq!(rig.refused(&frame), [(DropReason::ForeignPort, 1)]);
    }
}

#[test]
fn redirects_and_router_discovery_of_ipv4_come_from_the_node_alone() {
    let mut rig = Rig::routed(MaySend::anything());
    for kind in [5, 9, 10] {
        let frame = from_station(PEER_STATION, &icmp(SERVER, PEER, &[kind, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(rig.refused(&frame), [(DropReason::NodeOnly, 1)], "{kind}");
    }
    for kind in [0, 3, 8, 11] {
        let frame = from_station(PEER_STATION, &icmp(SERVER, PEER, &[kind, 0, 0, 0, 0, 0, 0, 0]));
        rig.leave(&frame);
        assert_eq!(rig.left(), [frame], "{kind}");
    }
    let empty = from_station(PEER_STATION, &icmp(SERVER, PEER, &[]));
    assert_eq!(rig.refused(&empty), [(DropReason::NodeOnly, 1)]);
    // A later fragment has data there.
    let later = from_station(PEER_STATION, &ipv4_fragment(SERVER, PEER, 1, [0, 4], &[5; 8]));
    rig.leave(&later);
    assert_eq!(rig.left(), [later]);
}

#[test]
fn no_packet_leaves_from_an_address_that_no_host_has() {
    let everything = ["0.0.0.0/0", "::/0"].map(|net| net.parse().unwrap());
    let mut rig = Rig::routed(MaySend { sources: Arc::new(everything), ..MaySend::default() });
    for from in [[224, 0, 0, 251], [255; 4], [240, 0, 0, 1], [0; 4], [0, 1, 2, 3], [127, 0, 0, 1]] {
        let frame = from_station(PEER_STATION, &packet(from.into(), PEER));
        assert_eq!(rig.refused(&frame), [(DropReason::ForgedSource, 1)], "{from:?}");
    }
    let to: Ipv6Addr = "fd77::8".parse().unwrap();
    for from in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
        let frame = from_station(PEER_STATION, &ipv6(from.parse().unwrap(), to, UDP, 64, &udp(7, 7, b"")));
        assert_eq!(rig.refused(&frame), [(DropReason::ForgedSource, 1)], "{from}");
    }
    let good = from_station(PEER_STATION, &packet([8, 8, 8, 8].into(), PEER));
    rig.leave(&good);
    assert_eq!(rig.left(), [good]);
}

#[test]
fn a_group_that_a_chain_listens_to_is_no_source_and_a_host_without_address_stays_one() {
    let groups = [[10, 77, 0, 255].into(), [224, 0, 0, 251].into(), Ipv4Addr::BROADCAST];
    let mut rig = Rig::routed(MaySend::default());
    let rule_to = |group: &Ipv4Addr| {
        let matches = Match { destination: Some(IpAddr::V4(*group).into()), ..Match::default() };
        Rule { matches, ..rule(Policy::Shared, 0) }
    };
    rig.set_rules(groups.iter().map(rule_to).collect());
    let to_all = |from, to| ethernet([0xff; 6], STATION, IPV4, &packet(from, to));
    for (from, group) in [(client(1), groups[0]), (client(2), groups[1]), (Ipv4Addr::UNSPECIFIED, groups[2])] {
        rig.send_and_poll(&[ethernet([0xff; 6], CLIENT, IPV4, &packet(from, group))]);
    }
    assert_eq!(rig.targets(), [10; 3]);
    for group in groups {
        assert_eq!(rig.refused(&to_all(group, PEER)), [(DropReason::ForgedSource, 1)], "{group}");
    }
    let asks = to_all(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
    rig.leave(&asks);
    assert_eq!(rig.left(), [asks]);
    assert_eq!(rig.refused(&to_all(Ipv4Addr::UNSPECIFIED, PEER)), [(DropReason::ForgedSource, 1)]);
}

#[test]
fn what_bridges_say_to_each_other_and_vlans_by_other_names_leave_from_no_chain() {
    let mut rig = Rig::routed(MaySend::anything());
    let of_bridges: [[u8; 6]; 5] = [
        [1, 0x80, 0xc2, 0, 0, 0x0e],
        [1, 0x80, 0xc2, 0, 0, 0x20],
        [1, 0x80, 0xc2, 0, 0, 0x2f],
        [1, 0, 0x0c, 0xcc, 0xcc, 0xcc],
        [1, 0, 0x0c, 0xcc, 0xcc, 0xcd],
    ];
    for to in of_bridges {
        assert_eq!(rig.refused(&ethernet(to, STATION, 0x88f5, &[0; 46])), [(DropReason::NodeOnly, 1)], "{to:?}");
    }
    // Pause frames to one station, ARP in another wrapping, and spanning tree to any station.
    let arp_in_llc = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 6][..], &[0; 28]].concat();
    for (kind, payload) in [(0x8808, vec![0, 1, 0xff, 0xff]), (36, arp_in_llc), (38, vec![0x42; 38])] {
        assert_eq!(rig.refused(&ethernet(PEER_STATION, STATION, kind, &payload)), [(DropReason::NodeOnly, 1)]);
    }
    for tag in [0x9100, 0x9200, 0x9300, 0x88e7, 0x8926, 0x893f] {
        let frame = ethernet(PEER_STATION, STATION, tag, &[0, 7, 8, 6, 0, 1, 8, 0]);
        assert_eq!(rig.refused(&frame), [(DropReason::ForeignVlan, 1)], "{tag:#x}");
    }
    let other = ethernet(PEER_STATION, STATION, 0x88b5, &[0; 46]);
    rig.leave(&other);
    assert_eq!(rig.left(), [other]);
}

#[test]
fn the_address_of_a_flow_that_goes_on_stays_a_source_in_a_flood_of_others() {
    let mut rig = Rig::routed(MaySend::default());
    let answer = from_station(CLIENT, &packet(SERVER, client(1)));
    for second in 0..60 {
        rig.now_ns += SECOND_NS;
        let stranger = |number: u8| Ipv4Addr::new(172, 16, second, number);
        let flood = |number| to_station(&ipv4(stranger(number), Ipv4Addr::new(10, 77, 0, 3), UDP, &udp(9, 9, b"")));
        let frames: Vec<_> = (0..30).map(flood).chain([datagram(1, 50, 0)]).collect();
        rig.send_and_poll(&frames);
        rig.delivered();
    }
    rig.leave(&answer);
    assert_eq!(rig.left(), [answer]);
}

#[test]
fn errors_fragments_and_flows_come_in_by_the_way_that_leads_to_their_sender() {
    let inside = Ipv4Addr::new(10, 99, 0, 9);
    let fragment = to_station(&ipv4_fragment(inside, SERVER, UDP, [0x20, 4], &[0; 32]));
    let flow = to_station(&ipv4(inside, SERVER, UDP, &udp(50, 7, b"forged")));
    let quoted = ipv4(SERVER, client(1), UDP, &udp(7, 50, b"answer"));
    let error = to_station(&icmp(inside, SERVER, &[&[3, 3, 0, 0, 0, 0, 0, 0], &quoted[..28]].concat()));
    let mut rig = with_reverse_path(ReversePath::Strict);
    rig.ready(0, 10);
    rig.send_and_poll(&[datagram(1, 50, 0)]);
    assert_eq!(rig.targets(), [10]);
    rig.send_and_poll(&[fragment.clone(), flow.clone(), error.clone()]);
    assert_eq!((rig.targets(), rig.drops(DropReason::ReversePath)), (vec![], 3));
    let mut rig = with_reverse_path(ReversePath::Loose);
    rig.ready(0, 10);
    rig.send_and_poll(&[datagram(1, 50, 0), fragment, flow, error]);
    assert_eq!((rig.targets().len(), rig.drops(DropReason::ReversePath)), (3, 0), "the fragment waits for the first");
}

#[test]
fn a_host_without_an_address_asks_for_one_whatever_reverse_path_is_asked_for() {
    for asked in [ReversePath::Strict, ReversePath::Loose] {
        let mut rig = with_reverse_path(asked);
        let matches = Match { destination: Some("255.255.255.255/32".parse().unwrap()), ..Match::default() };
        rig.set_rules(vec![Rule { matches, ..rule(Policy::Shared, 0) }]);
        rig.ready(0, 10);
        let question = packet(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
        rig.send_and_poll(&[ethernet([0xff; 6], CLIENT, IPV4, &question)]);
        assert_eq!((rig.targets(), rig.drops(DropReason::ReversePath)), (vec![10], 0), "{asked:?}");
    }
}
