//! Shares of something that tenants share and that is bounded: how much of it each may have.
//!
//! Half of it is divided among the tenants that have chains, by weight. A tenant gets that guaranteed share at any time, as the others leave
//! it free. Beyond it, tenants get what is free as they ask for it. So a single tenant can have all of it, and of two neither can have more
//! than three quarters while the other has none.
//!
//! Shares shrink as tenants come. What exceeds a share that has become smaller is not taken away; until it is given back, less is free for
//! those who come than their share.
//!
//! Nothing is allocated after creation.

use crate::id::{TENANTS_MAX, TenantIndex};

/// The part that is divided into guaranteed shares, as one part in so many.
const GUARANTEED_PART: u64 = 2;

/// One tenant's share.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// How much it has.
    pub used: u32,
    /// How much it is guaranteed.
    pub guaranteed: u32,
}

impl Share {
    /// Returns how much it is guaranteed and does not have.
    #[must_use]
    pub fn owed(self) -> u32 {
        self.guaranteed.saturating_sub(self.used)
    }

    /// Returns how much more than its guaranteed share it has.
    #[must_use]
    pub fn excess(self) -> u32 {
        self.used.saturating_sub(self.guaranteed)
    }
}

/// The shares; see the module.
#[derive(Debug)]
pub struct Shares {
    total: u32,
    by_tenant: Box<[Share]>,
    used: u32,
    /// The sum of what tenants are guaranteed and do not have.
    owed: u32,
}

impl Shares {
    /// Creates the shares of so much, of which no tenant is guaranteed anything yet.
    #[must_use]
    pub fn new(total: u32) -> Self {
        Self { total, by_tenant: vec![Share::default(); TENANTS_MAX].into(), used: 0, owed: 0 }
    }

    /// Divides the guaranteed part among these tenants, by their weights. Each is named once.
    pub fn divide(&mut self, weights: &[(TenantIndex, u32)]) {
        let sum = weights.iter().map(|(_, weight)| u64::from(*weight)).sum::<u64>().max(1);
        let part = u64::from(self.total) / GUARANTEED_PART;
        for share in &mut self.by_tenant {
            share.guaranteed = 0;
        }
        for (tenant, weight) in weights {
            self.by_tenant[usize::from(tenant.0)].guaranteed = (part * u64::from(*weight) / sum) as u32;
        }
        self.owed = self.by_tenant.iter().map(|share| share.owed()).sum();
    }

    /// Returns a tenant's share.
    #[must_use]
    pub fn of(&self, tenant: TenantIndex) -> Share {
        self.by_tenant[usize::from(tenant.0)]
    }

    /// Returns the tenants that have more than their guaranteed shares.
    pub fn above(&self) -> impl Iterator<Item = TenantIndex> {
        let excess = |(_, share): &(u16, &Share)| share.excess() > 0;
        (0..).zip(&self.by_tenant).filter(excess).map(|(tenant, _)| TenantIndex(tenant))
    }

    /// Returns how much no tenant has.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.total - self.used
    }

    /// Returns how much other tenants are guaranteed and do not have.
    #[must_use]
    pub fn owed_to_others(&self, tenant: TenantIndex) -> u32 {
        self.owed - self.of(tenant).owed()
    }

    /// Returns whether no other tenant has anything.
    #[must_use]
    pub fn is_alone(&self, tenant: TenantIndex) -> bool {
        self.used == self.of(tenant).used
    }

    /// Returns whether the tenant may have this much more.
    #[must_use]
    pub fn has_room(&self, tenant: TenantIndex, more: u32) -> bool {
        let free = self.free();
        self.is_guaranteed(tenant, more) && more <= free || more.saturating_add(self.owed_to_others(tenant)) <= free
    }

    /// Returns how much the tenant could have now, with what it has: its guaranteed share, or more if more is free.
    #[must_use]
    pub fn reach(&self, tenant: TenantIndex) -> u32 {
        let share = self.of(tenant);
        share.guaranteed.max(share.used + self.free().saturating_sub(self.owed_to_others(tenant)))
    }

    /// Returns whether this much more is within the tenant's guaranteed share.
    #[must_use]
    pub fn is_guaranteed(&self, tenant: TenantIndex, more: u32) -> bool {
        let share = self.of(tenant);
        share.used.saturating_add(more) <= share.guaranteed
    }

    /// Counts what a tenant gets. There must be room for it.
    pub fn take(&mut self, tenant: TenantIndex, more: u32) {
        self.change(tenant, |used| used + more);
    }

    /// Counts what a tenant gives back.
    pub fn give_back(&mut self, tenant: TenantIndex, less: u32) {
        self.change(tenant, |used| used - less);
    }

    fn change(&mut self, tenant: TenantIndex, used: impl FnOnce(u32) -> u32) {
        let share = &mut self.by_tenant[usize::from(tenant.0)];
        let before = *share;
        share.used = used(before.used);
        let after = *share;
        self.used = self.used + after.used - before.used;
        self.owed = self.owed + after.owed() - before.owed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantIndex = TenantIndex(0);
    const B: TenantIndex = TenantIndex(1);

    fn shares(total: u32, weights: &[(TenantIndex, u32)]) -> Shares {
        let mut shares = Shares::new(total);
        shares.divide(weights);
        shares
    }

    /// Lets a tenant have as many as it can, one at a time. Returns how many it has then.
    fn take_all(shares: &mut Shares, tenant: TenantIndex) -> u32 {
        while shares.has_room(tenant, 1) {
            shares.take(tenant, 1);
        }
        shares.of(tenant).used
    }

    #[test]
    fn a_tenant_that_is_alone_can_have_all() {
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
    fn a_tenants_reach_is_what_it_can_take() {
        let mut shares = shares(1000, &[(A, 1), (B, 4)]);
        assert_eq!(shares.reach(B), 900);
        shares.take(A, 350);
        let reach = [shares.reach(A), shares.reach(B)];
        assert_eq!([take_all(&mut shares, A), reach[0]], [600, 600]);
        // B has its guaranteed share only by now.
        assert_eq!([reach[1], shares.reach(B), take_all(&mut shares, B)], [650, 400, 400]);
        assert_eq!([shares.reach(A), shares.reach(B)], [600, 400]);
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
    fn what_is_asked_for_is_had_as_a_whole_or_not_at_all() {
        let mut two = shares(16, &[(A, 1), (B, 1)]);
        take_all(&mut two, A);
        assert!(two.has_room(B, 4) && two.is_guaranteed(B, 4));
        assert!(!two.has_room(B, 5));
    }

    #[test]
    fn what_exceeds_a_share_that_became_smaller_counts_as_excess() {
        let mut shares = shares(100, &[(A, 1)]);
        take_all(&mut shares, A);
        shares.divide(&[(A, 1), (B, 1)]);
        assert_eq!((shares.of(A).excess(), shares.has_room(A, 1), shares.has_room(B, 1)), (75, false, false));
        shares.give_back(A, 10);
        assert_eq!((shares.has_room(A, 1), shares.has_room(B, 10), shares.has_room(B, 11)), (false, true, false));
    }

    #[test]
    fn a_tenant_without_chains_keeps_no_share() {
        let mut shares = shares(100, &[(A, 1), (B, 1)]);
        shares.take(A, 3);
        shares.divide(&[(B, 1)]);
        assert_eq!((shares.of(A), shares.of(B).guaranteed), (Share { used: 3, guaranteed: 0 }, 50));
        shares.give_back(A, 3);
        assert_eq!(take_all(&mut shares, B), 100);
    }
}
