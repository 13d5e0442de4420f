//! Roles on threads: gateway, MMA and workers are loops; the core plan says which share a thread.
//!
//! A thread polls its roles in turn. When none has had anything to do for a while it gives way, and then, unless the
//! node is to be always busy, sleeps until somebody rings or a device has a frame (`sleep.rs`).

mod sleep;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pinion_gateway::gateway::Gateway;
use pinion_mma::doorbell::Doorbell;
use pinion_mma::mover::Mma;
use serde::Deserialize;

use self::sleep::Sleeper;
use crate::clock::Watch;
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

/// How long a thread polls in vain before it gives way at every poll.
const SPIN: Duration = Duration::from_micros(20);
/// How long before it sleeps.
const YIELD: Duration = Duration::from_micros(60);

/// A loop of the data plane.
pub enum Role {
    /// Net-In and Net-Out.
    Gateway(Box<Gateway>),
    /// The memory movement accelerator.
    Mma(Box<Mma>),
    /// A worker.
    Worker(Box<Worker>),
}

impl Role {
    fn poll(&mut self) -> usize {
        match self {
            Self::Gateway(gateway) => gateway.poll(),
            Self::Mma(mma) => mma.poll(),
            Self::Worker(worker) => worker.poll(),
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

/// Polls `roles` on the calling thread until `stop` is set (and `bell` rung). If none of them runs guests, the thread also
/// keeps `watch` over those that do.
pub fn run(roles: &mut [Role], bell: &Doorbell, watch: &Watch, idle: Idle, stop: &AtomicBool) {
    let mut sleeper = Sleeper::new(bell, roles);
    let mut idle_since: Option<Instant> = None;
    let runs_guests = roles.iter().any(|role| matches!(role, Role::Worker(_)));
    while !stop.load(Ordering::Relaxed) {
        if !runs_guests {
            watch.look();
        }
        if roles.iter_mut().map(Role::poll).sum::<usize>() > 0 {
            idle_since = None;
            continue;
        }
        let idle_for = idle_since.get_or_insert_with(Instant::now).elapsed();
        if idle_for < SPIN {
            std::hint::spin_loop();
        } else if idle_for < YIELD || idle == Idle::Busy {
            std::thread::yield_now();
        } else {
            sleeper.sleep(roles, idle_for);
        }
    }
}
