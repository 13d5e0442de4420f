//! Addresses that came in by a chain: senders and receivers of the packets that its rules matched. Its functions may
//! answer from them and pass packets on that come from them.
//!
//! A hash table of fixed size, in buckets of eight entries of eight bytes: one cache line. An entry is a part of a keyed
//! hash, and by whom it is owned, when it was used last, and whether a packet has left from its address. In a full bucket
//! a new entry replaces one of the tenant that has most there, its own among equals: first those from which nothing has
//! left, then the one unused for longest. So a client that forges addresses costs its own tenant's chains some of theirs,
//! and no other tenant one of an even part. An address whose flows go on is noted again within some seconds.
//!
//! A forged address passes for one that came in if its hash agrees in 32 bits with one of eight: by chance, as nobody
//! sees the keys or a hash.

use std::hash::{BuildHasher, RandomState};

use pinion_mma::id::TenantIndex;

use crate::headers::FlowKey;
use crate::id::{ChainGeneration, ChainIndex};

const WAYS: usize = 8;
/// The unit in which is noted when an entry was used, as a power of two of nanoseconds: about 4 seconds. It wraps around after 39 hours.
const TICK_SHIFT: u32 = 32;
const TICK_MASK: u16 = 0x7fff;
/// A packet has left from the address.
const HAS_LEFT: u16 = 0x8000;

/// The chain that addresses came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) chain: ChainIndex,
    pub(crate) generation: ChainGeneration,
    pub(crate) tenant: TenantIndex,
}

/// An address as a number; those of IPv4 and of IPv6 never agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    high: u64,
    low: u64,
}

impl Address {
    #[inline(always)]
    pub(crate) fn v4(address: u32) -> Self {
        // No IPv6 address of a host: a group's, of the scope that is reserved.
        Self { high: 0xff00 << 48, low: address.into() }
    }

    #[inline(always)]
    pub(crate) fn v6(address: u128) -> Self {
        Self { high: (address >> 64) as u64, low: address as u64 }
    }

    /// Returns the sender's and the receiver's address of a flow.
    #[inline(always)]
    pub(crate) fn of_flow(flow: &FlowKey) -> [Self; 2] {
        [flow.source_bits(), flow.destination_bits()]
            .map(|bits| if flow.is_ipv6() { Self::v6(bits) } else { Self::v4(bits as u32) })
    }
}

/// An entry: 32 bits of the hash, 16 of the tenant, [`HAS_LEFT`] and 15 bits of the time. Zero if it is free.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    const FREE: Self = Self(0);

    fn new(tag: u32, tenant: TenantIndex, used: u16) -> Self {
        Self(u64::from(tag) << 32 | u64::from(tenant.0) << 16 | u64::from(used))
    }

    #[inline(always)]
    fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn tenant(self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn age(self, tick: u16) -> u16 {
        tick.wrapping_sub(self.0 as u16) & TICK_MASK
    }

    fn has_left(self) -> u16 {
        self.0 as u16 & HAS_LEFT
    }
}

/// See the module.
pub(crate) struct Origins {
    keys: [u64; 4],
    buckets: Box<[[Entry; WAYS]]>,
    /// What was noted last: most clients of a chain send to the same address.
    latest: Option<(Owner, Address)>,
}

impl Origins {
    /// Makes a table for at least so many addresses.
    pub(crate) fn new(addresses: usize) -> Self {
        let random = RandomState::new();
        let buckets = addresses.div_ceil(WAYS).next_power_of_two();
        Self {
            keys: std::array::from_fn(|number| random.hash_one(number) | 1),
            buckets: vec![[Entry::FREE; WAYS]; buckets].into(),
            latest: None,
        }
    }

    /// Notes that a flow came in by a chain.
    #[inline(always)]
    pub(crate) fn note_flow(&mut self, owner: Owner, flow: &FlowKey, now_ns: u64) {
        let [source, destination] = Address::of_flow(flow);
        self.note(owner, source, now_ns);
        if self.latest != Some((owner, destination)) {
            self.note(owner, destination, now_ns);
            self.latest = Some((owner, destination));
        }
    }

    /// Notes that a sender's packets came in by a chain.
    #[inline(never)]
    pub(crate) fn note_source(&mut self, owner: Owner, flow: &FlowKey, now_ns: u64) {
        let [source, _] = Address::of_flow(flow);
        self.note(owner, source, now_ns);
    }

    #[inline(always)]
    fn note(&mut self, owner: Owner, address: Address, now_ns: u64) {
        let (bucket, tag) = self.place(owner, address);
        let tick = tick_at(now_ns);
        let bucket = &mut self.buckets[bucket];
        match bucket.iter().position(|entry| entry.tag() == tag) {
            Some(at) => bucket[at] = Entry::new(tag, owner.tenant, tick | bucket[at].has_left()),
            // What is replaced may be what was noted last.
            None if insert(bucket, Entry::new(tag, owner.tenant, tick), tick) => self.latest = None,
            None => {}
        }
    }

    /// Returns whether an address came in by a chain, as far as it is known.
    #[inline]
    pub(crate) fn has(&mut self, owner: Owner, address: Address, now_ns: u64) -> bool {
        let (bucket, tag) = self.place(owner, address);
        let entry = self.buckets[bucket].iter_mut().find(|entry| entry.tag() == tag);
        entry.map(|entry| *entry = Entry::new(tag, owner.tenant, tick_at(now_ns) | HAS_LEFT)).is_some()
    }

    /// Forgets which address was noted last. To be called when it may have been replaced.
    pub(crate) fn forget_latest(&mut self) {
        self.latest = None;
    }

