//! Makes an FWP from a template, up to its first wait.
//!
//! ```text
//!   instantiate --> pages it will write --> initialise, if it is no snapshot --> join to MMA and worker --> run to first wait
//! ```
//!
//! Runs on the launcher's thread, in steps between which other work may have the core, and other tenants' preparations the thread: a guest
//! that takes long to its first wait has one turn after the other, as on a worker.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pinion_abi::{
    EXPORT_INIT, EXPORT_INITIALIZE, EXPORT_MEMORY, EXPORT_METRICS, EXPORT_POOL, EXPORT_RUN, InitStatus, PoolHeader,
};
use pinion_builder_client::metrics::{self, Metric};
use pinion_gateway::fwp_times::KeepAlives;
use pinion_guest::files::Files;
use pinion_mma::fwp::connect;
use pinion_mma::guest::pool::{PAGE, PoolError, PoolLayout};
use pinion_mma::id::{FwpId, WorkerIndex};
use pinion_mma::wiring::{Endpoint, Wiring};
use wasmtime::{Func, Instance, Memory, Store, TypedFunc};

use super::dismantling::NewStore;
use super::{Fwp, FwpContext, FwpShared, KeepAlive, Life, MemoryLimit, RunFuture, Turn};
use crate::clock::{GuestClock, TscInstant, WallClock};
use crate::containment::{Panicked, contained};
use crate::fwp::end_reason::EndReason;
use crate::fwp::granted::Granted;
use crate::fwp::template::Template;
use crate::ids::MemoryPlace;
use crate::instruments::activation::Activation;
use crate::instruments::log::GuestLog;
use crate::instruments::metrics::Readings;
use crate::memory::hot_pages::HotPages;
use crate::memory::spare_pages::{NewPlace, SparePages};
use crate::preemption::RunSlot;
use crate::state::Grants;
use crate::tenants::accounts::{Holding, MemoryAccounts};
use crate::tenants::scheduling_params::SchedulingParams;
use crate::tuning::engine_parts::EngineParts;
use crate::tuning::footprint::{Footprint, Parts};
use crate::tuning::stack_end::stack_end;

/// How much time a guest's turns may take from its instantiation to its first wait.
pub const INIT_TIME_MAX: Duration = Duration::from_millis(500);

/// Where a new FWP will live, and what it is given.
pub struct NewFwpSite {
    /// Its id.
    pub id: FwpId,
    /// The worker that runs it.
    pub worker: WorkerIndex,
    /// Its connections to the rest of its chain.
    pub wiring: Wiring,
    /// The preparing thread's entry in the clock of the engine.
    pub clock: RunSlot,
    /// The accounts that its memory is charged to.
    pub memory: MemoryAccounts,
    /// What it records when it first serves a client.
    pub activation: Option<Activation>,
    /// Its scheduling parameters.
    pub terms: SchedulingParams,
    /// The state that it may use.
    pub state: Grants,
    /// The keys and models that it may use.
    pub granted: Granted,
    /// Where it sets until when it stays alive without input; without this, it cannot.
    pub keep_alives: Option<Arc<KeepAlives>>,
    /// Pages that earlier FWPs have left in the place where it may live.
    pub spare: SparePages,
}

/// An FWP that is being prepared, step by step. If it is dropped, everything that was made is freed again.
#[must_use = "it is prepared by its steps"]
pub struct Preparation {
    steps: Pin<Box<dyn Future<Output = Prepared> + Send>>,
    pace: Arc<Pace>,
    /// How long its steps have taken.
    taken: Duration,
}

/// An FWP that waits for the first time, with its endpoint for the MMA; or why the guest ended instead.
pub type Prepared = Result<(Box<Fwp>, Box<Endpoint>), EndReason>;

/// What a step of a preparation came to.
pub enum Progress {
    /// A part that takes microseconds is done, or the guest was interrupted before its quantum was over. Others follow.
    Part,
    /// Guests have used a quantum. Other work is to come first.
    Turn,
    /// This was the last step. If the guest ended, everything that was made is freed again.
    Done(Prepared),
}

