//! Fragments on their way to an instance. Those of a datagram follow its first one, also if they came before it.

use pinion_mma::buffer::Frame;

use super::Gateway;
use crate::assign::{Assignment, Read};
use crate::drops::DropReason;
use crate::flows::fragments::{Passing, Refused};
use crate::headers::{FlowKey, Fragment};

/// Of the frames that may wait for an instance, one in so many may wait for the first fragment of its datagram,
/// besides.
const PART_OF_PENDING: usize = 4;

/// Returns how many fragments may wait, with so many frames that may wait for instances.
pub(super) fn waiting_max(pending_max: usize) -> usize {
    pending_max.div_ceil(PART_OF_PENDING)
}

impl Gateway {
    #[inline(never)]
    pub(super) fn take_in_fragment(&mut self, port: usize, frame: Frame, fragment: &Fragment, now_ns: u64) {
        if let Err(reason) = self.assigner.judge_addresses(&fragment.flow) {
            return self.bin.drop_frame(frame, reason);
        }
        let Self { fragments, assigner, bin, .. } = self;
        let passing = fragments.take(frame, fragment, now_ns, |Refused { frame, reason, flow }| {
            // Of the reasons that end a datagram, chains count this one.
            let flow = flow.filter(|_| reason == DropReason::OverlappingFragment);
            let chain = flow.and_then(|flow| assigner.chain_of_flow(&flow, assigner.lead(&flow), now_ns));
            bin.drop_of_chain(frame, chain, reason);
        });
        let Some(Passing { frame, flow, first_of }) = passing else { return };
        self.take_in_piece(port, frame, &flow, now_ns);
        let Some(datagram) = first_of else { return };
        while let Some(frame) = self.fragments.next_waiting(datagram) {
            self.take_in_piece(port, frame, &flow, now_ns);
        }
    }

    /// Takes in a fragment of a datagram of this flow.
    fn take_in_piece(&mut self, port: usize, frame: Frame, flow: &FlowKey, now_ns: u64) {
        let read = Read::piece_of(*flow, self.assigner.lead(flow));
        match self.assigner.assign_piece(flow, frame.bytes(), now_ns) {
            Assignment::To(entry) => self.take_in_milestone(port, frame, &read, entry, now_ns),
            other => self.take_in_unassigned(frame, &read, &other, now_ns),
        }
    }

    pub(super) fn sweep_fragments(&mut self, now_ns: u64) {
        let Self { fragments, bin, .. } = self;
        fragments.sweep(now_ns, |Refused { frame, reason, .. }| bin.drop_frame(frame, reason));
    }
}
