//! Scheduling parameters of an FWP: its share of the core, as granted to its tenant and its chain.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use pinion_control::model::{Class, OverBudget, Scheduling, TenantName};
use pinion_mma::accounts::copying::CopyShare;
use pinion_mma::id::{TENANTS_MAX, TenantIndex};

use crate::clock::GuestClock;
use crate::scheduler::{Budget, CpuShare, Rate, TenantGeneration};
use crate::tenants::meters::{ChainMeter, ChainMeters};

/// Scheduling parameters of one FWP, the same for all FWPs of its chain.
#[derive(Clone)]
pub struct SchedulingParams {
    /// How it shares the core.
    pub share: CpuShare,
    /// The clock that it sees.
    pub(crate) guest_clock: GuestClock,
    /// Its chain's meters, on all workers.
    meters: Arc<ChainMeters>,
    /// The meter of its worker. A direct pointer, because with thousands of chains each step on the way to it would be a cache miss.
    meter: Arc<CachePadded<ChainMeter>>,
    /// Keeps the tenant's number from being given to another tenant.
    _seat: Arc<TenantSlot>,
}

impl Default for SchedulingParams {
    /// Returns the parameters of a tenant that is alone.
    fn default() -> Self {
        let slot =
            TenantSlot { index: TenantIndex(0), generation: TenantGeneration::default(), grant: CpuGrant::default() };
        Self::new(&Arc::new(slot), &Scheduling::default(), Arc::new(ChainMeters::new(1)))
    }
}

impl SchedulingParams {
    fn new(slot: &Arc<TenantSlot>, scheduling: &Scheduling, meters: Arc<ChainMeters>) -> Self {
        let TenantSlot { index, generation, grant } = **slot;
        let Scheduling { class, cpu_per_batch_us, cpu_per_second_ms, over_budget } = *scheduling;
        let share = CpuShare {
            tenant: index,
            generation,
            weight: grant.weight,
            // A chain that was stored under a higher grant gets what is granted now.
            class: class.max(grant.class_max),
            budget: Budget {
                per_batch_ns: cpu_per_batch_us.map(|us| u64::from(us) * 1_000),
                rate: cpu_per_second_ms.map(|ms| rate(ms, over_budget)),
            },
            tenant_rate: grant.cpu_per_second_ms.map(|ms| rate(ms, OverBudget::Throttle)),
        };
        let meter = Arc::clone(meters.on_worker(0));
        let guest_clock = GuestClock::in_steps_of(grant.clock_step_us);
        Self { share, guest_clock, meters, meter, _seat: Arc::clone(slot) }
    }

    /// Returns the same for an FWP on this worker, by the worker's position in the core plan.
    #[must_use]
    pub fn on_worker(&self, worker: usize) -> Self {
        Self { meter: Arc::clone(self.meters.on_worker(worker)), ..self.clone() }
    }

    /// Returns the meter to which its worker adds.
    #[must_use]
    #[inline]
    pub fn meter(&self) -> &ChainMeter {
        &self.meter
    }

    /// Returns on whose account the MMAs move what its FWPs send.
    #[must_use]
    pub fn copy_share(&self) -> CopyShare {
        CopyShare { tenant: self.share.tenant, weight: self.share.weight }
    }

    /// Counts a client that got an instance of its chain; called by the launcher.
    pub(crate) fn note_activation(&self) {
        self.meters.activations.add(1);
    }
}

fn rate(per_second_ms: u32, over_budget: OverBudget) -> Rate {
    Rate { per_second_ns: u64::from(per_second_ms) * 1_000_000, over_budget }
}

/// The steps of the clock of a tenant that is granted no finer one, in microseconds: coarse, so that the clock is of little use for
/// observing other tenants.
pub const CLOCK_STEP_US: u32 = 100;

