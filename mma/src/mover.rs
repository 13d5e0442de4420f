//! The MMA's loop: takes frames from the gateway and from FWPs' outputs, copies each once, and passes the slot or
//! buffer on. It allocates nothing and takes no lock. It calls the kernel only to wake a sleeping thread, and does a
//! bounded amount of work per poll.
//!
//! ```text
//!   gateway --Inbound--> [Dock] --deliver--> slot of the target's pool --notified per batch--> worker
//!                          ^  \--held if the target has no free slot and its chain holds frames
//!                          |
//!                          +--send--- move_output <-- FWPs with output <-- worker
//!                                       \--copy--> slot of the next stage's pool
//! ```
//!
//! A node may have several MMAs. Each has its own link with the gateway, and one MMA moves the packets of all FWPs of a
//! chain instance ([`crate::id::MmaIndex`]).

mod ahead;
mod prefetcher;

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use self::ahead::{AHEAD, Ahead, prefetch_payload, prefetch_payloads};
use self::prefetcher::Prefetcher;
use crate::buffer::Frame;
use crate::counters::MmaCounters;
use crate::gateway_link::{GatewayLink, TxBlocked};
use crate::id::{FwpId, PortIndex};
use crate::link::{Inbound, MmaLink};
use crate::mailbox::TxTarget;
use crate::notify::{Notifier, ReadyQueue};
use crate::slots::IngressInfo;
use crate::tuning;
use crate::upcoming::UpcomingInstances;
use crate::wiring::{Accepted, Edge, Endpoint, EndpointTable, Route, RxBatch, RxPath};

/// Frames taken from the gateway, and FWPs whose output is moved, per poll.
const BATCH: usize = 128;
/// Frames of outputs that are moved, over all FWPs, before their workers are notified.
const TELL_AFTER: usize = 32;

/// A change to the wiring.
pub enum MmaCommand {
    /// Starts to move packets for an FWP. Its worker must know the FWP before.
    Attach(Box<Endpoint>),
    /// Moves what the FWP has sent so far, then stops using its pool.
    Detach(FwpId),
}

/// Events that the MMA reports to the launcher.
pub enum MmaEvent {
    /// The MMA has stopped using this FWP's pool and will not touch it again.
    Detached(Box<Endpoint>),
}

/// The memory movement accelerator; one thread polls it.
pub struct Mma {
    table: EndpointTable,
    outputs: ReadyQueue,
    /// The node's workers, each notified of its FWPs that got input.
    workers: Box<[Notifier]>,
    dock: GatewayLink,
    commands: Receiver<MmaCommand>,
    events: Sender<MmaEvent>,
    /// FWPs whose output is being moved.
    senders: Vec<FwpId>,
    /// FWPs that got input in this batch and whose workers are not yet notified.
    untold: Vec<FwpId>,
    /// FWPs whose output waited for a slot that is now free.
    unblocked: VecDeque<FwpId>,
    /// FWPs whose output waits for a buffer of the gateway.
    without_buffer: VecDeque<FwpId>,
    /// Frames that all endpoints hold together, and the limit of that.
    held: usize,
    held_max: usize,
    counters: Arc<MmaCounters>,
    warmth: Prefetcher,
}

/// Frames copied into or out of one pool, counted together.
#[derive(Default)]
struct Moved {
    frames: u64,
    bytes: u64,
}

impl Moved {
    #[inline(always)]
    fn add(&mut self, len: u32) {
        self.frames += 1;
        self.bytes += u64::from(len);
    }

    #[inline]
    fn count_received(&self, into: &Endpoint) {
        into.counters.moved.received.add(self.frames);
        into.counters.moved.received_bytes.add(self.bytes);
    }

    #[inline]
    fn count_sent(&self, from: &Endpoint) {
        from.counters.moved.sent.add(self.frames);
        from.counters.moved.sent_bytes.add(self.bytes);
    }
}

/// Why an FWP's output stopped.
enum BlockedOn {
    /// The next FWP has no free slot.
    Slot(FwpId),
    /// No buffer is free.
    Buffer,
}

