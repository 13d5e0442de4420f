//! The three parties around the MMA, played by one thread: guests with their own memory, correct or hostile; a gateway
//! with buffers on the heap; and a [`House`] that joins them to a real [`Mma`], which moves packets only when polled.
#![allow(unsafe_code)] // Plays the guest's side of the rings, and hands heap memory to the crate under test.
#![allow(dead_code)] // Each test binary uses another part.

mod memory;

use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, bounded};
use pinion_abi::{
    Descriptor, POOL_MAGIC, PORT_DROP, PORT_NEXT, PORT_REPLY, PoolHeader, RX_HEADROOM, RingHeader, SLOT_SIZE_MIN,
};
use pinion_mma::accounts::copying::CopyShare;
use pinion_mma::accounts::counters::MovedCounters;
use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::fwp::connect;
use pinion_mma::guest::mailbox::{Mailbox, Violation};
use pinion_mma::guest::pool::{PoolError, PoolLayout};
use pinion_mma::id::{self, FwpId, PortIndex, TenantIndex, WorkerIndex};
use pinion_mma::link::{GatewayLink, Inbound, Outbound, link};
use pinion_mma::mover::{Mma, MmaCommand, MmaEvent};
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::notify::{Notifier, ReadyQueue};
use pinion_mma::stopwatch::Stopwatch;
use pinion_mma::wiring::{Backpressure, Edge, Endpoint, Wiring};

use self::memory::{Memory, PAGE};

/// The size of a guest's pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) slot_count: u32,
    pub(crate) slot_size: u32,
    pub(crate) ring_entries: u32,
}

impl Shape {
    /// Returns a pool of the smallest slots, with rings that just hold them.
    pub(crate) fn slots(slot_count: u32) -> Self {
        Self { slot_count, slot_size: SLOT_SIZE_MIN, ring_entries: slot_count.next_power_of_two() }
    }

    /// Returns the longest frame that fits after the headroom, in bytes.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        (self.slot_size - RX_HEADROOM) as usize
    }
}

/// A guest: it can do what code inside a linear memory can, and nothing else.
pub(crate) struct Guest {
    memory: Memory,
    header: PoolHeader,
    rx_head: u32,
    tx_tail: u32,
    /// Only the first slot's pages are provided.
    is_new: bool,
}

/// Fields of a ring's header, by their offset.
#[derive(Clone, Copy)]
pub(crate) enum Index {
    Head = 0,
    Tail = 4,
}

impl Guest {
    /// Makes a guest whose last slot ends where its memory ends.
    pub(crate) fn new(shape: Shape) -> Self {
        Self::owning(shape, 0)
    }

    /// Makes a guest of which the last `own_slots` slots are its own.
    pub(crate) fn owning(shape: Shape, own_slots: u32) -> Self {
        let Shape { slot_count, slot_size, ring_entries } = shape;
        let ring_bytes = size_of::<RingHeader>() as u32 + ring_entries * size_of::<Descriptor>() as u32;
        let rx_ring = 1024_u32;
        let tx_ring = (rx_ring + ring_bytes).next_multiple_of(64);
        let end = (tx_ring + ring_bytes + slot_count * slot_size).next_multiple_of(PAGE as u32);
        let slots = end - slot_count * slot_size;
        let header =
            PoolHeader { magic: POOL_MAGIC, slot_count, slot_size, slots, ring_entries, rx_ring, tx_ring, own_slots };
        Self::with_header(header, end as usize).unwrap()
    }

    /// Makes a guest with this pool header, in whole pages of memory.
    pub(crate) fn with_header(header: PoolHeader, memory_bytes: usize) -> Result<Self, PoolError> {
        PoolLayout::check(header, memory_bytes)?;
        Ok(Self { memory: Memory::fenced(memory_bytes), header, rx_head: 0, tx_tail: 0, is_new: false })
    }

    /// Gives it memory that was never touched, but for its rings and its first slot.
    pub(crate) fn new_in_memory(self) -> Self {
        let memory = Memory::untouched(self.memory.bytes);
        let layout = PoolLayout::check(self.header, self.memory.bytes).unwrap().new_in_memory();
        let PoolHeader { rx_ring, slots, slot_size, .. } = self.header;
        // The rings lie before the slots.
        let end = slots + u32::from(layout.provided()) * slot_size;
        memory.set_bytes(rx_ring as usize, &vec![0; (end - rx_ring) as usize]);
        Self { memory, is_new: true, ..self }
    }

