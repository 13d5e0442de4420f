//! Takes in messages to chains. They follow the path of received frames, except that the caller names the chain.

use super::handover::Handover;
use super::{Gateway, PENDING_TIMEOUT_NS};
use crate::assign::{Assigner, Assignment};
use crate::drops::DropReason;
use crate::gateway::buffer_return::BufferReturn;
use crate::id::ChainIndex;
use crate::invoke::{Failure, InvokePort};
use crate::rules::Redelivery;
use pinion_mma::id::FwpId;

impl Gateway {
    /// Finds the instance for each call. Returns how many calls there were.
    pub(super) fn take_calls(&mut self, now_ns: u64) -> usize {
        let Self { invoke, assigner, handover, bin, burst, .. } = self;
        let Some(port) = invoke else { return 0 };
        port.receive(*burst, |port, place| deliver(port, place, assigner, handover, bin, now_ns))
    }

    /// Serves the calls that wait for a chain, once one of its instances is ready and no frame has bound it first.
    pub(super) fn serve_calls(&mut self, chain: ChainIndex, now_ns: u64) {
        let Self { invoke, assigner, handover, bin, .. } = self;
        let Some(port) = invoke else { return };
        while let Some(place) = port.first_waiting(chain)
            && let Some((function, called_ns)) = port.function(place)
        {
            match assigner.assign_call(function, called_ns, now_ns) {
                Assignment::To(entry) => send_message(port, place, entry, handover, bin),
                Assignment::Wait { .. } | Assignment::Join { .. } => return,
                Assignment::Drop(reason) => fail(port, place, reason, bin),
            }
        }
    }

    /// Requests instances again after the rules changed: the launcher may have forgotten which ones were requested.
    pub(super) fn ask_again_for_calls(&mut self, now_ns: u64) {
        let Self { invoke: Some(port), assigner, .. } = self else { return };
        for function in port.chains_waited_for() {
            // Calls whose chain no longer exists end at their deadline.
            let _ = assigner.assign_call(function, now_ns, now_ns);
        }
    }

    /// Ends calls whose time is over, and delivers calls of idempotent chains again whose instance has ended. Their
    /// callers have given them a place already, so that takes nothing of what others may have.
    pub(super) fn end_overdue_calls(&mut self, now_ns: u64) -> usize {
        let Self { invoke: Some(port), assigner, handover, bin, .. } = self else { return 0 };
        port.sweep(now_ns, |port, place, failure| {
            let chain = port.function(place).map(|(function, _)| function.chain);
            match (failure, chain.map(|chain| assigner.redelivery(chain))) {
                (Failure::Ended, Some(Redelivery::Idempotent)) if port.take_back(place, now_ns) => {
                    deliver(port, place, assigner, handover, bin, now_ns);
                }
                (Failure::NoInstance, _) => {
                    bin.count_of_chain(port.index(), chain, DropReason::NoInstance);
                    port.fail(place, failure);
                }
                _ => port.fail(place, failure),
            }
        })
    }
}

/// Sends a call to the instance that serves its chain's callers, or makes it wait for one.
#[inline]
fn deliver(
    port: &mut InvokePort,
    place: u32,
    assigner: &mut Assigner,
    handover: &mut Handover,
    bin: &mut BufferReturn,
    now_ns: u64,
) {
    let Some((function, called_ns)) = port.function(place) else { return };
    match assigner.assign_call(function, called_ns, now_ns) {
        Assignment::To(entry) => send_message(port, place, entry, handover, bin),
        Assignment::Wait { .. } | Assignment::Join { .. } => port.wait(place, now_ns + PENDING_TIMEOUT_NS),
        Assignment::Drop(reason) => fail(port, place, reason, bin),
    }
}

fn send_message(port: &mut InvokePort, place: u32, entry: FwpId, handover: &mut Handover, bin: &mut BufferReturn) {
    handover.expect(entry);
    let Some(message) =
        bin.buffer().and_then(|buffer| port.message(place, buffer).map_err(|buffer| bin.take(buffer)).ok())
    else {
        return fail(port, place, DropReason::MmaBusy, bin);
    };
    match handover.stage(message, entry) {
        Ok(()) => {
            port.delivered(place);
            bin.observer.port(port.index()).delivered.add(1);
        }
        Err(frame) => {
            bin.take(frame.into_buffer());
            fail(port, place, DropReason::MmaBusy, bin);
        }
    }
}

#[cold]
fn fail(port: &mut InvokePort, place: u32, reason: DropReason, bin: &BufferReturn) {
    let chain = port.function(place).map(|(function, _)| function.chain);
    bin.count_of_chain(port.index(), chain, reason);
    port.fail(place, Failure::of(reason));
}
