//! Which threads wake together.
//!
//! Waking a core takes longer than handling a frame, and a frame needs several cores: the gateway's, its MMA's, a worker's. If each were
//! woken by the one before it, the first frame after a pause would wait for all wake-ups in turn. So the frame wakes them together. A
//! thread without ports is a follower: it sleeps on the devices of threads with ports. Those also ring it as soon as they are awake, since
//! by then they may have read the frame, so that the device reports nothing any more.
//!
//! A follower that woke for nothing several times in a row sleeps until its doorbell rings for work: with many workers, most frames are for
//! others.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pinion_gateway::gateway::Gateway;
use pinion_mma::notify::doorbell::Doorbell;

use super::Role;

/// How often in a row a follower may wake for nothing.
const IN_VAIN_MAX: u32 = 4;

/// What wakes a thread, and which threads it wakes.
pub struct Wakeup {
    pub(super) bell: Doorbell,
    place: WakeOrder,
}

enum WakeOrder {
    /// A thread with ports, and its followers.
    Leader(Vec<Arc<Follower>>),
    /// A thread without ports, and the descriptors by which the others' devices report frames.
    Follower(Arc<Follower>, Arc<[OwnedFd]>),
}

/// A thread without ports.
struct Follower {
    bell: Doorbell,
    /// Wake-ups since it last had work.
    in_vain: AtomicU32,
}

impl Wakeup {
    /// Returns the descriptors that report frames which other threads receive and on which this thread wakes.
    pub(super) fn followed(&self) -> &[OwnedFd] {
        match &self.place {
            WakeOrder::Follower(thread, devices) if thread.is_hopeful() => devices,
            WakeOrder::Leader(_) | WakeOrder::Follower(..) => &[],
        }
    }

    /// Wakes the followers of this thread, which a frame has woken.
    pub(super) fn rouse_followers(&self) {
        if let WakeOrder::Leader(followers) = &self.place {
            followers.iter().filter(|follower| follower.is_hopeful()).for_each(|follower| follower.bell.ring());
        }
    }

    fn follower(&self) -> Option<Arc<Follower>> {
        match &self.place {
            WakeOrder::Follower(thread, _) => Some(Arc::clone(thread)),
            WakeOrder::Leader(_) => None,
        }
    }

    /// Notes whether this thread had work after its last wake-up.
    pub(super) fn learn(&self, had_work: WokeForWork) {
        if let WakeOrder::Follower(thread, _) = &self.place {
            thread.learn(had_work);
        }
    }
}

impl Follower {
    fn new(bell: &Doorbell) -> Self {
        Self { bell: bell.clone(), in_vain: AtomicU32::new(0) }
    }

    /// Returns whether it is woken by a frame before the frame's worker is known.
    fn is_hopeful(&self) -> bool {
        self.in_vain.load(Ordering::Relaxed) < IN_VAIN_MAX
    }

    fn learn(&self, had_work: WokeForWork) {
        let in_vain = match had_work {
            WokeForWork::Yes => 0,
            WokeForWork::No => self.in_vain.load(Ordering::Relaxed).saturating_add(1),
        };
        self.in_vain.store(in_vain, Ordering::Relaxed);
    }
}

/// Whether a thread had work since it was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WokeForWork {
    Yes,
    No,
}

/// Returns, for each of these threads, what wakes it, in their order. A thread is given by its doorbell and its roles.
#[must_use]
pub fn wakeups<'a>(threads: impl Iterator<Item = (&'a Doorbell, &'a [Role])> + Clone) -> Vec<Wakeup> {
    let descriptors = threads.clone().flat_map(|(_, roles)| gateways(roles)).flat_map(Gateway::descriptors);
    let duplicates = descriptors.map(|device| device.try_clone_to_owned()).collect::<Result<_, _>>();
    // Without descriptors, followers sleep until their doorbell rings.
    let devices: Arc<[OwnedFd]> = duplicates.unwrap_or_default();
    let place = |bell: &Doorbell, roles| match gateways(roles).next() {
        Some(_) => WakeOrder::Leader(Vec::new()),
        None => WakeOrder::Follower(Arc::new(Follower::new(bell)), Arc::clone(&devices)),
    };
    let mut wakeups: Vec<_> =
        threads.map(|(bell, roles)| Wakeup { bell: bell.clone(), place: place(bell, roles) }).collect();
    let all: Vec<_> = wakeups.iter().filter_map(Wakeup::follower).collect();
    for wakeup in &mut wakeups {
        if let WakeOrder::Leader(followers) = &mut wakeup.place {
            followers.clone_from(&all);
        }
    }
    wakeups
}

/// The gateways among a thread's roles: one at most.
pub(super) fn gateways(roles: &[Role]) -> impl Iterator<Item = &Gateway> {
    roles.iter().filter_map(|role| match role {
        Role::Gateway(gateway) => Some(&**gateway),
        Role::Mma(_) | Role::Worker(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_that_wakes_for_nothing_repeatedly_is_no_longer_woken() {
        let follower = Follower::new(&Doorbell::default());
        (0..IN_VAIN_MAX).for_each(|_| follower.learn(WokeForWork::No));
        assert!(!follower.is_hopeful());
    }

    #[test]
    fn a_follower_that_had_work_is_woken_again() {
        let follower = Follower::new(&Doorbell::default());
        (0..2 * IN_VAIN_MAX).for_each(|_| follower.learn(WokeForWork::No));
        follower.learn(WokeForWork::Yes);
        assert!(follower.is_hopeful());
    }
}
