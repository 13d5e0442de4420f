//! How long a new client waits for its own chain instance.
//!
//! ```text
//!   gateway: the client's first frame finds no instance bound: the time is noted by the entry FWP (pinion_gateway::misses)
//!      |  MMA: into the pool, notice
//!      v
//!   worker: the guest's `wait` returns with packets for the first time: that long it took    (imports.rs)
//! ```
//!
//! The first stage of an instance records its own time, and the last one when the whole chain is at work. A worker's histograms are
//! written by that worker alone, once for each instance and never again: an FWP whose first turn is over knows by a flag.

use std::sync::Arc;

use pinion_gateway::misses::FlowMisses;
use pinion_mma::id::FwpId;

use crate::latency::Latencies;

/// What the FWPs of one worker took.
pub struct Activations {
    misses: Arc<FlowMisses>,
    /// From the flow miss until the first stage has run its first instructions.
    pub entry: Latencies,
    /// The same until the last stage has. Stages by the way may drop a client's first packets: then it is with the first packet that
    /// gets so far.
    pub chain: Latencies,
}

impl Activations {
    /// None yet.
    #[must_use]
    pub fn new(misses: Arc<FlowMisses>) -> Self {
        Self { misses, entry: Latencies::default(), chain: Latencies::default() }
    }
}

/// Which stage of its instance an FWP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Only,
    First,
    Last,
}

/// What an FWP has to record when it first serves somebody.
pub struct Activation {
    activations: Arc<Activations>,
    /// Its instance's first stage.
    entry: FwpId,
    place: Place,
}

impl Activation {
    /// Of the stage of this number of an instance; none of those between the first and the last.
    #[must_use]
    pub fn of_stage(activations: &Arc<Activations>, instance: &[FwpId], stage: usize) -> Option<Self> {
        let place = match (stage, instance.len()) {
            (0, 1) => Place::Only,
            (0, _) => Place::First,
            (_, stages) if stage + 1 == stages => Place::Last,
            _ => return None,
        };
        Some(Self { activations: Arc::clone(activations), entry: *instance.first()?, place })
    }

    /// Records that its first instructions have run, on its worker.
    #[cold]
    #[inline(never)]
    pub(crate) fn record(&self) {
        let Activations { misses, entry, chain } = &*self.activations;
        let elapsed_ns = misses.elapsed_ns(self.entry);
        if self.place != Place::Last {
            entry.record_ns(elapsed_ns);
        }
        if self.place != Place::First {
            chain.record_ns(elapsed_ns);
        }
    }
}
