//! The epoch clock: takes the core from a guest that has had its quantum.
//!
//! Each thread that runs guests has a [`RunSlot`] and writes into it when a guest starts to run. The ticker thread looks
//! at the slots every half quantum and advances the epoch of an engine whose guest has had its time; the guest
//! then yields at its next loop or function boundary. So a guest that the ticker interrupts has had its quantum. An
//! instance that comes to its first wait on the launcher moves the epoch of its future worker's engine as well, which can end
//! one turn there early. When no guest has run for a while, the ticker sleeps: an idle node has no tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use pinion_mma::doorbell::Doorbell;
use wasmtime::Engine;

/// How long the ticker goes on after the last guest stopped running.
const LINGER: Duration = Duration::from_millis(5);

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

/// The clock of a node: slots, and the ticker that watches them.
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

    /// The ticker's loop, on the calling thread, until `stop` is set and the doorbell rung.
    pub fn run(self, stop: &AtomicBool) {
        self.ticker.answer_here();
        let mut last_seen = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if self.tick() {
                last_seen = Instant::now();
            }
            if last_seen.elapsed() < LINGER {
                std::thread::sleep(self.quantum / 2);
            } else {
                self.ticker.sleep(Duration::from_secs(1), || self.anybody_runs());
            }
        }
    }

    /// Advances the epochs that are due; whether any guest runs.
    fn tick(&self) -> bool {
        let now_ns = self.origin.elapsed().as_nanos() as u64;
        let quantum_ns = self.quantum.as_nanos() as u64;
        let mut anybody = false;
        for (running, engine) in &self.slots {
            let since_ns = running.0.load(Ordering::Relaxed);
            anybody |= since_ns != 0;
            if since_ns != 0 && now_ns.saturating_sub(since_ns) >= quantum_ns {
                engine.increment_epoch();
            }
        }
        anybody
    }

    fn anybody_runs(&self) -> bool {
        self.slots.iter().any(|(running, _)| running.0.load(Ordering::Relaxed) != 0)
    }
}
