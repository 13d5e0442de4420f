//! Tests of [`super`] and all that it ties together, in a [`Rig`].

use super::*;
use crate::flows::ClientLabel;
use crate::flows::instances::PROOF_NS;
use crate::flows::sources::SourceLimit;
use crate::fwp_times::KeepAlives;
use crate::gateway::PortObserver;
use crate::headers::Vlan;
use crate::id::{ChainGeneration, InstanceId};
use crate::invoke::Dispatcher;
use crate::leaving::MaySend;
use crate::messages::Event;
use crate::neighbors::network::{Network, NetworkSetup, Route};
use crate::neighbors::reverse_path::ReversePath;
use crate::port::heap::HeapPool;
use crate::port::memory::{MemoryPeer, MemoryPort, MemoryPortConfig};
use crate::port::{BufferPool, LinkState, Promiscuous};
use crate::rules::{ChainSettings, Match, Policy, Redelivery, Rule, RuleSet};
use crate::test_frames::{self as frames, *};
use crossbeam_channel::Sender;
use pinion_mma::buffer::Buffer;
use pinion_mma::id::{self, FwpId, TenantIndex};
use pinion_mma::link::{Inbound, MmaLink, Outbound, link};
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::ways::direction::PortSet;
use smoltcp::wire::EthernetAddress;
use std::net::{IpAddr, Ipv4Addr};

use rig::*;

mod both_ways;
mod connections;
mod deferred_burst;
mod errors;
mod forged;
mod fragments;
mod groups;
mod invocations;
mod leaving;
mod loans;
mod outbound;
mod pauses;
mod ports;
mod refused_frames;
mod rig;
mod rules;
mod sources;

const WANTED: Event = Event::Wanted { chain: ChainIndex(0) };

#[test]
fn per_client_gives_each_client_an_instance_of_its_own() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    (10..14).rev().for_each(|instance| rig.ready(0, instance));
    rig.send_and_poll(&[ping(1, 1), ping(2, 1), ping(1, 2), datagram(3, 9, 0), datagram(1, 9, 0)]);
    assert_eq!(rig.targets(), [10, 11, 10, 12, 10]);
    assert_eq!(rig.events(), [taken(10, address(1)), taken(11, address(2)), taken(12, address(3))]);
    let observer = rig.gateway.observer();
    assert_eq!((observer.instances_bound(), observer.instances_ready(), observer.flows()), (3, 1, 4));
    assert_eq!(observer.ports().next().unwrap().delivered.value(), 5);
    rig.assert_no_buffer_leaked();
}

#[test]
fn per_flow_gives_each_flow_an_instance_of_its_own() {
    let mut rig = Rig::with_policy(Policy::PerFlow);
    (10..14).rev().for_each(|instance| rig.ready(0, instance));
    rig.send_and_poll(&[datagram(1, 50, 0), datagram(1, 51, 0), datagram(1, 50, 1), datagram(2, 50, 0)]);
    assert_eq!(rig.targets(), [10, 11, 10, 12]);
    let Event::Taken { client: client @ ClientLabel::Flow { .. }, .. } = rig.events()[1] else {
        panic!("not for a flow")
    };
    assert_eq!(client.to_string(), "udp 10.77.0.101:51 -> 10.77.0.2:7");
    rig.assert_no_buffer_leaked();
}

