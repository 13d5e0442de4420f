//! Which chain gets an instance next: tenants in turn, and of a tenant's chains first those for which a client waits, then those with the
//! fewest ready instances.
//!
//! Tenants share the launcher's time by weight (start-time fair queueing, as workers share a core): each is charged for what the
//! preparation of its instances took, and the one that has had least is next. A tenant that lacked nothing for a while is not owed that
//! time. So thousands of chains, or chains whose instances take long, delay other tenants by one preparation at most.
//!
//! Whether there is room for an instance depends on its tenant and its number of stages, and is asked for at each choice. So no chain has to
//! be woken when there is room again. A choice takes time logarithmic in the number of chains, and linear in the number of tenants that
//! lack an instance and find no room.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use pinion_gateway::id::ChainIndex;
use pinion_mma::id::TenantIndex;

/// What a chain needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// It has as many instances as it should have.
    None,
    /// An instance, now. A client waits for it if `wanted`; `ready` others are cached.
    Now { wanted: bool, ready: u32 },
    /// An instance, but not before this time.
    At(Instant),
}

/// What a chain's preparation depends on besides its need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) tenant: TenantIndex,
    pub(super) weight: u32,
    /// How many FWPs an instance has.
    pub(super) stages: u32,
}

/// The order of a tenant's chains that need an instance now: clients wait for it or not, ready instances, index.
type DueKey = (Reverse<bool>, u32, Reverse<ChainIndex>);

/// Where a chain is.
#[derive(Debug, Clone, Copy)]
enum Position {
    Due(Owner, DueKey),
    Resting(Instant),
}

/// One tenant's chains that need an instance now.
#[derive(Debug, Default)]
struct OfTenant {
    weight: u32,
    by_stages: BTreeMap<u32, BTreeSet<DueKey>>,
    /// The time charged to it, divided by its weight, in nanoseconds of virtual time.
    charged: u64,
}

/// A tenant's chains of some number of stages for which there is no room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoRoom {
    pub(super) tenant: TenantIndex,
    pub(super) stages: u32,
    /// The first of them, in the order in which they are prepared.
    pub(super) first: ChainIndex,
    /// Those of the first [`WAITED_FOR_MAX`] that have no instance and for which clients wait.
    pub(super) waited_for: Vec<ChainIndex>,
}

/// For how many chains of a tenant that clients wait for room is made at a time.
const WAITED_FOR_MAX: usize = 16;

/// The queue; see the module.
#[derive(Debug, Default)]
pub(super) struct PreparationQueue {
    positions: HashMap<ChainIndex, Position>,
    tenants: BTreeMap<TenantIndex, OfTenant>,
    /// Tenants with a chain that needs an instance now, by the time charged to them.
    turns: BTreeSet<(u64, TenantIndex)>,
    resting: BTreeSet<(Instant, ChainIndex)>,
    /// The largest time charged to a tenant when it had a turn.
    virtual_time: u64,
}

impl PreparationQueue {
    /// Puts a chain where it belongs by its need.
    pub(super) fn put(&mut self, chain: ChainIndex, owner: Owner, need: Need) {
        self.remove(chain);
        let position = match need {
            Need::None => return,
            Need::At(at) => {
                self.resting.insert((at, chain));
                Position::Resting(at)
            }
            Need::Now { wanted, ready } => {
                let key = (Reverse(wanted), ready, Reverse(chain));
                let of_tenant = self.tenants.entry(owner.tenant).or_default();
                of_tenant.weight = owner.weight.max(1);
                if of_tenant.by_stages.is_empty() {
                    of_tenant.charged = of_tenant.charged.max(self.virtual_time);
                    self.turns.insert((of_tenant.charged, owner.tenant));
                }
                of_tenant.by_stages.entry(owner.stages).or_default().insert(key);
                Position::Due(owner, key)
            }
        };
        self.positions.insert(chain, position);
    }

