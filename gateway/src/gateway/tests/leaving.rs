//! What becomes of frames that leave: which may, and to which station the node sends them.

use super::*;

pub(super) const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);
pub(super) const PEER_STATION: [u8; 6] = [2, 0, 0, 0, 0, 0x50];
pub(super) const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);
pub(super) const SECOND_NS: u64 = 1_000_000_000;
pub(super) const SELF_TENANT: id::Sender = id::Sender { tenant: TenantIndex(0), chain: 0, instance: 0 };

impl Rig {
    /// A gateway whose port has a gateway, and VLAN 100 with an address of its own.
    pub(super) fn routed(may_send: MaySend) -> Self {
        let mut rig = Self::new(1);
        let route = Route { to: "0.0.0.0/0".parse().unwrap(), via: ROUTER.into() };
        let untagged = NetworkSetup {
            addresses: vec!["10.77.0.2/24".parse().unwrap(), "fd77::2/64".parse().unwrap()],
            routes: vec![route],
            ..NetworkSetup::default()
        };
        let vlan = NetworkSetup {
            vlan: Vlan { id: 100, inner_id: 0 },
            addresses: vec!["10.100.0.1/24".parse().unwrap()],
            ..NetworkSetup::default()
        };
        let station = EthernetAddress(STATION);
        rig.gateway.ports[0].networks = [untagged, vlan].iter().map(|setup| Network::new(setup, station)).collect();
        rig.may_send = may_send;
        let in_vlan = Match { vlan: Vlan { id: 100, inner_id: 0 }, ..Match::default() };
        rig.set_rules(vec![rule(Policy::Shared, 0), Rule { matches: in_vlan, ..rule(Policy::Shared, 0) }]);
        rig.ready(0, 10);
        rig.poll();
        rig
    }

    /// Lets the instance of chain 0 send a frame; polls.
    pub(super) fn leave(&mut self, bytes: &[u8]) {
        self.leave_from(SELF_TENANT, bytes);
    }

    /// Lets an instance send a frame; polls.
    pub(super) fn leave_from(&mut self, sender: id::Sender, bytes: &[u8]) {
        let mut buffer = self.mmas[0].empty.pop().expect("MMA is kept supplied with empty buffers");
        buffer.bytes_mut(bytes.len() as u32).copy_from_slice(bytes);
        let frame = Frame::new(buffer, bytes.len() as u32);
        self.mmas[0].outbound.push(Outbound { frame, sender }).unwrap();
        self.poll();
    }

    /// Takes what has left by the port, without the node's announcements.
    pub(super) fn left(&mut self) -> Vec<Vec<u8>> {
        let announces = |frame: &[u8]| {
            let arp = frame.len() == 42 && frame[12..14] == [8, 6] && frame[28..32] == frame[38..42];
            arp || (frame.len() > 54 && frame[12..14] == [0x86, 0xdd] && frame[54] == 136 && frame[0] == 0x33)
                || (frame.len() == 46 && frame[32..36] == frame[42..46])
                || is_report(frame)
        };
        std::iter::from_fn(|| self.peers[0].receive()).filter(|frame| !announces(frame)).collect()
    }

    /// Passes time, and polls as often as a gateway does.
    pub(super) fn pass(&mut self, ns: u64) {
        for _ in 0..ns / (SECOND_NS / 100) {
            self.now_ns += SECOND_NS / 100;
            self.poll();
        }
    }

    pub(super) fn refused(&mut self, frame: &[u8]) -> Vec<(DropReason, u64)> {
        let before = self.chain_drops(0);
        self.leave(frame);
        assert_eq!(self.left(), Vec::<Vec<u8>>::new(), "it does not leave");
        self.chain_drops(0).into_iter().filter(|drop| !before.contains(drop)).map(|(reason, _)| (reason, 1)).collect()
    }
}

/// Returns whether a frame, without tags, reports a group.
pub(super) fn is_report(frame: &[u8]) -> bool {
    frame.len() == 90 && frame[12..14] == [0x86, 0xdd] && frame[54..56] == [58, 0] && frame[62] == 143
}

/// A frame from the port's station, with this packet.
pub(super) fn from_station(to: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 4 { IPV4 } else { IPV6 };
    ethernet(to, STATION, ethertype, packet)
}

