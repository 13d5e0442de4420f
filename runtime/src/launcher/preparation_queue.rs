//! Which chain gets an instance next: tenants in turn, and of a tenant's chains first those for which a client waits, then those with the
//! fewest ready instances.
//!
//! Tenants share the launcher's time by weight (start-time fair queueing, as workers share a core): each is charged for what the
//! preparation of its instances took, and the one that has had least is next. A tenant that lacked nothing for a while is not owed that
//! time. So thousands of chains, or chains whose instances take long, delay other tenants by one preparation at most.
//!
//! A choice costs the same with ten and ten thousand chains: each chain is in one ordered set, by what it waits for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
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
    /// An instance, once an FWP index is free.
    Place { wanted: bool },
}

/// A tenant and its weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) tenant: TenantIndex,
    pub(super) weight: u32,
}

/// The order of a tenant's chains that need an instance now: clients wait for it or not, ready instances, index.
type DueKey = (Reverse<bool>, u32, Reverse<ChainIndex>);
/// The order of a tenant's chains that wait for an FWP index: clients wait for it or not, since when as a count.
type WithoutPlaceKey = (Reverse<bool>, u64);

/// Where a chain is.
#[derive(Debug, Clone, Copy)]
enum Position {
    Due(TenantIndex, DueKey),
    Resting(Instant),
    WithoutPlace(TenantIndex, WithoutPlaceKey),
}

/// One tenant's chains.
#[derive(Debug, Default)]
struct OfTenant {
    weight: u32,
    due: BTreeSet<DueKey>,
    without_place: BTreeMap<WithoutPlaceKey, ChainIndex>,
    /// The time charged to it, divided by its weight, in nanoseconds of virtual time.
    charged: u64,
}

/// The queue; see the module.
#[derive(Debug, Default)]
pub(super) struct PreparationQueue {
    positions: HashMap<ChainIndex, Position>,
    tenants: BTreeMap<TenantIndex, OfTenant>,
    /// Tenants with a chain that needs an instance now, by the time charged to them.
    turns: BTreeSet<(u64, TenantIndex)>,
    resting: BTreeSet<(Instant, ChainIndex)>,
    /// Tenants with a chain that waits for an FWP index.
    without_place: BTreeSet<TenantIndex>,
    /// The largest time charged to a tenant when it had a turn.
    virtual_time: u64,
    /// How many chains have begun to wait for an FWP index.
    waits: u64,
    /// The tenant that last got a chance at an index that another tenant gave back.
    last_chance: Option<TenantIndex>,
}

