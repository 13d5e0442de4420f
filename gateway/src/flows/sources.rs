//! How many FWPs the clients of each source prefix have, by tenant. One host can send from all addresses of its prefix, and
//! open any number of flows; of a prefix it gets a part only of what its tenant can have.
//!
//! A prefix is an IPv4 address, or the upper half of an IPv6 address (/64): what a single host commonly has. Clients that
//! wait for an instance count as if they had it. How many FWPs those of one prefix may have is the launcher's choice
//! ([`SourceLimit`]).
//!
//! Owned by the gateway's thread; asked for new clients, and for those that wait or are refused. Allocates nothing after it
//! was made.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use pinion_mma::id::{TENANTS_MAX, TenantIndex};

use crate::flows::ClientLabel;
use crate::flows::index::{HashIndex, List, ListLinks};
use crate::headers::{FlowKey, Vlan};

/// How many FWPs the clients of one source prefix may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimit {
    /// The tenant.
    pub tenant: TenantIndex,
    /// How many of its FWPs the clients of one prefix may have.
    pub fwps_max: u32,
}

impl SourceLimit {
    /// For the first tenant: any number.
    pub const NONE: Self = Self { tenant: TenantIndex(0), fwps_max: u32::MAX };
}

/// Where a client sends from. The same addresses in two VLANs are two prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourcePrefix {
    /// The IPv4 address, or the upper half of the IPv6 address.
    bits: u64,
    is_ipv6: bool,
    vlan: Vlan,
}

impl SourcePrefix {
    /// Returns the prefix from which this flow comes. `None` if no more than one instance can be due to it, for this kind
    /// of client.
    #[inline]
    pub(crate) fn of(flow: &FlowKey, client: &ClientLabel) -> Option<Self> {
        match *client {
            ClientLabel::All => None,
            // Frames that go backwards come from another address than their client's.
            ClientLabel::Address { address: address @ IpAddr::V4(_), .. } if address == flow.source() => None,
            ClientLabel::Address { .. } | ClientLabel::Flow { .. } => {
                let (bits, is_ipv6) = (flow.source_bits(), flow.is_ipv6());
                let bits = if is_ipv6 { (bits >> 64) as u64 } else { bits as u64 };
                Some(Self { bits, is_ipv6, vlan: flow.ingress().vlan })
            }
        }
    }
}

/// What a client has of its prefix's share. To be given back exactly once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SourceShare {
    /// The place of its prefix.
    place: u32,
    fwps: u32,
}

impl SourceShare {
    /// Nothing.
    pub(crate) const NONE: Self = Self { place: 0, fwps: 0 };
}

/// A prefix whose clients have FWPs of a tenant.
#[derive(Clone, Copy)]
struct Holder {
    tenant: TenantIndex,
    prefix: SourcePrefix,
    fwps: u32,
    /// A client of it was refused since one gave back its part.
    has_refused: bool,
}

/// How many FWPs the clients of one prefix may have of a tenant as long as the launcher has not said it.
pub(crate) const FWPS_MAX_AT_FIRST: u32 = 32;

/// See the module.
pub(crate) struct SourceShares {
    hasher: RandomState,
    holders: Box<[Holder]>,
    by_prefix: HashIndex,
    links: ListLinks,
    free: List,
    /// By tenant: how many FWPs the clients of one prefix may have.
    fwps_max: Box<[u32]>,
}

impl SourceShares {
    /// Makes room for so many clients, bound or waiting.
    pub(crate) fn new(clients: usize) -> Self {
        let nothing = SourcePrefix { bits: 0, is_ipv6: false, vlan: Vlan::UNTAGGED };
        let mut links = ListLinks::new(clients);
        let free = List::all(&mut links);
        Self {
            hasher: RandomState::new(),
            holders: vec![Holder { tenant: TenantIndex(0), prefix: nothing, fwps: 0, has_refused: false }; clients]
                .into(),
            by_prefix: HashIndex::new(clients),
            links,
            free,
            fwps_max: vec![FWPS_MAX_AT_FIRST; TENANTS_MAX].into(),
        }
    }

    /// Sets what the next clients may have.
    pub(crate) fn limit(&mut self, SourceLimit { tenant, fwps_max }: SourceLimit) {
        self.fwps_max[usize::from(tenant.0)] = fwps_max;
    }

