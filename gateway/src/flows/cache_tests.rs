//! Tests of [`super`].

use super::*;
use pinion_mma::id::PortIndex;
use std::net::Ipv4Addr;

const INGRESS: Ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };
const SECOND_NS: u64 = 1_000_000_000;

fn flow(number: u32) -> FlowKey {
    FlowKey::ipv4(Ipv4Addr::from_bits(number), Ipv4Addr::LOCALHOST, 17, INGRESS).with_ports(1, 2)
}

fn slot(index: u32) -> Verdict {
    Verdict::Instance(SlotRef { index, generation: 1 })
}

/// Caches that the flow's instance is the one with the flow's number.
fn insert(cache: &mut FlowCache, number: u32, now_ns: u64) {
    let hash = cache.hash(&flow(number));
    cache.insert(hash, &flow(number), slot(number), 0, now_ns);
}

/// Looks the flow up with and without a prefetched entry, and returns its verdict.
fn lookup(cache: &mut FlowCache, hash: FlowHash, flow: &FlowKey, rules_version: u32, now_ns: u64) -> Option<Verdict> {
    let mut lead = cache.lead(hash);
    let verdict = cache.lookup(lead, flow, rules_version, now_ns).map(|found| found.verdict).ok();
    cache.go_on(&mut lead);
    assert_eq!(cache.lookup(lead, flow, rules_version, now_ns).map(|found| found.verdict).ok(), verdict);
    verdict
}

/// Returns whether the flow is cached, and checks its verdict.
fn is_known(cache: &mut FlowCache, number: u32, now_ns: u64) -> bool {
    let hash = cache.hash(&flow(number));
    match lookup(cache, hash, &flow(number), 0, now_ns) {
        Some(verdict) => {
            assert_eq!(verdict, slot(number));
            true
        }
        None => false,
    }
}

#[test]
fn a_flow_is_found_under_its_own_rules_only() {
    let mut cache = FlowCache::new(64);
    let hash = cache.hash(&flow(1));
    cache.insert(hash, &flow(1), slot(3), 7, 0);
    assert_eq!(lookup(&mut cache, hash, &flow(1), 7, 0), Some(slot(3)));
    assert_eq!(lookup(&mut cache, hash, &flow(1), 8, 0), None);
    assert_eq!(lookup(&mut cache, hash, &flow(2), 7, 0), None, "another flow with the same hash");
    cache.insert(hash, &flow(1), Verdict::Dropped(DropReason::NoRule), 8, 0);
    assert_eq!(
        (lookup(&mut cache, hash, &flow(1), 8, 0), cache.used()),
        (Some(Verdict::Dropped(DropReason::NoRule)), 1)
    );
}

#[test]
fn a_flow_that_goes_on_begins_a_period_every_four_seconds() {
    let mut cache = FlowCache::new(64);
    insert(&mut cache, 1, 0);
    let lead = cache.lead(cache.hash(&flow(1)));
    let mut begun = Vec::new();
    for tenth in 0..100 {
        let found = cache.lookup(lead, &flow(1), 0, tenth * SECOND_NS / 10).unwrap();
        begun.extend(found.begins_period.then_some(tenth));
    }
    assert_eq!(begun, [43, 86]);
    assert!(cache.lookup(lead, &flow(1), 0, 60 * SECOND_NS).unwrap().begins_period);
}

#[test]
fn a_stale_lead_finds_no_other_flows_entry() {
    let mut cache = FlowCache::new(WAYS);
    insert(&mut cache, 0, 0);
    let mut lead = cache.lead(cache.hash(&flow(0)));
    cache.go_on(&mut lead);
    (1..1000).for_each(|number| insert(&mut cache, number, SECOND_NS));
    assert_eq!(cache.lookup(lead, &flow(0), 0, SECOND_NS), Err(Miss::Absent), "the one unseen for longest was to go");
    insert(&mut cache, 0, SECOND_NS);
    assert_eq!(cache.lookup(lead, &flow(0), 0, SECOND_NS).map(|found| found.verdict), Ok(slot(0)));
    cache.sweep(cache.buckets(), 1000 * SECOND_NS, 60 * SECOND_NS);
    assert_eq!(cache.lookup(lead, &flow(0), 0, 1000 * SECOND_NS), Err(Miss::Absent));
}

#[test]
fn flows_that_differ_in_one_field_are_different_flows() {
    let cache = FlowCache::new(64);
    let [from, to, other] = [1, 2, 9].map(Ipv4Addr::from_bits);
    let [from_v6, to_v6] = [from, to].map(|address| address.to_bits()).map(|bits| u128::from(bits).into());
    let elsewhere = |port, id, inner_id| Ingress { port: PortIndex(port), vlan: Vlan { id, inner_id } };
    let flows = [
        FlowKey::ipv4(from, to, 17, INGRESS).with_ports(1, 2),
        FlowKey::ipv4(other, to, 17, INGRESS).with_ports(1, 2),
        FlowKey::ipv4(from, other, 17, INGRESS).with_ports(1, 2),
        FlowKey::ipv4(from, to, 6, INGRESS).with_ports(1, 2),
        FlowKey::ipv4(from, to, 17, INGRESS).with_ports(2, 2),
        FlowKey::ipv4(from, to, 17, INGRESS).with_ports(1, 1),
        FlowKey::ipv4(from, to, 17, elsewhere(1, 0, 0)).with_ports(1, 2),
        FlowKey::ipv4(from, to, 17, elsewhere(0, 1, 0)).with_ports(1, 2),
        FlowKey::ipv4(from, to, 17, elsewhere(0, 0, 1)).with_ports(1, 2),
        FlowKey::ipv6(from_v6, to_v6, 17, INGRESS).with_ports(1, 2),
        FlowKey::ipv4(from, to, 1, INGRESS),
        FlowKey::ipv4(from, to, 1, INGRESS).with_icmp_type(0),
        FlowKey::ipv4(from, to, 1, INGRESS).with_icmp_type(8),
    ];
    for (place, one) in flows.iter().enumerate() {
        for other in &flows[..place] {
            assert_ne!(one, other);
            assert_ne!((cache.hash(one), one), (cache.hash(other), other));
        }
    }
}

