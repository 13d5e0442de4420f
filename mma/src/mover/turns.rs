//! Whose output is moved next, and how much of it: deficit round robin among tenants, by weight (Shreedhar and Varghese,
//! SIGCOMM 1995).
//!
//! Output that a poll does not move waits here. Each tenant has turns, in which its FWPs are visited one after another,
//! until they have cost a quantum for each unit of its weight. So what a tenant sends delays others by a quantum each
//! round, whatever it sends and from however many FWPs. A tenant whose last frame cost more than was left pays for that
//! in its next turn.
//!
//! Costs are in bytes: those of the frames, and something for each frame and each visit. Nothing is allocated after
//! creation, and each operation takes constant time.

use std::collections::VecDeque;

use crate::copying::CopyShare;
use crate::id::{FwpId, TENANTS_MAX, TenantIndex};

/// What a tenant of weight 1 may cost in a turn, in bytes.
const QUANTUM: i64 = 16 * 1024;

/// No FWP has this index.
const NONE: u32 = u32::MAX;

/// A tenant's queue.
#[derive(Debug, Clone, Copy)]
struct TenantQueue {
    first: u32,
    last: u32,
    weight: u32,
    /// What is left of its turn; not above zero, if it has no turn.
    credit: i64,
    /// It is among those that wait for their turns.
    is_waiting: bool,
}

const NO_FWPS: TenantQueue = TenantQueue { first: NONE, last: NONE, weight: 1, credit: 0, is_waiting: false };

/// An FWP in a queue, and the next one there.
#[derive(Debug, Clone, Copy)]
struct Link {
    generation: u32,
    next: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Turns {
    tenants: Box<[TenantQueue]>,
    /// By index.
    links: Box<[Link]>,
    /// Tenants in the order of their turns.
    waiting: VecDeque<TenantIndex>,
}

/// An FWP whose output is to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) id: FwpId,
    /// How much it may cost.
    pub(super) credit: i64,
}