    /// Forgets a chain.
    pub(super) fn remove(&mut self, chain: ChainIndex) {
        match self.positions.remove(&chain) {
            None => {}
            Some(Position::Resting(at)) => _ = self.resting.remove(&(at, chain)),
            Some(Position::Due(Owner { tenant, stages, .. }, key)) => {
                let Some(of_tenant) = self.tenants.get_mut(&tenant) else { return };
                if let Some(due) = of_tenant.by_stages.get_mut(&stages) {
                    due.remove(&key);
                    if due.is_empty() {
                        of_tenant.by_stages.remove(&stages);
                    }
                }
                if of_tenant.by_stages.is_empty() {
                    self.turns.remove(&(of_tenant.charged, tenant));
                }
            }
        }
    }

    /// Removes and returns a chain whose rest is over.
    pub(super) fn pop_rested(&mut self, now: Instant) -> Option<ChainIndex> {
        let (at, chain) = *self.resting.first()?;
        (at <= now).then(|| {
            self.remove(chain);
            chain
        })
    }

    /// Returns the chain that is next of those for which there is room, by their tenant and number of stages. It stays where it is until it
    /// is put elsewhere.
    pub(super) fn next(&self, has_room: impl Fn(TenantIndex, u32) -> bool) -> Option<ChainIndex> {
        self.turns.iter().find_map(|(_, tenant)| {
            let with_room =
                self.tenants.get(tenant)?.by_stages.iter().filter(|(stages, _)| has_room(*tenant, **stages));
            let (_, _, Reverse(chain)) = with_room.filter_map(|(_, due)| due.first()).min()?;
            Some(*chain)
        })
    }

    /// Returns the chains that need an instance now and for which there is no room, tenants in turn.
    pub(super) fn without_room(&self, has_room: impl Fn(TenantIndex, u32) -> bool) -> Vec<NoRoom> {
        let mut without_room = Vec::new();
        for (_, tenant) in &self.turns {
            let Some(of_tenant) = self.tenants.get(tenant) else { continue };
            for (stages, due) in of_tenant.by_stages.iter().filter(|(stages, _)| !has_room(*tenant, **stages)) {
                let Some((_, _, Reverse(first))) = due.first() else { continue };
                let is_waited_for = |(Reverse(wanted), ready, _): &&DueKey| *wanted && *ready == 0;
                let waited_for = due.iter().take(WAITED_FOR_MAX).filter(is_waited_for).map(|(_, _, chain)| chain.0);
                let (tenant, stages, first, waited_for) = (*tenant, *stages, *first, waited_for.collect());
                without_room.push(NoRoom { tenant, stages, first, waited_for });
            }
        }
        without_room
    }

    /// Charges the time that a preparation took to the chain's tenant.
    pub(super) fn charge(&mut self, tenant: TenantIndex, taken: Duration) {
        let Some(of_tenant) = self.tenants.get_mut(&tenant) else { return };
        let had_turn = self.turns.remove(&(of_tenant.charged, tenant));
        self.virtual_time = self.virtual_time.max(of_tenant.charged);
        of_tenant.charged += (taken.as_nanos() as u64).max(1) / u64::from(of_tenant.weight.max(1)) + 1;
        if had_turn {
            self.turns.insert((of_tenant.charged, tenant));
        }
    }

