//! ICMP errors: they reach the instance that gets the answers to the packet that they quote, and start none.

use super::*;
use crate::flows::entry_fwp::{EntryFwp, WayBack};
use std::net::Ipv6Addr;

const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

/// An error of a router's, of this type, about a packet from `from`.
fn error_of(icmp_type: u8, from: Ipv4Addr, quoted: &[u8]) -> Vec<u8> {
    to_station(&ipv4(ROUTER, from, 1, &[&[icmp_type, 0, 0, 0, 0, 0, 0, 0], quoted].concat()))
}

/// Like most routers': it quotes a header and 8 bytes.
fn error(from: Ipv4Addr, quoted: &[u8]) -> Vec<u8> {
    error_of(3, from, &quoted[..28])
}

/// What the server has sent to a client: the answer to [`datagram`].
fn answer(number: u8, to_port: u16) -> Vec<u8> {
    ipv4(SERVER, client(number), UDP, &udp(7, to_port, b"answer"))
}

#[test]
fn an_error_about_an_answer_reaches_the_instance_that_sent_the_answer() {
    for policy in [Policy::PerClient, Policy::PerFlow, Policy::Shared] {
        let mut rig = Rig::with_policy(policy);
        (10..13).rev().for_each(|instance| rig.ready(0, instance));
        rig.send_and_poll(&[datagram(1, 50, 0), datagram(2, 50, 0), datagram(2, 51, 0)]);
        let [first, second, third] = rig.targets()[..] else { panic!("{policy:?}") };
        rig.events();
        let errors = [(1, 50), (2, 51), (2, 50)].map(|(number, port)| error(SERVER, &answer(number, port)));
        rig.send_and_poll(&errors);
        let delivered: Vec<_> = rig.delivered().into_iter().map(|(target, _, frame)| (target.index, frame)).collect();
        let expected: Vec<_> = [first, third, second].into_iter().zip(errors).collect();
        assert_eq!((delivered, rig.events()), (expected, vec![]), "{policy:?}");
        rig.assert_no_buffer_leaked();
    }
}