impl Preparation {
    /// Begins to prepare an FWP: nothing is done before the first step.
    pub fn begin(template: &Arc<Template>, site: NewFwpSite, log: GuestLog) -> Self {
        let shared = Arc::new(FwpShared::new(site.activation.is_some()));
        let pace = Arc::new(Pace {
            clock: site.clock.clone(),
            shared,
            ran_ns: AtomicU64::new(0),
            has_place: AtomicBool::new(false),
        });
        let steps = Box::pin(prepare(Arc::clone(template), site, log, Arc::clone(&pace)));
        Self { steps, pace, taken: Duration::ZERO }
    }

    /// Does the next step, which takes microseconds, or as long as a guest's turn. Adds how long the guest ran to `ran_ns`, after which the
    /// caller's turn is over when that is a quantum. Not to be called after the last step.
    pub fn step(&mut self, ran_ns: &mut u64) -> Progress {
        let began = TscInstant::now();
        let polled = self.steps.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.taken += began.elapsed();
        let ran_now_ns = self.pace.ran_ns.swap(0, Ordering::Relaxed);
        *ran_ns += ran_now_ns;
        match polled {
            Poll::Ready(prepared) => Progress::Done(prepared),
            // Only a guest that has just run may be at fault.
            Poll::Pending if ran_now_ns > 0 && self.taken > INIT_TIME_MAX => {
                self.steps = Box::pin(std::future::pending());
                Progress::Done(Err(EndReason::InitTime))
            }
            Poll::Pending if *ran_ns >= self.pace.clock.quantum_ns() => Progress::Turn,
            Poll::Pending => Progress::Part,
        }
    }

    /// Returns whether it is known where the FWP has its linear memory: after it was instantiated, for which its guest may have to run.
    #[must_use]
    pub fn has_place(&self) -> bool {
        self.pace.has_place.load(Ordering::Relaxed)
    }

    /// Does all steps, one after the other, for a thread that has no other work.
    ///
    /// # Errors
    /// Why the guest ended instead.
    pub fn finish(mut self) -> Prepared {
        let mut ran_ns = 0;
        loop {
            if let Progress::Done(prepared) = self.step(&mut ran_ns) {
                return prepared;
            }
        }
    }
}

/// The pauses of a preparation.
struct Pace {
    clock: RunSlot,
    shared: Arc<FwpShared>,
    /// How long the guest ran in the last step.
    ran_ns: AtomicU64,
    has_place: AtomicBool,
}

impl Pace {
    /// Pauses once.
    async fn pause(&self) {
        let mut is_over = false;
        std::future::poll_fn(|_| if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending })
            .await;
    }

    fn note_ran(&self, ns: u64) {
        self.ran_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Runs a call to its end, and pauses each time the guest is interrupted.
    async fn run<T, E: From<Panicked>>(&self, code: Code, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let mut call = std::pin::pin!(survived(call));
        std::future::poll_fn(|context| {
            self.shared.begin_turn();
            let began_ns = if code == Code::Guests { Some(self.clock.begin()) } else { None };
            let polled = call.as_mut().poll(context);
            self.clock.end();
            self.note_ran(began_ns.map_or(0, |began_ns| self.clock.now_ns().saturating_sub(began_ns)));
            polled
        })
        .await
    }
}

/// Awaits a guest's call. A panic of what it calls in the node is an error of the call.
async fn survived<T, E: From<Panicked>>(call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let mut call = std::pin::pin!(call);
    std::future::poll_fn(|context| {
        contained(|| call.as_mut().poll(context)).unwrap_or_else(|panicked| Poll::Ready(Err(panicked.into())))
    })
    .await
}

/// Whether a call runs guest code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Code {
    Guests,
    None,
}

