//! Tenants' shares of the node's FWPs, for reports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pinion_control::model::TenantName;

use crate::ids::ChainKey;

/// What each tenant is guaranteed of the node's FWPs, and whom there was no room for.
#[derive(Debug, Default)]
pub struct FwpShares {
    by_tenant: BTreeMap<TenantName, FwpShare>,
    /// Chains for whose last attempt to prepare an instance there was no room.
    without_room: BTreeSet<ChainKey>,
}

/// One tenant's share.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FwpShare {
    /// How many FWPs it is guaranteed.
    pub guaranteed: u64,
    /// How often the launcher found no room for an instance that its chains lacked, since its first chain became active.
    pub refused: u64,
    /// For how long the launcher has prepared its instances, since its first chain became active.
    pub preparing: Duration,
}

impl FwpShares {
    /// Sets what the tenants with chains are guaranteed, and forgets all others.
    pub fn divide(&mut self, guaranteed: BTreeMap<TenantName, u64>) {
        let mut old = std::mem::take(&mut self.by_tenant);
        let share = |(tenant, guaranteed)| {
            let had: FwpShare = old.remove(&tenant).unwrap_or_default();
            (tenant, FwpShare { guaranteed, ..had })
        };
        self.by_tenant = guaranteed.into_iter().map(share).collect();
    }

    /// Adds what the launcher has taken for instances of a tenant.
    pub fn prepared(&mut self, tenant: &TenantName, taken: Duration) {
        if let Some(share) = self.by_tenant.get_mut(tenant) {
            share.preparing += taken;
        }
    }

    /// Notes that there was no room for an instance of these chains of a tenant. Counts once for all of them.
    pub fn refused(&mut self, chains: impl Iterator<Item = ChainKey>) {
        let mut chains = chains.peekable();
        let share = chains.peek().and_then(|(tenant, _)| self.by_tenant.get_mut(tenant));
        if let Some(share) = share {
            share.refused += 1;
            self.without_room.extend(chains);
        }
    }

    /// Forgets chains that no longer exist.
    pub fn retain(&mut self, is_there: impl Fn(&ChainKey) -> bool) {
        self.without_room.retain(is_there);
    }

    /// Notes that there was room for an instance of a chain.
    pub fn found_room(&mut self, chain: &ChainKey) {
        self.without_room.remove(chain);
    }

    /// Returns all tenants' shares.
    #[must_use]
    pub fn by_tenant(&self) -> &BTreeMap<TenantName, FwpShare> {
        &self.by_tenant
    }

    /// Returns a tenant's share.
    #[must_use]
    pub fn of(&self, tenant: &TenantName) -> FwpShare {
        self.by_tenant.get(tenant).copied().unwrap_or_default()
    }

    /// Returns whether there was no room for the instance of a chain when it was last tried.
    #[must_use]
    pub fn lacks_room(&self, chain: &ChainKey) -> bool {
        self.without_room.contains(chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_as_long_as_the_tenant_has_chains() {
        let key = || ("t".parse::<TenantName>().unwrap(), "c".parse().unwrap());
        let mut shares = FwpShares::default();
        for guaranteed in [8, 4] {
            shares.divide([(key().0, guaranteed)].into());
            shares.refused(std::iter::once(key()));
            shares.prepared(&key().0, Duration::from_millis(3));
        }
        let preparing = Duration::from_millis(6);
        assert_eq!(shares.of(&key().0), FwpShare { guaranteed: 4, refused: 2, preparing });
        assert!(shares.lacks_room(&key()));
        shares.found_room(&key());
        assert!(!shares.lacks_room(&key()));
        shares.refused(std::iter::once(key()));
        shares.retain(|_| false);
        assert!(!shares.lacks_room(&key()));
        shares.divide(BTreeMap::new());
        shares.refused(std::iter::once(key()));
        assert_eq!((shares.of(&key().0), shares.lacks_room(&key())), (FwpShare::default(), false));
    }
}
