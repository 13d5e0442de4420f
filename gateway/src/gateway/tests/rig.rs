//! The gateway under test, with what surrounds it: ports on wires in memory, MMAs, the launcher's channels. All are played by the test.

use super::*;

pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(super) const IDLE_TIMEOUT_NS: u64 = 5_000_000_000;
pub(super) const POOL: usize = 1024;
/// The chain whose calls are delivered again if their instance ends.
pub(super) const REPEATED: u32 = 1;

pub(super) struct Rig {
    pub(super) gateway: Gateway,
    pub(super) peers: Vec<MemoryPeer>,
    pub(super) mmas: Vec<MmaLink>,
    pub(super) commands: Sender<Command>,
    pub(super) events: Receiver<Event>,
    pub(super) pool: HeapPool,
    pub(super) now_ns: u64,
    pub(super) dispatchers: Vec<Dispatcher>,
    /// What the chains of the next rules may send, and what the second one may if that differs.
    pub(super) may_send: MaySend,
    pub(super) second_may_send: Option<MaySend>,
}

/// A frame that a chain may send which sends anything, with this mark at its end.
pub(super) fn frame_to_leave(mark: u8) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..14].copy_from_slice(&ethernet(CLIENT, STATION, 0x88b6, &[]));
    frame[59] = mark;
    frame
}

/// Returns what an MMA hands over of a frame that is to be transmitted.
pub(super) fn leaving(frame: Frame) -> Outbound {
    Outbound { frame, sender: id::Sender::of(TenantIndex(0)) }
}

/// Sizes that a test may want to be small.
pub(super) struct Sizes {
    pub(super) mmas: usize,
    pub(super) link: usize,
    pub(super) instances: usize,
    pub(super) pending: usize,
    pub(super) events: usize,
    /// `None`: there is no port to invoke chains by.
    pub(super) calls: Option<usize>,
}

pub(super) const AMPLE: Sizes = Sizes { mmas: 1, link: 256, instances: 64, pending: 64, events: 256, calls: None };

/// What MMA was given: the frame's target, the port that it came in by, and its bytes.
pub(super) type Delivered = (FwpId, PortIndex, Vec<u8>);

impl Rig {
    pub(super) fn new(ports: usize) -> Self {
        Self::with(ports, AMPLE)
    }