    /// Returns whether one more client of this prefix may have an instance of so many FWPs of the tenant: one may always.
    pub(crate) fn admits(&self, tenant: TenantIndex, prefix: SourcePrefix, fwps: u32) -> bool {
        let used = self.find(tenant, prefix).map(|place| self.holders[place as usize].fwps);
        used.is_none_or(|used| used.saturating_add(fwps) <= self.fwps_max[usize::from(tenant.0)])
    }

    /// Notes that a client of this prefix was refused.
    pub(crate) fn note_refused(&mut self, tenant: TenantIndex, prefix: SourcePrefix) {
        if let Some(place) = self.find(tenant, prefix) {
            self.holders[place as usize].has_refused = true;
        }
    }

    /// Returns whether another client of the prefix whose part this is was refused since one gave back its part.
    pub(crate) fn has_refused(&self, share: &SourceShare) -> bool {
        share.fwps > 0 && self.holders[share.place as usize].has_refused
    }

    /// Counts a client of this prefix that gets an instance of so many FWPs of the tenant, or waits for one.
    pub(crate) fn take(&mut self, tenant: TenantIndex, prefix: SourcePrefix, fwps: u32) -> SourceShare {
        let place = match self.find(tenant, prefix) {
            Some(place) => place,
            None => {
                let Some(place) = self.free.pop_front(&mut self.links) else {
                    debug_assert!(false, "there is a place for each client");
                    return SourceShare::NONE;
                };
                self.holders[place as usize] = Holder { tenant, prefix, fwps: 0, has_refused: false };
                self.by_prefix.insert(self.hash(tenant, prefix), place);
                place
            }
        };
        self.holders[place as usize].fwps += fwps;
        SourceShare { place, fwps }
    }

    /// Counts what a client gives back.
    pub(crate) fn give_back(&mut self, SourceShare { place, fwps }: SourceShare) {
        if fwps == 0 {
            return;
        }
        let holder = &mut self.holders[place as usize];
        holder.fwps -= fwps;
        holder.has_refused = false;
        if holder.fwps == 0 {
            let Holder { tenant, prefix, .. } = *holder;
            self.by_prefix.remove(self.hash(tenant, prefix), place);
            self.free.push_back(&mut self.links, place);
        }
    }

    fn find(&self, tenant: TenantIndex, prefix: SourcePrefix) -> Option<u32> {
        self.by_prefix.find(self.hash(tenant, prefix), |place| {
            let holder = &self.holders[place as usize];
            holder.tenant == tenant && holder.prefix == prefix
        })
    }

