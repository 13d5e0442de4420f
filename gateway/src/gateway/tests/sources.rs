//! What the clients of one source prefix get, beside those of others.

use super::*;
use crate::flows::sources::FWPS_MAX_AT_FIRST;
use crate::gateway::PENDING_TIMEOUT_NS;
use std::net::Ipv6Addr;

/// How many FWPs the clients of one prefix may have here.
const MOST: u32 = 3;

impl Rig {
    /// A gateway with one chain for all traffic, of which the clients of one prefix may have [`MOST`] instances.
    fn limited(policy: Policy) -> Self {
        let mut rig = Self::with_policy(policy);
        rig.limited_ready(0);
        rig.command(Command::Reclaim { instance: InstanceId(0) });
        rig.events();
        rig
    }

    fn limited_ready(&mut self, instance: u64) {
        self.command(Command::Ready {
            chain: ChainIndex(0),
            instance: InstanceId(instance),
            entrance: entry(instance).into(),
            limit: SourceLimit { fwps_max: MOST, ..SourceLimit::NONE },
        });
    }
}

/// A datagram of an IPv6 host of this network, with this number in it.
fn datagram_v6(network: u16, host: u64) -> Vec<u8> {
    let from = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(network) << 64 | u128::from(host));
    to_station(&ipv6(from, "fd77::2".parse().unwrap(), UDP, 64, &udp(1000, 53, b"data")))
}

fn datagram_of_flow(client: u8, source_port: u16) -> Vec<u8> {
    to_station(&ipv4(super::client(client), SERVER, UDP, &udp(source_port, 53, b"data")))
}

#[test]
fn addresses_of_one_ipv6_network_and_flows_of_one_address_get_their_part_and_others_still_get_theirs() {
    let of_network = |number: u16| datagram_v6(1, number.into());
    let of_address = |number: u16| datagram_of_flow(1, number);
    type Frames<'a> = (Policy, &'a dyn Fn(u16) -> Vec<u8>, [Vec<u8>; 2]);
    let cases: [Frames; 2] = [
        (Policy::PerClient, &of_network, [datagram_v6(2, 1), datagram_of_flow(1, 1)]),
        (Policy::PerFlow, &of_address, [datagram_of_flow(2, 1), datagram_v6(1, 1)]),
    ];
    for (policy, flood, others) in cases {
        let mut rig = Rig::limited(policy);
        (1..=8).for_each(|instance| rig.limited_ready(instance));
        rig.send_and_poll(&(0..10).map(flood).collect::<Vec<_>>());
        assert_eq!(rig.targets(), [8, 7, 6], "{policy:?}");
        assert_eq!(rig.chain_drops(0), [(DropReason::SourceLimit, 7)], "{policy:?}");
        rig.send_and_poll(&others);
        assert_eq!(rig.targets(), [5, 4], "{policy:?}");
        // Those that have theirs keep it.
        rig.send_and_poll(&(0..3).map(flood).collect::<Vec<_>>());
        assert_eq!(rig.targets(), [8, 7, 6], "{policy:?}");
        rig.command(Command::Unbind { instance: InstanceId(7) });
        rig.send_and_poll(&(1..3).map(flood).chain([flood(9)]).collect::<Vec<_>>());
        assert_eq!(rig.targets(), [3, 6], "an instance that has ended makes room for one: {policy:?}");
        rig.assert_no_buffer_leaked();
    }
}

