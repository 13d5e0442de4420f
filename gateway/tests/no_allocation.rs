//! Tests the promise that a gateway, once it is made, allocates and frees nothing. It handles a hundred thousand
//! packets, including fragments and flows without a rule. Meanwhile clients and connections come and go, rules change,
//! ARP is answered, functions open flows, and chain instances are released.
#![allow(unsafe_code)] // A counting global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};
use pinion_abi::{
    FLOW_BYTES, FLOW_DESTINATION_AT, FLOW_DESTINATION_PORT_AT, FLOW_ETHERTYPE, FLOW_IP_AT, FLOW_KIND_AT,
    FLOW_PROTOCOL_AT, FLOW_VERSION, FLOW_VERSION_AT, FlowKind,
};
use pinion_gateway::drops::DropReason;
use pinion_gateway::flows::sources::SourceLimit;
use pinion_gateway::gateway::{Gateway, GatewayConfig, PortSetup};
use pinion_gateway::id::{ChainGeneration, ChainIndex, InstanceId};
use pinion_gateway::invoke::{Dispatcher, FunctionRef, InvokePort};
use pinion_gateway::leaving::{MaySend, OutboundGrant};
use pinion_gateway::messages::{Command, Event};
use pinion_gateway::neighbors::network::NetworkSetup;
use pinion_gateway::neighbors::reverse_path::ReversePath;
use pinion_gateway::port::heap::HeapPool;
use pinion_gateway::port::{BufferPool, LinkState, Port, PortCounters, PortFacts};
use pinion_gateway::rules::{ChainSettings, Match, Policy, Redelivery, Rule, RuleSet};
use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::id::{self, FwpId, PortIndex, TenantIndex};
use pinion_mma::link::{Inbound, MmaLink, Outbound, link};
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::ways::direction::PortSet;

struct CountingAllocator;

/// Calls of the allocator by threads with `COUNTING` set.
static CALLS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // Constant and without a destructor, so that reading it does not allocate.
    static COUNTING: Cell<bool> = const { Cell::new(false) };
}

fn note() {
    if COUNTING.get() {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: passes everything unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises are the system allocator's demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note();
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn calls_during<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = CALLS.load(Ordering::Relaxed);
    COUNTING.set(true);
    let result = work();
    COUNTING.set(false);
    (CALLS.load(Ordering::Relaxed) - before, result)
}

const BURST: usize = 32;
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The test's clock runs faster than that of calls.
const CALL_TIMEOUT_NS: u64 = 2_000_000_000;

/// How a fragment begins whose first one never comes. Each is of another datagram.
const LONE: [u8; 6] = [0x45, 0, 0, 36, 0, 99];

/// A port that receives the same frames repeatedly and, like a device's port, allocates nothing.
struct Fountain {
    templates: Vec<Vec<u8>>,
    next: usize,
    pool: HeapPool,
    buffers: Vec<Buffer>,
    counters: Arc<PortCounters>,
}

impl Port for Fountain {
    fn name(&self) -> &str {
        "fountain"
    }

    fn device(&self) -> &str {
        "none"
    }

    fn facts(&self) -> PortFacts {
        PortFacts { mac: STATION, mtu: 1500, link: LinkState::Up, missed: 0 }
    }

    fn receive(&mut self, frames: &mut Vec<Frame>, max: usize) -> usize {
        let count = self.pool.take(&mut self.buffers, max);
        for mut buffer in self.buffers.drain(..) {
            let template = &self.templates[self.next % self.templates.len()];
            self.next += 1;
            let len = template.len() as u32;
            let bytes = buffer.bytes_mut(len);
            bytes.copy_from_slice(template);
            if bytes[14..].starts_with(&LONE) {
                bytes[18..20].copy_from_slice(&(self.next as u16).to_be_bytes());
                reseal(bytes);
            }
            frames.push(Frame::new(buffer, len));
        }
        count
    }

    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        let count = frames.len();
        self.counters.sent.frames.add(count as u64);
        self.buffers.extend(frames.drain(..).map(Frame::into_buffer));
        pool.give(&mut self.buffers);
        count
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}

/// Takes the answers, then calls one function that exists and one that does not. Returns how many answers were
/// successful.
fn invoke_and_collect(dispatcher: &mut Dispatcher, round: u64) -> u64 {
    let mut answered = 0;
    let (calls, ()) = calls_during(|| {
        dispatcher.poll(|_, outcome| answered += u64::from(outcome.is_ok()));
        for chain in [0, 1] {
            let function = FunctionRef { chain: ChainIndex(chain), generation: ChainGeneration(0) };
            // All calls may be under way already.
            let _ = dispatcher.stage(function, round, CALL_TIMEOUT_NS, b"payload");
        }
        dispatcher.submit();
    });
    assert_eq!(calls, 0, "calls of the allocator by the dispatcher in round {round}");
    answered
}

fn internet_checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

fn datagram(client: u8) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, client, 10, 0, 1, 1];
    let sum = internet_checksum(&header);
    header[10..12].copy_from_slice(&sum);
    let ethernet = [&STATION[..], &[2, 0, 0, 0, 1, client], &[8, 0]].concat();
    [&ethernet[..], &header, &[0, 9, 0, 9, 0, 12, 0, 0], b"data"].concat()
}