    fn hash(&self, tenant: TenantIndex, prefix: SourcePrefix) -> u64 {
        let SourcePrefix { bits, is_ipv6, vlan } = prefix;
        let rest = u64::from(vlan.id) << 48 | u64::from(vlan.inner_id) << 32 | u64::from(is_ipv6) << 16;
        self.hasher.hash_one((bits, rest | u64::from(tenant.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::Ingress;
    use pinion_mma::id::PortIndex;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// FWPs of instances.
    const SHORT: u32 = 1;
    const LONG: u32 = 3;
    const A: TenantIndex = TenantIndex(0);
    const B: TenantIndex = TenantIndex(1);
    const UNTAGGED: Ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

    /// Shares where those of one prefix may have four FWPs.
    fn shares() -> SourceShares {
        let mut shares = SourceShares::new(8);
        for tenant in [A, B] {
            shares.limit(SourceLimit { tenant, fwps_max: 4 });
        }
        shares
    }

    fn flow_v4(source: u32, ingress: Ingress) -> FlowKey {
        FlowKey::ipv4(Ipv4Addr::from_bits(source), SERVER, 17, ingress)
    }

    fn flow_v6(source: u128) -> FlowKey {
        FlowKey::ipv6(Ipv6Addr::from_bits(source), Ipv6Addr::LOCALHOST, 17, UNTAGGED)
    }

    fn per_client(flow: &FlowKey) -> Option<SourcePrefix> {
        SourcePrefix::of(flow, &ClientLabel::Address { address: flow.source(), vlan: flow.ingress().vlan })
    }

    fn per_flow(flow: &FlowKey) -> Option<SourcePrefix> {
        SourcePrefix::of(flow, &ClientLabel::Flow { flow: flow.five_tuple(), vlan: flow.ingress().vlan })
    }

    #[test]
    fn an_ipv6_prefix_is_a_64_and_an_ipv4_one_an_address() {
        let [one, same, other] = [1, 2, 1 << 64].map(|low| per_client(&flow_v6(0xfd00 << 112 | low)).unwrap());
        assert!(one == same && one != other);
        let [one, other] = [1, 2].map(|source| per_flow(&flow_v4(source, UNTAGGED)).unwrap());
        assert_ne!(one, other);
        assert_ne!(per_flow(&flow_v4(0, UNTAGGED)), per_flow(&flow_v6(0)));
        let tagged = Ingress { vlan: Vlan { id: 5, inner_id: 0 }, ..UNTAGGED };
        assert_ne!(per_flow(&flow_v4(1, UNTAGGED)), per_flow(&flow_v4(1, tagged)));
    }

    #[test]
    fn what_can_have_one_instance_only_is_not_counted_but_a_sender_to_many_clients_is() {
        let flow = flow_v4(1, UNTAGGED);
        assert_eq!((per_client(&flow), SourcePrefix::of(&flow, &ClientLabel::All)), (None, None));
        let receiver = ClientLabel::Address { address: SERVER.into(), vlan: Vlan::UNTAGGED };
        assert_eq!(SourcePrefix::of(&flow, &receiver), per_flow(&flow));
    }

    #[test]
    fn clients_of_one_prefix_have_no_more_fwps_of_a_tenant_than_they_may_and_leave_others_alone() {
        let (mut shares, [flooding, other]) =
            (shares(), [1, 2].map(|source| per_flow(&flow_v4(source, UNTAGGED)).unwrap()));
        let mut taken = Vec::new();
        while shares.admits(A, flooding, SHORT) {
            taken.push(shares.take(A, flooding, SHORT));
        }
        assert_eq!(taken.len(), 4);
        assert!(shares.admits(A, other, SHORT) && shares.admits(B, flooding, SHORT));
        shares.give_back(taken.pop().unwrap());
        assert!(shares.admits(A, flooding, SHORT) && !shares.admits(A, flooding, LONG));
        taken.drain(..).for_each(|share| shares.give_back(share));
        assert!(shares.admits(A, flooding, LONG));
    }

    #[test]
    fn what_is_given_back_is_what_was_taken_whatever_the_limit_is_by_then() {
        let (mut shares, prefix) = (shares(), per_flow(&flow_v4(1, UNTAGGED)).unwrap());
        let long = shares.take(A, prefix, LONG);
        shares.limit(SourceLimit { tenant: A, fwps_max: 3 });
        assert!(!shares.admits(A, prefix, LONG));
        shares.give_back(long);
        shares.give_back(SourceShare::NONE);
        let room = (0..).take_while(|_| {
            let admits = shares.admits(A, prefix, SHORT);
            if admits {
                shares.take(A, prefix, SHORT);
            }
            admits
        });
        assert_eq!(room.count(), 3);
    }

    #[test]
    fn one_instance_of_each_chain_is_within_the_limit_whatever_that_is() {
        let (mut shares, prefix) = (shares(), per_flow(&flow_v4(1, UNTAGGED)).unwrap());
        shares.limit(SourceLimit { tenant: A, fwps_max: 2 });
        assert!(shares.admits(A, prefix, LONG));
        let long = shares.take(A, prefix, LONG);
        assert!(!shares.admits(A, prefix, LONG) && !shares.admits(A, prefix, SHORT));
        shares.give_back(long);
        assert!(shares.admits(A, prefix, LONG));
    }

    #[test]
    fn before_the_launcher_has_said_how_many_it_is_a_few() {
        let (mut shares, prefix) = (SourceShares::new(100), per_flow(&flow_v4(1, UNTAGGED)).unwrap());
        let taken = (0..100).take_while(|_| {
            let admits = shares.admits(A, prefix, SHORT);
            if admits {
                shares.take(A, prefix, SHORT);
            }
            admits
        });
        assert_eq!(taken.count() as u32, FWPS_MAX_AT_FIRST);
    }

    #[test]
    fn places_of_prefixes_without_clients_are_used_again() {
        let mut shares = shares();
        for source in 0..100 {
            let prefix = per_flow(&flow_v4(source, UNTAGGED)).unwrap();
            let all: Vec<_> = (0..8).map(|tenant| shares.take(TenantIndex(tenant), prefix, SHORT)).collect();
            assert!(all.iter().all(|share| *share != SourceShare::NONE));
            all.into_iter().for_each(|share| shares.give_back(share));
        }
    }
}
