//! Chooses which FWP has the core next.
//!
//! ```text
//!   class     system > latency > throughput     strict priority, with a guaranteed minimum for lower classes
//!     |
//!   tenant    the one with the least CPU time per weight (fair.rs), for a slice of one quantum
//!     |
//!   FWP       round robin (ring.rs)
//! ```
//!
//! An FWP or a tenant that has used its budget is throttled, or its FWP is ended (budget.rs).
//!
//! The scheduler knows no guest, no clock and no packet queue: a worker tells it which FWPs are runnable, for how long the chosen one has
//! had the core, and what tenants have had of other cores. Each worker has its own scheduler, so nothing here is shared. Nothing is
//! allocated after creation. The work per turn takes constant time, plus, once per slice, the logarithm of the number of runnable tenants,
//! and the same for each of them that was charged for copying while it waited.
//!
//! Tenants share CPU time, not turns or packets, as in FastPaaS; classes are EdgeOS's fixed priorities.

mod budget;
mod fair;
mod ring;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pinion_control::model::Class;
use pinion_mma::id::{FwpId, TenantIndex};
use pinion_mma::tuning::prefetch;

use self::budget::{Batch, Bucket, Spending, Verdict};
pub use self::budget::{Budget, Overrun, Rate};
use self::fair::{Fair, Sharer};
use self::ring::{Ring, RingLinks};

/// How many classes there are.
const CLASSES: usize = Class::ALL.len();

/// A class with runnable FWPs gets at least one part in this many of the time that higher classes get.
pub const GUARANTEED_PART: u64 = 20;

/// How many other tenants had the same number before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TenantGeneration(pub u32);

/// The tenant of an FWP, and how the FWP shares the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuShare {
    /// The FWP's tenant.
    pub tenant: TenantIndex,
    /// Which of the tenants that have had this number.
    pub generation: TenantGeneration,
    /// The tenant's weight against other tenants of the class; not 0.
    pub weight: u32,
    /// The class of its chain.
    pub class: Class,
    /// The limits of the FWP itself.
    pub budget: Budget,
    /// The limit of all FWPs of its tenant together.
    pub tenant_rate: Option<Rate>,
}

/// What a tenant has of a core, whatever FWPs it has there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantShare {
    /// The tenant.
    pub tenant: TenantIndex,
    /// Which of the tenants that have had this number.
    pub generation: TenantGeneration,
    /// Its weight against other tenants of a class; not 0.
    pub weight: u32,
    /// The limit of all its FWPs together.
    pub rate: Option<Rate>,
}

impl CpuShare {
    fn sharer(&self) -> Sharer {
        Sharer(u32::from(self.tenant.0))
    }
}

/// The scheduler's record of an FWP.
#[derive(Debug, Clone, Copy)]
struct FwpRecord {
    generation: u32,
    state: State,
    class: Class,
    sharer: Sharer,
    /// The FWP has limits of its own.
    is_limited: bool,
    /// When it became runnable.
    woken_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The entry is empty, or its FWP is to have no further turn.
    Barred,
    /// It waits for input.
    Resting,
    /// It is runnable and waits for its turn.
    Queued,
    /// It has been given the core.
    Running,
    /// It has used its budget, and has no input yet.
    Throttled,
    /// It has used its budget, and is runnable otherwise.
    ThrottledQueued,
}

const NO_FWP: FwpRecord = FwpRecord {
    generation: 0,
    state: State::Barred,
    class: Class::Throughput,
    sharer: Sharer(0),
    is_limited: false,
    woken_ns: 0,
};

/// The tenant that has a number, and what it has used, where that is limited.
#[derive(Debug, Clone, Copy, Default)]
struct Tenant {
    generation: TenantGeneration,
    rate: Option<Rate>,
    bucket: Bucket,
    is_throttled: bool,
}

/// What is throttled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    Fwp(FwpId),
    Tenant(Sharer),
}

/// One class: its tenants, and which of them has the current slice.
struct Level {
    fair: Fair,
    /// By tenant: its runnable FWPs of this class.
    rings: Box<[Ring]>,
    /// The tenant that has its slice; `slice_ns` is how much of the slice is used.
    current: Option<Sharer>,
    slice_ns: u64,
    /// Time still owed to this class out of what higher classes used; negative after a turn that took longer.
    owed_ns: i64,
}

