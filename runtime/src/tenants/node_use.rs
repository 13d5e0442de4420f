//! What tenants use of all workers together, so that weights and budgets hold for the node and not for each core.
//!
//! ```text
//!   worker --adds, a turn at a time--> its CPU time by tenant and class
//!     ^                                           |
//!     '---- looks at what tenants had of the others, every 10 ms while it gives turns
//! ```
//!
//! For its share of a core a tenant is charged with each turn here, and a part of what it has had of other workers with it. The part is
//! such that all is charged in about as much of its time as it had here between two looks; but at most nineteen times the turn, so that a
//! tenant with another core to itself still gets one part in [`GUARANTEED_PART`] of its share of this one: its clients here are not to wait
//! for ever. It is charged with the turns, and not when it is found: the tenant would rest for as long as that.
//!
//! Budgets are charged in full, when it is found.

use std::sync::Arc;

use pinion_control::model::Class;
use pinion_mma::accounts::counters::Counter;
use pinion_mma::id::{TENANTS_MAX, TenantIndex};

use crate::scheduler::{CpuShare, GUARANTEED_PART, TenantGeneration};

const CLASSES: usize = Class::ALL.len();
/// How often a worker looks at what tenants have had of the others.
const LOOK_INTERVAL_NS: u64 = 10_000_000;
/// What tenants have had while a worker did not look for so long does not count for their shares here.
const PAUSE_NS: u64 = 5 * LOOK_INTERVAL_NS;
/// Tenants that are looked at in one go.
const TENANTS_AT_ONCE: usize = 32;
/// What a tenant may still be charged for at most, if it had too little here to be charged for more.
const PENDING_NS_MAX: u64 = 200_000_000;
/// A turn's whole time, as a part that is charged with it.
const WHOLE: u64 = 256;
const PART_MAX: u64 = (GUARANTEED_PART - 1) * WHOLE;

/// By class.
type ByClass<T> = [T; CLASSES];

/// CPU time of one worker, by tenant. The worker alone adds to it.
type OneWorkersUse = Arc<[ByClass<Counter>]>;

/// What a worker charges with a tenant's turns.
#[derive(Clone, Copy, Default)]
struct Charging {
    /// `None` before its first turn here.
    generation: Option<TenantGeneration>,
    /// The part of a turn's time that is charged besides, in units of which [`WHOLE`] are all of it.
    part: ByClass<u16>,
    pending_ns: ByClass<u64>,
}

/// What a worker knew of a tenant when it looked last.
#[derive(Clone, Copy, Default)]
struct Seen {
    here_ns: ByClass<u64>,
    others_ns: ByClass<u64>,
}

/// A worker's view of what tenants use of the others.
pub struct UseElsewhere {
    here: OneWorkersUse,
    others: Vec<OneWorkersUse>,
    charging: Box<[Charging]>,
    seen: Box<[Seen]>,
    /// The tenants that have had turns here.
    known: Vec<TenantIndex>,
    /// The position in `known` of the tenant that is looked at next.
    next: usize,
    due_ns: u64,
    looked_ns: u64,
    /// There was a pause before the tenants that are left were looked at.
    after_pause: bool,
}

impl UseElsewhere {
    /// Returns the views of so many workers. None for a single one: there is nothing that others use.
    #[must_use]
    pub fn of_workers(workers: usize) -> Vec<Option<Self>> {
        let by_tenant = |_| (0..TENANTS_MAX).map(|_| ByClass::<Counter>::default()).collect();
        let all: Vec<OneWorkersUse> = (0..workers).map(by_tenant).collect();
        let view = |worker: usize| {
            let mut others = all.clone();
            let here = others.remove(worker);
            (workers > 1).then(|| Self::new(here, others))
        };
        (0..workers).map(view).collect()
    }

    fn new(here: OneWorkersUse, others: Vec<OneWorkersUse>) -> Self {
        Self {
            here,
            others,
            charging: vec![Charging::default(); TENANTS_MAX].into(),
            seen: vec![Seen::default(); TENANTS_MAX].into(),
            known: Vec::with_capacity(TENANTS_MAX),
            next: 0,
            due_ns: 0,
            looked_ns: 0,
            after_pause: false,
        }
    }

    /// Adds what an FWP of this share has had of this worker. Returns what its tenant is charged besides for its share of this core, for what
    /// it had of others.
    #[inline]
    pub fn add(&mut self, share: &CpuShare, cpu_ns: u64) -> u64 {
        let (at, class) = (usize::from(share.tenant.0), share.class as usize);
        if self.charging[at].generation != Some(share.generation) {
            self.meet(share);
        }
        self.here[at][class].add(cpu_ns);
        let charging = &mut self.charging[at];
        let more_ns = charging.pending_ns[class].min(cpu_ns * u64::from(charging.part[class]) / WHOLE);
        charging.pending_ns[class] -= more_ns;
        more_ns
    }

