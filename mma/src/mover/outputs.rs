//! What FWPs send: each frame is copied into the next stage's pool or into a buffer of the gateway, or dropped.

use super::ahead::{Ahead, prefetch_payload, prefetch_payloads};
use super::branching::{EachFrame, Pick};
use super::turns::{SLICE, Visit};
use super::{BATCH, Mma, Moved, mark_unnotified};
use crate::accounts::copying::FRAME_COST;
use crate::guest::mailbox::{Transmission, TxTarget};
use crate::id::{FwpId, PortIndex, SlotIndex};
use crate::link::gateway_link::TxBlocked;
use crate::notify::NAMES_MAX;
use crate::rings::phased;
use crate::ways::Arrival;
use crate::wiring::slots::FreeSlots;
use crate::wiring::waiting::{WaitingFrames, WaitingList};
use crate::wiring::{Accepted, Edge, Endpoint, Route, RxPath};

/// Frames of outputs that are moved, over all FWPs, before their workers are notified.
const TELL_AFTER: usize = 32;

/// What looking at an FWP's output costs, and at whether a tenant may send.
const VISIT_COST: u32 = 128;
const PASS_COST: u32 = 16;

/// Why an FWP's output stopped.
pub(super) enum BlockedOn {
    /// The next FWP has no free slot.
    Slot(FwpId),
    /// No buffer is free for its tenant.
    Buffer,
}

/// How far a row of frames may go.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) frames: usize,
    pub(super) cost: i64,
}

/// A row of frames that took the same edge.
pub(super) struct Row {
    /// Frames that are done with.
    pub(super) taken: usize,
    pub(super) cost: i64,
    /// Why it stopped before its end.
    pub(super) halt: Option<BlockedOn>,
}

/// What a visit to an FWP has done.
pub(super) struct Visited {
    /// Frames that it moved.
    frames: usize,
    pub(super) cost: i64,
    /// More could be moved at once.
    has_more: bool,
}

/// Returns what a frame of so many bytes costs.
#[inline(always)]
pub(super) fn frame_cost(len: u32) -> i64 {
    i64::from(FRAME_COST + len)
}

/// Returns what the next frame costs that waits before the FWP, if there is one: it is copied into the slot of the frame
/// that is moved, unless that is one of the guest's own.
#[inline(always)]
pub(super) fn next_held_cost(
    waiting: &WaitingFrames,
    held: &mut WaitingList,
    free: &FreeSlots,
    slot: SlotIndex,
) -> i64 {
    if held.is_empty() || free.is_own(slot) { 0 } else { waiting.next_len(held).map_or(0, frame_cost) }
}

impl Mma {
    /// Moves output of FWPs that have some, in the order of their notifications as long as all that there is costs no
    /// more than a poll may. What is left waits, and from then on tenants have turns. Returns the number of frames.
    pub(super) fn move_outputs(&mut self) -> usize {
        let Self { outputs, senders, .. } = self;
        // What only has to be queued costs little, and a tenant whose FWPs have many notifications keeps none waiting.
        let names = if self.turns.is_empty() { BATCH } else { NAMES_MAX };
        outputs.take(names, |id| senders.push(id));
        if self.senders.is_empty() && !self.has_output_waiting() {
            return 0;
        }
        self.moved_at = self.stopwatch.ticks();
        let mut done = self.move_at_once();
        if self.has_output_waiting() {
            done += self.move_waiting();
        }
        self.tell_workers();
        done
    }

    /// Moves output that waited, within what is left of the poll's budget.
    #[inline(never)]
    fn move_waiting(&mut self) -> usize {
        // What has just been moved may have made room for these.
        self.take_unblocked();
        self.moved_at = self.stopwatch.ticks();
        let mut done = self.move_at_once() + self.move_to_buffers();
        let mut told = done;
        while self.budget > 0
            && let Some(Visit { id, credit }) = self.turns.next()
        {
            if let Some(from) = self.table.get_mut(id) {
                from.queued = false;
            }
            let visited = self.visit(id, credit.min(self.budget));
            self.turns.charge(visited.cost);
            self.budget -= visited.cost;
            done += visited.frames;
            if done - told >= TELL_AFTER {
                told = done;
                self.tell_between_visits();
            }
        }
        done
    }

