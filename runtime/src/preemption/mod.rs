//! The epoch clock: preempts guests that have used their quantum.
//!
//! Each thread that runs guests has a [`RunSlot`] and writes into it when a guest starts to run. A watching thread checks the slots several
//! times per quantum ([`Watch`]) and advances the epoch of an engine whose guest has used its quantum. The guest then yields at its next
//! loop or function boundary. So a guest that is interrupted has had its quantum. There is one exception: while the launcher runs an
//! instance to its first wait, it advances the epoch of the future worker's engine as well, which can end one turn there early.
//!
//! A data-plane thread that polls and runs no guests checks the slots at almost no cost. The ticker's own thread takes a core from another
//! thread each time it wakes. So it checks the slots only while no such thread polls, and rarely while no guest exceeds its quantum
//! (`tick_interval.rs`). When no guest has run for a while, it sleeps: an idle node has no tick. A polling thread that stops polling says
//! so, and the ticker resumes. While guests have to be interrupted, such a thread goes on polling ([`Watch::is_needed`]): the ticker would
//! take most of the core on which it sleeps.
//!
//! A sleeping ticker is not woken at once, since that would take the core from the guest for which it was woken. Instead, the thread that
//! resumes a guest sets a timer for the end of the guest's quantum, which is early enough. While another thread polls, the timer is set
//! some quanta later.

mod look_cost;
pub(crate) mod sched_slice;
mod tick_interval;

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::stopwatch::Stopwatch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use wasmtime::Engine;

use self::look_cost::LookCost;
use self::sched_slice::set_slice;
use self::tick_interval::{Seen, TickInterval};
use crate::clock;

/// How long the ticker continues after a guest was last resumed. Guests with short turns in quick succession must not find it asleep each
/// time, because to set its timer, and to be interrupted by it, costs a core tens of microseconds.
const LINGER: Duration = Duration::from_millis(1);
/// The same on a core without a role, where the ticker's looks disturb no packets. It is longer than the kernel makes a role wait for its
/// core, and than the usual time until the next client arrives.
const LINGER_APART: Duration = Duration::from_millis(20);
/// The ticker's scheduler slice: longer than a look at the slots, and shorter than any other thread's slice.
const SLICE: Duration = Duration::from_micros(100);
/// The longest time that the ticker sleeps.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// For how many quanta, and for how long at least, the ticker leaves the slots to a polling thread after the first guest. Each look of the
/// ticker takes a core from another thread: from a worker, or from the gateway that is about to send a reply. It is a little longer than
/// the thread polls without work before it sleeps, so that a guest that still runs then is preempted soon after.
const POLLED_QUANTA: u32 = 4;
pub(crate) const POLLED_FOR: Duration = Duration::from_micros(300);
/// For how long it does so once it has seen the thread poll (or for one quantum, if that is longer), unless the thread falls asleep. If
/// another process has the polling thread's core, a guest can keep its core for this long. It is longer than the kernel's slice, after
/// which the thread is back.
const POLLED_STILL: Duration = Duration::from_millis(10);
/// How old the polling thread's last look may be (or one quantum, if that is longer). A ticker that has just woken on that thread's core
/// has delayed the thread itself.
const POLLED_LATELY: Duration = Duration::from_micros(50);

/// For how long a thread that polls is needed after guests had to be interrupted in quick succession.
const NEEDED: Duration = Duration::from_millis(10);
/// Two turns that are overdue within this time, or within some quanta, are in quick succession. A worker that lost its core to another
/// process is overdue once for each slice of that process, which is longer; a thread that polled then would only wait for its core, too.
const IN_SUCCESSION: Duration = Duration::from_micros(500);
const IN_SUCCESSION_QUANTA: u32 = 4;

/// A polling thread checks the slots this many times per quantum, and at least once per `LOOK_NS_MAX`.
const LOOKS_PER_QUANTUM: u64 = 4;
const LOOK_NS_MAX: u64 = 5_000;

/// When a thread last resumed a guest, in nanoseconds of the process's clock; zero if never. The lowest bit says whether that guest still
/// has the core. Written by that thread alone.
#[derive(Debug, Default)]
struct Running(CachePadded<AtomicU64>);

