//! The gateway's end of its links to the MMAs: hands frames over in batches, and counts the buffers that the MMAs hold.
//!
//! The gateway lends buffers with received frames, and empty ones. They come back spent, or with a frame to transmit.
//! The MMA may transmit one frame in the buffer in which another was received, so only the sum counts. The sum never
//! exceeds the capacity of the link's rings, because MMA relies on room in the rings by which it returns buffers.
//! Received frames may not use the part of it that is reserved for empty buffers and frames to transmit. So frames that
//! wait in the MMA for room never keep other frames from leaving, which is what makes room; and frames that leave do not
//! take the places of those that come in.
//!
//! Allocates nothing after it was made. Every operation is bounded by the batch that it is given.

use std::sync::Arc;

use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::id::FwpId;
use pinion_mma::link::{GatewayLink, Inbound, Outbound};
use pinion_mma::tuning::upcoming::UpcomingInstances;

use crate::port::BufferPool;

/// All links of a gateway, by the MMA at their other end.
pub(crate) struct Handover {
    loans: Box<[BufferCredit]>,
    upcoming: Arc<UpcomingInstances>,
    /// The FWP that was last announced to have a frame on its way. To announce it again would only take the cache line
    /// from the threads that poll it.
    expected: Option<FwpId>,
}

/// One link, and the buffers lent through it.
struct BufferCredit {
    link: GatewayLink,
    /// Buffers at MMA, including the staged ones.
    lent: usize,
    lent_max: usize,
    empties: Vec<Buffer>,
    /// Empty buffers that MMA had not taken when it was last supplied.
    empties_there: usize,
    /// Frames to transmit that waited in the ring then.
    leaving: usize,
    empties_max: usize,
    /// Whether something was staged since the link was last published and the doorbell rung.
    staged: bool,
}

impl Handover {
    /// Makes the gateway's end. It lends empty buffers to each MMA until these and the frames that leave are `empties_max`, at
    /// most half of what its link holds.
    pub(crate) fn new(links: Vec<GatewayLink>, empties_max: usize) -> Self {
        Self {
            loans: links.into_iter().map(|link| BufferCredit::new(link, empties_max)).collect(),
            upcoming: Arc::default(),
            expected: None,
        }
    }

    /// Sets where the FWP is announced that the first frame of a batch goes to, ahead of the frame.
    pub(crate) fn publish_upcoming_to(&mut self, upcoming: Arc<UpcomingInstances>) {
        self.upcoming = upcoming;
    }

    /// Returns how many buffers the MMAs can hold at most.
    pub(crate) fn lent_max(&self) -> usize {
        self.loans.iter().map(|loan| loan.lent_max).sum()
    }

    /// Returns how many MMAs there are.
    pub(crate) fn mmas(&self) -> usize {
        self.loans.len()
    }

    /// Announces that a frame is on its way to `target`, if it is going to be the first of a batch. The sooner the
    /// better: with thousands of FWPs, all memory that a turn touches must be fetched.
    #[inline(always)]
    pub(crate) fn expect(&mut self, target: FwpId) {
        let mma = target.mma(self.loans.len());
        if !self.loans[mma.0].staged && self.expected.replace(target) != Some(target) {
            self.upcoming.expect(target);
        }
    }

    /// Stages a frame for the next batch. Returns the frame if MMA holds as many buffers as it may.
    // Always inlined, with all that it calls: a frame passed on the stack would have to wait for earlier writes to it.
    #[inline(always)]
    pub(crate) fn stage(&mut self, frame: Frame, target: FwpId) -> Result<(), Frame> {
        self.expect(target);
        let mma = target.mma(self.loans.len());
        self.loans[mma.0].stage(frame, target)
    }

    /// Publishes the staged frames.
    pub(crate) fn hand_over(&mut self) {
        for loan in self.loans.iter_mut().filter(|loan| loan.staged) {
            loan.link.inbound.publish();
        }
    }

    /// Takes back spent buffers, up to `max` from each MMA. Returns how many.
    pub(crate) fn take_spent(&mut self, max: usize, mut take: impl FnMut(Buffer)) -> usize {
        self.loans.iter_mut().map(|loan| loan.take_spent(max, &mut take)).sum()
    }

    /// Takes frames to transmit, up to `max` from each MMA. Returns how many.
    pub(crate) fn take_outbound(&mut self, max: usize, mut take: impl FnMut(Outbound)) -> usize {
        self.loans.iter_mut().map(|loan| loan.take_outbound(max, &mut take)).sum()
    }

    /// Lends empty buffers to the MMAs, as far as the pool has some.
    pub(crate) fn lend_empties(&mut self, pool: &mut dyn BufferPool) {
        for loan in &mut self.loans {
            loan.lend_empties(pool);
        }
    }

    /// Wakes the MMAs that were given something since the last call.
    pub(crate) fn ring(&mut self) {
        for loan in &mut self.loans {
            if std::mem::take(&mut loan.staged) {
                loan.link.mma.ring();
            }
        }
    }

    /// Returns whether an MMA has returned something.
    pub(crate) fn has_work(&mut self) -> bool {
        self.loans.iter_mut().any(|loan| loan.link.outbound.ready(1) > 0 || loan.link.spent.ready(1) > 0)
    }
}

impl BufferCredit {
    fn new(mut link: GatewayLink, empties_max: usize) -> Self {
        let lent_max = link.inbound.room(usize::MAX);
        let empties_max = empties_max.min(lent_max / 2);
        let empties = Vec::with_capacity(empties_max);
        Self { link, lent: 0, lent_max, empties, empties_there: 0, leaving: 0, empties_max, staged: false }
    }

    #[inline(always)]
    fn stage(&mut self, frame: Frame, target: FwpId) -> Result<(), Frame> {
        // Counts all buffers lent except the empty ones, and those with frames that leave, in the rings, which have their
        // own part of the limit. MMA may have taken some of the empty ones meanwhile. Those then come back with frames.
        let is_full = self.lent + self.empties_max >= self.lent_max + self.empties_there + self.leaving;
        if is_full || self.lent >= self.lent_max {
            return Err(frame);
        }
        match self.link.inbound.stage(Inbound { frame, target }) {
            Ok(()) => {
                self.lent += 1;
                self.staged = true;
                Ok(())
            }
            Err(Inbound { frame, .. }) => Err(frame),
        }
    }

    fn take_spent(&mut self, max: usize, take: impl FnMut(Buffer)) -> usize {
        let count = self.link.spent.pop_batch(max, take);
        self.lent -= count;
        count
    }

    fn take_outbound(&mut self, max: usize, take: impl FnMut(Outbound)) -> usize {
        let count = self.link.outbound.pop_batch(max, take);
        self.lent -= count;
        count
    }

    fn lend_empties(&mut self, pool: &mut dyn BufferPool) {
        let capacity = self.link.empty.capacity();
        self.empties_there = capacity - self.link.empty.room(capacity);
        self.leaving = self.link.outbound.ready(usize::MAX);
        let of_both = self.empties_there + self.leaving;
        let wanted = self.empties_max.saturating_sub(of_both).min(self.lent_max - self.lent);
        if wanted == 0 || pool.take(&mut self.empties, wanted) == 0 {
            return;
        }
        let count = self.empties.len();
        let pushed = self.link.empty.push_batch(&mut self.empties.drain(..));
        debug_assert_eq!(pushed, count, "no more buffers are lent than the ring holds");
        self.lent += count;
        self.empties_there += count;
        self.staged = true;
    }
}
