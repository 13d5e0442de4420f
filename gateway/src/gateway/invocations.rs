//! Messages of those who invoke chains, on their way in: as frames are taken in, but for their chain, which their callers have named.

use super::{Gateway, PENDING_TIMEOUT_NS};
use crate::assign::Assignment;
use crate::drops::DropReason;
use crate::gateway::bin::Bin;
use crate::handover::Handover;
use crate::id::ChainIndex;
use crate::invoke::{Failure, InvokePort};
use crate::misses::FlowMisses;
use pinion_mma::id::FwpId;

impl Gateway {
    /// Finds the instance of each call's chain; returns how many calls there were.
    pub(super) fn take_calls(&mut self, now_ns: u64) -> usize {
        let Self { invoke, assigner, handover, bin, burst, .. } = self;
        let Some(port) = invoke else { return 0 };
        port.receive(*burst, |port, place| {
            let Some((function, called_ns)) = port.function(place) else { return };
            match assigner.assign_call(function, called_ns, now_ns) {
                Assignment::To(entry) => send_message(port, place, entry, assigner.misses(), handover, bin),
                Assignment::Wait(_) => port.wait(place, now_ns + PENDING_TIMEOUT_NS),
                Assignment::Drop(reason) => fail(port, place, reason, bin),
            }
        })
    }

    /// An instance of the chain is ready: for all calls that wait for it, unless somebody else has just got it.
    pub(super) fn serve_calls(&mut self, chain: ChainIndex, now_ns: u64) {
        let Self { invoke, assigner, handover, bin, .. } = self;
        let Some(port) = invoke else { return };
        while let Some(place) = port.first_waiting(chain)
            && let Some((function, called_ns)) = port.function(place)
        {
            match assigner.assign_call(function, called_ns, now_ns) {
                Assignment::To(entry) => send_message(port, place, entry, assigner.misses(), handover, bin),
                Assignment::Wait(_) => return,
                Assignment::Drop(reason) => fail(port, place, reason, bin),
            }
        }
    }

    /// There are other rules: whoever prepares instances may have forgotten which are waited for.
    pub(super) fn ask_again_for_calls(&mut self, now_ns: u64) {
        let Self { invoke: Some(port), assigner, .. } = self else { return };
        for function in port.chains_waited_for() {
            // Those whose chain is gone end with their time.
            let _ = assigner.assign_call(function, now_ns, now_ns);
        }
    }

    /// Ends calls whose time is over.
    pub(super) fn end_overdue_calls(&mut self, now_ns: u64) -> usize {
        let Self { invoke: Some(port), bin, .. } = self else { return 0 };
        let index = port.index();
        port.sweep(now_ns, |chain| bin.count_of_chain(index, Some(chain), DropReason::NoInstance))
    }
}

fn send_message(
    port: &mut InvokePort,
    place: u32,
    entry: FwpId,
    misses: &FlowMisses,
    handover: &mut Handover,
    bin: &mut Bin,
) {
    handover.expect(entry);
    let Some(message) =
        bin.buffer().and_then(|buffer| port.message(place, buffer).map_err(|buffer| bin.take(buffer)).ok())
    else {
        return fail(port, place, DropReason::MmaBusy, bin);
    };
    let called_ns = port.function(place).map(|(_, called_ns)| called_ns);
    match handover.stage(message, entry) {
        Ok(()) => {
            // It is seen with the message, which is not published yet.
            called_ns.into_iter().for_each(|called_ns| misses.note_call(entry, called_ns));
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
fn fail(port: &mut InvokePort, place: u32, reason: DropReason, bin: &Bin) {
    let chain = port.function(place).map(|(function, _)| function.chain);
    bin.count_of_chain(port.index(), chain, reason);
    port.fail(place, Failure::of(reason));
}
