//! Who has the core next.
//!
//! ```text
//!   class     system > latency > throughput     strictly, but for a guaranteed minimum of those below
//!     |
//!   tenant    whoever has had least of the core for its weight (fair.rs), for a slice of one quantum
//!     |
//!   FWP       round robin (ring.rs)
//! ```
//!
//! Who has had all the time that it may have is throttled, an FWP or a whole tenant, or is to be ended (budget.rs).
//!
//! Knows no guest, no clock and no queue of packets: a worker says who is runnable and how long whom it chose has had the core. Each
//! worker has one of its own, so nothing here is shared. Nothing is allocated after it was made; what is done for a turn takes a constant
//! time, and a logarithm of the number of runnable tenants once a slice.
//!
//! Tenants share by time on the core, not by turns or packets, as FastPaaS asks for; classes are EdgeOS's fixed priorities.

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
use pinion_mma::id::FwpId;
use pinion_mma::prefetch;

use self::budget::{Batch, Bucket, Spending, Verdict};
pub use self::budget::{Budget, Overrun, Rate};
use self::fair::{Fair, Lot};
use self::ring::{Links, Ring};

/// How many classes there are.
const CLASSES: usize = Class::ALL.len();

/// Of what a class above had, a class with runnable FWPs gets at least one part in so many.
pub const GUARANTEED_PART: u64 = 20;

/// Tenants that a node tells apart.
pub const TENANTS_MAX: usize = 4096;

/// Which tenant, by its number on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TenantIndex(pub u16);

/// How many others have had a tenant's number before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tenure(pub u32);

/// Whose an FWP is, and how it shares the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Whose it is.
    pub tenant: TenantIndex,
    /// Which of those it is who have had this number.
    pub tenure: Tenure,
    /// The tenant's weight beside others of the class; not 0.
    pub weight: u32,
    /// Its chain's.
    pub class: Class,
    /// What it may have itself.
    pub budget: Budget,
    /// What all of its tenant's FWPs may have of this core.
    pub tenant_rate: Option<Rate>,
}

impl Share {
    fn lot(self) -> Lot {
        Lot(u32::from(self.tenant.0))
    }
}

/// What is known of an FWP.
#[derive(Debug, Clone, Copy)]
struct Seat {
    generation: u32,
    state: State,
    class: Class,
    lot: Lot,
    /// It has limits of its own.
    is_limited: bool,
    /// When it became runnable.
    woken_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody is here, or who is here is to have no turn any more.
    Barred,
    /// It waits for input.
    Resting,
    /// It waits for its turn.
    Queued,
    /// It has been given the core.
    Running,
    /// It has had its time, and waits for input meanwhile.
    Throttled,
    /// It has had its time, and has more to do.
    ThrottledQueued,
}

const NOBODY: Seat =
    Seat { generation: 0, state: State::Barred, class: Class::Throughput, lot: Lot(0), is_limited: false, woken_ns: 0 };

/// Who has a number, and what it has had, where that is limited.
#[derive(Debug, Clone, Copy, Default)]
struct Tenant {
    tenure: Tenure,
    rate: Option<Rate>,
    bucket: Bucket,
    is_throttled: bool,
}

/// Who is throttled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    Fwp(FwpId),
    Tenant(Lot),
}

/// One class: its tenants, and which of them has its slice.
struct Level {
    fair: Fair,
    /// By tenant: its runnable FWPs of this class.
    rings: Box<[Ring]>,
    /// Who has its slice, and how much of it has been used.
    current: Option<Lot>,
    slice_ns: u64,
    /// What it is still to get of what classes above had; less than nothing after a turn that took longer.
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

    /// Forgets what a lot has had, of which nobody is runnable.
    fn clear(&mut self, lot: Lot) {
        self.current = self.current.filter(|current| *current != lot);
        self.fair.clear(lot);
    }
}

/// Who was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// Which FWP.
    pub id: FwpId,
    /// When it became runnable, by the clock of whoever said so.
    pub woken_ns: u64,
}