#[test]
fn ipv4_clients_with_an_instance_each_are_not_limited() {
    let mut rig = Rig::limited(Policy::PerClient);
    (1..=8).for_each(|instance| rig.limited_ready(instance));
    rig.send_and_poll(&(0..8).map(|client| datagram_of_flow(client, 1)).collect::<Vec<_>>());
    assert_eq!(rig.targets(), [8, 7, 6, 5, 4, 3, 2, 1]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn one_sender_to_many_clients_behind_a_chain_with_a_way_back_is_limited() {
    let outside = PortSet::of([PortIndex(1)]).unwrap();
    let mut rig = Rig::new(2);
    rig.set_rules_both_ways(vec![rule(Policy::PerClient, 0)], outside);
    (1..=8).for_each(|instance| rig.limited_ready(instance));
    for receiver in 0..10 {
        let mut frame = to_station(&ipv4([192, 0, 2, 53].into(), client(receiver), UDP, &udp(53, 1000, b"data")));
        frame[4] = 1;
        rig.peers[1].send(&frame).unwrap();
        rig.poll();
    }
    assert_eq!(rig.targets().len(), 3);
    assert_eq!(rig.chain_drops(0), [(DropReason::SourceLimit, 7)]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn clients_that_wait_count_and_what_they_send_meanwhile_waits_with_their_first_frame() {
    let mut rig = Rig::limited(Policy::PerClient);
    let first = |host: u64| datagram_v6(1, host);
    rig.send_and_poll(&(0..5).map(first).collect::<Vec<_>>());
    assert_eq!((rig.gateway.observer().frames_pending(), rig.chain_drops(0)), (3, vec![(DropReason::SourceLimit, 2)]));
    rig.send_and_poll(&[first(0), datagram_v6(2, 0)]);
    assert_eq!(rig.gateway.observer().frames_pending(), 5);
    (1..=8).for_each(|instance| rig.limited_ready(instance));
    assert_eq!(rig.targets(), [1, 1, 2, 3, 4]);
    rig.send_and_poll(&[first(0), first(5)]);
    assert_eq!((rig.targets(), rig.chain_drops(0)), (vec![1], vec![(DropReason::SourceLimit, 3)]));
    rig.assert_no_buffer_leaked();
}

#[test]
fn clients_that_have_waited_in_vain_leave_their_part_to_others() {
    let mut rig = Rig::limited(Policy::PerClient);
    rig.send_and_poll(&(0..3).map(|host| datagram_v6(1, host)).collect::<Vec<_>>());
    rig.now_ns += PENDING_TIMEOUT_NS + 1;
    rig.poll();
    assert_eq!(rig.chain_drops(0), [(DropReason::NoInstance, 3)]);
    (1..=3).for_each(|instance| rig.limited_ready(instance));
    rig.send_and_poll(&(3..6).map(|host| datagram_v6(1, host)).collect::<Vec<_>>());
    assert_eq!(rig.targets(), [3, 2, 1]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn clients_that_have_proven_nothing_leave_the_part_of_their_prefix_to_others_of_it() {
    let mut rig = Rig::limited(Policy::PerClient);
    (1..=8).for_each(|instance| rig.limited_ready(instance));
    rig.send_and_poll(&(0..3).map(|host| datagram_v6(1, host)).collect::<Vec<_>>());
    rig.now_ns += 1_000_000;
    rig.send_and_poll(&[datagram_v6(1, 0)]);
    assert_eq!(rig.targets(), [8, 7, 6, 8]);
    rig.events();
    rig.sweep(PROOF_NS);
    assert_eq!(rig.events(), [], "none was refused");
    rig.send_and_poll(&[datagram_v6(1, 9)]);
    assert_eq!(rig.chain_drops(0), [(DropReason::SourceLimit, 1)]);
    rig.sweep(0);
    let unproven = |instance| Event::Unproven { chain: ChainIndex(0), instance: InstanceId(instance) };
    let ended = rig.events();
    assert!(ended == [unproven(7)] || ended == [unproven(6)], "one of them, and not the one that was: {ended:?}");
    rig.send_and_poll(&[datagram_v6(1, 9)]);
    assert_eq!(rig.targets(), [5]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_client_that_waits_counts_with_all_stages_of_its_chain() {
    const STAGES: u32 = 12;
    let mut rig = Rig::new(1);
    let settings = ChainSettings {
        chain: ChainIndex(0),
        generation: ChainGeneration(0),
        idle_timeout_ns: IDLE_TIMEOUT_NS,
        back: PortSet::EMPTY,
        tenant: TenantIndex(0),
        weight: 1,
        fwps: STAGES,
        redelivery: Redelivery::Never,
        may_send: crate::leaving::MaySend::default(),
    };
    let rules = RuleSet::new(vec![rule(Policy::PerClient, 0)], &[settings]).unwrap();
    rig.command(Command::SetRules(Arc::new(rules)));
    rig.send_and_poll(&(0..5).map(|host| datagram_v6(1, host)).collect::<Vec<_>>());
    // As many as fit into what a prefix may have before the launcher has said it.
    let waiting = FWPS_MAX_AT_FIRST / STAGES;
    assert_eq!(rig.gateway.observer().frames_pending() as u32, waiting);
    assert_eq!(rig.chain_drops(0), [(DropReason::SourceLimit, u64::from(5 - waiting))]);
    rig.assert_no_buffer_leaked();
}
