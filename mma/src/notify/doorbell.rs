//! Wakes a thread that sleeps because it had no work, without a system call while the thread is awake.

use std::sync::OnceLock;
use std::time::Duration;

use crate::sync::{Arc, AtomicBool, Ordering, Thread, current, fence, park_timeout};

/// Wakes one sleeping thread. Cheap to clone, and cheap to ring while the thread is awake (a fence and a load).
///
/// Work must be made visible (pushed to a queue) before [`Doorbell::ring`]; the sleeper looks for work again between
/// announcing its sleep and sleeping. Both put a sequentially consistent fence between their store and their load, so
/// at least one sees the other's and no wake-up is lost.
///
/// A sleeper that has nothing else to wait for parks ([`Doorbell::answer_here`], [`Doorbell::sleep`]). One that waits in
/// the kernel for something else as well says how it is woken there ([`Doorbell::answer_by`], [`Doorbell::sleep_by`]).
#[derive(Clone)]
pub struct Doorbell {
    /// None if no thread sleeps at it.
    shared: Option<Arc<Shared>>,
}

impl Default for Doorbell {
    fn default() -> Self {
        Self { shared: Some(Arc::default()) }
    }
}

#[derive(Default)]
struct Shared {
    sleeping: AtomicBool,
    sleeper: OnceLock<Sleeper>,
}

/// Which thread a ring wakes, and how.
enum Sleeper {
    Parked(Thread),
    Elsewhere(Box<dyn Fn() + Send + Sync>),
}

impl Doorbell {
    /// Makes a doorbell for work that a thread leaves for itself. The thread looks for that work before it sleeps, so
    /// ringing does nothing.
    #[must_use]
    pub const fn of_oneself() -> Self {
        Self { shared: None }
    }

    fn set_sleeper(&self, sleeper: Sleeper) {
        if let Some(shared) = &self.shared {
            let _ = shared.sleeper.set(sleeper);
        }
    }

    /// Makes the calling thread the one that this doorbell wakes. To be called once, by the sleeping thread, before
    /// [`Doorbell::sleep`].
    pub fn answer_here(&self) {
        self.set_sleeper(Sleeper::Parked(current()));
    }

    /// Sets `wake` as what ends a sleep in [`Doorbell::sleep_by`]. To be called once, before that. `wake` must also end
    /// a sleep that has not begun yet. It may be called by several threads, more than once for one sleep, and after
    /// that sleep has ended.
    pub fn answer_by(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.set_sleeper(Sleeper::Elsewhere(Box::new(wake)));
    }

    /// Wakes the thread if it sleeps; calls the kernel only then.
    pub fn ring(&self) {
        let Some(shared) = &self.shared else { return };
        fence(Ordering::SeqCst);
        if shared.sleeping.load(Ordering::Relaxed) {
            match shared.sleeper.get() {
                Some(Sleeper::Parked(thread)) => thread.unpark(),
                Some(Sleeper::Elsewhere(wake)) => wake(),
                None => {}
            }
        }
    }

    /// Sleeps until the doorbell rings or `timeout` has passed. Returns at once if `has_work` returns true.
    pub fn sleep(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        self.sleep_by(|| {
            if !has_work() {
                park_timeout(timeout);
            }
        });
    }

    /// Runs `sleep`, which rings end meanwhile. `sleep` must look for work first and sleep only if there is none.
    pub fn sleep_by(&self, sleep: impl FnOnce()) {
        let Some(shared) = &self.shared else { return };
        shared.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        sleep();
        shared.sleeping.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    #[test]
    fn a_ring_after_work_always_wakes_the_sleeper() {
        let (bell, work) = (Doorbell::default(), Arc::new(AtomicU32::new(0)));
        let rounds = 20_000;
        let sleeper = std::thread::spawn({
            let (bell, work) = (bell.clone(), Arc::clone(&work));
            move || {
                bell.answer_here();
                let mut done = 0;
                while done < rounds {
                    let started = Instant::now();
                    bell.sleep(Duration::from_secs(20), || work.load(Ordering::Relaxed) > done);
                    assert!(started.elapsed() < Duration::from_secs(10), "a wake-up was lost after {done} rounds");
                    done = work.load(Ordering::Acquire);
                }
            }
        });
        for round in 1..=rounds {
            work.store(round, Ordering::Release);
            bell.ring();
        }
        sleeper.join().unwrap();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{AtomicUsize, explore};
    use loom::thread;

    /// Loom's park has no timeout, so a lost wake-up is a deadlock.
    const NEVER: Duration = Duration::MAX;

    #[test]
    fn work_before_a_ring_is_never_slept_through() {
        explore(|| {
            let (bell, work) = (Doorbell::default(), Arc::new(AtomicUsize::new(0)));
            let worker = thread::spawn({
                let (bell, work) = (bell.clone(), Arc::clone(&work));
                move || {
                    for done in 1..=2 {
                        work.store(done, Ordering::Relaxed);
                        bell.ring();
                    }
                }
            });
            bell.answer_here();
            let mut done = 0;
            while done < 2 {
                bell.sleep(NEVER, || work.load(Ordering::Relaxed) > done);
                done = work.load(Ordering::Relaxed);
            }
            worker.join().unwrap();
        });
    }

    #[test]
    fn two_ringers_wake_one_sleeper() {
        explore(|| {
            let (bell, work) = (Doorbell::default(), Arc::new(AtomicUsize::new(0)));
            let ringers = [(); 2].map(|()| {
                let (bell, work) = (bell.clone(), Arc::clone(&work));
                thread::spawn(move || {
                    work.fetch_add(1, Ordering::Relaxed);
                    bell.ring();
                })
            });
            bell.answer_here();
            let mut done = 0;
            while done < 2 {
                bell.sleep(NEVER, || work.load(Ordering::Relaxed) > done);
                done = work.load(Ordering::Relaxed);
            }
            for ringer in ringers {
                ringer.join().unwrap();
            }
        });
    }

    #[test]
    fn a_sleeper_with_its_own_wake_up_misses_nothing_either() {
        explore(|| {
            let (bell, work) = (Doorbell::default(), Arc::new(AtomicUsize::new(0)));
            let alarm = Arc::new(loom::sync::Notify::new());
            bell.answer_by({
                let alarm = Arc::clone(&alarm);
                move || alarm.notify()
            });
            let worker = thread::spawn({
                let (bell, work) = (bell.clone(), Arc::clone(&work));
                move || {
                    for done in 1..=2 {
                        work.store(done, Ordering::Relaxed);
                        bell.ring();
                    }
                }
            });
            let mut done = 0;
            while done < 2 {
                bell.sleep_by(|| {
                    if work.load(Ordering::Relaxed) == done {
                        alarm.wait();
                    }
                });
                done = work.load(Ordering::Relaxed);
            }
            worker.join().unwrap();
        });
    }
}