    /// Moves output that waits for buffers, as long as there are some: a slice of each FWP, which then is its tenant's last.
    /// The only one that waits may use what is left of the budget. A tenant that may send no more has had its slice, or is
    /// passed over: what comes next is another's.
    fn move_to_buffers(&mut self) -> usize {
        let (mut done, mut left, mut passed) = (0, self.without_buffer.len(), 0);
        // The gateway may take frames all the time: others wait for their turns meanwhile.
        let reserved = if self.turns.is_empty() { 0 } else { self.budget / 2 };
        while left > 0
            && self.budget > reserved
            && self.dock.has_empty()
            && passed < self.without_buffer.tenants()
            && let Some(tenant) = self.without_buffer.front()
        {
            if !self.dock.may_send(tenant) {
                self.without_buffer.pass();
                self.budget -= i64::from(PASS_COST);
                passed += 1;
                continue;
            }
            let Some(Visit { id, credit }) = self.without_buffer.next() else { break };
            if let Some(from) = self.table.get_mut(id) {
                from.blocked = false;
            }
            let credit = if self.turns.is_empty() { credit } else { credit.min(SLICE) };
            let visited = self.visit(id, credit.min(self.budget));
            let waits_again = self.table.get_mut(id).is_some_and(|from| from.blocked) && !self.dock.may_send(tenant);
            self.without_buffer.charge(if waits_again { visited.cost.max(SLICE) } else { visited.cost });
            self.budget -= visited.cost;
            done += visited.frames;
            (left, passed) = (left - 1, 0);
        }
        done
    }

    /// Notifies the workers, on no sender's account.
    fn tell_between_visits(&mut self) {
        self.tell_workers();
        self.moved_at = self.stopwatch.ticks();
    }

    /// Moves output of the FWPs in `senders`, and queues those of them for which the budget does not last.
    fn move_at_once(&mut self) -> usize {
        let (mut done, mut told, mut at, mut ahead) = (0, 0, 0, Ahead::new());
        while let Some(&id) = self.senders.get(at) {
            at += 1;
            // Otherwise it could take each buffer that others wait for.
            if self.budget <= 0 || !self.turns.is_empty() || !self.without_buffer.is_empty() {
                self.queue(id);
                continue;
            }
            ahead.of_senders(&self.senders, at - 1, &self.table);
            let visited = self.visit(id, self.budget);
            self.budget -= visited.cost;
            done += visited.frames;
            if done - told >= TELL_AFTER {
                told = done;
                self.tell_between_visits();
            }
        }
        self.senders.clear();
        done
    }

    /// Queues an FWP for its tenant's turn, unless it is queued or its output waits for room. One that lacks slots is
    /// queued even then: it may have some now.
    pub(super) fn queue(&mut self, id: FwpId) {
        if let Some(from) = self.table.get_mut(id)
            && (!from.blocked || from.is_short)
            && !std::mem::replace(&mut from.queued, true)
        {
            self.turns.push(id, self.present.share(from.share.tenant));
        }
    }

    /// Returns whether output waits for its tenant's turn, or was stopped and may not have to wait any longer.
    #[inline]
    pub(super) fn has_output_waiting(&mut self) -> bool {
        !self.turns.is_empty()
            || !self.unblocked.is_empty()
            || (!self.without_buffer.is_empty() && self.dock.has_empty())
    }

    /// Takes a batch of FWPs whose output waited for slots that are free now.
    fn take_unblocked(&mut self) {
        for _ in 0..self.unblocked.len().min(NAMES_MAX) {
            let Some(id) = self.unblocked.pop_front() else { break };
            if let Some(endpoint) = self.table.get_mut(id) {
                endpoint.blocked = false;
                self.senders.push(id);
            }
        }
    }

    /// Moves what an FWP has sent, as far as there is room and until it has cost `cost_max`. An FWP that has more is
    /// queued again; the output of one that is to be detached ends here otherwise.
    #[inline]
    pub(super) fn visit(&mut self, id: FwpId, cost_max: i64) -> Visited {
        let Some(mut from) = self.table.take(id) else {
            return Visited { frames: 0, cost: VISIT_COST.into(), has_more: false };
        };
        let waited_for = if from.blocked { None } else { from.waited_for.take() };
        let is_short = from.is_short && !from.leaving;
        let (frames, cost) = if is_short { self.use_provided(&mut from, cost_max) } else { (0, 0) };
        let mut visited = self.move_output(&mut from, cost_max - cost);
        if is_short {
            (visited.frames, visited.cost) = (visited.frames + frames, visited.cost + cost);
            visited.has_more |= from.is_short && from.has_provided();
        }
        if let Some(next) = waited_for {
            self.predecessor_visited(next);
        }
        let now = self.stopwatch.ticks();
        from.copying.add(now.saturating_sub(self.moved_at), visited.cost as u64);
        self.moved_at = now;
        if from.copying.is_much() {
            from.copying.publish(&self.stopwatch, &from.counters.moved);
        }
        let is_done = from.leaving && !visited.has_more;
        self.table.put_back(from);
        if visited.has_more {
            self.queue(id);
        } else if is_done {
            self.finish_detach(id);
            self.moved_at = self.stopwatch.ticks();
        }
        visited
    }