    /// Lets the MMA use only those slots at first that a new guest has pages for.
    pub(crate) fn with_first_slots_only(self) -> Self {
        Self { is_new: true, ..self }
    }

    /// Returns how many slots the MMA may use at first.
    pub(crate) fn slots_at_first(&self) -> u16 {
        self.layout().provided()
    }

    /// Lets the MMA use all slots from the start, although they have no pages.
    pub(crate) fn with_pages_untouched(self) -> Self {
        Self { is_new: false, ..self }
    }

    fn layout(&self) -> PoolLayout {
        let layout = PoolLayout::check(self.header, self.memory.bytes).unwrap();
        if self.is_new { layout.new_in_memory() } else { layout }
    }

    pub(crate) fn header(&self) -> &PoolHeader {
        &self.header
    }

    fn entry(&self, ring: u32, index: u32) -> usize {
        let place = (index % self.header.ring_entries) as usize;
        ring as usize + size_of::<RingHeader>() + place * size_of::<Descriptor>()
    }

    /// Takes the next descriptor from the receive ring, as a correct guest does.
    pub(crate) fn receive(&mut self) -> Option<Descriptor> {
        if self.rx_head == self.memory.read::<u32>(self.header.rx_ring as usize + Index::Tail as usize) {
            return None;
        }
        let descriptor = self.memory.read(self.entry(self.header.rx_ring, self.rx_head));
        self.rx_head = self.rx_head.wrapping_add(1);
        self.set_rx(Index::Head, self.rx_head);
        Some(descriptor)
    }

    /// Takes all descriptors from the receive ring.
    pub(crate) fn receive_all(&mut self) -> Vec<Descriptor> {
        std::iter::from_fn(|| self.receive()).collect()
    }

    /// Appends any descriptor to the transmit ring.
    pub(crate) fn send(&mut self, descriptor: Descriptor) {
        self.write_entry(self.tx_tail, descriptor);
        self.tx_tail = self.tx_tail.wrapping_add(1);
        self.set_tx(Index::Tail, self.tx_tail);
    }

    /// Sends a received frame as it is.
    pub(crate) fn pass(&mut self, received: Descriptor, port: u16) {
        self.send(Descriptor { port, ..received });
    }

    /// Overwrites an entry of the transmit ring.
    pub(crate) fn write_entry(&self, index: u32, descriptor: Descriptor) {
        self.memory.write(self.entry(self.header.tx_ring, index), descriptor);
    }

    pub(crate) fn set_tx(&self, field: Index, value: u32) {
        self.memory.write(self.header.tx_ring as usize + field as usize, value);
    }

    pub(crate) fn tx(&self, field: Index) -> u32 {
        self.memory.read(self.header.tx_ring as usize + field as usize)
    }

    pub(crate) fn set_rx(&self, field: Index, value: u32) {
        self.memory.write(self.header.rx_ring as usize + field as usize, value);
    }

    fn place(&self, slot: u16, offset: u16) -> usize {
        self.header.slots as usize + usize::from(slot) * self.header.slot_size as usize + usize::from(offset)
    }

    pub(crate) fn frame(&self, descriptor: &Descriptor) -> Vec<u8> {
        self.memory.copy(self.place(descriptor.slot, descriptor.offset), usize::from(descriptor.len))
    }

    pub(crate) fn write_frame(&self, slot: u16, offset: u16, bytes: &[u8]) {
        self.memory.set_bytes(self.place(slot, offset), bytes);
    }

    /// Writes any bytes to any address within its memory.
    pub(crate) fn scribble(&self, address: usize, bytes: &[u8]) {
        let room = self.memory.bytes.saturating_sub(address);
        self.memory.set_bytes(address.min(self.memory.bytes), &bytes[..bytes.len().min(room)]);
    }

    /// Sets the guest's own indices, as if it had come to these.
    pub(crate) fn resume_at(&mut self, rx_head: u32, tx_tail: u32) {
        (self.rx_head, self.tx_tail) = (rx_head, tx_tail);
        self.set_tx(Index::Tail, tx_tail);
    }

    /// Returns a copy of its whole memory.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        self.memory.copy(0, self.memory.bytes)
    }

    /// Returns a copy of all its slots.
    pub(crate) fn slots(&self) -> Vec<u8> {
        self.memory.copy(self.header.slots as usize, (self.header.slot_count * self.header.slot_size) as usize)
    }
}