#[test]
fn shared_gives_all_clients_the_same_instance() {
    let mut rig = Rig::with_policy(Policy::Shared);
    (10..12).rev().for_each(|instance| rig.ready(0, instance));
    rig.send_and_poll(&[ping(1, 1), ping(2, 1), datagram(3, 1, 1)]);
    assert_eq!(rig.targets(), [10, 10, 10]);
    assert_eq!(rig.events(), [taken(10, ClientLabel::All)]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn frames_are_delivered_whole_and_with_the_port_they_came_by() {
    let mut rig = Rig::new(2);
    rig.set_rules(vec![rule(Policy::Shared, 0)]);
    rig.ready(0, 10);
    let mut frame = ping(1, 1);
    frame[4] = 1;
    rig.peers[1].send(&frame).unwrap();
    rig.poll();
    assert_eq!(rig.delivered(), [(entry(10), PortIndex(1), frame)]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn frames_that_find_no_instance_wait_and_are_delivered_in_order() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.send_and_poll(&[datagram(1, 5, 1), datagram(2, 5, 1), datagram(1, 6, 2)]);
    rig.send_and_poll(&[datagram(1, 5, 3), datagram(2, 5, 2)]);
    assert_eq!((rig.targets(), rig.events()), (vec![], vec![WANTED]));
    assert_eq!(rig.gateway.observer().frames_pending(), 5);
    // The next frame arrives in the same poll as the instance, and must stay behind those that wait.
    rig.send(&datagram(1, 5, 4));
    rig.ready(0, 10);
    assert_eq!(rig.events(), [taken(10, address(1)), WANTED]);
    let marks: Vec<_> = rig.delivered().into_iter().map(|(to, _, frame)| (to.index, *frame.last().unwrap())).collect();
    assert_eq!(marks, [(10, 1), (10, 2), (10, 3), (10, 4)]);
    rig.ready(0, 11);
    assert_eq!((rig.targets(), rig.events()), (vec![11, 11], vec![taken(11, address(2))]));
    assert_eq!(rig.gateway.observer().frames_pending(), 0);
    rig.assert_no_buffer_leaked();
}

#[test]
fn frames_that_wait_for_too_long_are_dropped_and_counted() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.send_and_poll(&[ping(1, 1), ping(2, 1)]);
    rig.now_ns = PENDING_TIMEOUT_NS - 1;
    rig.send_and_poll(&[ping(1, 2), ping(3, 1)]);
    assert_eq!(rig.drops(DropReason::NoInstance), 0);
    rig.now_ns = PENDING_TIMEOUT_NS;
    rig.poll();
    assert_eq!((rig.drops(DropReason::NoInstance), rig.gateway.observer().frames_pending()), (3, 1));
    rig.ready(0, 10);
    assert_eq!((rig.targets(), rig.events()), (vec![10], vec![WANTED, taken(10, address(3))]));
    rig.assert_no_buffer_leaked();
}

#[test]
fn no_more_frames_wait_than_there_is_room_for() {
    let mut rig = Rig::with(1, Sizes { pending: 6, ..AMPLE });
    rig.set_rules(vec![rule(Policy::PerClient, 0)]);
    rig.send_and_poll(&vec![ping(1, 1); 10]);
    rig.send_and_poll(&[ping(2, 1), ping(3, 1), ping(4, 1)]);
    assert_eq!((rig.gateway.observer().frames_pending(), rig.drops(DropReason::PendingFull)), (6, 7));
    rig.assert_no_buffer_leaked();
}

#[test]
fn an_unbound_instance_is_never_named_again() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    (10..13).rev().for_each(|instance| rig.ready(0, instance));
    rig.send_and_poll(&[ping(1, 1), datagram(1, 5, 1)]);
    assert_eq!((rig.targets(), rig.events().len()), (vec![10, 10], 1));
    // One is bound, one was ready, one is unknown.
    for instance in [10, 11, 99] {
        rig.command(Command::Unbind { instance: InstanceId(instance) });
        assert_eq!(rig.events(), [Event::Unbound { instance: InstanceId(instance) }]);
    }
    rig.send_and_poll(&[ping(1, 2), datagram(1, 5, 2), ping(1, 3)]);
    assert_eq!((rig.targets(), rig.events()), (vec![12, 12, 12], vec![taken(12, address(1))]));
    rig.assert_no_buffer_leaked();
}

#[test]
fn an_instance_that_is_reclaimed_comes_back_only_if_no_client_has_it() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    (10..13).rev().for_each(|instance| rig.ready(0, instance));
    rig.send_and_poll(&[ping(1, 1)]);
    assert_eq!((rig.targets(), rig.events()), (vec![10], vec![taken(10, address(1))]));
    // One is bound, one was ready, the same again, one is unknown.
    for (instance, comes_back) in [(10, false), (12, true), (12, false), (99, false)] {
        rig.command(Command::Reclaim { instance: InstanceId(instance) });
        let withdrawn = Event::Withdrawn { chain: ChainIndex(0), instance: InstanceId(instance) };
        assert_eq!(rig.events(), if comes_back { vec![withdrawn] } else { Vec::new() });
    }
    rig.send_and_poll(&[ping(1, 2), ping(2, 1), ping(3, 1)]);
    assert_eq!(rig.targets(), [10, 11]);
    assert_eq!(rig.events(), [taken(11, address(2)), Event::Wanted { chain: ChainIndex(0) }]);
}