/// What became of whoever had the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It waits for input.
    Waits,
    /// It waits for input, and there is some.
    HasInput,
    /// It was interrupted.
    Preempted,
    /// It is never to run again.
    Over,
}

/// See the module.
pub struct Scheduler {
    levels: [Level; CLASSES],
    /// By index of the node's FWPs.
    seats: Box<[Seat]>,
    links: Links,
    /// By index, of those that have limits.
    spendings: Box<[Spending]>,
    tenants: Box<[Tenant]>,
    /// Until when who is throttled. Each is in it once at most, so it never grows beyond what it was made for.
    held: BinaryHeap<Reverse<(u64, Held)>>,
    quantum_ns: u64,
}

impl Scheduler {
    /// For FWPs of index below `fwps_max` and tenants below `tenants_max`, none of which is known yet. A tenant has the core for
    /// `quantum_ns` before another has, if it has so much to do.
    #[must_use]
    pub fn new(fwps_max: usize, tenants_max: usize, quantum_ns: u64) -> Self {
        Self {
            levels: std::array::from_fn(|_| Level::new(tenants_max, quantum_ns)),
            seats: vec![NOBODY; fwps_max].into(),
            links: Links::new(fwps_max),
            spendings: vec![Spending::default(); fwps_max].into(),
            tenants: vec![Tenant::default(); tenants_max].into(),
            held: BinaryHeap::with_capacity(fwps_max + tenants_max),
            quantum_ns,
        }
    }

    /// Takes an FWP in, which rests. Its tenant's weight and rate are those of whoever was taken in last. What its tenant has had stays
    /// counted whoever of its FWPs come and go; what another had who had the number before is not the tenant's.
    pub fn adopt(&mut self, id: FwpId, share: Share, now_ns: u64) {
        let (lot, index) = (share.lot(), id.index as usize);
        if self.tenants[lot.0 as usize].tenure != share.tenure {
            self.levels.iter_mut().for_each(|level| level.clear(lot));
            self.held.retain(|Reverse((_, held))| *held != Held::Tenant(lot));
            let bucket = share.tenant_rate.map_or_else(Bucket::default, |rate| Bucket::full(rate, now_ns));
            self.tenants[lot.0 as usize] = Tenant { tenure: share.tenure, bucket, ..Tenant::default() };
        }
        self.levels[share.class as usize].fair.set_weight(lot, share.weight);
        self.tenants[lot.0 as usize].rate = share.tenant_rate;
        self.spendings[index] = Spending::new(share.budget, now_ns);
        self.seats[index] = Seat {
            generation: id.generation,
            state: State::Resting,
            class: share.class,
            lot,
            is_limited: !share.budget.is_unlimited(),
            woken_ns: 0,
        };
    }

    /// Forgets an FWP, whatever it does.
    pub fn forget(&mut self, id: FwpId) {
        let Some(Seat { state, class, lot, .. }) = self.seat(id).copied() else { return };
        match state {
            State::Queued => self.levels[class as usize].rings[lot.0 as usize].remove(&mut self.links, id.index),
            State::Throttled | State::ThrottledQueued => self.held.retain(|Reverse((_, held))| *held != Held::Fwp(id)),
            State::Barred | State::Resting | State::Running => {}
        }
        self.seats[id.index as usize].state = State::Barred;
    }

    /// Notes that an FWP is runnable. Nothing changes for who is already, has the core, or is not known.
    #[inline]
    pub fn wake(&mut self, id: FwpId, now_ns: u64) {
        // What is noticed of who had the place before must not count for its successor.
        match self.seat(id).map(|seat| seat.state) {
            Some(State::Resting) => self.enqueue(id.index, now_ns),
            Some(State::Throttled) => {
                let seat = &mut self.seats[id.index as usize];
                (seat.state, seat.woken_ns) = (State::ThrottledQueued, now_ns);
            }
            _ => {}
        }
    }

