//! A worker: the loop that runs one core's FWPs.
//!
//! A worker owns its FWPs; they do not migrate. The MMA notifies it of FWPs that have input, and its timers of FWPs whose deadline has
//! passed. It runs the FWPs that its scheduler chooses and never looks at the others. A poll allocates nothing, takes no lock, and makes no
//! system call except to wake a sleeping thread.

mod failures;
pub mod timers;
mod tuning;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use pinion_mma::guest::mailbox::Providing;
use pinion_mma::id::{FwpId, TENANTS_MAX};
use pinion_mma::notify::{NAMES_MAX, Notifier, ReadyQueue};
use pinion_mma::tuning::upcoming::UpcomingInstances;

use crate::containment::{Panicked, contained};
use crate::cores::command_sender::CommandSender;
use crate::fwp::end_reason::EndReason;
use crate::fwp::{Fwp, Turn, TurnReason};
use crate::instruments::metrics::Rounds;
use crate::offload::Wake;
use crate::preemption::RunSlot;
use crate::scheduler::{After, CpuShare, Scheduler, TenantShare};
use crate::tenants::meters::TurnMeters;
use crate::tenants::node_use::UseElsewhere;
use crate::tenants::scheduling_params::SchedulingParams;
use crate::worker::failures::Failures;
use crate::worker::timers::Timers;
use crate::worker::tuning::Rehearsals;

/// Turns per poll, as long as no turn uses its whole quantum.
const TURNS: usize = 32;
/// Notifications taken per poll. The bound keeps an FWP that is notified again and again from delaying the others.
const NOTICES: usize = NAMES_MAX;
/// Timer steps per poll.
const TIMER_STEPS: usize = 128;

/// The longest time, in nanoseconds, for which an MMA is not notified of what one FWP has sent while other FWPs have their turns.
const TELL_NS: u64 = 2_000;

/// For how long a worker with a thread of its own gives turns, whole quanta included, before it polls for other work. It is shorter than
/// the launcher's usual wait. Polling once per quantum would cost an FWP that has the core alone a good part of it.
const STRETCH_NS: u64 = 50_000;

/// What the launcher and the offload threads tell a worker.
pub enum WorkerCommand {
    /// Takes charge of an FWP. The MMA must be told of the FWP only afterwards.
    Adopt(Box<Fwp>),
    /// Gives an FWP back, whether or not it has ended.
    Release(FwpId),
    /// Charges for the copying of what an FWP sent before it was released.
    ChargeCopying {
        /// The FWP.
        id: FwpId,
        /// Its scheduling parameters.
        terms: SchedulingParams,
        /// For how long it was copied.
        copying_ns: u64,
    },
    /// A job of an FWP is over: charges its tenant, and gives the FWP a turn, if it is still there.
    Wake {
        /// The FWP.
        id: FwpId,
        /// Its share when it submitted the job.
        share: CpuShare,
        /// How much processor time the job took.
        took_ns: u64,
    },
    /// Sets a tenant's weight and rate.
    Regrant(TenantShare),
}

impl WorkerCommand {
    /// Returns the FWP that it is about; none for all of a tenant's.
    fn fwp(&self) -> Option<FwpId> {
        match self {
            Self::Adopt(fwp) => Some(fwp.id()),
            Self::Release(id) | Self::ChargeCopying { id, .. } | Self::Wake { id, .. } => Some(*id),
            Self::Regrant(_) => None,
        }
    }
}

impl Wake for CommandSender<WorkerCommand> {
    fn wake(&self, id: FwpId, share: CpuShare, took_ns: u64) {
        self.command(WorkerCommand::Wake { id, share, took_ns });
    }
}

/// What a worker tells the launcher.
pub enum WorkerEvent {
    /// This FWP will never run again; the worker keeps it until it is released.
    Ended {
        /// Which.
        id: FwpId,
        /// Why.
        reason: EndReason,
    },
    /// This FWP is handed back to the launcher.
    Released(Box<Fwp>),
    /// The parameters that came with a charge: the last reference to them is not to be dropped here.
    Charged(SchedulingParams),
}

/// How much of its quantum a turn used.
#[derive(PartialEq, Eq)]
enum TurnOutcome {
    WholeQuantum,
    Less,
}