#[test]
fn the_cache_takes_no_more_memory_than_documented_and_holds_as_many_flows_as_it_was_made_for() {
    assert_eq!((size_of::<Bucket>(), size_of::<Entry>()), (32, 64));
    const FLOWS: u32 = 100_000;
    let mut cache = FlowCache::new(FLOWS as usize);
    assert!(cache.bytes() <= FLOWS as usize * BYTES_PER_FLOW_MAX, "{}", cache.bytes());
    (0..FLOWS).for_each(|number| insert(&mut cache, number, 0));
    let known = (0..FLOWS).filter(|&number| is_known(&mut cache, number, 0)).count();
    assert!(known >= FLOWS as usize * 999 / 1000, "{known} of {FLOWS}");
    assert_eq!(cache.used(), known);
}

#[test]
fn a_flood_of_ten_times_its_size_evicts_no_established_flow_and_takes_no_memory() {
    const FLOWS: u32 = 20_000;
    const ESTABLISHED: u32 = FLOWS / 2;
    let mut cache = FlowCache::new(FLOWS as usize);
    let mut now_ns = 0;
    for number in 0..ESTABLISHED {
        insert(&mut cache, number, now_ns);
        assert!(is_known(&mut cache, number, now_ns));
    }
    let mut lost = 0;
    for newcomer in 0..10 * FLOWS {
        // A million a second.
        now_ns += 1_000;
        insert(&mut cache, ESTABLISHED + newcomer, now_ns);
        let established = newcomer % ESTABLISHED;
        if !is_known(&mut cache, established, now_ns) {
            lost += 1;
            insert(&mut cache, established, now_ns);
        }
    }
    assert_eq!(lost, 0);
    assert!((0..ESTABLISHED).all(|number| is_known(&mut cache, number, now_ns)));
    assert!(cache.used() <= cache.buckets() * WAYS);
}

#[test]
fn flows_without_a_rule_are_evicted_before_flows_with_one() {
    let mut cache = FlowCache::new(WAYS);
    let entries = cache.buckets() * WAYS;
    for number in 0..10_000 {
        let hash = cache.hash(&flow(number));
        cache.insert(hash, &flow(number), Verdict::Dropped(DropReason::NoRule), 0, 0);
        assert_eq!(lookup(&mut cache, hash, &flow(number), 0, 0), Some(Verdict::Dropped(DropReason::NoRule)));
    }
    assert_eq!(cache.used(), entries);
    for number in 0..WAYS as u32 {
        insert(&mut cache, number, 0);
        assert!(is_known(&mut cache, number, 0));
    }
    assert!((0..WAYS as u32).all(|number| is_known(&mut cache, number, 0)));
}

#[test]
fn flows_unseen_for_a_second_make_room_longest_unseen_first() {
    let mut cache = FlowCache::new(4 * WAYS);
    let entries = (cache.buckets() * WAYS) as u32;
    let mut established: Vec<u32> = Vec::new();
    let mut number = 0;
    while established.len() < entries as usize {
        insert(&mut cache, number, 0);
        if is_known(&mut cache, number, 0) {
            established.push(number);
        }
        number += 1;
        assert!(number < 100_000, "{} of {entries}", established.len());
    }
    insert(&mut cache, number, SECOND_NS / 2);
    assert!(!is_known(&mut cache, number, SECOND_NS / 2), "all others are established");
    let seen_lately: Vec<u32> = established.split_off(entries as usize / 2);
    assert!(seen_lately.iter().all(|&number| is_known(&mut cache, number, 2 * SECOND_NS)));
    let newcomers = number..number + entries;
    newcomers.clone().for_each(|number| insert(&mut cache, number, 2 * SECOND_NS));
    assert!(seen_lately.iter().all(|&number| is_known(&mut cache, number, 2 * SECOND_NS)));
    assert!(newcomers.filter(|&number| is_known(&mut cache, number, 2 * SECOND_NS)).count() > 0);
}

#[test]
fn a_whole_sweep_forgets_exactly_the_flows_unseen_for_too_long() {
    let mut cache = FlowCache::new(4096);
    for number in 0..1000 {
        insert(&mut cache, number, u64::from(number / 500) * 100 * SECOND_NS);
    }
    assert_eq!(cache.used(), 1000);
    cache.sweep(cache.buckets(), 100 * SECOND_NS, 60 * SECOND_NS);
    assert_eq!(cache.used(), 500);
    assert!((0..500).all(|number| !is_known(&mut cache, number, 100 * SECOND_NS)));
    assert!((500..1000).all(|number| is_known(&mut cache, number, 100 * SECOND_NS)));
    cache.sweep(cache.buckets(), 1000 * SECOND_NS, 60 * SECOND_NS);
    assert_eq!(cache.used(), 0);
}