impl Level {
    fn new(tenants_max: usize, credit_ns: u64) -> Self {
        let rings = (0..tenants_max).map(|_| Ring::default()).collect();
        Self { fair: Fair::new(tenants_max, credit_ns), rings, current: None, slice_ns: 0, owed_ns: 0 }
    }

    fn is_empty(&self) -> bool {
        self.current.is_none() && self.fair.is_empty()
    }

    /// Forgets what a tenant has used. None of its FWPs is runnable.
    fn clear(&mut self, sharer: Sharer) {
        self.current = self.current.filter(|current| *current != sharer);
        self.fair.clear(sharer);
    }
}

/// The FWP that was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// Which FWP.
    pub id: FwpId,
    /// When it became runnable, in the caller's time.
    pub woken_ns: u64,
}

/// What an FWP did with the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It waits for input, and there is none.
    Waits,
    /// It waits for input, and there is some.
    HasInput,
    /// It was interrupted.
    Preempted,
    /// It will never run again.
    Over,
}

/// See the module.
pub struct Scheduler {
    levels: [Level; CLASSES],
    /// By index among the node's FWPs.
    records: Box<[FwpRecord]>,
    links: RingLinks,
    /// By index; used for FWPs that have limits.
    spendings: Box<[Spending]>,
    tenants: Box<[Tenant]>,
    /// Throttled FWPs and tenants, by the time at which they are released. Each is in the heap at most once, so it never grows beyond its
    /// capacity.
    held: BinaryHeap<Reverse<(u64, Held)>>,
    quantum_ns: u64,
}

impl Scheduler {
    /// Creates a scheduler for FWPs of index below `fwps_max` and tenants below `tenants_max`; none is known yet. A tenant that has enough
    /// to do keeps the core for `quantum_ns` before the next tenant.
    #[must_use]
    pub fn new(fwps_max: usize, tenants_max: usize, quantum_ns: u64) -> Self {
        Self {
            levels: std::array::from_fn(|_| Level::new(tenants_max, quantum_ns)),
            records: vec![NO_FWP; fwps_max].into(),
            links: RingLinks::new(fwps_max),
            spendings: vec![Spending::default(); fwps_max].into(),
            tenants: vec![Tenant::default(); tenants_max].into(),
            held: BinaryHeap::with_capacity(fwps_max + tenants_max),
            quantum_ns,
        }
    }

    /// Adds an FWP, which waits for input. The tenant's weight and rate become those of `share`. The tenant's usage stays counted while its
    /// FWPs come and go; the usage of an earlier tenant with the same number is dropped.
    pub fn adopt(&mut self, id: FwpId, share: CpuShare, now_ns: u64) {
        let (sharer, index) = (share.sharer(), id.index as usize);
        if self.tenants[sharer.0 as usize].generation != share.generation {
            self.levels.iter_mut().for_each(|level| level.clear(sharer));
            self.held.retain(|Reverse((_, held))| *held != Held::Tenant(sharer));
            let bucket = share.tenant_rate.map_or_else(Bucket::default, |rate| Bucket::full(rate, now_ns));
            self.tenants[sharer.0 as usize] = Tenant { generation: share.generation, bucket, ..Tenant::default() };
        }
        self.levels[share.class as usize].fair.set_weight(sharer, share.weight);
        self.tenants[sharer.0 as usize].rate = share.tenant_rate;
        self.spendings[index] = Spending::new(share.budget, now_ns);
        self.records[index] = FwpRecord {
            generation: id.generation,
            state: State::Resting,
            class: share.class,
            sharer,
            is_limited: !share.budget.is_unlimited(),
            woken_ns: 0,
        };
    }

    /// Sets a tenant's weight and rate, which hold from now on for all FWPs that it has here. If it is throttled, it waits as long as it had
    /// to by the new rate. Does nothing for another tenant with the same number.
    #[cold]
    pub fn regrant(&mut self, share: TenantShare, now_ns: u64) {
        let sharer = Sharer(u32::from(share.tenant.0));
        let tenant = &mut self.tenants[sharer.0 as usize];
        if tenant.generation != share.generation {
            return;
        }
        self.levels.iter_mut().for_each(|level| level.fair.set_weight(sharer, share.weight));
        let before = std::mem::replace(&mut tenant.rate, share.rate);
        if before == share.rate {
            return;
        }
        let until_ns = match (before, share.rate) {
            (Some(before), Some(rate)) => tenant.bucket.change_rate(before, rate, now_ns),
            (None, Some(rate)) => {
                tenant.bucket = Bucket::full(rate, now_ns);
                None
            }
            (_, None) => None,
        };
        if tenant.is_throttled {
            self.held.retain(|Reverse((_, held))| *held != Held::Tenant(sharer));
            match until_ns {
                Some(until_ns) => self.held.push(Reverse((until_ns, Held::Tenant(sharer)))),
                None => self.release_tenant(sharer),
            }
        }
    }

