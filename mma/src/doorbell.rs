//! How one thread wakes another that has gone to sleep for want of work, without a system call while it is awake.

use std::sync::OnceLock;
use std::time::Duration;

use crate::sync::{Arc, AtomicBool, Ordering, Thread, current, fence, park_timeout};

/// Rings at one sleeper; cheap to clone and to ring while the sleeper is awake (a fence and a load).
///
/// Work must be made visible (pushed to a queue) before [`Doorbell::ring`]; the sleeper looks for work again between
/// announcing its sleep and sleeping. Both put a sequentially consistent fence between their store and their load, so
/// at least one sees the other's and no wake-up is lost.
#[derive(Clone, Default)]
pub struct Doorbell {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    sleeping: AtomicBool,
    sleeper: OnceLock<Thread>,
}

impl Doorbell {
    /// Makes the calling thread the one that this doorbell wakes. To be called once, by the sleeper, before
    /// [`Doorbell::sleep`].
    pub fn answer_here(&self) {
        let _ = self.shared.sleeper.set(current());
    }

    /// Wakes the sleeper if it sleeps. Calls the kernel only then.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::Relaxed)
            && let Some(sleeper) = self.shared.sleeper.get()
        {
            sleeper.unpark();
        }
    }

    /// Sleeps until rung at or until `timeout` has passed, unless `has_work` says there is something after all.
    pub fn sleep(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        self.shared.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_work() {
            park_timeout(timeout);
        }
        self.shared.sleeping.store(false, Ordering::Relaxed);
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

    /// Loom's park has no timeout: a wake-up that is lost is a deadlock.
    const NEVER: Duration = Duration::MAX;

    /// Each of the ringers has work `rounds` times and rings each time; the sleeper finds it all.
    fn assert_nothing_is_slept_through(ringers: usize, rounds: usize) {
        explore(move || {
            let (bell, work) = (Doorbell::default(), Arc::new(AtomicUsize::new(0)));
            let ring = || {
                let (bell, work) = (bell.clone(), Arc::clone(&work));
                thread::spawn(move || {
                    for _ in 0..rounds {
                        work.fetch_add(1, Ordering::Relaxed);
                        bell.ring();
                    }
                })
            };
            let ringers: Vec<_> = (0..ringers).map(|_| ring()).collect();
            bell.answer_here();
            let mut done = 0;
            while done < ringers.len() * rounds {
                bell.sleep(NEVER, || work.load(Ordering::Relaxed) > done);
                done = work.load(Ordering::Relaxed);
            }
            for ringer in ringers {
                ringer.join().unwrap();
            }
        });
    }

    #[test]
    fn work_before_a_ring_is_never_slept_through() {
        assert_nothing_is_slept_through(1, 2);
    }

    #[test]
    fn two_ringers_wake_one_sleeper() {
        assert_nothing_is_slept_through(2, 1);
    }
}
