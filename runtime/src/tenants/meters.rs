//! What workers measure of their turns: all turns together for operators, and by chain for tenants.
//!
//! ```text
//!   worker --adds, a turn at a time--> its TurnMeters         of all FWPs; the launcher places new ones by busy time
//!                                      its ChainMeter         of a chain's FWPs, reached through their terms
//!   launcher --> activations of a chain
//!   offload threads --> jobs of a chain ([`job_meters`])
//! ```
//!
//! Each meter but those of jobs has one writer and any number of readers. A chain's meters stay as long as the chain is active, whatever
//! becomes of its instances.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;
use pinion_control::model::{Chain, ChainName, DesiredState, TenantName};
use pinion_control::node::MeterStatus;
use pinion_mma::accounts::counters::Counter;

use crate::ids::ChainKey;
use crate::instruments::latencies::{Latencies, LatencySnapshot};
use crate::tenants::job_meters::{self, JobMeter, JobMeters};

/// The meters of one worker, which alone adds to them.
#[derive(Default)]
pub struct TurnMeters {
    /// For how long FWPs had the core, including the overhead of their turns.
    pub busy_ns: Counter,
    /// How often the worker panicked and began anew.
    pub failures: Counter,
    /// For how long FWPs waited for their turns, from when they had something to do.
    pub waits: Latencies,
    /// How long it took to get FWPs off the core after their quantum.
    pub lateness: Latencies,
}

impl TurnMeters {
    #[inline]
    pub(crate) fn waited(&self, wait_ns: u64) {
        self.waits.record_ns(wait_ns);
    }

    /// Records that an FWP was taken off the core after `cpu_ns`. An FWP that yielded, or was interrupted on another's account, had less
    /// than a quantum.
    pub(crate) fn preempted_after(&self, cpu_ns: u64, quantum_ns: u64) {
        if let Some(late_ns) = cpu_ns.checked_sub(quantum_ns) {
            self.lateness.record_ns(late_ns);
        }
    }
}

/// The use of one worker by a chain's FWPs. That worker alone adds to it.
pub struct ChainMeter {
    /// Of its turns, and of the copying of what it sent.
    cpu_ns: Counter,
    turns: Counter,
    preemptions: Counter,
    waits: Latencies,
    /// In how many of the chain's next turns its worker is to panic. Exists in the tests of this crate only.
    #[cfg(test)]
    pub(crate) panics_planned: std::sync::atomic::AtomicU32,
}

impl Default for ChainMeter {
    fn default() -> Self {
        let [cpu_ns, turns, preemptions] = std::array::from_fn(|_| Counter::default());
        Self {
            cpu_ns,
            turns,
            preemptions,
            waits: Latencies::coarse(),
            #[cfg(test)]
            panics_planned: std::sync::atomic::AtomicU32::new(0),
        }
    }
}

impl ChainMeter {
    /// Prefetches what [`ChainMeter::waited`] will touch.
    #[inline]
    pub(crate) fn prefetch_waited(&self, wait_ns: u64) {
        self.waits.prefetch(wait_ns);
    }

    /// Records that an FWP has waited for its turn.
    #[inline]
    pub(crate) fn waited(&self, wait_ns: u64) {
        self.waits.record_ns(wait_ns);
    }

    /// Records that another thread has spent time for an FWP.
    #[inline]
    pub(crate) fn spent_besides(&self, spent_ns: u64) {
        self.cpu_ns.add(spent_ns);
    }

    /// Panics if a test has planned that for this turn.
    #[cfg(test)]
    pub(crate) fn panic_if_planned(&self) {
        use std::sync::atomic::Ordering;
        let less_one = |planned: u32| planned.checked_sub(1);
        let is_planned = self.panics_planned.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less_one).is_ok();
        assert!(!is_planned, "as planned");
    }

    /// Records that an FWP has had a turn.
    #[inline]
    pub(crate) fn had(&self, cpu_ns: u64, preemptions: u64) {
        self.cpu_ns.add(cpu_ns);
        self.turns.add(1);
        self.preemptions.add(preemptions);
    }
}

/// A chain's meters.
pub struct ChainMeters {
    workers: Box<[Arc<CachePadded<ChainMeter>>]>,
    /// Clients that got an instance. The launcher alone adds to it.
    pub(crate) activations: Counter,
    /// What was done for its FWPs off the data path.
    jobs: JobMeters,
}

impl ChainMeters {
    /// Creates empty meters for this many workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let workers = (0..workers).map(|_| Arc::default()).collect();
        Self { workers, activations: Counter::default(), jobs: JobMeters::default() }
    }

    /// Returns the meters of its jobs.
    #[must_use]
    pub fn jobs(&self) -> &JobMeters {
        &self.jobs
    }

    /// Returns the meter of one worker.
    #[must_use]
    #[inline]
    pub fn on_worker(&self, worker: usize) -> &Arc<CachePadded<ChainMeter>> {
        &self.workers[worker]
    }
}

/// The meters of all chains.
pub struct Meters {
    workers: usize,
    by_tenant: Mutex<BTreeMap<TenantName, ByChain>>,
}

/// The meters of a tenant's chains.
type ByChain = BTreeMap<ChainName, Arc<ChainMeters>>;

