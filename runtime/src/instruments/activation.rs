//! How long a new client waits for its own chain instance.
//!
//! ```text
//!   gateway: the client's first frame finds no instance bound: the time is stored for the entry FWP (pinion_gateway::fwp_times)
//!      |  MMA: into the pool, notification
//!      v
//!   worker: the guest's `wait` returns with packets for the first time: the time since then is recorded    (imports.rs)
//! ```
//!
//! The first stage of an instance records its own time, and the last stage the time until the whole chain is at work. If the first frame
//! passes the chain backwards, it is the other way round. In a chain that branches at an entrance the first stage reached records its time,
//! and none is the last. If an entrance can drop frames, nothing is recorded: the first frame that reaches a stage may come long after the
//! one that missed. Only the worker itself writes its histograms, once for each instance. A flag tells an FWP that its first turn is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinion_gateway::fwp_times::ActivationClock;
use pinion_mma::id::FwpId;

use crate::instruments::latencies::Latencies;

/// Activation times of one worker's FWPs.
pub struct Activations {
    misses: Arc<ActivationClock>,
    /// From the flow miss until the first instructions of the stage that the frame reached first.
    pub entry: Latencies,
    /// As `entry`, for the stage at the other end. Stages in between may drop a client's first packets; then the first packet that gets
    /// there counts.
    pub chain: Latencies,
}

impl Activations {
    /// Creates empty histograms.
    #[must_use]
    pub fn new(misses: Arc<ActivationClock>) -> Self {
        let [entry, chain] = [(); 2].map(|()| Latencies::default());
        Self { misses, entry, chain }
    }
}

/// By which stages frames enter a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryStage {
    /// By the first one, or by the last one on the way back.
    EitherEnd,
    /// By any, depending on their headers.
    Any,
    /// By any or, if they are dropped, by none.
    AnyOrNone,
}

/// The position of an FWP's stage in its instance.
enum StagePosition {
    Only,
    /// One by which frames may enter, and whether any has served a client. All belong to the same worker.
    Entry {
        is_entered: Arc<AtomicBool>,
    },
    /// The first or the last stage, and whether the other of the two has served a client. Both belong to the same worker.
    End {
        is_entered: Arc<AtomicBool>,
    },
}

/// What the FWPs of one instance have to record.
pub struct InstanceActivation {
    activations: Arc<Activations>,
    entry: FwpId,
    stages: usize,
    entered_by: EntryStage,
    is_entered: Arc<AtomicBool>,
}

impl InstanceActivation {
    /// Creates the record of the instance with this first FWP and this many stages.
    #[must_use]
    pub fn new(activations: &Arc<Activations>, entry: FwpId, stages: usize, entered_by: EntryStage) -> Self {
        Self { activations: Arc::clone(activations), entry, stages, entered_by, is_entered: Arc::default() }
    }

    /// Returns what the stage of this number has to record; none for stages by which no frame enters and which are not the last, and none
    /// at all if frames may enter by no stage.
    #[must_use]
    pub fn of_stage(&self, stage: usize) -> Option<Activation> {
        let is_entered = || Arc::clone(&self.is_entered);
        let place = match (self.entered_by, stage, self.stages) {
            (EntryStage::AnyOrNone, ..) => return None,
            (EntryStage::Any, ..) => StagePosition::Entry { is_entered: is_entered() },
            (EntryStage::EitherEnd, 0, 1) => StagePosition::Only,
            (EntryStage::EitherEnd, stage, stages) if stage == 0 || stage + 1 == stages => {
                StagePosition::End { is_entered: is_entered() }
            }
            (EntryStage::EitherEnd, ..) => return None,
        };
        let (activations, entry) = (Arc::clone(&self.activations), self.entry);
        Some(Activation { activations, entry, place })
    }
}

/// What an FWP records when it first serves a client.
pub struct Activation {
    activations: Arc<Activations>,
    /// Its instance's first stage.
    entry: FwpId,
    place: StagePosition,
}

impl Activation {
    /// Records, on its worker, that its first instructions have run with a client's packets. Must be called once.
    #[cold]
    #[inline(never)]
    pub(crate) fn record(&self) {
        let Activations { misses, entry, chain } = &*self.activations;
        let elapsed_ns = misses.elapsed_ns(self.entry);
        let (is_first, is_last) = match &self.place {
            StagePosition::Only => (true, true),
            StagePosition::Entry { is_entered } => (!is_entered.swap(true, Ordering::Relaxed), false),
            StagePosition::End { is_entered } => {
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
    }
}
