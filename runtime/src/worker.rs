//! A worker: the loop that runs one core's FWPs.
//!
//! A worker owns its FWPs; they do not migrate. It learns from the MMA who has input, and from its timers whose deadline has passed, runs
//! whom its scheduler chooses, and never looks at the rest. Its poll allocates nothing, locks nothing, and calls no kernel except to wake a sleeping thread.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use pinion_mma::id::FwpId;
use pinion_mma::next_up::{Next, NextUp};
use pinion_mma::notify::{NAMES_MAX, Notifier, ReadyQueue};
use pinion_mma::prefetch;

use crate::clock::RunSlot;
use crate::end::EndReason;
use crate::fwp::{Fwp, Occasion, Turn};
use crate::meters::TurnMeters;
use crate::metrics::Rounds;
use crate::scheduler::{After, Scheduler, TENANTS_MAX};
use crate::timers::Timers;

/// Turns given per poll, as long as none takes its whole quantum.
const TURNS: usize = 32;
/// Notifications taken per poll: nobody waits behind one that is notified of again and again.
const NOTICES: usize = NAMES_MAX;
/// Steps that timers take per poll.
const TIMER_STEPS: usize = 128;

/// How many turns ahead an FWP is asked for, and how many ahead all that its turn will touch.
const FAR_AHEAD: usize = 10;
const NEAR_AHEAD: usize = 3;
/// In between, the pages of so many are asked for together, as their turns come: a processor that does not know where a page is stops soon, and it
/// can look for several at once.
const GROUP: usize = 4;
/// How long an MMA may not be told of what an FWP has sent while others have their turns, in nanoseconds.
const TELL_NS: u64 = 2_000;

/// How long a worker that has its thread to itself gives turns, whole quanta included, before it looks for what the thread has to do
/// besides: less than the launcher waits for anyway. Of somebody that has the core alone, a poll for each quantum would take a good part.
const STRETCH_NS: u64 = 50_000;

/// What the launcher tells a worker.
pub enum WorkerCommand {
    /// Takes charge of an FWP. The MMA must learn of it later.
    Adopt(Box<Fwp>),
    /// Gives an FWP back, whether or not it has ended.
    Release(FwpId),
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
    /// This FWP is the launcher's again.
    Released(Box<Fwp>),
}

/// How much of its quantum a turn took.
#[derive(PartialEq, Eq)]
enum Took {
    WholeQuantum,
    Less,
}

/// One worker; its thread polls it.
pub struct Worker {
    inputs: ReadyQueue,
    /// The node's MMAs, which are told who has sent something.
    mmas: Box<[Notifier]>,
    commands: Receiver<WorkerCommand>,
    events: Sender<WorkerEvent>,
    clock: RunSlot,
    /// By index of the node's FWPs; another worker's places stay empty here.
    fwps: Vec<Option<Box<Fwp>>>,
    scheduler: Scheduler,
    meters: Arc<TurnMeters>,
    /// Until when those wait who have a deadline.
    timers: Timers,
    /// Whose metrics are to be read.
    rounds: Rounds,
    /// Ids taken from `inputs` in this poll, and those whose deadlines have passed.
    noticed: Vec<FwpId>,
    /// FWPs that have sent something, by MMA, which is not told yet.
    sent: Box<[Vec<FwpId>]>,
    stage: Stage,
    /// For how long functions that go on have their turns in one poll.
    stretch_ns: u64,
    /// In the last poll.
    passed_on: bool,
    /// In the last poll, nobody brought anything and nothing was sent.
    kept_to_itself: bool,
}

/// Who rehearses.
#[derive(Default)]
struct Stage {
    next_up: Arc<NextUp>,
    rehearsed_ns: u64,
    /// When there was last nothing to do.
    idle_ns: u64,
    round: usize,
    /// Who is next, of an instance of several stages.
    at: Option<FwpId>,
    /// Who had a frame on its way at the last look.
    expecting: Option<FwpId>,
    /// Whose memory was asked for then, until somebody has a turn.
    asked: Option<FwpId>,
}

/// Time without anything to do between two rehearsals: what a launcher on the same core does in a step or two.
const REHEARSAL_NS: u64 = 5_000;
/// A thread that comes by no more often than this sleeps: nothing is kept near by it, and each rehearsal would wake the ticker.
const ASLEEP_NS: u64 = 1_000_000;

