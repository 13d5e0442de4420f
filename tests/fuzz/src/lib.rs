//! Fuzz targets: the parsers of untrusted bytes, with arbitrary input.
//!
//! | target | bytes | what must hold |
//! |---|---|---|
//! | [`headers`] | a frame | it is read or dropped; what was read agrees with another parser; answers to ARP and neighbour discovery are sound |
//! | [`descriptors`] | a guest's actions | the host takes only what the guest owns, touches only what it may, and loses no slot |
//! | [`calls`] | a guest's calls for keys and models | a call changes its result's bytes alone; signatures, tickets and outputs are as they must be |
//! | [`models`] | a model in ONNX | it is refused with a sentence, or its form loads, keeps the bounds, and runs |
//!
//! A target is a function that panics when something does not hold. `run.sh` builds each with coverage instrumentation into a libFuzzer
//! program and runs it (`make fuzz`). `tests/seeds.rs` runs the targets on the inputs in `seeds/`, from which the fuzzer starts. Add each
//! input that made a target panic to `seeds/` once the cause is fixed.

pub mod calls;
pub mod descriptors;
pub mod headers;
pub mod models;

#[path = "../../../mma/tests/support/mod.rs"]
mod support;