    /// Moves what an FWP has sent, as far as there is room and until it has cost `cost_max`.
    #[inline]
    fn move_output(&mut self, from: &mut Endpoint, cost_max: i64) -> Visited {
        let mut left = if from.blocked { 0 } else { from.transmit.ready(usize::MAX) };
        let (waiting, mut credit) = (left, cost_max - i64::from(VISIT_COST));
        from.held.ask_from_first();
        while left > 0 && credit > 0 {
            let Some(first) = from.transmit.peek(0) else { break };
            let bounds = Bounds { frames: left, cost: credit };
            let row = match from.course(&first) {
                None => self.drop_run(from, first.to, bounds),
                Some(course) => match course.edge {
                    Edge::Fwp(next) => self.run_to_fwp(from, (first.to, course), bounds, next, &mut EachFrame),
                    Edge::Egress(port) => {
                        self.run_to_gateway(from, (first.to, course), bounds, Some(port), &mut EachFrame)
                    }
                    Edge::EgressWhereItCame => {
                        self.run_to_gateway(from, (first.to, course), bounds, None, &mut EachFrame)
                    }
                    Edge::Drop => self.run_to_nowhere(from, (first.to, course), bounds, &mut EachFrame),
                    Edge::Branch(number) => self.run_by_branch(from, (first.to, course), bounds, number),
                },
            };
            left -= row.taken;
            credit -= row.cost;
            if let Some(halt) = row.halt {
                self.block(from, halt);
                break;
            }
        }
        let frames = waiting - left;
        if frames > 0 {
            from.inlet.return_own();
            // Their cost is known: see `next_held_cost`.
            self.slots_freed(from);
        }
        Visited { frames, cost: cost_max - credit, has_more: left > 0 && !from.blocked }
    }

    /// Frees the slots of the next frames, within these bounds, that are to be dropped.
    fn drop_run(&mut self, from: &mut Endpoint, to: TxTarget, bounds: Bounds) -> Row {
        let mut sent = from.transmit.taking(bounds.frames);
        let (mut taken, mut cost) = (0, 0);
        while cost < bounds.cost
            && let Some(next) = sent.peek(0)
            && next.to == to
        {
            from.inlet.free.push(next.slot);
            sent.take();
            cost += frame_cost(0) + next_held_cost(&self.waiting, &mut from.held, &from.inlet.free, next.slot);
            taken += 1;
        }
        Row { taken, cost, halt: None }
    }

    /// Copies the next frames, within these bounds, that take the same edge into another FWP's pool.
    pub(super) fn run_to_fwp<P: Pick>(
        &mut self,
        from: &mut Endpoint,
        way: (TxTarget, Route),
        bounds: Bounds,
        id: FwpId,
        pick: &mut P,
    ) -> Row {
        let Some(next) = self.table.get_mut(id) else { return drop_for_ended(&self.waiting, from, pick) };
        let direction = way.1.direction;
        let RxPath { pool, free, came_by, .. } = &mut from.inlet;
        let mut row = from.transmit.taking(bounds.frames);
        if P::TAKES_ALL {
            prefetch_payloads(&row, pool);
        }
        let may_halt = (next.holds || next.inlet.free.can_grow()) && next.upstream.len() < next.upstream.capacity();
        let (mut taken, mut cost, mut moved, mut halt) = (0, 0, Moved::default(), None);
        let (mut slots_wanted, mut made_at) = (0, None);
        next.inlet.deliver.prefetch_row(row_len::<P>(bounds));
        let mut intake = next.inlet.open();
        while cost < bounds.cost
            && let Some(sent) = row.peek(0)
            && from.outputs.is_same(way, &sent, came_by)
            && pick.takes(&sent, pool, came_by)
        {
            prefetch_payload(&row, pool);
            let mut came = came_by.of(&sent).going(direction);
            if free.is_own(sent.slot) {
                // It has not come from anywhere, so the next stage is told when it was moved.
                came = came.arriving(*made_at.get_or_insert_with(|| Arrival::at(self.stopwatch.elapsed_ns())));
            }
            let accepted = intake.accept(u32::from(sent.len), came, 0, |into, slot, offset| {
                pick.copy_across(pool, &sent, into, (slot, offset));
            });
            match accepted {
                Accepted::Yes => moved.add(u32::from(sent.len)),
                Accepted::NoSlot if may_halt => {
                    slots_wanted = frames_ahead::<P>(&row, |sent| from.outputs.is_same(way, sent, came_by));
                    halt = Some(BlockedOn::Slot(id));
                    break;
                }
                Accepted::NoSlot => {
                    slots_wanted = 1;
                    next.counters.moved.dropped_no_slot.add(1);
                }
                Accepted::TooLong => next.counters.moved.dropped_too_long.add(1),
            }
            row.take();
            pick.took();
            free.push(sent.slot);
            cost += P::COST + frame_cost(u32::from(sent.len));
            cost += next_held_cost(&self.waiting, &mut from.held, free, sent.slot);
            taken += 1;
        }
        if moved.frames > 0 {
            self.counters.copied_bytes.add(moved.bytes);
            moved.count_received(next);
            moved.count_sent(from);
            mark_unnotified(next, &mut self.untold);
        }
        if slots_wanted > 0 && next.want_slots(slots_wanted) {
            mark_unnotified(next, &mut self.untold);
        }
        Row { taken, cost, halt }
    }

