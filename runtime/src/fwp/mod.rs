//! A feather-weight process (FWP): one instance, its fiber, its pool.
//!
//! ```text
//!   prepare (launcher)       resume, again and again (worker)         dismantle (launcher)
//!   instantiate,         -->  publish; poll the `run` future: it  -->  needs the MMA's endpoint as proof
//!   run to first wait        waits, is preempted, or ends; collect    that it has released the pool
//! ```
//!
//! The rings are exchanged here, around the code that the guest runs between two waits, and not by host calls. So all memory that a worker
//! touches for an FWP lies together.
//!
//! The guest's whole life is one call of its `pinion_run`, as a future that owns the store; polling it resumes the fiber. The store must
//! not be dropped early, because the MMA copies into its memory. Only [`Fwp::dismantle`] drops it.
#![allow(unsafe_code)] // Lends linear memory to the MMA for as long as the FWP exists.

mod dismantling;
pub mod end_reason;
pub mod granted;
pub mod imports;
pub mod inference;
pub mod instance_states;
pub mod keys;
mod limit;
mod preparation;
mod shared;
pub mod template;

use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use pinion_abi::Errno;
use pinion_gateway::fwp_times::KeepAlives;
use pinion_guest::files::Files;
use pinion_mma::accounts::counters::FwpCounters;
use pinion_mma::guest::mailbox::{Mailbox, Providing, Violation};
use pinion_mma::id::FwpId;
use pinion_mma::tuning::prefetch;
use wasmtime::{Engine, Memory, Store};

pub(crate) use self::limit::MemoryLimit;
pub use self::preparation::{INIT_TIME_MAX, NewFwpSite, Preparation, Prepared, Progress};
pub use self::shared::FwpShared;
pub(crate) use self::shared::NEVER_NS;

use crate::clock::{self, GuestClock, WallClock};
use crate::fwp::end_reason::EndReason;
use crate::fwp::granted::Granted;
use crate::ids::MemoryPlace;
use crate::instruments::activation::Activation;
use crate::instruments::log::GuestLog;
use crate::instruments::metrics::Readings;
use crate::offload::FwpOffload;
use crate::preemption::RunSlot;
use crate::state::Grants;
use crate::tenants::accounts::Charge;
use crate::tenants::scheduling_params::SchedulingParams;
use crate::tuning::footprint::Footprint;

/// What a store holds besides the instance: all that host calls need.
pub struct FwpContext {
    /// The guest may wait: its pool is known, and it has a worker.
    pub(crate) joined: bool,
    pub(crate) shared: Arc<FwpShared>,
    pub(crate) config: Arc<[u8]>,
    pub(crate) log: GuestLog,
    /// None if the stage was deployed without files. Boxed, since most stages have none and the rest is touched with every packet.
    pub(crate) files: Option<Box<Files>>,
    pub(crate) state: Grants,
    pub(crate) clock: GuestClock,
    /// The date that the guest read last.
    pub(crate) wall_clock: WallClock,
    /// Its linear memory, once it has joined.
    pub(crate) memory: Option<Memory>,
    pub(crate) limit: MemoryLimit,
    activation: Option<Activation>,
    /// At the end, like what follows, because it is seldom touched.
    keep_alive: Option<KeepAlive>,
    pub(crate) granted: Granted,
    /// For how long it has asked to sleep before it joined.
    slept_in_init_ns: u64,
    /// The charge of the code that it runs, and of the files that it sees, to its tenant.
    _template: Option<Arc<Charge>>,
}

/// How an FWP sets until when its instance stays alive without input.
pub(crate) struct KeepAlive {
    pub(crate) keep_alives: Arc<KeepAlives>,
    pub(crate) id: FwpId,
}

impl FwpContext {
    /// Records that the guest gets its first packets; called by the `wait` import.
    #[cold]
    pub(crate) fn begin_to_serve(&self) {
        if let Some(activation) = &self.activation {
            activation.record();
        }
        self.shared.note_serving();
    }

    /// Returns what it submits jobs by.
    ///
    /// # Errors
    /// [`Errno::NotNow`] before a worker has adopted it, as none would be told that the job is done; and if it has no such thing.
    pub(crate) fn offload(&self) -> Result<&FwpOffload, Errno> {
        self.granted.offload().filter(|_| self.shared.is_adopted()).ok_or(Errno::NotNow)
    }

