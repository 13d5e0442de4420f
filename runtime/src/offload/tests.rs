//! What becomes of jobs, without threads but for the last test.

use std::sync::atomic::{AtomicU64, AtomicUsize};

use pinion_control::node::JobStatus;

use super::*;
use crate::memory::allocator::{keep_large_blocks_here, kept_large_blocks_here};
use crate::tenants::accounts::Scope;
use crate::tenants::job_meters;

const ID: FwpId = FwpId { index: 3, generation: 7 };
const MANY: Limits = Limits { jobs_max: 1000, per_second: None };

/// Counts the wake-ups, and adds up what tenants are charged with.
#[derive(Default)]
struct Woken {
    times: AtomicUsize,
    charged_ns: AtomicU64,
}

impl Woken {
    fn times(&self) -> usize {
        self.times.load(Ordering::SeqCst)
    }
}

impl Wake for Woken {
    fn wake(&self, id: FwpId, _share: CpuShare, took_ns: u64) {
        assert_eq!(id, ID);
        self.times.fetch_add(1, Ordering::SeqCst);
        self.charged_ns.fetch_add(took_ns, Ordering::SeqCst);
    }
}

fn submit<T: Send + 'static>(
    offload: &Offload,
    tenant: u16,
    woken: &Arc<Woken>,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<Ticket<T>, Busy> {
    submit_for(offload, &SchedulingParams::of_tenant(TenantIndex(tenant)), woken, move || Ok(job()))
}

fn submit_for<T: Send + 'static>(
    offload: &Offload,
    terms: &SchedulingParams,
    woken: &Arc<Woken>,
    job: impl FnOnce() -> Result<T, OverLimit> + Send + 'static,
) -> Result<Ticket<T>, Busy> {
    offload.submit(Kind::Signer, terms, (ID, Arc::clone(woken) as Arc<dyn Wake>), job)
}

/// Returns what has become of the signatures of a chain with these parameters, and the time that they took.
fn counted(terms: &SchedulingParams) -> (JobStatus, u64) {
    let status = job_meters::sum(std::iter::once(&terms.jobs().signatures));
    (JobStatus { spent_us: 0, ..status }, terms.jobs().signatures.spent_ns())
}

/// Spends some processor time.
fn spend() {
    let began = thread_time();
    while thread_time() - began < Duration::from_micros(100) {}
}

const NO_MEMORY: OverLimit = OverLimit { scope: Scope::Tenant, limit_kib: 1, wanted_kib: 2 };

#[test]
fn a_job_is_done_and_its_owner_woken_and_given_the_result_once() {
    let (offload, woken) = (Offload::new([MANY; 2]), Arc::<Woken>::default());
    let ticket = submit(&offload, 1, &woken, || 6 * 7).unwrap();
    assert_eq!(ticket.take(), None);
    assert_eq!((offload.work_off(Kind::Inference), offload.work_off(Kind::Signer)), (0, 1));
    assert_eq!(woken.times(), 1);
    assert_eq!((ticket.take(), ticket.take()), (Some(Ok(42)), None));
}

#[test]
fn a_job_whose_owner_has_ended_is_not_begun_and_wakes_none() {
    let (offload, woken) = (Offload::new([MANY; 2]), Arc::<Woken>::default());
    drop(submit(&offload, 1, &woken, || panic!("it is done for no owner")));
    assert_eq!((offload.work_off(Kind::Signer), woken.times()), (1, 0));
}

