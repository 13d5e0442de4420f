//! What FWPs send: each frame is copied into the next stage's pool or into a buffer of the gateway, or dropped.

use super::ahead::{Ahead, prefetch_payload, prefetch_payloads};
use super::{BATCH, Mma, Moved, mark_unnotified};
use crate::gateway_link::TxBlocked;
use crate::id::{FwpId, PortIndex};
use crate::mailbox::TxTarget;
use crate::slots::IngressInfo;
use crate::wiring::{Accepted, Edge, Endpoint, Route, RxPath};

/// Frames of outputs that are moved, over all FWPs, before their workers are notified.
const TELL_AFTER: usize = 32;

/// Why an FWP's output stopped.
enum BlockedOn {
    /// The next FWP has no free slot.
    Slot(FwpId),
    /// No buffer is free.
    Buffer,
}

impl Mma {
    pub(super) fn move_outputs(&mut self) -> usize {
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

    /// Moves what an FWP has sent, as far as there is room; returns the number of frames. Bounded by the FWP's slots.
    pub(super) fn move_output(&mut self, id: FwpId) -> usize {
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
    pub(super) fn go_on(&mut self) -> usize {
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
}
