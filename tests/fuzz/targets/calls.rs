//! [`pinion_fuzz::calls`] under the fuzzing engine.
#![no_main]
#![allow(unsafe_code)] // What the engine's macro makes of this.

libfuzzer_sys::fuzz_target!(|program: &[u8]| {
    let _ = pinion_fuzz::calls::check(program);
});