#[test]
fn for_clients_that_wait_instances_end_whose_clients_sent_one_frame_only_and_their_frames_still_arrive() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    (10..14).rev().for_each(|instance| rig.ready(0, instance));
    rig.send_and_poll(&[ping(1, 1), ping(2, 1), ping(3, 1)]);
    rig.now_ns = PROOF_NS / 2;
    rig.send_and_poll(&[ping(2, 2), ping(4, 1)]);
    assert_eq!((rig.targets(), rig.events().len()), (vec![10, 11, 12, 11, 13], 4));
    let end = |tenant, count| Command::EndUnproven { tenant: TenantIndex(tenant), count };
    let unproven = |instance| Event::Unproven { chain: ChainIndex(0), instance: InstanceId(instance) };
    rig.now_ns = PROOF_NS;
    rig.command(end(1, 16));
    assert_eq!(rig.events(), [], "they are another tenant's");
    rig.command(end(0, 1));
    assert_eq!(rig.events(), [unproven(10)]);
    rig.command(end(0, 16));
    assert_eq!(rig.events(), [unproven(12)]);
    rig.ready(0, 20);
    rig.send_and_poll(&[ping(1, 2), ping(2, 3), ping(4, 2)]);
    assert_eq!((rig.targets(), rig.events()), (vec![20, 11, 13], vec![taken(20, address(1))]));
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_client_that_sent_more_than_one_frame_while_it_waited_has_proven_itself() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    rig.send_and_poll(&[ping(1, 1), ping(2, 1), ping(1, 2)]);
    (10..12).for_each(|instance| rig.ready(0, instance));
    assert_eq!(rig.targets(), [10, 10, 11]);
    rig.events();
    rig.now_ns = 2 * PROOF_NS;
    rig.command(Command::EndUnproven { tenant: TenantIndex(0), count: 16 });
    assert_eq!(rig.events(), [Event::Unproven { chain: ChainIndex(0), instance: InstanceId(11) }]);
}

