//! Fuzz targets: the parsers of untrusted bytes on the data path, with arbitrary input.
//!
//! | target | bytes | what must hold |
//! |---|---|---|
//! | [`headers`] | a frame | it is read or dropped; what was read agrees with another parser; answers to ARP and neighbour discovery are sound |
//! | [`descriptors`] | a guest's actions | the host takes only what the guest owns, touches only what it may, and loses no slot |
//!
//! A target is a function that panics when something does not hold. `run.sh` builds each with coverage instrumentation into a libFuzzer
//! program and runs it (`make fuzz`). `tests/seeds.rs` runs the targets on the inputs in `seeds/`, from which the fuzzer starts. Add each
//! input that made a target panic to `seeds/` once the cause is fixed.

pub mod descriptors;
pub mod headers;

#[path = "../../../mma/tests/support/mod.rs"]
mod support;
