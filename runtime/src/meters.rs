//! What workers measure of the turns that they give.

use crate::latency::Latencies;

/// Of one worker, which alone adds to it.
#[derive(Default)]
pub struct TurnMeters {
    /// How long FWPs waited for their turns, from when they had something to do.
    pub waits: Latencies,
    /// How long it took to get FWPs off the core whose quantum was over.
    pub lateness: Latencies,
}

impl TurnMeters {
    #[inline]
    pub(crate) fn waited(&self, wait_ns: u64) {
        self.waits.record_ns(wait_ns);
    }

    /// An FWP was taken off the core after `cpu_ns`. One that yielded, or was interrupted on another's account, had less than a quantum.
    pub(crate) fn preempted_after(&self, cpu_ns: u64, quantum_ns: u64) {
        if let Some(late_ns) = cpu_ns.checked_sub(quantum_ns) {
            self.lateness.record_ns(late_ns);
        }
    }
}
