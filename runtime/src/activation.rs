//! How long a new client waits for its own chain instance.
//!
//! ```text
//!   gateway: the client's first frame finds no instance bound: the time is noted by the entry FWP (pinion_gateway::misses)
//!      |  MMA: into the pool, notice
//!      v
//!   worker: the guest's `wait` returns with packets for the first time: that long it took    (imports.rs)
//! ```
//!
//! The first stage of an instance records its own time, and the last one when the whole chain is at work; or the other way round, where the
//! first frame goes through a chain backwards. A worker's histograms are written by that worker alone, once for each instance and never
//! again: an FWP whose first turn is over knows by a flag.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinion_gateway::misses::FlowMisses;
use pinion_mma::id::FwpId;

use crate::latency::Latencies;

/// What the FWPs of one worker took.
pub struct Activations {
    misses: Arc<FlowMisses>,
    /// From the flow miss until the stage that its frame came to first has run its first instructions.
    pub entry: Latencies,
    /// From the call of a function until its first stage has run its first instructions with the message; of those that are timed.
    pub call: Latencies,
    times_calls: AtomicBool,
    /// As `entry`, until the stage at the other end has. Stages by the way may drop a client's first packets: then it is with the first packet that
    /// gets so far.
    pub chain: Latencies,
}

impl Activations {
    /// None yet.
    #[must_use]
    pub fn new(misses: Arc<FlowMisses>) -> Self {
        let [entry, chain, call] = [(); 3].map(|()| Latencies::default());
        Self { misses, entry, chain, call, times_calls: AtomicBool::new(false) }
    }

    /// Has FWPs that are made from now on time each call: two looks at the clock and a line of memory for each.
    pub fn time_calls(&self) {
        self.times_calls.store(true, Ordering::Relaxed);
    }
}

/// Which stage of its instance an FWP is.
enum Place {
    Only,
    /// The first or the last one, and whether the other of the two has served somebody. Both are the same worker's.
    End {
        is_entered: Arc<AtomicBool>,
    },
}

/// What the FWPs of one instance have to record.
pub struct InstanceActivation {
    activations: Arc<Activations>,
    entry: FwpId,
    stages: usize,
    is_entered: Arc<AtomicBool>,
}

impl InstanceActivation {
    /// Of the instance with so many stages that begins with this one.
    #[must_use]
    pub fn new(activations: &Arc<Activations>, entry: FwpId, stages: usize) -> Self {
        Self { activations: Arc::clone(activations), entry, stages, is_entered: Arc::default() }
    }

    /// Of the stage of this number; none of those between the first and the last.
    #[must_use]
    pub fn of_stage(&self, stage: usize) -> Option<Activation> {
        let place = match (stage, self.stages) {
            (0, 1) => Place::Only,
            (stage, stages) if stage == 0 || stage + 1 == stages => {
                Place::End { is_entered: Arc::clone(&self.is_entered) }
            }
            _ => return None,
        };
        let times_calls = stage == 0 && self.activations.times_calls.load(Ordering::Relaxed);
        let (activations, entry) = (Arc::clone(&self.activations), self.entry);
        Some(Activation { activations, entry, place, is_done: Cell::new(false), times_calls })
    }
}

/// What an FWP has to record when it first serves somebody.
pub struct Activation {
    activations: Arc<Activations>,
    /// Its instance's first stage.
    entry: FwpId,
    place: Place,
    /// It has served somebody.
    is_done: Cell<bool>,
    times_calls: bool,
}

impl Activation {
    /// What it will look at to record a call, if it does.
    pub(crate) fn called_at(&self) -> Option<NonZeroUsize> {
        if self.times_calls { self.activations.misses.called_at(self.entry) } else { None }
    }

    /// Records that its first instructions have run with what it has got, on its worker; whether that is to be told the next time, too.
    #[cold]
    #[inline(never)]
    pub(crate) fn record(&self) -> bool {
        let Activations { misses, entry, chain, call, .. } = &*self.activations;
        if self.times_calls
            && let Some(elapsed_ns) = misses.since_call_ns(self.entry)
        {
            call.record_ns(elapsed_ns);
        }
        if self.is_done.replace(true) {
            return self.times_calls;
        }
        let elapsed_ns = misses.elapsed_ns(self.entry);
        let (is_first, is_last) = match &self.place {
            Place::Only => (true, true),
            Place::End { is_entered } => {
                let was_entered = is_entered.swap(true, Ordering::Relaxed);
                (!was_entered, was_entered)
            }
        };
        if is_first {
            entry.record_ns(elapsed_ns);
        }
        if is_last {
            chain.record_ns(elapsed_ns);
        }
        self.times_calls
    }
}
