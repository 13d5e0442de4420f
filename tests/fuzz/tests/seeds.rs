//! The inputs that the fuzzer starts from. The gateway must handle each as its name says, and also those that once made a target panic.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use pinion_fuzz::{descriptors, headers};
use pinion_gateway::headers::Headers;

/// Returns the names and bytes of a target's seeds.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let entries = fs::read_dir(&folder).expect("a target has seeds").flatten();
    let seeds: Vec<_> = entries
        .map(|entry| {
            let name = entry.file_name().into_string().expect("names are text");
            (name, fs::read(entry.path()).expect("a seed is a file"))
        })
        .collect();
    assert!(seeds.len() > 10, "{} seeds in {}", seeds.len(), folder.display());
    seeds
}

#[test]
fn every_frame_is_read_as_its_name_says() {
    for (name, frame) in seeds("headers") {
        let read = headers::check(&frame);
        let as_named = match name.split('-').next() {
            Some("flow" | "tagged") => matches!(read, Ok(Headers::Flow(..))),
            Some("error") => matches!(read, Ok(Headers::IcmpError(_))),
            Some("fragment") => matches!(read, Ok(Headers::Fragment(_))),
            Some("arp") => matches!(read, Ok(Headers::Arp(_))),
            Some("discovery") => matches!(read, Ok(Headers::NeighborDiscovery(_))),
            Some("dropped") => read.is_err(),
            // A former crash of the target, with any result.
            _ => name.starts_with("crash"),
        };
        assert!(as_named, "{name}: {read:?}");
    }
}

#[test]
fn every_guest_ends_as_its_name_says() {
    for (name, program) in seeds("descriptors") {
        let outcome = descriptors::check(&program);
        let stopped = outcome.map(|it| it.violation.is_some());
        let as_named = match name.split('-').next() {
            Some("honest") => stopped == Some(false) && outcome.is_some_and(|it| it.moved > 0),
            Some("scribbling") => stopped == Some(false),
            Some("stopped") => stopped == Some(true),
            Some("refused") => stopped.is_none(),
            _ => name.starts_with("crash"),
        };
        assert!(as_named, "{name}: {outcome:?}");
    }
}
