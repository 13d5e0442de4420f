//! How long idle instances stay alive because their functions asked for it (`keep_alive_until`). The gateway, which
//! ends idle instances, reads this.
//!
//! ```text
//!   launcher: begin(the FWPs of an instance)            before any of them runs
//!   worker:   set(FWP, until)                           a function has asked for it: one store
//!   gateway:  may_end(first FWP, unseen for, now)       when an instance was unseen for its chain's idle time: not for each packet
//! ```
//!
//! No lock, no allocation. If a time is seen a moment late, the instance ends a moment late, or early by as much as the
//! function was late to set it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pinion_mma::id::FwpId;

use super::activation_clock::ActivationClock;

/// No FWP follows.
const NONE: u32 = u32::MAX;
/// Stages that a chain can have.
const STAGES_MAX: usize = 16;

/// Indexed by FWP.
#[derive(Debug)]
pub struct KeepAlives {
    until_ns: Box<[AtomicU64]>,
    /// The index of the instance's next FWP, or [`NONE`].
    next: Box<[AtomicU32]>,
    /// The longest that an instance may keep itself alive without a packet. In nanoseconds.
    max_ns: u64,
    /// A client waits for a place: the next idle instance is ended whatever it has asked for.
    place_is_wanted: AtomicBool,
    clock: Arc<ActivationClock>,
}

impl KeepAlives {
    /// Makes a table for `places` FWPs, which may keep their instances alive for `max_ns` without a packet, by the
    /// clock of a gateway.
    #[must_use]
    pub fn new(places: usize, max_ns: u64, clock: Arc<ActivationClock>) -> Self {
        Self {
            until_ns: (0..places).map(|_| AtomicU64::new(0)).collect(),
            next: (0..places).map(|_| AtomicU32::new(NONE)).collect(),
            max_ns,
            place_is_wanted: AtomicBool::new(false),
            clock,
        }
    }

    /// Returns the longest that an instance may keep itself alive without a packet, in nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Notes which FWPs an instance has, first to last, and clears what was asked for before. Must be called before the
    /// gateway and the workers get the instance.
    pub fn begin(&self, fwps: &[FwpId]) {
        for (number, fwp) in fwps.iter().enumerate() {
            let (Some(until_ns), Some(next)) =
                (self.until_ns.get(fwp.index as usize), self.next.get(fwp.index as usize))
            else {
                continue;
            };
            until_ns.store(0, Ordering::Relaxed);
            next.store(fwps.get(number + 1).map_or(NONE, |next| next.index), Ordering::Relaxed);
        }
    }

    /// Keeps an FWP's instance alive for `for_ns` from now on. With 0, this FWP no longer needs it.
    pub fn set(&self, fwp: FwpId, for_ns: u64) {
        if let Some(until_ns) = self.until_ns.get(fwp.index as usize) {
            let until = if for_ns == 0 { 0 } else { self.clock.now_ns().saturating_add(for_ns.min(self.max_ns)) };
            until_ns.store(until, Ordering::Relaxed);
        }
    }

    /// Makes the next idle instance end whatever it has asked for, because a client waits and there is no place for its
    /// instance.
    pub fn want_place(&self) {
        self.place_is_wanted.store(true, Ordering::Relaxed);
    }

    /// Withdraws [`KeepAlives::want_place`]: no client waits for a place any longer.
    pub fn found_place(&self) {
        self.place_is_wanted.store(false, Ordering::Relaxed);
    }

    /// Returns whether the gateway may end the instance that is entered by `first`. It has been unseen for `unseen_ns`,
    /// at least its chain's idle timeout. If the instance wanted to live but a place is wanted, this call uses up that
    /// request.
    pub(crate) fn may_end(&self, first: FwpId, unseen_ns: u64, now_ns: u64) -> bool {
        unseen_ns >= self.max_ns || !self.is_kept(first, now_ns) || self.place_is_wanted.swap(false, Ordering::Relaxed)
    }

