//! What arrives for FWPs: frames from the gateway, and frames that waited for slots.

use super::ahead::AHEAD;
use super::{Mma, Moved, mark_unnotified};
use crate::accounts::copying::FRAME_COST;
use crate::buffer::Frame;
use crate::link::Inbound;
use crate::tuning;
use crate::ways::Arrival;
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
            moved.count_received(endpoint);
            mark_unnotified(endpoint, untold);
        }
        if lacks_slots && endpoint.want_slots(endpoint.held.len().max(1)) {
            mark_unnotified(endpoint, untold);
        }
        run
    }

    /// Uses an FWP's freed slots: first for frames held for it, then for its predecessors' output.
    #[inline]
    pub(super) fn slots_freed(&mut self, endpoint: &mut Endpoint) {
        self.unblocked.extend(endpoint.upstream.drain(..));
        if !endpoint.held.is_empty() {
            self.deliver_held(endpoint);
        }
    }

    /// Uses the slots that an FWP's worker has provided: for frames held for it until these have cost `cost_max`, and then
    /// for its predecessors' output. Returns how many frames were moved, and their cost.
    #[cold]
    pub(super) fn use_provided(&mut self, endpoint: &mut Endpoint, cost_max: i64) -> (usize, i64) {
        let (mut frames, mut cost, mut came) = (0, 0, false);
        while cost < cost_max && !endpoint.held.is_empty() && endpoint.take_provided() {
            came = true;
            let delivered = self.deliver_held(endpoint);
            (frames, cost) = (frames + delivered.0, cost + delivered.1);
        }
        if endpoint.held.is_empty() {
            while endpoint.take_provided() {
                came = true;
            }
            if came {
                self.unblocked.extend(endpoint.upstream.drain(..));
            }
        } else if !endpoint.has_provided() && endpoint.want_slots(endpoint.held.len()) {
            mark_unnotified(endpoint, &mut self.untold);
        }
        (frames, cost)
    }

    /// Delivers frames held for an FWP, as far as it has slots. Returns how many it is done with, and their cost.
    #[inline(never)]
    fn deliver_held(&mut self, endpoint: &mut Endpoint) -> (usize, i64) {
        let Endpoint { inlet, held, counters, share, .. } = endpoint;
        let (mut moved, mut done) = (Moved::default(), 0);
        let mut intake = inlet.open();
        while let Some((frame, arrived)) = self.waiting.front(held) {
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
            moved.count_received(endpoint);
            mark_unnotified(endpoint, &mut self.untold);
        }
        (done, i64::from(FRAME_COST) * done as i64 + moved.bytes as i64)
    }
}

#[inline(always)]
fn accept(intake: &mut RxBatch<'_>, frame: &Frame, arrived: Arrival) -> Accepted {
    let came = intake.came_by.arriving(frame.port(), arrived);
    intake
        .accept(frame.len(), came, frame.facts().bits(), |pool, slot, offset| pool.copy_in(slot, offset, frame.bytes()))
}
