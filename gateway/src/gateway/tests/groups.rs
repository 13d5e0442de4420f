//! Packets to groups and broadcast addresses, and from and to addresses that no host has.

use super::*;
use std::net::Ipv6Addr;

/// A packet to a group, in a frame for all stations.
fn to_group(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    ethernet([0xff; 6], CLIENT, IPV4, &ipv4(from, to, UDP, &udp(68, 67, b"to all")))
}

fn rule_to(destination: &str, chain: u32) -> Rule {
    let matches = Match { destination: Some(destination.parse().unwrap()), ..Match::default() };
    rule_of(matches, chain)
}

fn rule_of(matches: Match, chain: u32) -> Rule {
    Rule { matches, ..rule(Policy::Shared, chain) }
}

#[test]
fn packets_to_groups_and_broadcast_addresses_start_no_instance_unless_a_rule_names_their_destination() {
    let groups: [Ipv4Addr; 4] =
        [[224, 0, 0, 251].into(), [239, 1, 2, 3].into(), Ipv4Addr::BROADCAST, [10, 77, 0, 255].into()];
    let wide = ["0.0.0.0/0", "10.77.0.0/24", "128.0.0.0/1"];
    let mut rig = Rig::new(1);
    rig.set_rules(wide.map(|net| rule_to(net, 0)).into_iter().chain([rule(Policy::PerFlow, 0)]).collect());
    rig.ready(0, 10);
    rig.send_and_poll(&groups.map(|group| to_group(client(1), group)));
    assert_eq!((rig.targets(), rig.events(), rig.drops(DropReason::GroupNotAsked)), (vec![], vec![], 4));
    let named = ["224.0.0.0/4", "255.255.255.255/32", "10.77.0.255/32"];
    rig.set_rules(named.map(|net| rule_to(net, 0)).into());
    rig.send_and_poll(&groups.map(|group| to_group(client(1), group)));
    assert_eq!(rig.targets(), [10; 4]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn multicast_of_ipv6_needs_a_rule_that_names_it() {
    let listener_report = |group: &str| {
        let packet = ipv6("fe80::9".parse().unwrap(), group.parse().unwrap(), ICMPV6, 1, &[143, 0, 0, 0, 0, 0, 0, 0]);
        ethernet([0x33, 0x33, 0, 0, 0, 0x16], CLIENT, IPV6, &packet)
    };
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.ready(0, 10);
    rig.send_and_poll(&[listener_report("ff02::16"), listener_report("ff01::16")]);
    assert_eq!((rig.drops(DropReason::GroupNotAsked), rig.drops(DropReason::Martian)), (1, 1));
    rig.set_rules(vec![rule_to("ff02::/16", 0)]);
    rig.send_and_poll(&[listener_report("ff02::16"), listener_report("ff05::16")]);
    assert_eq!((rig.targets(), rig.drops(DropReason::GroupNotAsked)), (vec![10], 2));
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_host_without_an_address_reaches_a_chain_for_broadcast_only() {
    let question = to_group(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
    let mut rig = Rig::with_policy(Policy::Shared);
    rig.ready(0, 10);
    rig.send_and_poll(std::slice::from_ref(&question));
    assert_eq!((rig.targets(), rig.drops(DropReason::GroupNotAsked)), (vec![], 1));
    let dhcp = Match {
        destination: Some(IpAddr::V4(Ipv4Addr::BROADCAST).into()),
        protocol: Some(UDP),
        destination_ports: Some(67..=67),
        ..Match::default()
    };
    rig.set_rules(vec![rule_of(dhcp, 0), rule(Policy::Shared, 0)]);
    let to_host = to_station(&ipv4(Ipv4Addr::UNSPECIFIED, SERVER, UDP, &udp(68, 67, b"data")));
    rig.send_and_poll(&[question, to_host]);
    assert_eq!((rig.targets(), rig.drops(DropReason::Martian)), (vec![10], 1));
    rig.assert_no_buffer_leaked();
}

#[test]
fn martians_are_dropped_whatever_the_rules_are_and_looked_up_once() {
    let from = |source: Ipv4Addr| to_station(&ipv4(source, SERVER, UDP, &udp(9, 7, b"data")));
    let to = |destination: Ipv4Addr| to_station(&ipv4(client(1), destination, UDP, &udp(9, 7, b"data")));
    let from_v6 =
        |source: Ipv6Addr| to_station(&ipv6(source, "fd77::2".parse().unwrap(), UDP, 64, &udp(9, 7, b"data")));
    let frames = [
        from([127, 0, 0, 1].into()),
        from([0, 0, 0, 0].into()),
        from([224, 0, 0, 1].into()),
        from([250, 0, 0, 1].into()),
        from(Ipv4Addr::BROADCAST),
        from(SERVER),
        to([127, 0, 0, 1].into()),
        to([0, 0, 0, 0].into()),
        to([250, 0, 0, 1].into()),
        from_v6(Ipv6Addr::UNSPECIFIED),
        from_v6(Ipv6Addr::LOCALHOST),
        from_v6("::ffff:10.77.0.9".parse().unwrap()),
        from_v6("ff02::1".parse().unwrap()),
        from_v6("fd77::2".parse().unwrap()),
    ];
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.ready(0, 10);
    for round in 1..=3 {
        rig.send_and_poll(&frames);
        assert_eq!(rig.drops(DropReason::Martian), round * frames.len() as u64);
        assert_eq!(rig.gateway.observer().flows(), frames.len(), "the verdicts are noted");
    }
    // A fragment's wait for none.
    rig.send_and_poll(&[to_station(&ipv4_fragment(Ipv4Addr::LOCALHOST, SERVER, UDP, [0x20, 8], &[0; 8]))]);
    assert_eq!(rig.drops(DropReason::Martian), 3 * frames.len() as u64 + 1);
    assert_eq!((rig.targets(), rig.events()), (vec![], vec![]));
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_packet_for_one_host_in_a_frame_for_many_stations_is_dropped_and_its_flow_goes_on() {
    let mut rig = Rig::with_policy(Policy::PerFlow);
    rig.ready(0, 10);
    let in_group_frame = |mut frame: Vec<u8>, group: [u8; 6]| {
        frame[..6].copy_from_slice(&group);
        frame
    };
    for group in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
        // Before and after its flow was seen, by the short way and the long one.
        rig.send_and_poll(&[
            in_group_frame(datagram(1, 9, 0), group),
            datagram(1, 9, 1),
            in_group_frame(datagram(1, 9, 2), group),
        ]);
        let marks: Vec<_> = rig.delivered().into_iter().map(|(.., frame)| *frame.last().unwrap()).collect();
        assert_eq!(marks, [1]);
    }
    assert_eq!(rig.drops(DropReason::UnicastToGroup), 6);
    rig.assert_no_buffer_leaked();
    // Also on a port that takes in frames for any station.
    let mut rig = Rig::promiscuous();
    rig.ready(0, 10);
    rig.send_and_poll(&[
        in_group_frame(datagram(1, 9, 0), [0xff; 6]),
        in_group_frame(datagram(1, 9, 1), [2, 9, 9, 9, 9, 9]),
    ]);
    assert_eq!((rig.targets(), rig.drops(DropReason::UnicastToGroup)), (vec![10], 1));
    rig.assert_no_buffer_leaked();
}
