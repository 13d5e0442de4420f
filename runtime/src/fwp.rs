//! A feather-weight process: one instance, its fiber, its pool.
//!
//! ```text
//!   prepare (launcher)       resume, again and again (worker)         dismantle (launcher)
//!   instantiate,         -->  publish; poll the `run` future: it  -->  needs the MMA's endpoint as proof
//!   run to first wait        waits, is preempted, or ends; collect    that nobody touches the pool any more
//! ```
//!
//! Its rings are exchanged here, around what the guest does between two waits, and not by host calls: so all that a worker
//! touches for it lies together.
//!
//! The guest's whole life is one call of its `pinion_run`, as a future that owns the store; polling it resumes the fiber.
//! The store is never dropped by accident: its memory is what the MMA copies into. Only [`Fwp::dismantle`] does.
#![allow(unsafe_code)] // Lends linear memory to the MMA for as long as the FWP exists.

mod limit;
mod shared;

use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pinion_abi::{
    EXPORT_INIT, EXPORT_INITIALIZE, EXPORT_MEMORY, EXPORT_METRICS, EXPORT_POOL, EXPORT_RUN, InitStatus, PoolHeader,
};
use pinion_builder_client::metrics::{self, Metric};
use pinion_guest::files::Files;
use pinion_mma::counters::FwpCounters;
use pinion_mma::fwp::connect;
use pinion_mma::id::FwpId;
use pinion_mma::mailbox::{Mailbox, Violation};
use pinion_mma::notify::ReadyQueue;
use pinion_mma::pool::PoolLayout;
use pinion_mma::prefetch;
use pinion_mma::wiring::{Endpoint, Wiring};
use wasmtime::{Instance, Memory, Store};

pub(crate) use self::limit::MemoryLimit;
pub use self::shared::FwpShared;
pub(crate) use self::shared::NEVER_NS;

use crate::accounts::{Holding, MemoryAccounts};
use crate::activation::Activation;
use crate::clock::RunSlot;
use crate::end::EndReason;
use crate::footprint::Footprint;
use crate::log::GuestLog;
use crate::metrics::Readings;
use crate::spare::SparePages;
use crate::state::Grants;
use crate::template::Template;
use crate::terms::Terms;

/// How long a guest may take from its instantiation to its first wait.
pub const INIT_TIME_MAX: Duration = Duration::from_millis(500);

/// What a store holds besides the instance: all that host calls need.
pub struct FwpContext {
    /// It may wait: its pool is known, and it has a worker.
    pub(crate) joined: bool,
    pub(crate) shared: Arc<FwpShared>,
    pub(crate) config: Arc<[u8]>,
    pub(crate) log: GuestLog,
    /// None, if its stage was deployed without. Apart, as most have none and the rest is touched with every packet.
    pub(crate) files: Option<Box<Files>>,
    pub(crate) state: Grants,
    /// Its linear memory, once it has joined.
    pub(crate) memory: Option<Memory>,
    pub(crate) limit: MemoryLimit,
    activation: Option<Activation>,
}

impl FwpContext {
    /// Its guest has got its first packets, or any if it is timed; called by the `wait` import.
    #[cold]
    pub(crate) fn begin_to_serve(&self) {
        let is_told_again = self.activation.as_ref().is_some_and(Activation::record);
        self.shared.set_unserving(is_told_again);
    }
}

/// What one turn on the core came to.
pub enum Turn {
    /// It waits for packets, or for its deadline ([`Fwp::deadline_ns`]).
    Waiting {
        /// So many packets it has sent; the MMA is to be told.
        sent: u32,
    },
    /// It was preempted, or yielded, and wants to go on.
    Preempted,
    /// It will never run again.
    Ended(EndReason),
}

type RunFuture = Pin<Box<dyn Future<Output = (Store<FwpContext>, wasmtime::Result<()>)> + Send>>;

enum Life {
    Running(RunFuture),
    /// Kept, as the MMA still copies into its memory.
    Over(#[allow(dead_code)] Box<Store<FwpContext>>),
}

/// One FWP. See the module.
pub struct Fwp {
    id: FwpId,
    life: ManuallyDrop<Life>,
    mailbox: Mailbox,
    /// It has not come to a wait since its rings were exchanged.
    busy: bool,
    /// It has been given packets.
    begun: bool,
    /// What it was stopped for. Its fiber stays suspended for ever.
    stopped: Option<Box<EndReason>>,
    shared: Arc<FwpShared>,
    footprint: Footprint,
    /// Of its linear memory.
    address: usize,
    /// What it was made from: [`Template::mark`].
    template: usize,
    /// Of the same instance.
    next_stage: Option<FwpId>,
    terms: Terms,
    /// What its metrics were when they were last read, if it has any.
    readings: Option<Arc<Readings>>,
}

/// Why an FWP has a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// Something may have arrived for it, its deadline may have passed, or it was preempted.
    Work,
    /// A client may come soon, and its worker has nothing else to do: it comes back to its wait at once, with all that it needs
    /// for that near.
    Rehearsal,
}

