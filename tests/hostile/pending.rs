//! Frames that wait for an instance.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::strangers;
use pinion_tests::until::{SOON, until};

use crate::clients::{assert_each_is_answered, pings_of_new_clients};

/// The tenant that has no memory for an instance.
const GREEDY: &str = "mallory";
/// The address of its functions.
const THEIRS: &str = "10.77.0.66";
/// Of these buffers an eighth may wait for instances.
const BUFFERS: u64 = 1024;
/// What each of two tenants is guaranteed of that.
const GUARANTEED: u64 = BUFFERS / 8 / 4;

/// How many frames of a tenant's chain were dropped since there was no place to wait.
fn dropped(bed: &Bed, tenant: &str) -> u64 {
    let chain = bed.node.cli().chain_status(tenant, "echo");
    let drops = chain["drops"].as_array().cloned().unwrap_or_default();
    drops.iter().filter(|drop| drop["reason"] == "pending-full").filter_map(|drop| drop["count"].as_u64()).sum()
}

fn settings() -> String {
    // One instance of the echo function has more.
    format!("[[tenant]]\nname = \"{GREEDY}\"\nmemory_mib = 1\n[limits]\nbuffers = {BUFFERS}\n")
}

#[test]
fn clients_of_a_tenant_at_its_memory_limit_leave_those_of_another_tenant_places_to_wait() {
    let bed = Bed::with_settings(Device::AfPacket, &[THEIRS], &settings());
    // No instance is cached, so that each new client's first frame has to wait.
    for (tenant, address) in [(TENANT, NODE), (GREEDY, THEIRS)] {
        let manifest = Manifest::of(tenant).module("echo", &sample("icmp-echo"));
        let manifest = manifest.chain("echo", "echo", "cache_min = 0\ncache_max = 1");
        bed.node.apply(manifest.ping_rule("ping", "echo", "per-client", address).text());
    }
    let stop = AtomicBool::new(false);
    let flood = || {
        let mut sources = (0x0a63_0000_u32..).map(Ipv4Addr::from);
        while !stop.load(Ordering::Relaxed) {
            strangers::ask(&bed, THEIRS, sources.by_ref().take(20));
            thread::sleep(Duration::from_millis(20));
        }
    };
    let summaries = thread::scope(|scope| {
        let flood = scope.spawn(flood);
        let full = || (flood.is_finished() || dropped(&bed, GREEDY) > 1_000).then_some(());
        until("frames of strangers without a place to wait", SOON, full);
        let summaries = pings_of_new_clients(&bed, GUARANTEED);
        stop.store(true, Ordering::Relaxed);
        flood.join().expect("strangers' frames can be sent");
        summaries
    });
    assert_each_is_answered(&summaries);
    assert_eq!(dropped(&bed, TENANT), 0);
    let [theirs, ours] = [GREEDY, TENANT].map(|tenant| bed.node.cli().resource(tenant, "frames_waiting"));
    assert_eq!([&theirs["guaranteed"], &ours["guaranteed"]], [GUARANTEED, GUARANTEED]);
    assert!(theirs["refused"].as_u64() > Some(1_000), "{theirs}");
    assert_eq!(ours["refused"], 0);
}