    /// Copies the next frames, within these bounds, that take the same edge into buffers, to leave on `port` or on the port
    /// where they were received.
    pub(super) fn run_to_gateway<P: Pick>(
        &mut self,
        from: &mut Endpoint,
        way: (TxTarget, Route),
        bounds: Bounds,
        port: Option<PortIndex>,
        pick: &mut P,
    ) -> Row {
        let RxPath { pool, free, came_by, .. } = &mut from.inlet;
        let mut row = from.transmit.taking(bounds.frames);
        if P::TAKES_ALL {
            prefetch_payloads(&row, pool);
        }
        let (mut taken, mut cost, mut moved, mut halt) = (0, 0, Moved::default(), None);
        let mut exit = self.dock.outlet(from.sender);
        while cost < bounds.cost
            && let Some(sent) = row.peek(0)
            && from.outputs.is_same(way, &sent, came_by)
            && pick.takes(&sent, pool, came_by)
        {
            prefetch_payload(&row, pool);
            let port = port.unwrap_or_else(|| came_by.of(&sent).way().port());
            let fill = |frame: &mut [u8]| pick.copy_out(pool, &sent, frame);
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
            pick.took();
            free.push(sent.slot);
            cost += P::COST + frame_cost(u32::from(sent.len));
            cost += next_held_cost(&self.waiting, &mut from.held, free, sent.slot);
            taken += 1;
        }
        drop(exit);
        if moved.frames > 0 {
            self.counters.copied_bytes.add(moved.bytes);
            moved.count_sent(from);
        }
        Row { taken, cost, halt }
    }

    /// Stops an FWP's output until there is room at its destination.
    fn block(&mut self, from: &mut Endpoint, halt: BlockedOn) {
        from.blocked = true;
        match halt {
            BlockedOn::Slot(next) => {
                from.waited_for = Some(next);
                match self.table.get_mut(next) {
                    Some(next) => next.upstream.push(from.id),
                    None => self.unblocked.push_back(from.id),
                }
            }
            BlockedOn::Buffer => self.without_buffer.push(from.id, self.present.share(from.share.tenant)),
        }
    }
}

/// Drops the next frame, which is for an FWP that has ended.
#[cold]
fn drop_for_ended<P: Pick>(waiting: &WaitingFrames, from: &mut Endpoint, pick: &mut P) -> Row {
    let free = &mut from.inlet.free;
    let mut cost = P::COST + frame_cost(0);
    if let Some(sent) = from.transmit.taking(1).take() {
        pick.took();
        free.push(sent.slot);
        cost += next_held_cost(waiting, &mut from.held, free, sent.slot);
    }
    from.counters.moved.dropped_instance_ended.add(1);
    Row { taken: 1, cost, halt: None }
}

/// Returns how many frames a row is expected to have within these bounds.
#[inline(always)]
fn row_len<P: Pick>(bounds: Bounds) -> usize {
    if P::TAKES_ALL { bounds.frames.min(1 + bounds.cost as usize / FRAME_COST as usize) } else { 1 }
}

/// Returns how many frames are known to take the edge of the next one, for which there is no slot. `takes_outlet` says
/// whether a frame comes by the same output.
#[cold]
fn frames_ahead<P: Pick>(
    row: &phased::Taking<'_, Transmission>,
    takes_outlet: impl Fn(&Transmission) -> bool,
) -> usize {
    if P::TAKES_ALL { (0..).map_while(|ahead| row.peek(ahead)).take_while(takes_outlet).count() } else { 1 }
}