/// Instantiates a template, joins its pool to worker and MMA, and runs it to its first wait.
async fn prepare(template: Arc<Template>, site: NewFwpSite, log: GuestLog, pace: Arc<Pace>) -> Prepared {
    let NewFwpSite { id, worker, wiring, memory, activation, terms, state, .. } = site;
    let NewFwpSite { granted, keep_alives, spare, .. } = site;
    let keep_alive = keep_alives.map(|keep_alives| KeepAlive { keep_alives, id });
    // Dropped after all that lives there.
    let mut place = spare.new_place();
    let clock = terms.guest_clock;
    let means = HostCallContext { memory, activation, state, granted, keep_alive, log, clock };
    let overwrites = spare.stay().then(|| template.engine().clone());
    let mut store = NewStore::new(store(&template, means, &pace.shared), overwrites);
    let made = make(&template, &mut store, &pace, &mut place).await?;
    let (mut joined, parts) = join(id, worker, wiring, terms, &template, made, store, &pace.shared)?;
    pace.pause().await;
    while !joined.come_to_first_wait(&pace)? {
        pace.pause().await;
    }
    let (fwp, endpoint) = joined.at_first_wait(&template, parts);
    place.keep();
    Ok((fwp, endpoint))
}

/// An FWP that is joined to worker and MMA, and has not come to its first wait. When dropped, it is dismantled.
struct Joined(Option<(Box<Fwp>, Box<Endpoint>)>);

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some((fwp, endpoint)) = self.0.take() {
            fwp.dismantle(endpoint);
        }
    }
}

#[allow(clippy::too_many_arguments)] // All that an FWP consists of.
fn join(
    id: FwpId,
    worker: WorkerIndex,
    wiring: Wiring,
    terms: SchedulingParams,
    template: &Template,
    Made { instance, linear, layout, metrics }: Made,
    mut store: NewStore,
    shared: &Arc<FwpShared>,
) -> Result<(Joined, StoreParts), EndReason> {
    let layout = layout.new_in_memory();
    touch_first_pages(&linear, store.get(), &layout);
    let run = template.run(&instance, store.get()).ok_or_else(|| missing(EXPORT_RUN))?;
    let typed = run.typed::<(), ()>(store.get()).map_err(EndReason::broken)?;
    let (store, overwrites) = store.finish();
    let memory = NonNull::new(linear.data_ptr(&store)).expect("a linear memory has an address");
    // SAFETY: the layout was checked against this memory; it does not move (`memory_may_move(false)`) and is unmapped
    // only with the store, which lives until `dismantle` is given the endpoint back. The mailbox is used by `resume`
    // alone, before and after the guest runs.
    let (mailbox, endpoint) = unsafe { connect(id, memory, &layout, worker, terms.copy_share(), wiring) };
    let (life, parts) = running((run, typed), store, linear);
    let fwp = Box::new(Fwp {
        id,
        life: ManuallyDrop::new(Life::Running(life)),
        mailbox,
        busy: true,
        asleep: false,
        begun: false,
        ended: None,
        end_reported: false,
        shared: Arc::clone(shared),
        footprint: Footprint::default(),
        address: memory.expose_provenance().get(),
        template: template.mark(),
        next_stage: None,
        terms,
        readings: (!metrics.is_empty()).then(|| Arc::new(Readings::new(&metrics))),
        overwrites,
    });
    Ok((Joined(Some((fwp, endpoint))), parts))
}

impl Joined {
    /// Gives the guest a turn. Returns whether it waits now. One that sleeps goes on when its first packet is there and its time is over.
    fn come_to_first_wait(&mut self, pace: &Pace) -> Result<bool, EndReason> {
        let Some((fwp, _)) = &mut self.0 else { return Ok(true) };
        let started_ns = pace.clock.begin();
        let (turn, ended_ns) = fwp.resume(&pace.clock, started_ns);
        pace.clock.end();
        pace.note_ran(ended_ns.saturating_sub(started_ns));
        match turn {
            Turn::Waiting { .. } => Ok(true),
            Turn::Preempted => Ok(false),
            Turn::Ended(reason) => Err(reason),
        }
    }