impl Running {
    fn begin(&self, now_ns: u64) {
        self.0.store(now_ns | 1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) & !1, Ordering::Relaxed);
    }

    /// Returns since when a guest has had the core, if one has it.
    fn since_ns(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|resumed_ns| resumed_ns & 1 == 1)
    }

    fn resumed_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What waits while a thread's guests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TickUrgency {
    /// Other guests wait: each is to have its quantum and no more.
    Others,
    /// Nothing waits but work to which the thread yields anyway: a guest may have the core until the next look.
    None,
}

/// What a watching thread checks.
struct Slot {
    running: Arc<Running>,
    /// When the turn was begun that was last found overdue.
    overdue_since_ns: AtomicU64,
    engine: Engine,
    haste: TickUrgency,
}

/// A thread's entry in the clock.
#[derive(Clone)]
pub struct RunSlot {
    running: Arc<Running>,
    ticker: Doorbell,
    stopwatch: Stopwatch,
    quantum_ns: u64,
}

impl RunSlot {
    /// Returns the longest time for which a guest may have the core before another one has it.
    #[must_use]
    pub fn quantum_ns(&self) -> u64 {
        self.quantum_ns
    }

    /// Notes that a guest starts, and returns the time now, in nanoseconds of this clock. To be called before the first of several guests
    /// is resumed, or after the thread did something else.
    #[must_use]
    pub fn begin(&self) -> u64 {
        let now_ns = self.now_ns();
        self.running.begin(now_ns);
        self.ticker.ring();
        now_ns
    }

    /// Notes that one guest is off the core and the next may be resumed; returns the time now. Reading the clock is a good part of the cost
    /// of a short turn, so one guest's end is the next one's start.
    #[must_use]
    pub fn next(&self) -> u64 {
        let now_ns = self.now_ns();
        self.running.begin(now_ns);
        now_ns
    }

    /// Notes that no guest is on the core any more.
    pub fn end(&self) {
        self.running.end();
    }

    /// Returns the time now, while no guest runs.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.stopwatch.elapsed_ns()
    }
}

/// Which core the ticker runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TickerCore {
    /// One that no role needs.
    Apart,
    /// One with a role, which its looks take the core from.
    Shared,
}

impl TickerCore {
    /// Returns how long the ticker continues after a guest was last resumed.
    fn linger(self) -> Duration {
        match self {
            Self::Apart => LINGER_APART,
            Self::Shared => LINGER,
        }
    }
}

/// A node's clock while the node is assembled.
pub struct Clock {
    quantum: Duration,
    stopwatch: Stopwatch,
    ticker: Doorbell,
    slots: Vec<Slot>,
}

impl Clock {
    /// Creates a clock with this quantum for guests.
    #[must_use]
    pub fn new(quantum: Duration) -> Self {
        Self { quantum, stopwatch: clock::stopwatch(), ticker: Doorbell::default(), slots: Vec::new() }
    }

    /// Adds a thread that runs guests of `engine`; `haste` says what waits while they run.
    pub fn slot(&mut self, engine: &Engine, haste: TickUrgency) -> RunSlot {
        let running = Arc::new(Running::default());
        let slot =
            Slot { running: Arc::clone(&running), overdue_since_ns: AtomicU64::new(0), engine: engine.clone(), haste };
        self.slots.push(slot);
        let quantum_ns = self.quantum.as_nanos() as u64;
        RunSlot { running, ticker: self.ticker.clone(), stopwatch: self.stopwatch.clone(), quantum_ns }
    }

    /// Returns the doorbell that wakes the ticker's thread.
    #[must_use]
    pub fn bell(&self) -> Doorbell {
        self.ticker.clone()
    }

    /// Finishes the clock with all its slots: for the ticker, and for threads that poll.
    #[must_use]
    pub fn wind_up(self) -> Arc<Watch> {
        let Self { quantum, stopwatch, ticker, slots } = self;
        let [overdue_ns, pressed_ns] = [const { AtomicU64::new(0) }; 2];
        let (polled, relief) = (Arc::default(), Doorbell::default());
        Arc::new(Watch { quantum, stopwatch, ticker, slots, polled, overdue_ns, pressed_ns, relief })
    }
}