/// One worker; its thread polls it.
pub struct Worker {
    inputs: ReadyQueue,
    /// The node's MMAs, which are notified of FWPs that have sent something.
    mmas: Box<[Notifier]>,
    commands: Receiver<WorkerCommand>,
    events: Sender<WorkerEvent>,
    clock: RunSlot,
    /// By index among the node's FWPs; entries of other workers' FWPs stay empty here.
    fwps: Vec<Option<Box<Fwp>>>,
    scheduler: Scheduler,
    /// What tenants have of the other workers; none if there is none.
    elsewhere: Option<Box<UseElsewhere>>,
    meters: Arc<TurnMeters>,
    failures: Failures,
    /// The FWP that the command under way is about.
    commanded: Option<FwpId>,
    /// The FWP that is being released.
    releasing: Option<FwpId>,
    /// Deadlines of waiting FWPs.
    timers: Timers,
    /// FWPs with metrics to be read.
    rounds: Rounds,
    /// Ids taken from `inputs` in this poll, and ids of FWPs with expired deadlines.
    noticed: Vec<FwpId>,
    /// FWPs that have sent something of which their MMA is not notified yet, by MMA.
    sent: Box<[Vec<FwpId>]>,
    rehearsals: Rehearsals,
    /// For how long FWPs that use whole quanta get turns in one poll.
    stretch_ns: u64,
    /// In the last poll, an FWP with a stage after it sent something.
    passed_on: bool,
    /// In the last poll, no input and no command arrived, and nothing was sent.
    kept_to_itself: bool,
}

impl Worker {
    /// Creates a worker for FWPs of index below `fwps_max`. `mmas` move their packets, in the order in which ids select them. `events` must
    /// have room for four events per FWP.
    #[must_use]
    pub fn new(
        fwps_max: usize,
        inputs: ReadyQueue,
        mmas: Vec<Notifier>,
        commands: Receiver<WorkerCommand>,
        events: Sender<WorkerEvent>,
        clock: RunSlot,
    ) -> Self {
        let scheduler = Scheduler::new(fwps_max, TENANTS_MAX, clock.quantum_ns());
        Self {
            inputs,
            sent: mmas.iter().map(|_| Vec::with_capacity(TURNS)).collect(),
            mmas: mmas.into(),
            commands,
            events,
            clock,
            fwps: (0..fwps_max).map(|_| None).collect(),
            scheduler,
            elsewhere: None,
            meters: Arc::default(),
            failures: Failures::default(),
            commanded: None,
            releasing: None,
            timers: Timers::new(fwps_max),
            rounds: Rounds::new(fwps_max),
            noticed: Vec::with_capacity(NOTICES + TIMER_STEPS),
            rehearsals: Rehearsals::default(),
            stretch_ns: 0,
            passed_on: false,
            kept_to_itself: false,
        }
    }

    /// Lets the worker rehearse the instances that `upcoming` publishes, and prefetch for them, while it has nothing else to do.
    pub fn keep_warm(&mut self, upcoming: Arc<UpcomingInstances>) {
        self.rehearsals.upcoming = upcoming;
    }

    /// Lets what tenants have of other workers count for their shares of this one.
    pub fn count_elsewhere(&mut self, elsewhere: Option<UseElsewhere>) {
        self.elsewhere = elsewhere.map(Box::new);
    }

    /// Declares that no other role shares the worker's thread, so that a poll may give turns for longer.
    pub fn has_thread_to_itself(&mut self) {
        self.stretch_ns = STRETCH_NS;
    }

    /// Returns the meters of the worker's turns.
    #[must_use]
    pub fn meters(&self) -> &Arc<TurnMeters> {
        &self.meters
    }

    /// Does the work at hand and returns how much it did. If that panics, all of its FWPs end, and the worker begins anew.
    ///
    /// # Panics
    /// If that happens too often.
    pub fn poll(&mut self) -> usize {
        contained(|| self.work()).unwrap_or_else(|Panicked| self.begin_anew())
    }

    /// Does the work at hand and returns how much it did. It gives up to `TURNS` turns, or one whole quantum. With a thread of its own
    /// and no new input, it gives whole quanta for up to `STRETCH_NS`.
    fn work(&mut self) -> usize {
        // Notifications are taken before commands are applied. The MMA learns of an FWP only after its adoption, so each FWP that is
        // notified here is in the table afterwards.
        self.prefetch_delivered();
        let Self { inputs, noticed, .. } = self;
        let inputs = inputs.take(NOTICES, |id| noticed.push(id));
        self.note_expired();
        self.read_metrics();
        let commands = self.follow_commands();
        self.kept_to_itself = inputs + commands == 0;
        let mut done = commands + self.noticed.len();
        if !self.noticed.is_empty() {
            let now_ns = self.clock.now_ns();
            self.noticed.drain(..).for_each(|id| self.scheduler.wake(id, now_ns));
        }
        if self.scheduler.held_until_ns().is_some() {
            done += self.scheduler.release(self.clock.now_ns());
        }
        self.passed_on = false;
        if !self.scheduler.is_idle() {
            if self.elsewhere.is_some() {
                self.charge_budgets();
            }
            done += self.give_turns();
        }
        if done == 0 {
            self.prefetch_announced();
            self.rehearse();
        }
        done
    }

