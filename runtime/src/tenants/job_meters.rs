//! What a chain has had of the threads that do jobs for its FWPs: counted here whatever becomes of the FWPs.
//!
//! ```text
//!   worker          --submitted, or refused-->     JobMeter of the chain, by kind of job
//!   offload thread  --done, dropped, time spent-->      |
//!                                                  statuses
//! ```
//!
//! Several threads add to each meter, with atomic additions: a job costs far more than these.

use std::sync::atomic::{AtomicU64, Ordering};

use pinion_control::node::JobStatus;

/// The jobs of a chain, by kind.
#[derive(Default)]
pub struct JobMeters {
    /// Handshakes signed.
    pub signatures: JobMeter,
    /// Runs of models.
    pub inferences: JobMeter,
}

/// Why a job was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobRefusal {
    /// The tenant asks for more in a second than it may.
    Rate,
    /// The tenant has too many jobs that wait or are under way.
    QueueFull,
    /// The tenant has no memory left for it.
    Memory,
}

/// The jobs of one kind.
#[derive(Default)]
pub struct JobMeter {
    submitted: AtomicU64,
    /// Those that wait no more, whatever became of them.
    begun: AtomicU64,
    done: AtomicU64,
    dropped: AtomicU64,
    refused_rate: AtomicU64,
    refused_queue_full: AtomicU64,
    refused_memory: AtomicU64,
    spent_ns: AtomicU64,
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

impl JobMeter {
    /// Counts a job that waits from now on.
    pub(crate) fn submitted(&self) {
        add(&self.submitted, 1);
    }

    /// Counts a job that waits no more.
    pub(crate) fn begun(&self) {
        add(&self.begun, 1);
    }

    /// Counts a job that was done for its FWP.
    pub(crate) fn done(&self) {
        add(&self.done, 1);
    }

    /// Counts a job whose FWP had ended before it could have the result.
    pub(crate) fn dropped(&self) {
        add(&self.dropped, 1);
    }

    /// Counts a job that was not done.
    pub(crate) fn refused(&self, refusal: JobRefusal) {
        let count = match refusal {
            JobRefusal::Rate => &self.refused_rate,
            JobRefusal::QueueFull => &self.refused_queue_full,
            JobRefusal::Memory => &self.refused_memory,
        };
        add(count, 1);
    }

    /// Adds the processor time that a job took, whatever became of it.
    pub(crate) fn spent(&self, spent_ns: u64) {
        add(&self.spent_ns, spent_ns);
    }

    /// Returns the processor time of all of them.
    pub(crate) fn spent_ns(&self) -> u64 {
        self.spent_ns.load(Ordering::Relaxed)
    }
}

/// Returns the sum of some meters.
pub(crate) fn sum<'m>(meters: impl Iterator<Item = &'m JobMeter>) -> JobStatus {
    let (mut sum, mut spent_ns) = (JobStatus::default(), 0);
    for meter in meters {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        // In this order: a job that begins meanwhile makes the difference too large, never negative.
        let begun = value(&meter.begun);
        sum.waiting += value(&meter.submitted).saturating_sub(begun);
        sum.done += value(&meter.done);
        sum.dropped += value(&meter.dropped);
        sum.refused_rate += value(&meter.refused_rate);
        sum.refused_queue_full += value(&meter.refused_queue_full);
        sum.refused_memory += value(&meter.refused_memory);
        spent_ns += meter.spent_ns();
    }
    sum.spent_us = spent_ns / 1_000;
    sum
}
