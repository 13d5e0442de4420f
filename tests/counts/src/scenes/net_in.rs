//! Net-In: the gateway with a port that receives what a scene puts on its wire.
//!
//! The port copies frames into buffers, where DPDK's would be already; that is counted with what receives them.

use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, bounded};
use pinion_gateway::flows::sources::SourceLimit;
use pinion_gateway::gateway::{Gateway, GatewayConfig, PortSetup};
use pinion_gateway::id::{ChainGeneration, ChainIndex, InstanceId};
use pinion_gateway::invoke::{Dispatcher, InvokePort};
use pinion_gateway::messages::{Command, Event};
use pinion_gateway::neighbors::network::NetworkSetup;
use pinion_gateway::neighbors::reverse_path::ReversePath;
use pinion_gateway::port::heap::HeapPool;
use pinion_gateway::port::{BufferPool, LinkState, Port, PortCounters, PortFacts};
use pinion_gateway::rules::{ChainSettings, Match, Policy, Redelivery, Rule, RuleSet};
use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::id::{FwpId, TenantIndex};
use pinion_mma::link::{MmaLink, link};
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::ways::direction::PortSet;

use super::frames::{Bytes, FRAME_BYTES, STATION};

/// Frames received in one poll.
pub(super) const BURST: u64 = 32;
const BUFFERS: usize = 1024;
const CALLS_MAX: usize = 64;

/// What the port receives next, and how many frames have left by it.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) arriving: Vec<Bytes>,
    pub(super) left: usize,
}

struct ReplayPort {
    wire: Arc<Mutex<Wire>>,
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
        let count = wire.arriving.len().min(max);
        self.pool.take(&mut self.spare, count);
        for bytes in wire.arriving.drain(..count) {
            let mut buffer = self.spare.pop().expect("buffers for a burst");
            buffer.bytes_mut(FRAME_BYTES as u32).copy_from_slice(&bytes);
            frames.push(Frame::new(buffer, FRAME_BYTES as u32));
        }
        count
    }

    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        let count = frames.len();
        self.wire.lock().expect("one thread").left += count;
        self.spare.extend(frames.drain(..).map(Frame::into_buffer));
        pool.give(&mut self.spare);
        count
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

/// A gateway with one chain for all traffic.
pub(super) struct NetIn {
    pub(super) gateway: Gateway,
    pub(super) dispatcher: Dispatcher,
    wire: Arc<Mutex<Wire>>,
    commands: Sender<Command>,
    pub(super) events: Receiver<Event>,
    /// The gateway's clock, in nanoseconds. It never goes back.
    pub(super) now_ns: u64,
}

impl NetIn {
    /// Makes it with the MMA's end of its link.
    pub(super) fn new(policy: Policy, instances_max: usize) -> (Self, MmaLink) {
        let pool = HeapPool::new(BUFFERS, 2048);
        let wire = Arc::<Mutex<Wire>>::default();
        let port = ReplayPort {
            wire: Arc::clone(&wire),
            pool: pool.clone(),
            spare: Vec::with_capacity(BURST as usize),
            counters: Arc::default(),
        };
        let (gateway_end, mma) = link(256, Doorbell::default(), Doorbell::default());
        let (commands, commands_end) = bounded(4096);
        let (events_end, events) = bounded(4096);
        let (invoke_port, mut dispatchers) = InvokePort::new(1, CALLS_MAX, &Doorbell::default());
        let gateway = Gateway::new(GatewayConfig {
            ports: vec![PortSetup {
                port: Box::new(port),
                networks: vec![NetworkSetup {
                    addresses: vec!["10.77.0.2/16".parse().expect("a prefix")],
                    ..NetworkSetup::default()
                }],
                reverse_path: ReversePath::Off,
            }],
            invoke: Some(invoke_port),
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
        let gateway = gateway.expect("sizes in range");
        let dispatcher = dispatchers.pop().expect("one line");
        let mut net_in = Self { gateway, dispatcher, wire, commands, events, now_ns: 0 };
        let chain = ChainSettings {
            chain: ChainIndex(0),
            generation: ChainGeneration(0),
            idle_timeout_ns: 1 << 40,
            back: PortSet::EMPTY,
            tenant: TenantIndex(0),
            weight: 1,
            fwps: 1,
            redelivery: Redelivery::Never,
            may_send: pinion_gateway::leaving::MaySend::default(),
        };
        let rule = Rule { matches: Match::default(), policy, chain: Some(ChainIndex(0)), priority: 0 };
        net_in.command(Command::SetRules(Arc::new(RuleSet::new(vec![rule], &[chain]).expect("rules for this chain"))));
        (net_in, mma)
    }

    fn command(&mut self, command: Command) {
        self.commands.send(command).expect("the gateway is there");
        self.poll();
    }

    pub(super) fn poll(&mut self) {
        self.gateway.poll_at(self.now_ns);
    }

    /// Gives the chain an instance.
    pub(super) fn ready(&mut self, instance: u64, entry: FwpId) {
        self.command(Command::Ready {
            chain: ChainIndex(0),
            instance: InstanceId(instance),
            entrance: entry.into(),
            limit: SourceLimit::NONE,
        });
    }

    pub(super) fn arrive(&self, frames: impl IntoIterator<Item = Bytes>) {
        self.wire.lock().expect("one thread").arriving.extend(frames);
    }

    /// How many frames have left since the last call.
    pub(super) fn take_left(&self) -> usize {
        std::mem::take(&mut self.wire.lock().expect("one thread").left)
    }
}