/// A frame that has left the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) port: u16,
    pub(crate) bytes: Vec<u8>,
}

/// The gateway's half of the link, with buffers on the heap. Like the real one it never lends more than the link was
/// made for, empty buffers and received frames together. It asserts that each buffer comes back once.
pub(crate) struct Gateway {
    link: GatewayLink,
    memory: Memory,
    buffer_bytes: usize,
    pieces: Vec<Piece>,
    /// Buffers that are not lent, by number.
    home: Vec<usize>,
    lent_max: usize,
    /// Who has sent the frames that were collected.
    pub(crate) senders: Vec<id::Sender>,
    /// Most buffers that the MMA keeps for transmission, on a link for so many.
    pub(crate) kept_max: usize,
}

struct Piece {
    /// Its start, as an offset into the memory of all buffers.
    address: usize,
    lent: bool,
}

impl Gateway {
    fn new(link: GatewayLink, lent_max: usize, buffer_bytes: usize) -> Self {
        // An odd number of cache lines apart, as in real pools: otherwise they would map to few cache sets.
        let apart = buffer_bytes.next_multiple_of(128) + 64;
        let piece = |number| Piece { address: number * apart, lent: false };
        let pieces = (0..lent_max).map(piece).collect();
        Self {
            link,
            memory: Memory::heap(lent_max * apart),
            buffer_bytes,
            pieces,
            home: (0..lent_max).collect(),
            lent_max,
            senders: Vec::new(),
            kept_max: (lent_max.next_power_of_two() / 8).min(256),
        }
    }

    fn lend(&mut self) -> Buffer {
        let number = self.home.pop().expect("a gateway lends no more than the link holds");
        let piece = &mut self.pieces[number];
        piece.lent = true;
        let token = NonNull::without_provenance(NonZero::new(number + 1).unwrap());
        // SAFETY: within the memory, which outlives the MMA (order of `House`'s fields); not touched here while it is lent.
        unsafe {
            let start = self.memory.start.add(piece.address);
            Buffer::from_raw_parts(start, self.buffer_bytes as u16, token)
        }
    }

    fn take_back(&mut self, buffer: Buffer) {
        let number = buffer.into_token().addr().get() - 1;
        assert!(std::mem::take(&mut self.pieces[number].lent), "a buffer came back twice");
        self.home.push(number);
    }

    /// Returns the number of buffers that the MMA holds.
    pub(crate) fn lent(&self) -> usize {
        self.lent_max - self.home.len()
    }

    /// Hands a received frame to the MMA.
    pub(crate) fn inject(&mut self, frame: &[u8], port: u16, target: FwpId) {
        let mut buffer = self.lend();
        buffer.bytes_mut(frame.len() as u32).copy_from_slice(frame);
        let frame = Frame::new(buffer, frame.len() as u32).of_port(PortIndex(port));
        self.link.inbound.push(Inbound { frame, target }).expect("room for every frame lent");
        self.link.mma.ring();
    }

    /// Lends empty buffers; returns how many it could lend.
    pub(crate) fn lend_empties(&mut self, wanted: usize) -> usize {
        let count = wanted.min(self.home.len());
        for _ in 0..count {
            let buffer = self.lend();
            self.link.empty.push(buffer).expect("room for every buffer lent");
        }
        count
    }

    /// Lends empty buffers until the MMA holds `lent` in total.
    pub(crate) fn top_up(&mut self, lent: usize) {
        self.lend_empties(lent.saturating_sub(self.lent()));
    }

    /// Takes what the MMA gives back: the frames to transmit, and buffers.
    pub(crate) fn collect(&mut self) -> Vec<Left> {
        self.take_spent();
        let mut left = Vec::new();
        while let Some(Outbound { frame, sender }) = self.link.outbound.pop() {
            self.senders.push(sender);
            left.push(Left { port: frame.port().0, bytes: frame.bytes().to_vec() });
            self.take_back(frame.into_buffer());
        }
        left
    }

    /// The same without looking at the frames; returns the number of frames.
    pub(crate) fn discard(&mut self) -> usize {
        self.take_spent();
        let mut count = 0;
        while let Some(Outbound { frame, .. }) = self.link.outbound.pop() {
            self.take_back(frame.into_buffer());
            count += 1;
        }
        count
    }

