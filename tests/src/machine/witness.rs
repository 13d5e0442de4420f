//! Detects whether the machine stood still for a moment, as a shared machine does at times. On each core a thread sleeps briefly again and
//! again, and records when it was not run for far longer. The kernel counts how long processes waited for a disk.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::machine::cores::stay_on;

/// The time of one sleep.
const NAP: Duration = Duration::from_millis(2);
/// The shortest gap that is recorded.
const GAP_MIN: Duration = Duration::from_millis(5);

/// Records gaps until it is dropped.
#[derive(Debug)]
pub struct Witness {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    gaps: Mutex<Vec<Gap>>,
    stop: AtomicBool,
}

/// The start and the length of a gap in which the witness on some core was not run.
#[derive(Debug)]
struct Gap {
    start: Instant,
    length: Duration,
}

impl Witness {
    /// Starts a witness on each of these cores.
    ///
    /// # Panics
    /// If this process may not run on one of them.
    #[must_use]
    pub fn on(cores: &[usize]) -> Self {
        let shared = Arc::<Shared>::default();
        let watch = |core: &usize| {
            let (shared, core) = (Arc::clone(&shared), *core);
            std::thread::spawn(move || {
                stay_on(core);
                shared.watch();
            })
        };
        Self { threads: cores.iter().map(watch).collect(), shared }
    }

    /// Returns the moment at which a measurement begins.
    #[must_use]
    pub fn now(&self) -> Sample {
        Sample { disk: waited_for_disks(), at: Instant::now() }
    }

    /// Returns how long the machine stood still between then and now: the time in which cores did not run, possibly one after the other, or
    /// in which processes waited for a disk.
    #[must_use]
    pub fn standstill(&self, since: &Sample) -> Duration {
        let disk = waited_for_disks().saturating_sub(since.disk);
        // A witness that was not run either gets the time to record that.
        std::thread::sleep(3 * NAP);
        let gaps = self.shared.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        let within = |gap: &Gap| (gap.start + gap.length).saturating_duration_since(since.at).min(gap.length);
        gaps.iter().map(within).sum::<Duration>() + disk
    }
}

/// A moment, with what the machine had counted until then.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    at: Instant,
    disk: Duration,
}

/// Returns how long processes have waited for a disk since the machine started; zero where the kernel does not count it.
fn waited_for_disks() -> Duration {
    let text = std::fs::read_to_string("/proc/pressure/io").unwrap_or_default();
    let total_us = text.lines().find(|line| line.starts_with("some ")).and_then(|line| line.rsplit_once("total="));
    Duration::from_micros(total_us.and_then(|(_, number)| number.parse().ok()).unwrap_or(0))
}

impl Shared {
    fn watch(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            std::thread::sleep(NAP);
            let length = start.elapsed();
            if length >= GAP_MIN {
                self.gaps.lock().unwrap_or_else(PoisonError::into_inner).push(Gap { start, length });
            }
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
