//! A number for each tenant, which one thread changes and others read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::id::{TENANTS_MAX, TenantIndex};

/// A number for each tenant, that one thread changes and others read. Clones are the same numbers.
#[derive(Debug, Clone)]
pub struct TenantCounts(Arc<[AtomicU32]>);

impl Default for TenantCounts {
    fn default() -> Self {
        Self((0..TENANTS_MAX).map(|_| AtomicU32::new(0)).collect())
    }
}

impl TenantCounts {
    /// Returns a tenant's number.
    #[must_use]
    #[inline]
    pub fn of(&self, tenant: TenantIndex) -> u32 {
        self.0[usize::from(tenant.0)].load(Ordering::Relaxed)
    }

    /// Sets a tenant's number. Only one thread may do so.
    #[inline]
    pub(crate) fn set(&self, tenant: TenantIndex, count: u32) {
        self.0[usize::from(tenant.0)].store(count, Ordering::Relaxed);
    }
}
