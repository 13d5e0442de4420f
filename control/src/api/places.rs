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

/// Places of which each tenant has some, and all together no more than a bound.
pub(super) struct SharedPlaces {
    tenants: Places,
    of_all: Arc<Semaphore>,
}

/// A tenant's place and one of all tenants', until this is dropped.
pub(super) struct SharedPlace {
    _places: (Place, Place),
}

impl SharedPlaces {
    /// Creates this many places for all tenants; each tenant may have so many of them.
    pub(super) fn new(of_all: usize, each: usize) -> Self {
        Self { tenants: Places::new(each), of_all: Arc::new(Semaphore::new(of_all)) }
    }

    /// Waits for a place of the tenant's, and only then for one of all tenants', so that none of these is kept meanwhile.
    pub(super) async fn take(&self, tenant: &TenantName) -> SharedPlace {
        let own = self.tenants.take(tenant).await;
        let shared = Arc::clone(&self.of_all).acquire_owned().await.expect("these semaphores are never closed");
        SharedPlace { _places: (own, shared) }
    }
}

/// Places for reports of the whole node, and pages of lists. The operator has places of its own; tenants share others.
pub(super) struct ReportPlaces {
    operator: Arc<Semaphore>,
    tenants: SharedPlaces,
}

/// A place for a report, until this is dropped.
pub(super) enum ReportPlace {
    Operator { _place: Place },
    Tenant { _place: SharedPlace },
}

impl ReportPlaces {
    /// Creates this many places for the operator, and as many for all tenants; each tenant may have so many of them.
    pub(super) fn new(each_kind: usize, each_tenant: usize) -> Self {
        Self { operator: Arc::new(Semaphore::new(each_kind)), tenants: SharedPlaces::new(each_kind, each_tenant) }
    }

    /// Waits for a place, of a tenant's caller or else of the operator.
    pub(super) async fn take(&self, caller: Option<&TenantName>) -> ReportPlace {
        match caller {
            Some(tenant) => ReportPlace::Tenant { _place: self.tenants.take(tenant).await },
            None => {
                let place = Arc::clone(&self.operator).acquire_owned().await;
                ReportPlace::Operator { _place: place.expect("these semaphores are never closed") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tenants_leave_the_operator_its_reports_and_one_tenant_leaves_others_theirs() {
        let places = Arc::new(ReportPlaces::new(2, 1));
        let [a, b]: [TenantName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let waits = |tenant: &TenantName| {
            let (places, tenant) = (Arc::clone(&places), tenant.clone());
            tokio::spawn(async move { places.take(Some(&tenant)).await })
        };
        let first = places.take(Some(&a)).await;
        let others = [waits(&a), waits(&a)];
        let second = places.take(Some(&b)).await;
        drop([places.take(None).await, places.take(None).await]);
        tokio::task::yield_now().await;
        assert!(others.iter().all(|other| !other.is_finished()));
        drop((first, second));
        for other in others {
            drop(other.await.unwrap());
        }
    }

    #[tokio::test]
    async fn many_tenants_together_have_no_more_places_than_there_are_for_all() {
        let places = Arc::new(SharedPlaces::new(3, 2));
        let take = |name: &str| {
            let (places, tenant) = (Arc::clone(&places), name.parse().unwrap());
            tokio::spawn(async move { places.take(&tenant).await })
        };
        let first = take("a").await.unwrap();
        let others = [take("b").await.unwrap(), take("c").await.unwrap()];
        let waiting = take("d");
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        drop((waiting.await.unwrap(), others));
    }

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
