//! Scheduling parameters of an FWP: its share of the core, as granted to its tenant and its chain.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;
use pinion_control::model::{Class, DesiredState, OverBudget, Scheduling, Tenant, TenantName};
use pinion_mma::accounts::copying::CopyShare;
use pinion_mma::id::{TENANTS_MAX, TenantIndex};

use crate::clock::GuestClock;
use crate::scheduler::{Budget, CpuShare, Rate, TenantGeneration, TenantShare};
use crate::tenants::job_meters::JobMeters;
use crate::tenants::meters::{ChainMeter, ChainMeters};

/// Scheduling parameters of one FWP, the same for all FWPs of its chain.
#[derive(Clone)]
pub struct SchedulingParams {
    /// How it shares the core, with the weight and the rate of its tenant when it was made. [`SchedulingParams::current_share`] has them as
    /// they are.
    pub share: CpuShare,
    /// The clock that it sees.
    pub(crate) guest_clock: GuestClock,
    /// Its chain's meters, on all workers.
    meters: Arc<ChainMeters>,
    /// The meter of its worker. A direct pointer, because with thousands of chains each step on the way to it would be a cache miss.
    meter: Arc<CachePadded<ChainMeter>>,
    /// Keeps the tenant's number from being given to another tenant.
    slot: Arc<TenantSlot>,
}

impl Default for SchedulingParams {
    /// Returns the parameters of a tenant that is alone.
    fn default() -> Self {
        Self::of_tenant(TenantIndex(0))
    }
}

impl SchedulingParams {
    /// Returns the parameters of a chain with meters of its own, for a tenant of this number without terms.
    pub(crate) fn of_tenant(index: TenantIndex) -> Self {
        let grant = CpuGrant::default();
        let slot = TenantSlot::new(index, TenantGeneration::default(), grant);
        Self::new(&Arc::new(slot), grant, &Scheduling::default(), Arc::new(ChainMeters::new(1)))
    }

    fn new(slot: &Arc<TenantSlot>, grant: CpuGrant, scheduling: &Scheduling, meters: Arc<ChainMeters>) -> Self {
        let TenantShare { tenant: index, generation, weight, rate: tenant_rate } = slot.share();
        let Scheduling { class, cpu_per_batch_us, cpu_per_second_ms, over_budget } = *scheduling;
        let share = CpuShare {
            tenant: index,
            generation,
            weight,
            class: grant.class_of(class),
            budget: Budget {
                per_batch_ns: cpu_per_batch_us.map(|us| u64::from(us) * 1_000),
                rate: cpu_per_second_ms.map(|ms| rate(ms, over_budget)),
            },
            tenant_rate,
        };
        let meter = Arc::clone(meters.on_worker(0));
        let guest_clock = GuestClock::in_steps_of(grant.clock_step_us);
        Self { share, guest_clock, meters, meter, slot: Arc::clone(slot) }
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
        let TenantShare { tenant, weight, .. } = self.slot.share();
        CopyShare { tenant, weight }
    }

    /// Returns how its FWPs share the core now: weight and rate of a tenant can change while FWPs run.
    #[must_use]
    pub fn current_share(&self) -> CpuShare {
        let TenantShare { weight, rate, .. } = self.slot.share();
        CpuShare { weight, tenant_rate: rate, ..self.share }
    }

    /// Returns whether FWPs that were made with these parameters have the class and the clock of this grant.
    pub(crate) fn have_terms_of(&self, grant: CpuGrant, scheduling: &Scheduling) -> bool {
        self.share.class == grant.class_of(scheduling.class)
            && self.guest_clock == GuestClock::in_steps_of(grant.clock_step_us)
    }