/// Checks the slots and preempts guests that have used their quantum.
pub struct Watch {
    quantum: Duration,
    stopwatch: Stopwatch,
    ticker: Doorbell,
    slots: Vec<Slot>,
    polled: Arc<Polled>,
    /// When a look last found another turn overdue, and when it last found one in quick succession to another; zero if none has.
    overdue_ns: AtomicU64,
    pressed_ns: AtomicU64,
    /// Wakes the ticker while it leaves the slots to threads that poll.
    relief: Doorbell,
}

/// When a polling thread last looked at the slots, in nanoseconds of the process's clock.
#[derive(Debug, Default)]
struct Polled(CachePadded<AtomicU64>);

impl Polled {
    fn elapsed_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.0.load(Ordering::Relaxed))
    }

    /// Returns whether a thread polls the slots often enough for this quantum.
    fn is_kept_up(&self, now_ns: u64, quantum: Duration) -> bool {
        self.elapsed_ns(now_ns) < quantum.max(POLLED_LATELY).as_nanos() as u64
    }

    fn never(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Watch {
    /// Checks the slots, some times per quantum. To be called again and again by a thread that polls and runs no guests; each call reads
    /// the clock.
    pub fn look(&self) {
        let now_ns = self.now_ns();
        if self.polled.elapsed_ns(now_ns) >= (self.quantum_ns() / LOOKS_PER_QUANTUM).min(LOOK_NS_MAX) {
            self.polled.0.store(now_ns, Ordering::Relaxed);
            self.tick(now_ns);
        }
    }

    /// Returns whether such a thread should go on polling, because guests had to be interrupted lately.
    pub fn is_needed(&self) -> bool {
        self.is_needed_at(self.now_ns())
    }

    fn is_needed_at(&self, now_ns: u64) -> bool {
        let pressed_ns = self.pressed_ns.load(Ordering::Relaxed);
        pressed_ns != 0 && now_ns.saturating_sub(pressed_ns) < NEEDED.as_nanos() as u64
    }

    /// Notes that such a thread is about to sleep; to be called by it before.
    pub fn look_away(&self) {
        self.polled.never();
        self.relief.ring();
    }

    /// Sets the ticker's timer for guests that are about to run. To be called by such a thread after it was woken and has passed on its
    /// work. The latency-critical thread that resumes the guest then finds the timer set.
    pub fn expect_guests(&self) {
        self.ticker.ring();
    }

    /// Runs the ticker's loop on the calling thread, until `stop` is set and the doorbell rung.
    pub fn run(&self, core: TickerCore, stop: &AtomicBool) {
        // With the default timer slack, the kernel may extend a short sleep by some 50 us, and guests keep the core for that much longer.
        if let Err(error) = set_current_timer_slack(NonZeroU64::new(1)) {
            tracing::warn!(
                "guests have the core for some 50 us longer than their quantum while the node is idle: {error}"
            );
        }
        if let Err(error) = set_slice(SLICE) {
            tracing::warn!("guests may have a core that the ticker shares for milliseconds: {error}");
        }
        let timer = self.timer();
        self.relief.answer_here();
        let (mut pace, mut cost, linger) = (TickInterval::new(self.quantum), LookCost::new(), core.linger());
        while !stop.load(Ordering::Relaxed) {
            let now_ns = self.now_ns();
            if self.is_polled(now_ns) {
                self.relief.sleep(POLLED_STILL.max(self.quantum), || !self.is_polled(now_ns));
                cost.skip();
                continue;
            }
            let seen = self.tick(now_ns);
            let until_next = pace.until_next(seen, now_ns, cost.of_a_look());
            if self.lingers(linger, seen, now_ns) {
                std::thread::sleep(until_next);
            } else if let Some(timer) = &timer {
                self.ticker.sleep_by(|| {
                    if !self.anybody_runs() {
                        timer.wait(SLEEP_MAX);
                    }
                });
            } else {
                self.ticker.sleep(SLEEP_MAX, || self.anybody_runs());
            }
        }
    }

    /// Makes the doorbell set a timer, at which the ticker then sleeps. Without a timer, the doorbell wakes the calling thread.
    fn timer(&self) -> Option<Arc<Timer>> {
        match Timer::new() {
            Ok(timer) => {
                let timer = Arc::new(timer);
                let (set, polled, stopwatch, quantum) =
                    (Arc::clone(&timer), Arc::clone(&self.polled), self.stopwatch.clone(), self.quantum);
                self.ticker.answer_by(move || {
                    let is_polled = polled.is_kept_up(stopwatch.elapsed_ns(), quantum);
                    set.set(if is_polled { (quantum * POLLED_QUANTA).max(POLLED_FOR) } else { quantum });
                });
                Some(timer)
            }
            Err(error) => {
                tracing::warn!("the ticker is woken for each guest, since there is no timer: {error}");
                self.ticker.answer_here();
                None
            }
        }
    }

    /// Advances the epochs that are due.
    fn tick(&self, now_ns: u64) -> Seen {
        let mut seen = Seen::None;
        for Slot { running, overdue_since_ns, engine, haste } in &self.slots {
            let Some(since_ns) = running.since_ns() else { continue };
            let is_overdue = now_ns.saturating_sub(since_ns) >= self.quantum_ns();
            if is_overdue {
                engine.increment_epoch();
            }
            seen = seen.max(if is_overdue && *haste == TickUrgency::Others { Seen::Overdue } else { Seen::Guests });
            if is_overdue && *haste == TickUrgency::Others && overdue_since_ns.load(Ordering::Relaxed) != since_ns {
                overdue_since_ns.store(since_ns, Ordering::Relaxed);
                self.note_overdue(now_ns);
            }
        }
        seen
    }

    /// Notes that another turn is overdue.
    fn note_overdue(&self, now_ns: u64) {
        let before_ns = self.overdue_ns.load(Ordering::Relaxed);
        self.overdue_ns.store(now_ns, Ordering::Relaxed);
        let in_succession = IN_SUCCESSION.max(self.quantum * IN_SUCCESSION_QUANTA);
        if before_ns != 0 && now_ns.saturating_sub(before_ns) < in_succession.as_nanos() as u64 {
            self.pressed_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Returns whether a polling thread checks the slots.
    fn is_polled(&self, now_ns: u64) -> bool {
        self.polled.is_kept_up(now_ns, self.quantum)
    }

    fn anybody_runs(&self) -> bool {
        self.slots.iter().any(|slot| slot.running.since_ns().is_some())
    }

    /// Returns whether the ticker continues after a look with this result. Guests with rare, short turns are seldom seen by a look, so the
    /// time of the last turn counts as well.
    fn lingers(&self, linger: Duration, seen: Seen, now_ns: u64) -> bool {
        let resumed_ns = self.slots.iter().map(|slot| slot.running.resumed_ns()).max().unwrap_or(0);
        seen != Seen::None || now_ns.saturating_sub(resumed_ns) < linger.as_nanos() as u64
    }

    fn now_ns(&self) -> u64 {
        self.stopwatch.elapsed_ns()
    }

    fn quantum_ns(&self) -> u64 {
        self.quantum.as_nanos() as u64
    }
}

/// A kernel timer at which the ticker sleeps.
struct Timer {
    file: OwnedFd,
    /// Whether it is going to expire, or has expired and the ticker has not seen that yet.
    is_set: AtomicBool,
}

impl Timer {
    fn new() -> std::io::Result<Self> {
        let file = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self { file, is_set: AtomicBool::new(false) })
    }

    /// Arms the timer to expire after `delay`. Does nothing if it is armed: later callers do not postpone it.
    fn set(&self, delay: Duration) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(delay) };
            // Fails only if the file is no timer or the time is invalid, neither of which can be.
            let _ = timerfd_settime(&self.file, TimerfdTimerFlags::empty(), &once);
        }
    }

    /// Waits until the timer expires, has expired since the last wait, or `timeout` has passed.
    fn wait(&self, timeout: Duration) {
        let _ = poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&timespec(timeout)));
        let _ = rustix::io::read(&self.file, &mut [0_u8; 8]);
        // The swap orders this: a guest that found the timer armed until now is seen by the next look at the slots.
        self.is_set.swap(false, Ordering::AcqRel);
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn the_ticker_continues_while_guests_have_short_turns_between_its_looks() {
        let engine = Engine::default();
        let mut clock = Clock::new(Duration::from_micros(20));
        let slots = [clock.slot(&engine, TickUrgency::Others), clock.slot(&engine, TickUrgency::Others)];
        let (watch, linger_ns) = (clock.wind_up(), LINGER.as_nanos() as u64);
        assert!(!watch.lingers(LINGER, Seen::None, 2 * linger_ns), "no guest has had a turn yet");
        let resumed_ns = slots[1].begin();
        assert_eq!(watch.tick(resumed_ns), Seen::Guests);
        assert!(watch.lingers(LINGER, Seen::Guests, resumed_ns + 2 * linger_ns), "it has the core still");
        slots[1].end();
        assert_eq!(watch.tick(resumed_ns), Seen::None);
        assert!(watch.lingers(LINGER, Seen::None, resumed_ns + linger_ns / 2));
        assert!(!watch.lingers(LINGER, Seen::None, resumed_ns + 2 * linger_ns));
    }

    #[test]
    fn a_polling_thread_that_lost_its_core_to_the_ticker_still_counts_as_polling() {
        let mut clock = Clock::new(Duration::from_micros(5));
        let slot = clock.slot(&Engine::default(), TickUrgency::Others);
        let watch = clock.wind_up();
        assert!(!watch.is_polled(slot.now_ns()), "no thread has looked");
        watch.look();
        let looked_ns = slot.now_ns();
        assert!(watch.is_polled(looked_ns + 20_000), "the ticker's wake-up takes longer than this quantum");
        assert!(!watch.is_polled(looked_ns + POLLED_LATELY.as_nanos() as u64));
        watch.look();
        watch.look_away();
        assert!(!watch.is_polled(looked_ns), "it sleeps");
    }

    #[test]
    fn a_polling_thread_is_needed_only_while_guests_are_interrupted() {
        let mut clock = Clock::new(Duration::from_micros(20));
        let slots =
            [clock.slot(&Engine::default(), TickUrgency::Others), clock.slot(&Engine::default(), TickUrgency::None)];
        let watch = clock.wind_up();
        // A turn that begins at this time, and is found overdue.
        let overdue = |slot: usize, begun_ns: u64| {
            slots[slot].running.begin(begun_ns);
            watch.tick(begun_ns + 21_000);
            watch.tick(begun_ns + 26_000);
            begun_ns + 26_000
        };
        let ms = 1_000_000;
        assert!(!watch.is_needed_at(overdue(1, ms)), "no guest waits for the core of the one that is overdue");
        slots[1].end();
        for begun_ms in [2, 4, 6] {
            assert!(!watch.is_needed_at(overdue(0, begun_ms * ms)), "its worker may have lost its core for a slice");
        }
        overdue(0, 8 * ms);
        let overdue_ns = overdue(0, 8 * ms + 30_000);
        assert!(watch.is_needed_at(overdue_ns));
        assert!(!watch.is_needed_at(overdue_ns + NEEDED.as_nanos() as u64));
    }

    #[test]
    fn setting_a_timer_ends_the_wait_for_it() {
        let (timer, start) = (Timer::new().unwrap(), Instant::now());
        for _ in 0..3 {
            timer.set(Duration::from_micros(100));
            timer.wait(LONG);
        }
        assert!(start.elapsed() < LONG / 2, "three waits took {:?}", start.elapsed());
    }

    #[test]
    fn setting_a_timer_again_does_not_postpone_it() {
        let (timer, start) = (Timer::new().unwrap(), Instant::now());
        timer.set(Duration::from_micros(100));
        timer.set(LONG);
        timer.wait(LONG);
        assert!(start.elapsed() < LONG / 2, "the wait took {:?}", start.elapsed());
    }
}