#[test]
fn an_instance_without_frames_is_unbound_as_idle_and_one_with_frames_is_not() {
    let mut rig = Rig::with_policy(Policy::PerClient);
    (10..13).rev().for_each(|instance| rig.ready(0, instance));
    rig.send_and_poll(&[ping(1, 1), ping(2, 1)]);
    assert_eq!((rig.targets(), rig.events().len()), (vec![10, 11], 2));
    rig.sweep(IDLE_TIMEOUT_NS / 2);
    rig.send_and_poll(&[ping(2, 2)]);
    rig.sweep(IDLE_TIMEOUT_NS / 2);
    assert_eq!(rig.events(), [Event::Idle { chain: ChainIndex(0), instance: InstanceId(10) }]);
    rig.send_and_poll(&[ping(1, 2), ping(2, 3)]);
    assert_eq!(rig.targets(), [11, 12, 11]);
    assert_eq!(rig.events(), [taken(12, address(1))]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn an_instance_whose_function_keeps_it_alive_stays_until_that_is_withdrawn_or_expires() {
    const MAX_NS: u64 = 20 * IDLE_TIMEOUT_NS;
    let mut rig = Rig::with_policy(Policy::PerClient);
    let keep = Arc::new(KeepAlives::new(64, MAX_NS, Arc::clone(rig.gateway.observer().flow_misses())));
    rig.gateway.keep_alive_by(Arc::clone(&keep));
    for instance in [12, 11, 10] {
        keep.begin(&[entry(instance)]);
        rig.ready(0, instance);
    }
    rig.send_and_poll(&[ping(1, 1), ping(2, 1), ping(3, 1)]);
    assert_eq!((rig.targets(), rig.events().len()), (vec![10, 11, 12], 3));
    // For the maximum from now: by the gateway's own clock, which has hardly begun, like the test's.
    keep.set(entry(10), u64::MAX);
    keep.set(entry(11), u64::MAX);
    let idle = |instance| Event::Idle { chain: ChainIndex(0), instance: InstanceId(instance) };
    rig.sweep(IDLE_TIMEOUT_NS);
    assert_eq!(rig.events(), [idle(12)], "it has not said that it wants to live");
    keep.set(entry(11), 0);
    rig.sweep(IDLE_TIMEOUT_NS);
    assert_eq!(rig.events(), [idle(11)], "it has let go");
    rig.sweep(IDLE_TIMEOUT_NS);
    assert_eq!(rig.events(), []);
    rig.send_and_poll(&[ping(1, 2)]);
    assert_eq!((rig.targets(), rig.events().len()), (vec![10], 0), "it serves its client still");
    rig.sweep(MAX_NS / 2);
    assert_eq!(rig.events(), []);
    rig.sweep(MAX_NS / 2);
    assert_eq!(rig.events(), [idle(10)], "its time is over");
    rig.assert_no_buffer_leaked();
}

#[test]
fn an_instance_for_which_there_is_no_room_comes_back() {
    let mut rig = Rig::with(1, Sizes { instances: 2, ..AMPLE });
    (10..13).rev().for_each(|instance| rig.ready(0, instance));
    assert_eq!(rig.events(), [Event::Withdrawn { chain: ChainIndex(0), instance: InstanceId(10) }]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn dropped_frames_of_a_chain_are_counted_with_that_chain_too() {
    use DropReason::{LauncherBusy, MmaBusy, NoInstance, PendingFull};
    let other = |rule: Rule| {
        let source = Some(IpAddr::V4(client(2)).into());
        Rule { matches: Match { source, ..Match::default() }, chain: Some(ChainIndex(1)), priority: 9, ..rule }
    };
    let mut rig = Rig::with(1, Sizes { link: 16, pending: 3, events: 3, ..AMPLE });
    rig.set_rules(vec![rule(Policy::PerClient, 0), other(rule(Policy::PerClient, 0))]);
    rig.send_and_poll(&vec![ping(2, 1); 5]);
    assert_eq!((rig.chain_drops(0), rig.chain_drops(1)), (vec![], vec![(PendingFull, 2)]));
    rig.now_ns += PENDING_TIMEOUT_NS;
    rig.poll();
    assert_eq!(rig.chain_drops(1), [(NoInstance, 3), (PendingFull, 2)]);
    rig.ready(1, 10);
    rig.send_and_poll(&vec![ping(2, 1); 20]);
    assert_eq!((rig.targets().len(), rig.chain_drops(1)), (8, vec![(NoInstance, 3), (PendingFull, 2), (MmaBusy, 12)]));
    // Events fill the channel until one is held. Then the first frame of a chain that was not requested yet is dropped.
    for instance in [11, 11, 12, 13] {
        rig.commands.send(Command::Unbind { instance: InstanceId(instance) }).unwrap();
    }
    rig.poll();
    rig.send_and_poll(&[ping(1, 1)]);
    assert_eq!(rig.chain_drops(0), [(LauncherBusy, 1)]);
    let of_port: u64 = [NoInstance, PendingFull, LauncherBusy, MmaBusy].map(|reason| rig.drops(reason)).iter().sum();
    assert_eq!(of_port, 18, "they are the port's, too");
    rig.assert_no_buffer_leaked();
}

#[test]
fn no_event_is_lost_and_nothing_new_begins_while_the_launcher_reads_no_events() {
    let mut rig = Rig::with(1, Sizes { events: 4, ..AMPLE });
    rig.set_rules(vec![rule(Policy::PerClient, 0)]);
    (10..30).rev().for_each(|instance| rig.ready(0, instance));
    rig.send_and_poll(&(0..10).map(|number| ping(number, 1)).collect::<Vec<_>>());
    assert_eq!(rig.targets().len(), 10);
    // Existing clients are served, new ones dropped, commands left in their channel, and no instance is released.
    rig.commands.send(Command::Unbind { instance: InstanceId(10) }).unwrap();
    rig.send_and_poll(&[ping(3, 2), ping(50, 1)]);
    assert_eq!((rig.targets(), rig.drops(DropReason::LauncherBusy)), (vec![13], 1));
    rig.sweep(2 * IDLE_TIMEOUT_NS);
    let mut events = Vec::new();
    while events.len() < 20 {
        events.extend(rig.events());
        rig.sweep(0);
    }
    let begun = (0..10).map(|number| taken(10 + u64::from(number), address(number)));
    let idle = |instance| Event::Idle { chain: ChainIndex(0), instance: InstanceId(instance) };
    let unbound = Event::Unbound { instance: InstanceId(10) };
    assert_eq!(events, begun.chain([unbound]).chain((11..20).map(idle)).collect::<Vec<_>>());
    rig.assert_no_buffer_leaked();
}

#[test]
fn impossible_sizes_are_refused_by_name() {
    let make = |change: fn(&mut GatewayConfig)| {
        let pool = HeapPool::new(512, 2048);
        let mut config = GatewayConfig {
            ports: vec![setup(0, &pool).0],
            invoke: None,
            pool: Box::new(pool),
            flows_max: 256,
            instances_max: 16,
            pending_max: 64,
            burst: 32,
            empties_max: 64,
            links: vec![link(256, Doorbell::default(), Doorbell::default()).0],
            commands: crossbeam_channel::bounded(1).1,
            events: crossbeam_channel::bounded(1).0,
        };
        change(&mut config);
        Gateway::new(config).err()
    };
    assert_eq!(make(|_| ()), None);
    assert_eq!(make(|config| config.ports.clear()), Some(GatewayError::PortCount { count: 0 }));
    assert_eq!(make(|config| set_ports(config, PORTS_MAX)), None);
    assert_eq!(make(|config| set_ports(config, PORTS_MAX + 1)), Some(GatewayError::PortCount { count: 64 }));
    assert_eq!(make(|config| config.pending_max = 200), Some(GatewayError::PoolTooSmall { have: 512, need: 670 }));
    let message = make(|config| config.burst = 0).unwrap().to_string();
    assert_eq!(message, "burst is 0: it must be from 1 to 4096");
}
