//! The order of jobs: tenants take turns by the processor time that their jobs have taken, in proportion to their weights (start-time fair
//! queueing: Goyal, Vin and Cheng, 1996).
//!
//! How long a job takes is known afterwards. Until then its tenant is charged as long as its last job took, so that several threads do not all
//! work for one tenant; then the difference is settled. A tenant that comes back after a pause has neither credit nor more debt than others.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

/// What a tenant's first job is charged with, until it is done.
const FIRST_NS: u64 = 20_000;
/// Charged times are counted in parts of a nanosecond, so that they can be divided by weights.
const SCALE: u64 = 1024;

/// The jobs of all tenants.
pub(super) struct Lanes<J> {
    by_tenant: FxHashMap<u16, Lane<J>>,
    /// Those with jobs, in no order.
    active: Vec<u16>,
    /// The charged time of the tenant that was chosen last: where those begin that come back.
    now: u64,
}

struct Lane<J> {
    jobs: VecDeque<J>,
    /// What the tenant was charged, by its weight.
    charged: u64,
    /// How long its last job took.
    last_ns: u64,
}

/// A job that is to be done.
pub(super) struct Chosen<J> {
    pub(super) job: J,
    /// Its tenant.
    pub(super) lane: u16,
    /// What the tenant was charged with for it.
    pub(super) charged: u64,
}

impl<J> Default for Lanes<J> {
    fn default() -> Self {
        Self { by_tenant: FxHashMap::default(), active: Vec::new(), now: 0 }
    }
}

impl<J> Lanes<J> {
    /// Returns whether no tenant has a job.
    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Adds a job of a tenant, behind its others.
    pub(super) fn push(&mut self, tenant: u16, job: J) {
        let lane = || Lane { jobs: VecDeque::new(), charged: 0, last_ns: FIRST_NS };
        let lane = self.by_tenant.entry(tenant).or_insert_with(lane);
        if lane.jobs.is_empty() {
            lane.charged = lane.charged.max(self.now);
            self.active.push(tenant);
        }
        lane.jobs.push_back(job);
    }

    /// Takes a job of the tenant that was charged least. Bounded by the number of tenants with jobs.
    pub(super) fn choose(&mut self, weight: impl Fn(&J) -> u32) -> Option<Chosen<J>> {
        let charged_of = |tenant: &u16| self.by_tenant.get(tenant).map_or(0, |lane| lane.charged);
        let (at, tenant) = self.active.iter().copied().enumerate().min_by_key(|(_, tenant)| charged_of(tenant))?;
        let lane = self.by_tenant.get_mut(&tenant)?;
        let job = lane.jobs.pop_front()?;
        if lane.jobs.is_empty() {
            self.active.swap_remove(at);
        }
        self.now = self.now.max(lane.charged);
        let charged = by_weight(lane.last_ns, weight(&job));
        lane.charged += charged;
        Some(Chosen { job, lane: tenant, charged })
    }

    /// Charges the tenant of a job that is done with what it took, instead of `charged`.
    pub(super) fn settle(&mut self, tenant: u16, weight: u32, charged: u64, took_ns: u64) {
        if let Some(lane) = self.by_tenant.get_mut(&tenant) {
            lane.charged = (lane.charged + by_weight(took_ns.max(1), weight)).saturating_sub(charged);
            lane.last_ns = took_ns;
        }
    }

    /// The same for a job that was not begun: it says nothing of how long the tenant's next one will take.
    pub(super) fn settle_not_begun(&mut self, tenant: u16, weight: u32, charged: u64, took_ns: u64) {
        let last_ns = self.by_tenant.get(&tenant).map_or(FIRST_NS, |lane| lane.last_ns);
        self.settle(tenant, weight, charged, took_ns);
        if let Some(lane) = self.by_tenant.get_mut(&tenant) {
            lane.last_ns = last_ns;
        }
    }
}