impl PreparationQueue {
    /// Puts a chain where it belongs by its need.
    pub(super) fn put(&mut self, chain: ChainIndex, owner: Owner, need: Need) {
        if let (Need::Place { wanted }, Some(Position::WithoutPlace(tenant, (Reverse(was_wanted), _)))) =
            (need, self.positions.get(&chain))
            && (*tenant, *was_wanted) == (owner.tenant, wanted)
        {
            return;
        }
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
                if of_tenant.due.is_empty() {
                    of_tenant.charged = of_tenant.charged.max(self.virtual_time);
                    self.turns.insert((of_tenant.charged, owner.tenant));
                }
                of_tenant.due.insert(key);
                Position::Due(owner.tenant, key)
            }
            Need::Place { wanted } => {
                self.waits += 1;
                let key = (Reverse(wanted), self.waits);
                self.tenants.entry(owner.tenant).or_default().without_place.insert(key, chain);
                self.without_place.insert(owner.tenant);
                Position::WithoutPlace(owner.tenant, key)
            }
        };
        self.positions.insert(chain, position);
    }

    /// Forgets a chain.
    pub(super) fn remove(&mut self, chain: ChainIndex) {
        match self.positions.remove(&chain) {
            None => {}
            Some(Position::Resting(at)) => _ = self.resting.remove(&(at, chain)),
            Some(Position::Due(tenant, key)) => {
                let Some(of_tenant) = self.tenants.get_mut(&tenant) else { return };
                of_tenant.due.remove(&key);
                if of_tenant.due.is_empty() {
                    self.turns.remove(&(of_tenant.charged, tenant));
                }
            }
            Some(Position::WithoutPlace(tenant, key)) => {
                let Some(of_tenant) = self.tenants.get_mut(&tenant) else { return };
                of_tenant.without_place.remove(&key);
                if of_tenant.without_place.is_empty() {
                    self.without_place.remove(&tenant);
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

    /// Returns the chain that is next. It stays where it is until it is put elsewhere.
    pub(super) fn next(&self) -> Option<ChainIndex> {
        let (_, tenant) = self.turns.first()?;
        let (_, _, Reverse(chain)) = self.tenants.get(tenant)?.due.first()?;
        Some(*chain)
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

    /// Removes and returns the chains that may try again, since this tenant has given an FWP index back: the first of its own, and the
    /// first of another tenant, in turn. Tenants with `is_first` come before the others.
    pub(super) fn place_freed(
        &mut self,
        tenant: TenantIndex,
        is_first: impl Fn(TenantIndex) -> bool,
    ) -> [Option<ChainIndex>; 2] {
        let own = self.pop_without_place(tenant);
        let after = self.last_chance.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.without_place.range((after, Bound::Unbounded));
        let in_turn = later.chain(&self.without_place).copied().filter(|other| *other != tenant);
        let other = in_turn.clone().find(|other| is_first(*other)).or_else(|| in_turn.clone().next());
        self.last_chance = other.or(self.last_chance);
        [own, other.and_then(|other| self.pop_without_place(other))]
    }

    fn pop_without_place(&mut self, tenant: TenantIndex) -> Option<ChainIndex> {
        let chain = *self.tenants.get(&tenant)?.without_place.first_key_value()?.1;
        self.remove(chain);
        Some(chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NOW: Need = Need::Now { wanted: false, ready: 0 };

    fn owner(tenant: u16) -> Owner {
        Owner { tenant: TenantIndex(tenant), weight: 1 }
    }

    /// Returns the chains that get an instance one after the other, each of which takes the time that is given for its tenant.
    fn order(queue: &mut PreparationQueue, count: usize, taken: [Duration; 2], tenant_of: fn(u32) -> u16) -> Vec<u32> {
        let next = |_| {
            let chain = queue.next().unwrap();
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
        assert_eq!(queue.next(), Some(ChainIndex(3)));
        queue.remove(ChainIndex(3));
        assert_eq!(queue.next(), Some(ChainIndex(9)));
    }

    #[test]
    fn a_chain_is_not_chosen_before_its_rest_is_over() {
        let (mut queue, start) = (PreparationQueue::default(), Instant::now());
        queue.put(ChainIndex(0), owner(0), Need::At(start + MS));
        assert_eq!((queue.next(), queue.next_rested()), (None, Some(start + MS)));
        assert_eq!(queue.pop_rested(start), None);
        assert_eq!(queue.pop_rested(start + MS), Some(ChainIndex(0)));
        assert_eq!((queue.next_rested(), queue.pop_rested(start + MS)), (None, None));
    }

    #[test]
    fn an_index_given_back_lets_one_chain_of_its_tenant_and_one_of_the_others_try_in_turn() {
        let mut queue = PreparationQueue::default();
        for chain in 0..9 {
            queue.put(ChainIndex(chain), owner((chain % 3) as u16), Need::Place { wanted: chain == 6 });
        }
        let mut freed = || queue.place_freed(TenantIndex(0), |_| false).map(|chain| chain.map(|chain| chain.0));
        assert_eq!(
            [freed(), freed(), freed(), freed()],
            [[Some(6), Some(1)], [Some(0), Some(2)], [Some(3), Some(4)], [None, Some(5)],]
        );
    }

    #[test]
    fn an_index_given_back_goes_to_tenants_below_their_shares_first() {
        let mut queue = PreparationQueue::default();
        for chain in 0..9 {
            queue.put(ChainIndex(chain), owner((chain % 3) as u16), Need::Place { wanted: false });
        }
        let mut other = || queue.place_freed(TenantIndex(7), |tenant| tenant == TenantIndex(2))[1].map(|chain| chain.0);
        assert_eq!([other(), other(), other(), other()], [Some(2), Some(5), Some(8), Some(0)]);
    }

    #[test]
    fn a_chain_keeps_its_place_in_the_row_of_those_that_wait_for_an_index() {
        let mut queue = PreparationQueue::default();
        for chain in [0, 1, 0] {
            queue.put(ChainIndex(chain), owner(0), Need::Place { wanted: false });
        }
        assert_eq!(queue.place_freed(TenantIndex(0), |_| false)[0], Some(ChainIndex(0)));
    }
}