    /// Takes back buffers only, and leaves the frames to transmit in their ring.
    pub(crate) fn take_spent(&mut self) {
        while let Some(buffer) = self.link.spent.pop() {
            self.take_back(buffer);
        }
    }
}

/// One FWP as its worker sees it.
pub(crate) struct Fwp {
    pub(crate) id: FwpId,
    pub(crate) mailbox: Mailbox,
    pub(crate) guest: Guest,
    /// By which it notifies the MMA, shared by all of its worker's FWPs.
    outputs: Arc<Mutex<Notifier>>,
}

impl Fwp {
    /// Collects and notifies the MMA, as its worker does after a turn, even if the turn failed.
    pub(crate) fn collect(&mut self) -> Result<u32, Violation> {
        let collected = self.mailbox.collect();
        if collected != Ok(0) {
            self.outputs.lock().unwrap().raise(self.id);
        }
        collected
    }

    /// Provides slots if the MMA wants some, as its worker does in each turn and when the guest is preempted.
    pub(crate) fn provide(&mut self) {
        self.mailbox.provide();
        if self.mailbox.take_providing().is_some_and(|providing| providing.is_news) {
            self.outputs.lock().unwrap().raise(self.id);
        }
    }

    /// Returns what the MMA counted for it.
    pub(crate) fn moved(&self) -> &MovedCounters {
        &self.mailbox.counters().moved
    }

    /// Publishes, and makes the guest take everything.
    pub(crate) fn publish_all(&mut self) -> Vec<Descriptor> {
        self.provide();
        self.mailbox.publish(|_| 0);
        self.guest.receive_all()
    }

    /// Publishes, and makes the guest send everything to `port`; returns the number of frames.
    pub(crate) fn pass_all(&mut self, port: u16) -> usize {
        let received = self.publish_all();
        for &descriptor in &received {
            self.guest.pass(descriptor, port);
        }
        assert_eq!(self.collect(), Ok(received.len() as u32));
        received.len()
    }
}

/// The sizes of a house.
pub(crate) struct Plan {
    pub(crate) fwps_max: usize,
    pub(crate) buffers: usize,
    pub(crate) buffer_bytes: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self { fwps_max: 16, buffers: 64, buffer_bytes: 2048 }
    }
}

/// One MMA, one gateway, one worker, and what they use. Fields are dropped in this order: the MMA, which has pointers
/// to all memory, before the memory.
pub(crate) struct House {
    pub(crate) mma: Mma,
    /// The MMA's.
    pub(crate) stopwatch: Stopwatch,
    pub(crate) gateway: Gateway,
    pub(crate) gateway_bell: Doorbell,
    pub(crate) worker_queue: ReadyQueue,
    outputs: Arc<Mutex<Notifier>>,
    commands: Sender<MmaCommand>,
    events: Receiver<MmaEvent>,
    /// On whose account the output of FWPs is moved that are made from now on.
    pub(crate) share: CopyShare,
    pub(crate) fwps: Vec<Fwp>,
}