/// The operator's grant of CPU time to a tenant, and of how finely its functions see time pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuGrant {
    /// The weight against other tenants of a class.
    pub weight: u32,
    /// The highest class that its chains may have.
    pub class_max: Class,
    /// The most CPU time per second, on all workers together, for all of its FWPs, in milliseconds; none for no limit.
    pub cpu_per_second_ms: Option<u32>,
    /// The steps of its functions' clock, in microseconds.
    pub clock_step_us: u32,
}

impl Default for CpuGrant {
    fn default() -> Self {
        Self { weight: 1, class_max: Class::Throughput, cpu_per_second_ms: None, clock_step_us: CLOCK_STEP_US }
    }
}

/// The operator's grants.
#[derive(Debug, Clone, Default)]
pub struct CpuGrants {
    /// Those of tenants without an entry of their own.
    pub default: CpuGrant,
    /// Those of other tenants.
    pub by_name: BTreeMap<TenantName, CpuGrant>,
}

impl CpuGrants {
    /// Returns one tenant's grant.
    #[must_use]
    pub fn of(&self, tenant: &TenantName) -> CpuGrant {
        self.by_name.get(tenant).copied().unwrap_or(self.default)
    }
}

/// A tenant's number; reserved as long as there is a reference to it.
#[derive(Debug)]
struct TenantSlot {
    index: TenantIndex,
    generation: TenantGeneration,
    grant: CpuGrant,
}

/// A number, and the tenant that has it or had it last.
struct Assigned {
    slot: Arc<TenantSlot>,
    /// When terms were last requested for it, as a count of requests.
    asked: u64,
}

/// Which tenant has which number.
///
/// A tenant without chains and FWPs keeps its number, under which workers know its usage, until another tenant needs it. That happens only
/// when all numbers are given, and to the tenant that has been gone for longest. The generation tells workers that the number has passed
/// on.
pub struct Tenants {
    grants: CpuGrants,
    /// Their numbers are all those below the count of entries.
    slots: HashMap<TenantName, Assigned>,
    asked: u64,
}

impl Tenants {
    /// Creates an empty registry.
    #[must_use]
    pub fn new(grants: CpuGrants) -> Self {
        Self { grants, slots: HashMap::new(), asked: 0 }
    }

    /// Returns the operator's grant to a tenant.
    #[must_use]
    pub fn grant(&self, tenant: &TenantName) -> CpuGrant {
        self.grants.of(tenant)
    }

    /// Returns the scheduling parameters of a tenant's chain; none if the node already has as many tenants as it distinguishes.
    pub fn terms(
        &mut self,
        tenant: &TenantName,
        scheduling: &Scheduling,
        meters: Arc<ChainMeters>,
    ) -> Option<SchedulingParams> {
        self.asked += 1;
        if !self.slots.contains_key(tenant) {
            let (index, generation) = self.vacate()?;
            let slot = Arc::new(TenantSlot { index, generation, grant: self.grants.of(tenant) });
            self.slots.insert(tenant.clone(), Assigned { slot, asked: 0 });
        }
        let assigned = self.slots.get_mut(tenant)?;
        assigned.asked = self.asked;
        Some(SchedulingParams::new(&assigned.slot, scheduling, meters))
    }

