//! The MMA's loop: takes frames from the gateway and from FWPs' outputs, copies each once, and passes the slot or
//! buffer on. It allocates nothing and takes no lock. It calls the kernel only to wake a sleeping thread, and does a
//! bounded amount of work per poll.
//!
//! ```text
//!   gateway --Inbound--> [Dock] --deliver--> slot of the target's pool --notified per batch--> worker
//!                          ^  \--held if the target has no free slot, and its chain holds frames or slots are to come
//!                          |
//!                          +--send--- move_output <-- FWPs with output <-- worker
//!                                       \--copy--> slot of the next stage's pool
//! ```
//!
//! A node may have several MMAs. Each has its own link with the gateway, and one MMA moves the packets of all FWPs of a
//! chain instance ([`crate::id::MmaIndex`]).

mod ahead;
mod arrivals;
mod branching;
mod held;
mod outputs;
mod prefetcher;
mod present;
mod turns;

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use self::ahead::Ahead;
use self::held::HeldFrames;
use self::prefetcher::Prefetcher;
use self::present::PresentTenants;
use self::turns::Turns;
use crate::accounts::copying::CopyShare;
use crate::accounts::counters::MmaCounters;
use crate::guest::mailbox::TxTarget;
use crate::id::FwpId;
use crate::link::MmaLink;
use crate::link::gateway_link::GatewayLink;
use crate::notify::{NAMES_MAX, Notifier, ReadyQueue};
use crate::stopwatch::Stopwatch;
use crate::tuning::upcoming::UpcomingInstances;
use crate::ways::Arrival;
use crate::wiring::head::Head;
use crate::wiring::waiting::WaitingFrames;
use crate::wiring::{Endpoint, EndpointTable};

/// Frames taken from the gateway, and notifications of FWPs with output, per poll, unless output waits for turns.
const BATCH: usize = 128;

/// A change to the wiring.
pub enum MmaCommand {
    /// Starts to move packets for an FWP. Its worker must know the FWP before.
    Attach(Box<Endpoint>),
    /// Moves what the FWP has sent so far, then stops using its pool.
    Detach(FwpId),
    /// Sets the weight of a tenant, for all its FWPs.
    SetShare(CopyShare),
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
    /// FWPs whose output waits for a buffer of the gateway, in turns of their tenants.
    without_buffer: Turns,
    /// FWPs whose output waits for their tenants' turns.
    turns: Turns,
    /// What is left of what this poll may move; see [`turns`].
    budget: i64,
    stopwatch: Stopwatch,
    /// When the output that was moved last had been moved, in ticks.
    moved_at: u64,
    held: HeldFrames,
    waiting: WaitingFrames,
    present: PresentTenants,
    counters: Arc<MmaCounters>,
    warmth: Prefetcher,
    /// What branches look at.
    head: Head,
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

    /// Counts frames that came from the gateway.
    #[inline]
    fn count_entered(&self, into: &Endpoint) {
        self.count_received(into);
        into.counters.moved.entered_bytes.add(self.bytes);
    }

    #[inline]
    fn count_sent(&self, from: &Endpoint) {
        from.counters.moved.sent.add(self.frames);
        from.counters.moved.sent_bytes.add(self.bytes);
    }
}

