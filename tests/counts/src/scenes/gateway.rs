//! Net-In: a frame of a known flow, and a new client's first frame.
//!
//! The port is one of this scene's own that copies frames into buffers, as DPDK's would be there already; that is counted with it.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use pinion_gateway::gateway::{Gateway, GatewayConfig, PortSetup};
use pinion_gateway::id::{ChainGeneration, ChainIndex, InstanceId};
use pinion_gateway::messages::{Command, Event};
use pinion_gateway::port::heap::HeapPool;
use pinion_gateway::port::{BufferPool, LinkState, Port, PortCounters, PortFacts};
use pinion_gateway::rules::{ChainSettings, Match, Policy, Rule, RuleSet};
use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::direction::PortSet;
use pinion_mma::doorbell::Doorbell;
use pinion_mma::id::FwpId;
use pinion_mma::link::{MmaLink, link};

use super::Scene;

/// Frames received in one poll.
const BURST: u64 = 32;
const FLOWS: u64 = 64;
const CLIENTS: u64 = 2_000;
const BUFFERS: usize = 1024;
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const POLL_NS: u64 = 10_000;

pub(super) const SCENES: &[Scene] = &[
    Scene { name: "gateway: 32 frames of 64 known flows", repetitions: 500, run: known_flows },
    Scene { name: "gateway: a new client's first frame", repetitions: 1_000, run: new_clients },
];

/// What the port receives next.
type Wire = Arc<Mutex<Vec<[u8; 64]>>>;

struct ReplayPort {
    wire: Wire,
    pool: HeapPool,
    spare: Vec<Buffer>,
    counters: Arc<PortCounters>,
}

impl Port for ReplayPort {
    fn name(&self) -> &str {
        "replay"
    }

    fn device(&self) -> &str {
        "memory"
    }

    fn facts(&self) -> PortFacts {
        PortFacts { mac: STATION, mtu: 1500, link: LinkState::Up, missed: 0 }
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let mut wire = self.wire.lock().expect("one thread");
        let count = wire.len().min(max);
        self.pool.take(&mut self.spare, count);
        for bytes in wire.drain(..count) {
            let mut buffer = self.spare.pop().expect("buffers for a burst");
            buffer.bytes_mut(64).copy_from_slice(&bytes);
            frames.push(Frame::new(buffer, 64));
        }
        count
    }

    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        let mut buffers = frames.drain(..).map(Frame::into_buffer).collect();
        pool.give(&mut buffers);
        0
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

/// A datagram of a client's flow to the server, with the checksum of its header.
fn datagram(client: Ipv4Addr, from_port: u16) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[..6].copy_from_slice(&STATION);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xc1]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, 17]);
    frame[26..30].copy_from_slice(&client.octets());
    frame[30..34].copy_from_slice(&SERVER.octets());
    let sum: u32 = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame[34..36].copy_from_slice(&from_port.to_be_bytes());
    frame[36..40].copy_from_slice(&[0, 7, 0, 30]);
    frame
}

/// A gateway with one chain for all traffic, and its neighbours.
struct Rig {
    gateway: Gateway,
    wire: Wire,
    mma: MmaLink,
    commands: crossbeam_channel::Sender<Command>,
    events: crossbeam_channel::Receiver<Event>,
    now_ns: u64,
}

impl Rig {
    fn new(policy: Policy, instances_max: usize) -> Self {
        let pool = HeapPool::new(BUFFERS, 2048);
        let wire = Wire::default();
        let port = ReplayPort {
            wire: Arc::clone(&wire),
            pool: pool.clone(),
            spare: Vec::with_capacity(BURST as usize),
            counters: Arc::default(),
        };
        let (gateway_end, mma) = link(256, Doorbell::default(), Doorbell::default());
        let (commands, commands_end) = crossbeam_channel::bounded(4096);
        let (events_end, events) = crossbeam_channel::bounded(4096);
        let gateway = Gateway::new(GatewayConfig {
            ports: vec![PortSetup { port: Box::new(port), addresses: vec!["10.77.0.2/16".parse().expect("a prefix")] }],
            invoke: None,
            pool: Box::new(pool),
            flows_max: 4096,
            instances_max,
            pending_max: 64,
            burst: BURST as usize,
            empties_max: 64,
            links: vec![gateway_end],
            commands: commands_end,
            events: events_end,
        });
        let mut rig = Self { gateway: gateway.expect("sizes in range"), wire, mma, commands, events, now_ns: 0 };
        let chain = ChainSettings {
            chain: ChainIndex(0),
            generation: ChainGeneration(0),
            idle_timeout_ns: 1 << 40,
            back: PortSet::EMPTY,
        };
        let rule = Rule { matches: Match::default(), policy, chain: Some(ChainIndex(0)), priority: 0 };
        rig.command(Command::SetRules(Arc::new(RuleSet::new(vec![rule], &[chain]).expect("rules for this chain"))));
        rig
    }

    fn command(&mut self, command: Command) {
        self.commands.send(command).expect("the gateway is there");
        self.poll();
        self.clear();
    }

    fn ready(&mut self, instance: u64) {
        let entrance = FwpId { index: instance as u32, generation: 1 };
        self.command(Command::Ready {
            chain: ChainIndex(0),
            instance: InstanceId(instance),
            entrance: entrance.into(),
        });
    }

    fn poll(&mut self) {
        self.gateway.poll_at(self.now_ns);
    }

    /// Takes what the gateway has handed over, as the MMA and the launcher would; how many frames.
    fn clear(&mut self) -> usize {
        self.now_ns += POLL_NS;
        self.events.try_iter().for_each(drop);
        let mut count = 0;
        while let Some(inbound) = self.mma.inbound.pop() {
            assert!(self.mma.spent.push(inbound.frame.into_buffer()).is_ok(), "the link has room");
            count += 1;
        }
        self.mma.spent.publish();
        count
    }
}

fn known_flows(_: &Path, scene: &Scene) {
    let rig = std::cell::RefCell::new(Rig::new(Policy::Shared, 4));
    rig.borrow_mut().ready(1);
    scene.repeat(
        |number| {
            let rig = rig.borrow_mut();
            let flow = |frame: u64| datagram(Ipv4Addr::new(10, 77, 1, ((number * BURST + frame) % FLOWS) as u8), 4000);
            rig.wire.lock().expect("one thread").extend((0..BURST).map(flow));
        },
        |()| rig.borrow_mut().poll(),
        |()| assert_eq!(rig.borrow_mut().clear(), BURST as usize, "all are handed over"),
    );
}

fn new_clients(_: &Path, scene: &Scene) {
    let rig = std::cell::RefCell::new(Rig::new(Policy::PerClient, CLIENTS as usize));
    scene.repeat(
        |number| {
            let mut rig = rig.borrow_mut();
            rig.ready(number);
            let client = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 1, 0)) + number as u32);
            rig.wire.lock().expect("one thread").push(datagram(client, 4000));
        },
        |()| rig.borrow_mut().poll(),
        |()| assert_eq!(rig.borrow_mut().clear(), 1, "it is handed over"),
    );
}
