//! Sizes of the samples' modules. Each module is uploaded, checked, compiled and stored, so its size is part of a function's cost for
//! tenants.
#![forbid(unsafe_code)]

use std::fs;

use pinion_tests::product::build::sample;

/// The samples with a single purpose, in Rust and in C.
const SIMPLE: [&str; 11] = [
    "delay",
    "icmp-echo",
    "macswap",
    "monitor",
    "monitor-c",
    "notebook",
    "packet-filter",
    "packet-filter-c",
    "policer",
    "udp-echo",
    "word-count",
];
const SIMPLE_BYTES_MAX: u64 = 100 * 1024;

#[test]
fn a_simple_samples_module_has_a_hundred_kib_at_most() {
    let size = |name: &str| fs::metadata(sample(name)).expect("a module that is there has a size").len();
    let too_large: Vec<String> = SIMPLE
        .iter()
        .map(|name| (name, size(name)))
        .filter(|(_, bytes)| *bytes > SIMPLE_BYTES_MAX)
        .map(|(name, bytes)| format!("{name} has {bytes} bytes"))
        .collect();
    assert!(too_large.is_empty(), "{SIMPLE_BYTES_MAX} bytes are the most: {}", too_large.join(", "));
}