/// A frame whose addresses are the node's to write.
pub(super) fn unaddressed(packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 4 { IPV4 } else { IPV6 };
    ethernet([0; 6], [0; 6], ethertype, packet)
}

pub(super) fn packet(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    ipv4(from, to, UDP, &udp(7, 5000, b"answer"))
}

fn own() -> MaySend {
    MaySend { sources: Arc::new(["10.99.0.0/24".parse().unwrap()]), ..MaySend::default() }
}

#[test]
fn what_came_in_by_the_chain_may_leave_from_either_address_and_nothing_else() {
    let mut rig = Rig::routed(MaySend::default());
    let answer = from_station(CLIENT, &packet(SERVER, client(1)));
    assert_eq!(rig.refused(&answer), [(DropReason::ForgedSource, 1)]);
    rig.send_and_poll(&[ping(1, 1)]);
    rig.leave(&answer);
    let passed_on = from_station(PEER_STATION, &packet(client(1), PEER));
    rig.leave(&passed_on);
    assert_eq!(rig.left(), [answer, passed_on]);
    assert_eq!(rig.refused(&from_station(CLIENT, &packet(client(2), PEER))), [(DropReason::ForgedSource, 1)]);
    rig.delivered();
    rig.assert_no_buffer_leaked();
}

#[test]
fn what_another_chain_has_seen_is_no_reason() {
    let mut rig = Rig::routed(MaySend::default());
    let other = Match { protocol: Some(1), ..Match::default() };
    rig.set_rules(vec![Rule { matches: other, ..rule(Policy::Shared, 1) }, rule(Policy::Shared, 0)]);
    rig.ready(1, 20);
    rig.send_and_poll(&[ping(1, 1)]);
    assert_eq!(rig.targets(), [20]);
    assert_eq!(rig.refused(&from_station(CLIENT, &packet(SERVER, client(1)))), [(DropReason::ForgedSource, 1)]);
}

#[test]
fn an_address_of_the_tenant_may_be_a_source_at_once() {
    let mut rig = Rig::routed(own());
    let frame = from_station(PEER_STATION, &packet(Ipv4Addr::new(10, 99, 0, 1), PEER));
    rig.leave(&frame);
    assert_eq!(rig.left(), [frame]);
    let other = from_station(PEER_STATION, &packet(Ipv4Addr::new(10, 99, 1, 1), PEER));
    assert_eq!(rig.refused(&other), [(DropReason::ForgedSource, 1)]);
}