    /// When somebody is to be let go on who is throttled, if anybody is.
    #[must_use]
    #[inline]
    pub fn held_until_ns(&self) -> Option<u64> {
        self.held.peek().map(|Reverse((until_ns, _))| *until_ns)
    }

    /// Lets those go on who have time again; how many. To be called when [`Scheduler::held_until_ns`] has come.
    pub fn release(&mut self, now_ns: u64) -> usize {
        let mut released = 0;
        while self.held_until_ns().is_some_and(|until_ns| until_ns <= now_ns) {
            let Some(Reverse((_, held))) = self.held.pop() else { break };
            released += 1;
            match held {
                Held::Fwp(id) => self.release_fwp(id),
                Held::Tenant(lot) => self.release_tenant(lot),
            }
        }
        released
    }

    fn release_fwp(&mut self, id: FwpId) {
        match self.seat(id).map(|seat| (seat.state, seat.woken_ns)) {
            Some((State::Throttled, _)) => self.seats[id.index as usize].state = State::Resting,
            Some((State::ThrottledQueued, woken_ns)) => self.enqueue(id.index, woken_ns),
            _ => {}
        }
    }

    fn release_tenant(&mut self, lot: Lot) {
        self.tenants[lot.0 as usize].is_throttled = false;
        for level in &mut self.levels {
            if !level.rings[lot.0 as usize].is_empty() {
                level.fair.push(lot);
            }
        }
    }

    /// Chooses who has the core next; none if nobody is runnable. Whoever is chosen is to be handed to [`Scheduler::charge`] before
    /// anybody else is.
    #[inline]
    pub fn choose(&mut self) -> Option<Chosen> {
        loop {
            let class = self.class()?;
            let level = &mut self.levels[class];
            let lot = match level.current {
                Some(lot) => lot,
                None => {
                    level.slice_ns = 0;
                    *level.current.insert(level.fair.pop()?)
                }
            };
            let is_throttled = self.tenants[lot.0 as usize].is_throttled;
            let first = if is_throttled { None } else { level.rings[lot.0 as usize].pop(&mut self.links) };
            let Some(index) = first else {
                // All of its FWPs have been forgotten meanwhile, or it was throttled for what it did in another class.
                level.current = None;
                continue;
            };
            let seat = &mut self.seats[index as usize];
            seat.state = State::Running;
            return Some(Chosen { id: FwpId { index, generation: seat.generation }, woken_ns: seat.woken_ns });
        }
    }

    /// Gives the core to an FWP that rests, while nobody is runnable; whether it is to be charged, as one that was chosen.
    pub fn claim(&mut self, id: FwpId) -> bool {
        let rests = self.is_idle() && self.seat(id).is_some_and(|seat| seat.state == State::Resting);
        if rests {
            self.seats[id.index as usize].state = State::Running;
        }
        rests
    }

    /// Notes for how long whoever was chosen has had the core, until now, and what became of it. If it has had more than it may have, and
    /// is to be ended for that, which limit it was; it is not to run again then.
    #[inline]
    pub fn charge(&mut self, id: FwpId, cpu_ns: u64, now_ns: u64, after: After) -> Option<Overrun> {
        let Seat { class, lot, is_limited, .. } = self.seats[id.index as usize];
        self.charge_classes(class as usize, cpu_ns);
        let level = &mut self.levels[class as usize];
        level.fair.charge(lot, cpu_ns);
        level.slice_ns += cpu_ns;
        let verdict = match after {
            After::Over => Verdict::Within,
            _ if !is_limited => Verdict::Within,
            After::Preempted => self.spendings[id.index as usize].spend(cpu_ns, now_ns, Batch::UnderWay),
            After::Waits | After::HasInput => self.spendings[id.index as usize].spend(cpu_ns, now_ns, Batch::Done),
        };
        self.charge_tenant(lot, cpu_ns, now_ns);
        let overrun = self.settle(id, now_ns, after, verdict);
        let is_throttled = self.tenants[lot.0 as usize].is_throttled;
        let level = &mut self.levels[class as usize];
        if is_throttled || level.rings[lot.0 as usize].is_empty() {
            level.current = None;
        } else if level.slice_ns >= self.quantum_ns {
            level.current = None;
            level.fair.push(lot);
        }
        overrun
    }