    /// Sets, by the guest's clock, until when the instance stays alive without input. Returns the time that applies, or 0 if none does.
    /// Costs one store.
    pub(crate) fn keep_alive_until(&self, until_ns: u64) -> u64 {
        // Code that runs before it has joined is preparation, during which no instance is kept alive.
        let Some(KeepAlive { keep_alives, id }) = self.keep_alive.as_ref().filter(|_| self.joined) else { return 0 };
        let (now_ns, max_ns) = (clock::now_ns(), keep_alives.max_ns());
        // The guest's clock shows that time later.
        let for_ns = self.clock.reaches(until_ns).saturating_sub(now_ns).min(max_ns);
        keep_alives.set(*id, for_ns);
        if for_ns == 0 { 0 } else { until_ns.min(self.clock.at(now_ns) + max_ns) }
    }
}

/// The outcome of one turn on the core.
pub enum Turn {
    /// It waits for packets, or for its deadline ([`Fwp::deadline_ns`]), or it sleeps until then.
    Waiting {
        /// How many packets it has sent; the MMA is to be notified of them. One that sleeps sends them with its next wait for packets.
        sent: u32,
    },
    /// It was preempted, or yielded, and wants to continue.
    Preempted,
    /// It will never run again.
    Ended(EndReason),
}

type RunFuture = Pin<Box<dyn Future<Output = (Store<FwpContext>, wasmtime::Result<()>)> + Send>>;

enum Life {
    Running(RunFuture),
    /// Kept, because the MMA still copies into its memory.
    Over(#[allow(dead_code)] Box<Store<FwpContext>>),
}

/// One FWP. See the module.
pub struct Fwp {
    id: FwpId,
    life: ManuallyDrop<Life>,
    mailbox: Mailbox,
    /// It has not reached a wait since its rings were exchanged.
    busy: bool,
    /// It sleeps, somewhere between two waits: its rings are not touched, and it runs again at its deadline.
    asleep: bool,
    /// It has been given packets; or it sleeps, and some have arrived.
    begun: bool,
    /// Why it has ended. The fiber of one that was stopped stays suspended until it is dismantled.
    ended: Option<Box<EndReason>>,
    /// Its worker has reported that.
    end_reported: bool,
    shared: Arc<FwpShared>,
    footprint: Footprint,
    /// Of its linear memory.
    address: usize,
    /// The template that it was made from: [`crate::fwp::template::Template::mark`].
    template: usize,
    /// The next stage of the same instance.
    next_stage: Option<FwpId>,
    terms: SchedulingParams,
    /// The values of its metrics when they were last read, if it has any.
    readings: Option<Arc<Readings>>,
    /// Its engine, if that overwrites the memory of ended FWPs: then it is looked at what it did.
    overwrites: Option<Engine>,
}

/// Why an FWP has a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnReason {
    /// It may have input, its deadline may have passed, or it was preempted.
    Work,
    /// A client may come soon, and the worker has nothing else to do. The guest returns to its wait at once, which brings the memory that
    /// it needs into the caches.
    Rehearsal,
}

impl Fwp {
    /// Prefetches what has been delivered to it. The `Fwp` itself should be in the cache.
    #[inline]
    pub(crate) fn prefetch_delivered(&self) {
        self.mailbox.prefetch_delivered();
    }

    /// Starts the page walks for its own pages: those of its rings, and of its stack.
    #[inline]
    pub(crate) fn prefetch_pages(&self) {
        self.mailbox.prefetch_page();
        self.footprint.prefetch_page();
    }

