//! Work that the host does for FWPs off the data path: signatures, and runs of models.
//!
//! ```text
//!   import, on a worker    --submit--> the tenant's queue --choose--> an offload thread does the job
//!                              |                                          |
//!   the FWP sleeps <-- Ticket -'        worker: the FWP has its next turn <-- wake, with the time that the job took
//! ```
//!
//! Each [`Kind`] of work has threads and queues of its own. A tenant has a bounded number of jobs; tenants take turns by the processor time that
//! their jobs have taken, and by weight ([`lanes`]). A job owns copies of all that it reads and writes: the memory of guests is never touched
//! here. The worker is told how long a job took, and charges the tenant as for its FWP's own turns.
//!
//! A submitter takes no lock and never waits. It allocates the job, and may wake a sleeping thread, which is a system call. If its FWP ends,
//! its [`Ticket`] is dropped: then the job is not begun, or its result is dropped.

mod lanes;
mod rate;

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

/// Tells an FWP's worker that its job is done.
pub trait Wake: Send + Sync {
    /// Gives the FWP a turn, if it is still there, and charges its tenant for the job, which took this much processor time.
    fn wake(&self, id: FwpId, took_ns: u64);
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
    tenant: TenantIndex,
    weight: u32,
    id: FwpId,
    wake: Arc<dyn Wake>,
    work: Box<dyn FnOnce() -> Owner + Send>,
}

/// Whether there is still an FWP that has asked for a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Sleeps,
    /// It has ended while its job was done.
    Ended,
    /// It had ended before, so that its job was not begun.
    Gone,
}

/// A job's result, once it has one. If it is dropped, the result will be dropped too.
#[must_use = "the job is not done for an owner that is gone"]
pub struct Ticket<T>(Arc<Mutex<Option<Result<T, Panicked>>>>);

