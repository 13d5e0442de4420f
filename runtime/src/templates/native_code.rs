//! Maps the native code of templates into engines. Owns the `unsafe` of trusting a file's code.

use std::fs::File;

use wasmtime::{Engine, Module};

/// Maps one of the builder's artifacts into an engine.
///
/// # Errors
/// wasmtime's, if the file is missing or was made with other settings or another release.
#[allow(unsafe_code)] // Maps native code.
pub fn load(engine: &Engine, artifact: File) -> wasmtime::Result<Module> {
    // SAFETY: the file is the builder's own output: it lies in a directory that only the node's user can write to, and the
    // caller has compared its digest, read through this very file, with the one recorded when it was made.
    unsafe { Module::deserialize_open_file(engine, artifact) }
}