impl Mma {
    /// Makes an MMA for at most `fwps_max` FWPs, which notify it by `outputs`. It notifies `workers`, which are in the
    /// order of the core plan. `events` must have room for an event per FWP. At most half of the link's buffers may
    /// hold frames that wait for slots.
    #[must_use]
    pub fn new(
        fwps_max: usize,
        outputs: ReadyQueue,
        workers: Vec<Notifier>,
        link: MmaLink,
        commands: Receiver<MmaCommand>,
        events: Sender<MmaEvent>,
    ) -> Self {
        let held_max = link.inbound.capacity() / 2;
        Self {
            table: EndpointTable::new(fwps_max),
            outputs,
            workers: workers.into(),
            dock: GatewayLink::new(link),
            commands,
            events,
            senders: Vec::with_capacity(BATCH),
            untold: Vec::with_capacity(fwps_max),
            unblocked: VecDeque::with_capacity(fwps_max),
            without_buffer: VecDeque::with_capacity(fwps_max),
            held: 0,
            held_max,
            counters: Arc::new(MmaCounters::default()),
            warmth: Prefetcher::default(),
        }
    }

    /// Makes idle polls prefetch what the next clients' packets will touch.
    pub fn keep_warm(&mut self, upcoming: Arc<UpcomingInstances>) {
        self.warmth = Prefetcher::new(upcoming);
    }

    /// Returns the counters of events that cannot be assigned to an FWP.
    #[must_use]
    pub fn counters(&self) -> &Arc<MmaCounters> {
        &self.counters
    }

    /// Does the pending work, up to a batch of each kind; returns how many items it handled.
    pub fn poll(&mut self) -> usize {
        // Counted before commands are applied: an FWP is attached before the gateway learns of it, so the FWPs of these
        // frames are in the table when the frames are moved.
        let inbound = self.dock.waiting(BATCH);
        let mut done = inbound + self.follow_commands();
        let (mut left, mut ahead) = (inbound, Ahead::new());
        while left > 0 {
            ahead.of_frames(&self.dock.intake(left).0, inbound - left, &self.table);
            left -= self.deliver_run(left);
        }
        self.tell_workers();
        done += self.move_outputs();
        done += self.go_on();
        self.dock.publish();
        if done == 0 {
            self.warmth.keep(&mut self.table);
        }
        done
    }

    fn move_outputs(&mut self) -> usize {
        let Self { outputs, senders, .. } = self;
        outputs.take(BATCH, |id| senders.push(id));
        let (mut done, mut told, mut at, mut ahead) = (0, 0, 0, Ahead::new());
        while let Some(&id) = self.senders.get(at) {
            ahead.of_senders(&self.senders, at, &self.table);
            done += self.move_output(id);
            at += 1;
            if done - told >= TELL_AFTER {
                told = done;
                self.tell_workers();
            }
        }
        self.senders.clear();
        self.tell_workers();
        done
    }

    /// Returns whether a poll would find work.
    pub fn has_work(&mut self) -> bool {
        self.dock.has_work()
            || !self.outputs.is_empty()
            || !self.commands.is_empty()
            || !self.unblocked.is_empty()
            || (!self.without_buffer.is_empty() && self.dock.has_empty())
    }

    fn follow_commands(&mut self) -> usize {
        // A vain attempt to receive is a fence, which waits until all earlier stores have reached the cache.
        if self.commands.is_empty() {
            return 0;
        }
        let mut done = 0;
        while let Ok(command) = self.commands.try_recv() {
            done += 1;
            match command {
                MmaCommand::Attach(endpoint) => {
                    if let Err(refused) = self.table.attach(endpoint) {
                        self.report(MmaEvent::Detached(refused));
                    }
                }
                MmaCommand::Detach(id) => self.detach(id),
            }
        }
        done
    }

