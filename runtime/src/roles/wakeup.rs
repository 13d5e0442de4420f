//! Which threads wake together.
//!
//! To wake a core takes longer than to handle a frame, and a frame needs several: the gateway's, its MMA's, a worker's. If each
//! were woken by the one before it, the first frame after a pause would wait for all of them in turn. So the frame wakes them
//! together: a thread without ports is a follower, which sleeps at the devices of those that have some, and which these
//! ring as soon as they are awake, for by then there may be nothing left to see at the device.
//!
//! A follower that there was nothing to do for several times in a row sleeps on until somebody has work for it: most frames
//! are other workers' where there are many.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pinion_gateway::gateway::Gateway;
use pinion_mma::doorbell::Doorbell;

use super::Role;
use super::sleep::gateways;

/// How often in a row a follower wakes for nothing.
const IN_VAIN_MAX: u32 = 4;

/// What wakes a thread, and whom it wakes.
pub struct Wakeup {
    pub(super) bell: Doorbell,
    place: Place,
}

enum Place {
    /// Of a thread with ports: those that follow it.
    Leader(Vec<Arc<Follower>>),
    /// Of a thread without: what the others' devices report frames by.
    Follower(Arc<Follower>, Arc<[OwnedFd]>),
}

/// A thread without ports.
struct Follower {
    bell: Doorbell,
    /// Wake-ups since it last had something to do.
    in_vain: AtomicU32,
}

impl Wakeup {
    /// What reports those frames to wake by that are other threads' to receive.
    pub(super) fn followed(&self) -> &[OwnedFd] {
        match &self.place {
            Place::Follower(thread, devices) if thread.is_hopeful() => devices,
            Place::Leader(_) | Place::Follower(..) => &[],
        }
    }

    /// Wakes those that follow this thread, which a frame has woken.
    pub(super) fn rouse_followers(&self) {
        if let Place::Leader(followers) = &self.place {
            followers.iter().filter(|follower| follower.is_hopeful()).for_each(|follower| follower.bell.ring());
        }
    }

    fn follower(&self) -> Option<Arc<Follower>> {
        match &self.place {
            Place::Follower(thread, _) => Some(Arc::clone(thread)),
            Place::Leader(_) => None,
        }
    }

    /// Takes note of how a wake-up of this thread's went.
    pub(super) fn learn(&self, had_work: HadWork) {
        if let Place::Follower(thread, _) = &self.place {
            thread.learn(had_work);
        }
    }
}

impl Follower {
    fn new(bell: &Doorbell) -> Self {
        Self { bell: bell.clone(), in_vain: AtomicU32::new(0) }
    }

    /// Whether it is to be woken by a frame of which nobody knows yet whom it is for.
    fn is_hopeful(&self) -> bool {
        self.in_vain.load(Ordering::Relaxed) < IN_VAIN_MAX
    }

    fn learn(&self, had_work: HadWork) {
        let in_vain = match had_work {
            HadWork::Yes => 0,
            HadWork::No => self.in_vain.load(Ordering::Relaxed).saturating_add(1),
        };
        self.in_vain.store(in_vain, Ordering::Relaxed);
    }
}

/// Whether a thread has done anything since it was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HadWork {
    Yes,
    No,
}

/// What wakes each of these threads, of which the doorbells and roles are given, in their order.
#[must_use]
pub fn wakeups<'a>(threads: impl Iterator<Item = (&'a Doorbell, &'a [Role])> + Clone) -> Vec<Wakeup> {
    let descriptors = threads.clone().flat_map(|(_, roles)| gateways(roles)).flat_map(Gateway::descriptors);
    let duplicates = descriptors.map(|device| device.try_clone_to_owned()).collect::<Result<_, _>>();
    // Without, followers wait until they are rung.
    let devices: Arc<[OwnedFd]> = duplicates.unwrap_or_default();
    let place = |bell: &Doorbell, roles| match gateways(roles).next() {
        Some(_) => Place::Leader(Vec::new()),
        None => Place::Follower(Arc::new(Follower::new(bell)), Arc::clone(&devices)),
    };
    let mut wakeups: Vec<_> =
        threads.map(|(bell, roles)| Wakeup { bell: bell.clone(), place: place(bell, roles) }).collect();
    let all: Vec<_> = wakeups.iter().filter_map(Wakeup::follower).collect();
    for wakeup in &mut wakeups {
        if let Place::Leader(followers) = &mut wakeup.place {
            followers.clone_from(&all);
        }
    }
    wakeups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_that_wakes_for_nothing_again_and_again_sleeps_on() {
        let follower = Follower::new(&Doorbell::default());
        (0..IN_VAIN_MAX).for_each(|_| follower.learn(HadWork::No));
        assert!(!follower.is_hopeful());
    }

    #[test]
    fn a_follower_that_has_had_work_is_woken_again() {
        let follower = Follower::new(&Doorbell::default());
        (0..2 * IN_VAIN_MAX).for_each(|_| follower.learn(HadWork::No));
        follower.learn(HadWork::Yes);
        assert!(follower.is_hopeful());
    }
}