    /// Returns a number that is free: never used, or of the tenant that has been gone for longest.
    fn vacate(&mut self) -> Option<(TenantIndex, TenantGeneration)> {
        if self.slots.len() < TENANTS_MAX {
            return Some((TenantIndex(self.slots.len() as u16), TenantGeneration::default()));
        }
        let is_gone = |(_, assigned): &(&TenantName, &Assigned)| Arc::strong_count(&assigned.slot) == 1;
        let (gone, _) = self.slots.iter().filter(is_gone).min_by_key(|(_, assigned)| assigned.asked)?;
        let gone = gone.clone();
        let TenantSlot { index, generation, .. } = *self.slots.remove(&gone)?.slot;
        Some((index, TenantGeneration(generation.0.wrapping_add(1))))
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

    fn granted(grants: impl IntoIterator<Item = (TenantName, CpuGrant)>) -> CpuGrants {
        CpuGrants { by_name: grants.into_iter().collect(), ..CpuGrants::default() }
    }

    #[test]
    fn no_chain_has_a_higher_class_than_its_tenant_is_granted_and_by_default_that_is_the_lowest() {
        let classes = |class_max: Option<Class>| {
            let grant = class_max.map(|class_max| (tenant(1), CpuGrant { class_max, ..CpuGrant::default() }));
            let mut tenants = Tenants::new(granted(grant));
            Class::ALL.map(|class| {
                let scheduling = Scheduling { class, ..Scheduling::default() };
                tenants.terms(&tenant(1), &scheduling, meters()).unwrap().share.class
            })
        };
        let [system, latency, throughput] = Class::ALL;
        assert_eq!(classes(None), [throughput; 3]);
        assert_eq!(classes(Some(throughput)), [throughput; 3]);
        assert_eq!(classes(Some(latency)), [latency, latency, throughput]);
        assert_eq!(classes(Some(system)), Class::ALL);
    }

    #[test]
    fn a_tenant_keeps_its_number_and_weight_in_all_of_its_chains() {
        let grant = CpuGrant { weight: 7, ..CpuGrant::default() };
        let mut tenants = Tenants::new(granted([(tenant(1), grant)]));
        let terms = [(1, Class::Latency), (2, Class::Latency), (1, Class::Throughput)].map(|(number, class)| {
            tenants.terms(&tenant(number), &Scheduling { class, ..Scheduling::default() }, meters()).unwrap()
        });
        let shares = terms.each_ref().map(|terms| terms.share);
        assert_eq!(shares.map(|share| share.weight), [7, 1, 7]);
        assert_eq!(shares[0].tenant, shares[2].tenant);
        assert_ne!(shares[0].tenant, shares[1].tenant);
    }

    /// Returns a node's registry in which each of these tenants has a chain, and their parameters.
    fn full() -> (Tenants, Vec<SchedulingParams>) {
        let mut tenants = Tenants::new(CpuGrants::default());
        let held = (0..TENANTS_MAX).map(|number| terms(&mut tenants, number).unwrap()).collect();
        (tenants, held)
    }

    fn terms(tenants: &mut Tenants, number: usize) -> Option<SchedulingParams> {
        tenants.terms(&tenant(number), &Scheduling::default(), meters())
    }

    fn known(terms: &SchedulingParams) -> (TenantIndex, TenantGeneration) {
        (terms.share.tenant, terms.share.generation)
    }

    #[test]
    fn a_number_goes_to_another_tenant_only_when_it_is_unused_and_with_a_new_generation() {
        let (mut tenants, mut held) = full();
        assert!(terms(&mut tenants, TENANTS_MAX).is_none());
        let (index, TenantGeneration(generation)) = known(&held.remove(17));
        let next = terms(&mut tenants, TENANTS_MAX).unwrap();
        assert_eq!(known(&next), (index, TenantGeneration(generation + 1)));
        assert!(terms(&mut tenants, TENANTS_MAX + 1).is_none());
    }

    #[test]
    fn a_returning_tenant_keeps_its_number_unless_another_tenant_needed_it() {
        let mut tenants = Tenants::new(CpuGrants::default());
        let first = known(&terms(&mut tenants, 0).unwrap());
        let others: Vec<SchedulingParams> =
            (1..TENANTS_MAX).map(|number| terms(&mut tenants, number).unwrap()).collect();
        assert!(others.iter().all(|other| known(other) != first));
        assert_eq!(known(&terms(&mut tenants, 0).unwrap()), first);
        // No tenant has been gone for longer than the only one that is gone.
        assert_eq!(known(&terms(&mut tenants, TENANTS_MAX).unwrap()), (first.0, TenantGeneration(first.1.0 + 1)));
    }

    #[test]
    fn the_tenant_gone_for_longest_loses_its_number_first() {
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