fn by_weight(ns: u64, weight: u32) -> u64 {
    ns.saturating_mul(SCALE) / u64::from(weight.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenant that always has a job waiting.
    struct Tenant {
        number: u16,
        weight: u32,
        job_ns: u64,
    }

    /// Returns how much time each tenant got of one thread, in shares of the first one's.
    fn shares(tenants: &[Tenant], jobs: usize) -> Vec<f64> {
        let (mut lanes, mut had_ns) = (Lanes::default(), vec![0_u64; tenants.len()]);
        (0..tenants.len()).for_each(|at| lanes.push(tenants[at].number, at));
        for _ in 0..jobs {
            let Chosen { job: at, lane, charged } = lanes.choose(|at: &usize| tenants[*at].weight).unwrap();
            let Tenant { number, weight, job_ns } = tenants[at];
            had_ns[at] += job_ns;
            lanes.settle(lane, weight, charged, job_ns);
            lanes.push(number, at);
        }
        had_ns.iter().map(|had| *had as f64 / had_ns[0] as f64).collect()
    }

    fn tenant(number: u16, weight: u32, job_ns: u64) -> Tenant {
        Tenant { number, weight, job_ns }
    }

    #[test]
    fn tenants_get_time_by_weight_whatever_their_jobs_take() {
        let got = shares(&[tenant(5, 1, 20_000), tenant(6, 1, 5_000_000), tenant(7, 3, 300_000)], 100_000);
        for (got, expected) in got.iter().zip([1.0, 1.0, 3.0]) {
            assert!((got - expected).abs() < 0.05 * expected, "{got} instead of {expected}");
        }
    }

    #[test]
    fn a_tenant_that_was_away_has_no_credit() {
        let mut lanes = Lanes::default();
        let serve = |lanes: &mut Lanes<u16>| {
            let Chosen { job, lane, charged } = lanes.choose(|_| 1).unwrap();
            lanes.settle(lane, 1, charged, 1_000);
            job
        };
        for _ in 0..1000 {
            lanes.push(1, 1);
            serve(&mut lanes);
        }
        for tenant in [1, 1, 1, 1, 2, 2, 2, 2] {
            lanes.push(tenant, tenant);
        }
        let first: Vec<u16> = (0..4).map(|_| serve(&mut lanes)).collect();
        assert_eq!(first.iter().filter(|tenant| **tenant == 2).count(), 2, "{first:?}");
    }

    #[test]
    fn jobs_under_way_count_before_they_are_done() {
        let mut lanes = Lanes::default();
        [1, 1, 1, 2, 2, 2].into_iter().for_each(|tenant| lanes.push(tenant, tenant));
        let chosen: Vec<u16> = std::iter::from_fn(|| lanes.choose(|_| 1)).take(4).map(|chosen| chosen.job).collect();
        assert_eq!(chosen.iter().filter(|tenant| **tenant == 1).count(), 2, "{chosen:?}");
    }

    #[test]
    fn a_job_that_was_not_begun_does_not_make_its_tenants_next_ones_look_short() {
        let mut lanes = Lanes::default();
        (0..4).for_each(|_| lanes.push(1, 1));
        let long = lanes.choose(|_| 1).unwrap();
        lanes.settle(1, 1, long.charged, 1_000_000);
        let not_begun = lanes.choose(|_| 1).unwrap();
        lanes.settle_not_begun(1, 1, not_begun.charged, 10);
        let next = lanes.choose(|_| 1).unwrap();
        assert_eq!(next.charged, by_weight(1_000_000, 1), "while it is under way");
    }

    #[test]
    fn jobs_of_one_tenant_are_done_in_their_order() {
        let mut lanes = Lanes::default();
        (0..5).for_each(|job| lanes.push(9, job));
        let order: Vec<i32> = std::iter::from_fn(|| lanes.choose(|_| 1)).map(|chosen| chosen.job).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
        assert!(lanes.is_empty());
    }
}