impl Worker {
    /// A worker for FWPs of index below `fwps_max`, whose packets `mmas` move, in their order. `events` must have room for
    /// two events per FWP.
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
            meters: Arc::default(),
            timers: Timers::new(fwps_max),
            rounds: Rounds::new(fwps_max),
            noticed: Vec::with_capacity(NOTICES + TIMER_STEPS),
            stage: Stage::default(),
            stretch_ns: 0,
            passed_on: false,
            kept_to_itself: false,
        }
    }

    /// Has it keep near what FWPs will touch for the clients to come, while there is nothing else to do.
    pub fn keep_warm(&mut self, next_up: Arc<NextUp>) {
        self.stage.next_up = next_up;
    }

    /// No other role waits for its thread.
    pub fn has_thread_to_itself(&mut self) {
        self.stretch_ns = STRETCH_NS;
    }

    /// What it measures of its turns.
    #[must_use]
    pub fn meters(&self) -> &Arc<TurnMeters> {
        &self.meters
    }

    /// Does what there is to do, up to a number of turns or one whole quantum, or for some quanta if it has its thread to itself and
    /// nobody brings anything; returns how much it did.
    pub fn poll(&mut self) -> usize {
        // Taken before commands are followed: an FWP is adopted before the MMA learns of it, so whoever is noticed here
        // is in the table afterwards.
        self.look_at_expected();
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
            done += self.give_turns();
        }
        if done == 0 {
            self.look_who_comes();
            self.rehearse();
        }
        done
    }

    /// Notes whose deadlines have passed. Looks at the clock only if anybody waits for one; bounded by a number of steps.
    #[inline]
    fn note_expired(&mut self) {
        if let Some(next_ns) = self.timers.next_ns() {
            let (now_ns, noticed) = (self.clock.now_ns(), &mut self.noticed);
            if now_ns >= next_ns {
                self.timers.expire(now_ns, TIMER_STEPS, |id| noticed.push(id));
            }
        }
    }

    /// Reads the metrics of those who have had turns since they were read, and not all too lately. Looks at the clock only if there is
    /// anybody; bounded by a few FWPs.
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

    /// For how long there is nothing to do here unless somebody brings it: until the next deadline, until somebody is let go on
    /// who was throttled, or until metrics are to be read.
    #[must_use]
    pub fn time_to_deadline(&self) -> Option<Duration> {
        let next_ns = self.timers.wake_ns().into_iter().chain(self.scheduler.held_until_ns());
        let next_ns = next_ns.chain(self.rounds.next_ns()).min()?;
        Some(Duration::from_nanos(next_ns.saturating_sub(self.clock.now_ns())))
    }

    /// Whether anybody sent something in the last poll who has a stage after it: that one is going to have input soon.
    #[must_use]
    pub fn has_passed_on(&self) -> bool {
        self.passed_on
    }

    /// Whether all that was done in the last poll was what nobody brought, and nobody got anything: deadlines that passed, and
    /// functions that go on with what they were at.
    #[must_use]
    pub fn has_kept_to_itself(&self) -> bool {
        self.kept_to_itself
    }

    fn give_turns(&mut self) -> usize {
        let (mut now_ns, mut turns) = (self.clock.begin(), 0);
        let (mut told_ns, began_ns) = (now_ns, now_ns);
        self.look_at_first();
        for _ in 0..TURNS {
            let Some(chosen) = self.scheduler.choose() else { break };
            turns += 1;
            self.look_ahead(turns);
            let wait_ns = now_ns.saturating_sub(chosen.woken_ns);
            if turns > 1 {
                // Its meter has been asked for; whoever comes alone would wait for it.
                self.expect_wait(chosen.id, wait_ns);
            }
            if self.is_at_length(chosen.id) {
                // It may take its whole quantum; what others have sent does not wait for that.
                self.tell_mmas();
                told_ns = now_ns;
            }
            let took = self.give_turn(chosen.id, Occasion::Work, &mut now_ns);
            // Not before its turn, which would wait for the meters.
            self.note_wait(chosen.id, wait_ns);
            if took == Took::WholeQuantum && (now_ns - began_ns >= self.stretch_ns || self.is_called(now_ns)) {
                // Whoever got input meanwhile, and the other roles of this thread, wait for no second one.
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

    /// Whether the next poll would find more than those who are runnable.
    fn is_called(&self, now_ns: u64) -> bool {
        let next_ns = self.timers.next_ns().into_iter().chain(self.scheduler.held_until_ns()).min();
        !self.inputs.is_empty() || !self.commands.is_empty() || next_ns.is_some_and(|next_ns| next_ns <= now_ns)
    }

    /// Asks for memory of whoever has a frame on its way, while the MMA copies that.
    #[inline]
    fn look_who_comes(&mut self) {
        let expecting = self.stage.next_up.expecting();
        if expecting != self.stage.expecting {
            self.stage.expecting = expecting;
            self.stage.asked = expecting;
            let Some(id) = expecting else { return };
            if let Some(Some(fwp)) = self.fwps.get(id.index as usize) {
                self.scheduler.prefetch(id);
                prefetch::all_to_read(fwp);
                fwp.prefetch();
            }
        }
    }

    /// Asks for what was delivered to whom [`Worker::look_who_comes`] has seen, once anybody is told of and before it is found out who.
    #[inline]
    fn look_at_expected(&self) {
        if let Some(id) = self.stage.asked
            && !self.inputs.is_empty()
            && let Some(Some(fwp)) = self.fwps.get(id.index as usize)
        {
            fwp.prefetch_delivered();
        }
    }

    /// Now and then, has an FWP that the next client may meet come back to its wait, one after the other, so that what it touches
    /// for that is near. No more than a turn; not counted as something done.
    fn rehearse(&mut self) {
        let Stage { next_up, rehearsed_ns, idle_ns, round, at, .. } = &mut self.stage;
        let now_ns = self.clock.now_ns();
        if now_ns.saturating_sub(std::mem::replace(idle_ns, now_ns)) > ASLEEP_NS {
            *rehearsed_ns = now_ns;
        }
        if now_ns.saturating_sub(*rehearsed_ns) < REHEARSAL_NS {
            return;
        }
        *rehearsed_ns = now_ns;
        let next = at.take().map(Next::First).or_else(|| {
            *round = round.wrapping_add(1);
            next_up.look(*round)
        });
        let Some(Next::First(id) | Next::Later(id)) = next else { return };
        let Some(fwp) = self.fwps.get(id.index as usize).and_then(Option::as_deref).filter(|fwp| fwp.id() == id) else {
            return;
        };
        self.stage.at = fwp.next_stage().filter(|_| next == Some(Next::First(id)));
        prefetch::all_to_read(fwp);
        fwp.prefetch();
        if !self.scheduler.claim(id) {
            return;
        }
        let mut now_ns = self.clock.begin();
        self.give_turn(id, Occasion::Rehearsal, &mut now_ns);
        self.clock.end();
        self.tell_mmas();
    }

    /// Tells the MMAs who has sent something since the last time.
    fn tell_mmas(&mut self) {
        for (mma, sent) in self.mmas.iter_mut().zip(&mut self.sent) {
            sent.drain(..).for_each(|id| mma.name(id));
            mma.ring();
        }
    }

    /// Whether a poll would find something to do.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.scheduler.is_idle() || !self.inputs.is_empty() || !self.commands.is_empty()
    }

    fn follow_commands(&mut self) -> usize {
        // To try in vain is a fence, which waits for all writes that are under way to the other core.
        if self.commands.is_empty() {
            return 0;
        }
        let mut done = 0;
        while let Ok(command) = self.commands.try_recv() {
            done += 1;
            match command {
                WorkerCommand::Adopt(fwp) => {
                    let index = fwp.id().index as usize;
                    debug_assert!(self.fwps[index].is_none());
                    self.scheduler.adopt(fwp.id(), fwp.terms().share, self.clock.now_ns());
                    self.fwps[index] = Some(fwp);
                }
                WorkerCommand::Release(id) => {
                    self.timers.cancel(id);
                    if let Some(fwp) = self.fwps[id.index as usize].take_if(|fwp| fwp.id() == id) {
                        self.scheduler.forget(id);
                        fwp.read_metrics();
                        self.report(WorkerEvent::Released(fwp));
                    }
                }
            }
        }
        done
    }

    /// Asks for memory of those whose turns come first, step by step for all. Even for one alone this is much faster than to wait
    /// for it line by line.
    #[inline]
    fn look_at_first(&mut self) {
        let asked = self.stage.asked.take();
        let fwps = || self.scheduler.upcoming().filter_map(|index| self.fwps[index as usize].as_deref());
        let first = || fwps().filter(|fwp| Some(fwp.id()) != asked);
        first().take(FAR_AHEAD + 1).for_each(prefetch::all_to_read);
        first().take(NEAR_AHEAD + 1).for_each(|fwp| {
            fwp.prefetch_delivered();
            fwp.prefetch();
        });
    }

    /// Asks for memory of those whose turns come soon, in a poll's turn of this number. Where many have little to do, all of it has to be fetched
    /// from afar.
    #[inline]
    fn look_ahead(&self, turn: usize) {
        let Self { scheduler, fwps, .. } = self;
        let mut ahead = scheduler.upcoming().skip(NEAR_AHEAD).filter_map(|index| fwps[index as usize].as_deref());
        let Some(near) = ahead.next() else { return };
        near.prefetch_delivered();
        near.prefetch();
        if let Some(far) = ahead.nth(FAR_AHEAD - NEAR_AHEAD - 1) {
            prefetch::all_to_read(far);
        }
        if turn % GROUP == 1 {
            self.look_for_pages();
        }
    }

    /// Has the processor find the pages of some whose turns come after those that all is asked for of. Not where few have turns: out of the way there.
    #[inline(never)]
    fn look_for_pages(&self) {
        let ahead =
            self.scheduler.upcoming().skip(NEAR_AHEAD + 1).filter_map(|index| self.fwps[index as usize].as_deref());
        ahead.take(GROUP).for_each(Fwp::prefetch_pages);
    }

    fn give_turn(&mut self, id: FwpId, occasion: Occasion, now_ns: &mut u64) -> Took {
        let Some(fwp) = self.fwps[id.index as usize].as_deref_mut() else {
            debug_assert!(false, "the scheduler knows whom the table has");
            let _ = self.scheduler.charge(id, 0, *now_ns, After::Over);
            return Took::Less;
        };
        let (turn, ended_ns) = fwp.turn(occasion, &self.clock, *now_ns);
        let cpu_ns = ended_ns.saturating_sub(*now_ns);
        *now_ns = ended_ns;
        // A rehearsal changes nothing, and would have its worker woken for it again and again.
        if fwp.readings().is_some() && occasion == Occasion::Work {
            self.rounds.ran(id.index, ended_ns);
        }
        fwp.terms().meter().had(cpu_ns, u64::from(matches!(turn, Turn::Preempted)));
        let (after, took) = match turn {
            Turn::Waiting { sent } => {
                // What came while it had the core, or was preempted, may have been noticed already.
                let has_input = fwp.has_input();
                match fwp.deadline_ns() {
                    Some(deadline_ns) => self.timers.set(id, deadline_ns),
                    None => self.timers.cancel(id),
                }
                if sent > 0 {
                    self.passed_on |= fwp.next_stage().is_some();
                    self.note_sent(id);
                }
                (if has_input { After::HasInput } else { After::Waits }, Took::Less)
            }
            Turn::Preempted => {
                self.meters.preempted_after(cpu_ns, self.clock.quantum_ns());
                (After::Preempted, Took::WholeQuantum)
            }
            Turn::Ended(reason) => {
                self.timers.cancel(id);
                // What it sent before it was done, or broke a rule, goes out.
                self.note_sent(id);
                self.report(WorkerEvent::Ended { id, reason });
                (After::Over, Took::Less)
            }
        };
        if let Some(overrun) = self.scheduler.charge(id, cpu_ns, ended_ns, after) {
            if let Some(fwp) = &mut self.fwps[id.index as usize] {
                fwp.stop(overrun.into());
            }
            self.timers.cancel(id);
            self.report(WorkerEvent::Ended { id, reason: overrun.into() });
        }
        took
    }

    /// Whether an FWP was interrupted in its last turn, while others have sent what no MMA is told of.
    #[inline]
    fn is_at_length(&self, id: FwpId) -> bool {
        let is_busy = || self.fwps[id.index as usize].as_deref().is_some_and(Fwp::is_busy);
        self.sent.iter().any(|sent| !sent.is_empty()) && is_busy()
    }

    /// Asks for where it is counted how long an FWP has waited, which is a line by itself for each length.
    #[inline]
    fn expect_wait(&self, id: FwpId, wait_ns: u64) {
        if let Some(fwp) = &self.fwps[id.index as usize] {
            fwp.terms().meter().prefetch_waited(wait_ns);
        }
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

    /// Has the FWP's MMA told with the others; called once a turn at most.
    #[inline]
    fn note_sent(&mut self, id: FwpId) {
        self.kept_to_itself = false;
        self.sent[id.mma(self.mmas.len()).0].push(id);
    }

    fn report(&self, event: WorkerEvent) {
        // Room for both events of every FWP: only a launcher that is gone does not take it.
        let _ = self.events.try_send(event);
    }
}
