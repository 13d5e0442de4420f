//! What arrives for FWPs: frames from the gateway, and frames that waited for slots.

use super::ahead::AHEAD;
use super::held::HeldFrames;
use super::{Mma, Moved, mark_unnotified};
use crate::accounts::copying::FRAME_COST;
use crate::accounts::counters::MmaCounters;
use crate::buffer::Frame;
use crate::id::FwpId;
use crate::link::Inbound;
use crate::link::gateway_link::FreeBatch;
use crate::rings::spsc::Taking;
use crate::tuning;
use crate::ways::Arrival;
use crate::wiring::waiting::WaitingFrames;
use crate::wiring::{Accepted, Endpoint, RxBatch};

impl Mma {
    /// Delivers the first of `max` waiting frames, and the frames directly behind it for the same FWP, into its pool.
    /// They came at this time. Returns how many.
    pub(super) fn deliver_run(&mut self, max: usize, arrived: Arrival) -> usize {
        let Self { table, dock, counters, untold, held, waiting, .. } = self;
        let (mut frames, mut shelf) = dock.intake(max);
        let Some(target) = frames.peek(0).map(|frame| frame.target) else { return max };
        let run = 1 + (1..max).take_while(|at| frames.peek(*at).is_some_and(|next| next.target == target)).count();
        let Some(endpoint) = table.get_mut(target) else {
            counters.dropped_instance_ended.add(1);
            frames.take().into_iter().for_each(|inbound| shelf.keep(inbound.frame.into_buffer()));
            return 1;
        };
        if endpoint.branches.as_ref().is_some_and(|branches| branches.has_entrance()) {
            drop(frames);
            self.enter_by_branch(target, run, arrived);
            return run;
        }
        Deliveries { frames, shelf, counters, untold, held, waiting }.deliver(endpoint, run, arrived);
        run
    }

    /// Delivers the first `run` frames of the gateway's into the pool of an FWP that is not in the table now.
    pub(super) fn deliver_row(&mut self, endpoint: &mut Endpoint, run: usize, arrived: Arrival) {
        let Self { dock, counters, untold, held, waiting, .. } = self;
        let (frames, shelf) = dock.intake(run);
        Deliveries { frames, shelf, counters, untold, held, waiting }.deliver(endpoint, run, arrived);
    }

    /// Uses an FWP's freed slots: for its predecessors' output, and for frames held for it. If there are both, each gets
    /// half of them, and frames held get also those that the predecessors leave.
    #[inline]
    pub(super) fn slots_freed(&mut self, endpoint: &mut Endpoint) {
        self.unblock_predecessors(endpoint);
        if !endpoint.held.is_empty() {
            let slots_max = endpoint.slots_for_held();
            self.deliver_held(endpoint, slots_max);
        }
    }

    /// Lets an FWP's predecessors go on: it has slots again.
    #[inline]
    fn unblock_predecessors(&mut self, endpoint: &mut Endpoint) {
        if !endpoint.upstream.is_empty() {
            endpoint.upstream_unblocked += endpoint.upstream.len();
            self.unblocked.extend(endpoint.upstream.drain(..));
        }
    }

    /// Notes that a predecessor of this FWP was visited after it had waited for slots. When all of them were, frames held
    /// for the FWP get the slots that are left.
    #[inline(never)]
    pub(super) fn predecessor_visited(&mut self, id: FwpId) {
        let Some(endpoint) = self.table.get_mut(id) else { return };
        debug_assert!(endpoint.upstream_unblocked > 0, "it was unblocked and not visited since");
        endpoint.upstream_unblocked = endpoint.upstream_unblocked.saturating_sub(1);
        if endpoint.upstream_unblocked == 0
            && !endpoint.held.is_empty()
            && let Some(mut endpoint) = self.table.take(id)
        {
            // What they cost was counted when the slots were freed.
            self.deliver_held(&mut endpoint, u64::MAX);
            self.table.put_back(endpoint);
        }
    }

