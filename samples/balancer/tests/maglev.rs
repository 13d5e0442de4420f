//! The lookup table: the properties that the paper claims, and a comparison with the paper's algorithm.

#![cfg(not(target_family = "wasm"))]

use balancer::maglev::{Maglev, Order, Part};
use proptest::prelude::*;

const PLACES: u32 = 65_537;

fn part(number: u16, weight: u32, places: u32) -> Part {
    Part { backend: number, order: Order::of(&format!("backend-{number}"), places), weight }
}

fn table(weights: &[u32], places: u32) -> Maglev {
    let parts: Vec<_> = (0..).zip(weights).map(|(number, weight)| part(number, *weight, places)).collect();
    let mut table = Maglev::new(places);
    table.fill(&parts);
    table
}

fn places_of(table: &Maglev, backend: u16) -> usize {
    table.places().iter().filter(|place| **place == backend).count()
}

/// The paper's pseudocode 1: all permutations are written out, and a turn takes the next free entry.
fn as_in_the_paper(count: usize, places: u32) -> Vec<u16> {
    let permutation = |number: usize| -> Vec<usize> {
        let Order { offset, skip } = Order::of(&format!("backend-{number}"), places);
        (0..u64::from(places))
            .map(|j| ((u64::from(offset) + j * u64::from(skip)) % u64::from(places)) as usize)
            .collect()
    };
    let permutations: Vec<_> = (0..count).map(permutation).collect();
    let mut next = vec![0; count];
    let mut entry: Vec<Option<u16>> = vec![None; places as usize];
    let mut filled = 0;
    loop {
        for number in 0..count {
            while entry[permutations[number][next[number]]].is_some() {
                next[number] += 1;
            }
            entry[permutations[number][next[number]]] = Some(number as u16);
            filled += 1;
            if filled == places {
                return entry.into_iter().flatten().collect();
            }
        }
    }
}

#[test]
fn backends_of_one_weight_have_places_that_differ_by_one_at_most() {
    for count in [1, 2, 3, 10, 100] {
        let table = table(&vec![1; count], PLACES);
        let places: Vec<_> = (0..count as u16).map(|backend| places_of(&table, backend)).collect();
        let (min, max) = (*places.iter().min().unwrap(), *places.iter().max().unwrap());
        assert!(max - min <= 1, "{count} backends have {min} to {max}");
        assert_eq!(places.iter().sum::<usize>(), PLACES as usize);
    }
}

#[test]
fn others_have_places_by_their_weight() {
    let table = table(&[1, 2, 0, 7], PLACES);
    for (backend, share) in [(0, 0.1), (1, 0.2), (2, 0.0), (3, 0.7)] {
        let places = places_of(&table, backend) as f64;
        assert!((places - share * f64::from(PLACES)).abs() < 0.01 * f64::from(PLACES), "{backend} has {places}");
    }
}

#[test]
fn flows_of_any_hash_are_spread_within_a_few_per_cent() {
    let table = table(&[1; 10], PLACES);
    let mut flows = [0_u32; 10];
    for number in 0..100_000_u64 {
        let hash = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        flows[usize::from(table.backend(hash).unwrap())] += 1;
    }
    assert!(flows.iter().all(|count| (9_500..=10_500).contains(count)), "{flows:?}");
}

#[test]
fn when_a_backend_goes_few_places_of_others_change_hands() {
    for count in [10, 100] {
        let weights = vec![1; count];
        let before = table(&weights, PLACES);
        for gone in [0, count / 2, count - 1] {
            let mut weights = weights.clone();
            weights[gone] = 0;
            let after = table(&weights, PLACES);
            let pairs = before.places().iter().zip(after.places());
            let moved = pairs.filter(|(old, new)| **old != gone as u16 && old != new).count();
            // The paper's figure 12: about two per cent for a table of this size.
            assert!(moved * 100 < 4 * PLACES as usize, "{moved} of {PLACES} without {gone} of {count}");
            assert_eq!(places_of(&after, gone as u16), 0);
        }
    }
}

#[test]
fn a_backend_that_comes_back_has_the_places_it_had() {
    let mut table = table(&[1; 7], PLACES);
    let before = table.clone();
    let parts: Vec<_> = (0..7).map(|number| part(number, u32::from(number != 3), PLACES)).collect();
    table.fill(&parts);
    assert_ne!(table.places(), before.places());
    table.fill(&(0..7).map(|number| part(number, 1, PLACES)).collect::<Vec<_>>());
    assert_eq!(table.places(), before.places());
}

#[test]
fn without_backends_no_hash_has_a_backend() {
    for weights in [&[][..], &[0, 0]] {
        assert_eq!(table(weights, 101).backend(12345), None);
    }
}

proptest! {
    #[test]
    fn a_table_is_the_papers(count in 1..9_usize, places in prop_oneof![Just(101_u32), Just(997), Just(4099)]) {
        let table = table(&vec![1; count], places);
        prop_assert_eq!(table.places(), as_in_the_paper(count, places));
    }

    #[test]
    fn every_hash_has_a_backend_with_a_weight(weights in proptest::collection::vec(0..5_u32, 1..9), hash: u64) {
        let backend = table(&weights, 997).backend(hash);
        prop_assert_eq!(backend.is_some(), weights.iter().any(|weight| *weight > 0));
        prop_assert!(backend.is_none_or(|backend| weights[usize::from(backend)] > 0));
    }
}
