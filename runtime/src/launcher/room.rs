//! Whose instances end so that chains without room for an instance find some: cached ones are taken back, and if there are none, those end
//! whose clients have proven nothing.
//!
//! * A tenant below its share gets FWPs of tenants above theirs, and never more of one than that has above its share.
//! * A chain that clients wait for, and that has no instance, gets FWPs of its own tenant's other chains; unless the tenant would still have
//!   no room, as all that is free is guaranteed to others.
//!
//! The instances that were cached first go first. What is on its way back already counts.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use pinion_gateway::id::{ChainIndex, InstanceId};
use pinion_mma::accounts::shares::Shares;
use pinion_mma::id::TenantIndex;

use super::preparation_queue::NoRoom;

/// For how many instances of a tenant room is made at a time.
const INSTANCES_MAX: u32 = 16;

/// A cached instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cached {
    pub(super) id: InstanceId,
    pub(super) tenant: TenantIndex,
    pub(super) chain: ChainIndex,
    pub(super) fwps: u32,
    /// The gateway was asked to give it back.
    pub(super) is_reclaimed: bool,
}

/// Returns whether an instance that stays only because its function asks for it may be ended for these chains. A tenant above its share ends
/// none that may be another's.
pub(super) fn may_end_kept(chains: &NoRoom, shares: &Shares) -> bool {
    !chains.waited_for.is_empty() && (shares.of(chains.tenant).owed() > 0 || shares.is_alone(chains.tenant))
}

/// For how many tenants above their shares instances end at a time for one below its own.
const GIVERS_MAX: usize = 4;

/// A tenant's instances, as far as it matters for which of them end.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Held {
    /// FWPs of those that are ending.
    pub(super) ending: u32,
    /// FWPs of the largest one that serves.
    pub(super) largest: u32,
}

/// Returns of which tenants how many instances may end for these chains if their clients have proven nothing: of those furthest above their
/// shares, no more than that, if this tenant is below its own; and of itself, if it can have what it gives up. Any of them may have no such
/// instance, so all are asked for as many as may be needed.
pub(super) fn unproven_ends(
    chains: &NoRoom,
    shares: &Shares,
    held: impl Fn(TenantIndex) -> Held,
) -> Vec<(TenantIndex, u32)> {
    if chains.waited_for.is_empty() {
        return Vec::new();
    }
    let (tenant, share) = (chains.tenant, shares.of(chains.tenant));
    let mut givers = Vec::new();
    if share.owed() > 0 {
        givers.extend(shares.above().map(|above| (above, shares.of(above).excess())));
        givers.sort_by_key(|(_, excess)| Reverse(*excess));
        givers.truncate(GIVERS_MAX);
    }
    if has_what_it_gives_up(tenant, shares) {
        givers.push((tenant, share.used));
    }
    let ends = givers.into_iter().map(|(giver, fwps_max)| {
        let Held { ending, largest } = held(giver);
        (giver, (fwps_max.saturating_sub(ending) / largest.max(1)).min(INSTANCES_MAX))
    });
    ends.filter(|(_, instances)| *instances > 0).collect()
}

/// Returns whether a tenant can have FWPs that it gives up itself: not if all that is free is guaranteed to others.
fn has_what_it_gives_up(tenant: TenantIndex, shares: &Shares) -> bool {
    shares.of(tenant).excess() == 0 || shares.owed_to_others(tenant) <= shares.free()
}

/// See the module.
struct Plan<'a> {
    shares: &'a Shares,
    /// Those that can still be taken back, in the order in which they go.
    cached: Vec<Cached>,
    /// FWPs on their way back, by tenant.
    coming: HashMap<TenantIndex, u32>,
    /// How many FWPs of each tenant may still be taken for others.
    spare: HashMap<TenantIndex, u32>,
    taken: Vec<InstanceId>,
    /// Tenants for which enough for an instance was taken or is on its way.
    helped: HashSet<TenantIndex>,
}

/// Returns the instances to take back for these chains, and the tenants that are helped by those and by what is on its way back. `cached` are
/// all cached instances.
pub(super) fn taken_back(
    without_room: &[NoRoom],
    cached: Vec<Cached>,
    shares: &Shares,
) -> (Vec<InstanceId>, HashSet<TenantIndex>) {
    let (mut coming, mut spare) = (HashMap::new(), HashMap::new());
    for instance in cached.iter().filter(|instance| instance.is_reclaimed) {
        *coming.entry(instance.tenant).or_default() += instance.fwps;
    }
    for instance in &cached {
        let coming = coming.get(&instance.tenant).copied().unwrap_or(0);
        spare.insert(instance.tenant, shares.of(instance.tenant).excess().saturating_sub(coming));
    }
    let mut cached: Vec<Cached> = cached.into_iter().filter(|instance| !instance.is_reclaimed).collect();
    cached.sort_by_key(|instance| (Reverse(shares.of(instance.tenant).excess()), instance.id));
    let mut plan = Plan { shares, cached, coming, spare, taken: Vec::new(), helped: HashSet::new() };
    for chains in without_room {
        let found = plan.take_of_others(chains);
        if found + plan.take_of_its_own(chains, found) >= chains.stages {
            plan.helped.insert(chains.tenant);
        }
    }
    (plan.taken, plan.helped)
}

