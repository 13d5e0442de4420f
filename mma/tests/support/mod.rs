//! The three parties around the MMA, played by one thread: guests with their own memory, correct or hostile; a gateway
//! with buffers on the heap; and a [`House`] that joins them to a real [`Mma`], which moves packets only when polled.
#![allow(unsafe_code)] // Plays the guest's side of the rings, and hands heap memory to the crate under test.
#![allow(dead_code, unused_imports)] // Each test binary uses another part.

mod gateway;
mod guest;
mod memory;

use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, bounded};
use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY};
use pinion_mma::accounts::copying::CopyShare;
use pinion_mma::accounts::counters::MovedCounters;
use pinion_mma::fwp::connect;
use pinion_mma::guest::mailbox::{Mailbox, Violation};
use pinion_mma::id::{FwpId, TenantIndex, WorkerIndex};
use pinion_mma::link::link;
use pinion_mma::mover::{Mma, MmaCommand, MmaEvent};
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::notify::{Notifier, ReadyQueue};
use pinion_mma::stopwatch::Stopwatch;
use pinion_mma::wiring::{Backpressure, Edge, Endpoint, Wiring};

pub(crate) use self::gateway::{Gateway, Left};
pub(crate) use self::guest::{Guest, Index, Shape};

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
