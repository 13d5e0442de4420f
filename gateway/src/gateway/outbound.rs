//! Requests of functions about outbound flows, their answers, and news of flows that have ended.

use pinion_abi::{FLOW_BYTES, FlowRefusal};
use pinion_mma::buffer::Frame;
use pinion_mma::id::Sender;

use super::Gateway;
use super::buffer_return::BufferReturn;
use super::handover::Handover;
use super::net_out::drop_of_sender;
use crate::assign::outbound::Wish;
use crate::drops::DropReason;
use crate::flows::entry_fwp::EntryFwp;
use crate::headers::Ingress;
use crate::outbound::{Opened, Request, Told, answer_closed, answer_opened, answer_refused, read, write_closed};

/// The table of flows is looked at in so many parts, one in a sweep.
const SWEEPS: usize = 64;

impl Gateway {
    /// Answers what functions have asked for in this poll. The answer takes the request's buffer, so that what functions ask for
    /// takes no room from others.
    #[inline(never)]
    pub(super) fn answer_requests(&mut self, now_ns: u64) {
        let mut requests = std::mem::take(&mut self.out.requests);
        requests.drain(..).for_each(|(frame, sender)| self.answer_request(frame, sender, now_ns));
        self.out.requests = requests;
    }

    fn answer_request(&mut self, mut frame: Frame, sender: Sender, now_ns: u64) {
        let Self { ports, assigner, handover, bin, .. } = self;
        let Some(request) = read(frame.bytes()) else {
            return drop_of_sender(bin, frame, sender, DropReason::Malformed);
        };
        let Some((slot, entrance)) = assigner.instance_of(sender) else {
            return drop_of_sender(bin, frame, sender, DropReason::NoInstance);
        };
        let mut opened = None;
        match request {
            Request::Close { number } => {
                assigner.close_flow(number, sender, now_ns);
                answer_closed(frame.bytes_mut());
            }
            Request::Open { to: None, .. } => answer_refused(frame.bytes_mut(), FlowRefusal::Invalid),
            Request::Open { tag, protocol, to: Some(to), port, vlan } => {
                let network = ports.get(usize::from(frame.port().0)).and_then(|state| state.network(vlan));
                let wish = Wish { tag, protocol, to, port, ingress: Ingress { port: frame.port(), vlan } };
                let source_for = |to| network.and_then(|(_, network)| network.source_for(to));
                let tell = |told: &Told, entrance| tell_end(bin, handover, told, entrance);
                match assigner.open_flow((sender, slot), wish, source_for, tell, now_ns) {
                    Ok((number, answers)) => {
                        let (source, port) = (answers.destination(), answers.destination_port());
                        answer_opened(frame.bytes_mut(), Opened { number, source, port });
                        opened = Some((number, answers));
                    }
                    Err(refusal) => answer_refused(frame.bytes_mut(), refusal),
                }
            }
        }
        frame.set_len(FLOW_BYTES as u32);
        let entry = entrance.of(frame.port());
        if let Err(frame) = handover.stage(frame, entry) {
            if let Some((number, answers)) = opened {
                assigner.forget_opened(number, &answers, now_ns);
            }
            drop_of_sender(bin, frame, sender, DropReason::MmaBusy);
        }
    }

    /// Ends flows whose time is over, a part of them at a time, and tells their instances.
    pub(super) fn keep_flows(&mut self, now_ns: u64) {
        let Self { assigner, handover, bin, .. } = self;
        let told = assigner.sweep_outbound(SWEEPS, now_ns, |told, entrance| tell_end(bin, handover, told, entrance));
        if told > 0 {
            handover.hand_over();
            handover.ring();
        }
    }
}

/// Tells an instance that a flow has ended. Returns whether it was told; if not, that is to be tried again.
fn tell_end(bin: &mut BufferReturn, handover: &mut Handover, told: &Told, entrance: EntryFwp) -> bool {
    let Some(buffer) = bin.buffer() else { return false };
    if buffer.capacity() < FLOW_BYTES as u32 {
        bin.take(buffer);
        return false;
    }
    let port = told.answers.ingress().port;
    let mut frame = Frame::new(buffer, FLOW_BYTES as u32).of_port(port);
    let written = write_closed(frame.bytes_mut(), told);
    debug_assert_eq!(written, Some(FLOW_BYTES));
    match handover.stage(frame, entrance.of(port)) {
        Ok(()) => true,
        Err(frame) => {
            bin.take(frame.into_buffer());
            false
        }
    }
}
