//! Roles on threads: gateway, MMA and workers are loops; the core plan says which share a thread.
//!
//! A thread polls its roles in turn. When none has had anything to do for a while it gives way, and then, unless the
//! node is to be always busy, sleeps until somebody rings or a device has a frame (`sleep.rs`).

mod sleep;
mod wakeup;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pinion_gateway::gateway::Gateway;
use pinion_mma::mover::Mma;
use serde::Deserialize;

use self::sleep::{Sleeper, Woken};
use self::wakeup::HadWork;
pub use self::wakeup::{Wakeup, wakeups};
use crate::clock::{Moment, Watch};
use crate::launcher::{Caller, GivenWay, UNCALLED_STEP};
use crate::worker::Worker;

/// What a thread does when there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// Polls always: the lowest latency, at the price of whole cores.
    Busy,
    /// Polls for a while, then sleeps.
    #[default]
    Adaptive,
}

/// How long a thread polls in vain before it gives way.
const SPIN: Duration = Duration::from_micros(20);
/// How long a thread polls after that before it gives way again. To give way takes longer than all that a packet needs meanwhile, and whatever
/// would be seen coming is not.
const GIVE_WAY_EVERY: Duration = Duration::from_micros(10);
/// How long after it was woken a thread gives way at once: whom it was woken for may wait for this very core.
const FRESH: Duration = Duration::from_millis(1);
/// How long a thread keeps its core from a launcher on it while packets are on their way from one stage of a chain to the next: longer
/// than they take, lest a step of the launcher's come in between.
const CHAIN_HOP_MAX: Duration = Duration::from_micros(25);
/// How long a thread with work may let the launcher wait that shares its core.
const LAUNCHER_WAITS: Duration = Duration::from_micros(100);
/// How long before it sleeps: longer than it takes to wake another thread that sleeps, lest one falls asleep while it
/// waits for the other, and both have to be woken for each packet.
const YIELD: Duration = Duration::from_micros(250);

/// A loop of the data plane.
pub enum Role {
    /// Net-In and Net-Out.
    Gateway(Box<Gateway>),
    /// The memory movement accelerator.
    Mma(Box<Mma>),
    /// A worker.
    Worker(Box<Worker>),
}

/// What a poll came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Did {
    Nothing,
    /// Functions had turns, and neither got nor sent anything: nobody is going to answer.
    ForItself,
    ForOthers,
}

impl Role {
    fn poll(&mut self) -> Did {
        let done = match self {
            Self::Gateway(gateway) => gateway.poll(),
            Self::Mma(mma) => mma.poll(),
            Self::Worker(worker) => worker.poll(),
        };
        match self {
            _ if done == 0 => Did::Nothing,
            Self::Worker(worker) if worker.has_kept_to_itself() => Did::ForItself,
            _ => Did::ForOthers,
        }
    }

    /// Whether what it did in its last poll comes back to it soon.
    fn expects_packets(&self) -> bool {
        matches!(self, Self::Worker(worker) if worker.has_passed_on())
    }

    /// How long it has nothing to do unless somebody brings it something; none if that may be for ever.
    fn time_to_deadline(&self) -> Option<Duration> {
        match self {
            Self::Worker(worker) => worker.time_to_deadline(),
            Self::Gateway(_) | Self::Mma(_) => None,
        }
    }

    /// For how long it lets its core go when it has nothing to do.
    fn gives_way(&self) -> GivenWay {
        match self {
            Self::Worker(worker) if worker.time_to_deadline().is_none_or(|time| time >= UNCALLED_STEP) => {
                GivenWay::UntilCalled
            }
            // Its device calls nobody who polls.
            Self::Gateway(_) | Self::Mma(_) | Self::Worker(_) => GivenWay::ForAStep,
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

/// Polls `roles` on the calling thread until `stop` is set (and its bell rung). If none of them runs guests, the thread also
/// keeps `watch` over those that do.
pub fn run(roles: &mut [Role], wakeup: Wakeup, watch: &Watch, idle: Idle, mut launcher: Caller, stop: &AtomicBool) {
    let mut sleeper = Sleeper::new(wakeup, roles);
    let (mut idle_since, mut since_sleep) = (None, HadWork::No);
    let [mut woken_at, mut passed_on_at, mut gave_way_at]: [Option<Moment>; 3] = [None; 3];
    let runs_guests = roles.iter().any(|role| matches!(role, Role::Worker(_)));
    while !stop.load(Ordering::Relaxed) {
        if !runs_guests {
            watch.look();
        }
        let did = roles.iter_mut().fold(Did::Nothing, |did, role| did.max(role.poll()));
        if did == Did::ForOthers {
            if !runs_guests && woken_at.is_some() && since_sleep == HadWork::No {
                watch.expect_guests();
            }
            (idle_since, since_sleep) = (None, HadWork::Yes);
            passed_on_at = roles.iter().any(Role::expects_packets).then(Moment::now);
        }
        if did != Did::Nothing {
            launcher.after_work(LAUNCHER_WAITS);
            continue;
        }
        let idle_for = idle_since.get_or_insert_with(Moment::now).elapsed();
        woken_at = woken_at.filter(|woken_at| woken_at.elapsed() < FRESH);
        if idle_for >= YIELD && idle == Idle::Adaptive {
            launcher.fall_asleep();
            if !runs_guests {
                watch.look_away();
            }
            let woken = sleeper.sleep(roles, idle_for, std::mem::replace(&mut since_sleep, HadWork::No));
            launcher.wake_up();
            if woken == Woken::Called {
                // Whoever is woken is going to have work, if not yet.
                (idle_since, woken_at) = (None, Some(Moment::now()));
            }
        } else if passed_on_at.is_none_or(|at| at.elapsed() >= CHAIN_HOP_MAX) && launcher.is_wanted() {
            launcher.give_way(match roles {
                [role] => role.gives_way(),
                _ => GivenWay::ForAStep,
            });
        } else if (idle_for < SPIN || gave_way_at.is_some_and(|at| at.elapsed() < GIVE_WAY_EVERY)) && woken_at.is_none()
        {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
            gave_way_at = Some(Moment::now());
        }
    }
}