    /// Returns when the next rest is over.
    pub(super) fn next_rested(&self) -> Option<Instant> {
        Some(self.resting.first()?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NOW: Need = Need::Now { wanted: false, ready: 0 };

    fn owner(tenant: u16) -> Owner {
        Owner { tenant: TenantIndex(tenant), weight: 1, stages: 1 }
    }

    /// Returns the chains that get an instance one after the other, each of which takes the time that is given for its tenant.
    fn order(queue: &mut PreparationQueue, count: usize, taken: [Duration; 2], tenant_of: fn(u32) -> u16) -> Vec<u32> {
        let next = |_| {
            let chain = queue.next(|_, _| true).unwrap();
            let tenant = tenant_of(chain.0);
            queue.charge(TenantIndex(tenant), taken[usize::from(tenant)]);
            chain.0
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn a_tenant_with_thousands_of_chains_delays_another_by_one_preparation() {
        let mut queue = PreparationQueue::default();
        for chain in 1..=8_000 {
            queue.put(ChainIndex(chain), owner(0), NOW);
        }
        assert_eq!(order(&mut queue, 100, [MS; 2], |_| 0), vec![8_000; 100]);
        queue.put(ChainIndex(0), owner(1), NOW);
        assert!(order(&mut queue, 2, [MS; 2], |chain| u16::from(chain == 0)).contains(&0));
    }

    #[test]
    fn tenants_share_the_launchers_time_and_not_its_turns() {
        let mut queue = PreparationQueue::default();
        for chain in [0, 1] {
            queue.put(ChainIndex(chain), owner(chain as u16), NOW);
        }
        let order = order(&mut queue, 110, [MS, 10 * MS], |chain| chain as u16);
        let of_slow = order.iter().filter(|chain| **chain == 1).count();
        assert!((9..=11).contains(&of_slow), "{of_slow}");
    }

    #[test]
    fn a_tenant_of_twice_the_weight_gets_twice_the_time() {
        let mut queue = PreparationQueue::default();
        queue.put(ChainIndex(0), owner(0), NOW);
        queue.put(ChainIndex(1), Owner { weight: 2, ..owner(1) }, NOW);
        let order = order(&mut queue, 90, [MS; 2], |chain| chain as u16);
        let of_heavy = order.iter().filter(|chain| **chain == 1).count();
        assert!((59..=61).contains(&of_heavy), "{of_heavy}");
    }

    #[test]
    fn time_without_need_is_not_owed() {
        let mut queue = PreparationQueue::default();
        queue.put(ChainIndex(0), owner(0), NOW);
        order(&mut queue, 100, [MS; 2], |_| 0);
        queue.put(ChainIndex(1), owner(1), NOW);
        let order = order(&mut queue, 10, [MS; 2], |chain| chain as u16);
        assert_eq!(order.iter().filter(|chain| **chain == 1).count(), 5);
    }

    #[test]
    fn a_chain_whose_client_waits_comes_before_its_tenants_others() {
        let mut queue = PreparationQueue::default();
        for chain in 0..10 {
            queue.put(ChainIndex(chain), owner(0), Need::Now { wanted: chain == 3, ready: 9 - chain });
        }
        assert_eq!(queue.next(|_, _| true), Some(ChainIndex(3)));
        queue.remove(ChainIndex(3));
        assert_eq!(queue.next(|_, _| true), Some(ChainIndex(9)));
    }

    #[test]
    fn a_chain_is_not_chosen_before_its_rest_is_over() {
        let (mut queue, start) = (PreparationQueue::default(), Instant::now());
        queue.put(ChainIndex(0), owner(0), Need::At(start + MS));
        assert_eq!((queue.next(|_, _| true), queue.next_rested()), (None, Some(start + MS)));
        assert_eq!(queue.pop_rested(start), None);
        assert_eq!(queue.pop_rested(start + MS), Some(ChainIndex(0)));
        assert_eq!((queue.next_rested(), queue.pop_rested(start + MS)), (None, None));
    }

    #[test]
    fn a_chain_for_which_there_is_no_room_holds_up_no_other() {
        let mut queue = PreparationQueue::default();
        for (chain, tenant, stages) in [(0, 0, 4), (1, 0, 1), (2, 1, 1)] {
            queue.put(ChainIndex(chain), Owner { stages, ..owner(tenant) }, Need::Now { wanted: chain == 0, ready: 0 });
        }
        let next =
            |room: [u32; 2]| queue.next(|tenant, stages| stages <= room[usize::from(tenant.0)]).map(|chain| chain.0);
        assert_eq!([next([4, 1]), next([3, 1]), next([0, 1]), next([0, 0])], [Some(0), Some(1), Some(2), None]);
        let without_room = queue.without_room(|_, stages| stages < 4);
        let first = ChainIndex(0);
        assert_eq!(without_room, [NoRoom { tenant: TenantIndex(0), stages: 4, first, waited_for: vec![first] }]);
    }
}