    fn is_kept(&self, first: FwpId, now_ns: u64) -> bool {
        let mut place = first.index;
        for _ in 0..STAGES_MAX {
            let (Some(until_ns), Some(next)) = (self.until_ns.get(place as usize), self.next.get(place as usize))
            else {
                return false;
            };
            if now_ns < until_ns.load(Ordering::Relaxed) {
                return true;
            }
            place = next.load(Ordering::Relaxed);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S_NS: u64 = 1_000_000_000;

    fn fwp(index: u32) -> FwpId {
        FwpId { index, generation: 0 }
    }

    fn keep_alives(places: usize, max_ns: u64) -> KeepAlives {
        KeepAlives::new(places, max_ns, Arc::new(ActivationClock::new(places)))
    }

    #[test]
    fn each_stage_keeps_its_own_instance_alive_until_it_withdraws() {
        let keep = keep_alives(8, 1000 * S_NS);
        keep.begin(&[fwp(3), fwp(0), fwp(5)]);
        keep.begin(&[fwp(4)]);
        let may_end = |first| keep.may_end(fwp(first), S_NS, keep.clock.now_ns());
        assert!(may_end(3) && may_end(4));
        for stage in [3, 0, 5] {
            keep.set(fwp(stage), 100 * S_NS);
            assert!(!may_end(3) && may_end(4), "stage {stage}");
            keep.set(fwp(stage), 0);
            assert!(may_end(3), "stage {stage}");
        }
        keep.set(fwp(0), 50 * S_NS);
        keep.set(fwp(5), 100 * S_NS);
        let now_ns = keep.clock.now_ns();
        assert!(!keep.may_end(fwp(3), S_NS, now_ns + 60 * S_NS), "the latest counts");
        assert!(keep.may_end(fwp(3), S_NS, now_ns + 101 * S_NS));
    }

    #[test]
    fn an_earlier_instance_with_the_same_fwp_keeps_nothing_alive() {
        let keep = keep_alives(4, 1000 * S_NS);
        keep.begin(&[fwp(1), fwp(2)]);
        keep.set(fwp(2), 100 * S_NS);
        keep.begin(&[fwp(1)]);
        assert!(keep.may_end(fwp(1), S_NS, keep.clock.now_ns()));
        keep.begin(&[fwp(1), fwp(2)]);
        assert!(keep.may_end(fwp(1), S_NS, keep.clock.now_ns()));
    }

    #[test]
    fn no_instance_keeps_itself_alive_longer_than_the_maximum_without_a_packet() {
        let keep = keep_alives(1, 10 * S_NS);
        keep.begin(&[fwp(0)]);
        keep.set(fwp(0), u64::MAX);
        let now_ns = keep.clock.now_ns();
        assert!(!keep.may_end(fwp(0), 10 * S_NS - 1, now_ns));
        assert!(keep.may_end(fwp(0), 10 * S_NS, now_ns));
        assert!(keep.may_end(fwp(0), S_NS, now_ns + 10 * S_NS), "nor is it noted for longer");
        let none = keep_alives(1, 0);
        none.begin(&[fwp(0)]);
        none.set(fwp(0), u64::MAX);
        assert!(none.may_end(fwp(0), 0, none.clock.now_ns()), "an operator may allow nothing");
    }

    #[test]
    fn each_request_for_a_place_ends_one_instance() {
        let keep = keep_alives(2, 1000 * S_NS);
        for index in [0, 1] {
            keep.begin(&[fwp(index)]);
            keep.set(fwp(index), 100 * S_NS);
        }
        let may_end = |first| keep.may_end(fwp(first), S_NS, keep.clock.now_ns());
        assert!(!may_end(0) && !may_end(1));
        keep.want_place();
        keep.want_place();
        assert!(may_end(1) && !may_end(0) && !may_end(1));
        keep.want_place();
        keep.found_place();
        assert!(!may_end(0) && !may_end(1), "a place was found elsewhere");
    }
}