/// A segment of a TCP connection with these flags.
fn segment(client: u8, flags: u8) -> Vec<u8> {
    let mut frame = datagram(client);
    frame.truncate(34);
    (frame[17], frame[23]) = (40, 6);
    frame[24..26].fill(0);
    let sum = internet_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum);
    [&frame[..], &[0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0, 0, 0, 0, 0, 0]].concat()
}

/// A fragment of a datagram with this identification, and these flags and offset.
fn fragment(client: u8, identification: u8, flags_offset: [u8; 2]) -> Vec<u8> {
    let mut frame = datagram(client);
    frame.extend(*b"more");
    (frame[17], frame[19]) = (36, identification);
    frame[20..22].copy_from_slice(&flags_offset);
    reseal(&mut frame);
    frame
}

/// An ICMP error about the answer to a client's datagram; about another packet if `port` is not 9.
fn error(client: u8, port: u8) -> Vec<u8> {
    let mut frame = datagram(client);
    frame.truncate(34);
    (frame[17], frame[23]) = (56, 1);
    reseal(&mut frame);
    let quoted = [0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 1, 1, 10, 0, 0, client, 0, 9, 0, port, 0, 12, 0, 0];
    [&frame[..], &[3, 1, 0, 0, 0, 0, 0, 0], &quoted].concat()
}

/// Corrects the checksum of the IPv4 header.
fn reseal(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = internet_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum);
}

/// A datagram in a VLAN that no rule matches.
fn tagged(client: u8) -> Vec<u8> {
    let frame = datagram(client);
    [&frame[..12], &[0x81, 0, 0, 100], &frame[12..]].concat()
}

