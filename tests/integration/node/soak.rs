//! A node under load for a chosen time: chains come and go, functions misbehave, the node crashes. No ping of the other clients is lost,
//! and in the end nothing has leaked. `make soak TIME=3600`.
#![forbid(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use pinion_tests::machine::cores::two_cores;
use pinion_tests::machine::holdings::Holdings;
use pinion_tests::network::bed::{Bed, Device, NODE};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::{flood, ping, poke};
use pinion_tests::until::SOON;

/// The tenant whose chains come and go and whose functions misbehave.
const TENANT: &str = "mallory";
const ADDRESSES: [&str; 4] = ["10.77.0.61", "10.77.0.62", "10.77.0.63", "10.77.0.64"];
/// Each module answers for one of the addresses, and ends in its own way.
const MODULES: [&str; 4] = ["looper", "trapper", "wild_descriptor", "memory_bomb"];
/// Limits so low that a leak of a few per round would starve the node within minutes.
const LIMITS: &str = "[limits]\nbuffers = 1024\nfwps_max = 128\n";
const PINGS: u64 = 3_000;
/// Rounds after a start in which a node may still grow to its working size.
const ROUNDS_TO_GROW: u32 = 3;
const ROUNDS_PER_CRASH: u32 = 20;

/// A manifest with all misbehaving modules, each for an address of its own.
fn wild(round: u32) -> Manifest {
    let mut manifest = Manifest::of(TENANT);
    for (module, address) in MODULES.iter().zip(ADDRESSES) {
        let config = ["slot-range", "twice", "length", "tail-jump"][round as usize % 4];
        let config = if *module == "wild_descriptor" { config } else { "" };
        let name = module.replace('_', "-");
        manifest = manifest
            .module(&name, &build::hostile(module))
            .with(format_args!(
                "[[chain]]\nname = {name:?}\nidle_timeout_ms = 300\nmemory_limit_kib = 4096\n\
                 stage = [{{ module = {name:?}, config = {config:?} }}]\n"
            ))
            .ping_rule(&name, &name, if round.is_multiple_of(2) { "per-client" } else { "per-flow" }, address);
    }
    manifest
}

/// Applies chains that misbehave and deletes them while two clients flood the node.
fn round(bed: &Bed, round: u32) {
    thread::scope(|scope| {
        let floods = [0, 1].map(|client| scope.spawn(move || flood(&bed.clients[client].namespace, NODE, PINGS)));
        bed.node.apply(wild(round).text());
        for address in ADDRESSES {
            poke(&bed.clients[2].namespace, address);
            let _ = ping(&bed.clients[2].namespace, &format!("-q -c 20 -i 0.002 -W 0.1 {address}"));
        }
        let applied = bed.node.path("manifest.toml");
        bed.node.cli().run(&["delete", "--file", applied.to_str().expect("paths here are text")]);
        for flood in floods {
            flood.join().expect("ping runs to its end").assert_all(PINGS);
        }
    });
}

/// Waits until only the FWPs of well-behaved functions are left.
fn wait_for_the_end_of_others(bed: &Bed) {
    let start = Instant::now();
    loop {
        let mut fwps = bed.node.cli().get("fwps");
        fwps.retain(|fwp| fwp["tenant"] == TENANT && fwp["state"] != "terminated" && fwp["state"] != "template");
        if fwps.is_empty() {
            return;
        }
        assert!(start.elapsed() < SOON, "though their chains are gone, these are still there: {fwps:#?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "takes as long as PINION_SOAK_SECONDS says: `make soak`"]
fn a_node_under_load_leaks_nothing() {
    let seconds = std::env::var("PINION_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.expect("PINION_SOAK_SECONDS is a number of seconds"));
    let (first, second) = two_cores();
    let settings = format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n{LIMITS}");
    let mut bed = Bed::with_settings(Device::AfPacket, &ADDRESSES, &settings);
    bed.apply_echo("per-client");
    let (start, mut since_start, mut before) = (Instant::now(), 0, None::<Holdings>);
    for number in 0_u32.. {
        round(&bed, number);
        wait_for_the_end_of_others(&bed);
        let now = Holdings::of(bed.node.process());
        println!("{:>6.0} s, round {number}: {now:?}", start.elapsed().as_secs_f64());
        match before {
            Some(before) if since_start >= ROUNDS_TO_GROW => now.assert_not_grown_from(&before, 0),
            _ => before = Some(before.map_or(now, |before| before.max(now))),
        }
        since_start += 1;
        if start.elapsed() >= time {
            break;
        }
        if since_start == ROUNDS_PER_CRASH {
            bed.node.kill();
            bed.start_node();
            (since_start, before) = (0, None);
        }
    }
}
