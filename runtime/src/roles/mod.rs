//! Roles on threads: gateway, MMA and workers are loops; the core plan determines which share a thread.
//!
//! A thread polls its roles in turn. When none has had work for a while, the thread yields. Later it sleeps until its doorbell rings or a
//! device has a frame (`sleep.rs`), unless the node polls always, or the thread is needed to interrupt guests.

mod sleep;
mod wakeup;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pinion_gateway::gateway::Gateway;
use pinion_mma::mover::Mma;
use serde::Deserialize;

use self::sleep::{Sleeper, WakeReason};
use self::wakeup::WokeForWork;
pub use self::wakeup::{Wakeup, wakeups};
use crate::clock::TscInstant;
use crate::launcher::{UNCALLED_STEP, WakeHandle, Yielded};
use crate::preemption::{POLLED_FOR, Watch};
use crate::worker::Worker;

/// What a thread does when its roles have no work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// Polls always: the lowest latency, at the cost of whole cores.
    Busy,
    /// Polls for a while, then sleeps.
    #[default]
    Adaptive,
}

/// How long a thread polls in vain before it yields.
const SPIN: Duration = Duration::from_micros(20);
/// How long a thread polls between two yields. A yield takes longer than the handling of a packet, and work that arrives meanwhile is seen
/// late.
const GIVE_WAY_EVERY: Duration = Duration::from_micros(10);
/// For how long after a wake-up a thread without work yields at once: the thread that has the work may wait for this core.
const FRESH: Duration = Duration::from_millis(1);
/// How long a thread does not yield to a launcher on its core after its worker passed packets on to another stage. It is longer than a
/// packet takes there and back, so that no step of the launcher delays it.
const CHAIN_HOP_MAX: Duration = Duration::from_micros(25);
/// How long a thread with work may keep a launcher on its core waiting.
const LAUNCHER_WAITS: Duration = Duration::from_micros(100);
/// How long a thread polls in vain before it sleeps. It is longer than waking another thread takes: otherwise a thread would fall asleep
/// while it waits for the other, and both would have to be woken for each packet.
const YIELD: Duration = Duration::from_micros(250);

// The ticker leaves the clock to a thread that polls, and is not to take its core before that thread sleeps.
const _: () = assert!(YIELD.as_micros() < POLLED_FOR.as_micros());

/// A loop of the data plane.
pub enum Role {
    /// Net-In and Net-Out.
    Gateway(Box<Gateway>),
    /// The memory movement accelerator.
    Mma(Box<Mma>),
    /// A worker.
    Worker(Box<Worker>),
}

/// The outcome of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PollOutcome {
    Nothing,
    /// Functions had turns but neither received nor sent anything, so no answer follows.
    ForItself,
    ForOthers,
}

impl Role {
    fn poll(&mut self) -> PollOutcome {
        let done = match self {
            Self::Gateway(gateway) => gateway.poll(),
            Self::Mma(mma) => mma.poll(),
            Self::Worker(worker) => worker.poll(),
        };
        match self {
            _ if done == 0 => PollOutcome::Nothing,
            Self::Worker(worker) if worker.has_kept_to_itself() => PollOutcome::ForItself,
            _ => PollOutcome::ForOthers,
        }
    }

    /// Returns whether packets that its last poll passed on are expected back soon.
    fn expects_packets(&self) -> bool {
        matches!(self, Self::Worker(worker) if worker.has_passed_on())
    }

    /// Returns how long it has no work unless input arrives; none if there is no deadline.
    fn time_to_deadline(&self) -> Option<Duration> {
        match self {
            Self::Worker(worker) => worker.time_to_deadline(),
            Self::Gateway(_) | Self::Mma(_) => None,
        }
    }

    /// Returns for how long it can yield its core when it has no work.
    fn gives_way(&self) -> Yielded {
        match self {
            Self::Worker(worker) if worker.time_to_deadline().is_none_or(|time| time >= UNCALLED_STEP) => {
                Yielded::UntilCalled
            }
            // A device does not raise an interrupt while its port is polled.
            Self::Gateway(_) | Self::Mma(_) | Self::Worker(_) => Yielded::ForAStep,
        }
    }

    fn has_work(&mut self) -> bool {
        match self {
            Self::Gateway(gateway) => gateway.has_work(),
            Self::Mma(mma) => mma.has_work(),
            Self::Worker(worker) => worker.has_work(),
        }
    }
}

/// Polls `roles` on the calling thread until `stop` is set (and the thread's doorbell rung). If none of the roles runs guests, the thread
/// also checks the clock of threads that do, with `watch`.
pub fn run(roles: &mut [Role], wakeup: Wakeup, watch: &Watch, idle: Idle, mut launcher: WakeHandle, stop: &AtomicBool) {
    let mut sleeper = Sleeper::new(wakeup, roles);
    let (mut idle_since, mut since_sleep) = (None, WokeForWork::No);
    let [mut woken_at, mut passed_on_at, mut gave_way_at]: [Option<TscInstant>; 3] = [None; 3];
    let runs_guests = roles.iter().any(|role| matches!(role, Role::Worker(_)));
    while !stop.load(Ordering::Relaxed) {
        if !runs_guests {
            watch.look();
        }
        let did = roles.iter_mut().fold(PollOutcome::Nothing, |did, role| did.max(role.poll()));
        if did == PollOutcome::ForOthers {
            if !runs_guests && woken_at.is_some() && since_sleep == WokeForWork::No {
                watch.expect_guests();
            }
            (idle_since, since_sleep) = (None, WokeForWork::Yes);
            passed_on_at = roles.iter().any(Role::expects_packets).then(TscInstant::now);
        }
        if did != PollOutcome::Nothing {
            launcher.after_work(LAUNCHER_WAITS);
            continue;
        }
        let idle_for = idle_since.get_or_insert_with(TscInstant::now).elapsed();
        woken_at = woken_at.filter(|woken_at| woken_at.elapsed() < FRESH);
        if idle_for >= YIELD && idle == Idle::Adaptive && (runs_guests || !watch.is_needed()) {
            launcher.fall_asleep();
            if !runs_guests {
                watch.look_away();
            }
            let woken = sleeper.sleep(roles, idle_for, std::mem::replace(&mut since_sleep, WokeForWork::No));
            launcher.wake_up();
            if woken == WakeReason::Called {
                // A wake-up means that work is coming, even if it is not here yet.
                (idle_since, woken_at) = (None, Some(TscInstant::now()));
            }
        } else if passed_on_at.is_none_or(|at| at.elapsed() >= CHAIN_HOP_MAX) && launcher.is_wanted() {
            launcher.give_way(match roles {
                [role] => role.gives_way(),
                _ => Yielded::ForAStep,
            });
        } else if (idle_for < SPIN || gave_way_at.is_some_and(|at| at.elapsed() < GIVE_WAY_EVERY)) && woken_at.is_none()
        {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
            gave_way_at = Some(TscInstant::now());
        }
    }
}