    /// Returns it, with what can be learned of it at its first wait.
    fn at_first_wait(
        mut self,
        template: &Template,
        StoreParts { context, engine }: StoreParts,
    ) -> (Box<Fwp>, Box<Endpoint>) {
        let (mut fwp, endpoint) = self.0.take().expect("it is taken once");
        if let Life::Running(future) = &*fwp.life {
            let guest_stack = template.stack.and_then(|at| NonZeroUsize::new(fwp.address + at as usize));
            // SAFETY: the call was made on the stack of this future, which is suspended.
            let stack_end = unsafe { stack_end(fwp.shared.call_stack()) };
            let parts = Parts {
                future: (&raw const **future).addr(),
                context,
                stack_end,
                shared: Arc::as_ptr(&fwp.shared).addr(),
                engine,
                guest_stack,
            };
            fwp.footprint = Footprint::new(parts);
        }
        let MemoryPlace { address, bytes, .. } = fwp.place();
        template.hot_pages.learn(std::ptr::slice_from_raw_parts(std::ptr::without_provenance(address), bytes));
        fwp.read_metrics();
        (fwp, endpoint)
    }
}

/// What an FWP's host calls need besides what its template holds.
struct HostCallContext {
    memory: MemoryAccounts,
    activation: Option<Activation>,
    state: Grants,
    granted: Granted,
    keep_alive: Option<KeepAlive>,
    log: GuestLog,
    clock: GuestClock,
}

fn store(template: &Template, means: HostCallContext, shared: &Arc<FwpShared>) -> Store<FwpContext> {
    let HostCallContext { memory, activation, state, granted, keep_alive, log, clock } = means;
    let holding = Holding::new(memory, template.memory_bytes_max as u64, template.kept_bytes);
    let context = FwpContext {
        joined: false,
        shared: Arc::clone(shared),
        config: Arc::clone(&template.config),
        log,
        files: template.files.clone().map(|bundle| Box::new(Files::new(bundle))),
        state,
        clock,
        wall_clock: WallClock::default(),
        memory: None,
        limit: MemoryLimit::new(holding, Arc::clone(shared)),
        activation,
        keep_alive,
        granted,
        slept_in_init_ns: 0,
        _template: template.charge.clone(),
    };
    let mut store = Store::new(template.engine(), context);
    store.limiter(|context| &mut context.limit);
    store.set_epoch_deadline(1);
    store.epoch_deadline_async_yield_and_update(1);
    store
}

/// A guest's metrics, shared by the instances of one template.
type Metrics = Arc<[Arc<Metric>]>;

/// An initialised instance, with its pool and its metrics, both checked.
struct Made {
    instance: Instance,
    linear: Memory,
    layout: PoolLayout,
    metrics: Metrics,
}

async fn make(template: &Template, new: &mut NewStore, pace: &Pace, place: &mut NewPlace) -> Result<Made, EndReason> {
    let store = new.get();
    // A snapshot runs no code before its first wait, so there is no turn to measure.
    let code = if template.pool.is_some() { Code::None } else { Code::Guests };
    let instance = pace.run(code, template.instantiate(store)).await;
    let instance = instance.map_err(|error| EndReason::not_instantiated(&error))?;
    let linear = linear_memory(template, &instance, store)?;
    let (address, bytes) = (linear.data_ptr(&*store).addr(), linear.data_size(&*store));
    new.found(address);
    let store = new.get();
    let has_pages = place.found(MemoryPlace { address, bytes, template: template.mark() });
    let shared = Arc::clone(&pace.shared);
    place.has_size(move || shared.memory_bytes() as usize);
    pace.has_place.store(true, Ordering::Relaxed);
    pace.pause().await;
    if !has_pages {
        for part in template.hot_pages.parts() {
            HotPages::provide(linear.data_mut(&mut *store), part);
            pace.pause().await;
        }
    }
    let (layout, metrics) = match template.pool {
        Some(layout) => (layout, Arc::clone(&template.metrics)),
        None => pace.run(Code::Guests, initialise(template, &instance, store)).await?,
    };
    Ok(Made { instance, linear, layout, metrics })
}

/// Addresses of what a turn touches in the store and of the instance, for prefetching.
struct StoreParts {
    context: usize,
    engine: Option<EngineParts>,
}

/// Returns the guest's life, which has not begun. From here on the guest may wait.
fn running(
    (run, typed): (Func, TypedFunc<(), ()>),
    mut store: Store<FwpContext>,
    linear: Memory,
) -> (RunFuture, StoreParts) {
    let context = store.data_mut();
    context.memory = Some(linear);
    context.joined = true;
    if let Some(files) = &mut context.files {
        files.take_changes();
    }
    // The store keeps both in one place.
    let context = (&raw const *store.data()).addr();
    let engine = EngineParts::of(&run, &linear, &mut store);
    let life = Box::pin(async move {
        // The store outlives a panic, as the MMA copies into its memory.
        let outcome = survived(typed.call_async(&mut store, ())).await;
        (store, outcome)
    });
    (life, StoreParts { context, engine })
}

