//! The gateway's end of its link with MMA: frames handed over in batches, and account kept of every buffer on loan.
//!
//! A buffer is lent in two ways, and neither may exceed what the link's rings hold, for MMA counts on room in the rings
//! by which it gives buffers back:
//! * with a received frame, pushed to `inbound` and back from `spent`;
//! * empty, pushed to `empty` and back from `outbound` with a frame to transmit.
//!
//! Allocates nothing after it was made; every operation is bounded by the batch it is given.

use pinion_mma::buffer::Buffer;
use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::link::{GatewayLink, Inbound, Outbound};

use crate::port::{BufferPool, Frame};

pub(crate) struct Handover {
    link: GatewayLink,
    staged: Vec<Inbound>,
    /// Received frames at MMA, the staged ones included.
    frames_lent: usize,
    frames_lent_max: usize,
    empties: Vec<Buffer>,
    empties_lent: usize,
    empties_lent_max: usize,
    /// Whether something was pushed since the bell was rung.
    pushed: bool,
}

impl Handover {
    /// Stages up to `burst` frames at a time; lends `empties_max` empty buffers, or as many as the link holds.
    pub(crate) fn new(mut link: GatewayLink, burst: usize, empties_max: usize) -> Self {
        let frames_lent_max = link.inbound.room(usize::MAX);
        let empties_lent_max = link.empty.room(usize::MAX).min(empties_max);
        Self {
            link,
            staged: Vec::with_capacity(burst),
            frames_lent: 0,
            frames_lent_max,
            empties: Vec::with_capacity(empties_lent_max),
            empties_lent: 0,
            empties_lent_max,
            pushed: false,
        }
    }

    /// Buffers that MMA can hold at most.
    pub(crate) fn lent_max(&self) -> usize {
        self.frames_lent_max + self.empties_lent_max
    }

    /// Puts a frame into the next batch, or gives it back when MMA holds as many as it may.
    pub(crate) fn stage(&mut self, frame: Frame, port: PortIndex, target: FwpId) -> Result<(), Frame> {
        if self.frames_lent == self.frames_lent_max {
            return Err(frame);
        }
        if self.staged.len() == self.staged.capacity() {
            self.hand_over();
        }
        self.frames_lent += 1;
        self.staged.push(Inbound { buffer: frame.buffer, len: frame.len, port, target });
        Ok(())
    }

    /// Pushes the batch.
    pub(crate) fn hand_over(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        let count = self.staged.len();
        let pushed = self.link.inbound.push_batch(&mut self.staged.drain(..));
        debug_assert_eq!(pushed, count, "no more frames are lent than the ring holds");
        self.pushed = true;
    }

    /// Takes back buffers of received frames; returns how many.
    pub(crate) fn take_spent(&mut self, max: usize, take: impl FnMut(Buffer)) -> usize {
        let count = self.link.spent.pop_batch(max, take);
        self.frames_lent -= count;
        count
    }

    /// Takes frames to transmit; returns how many.
    pub(crate) fn take_outbound(&mut self, max: usize, take: impl FnMut(Outbound)) -> usize {
        let count = self.link.outbound.pop_batch(max, take);
        self.empties_lent -= count;
        count
    }

    /// Lends empty buffers again up to the maximum, as far as the pool has some.
    pub(crate) fn lend_empties(&mut self, pool: &mut dyn BufferPool) {
        let wanted = self.empties_lent_max - self.empties_lent;
        if wanted == 0 || pool.take(&mut self.empties, wanted) == 0 {
            return;
        }
        let count = self.empties.len();
        let pushed = self.link.empty.push_batch(&mut self.empties.drain(..));
        debug_assert_eq!(pushed, count, "no more buffers are lent than the ring holds");
        self.empties_lent += count;
        self.pushed = true;
    }

    /// Wakes MMA if it was given something since the last time.
    pub(crate) fn ring(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.link.mma.ring();
        }
    }

    /// Whether MMA has given something back.
    pub(crate) fn has_work(&mut self) -> bool {
        self.link.outbound.ready(1) > 0 || self.link.spent.ready(1) > 0
    }
}
