//! What tenants have of the frames that may wait for an instance, for other threads. Written by the gateway's thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pinion_mma::accounts::shares::{Share, Shares};
use pinion_mma::id::{TENANTS_MAX, TenantIndex};

/// See the module.
#[derive(Debug)]
pub struct WaitingFrames {
    by_tenant: Box<[OfTenant]>,
}

#[derive(Debug, Default)]
struct OfTenant {
    used: AtomicU32,
    guaranteed: AtomicU32,
    refused: AtomicU64,
}

/// What a tenant has of the frames that may wait.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct WaitingAccount {
    /// How many wait, and how many may in any case.
    pub share: Share,
    /// How many were dropped, as the tenant had what it may, since its first chain became active.
    pub refused: u64,
}

impl Default for WaitingFrames {
    fn default() -> Self {
        Self { by_tenant: (0..TENANTS_MAX).map(|_| OfTenant::default()).collect() }
    }
}

impl WaitingFrames {
    /// Returns a tenant's account.
    #[must_use]
    pub fn of(&self, tenant: TenantIndex) -> WaitingAccount {
        let OfTenant { used, guaranteed, refused } = &self.by_tenant[usize::from(tenant.0)];
        let share = Share { used: used.load(Ordering::Relaxed), guaranteed: guaranteed.load(Ordering::Relaxed) };
        WaitingAccount { share, refused: refused.load(Ordering::Relaxed) }
    }

    /// Notes how many frames of a tenant wait.
    #[inline]
    pub(super) fn set_used(&self, tenant: TenantIndex, shares: &Shares) {
        self.by_tenant[usize::from(tenant.0)].used.store(shares.of(tenant).used, Ordering::Relaxed);
    }

    /// Notes that a frame was dropped. Only one thread may call this.
    pub(super) fn count_refused(&self, tenant: TenantIndex) {
        let refused = &self.by_tenant[usize::from(tenant.0)].refused;
        refused.store(refused.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Notes what the tenants of these weights are guaranteed. Others have left, and their indices may pass to others. Takes time linear in
    /// the number of tenants that there may be.
    pub(super) fn divide(&self, shares: &Shares, weights: &[(TenantIndex, u32)]) {
        let mut is_here = [false; TENANTS_MAX];
        for (tenant, _) in weights {
            is_here[usize::from(tenant.0)] = true;
        }
        for ((index, place), is_here) in (0..).zip(&self.by_tenant).zip(is_here) {
            place.guaranteed.store(shares.of(TenantIndex(index)).guaranteed, Ordering::Relaxed);
            if !is_here {
                place.refused.store(0, Ordering::Relaxed);
            }
        }
    }
}
