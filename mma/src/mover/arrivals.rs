//! What arrives for FWPs: frames from the gateway, and frames that waited for slots.

use super::ahead::AHEAD;
use super::{Mma, Moved, mark_unnotified};
use crate::buffer::Frame;
use crate::link::Inbound;
use crate::tuning;
use crate::wiring::{Accepted, Endpoint, RxBatch};

impl Mma {
    /// Delivers the first of `max` waiting frames, and the frames directly behind it for the same FWP, into its pool.
    /// Returns how many.
    pub(super) fn deliver_run(&mut self, max: usize) -> usize {
        let Self { table, dock, counters, untold, held, .. } = self;
        let (mut frames, mut shelf) = dock.intake(max);
        let Some(target) = frames.peek(0).map(|frame| frame.target) else { return max };
        let run = 1 + (1..max).take_while(|at| frames.peek(*at).is_some_and(|next| next.target == target)).count();
        let Some(endpoint) = table.get_mut(target) else {
            counters.dropped_instance_ended.add(1);
            frames.take().into_iter().for_each(|inbound| shelf.keep(inbound.frame.into_buffer()));
            return 1;
        };
        let Endpoint { inlet, held: waiting, held_max: waiting_max, counters: own, share, .. } = endpoint;
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
                Accepted::NoSlot if waiting.len() < *waiting_max && held.add(share.tenant) => {
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

    /// Uses an FWP's freed slots: first for frames held for it, then for its predecessors' output.
    pub(super) fn slots_freed(&mut self, endpoint: &mut Endpoint) {
        self.unblocked.extend(endpoint.upstream.drain(..));
        if endpoint.held.is_empty() {
            return;
        }
        let Endpoint { inlet, held, counters, share, .. } = endpoint;
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
            self.held.remove(share.tenant);
            self.dock.keep(frame.into_buffer());
        }
        if moved.frames > 0 {
            self.counters.copied_bytes.add(moved.bytes);
            moved.count_received(endpoint);
            mark_unnotified(endpoint, &mut self.untold);
        }
    }
}

#[inline(always)]
fn accept(intake: &mut RxBatch<'_>, frame: &Frame) -> Accepted {
    let came = intake.came_by.arriving(frame.port());
    intake
        .accept(frame.len(), came, frame.facts().bits(), |pool, slot, offset| pool.copy_in(slot, offset, frame.bytes()))
}
