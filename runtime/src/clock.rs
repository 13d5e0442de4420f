//! The epoch clock: takes the core from a guest that has had its quantum.
//!
//! Each thread that runs guests has a [`RunSlot`] and writes into it when a guest starts to run. Somebody looks at the slots
//! several times a quantum ([`Watch`]) and advances the epoch of an engine whose guest has had its time; the guest then
//! yields at its next loop or function boundary. So a guest that is interrupted has had its quantum. An instance that comes
//! to its first wait on the launcher moves the epoch of its future worker's engine as well, which can end one turn there
//! early.
//!
//! Who looks is whoever is awake: a data-plane thread that polls and runs no guests does it for next to nothing. The ticker's
//! own thread, which takes a core from somebody each time it wakes, does it only while no such thread polls, rarely while nobody keeps the
//! core (`clock/pace.rs`); and when no guest has run for a while, it sleeps: an idle node has no tick. A thread that polls no more says so, and the
//! ticker looks again.
//!
//! Nobody wakes a ticker that sleeps at once: it would take the core from the guest on whose account it was woken. Whoever
//! resumes a guest sets a timer for the end of the guest's quantum, which is soon enough; or for some quanta later, while a
//! thread polls.

mod pace;
mod slice;

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use pinion_mma::doorbell::Doorbell;
use pinion_mma::stopwatch::Stopwatch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use wasmtime::Engine;

use self::pace::{Pace, Seen};
use self::slice::set_slice;

/// How long the ticker goes on after a guest was last resumed. Guests that have short turns again and again must not find it asleep: to set its
/// timer, and be interrupted by that, takes a core 20 to 40 us.
pub const LINGER: Duration = Duration::from_millis(1);
/// The same on a core without a role, where its looks disturb nobody's packets: longer than the kernel has a role wait for its core, and than it
/// takes the next of some clients to come.
pub const LINGER_APART: Duration = Duration::from_millis(20);
/// How long it has a core at a time: longer than a look, and shorter than anybody else.
const SLICE: Duration = Duration::from_micros(100);
/// How long it sleeps at most.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Quanta for which the ticker leaves the slots to a thread that polls, after the first guest. Each time it looks it takes a core from
/// somebody, most likely from a worker.
const POLLED_QUANTA: u32 = 4;
/// For how long it does when it has seen that the thread does, or for a quantum if that is longer, unless the thread falls asleep. So much longer a
/// guest can have the core when somebody else has that of the thread: longer than the kernel's slice, after which the thread is back.
const POLLED_STILL: Duration = Duration::from_millis(10);
/// How long ago such a thread may have looked, or a quantum if that is longer: a ticker that has just woken on its core has taken that from it.
const POLLED_LATELY: Duration = Duration::from_micros(50);

/// A polling thread looks at the slots so many times a quantum, and no more rarely than this.
const LOOKS_PER_QUANTUM: u64 = 4;
const LOOK_NS_MAX: u64 = 5_000;

/// The clock that all of a process go by: guests are told its time, and what one waits for is a deadline of its worker's as it is.
static STOPWATCH: LazyLock<Stopwatch> = LazyLock::new(Stopwatch::start);

/// The time by it, in nanoseconds.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    STOPWATCH.elapsed_ns()
}

/// A time by it. Threads that poll look at it at each poll, so it has to cost less than the system's.
#[derive(Debug, Clone, Copy)]
pub struct Moment(u64);

impl Moment {
    /// The time now.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        Self(now_ns())
    }

    /// How long ago it was.
    #[inline]
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(now_ns().saturating_sub(self.0))
    }
}

/// When a thread last resumed a guest, in nanoseconds of the process's clock, zero if never; its lowest bit says whether that guest has the
/// core still. Written by that thread alone.
#[derive(Debug, Default)]
struct Running(CachePadded<AtomicU64>);

impl Running {
    fn begin(&self, now_ns: u64) {
        self.0.store(now_ns | 1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) & !1, Ordering::Relaxed);
    }

    /// Since when a guest has had the core, if one has it.
    fn since_ns(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|resumed_ns| resumed_ns & 1 == 1)
    }

    fn resumed_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Who waits while a thread's guests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Haste {
    /// Other guests: each is to have its quantum and no more.
    Others,
    /// Nobody but those whom its thread gives way to: a guest may have the core until somebody happens to look.
    None,
}

/// What is looked at.
struct Slot {
    running: Arc<Running>,
    engine: Engine,
    haste: Haste,
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
    /// For how long a guest may have the core before another has it.
    #[must_use]
    pub fn quantum_ns(&self) -> u64 {
        self.quantum_ns
    }

    /// To be called before the first of several guests is resumed, or after the thread did something else; the time now, in
    /// nanoseconds of this clock.
    #[must_use]
    pub fn begin(&self) -> u64 {
        let now_ns = self.now_ns();
        self.running.begin(now_ns);
        self.ticker.ring();
        now_ns
    }

