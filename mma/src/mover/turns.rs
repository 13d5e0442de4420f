//! Whose output is moved next, and how much of it: deficit round robin among tenants, by weight (Shreedhar and Varghese,
//! SIGCOMM 1995).
//!
//! Output that a poll does not move waits here. In each round a tenant gets a slice for each unit of its weight. It has
//! its slices in turn with the others, one at a time: what a tenant sends holds others up for a slice, whatever it sends
//! and from however many FWPs, until they have had their part of the round. Then they wait for the slices of those with
//! more weight, and of those that came later. In a slice its FWPs are visited one after another. What the last frame of
//! a round costs beyond the tenant's part is paid for in the next round. A tenant that waits alone pays nothing: its FWPs
//! are visited in turn, for a slice each.
//!
//! Costs are in bytes: those of the frames, and something for each frame and each visit. Nothing is allocated after
//! creation, and each operation takes constant time, but for two: the beginning of a round takes some for each tenant that
//! waits for it, and to take an FWP out some for each that is queued before it.

use std::collections::VecDeque;

use crate::accounts::copying::CopyShare;
use crate::id::{FwpId, TENANTS_MAX, TenantIndex};

/// What a tenant may cost in a slice, in bytes.
pub(super) const SLICE: i64 = 16 * 1024;

/// No FWP has this index.
const NONE: u32 = u32::MAX;

/// A tenant's queue.
#[derive(Debug, Clone, Copy)]
struct TenantQueue {
    first: u32,
    last: u32,
    weight: u32,
    /// What is left of its part of the round; not above zero once it is used up.
    credit: i64,
    /// The round that the credit is for.
    round: u64,
    /// It is in one of the lists.
    is_waiting: bool,
}

const NO_FWPS: TenantQueue = TenantQueue { first: NONE, last: NONE, weight: 1, credit: 0, round: 0, is_waiting: false };