impl Mma {
    /// Makes an MMA for at most `fwps_max` FWPs, which notify it by `outputs`. It notifies `workers`, which are in the
    /// order of the core plan. `events` must have room for an event per FWP. At most half of the link's buffers may
    /// hold frames that wait for slots. `stopwatch` is that by which workers know when frames came.
    #[must_use]
    pub fn new(
        fwps_max: usize,
        outputs: ReadyQueue,
        workers: Vec<Notifier>,
        link: MmaLink,
        commands: Receiver<MmaCommand>,
        events: Sender<MmaEvent>,
        stopwatch: Stopwatch,
    ) -> Self {
        let waiting_max = link.inbound.capacity() / 2;
        let dock = GatewayLink::new(link);
        let counters = Arc::new(MmaCounters::new(dock.leaving_counts()));
        let held = HeldFrames::new(waiting_max, counters.held.clone());
        Self {
            table: EndpointTable::new(fwps_max),
            outputs,
            workers: workers.into(),
            dock,
            commands,
            events,
            senders: Vec::with_capacity(NAMES_MAX),
            untold: Vec::with_capacity(fwps_max),
            unblocked: VecDeque::with_capacity(fwps_max),
            without_buffer: Turns::new(fwps_max),
            turns: Turns::new(fwps_max),
            budget: 0,
            stopwatch,
            moved_at: 0,
            held,
            waiting: WaitingFrames::new(waiting_max),
            present: PresentTenants::none(),
            counters,
            warmth: Prefetcher::default(),
            head: Head::new(),
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
        self.budget = self.present.poll_cost();
        let mut done = inbound + self.follow_commands();
        if inbound > 0 {
            self.deliver(inbound);
        }
        self.tell_workers();
        done += self.move_outputs();
        self.dock.publish();
        if done == 0 {
            self.warmth.keep(&mut self.table);
        }
        done
    }

    /// Delivers so many frames from the gateway. All that a poll finds has come at the same time.
    #[inline]
    fn deliver(&mut self, inbound: usize) {
        let arrived = Arrival::at(self.stopwatch.elapsed_ns());
        let (mut left, mut ahead) = (inbound, Ahead::new());
        while left > 0 {
            ahead.of_frames(&self.dock.intake(left).0, inbound - left, &self.table);
            left -= self.deliver_run(left, arrived);
        }
    }

    /// Returns whether a poll may find work.
    pub fn has_work(&mut self) -> bool {
        self.dock.has_work() || !self.outputs.is_empty() || !self.commands.is_empty() || self.has_output_waiting()
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
                    let share = endpoint.share;
                    match self.table.attach(endpoint) {
                        Ok(()) => {
                            self.present.add(share.tenant);
                            self.present.set_weight(share);
                            self.budget = self.budget.min(self.present.poll_cost());
                        }
                        Err(refused) => self.report(MmaEvent::Detached(refused)),
                    }
                }
                MmaCommand::Detach(id) => self.detach(id),
                MmaCommand::SetShare(share) => self.present.set_weight(share),
            }
        }
        done
    }

    /// Detaches an FWP when what it has sent has been moved: at once, if no output waits for its tenant's turn and the
    /// poll's budget lasts.
    fn detach(&mut self, id: FwpId) {
        // If its output waits for room, there may be some now.
        self.stop_waiting(id);
        let Some(endpoint) = self.table.get_mut(id) else { return };
        endpoint.leaving = true;
        if self.turns.is_empty() && self.budget > 0 {
            self.moved_at = self.stopwatch.ticks();
            self.budget -= self.visit(id, self.budget).cost;
        } else {
            self.queue(id);
        }
    }

    /// Hands back the endpoint of an FWP whose output has been moved as far as there was room.
    fn finish_detach(&mut self, id: FwpId) {
        self.tell_workers();
        self.stop_waiting(id);
        let Some(mut endpoint) = self.table.take(id) else { return };
        self.present.remove(endpoint.share.tenant);
        let Endpoint { held, transmit, inlet, counters, upstream, copying, share, queued, .. } = &mut *endpoint;
        let moved = &counters.moved;
        copying.publish(&self.stopwatch, moved);
        debug_assert!(!*queued, "the visit that ends it is its turn, or no output waits for turns");
        while let Some(frame) = self.waiting.pop(held) {
            self.held.remove(share.tenant);
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
            self.without_buffer.remove(id, from.share.tenant);
            if let Some(next) = from.waited_for.and_then(|next| self.table.get_mut(next)) {
                let waiting = next.upstream.len();
                next.upstream.retain(|&waiting| waiting != id);
                // If it was unblocked already, the visit that comes now counts.
                from.waited_for = from.waited_for.filter(|_| next.upstream.len() == waiting);
            }
        }
        self.table.put_back(from);
    }

    fn report(&self, event: MmaEvent) {
        // There is room for an event per FWP, and an FWP is detached once. So this fails only if the launcher has gone.
        let _ = self.events.try_send(event);
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

#[inline]
fn mark_unnotified(endpoint: &mut Endpoint, untold: &mut Vec<FwpId>) {
    if !std::mem::replace(&mut endpoint.untold, true) {
        untold.push(endpoint.id);
    }
}
