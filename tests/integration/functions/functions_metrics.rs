//! Counters and gauges of functions, as `pinion metrics` shows them with real traffic.
#![forbid(unsafe_code)]

use std::process::Output;
use std::thread;

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::pings;
use pinion_tests::until::{SOON, until};
use serde_json::Value;

/// An address of another tenant's chain.
const THEIRS: &str = "10.77.0.3";

/// Returns the series of this name, as JSON.
fn series(bed: &Bed, words: &[&str], name: &str) -> Vec<Value> {
    let of_all = if words.contains(&"--tenant") { &[][..] } else { &["-A"] };
    let all = bed.node.cli().run(&[&["metrics", "-o", "json"], of_all, words].concat());
    let all: Vec<Value> = serde_json::from_str(&all).expect("it is a list");
    all.into_iter().filter(|metric| metric["name"] == name).collect()
}

/// Returns the value of the only counter of this name that a tenant has.
fn counter(bed: &Bed, tenant: &str, name: &str) -> u64 {
    match &series(bed, &["--tenant", tenant], name)[..] {
        [one] => one["value"]["counter"].as_u64().expect("it is a counter"),
        other => panic!("{tenant} has {other:?} called {name}"),
    }
}

/// A manifest with `monitor` before `icmp-echo`, for pings to an address; `more` has further keys of the chain.
fn watched(tenant: &str, destination: &str, more: &str) -> Manifest {
    Manifest::of(tenant)
        .module("monitor", &sample("monitor"))
        .module("icmp-echo", &sample("icmp-echo"))
        .with(format_args!(
            "[[chain]]\nname = \"watched\"\n{more}\n\
             stage = [{{ module = \"monitor\", config = \"every 1s top 2\" }}, {{ module = \"icmp-echo\" }}]\n"
        ))
        .ping_rule("ping", "watched", "per-client", destination)
}

/// Sends exactly so many requests, each after the answer to the one before.
fn ping_one_by_one(bed: &Bed, client: usize, count: u64, destination: &str) {
    for _ in 0..count {
        pings(&bed.clients[client].namespace, 1, &format!("-i 60 {destination}")).assert_all(1);
    }
}

#[test]
fn counters_add_up_over_instances_and_stay_when_these_have_ended() {
    let bed = Bed::new(Device::AfPacket);
    bed.node.apply(watched(TENANT, NODE, "idle_timeout_ms = 1500\ncache_min = 1\ncache_max = 1").text());
    thread::scope(|scope| {
        for (client, count) in [(0, 5), (1, 7), (2, 3)] {
            let bed = &bed;
            scope.spawn(move || ping_one_by_one(bed, client, count, NODE));
        }
    });
    until("count of all pings", SOON, || (counter(&bed, TENANT, "monitor_packets") == 15).then_some(()));
    until("end of all instances that clients had", SOON, || bed.node.cli().serving_fwps().is_empty().then_some(()));
    assert_eq!(counter(&bed, TENANT, "monitor_packets"), 15);
    assert_eq!(counter(&bed, TENANT, "monitor_bytes"), 15 * 98);
    // Instances in the cache have counted nothing.
    until("sum of those that live", SOON, || {
        (series(&bed, &[], "monitor_flows")[0]["value"]["gauge"] == 0).then_some(())
    });
    ping_one_by_one(&bed, 0, 4, NODE);
    until("count of those that came later", SOON, || (counter(&bed, TENANT, "monitor_packets") == 19).then_some(()));
}

#[test]
fn gauges_are_those_of_living_instances_and_name_a_flow_only_while_it_lasts() {
    let bed = Bed::new(Device::AfPacket);
    bed.node.apply(watched(TENANT, NODE, "").text());
    // All requests of one `ping` are one flow.
    for client in &bed.clients[..2] {
        pings(&client.namespace, 3, &format!("-i 0.05 {NODE}")).assert_all(3);
    }
    until("two flows in two instances", SOON, || {
        (series(&bed, &[], "monitor_flows")[0]["value"]["gauge"] == 2).then_some(())
    });
    let named = |top: Vec<Value>| -> Vec<String> {
        let label = |metric: &Value| metric["labels"][1][1].as_str().expect("the second label is text").to_owned();
        top.iter().map(label).collect()
    };
    let first = bed.clients[0].address.clone();
    until("client among those that take most", SOON, || {
        let top = series(&bed, &["--tenant", TENANT, "--chain", "watched"], "monitor_top_bits_per_second");
        named(top).contains(&format!("icmp {first} to {NODE}")).then_some(())
    });
    until("interval without pings", SOON, || series(&bed, &[], "monitor_top_bits_per_second").is_empty().then_some(()));
}