impl TenantQueue {
    /// Gives the tenant its part of a round, once.
    fn begin(&mut self, round: u64) {
        if self.round != round {
            // What was not used is not saved up, and what is owed is paid for in the next round, whether it waits then or not.
            let debt = if self.round + 1 == round { self.credit.min(0) } else { 0 };
            self.round = round;
            self.credit = debt + SLICE * i64::from(self.weight);
        }
    }
}

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
    round: u64,
    /// Tenants that have something left of their part of the round, in the order of their slices.
    waiting: VecDeque<TenantIndex>,
    /// Tenants that wait for the next round.
    spent: VecDeque<TenantIndex>,
    /// What is left of the slice of the first in `waiting`.
    slice: i64,
    /// FWPs in all queues.
    fwps: usize,
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
            round: 1,
            waiting: VecDeque::with_capacity(TENANTS_MAX),
            spent: VecDeque::with_capacity(TENANTS_MAX),
            slice: SLICE,
            fwps: 0,
        }
    }

    /// Returns how many FWPs are queued.
    pub(super) fn len(&self) -> usize {
        self.fwps
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.fwps == 0
    }

    /// Queues an FWP that is not queued.
    pub(super) fn push(&mut self, id: FwpId, share: CopyShare) {
        self.fwps += 1;
        let queue = &mut self.tenants[usize::from(share.tenant.0)];
        self.links[id.index as usize] = Link { generation: id.generation, next: NONE };
        match queue.last {
            NONE => queue.first = id.index,
            last => self.links[last as usize].next = id.index,
        }
        queue.last = id.index;
        queue.weight = share.weight.max(1);
        if !std::mem::replace(&mut queue.is_waiting, true) {
            queue.begin(self.round);
            if queue.credit > 0 { &mut self.waiting } else { &mut self.spent }.push_back(share.tenant);
        }
    }

    /// Takes the FWP that is next. What it costs is to be [charged](Self::charge) before the next one is taken, and
    /// after it was queued again if it has more.
    pub(super) fn next(&mut self) -> Option<Visit> {
        while self.waiting.is_empty() {
            self.begin_round()?;
        }
        let is_alone = self.is_alone();
        // A tenant that comes has its part of a new round: it is owed none of what was sent meanwhile, nor does it owe any.
        self.round += u64::from(is_alone);
        let queue = &mut self.tenants[usize::from(self.waiting.front()?.0)];
        queue.begin(self.round);
        let Link { generation, next } = self.links[queue.first as usize];
        let id = FwpId { index: queue.first, generation };
        queue.first = next;
        if next == NONE {
            queue.last = NONE;
        }
        let credit = match (is_alone, next) {
            (true, NONE) => i64::MAX,
            (true, _) => SLICE,
            (false, _) => queue.credit.min(self.slice),
        };
        self.fwps -= 1;
        Some(Visit { id, credit })
    }

    /// Returns the tenant whose FWP [`Self::next`] would take.
    pub(super) fn front(&mut self) -> Option<TenantIndex> {
        while self.waiting.is_empty() {
            self.begin_round()?;
        }
        self.waiting.front().copied()
    }

    /// Lets that tenant wait for the next round, without a visit.
    pub(super) fn pass(&mut self) {
        self.spent.extend(self.waiting.pop_front());
        self.slice = SLICE;
    }

    /// Returns how many tenants have FWPs queued.
    pub(super) fn tenants(&self) -> usize {
        self.waiting.len() + self.spent.len()
    }

    /// Takes an FWP of this tenant out of its queue, if it is there. Takes time for each that is queued before it.
    pub(super) fn remove(&mut self, id: FwpId, tenant: TenantIndex) {
        let queue = &mut self.tenants[usize::from(tenant.0)];
        let (mut before, mut at) = (NONE, queue.first);
        while at != NONE && at != id.index {
            (before, at) = (at, self.links[at as usize].next);
        }
        if at == NONE || self.links[at as usize].generation != id.generation {
            return;
        }
        self.fwps -= 1;
        let next = self.links[at as usize].next;
        match before {
            NONE => queue.first = next,
            before => self.links[before as usize].next = next,
        }
        if next == NONE {
            queue.last = before;
        }
        if queue.first == NONE {
            queue.is_waiting = false;
            if self.waiting.front() == Some(&tenant) {
                self.slice = SLICE;
            }
            self.waiting.retain(|waiting| *waiting != tenant);
            self.spent.retain(|spent| *spent != tenant);
        }
    }

    /// Returns whether no other tenant waits than the first in `waiting`.
    #[inline]
    fn is_alone(&self) -> bool {
        self.waiting.len() == 1 && self.spent.is_empty()
    }

    /// Begins a round with the tenants that wait for it. None, if there is none.
    fn begin_round(&mut self) -> Option<()> {
        self.round += 1;
        for _ in 0..self.spent.len() {
            let tenant = self.spent.pop_front()?;
            let queue = &mut self.tenants[usize::from(tenant.0)];
            queue.begin(self.round);
            if queue.credit > 0 { &mut self.waiting } else { &mut self.spent }.push_back(tenant);
        }
        (!self.is_empty()).then_some(())
    }

    /// Charges the tenant of the FWP that was taken last. Its slice ends when it is used up, or when it has no more.
    pub(super) fn charge(&mut self, cost: i64) {
        let Some(&tenant) = self.waiting.front() else { return };
        let is_alone = self.is_alone();
        let queue = &mut self.tenants[usize::from(tenant.0)];
        // Others lose nothing by what a tenant sends while none waits.
        if !is_alone {
            queue.credit -= cost;
            self.slice -= cost;
        }
        let is_spent = queue.credit <= 0;
        if queue.first == NONE {
            queue.is_waiting = false;
            self.waiting.pop_front();
        } else if is_spent || self.slice <= 0 {
            self.waiting.pop_front();
            if is_spent { &mut self.spent } else { &mut self.waiting }.push_back(tenant);
        } else {
            return;
        }
        self.slice = SLICE;
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
        let mut turns = Turns::new(4);
        (0..3).for_each(|index| turns.push(id(index), A));
        let visited: Vec<_> = (0..6)
            .map(|_| {
                let Visit { id, .. } = turns.next().unwrap();
                turns.push(id, A);
                turns.charge(SLICE / 4);
                id.index
            })
            .collect();
        assert_eq!(visited, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn what_is_taken_out_is_not_visited_and_the_others_keep_their_order() {
        let mut turns = Turns::new(8);
        (0..4).for_each(|index| turns.push(id(index), A));
        (4..6).for_each(|index| turns.push(id(index), B));
        for index in [3, 0, 2, 2] {
            turns.remove(id(index), A.tenant);
        }
        turns.remove(FwpId { index: 4, generation: 1 }, B.tenant);
        assert_eq!(turns.len(), 3);
        turns.push(id(7), A);
        let mut visited = Vec::new();
        while let Some(Visit { id, .. }) = turns.next() {
            turns.charge(SLICE);
            visited.push(id.index);
        }
        assert_eq!(visited, [1, 4, 7, 5]);
        turns.push(id(1), A);
        turns.push(id(4), B);
        turns.remove(id(1), A.tenant);
        assert_eq!(turns.next().map(|visit| visit.id), Some(id(4)));
        turns.charge(1);
        assert_eq!((turns.is_empty(), turns.len()), (true, 0));
    }

    #[test]
    fn a_tenant_that_waits_alone_owes_nothing_to_those_that_come() {
        let mut turns = Turns::new(3);
        turns.push(id(0), A);
        assert_eq!(turns.next(), Some(Visit { id: id(0), credit: i64::MAX }));
        turns.push(id(0), A);
        turns.charge(100 * SLICE);
        turns.push(id(1), A);
        assert_eq!(turns.next(), Some(Visit { id: id(0), credit: SLICE }));
        turns.push(id(0), A);
        turns.charge(3 * SLICE);
        turns.push(id(2), B);
        for expected in [1, 2, 0, 2] {
            let visit = turns.next().unwrap();
            assert_eq!(visit, Visit { id: id(expected), credit: SLICE });
            turns.push(visit.id, if expected == 2 { B } else { A });
            turns.charge(SLICE);
        }
    }

    #[test]
    fn while_a_tenant_waits_alone_the_parts_of_others_are_renewed() {
        let heavy = CopyShare { weight: 1_000, ..A };
        let mut turns = Turns::new(2);
        for _ in 0..3 {
            turns.push(id(0), heavy);
            turns.push(id(1), B);
            let mut before = 0;
            loop {
                let visit = turns.next().unwrap();
                turns.charge(SLICE);
                if visit.id == id(1) {
                    break;
                }
                before += 1;
                turns.push(id(0), heavy);
            }
            assert!(before <= 1, "{before} slices before the one of the tenant that sends now and then");
            for _ in 0..100 {
                turns.next().unwrap();
                turns.push(id(0), heavy);
                turns.charge(SLICE);
            }
            turns.next().unwrap();
            turns.charge(SLICE);
        }
    }

    #[test]
    fn tenants_of_much_weight_have_their_slices_by_turns() {
        let heavy = |share: CopyShare| CopyShare { weight: 1_000, ..share };
        let mut turns = Turns::new(2);
        turns.push(id(0), heavy(A));
        turns.push(id(1), heavy(B));
        let visited: Vec<_> = (0..6)
            .map(|_| {
                let Visit { id, .. } = turns.next().unwrap();
                turns.push(id, heavy(if id.index == 0 { A } else { B }));
                turns.charge(SLICE);
                id.index
            })
            .collect();
        assert_eq!(visited, [0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn a_tenant_that_leaves_and_returns_within_a_round_gets_no_second_part_of_it() {
        let heavy = CopyShare { weight: 3, ..B };
        let mut turns = Turns::new(2);
        turns.push(id(1), heavy);
        let mut of_a = 0;
        for _ in 0..400 {
            // It always sends one frame only, which costs a slice.
            if of_a < 2 {
                turns.push(id(0), A);
                of_a = 2;
            }
            let visit = turns.next().unwrap();
            if visit.id == id(1) {
                turns.push(id(1), heavy);
            } else {
                of_a = 0;
            }
            turns.charge(SLICE);
        }
        let had = |turns: &Turns, share: CopyShare| turns.tenants[usize::from(share.tenant.0)].round;
        assert_eq!(had(&turns, A), had(&turns, heavy));
        assert!((99..=102).contains(&turns.round), "{} rounds of four slices", turns.round);
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
        assert!((SLICE..SLICE + 1_000).contains(&before.sum::<i64>()));
    }

    #[test]
    fn a_frame_that_costs_more_than_was_left_is_paid_for_later_and_credit_is_not_saved_up() {
        let mut turns = Turns::new(2);
        turns.push(id(0), A);
        turns.push(id(1), B);
        assert_eq!(turns.next(), Some(Visit { id: id(0), credit: SLICE }));
        turns.push(id(0), A);
        turns.charge(3 * SLICE);
        // It owes two slices, so it is next in the third round.
        for _ in 0..3 {
            assert_eq!(turns.next(), Some(Visit { id: id(1), credit: SLICE }));
            turns.push(id(1), B);
            turns.charge(SLICE);
        }
        assert_eq!(turns.next(), Some(Visit { id: id(0), credit: SLICE }));
        turns.charge(1);
        assert_eq!(turns.next().map(|visit| visit.id), Some(id(1)));
        turns.charge(1);
        assert!(turns.is_empty() && turns.next().is_none());
    }
}
