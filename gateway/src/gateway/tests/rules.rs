//! Where rules direct frames: when rules change, when their chains are unavailable, and in VLANs.

use super::*;

#[test]
fn clients_keep_their_instances_when_the_rules_change_but_still_lead_them_there() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    (10..13).rev().for_each(|instance| rig.ready(0, instance));
    (20..23).rev().for_each(|instance| rig.ready(1, instance));
    rig.send_and_poll(&[ping(1, 1), ping(2, 1)]);
    assert_eq!((rig.targets(), rig.events().len()), (vec![10, 11], 2));
    let second = Match { source: Some(IpAddr::V4(client(2)).into()), ..Match::default() };
    let moved = Rule { matches: second, priority: 9, ..rule(Policy::PerClient, 1) };
    rig.set_rules(vec![rule(Policy::PerClient, 0), moved]);
    rig.send_and_poll(&[ping(1, 2), ping(2, 2)]);
    assert_eq!(rig.targets(), [10, 20]);
    assert_eq!(rig.events().len(), 1);
    // Back again: the first instance is still bound to its client.
    rig.set_rules(vec![rule(Policy::PerClient, 0)]);
    rig.send_and_poll(&[ping(2, 3)]);
    assert_eq!((rig.targets(), rig.events()), (vec![11], vec![]));
    rig.assert_no_buffer_leaked();
}

#[test]
fn traffic_of_a_rule_whose_chain_is_unavailable_is_dropped_and_not_left_to_the_next_rule() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.ready(0, 10);
    let second = Match { source: Some(IpAddr::V4(client(2)).into()), ..Match::default() };
    let guarded = Rule { matches: second, chain: None, priority: 9, ..rule(Policy::PerClient, 0) };
    rig.set_rules(vec![rule(Policy::PerClient, 0), guarded]);
    rig.send_and_poll(&[ping(1, 1), ping(2, 1), ping(2, 2)]);
    assert_eq!(rig.targets(), [10]);
    assert_eq!((rig.drops(DropReason::ChainUnavailable), rig.drops(DropReason::NoRule)), (2, 0));
    assert_eq!(rig.events().len(), 1);
    // Its chain is in force again.
    rig.ready(0, 11);
    rig.set_rules(vec![rule(Policy::PerClient, 0)]);
    rig.send_and_poll(&[ping(2, 3)]);
    assert_eq!(rig.targets(), [11]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn flows_whose_rule_has_gone_are_dropped_and_instances_whose_chain_has_gone_are_idle() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.ready(0, 10);
    rig.send_and_poll(&[ping(1, 1)]);
    assert_eq!((rig.targets(), rig.events().len()), (vec![10], 1));
    rig.set_rules(vec![]);
    rig.send_and_poll(&[ping(1, 2)]);
    assert_eq!((rig.targets(), rig.drops(DropReason::NoRule)), (vec![], 1));
    rig.sweep(0);
    assert_eq!(rig.events(), []);
    rig.command(Command::SetRules(Arc::default()));
    rig.sweep(0);
    let idle = Event::Idle { chain: ChainIndex(0), instance: InstanceId(10) };
    assert!(matches!(&rig.events()[..], [Event::RulesReplaced { .. }, last] if *last == idle));
    rig.assert_no_buffer_leaked();
}

#[test]
fn frames_in_a_vlan_match_rules_of_that_vlan_and_address_requests_there_get_no_answer() {
    let mut rig = Rig::new(1);
    let in_vlan = Match { vlan: Vlan { id: 100, inner_id: 0 }, ..Match::default() };
    rig.set_rules(vec![rule(Policy::PerClient, 0), Rule { matches: in_vlan, ..rule(Policy::PerClient, 1) }]);
    rig.ready(0, 10);
    rig.ready(1, 20);
    let tags = [(0x8100, 100), (0x8100, 20)];
    let served = tagged(&ping(1, 2), &tags[..1]);
    rig.send_and_poll(&[ping(1, 1), served.clone(), tagged(&ping(1, 3), &tags), tagged(&ping(1, 4), &[(0x8100, 101)])]);
    let delivered: Vec<_> = rig.delivered().into_iter().map(|(to, _, frame)| (to.index, frame)).collect();
    assert_eq!(delivered, [(10, ping(1, 1)), (20, served)]);
    assert_eq!((rig.events()[1].clone(), rig.drops(DropReason::NoRule)), (taken_in_vlan_100(20), 2));
    let question = arp_request((CLIENT, client(1)), SERVER);
    rig.send_and_poll(&[tagged(&question, &tags[..1]), tagged(&question, &tags)]);
    assert_eq!((rig.peers[0].receive(), rig.drops(DropReason::VlanNeighbor)), (None, 2));
    rig.assert_no_buffer_leaked();
}

fn taken_in_vlan_100(instance: u64) -> Event {
    let client = ClientLabel::Address { address: client(1).into(), vlan: Vlan { id: 100, inner_id: 0 } };
    assert_eq!(client.to_string(), "10.77.0.101, vlan 100");
    Event::Taken { chain: ChainIndex(1), instance: InstanceId(instance), client }
}
