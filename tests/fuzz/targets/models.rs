//! [`pinion_fuzz::models`] under the fuzzing engine.
#![no_main]
#![allow(unsafe_code)] // What the engine's macro makes of this.

libfuzzer_sys::fuzz_target!(init: pinion_fuzz::models::let_the_library_panic(), |onnx: &[u8]| {
    let _ = pinion_fuzz::models::check(onnx);
});
