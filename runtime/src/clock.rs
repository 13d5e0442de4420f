//! The epoch clock: takes the core from a guest that has had its quantum.
//!
//! Each thread that runs guests has a [`RunSlot`] and writes into it when a guest starts to run. Somebody looks at the slots
//! several times a quantum ([`Watch`]) and advances the epoch of an engine whose guest has had its time; the guest then
//! yields at its next loop or function boundary. So a guest that is interrupted has had its quantum. An instance that comes
//! to its first wait on the launcher moves the epoch of its future worker's engine as well, which can end one turn there
//! early.
//!
//! Who looks is whoever is awake: a data-plane thread that polls and runs no guests does it for next to nothing. The ticker's
//! own thread, which takes a core from somebody each time it wakes, does it only while no such thread polls; and when no
//! guest has run for a while, it sleeps: an idle node has no tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use pinion_mma::doorbell::Doorbell;
use wasmtime::Engine;

/// How long the ticker goes on after the last guest stopped running.
const LINGER: Duration = Duration::from_millis(5);
/// Quanta for which the ticker leaves the slots to a thread that polls before it sees whether that still does.
const POLLED_QUANTA: u32 = 4;

/// When the guest that a thread runs now was resumed, in nanoseconds since the clock was made; zero while none runs.
#[derive(Debug, Default)]
struct Running(CachePadded<AtomicU64>);

/// A thread's entry in the clock.
#[derive(Clone)]
pub struct RunSlot {
    running: Arc<Running>,
    ticker: Doorbell,
    origin: Instant,
}

impl RunSlot {
    /// To be called before the first of several guests is resumed, or after the thread did something else; the time now, in
    /// nanoseconds of this clock.
    #[must_use]
    pub fn begin(&self) -> u64 {
        let now_ns = self.now_ns();
        self.running.0.store(now_ns, Ordering::Relaxed);
        self.ticker.ring();
        now_ns
    }

    /// To be called when one guest is off the core and the next may be resumed; the time now. Reading the clock costs a good
    /// part of what a short turn does, so one guest's end is the next one's start.
    #[must_use]
    pub fn next(&self) -> u64 {
        let now_ns = self.now_ns();
        self.running.0.store(now_ns, Ordering::Relaxed);
        now_ns
    }

    /// To be called when no guest is on the core any more.
    pub fn end(&self) {
        self.running.0.store(0, Ordering::Relaxed);
    }

    fn now_ns(&self) -> u64 {
        // Zero means that nobody runs.
        (self.origin.elapsed().as_nanos() as u64).max(1)
    }
}

/// The clock of a node while it is put together.
pub struct Clock {
    quantum: Duration,
    origin: Instant,
    ticker: Doorbell,
    slots: Vec<(Arc<Running>, Engine)>,
}

impl Clock {
    /// A clock that gives guests `quantum` each.
    #[must_use]
    pub fn new(quantum: Duration) -> Self {
        Self { quantum, origin: Instant::now(), ticker: Doorbell::default(), slots: Vec::new() }
    }

    /// Adds a thread that runs guests of `engine`.
    pub fn slot(&mut self, engine: &Engine) -> RunSlot {
        let running = Arc::new(Running::default());
        self.slots.push((Arc::clone(&running), engine.clone()));
        RunSlot { running, ticker: self.ticker.clone(), origin: self.origin }
    }

    /// Wakes the ticker's thread.
    #[must_use]
    pub fn bell(&self) -> Doorbell {
        self.ticker.clone()
    }

    /// The clock with all its slots: for the ticker, and for threads that poll.
    #[must_use]
    pub fn wind_up(self) -> Arc<Watch> {
        let Self { quantum, origin, ticker, slots } = self;
        Arc::new(Watch { quantum, origin, ticker, slots, polled_ns: CachePadded::default() })
    }
}

/// Looks at the slots and takes the core from guests that have had their quantum.
pub struct Watch {
    quantum: Duration,
    origin: Instant,
    ticker: Doorbell,
    slots: Vec<(Arc<Running>, Engine)>,
    /// When a polling thread last looked, in nanoseconds since `origin`.
    polled_ns: CachePadded<AtomicU64>,
}

impl Watch {
    /// To be called again and again by a thread that polls and runs no guests. Reads the clock and, some times a quantum, the
    /// slots.
    pub fn look(&self) {
        let now_ns = self.now_ns();
        if now_ns.saturating_sub(self.polled_ns.load(Ordering::Relaxed)) >= self.quantum_ns() / 4 {
            self.polled_ns.store(now_ns, Ordering::Relaxed);
            self.tick(now_ns);
        }
    }

    /// The ticker's loop, on the calling thread, until `stop` is set and the doorbell rung.
    pub fn run(&self, stop: &AtomicBool) {
        self.ticker.answer_here();
        let mut last_seen = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let now_ns = self.now_ns();
            if self.is_polled(now_ns) {
                std::thread::sleep(self.quantum * POLLED_QUANTA);
                continue;
            }
            if self.tick(now_ns) {
                last_seen = Instant::now();
            }
            if last_seen.elapsed() < LINGER {
                std::thread::sleep(self.quantum / 2);
            } else {
                self.ticker.sleep(Duration::from_secs(1), || self.anybody_runs());
            }
        }
    }

    /// Whether a polling thread looks often enough.
    fn is_polled(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.polled_ns.load(Ordering::Relaxed)) < self.quantum_ns()
    }

    /// Advances the epochs that are due; whether any guest runs.
    fn tick(&self, now_ns: u64) -> bool {
        let mut anybody = false;
        for (running, engine) in &self.slots {
            let since_ns = running.0.load(Ordering::Relaxed);
            anybody |= since_ns != 0;
            if since_ns != 0 && now_ns.saturating_sub(since_ns) >= self.quantum_ns() {
                engine.increment_epoch();
            }
        }
        anybody
    }

    fn anybody_runs(&self) -> bool {
        self.slots.iter().any(|(running, _)| running.0.load(Ordering::Relaxed) != 0)
    }

    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn quantum_ns(&self) -> u64 {
        self.quantum.as_nanos() as u64
    }
}