    fn detach(&mut self, id: FwpId) {
        // If its output waits, there may be room now.
        self.stop_waiting(id);
        self.move_output(id);
        self.tell_workers();
        self.stop_waiting(id);
        let Some(mut endpoint) = self.table.take(id) else { return };
        let Endpoint { held, transmit, inlet, counters, upstream, .. } = &mut *endpoint;
        let moved = &counters.moved;
        for frame in held.drain(..) {
            self.held -= 1;
            moved.dropped_instance_ended.add(1);
            self.dock.keep(frame.into_buffer());
        }
        // Sent, but without room at the destination. What the guest dropped itself has been counted already.
        transmit.take_batch(usize::MAX, |sent| {
            moved.dropped_instance_ended.add(u64::from(sent.to != TxTarget::Drop));
            inlet.free.push(sent.slot);
        });
        // When these go on, they find that this FWP has ended and drop their frames for it.
        self.unblocked.extend(upstream.drain(..));
        self.report(MmaEvent::Detached(endpoint));
    }

    /// Removes an FWP from the queue in which its output waits: an ended FWP must not take up an entry there.
    fn stop_waiting(&mut self, id: FwpId) {
        let Some(mut from) = self.table.take(id) else { return };
        if std::mem::take(&mut from.blocked) {
            self.unblocked.retain(|&waiting| waiting != id);
            self.without_buffer.retain(|&waiting| waiting != id);
            for next in from.successors() {
                if let Some(next) = self.table.get_mut(next) {
                    next.upstream.retain(|&waiting| waiting != id);
                }
            }
        }
        self.table.put_back(from);
    }

    fn report(&self, event: MmaEvent) {
        // There is room for an event per FWP, and an FWP is detached once. So this fails only if the launcher has gone.
        let _ = self.events.try_send(event);
    }

    /// Delivers the first of `max` waiting frames, and the frames directly behind it for the same FWP, into its pool.
    /// Returns how many.
    fn deliver_run(&mut self, max: usize) -> usize {
        let Self { table, dock, counters, untold, held, held_max, .. } = self;
        let (mut frames, mut shelf) = dock.intake(max);
        let Some(target) = frames.peek(0).map(|frame| frame.target) else { return max };
        let run = 1 + (1..max).take_while(|at| frames.peek(*at).is_some_and(|next| next.target == target)).count();
        let Some(endpoint) = table.get_mut(target) else {
            counters.dropped_instance_ended.add(1);
            frames.take().into_iter().for_each(|inbound| shelf.keep(inbound.frame.into_buffer()));
            return 1;
        };
        let Endpoint { inlet, held: waiting, held_max: waiting_max, counters: own, .. } = endpoint;
        let mut moved = Moved::default();
        let ahead = if tuning::is_full() { AHEAD } else { usize::MAX };
        inlet.deliver.prefetch_row(run);
        let mut intake = inlet.open();
        if tuning::is_full() {
            (0..AHEAD.min(run)).for_each(|ahead| intake.prefetch(ahead));
        }
        for at in 0..run {
            if at.saturating_add(ahead) < run {
                if let Some(ahead) = frames.peek(AHEAD) {
                    ahead.frame.prefetch();
                }
                intake.prefetch(AHEAD);
            }
            // Copied from the ring and only then taken: a copy of the frame on the stack would wait for all earlier
            // stores,
            // and stores into slots are slow. If frames already wait for this FWP, this one queues behind them.
            let Some(next) = frames.peek(0) else { break };
            let accepted = if waiting.is_empty() { accept(&mut intake, &next.frame) } else { Accepted::NoSlot };
            let Some(Inbound { frame, .. }) = frames.take() else { break };
            match accepted {
                Accepted::Yes => moved.add(frame.len()),
                Accepted::NoSlot if waiting.len() < *waiting_max && *held < *held_max => {
                    *held += 1;
                    waiting.push_back(frame);
                    continue;
                }
                Accepted::NoSlot => own.moved.dropped_no_slot.add(1),
                Accepted::TooLong => own.moved.dropped_too_long.add(1),
            }
            shelf.keep(frame.into_buffer());
        }
        if moved.frames > 0 {
            counters.copied_bytes.add(moved.bytes);
            moved.count_received(endpoint);
            mark_unnotified(endpoint, untold);
        }
        run
    }