fn arp_request() -> Vec<u8> {
    let head = [&[0xff; 6][..], &[2, 0, 0, 0, 1, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    [&head[..], &[2, 0, 0, 0, 1, 1, 10, 0, 0, 1], &[0; 6], &[10, 0, 1, 1]].concat()
}

/// Turns a frame's addresses around. Of some, the hardware addresses are left to the node.
fn turn_around(frame: &mut [u8], number: usize) {
    let (to, from) = frame[..12].split_at_mut(6);
    to.swap_with_slice(from);
    if let Some((source, destination)) = frame.get_mut(26..34).map(|addresses| addresses.split_at_mut(4)) {
        source.swap_with_slice(destination);
    }
    if number.is_multiple_of(16) {
        frame[..12].fill(0);
    }
}

/// Asks for a flow to a neighbour.
fn ask_for_flow(frame: &mut [u8; FLOW_BYTES]) {
    frame.fill(0);
    frame[12..14].copy_from_slice(&FLOW_ETHERTYPE.to_be_bytes());
    (frame[FLOW_VERSION_AT], frame[FLOW_KIND_AT]) = (FLOW_VERSION, FlowKind::Open as u8);
    (frame[FLOW_PROTOCOL_AT], frame[FLOW_IP_AT]) = (17, 4);
    frame[FLOW_DESTINATION_PORT_AT + 1] = 9;
    frame[FLOW_DESTINATION_AT..FLOW_DESTINATION_AT + 4].copy_from_slice(&[10, 0, 0, 200]);
}

/// Sends every frame back by the port that it came in by, in another buffer; asks for a flow instead of one of them. Returns how
/// many frames of the first port it echoed, and how many flows were opened and ended.
fn play_mma(mma: &mut MmaLink) -> (usize, [u64; 2]) {
    let (mut echoed, mut flows) = (0, [0; 2]);
    while let Some(Inbound { frame, target }) = mma.inbound.pop() {
        if frame.bytes()[12..14] == FLOW_ETHERTYPE.to_be_bytes() {
            flows[0] += u64::from(frame.bytes()[FLOW_KIND_AT] == FlowKind::Opened as u8);
            flows[1] += u64::from(frame.bytes()[FLOW_KIND_AT] == FlowKind::Closed as u8);
            mma.spent.push(frame.into_buffer()).unwrap();
            continue;
        }
        if let Some(mut buffer) = mma.empty.pop() {
            buffer.bytes_mut(frame.len()).copy_from_slice(frame.bytes());
            if frame.port() == PortIndex(0) {
                turn_around(buffer.bytes_mut(frame.len()), echoed);
            }
            let sender = id::Sender { instance: target.index, ..id::Sender::of(TenantIndex(0)) };
            let mut echo = Frame::new(buffer, frame.len()).of_port(frame.port());
            if frame.port() == PortIndex(0) && echoed == 1 {
                echo.set_len(FLOW_BYTES as u32);
                ask_for_flow(echo.bytes_mut().try_into().unwrap());
            }
            mma.outbound.push(Outbound { frame: echo, sender }).unwrap();
            echoed += usize::from(frame.port() == PortIndex(0));
        }
        mma.spent.push(frame.into_buffer()).unwrap();
    }
    (echoed, flows)
}

fn rules(policy: Policy) -> Arc<RuleSet> {
    let rule = Rule { matches: Match::default(), policy, chain: Some(ChainIndex(0)), priority: 0 };
    let to_neighbors = OutboundGrant { protocol: 17, to: "10.0.0.0/16".parse().unwrap(), ports: 9..=9 };
    let chain = ChainSettings {
        chain: ChainIndex(0),
        generation: ChainGeneration(0),
        idle_timeout_ns: 1_000_000_000,
        back: PortSet::EMPTY,
        tenant: TenantIndex(0),
        weight: 1,
        fwps: 1,
        redelivery: Redelivery::Never,
        may_send: MaySend { outbound: Arc::new([to_neighbors]), ..MaySend::default() },
    };
    let other = |number: u16| {
        let matches = Match { protocol: Some(17), source_ports: Some(number..=number + 3), ..Match::default() };
        Rule { matches, priority: 1, ..rule.clone() }
    };
    let rules = (1000..1500).map(other).chain([rule.clone()]).collect();
    Arc::new(RuleSet::new(rules, &[chain]).unwrap())
}

/// Keeps instances ready and unbinds a bound one from time to time. Returns how many were bound, and how many ended
/// with a connection.
fn play_launcher(round: u64, next: &mut u64, commands: &Sender<Command>, events: &Receiver<Event>) -> (u64, u64) {
    let (mut taken, mut wanted, mut ended) = (0, 0, 0);
    for event in events.try_iter() {
        match event {
            Event::Taken { .. } => (taken, wanted) = (taken + 1, wanted + 1),
            Event::Wanted { .. } => wanted += 1,
            Event::FlowEnded { .. } => ended += 1,
            _ => {}
        }
    }
    for _ in 0..wanted {
        *next += 1;
        let entry = FwpId { index: *next as u32, generation: 0 };
        commands
            .send(Command::Ready {
                chain: ChainIndex(0),
                instance: InstanceId(*next),
                entrance: entry.into(),
                limit: SourceLimit::NONE,
            })
            .unwrap();
    }
    if round.is_multiple_of(50) {
        commands.send(Command::EndUnproven { tenant: TenantIndex(0), count: 16 }).unwrap();
        commands.send(Command::Unbind { instance: InstanceId(next.saturating_sub(round % 64)) }).unwrap();
    }
    if round.is_multiple_of(500) {
        let policy = if round.is_multiple_of(1000) { Policy::PerFlow } else { Policy::PerClient };
        commands.send(Command::SetRules(rules(policy))).unwrap();
    }
    (taken, ended)
}

#[test]
fn a_gateway_at_work_allocates_and_frees_nothing() {
    let pool = HeapPool::new(4096, 2048);
    let (first, last) = ([0x20, 0], [0, 2]);
    // In order, out of order, twice the first one, and without a first one.
    let pieces =
        [(2, 1, first), (2, 1, last), (2, 2, last), (2, 2, first), (3, 1, first), (3, 1, first), (4, 99, last)];
    let pieces = pieces.map(|(client, identification, at)| fragment(client, identification, at));
    let others = [arp_request(), tagged(1), error(1, 9), error(1, 10)].into_iter().chain(pieces);
    // Opened, in use, closed, opened again with the same ports, reset.
    let connections = (0..4).flat_map(|client| [2, 16, 17, 2, 16, 4].map(|flags| segment(client, flags)));
    let templates = (0..64).map(datagram).chain(others).chain(connections).collect();
    let port = Fountain {
        templates,
        next: 0,
        pool: pool.clone(),
        buffers: Vec::with_capacity(2 * BURST),
        counters: Arc::default(),
    };
    let sent = Arc::clone(port.counters());
    let address = Ipv4Addr::new(10, 0, 1, 1);
    let (gateway_links, mut mmas): (Vec<_>, Vec<_>) =
        (0..2).map(|_| link(512, Doorbell::default(), Doorbell::default())).unzip();
    let (commands, commands_end) = crossbeam_channel::bounded(1024);
    let (events_end, events) = crossbeam_channel::bounded(1024);
    let (invoke, mut dispatchers) = InvokePort::new(1, 64, &Doorbell::default());
    let mut gateway = Gateway::new(GatewayConfig {
        ports: vec![PortSetup {
            port: Box::new(port),
            networks: vec![NetworkSetup {
                addresses: vec![format!("{address}/8").parse().unwrap()],
                ..NetworkSetup::default()
            }],
            reverse_path: ReversePath::Off,
        }],
        invoke: Some(invoke),
        pool: Box::new(pool.clone()),
        flows_max: 1024,
        instances_max: 256,
        pending_max: 128,
        burst: BURST,
        empties_max: 512,
        links: gateway_links,
        commands: commands_end,
        events: events_end,
    })
    .unwrap();
    let observer = gateway.observer();
    commands.send(Command::SetRules(rules(Policy::PerClient))).unwrap();

    assert!(calls_during(|| drop(std::hint::black_box(Box::new(1)))).0 > 0, "the allocator's calls are not counted");
    let (mut round, mut next_instance, mut taken, mut ended, mut echoed, mut answered) = (0, 0, 0, 0, 0, 0);
    let mut flows = [0; 2];
    while echoed < 100_000 {
        round += 1;
        answered += invoke_and_collect(&mut dispatchers[0], round);
        let (calls, _) = calls_during(|| gateway.poll_at(round * 1_000_000));
        assert_eq!(calls, 0, "calls of the allocator in round {round}");
        for (frames, [opened, closed]) in mmas.iter_mut().map(play_mma) {
            echoed += frames;
            flows = [flows[0] + opened, flows[1] + closed];
        }
        let (more_taken, more_ended) = play_launcher(round, &mut next_instance, &commands, &events);
        (taken, ended) = (taken + more_taken, ended + more_ended);
    }
    let port = observer.ports().next().unwrap();
    assert!(taken > 100, "only {taken} instances were taken: the test tests too little");
    assert!(ended > 100, "only {ended} instances ended with their connections: the test tests too little");
    assert!(answered > 1000, "only {answered} calls were answered: the test tests too little");
    assert!(flows[0] > 500, "only {flows:?} flows were opened and ended: the test tests too little");
    assert!(port.neighbors_answered.value() > 1000);
    for (reason, count_min) in [
        (DropReason::NoRule, 1000),
        (DropReason::OverlappingFragment, 1),
        (DropReason::DatagramEnded, 1000),
        (DropReason::FragmentWithoutFirst, 10),
        (DropReason::FragmentsFull, 1000),
        (DropReason::UnresolvedNeighbor, 1000),
    ] {
        assert!(port.drops.count(reason) > count_min, "{reason}: {}", port.drops.count(reason));
    }
    assert!(sent.sent.frames.value() > 80_000);
}
