//! Net-In: what the ports have received goes to instances, waits for one, is answered, or is dropped.

use pinion_mma::buffer::Frame;
use pinion_mma::id::FwpId;

use super::Gateway;
use crate::assign::{Assignment, Read};
use crate::drops::DropReason;
use crate::flows::InstanceKey;
use crate::flows::sources::SourcePrefix;
use crate::headers::TcpEvent;
use crate::neighbors::messages;

impl Gateway {
    pub(super) fn net_in(&mut self, port: usize, now_ns: u64) -> usize {
        let (count, delivered) = if self.ports[port].deferred.is_empty() {
            self.take_in_burst(port, now_ns)
        } else {
            self.take_in_deferred(port, now_ns)
        };
        if delivered > 0 {
            self.bin.observer.port(self.ports[port].index).delivered.add(delivered);
        }
        count
    }

    /// Takes in what the device has received, up to the first frame of a new client if that interrupts a burst. Returns
    /// how many frames were received, and how many went to instances.
    fn take_in_burst(&mut self, port: usize, now_ns: u64) -> (usize, u64) {
        let mut received = std::mem::take(&mut self.received);
        let count = self.ports[port].port.receive(&mut received, self.burst);
        // Frames may have arrived while the kernel had preempted this thread within the poll: their clients wait from
        // now on.
        let received_ns = if self.ends_bursts && count > 1 { self.assigner.misses().now_ns() } else { now_ns };
        self.follow_before(count, now_ns);
        let mut reads = std::mem::take(&mut self.reads);
        self.read_burst(port, &mut received, &mut reads[..count]);
        let (mut delivered, before) = (0, self.assigner.activations());
        let mut left = received.drain(..).zip(&reads);
        while let Some((frame, read)) = left.next() {
            delivered += self.take_in(port, frame, read, now_ns);
            if self.ends_bursts && self.assigner.activations() != before {
                let Self { ports, assigner, .. } = self;
                let rest = left.by_ref().map(|(frame, read)| (frame, assigner.long_way(read)));
                ports[port].deferred.keep(rest, received_ns, now_ns);
            }
        }
        drop(left);
        (self.received, self.reads) = (received, reads);
        (count, delivered)
    }

    /// Takes in the deferred rest of a burst, under the same rules as [`Gateway::take_in_burst`].
    #[inline(never)]
    fn take_in_deferred(&mut self, port: usize, now_ns: u64) -> (usize, u64) {
        let can_wait = self.ports[port].deferred.can_wait(now_ns);
        // The clients have waited since the burst was received, whatever the thread did meanwhile.
        self.assigner.set_arrival_time(Some(self.ports[port].deferred.received_ns()));
        let (mut count, mut delivered, before) = (0, 0, self.assigner.activations());
        while let Some((frame, read)) = self.ports[port].deferred.take() {
            delivered += self.take_in(port, frame, &read, now_ns);
            count += 1;
            if can_wait && self.assigner.activations() != before {
                break;
            }
        }
        self.assigner.set_arrival_time(None);
        (count, delivered)
    }

    fn read_burst(&mut self, port: usize, frames: &mut [Frame], reads: &mut [Read]) {
        let state = &self.ports[port];
        for (frame, read) in frames.iter_mut().zip(&mut *reads) {
            frame.set_port(state.index);
            let bytes = frame.bytes();
            self.assigner.read(bytes, state.index, state.receiver_of(bytes), read);
        }
        reads.iter_mut().for_each(|read| self.assigner.fetch(read));
    }

    /// Delivers a frame to its instance, holds, answers or drops it. Returns how many frames went to an instance: 1 or
    /// 0.
    #[inline(always)]
    fn take_in(&mut self, port: usize, frame: Frame, read: &Read, now_ns: u64) -> u64 {
        let entry = match self.assigner.assign(read, frame.bytes(), now_ns) {
            Some(Assignment::To(entry)) => entry,
            Some(other) => {
                self.take_in_unassigned(frame, read, &other, now_ns);
                return 0;
            }
            None => {
                self.take_in_other(port, frame, read, now_ns);
                return 0;
            }
        };
        match self.handover.stage(frame, entry) {
            Ok(()) => 1,
            Err(frame) => {
                self.drop_of_chain(frame, read, DropReason::MmaBusy, now_ns);
                0
            }
        }
    }

