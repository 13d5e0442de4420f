//! The MMA's loop: takes frames from the gateway and from FWPs' outputs, copies each once, and passes the slot or
//! buffer on. Allocates nothing, locks nothing, calls no kernel except to wake a sleeping thread, and does a bounded
//! amount of work per poll.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use crate::buffer::Buffer;
use crate::counters::MmaCounters;
use crate::id::{FwpId, PortIndex};
use crate::link::{Inbound, MmaLink, Outbound};
use crate::mailbox::{Outlet, Transmission};
use crate::notify::ReadyQueue;
use crate::wiring::{Edge, Endpoint, EndpointTable};

/// Frames taken from the gateway, and FWPs whose output is moved, per poll.
const BATCH: usize = 64;

/// A change to the wiring.
pub enum MmaCommand {
    /// Starts to move packets for an FWP. Its worker must know the FWP before.
    Attach(Box<Endpoint>),
    /// Moves what the FWP has sent so far, then lets go of its pool.
    Detach(FwpId),
}

/// What the MMA reports back.
pub enum MmaEvent {
    /// The MMA has let go of this FWP's pool and will not touch it again.
    Detached(Box<Endpoint>),
}

/// The memory movement accelerator; one thread polls it.
pub struct Mma {
    table: EndpointTable,
    outputs: ReadyQueue,
    link: MmaLink,
    commands: Receiver<MmaCommand>,
    events: Sender<MmaEvent>,
    /// An empty buffer that the last frame for it did not fit: it serves the next. `spent` is not its way back, for the
    /// gateway counts what returns there as buffers of received frames.
    spare: Option<Buffer>,
    counters: Arc<MmaCounters>,
}

impl Mma {
    /// An MMA for at most `fwps_max` FWPs, which notify it by `outputs`. `events` must have room for an event per FWP.
    #[must_use]
    pub fn new(
        fwps_max: usize,
        outputs: ReadyQueue,
        link: MmaLink,
        commands: Receiver<MmaCommand>,
        events: Sender<MmaEvent>,
    ) -> Self {
        Self {
            table: EndpointTable::new(fwps_max),
            outputs,
            link,
            commands,
            events,
            spare: None,
            counters: Arc::new(MmaCounters::default()),
        }
    }

    /// What is counted that belongs to no FWP.
    #[must_use]
    pub fn counters(&self) -> &Arc<MmaCounters> {
        &self.counters
    }

    /// Does what there is to do, up to a batch of each kind; returns how much it did.
    pub fn poll(&mut self) -> usize {
        // Counted before commands are followed: an FWP is attached before the gateway learns of it, so whatever these
        // frames are for is in the table by the time they are moved.
        let inbound = self.link.inbound.ready(BATCH).min(BATCH);
        let mut done = self.follow_commands();
        for _ in 0..inbound {
            if let Some(frame) = self.link.inbound.pop() {
                self.deliver(frame);
            }
        }
        let mut sent = 0;
        for _ in 0..BATCH {
            let Some(id) = self.outputs.pop() else { break };
            sent += self.move_output(id);
        }
        if inbound + sent > 0 {
            self.link.gateway.ring();
        }
        done += inbound + sent;
        done
    }

    /// Whether a poll would find something to do.
    pub fn has_work(&mut self) -> bool {
        self.link.inbound.ready(1) > 0 || !self.outputs.is_empty() || !self.commands.is_empty()
    }

    fn follow_commands(&mut self) -> usize {
        let mut done = 0;
        while let Ok(command) = self.commands.try_recv() {
            done += 1;
            match command {
                MmaCommand::Attach(endpoint) => {
                    if let Err(refused) = self.table.attach(endpoint) {
                        self.report(MmaEvent::Detached(refused));
                    }
                }
                MmaCommand::Detach(id) => {
                    if self.move_output(id) > 0 {
                        self.link.gateway.ring();
                    }
                    if let Some(endpoint) = self.table.take(id) {
                        self.report(MmaEvent::Detached(endpoint));
                    }
                }
            }
        }
        done
    }