    /// What a tenant, or another one with its number, has had before its first turn here counts for nothing.
    #[cold]
    fn meet(&mut self, share: &CpuShare) {
        let at = usize::from(share.tenant.0);
        let here_ns = std::array::from_fn(|class| self.here[at][class].value());
        self.seen[at] = Seen { here_ns, others_ns: self.of_others(share.tenant) };
        let before = &mut self.charging[at];
        if before.generation.is_none() {
            self.known.push(share.tenant);
        }
        *before = Charging { generation: Some(share.generation), ..Charging::default() };
    }

    fn of_others(&self, tenant: TenantIndex) -> ByClass<u64> {
        self.others.iter().fold([0; CLASSES], |sum, by_tenant| {
            let used = &by_tenant[usize::from(tenant.0)];
            std::array::from_fn(|class| sum[class].wrapping_add(used[class].value()))
        })
    }

    /// Returns whether it is time to look.
    #[inline]
    #[must_use]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// Looks at what some of the tenants that have had turns here have had of other workers since the last look. `charge` is called with
    /// what counts for a tenant's budget.
    pub fn look(&mut self, now_ns: u64, mut charge: impl FnMut(TenantIndex, TenantGeneration, u64)) {
        let is_pause = now_ns > self.looked_ns + PAUSE_NS;
        self.after_pause = is_pause || self.after_pause && self.next > 0;
        self.looked_ns = now_ns;
        let end = (self.next + TENANTS_AT_ONCE).min(self.known.len());
        for place in self.next..end {
            let tenant = self.known[place];
            let used_ns = self.look_at(tenant);
            if let Some(generation) = self.charging[usize::from(tenant.0)].generation
                && used_ns > 0
            {
                charge(tenant, generation, used_ns);
            }
        }
        let is_done = end == self.known.len();
        self.next = if is_done { 0 } else { end };
        if is_done {
            self.due_ns = now_ns + LOOK_INTERVAL_NS;
        }
    }

    /// Finds out what is to be charged with a tenant's next turns. Returns what it has had of others since the last look.
    fn look_at(&mut self, tenant: TenantIndex) -> u64 {
        let at = usize::from(tenant.0);
        let others_ns = self.of_others(tenant);
        let (seen, charging) = (&mut self.seen[at], &mut self.charging[at]);
        let mut used_ns = 0_u64;
        for (class, of_others_ns) in others_ns.into_iter().enumerate() {
            let here_ns = self.here[at][class].value();
            let had_here_ns = here_ns.wrapping_sub(seen.here_ns[class]);
            let had_elsewhere_ns = of_others_ns.wrapping_sub(seen.others_ns[class]);
            used_ns = used_ns.saturating_add(had_elsewhere_ns);
            let pending_ns =
                if self.after_pause { 0 } else { charging.pending_ns[class].saturating_add(had_elsewhere_ns) };
            charging.pending_ns[class] = pending_ns.min(PENDING_NS_MAX);
            let part = charging.pending_ns[class] * WHOLE / had_here_ns.max(1);
            charging.part[class] = part.min(PART_MAX) as u16;
            seen.here_ns[class] = here_ns;
        }
        seen.others_ns = others_ns;
        used_ns
    }
}

#[cfg(test)]
mod tests {
    use pinion_control::model::OverBudget;
    use pinion_mma::id::FwpId;

    use super::*;
    use crate::scheduler::{After, Budget, Rate, Scheduler};

    const QUANTUM_NS: u64 = 20_000;
    const SECOND_NS: u64 = 1_000_000_000;

    fn share(tenant: u16, weight: u32) -> CpuShare {
        CpuShare {
            tenant: TenantIndex(tenant),
            generation: TenantGeneration(0),
            weight,
            class: Class::Throughput,
            budget: Budget::default(),
            tenant_rate: None,
        }
    }

    /// A worker whose FWPs always have work, from when they are woken.
    struct Core {
        scheduler: Scheduler,
        elsewhere: UseElsewhere,
        shares: Vec<CpuShare>,
        had_ns: Vec<u64>,
        /// When each had its last turn, and for how long it waited at most between two turns.
        turn_ns: Vec<u64>,
        wait_ns: Vec<u64>,
        now_ns: u64,
    }