#[test]
fn an_error_about_an_echo_reply_reaches_the_instance_that_answers_echo_requests() {
    let mut rig = Rig::new(1);
    let matches = Match { protocol: Some(1), icmp_type: Some(8), ..Match::default() };
    rig.set_rules(vec![Rule { matches, ..rule(Policy::PerClient, 0) }]);
    rig.ready(0, 10);
    rig.send_and_poll(&[ping(1, 1)]);
    let reply = ipv4(SERVER, client(1), 1, &[0; 8]);
    for icmp_type in [3, 4, 11, 12] {
        rig.send_and_poll(&[error_of(icmp_type, SERVER, &reply)]);
    }
    assert_eq!(rig.targets(), [10; 5]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn an_error_of_icmpv6_reaches_the_instance_that_sent_the_packet_too_big() {
    let client: Ipv6Addr = "fd77::9".parse().unwrap();
    let mut rig = Rig::with_policy(Policy::PerFlow);
    rig.ready(0, 10);
    rig.send_and_poll(&[to_station(&ipv6(client, SERVER_V6, UDP, 64, &udp(50, 7, b"data")))]);
    let quoted = ipv6(SERVER_V6, client, UDP, 64, &udp(7, 50, &[0; 1400]));
    let message = [&[2, 0, 0, 0, 0, 0, 5, 0][..], &quoted[..1232]].concat();
    rig.send_and_poll(&[to_station(&ipv6("fe80::1".parse().unwrap(), SERVER_V6, ICMPV6, 64, &message))]);
    assert_eq!((rig.targets(), rig.events().len()), (vec![10, 10], 1));
    rig.assert_no_buffer_leaked();
}

#[test]
fn an_error_about_what_passed_a_chain_with_a_way_back_goes_back_to_its_client() {
    let outside = PortSet::of([PortIndex(1)]).unwrap();
    for policy in [Policy::PerClient, Policy::PerFlow, Policy::Shared] {
        let mut rig = Rig::new(2);
        rig.set_rules_both_ways(vec![rule(policy, 0)], outside);
        for instance in [11, 10] {
            let way_back = Some(WayBack { last: entry(instance + 1000), from: outside });
            let entrance = EntryFwp { first: entry(instance), way_back };
            let (chain, instance, limit) = (ChainIndex(0), InstanceId(instance), SourceLimit::NONE);
            rig.command(Command::Ready { chain, instance, entrance, limit });
        }
        let sent = |number| ipv4(client(number), FAR, UDP, &udp(50, 53, b"question"));
        rig.send_and_poll(&[to_station(&sent(1)), to_station(&sent(2))]);
        let of_second = rig.targets()[1];
        let mut frame = error(client(2), &sent(2));
        frame[4] = 1;
        rig.peers[1].send(&frame).unwrap();
        // By the port that it went in by there is no such flow, except for the way ahead of all clients.
        rig.send_and_poll(&[error(client(2), &sent(2))]);
        let ahead = if policy == Policy::Shared { vec![of_second] } else { vec![] };
        let mut targets = rig.targets();
        targets.sort_unstable();
        assert_eq!(targets, [ahead, vec![of_second + 1000]].concat(), "{policy:?}");
        // About what came back, its client's error goes ahead.
        let back = ipv4(FAR, client(2), UDP, &udp(53, 50, b"answer"));
        rig.send_and_poll(&[error(FAR, &back)]);
        assert_eq!(rig.targets(), [of_second], "{policy:?}");
        rig.assert_no_buffer_leaked();
    }
}

#[test]
fn an_error_about_a_flow_without_an_instance_starts_none_and_is_counted_for_the_chain() {
    for policy in [Policy::PerClient, Policy::PerFlow, Policy::Shared] {
        let mut rig = Rig::with_policy(policy);
        rig.ready(0, 10);
        rig.send_and_poll(&[error(SERVER, &answer(1, 50))]);
        assert_eq!((rig.targets(), rig.events()), (vec![], vec![]));
        assert_eq!(rig.chain_drops(0), [(DropReason::ErrorWithoutFlow, 1)]);
        // Of the client of another flow, and of a client of another network.
        rig.send_and_poll(&[datagram(1, 50, 0)]);
        rig.events();
        let others = [error(SERVER, &answer(1, 51)), tagged(&error(SERVER, &answer(1, 50)), &[(0x8100, 5)])];
        rig.send_and_poll(&others);
        let reached = if policy == Policy::PerFlow { vec![10] } else { vec![10, 10] };
        assert_eq!((rig.targets(), rig.events()), (reached, vec![]), "{policy:?}");
        rig.assert_no_buffer_leaked();
    }
}

#[test]
fn an_error_waits_with_the_frames_of_its_flow_that_wait_for_an_instance() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.send_and_poll(&[datagram(1, 50, 0), error(SERVER, &answer(1, 50))]);
    assert_eq!(rig.gateway.observer().frames_pending(), 2);
    rig.ready(0, 10);
    assert_eq!(rig.targets(), [10, 10]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn errors_do_not_keep_an_idle_instance_alive() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.ready(0, 10);
    rig.send_and_poll(&[datagram(1, 50, 0)]);
    rig.events();
    rig.sweep(IDLE_TIMEOUT_NS / 2);
    rig.send_and_poll(&[error(SERVER, &answer(1, 50))]);
    assert_eq!(rig.targets(), [10, 10]);
    rig.sweep(IDLE_TIMEOUT_NS / 2);
    assert_eq!(rig.events(), [Event::Idle { chain: ChainIndex(0), instance: InstanceId(10) }]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn forged_errors_redirects_and_unreadable_quotes_are_dropped_each_for_a_reason_of_its_own() {
    let mut rig = Rig::with_policy(Policy::Shared);
    rig.ready(0, 10);
    rig.send_and_poll(&[datagram(1, 50, 0)]);
    assert_eq!(rig.targets(), [10]);
    let quoted = answer(1, 50);
    let mut to_all = error(Ipv4Addr::BROADCAST, &ipv4(Ipv4Addr::BROADCAST, client(1), UDP, &udp(7, 50, b"")));
    to_all[..6].fill(0xff);
    let from_nowhere =
        to_station(&ipv4([127, 0, 0, 1].into(), SERVER, 1, &[&[3, 0, 0, 0, 0, 0, 0, 0], &quoted[..]].concat()));
    for (frame, reason) in [
        (error([10, 77, 0, 3].into(), &quoted), DropReason::ForgedError),
        (to_all, DropReason::ForgedError),
        (error_of(5, SERVER, &quoted), DropReason::Redirect),
        (error_of(3, SERVER, &quoted[..23]), DropReason::BadQuote),
        (error_of(3, SERVER, &ipv4_fragment(SERVER, client(1), UDP, [0, 1], &[0; 8])), DropReason::BadQuote),
        (from_nowhere, DropReason::Martian),
    ] {
        let before = rig.drops(reason);
        rig.send_and_poll(&[frame]);
        assert_eq!((rig.drops(reason) - before, rig.targets()), (1, vec![]), "{reason}");
    }
    rig.assert_no_buffer_leaked();
}

#[test]
fn an_error_whose_quote_leads_nowhere_goes_to_a_rule_that_names_its_type_and_to_no_other() {
    let mut rig = Rig::new(1);
    let unreachable = Match { protocol: Some(1), icmp_type: Some(3), ..Match::default() };
    let all_of_icmp = Match { protocol: Some(1), ..Match::default() };
    let to_monitor = Rule { matches: unreachable, chain: Some(ChainIndex(1)), priority: 9, ..rule(Policy::Shared, 0) };
    rig.set_rules(vec![
        to_monitor,
        rule(Policy::PerClient, 0),
        Rule { matches: all_of_icmp, ..rule(Policy::Shared, 0) },
    ]);
    rig.ready(0, 10);
    rig.ready(1, 20);
    rig.send_and_poll(&[datagram(1, 50, 0)]);
    rig.send_and_poll(&[
        error(SERVER, &answer(1, 50)),
        error(SERVER, &answer(2, 50)),
        error_of(11, SERVER, &answer(2, 50)),
    ]);
    assert_eq!(rig.targets(), [10, 10, 20]);
    assert_eq!(rig.drops(DropReason::ErrorWithoutFlow), 1);
    rig.assert_no_buffer_leaked();
}
