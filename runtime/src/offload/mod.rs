//! Work that the host does for FWPs off the data path: signatures, and runs of models.
//!
//! ```text
//!   import, on a worker    --submit--> the tenant's queue --choose--> an offload thread does the job
//!                              |                                          |
//!   the FWP sleeps <-- Ticket -'        worker: the FWP has its next turn <-- wake, with the time that the job took
//!                                       meters of the chain: what became of it, and the time
//! ```
//!
//! Each [`Kind`] of work has threads and queues of its own. A tenant has a bounded number of jobs; tenants take turns by the processor time that
//! their jobs have taken, and by weight (`lanes.rs`). A job owns copies of all that it reads and writes: the memory of guests is never touched
//! here. What it needs of memory is charged to the tenant while it is done; if that is more than the tenant has left, it is refused. Memory
//! that a thread keeps from one job to the next is freed before a job of another tenant.
//!
//! The worker is told how long a job took, and charges the tenant as for its FWP's own turns, also if the FWP has ended meanwhile. The time is
//! counted here, once, by chain.
//!
//! A submitter takes no lock and never waits. It allocates the job, and may wake a sleeping thread, which is a system call. If its FWP ends,
//! its [`Ticket`] is dropped: then the job is not begun, or its result is dropped.

mod lanes;
mod rate;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use pinion_mma::id::{FwpId, TENANTS_MAX, TenantIndex};
use rustix::time::{ClockId, clock_gettime};

use self::lanes::{Chosen, Lanes};
use self::rate::Rate;
use crate::clock;
use crate::containment::{Panicked, contained};
use crate::memory::allocator::free_kept_large_blocks_here;
use crate::scheduler::{CpuShare, TenantGeneration};
use crate::tenants::accounts::OverLimit;
use crate::tenants::job_meters::{JobMeter, JobRefusal};
use crate::tenants::scheduling_params::SchedulingParams;

/// What an offload thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Signatures with tenants' private keys: tens of microseconds, or milliseconds with RSA.
    Signer,
    /// Runs of models: up to seconds.
    Inference,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Signer, Self::Inference];

    /// Returns the meter of a chain's jobs of this kind.
    fn meter(self, terms: &SchedulingParams) -> &JobMeter {
        match self {
            Self::Signer => &terms.jobs().signatures,
            Self::Inference => &terms.jobs().inferences,
        }
    }
}

impl fmt::Display for Kind {
    /// Writes the name of the kind's threads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Signer => "signer",
            Self::Inference => "inference",
        })
    }
}

/// How much of a kind of work each tenant may ask for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Jobs that wait or are under way.
    pub jobs_max: u32,
    /// Jobs in a second; none for no limit.
    pub per_second: Option<u32>,
}

/// Why a job was not accepted: the function has to do without, or to ask later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Busy {
    /// The tenant has [`Limits::jobs_max`] jobs already.
    #[error("the tenant has too many jobs already")]
    Jobs,
    /// The tenant has asked for more than [`Limits::per_second`].
    #[error("the tenant asks for more in a second than it may")]
    Rate,
}

impl From<Busy> for JobRefusal {
    fn from(busy: Busy) -> Self {
        match busy {
            Busy::Jobs => Self::QueueFull,
            Busy::Rate => Self::Rate,
        }
    }
}

/// Why a job that was accepted has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotDone {
    /// Its tenant had no memory left for it.
    Memory(OverLimit),
    /// It panicked.
    Panicked,
}

/// Tells an FWP's worker that its job is over.
pub trait Wake: Send + Sync {
    /// Charges an FWP's share with a job, which took this much processor time, and gives the FWP a turn, if it is still there.
    fn wake(&self, id: FwpId, share: CpuShare, took_ns: u64);
}

/// The offload threads' queues. See the module.
pub struct Offload {
    /// By number of the kind.
    queues: [Queue; Kind::ALL.len()],
    is_stopped: AtomicBool,
}

/// The jobs of one kind.
struct Queue {
    limits: Limits,
    rate: Option<Rate>,
    /// By tenant: its jobs that wait or are under way.
    jobs: Box<[AtomicU32]>,
    submitted: (Sender<Job>, Receiver<Job>),
    /// A token for each thread that has to look for jobs. A full channel has enough of them.
    calls: (Sender<()>, Receiver<()>),
    /// Locked by the kind's threads only.
    lanes: Mutex<Lanes<Job>>,
}

