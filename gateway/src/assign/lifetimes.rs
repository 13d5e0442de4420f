//! How instances come and go: what the launcher gives and takes back, and sweeps for those that are idle.

use pinion_mma::id::TenantIndex;

use super::Assigner;
use crate::flows::entry_fwp::EntryFwp;
use crate::flows::instances::{Refused, Released};
use crate::id::{ChainIndex, InstanceId};
use crate::messages::{Event, UNPROVEN_AT_ONCE};

/// A flow unseen for this long leaves the flow cache. If it goes on, it is found again through the rules.
const FLOW_IDLE_NS: u64 = 60_000_000_000;
/// The time in which the whole flow cache is swept once.
const FLOW_SWEEP_PERIOD_NS: u64 = 15_000_000_000;

impl Assigner {
    /// Adds a ready instance. Returns whether it was added.
    pub(crate) fn add_ready(&mut self, chain: ChainIndex, instance: InstanceId, entrance: EntryFwp) -> bool {
        let added = self.instances.add(chain, instance, entrance);
        if let Some(wanted) = self.wanted.get_mut(chain.0 as usize) {
            // Also if there was no room: otherwise no instance would be requested again once there is.
            *wanted = false;
        }
        match added {
            Ok(()) => true,
            Err(Refused::NoRoom) => {
                self.outbox.send(Event::Withdrawn { chain, instance });
                false
            }
            // A mistake of the launcher. To return the instance would end one that serves a client.
            Err(Refused::Known) => false,
        }
    }

    /// Releases an instance if it is still ready.
    pub(crate) fn reclaim(&mut self, instance: InstanceId) {
        if let Some(Released { chain, instance, .. }) = self.instances.reclaim(instance) {
            self.outbox.send(Event::Withdrawn { chain, instance });
        }
    }

    /// Releases up to `count` instances of a tenant whose clients have proven nothing, and no more than
    /// [`UNPROVEN_AT_ONCE`]. Frames staged for them must be handed over before.
    pub(crate) fn end_unproven(&mut self, tenant: TenantIndex, count: usize, now_ns: u64) {
        self.memo.forget();
        for _ in 0..count.min(UNPROVEN_AT_ONCE) {
            let Some(Released { chain, instance, .. }) = self.instances.end_unproven(tenant, now_ns) else { break };
            self.outbox.send(Event::Unproven { chain, instance });
        }
    }

    /// Forgets an instance. Returns its chain if the instance served all clients.
    pub(crate) fn unbind(&mut self, instance: InstanceId) -> Option<ChainIndex> {
        self.memo.forget();
        let was_shared = self.instances.is_shared(instance);
        let released = self.instances.unbind(instance);
        self.outbox.send(Event::Unbound { instance });
        released.filter(|_| was_shared).map(|released| released.chain)
    }

    /// Sweeps a part of the tables, the larger the more time has passed, and releases idle instances. Returns how many.
    pub(crate) fn sweep(&mut self, now_ns: u64, share: SweepShare, idle_max: usize) -> usize {
        // Flows seen since the last sweep must be noted as seen at least once before the next.
        self.memo.forget();
        let slowly = SweepShare { period_ns: FLOW_SWEEP_PERIOD_NS, ..share };
        self.cache.sweep(slowly.of(self.cache.buckets()), now_ns, FLOW_IDLE_NS);
        if !self.open {
            return 0;
        }
        let (mut left, mut idle) = (share.of(self.instances.slots()), 0);
        while left > 0 && idle < idle_max {
            let may_end =
                |first, unseen_ns| self.keep_alives.as_ref().is_none_or(|keep| keep.may_end(first, unseen_ns, now_ns));
            let timeout_ns = |chain| self.rules.idle_timeout_ns(chain);
            let (looked_at, released) = self.instances.sweep(left, now_ns, timeout_ns, may_end);
            left -= looked_at;
            if let Some(released) = released {
                self.give_up(released);
                idle += 1;
            }
        }
        idle
    }
}

/// How much of a table to sweep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SweepShare {
    /// Time since the last sweep.
    pub(crate) elapsed_ns: u64,
    /// Time in which the whole table is swept once.
    pub(crate) period_ns: u64,
    /// Places to look at in one sweep, at most.
    pub(crate) places_max: usize,
}

impl SweepShare {
    pub(super) fn of(self, places: usize) -> usize {
        let elapsed_ns = self.elapsed_ns.min(self.period_ns);
        let due = (places as u64 * elapsed_ns).div_ceil(self.period_ns) as usize;
        due.min(self.places_max).min(places)
    }
}