    /// Notes FWPs with expired deadlines. Reads the clock only if a timer is set; bounded by [`TIMER_STEPS`].
    #[inline]
    fn note_expired(&mut self) {
        if let Some(next_ns) = self.timers.next_ns() {
            let (now_ns, noticed) = (self.clock.now_ns(), &mut self.noticed);
            if now_ns >= next_ns {
                self.timers.expire(now_ns, TIMER_STEPS, |id| noticed.push(id));
            }
        }
    }

    /// Reads the metrics of FWPs that have had turns since the last reading, as far as they are due. Reads the clock only if there is such
    /// an FWP; bounded by a few FWPs.
    #[inline]
    fn read_metrics(&mut self) {
        if let Some(next_ns) = self.rounds.next_ns() {
            let now_ns = self.clock.now_ns();
            if now_ns >= next_ns {
                let due = self.rounds.take(now_ns);
                due.filter_map(|index| self.fwps[index as usize].as_deref()).for_each(Fwp::read_metrics);
            }
        }
    }

    /// Returns the time until there is something to do without new input: the next deadline, the end of a throttling, or the next reading
    /// of metrics.
    #[must_use]
    pub fn time_to_deadline(&self) -> Option<Duration> {
        let next_ns = self.timers.wake_ns().into_iter().chain(self.scheduler.held_until_ns());
        let next_ns = next_ns.chain(self.rounds.next_ns()).min()?;
        Some(Duration::from_nanos(next_ns.saturating_sub(self.clock.now_ns())))
    }

    /// Returns whether an FWP with a stage after it sent something in the last poll. That stage is going to have input soon.
    #[must_use]
    pub fn has_passed_on(&self) -> bool {
        self.passed_on
    }

    /// Returns whether the last poll did nothing but work that needs no other thread: expired deadlines, and functions that continued. No
    /// input or command arrived in it, and nothing was sent.
    #[must_use]
    pub fn has_kept_to_itself(&self) -> bool {
        self.kept_to_itself
    }

    fn give_turns(&mut self) -> usize {
        let (mut now_ns, mut turns) = (self.clock.begin(), 0);
        let (mut told_ns, began_ns) = (now_ns, now_ns);
        self.prefetch_first();
        for _ in 0..TURNS {
            let Some(chosen) = self.scheduler.choose() else { break };
            turns += 1;
            self.prefetch_upcoming(turns);
            let wait_ns = now_ns.saturating_sub(chosen.woken_ns);
            if turns > 1 {
                // The meter's cache line has been prefetched by the time it is written. For a single turn, that would only add a wait.
                self.prefetch_wait(chosen.id, wait_ns);
            }
            if self.is_at_length(chosen.id) {
                // The FWP may use its whole quantum. Notifications of what others have sent must not wait for that.
                self.tell_mmas();
                told_ns = now_ns;
            }
            let took = self.give_turn(chosen.id, TurnReason::Work, &mut now_ns);
            // Written after the turn, because the turn would otherwise wait for the meters' cache lines.
            self.note_wait(chosen.id, wait_ns);
            if took == TurnOutcome::WholeQuantum && (now_ns - began_ns >= self.stretch_ns || self.is_called(now_ns)) {
                // FWPs that got input meanwhile, and other roles of this thread, wait for one whole quantum at most.
                break;
            }
            if now_ns - told_ns > TELL_NS {
                self.tell_mmas();
                told_ns = now_ns;
            }
        }
        self.clock.end();
        self.meters.busy_ns.add(now_ns - began_ns);
        self.tell_mmas();
        turns
    }

    /// Charges tenants' budgets for what they have had of other workers, if it is time to. Bounded by a number of tenants.
    #[inline(never)]
    fn charge_budgets(&mut self) {
        let Self { elsewhere: Some(elsewhere), scheduler, clock, .. } = self else { return };
        let now_ns = clock.now_ns();
        if elsewhere.is_due(now_ns) {
            elsewhere.look(now_ns, |tenant, generation, used_ns| {
                scheduler.charge_budget(tenant, generation, used_ns, now_ns);
            });
        }
    }