    /// Removes an FWP, in whatever state it is.
    pub fn forget(&mut self, id: FwpId) {
        let Some(FwpRecord { state, class, sharer, .. }) = self.record(id).copied() else { return };
        match state {
            State::Queued => self.levels[class as usize].rings[sharer.0 as usize].remove(&mut self.links, id.index),
            State::Throttled | State::ThrottledQueued => self.held.retain(|Reverse((_, held))| *held != Held::Fwp(id)),
            State::Barred | State::Resting | State::Running => {}
        }
        self.records[id.index as usize].state = State::Barred;
    }

    /// Returns whether an FWP was chosen and has not been charged yet.
    #[must_use]
    pub fn has_core(&self, id: FwpId) -> bool {
        self.record(id).is_some_and(|record| record.state == State::Running)
    }

    /// Marks an FWP as runnable. Does nothing if it is runnable already, has the core, or is not known.
    #[inline]
    pub fn wake(&mut self, id: FwpId, now_ns: u64) {
        // A notification for an earlier FWP of this index must not count for its successor.
        match self.record(id).map(|record| record.state) {
            Some(State::Resting) => self.enqueue(id.index, now_ns),
            Some(State::Throttled) => {
                let record = &mut self.records[id.index as usize];
                (record.state, record.woken_ns) = (State::ThrottledQueued, now_ns);
            }
            _ => {}
        }
    }

    /// Returns when the next throttled FWP or tenant is to be released, if any is throttled.
    #[must_use]
    #[inline]
    pub fn held_until_ns(&self) -> Option<u64> {
        self.held.peek().map(|Reverse((until_ns, _))| *until_ns)
    }

    /// Releases throttled FWPs and tenants whose time has come, and returns how many. To be called when [`Scheduler::held_until_ns`] has
    /// come.
    pub fn release(&mut self, now_ns: u64) -> usize {
        let mut released = 0;
        while self.held_until_ns().is_some_and(|until_ns| until_ns <= now_ns) {
            let Some(Reverse((_, held))) = self.held.pop() else { break };
            released += 1;
            match held {
                Held::Fwp(id) => self.release_fwp(id),
                Held::Tenant(sharer) => self.release_tenant(sharer),
            }
        }
        released
    }

    fn release_fwp(&mut self, id: FwpId) {
        match self.record(id).map(|record| (record.state, record.woken_ns)) {
            Some((State::Throttled, _)) => self.records[id.index as usize].state = State::Resting,
            Some((State::ThrottledQueued, woken_ns)) => self.enqueue(id.index, woken_ns),
            _ => {}
        }
    }

    fn release_tenant(&mut self, sharer: Sharer) {
        self.tenants[sharer.0 as usize].is_throttled = false;
        for level in &mut self.levels {
            if !level.rings[sharer.0 as usize].is_empty() {
                level.fair.push(sharer);
            }
        }
    }

    /// Chooses the FWP that has the core next; none if no FWP is runnable. The caller must pass the chosen FWP to [`Scheduler::charge`]
    /// before it chooses another.
    #[inline]
    pub fn choose(&mut self) -> Option<Chosen> {
        loop {
            let class = self.class()?;
            let level = &mut self.levels[class];
            let sharer = match level.current {
                Some(sharer) => sharer,
                None => {
                    level.slice_ns = 0;
                    *level.current.insert(level.fair.pop()?)
                }
            };
            let is_throttled = self.tenants[sharer.0 as usize].is_throttled;
            let first = if is_throttled { None } else { level.rings[sharer.0 as usize].pop(&mut self.links) };
            let Some(index) = first else {
                // All of its FWPs have been removed meanwhile, or it was throttled for what it used in another class.
                level.current = None;
                continue;
            };
            let record = &mut self.records[index as usize];
            record.state = State::Running;
            return Some(Chosen { id: FwpId { index, generation: record.generation }, woken_ns: record.woken_ns });
        }
    }