#[test]
fn a_tenant_has_series_of_its_own_and_prometheus_can_read_them() {
    let bed = Bed::with_addresses(Device::AfPacket, &[THEIRS]);
    bed.node.apply(watched(TENANT, NODE, "").text());
    bed.node.apply(watched("other", THEIRS, "").text());
    ping_one_by_one(&bed, 0, 3, NODE);
    ping_one_by_one(&bed, 0, 5, THEIRS);
    until("count of either tenant's pings", SOON, || {
        let counts = [TENANT, "other"].map(|tenant| counter(&bed, tenant, "monitor_packets"));
        (counts == [3, 5]).then_some(())
    });
    let text = bed.node.cli().run(&["metrics", "-A"]);
    assert_eq!(text.matches("# TYPE pinion_function_monitor_packets_total counter\n").count(), 1, "{text}");
    for (tenant, count) in [(TENANT, 3), ("other", 5)] {
        let labels = format!("tenant=\"{tenant}\",chain=\"watched\",stage=\"0\",module=\"monitor\"");
        let line = format!("pinion_function_monitor_packets_total{{{labels}}} {count}\n");
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    assert!(!bed.node.cli().run(&["metrics", "--tenant", "other"]).contains(TENANT));
    // When its chain is deleted, a tenant's counts are gone.
    bed.node.cli().run(&["delete", "rule", "ping", "--tenant", "other"]);
    bed.node.cli().run(&["delete", "chain", "watched", "--tenant", "other"]);
    until("end of the chain's series", SOON, || {
        series(&bed, &["--tenant", "other"], "monitor_packets").is_empty().then_some(())
    });
}

/// A module that cannot be snapshotted, with a gauge that its initialisation sets to 42. `entry` is the gauge's entry as it lies in memory.
fn initialises_itself(entry: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (memory (export "memory") 2)
            (table 1 funcref) (func (export "unused") (table.set (i32.const 0) (ref.null func)))
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\10\00\00\04\00\00\00\00\04\00\00\00\08\00\00")
            (data (i32.const 256) "PMT1\01\00\00\00\10\01\00\00\00\00\00\00{entry}")
            (data (i32.const 512) "depth\nHow deep.")
            (func (export "pinion_abi_v3"))
            (func (export "pinion_init") (result i32) (i64.store (i32.const 640) (i64.const 42)) (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func (export "pinion_metrics") (result i32) (i32.const 256))
            (func (export "pinion_run") (loop $l (drop (call $wait)) (br $l))))"#
    );
    wat::parse_str(text).expect("it is a module")
}

const GAUGE: &str = "\\02\\00\\00\\00\\80\\02\\00\\00\\00\\02\\00\\00\\05\\00\\00\\00\\06\\02\\00\\00\\09\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00";

fn apply_module(bed: &Bed, wasm: &[u8]) -> Output {
    let folder = tempfile::tempdir().expect("a folder for the module");
    let path = folder.path().join("guest.wasm");
    std::fs::write(&path, wasm).expect("the folder is writable");
    let manifest = folder.path().join("manifest.toml");
    let text = Manifest::of(TENANT).module("guest", &path).chain("deep", "guest", "cache_min = 3\ncache_max = 3");
    std::fs::write(&manifest, text.text()).expect("the folder is writable");
    bed.node.cli().try_apply(&manifest)
}

#[test]
fn a_function_without_a_snapshot_has_metrics_as_well_and_faults_in_them_are_reported() {
    let bed = Bed::new(Device::AfPacket);
    let applied = apply_module(&bed, &initialises_itself(GAUGE));
    assert!(applied.status.success(), "{}", errors(&applied));
    until("sum of three instances", SOON, || {
        series(&bed, &["--chain", "deep"], "depth")
            .first()
            .is_some_and(|depth| depth["value"]["gauge"] == 3 * 42)
            .then_some(())
    });
    // The gauge's value is in a slot of the pool, which the node itself writes.
    let in_slot = GAUGE.replacen("\\80\\02\\00\\00", "\\00\\18\\00\\00", 1);
    let refused = apply_module(&bed, &initialises_itself(&in_slot));
    let said = errors(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("metric 0 (\"depth\"): its value at 0x1800 is in a slot of its pool"), "{said}");
    assert!(!series(&bed, &["--chain", "deep"], "depth").is_empty(), "what was refused has ended those before");
}

#[test]
fn a_function_that_counts_all_the_time_is_read_and_delays_no_other() {
    let bed = Bed::with_addresses(Device::AfPacket, &[THEIRS]);
    bed.node.apply(watched(TENANT, NODE, "").text());
    let sent = bed.assert_floods_are_answered(2_000);
    until("count of all pings", SOON, || (counter(&bed, TENANT, "monitor_packets") == sent).then_some(()));
}
