//! On what terms an FWP has the core: its share, as its tenant and its chain are granted it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use pinion_control::model::{Class, OverBudget, Scheduling, TenantName};

use crate::meters::{ChainMeter, ChainMeters};
use crate::scheduler::{Budget, Rate, Share, TENANTS_MAX, TenantIndex, Tenure};

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
        let seat = TenantSeat { index: TenantIndex(0), tenure: Tenure::default(), grant: CpuGrant::default() };
        Self::new(&Arc::new(seat), &Scheduling::default(), Arc::new(ChainMeters::new(1)))
    }
}

impl Terms {
    fn new(seat: &Arc<TenantSeat>, scheduling: &Scheduling, meters: Arc<ChainMeters>) -> Self {
        let TenantSeat { index, tenure, grant } = **seat;
        let Scheduling { class, cpu_per_batch_us, cpu_per_second_ms, over_budget } = *scheduling;
        let share = Share {
            tenant: index,
            tenure,
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
    tenure: Tenure,
    grant: CpuGrant,
}

/// A seat, and whoever has it, or had it last.
struct Assigned {
    seat: Arc<TenantSeat>,
    /// When terms were last asked for, by their count.
    asked: u64,
}

/// Which tenant has which number.
///
/// A tenant without chains and FWPs keeps its number, by which workers know what it has had, until another one needs it: all numbers are
/// given, and nobody has been gone for longer. Workers are told by the tenure that the number is another's then.
pub struct Tenants {
    grants: CpuGrants,
    /// They have all numbers below as many as they are.
    seats: HashMap<TenantName, Assigned>,
    asked: u64,
}

impl Tenants {
    /// None yet.
    #[must_use]
    pub fn new(grants: CpuGrants) -> Self {
        Self { grants, seats: HashMap::new(), asked: 0 }
    }

    /// The terms of a tenant's chain; none if there are as many tenants as the node tells apart.
    pub fn terms(&mut self, tenant: &TenantName, scheduling: &Scheduling, meters: Arc<ChainMeters>) -> Option<Terms> {
        self.asked += 1;
        if !self.seats.contains_key(tenant) {
            let (index, tenure) = self.vacate()?;
            let seat = Arc::new(TenantSeat { index, tenure, grant: self.grants.of(tenant) });
            self.seats.insert(tenant.clone(), Assigned { seat, asked: 0 });
        }
        let assigned = self.seats.get_mut(tenant)?;
        assigned.asked = self.asked;
        Some(Terms::new(&assigned.seat, scheduling, meters))
    }

    /// A number that nobody has, for the first tenant to have it, or for the next.
    fn vacate(&mut self) -> Option<(TenantIndex, Tenure)> {
        if self.seats.len() < TENANTS_MAX {
            return Some((TenantIndex(self.seats.len() as u16), Tenure::default()));
        }
        let is_gone = |(_, assigned): &(&TenantName, &Assigned)| Arc::strong_count(&assigned.seat) == 1;
        let (gone, _) = self.seats.iter().filter(is_gone).min_by_key(|(_, assigned)| assigned.asked)?;
        let gone = gone.clone();
        let TenantSeat { index, tenure, .. } = *self.seats.remove(&gone)?.seat;
        Some((index, Tenure(tenure.0.wrapping_add(1))))
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

    /// A node on which each of these tenants has a chain, and who they are by what workers know of them.
    fn full() -> (Tenants, Vec<Terms>) {
        let mut tenants = Tenants::new(CpuGrants::default());
        let held = (0..TENANTS_MAX).map(|number| terms(&mut tenants, number).unwrap()).collect();
        (tenants, held)
    }

    fn terms(tenants: &mut Tenants, number: usize) -> Option<Terms> {
        tenants.terms(&tenant(number), &Scheduling::default(), meters())
    }

    fn known(terms: &Terms) -> (TenantIndex, Tenure) {
        (terms.share.tenant, terms.share.tenure)
    }

    #[test]
    fn a_number_goes_to_another_tenant_only_when_nobody_has_it_any_more_and_then_it_is_said() {
        let (mut tenants, mut held) = full();
        assert!(terms(&mut tenants, TENANTS_MAX).is_none());
        let (index, Tenure(tenure)) = known(&held.remove(17));
        let next = terms(&mut tenants, TENANTS_MAX).unwrap();
        assert_eq!(known(&next), (index, Tenure(tenure + 1)));
        assert!(terms(&mut tenants, TENANTS_MAX + 1).is_none());
    }

    #[test]
    fn a_tenant_that_comes_back_is_known_by_its_number_unless_there_was_no_other_for_somebody_else() {
        let mut tenants = Tenants::new(CpuGrants::default());
        let first = known(&terms(&mut tenants, 0).unwrap());
        let others: Vec<Terms> = (1..TENANTS_MAX).map(|number| terms(&mut tenants, number).unwrap()).collect();
        assert!(others.iter().all(|other| known(other) != first));
        assert_eq!(known(&terms(&mut tenants, 0).unwrap()), first);
        // Nobody has been gone for longer than the tenant that is gone alone.
        assert_eq!(known(&terms(&mut tenants, TENANTS_MAX).unwrap()), (first.0, Tenure(first.1.0 + 1)));
    }

    #[test]
    fn of_those_who_are_gone_the_one_that_has_been_for_longest_gives_its_number_up() {
        let (mut tenants, held) = full();
        let expected = known(&held[0]).0;
        drop(held);
        for number in [2, 1] {
            terms(&mut tenants, number).unwrap();
        }
        assert_eq!(known(&terms(&mut tenants, TENANTS_MAX).unwrap()).0, expected);
        let left: Vec<TenantIndex> =
            (1..TENANTS_MAX).map(|more| known(&terms(&mut tenants, TENANTS_MAX + more).unwrap()).0).collect();
        assert_eq!(left[TENANTS_MAX - 3..], [TenantIndex(2), TenantIndex(1)]);
    }
}
