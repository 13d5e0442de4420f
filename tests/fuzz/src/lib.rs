//! Fuzz targets: what reads foreign bytes on the data path, given any bytes at all.
//!
//! | target | bytes | what must hold |
//! |---|---|---|
//! | [`headers`] | a frame | it is read or dropped; what was read agrees with another parser; answers to ARP and neighbour discovery are sound |
//! | [`descriptors`] | a guest's deeds | the host takes only what the guest owns, touches only what it may, and loses no slot |
//!
//! A target is a function that panics when something does not hold. `run.sh` builds each with coverage instrumentation
//! into a program of libFuzzer's and runs it (`make fuzz`); `tests/seeds.rs` runs the targets on the inputs in `seeds/`,
//! from which the fuzzer starts. An input that made a target panic belongs there too, once the cause is mended.

pub mod descriptors;
pub mod headers;

#[path = "../../../mma/tests/support/mod.rs"]
mod support;