    pub(super) fn with(ports: usize, sizes: Sizes) -> Self {
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
    pub(super) fn promiscuous() -> Self {
        let mut rig = Self::with_policy(Policy::Shared);
        rig.gateway.ports[0].promiscuous = Promiscuous::Yes;
        rig
    }

    /// A gateway with one chain for all traffic, under this policy.
    pub(super) fn with_policy(policy: Policy) -> Self {
        let mut rig = Self::new(1);
        rig.set_rules(vec![rule(policy, 0)]);
        rig
    }

    pub(super) fn set_rules(&mut self, rules: Vec<Rule>) {
        self.set_rules_both_ways(rules, PortSet::EMPTY);
    }

    /// Sets rules for chains whose way back begins at the ports in `back`.
    pub(super) fn set_rules_both_ways(&mut self, rules: Vec<Rule>, back: PortSet) {
        let chains = self.chains(back);
        self.set_rules_of(rules, &chains);
    }

    pub(super) fn set_rules_of(&mut self, rules: Vec<Rule>, chains: &[ChainSettings]) {
        self.command(Command::SetRules(Arc::new(RuleSet::new(rules, chains).unwrap())));
        assert!(matches!(self.events()[..], [Event::RulesReplaced { .. }]));
    }

    pub(super) fn chains(&self, back: PortSet) -> [ChainSettings; 2] {
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

    pub(super) fn command(&mut self, command: Command) {
        self.commands.send(command).unwrap();
        self.poll();
    }

    pub(super) fn ready(&mut self, chain: u32, instance: u64) {
        self.command(Command::Ready {
            chain: ChainIndex(chain),
            instance: InstanceId(instance),
            entrance: entry(instance).into(),
            limit: SourceLimit::NONE,
        });
    }

    pub(super) fn poll(&mut self) -> usize {
        self.gateway.poll_at(self.now_ns)
    }

    /// Polls long enough for every part of the tables to be swept, `after_ns` from now.
    pub(super) fn sweep(&mut self, after_ns: u64) {
        self.now_ns += after_ns;
        for _ in 0..4 {
            self.now_ns += SWEEP_PERIOD_NS;
            self.poll();
        }
    }

    pub(super) fn send(&mut self, frame: &[u8]) {
        self.peers[0].send(frame).unwrap();
    }

    pub(super) fn send_and_poll(&mut self, frames: &[Vec<u8>]) {
        frames.iter().for_each(|frame| self.send(frame));
        self.poll();
    }

    /// Takes the frames that MMA `mma` was given.
    pub(super) fn delivered_to(&mut self, mma: usize) -> Vec<Delivered> {
        let mma = &mut self.mmas[mma];
        std::iter::from_fn(|| {
            let Inbound { frame, target } = mma.inbound.pop()?;
            let delivered = (target, frame.port(), frame.bytes().to_vec());
            mma.spent.push(frame.into_buffer()).unwrap();
            Some(delivered)
        })
        .collect()
    }

    pub(super) fn delivered(&mut self) -> Vec<Delivered> {
        (0..self.mmas.len()).flat_map(|mma| self.delivered_to(mma)).collect()
    }

    /// Takes all empty buffers that MMA `mma` was given.
    pub(super) fn empties_of(&mut self, mma: usize) -> Vec<Buffer> {
        std::iter::from_fn(|| self.mmas[mma].empty.pop()).collect()
    }

    /// Takes the delivered frames and returns the instances they went to, by the number of their entry.
    pub(super) fn targets(&mut self) -> Vec<u32> {
        self.delivered().into_iter().map(|(target, ..)| target.index).collect()
    }

    /// Returns the events that the launcher has received by the start of the next poll.
    pub(super) fn events(&mut self) -> Vec<Event> {
        self.gateway.assigner.begin_poll();
        self.events.try_iter().collect()
    }

    pub(super) fn drops(&self, reason: DropReason) -> u64 {
        self.gateway.observer().ports().map(|port| port.drops.count(reason)).sum()
    }

    pub(super) fn chain_drops(&self, chain: u32) -> Vec<(DropReason, u64)> {
        let counts = self.gateway.observer().chain_drops().chain(ChainIndex(chain)).counts();
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Ends everything and checks that all buffers are back.
    pub(super) fn assert_no_buffer_leaked(mut self) {
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

pub(super) fn set_ports(config: &mut GatewayConfig, count: usize) {
    let pool = HeapPool::new(16_384, 2048);
    config.ports = (0..count).map(|port| setup(port, &pool).0).collect();
    config.pool = Box::new(pool);
}

pub(super) fn setup(port: usize, pool: &HeapPool) -> (PortSetup, MemoryPeer) {
    let mut mac = STATION;
    mac[4] = port as u8;
    let config = MemoryPortConfig { mac, ..MemoryPortConfig::named(&format!("port{port}")) };
    let (memory, peer) = MemoryPort::pair(config, pool.clone());
    let addresses = vec!["10.77.0.2/24".parse().unwrap(), "fd77::2/64".parse().unwrap()];
    let networks = vec![NetworkSetup { addresses, ..NetworkSetup::default() }];
    (PortSetup { port: Box::new(memory), networks, reverse_path: ReversePath::Off }, peer)
}

pub(super) fn entry(instance: u64) -> FwpId {
    FwpId { index: instance as u32, generation: 1 }
}

pub(super) fn rule(policy: Policy, chain: u32) -> Rule {
    Rule { matches: Match::default(), policy, chain: Some(ChainIndex(chain)), priority: 0 }
}

pub(super) fn client(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 100 + number)
}

/// A datagram of a client. `from_port` and `mark` distinguish it from the client's other datagrams.
pub(super) fn datagram(number: u8, from_port: u16, mark: u8) -> Vec<u8> {
    to_station(&ipv4(client(number), SERVER, UDP, &udp(from_port, 7, &[mark])))
}

pub(super) fn ping(number: u8, sequence: u16) -> Vec<u8> {
    to_station(&ipv4(client(number), SERVER, 1, &icmp_echo(sequence)))
}

pub(super) fn taken(instance: u64, client: ClientLabel) -> Event {
    Event::Taken { chain: ChainIndex(0), instance: InstanceId(instance), client }
}

pub(super) fn address(number: u8) -> ClientLabel {
    ClientLabel::Address { address: client(number).into(), vlan: Vlan::UNTAGGED }
}
