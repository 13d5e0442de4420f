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
mod preparation;
mod shared;

use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use pinion_guest::files::Files;
use pinion_mma::counters::FwpCounters;
use pinion_mma::id::FwpId;
use pinion_mma::mailbox::{Mailbox, Violation};
use pinion_mma::prefetch;
use pinion_mma::wiring::Endpoint;
use wasmtime::{Memory, Store};

pub(crate) use self::limit::MemoryLimit;
pub use self::preparation::{Berth, INIT_TIME_MAX};
pub use self::shared::FwpShared;
pub(crate) use self::shared::NEVER_NS;

use crate::activation::Activation;
use crate::clock::RunSlot;
use crate::end::EndReason;
use crate::footprint::Footprint;
use crate::log::GuestLog;
use crate::metrics::Readings;
use crate::state::Grants;
use crate::terms::Terms;

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
    /// What it was made from: [`crate::template::Template::mark`].
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
    /// Whose: [`crate::template::Template::mark`].
    pub(crate) template: usize,
}

impl Fwp {
    /// Asks for what has been delivered to it. It should be at hand itself.
    #[inline]
    pub(crate) fn prefetch_delivered(&self) {
        self.mailbox.prefetch_delivered();
        self.footprint.prefetch_delivered();
    }

    /// Has the processor find the pages that are its own: where its rings are in its memory, and its stack.
    #[inline]
    pub(crate) fn prefetch_pages(&self) {
        self.mailbox.prefetch_page();
        self.footprint.prefetch_page();
    }

    /// Asks for all else that its turn will touch. It should be at hand itself.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.mailbox.prefetch();
        self.footprint.prefetch();
        prefetch::all_to_write(self.terms.meter());
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

    /// Whether it goes on with something, having been preempted or not begun yet.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
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