    /// Gives the core to an FWP that waits for input, if no FWP is runnable. Returns whether it did; the FWP is then to be charged like a
    /// chosen one.
    pub fn claim(&mut self, id: FwpId) -> bool {
        let rests = self.is_idle() && self.record(id).is_some_and(|record| record.state == State::Resting);
        if rests {
            self.records[id.index as usize].state = State::Running;
        }
        rests
    }

    /// Accounts the time for which the chosen FWP has had the core, until `now_ns`, and what it did with it. Returns the limit that was
    /// exceeded if the FWP is to be ended for that; it will not be chosen again then.
    #[inline]
    pub fn charge(&mut self, id: FwpId, cpu_ns: u64, now_ns: u64, after: After) -> Option<Overrun> {
        let FwpRecord { class, sharer, is_limited, .. } = self.records[id.index as usize];
        self.charge_classes(class as usize, cpu_ns);
        let level = &mut self.levels[class as usize];
        level.fair.charge(sharer, cpu_ns);
        level.slice_ns += cpu_ns;
        let verdict = match after {
            After::Over => Verdict::Within,
            _ if !is_limited => Verdict::Within,
            After::Preempted => self.spendings[id.index as usize].spend(cpu_ns, now_ns, Batch::UnderWay),
            After::Waits | After::HasInput => self.spendings[id.index as usize].spend(cpu_ns, now_ns, Batch::Done),
        };
        self.charge_tenant(sharer, cpu_ns, now_ns);
        let overrun = self.settle(id, now_ns, after, verdict);
        let is_throttled = self.tenants[sharer.0 as usize].is_throttled;
        let level = &mut self.levels[class as usize];
        if is_throttled || level.rings[sharer.0 as usize].is_empty() {
            level.current = None;
        } else if level.slice_ns >= self.quantum_ns {
            level.current = None;
            level.fair.push(sharer);
        }
        overrun
    }

    /// Accounts time of this core that a worker spent in an FWP's turn and its guest did not: for memory of the FWP's.
    #[cold]
    pub fn charge_providing(&mut self, id: FwpId, share: CpuShare, spent_ns: u64, now_ns: u64) {
        self.charge_classes(share.class as usize, spent_ns);
        self.charge_besides(id, share, spent_ns, now_ns);
    }

    /// Accounts time that was spent for an FWP of this share and not by its guest, such as another core's, which has copied what it sent. It
    /// counts against the tenant's share of its class, and against the budgets of the tenant and, while the FWP is known, its own. It can be at
    /// any time. Returns false, and charges no tenant, if another tenant has the tenant's number by now.
    #[cold]
    pub fn charge_besides(&mut self, id: FwpId, share: CpuShare, spent_ns: u64, now_ns: u64) -> bool {
        let sharer = share.sharer();
        if self.tenants[sharer.0 as usize].generation != share.generation {
            return false;
        }
        let level = &mut self.levels[share.class as usize];
        level.fair.charge(sharer, spent_ns);
        if level.current == Some(sharer) {
            level.slice_ns += spent_ns;
        }
        if self.record(id).is_some_and(|record| record.is_limited) {
            self.spendings[id.index as usize].note_besides(spent_ns, now_ns);
        }
        self.charge_tenant(sharer, spent_ns, now_ns);
        true
    }

    /// Accounts time of other cores against a tenant's share of this core.
    #[inline]
    pub fn charge_share(&mut self, share: &CpuShare, cpu_ns: u64) {
        self.levels[share.class as usize].fair.charge(share.sharer(), cpu_ns);
    }

    /// Accounts what a tenant has had of other cores since the last such call against its budget. It can be at any time.
    #[cold]
    pub fn charge_budget(&mut self, tenant: TenantIndex, generation: TenantGeneration, cpu_ns: u64, now_ns: u64) {
        let sharer = Sharer(u32::from(tenant.0));
        let tenant = &mut self.tenants[sharer.0 as usize];
        if tenant.generation == generation
            && let Some(rate) = tenant.rate
            && let Some(until_ns) = tenant.bucket.take_elsewhere(rate, cpu_ns, now_ns)
        {
            self.throttle(sharer, until_ns);
        }
    }