    /// To be called when one guest is off the core and the next may be resumed; the time now. Reading the clock costs a good
    /// part of what a short turn does, so one guest's end is the next one's start.
    #[must_use]
    pub fn next(&self) -> u64 {
        let now_ns = self.now_ns();
        self.running.begin(now_ns);
        now_ns
    }

    /// To be called when no guest is on the core any more.
    pub fn end(&self) {
        self.running.end();
    }

    /// The time now, while nobody runs.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.stopwatch.elapsed_ns()
    }
}

/// The clock of a node while it is put together.
pub struct Clock {
    quantum: Duration,
    stopwatch: Stopwatch,
    ticker: Doorbell,
    slots: Vec<Slot>,
}

impl Clock {
    /// A clock that gives guests `quantum` each.
    #[must_use]
    pub fn new(quantum: Duration) -> Self {
        Self { quantum, stopwatch: STOPWATCH.clone(), ticker: Doorbell::default(), slots: Vec::new() }
    }

    /// Adds a thread that runs guests of `engine`, on whose time somebody waits like that.
    pub fn slot(&mut self, engine: &Engine, haste: Haste) -> RunSlot {
        let running = Arc::new(Running::default());
        self.slots.push(Slot { running: Arc::clone(&running), engine: engine.clone(), haste });
        let quantum_ns = self.quantum.as_nanos() as u64;
        RunSlot { running, ticker: self.ticker.clone(), stopwatch: self.stopwatch.clone(), quantum_ns }
    }

    /// Wakes the ticker's thread.
    #[must_use]
    pub fn bell(&self) -> Doorbell {
        self.ticker.clone()
    }

    /// The clock with all its slots: for the ticker, and for threads that poll.
    #[must_use]
    pub fn wind_up(self) -> Arc<Watch> {
        let Self { quantum, stopwatch, ticker, slots } = self;
        Arc::new(Watch { quantum, stopwatch, ticker, slots, polled: Arc::default(), relief: Doorbell::default() })
    }
}

/// Looks at the slots and takes the core from guests that have had their quantum.
pub struct Watch {
    quantum: Duration,
    stopwatch: Stopwatch,
    ticker: Doorbell,
    slots: Vec<Slot>,
    polled: Arc<Polled>,
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

    /// Whether a thread looks at the slots, whose guests have such a quantum.
    fn is_kept_up(&self, now_ns: u64, quantum: Duration) -> bool {
        self.elapsed_ns(now_ns) < quantum.max(POLLED_LATELY).as_nanos() as u64
    }

