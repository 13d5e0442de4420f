//! Places for work that may take long: each tenant has so many, and waits for one of its own only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::TenantName;

/// See the module.
pub(super) struct Places {
    each: usize,
    /// Of tenants that have a place or wait for one.
    tenants: Mutex<BTreeMap<TenantName, Weak<Semaphore>>>,
}

/// A place, until this is dropped.
pub(super) type Place = OwnedSemaphorePermit;

impl Places {
    /// Creates this many places for each tenant.
    pub(super) fn new(each: usize) -> Self {
        Self { each, tenants: Mutex::default() }
    }

    /// Waits for a place of the tenant's.
    pub(super) async fn take(&self, tenant: &TenantName) -> Place {
        self.of(tenant).acquire_owned().await.expect("these semaphores are never closed")
    }

    fn of(&self, tenant: &TenantName) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.retain(|_, places| places.strong_count() > 0);
        if let Some(places) = tenants.get(tenant).and_then(Weak::upgrade) {
            return places;
        }
        let places = Arc::new(Semaphore::new(self.each));
        tenants.insert(tenant.clone(), Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tenant_waits_for_its_own_places_only_and_nothing_is_left_of_those_that_have_none() {
        let places = Arc::new(Places::new(2));
        let [a, b]: [TenantName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let taken = [places.take(&a).await, places.take(&a).await];
        let third = tokio::spawn({
            let (places, a) = (Arc::clone(&places), a.clone());
            async move { places.take(&a).await }
        });
        drop(places.take(&b).await);
        assert!(!third.is_finished());
        drop(taken);
        drop(third.await.unwrap());
        drop(places.take(&b).await);
        assert_eq!(places.tenants.lock().unwrap().keys().collect::<Vec<_>>(), [&b]);
    }
}
