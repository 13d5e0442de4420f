//! Prints what a frame costs. Meaningful only if run alone on an idle machine:
//! `cargo test --release -p pinion-gateway --lib timing -- --ignored --nocapture --test-threads 1`

use super::*;
use crate::headers::{Ingress, Vlan};
use crate::id::{ChainGeneration, InstanceId};
use crate::rules::{ChainSettings, Match, Policy, Redelivery, Rule};
use crate::test_frames::*;
use pinion_mma::id::TenantIndex;
use pinion_mma::ways::direction::PortSet;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const BURST: usize = 32;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: PortIndex = PortIndex(0);

fn rules(count: u32) -> RuleSet {
    let chain = ChainIndex(0);
    let fallback = Rule { matches: Match::default(), policy: Policy::Shared, chain: Some(chain), priority: 0 };
    let other = |number: u32| {
        let destination = std::net::IpAddr::V4(Ipv4Addr::from_bits(0x0b00_0000 + number));
        let matches = Match { destination: Some(destination.into()), ..Match::default() };
        Rule { matches, priority: 1, ..fallback.clone() }
    };
    let settings = ChainSettings {
        chain,
        generation: ChainGeneration::default(),
        idle_timeout_ns: 1 << 40,
        back: PortSet::EMPTY,
        tenant: TenantIndex(0),
        weight: 1,
        fwps: 1,
        redelivery: Redelivery::Never,
        may_send: crate::leaving::MaySend::default(),
    };
    RuleSet::new((1..count).map(other).chain([fallback.clone()]).collect(), &[settings]).unwrap()
}

fn assigner(flows_max: usize, rule_count: u32) -> Assigner {
    let (events, _) = crossbeam_channel::bounded(64);
    let mut assigner = Assigner::new(flows_max, 16, Outbox::new(events, 16));
    assigner.set_rules(Arc::new(rules(rule_count)));
    assert!(assigner.add_ready(ChainIndex(0), InstanceId(1), FwpId { index: 1, generation: 0 }.into()));
    assigner
}

/// A frame of 64 bytes from the client of this number.
fn frame(client: u32) -> [u8; 64] {
    let packet = ipv4(Ipv4Addr::from_bits(0x0a01_0000 + client), SERVER, UDP, &udp(client as u16, 53, &[0; 22]));
    to_station(&packet).try_into().unwrap()
}

fn per_frame(frames: usize, work: impl FnMut()) -> f64 {
    let mut work = work;
    let best = (0..(20_000_000 / frames).clamp(5, 200)).map(|_| {
        let started = Instant::now();
        work();
        started.elapsed()
    });
    best.min().unwrap_or(Duration::ZERO).as_nanos() as f64 / frames as f64
}

fn take_in(assigner: &mut Assigner, frames: &[[u8; 64]], now_ns: u64) -> u32 {
    let mut assigned = 0;
    let mut reads = [Read::NOTHING; BURST];
    for burst in frames.chunks(BURST) {
        let reads = &mut reads[..burst.len()];
        for (frame, read) in burst.iter().zip(&mut *reads) {
            assigner.read(frame, PORT, EthernetAddress(STATION), read);
        }
        reads.iter_mut().for_each(|read| assigner.fetch(read));
        for read in reads {
            assigned += u32::from(matches!(assigner.assign(read, &[], now_ns), Some(Assignment::To(_))));
        }
    }
    assigned
}

#[test]
#[ignore = "prints times; for an idle machine"]
fn timing_of_hits() {
    for flows in [1_u32, 256, 4096, 65_536, 1_000_000] {
        let mut assigner = assigner(flows as usize, 10);
        let order = (0..flows).map(|number| u64::from(number) * 7_368_787 % u64::from(flows));
        let frames: Vec<_> =
            order.map(|client| frame(client as u32)).cycle().take(flows.max(65_536) as usize).collect();
        take_in(&mut assigner, &frames, 0);
        let parse = per_frame(frames.len(), || {
            for frame in &frames {
                let _ = black_box(plain::read(black_box(frame), PORT, EthernetAddress(STATION)));
            }
        });
        let mut read = Read::NOTHING;
        let with_hash = per_frame(frames.len(), || {
            for frame in &frames {
                assigner.read(black_box(frame), PORT, EthernetAddress(STATION), black_box(&mut read));
            }
        });
        let one_by_one = per_frame(frames.len(), || {
            for frame in &frames {
                assigner.read(frame, PORT, EthernetAddress(STATION), &mut read);
                black_box(assigner.assign(&read, &[], 0));
            }
        });
        let in_bursts = per_frame(frames.len(), || {
            assert_eq!(take_in(&mut assigner, &frames, 0), frames.len() as u32);
        });
        println!(
            "{flows:>9} flows: parse {parse:.1} ns, with hash {with_hash:.1} ns; parse and hit, one by one {one_by_one:.1} ns, \
             in bursts of {BURST} {in_bursts:.1} ns"
        );
    }
}

#[test]
#[ignore = "prints times; for an idle machine"]
fn timing_of_misses() {
    for rule_count in [10, 10_000] {
        let mut assigner = assigner(64, rule_count);
        let frames: Vec<_> = (0..65_536).map(frame).collect();
        let miss = per_frame(frames.len(), || _ = take_in(&mut assigner, &frames, 0));
        let started = Instant::now();
        drop(rules(rule_count));
        println!("{rule_count:>6} rules: a miss takes {miss:.0} ns; made in {:.1?}", started.elapsed());
    }
    let ingress = Ingress { port: PORT, vlan: Vlan::UNTAGGED };
    let key = FlowKey::ipv4(SERVER, SERVER, UDP, ingress);
    let assigner = assigner(64, 10);
    let hash = per_frame(100_000, || (0..100_000).for_each(|_| _ = black_box(assigner.cache.hash(black_box(&key)))));
    println!("a hash takes {hash:.1} ns");
}