impl Meters {
    /// Creates the meters of a node with this many workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self { workers, by_tenant: Mutex::default() }
    }

    /// Returns a chain's meters; creates them at the first call for the chain.
    #[must_use]
    pub fn open(&self, chain: &Chain) -> Arc<ChainMeters> {
        let mut by_tenant = self.lock();
        let by_chain = by_tenant.entry(chain.tenant.clone()).or_default();
        Arc::clone(by_chain.entry(chain.name.clone()).or_insert_with(|| Arc::new(ChainMeters::new(self.workers))))
    }

    /// Forgets chains that are not in this state.
    pub fn retain(&self, state: &DesiredState) {
        self.lock().retain(|tenant, by_chain| {
            by_chain.retain(|name, _| state.chain(tenant, name).is_some());
            !by_chain.is_empty()
        });
    }

    /// Returns what a chain has used. Its packets are counted elsewhere, in the [ledger](crate::reports::drop_ledger).
    #[must_use]
    pub fn of_chain(&self, (tenant, name): &ChainKey) -> MeterStatus {
        let meters = self.lock().get(tenant).and_then(|by_chain| by_chain.get(name)).cloned();
        sum(&Vec::from_iter(meters))
    }

    /// Returns what all chains of a tenant have used.
    #[must_use]
    pub fn of_tenant(&self, tenant: &TenantName) -> MeterStatus {
        let meters: Vec<_> = self.lock().get(tenant).into_iter().flat_map(BTreeMap::values).cloned().collect();
        sum(&meters)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TenantName, ByChain>> {
        self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sum(chains: &[Arc<ChainMeters>]) -> MeterStatus {
    let meters = || chains.iter().flat_map(|meters| &meters.workers);
    let sum = |count: fn(&ChainMeter) -> &Counter| meters().map(|meter| count(meter).value()).sum::<u64>();
    let jobs = |of_kind: fn(&JobMeters) -> &JobMeter| chains.iter().map(move |meters| of_kind(&meters.jobs));
    let all_jobs = jobs(|jobs| &jobs.signatures).chain(jobs(|jobs| &jobs.inferences));
    MeterStatus {
        cpu_us: (sum(|meter| &meter.cpu_ns) + all_jobs.map(JobMeter::spent_ns).sum::<u64>()) / 1_000,
        activations: chains.iter().map(|meters| meters.activations.value()).sum(),
        turns: sum(|meter| &meter.turns),
        preemptions: sum(|meter| &meter.preemptions),
        copied_bytes: 0,
        dropped: 0,
        run_queue_wait: LatencySnapshot::all(meters().map(|meter| &meter.waits)).status(),
        signatures: job_meters::sum(jobs(|jobs| &jobs.signatures)),
        inferences: job_meters::sum(jobs(|jobs| &jobs.inferences)),
    }
}

#[cfg(test)]
mod tests {
    use pinion_control::node::JobStatus;

    use super::*;
    use crate::tenants::job_meters::JobRefusal;

    fn chain(tenant: &str, name: &str) -> Chain {
        Chain::new(tenant.parse().unwrap(), name.parse().unwrap(), Vec::new())
    }

    #[test]
    fn measurements_of_all_workers_and_chains_of_a_tenant_add_up() {
        let meters = Meters::new(2);
        for (name, worker, wait_ns) in [("a", 0, 1_000), ("b", 1, 3_000)] {
            let of_chain = meters.open(&chain("t", name));
            of_chain.on_worker(worker).waited(wait_ns);
            of_chain.on_worker(worker).had(5_000, 1);
            of_chain.activations.add(2);
        }
        meters.open(&chain("u", "a")).on_worker(0).had(99_000, 0);
        let status = meters.of_tenant(&"t".parse().unwrap());
        assert_eq!((status.cpu_us, status.turns, status.preemptions, status.activations), (10, 2, 2, 4));
        assert_eq!(status.run_queue_wait.count, 2);
        assert_eq!(meters.of_chain(&("u".parse().unwrap(), "a".parse().unwrap())).cpu_us, 99);
        assert!((3_000..3_200).contains(&status.run_queue_wait.max_ns), "{status:?}");
    }

    #[test]
    fn jobs_of_all_chains_of_a_tenant_add_up_by_kind_and_their_time_is_cpu_time() {
        let meters = Meters::new(1);
        let (a, b) = (meters.open(&chain("t", "a")), meters.open(&chain("t", "b")));
        for (meter, done) in [(&a.jobs().inferences, 2), (&b.jobs().inferences, 3), (&a.jobs().signatures, 1)] {
            (0..=done).for_each(|_| meter.submitted());
            for _ in 0..done {
                meter.begun();
                meter.done();
                meter.spent(4_000);
            }
        }
        b.jobs().inferences.begun();
        b.jobs().inferences.dropped();
        b.jobs().inferences.spent(500);
        [JobRefusal::Rate, JobRefusal::QueueFull, JobRefusal::QueueFull, JobRefusal::Memory]
            .into_iter()
            .for_each(|refusal| a.jobs().signatures.refused(refusal));
        a.on_worker(0).had(1_500, 0);
        let MeterStatus { cpu_us, signatures, inferences, .. } = meters.of_tenant(&"t".parse().unwrap());
        let expected = JobStatus { waiting: 1, done: 5, dropped: 1, spent_us: 20, ..JobStatus::default() };
        assert_eq!((cpu_us, inferences), (26, expected));
        let refused = JobStatus { refused_rate: 1, refused_queue_full: 2, refused_memory: 1, ..JobStatus::default() };
        assert_eq!(signatures, JobStatus { waiting: 1, done: 1, spent_us: 4, ..refused });
    }

    #[test]
    fn a_chain_that_is_changed_keeps_its_meters_and_one_that_is_deleted_does_not() {
        let meters = Meters::new(1);
        meters.open(&chain("t", "a")).on_worker(0).had(1_000, 0);
        assert!(Arc::ptr_eq(&meters.open(&chain("t", "a")), &meters.open(&chain("t", "a"))));
        meters.retain(&DesiredState::default());
        assert_eq!(meters.of_tenant(&"t".parse().unwrap()).turns, 0);
    }
}