    /// Moves what an FWP has sent, as far as there is room; returns the number of frames. Bounded by the FWP's slots.
    fn move_output(&mut self, id: FwpId) -> usize {
        let Some(mut from) = self.table.take(id) else { return 0 };
        let mut left = if from.blocked { 0 } else { from.transmit.ready(usize::MAX) };
        let waiting = left;
        while left > 0 {
            let Some(first) = from.transmit.peek(0) else { break };
            let (taken, halt) = match from.course(&first) {
                None => (self.drop_run(&mut from, first.to, left), None),
                Some(course) => match course.edge {
                    Edge::Fwp(next) => self.run_to_fwp(&mut from, (first.to, course), left, next),
                    Edge::Egress(port) => self.run_to_gateway(&mut from, (first.to, course), left, Some(port)),
                    Edge::EgressWhereItCame => self.run_to_gateway(&mut from, (first.to, course), left, None),
                },
            };
            left -= taken;
            if let Some(halt) = halt {
                self.block(&mut from, halt);
                break;
            }
        }
        let moved = waiting - left;
        if moved > 0 {
            from.inlet.return_own();
            self.slots_freed(&mut from);
        }
        self.table.put_back(from);
        moved
    }

    /// Frees the slots of the next frames, up to `max`, that are to be dropped; returns how many.
    fn drop_run(&mut self, from: &mut Endpoint, to: TxTarget, max: usize) -> usize {
        let mut sent = from.transmit.taking(max);
        let mut taken = 0;
        while let Some(next) = sent.peek(0)
            && next.to == to
        {
            from.inlet.free.push(next.slot);
            sent.take();
            taken += 1;
        }
        taken
    }

    /// Copies the next frames, up to `max`, that take the same edge into another FWP's pool. Returns how many it took,
    /// and why it stopped.
    fn run_to_fwp(
        &mut self,
        from: &mut Endpoint,
        way: (TxTarget, Route),
        max: usize,
        id: FwpId,
    ) -> (usize, Option<BlockedOn>) {
        let direction = way.1.direction;
        let RxPath { pool, free, came_by, .. } = &mut from.inlet;
        let mut row = from.transmit.taking(max);
        prefetch_payloads(&row, pool);
        let Some(next) = self.table.get_mut(id) else {
            row.take().into_iter().for_each(|sent| free.push(sent.slot));
            from.counters.moved.dropped_instance_ended.add(1);
            return (1, None);
        };
        let may_halt = next.holds && next.upstream.len() < next.upstream.capacity();
        let (mut taken, mut moved, mut halt) = (0, Moved::default(), None);
        next.inlet.deliver.prefetch_row(max);
        let mut intake = next.inlet.open();
        while let Some(sent) = row.peek(0)
            && from.outputs.is_same(way, &sent, came_by)
        {
            prefetch_payload(&row, pool);
            let came = IngressInfo { direction, ..came_by.of(sent.slot) };
            let accepted = intake.accept(u32::from(sent.len), came, 0, |into, slot, offset| {
                pool.copy_across((sent.slot, sent.offset), sent.len, into, (slot, offset));
            });
            match accepted {
                Accepted::Yes => moved.add(u32::from(sent.len)),
                Accepted::NoSlot if may_halt => {
                    halt = Some(BlockedOn::Slot(id));
                    break;
                }
                Accepted::NoSlot => next.counters.moved.dropped_no_slot.add(1),
                Accepted::TooLong => next.counters.moved.dropped_too_long.add(1),
            }
            row.take();
            free.push(sent.slot);
            taken += 1;
        }
        if moved.frames > 0 {
            self.counters.copied_bytes.add(moved.bytes);
            moved.count_received(next);
            moved.count_sent(from);
            mark_unnotified(next, &mut self.untold);
        }
        (taken, halt)
    }