impl<T> Ticket<T> {
    /// Returns the result if the job is done: once. [`Panicked`] if the job panicked. Never waits.
    pub fn take(&self) -> Option<Result<T, Panicked>> {
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

    /// Submits a job for an FWP of this tenant. `wake` is called when it is done, unless the ticket was dropped.
    ///
    /// # Errors
    /// The tenant has too many jobs, or asks too often.
    pub fn submit<T: Send + 'static>(
        &self,
        kind: Kind,
        (tenant, weight): (TenantIndex, u32),
        (id, wake): (FwpId, Arc<dyn Wake>),
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Ticket<T>, Busy> {
        let queue = &self.queues[kind as usize];
        queue.admit(tenant)?;
        let result = Arc::new(Mutex::new(None));
        let ticket = Arc::downgrade(&result);
        let work = Box::new(move || {
            if ticket.strong_count() == 0 {
                return Owner::Gone;
            }
            let done = contained(job);
            store(&ticket, done)
        });
        queue.submit(Job { tenant, weight, id, wake, work });
        Ok(Ticket(result))
    }

    /// Does jobs of a kind until [`Offload::stop`]; each of the kind's threads calls this.
    pub fn run(&self, kind: Kind) {
        let queue = &self.queues[kind as usize];
        while !self.is_stopped.load(Ordering::Relaxed) {
            match queue.next() {
                Some(chosen) => queue.work(chosen),
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
        let queue = &self.queues[kind as usize];
        std::iter::from_fn(|| queue.next()).map(|chosen| queue.work(chosen)).count()
    }
}

/// Stores a result for the ticket's owner, if there is one.
fn store<T>(ticket: &Weak<Mutex<Option<T>>>, done: T) -> Owner {
    let Some(result) = ticket.upgrade() else { return Owner::Ended };
    *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
    Owner::Sleeps
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
        self.submitted.1.try_iter().for_each(|job| lanes.push(job.tenant.0, job));
        let chosen = lanes.choose(|job| job.weight)?;
        if !lanes.is_empty() {
            self.call();
        }
        Some(chosen)
    }

    /// Does a job, tells its owner, and charges its tenant.
    fn work(&self, Chosen { job, lane, charged }: Chosen<Job>) {
        let Job { tenant, weight, id, wake, work } = job;
        let began = thread_time();
        let owner = work();
        let took_ns = (thread_time() - began).as_nanos() as u64;
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        match owner {
            Owner::Sleeps | Owner::Ended => lanes.settle(lane, weight, charged, took_ns),
            Owner::Gone => lanes.settle_not_begun(lane, weight, charged, took_ns),
        }
        drop(lanes);
        self.jobs[usize::from(tenant.0)].fetch_sub(1, Ordering::Relaxed);
        if owner == Owner::Sleeps {
            wake.wake(id, took_ns);
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
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Ticket<T>, Busy> {
        let share = self.terms.current_share();
        let OffloadPort { offload, wake } = &self.port;
        offload.submit(kind, (share.tenant, share.weight), (self.id, Arc::clone(wake)), job)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const ID: FwpId = FwpId { index: 3, generation: 7 };
    const MANY: Limits = Limits { jobs_max: 1000, per_second: None };

    /// Counts the FWPs that were woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(&self, id: FwpId, _took_ns: u64) {
            assert_eq!(id, ID);
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn submit<T: Send + 'static>(
        offload: &Offload,
        tenant: u16,
        woken: &Arc<Woken>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Ticket<T>, Busy> {
        offload.submit(Kind::Signer, (TenantIndex(tenant), 1), (ID, Arc::clone(woken) as Arc<dyn Wake>), job)
    }

    #[test]
    fn a_job_is_done_and_its_owner_woken_and_given_the_result_once() {
        let (offload, woken) = (Offload::new([MANY; 2]), Arc::<Woken>::default());
        let ticket = submit(&offload, 1, &woken, || 6 * 7).unwrap();
        assert_eq!(ticket.take(), None);
        assert_eq!((offload.work_off(Kind::Inference), offload.work_off(Kind::Signer)), (0, 1));
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert_eq!((ticket.take(), ticket.take()), (Some(Ok(42)), None));
    }

    #[test]
    fn a_job_whose_owner_has_ended_is_not_begun_and_wakes_none() {
        let (offload, woken) = (Offload::new([MANY; 2]), Arc::<Woken>::default());
        drop(submit(&offload, 1, &woken, || panic!("it is done for no owner")));
        assert_eq!((offload.work_off(Kind::Signer), woken.0.load(Ordering::SeqCst)), (1, 0));
    }

    #[test]
    fn the_result_for_an_owner_that_ends_while_its_job_is_under_way_is_dropped() {
        let (offload, woken) = (Offload::new([MANY; 2]), Arc::<Woken>::default());
        let result = Arc::new(());
        let (ticket, given) = (Arc::new(Mutex::new(None)), Arc::clone(&result));
        let held = Arc::clone(&ticket);
        let job = move || {
            held.lock().unwrap().take();
            given
        };
        *ticket.lock().unwrap() = submit(&offload, 1, &woken, job).ok();
        offload.work_off(Kind::Signer);
        assert_eq!((Arc::strong_count(&result), woken.0.load(Ordering::SeqCst)), (1, 0));
    }

    #[test]
    fn a_job_that_panics_is_told_to_its_owner_and_others_go_on() {
        let (offload, woken) = (Offload::new([MANY; 2]), Arc::<Woken>::default());
        let panics = submit(&offload, 1, &woken, || panic!("as planned")).unwrap();
        let works = submit(&offload, 1, &woken, || 1).unwrap();
        offload.work_off(Kind::Signer);
        assert_eq!((panics.take(), works.take()), (Some(Err::<(), _>(Panicked)), Some(Ok(1))));
    }

    #[test]
    fn a_tenant_with_too_many_jobs_is_refused_until_one_is_done_and_others_are_not() {
        let (offload, woken) = (Offload::new([Limits { jobs_max: 2, ..MANY }; 2]), Arc::<Woken>::default());
        let two = [(); 2].map(|()| submit(&offload, 1, &woken, || ()));
        assert!(two.iter().all(Result::is_ok));
        assert_eq!(submit(&offload, 1, &woken, || ()).err(), Some(Busy::Jobs));
        assert!(submit(&offload, 2, &woken, || ()).is_ok());
        offload.work_off(Kind::Signer);
        assert!(submit(&offload, 1, &woken, || ()).is_ok());
    }

    #[test]
    fn a_tenant_that_asks_too_often_is_refused_and_others_are_not() {
        let limits = Limits { per_second: Some(1), ..MANY };
        let (offload, woken) = (Offload::new([limits; 2]), Arc::<Woken>::default());
        assert!(submit(&offload, 1, &woken, || ()).is_ok());
        assert_eq!(submit(&offload, 1, &woken, || ()).err(), Some(Busy::Rate));
        assert!(submit(&offload, 2, &woken, || ()).is_ok());
    }

    #[test]
    fn tenants_with_jobs_take_turns_whatever_one_has_submitted_before() {
        let (offload, woken) = (Offload::new([MANY; 2]), Arc::<Woken>::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tickets = Vec::new();
        for tenant in [1, 1, 1, 1, 2, 3] {
            let order = Arc::clone(&order);
            tickets.extend(submit(&offload, tenant, &woken, move || order.lock().unwrap().push(tenant)));
        }
        offload.work_off(Kind::Signer);
        let mut first = order.lock().unwrap()[..3].to_vec();
        first.sort_unstable();
        assert_eq!(first, [1, 2, 3]);
    }

    #[test]
    fn threads_do_all_jobs_and_return_when_they_are_stopped() {
        let (offload, woken) = (Arc::new(Offload::new([MANY; 2])), Arc::<Woken>::default());
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let offload = Arc::clone(&offload);
                std::thread::spawn(move || offload.run(Kind::Signer))
            })
            .collect();
        let (done, is_done) = std::sync::mpsc::channel();
        let tickets: Vec<_> = (0..500)
            .map(|number| {
                let done = done.clone();
                submit(&offload, number % 5, &woken, move || done.send(number).unwrap()).unwrap()
            })
            .collect();
        let mut numbers: Vec<u16> = is_done.iter().take(tickets.len()).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..500));
        offload.stop();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