impl Plan<'_> {
    /// Takes instances of tenants above their shares if this one is below its own. Returns how many FWPs it gets by it, with those on their
    /// way.
    fn take_of_others(&mut self, chains: &NoRoom) -> u32 {
        let missing = self.shares.of(chains.tenant).owed().min(chains.stages * INSTANCES_MAX);
        let mut wanted = missing;
        for coming in self.coming.values_mut() {
            let used = wanted.min(*coming);
            (*coming, wanted) = (*coming - used, wanted - used);
        }
        let Self { cached, spare, taken, .. } = self;
        cached.retain(|instance| {
            let spare = spare.entry(instance.tenant).or_default();
            let is_taken = wanted > 0 && *spare > 0 && instance.tenant != chains.tenant;
            if is_taken {
                (*spare, wanted) = (spare.saturating_sub(instance.fwps), wanted.saturating_sub(instance.fwps));
                taken.push(instance.id);
            }
            !is_taken
        });
        missing - wanted
    }

    /// Takes instances of the tenant's other chains for those that clients wait for, as far as the FWPs that were `found` are too few.
    /// Returns how many FWPs it gets by it, with those on their way.
    fn take_of_its_own(&mut self, chains: &NoRoom, found: u32) -> u32 {
        let tenant = chains.tenant;
        if !has_what_it_gives_up(tenant, self.shares) {
            return 0;
        }
        let missing = (chains.stages * chains.waited_for.len() as u32).saturating_sub(found);
        let mut wanted = missing;
        let coming = self.coming.entry(tenant).or_default();
        let used = wanted.min(*coming);
        (*coming, wanted) = (*coming - used, wanted - used);
        let Self { cached, taken, .. } = self;
        cached.retain(|instance| {
            let is_taken = wanted > 0 && instance.tenant == tenant && !chains.waited_for.contains(&instance.chain);
            if is_taken {
                wanted = wanted.saturating_sub(instance.fwps);
                taken.push(instance.id);
            }
            !is_taken
        });
        missing - wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantIndex = TenantIndex(0);
    const B: TenantIndex = TenantIndex(1);
    const C: TenantIndex = TenantIndex(2);

    /// Cached instances of these tenants, each of one FWP and of a chain of its own, the oldest first.
    fn cached(tenants: &[(TenantIndex, u32)]) -> Vec<Cached> {
        let of_tenant = |(tenant, count): &(TenantIndex, u32)| vec![*tenant; *count as usize];
        let all = tenants.iter().flat_map(of_tenant).enumerate();
        let instance = |(at, tenant)| {
            let (id, chain) = (InstanceId(at as u64), ChainIndex(100 + at as u32));
            Cached { id, tenant, chain, fwps: 1, is_reclaimed: false }
        };
        all.map(instance).collect()
    }

    fn shares(total: u32, used: &[(TenantIndex, u32)], tenants: &[TenantIndex]) -> Shares {
        let mut shares = Shares::new(total);
        shares.divide(&tenants.iter().map(|tenant| (*tenant, 1)).collect::<Vec<_>>());
        used.iter().for_each(|(tenant, fwps)| shares.take(*tenant, *fwps));
        shares
    }

    fn no_room(tenant: TenantIndex, waited_for: &[u32]) -> NoRoom {
        let waited_for = waited_for.iter().map(|chain| ChainIndex(*chain)).collect();
        NoRoom { tenant, stages: 1, first: ChainIndex(0), waited_for }
    }

    fn ids(taken: &[InstanceId]) -> Vec<u64> {
        taken.iter().map(|id| id.0).collect()
    }

    #[test]
    fn a_tenant_below_its_share_gets_what_another_has_above_its_own_the_oldest_first() {
        let shares = shares(40, &[(A, 40)], &[A, B]);
        let (taken, _) = taken_back(&[no_room(B, &[])], cached(&[(A, 40)]), &shares);
        assert_eq!(ids(&taken), (0..10).collect::<Vec<u64>>());
    }

    #[test]
    fn a_tenant_that_gets_what_others_have_above_their_shares_keeps_its_own_cached_instances() {
        let shares = shares(40, &[(A, 35), (B, 5)], &[A, B]);
        let (taken, _) = taken_back(&[no_room(B, &[1, 2])], cached(&[(B, 5), (A, 35)]), &shares);
        assert_eq!(ids(&taken), [5, 6, 7, 8, 9]);
    }

    #[test]
    fn no_tenant_is_taken_more_than_it_has_above_its_share() {
        // Each is guaranteed 10. B's 12 are cached; A's are with clients.
        let shares = shares(60, &[(A, 48), (B, 12)], &[A, B, C]);
        assert_eq!(taken_back(&[no_room(C, &[])], cached(&[(B, 12)]), &shares).0.len(), 2);
    }

    #[test]
    fn what_is_on_its_way_back_is_not_taken_again() {
        let shares = shares(40, &[(A, 40)], &[A, B]);
        let mut cached = cached(&[(A, 40)]);
        cached.iter_mut().take(7).for_each(|instance| instance.is_reclaimed = true);
        assert_eq!(ids(&taken_back(&[no_room(B, &[])], cached, &shares).0), [7, 8, 9]);
    }

    #[test]
    fn chains_that_clients_wait_for_get_instances_of_their_tenants_other_chains() {
        let shares = shares(10, &[(A, 10)], &[A]);
        assert_eq!(ids(&taken_back(&[no_room(A, &[1, 2, 3])], cached(&[(A, 10)]), &shares).0), [0, 1, 2]);
        assert!(taken_back(&[no_room(A, &[])], cached(&[(A, 10)]), &shares).0.is_empty(), "no client waits");
    }

    #[test]
    fn only_for_waiting_clients_of_a_tenant_below_its_share_or_alone_is_an_instance_ended_that_wants_to_stay() {
        let shares_of = |used: &[(TenantIndex, u32)]| shares(40, used, &[A, B]);
        let may = |waited_for: &[u32], used| may_end_kept(&no_room(A, waited_for), &shares_of(used));
        assert!(may(&[1], &[(A, 9), (B, 31)]));
        assert!(may(&[1], &[(A, 40)]));
        assert!(!may(&[1], &[(A, 30), (B, 10)]));
        assert!(!may(&[], &[(A, 9), (B, 31)]));
    }

    #[test]
    fn only_tenants_are_helped_for_which_enough_for_an_instance_was_found() {
        let shares = shares(60, &[(A, 10), (B, 25), (C, 25)], &[A, B, C]);
        let of_a = |stages| {
            let without_room = [NoRoom { stages, ..no_room(A, &[1]) }, no_room(B, &[2])];
            let (taken, helped) = taken_back(&without_room, cached(&[(A, 1)]), &shares);
            (ids(&taken), helped)
        };
        assert_eq!([of_a(1), of_a(2)], [(vec![0], HashSet::from([A])), (vec![0], HashSet::new())]);
    }

    #[test]
    fn unproven_clients_end_of_the_waiting_ones_own_tenant_and_of_those_above_their_shares_if_it_is_below_its_own() {
        let given = |waited_for: &[u32], used: &[(TenantIndex, u32)]| {
            let held = |_| Held { ending: 0, largest: 1 };
            unproven_ends(&no_room(A, waited_for), &shares(60, used, &[A, B, C]), held)
        };
        assert_eq!(given(&[1], &[(A, 9), (B, 20), (C, 31)]), [(C, 16), (B, 10), (A, 9)]);
        assert_eq!(given(&[1], &[(A, 9), (B, 10), (C, 13)]), [(C, 3), (A, 9)]);
        assert_eq!(given(&[1], &[(A, 30), (B, 20), (C, 10)]), [(A, 16)], "it has its share");
        assert_eq!(given(&[1], &[(A, 50)]), [], "what it gives up is guaranteed to others");
        assert_eq!(given(&[], &[(A, 9), (B, 20), (C, 31)]), [], "no client waits");
    }

    #[test]
    fn of_a_tenant_above_its_share_no_more_ends_than_that_however_large_instances_are_and_what_ends_counts() {
        let shares = shares(60, &[(A, 1), (B, 17)], &[A, B, C]);
        let given = |ending, largest| {
            let held = |of| if of == B { Held { ending, largest } } else { Held::default() };
            let ends = unproven_ends(&no_room(A, &[1]), &shares, held);
            ends.iter().find(|(of, _)| *of == B).map_or(0, |(_, instances)| *instances)
        };
        assert_eq!([given(0, 1), given(0, 3), given(0, 8), given(5, 1), given(7, 1)], [7, 2, 0, 2, 0]);
    }

    #[test]
    fn a_tenant_loses_no_cached_instance_for_a_client_that_finds_no_room_even_then() {
        // B has just come, and is owed more than is free.
        let shares = shares(40, &[(A, 36)], &[A, B]);
        assert!(taken_back(&[no_room(A, &[1])], cached(&[(A, 36)]), &shares).0.is_empty());
    }
}