    /// Moves the FWP that had the core to its next state.
    #[inline]
    fn settle(&mut self, id: FwpId, now_ns: u64, after: After, verdict: Verdict) -> Option<Overrun> {
        let record = &mut self.records[id.index as usize];
        if record.state != State::Running {
            return None;
        }
        record.woken_ns = now_ns;
        match (verdict, after) {
            (Verdict::Overrun(overrun), _) => {
                record.state = State::Barred;
                return Some(overrun);
            }
            (_, After::Over) => record.state = State::Barred,
            (Verdict::Throttled { until_ns }, _) => {
                record.state = if after == After::Waits { State::Throttled } else { State::ThrottledQueued };
                self.held.push(Reverse((until_ns, Held::Fwp(id))));
            }
            (Verdict::Within, After::Waits) => record.state = State::Resting,
            (Verdict::Within, After::HasInput | After::Preempted) => self.enqueue(id.index, now_ns),
        }
        None
    }

    #[inline(always)]
    fn charge_tenant(&mut self, sharer: Sharer, cpu_ns: u64, now_ns: u64) {
        let tenant = &mut self.tenants[sharer.0 as usize];
        if let Some(rate) = tenant.rate
            && let Some(until_ns) = tenant.bucket.take(rate, cpu_ns, now_ns)
        {
            self.throttle(sharer, until_ns);
        }
    }

    fn throttle(&mut self, sharer: Sharer, until_ns: u64) {
        if !std::mem::replace(&mut self.tenants[sharer.0 as usize].is_throttled, true) {
            self.held.push(Reverse((until_ns, Held::Tenant(sharer))));
        }
    }

    /// Returns whether no FWP is runnable. Throttled FWPs are not runnable.
    #[must_use]
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.levels.iter().all(Level::is_empty)
    }

    /// Returns the FWPs that are going to have the core soon, the next first. The order is exact for the current tenant, and a guess for
    /// further tenants. Used for prefetching.
    #[inline]
    pub fn upcoming(&self) -> impl Iterator<Item = u32> {
        let class = self.levels.iter().find(|level| !level.is_empty());
        class.into_iter().flat_map(|level| {
            let current = level.current.map(|sharer| &level.rings[sharer.0 as usize]);
            let first = level.fair.upcoming().filter_map(|sharer| level.rings[sharer.0 as usize].first());
            current.into_iter().flat_map(|ring| ring.iter(&self.links)).chain(first)
        })
    }

    /// Prefetches the record of an FWP.
    #[inline]
    pub(crate) fn prefetch(&self, id: FwpId) {
        prefetch::to_write(self.records.as_ptr().wrapping_add(id.index as usize));
    }

    #[inline]
    fn record(&self, id: FwpId) -> Option<&FwpRecord> {
        self.records.get(id.index as usize).filter(|record| record.generation == id.generation)
    }

    /// Returns the class that is to have the core: one that is owed a quantum, or else the highest that is runnable.
    #[inline]
    fn class(&self) -> Option<usize> {
        let runnable = |class: &usize| !self.levels[*class].is_empty();
        let owed = |class: &usize| self.levels[*class].owed_ns >= self.quantum_ns as i64;
        (1..CLASSES).find(|class| owed(class) && runnable(class)).or_else(|| (0..CLASSES).find(runnable))
    }

    /// Credits lower classes that were runnable with their part. If a higher class was runnable, the time counts against what the charged
    /// class was owed.
    #[inline]
    fn charge_classes(&mut self, charged: usize, cpu_ns: u64) {
        if self.levels[..charged].iter().any(|above| !above.is_empty()) {
            self.levels[charged].owed_ns -= cpu_ns as i64;
        }
        for level in &mut self.levels[charged + 1..] {
            level.owed_ns =
                if level.is_empty() { level.owed_ns.min(0) } else { level.owed_ns + (cpu_ns / GUARANTEED_PART) as i64 };
        }
    }

    #[inline]
    fn enqueue(&mut self, index: u32, since_ns: u64) {
        let record = &mut self.records[index as usize];
        record.state = State::Queued;
        record.woken_ns = since_ns;
        let (sharer, level) = (record.sharer, &mut self.levels[record.class as usize]);
        level.rings[sharer.0 as usize].push(&mut self.links, index);
        if level.current != Some(sharer) && !self.tenants[sharer.0 as usize].is_throttled {
            level.fair.push(sharer);
        }
    }
}
