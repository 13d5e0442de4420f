//! What the gateway does with its ports besides receiving for instances: links, stations, answers, transmission.

use super::*;

#[test]
fn requests_for_a_ports_addresses_are_answered_on_that_port_without_any_rule() {
    let mut rig = Rig::new(2);
    let mut station = STATION;
    station[4] = 1;
    let (asker, asker_v6) = ((CLIENT, client(1)), "fd77::9".parse().unwrap());
    rig.peers[1].send(&arp_request(asker, SERVER)).unwrap();
    rig.peers[1].send(&frames::solicitation(asker_v6, "fd77::2".parse().unwrap())).unwrap();
    rig.poll();
    let expected = ethernet(CLIENT, station, ARP, &arp(2, (station, SERVER), asker));
    assert_eq!(rig.peers[1].receive(), Some(expected));
    let advertisement = rig.peers[1].receive().unwrap();
    assert_eq!((advertisement.len(), &advertisement[..6], advertisement[54]), (86, &CLIENT[..], 136));
    assert!(rig.peers[0].receive().is_none() && rig.peers[1].receive().is_none());
    let answered: Vec<_> = rig.gateway.observer().ports().map(|port| port.neighbors_answered.value()).collect();
    assert_eq!((answered, rig.targets()), (vec![0, 2], vec![]));
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_station_that_floods_the_port_with_requests_costs_another_no_answer() {
    let mut rig = Rig::new(1);
    let flooder = [0x02, 0, 0, 0, 0, 0x66];
    let mut answers = |station, requests: usize| {
        let mut answer = || {
            rig.peers[0].send(&arp_request((station, client(1)), SERVER)).unwrap();
            rig.poll();
            usize::from(rig.peers[0].receive().is_some())
        };
        (0..requests).map(|_| answer()).sum::<usize>()
    };
    assert_eq!([answers(flooder, 2_000), answers(CLIENT, 1)], [1024, 1]);
    assert_eq!(rig.drops(DropReason::NeighborRate), 2_000 - 1024);
    rig.assert_no_buffer_leaked();
}

#[test]
fn what_mma_sends_leaves_by_its_port_in_order() {
    let mut rig = Rig::new(2);
    rig.set_rules(vec![rule(Policy::Shared, 0)]);
    for number in 0..100_u8 {
        let mut buffer = rig.mmas[0].empty.pop().expect("MMA is kept supplied with empty buffers");
        buffer.bytes_mut(60).copy_from_slice(&frame_to_leave(number));
        rig.mmas[0].outbound.push(leaving(Frame::new(buffer, 60).of_port(PortIndex(u16::from(number % 2))))).unwrap();
        if number % 40 == 39 {
            rig.poll();
        }
    }
    rig.poll();
    for parity in 0..2 {
        let left: Vec<_> = std::iter::from_fn(|| rig.peers[parity].receive()).map(|frame| frame[59]).collect();
        assert_eq!(left, (0..100).filter(|number| usize::from(number % 2) == parity).collect::<Vec<u8>>());
    }
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_link_that_goes_down_shows_within_a_second_and_so_does_one_that_comes_back() {
    let mut rig = Rig::new(2);
    let up = |rig: &Rig| -> Vec<bool> { rig.gateway.observer().ports().map(PortObserver::link_up).collect() };
    rig.peers[1].set_link(LinkState::Down);
    rig.now_ns += FACTS_INTERVAL_NS;
    rig.poll();
    assert_eq!(up(&rig), [true, false]);
    rig.peers[1].set_link(LinkState::Up);
    rig.now_ns += FACTS_INTERVAL_NS;
    rig.poll();
    assert_eq!(up(&rig), [true, true]);
}

/// A node that asks for a neighbour, and for a group, by its only port.
fn sending() -> (Rig, [Vec<u8>; 2]) {
    let from = Ipv4Addr::new(10, 99, 0, 1);
    let to = |to| leaving::unaddressed(&leaving::packet(from, to));
    let sources = Arc::new(["10.99.0.0/24".parse().unwrap()]);
    let rig = Rig::routed(MaySend { sources, ..MaySend::default() });
    (rig, [to(leaving::PEER), to(Ipv4Addr::new(239, 1, 2, 3))])
}

impl Rig {
    fn set_link(&mut self, link: LinkState) {
        self.peers[0].set_link(link);
        self.now_ns += FACTS_INTERVAL_NS;
        self.poll();
    }

    /// Returns how many frames were dropped because the port's link was down.
    fn without_link(&self) -> u64 {
        self.gateway.ports[0].port.counters().sent.dropped_link_down.value()
    }
}

#[test]
fn frames_that_the_node_addresses_are_dropped_for_the_link_that_is_down_also_those_that_waited() {
    let (mut rig, [to_peer, to_group]) = sending();
    rig.leave(&to_peer);
    rig.leave(&to_group);
    assert_eq!((rig.left().len(), rig.without_link(), rig.gateway.out.waiting()), (2, 0, 1));
    rig.set_link(LinkState::Down);
    assert_eq!((rig.without_link(), rig.gateway.out.waiting()), (1, 0), "one waited");
    // It may have been asked for again right before the link was looked at.
    rig.left();
    for _ in 0..20 {
        rig.leave(&to_peer);
        rig.leave(&to_group);
    }
    rig.pass(5 * leaving::SECOND_NS);
    assert_eq!((rig.without_link(), rig.chain_drops(0), rig.left()), (41, vec![], vec![]));
    rig.set_link(LinkState::Up);
    rig.leave(&to_peer);
    rig.leave(&to_group);
    assert_eq!((rig.left().len(), rig.without_link()), (2, 41), "it is asked for at once");
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_station_behind_a_link_that_was_down_is_asked_for_again() {
    let (mut rig, [to_peer, _]) = sending();
    let answer = ethernet(STATION, CLIENT, ARP, &arp(2, (CLIENT, leaving::PEER), (STATION, SERVER)));
    rig.leave(&to_peer);
    rig.send_and_poll(&[answer]);
    assert_eq!(rig.left().len(), 2, "the question and the frame");
    rig.set_link(LinkState::Down);
    rig.leave(&to_peer);
    assert_eq!((rig.without_link(), rig.left().len()), (1, 0));
    rig.set_link(LinkState::Up);
    rig.leave(&to_peer);
    assert_eq!(rig.left(), [arp_request((STATION, SERVER), leaving::PEER)]);
}

#[test]
fn a_port_with_another_hardware_address_announces_its_addresses_with_it_and_asks_for_its_neighbours_again() {
    let (mut rig, [to_peer, _]) = sending();
    let before = [2, 0, 0, 0, 0, 0x99];
    let state = &mut rig.gateway.ports[0];
    state.station = EthernetAddress(before);
    state.networks.iter_mut().for_each(|network| network.set_station(EthernetAddress(before)));
    rig.leave(&to_peer);
    rig.send_and_poll(&[ethernet(before, CLIENT, ARP, &arp(2, (CLIENT, leaving::PEER), (before, SERVER)))]);
    rig.pass(leaving::SECOND_NS / 10);
    let sent = |rig: &mut Rig| -> Vec<_> { std::iter::from_fn(|| rig.peers[0].receive()).collect() };
    let of_before = sent(&mut rig);
    assert!(of_before.iter().all(|frame| frame[6..12] == before), "{of_before:?}");
    rig.pass(leaving::SECOND_NS);
    let announced: Vec<_> = sent(&mut rig).into_iter().filter(|frame| !leaving::is_report(frame)).collect();
    assert_eq!((announced.len(), &announced[0]), (4, &arp_request((STATION, SERVER), SERVER)));
    rig.pass(5 * leaving::SECOND_NS);
    assert!(sent(&mut rig).iter().all(|frame| leaving::is_report(frame)), "once");
    rig.leave(&to_peer);
    assert_eq!(rig.left(), [arp_request((STATION, SERVER), leaving::PEER)]);
}

#[test]
fn an_address_that_other_stations_claim_is_defended_once_in_ten_seconds() {
    let mut rig = Rig::new(1);
    let announced = arp_request((STATION, SERVER), SERVER);
    let sent = |rig: &mut Rig, ns| -> Vec<_> {
        rig.pass(ns);
        std::iter::from_fn(|| rig.peers[0].receive()).filter(|frame| !leaving::is_report(frame)).collect()
    };
    assert_eq!(sent(&mut rig, leaving::SECOND_NS).len(), 3, "it starts");
    rig.send_and_poll(&vec![arp_request((CLIENT, SERVER), SERVER); 20]);
    assert_eq!(sent(&mut rig, leaving::SECOND_NS / 10), vec![announced.clone()]);
    rig.send_and_poll(&vec![arp_request((CLIENT, SERVER), SERVER); 20]);
    assert_eq!(sent(&mut rig, 9 * leaving::SECOND_NS), Vec::<Vec<u8>>::new());
    assert_eq!(sent(&mut rig, leaving::SECOND_NS), vec![announced.clone()]);
    assert_eq!(sent(&mut rig, 30 * leaving::SECOND_NS), Vec::<Vec<u8>>::new(), "the other is quiet");
    assert_eq!(rig.drops(DropReason::AddressConflict), 40);
    rig.send_and_poll(&[announced]);
    assert_eq!(sent(&mut rig, leaving::SECOND_NS), Vec::<Vec<u8>>::new(), "its own message came back");
    let ours = "fd77::2".parse().unwrap();
    rig.send_and_poll(&[frames::solicitation(ours, "fd77::9".parse().unwrap())]);
    let defence = &sent(&mut rig, leaving::SECOND_NS)[..];
    let [defence] = defence else { panic!("{defence:?}") };
    assert_eq!(
        (&defence[..6], defence[54], &defence[62..78]),
        (&[0x33, 0x33, 0, 0, 0, 1][..], 136, &ours.octets()[..])
    );
    rig.assert_no_buffer_leaked();
}

#[test]
fn no_device_is_asked_for_its_link_while_a_frame_that_ended_a_pause_is_under_way() {
    let mut rig = Rig::with_policy(Policy::Shared);
    let link_up = |rig: &Rig| rig.gateway.observer().ports().next().unwrap().link_up();
    rig.peers[0].set_link(LinkState::Down);
    rig.now_ns += FACTS_INTERVAL_NS;
    rig.send_and_poll(&[ping(1, 1)]);
    rig.now_ns += UNDIVIDED_NS / 2;
    rig.poll();
    assert!(link_up(&rig));
    rig.now_ns += UNDIVIDED_NS / 2;
    rig.poll();
    assert!(!link_up(&rig));
}

#[test]
fn a_gateway_that_always_has_frames_asks_for_links_all_the_same() {
    let mut rig = Rig::with_policy(Policy::Shared);
    let link_up = |rig: &Rig| rig.gateway.observer().ports().next().unwrap().link_up();
    rig.peers[0].set_link(LinkState::Down);
    for _ in 0..=FACTS_INTERVAL_NS / PAUSE_NS {
        rig.now_ns += PAUSE_NS;
        rig.send_and_poll(&[ping(1, 1)]);
    }
    assert!(!link_up(&rig));
}

#[test]
fn frames_for_other_stations_are_taken_in_by_promiscuous_ports_only() {
    let mut frame = datagram(1, 5000, 1);
    frame[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    for (mut rig, taken) in [(Rig::with_policy(Policy::Shared), 0), (Rig::promiscuous(), 1)] {
        rig.ready(0, 1);
        rig.send_and_poll(&[frame.clone()]);
        assert_eq!(rig.delivered().len(), taken);
    }
}