    #[inline(always)]
    fn place(&self, owner: Owner, address: Address) -> (usize, u32) {
        let [a, b, c, d] = self.keys;
        let who = u64::from(owner.chain.0) << 32 | u64::from(owner.generation.0);
        let hash = folded(folded(address.high ^ a, address.low ^ b) ^ who, c);
        let tag = (folded(hash, d) >> 32) as u32 | 1;
        (hash as usize & (self.buckets.len() - 1), tag)
    }
}

/// Returns both halves of a product, combined.
#[inline(always)]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn tick_at(now_ns: u64) -> u16 {
    (now_ns >> TICK_SHIFT) as u16 & TICK_MASK
}

/// Returns whether another entry was replaced.
#[inline(never)]
fn insert(bucket: &mut [Entry; WAYS], new: Entry, tick: u16) -> bool {
    if let Some(free) = bucket.iter_mut().find(|entry| **entry == Entry::FREE) {
        *free = new;
        return false;
    }
    let of_tenant = |tenant| bucket.iter().filter(|entry| entry.tenant() == tenant).count();
    let loss = |entry: &Entry| {
        (of_tenant(entry.tenant()), entry.tenant() == new.tenant(), entry.has_left() == 0, entry.age(tick))
    };
    let at = (0..WAYS).max_by_key(|at| loss(&bucket[*at])).unwrap_or(0);
    bucket[at] = new;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::{Ingress, Vlan};
    use pinion_mma::id::PortIndex;

    fn owner(chain: u32, tenant: u16) -> Owner {
        Owner { chain: ChainIndex(chain), generation: ChainGeneration(7), tenant: TenantIndex(tenant) }
    }

    fn flow(from: u32, to: u32) -> FlowKey {
        let ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };
        FlowKey::ipv4(from.into(), to.into(), 17, ingress)
    }

    #[test]
    fn both_addresses_of_a_flow_came_in_by_its_chain_and_by_no_other() {
        let mut origins = Origins::new(1024);
        origins.note_flow(owner(1, 1), &flow(1000, 2), 0);
        let has = |origins: &mut Origins, owner, address| origins.has(owner, Address::v4(address), 0);
        assert!(has(&mut origins, owner(1, 1), 1000) && has(&mut origins, owner(1, 1), 2));
        assert!(!has(&mut origins, owner(1, 1), 1001));
        assert!(!has(&mut origins, owner(2, 1), 1000));
        let reused = Owner { generation: ChainGeneration(8), ..owner(1, 1) };
        assert!(!has(&mut origins, reused, 1000), "another chain with the same index");
    }

    #[test]
    fn addresses_of_both_versions_do_not_agree() {
        let mut origins = Origins::new(1024);
        origins.note_flow(owner(1, 1), &flow(1000, 2), 0);
        assert!(!origins.has(owner(1, 1), Address::v6(1000), 0));
        let embedded = [0_u128, 1 << 63, 0xffff << 32, 0x0064_ff9b << 96].map(|high| Address::v6(high | 1000));
        assert!(!embedded.into_iter().any(|address| origins.has(owner(1, 1), address, 0)));
    }

    #[test]
    fn an_address_that_packets_leave_from_stays_in_a_flood_of_others_of_the_same_instant() {
        let mut origins = Origins::new(1024);
        let (ours, server) = (owner(1, 1), Address::v4(5000));
        origins.note_flow(ours, &flow(1, 5000), 0);
        assert!(origins.has(ours, server, 0));
        for number in 0..1_000_000 {
            origins.note_flow(ours, &flow(number, 5000), 0);
        }
        assert!(origins.has(ours, server, 0));
    }

    #[test]
    fn an_address_that_was_replaced_is_noted_again_with_the_next_flow_to_it() {
        let mut origins = Origins::new(8);
        let (ours, server) = (owner(1, 1), Address::v4(5000));
        origins.note_flow(ours, &flow(1, 5000), 0);
        (2..100).for_each(|number| origins.note(ours, Address::v4(number), u64::from(number) << TICK_SHIFT));
        assert!(!origins.has(ours, server, 0));
        origins.note_flow(ours, &flow(100, 5000), 0);
        assert!(origins.has(ours, server, 0));
    }

    #[test]
    fn a_flood_of_addresses_costs_other_tenants_none() {
        let mut origins = Origins::new(1024);
        let theirs = owner(1, 1);
        (0..20).for_each(|number| origins.note_flow(theirs, &flow(number, 5000), 0));
        (0..1_000_000).for_each(|number| origins.note_flow(owner(2, 2), &flow(number, 5000), 1 << 40));
        // Of a bucket of eight, the flood has most, unless the others have as many there.
        let kept = (0..20).filter(|number| origins.has(theirs, Address::v4(*number), 1 << 40)).count();
        assert_eq!(kept, 20);
    }

    #[test]
    fn of_the_own_addresses_those_unused_for_longest_go_first() {
        let mut origins = Origins::new(8);
        let ours = owner(1, 1);
        let tick = |number: u64| number << TICK_SHIFT;
        (0..8).for_each(|number| origins.note(ours, Address::v4(number), tick(number.into())));
        assert!(origins.has(ours, Address::v4(0), tick(8)), "it is used");
        origins.note(ours, Address::v4(100), tick(9));
        let kept: Vec<u32> = (0..8).filter(|number| origins.has(ours, Address::v4(*number), tick(9))).collect();
        assert_eq!(kept, [0, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_forged_address_does_not_pass_by_chance() {
        let mut origins = Origins::new(1 << 16);
        (0..50_000).for_each(|number| origins.note_flow(owner(1, 1), &flow(number, 5), 0));
        let passed = (1 << 20..1 << 21).filter(|number| origins.has(owner(1, 1), Address::v4(*number), 0)).count();
        assert_eq!(passed, 0);
    }
}