    /// Returns whether the next poll would find more than the FWPs that are runnable now.
    fn is_called(&self, now_ns: u64) -> bool {
        let next_ns = self.timers.next_ns().into_iter().chain(self.scheduler.held_until_ns()).min();
        !self.inputs.is_empty() || !self.commands.is_empty() || next_ns.is_some_and(|next_ns| next_ns <= now_ns)
    }

    /// Notifies the MMAs of the FWPs that have sent something since the last call.
    fn tell_mmas(&mut self) {
        for (mma, sent) in self.mmas.iter_mut().zip(&mut self.sent) {
            sent.drain(..).for_each(|id| mma.name(id));
            mma.ring();
        }
    }

    /// Returns whether a poll would find something to do.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.scheduler.is_idle() || !self.inputs.is_empty() || !self.commands.is_empty()
    }

    fn follow_commands(&mut self) -> usize {
        // A failed `try_recv` contains a fence, which waits until all pending writes have reached the other core.
        if self.commands.is_empty() {
            return 0;
        }
        let mut done = 0;
        while let Ok(command) = self.commands.try_recv() {
            done += 1;
            self.commanded = command.fwp();
            match command {
                WorkerCommand::Adopt(fwp) => {
                    let index = fwp.id().index as usize;
                    debug_assert!(self.fwps[index].is_none());
                    // First into the table, as the FWP's memory must outlive a failure of the scheduler.
                    let (id, share) = (fwp.id(), fwp.terms().current_share());
                    fwp.note_adopted();
                    self.fwps[index] = Some(fwp);
                    self.scheduler.adopt(id, share, self.clock.now_ns());
                }
                WorkerCommand::Release(id) => self.release(id),
                WorkerCommand::ChargeCopying { id, terms, copying_ns } => {
                    charge_copying(&mut self.scheduler, id, &terms, copying_ns, self.clock.now_ns());
                    if let Some(elsewhere) = &mut self.elsewhere {
                        count_use(elsewhere, &mut self.scheduler, &terms.share, copying_ns);
                    }
                    self.report(WorkerEvent::Charged(terms));
                }
                WorkerCommand::Wake { id, share, took_ns } => self.wake(id, share, took_ns),
                WorkerCommand::Regrant(share) => self.scheduler.regrant(share, self.clock.now_ns()),
            }
        }
        self.commanded = None;
        done
    }

    /// Charges a tenant for a job, and gives the FWP that had it done a turn, if it is still there. The job's time is in its chain's meters
    /// already.
    fn wake(&mut self, id: FwpId, share: CpuShare, took_ns: u64) {
        let Self { fwps, scheduler, elsewhere, clock, .. } = self;
        let now_ns = clock.now_ns();
        let is_charged = scheduler.charge_besides(id, share, took_ns, now_ns);
        if let Some(elsewhere) = elsewhere
            && is_charged
        {
            count_use(elsewhere, scheduler, &share, took_ns);
        }
        if let Some(fwp) = fwps[id.index as usize].as_deref().filter(|fwp| fwp.id() == id)
            && fwp.end_reason().is_none()
        {
            fwp.wake();
            scheduler.wake(id, now_ns);
        }
    }

    fn release(&mut self, id: FwpId) {
        self.releasing = Some(id);
        self.timers.cancel(id);
        self.scheduler.forget(id);
        let place = &mut self.fwps[id.index as usize];
        if let Some(fwp) = place.as_deref().filter(|fwp| fwp.id() == id) {
            fwp.read_metrics();
        }
        if let Some(fwp) = place.take_if(|fwp| fwp.id() == id) {
            self.report(WorkerEvent::Released(fwp));
        }
        self.releasing = None;
    }

    /// Reports the end of an FWP, which has its reason.
    fn report_end(&mut self, id: FwpId) {
        let Some(fwp) = &mut self.fwps[id.index as usize] else { return };
        fwp.note_end_reported();
        if let Some(reason) = fwp.end_reason().cloned() {
            self.report(WorkerEvent::Ended { id, reason });
        }
    }

    fn give_turn(&mut self, id: FwpId, occasion: TurnReason, now_ns: &mut u64) -> TurnOutcome {
        let Some(fwp) = self.fwps[id.index as usize].as_deref_mut() else {
            debug_assert!(false, "the scheduler knows only FWPs in the table");
            let _ = self.scheduler.charge(id, 0, *now_ns, After::Over);
            return TurnOutcome::Less;
        };
        #[cfg(test)]
        if occasion == TurnReason::Work {
            fwp.terms().meter().panic_if_planned();
        }
        let (turn, ended_ns) = fwp.turn(occasion, &self.clock, *now_ns);
        let cpu_ns = ended_ns.saturating_sub(*now_ns);
        *now_ns = ended_ns;
        let copying_ns = fwp.copying_due_ns();
        if copying_ns > 0 {
            charge_copying(&mut self.scheduler, id, fwp.terms(), copying_ns, ended_ns);
        }
        let (mut own_ns, mut has_news, mut waiting) = (cpu_ns, false, TurnOutcome::Less);
        if let Some(Providing { took_ns, is_news }) = fwp.take_providing() {
            (own_ns, has_news) = (cpu_ns.saturating_sub(took_ns), is_news);
            self.scheduler.charge_providing(id, fwp.terms().share, cpu_ns - own_ns, ended_ns);
            if cpu_ns >= self.clock.quantum_ns() {
                waiting = TurnOutcome::WholeQuantum;
            }
        }
        if let Some(elsewhere) = &mut self.elsewhere {
            count_use(elsewhere, &mut self.scheduler, &fwp.terms().share, cpu_ns + copying_ns);
        }
        // A rehearsal changes no metric, and counting it would wake the worker again and again.
        if fwp.readings().is_some() && occasion == TurnReason::Work {
            self.rounds.ran(id.index, ended_ns);
        }
        fwp.terms().meter().had(cpu_ns, u64::from(matches!(turn, Turn::Preempted)));
        let (after, took) = match turn {
            Turn::Waiting { sent } => {
                // Input that arrived during the turn may have been notified, and the notification taken, already.
                let has_input = fwp.has_input();
                match fwp.deadline_ns() {
                    Some(deadline_ns) => self.timers.set(id, deadline_ns),
                    None => self.timers.cancel(id),
                }
                self.passed_on |= sent > 0 && fwp.next_stage().is_some();
                if sent > 0 || has_news {
                    self.note_sent(id);
                }
                (if has_input { After::HasInput } else { After::Waits }, waiting)
            }
            Turn::Preempted => {
                if has_news {
                    self.note_sent(id);
                }
                self.meters.preempted_after(own_ns, self.clock.quantum_ns());
                (After::Preempted, TurnOutcome::WholeQuantum)
            }
            Turn::Ended(_) => {
                self.timers.cancel(id);
                // What it sent before it ended or broke a rule goes out.
                self.note_sent(id);
                self.report_end(id);
                (After::Over, TurnOutcome::Less)
            }
        };
        if let Some(overrun) = self.scheduler.charge(id, own_ns, ended_ns, after) {
            if let Some(fwp) = &mut self.fwps[id.index as usize] {
                fwp.stop(overrun.into());
            }
            self.timers.cancel(id);
            self.report_end(id);
        }
        took
    }

    /// Returns whether an FWP was interrupted in its last turn while other FWPs have sent something of which no MMA is notified yet.
    #[inline]
    fn is_at_length(&self, id: FwpId) -> bool {
        let is_busy = || self.fwps[id.index as usize].as_deref().is_some_and(Fwp::is_busy);
        self.sent.iter().any(|sent| !sent.is_empty()) && is_busy()
    }

    #[inline]
    fn note_wait(&self, id: FwpId, wait_ns: u64) {
        self.meters.waited(wait_ns);
        if let Some(fwp) = &self.fwps[id.index as usize] {
            fwp.terms().meter().waited(wait_ns);
            let counters = &fwp.counters().guest;
            counters.wait_ns.add(wait_ns);
            counters.waits.add(wait_ns);
        }
    }

    /// Queues a notification to the FWP's MMA, sent with the others. Called once a turn at most.
    #[inline]
    fn note_sent(&mut self, id: FwpId) {
        self.kept_to_itself = false;
        self.sent[id.mma(self.mmas.len()).0].push(id);
    }

    fn report(&self, event: WorkerEvent) {
        // There is room for all events of every FWP, so this fails only after the launcher has stopped.
        let _ = self.events.try_send(event);
    }
}

/// Counts what a tenant has had of a worker, for the others, and charges what it had of them with it.
#[inline(never)]
fn count_use(elsewhere: &mut UseElsewhere, scheduler: &mut Scheduler, share: &CpuShare, cpu_ns: u64) {
    let more_ns = elsewhere.add(share, cpu_ns);
    scheduler.charge_share(share, more_ns);
}

/// Charges a tenant for the time that an MMA has spent for one of its FWPs, whose packets it has copied.
#[cold]
fn charge_copying(scheduler: &mut Scheduler, id: FwpId, terms: &SchedulingParams, copying_ns: u64, now_ns: u64) {
    terms.meter().spent_besides(copying_ns);
    scheduler.charge_besides(id, terms.share, copying_ns, now_ns);
}