    fn report(&self, event: MmaEvent) {
        // Room for an event per FWP, and an FWP is detached once: only a launcher that is gone does not take it.
        let _ = self.events.try_send(event);
    }

    /// Net-In's frame into the first FWP's pool; the buffer goes back whatever becomes of the frame.
    fn deliver(&mut self, frame: Inbound) {
        let Inbound { buffer, len, port, target } = frame;
        match self.table.get_mut(target) {
            Some(endpoint) => {
                if endpoint.accept(len, port, |pool, slot, offset| pool.copy_in(slot, offset, buffer.bytes(len))) {
                    self.counters.copied_bytes.add(u64::from(len));
                    endpoint.notify_worker();
                }
            }
            None => self.counters.dropped_gone.add(1),
        }
        give_back(&mut self.link, buffer);
    }

    /// Moves all that an FWP has sent; returns how many frames. Bounded by the FWP's slots.
    fn move_output(&mut self, id: FwpId) -> usize {
        let Some(mut from) = self.table.take(id) else { return 0 };
        from.notices.output.lower();
        let waiting = from.transmit.ready(usize::MAX);
        for _ in 0..waiting {
            let Some(sent) = from.transmit.pop() else { break };
            self.forward(&from, sent);
            from.free.push(sent.slot);
        }
        if let Edge::Fwp(next) = from.next
            && let Some(next) = self.table.get_mut(next)
            && next.deliver_pending()
        {
            next.notify_worker();
        }
        self.table.put_back(from);
        waiting
    }

    fn forward(&mut self, from: &Endpoint, sent: Transmission) {
        let came_by = from.came_by[usize::from(sent.slot.0)];
        let edge = match sent.to {
            Outlet::Drop => return,
            Outlet::Reply => Edge::EgressWhereItCame,
            Outlet::Next => from.next,
        };
        let moved = match edge {
            Edge::Fwp(next) => self.copy_to_fwp(from, sent, came_by, next),
            Edge::Egress(port) => self.copy_to_gateway(from, sent, port),
            Edge::EgressWhereItCame => self.copy_to_gateway(from, sent, came_by),
        };
        if moved {
            from.counters.moved.sent.add(1);
            from.counters.moved.sent_bytes.add(u64::from(sent.len));
            self.counters.copied_bytes.add(u64::from(sent.len));
        }
    }

    fn copy_to_fwp(&mut self, from: &Endpoint, sent: Transmission, came_by: PortIndex, next: FwpId) -> bool {
        let Some(next) = self.table.get_mut(next) else {
            from.counters.moved.dropped_gone.add(1);
            return false;
        };
        next.accept(u32::from(sent.len), came_by, |pool, slot, offset| {
            from.pool.copy_across((sent.slot, sent.offset), sent.len, pool, (slot, offset));
        })
    }

    fn copy_to_gateway(&mut self, from: &Endpoint, sent: Transmission, port: PortIndex) -> bool {
        let len = u32::from(sent.len);
        let Some(mut buffer) = self.spare.take().or_else(|| self.link.empty.pop()) else {
            from.counters.moved.dropped_egress.add(1);
            return false;
        };
        if len > buffer.capacity() {
            from.counters.moved.dropped_too_long.add(1);
            self.spare = Some(buffer);
            return false;
        }
        from.pool.copy_out(sent.slot, sent.offset, buffer.bytes_mut(len));
        if let Err(refused) = self.link.outbound.push(Outbound { buffer, len, port }) {
            from.counters.moved.dropped_egress.add(1);
            self.spare = Some(refused.buffer);
            return false;
        }
        true
    }
}

/// Returns a received frame's buffer to the gateway. The ring holds every buffer that can be on loan, so there is room.
fn give_back(link: &mut MmaLink, buffer: Buffer) {
    let pushed = link.spent.push(buffer);
    debug_assert!(pushed.is_ok(), "more buffers on loan than the link was made for");
}