    impl Core {
        fn new(elsewhere: UseElsewhere, shares: &[CpuShare]) -> Self {
            let (mut scheduler, count) = (Scheduler::new(shares.len(), 16, QUANTUM_NS), shares.len());
            for (share, index) in shares.iter().zip(0..) {
                scheduler.adopt(FwpId { index, generation: 0 }, *share, 0);
            }
            let none = vec![0; count];
            let (had_ns, turn_ns, wait_ns) = (none.clone(), none.clone(), none);
            Self { scheduler, elsewhere, shares: shares.to_vec(), had_ns, turn_ns, wait_ns, now_ns: 0 }
        }

        fn wake(&mut self, tenant: u16) {
            for (at, index) in (0..self.shares.len()).zip(0..) {
                if self.shares[at].tenant.0 == tenant {
                    self.scheduler.wake(FwpId { index, generation: 0 }, self.now_ns);
                    self.turn_ns[at] = self.now_ns;
                }
            }
        }

        fn turn(&mut self) {
            let Self { scheduler, elsewhere, now_ns, .. } = self;
            scheduler.release(*now_ns);
            if elsewhere.is_due(*now_ns) {
                elsewhere.look(*now_ns, |tenant, generation, used_ns| {
                    scheduler.charge_budget(tenant, generation, used_ns, *now_ns);
                });
            }
            let Some(chosen) = scheduler.choose() else {
                *now_ns = scheduler.held_until_ns().map_or(*now_ns + QUANTUM_NS, |until_ns| until_ns.max(*now_ns + 1));
                return;
            };
            let at = chosen.id.index as usize;
            self.wait_ns[at] = self.wait_ns[at].max(*now_ns - self.turn_ns[at]);
            *now_ns += QUANTUM_NS;
            self.had_ns[at] += QUANTUM_NS;
            self.turn_ns[at] = *now_ns;
            let more_ns = elsewhere.add(&self.shares[at], QUANTUM_NS);
            scheduler.charge_share(&self.shares[at], more_ns);
            assert_eq!(scheduler.charge(chosen.id, QUANTUM_NS, *now_ns, After::Preempted), None);
        }
    }

    /// Workers that run side by side.
    struct Node(Vec<Core>);

    impl Node {
        /// With FWPs of these shares on each worker, none of them awake.
        fn new(of_workers: &[&[CpuShare]]) -> Self {
            let views = UseElsewhere::of_workers(of_workers.len()).into_iter().flatten();
            Self(views.zip(of_workers).map(|(view, shares)| Core::new(view, shares)).collect())
        }

        /// All of whose FWPs have work.
        fn busy(of_workers: &[&[CpuShare]]) -> Self {
            let mut node = Self::new(of_workers);
            (0..16).for_each(|tenant| node.wake(tenant));
            node
        }

        fn wake(&mut self, tenant: u16) {
            self.0.iter_mut().for_each(|core| core.wake(tenant));
        }

        fn run_until(&mut self, end_ns: u64) {
            while let Some(core) = self.0.iter_mut().min_by_key(|core| core.now_ns)
                && core.now_ns < end_ns
            {
                core.turn();
            }
        }

        /// Returns what a tenant has had, in seconds.
        fn had_s(&self, tenant: u16) -> f64 {
            let all = self.0.iter().flat_map(|core| core.shares.iter().zip(&core.had_ns));
            let of_tenant = all.filter(|(share, _)| share.tenant.0 == tenant);
            of_tenant.map(|(_, had_ns)| *had_ns as f64 / SECOND_NS as f64).sum()
        }

        /// Returns for how many quanta an FWP of a tenant has waited at most.
        fn longest_wait_quanta(&self, tenant: u16) -> u64 {
            let all = self.0.iter().flat_map(|core| core.shares.iter().zip(&core.wait_ns));
            let of_tenant = all.filter(|(share, _)| share.tenant.0 == tenant);
            of_tenant.map(|(_, wait_ns)| wait_ns / QUANTUM_NS).max().unwrap_or(0)
        }
    }

    #[test]
    fn a_single_worker_has_nothing_to_look_at() {
        assert!(UseElsewhere::of_workers(1).iter().all(Option::is_none));
    }

    #[test]
    fn a_tenant_that_has_a_core_to_itself_leaves_the_other_core_to_others() {
        let (a, b) = (share(0, 1), share(1, 1));
        for of_a in [1, 40] {
            let many = vec![a; of_a];
            let mut node = Node::busy(&[&[&many[..], &[b]].concat(), &many]);
            node.run_until(4 * SECOND_NS);
            // A gets a part in twenty of the first core still.
            let (had_a, had_b) = (node.had_s(0), node.had_s(1));
            assert!((had_a - 4.2).abs() < 0.1 && (had_b - 3.8).abs() < 0.1, "{of_a}: {had_a} s and {had_b} s");
            assert!(node.longest_wait_quanta(0) <= 25 * of_a as u64, "{} quanta", node.longest_wait_quanta(0));
        }
    }