    /// Returns the meters of the jobs of its chain.
    #[must_use]
    pub fn jobs(&self) -> &JobMeters {
        self.meters.jobs()
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

impl CpuGrant {
    /// Returns the grant of a tenant with these terms. `self` is the node's default.
    #[must_use]
    pub fn with(self, terms: Option<&Tenant>) -> Self {
        terms.map_or(self, |terms| Self {
            weight: terms.weight,
            class_max: terms.class_max,
            cpu_per_second_ms: terms.cpu_per_second_ms,
            clock_step_us: terms.clock_step_us.unwrap_or(self.clock_step_us),
        })
    }

    /// Returns the class that a chain of this class has. One that was stored under a higher grant gets what is granted now.
    fn class_of(self, class: Class) -> Class {
        class.max(self.class_max)
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

    /// Sets the grants of tenants to those of a desired state.
    pub fn follow(&mut self, state: &DesiredState) {
        let grant = |terms: &Arc<Tenant>| (terms.name.clone(), self.default.with(Some(terms)));
        self.by_name = state.tenants().values().map(grant).collect();
    }
}

/// A tenant's number; reserved as long as there is a reference to it. Also its weight and its rate, which the launcher changes, and which
/// workers read when they adopt an FWP.
#[derive(Debug)]
struct TenantSlot {
    index: TenantIndex,
    generation: TenantGeneration,
    weight: AtomicU32,
    /// 0 for no limit.
    cpu_per_second_ms: AtomicU32,
}

impl TenantSlot {
    fn new(index: TenantIndex, generation: TenantGeneration, grant: CpuGrant) -> Self {
        let (weight, cpu_per_second_ms) = (AtomicU32::new(grant.weight), AtomicU32::default());
        let slot = Self { index, generation, weight, cpu_per_second_ms };
        slot.set(grant);
        slot
    }

    fn set(&self, grant: CpuGrant) {
        self.weight.store(grant.weight, Ordering::Relaxed);
        self.cpu_per_second_ms.store(grant.cpu_per_second_ms.unwrap_or(0), Ordering::Relaxed);
    }

    fn share(&self) -> TenantShare {
        let cpu_per_second_ms = self.cpu_per_second_ms.load(Ordering::Relaxed);
        TenantShare {
            tenant: self.index,
            generation: self.generation,
            weight: self.weight.load(Ordering::Relaxed),
            rate: (cpu_per_second_ms > 0).then(|| rate(cpu_per_second_ms, OverBudget::Throttle)),
        }
    }
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

    /// Sets what tenants are granted to what a desired state says. Returns the shares of those whose weight or rate is another now: workers
    /// and MMAs have to learn of them. Chains made before keep their class and clock.
    pub fn follow(&mut self, state: &DesiredState) -> Vec<TenantShare> {
        self.grants.follow(state);
        let changed = |(tenant, Assigned { slot, .. }): (&TenantName, &Assigned)| {
            let before = slot.share();
            slot.set(self.grants.of(tenant));
            Some(slot.share()).filter(|now| *now != before)
        };
        self.slots.iter().filter_map(changed).collect()
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
        let grant = self.grants.of(tenant);
        if !self.slots.contains_key(tenant) {
            let (index, generation) = self.vacate()?;
            let slot = Arc::new(TenantSlot::new(index, generation, grant));
            self.slots.insert(tenant.clone(), Assigned { slot, asked: 0 });
        }
        let assigned = self.slots.get_mut(tenant)?;
        assigned.asked = self.asked;
        Some(SchedulingParams::new(&assigned.slot, grant, scheduling, meters))
    }

    /// Returns a number that is free: never used, or of the tenant that has been gone for longest.
    fn vacate(&mut self) -> Option<(TenantIndex, TenantGeneration)> {
        if self.slots.len() < TENANTS_MAX {
            return Some((TenantIndex(self.slots.len() as u16), TenantGeneration::default()));
        }
        let is_gone = |(_, assigned): &(&TenantName, &Assigned)| Arc::strong_count(&assigned.slot) == 1;
        let (gone, _) = self.slots.iter().filter(is_gone).min_by_key(|(_, assigned)| assigned.asked)?;
        let gone = gone.clone();
        let TenantShare { tenant: index, generation, .. } = self.slots.remove(&gone)?.slot.share();
        Some((index, TenantGeneration(generation.0.wrapping_add(1))))
    }
}

#[cfg(test)]
mod tests {
    use pinion_control::model::Change;

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

    /// Returns a state with this tenant's terms.
    fn state(terms: Tenant) -> DesiredState {
        let change = Change { tenants: vec![terms], ..Change::default() };
        DesiredState::default().apply(&change).unwrap().state
    }

    #[test]
    fn other_terms_hold_for_parameters_that_were_made_before_except_for_class_and_clock() {
        let mut tenants = Tenants::new(CpuGrants::default());
        let scheduling = Scheduling { class: Class::Latency, ..Scheduling::default() };
        let before = tenants.terms(&tenant(1), &scheduling, meters()).unwrap();
        let other = tenants.terms(&tenant(2), &scheduling, meters()).unwrap();
        let terms = Tenant { weight: 9, cpu_per_second_ms: Some(250), ..Tenant::new(tenant(1)) };
        let changed = tenants.follow(&state(terms.clone()));
        let TenantShare { tenant: index, weight, rate, .. } = changed[0];
        assert_eq!((changed.len(), index, weight), (1, before.share.tenant, 9));
        assert_eq!(rate, Some(super::rate(250, OverBudget::Throttle)));
        assert_eq!((before.current_share().weight, before.current_share().tenant_rate), (9, rate));
        assert_eq!((before.copy_share().weight, other.current_share()), (9, other.share));
        assert_eq!(tenants.follow(&state(terms.clone())), []);

        let grant = tenants.grant(&tenant(1));
        assert!(before.have_terms_of(grant, &scheduling));
        tenants.follow(&state(Tenant { class_max: Class::Latency, ..terms.clone() }));
        assert!(!before.have_terms_of(tenants.grant(&tenant(1)), &scheduling));
        tenants.follow(&state(Tenant { clock_step_us: Some(1), ..terms }));
        assert!(!before.have_terms_of(tenants.grant(&tenant(1)), &scheduling));
        // Without terms of its own it has the node's defaults again.
        let changed = tenants.follow(&DesiredState::default());
        assert_eq!((changed[0].weight, changed[0].rate), (1, None));
        assert_eq!(before.current_share(), before.share);
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