#[test]
fn the_result_for_an_owner_that_ends_while_its_job_is_under_way_is_dropped_and_the_time_charged() {
    let (offload, woken) = (Offload::new([MANY; 2]), Arc::<Woken>::default());
    let terms = SchedulingParams::of_tenant(TenantIndex(1));
    let result = Arc::new(());
    let (ticket, given) = (Arc::new(Mutex::new(None)), Arc::clone(&result));
    let held = Arc::clone(&ticket);
    let job = move || {
        held.lock().unwrap().take();
        spend();
        Ok(given)
    };
    *ticket.lock().unwrap() = submit_for(&offload, &terms, &woken, job).ok();
    offload.work_off(Kind::Signer);
    assert_eq!((Arc::strong_count(&result), woken.times()), (1, 1));
    let charged_ns = woken.charged_ns.load(Ordering::SeqCst);
    assert!(charged_ns >= 100_000, "{charged_ns}");
    assert_eq!(counted(&terms), (JobStatus { dropped: 1, ..JobStatus::default() }, charged_ns));
}

#[test]
fn what_becomes_of_jobs_is_counted_for_their_chain() {
    let (offload, woken) = (Offload::new([Limits { jobs_max: 3, ..MANY }; 2]), Arc::<Woken>::default());
    let [terms, other] = [1, 2].map(|tenant| SchedulingParams::of_tenant(TenantIndex(tenant)));
    let done = submit_for(&offload, &terms, &woken, || Ok(())).unwrap();
    let without_memory = submit_for(&offload, &terms, &woken, || Err::<(), _>(NO_MEMORY)).unwrap();
    drop(submit_for(&offload, &terms, &woken, || Ok(())).unwrap());
    assert!(submit_for(&offload, &terms, &woken, || Ok(())).is_err());
    let waiting = JobStatus { waiting: 3, refused_queue_full: 1, ..JobStatus::default() };
    assert_eq!((counted(&terms).0, offload.jobs_of(Kind::Signer, TenantIndex(1))), (waiting, 3));
    offload.work_off(Kind::Signer);
    assert_eq!((done.take(), without_memory.take()), (Some(Ok(())), Some(Err(NotDone::Memory(NO_MEMORY)))));
    let over = JobStatus { done: 1, dropped: 1, refused_memory: 1, refused_queue_full: 1, ..JobStatus::default() };
    assert_eq!((counted(&terms).0, offload.jobs_of(Kind::Signer, TenantIndex(1))), (over, 0));
    assert_eq!(counted(&other).0, JobStatus::default());
}

#[test]
fn a_job_that_panics_is_told_to_its_owner_and_others_go_on() {
    let (offload, woken) = (Offload::new([MANY; 2]), Arc::<Woken>::default());
    let panics = submit(&offload, 1, &woken, || panic!("as planned")).unwrap();
    let works = submit(&offload, 1, &woken, || 1).unwrap();
    offload.work_off(Kind::Signer);
    assert_eq!((panics.take(), works.take()), (Some(Err::<(), _>(NotDone::Panicked)), Some(Ok(1))));
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

/// In a thread of its own, as each test is: that thread keeps large blocks.
#[test]
fn a_job_gets_no_memory_that_was_kept_of_another_tenants() {
    const BYTES: usize = 1 << 20;
    keep_large_blocks_here(4 * BYTES);
    let (offload, woken) = (Offload::new([MANY; 2]), Arc::<Woken>::default());
    let job = || {
        let kept = kept_large_blocks_here();
        drop(std::hint::black_box(vec![0xa5_u8; BYTES]));
        kept
    };
    let of_first = || submit(&offload, 1, &woken, job).unwrap();
    let tickets = [of_first(), of_first(), of_first()];
    offload.work_off(Kind::Signer);
    assert_eq!(tickets.map(|ticket| ticket.take()), [0, BYTES, BYTES].map(|kept| Some(Ok(kept))));
    assert_eq!(kept_large_blocks_here(), BYTES);
    let of_second = submit(&offload, 2, &woken, job).unwrap();
    offload.work_off(Kind::Signer);
    assert_eq!(of_second.take(), Some(Ok(0)));
    let [first, second] = [1, 2].map(|tenant| submit(&offload, tenant, &woken, job).unwrap());
    offload.work_off(Kind::Signer);
    assert_eq!([first, second].map(|ticket| ticket.take()), [Some(Ok(0)), Some(Ok(0))]);
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
