//! The gateway's end of its links with the MMAs: frames handed over in batches, and account kept of every buffer on loan.
//!
//! A buffer is lent with a received frame or empty, and comes back spent or with a frame to transmit; the MMA may send one
//! frame out in the buffer that another came in, so what counts is the sum. It never exceeds what a link's rings hold, for
//! MMA counts on room in the rings by which it gives buffers back. Received frames leave enough of it to empty buffers:
//! frames that wait in the MMA for room can then never keep others from leaving, and so from making room.
//!
//! Allocates nothing after it was made; every operation is bounded by the batch it is given.

use std::sync::Arc;

use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::id::FwpId;
use pinion_mma::link::{GatewayLink, Inbound};
use pinion_mma::next_up::NextUp;

use crate::port::BufferPool;

/// All links of a gateway, by the MMA at their other end.
pub(crate) struct Handover {
    loans: Box<[Loan]>,
    next_up: Arc<NextUp>,
    /// Who was last said to have a frame on its way: to say so again would only take the line from those who look at it.
    expected: Option<FwpId>,
}

/// One link and what is lent by it.
struct Loan {
    link: GatewayLink,
    /// Buffers at MMA, the staged ones included.
    lent: usize,
    lent_max: usize,
    empties: Vec<Buffer>,
    /// Empty ones that MMA had not taken when it was last supplied.
    empties_there: usize,
    empties_max: usize,
    /// Whether something was staged since it was published and the bell rung.
    staged: bool,
}

impl Handover {
    /// Keeps each MMA supplied with `empties_max` empty buffers, or with half of what its link holds.
    pub(crate) fn new(links: Vec<GatewayLink>, empties_max: usize) -> Self {
        Self {
            loans: links.into_iter().map(|link| Loan::new(link, empties_max)).collect(),
            next_up: Arc::default(),
            expected: None,
        }
    }

    /// Whom to tell for which FWP the first frame of a batch is, ahead of the frame.
    pub(crate) fn announce_to(&mut self, next_up: Arc<NextUp>) {
        self.next_up = next_up;
    }

    /// Buffers that the MMAs can hold at most.
    pub(crate) fn lent_max(&self) -> usize {
        self.loans.iter().map(|loan| loan.lent_max).sum()
    }

    /// Says who has a frame on its way, if it is going to be the first of a batch. The sooner the better: with thousands of FWPs, all that a turn
    /// touches has to be fetched from afar.
    #[inline(always)]
    pub(crate) fn expect(&mut self, target: FwpId) {
        let mma = target.mma(self.loans.len());
        if !self.loans[mma.0].staged && self.expected.replace(target) != Some(target) {
            self.next_up.expect(target);
        }
    }

    /// Puts a frame into the next batch, or gives it back when MMA holds as many as it may.
    // Always inlined, with all that it calls: a frame that went over the stack would wait there for what was written before it.
    #[inline(always)]
    pub(crate) fn stage(&mut self, frame: Frame, target: FwpId) -> Result<(), Frame> {
        self.expect(target);
        let mma = target.mma(self.loans.len());
        self.loans[mma.0].stage(frame, target)
    }

    /// Publishes what was staged.
    pub(crate) fn hand_over(&mut self) {
        for loan in self.loans.iter_mut().filter(|loan| loan.staged) {
            loan.link.inbound.publish();
        }
    }

    /// Takes back buffers that are done with, up to `max` of each MMA's; returns how many.
    pub(crate) fn take_spent(&mut self, max: usize, mut take: impl FnMut(Buffer)) -> usize {
        self.loans.iter_mut().map(|loan| loan.take_spent(max, &mut take)).sum()
    }

    /// Takes frames to transmit, up to `max` of each MMA's; returns how many.
    pub(crate) fn take_outbound(&mut self, max: usize, mut take: impl FnMut(Frame)) -> usize {
        self.loans.iter_mut().map(|loan| loan.take_outbound(max, &mut take)).sum()
    }

    /// Supplies the MMAs with empty buffers, as far as the pool has some.
    pub(crate) fn lend_empties(&mut self, pool: &mut dyn BufferPool) {
        for loan in &mut self.loans {
            loan.lend_empties(pool);
        }
    }

    /// Wakes those MMAs that were given something since the last time.
    pub(crate) fn ring(&mut self) {
        for loan in &mut self.loans {
            if std::mem::take(&mut loan.staged) {
                loan.link.mma.ring();
            }
        }
    }

    /// Whether an MMA has given something back.
    pub(crate) fn has_work(&mut self) -> bool {
        self.loans.iter_mut().any(|loan| loan.link.outbound.ready(1) > 0 || loan.link.spent.ready(1) > 0)
    }
}

impl Loan {
    fn new(mut link: GatewayLink, empties_max: usize) -> Self {
        let lent_max = link.inbound.room(usize::MAX);
        let empties_max = empties_max.min(lent_max / 2);
        let empties = Vec::with_capacity(empties_max);
        Self { link, lent: 0, lent_max, empties, empties_there: 0, empties_max, staged: false }
    }

    #[inline(always)]
    fn stage(&mut self, frame: Frame, target: FwpId) -> Result<(), Frame> {
        // All that is lent but the empty ones that are there, which have their own part of the loan. MMA may have taken some
        // of these meanwhile; they are on their way back then, with frames.
        let is_full = self.lent + self.empties_max >= self.lent_max + self.empties_there;
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

    fn take_outbound(&mut self, max: usize, take: impl FnMut(Frame)) -> usize {
        let count = self.link.outbound.pop_batch(max, take);
        self.lent -= count;
        count
    }

    fn lend_empties(&mut self, pool: &mut dyn BufferPool) {
        let capacity = self.link.empty.capacity();
        self.empties_there = capacity - self.link.empty.room(capacity);
        let wanted = self.empties_max.saturating_sub(self.empties_there).min(self.lent_max - self.lent);
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
