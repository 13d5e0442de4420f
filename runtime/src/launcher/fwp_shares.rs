//! How many FWPs each tenant may have: a guaranteed share of the node, and what no other tenant is guaranteed.
//!
//! Half of `limits.fwps_max` is divided among the tenants that have chains, by weight. A tenant gets that share at any time, as the others
//! leave it free. Beyond it, tenants get what is free as they ask for it. So a single tenant can have all of a node, and of two neither can
//! have more than three quarters while the other has none.
//!
//! Shares shrink as tenants come. FWPs that exceed a share that has become smaller serve on; until they have ended, less is free for those
//! who come than their share.

use std::collections::BTreeMap;

use crate::scheduler::TenantIndex;

/// The part of a node's FWPs that is divided into guaranteed shares, as one part in so many.
const GUARANTEED_PART: u64 = 2;

/// One tenant's FWPs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// How many it has.
    pub(super) used: usize,
    /// How many it is guaranteed.
    pub(super) guaranteed: usize,
}

impl Share {
    /// Returns how many it is guaranteed and does not have.
    fn owed(self) -> usize {
        self.guaranteed.saturating_sub(self.used)
    }
}

/// The shares; see the module.
#[derive(Debug)]
pub(super) struct FwpShares {
    fwps_max: usize,
    by_tenant: BTreeMap<TenantIndex, Share>,
    used: usize,
    /// The sum of what tenants are guaranteed and do not have.
    owed: usize,
}

impl FwpShares {
    pub(super) fn new(fwps_max: usize) -> Self {
        Self { fwps_max, by_tenant: BTreeMap::new(), used: 0, owed: 0 }
    }

    /// Divides the guaranteed part among the tenants with chains, by weight.
    pub(super) fn divide(&mut self, weights: &BTreeMap<TenantIndex, u32>) {
        let sum = weights.values().map(|weight| u64::from(*weight)).sum::<u64>().max(1);
        let part = self.fwps_max as u64 / GUARANTEED_PART;
        self.by_tenant.retain(|tenant, share| share.used > 0 || weights.contains_key(tenant));
        for share in self.by_tenant.values_mut() {
            share.guaranteed = 0;
        }
        for (tenant, weight) in weights {
            let guaranteed = (part * u64::from(*weight) / sum) as usize;
            self.by_tenant.entry(*tenant).or_default().guaranteed = guaranteed;
        }
        self.owed = self.by_tenant.values().map(|share| share.owed()).sum();
    }

    pub(super) fn of(&self, tenant: TenantIndex) -> Share {
        self.by_tenant.get(&tenant).copied().unwrap_or_default()
    }

    /// Returns whether the tenant may have this many more.
    pub(super) fn has_room(&self, tenant: TenantIndex, fwps: usize) -> bool {
        let free = self.fwps_max - self.used;
        let owed_to_others = self.owed - self.of(tenant).owed();
        self.is_guaranteed(tenant, fwps) && fwps <= free || fwps + owed_to_others <= free
    }

    /// Returns whether so many more are within the tenant's guaranteed share.
    pub(super) fn is_guaranteed(&self, tenant: TenantIndex, fwps: usize) -> bool {
        let share = self.of(tenant);
        share.used + fwps <= share.guaranteed
    }

    /// Returns how many less than its guaranteed share a tenant has.
    pub(super) fn missing(&self, tenant: TenantIndex) -> usize {
        self.of(tenant).owed()
    }

    /// Returns how many more than its guaranteed share a tenant has.
    pub(super) fn excess(&self, tenant: TenantIndex) -> usize {
        let share = self.of(tenant);
        share.used.saturating_sub(share.guaranteed)
    }

    /// Counts FWPs of a tenant.
    pub(super) fn take(&mut self, tenant: TenantIndex, fwps: usize) {
        self.change(tenant, |used| used + fwps);
    }

    /// Counts FWPs of a tenant that have ended.
    pub(super) fn give_back(&mut self, tenant: TenantIndex, fwps: usize) {
        self.change(tenant, |used| used - fwps);
    }

    fn change(&mut self, tenant: TenantIndex, used: impl FnOnce(usize) -> usize) {
        let share = self.by_tenant.entry(tenant).or_default();
        let before = *share;
        share.used = used(before.used);
        self.used = self.used + share.used - before.used;
        self.owed = self.owed + share.owed() - before.owed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantIndex = TenantIndex(0);
    const B: TenantIndex = TenantIndex(1);

    fn shares(fwps_max: usize, weights: &[(TenantIndex, u32)]) -> FwpShares {
        let mut shares = FwpShares::new(fwps_max);
        shares.divide(&weights.iter().copied().collect());
        shares
    }

    /// Lets a tenant have as many as it can, one at a time. Returns how many it has then.
    fn take_all(shares: &mut FwpShares, tenant: TenantIndex) -> usize {
        while shares.has_room(tenant, 1) {
            shares.take(tenant, 1);
        }
        shares.of(tenant).used
    }

    #[test]
    fn a_tenant_that_is_alone_can_have_the_whole_node() {
        assert_eq!(take_all(&mut shares(1000, &[(A, 1)]), A), 1000);
    }

    #[test]
    fn a_tenant_that_takes_all_it_can_get_leaves_the_others_their_shares() {
        let mut two = shares(1000, &[(A, 1), (B, 1)]);
        assert_eq!([take_all(&mut two, A), take_all(&mut two, B)], [750, 250]);
        let mut weighted = shares(1000, &[(A, 1), (B, 4)]);
        assert_eq!([take_all(&mut weighted, A), take_all(&mut weighted, B)], [600, 400]);
        let mut many = shares(4096, &(0..1000).map(|tenant| (TenantIndex(tenant), 1)).collect::<Vec<_>>());
        take_all(&mut many, TenantIndex(999));
        assert_eq!((0..999).map(|tenant| take_all(&mut many, TenantIndex(tenant))).min(), Some(2));
    }

    #[test]
    fn what_a_tenant_gives_back_is_free_for_all_up_to_the_shares_of_the_others() {
        let mut two = shares(100, &[(A, 1), (B, 1)]);
        take_all(&mut two, A);
        take_all(&mut two, B);
        two.give_back(A, 75);
        assert_eq!([take_all(&mut two, B), take_all(&mut two, A)], [75, 25]);
    }

    #[test]
    fn a_chain_of_several_stages_gets_its_share_as_a_whole_or_not_at_all() {
        let mut two = shares(16, &[(A, 1), (B, 1)]);
        take_all(&mut two, A);
        assert!(two.has_room(B, 4) && two.is_guaranteed(B, 4));
        assert!(!two.has_room(B, 5));
    }

    #[test]
    fn fwps_beyond_a_share_that_became_smaller_count_as_excess() {
        let mut shares = shares(100, &[(A, 1)]);
        take_all(&mut shares, A);
        shares.divide(&[(A, 1), (B, 1)].into());
        assert_eq!((shares.excess(A), shares.has_room(A, 1), shares.has_room(B, 1)), (75, false, false));
        shares.give_back(A, 10);
        assert_eq!((shares.has_room(A, 1), shares.has_room(B, 10), shares.has_room(B, 11)), (false, true, false));
    }

    #[test]
    fn a_tenant_without_chains_keeps_no_share() {
        let mut shares = shares(100, &[(A, 1), (B, 1)]);
        shares.take(A, 3);
        shares.divide(&[(B, 1)].into());
        assert_eq!((shares.of(A), shares.of(B).guaranteed), (Share { used: 3, guaranteed: 0 }, 50));
        shares.give_back(A, 3);
        assert_eq!(take_all(&mut shares, B), 100);
    }
}