#[test]
fn each_kind_of_forged_frame_is_dropped_with_a_reason_of_its_own() {
    let mut rig = Rig::routed(own());
    let source = Ipv4Addr::new(10, 99, 0, 1);
    let good = from_station(PEER_STATION, &packet(source, PEER));
    let foreign = [&PEER_STATION[..], &CLIENT, &good[12..]].concat();
    assert_eq!(rig.refused(&foreign), [(DropReason::ForeignStation, 1)]);
    assert_eq!(rig.refused(&[&[0xff; 6], &[0xff; 6][..], &good[12..]].concat()), [(DropReason::ForeignStation, 1)]);
    for kind in [0x0806, 0x88cc, 0x8847, 0x0026, 0x9000, 0x0800] {
        let reasons = rig.refused(&ethernet(PEER_STATION, STATION, kind, &[0; 46]));
        let expected = match kind {
            0x0806 => DropReason::NodeOnly,
            0x0800 => DropReason::Malformed,
            _ => DropReason::NotIp,
        };
        assert_eq!(reasons, [(expected, 1)], "{kind:#x}");
    }
    let bridges = ethernet([1, 0x80, 0xc2, 0, 0, 0], STATION, 0x0026, &[0x42; 46]);
    assert_eq!(rig.refused(&bridges), [(DropReason::NodeOnly, 1)]);
    assert_eq!(rig.refused(&tagged(&good, &[(0x8100, 101)])), [(DropReason::ForeignVlan, 1)]);
    assert_eq!(rig.refused(&tagged(&good, &[(0x8100, 0), (0x8100, 100)])), [(DropReason::ForeignVlan, 1)]);
    assert_eq!(rig.refused(&tagged(&good, &[(0x8100, 100); 3])), [(DropReason::Malformed, 1)]);
    for len in 14..34 + 14 {
        assert_eq!(rig.refused(&good[..len]), [(DropReason::Malformed, 1)], "{len} bytes");
    }
    rig.leave(&tagged(&good, &[(0x8100, 100)]));
    assert_eq!(rig.left(), [tagged(&good, &[(0x8100, 100)])]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn discovery_comes_from_the_node_alone_wherever_in_the_packet_it_is() {
    let mut rig = Rig::routed(MaySend { transparent: true, ..MaySend::default() });
    let (from, to) = ("fd77::9".parse().unwrap(), "fd77::8".parse().unwrap());
    for kind in 133..=137 {
        let message = icmpv6(from, to, &[&[kind, 0, 0, 0, 0, 0, 0, 0][..], &[0; 16]].concat());
        let plain = from_station(PEER_STATION, &ipv6(from, to, ICMPV6, 255, &message));
        let behind = [&[ICMPV6, 0, 1, 4, 0, 0, 0, 0][..], &message].concat();
        let hidden = from_station(PEER_STATION, &ipv6(from, to, 0, 255, &behind));
        let twice = [&[60, 0, 1, 4, 0, 0, 0, 0][..], &behind].concat();
        let hidden_twice = from_station(PEER_STATION, &ipv6(from, to, 0, 255, &twice));
        for frame in [plain, hidden, hidden_twice] {
            assert_eq!(rig.refused(&frame), [(DropReason::NodeOnly, 1)], "{kind}");
        }
    }
    let request = arp_request((CLIENT, client(1)), SERVER);
    assert_eq!(rig.refused(&request), [(DropReason::NodeOnly, 1)], "nor does a transparent chain send it");
    let echo = from_station(PEER_STATION, &ipv6(from, to, ICMPV6, 64, &icmpv6(from, to, &[128, 0, 0, 0, 0, 0, 0, 0])));
    rig.leave(&echo);
    assert_eq!(rig.left(), [echo]);
}

#[test]
fn a_chain_that_forwards_transparently_may_send_from_any_address_and_station() {
    let mut rig = Rig::routed(MaySend::anything());
    let frame = ethernet(PEER_STATION, CLIENT, IPV4, &packet(Ipv4Addr::new(8, 8, 8, 8), PEER));
    let other = ethernet(PEER_STATION, CLIENT, 0x8847, &[0; 46]);
    rig.leave(&frame);
    rig.leave(&other);
    assert_eq!(rig.left(), [frame, other]);
}

#[test]
fn a_sender_whose_chain_is_gone_or_is_another_tenants_now_sends_nothing() {
    let mut rig = Rig::routed(MaySend::anything());
    let frame = from_station(PEER_STATION, &packet(SERVER, PEER));
    let mut leave = |sender: id::Sender| {
        let mut buffer = rig.mmas[0].empty.pop().unwrap();
        buffer.bytes_mut(frame.len() as u32).copy_from_slice(&frame);
        let frame = Frame::new(buffer, frame.len() as u32);
        rig.mmas[0].outbound.push(Outbound { frame, sender }).unwrap();
        rig.poll();
        rig.left().len()
    };
    let left =
        [SELF_TENANT, id::Sender { tenant: TenantIndex(1), ..SELF_TENANT }, id::Sender { chain: 9, ..SELF_TENANT }];
    assert_eq!(left.map(&mut leave), [1, 0, 0]);
    assert_eq!(rig.drops(DropReason::ChainUnavailable), 2);
}

/// What the node asks for an address, and the answer.
fn request(target: Ipv4Addr) -> Vec<u8> {
    arp_request((STATION, SERVER), target)
}

fn reply(target: Ipv4Addr, station: [u8; 6]) -> Vec<u8> {
    ethernet(STATION, station, ARP, &arp(2, (station, target), (STATION, SERVER)))
}

#[test]
fn a_frame_that_the_node_addresses_waits_until_its_next_hop_has_answered() {
    let mut rig = Rig::routed(own());
    let source = Ipv4Addr::new(10, 99, 0, 1);
    let (near, far) = (packet(source, PEER), packet(source, Ipv4Addr::new(8, 8, 8, 8)));
    rig.leave(&unaddressed(&near));
    assert_eq!(rig.left(), [request(PEER)]);
    rig.leave(&unaddressed(&near));
    assert_eq!(rig.left(), Vec::<Vec<u8>>::new(), "it is asked for once");
    rig.leave(&unaddressed(&far));
    assert_eq!(rig.left(), [request(ROUTER)]);
    rig.send_and_poll(&[reply(PEER, PEER_STATION), reply(ROUTER, CLIENT)]);
    let sent = [from_station(PEER_STATION, &near), from_station(PEER_STATION, &near), from_station(CLIENT, &far)];
    assert_eq!(rig.left(), sent);
    rig.leave(&unaddressed(&far));
    assert_eq!(rig.left(), [from_station(CLIENT, &far)]);
    assert_eq!(rig.gateway.observer().ports().next().unwrap().neighbors_heard.value(), 2);
    rig.assert_no_buffer_leaked();
}

#[test]
fn the_node_addresses_all_frames_of_a_chain_that_leaves_it_to_the_node() {
    let mut rig = Rig::routed(MaySend { routed: true, ..own() });
    let near = packet(Ipv4Addr::new(10, 99, 0, 1), PEER);
    rig.leave(&ethernet(CLIENT, CLIENT, IPV4, &near));
    rig.send_and_poll(&[reply(PEER, PEER_STATION)]);
    assert_eq!(rig.left(), [request(PEER), from_station(PEER_STATION, &near)]);
}

#[test]
fn a_next_hop_that_does_not_answer_costs_its_frames_only() {
    let mut rig = Rig::routed(own());
    let frame = unaddressed(&packet(Ipv4Addr::new(10, 99, 0, 1), PEER));
    rig.leave(&frame);
    rig.pass(5 * SECOND_NS);
    assert_eq!(rig.left(), [request(PEER), request(PEER), request(PEER)]);
    assert_eq!(rig.chain_drops(0), [(DropReason::UnresolvedNeighbor, 1)]);
    (0..20).for_each(|_| rig.leave(&frame));
    assert_eq!(rig.left(), Vec::<Vec<u8>>::new(), "it was asked for in vain just before");
    rig.pass(3 * SECOND_NS);
    rig.leave(&frame);
    assert_eq!(rig.left(), [request(PEER)]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_frame_with_which_its_next_hop_is_given_up_is_dropped_with_those_that_waited() {
    let mut rig = Rig::routed(own());
    let frame = unaddressed(&packet(Ipv4Addr::new(10, 99, 0, 1), PEER));
    // The sweep does not come to the entry between them: each frame's own look is the one that is due.
    for second in 0..4 {
        rig.now_ns = second * SECOND_NS;
        rig.leave(&frame);
    }
    assert_eq!(rig.left(), [request(PEER), request(PEER), request(PEER)]);
    assert_eq!(rig.chain_drops(0), [(DropReason::UnresolvedNeighbor, 4)]);
    assert_eq!(rig.gateway.out.waiting(), 0);
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_packet_without_a_route_is_dropped() {
    let mut rig = Rig::routed(own());
    let source = Ipv4Addr::new(10, 99, 0, 1);
    rig.gateway.ports[0].networks[0] = Network::new(&NetworkSetup::default(), EthernetAddress(STATION));
    assert_eq!(rig.refused(&unaddressed(&packet(source, PEER))), [(DropReason::NoRoute, 1)]);
    let in_vlan = |to: Ipv4Addr| tagged(&unaddressed(&packet(source, to)), &[(0x8100, 100)]);
    assert_eq!(rig.refused(&in_vlan(Ipv4Addr::new(10, 100, 0, 1))), [(DropReason::NoRoute, 1)], "to the node itself");
    assert_eq!(rig.refused(&in_vlan(PEER)), [(DropReason::NoRoute, 1)], "beyond the link, without a gateway");
}

#[test]
fn neighbours_in_a_vlan_are_asked_for_there() {
    let mut rig = Rig::routed(own());
    let (vlan, theirs) = ([(0x8100, 100)], Ipv4Addr::new(10, 100, 0, 9));
    let near = packet(Ipv4Addr::new(10, 99, 0, 1), theirs);
    rig.leave(&tagged(&unaddressed(&near), &vlan));
    let asked = arp_request((STATION, Ipv4Addr::new(10, 100, 0, 1)), theirs);
    assert_eq!(rig.left(), [tagged(&asked, &vlan)]);
    rig.send_and_poll(&[reply(theirs, PEER_STATION)]);
    assert_eq!(rig.left(), Vec::<Vec<u8>>::new(), "an answer on another network tells nothing");
    rig.send_and_poll(&[tagged(&reply(theirs, PEER_STATION), &vlan)]);
    assert_eq!(rig.left(), [tagged(&from_station(PEER_STATION, &near), &vlan)]);
}

#[test]
fn the_nodes_own_messages_have_tags_of_the_types_that_were_last_heard_in_their_vlan() {
    let mut rig = Rig::routed(own());
    let near = |number| tagged(&unaddressed(&packet(Ipv4Addr::new(10, 99, 0, 1), number)), &[(0x8100, 100)]);
    let asked = |number, kind| tagged(&arp_request((STATION, [10, 100, 0, 1].into()), number), &[(kind, 100)]);
    let [first, second, third] = [7, 8, 9].map(|number| Ipv4Addr::new(10, 100, 0, number));
    rig.leave(&near(first));
    assert_eq!(rig.left(), [asked(first, 0x8100)]);
    rig.send_and_poll(&[tagged(&reply(first, PEER_STATION), &[(0x88a8, 100)])]);
    rig.left();
    rig.leave(&near(second));
    assert_eq!(rig.left(), [asked(second, 0x88a8)]);
    rig.send_and_poll(&[tagged(&arp_request((PEER_STATION, ROUTER), PEER), &[(0x8100, 200)]), request(PEER)]);
    rig.leave(&near(third));
    assert_eq!(rig.left(), [asked(third, 0x88a8)], "what is heard in other networks does not count");
}

#[test]
fn packets_for_a_group_go_to_its_station_without_asking() {
    let mut rig = Rig::routed(own());
    let group = packet(Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(239, 129, 2, 3));
    rig.leave(&unaddressed(&group));
    assert_eq!(rig.left(), [from_station([1, 0, 0x5e, 1, 2, 3], &group)]);
}

#[test]
fn packets_for_all_on_the_link_go_to_all_stations_and_those_for_all_of_a_network_to_none() {
    let mut rig = Rig::routed(own());
    let to_all = packet(Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::BROADCAST);
    rig.leave(&unaddressed(&to_all));
    assert_eq!(rig.left(), [from_station([0xff; 6], &to_all)]);
    let to_network = packet(Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 77, 0, 255));
    assert_eq!(rig.refused(&unaddressed(&to_network)), [(DropReason::NoRoute, 1)]);
    let elsewhere = packet(Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 78, 0, 255));
    rig.leave(&unaddressed(&elsewhere));
    assert_eq!(rig.left(), [request(ROUTER)], "that of another network is a router's to know");
}

#[test]
fn packets_for_addresses_of_no_host_have_no_route() {
    let sources = ["10.99.0.0/24", "fd99::/64"].map(|net| net.parse().unwrap());
    let mut rig = Rig::routed(MaySend { sources: Arc::new(sources), ..MaySend::default() });
    let setup = NetworkSetup {
        addresses: vec!["10.77.0.2/24".parse().unwrap(), "fd77::2/64".parse().unwrap()],
        routes: vec![
            Route { to: "0.0.0.0/0".parse().unwrap(), via: ROUTER.into() },
            Route { to: "::/0".parse().unwrap(), via: "fe80::1".parse().unwrap() },
        ],
        ..NetworkSetup::default()
    };
    rig.gateway.ports[0].networks[0] = Network::new(&setup, EthernetAddress(STATION));
    let of_v4 = ["127.0.0.1", "0.0.0.1", "240.0.0.1", "255.255.255.254"];
    for to in of_v4.map(|to| to.parse().unwrap()) {
        assert_eq!(way_out(&mut rig, &packet(Ipv4Addr::new(10, 99, 0, 1), to)), 0, "{to}");
    }
    let from = "fd99::1".parse().unwrap();
    let of_v6 = |to: &str| ipv6(from, to.parse().unwrap(), UDP, 64, &udp(7, 5000, b"answer"));
    for to in ["::", "::1", "::ffff:10.0.0.1", "ff00::1", "ff01::1"] {
        assert_eq!(way_out(&mut rig, &of_v6(to)), 0, "{to}");
    }
    assert_eq!(rig.chain_drops(0), [(DropReason::NoRoute, 9)]);
    assert_eq!(way_out(&mut rig, &of_v6("ff02::5")), 1, "a group on the link");
    assert_eq!(way_out(&mut rig, &of_v6("2001:db8::1")), 1, "the router is asked for");
}

/// Returns how many frames leave for one with this packet, which the node addresses.
fn way_out(rig: &mut Rig, packet: &[u8]) -> usize {
    rig.leave(&unaddressed(packet));
    rig.left().len()
}

#[test]
fn the_node_announces_its_addresses_in_all_networks_once() {
    let mut rig = Rig::routed(own());
    rig.pass(SECOND_NS / 2);
    let left: Vec<_> = std::iter::from_fn(|| rig.peers[0].receive()).filter(|frame| !is_report(frame)).collect();
    let of_arp = |frame: &&Vec<u8>| frame[12..14] == [8, 6] || frame[16..18] == [8, 6];
    let vlan = arp_request((STATION, Ipv4Addr::new(10, 100, 0, 1)), Ipv4Addr::new(10, 100, 0, 1));
    let arps: Vec<_> = left.iter().filter(of_arp).cloned().collect();
    assert_eq!(arps, [request(SERVER), tagged(&vlan, &[(0x8100, 100)])]);
    assert_eq!(left.len(), 2 + 2, "and the IPv6 address, and the link-local one");
}

#[test]
fn what_the_gateway_makes_itself_is_told_apart_from_what_leaves_for_chains_and_from_answers() {
    let mut rig = Rig::routed(own());
    rig.pass(SECOND_NS / 2);
    let made = |rig: &Rig| rig.gateway.observer().ports().next().unwrap().made.value();
    let announced = std::iter::from_fn(|| rig.peers[0].receive()).count() as u64;
    assert_eq!(made(&rig), announced);
    rig.send_and_poll(&[to_all_arp()]);
    rig.leave(&from_station(PEER_STATION, &packet(Ipv4Addr::new(10, 99, 0, 1), PEER)));
    assert_eq!((rig.left().len(), made(&rig)), (2, announced), "an answer, and a chain's packet");
    rig.leave(&unaddressed(&packet(Ipv4Addr::new(10, 99, 0, 1), PEER)));
    assert_eq!((rig.left(), made(&rig)), (vec![request(PEER)], announced + 1));
}

/// A question for the port's address.
fn to_all_arp() -> Vec<u8> {
    ethernet([0xff; 6], CLIENT, ARP, &arp_request((CLIENT, client(1)), SERVER)[14..])
}

#[test]
fn the_node_reports_the_groups_of_its_addresses_twice_when_it_starts_and_as_often_as_routers_ask() {
    let mut rig = Rig::routed(own());
    let mut reports = |ns| {
        rig.pass(ns);
        let reports = std::iter::from_fn(|| rig.peers[0].receive()).filter(|frame| is_report(frame));
        reports.map(|frame| (frame[70], frame[87..90].to_vec())).collect::<Vec<_>>()
    };
    let of_both = |kind| [(kind, vec![0, 0, 2]), (kind, vec![0, 0, 1])];
    assert_eq!(reports(SECOND_NS / 2), of_both(4), "it begins to listen");
    assert_eq!(reports(SECOND_NS), of_both(2), "it goes on");
    assert_eq!(reports(120 * SECOND_NS), []);
    assert_eq!(reports(10 * SECOND_NS), of_both(2));
    assert_eq!(reports(125 * SECOND_NS), of_both(2));
}

#[test]
fn a_flood_of_forged_replies_makes_no_neighbour_and_changes_none_that_is_known() {
    let mut rig = Rig::routed(own());
    let near = packet(Ipv4Addr::new(10, 99, 0, 1), PEER);
    rig.leave(&unaddressed(&near));
    rig.send_and_poll(&[reply(PEER, PEER_STATION)]);
    rig.left();
    for number in 0..5_000_u32 {
        let [_, _, a, b] = number.to_be_bytes();
        rig.send_and_poll(&[reply(Ipv4Addr::new(10, 77, a, b), [2, 9, 9, 9, a, b])]);
        if Ipv4Addr::new(10, 77, a, b) == PEER {
            rig.send_and_poll(&[reply(PEER, PEER_STATION)]);
        }
    }
    rig.leave(&unaddressed(&near));
    assert_eq!(rig.left().last(), Some(&from_station(PEER_STATION, &near)));
    assert_eq!(rig.drops(DropReason::NotForUs) + rig.drops(DropReason::AddressConflict), 4_999);
    rig.assert_no_buffer_leaked();
}