struct Job {
    kind: Kind,
    /// Of the FWP's chain, which outlives the FWP: who is charged.
    terms: SchedulingParams,
    share: CpuShare,
    id: FwpId,
    wake: Arc<dyn Wake>,
    work: Box<dyn FnOnce() -> Outcome + Send>,
}

/// What became of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Its FWP had ended before.
    NotBegun,
    /// Its FWP has ended meanwhile.
    ResultDropped,
    Refused,
    Done,
}

/// A job's result, once it has one. If it is dropped, the result will be dropped too.
#[must_use = "the job is not done for an owner that is gone"]
pub struct Ticket<T>(Arc<TicketResult<T>>);

impl<T> Ticket<T> {
    /// Returns the result if the job is over: once. Never waits.
    pub fn take(&self) -> Option<Result<T, NotDone>> {
        // If it is locked, the result is just being stored, and a wake-up follows.
        self.0.try_lock().ok()?.take()
    }
}

impl Offload {
    /// Creates queues without threads. `limits` are by number of the kind.
    #[must_use]
    pub fn new(limits: [Limits; Kind::ALL.len()]) -> Self {
        Self { queues: limits.map(Queue::new), is_stopped: AtomicBool::new(false) }
    }

    /// Submits a job for an FWP with these parameters. It is to refuse before it begins if its tenant has no memory left for it. `wake` is called
    /// when it is over, unless it was not begun.
    ///
    /// # Errors
    /// The tenant has too many jobs, or asks too often.
    pub fn submit<T: Send + 'static>(
        &self,
        kind: Kind,
        terms: &SchedulingParams,
        (id, wake): (FwpId, Arc<dyn Wake>),
        job: impl FnOnce() -> Result<T, OverLimit> + Send + 'static,
    ) -> Result<Ticket<T>, Busy> {
        let (queue, meter, share) = (&self.queues[kind as usize], kind.meter(terms), terms.current_share());
        queue.admit(share.tenant).inspect_err(|busy| meter.refused((*busy).into()))?;
        meter.submitted();
        let result = Arc::new(Mutex::new(None));
        let ticket = Arc::downgrade(&result);
        let work = Box::new(move || {
            if ticket.strong_count() == 0 {
                return Outcome::NotBegun;
            }
            let done = contained(job);
            let done = done.map_or_else(|Panicked| Err(NotDone::Panicked), |done| done.map_err(NotDone::Memory));
            store(&ticket, done)
        });
        queue.submit(Job { kind, terms: terms.clone(), share, id, wake, work });
        Ok(Ticket(result))
    }

    /// Returns how many jobs of a tenant wait or are under way.
    #[must_use]
    pub fn jobs_of(&self, kind: Kind, TenantIndex(tenant): TenantIndex) -> u32 {
        self.queues[kind as usize].jobs[usize::from(tenant)].load(Ordering::Relaxed)
    }

    /// Returns the most jobs that each tenant may have.
    #[must_use]
    pub fn jobs_max(&self, kind: Kind) -> u32 {
        self.queues[kind as usize].limits.jobs_max
    }

    /// Does jobs of a kind until [`Offload::stop`]; each of the kind's threads calls this.
    pub fn run(&self, kind: Kind) {
        let (queue, mut last) = (&self.queues[kind as usize], LastTenant::default());
        while !self.is_stopped.load(Ordering::Relaxed) {
            match queue.next() {
                Some(chosen) => queue.work(chosen, &mut last),
                None => {
                    let _ = queue.calls.1.recv();
                }
            }
        }
        // For the other threads of the kind.
        queue.call();
    }

    /// Lets all threads return after their present job. What waits is not done.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.queues.iter().for_each(Queue::call);
    }

    /// Does the jobs that wait, for tests without threads. Returns how many there were.
    pub fn work_off(&self, kind: Kind) -> usize {
        let (queue, mut last) = (&self.queues[kind as usize], LastTenant::default());
        std::iter::from_fn(|| queue.next()).map(|chosen| queue.work(chosen, &mut last)).count()
    }
}

/// What a job's ticket gets.
type TicketResult<T> = Mutex<Option<Result<T, NotDone>>>;

/// Stores a result for the ticket's owner, if there is one.
fn store<T>(ticket: &Weak<TicketResult<T>>, done: Result<T, NotDone>) -> Outcome {
    let outcome = if let Err(NotDone::Memory(_)) = done { Outcome::Refused } else { Outcome::Done };
    let Some(result) = ticket.upgrade() else {
        return if outcome == Outcome::Refused { outcome } else { Outcome::ResultDropped };
    };
    *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
    outcome
}