    fn never(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Watch {
    /// To be called again and again by a thread that polls and runs no guests. Reads the clock and, some times a quantum, the
    /// slots.
    pub fn look(&self) {
        let now_ns = self.now_ns();
        if self.polled.elapsed_ns(now_ns) >= (self.quantum_ns() / LOOKS_PER_QUANTUM).min(LOOK_NS_MAX) {
            self.polled.0.store(now_ns, Ordering::Relaxed);
            self.tick(now_ns);
        }
    }

    /// To be called by such a thread before it falls asleep.
    pub fn look_away(&self) {
        self.polled.never();
        self.relief.ring();
    }

    /// To be called by such a thread when it was woken and has passed on what it was woken for. A guest is going to need the
    /// ticker: who resumes it, and is waited for, then finds the timer set.
    pub fn expect_guests(&self) {
        self.ticker.ring();
    }

    /// The ticker's loop, on the calling thread, until `stop` is set and the doorbell rung. It goes on for `linger` after a guest was last
    /// resumed.
    pub fn run(&self, linger: Duration, stop: &AtomicBool) {
        // By default the kernel has a sleep of 10 us take 60, and a guest the core for so much longer.
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
        let mut pace = Pace::new(self.quantum);
        while !stop.load(Ordering::Relaxed) {
            let now_ns = self.now_ns();
            if self.is_polled(now_ns) {
                self.relief.sleep(POLLED_STILL.max(self.quantum), || !self.is_polled(now_ns));
                continue;
            }
            let seen = self.tick(now_ns);
            let until_next = pace.until_next(seen, now_ns);
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

    /// Has rings set a timer, at which the ticker then sleeps; or, if there is none to be had, wake the calling thread.
    fn timer(&self) -> Option<Arc<Timer>> {
        match Timer::new() {
            Ok(timer) => {
                let timer = Arc::new(timer);
                let (set, polled, stopwatch, quantum) =
                    (Arc::clone(&timer), Arc::clone(&self.polled), self.stopwatch.clone(), self.quantum);
                self.ticker.answer_by(move || {
                    let is_polled = polled.is_kept_up(stopwatch.elapsed_ns(), quantum);
                    set.set(if is_polled { quantum * POLLED_QUANTA } else { quantum });
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
        let mut seen = Seen::Nobody;
        for Slot { running, engine, haste } in &self.slots {
            let Some(since_ns) = running.since_ns() else { continue };
            let is_overdue = now_ns.saturating_sub(since_ns) >= self.quantum_ns();
            if is_overdue {
                engine.increment_epoch();
            }
            seen = seen.max(if is_overdue && *haste == Haste::Others { Seen::Overdue } else { Seen::Guests });
        }
        seen
    }

    /// Whether a thread that polls looks at the slots.
    fn is_polled(&self, now_ns: u64) -> bool {
        self.polled.is_kept_up(now_ns, self.quantum)
    }

    fn anybody_runs(&self) -> bool {
        self.slots.iter().any(|slot| slot.running.since_ns().is_some())
    }

    /// Whether the ticker goes on after a look that found this: whoever has a turn now and then is not met by many looks.
    fn lingers(&self, linger: Duration, seen: Seen, now_ns: u64) -> bool {
        let resumed_ns = self.slots.iter().map(|slot| slot.running.resumed_ns()).max().unwrap_or(0);
        seen != Seen::Nobody || now_ns.saturating_sub(resumed_ns) < linger.as_nanos() as u64
    }

    fn now_ns(&self) -> u64 {
        self.stopwatch.elapsed_ns()
    }

    fn quantum_ns(&self) -> u64 {
        self.quantum.as_nanos() as u64
    }
}

/// A timer of the kernel's, at which the ticker sleeps.
struct Timer {
    file: OwnedFd,
    /// Whether it is going to go off, or has and nobody has seen it yet.
    is_set: AtomicBool,
}

impl Timer {
    fn new() -> std::io::Result<Self> {
        let file = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self { file, is_set: AtomicBool::new(false) })
    }

    /// Has it go off after `delay`, unless it is going to anyway: those who come later do not put it off.
    fn set(&self, delay: Duration) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(delay) };
            // Fails for no file that is a timer and no time that is one.
            let _ = timerfd_settime(&self.file, TimerfdTimerFlags::empty(), &once);
        }
    }

    /// Waits until it goes off, or has since it was last waited for, or `timeout` has passed.
    fn wait(&self, timeout: Duration) {
        let _ = poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&timespec(timeout)));
        let _ = rustix::io::read(&self.file, &mut [0_u8; 8]);
        // Whoever found it set until here is seen by whoever looks at the slots from here on.
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
    fn the_ticker_goes_on_while_guests_have_turns_now_and_then_although_it_meets_none() {
        let engine = Engine::default();
        let mut clock = Clock::new(Duration::from_micros(20));
        let slots = [clock.slot(&engine, Haste::Others), clock.slot(&engine, Haste::Others)];
        let (watch, linger_ns) = (clock.wind_up(), LINGER.as_nanos() as u64);
        assert!(!watch.lingers(LINGER, Seen::Nobody, 2 * linger_ns), "nobody has ever had a turn");
        let resumed_ns = slots[1].begin();
        assert_eq!(watch.tick(resumed_ns), Seen::Guests);
        assert!(watch.lingers(LINGER, Seen::Guests, resumed_ns + 2 * linger_ns), "it has the core still");
        slots[1].end();
        assert_eq!(watch.tick(resumed_ns), Seen::Nobody);
        assert!(watch.lingers(LINGER, Seen::Nobody, resumed_ns + linger_ns / 2));
        assert!(!watch.lingers(LINGER, Seen::Nobody, resumed_ns + 2 * linger_ns));
    }

    #[test]
    fn a_thread_that_lost_its_core_to_the_ticker_that_looks_for_it_polls_still() {
        let mut clock = Clock::new(Duration::from_micros(5));
        let slot = clock.slot(&Engine::default(), Haste::Others);
        let watch = clock.wind_up();
        assert!(!watch.is_polled(slot.now_ns()), "nobody has looked");
        watch.look();
        let looked_ns = slot.now_ns();
        assert!(watch.is_polled(looked_ns + 20_000), "the ticker's wake-up takes longer than this quantum");
        assert!(!watch.is_polled(looked_ns + POLLED_LATELY.as_nanos() as u64));
        watch.look();
        watch.look_away();
        assert!(!watch.is_polled(looked_ns), "it sleeps");
    }

    #[test]
    fn a_timer_that_was_set_ends_the_wait_for_it() {
        let (timer, start) = (Timer::new().unwrap(), Instant::now());
        for _ in 0..3 {
            timer.set(Duration::from_micros(100));
            timer.wait(LONG);
        }
        assert!(start.elapsed() < LONG / 2, "three waits took {:?}", start.elapsed());
    }

    #[test]
    fn whoever_sets_a_timer_later_does_not_put_it_off() {
        let (timer, start) = (Timer::new().unwrap(), Instant::now());
        timer.set(Duration::from_micros(100));
        timer.set(LONG);
        timer.wait(LONG);
        assert!(start.elapsed() < LONG / 2, "the wait took {:?}", start.elapsed());
    }
}