    /// Copies the next frames, up to `max`, that take the same edge into buffers, to leave on `port` or on the port
    /// where they were received. Returns how many it took, and why it stopped.
    fn run_to_gateway(
        &mut self,
        from: &mut Endpoint,
        way: (TxTarget, Route),
        max: usize,
        port: Option<PortIndex>,
    ) -> (usize, Option<BlockedOn>) {
        let RxPath { pool, free, came_by, .. } = &mut from.inlet;
        let mut row = from.transmit.taking(max);
        prefetch_payloads(&row, pool);
        let (mut taken, mut moved, mut halt) = (0, Moved::default(), None);
        let mut exit = self.dock.outlet();
        while let Some(sent) = row.peek(0)
            && from.outputs.is_same(way, &sent, came_by)
        {
            prefetch_payload(&row, pool);
            let port = port.unwrap_or_else(|| came_by.of(sent.slot).port);
            let fill = |frame: &mut [u8]| pool.copy_out(sent.slot, sent.offset, frame);
            match exit.send(u32::from(sent.len), port, fill) {
                Ok(()) => moved.add(u32::from(sent.len)),
                Err(TxBlocked::NoBuffer) if from.holds => {
                    halt = Some(BlockedOn::Buffer);
                    break;
                }
                Err(TxBlocked::NoBuffer) => from.counters.moved.dropped_egress.add(1),
                Err(TxBlocked::TooLong) => from.counters.moved.dropped_too_long.add(1),
            }
            row.take();
            free.push(sent.slot);
            taken += 1;
        }
        drop(exit);
        if moved.frames > 0 {
            self.counters.copied_bytes.add(moved.bytes);
            moved.count_sent(from);
        }
        (taken, halt)
    }

    /// Uses an FWP's freed slots: first for frames held for it, then for its predecessors' output.
    fn slots_freed(&mut self, endpoint: &mut Endpoint) {
        self.unblocked.extend(endpoint.upstream.drain(..));
        if endpoint.held.is_empty() {
            return;
        }
        let Endpoint { inlet, held, counters, .. } = endpoint;
        let mut moved = Moved::default();
        let mut intake = inlet.open();
        while let Some(frame) = held.pop_front() {
            match accept(&mut intake, &frame) {
                Accepted::Yes => moved.add(frame.len()),
                Accepted::TooLong => counters.moved.dropped_too_long.add(1),
                Accepted::NoSlot => {
                    held.push_front(frame);
                    break;
                }
            }
            self.held -= 1;
            self.dock.keep(frame.into_buffer());
        }
        if moved.frames > 0 {
            self.counters.copied_bytes.add(moved.bytes);
            moved.count_received(endpoint);
            mark_unnotified(endpoint, &mut self.untold);
        }
    }

    /// Stops an FWP's output until there is room at its destination.
    fn block(&mut self, from: &mut Endpoint, halt: BlockedOn) {
        from.blocked = true;
        match halt {
            BlockedOn::Slot(next) => match self.table.get_mut(next) {
                Some(next) => next.upstream.push(from.id),
                None => self.unblocked.push_back(from.id),
            },
            BlockedOn::Buffer => self.without_buffer.push_back(from.id),
        }
    }

    /// Resumes outputs that were stopped and need not wait any longer; returns how many frames moved.
    fn go_on(&mut self) -> usize {
        let mut moved = 0;
        if !self.without_buffer.is_empty() && self.dock.has_empty() {
            self.unblocked.append(&mut self.without_buffer);
        }
        for _ in 0..self.unblocked.len() {
            let Some(id) = self.unblocked.pop_front() else { break };
            if let Some(endpoint) = self.table.get_mut(id) {
                endpoint.blocked = false;
                moved += self.move_output(id);
            }
        }
        self.tell_workers();
        moved
    }

    /// Notifies the workers of all that was delivered since the last call.
    #[inline]
    fn tell_workers(&mut self) {
        let Self { table, untold, workers, .. } = self;
        if untold.is_empty() {
            return;
        }
        for id in untold.drain(..) {
            if let Some(endpoint) = table.get_mut(id) {
                endpoint.untold = false;
                workers[endpoint.worker.0].name(id);
            }
        }
        workers.iter_mut().for_each(Notifier::ring);
    }
}

#[inline(always)]
fn accept(intake: &mut RxBatch<'_>, frame: &Frame) -> Accepted {
    let came = intake.came_by.arriving(frame.port());
    intake
        .accept(frame.len(), came, frame.facts().bits(), |pool, slot, offset| pool.copy_in(slot, offset, frame.bytes()))
}

#[inline]
fn mark_unnotified(endpoint: &mut Endpoint, untold: &mut Vec<FwpId>) {
    if !std::mem::replace(&mut endpoint.untold, true) {
        untold.push(endpoint.id);
    }
}