/// Where an FWP's linear memory lies in its engine's reservation. Nothing is reached through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub(crate) address: usize,
    /// How large the memory has become.
    pub(crate) bytes: usize,
    /// Whose: [`Template::mark`].
    pub(crate) template: usize,
}

/// Where a new FWP will live.
pub struct Berth<'a> {
    /// Its id.
    pub id: FwpId,
    /// Where its worker learns that it has input.
    pub inputs: &'a ReadyQueue,
    /// How it is joined to the rest of its chain.
    pub wiring: Wiring,
    /// The preparing thread's entry in the clock of the engine.
    pub clock: &'a RunSlot,
    /// What its memory is charged to.
    pub memory: MemoryAccounts,
    /// What it is to record when it first serves somebody.
    pub activation: Option<Activation>,
    /// How it has the core.
    pub terms: Terms,
    /// What state it may use.
    pub state: Grants,
    /// What others have left where it may come to live.
    pub spare: &'a SparePages,
    /// Called between any two parts of its preparation that take microseconds each: whoever prepares it may let others have the core.
    pub between: &'a mut dyn FnMut(),
}

impl Fwp {
    /// Instantiates a template, joins its pool to worker and MMA, and runs it to its first wait.
    ///
    /// # Errors
    /// What became of it instead; whatever was made is gone again.
    pub fn prepare(template: &Template, berth: Berth<'_>, log: GuestLog) -> Result<(Self, Box<Endpoint>), EndReason> {
        let deadline = Instant::now() + INIT_TIME_MAX;
        let shared = Arc::new(FwpShared::new(berth.activation.is_some()));
        let context = FwpContext {
            joined: false,
            shared: Arc::clone(&shared),
            config: Arc::clone(&template.config),
            log,
            files: template.files.clone().map(|bundle| Box::new(Files::new(bundle))),
            state: berth.state,
            memory: None,
            limit: MemoryLimit::new(Holding::new(berth.memory, template.memory_bytes_max as u64), Arc::clone(&shared)),
            activation: berth.activation,
        };
        let mut store = Store::new(template.engine(), context);
        store.limiter(|context| &mut context.limit);
        store.set_epoch_deadline(1);
        store.epoch_deadline_async_yield_and_update(1);
        // Of a snapshot no code runs before its first wait: there is no turn to measure.
        let clock = template.pool.is_none().then_some(berth.clock);
        let instance = drive(clock, &shared, deadline, template.instantiate(&mut store))?;
        let instance = instance.map_err(|error| EndReason::not_instantiated(&error))?;
        (berth.between)();

        let linear = linear_memory(template, &instance, &mut store)?;
        if !berth.spare.has(linear.data_ptr(&store).addr(), template.mark()) {
            template.hot_pages.provide(linear.data_mut(&mut store), &mut *berth.between);
        }
        let (layout, metrics) = match template.pool {
            Some(layout) => (layout, Arc::clone(&template.metrics)),
            None => drive(clock, &shared, deadline, initialise(template, &instance, &mut store))??,
        };
        touch_first_pages(&linear, &mut store, layout.header());
        let memory = NonNull::new(linear.data_ptr(&store)).expect("a linear memory has an address");
        let readings = (!metrics.is_empty()).then(|| Arc::new(Readings::new(&metrics)));
        // SAFETY: the layout was checked against this memory; it does not move (`memory_may_move(false)`) and is unmapped
        // only with the store, which lives until `dismantle` is given the endpoint back. The mailbox is used by `resume`
        // alone, before and after the guest runs.
        let (mailbox, endpoint) = unsafe { connect(berth.id, memory, &layout, berth.inputs, berth.wiring) };
        store.data_mut().memory = Some(linear);
        store.data_mut().joined = true;
        if let Some(files) = &mut store.data_mut().files {
            files.take_changes();
        }

        let run = template.run(&instance, &mut store).ok_or_else(|| missing(EXPORT_RUN))?;
        let run = run.typed::<(), ()>(&store).map_err(EndReason::broken)?;
        let future: RunFuture = Box::pin(async move {
            let outcome = run.call_async(&mut store, ()).await;
            (store, outcome)
        });
        let life = ManuallyDrop::new(Life::Running(future));
        let (footprint, stopped, next_stage) = (Footprint::default(), None, None);
        let (address, template_mark) = (memory.expose_provenance().get(), template.mark());
        let (id, terms, busy, begun) = (berth.id, berth.terms, true, false);
        let mut fwp = Self {
            id,
            life,
            mailbox,
            busy,
            begun,
            stopped,
            shared,
            footprint,
            address,
            template: template_mark,
            next_stage,
            terms,
            readings,
        };
        (berth.between)();
        match fwp.run_to_first_wait(berth.clock, deadline) {
            Ok(()) => {
                if let Life::Running(future) = &*fwp.life {
                    let (future, call) = ((&raw const **future).addr(), fwp.shared.call_site());
                    fwp.footprint = Footprint::new(future, call, Arc::as_ptr(&fwp.shared).addr());
                }
                let Place { bytes, .. } = fwp.place();
                template.hot_pages.learn(std::ptr::slice_from_raw_parts(memory.as_ptr(), bytes));
                fwp.read_metrics();
                Ok((fwp, endpoint))
            }
            Err(reason) => {
                fwp.dismantle(endpoint);
                Err(reason)
            }
        }
    }