    #[inline(never)]
    pub(super) fn take_in_unassigned(&mut self, frame: Frame, read: &Read, why: &Assignment, now_ns: u64) {
        match why {
            Assignment::Join { key, source, otherwise } if !self.pending.has(key) => {
                if let Some(source) = source {
                    self.assigner.note_refused(key.chain, *source);
                }
                self.bin.drop_of_chain(frame, Some(key.chain), *otherwise);
            }
            Assignment::Join { key, .. } => {
                // The launcher may have forgotten, with changed rules, that an instance is wanted.
                self.assigner.want_more(key);
                self.hold(frame, key, None, now_ns);
            }
            Assignment::Wait { key, source } => self.hold(frame, key, *source, now_ns),
            Assignment::Drop(reason @ (DropReason::LauncherBusy | DropReason::NoInstance)) => {
                self.drop_of_chain(frame, read, *reason, now_ns);
            }
            // No rule applies to it, or none with a chain.
            Assignment::Drop(reason) => self.bin.drop_frame(frame, *reason),
            Assignment::To(_) => debug_assert!(false, "what is assigned is staged"),
        }
    }

    /// Lets a frame wait for an instance of its key, or drops it if too many wait.
    fn hold(&mut self, frame: Frame, key: &InstanceKey, source: Option<SourcePrefix>, now_ns: u64) {
        let Self { pending, assigner, bin, .. } = self;
        let tenant = assigner.tenant(key.chain);
        let share = || assigner.take_share(key.chain, source);
        if let Err(frame) = pending.hold(key, tenant, frame, now_ns, share) {
            bin.drop_of_chain(frame, Some(key.chain), DropReason::PendingFull);
        }
    }

    #[inline(never)]
    fn take_in_other(&mut self, port: usize, frame: Frame, read: &Read, now_ns: u64) {
        match read {
            Read::TcpEvent { flow, lead, milestone } => {
                // The gateway must not name an instance to MMA after it has told the launcher that the instance is
                // released.
                if *milestone == TcpEvent::Opens {
                    self.handover.hand_over();
                }
                match self.assigner.assign_milestone(*lead, flow, *milestone, frame.bytes(), now_ns) {
                    Assignment::To(entry) => self.take_in_milestone(port, frame, read, entry, now_ns),
                    other => self.take_in_unassigned(frame, read, &other, now_ns),
                }
            }
            Read::IcmpError { flow, lead } => match self.assigner.assign_error(*lead, flow, frame.bytes(), now_ns) {
                Assignment::To(entry) => self.take_in_milestone(port, frame, read, entry, now_ns),
                other => self.take_in_unassigned(frame, read, &other, now_ns),
            },
            Read::Fragment(fragment) => self.take_in_fragment(port, frame, fragment, now_ns),
            Read::Arp(vlan) => self.hear(port, frame, *vlan, messages::read_arp, now_ns),
            Read::NeighborDiscovery(vlan) => self.hear(port, frame, *vlan, messages::read_discovery, now_ns),
            Read::Drop(reason) => self.bin.drop_frame(frame, *reason),
            Read::Known { .. } | Read::Flow { .. } => debug_assert!(false, "flows are assigned"),
        }
    }

    pub(super) fn take_in_milestone(&mut self, port: usize, frame: Frame, read: &Read, entry: FwpId, now_ns: u64) {
        match self.handover.stage(frame, entry) {
            Ok(()) => self.bin.observer.port(self.ports[port].index).delivered.add(1),
            Err(frame) => self.drop_of_chain(frame, read, DropReason::MmaBusy, now_ns),
        }
    }

    #[cold]
    fn drop_of_chain(&mut self, frame: Frame, read: &Read, reason: DropReason, now_ns: u64) {
        let chain = self.assigner.chain_of(read, frame.bytes(), now_ns);
        self.bin.drop_of_chain(frame, chain, reason);
    }
}