/// Initialises an instance of a template that is no snapshot. Returns its pool layout and its metrics, both checked.
async fn initialise(
    template: &Template,
    instance: &Instance,
    store: &mut Store<FwpContext>,
) -> Result<(PoolLayout, Metrics), EndReason> {
    if let Ok(initialize) = instance.get_typed_func::<(), ()>(&mut *store, EXPORT_INITIALIZE) {
        initialize.call_async(&mut *store, ()).await.map_err(|error| EndReason::of(Err(error)))?;
    }
    let init = instance.get_typed_func::<(), i32>(&mut *store, EXPORT_INIT).map_err(EndReason::broken)?;
    let status = init.call_async(&mut *store, ()).await.map_err(|error| EndReason::of(Err(error)))?;
    if status != InitStatus::Ready as i32 {
        return Err(EndReason::InitRefused(status));
    }
    let pool = instance.get_typed_func::<(), i32>(&mut *store, EXPORT_POOL).map_err(EndReason::broken)?;
    let address = pool.call_async(&mut *store, ()).await.map_err(|error| EndReason::of(Err(error)))?;
    let memory = linear_memory(template, instance, store)?;
    let header = read_header(&memory, store, address as u32)?;
    let layout = PoolLayout::check(header, memory.data_size(&*store)).map_err(EndReason::Pool)?;
    if instance.get_func(&mut *store, EXPORT_METRICS).is_none() {
        return Ok((layout, Arc::new([])));
    }
    let metrics = instance.get_typed_func::<(), i32>(&mut *store, EXPORT_METRICS).map_err(EndReason::broken)?;
    let address = metrics.call_async(&mut *store, ()).await.map_err(|error| EndReason::of(Err(error)))?;
    let metrics = metrics::read(memory.data(&*store), address as u32, &header)?;
    Ok((layout, metrics.into_iter().map(Arc::new).collect()))
}

fn linear_memory(template: &Template, instance: &Instance, store: &mut Store<FwpContext>) -> Result<Memory, EndReason> {
    template.memory(instance, store).ok_or_else(|| missing(EXPORT_MEMORY))
}

fn missing(export: &str) -> EndReason {
    EndReason::broken(wasmtime::Error::msg(format!("it exports no {export}")))
}

/// Makes the kernel provide the pages that a client's first packet touches: the start of both rings, and the slots that are taken for
/// provided. Otherwise each page fault would cost the client more than all else that it waits for. No byte changes.
fn touch_first_pages(memory: &Memory, store: &mut Store<FwpContext>, layout: &PoolLayout) {
    let bytes = memory.data_mut(store);
    let PoolHeader { rx_ring, tx_ring, slots, slot_size, .. } = *layout.header();
    let end = slots + u32::from(layout.provided()) * slot_size;
    for address in [rx_ring, tx_ring, end - 1].into_iter().chain((slots..end).step_by(PAGE as usize)) {
        if let Some(byte) = bytes.get_mut(address as usize) {
            // Written, because a read would leave the image's own page in place.
            *byte = std::hint::black_box(*byte);
        }
    }
}

fn read_header(memory: &Memory, store: &Store<FwpContext>, address: u32) -> Result<PoolHeader, EndReason> {
    let mut words = [0_u32; size_of::<PoolHeader>() / 4];
    for (i, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 4];
        memory
            .read(store, address as usize + i * 4, &mut bytes)
            .map_err(|_| EndReason::Pool(PoolError::Range { part: "pool header", address }))?;
        *word = u32::from_le_bytes(bytes);
    }
    let [magic, slot_count, slot_size, slots, ring_entries, rx_ring, tx_ring, own_slots] = words;
    Ok(PoolHeader { magic, slot_count, slot_size, slots, ring_entries, rx_ring, tx_ring, own_slots })
}