    #[test]
    fn tenants_share_the_node_by_weight() {
        let [a, b, c] = [share(0, 1), share(1, 1), share(2, 2)];
        let mut node = Node::busy(&[&[a, b, c], &[a, b, c]]);
        node.run_until(4 * SECOND_NS);
        let had_s = [0, 1, 2].map(|tenant| node.had_s(tenant));
        assert!(had_s.iter().zip([2.0, 2.0, 4.0]).all(|(had_s, due_s)| (had_s - due_s).abs() < 0.1), "{had_s:?}");
        // B has nothing on the second worker, and gets more of the first.
        let mut node = Node::busy(&[&[a, b, c], &[a, c]]);
        node.run_until(4 * SECOND_NS);
        let had_s = [0, 1, 2].map(|tenant| node.had_s(tenant));
        assert!((had_s[1] - 2.0).abs() < 0.15 && (had_s[2] / had_s[0] - 2.0).abs() < 0.15, "{had_s:?}");
    }

    #[test]
    fn tenants_wait_for_slices_of_each_other_however_many_cores_they_share() {
        let (a, b) = (share(0, 1), share(1, 1));
        for cores in 2..=5 {
            let mut node = Node::new(&vec![&[a, b][..]; cores]);
            node.wake(0);
            node.run_until(SECOND_NS / 2 + LOOK_INTERVAL_NS / 2);
            node.wake(1);
            node.run_until(2 * SECOND_NS);
            let waits = [0, 1].map(|tenant| node.longest_wait_quanta(tenant));
            assert!(waits.iter().all(|quanta| *quanta <= 25), "{cores} cores: {waits:?} quanta");
        }
    }

    #[test]
    fn what_a_tenant_had_before_its_first_turn_or_while_a_worker_rested_counts_for_nothing_here() {
        let a = share(0, 1);
        let mut views = UseElsewhere::of_workers(2).into_iter().flatten();
        let (mut here, mut there) = (views.next().unwrap(), views.next().unwrap());
        there.add(&a, SECOND_NS);
        assert_eq!(here.add(&a, QUANTUM_NS), 0);
        here.look(LOOK_INTERVAL_NS, |tenant, _, used_ns| panic!("{tenant:?} is charged for {used_ns} ns"));
        assert_eq!(here.add(&a, QUANTUM_NS), 0);
        there.add(&a, QUANTUM_NS);
        let mut used = Vec::new();
        here.look(2 * LOOK_INTERVAL_NS, |_, _, used_ns| used.push(used_ns));
        assert_eq!((used, here.add(&a, QUANTUM_NS)), (vec![QUANTUM_NS], QUANTUM_NS));
        there.add(&a, SECOND_NS);
        here.look(SECOND_NS, |_, _, _| {});
        assert_eq!(here.add(&a, QUANTUM_NS), 0);
    }

    #[test]
    fn a_later_tenant_with_the_same_number_is_not_charged_for_an_earlier_ones_time() {
        let a = share(0, 1);
        let later = CpuShare { generation: TenantGeneration(1), ..a };
        let mut views = UseElsewhere::of_workers(2).into_iter().flatten();
        let (mut here, mut there) = (views.next().unwrap(), views.next().unwrap());
        here.add(&a, QUANTUM_NS);
        there.add(&a, SECOND_NS);
        here.look(LOOK_INTERVAL_NS, |_, _, _| {});
        there.add(&a, SECOND_NS);
        assert_eq!(here.add(&later, QUANTUM_NS), 0);
        here.look(2 * LOOK_INTERVAL_NS, |tenant, _, used_ns| panic!("{tenant:?} is charged for {used_ns} ns"));
        assert_eq!(here.add(&later, QUANTUM_NS), 0);
    }

    #[test]
    fn a_tenants_budget_is_that_of_all_workers_together() {
        let rate = Rate { per_second_ns: SECOND_NS / 4, over_budget: OverBudget::Throttle };
        let (a, b) = (CpuShare { tenant_rate: Some(rate), ..share(0, 1) }, share(1, 1));
        for of_workers in [[&[a][..], &[a]], [&[a, b], &[a, b]], [&[a, b], &[a]]] {
            let mut node = Node::busy(&of_workers);
            node.run_until(8 * SECOND_NS);
            assert!((1.9..=2.15).contains(&node.had_s(0)), "{} s of 8", node.had_s(0));
        }
    }
}
