//! On what terms an FWP has the core: its share, as its tenant and its chain are granted it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use pinion_control::model::{Class, OverBudget, Scheduling, TenantName};

use crate::meters::{ChainMeter, ChainMeters};
use crate::scheduler::{Budget, Rate, Share, TENANTS_MAX, TenantIndex};

/// Of one FWP, and of all of its chain.
#[derive(Clone)]
pub struct Terms {
    /// How it shares the core.
    pub share: Share,
    /// Its chain's, on all workers.
    meters: Arc<ChainMeters>,
    /// The one of these that its worker has: with thousands of chains each step on the way to it would be waited for.
    meter: Arc<CachePadded<ChainMeter>>,
    /// Keeps the tenant's number from another tenant.
    _seat: Arc<TenantSeat>,
}

impl Default for Terms {
    /// Those of a tenant who is alone.
    fn default() -> Self {
        let seat = TenantSeat { index: TenantIndex(0), grant: CpuGrant::default() };
        Self::new(&Arc::new(seat), &Scheduling::default(), Arc::new(ChainMeters::new(1)))
    }
}

impl Terms {
    fn new(seat: &Arc<TenantSeat>, scheduling: &Scheduling, meters: Arc<ChainMeters>) -> Self {
        let TenantSeat { index, grant } = **seat;
        let Scheduling { class, cpu_per_batch_us, cpu_per_second_ms, over_budget } = *scheduling;
        let share = Share {
            tenant: index,
            weight: grant.weight,
            class,
            budget: Budget {
                per_batch_ns: cpu_per_batch_us.map(|us| u64::from(us) * 1_000),
                rate: cpu_per_second_ms.map(|ms| rate(ms, over_budget)),
            },
            tenant_rate: grant.cpu_per_second_ms.map(|ms| rate(ms, OverBudget::Throttle)),
        };
        let meter = Arc::clone(meters.on_worker(0));
        Self { share, meters, meter, _seat: Arc::clone(seat) }
    }

    /// The same for an FWP on this worker, by the worker's place in the core plan.
    #[must_use]
    pub fn on_worker(&self, worker: usize) -> Self {
        Self { meter: Arc::clone(self.meters.on_worker(worker)), ..self.clone() }
    }

    /// Where its worker adds what it has had.
    #[must_use]
    #[inline]
    pub fn meter(&self) -> &ChainMeter {
        &self.meter
    }

    /// Notes that a client was given an instance of its chain; called by the launcher.
    pub(crate) fn note_activation(&self) {
        self.meters.activations.add(1);
    }
}

fn rate(per_second_ms: u32, over_budget: OverBudget) -> Rate {
    Rate { per_second_ns: u64::from(per_second_ms) * 1_000_000, over_budget }
}

/// What the operator grants a tenant of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuGrant {
    /// Beside others of a class.
    pub weight: u32,
    /// The highest that its chains may have.
    pub class_max: Class,
    /// The most time of each second, and of each worker's core, that all of its FWPs together may have; none for no limit.
    pub cpu_per_second_ms: Option<u32>,
}

impl Default for CpuGrant {
    fn default() -> Self {
        Self { weight: 1, class_max: Class::Latency, cpu_per_second_ms: None }
    }
}

/// What operators grant tenants by name; others have the default.
#[derive(Debug, Clone, Default)]
pub struct CpuGrants(pub BTreeMap<TenantName, CpuGrant>);

impl CpuGrants {
    /// One tenant's.
    #[must_use]
    pub fn of(&self, tenant: &TenantName) -> CpuGrant {
        self.0.get(tenant).copied().unwrap_or_default()
    }
}

/// A tenant's number, for as long as anybody has it.
#[derive(Debug)]
struct TenantSeat {
    index: TenantIndex,
    grant: CpuGrant,
}

/// Which tenant has which number. Numbers are given again once no chain and no FWP of the tenant is left.
pub struct Tenants {
    grants: CpuGrants,
    seats: HashMap<TenantName, Arc<TenantSeat>>,
    free: Vec<TenantIndex>,
}

impl Tenants {
    /// None yet.
    #[must_use]
    pub fn new(grants: CpuGrants) -> Self {
        Self { grants, seats: HashMap::new(), free: (0..TENANTS_MAX as u16).rev().map(TenantIndex).collect() }
    }

    /// The terms of a tenant's chain; none if there are as many tenants as the node tells apart.
    pub fn terms(&mut self, tenant: &TenantName, scheduling: &Scheduling, meters: Arc<ChainMeters>) -> Option<Terms> {
        if let Some(seat) = self.seats.get(tenant) {
            return Some(Terms::new(seat, scheduling, meters));
        }
        self.sweep();
        let index = self.free.pop()?;
        let seat = Arc::new(TenantSeat { index, grant: self.grants.of(tenant) });
        let terms = Terms::new(&seat, scheduling, meters);
        self.seats.insert(tenant.clone(), seat);
        Some(terms)
    }

    /// Takes numbers back that nobody has any more.
    fn sweep(&mut self) {
        let free = &mut self.free;
        self.seats.retain(|_, seat| {
            let is_held = Arc::strong_count(seat) > 1;
            if !is_held {
                free.push(seat.index);
            }
            is_held
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meters() -> Arc<ChainMeters> {
        Arc::new(ChainMeters::new(1))
    }

    fn tenant(number: usize) -> TenantName {
        TenantName::new(format!("tenant-{number}")).unwrap()
    }

    #[test]
    fn a_tenant_keeps_its_number_and_weight_in_all_of_its_chains() {
        let grant = CpuGrant { weight: 7, ..CpuGrant::default() };
        let mut tenants = Tenants::new(CpuGrants([(tenant(1), grant)].into()));
        let terms = [(1, Class::Latency), (2, Class::Latency), (1, Class::Throughput)].map(|(number, class)| {
            tenants.terms(&tenant(number), &Scheduling { class, ..Scheduling::default() }, meters()).unwrap()
        });
        let shares = terms.each_ref().map(|terms| terms.share);
        assert_eq!(shares.map(|share| share.weight), [7, 1, 7]);
        assert_eq!(shares[0].tenant, shares[2].tenant);
        assert_ne!(shares[0].tenant, shares[1].tenant);
    }

    #[test]
    fn a_number_goes_to_another_tenant_only_when_nobody_has_it_any_more() {
        let mut tenants = Tenants::new(CpuGrants::default());
        let mut terms = |number| tenants.terms(&tenant(number), &Scheduling::default(), meters());
        let held: Vec<Terms> = (0..TENANTS_MAX).map(|number| terms(number).unwrap()).collect();
        assert!(terms(TENANTS_MAX).is_none());
        let index = held[17].share.tenant;
        let others: Vec<Terms> = held.iter().filter(|terms| terms.share.tenant != index).cloned().collect();
        drop(held);
        assert_eq!(terms(TENANTS_MAX).unwrap().share.tenant, index);
        drop(others);
    }
}
