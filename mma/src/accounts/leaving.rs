//! Whose frames wait to leave: a count for each tenant of its frames in the ring to the gateway.
//!
//! A tenant may have [`PER_FREE`] times as many frames there as buffers are free. So one that sends all that it can leaves a ninth of the
//! buffers to others, two of them a seventeenth, and so on, whatever their weights; and one that has none there can always use the last
//! (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6, 1998). Each frame is added and forgotten once, many
//! at a time where that was put off. Nothing is allocated after creation.

use crate::accounts::tenant_counts::TenantCounts;
use crate::buffer::Outbound;
use crate::id::TenantIndex;
use crate::rings::spsc::View;

/// See the module.
pub(crate) const PER_FREE: usize = 8;

/// See the module.
pub(crate) struct Leaving {
    /// By place in the ring: whose frame it is.
    owners: Box<[TenantIndex]>,
    /// The oldest frame that is counted, and where the next one goes.
    first: usize,
    next: usize,
    by_tenant: TenantCounts,
}

/// What other threads see of it.
pub struct LeavingCounts {
    by_tenant: TenantCounts,
    ring: View<Outbound>,
}

impl LeavingCounts {
    /// Returns how many frames of a tenant are in the ring, or were when the MMA counted last, if there are as many.
    #[must_use]
    pub fn of(&self, tenant: TenantIndex) -> u32 {
        self.by_tenant.of(tenant).min(self.ring.len() as u32)
    }
}

impl Leaving {
    /// Creates the counts of a ring for so many frames, a power of two.
    pub(crate) fn new(capacity: usize) -> Self {
        let owners = vec![TenantIndex(0); capacity.next_power_of_two()].into();
        Self { owners, first: 0, next: 0, by_tenant: TenantCounts::default() }
    }

    /// Returns what other threads see of it, and of its ring.
    pub(crate) fn counts(&self, ring: View<Outbound>) -> LeavingCounts {
        LeavingCounts { by_tenant: self.by_tenant.clone(), ring }
    }

    /// Returns how many frames of a tenant are counted.
    #[inline(always)]
    pub(crate) fn count(&self, tenant: TenantIndex) -> usize {
        self.by_tenant.of(tenant) as usize
    }

    /// Returns whether the oldest frame must be [forgotten](Self::settle) before another one is added.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.next.wrapping_sub(self.first) >= self.owners.len()
    }

    /// Adds a frame.
    #[inline(always)]
    pub(crate) fn add(&mut self, tenant: TenantIndex) {
        let place = self.next & (self.owners.len() - 1);
        self.owners[place] = tenant;
        self.next = self.next.wrapping_add(1);
        self.by_tenant.set(tenant, self.by_tenant.of(tenant) + 1);
    }

    /// Forgets the oldest frames, so that so many are left: those that the gateway has not taken.
    pub(crate) fn settle(&mut self, left: usize) {
        while self.next.wrapping_sub(self.first) > left {
            let owner = self.owners[self.first & (self.owners.len() - 1)];
            self.by_tenant.set(owner, self.by_tenant.of(owner) - 1);
            self.first = self.first.wrapping_add(1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A: TenantIndex = TenantIndex(0);
    const B: TenantIndex = TenantIndex(1);

    #[test]
    fn frames_are_forgotten_in_their_order_whosever_they_are() {
        let mut leaving = Leaving::new(4);
        [A, B, A, A].into_iter().for_each(|tenant| leaving.add(tenant));
        assert!(leaving.is_full());
        assert_eq!([A, B].map(|tenant| leaving.count(tenant)), [3, 1]);
        leaving.settle(2);
        assert_eq!([A, B].map(|tenant| leaving.count(tenant)), [2, 0]);
        leaving.add(B);
        leaving.settle(5);
        assert_eq!([A, B].map(|tenant| leaving.count(tenant)), [2, 1]);
        leaving.settle(0);
        assert_eq!([A, B].map(|tenant| leaving.count(tenant)), [0, 0]);
    }
}