impl Turns {
    /// Creates queues for FWPs of index below `fwps_max`, all of them empty.
    pub(super) fn new(fwps_max: usize) -> Self {
        Self {
            tenants: vec![NO_FWPS; TENANTS_MAX].into(),
            links: vec![Link { generation: 0, next: NONE }; fwps_max].into(),
            waiting: VecDeque::with_capacity(TENANTS_MAX),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues an FWP that is not queued.
    pub(super) fn push(&mut self, id: FwpId, share: CopyShare) {
        let queue = &mut self.tenants[usize::from(share.tenant.0)];
        self.links[id.index as usize] = Link { generation: id.generation, next: NONE };
        match queue.last {
            NONE => queue.first = id.index,
            last => self.links[last as usize].next = id.index,
        }
        queue.last = id.index;
        queue.weight = share.weight.max(1);
        if !std::mem::replace(&mut queue.is_waiting, true) {
            self.waiting.push_back(share.tenant);
        }
    }

    /// Takes the FWP that is next. What it costs is to be [charged](Self::charge) before the next one is taken, and
    /// after it was queued again if it has more.
    pub(super) fn next(&mut self) -> Option<Visit> {
        loop {
            let queue = &mut self.tenants[usize::from(self.waiting.front()?.0)];
            if queue.credit <= 0 {
                queue.credit += QUANTUM * i64::from(queue.weight);
            }
            if queue.credit > 0 {
                let Link { generation, next } = self.links[queue.first as usize];
                let id = FwpId { index: queue.first, generation };
                queue.first = next;
                if next == NONE {
                    queue.last = NONE;
                }
                return Some(Visit { id, credit: queue.credit });
            }
            self.waiting.rotate_left(1);
        }
    }

    /// Charges the tenant of the FWP that was taken last. Its turn ends when its credit is used up or it has no more.
    pub(super) fn charge(&mut self, cost: i64) {
        let Some(tenant) = self.waiting.front() else { return };
        let queue = &mut self.tenants[usize::from(tenant.0)];
        queue.credit -= cost;
        if queue.first == NONE {
            // What it does not use is not saved up.
            queue.credit = queue.credit.min(0);
            queue.is_waiting = false;
            self.waiting.pop_front();
        } else if queue.credit <= 0 {
            self.waiting.rotate_left(1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const A: CopyShare = CopyShare { tenant: TenantIndex(0), weight: 1 };
    const B: CopyShare = CopyShare { tenant: TenantIndex(1), weight: 1 };
    const HEAVY: CopyShare = CopyShare { tenant: TenantIndex(2), weight: 4 };

    fn id(index: u32) -> FwpId {
        FwpId { index, generation: 0 }
    }

    /// FWPs that always have more to send, in frames of a size, and what each share got.
    struct Senders {
        turns: Turns,
        /// By index: the share, and what a frame costs.
        fwps: Vec<(CopyShare, i64)>,
        had: HashMap<TenantIndex, i64>,
    }

    impl Senders {
        fn new(fwps: Vec<(CopyShare, i64)>) -> Self {
            let mut turns = Turns::new(fwps.len());
            for (index, (share, _)) in fwps.iter().enumerate() {
                turns.push(id(index as u32), *share);
            }
            Self { turns, fwps, had: HashMap::new() }
        }

        /// Moves frames until all have cost so much together.
        fn until(&mut self, total: i64) -> &Self {
            while self.had.values().sum::<i64>() < total {
                let visit = self.turns.next().expect("all have more");
                let (share, frame) = self.fwps[visit.id.index as usize];
                let cost = (visit.credit as u64).div_ceil(frame as u64) as i64 * frame;
                self.turns.push(visit.id, share);
                self.turns.charge(cost);
                *self.had.entry(share.tenant).or_default() += cost;
            }
            self
        }

        fn part(&self, share: CopyShare) -> f64 {
            self.had[&share.tenant] as f64 / self.had.values().sum::<i64>() as f64
        }
    }

    #[test]
    fn tenants_share_by_weight_whatever_they_send_and_from_however_many_fwps() {
        let mut fwps = vec![(A, 32 * 1024); 500];
        fwps.extend([(B, 320), (HEAVY, 1_700)]);
        let mut senders = Senders::new(fwps);
        senders.until(200_000_000);
        for (share, part) in [(A, 1.0 / 6.0), (B, 1.0 / 6.0), (HEAVY, 4.0 / 6.0)] {
            assert!((senders.part(share) - part).abs() < 0.01, "{share:?}: {}", senders.part(share));
        }
    }

    #[test]
    fn fwps_of_a_tenant_are_visited_in_turn() {
        let mut turns = Turns::new(3);
        (0..3).for_each(|index| turns.push(id(index), A));
        let visited: Vec<_> = (0..6)
            .map(|_| {
                let Visit { id, .. } = turns.next().unwrap();
                turns.push(id, A);
                turns.charge(QUANTUM / 4);
                id.index
            })
            .collect();
        assert_eq!(visited, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn one_that_comes_waits_for_a_turn_of_each_other_tenant_at_most() {
        let mut turns = Turns::new(200);
        (0..100).for_each(|index| turns.push(id(index), A));
        turns.push(id(150), B);
        let before = std::iter::from_fn(|| {
            let visit = turns.next().unwrap();
            turns.push(visit.id, if visit.id == id(150) { B } else { A });
            turns.charge(1_000);
            (visit.id != id(150)).then_some(1_000)
        });
        assert!((QUANTUM..QUANTUM + 1_000).contains(&before.sum::<i64>()));
    }

    #[test]
    fn a_frame_that_costs_more_than_was_left_is_paid_for_later_and_credit_is_not_saved_up() {
        let mut turns = Turns::new(2);
        for cost in [100, 3 * QUANTUM] {
            turns.push(id(0), A);
            assert_eq!(turns.next(), Some(Visit { id: id(0), credit: QUANTUM }));
            turns.charge(cost);
            assert!(turns.is_empty());
        }
        turns.push(id(0), A);
        turns.push(id(1), B);
        assert_eq!(turns.next().map(|visit| visit.id), Some(id(1)));
        turns.charge(1);
        assert_eq!(turns.next(), Some(Visit { id: id(0), credit: QUANTUM }));
        turns.charge(1);
        assert!(turns.is_empty() && turns.next().is_none());
    }
}
