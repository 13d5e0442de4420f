//! The forwarding table compared with a scan of all prefixes.

#![cfg(not(target_family = "wasm"))]

use lpm_router::table::{Address, Route, Table};
use proptest::prelude::*;

/// Number of prefixes of the full table.
const MANY: usize = 100_000;
const MIB: usize = 1 << 20;

fn mask_v4(len: u8) -> u32 {
    if len == 0 { 0 } else { u32::MAX << (32 - len) }
}

fn mask_v6(len: u8) -> u128 {
    if len == 0 { 0 } else { u128::MAX << (128 - len) }
}

fn scan_v4(routes: &[Route<u32>], address: u32) -> Option<u16> {
    let covering = routes.iter().filter(|route| address & mask_v4(route.len) == route.address);
    // The last of the longest ones, as the later of two routes for a prefix is used.
    covering.max_by_key(|route| route.len).map(|route| route.hop)
}

fn scan_v6(routes: &[Route<u128>], address: u128) -> Option<u16> {
    let covering = routes.iter().filter(|route| address & mask_v6(route.len) == route.address);
    covering.max_by_key(|route| route.len).map(|route| route.hop)
}

/// Pseudo-random numbers that are the same in each run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn wide(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}

/// Draws prefix lengths distributed about like the Internet's.
fn full_table_v4(numbers: &mut Numbers) -> Vec<Route<u32>> {
    let route = |_| {
        let len = match numbers.next() % 100 {
            0..60 => 24,
            60..90 => 16 + (numbers.next() % 8) as u8,
            90..98 => 8 + (numbers.next() % 8) as u8,
            _ => 25 + (numbers.next() % 8) as u8,
        };
        Route { address: numbers.next() as u32 & mask_v4(len), len, hop: (numbers.next() % 64) as u16 }
    };
    (0..MANY).map(route).collect()
}

fn full_table_v6(numbers: &mut Numbers) -> Vec<Route<u128>> {
    let route = |_| {
        let len = [32, 36, 40, 44, 48, 48, 48, 64][(numbers.next() % 8) as usize];
        let address = (0b001 << 125 | numbers.wide() >> 3) & mask_v6(len);
        Route { address, len, hop: (numbers.next() % 64) as u16 }
    };
    (0..MANY).map(route).collect()
}

#[test]
fn a_hundred_thousand_prefixes_lead_where_a_scan_says_and_fit_into_8_mib() {
    let mut numbers = Numbers(1);
    let (v4, v6) = (full_table_v4(&mut numbers), full_table_v6(&mut numbers));
    let (table_v4, table_v6) = (Table::new(v4.clone()), Table::new(v6.clone()));
    assert!(table_v4.bytes() + table_v6.bytes() < 8 * MIB, "{} and {}", table_v4.bytes(), table_v6.bytes());
    for number in 0..400 {
        // Every other address is in a prefix; few would be by chance.
        let inside = v4[numbers.next() as usize % MANY];
        let address = numbers.next() as u32;
        let address = if number % 2 == 0 { address } else { inside.address | address & !mask_v4(inside.len) };
        assert_eq!(table_v4.lookup(address), scan_v4(&v4, address), "{address:#x}");

        let inside = v6[numbers.next() as usize % MANY];
        let address = numbers.wide();
        let address = if number % 2 == 0 { address } else { inside.address | address & !mask_v6(inside.len) };
        assert_eq!(table_v6.lookup(address), scan_v6(&v6, address), "{address:#x}");
    }
}

#[test]
fn a_table_of_few_prefixes_takes_few_bytes() {
    let table = Table::new(vec![Route { address: 0x0a00_0000_u32, len: 8, hop: 0 }]);
    assert!(table.bytes() < 64, "{}", table.bytes());
    assert_eq!([0x0a00_0000, 0x0aff_ffff].map(|address| table.lookup(address)), [Some(0); 2]);
    assert_eq!([0, 0x09ff_ffff, 0x0b00_0000, u32::MAX].map(|address| table.lookup(address)), [None; 4]);
}

#[test]
fn an_empty_table_has_no_hop_for_any_address() {
    assert_eq!(Table::new(vec![]).lookup(0_u32), None);
    assert_eq!(Table::new(vec![]).lookup(u128::MAX), None);
}

#[test]
fn a_default_route_and_a_host_route_are_prefixes_as_others_are() {
    let route = |address, len, hop| Route::<u128> { address, len, hop };
    let table = Table::new(vec![route(0, 0, 1), route(u128::MAX, 128, 2), route(0, 128, 3)]);
    assert_eq!([0, 1, u128::MAX - 1, u128::MAX].map(|address| table.lookup(address)), [3, 1, 1, 2].map(Some));
}

/// Draws prefixes that nest and touch: they differ in few top bits and few last ones.
fn narrow_v4() -> impl Strategy<Value = Route<u32>> {
    (any::<u32>(), 0..=32_u8, 0..4_u16).prop_map(|(bits, len, hop)| {
        let address = bits & 0xc000_8007 & mask_v4(len);
        Route { address, len, hop }
    })
}

fn narrow_v6() -> impl Strategy<Value = Route<u128>> {
    (any::<u128>(), 0..=128_u8, 0..4_u16).prop_map(|(bits, len, hop)| {
        let address = bits & (0xc000_8007 << 96 | 0x8000_0000_0000_0003) & mask_v6(len);
        Route { address, len, hop }
    })
}

/// Returns the addresses at which the next hop may change, and their neighbours.
fn edges<A: Address>(routes: &[Route<A>], before: impl Fn(A) -> A) -> Vec<A> {
    let edge = |route: &Route<A>| {
        let last = route.address.last_of(route.len.into());
        [route.address, last, before(route.address), last.next().unwrap_or(A::FIRST)]
    };
    routes.iter().flat_map(edge).collect()
}

proptest! {
    #[test]
    fn any_table_of_ipv4_leads_where_a_scan_says(
        routes in proptest::collection::vec(narrow_v4(), 0..40), others in proptest::collection::vec(any::<u32>(), 10),
    ) {
        let table = Table::new(routes.clone());
        for address in edges(&routes, |address| address.wrapping_sub(1)).into_iter().chain(others) {
            prop_assert_eq!(table.lookup(address), scan_v4(&routes, address), "{:#x}", address);
        }
    }

    #[test]
    fn any_table_of_ipv6_leads_where_a_scan_says(
        routes in proptest::collection::vec(narrow_v6(), 0..40), others in proptest::collection::vec(any::<u128>(), 10),
    ) {
        let table = Table::new(routes.clone());
        for address in edges(&routes, |address| address.wrapping_sub(1)).into_iter().chain(others) {
            prop_assert_eq!(table.lookup(address), scan_v6(&routes, address), "{:#x}", address);
        }
    }
}