impl House {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut worker = ReadyQueue::new(plan.fwps_max, Doorbell::default());
        let notifier = worker.notifier();
        Self { worker_queue: worker, ..Self::with_worker(plan, notifier) }
    }

    /// Makes a house whose FWPs are served by the worker that this notifies, which may serve another house, too. The
    /// house's own queue stays empty.
    pub(crate) fn with_worker(plan: &Plan, worker: Notifier) -> Self {
        let (gateway_bell, mma_bell) = (Doorbell::default(), Doorbell::default());
        let (gateway_link, mma_link) = link(plan.buffers, gateway_bell.clone(), mma_bell.clone());
        let mut outputs = ReadyQueue::new(plan.fwps_max, mma_bell);
        let notifier = outputs.notifier();
        // Bounded, as a node's are: unbounded ones would allocate now and then.
        let stopwatch = Stopwatch::start();
        let (commands, mma_reads) = bounded(COMMANDS_MAX);
        let (mma_says, events) = bounded(COMMANDS_MAX);
        Self {
            mma: Mma::new(plan.fwps_max, outputs, vec![worker], mma_link, mma_reads, mma_says, stopwatch.clone()),
            stopwatch,
            gateway: Gateway::new(gateway_link, plan.buffers, plan.buffer_bytes),
            gateway_bell,
            worker_queue: ReadyQueue::new(plan.fwps_max, Doorbell::default()),
            outputs: Arc::new(Mutex::new(notifier)),
            commands,
            events,
            share: CopyShare { tenant: TenantIndex(0), weight: 1 },
            fwps: Vec::new(),
        }
    }

    /// Makes an FWP without telling the MMA. Returns its position in `fwps`, and the MMA's side of it.
    pub(crate) fn make(&mut self, id: FwpId, shape: Shape, wiring: Wiring) -> (usize, Box<Endpoint>) {
        self.make_of(id, Guest::new(shape), wiring)
    }

    /// The same for an existing guest.
    pub(crate) fn make_of(&mut self, id: FwpId, guest: Guest, wiring: Wiring) -> (usize, Box<Endpoint>) {
        // SAFETY: the layout was checked against this memory, which does not move; it is freed with `fwps`, after the MMA,
        // and an endpoint outside an MMA touches nothing. The guest runs only when a test calls it.
        let (mailbox, endpoint) =
            unsafe { connect(id, guest.memory.start, &guest.layout(), WorkerIndex(0), self.share, wiring) };
        self.fwps.push(Fwp { id, mailbox, guest, outputs: Arc::clone(&self.outputs) });
        (self.fwps.len() - 1, endpoint)
    }

    /// Makes an FWP and tells the MMA, which is not polled yet.
    pub(crate) fn attach_wired(&mut self, id: FwpId, shape: Shape, wiring: Wiring) -> usize {
        let (fwp, endpoint) = self.make(id, shape, wiring);
        self.command(MmaCommand::Attach(endpoint));
        fwp
    }

    /// The same with one output, and without backpressure.
    pub(crate) fn attach(&mut self, id: FwpId, shape: Shape, next: Edge) -> usize {
        self.attach_wired(id, shape, Wiring::to(next))
    }

    /// Makes a chain of FWPs at indices 0, 1, ...; the last one's output goes by `last`.
    pub(crate) fn chain(plan: &Plan, stages: u32, shape: Shape, last: Edge) -> Self {
        let mut house = Self::new(plan);
        house.attach_chain(0, &vec![shape; stages as usize], Backpressure::Drop, last);
        house
    }

    /// The same with one pool shape per stage. Each stage holds, the first one up to `frames_max` frames before it.
    pub(crate) fn holding_chain(plan: &Plan, shapes: &[Shape], frames_max: usize, last: Edge) -> Self {
        let mut house = Self::new(plan);
        house.attach_chain(0, shapes, Backpressure::Hold { frames_max }, last);
        house
    }

    /// Attaches a chain of FWPs at indices `first`, `first + 1`, ...; the last one's output goes by `last`.
    pub(crate) fn attach_chain(&mut self, first: u32, shapes: &[Shape], backpressure: Backpressure, last: Edge) {
        for (stage, &shape) in (first..).zip(shapes) {
            let is_last = stage + 1 == first + shapes.len() as u32;
            let next = if is_last { last } else { Edge::Fwp(id(stage + 1)) };
            self.attach_wired(id(stage), shape, Wiring::new(vec![next], backpressure));
        }
        self.mma.poll();
    }

    pub(crate) fn command(&self, command: MmaCommand) {
        self.commands.send(command).unwrap();
    }

    /// Returns the endpoint that the MMA has handed back, if it has.
    pub(crate) fn detached(&self) -> Option<Box<Endpoint>> {
        self.events.try_recv().ok().map(|MmaEvent::Detached(endpoint)| endpoint)
    }

    /// Polls until there is nothing to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.mma.poll() == 0 && !self.mma.has_work() {
                return;
            }
        }
        panic!("the MMA still has work");
    }

    /// Injects one frame for the first FWP and polls.
    pub(crate) fn receive(&mut self, frame: &[u8], port: u16) {
        self.gateway.inject(frame, port, self.fwps[0].id);
        self.mma.poll();
    }

    /// Returns the number of bytes that the MMA has copied in total.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.mma.counters().copied_bytes.value()
    }

    /// Collects FWP `fwp`'s output and polls the MMA.
    pub(crate) fn collect_and_move(&mut self, fwp: usize) -> Result<u32, Violation> {
        let collected = self.fwps[fwp].collect();
        self.mma.poll();
        collected
    }

    /// Returns the FWPs for which the MMA has notified the worker.
    pub(crate) fn noticed(&mut self) -> Vec<FwpId> {
        std::iter::from_fn(|| self.worker_queue.pop()).collect()
    }

    /// Returns the doorbell that the MMA rings for the gateway. It is shared, so that a test can sleep at it while it
    /// uses the house.
    pub(crate) fn bell(&self) -> Doorbell {
        self.gateway_bell.clone()
    }

    /// Provides all slots of FWP `fwp`, which holds none.
    pub(crate) fn circulate_all(&mut self, fwp: usize, shape: Shape) {
        for _ in 0..shape.slot_count {
            self.gateway.inject(b"probe", 0, self.fwps[fwp].id);
            self.mma.poll();
            self.fwps[fwp].provide();
            self.mma.poll();
            self.gateway.collect();
        }
        assert_eq!(self.fwps[fwp].pass_all(PORT_DROP), shape.slot_count as usize);
        self.mma.poll();
        self.gateway.collect();
    }

    /// Checks that FWP `fwp`'s slots are all free: exactly that many frames fit, and one more is dropped.
    pub(crate) fn assert_all_slots_free(&mut self, fwp: usize, shape: Shape) {
        let refused = self.fwps[fwp].moved().dropped_no_slot.value();
        self.fill(fwp, shape);
        assert_eq!(self.fwps[fwp].moved().dropped_no_slot.value() - refused, 1);
        assert_eq!(self.fwps[fwp].pass_all(PORT_DROP), shape.slot_count as usize);
        self.mma.poll();
    }

    /// The same for an FWP that holds: exactly that many frames fit, and one more waits for a slot.
    pub(crate) fn assert_all_slots_free_before_any_is_held(&mut self, fwp: usize, shape: Shape) {
        let refused = self.fwps[fwp].moved().dropped_no_slot.value();
        self.fill(fwp, shape);
        assert_eq!(self.fwps[fwp].moved().dropped_no_slot.value(), refused);
        for frames in [shape.slot_count as usize, 1, 0] {
            assert_eq!(self.fwps[fwp].pass_all(PORT_DROP), frames);
            self.mma.poll();
        }
        self.gateway.collect();
    }

    /// Injects one frame more than FWP `fwp` has slots, and checks that all slots are taken.
    fn fill(&mut self, fwp: usize, shape: Shape) {
        let received = self.fwps[fwp].moved().received.value();
        for _ in 0..=shape.slot_count {
            self.gateway.inject(b"probe", 0, self.fwps[fwp].id);
            self.mma.poll();
            self.gateway.collect();
        }
        assert_eq!(self.fwps[fwp].moved().received.value() - received, u64::from(shape.slot_count));
    }
}