    /// Prefetches all else that its turn will touch. The `Fwp` itself should be in the cache.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.mailbox.prefetch();
        self.footprint.prefetch();
        prefetch::all_to_write(self.terms.meter());
    }

    /// Returns the values of its metrics when they were last read, if it has any.
    #[must_use]
    pub fn readings(&self) -> Option<&Arc<Readings>> {
        self.readings.as_ref()
    }

    /// Reads its metrics. It does not run meanwhile, since its owner makes the call. Bounded by the contract's limit on metrics.
    pub(crate) fn read_metrics(&self) {
        let Some(readings) = &self.readings else { return };
        readings.take(|at| {
            let word = std::ptr::with_exposed_provenance::<u64>(self.address + at as usize);
            // SAFETY: the addresses of metrics were checked against this memory when it was made. It does not shrink, does not move, and is
            // unmapped only with the store, which is `self`'s. The guest is suspended, or has ended, and the MMA writes to slots only, in
            // which no metric lies.
            u64::from_le(unsafe { word.read_unaligned() })
        });
    }

    /// Returns where its linear memory lies.
    #[must_use]
    pub fn place(&self) -> MemoryPlace {
        MemoryPlace { address: self.address, bytes: self.shared.memory_bytes() as usize, template: self.template }
    }

    /// Sets the next stage of its instance.
    pub(crate) fn set_next_stage(&mut self, next: Option<FwpId>) {
        self.next_stage = next;
    }

    /// Returns the next stage of its instance.
    pub(crate) fn next_stage(&self) -> Option<FwpId> {
        self.next_stage
    }

    /// Returns its scheduling parameters.
    #[must_use]
    pub fn terms(&self) -> &SchedulingParams {
        &self.terms
    }

    /// Gives it a turn to do what there is to do: see [`Fwp::turn`].
    pub fn resume(&mut self, clock: &RunSlot, started_ns: u64) -> (Turn, u64) {
        self.turn(TurnReason::Work, clock, started_ns)
    }

    /// Publishes what has arrived and runs the guest until it waits, has used its quantum, or ends. Returns the outcome of the turn, and
    /// the time after it. A guest that waits, has no input, and whose deadline has not passed continues to wait, unless this is a
    /// rehearsal. A guest that ends may have sent packets, of which the MMA is to be notified. `started_ns` is the clock's time now.
    /// Allocates nothing and takes no lock. Bounded by the quantum and by the longest stretch of guest code without a loop or call.
    #[inline]
    pub fn turn(&mut self, occasion: TurnReason, clock: &RunSlot, started_ns: u64) -> (Turn, u64) {
        if let Some(reason) = &self.ended {
            return (Turn::Ended((**reason).clone()), started_ns);
        }
        let Life::Running(future) = &mut *self.life else {
            return (Turn::Ended(EndReason::Returned), started_ns);
        };
        if self.asleep {
            // As for one that waits, time begins with the first packet: an FWP in the cache costs nothing.
            self.begun |= self.mailbox.has_input();
            let is_over = self.begun && started_ns >= self.shared.deadline_ns();
            if !is_over || occasion == TurnReason::Rehearsal {
                return self.turn_of_its_worker(clock, started_ns);
            }
            self.asleep = false;
        }
        if !self.busy {
            if self.mailbox.has_left_some() {
                return self.turn_of_its_worker(clock, started_ns);
            }
            let guest_clock = self.terms.guest_clock;
            let fresh = self.mailbox.publish(|arrived| clock::arrival_us(guest_clock, arrived, started_ns));
            self.begun |= fresh > 0;
            let is_due = self.begun && started_ns >= self.shared.deadline_ns();
            if fresh == 0 && !is_due && occasion == TurnReason::Work {
                return self.turn_of_its_worker(clock, started_ns);
            }
            // A guest in a rehearsal is told neither that nothing has come nor that its deadline has passed.
            self.shared.note_exchange((fresh > 0 || is_due).then_some(fresh));
            self.busy = true;
        }
        self.shared.begin_turn();
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let turn = match polled {
            Poll::Pending if self.shared.sleeps() => {
                self.asleep = true;
                self.mailbox.provide();
                Turn::Waiting { sent: 0 }
            }
            Poll::Pending if self.shared.waits() => {
                self.busy = false;
                self.mailbox.provide();
                match self.collect() {
                    Ok(sent) => Turn::Waiting { sent },
                    Err(violation) => Turn::Ended(violation.into()),
                }
            }
            Poll::Pending => {
                self.mailbox.provide();
                Turn::Preempted
            }
            Poll::Ready((store, outcome)) => {
                *self.life = Life::Over(Box::new(store));
                let reason = EndReason::of(outcome);
                // A guest that returns is done, and what it has sent goes out. A guest that fails has not asked for that.
                let broken = if reason == EndReason::Returned { self.collect().err() } else { None };
                let reason = broken.map_or(reason, EndReason::from);
                self.ended = Some(Box::new(reason.clone()));
                Turn::Ended(reason)
            }
        };
        let ended_ns = clock.next();
        let guest = &self.mailbox.counters().guest;
        guest.cpu_ns.add(ended_ns.saturating_sub(started_ns));
        guest.resumes.add(u64::from(occasion == TurnReason::Work));
        if matches!(turn, Turn::Preempted) {
            guest.preemptions.add(1);
        }
        (turn, ended_ns)
    }

    /// Collects what it has sent. A guest that breaks the rings' rules never runs again.
    #[inline]
    fn collect(&mut self) -> Result<u32, Violation> {
        self.mailbox.collect().inspect_err(|violation| self.ended = Some(Box::new((*violation).into())))
    }

    /// Ends the turn of a guest that continues to wait: its worker may have provided slots, and collects what it left last time, which the
    /// guest sent before anything that it does next. None of that is time of the guest's.
    #[cold]
    fn turn_of_its_worker(&mut self, clock: &RunSlot, started_ns: u64) -> (Turn, u64) {
        self.mailbox.provide();
        let collected = if self.mailbox.has_left_some() { self.collect() } else { Ok(0) };
        let turn = match collected {
            Ok(sent) => Turn::Waiting { sent },
            Err(violation) => Turn::Ended(violation.into()),
        };
        let ended_ns = clock.next();
        let took_ns = ended_ns.saturating_sub(started_ns);
        self.mailbox.counters().guest.cpu_ns.add(took_ns);
        self.mailbox.count_as_providing(took_ns);
        (turn, ended_ns)
    }

    /// Returns what its worker has provided in its turns since the last call.
    #[inline]
    pub fn take_providing(&mut self) -> Option<Providing> {
        self.mailbox.take_providing()
    }

    /// Notes that a worker has it from now on.
    pub(crate) fn note_adopted(&self) {
        self.shared.note_adopted();
    }

    /// Ends its sleep, if it sleeps and has got packets: it runs in its next turn.
    pub(crate) fn wake(&self) {
        if self.asleep {
            self.shared.wake();
        }
    }

    /// Stops it for good, whatever it is doing.
    pub(crate) fn stop(&mut self, reason: EndReason) {
        self.ended = Some(Box::new(reason));
    }

    /// Returns why it will never run again, if so.
    pub(crate) fn end_reason(&self) -> Option<&EndReason> {
        self.ended.as_deref()
    }

    /// Notes that its worker has reported its end.
    pub(crate) fn note_end_reported(&mut self) {
        self.end_reported = true;
    }

    /// Returns whether its worker has reported its end.
    pub(crate) fn is_end_reported(&self) -> bool {
        self.end_reported
    }

    /// Returns by when it is to have a turn without input, in nanoseconds of the clock; none if it waits for packets only. Before its first
    /// packets, an FWP has no deadline: an instance in the cache takes no CPU time, whatever it waits for. To be called while it waits.
    #[inline]
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        Some(self.shared.deadline_ns()).filter(|deadline_ns| self.begun && *deadline_ns != NEVER_NS)
    }

    /// Returns whether it is in the middle of something: it was preempted, or has not begun yet.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Returns whether packets have arrived for it that were not published yet. While it sleeps they wait.
    #[inline]
    pub fn has_input(&mut self) -> bool {
        if self.asleep { self.mailbox.is_owed() } else { self.mailbox.has_input() }
    }

    /// Returns for how long the MMA has copied what it sent, as far as that is to be charged now; in nanoseconds.
    #[inline(always)]
    pub(crate) fn copying_due_ns(&mut self) -> u64 {
        self.mailbox.copying_due_ns()
    }

    /// Returns the same for all that was not charged yet. To be called when the MMA has detached it.
    pub(crate) fn settle_copying_ns(&mut self) -> u64 {
        self.mailbox.settle_copying_ns()
    }

    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> FwpId {
        self.id
    }

    /// Returns what is known of it outside its worker.
    #[must_use]
    pub fn shared(&self) -> &Arc<FwpShared> {
        &self.shared
    }

    /// Returns its counters.
    #[must_use]
    pub fn counters(&self) -> &Arc<FwpCounters> {
        self.mailbox.counters()
    }
}