    /// Asks for the memory that its turn will touch. It should be at hand itself.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.mailbox.prefetch();
        self.footprint.prefetch();
        prefetch::to_write(&raw const *self.terms.meter());
    }

    fn run_to_first_wait(&mut self, clock: &RunSlot, deadline: Instant) -> Result<(), EndReason> {
        loop {
            let started_ns = clock.begin();
            let (turn, _) = self.resume(clock, started_ns);
            clock.end();
            match turn {
                Turn::Waiting { .. } => return Ok(()),
                Turn::Ended(reason) => return Err(reason),
                Turn::Preempted if Instant::now() > deadline => return Err(EndReason::InitTime),
                Turn::Preempted => std::thread::yield_now(),
            }
        }
    }

    /// What its metrics were when they were last read, if it has any.
    #[must_use]
    pub fn readings(&self) -> Option<&Arc<Readings>> {
        self.readings.as_ref()
    }

    /// Reads its metrics: it does not run meanwhile, as whoever has it is here. Bounded by what a function may have.
    pub(crate) fn read_metrics(&self) {
        let Some(readings) = &self.readings else { return };
        readings.take(|at| {
            let word = std::ptr::with_exposed_provenance::<u64>(self.address + at as usize);
            // SAFETY: the addresses of metrics were checked against this memory when it was made. It does not shrink, does not move, and
            // is unmapped only with the store, which is `self`'s. The guest is suspended, or has ended, and the MMA writes to slots only, in
            // which no metric lies.
            u64::from_le(unsafe { word.read_unaligned() })
        });
    }

    /// Where its linear memory lies.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { address: self.address, bytes: self.shared.memory_bytes() as usize, template: self.template }
    }

    /// Notes the stage after this one of its instance.
    pub(crate) fn set_next_stage(&mut self, next: Option<FwpId>) {
        self.next_stage = next;
    }

    /// The stage after this one of its instance.
    pub(crate) fn next_stage(&self) -> Option<FwpId> {
        self.next_stage
    }

    /// On what terms it has the core.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// A turn to do what there is to do: see [`Fwp::turn`].
    pub fn resume(&mut self, clock: &RunSlot, started_ns: u64) -> (Turn, u64) {
        self.turn(Occasion::Work, clock, started_ns)
    }

    /// Publishes what has arrived for it and runs it until it waits, has had its quantum, or ends; what its turn came to, and
    /// the time then. If it waits, nothing has arrived, and its deadline has not passed, it goes on waiting, unless this is a
    /// rehearsal. If it ends, it may have sent something, of which the MMA is to be told. `started_ns` is the clock's time now.
    /// Allocates nothing, locks nothing; bounded by the quantum and by the longest stretch of guest code without a loop or call.
    #[inline]
    pub fn turn(&mut self, occasion: Occasion, clock: &RunSlot, started_ns: u64) -> (Turn, u64) {
        if let Some(reason) = &self.stopped {
            return (Turn::Ended((**reason).clone()), started_ns);
        }
        let Life::Running(future) = &mut *self.life else {
            return (Turn::Ended(EndReason::Returned), started_ns);
        };
        if !self.busy {
            let fresh = self.mailbox.publish();
            self.begun |= fresh > 0;
            let is_due = self.begun && started_ns >= self.shared.deadline_ns();
            if fresh == 0 && !is_due && occasion == Occasion::Work {
                return (Turn::Waiting { sent: 0 }, started_ns);
            }
            // Who is not to know that its deadline has passed is not told that nothing has come either.
            self.shared.note_exchange((fresh > 0 || is_due).then_some(fresh));
            self.busy = true;
        }
        self.shared.begin_turn();
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let turn = match polled {
            Poll::Pending if self.shared.waits() => {
                self.busy = false;
                match self.collect() {
                    Ok(sent) => Turn::Waiting { sent },
                    Err(violation) => Turn::Ended(violation.into()),
                }
            }
            Poll::Pending => Turn::Preempted,
            Poll::Ready((store, outcome)) => {
                *self.life = Life::Over(Box::new(store));
                let reason = EndReason::of(outcome);
                // Who returns is done, and what it has sent goes out. Who fails has not said that it was to.
                let broken = if reason == EndReason::Returned { self.collect().err() } else { None };
                Turn::Ended(broken.map_or(reason, EndReason::from))
            }
        };
        let ended_ns = clock.next();
        let guest = &self.mailbox.counters().guest;
        guest.cpu_ns.add(ended_ns.saturating_sub(started_ns));
        guest.resumes.add(u64::from(occasion == Occasion::Work));
        if matches!(turn, Turn::Preempted) {
            guest.preemptions.add(1);
        }
        (turn, ended_ns)
    }

    /// Takes what it has sent. Who breaks a rule in that never runs again.
    #[inline]
    fn collect(&mut self) -> Result<u32, Violation> {
        self.mailbox.collect().inspect_err(|violation| self.stopped = Some(Box::new((*violation).into())))
    }

    /// Has it never run again, whatever it is about.
    pub(crate) fn stop(&mut self, reason: EndReason) {
        self.stopped = Some(Box::new(reason));
    }

    /// By when it is to have a turn although nothing has arrived, in nanoseconds of the clock; none if it waits for packets only, as all
    /// do before their first: whoever waits in the cache for its client takes no time, whatever else it waits for. To be
    /// asked when it waits.
    #[inline]
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        Some(self.shared.deadline_ns()).filter(|deadline_ns| self.begun && *deadline_ns != NEVER_NS)
    }

    /// Whether packets have arrived for it that were not published.
    #[inline]
    pub fn has_input(&mut self) -> bool {
        self.mailbox.has_input()
    }

    /// Ends it for good, counts the frames that are lost with it, and gives its memory back. The endpoint proves that the MMA
    /// has let go of the pool.
    ///
    /// Unwinds a suspended fiber and unmaps memory: never on a worker.
    ///
    /// # Panics
    /// If the endpoint is another FWP's.
    pub fn dismantle(mut self, mut endpoint: Box<Endpoint>) {
        assert_eq!(endpoint.id(), self.id, "the endpoint of another FWP is no proof");
        endpoint.settle();
        drop(endpoint);
        // SAFETY: `self` is consumed, so `life` is never used again; the MMA has let go of the memory.
        unsafe { ManuallyDrop::drop(&mut self.life) };
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> FwpId {
        self.id
    }

    /// What is known of it outside its worker.
    #[must_use]
    pub fn shared(&self) -> &Arc<FwpShared> {
        &self.shared
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> &Arc<FwpCounters> {
        self.mailbox.counters()
    }
}

/// A guest's metrics, which instances of one template share.
type Metrics = Arc<[Arc<Metric>]>;

/// Has an instance of a template that is no snapshot initialise itself; the pool that it has laid out and its metrics, checked.
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

/// Has the kernel provide the pages that a client's first packet touches: where both rings begin, and the first slot. Each fault would cost
/// the client more than all else that it waits for. Every byte stays as it is.
fn touch_first_pages(memory: &Memory, store: &mut Store<FwpContext>, pool: &PoolHeader) {
    let bytes = memory.data_mut(store);
    for address in [pool.rx_ring, pool.tx_ring, pool.slots, pool.slots + pool.slot_size - 1] {
        if let Some(byte) = bytes.get_mut(address as usize) {
            // Written, lest the page stay the image's own.
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
            .map_err(|_| EndReason::Pool(pinion_mma::pool::PoolError::Range { part: "pool header", address }))?;
        *word = u32::from_le_bytes(bytes);
    }
    let [magic, slot_count, slot_size, slots, ring_entries, rx_ring, tx_ring, own_slots] = words;
    Ok(PoolHeader { magic, slot_count, slot_size, slots, ring_entries, rx_ring, tx_ring, own_slots })
}

/// Polls a guest's call to its end on this thread, giving way each time it has had its quantum by this clock, until the deadline.
fn drive<F: Future>(
    clock: Option<&RunSlot>,
    shared: &FwpShared,
    deadline: Instant,
    future: F,
) -> Result<F::Output, EndReason> {
    let mut future = std::pin::pin!(future);
    loop {
        shared.begin_turn();
        let _ = clock.map(RunSlot::begin);
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        clock.inspect(|clock| clock.end());
        match polled {
            Poll::Ready(output) => return Ok(output),
            Poll::Pending if Instant::now() > deadline => return Err(EndReason::InitTime),
            Poll::Pending => std::thread::yield_now(),
        }
    }
}