/// Most commands and events under way; their capacity is allocated beforehand.
const COMMANDS_MAX: usize = 1024;

/// Returns the first FWP id of an index.
pub(crate) fn id(index: u32) -> FwpId {
    FwpId { index, generation: 0 }
}

/// Makes a frame in which every byte depends on `seed` and its position.
pub(crate) fn frame(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|place| (place.wrapping_mul(31) ^ seed.wrapping_mul(0x9e37_79b9).rotate_right(place % 32)) as u8)
        .collect()
}

/// Every port that an FWP with one output knows.
pub(crate) const KNOWN_PORTS: [u16; 3] = [PORT_NEXT, PORT_REPLY, PORT_DROP];

/// The ABI's rules for a descriptor that a guest with so many outputs sends, written a second time in the simplest
/// form. `may_name` says of a slot that the guest owns whether it may name a way.
pub(crate) fn judged(
    slot_size: u32,
    outputs: u16,
    owns: impl Fn(u16) -> bool,
    may_name: impl Fn(u16, u16) -> bool,
    sent: Descriptor,
) -> Result<(), Violation> {
    let Descriptor { slot, offset, len, port, way, .. } = sent;
    if port >= outputs && port != PORT_REPLY && port != PORT_DROP {
        return Err(Violation::UnknownOutput(port));
    }
    let end = u64::from(offset) + u64::from(len);
    if port != PORT_DROP && (len == 0 || end > u64::from(slot_size)) {
        return Err(Violation::Range { offset, len, slot_size });
    }
    if !owns(slot) {
        return Err(Violation::SlotNotOwned(slot));
    }
    if port == PORT_DROP || may_name(slot, way) { Ok(()) } else { Err(Violation::UnknownWay(way)) }
}