impl Queue {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            rate: limits.per_second.map(|per_second| Rate::new(per_second, TENANTS_MAX)),
            jobs: (0..TENANTS_MAX).map(|_| AtomicU32::new(0)).collect(),
            submitted: crossbeam_channel::unbounded(),
            calls: crossbeam_channel::bounded(1),
            lanes: Mutex::default(),
        }
    }

    /// Counts a job of a tenant.
    fn admit(&self, TenantIndex(tenant): TenantIndex) -> Result<(), Busy> {
        let jobs = &self.jobs[usize::from(tenant)];
        if jobs.fetch_add(1, Ordering::Relaxed) >= self.limits.jobs_max {
            jobs.fetch_sub(1, Ordering::Relaxed);
            return Err(Busy::Jobs);
        }
        if self.rate.as_ref().is_some_and(|rate| !rate.admits(tenant.into(), clock::now_ns())) {
            jobs.fetch_sub(1, Ordering::Relaxed);
            return Err(Busy::Rate);
        }
        Ok(())
    }

    fn submit(&self, job: Job) {
        // It is disconnected never, and bounded by what was admitted.
        let _ = self.submitted.0.send(job);
        self.call();
    }

    /// Has a thread look for jobs.
    fn call(&self) {
        let _ = self.calls.0.try_send(());
    }

    /// Returns the job that is next. Bounded by the jobs that were submitted since the last call, and by the tenants that have some.
    fn next(&self) -> Option<Chosen<Job>> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        self.submitted.1.try_iter().for_each(|job| lanes.push(job.share.tenant.0, job));
        let chosen = lanes.choose(|job| job.share.weight)?;
        if !lanes.is_empty() {
            self.call();
        }
        Some(chosen)
    }

    /// Does a job, tells its owner, and charges its tenant.
    fn work(&self, Chosen { job, lane, charged }: Chosen<Job>, last: &mut LastTenant) {
        let Job { kind, terms, share, id, wake, work } = job;
        last.is_now(&share);
        let meter = kind.meter(&terms);
        meter.begun();
        let began = thread_time();
        let outcome = work();
        let took_ns = (thread_time() - began).as_nanos() as u64;
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Outcome::NotBegun => lanes.settle_not_begun(lane, share.weight, charged, took_ns),
            _ => lanes.settle(lane, share.weight, charged, took_ns),
        }
        drop(lanes);
        meter.spent(took_ns);
        match outcome {
            Outcome::Done => meter.done(),
            Outcome::NotBegun | Outcome::ResultDropped => meter.dropped(),
            Outcome::Refused => meter.refused(JobRefusal::Memory),
        }
        self.jobs[usize::from(share.tenant.0)].fetch_sub(1, Ordering::Relaxed);
        if outcome != Outcome::NotBegun {
            wake.wake(id, share, took_ns);
        }
    }
}

/// Whose job a thread has done last: the tenant's number, and which of the tenants that have had it.
#[derive(Default)]
struct LastTenant(Option<(TenantIndex, TenantGeneration)>);

impl LastTenant {
    /// Notes whose job is next. If it is another tenant's, it gets no memory that has this one's data in it.
    fn is_now(&mut self, share: &CpuShare) {
        let now = Some((share.tenant, share.generation));
        if std::mem::replace(&mut self.0, now) != now {
            free_kept_large_blocks_here();
        }
    }
}

/// Returns the processor time of this thread so far. Jobs are not charged for the time that other threads have on their core.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What the FWPs of one worker submit jobs by.
#[derive(Clone)]
pub struct OffloadPort {
    /// The queues.
    pub offload: Arc<Offload>,
    /// Tells the worker.
    pub wake: Arc<dyn Wake>,
}

/// What one FWP submits jobs by: one at a time, as it sleeps until its job is done.
pub struct FwpOffload {
    port: OffloadPort,
    id: FwpId,
    terms: SchedulingParams,
}

impl FwpOffload {
    /// Creates the access of an FWP with these parameters.
    #[must_use]
    pub fn new(port: OffloadPort, id: FwpId, terms: SchedulingParams) -> Self {
        Self { port, id, terms }
    }

    /// Submits a job, as [`Offload::submit`].
    ///
    /// # Errors
    /// See [`Offload::submit`].
    pub fn submit<T: Send + 'static>(
        &self,
        kind: Kind,
        job: impl FnOnce() -> Result<T, OverLimit> + Send + 'static,
    ) -> Result<Ticket<T>, Busy> {
        let OffloadPort { offload, wake } = &self.port;
        offload.submit(kind, &self.terms, (self.id, Arc::clone(wake)), job)
    }
}
