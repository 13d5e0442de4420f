//! Tests of [`super`] and all that it ties together. The test plays MMA, the launcher and the stations on the wire.

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
mod rules;
mod sources;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const IDLE_TIMEOUT_NS: u64 = 5_000_000_000;
const POOL: usize = 1024;
/// The chain whose calls are delivered again if their instance ends.
const REPEATED: u32 = 1;

struct Rig {
    gateway: Gateway,
    peers: Vec<MemoryPeer>,
    mmas: Vec<MmaLink>,
    commands: Sender<Command>,
    events: Receiver<Event>,
    pool: HeapPool,
    now_ns: u64,
    dispatchers: Vec<Dispatcher>,
    /// What the chains of the next rules may send, and what the second one may if that differs.
    may_send: MaySend,
    second_may_send: Option<MaySend>,
}

/// A frame that a chain may send which sends anything, with this mark at its end.
fn frame_to_leave(mark: u8) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..14].copy_from_slice(&ethernet(CLIENT, STATION, 0x88b6, &[]));
    frame[59] = mark;
    frame
}

/// Returns what an MMA hands over of a frame that is to be transmitted.
fn leaving(frame: Frame) -> Outbound {
    Outbound { frame, sender: id::Sender::of(TenantIndex(0)) }
}

/// Sizes that a test may want to be small.
struct Sizes {
    mmas: usize,
    link: usize,
    instances: usize,
    pending: usize,
    events: usize,
    /// `None`: there is no port to invoke chains by.
    calls: Option<usize>,
}

const AMPLE: Sizes = Sizes { mmas: 1, link: 256, instances: 64, pending: 64, events: 256, calls: None };

/// What MMA was given: the frame's target, the port that it came in by, and its bytes.
type Delivered = (FwpId, PortIndex, Vec<u8>);

impl Rig {
    fn new(ports: usize) -> Self {
        Self::with(ports, AMPLE)
    }

    fn with(ports: usize, sizes: Sizes) -> Self {
        let pool = HeapPool::new(POOL, 2048);
        let (setups, peers) = (0..ports).map(|port| setup(port, &pool)).unzip();
        let (gateway_ends, mmas) =
            (0..sizes.mmas).map(|_| link(sizes.link, Doorbell::default(), Doorbell::default())).unzip();
        let (commands, commands_end) = crossbeam_channel::bounded(256);
        let (events_end, events) = crossbeam_channel::bounded(sizes.events);
        let (invoke, dispatchers) = sizes.calls.map(|calls| InvokePort::new(2, calls, &Doorbell::default())).unzip();
        let gateway = Gateway::new(GatewayConfig {
            ports: setups,
            invoke,
            pool: Box::new(pool.clone()),
            flows_max: 256,
            instances_max: sizes.instances,
            pending_max: sizes.pending,
            burst: 32,
            empties_max: 64,
            links: gateway_ends,
            commands: commands_end,
            events: events_end,
        });
        let dispatchers = dispatchers.unwrap_or_default();
        Self {
            gateway: gateway.unwrap(),
            peers,
            mmas,
            commands,
            events,
            pool,
            now_ns: 0,
            dispatchers,
            may_send: MaySend::anything(),
            second_may_send: None,
        }
    }

    /// A gateway whose first port is promiscuous.
    fn promiscuous() -> Self {
        let mut rig = Self::with_policy(Policy::Shared);
        rig.gateway.ports[0].promiscuous = Promiscuous::Yes;
        rig
    }

    /// A gateway with one chain for all traffic, under this policy.
    fn with_policy(policy: Policy) -> Self {
        let mut rig = Self::new(1);
        rig.set_rules(vec![rule(policy, 0)]);
        rig
    }

    fn set_rules(&mut self, rules: Vec<Rule>) {
        self.set_rules_both_ways(rules, PortSet::EMPTY);
    }

    /// Sets rules for chains whose way back begins at the ports in `back`.
    fn set_rules_both_ways(&mut self, rules: Vec<Rule>, back: PortSet) {
        let chains = self.chains(back);
        self.set_rules_of(rules, &chains);
    }

    fn set_rules_of(&mut self, rules: Vec<Rule>, chains: &[ChainSettings]) {
        self.command(Command::SetRules(Arc::new(RuleSet::new(rules, chains).unwrap())));
        assert!(matches!(self.events()[..], [Event::RulesReplaced { .. }]));
    }

    fn chains(&self, back: PortSet) -> [ChainSettings; 2] {
        [0, 1].map(|chain| ChainSettings {
            chain: ChainIndex(chain),
            generation: ChainGeneration(0),
            idle_timeout_ns: IDLE_TIMEOUT_NS,
            back,
            tenant: TenantIndex(0),
            weight: 1,
            fwps: 1,
            redelivery: if chain == REPEATED { Redelivery::Idempotent } else { Redelivery::Never },
            may_send: self.second_may_send.clone().filter(|_| chain == 1).unwrap_or(self.may_send.clone()),
        })
    }

