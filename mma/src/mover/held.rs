//! How many frames wait before stages by which they enter chains that hold, of all tenants: they have half of the link's buffers
//! together.
//!
//! A tenant may have [`PER_FREE`] times as many as could still wait. So however many chains it has and whatever comes for them, it leaves a
//! ninth to others, two such tenants a seventeenth, and so on. Nothing is allocated after creation.

use crate::accounts::leaving::PER_FREE;
use crate::accounts::tenant_counts::TenantCounts;
use crate::id::TenantIndex;

/// See the module.
pub(super) struct HeldFrames {
    all: usize,
    max: usize,
    by_tenant: TenantCounts,
}

impl HeldFrames {
    /// Starts with none, of which all together are `max` at most. How many each tenant has is shown in `by_tenant`.
    pub(super) fn new(max: usize, by_tenant: TenantCounts) -> Self {
        Self { all: 0, max, by_tenant }
    }

    /// Counts one more frame of a tenant, if that may wait.
    pub(super) fn add(&mut self, tenant: TenantIndex) -> bool {
        let of_tenant = self.by_tenant.of(tenant);
        let has_room = (of_tenant as usize) < PER_FREE * (self.max - self.all);
        if has_room {
            self.by_tenant.set(tenant, of_tenant + 1);
            self.all += 1;
        }
        has_room
    }

    /// Counts one frame less.
    pub(super) fn remove(&mut self, tenant: TenantIndex) {
        self.by_tenant.set(tenant, self.by_tenant.of(tenant) - 1);
        self.all -= 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A: TenantIndex = TenantIndex(0);
    const B: TenantIndex = TenantIndex(1);
    const C: TenantIndex = TenantIndex(2);

    /// Adds frames of a tenant until no more may wait; returns how many.
    fn fill(held: &mut HeldFrames, tenant: TenantIndex) -> usize {
        std::iter::from_fn(|| held.add(tenant).then_some(())).count()
    }

    #[test]
    fn a_tenant_leaves_a_ninth_to_others_and_two_a_seventeenth() {
        let mut held = HeldFrames::new(1_700, TenantCounts::default());
        let alone = fill(&mut held, A);
        assert!((1_700 - alone).abs_diff(1_700 / 9) <= 1, "{alone}");
        fill(&mut held, B);
        // As frames of the first one go on, both come to have as many.
        for _ in 0..alone {
            held.remove(A);
            held.add(B);
            held.add(A);
        }
        let [of_a, of_b] = [A, B].map(|tenant| held.by_tenant.of(tenant));
        assert!(of_a.abs_diff(of_b) <= 8 && held.max - held.all >= 1_700 / 17 - 1, "{of_a} and {of_b}");
        assert!(held.add(C));
    }

    #[test]
    fn all_that_waited_may_wait_again() {
        let mut held = HeldFrames::new(8, TenantCounts::default());
        for _ in 0..3 {
            assert_eq!(fill(&mut held, A), 8, "so few that the last one is left to any tenant");
            (0..8).for_each(|_| held.remove(A));
        }
    }
}
