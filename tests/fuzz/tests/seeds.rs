//! The inputs that the fuzzer starts from. Each must be handled as its name says, and also those that once made a target panic.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use pinion_fuzz::models::{self, Outcome};
use pinion_fuzz::{calls, descriptors, headers};
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

#[test]
fn every_call_succeeds_or_fails_as_its_name_says() {
    for (name, program) in seeds("calls") {
        let succeeded = calls::check(&program);
        let as_named = match name.split('-').next() {
            Some("opens") => succeeded[0] > 0,
            Some("signs") => succeeded[1] > 0,
            Some("seals") => succeeded[2] > 0,
            Some("unseals") => succeeded[3] == 1,
            Some("begins") => succeeded[6] > 0 && succeeded[6] <= 8,
            Some("sets") => succeeded[7] > 0,
            Some("computes") => succeeded[8] > 0,
            Some("gets") => succeeded[9] > 0,
            Some("fails") => succeeded == [0; 10],
            _ => name.starts_with("crash"),
        };
        assert!(as_named, "{name}: {succeeded:?}");
    }
}

#[test]
fn every_model_is_taken_or_refused_as_its_name_says() {
    for (name, onnx) in seeds("models") {
        let outcome = models::check(&onnx);
        let as_named = match name.split('-').next() {
            Some("taken") => outcome == Outcome::Taken,
            Some("refused") => outcome == Outcome::Refused,
            Some("bomb") => outcome != Outcome::Taken,
            _ => name.starts_with("crash"),
        };
        assert!(as_named, "{name}: {outcome:?}");
    }
}

/// Changes a few bytes of an input, cuts it, or puts a part of another one behind it.
fn mutated(random: &mut fastrand::Rng, seeds: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (_, mut input) = random.choice(seeds).expect("there are seeds").clone();
    for _ in 0..random.usize(1..5) {
        let at = random.usize(..=input.len());
        match random.u32(..6) {
            0 => input.truncate(at),
            1 => input.insert(at, random.u8(..)),
            2 => {
                let (_, other) = random.choice(seeds).expect("there are seeds");
                input.extend_from_slice(&other[random.usize(..=other.len())..]);
            }
            _ => input.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.u8(..)),
        }
    }
    input
}

/// Runs a target on so many mutated seeds, or ROUNDS times as many.
fn check_mutated(target: &str, count: usize, check: impl Fn(&[u8])) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("{target}: SEED={seed}");
    let (mut random, seeds) = (fastrand::Rng::with_seed(seed), seeds(target));
    for _ in 0..count * number("ROUNDS").unwrap_or(1) as usize {
        check(&mutated(&mut random, &seeds));
    }
}

#[test]
fn calls_hold_whatever_bytes_of_the_seeds_are_changed() {
    check_mutated("calls", 2_000, |program| {
        calls::check(program);
    });
}

#[test]
fn models_hold_whatever_bytes_of_the_seeds_are_changed() {
    check_mutated("models", 200, |onnx| {
        models::check(onnx);
    });
}