    /// Uses the slots that an FWP's worker has provided: for frames held for it until these have cost `cost_max`, and then
    /// for its predecessors' output. Returns how many frames were moved, and their cost.
    #[cold]
    pub(super) fn use_provided(&mut self, endpoint: &mut Endpoint, cost_max: i64) -> (usize, i64) {
        let (mut frames, mut cost, mut came) = (0, 0, false);
        while cost < cost_max && !endpoint.held.is_empty() && endpoint.take_provided() {
            came = true;
            let delivered = self.deliver_held(endpoint, u64::MAX);
            (frames, cost) = (frames + delivered.0, cost + delivered.1);
        }
        if endpoint.held.is_empty() {
            while endpoint.take_provided() {
                came = true;
            }
            if came {
                self.unblock_predecessors(endpoint);
            }
        } else if !endpoint.has_provided() && endpoint.want_slots(endpoint.held.len()) {
            mark_unnotified(endpoint, &mut self.untold);
        }
        (frames, cost)
    }

    /// Delivers frames held for an FWP, as far as it has slots, and into `slots_max` of these. Returns how many it is done
    /// with, and their cost.
    #[inline(never)]
    fn deliver_held(&mut self, endpoint: &mut Endpoint, slots_max: u64) -> (usize, i64) {
        let Endpoint { inlet, held, counters, share, .. } = endpoint;
        let (mut moved, mut done) = (Moved::default(), 0);
        let mut intake = inlet.open();
        while moved.frames < slots_max
            && let Some((frame, arrived)) = self.waiting.front(held)
        {
            match accept(&mut intake, frame, arrived) {
                Accepted::Yes => moved.add(frame.len()),
                Accepted::TooLong => counters.moved.dropped_too_long.add(1),
                Accepted::NoSlot => break,
            }
            let Some(frame) = self.waiting.pop(held) else { break };
            done += 1;
            self.held.remove(share.tenant);
            self.dock.keep(frame.into_buffer());
        }
        if moved.frames > 0 {
            self.counters.copied_bytes.add(moved.bytes);
            moved.count_entered(endpoint);
            mark_unnotified(endpoint, &mut self.untold);
        }
        (done, i64::from(FRAME_COST) * done as i64 + moved.bytes as i64)
    }
}

/// What it takes to deliver frames of the gateway's, besides the FWP that they are for.
struct Deliveries<'m> {
    frames: Taking<'m, Inbound>,
    shelf: FreeBatch<'m>,
    counters: &'m MmaCounters,
    untold: &'m mut Vec<FwpId>,
    held: &'m mut HeldFrames,
    waiting: &'m mut WaitingFrames,
}

impl Deliveries<'_> {
    /// Delivers the first `run` frames into an FWP's pool, as far as it has slots; others are held or dropped.
    #[inline(always)]
    fn deliver(self, endpoint: &mut Endpoint, run: usize, arrived: Arrival) {
        let Self { mut frames, mut shelf, counters, untold, held, waiting } = self;
        let waiting_max = endpoint.waiting_max();
        let Endpoint { inlet, held: list, counters: own, share, .. } = endpoint;
        let (mut moved, mut lacks_slots) = (Moved::default(), false);
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
            let accepted = if list.is_empty() {
                accept(&mut intake, &next.frame, arrived)
            } else if intake.is_too_long(next.frame.len()) {
                Accepted::TooLong
            } else {
                Accepted::NoSlot
            };
            let Some(Inbound { frame, .. }) = frames.take() else { break };
            match accepted {
                Accepted::Yes => moved.add(frame.len()),
                Accepted::NoSlot => {
                    lacks_slots = true;
                    if list.len() < waiting_max && held.add(share.tenant) {
                        waiting.push(list, frame, arrived);
                        continue;
                    }
                    own.moved.dropped_no_slot.add(1);
                }
                Accepted::TooLong => own.moved.dropped_too_long.add(1),
            }
            shelf.keep(frame.into_buffer());
        }
        if moved.frames > 0 {
            counters.copied_bytes.add(moved.bytes);
            moved.count_entered(endpoint);
            mark_unnotified(endpoint, untold);
        }
        if lacks_slots && endpoint.want_slots(endpoint.held.len().max(1)) {
            mark_unnotified(endpoint, untold);
        }
    }
}

#[inline(always)]
fn accept(intake: &mut RxBatch<'_>, frame: &Frame, arrived: Arrival) -> Accepted {
    let came = intake.came_by.arriving(frame.port(), arrived);
    intake
        .accept(frame.len(), came, frame.facts().bits(), |pool, slot, offset| pool.copy_in(slot, offset, frame.bytes()))
}