    fn command(&mut self, command: Command) {
        self.commands.send(command).unwrap();
        self.poll();
    }

    fn ready(&mut self, chain: u32, instance: u64) {
        self.command(Command::Ready {
            chain: ChainIndex(chain),
            instance: InstanceId(instance),
            entrance: entry(instance).into(),
            limit: SourceLimit::NONE,
        });
    }

    fn poll(&mut self) -> usize {
        self.gateway.poll_at(self.now_ns)
    }

    /// Polls long enough for every part of the tables to be swept, `after_ns` from now.
    fn sweep(&mut self, after_ns: u64) {
        self.now_ns += after_ns;
        for _ in 0..4 {
            self.now_ns += SWEEP_PERIOD_NS;
            self.poll();
        }
    }

    fn send(&mut self, frame: &[u8]) {
        self.peers[0].send(frame).unwrap();
    }

    fn send_and_poll(&mut self, frames: &[Vec<u8>]) {
        frames.iter().for_each(|frame| self.send(frame));
        self.poll();
    }

    /// Takes the frames that MMA `mma` was given.
    fn delivered_to(&mut self, mma: usize) -> Vec<Delivered> {
        let mma = &mut self.mmas[mma];
        std::iter::from_fn(|| {
            let Inbound { frame, target } = mma.inbound.pop()?;
            let delivered = (target, frame.port(), frame.bytes().to_vec());
            mma.spent.push(frame.into_buffer()).unwrap();
            Some(delivered)
        })
        .collect()
    }

    fn delivered(&mut self) -> Vec<Delivered> {
        (0..self.mmas.len()).flat_map(|mma| self.delivered_to(mma)).collect()
    }

    /// Takes all empty buffers that MMA `mma` was given.
    fn empties_of(&mut self, mma: usize) -> Vec<Buffer> {
        std::iter::from_fn(|| self.mmas[mma].empty.pop()).collect()
    }

    /// Takes the delivered frames and returns the instances they went to, by the number of their entry.
    fn targets(&mut self) -> Vec<u32> {
        self.delivered().into_iter().map(|(target, ..)| target.index).collect()
    }

    /// Returns the events that the launcher has received by the start of the next poll.
    fn events(&mut self) -> Vec<Event> {
        self.gateway.assigner.begin_poll();
        self.events.try_iter().collect()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.gateway.observer().ports().map(|port| port.drops.count(reason)).sum()
    }

    fn chain_drops(&self, chain: u32) -> Vec<(DropReason, u64)> {
        let counts = self.gateway.observer().chain_drops().chain(ChainIndex(chain)).counts();
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Ends everything and checks that all buffers are back.
    fn assert_no_buffer_leaked(mut self) {
        self.delivered();
        self.poll();
        for mma in 0..self.mmas.len() {
            let mut buffers = self.empties_of(mma);
            assert!(self.mmas[mma].inbound.pop().is_none());
            self.pool.give(&mut buffers);
        }
        drop(self.gateway);
        assert_eq!(self.pool.available(), POOL);
    }
}

fn set_ports(config: &mut GatewayConfig, count: usize) {
    let pool = HeapPool::new(16_384, 2048);
    config.ports = (0..count).map(|port| setup(port, &pool).0).collect();
    config.pool = Box::new(pool);
}

fn setup(port: usize, pool: &HeapPool) -> (PortSetup, MemoryPeer) {
    let mut mac = STATION;
    mac[4] = port as u8;
    let config = MemoryPortConfig { mac, ..MemoryPortConfig::named(&format!("port{port}")) };
    let (memory, peer) = MemoryPort::pair(config, pool.clone());
    let addresses = vec!["10.77.0.2/24".parse().unwrap(), "fd77::2/64".parse().unwrap()];
    let networks = vec![NetworkSetup { addresses, ..NetworkSetup::default() }];
    (PortSetup { port: Box::new(memory), networks, reverse_path: ReversePath::Off }, peer)
}

fn entry(instance: u64) -> FwpId {
    FwpId { index: instance as u32, generation: 1 }
}

fn rule(policy: Policy, chain: u32) -> Rule {
    Rule { matches: Match::default(), policy, chain: Some(ChainIndex(chain)), priority: 0 }
}

fn client(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 100 + number)
}

/// A datagram of a client. `from_port` and `mark` distinguish it from the client's other datagrams.
fn datagram(number: u8, from_port: u16, mark: u8) -> Vec<u8> {
    to_station(&ipv4(client(number), SERVER, UDP, &udp(from_port, 7, &[mark])))
}

fn ping(number: u8, sequence: u16) -> Vec<u8> {
    to_station(&ipv4(client(number), SERVER, 1, &icmp_echo(sequence)))
}

fn taken(instance: u64, client: ClientLabel) -> Event {
    Event::Taken { chain: ChainIndex(0), instance: InstanceId(instance), client }
}

fn address(number: u8) -> ClientLabel {
    ClientLabel::Address { address: client(number).into(), vlan: Vlan::UNTAGGED }
}

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
