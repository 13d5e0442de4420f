//! Which tenants have FWPs at this MMA, with which weights, and so how much of their output a poll moves.
//!
//! The bound keeps what one tenant sends from holding others up. It makes the batches of long chains short, which costs throughput. Where
//! only one tenant has FWPs, it is larger.

use crate::accounts::copying::CopyShare;
use crate::id::{TENANTS_MAX, TenantIndex};

/// What the output that one poll moves may cost, in bytes; see [`super::turns`]. Everything else that the thread does
/// waits for as long as copying that takes.
const POLL_COST: i64 = 256 * 1024;
/// The same, as long as only one tenant has FWPs here: as much as a batch of frames through a chain of six.
const POLL_COST_ALONE: i64 = 4 * POLL_COST;

/// See the module. Nothing is allocated after creation.
pub(super) struct PresentTenants {
    /// The FWPs of each tenant.
    fwps: Box<[u32]>,
    /// The weight of each tenant.
    weights: Box<[u32]>,
    /// How many tenants have any.
    tenants: usize,
}

impl PresentTenants {
    /// Creates the counts of an MMA without FWPs.
    pub(super) fn none() -> Self {
        Self { fwps: vec![0; TENANTS_MAX].into(), weights: vec![1; TENANTS_MAX].into(), tenants: 0 }
    }

    /// Counts one more FWP of a tenant.
    pub(super) fn add(&mut self, tenant: TenantIndex) {
        let fwps = &mut self.fwps[usize::from(tenant.0)];
        self.tenants += usize::from(*fwps == 0);
        *fwps += 1;
    }

    /// Sets a tenant's weight, which holds for all of its FWPs.
    pub(super) fn set_weight(&mut self, CopyShare { tenant, weight }: CopyShare) {
        self.weights[usize::from(tenant.0)] = weight;
    }

    /// Returns a tenant with its weight.
    #[inline]
    pub(super) fn share(&self, tenant: TenantIndex) -> CopyShare {
        CopyShare { tenant, weight: self.weights[usize::from(tenant.0)] }
    }

    /// Counts one less.
    pub(super) fn remove(&mut self, tenant: TenantIndex) {
        let fwps = &mut self.fwps[usize::from(tenant.0)];
        *fwps -= 1;
        self.tenants -= usize::from(*fwps == 0);
    }

    /// Returns what one poll's output may cost.
    #[inline]
    pub(super) fn poll_cost(&self) -> i64 {
        if self.tenants > 1 { POLL_COST } else { POLL_COST_ALONE }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A: TenantIndex = TenantIndex(0);
    const B: TenantIndex = TenantIndex(1);

    #[test]
    fn a_poll_may_cost_more_as_long_as_one_tenant_is_alone() {
        let mut present = PresentTenants::none();
        [A, A].into_iter().for_each(|tenant| present.add(tenant));
        assert_eq!(present.poll_cost(), POLL_COST_ALONE);
        present.add(B);
        assert_eq!(present.poll_cost(), POLL_COST);
        present.remove(A);
        assert_eq!(present.poll_cost(), POLL_COST, "it has another one");
        present.remove(A);
        assert_eq!(present.poll_cost(), POLL_COST_ALONE);
    }
}