    /// Puts whoever had the core where it belongs now.
    #[inline]
    fn settle(&mut self, id: FwpId, now_ns: u64, after: After, verdict: Verdict) -> Option<Overrun> {
        let seat = &mut self.seats[id.index as usize];
        if seat.state != State::Running {
            return None;
        }
        seat.woken_ns = now_ns;
        match (verdict, after) {
            (Verdict::Overrun(overrun), _) => {
                seat.state = State::Barred;
                return Some(overrun);
            }
            (_, After::Over) => seat.state = State::Barred,
            (Verdict::Throttled { until_ns }, _) => {
                seat.state = if after == After::Waits { State::Throttled } else { State::ThrottledQueued };
                self.held.push(Reverse((until_ns, Held::Fwp(id))));
            }
            (Verdict::Within, After::Waits) => seat.state = State::Resting,
            (Verdict::Within, After::HasInput | After::Preempted) => self.enqueue(id.index, now_ns),
        }
        None
    }

    #[inline]
    fn charge_tenant(&mut self, lot: Lot, cpu_ns: u64, now_ns: u64) {
        let tenant = &mut self.tenants[lot.0 as usize];
        if let Some(rate) = tenant.rate
            && let Some(until_ns) = tenant.bucket.take(rate, cpu_ns, now_ns)
            && !std::mem::replace(&mut tenant.is_throttled, true)
        {
            self.held.push(Reverse((until_ns, Held::Tenant(lot))));
        }
    }

    /// Whether anybody is runnable. Those who are throttled are not.
    #[must_use]
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.levels.iter().all(Level::is_empty)
    }

    /// Who is going to have the core soon, the next first: of a tenant's exactly, of further tenants by guess. To have their memory
    /// near.
    #[inline]
    pub fn upcoming(&self) -> impl Iterator<Item = u32> {
        let class = self.levels.iter().find(|level| !level.is_empty());
        class.into_iter().flat_map(|level| {
            let current = level.current.map(|lot| &level.rings[lot.0 as usize]);
            let first = level.fair.upcoming().filter_map(|lot| level.rings[lot.0 as usize].first());
            current.into_iter().flat_map(|ring| ring.iter(&self.links)).chain(first)
        })
    }

    /// Asks for memory of what is known of an FWP.
    #[inline]
    pub(crate) fn prefetch(&self, id: FwpId) {
        prefetch::to_write(self.seats.as_ptr().wrapping_add(id.index as usize));
    }

    #[inline]
    fn seat(&self, id: FwpId) -> Option<&Seat> {
        self.seats.get(id.index as usize).filter(|seat| seat.generation == id.generation)
    }

    /// The class whose turn it is: one that is owed a quantum, or else the highest.
    #[inline]
    fn class(&self) -> Option<usize> {
        let runnable = |class: &usize| !self.levels[*class].is_empty();
        let owed = |class: &usize| self.levels[*class].owed_ns >= self.quantum_ns as i64;
        (1..CLASSES).find(|class| owed(class) && runnable(class)).or_else(|| (0..CLASSES).find(runnable))
    }

    /// Classes below that could have had the core are owed a part of it. Who had it although a class above wanted it has had so much
    /// of what it was owed.
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
        let seat = &mut self.seats[index as usize];
        seat.state = State::Queued;
        seat.woken_ns = since_ns;
        let (lot, level) = (seat.lot, &mut self.levels[seat.class as usize]);
        level.rings[lot.0 as usize].push(&mut self.links, index);
        if level.current != Some(lot) && !self.tenants[lot.0 as usize].is_throttled {
            level.fair.push(lot);
        }
    }
}
