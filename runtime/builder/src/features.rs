//! The WebAssembly features that modules may use ([`FEATURES`]), and how a feature that is off is named in a refusal.

use pinion_guest::settings::FEATURES;
use wasmparser::types::Types;
use wasmparser::{BinaryReaderError, ExternalKind, Parser, Payload, TypeRef, Validator, WasmFeatures};

use crate::refused::Refused;

/// A feature that is off, as its users know it.
struct Off {
    flag: WasmFeatures,
    /// The proposal that it comes from.
    proposal: &'static str,
    /// What a module that uses it contains.
    what: &'static str,
    /// How to build a module without it.
    how: &'static str,
}

/// How to switch off an LLVM feature.
macro_rules! llvm {
    ($feature:literal) => {
        concat!("with rustc -C target-feature=-", $feature, ", or clang -mno-", $feature)
    };
}

/// How to avoid a feature for which Rust and clang have no option for this target.
const TARGET: &str = "for the target wasm32-wasip1";

/// All features of core WebAssembly that are off.
const OFF: [Off; 17] = [
    off(WasmFeatures::GC, "gc", "subtypes, structures or arrays", TARGET),
    off(WasmFeatures::GC_TYPES, "reference-types", "references to the host's values (externref)", TARGET),
    off(WasmFeatures::FUNCTION_REFERENCES, "function-references", "typed references to functions", TARGET),
    off(WasmFeatures::EXCEPTIONS, "exception-handling", "exceptions", llvm!("exception-handling")),
    off(WasmFeatures::LEGACY_EXCEPTIONS, "exception-handling", "exceptions", llvm!("exception-handling")),
    off(WasmFeatures::TAIL_CALL, "tail-call", "tail calls", llvm!("tail-call")),
    off(WasmFeatures::THREADS, "threads", "shared memory or atomic instructions", llvm!("atomics")),
    off(
        WasmFeatures::SHARED_EVERYTHING_THREADS,
        "shared-everything-threads",
        "what threads share beside memory",
        llvm!("atomics"),
    ),
    off(WasmFeatures::MEMORY64, "memory64", "a memory or table with 64-bit addresses", TARGET),
    off(WasmFeatures::MULTI_MEMORY, "multi-memory", "more than one memory", llvm!("multimemory")),
    off(WasmFeatures::MEMORY_CONTROL, "memory-control", "instructions that discard memory", TARGET),
    off(WasmFeatures::CUSTOM_PAGE_SIZES, "custom-page-sizes", "a memory with pages of another size", TARGET),
    off(WasmFeatures::RELAXED_SIMD, "relaxed-simd", "relaxed SIMD instructions", llvm!("relaxed-simd")),
    off(WasmFeatures::EXTENDED_CONST, "extended-const", "computed constants", llvm!("extended-const")),
    off(WasmFeatures::STACK_SWITCHING, "stack-switching", "continuations", TARGET),
    EXACT,
    off(WasmFeatures::COMPACT_IMPORTS, "compact-import-section", "imports in groups", TARGET),
];

const EXACT: Off =
    off(WasmFeatures::CUSTOM_DESCRIPTORS, "custom-descriptors", "types with descriptors, or exact types", TARGET);

const fn off(flag: WasmFeatures, proposal: &'static str, what: &'static str, how: &'static str) -> Off {
    Off { flag, proposal, what, how }
}

/// Returns the types of a module that is valid and uses no feature that is off.
///
/// # Errors
/// What is wrong with it, or the feature.
pub fn validate(wasm: &[u8]) -> Result<Types, Refused> {
    let types = validate_with(wasm, FEATURES).map_err(|error| match missing(wasm, &error) {
        Some(off) => off.refused(error.to_string()),
        None => Refused::Invalid(error.to_string()),
    })?;
    // The validator accepts this whatever features are on.
    match exact_function(wasm).map_err(|error| Refused::Invalid(error.to_string()))? {
        Some(which) => Err(EXACT.refused(format!("{which} names a function by its exact type"))),
        None => Ok(types),
    }
}

impl Off {
    fn refused(&self, detail: String) -> Refused {
        let Self { proposal, what, how, .. } = *self;
        Refused::Feature { proposal, what, how, detail }
    }
}

/// Returns the kind of an import or export that has a function's exact type, if there is one.
fn exact_function(wasm: &[u8]) -> wasmparser::Result<Option<&'static str>> {
    for payload in Parser::new(0).parse_all(wasm) {
        match payload? {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    if matches!(import?.ty, TypeRef::FuncExact(_)) {
                        return Ok(Some("an import"));
                    }
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    if export?.kind == ExternalKind::FuncExact {
                        return Ok(Some("an export"));
                    }
                }
            }
            // What follows is long, and contains neither.
            Payload::CodeSectionStart { .. } => break,
            _ => {}
        }
    }
    Ok(None)
}

fn validate_with(wasm: &[u8], features: WasmFeatures) -> wasmparser::Result<Types> {
    Validator::new_with_features(features).validate_all(wasm)
}

/// Returns the feature that a module would need to get past its first error.
fn missing(wasm: &[u8], error: &BinaryReaderError) -> Option<&'static Off> {
    if let Some(flags) = error.missing_wasm_feature() {
        return OFF.iter().find(|off| flags.contains(off.flag));
    }
    // Not every error names its feature. With the needed features on, be it one or several, validation gets past the same place.
    let gets_past = |features: WasmFeatures| match validate_with(wasm, features) {
        Ok(_) => true,
        Err(later) => later.offset() > error.offset(),
    };
    let alone = OFF.iter().find(|off| gets_past(FEATURES | off.flag));
    let all = WasmFeatures::all();
    let is_needed = |off: &&Off| !gets_past(all.difference(off.flag));
    alone.or_else(|| if gets_past(all) { OFF.iter().find(is_needed) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a feature belongs to components, which are refused before anything is validated.
    fn is_of_components(name: &str) -> bool {
        name == "COMPONENT_MODEL" || name.starts_with("CM")
    }

    #[test]
    fn every_feature_of_core_webassembly_is_either_on_or_refused_by_name() {
        for (name, flag) in WasmFeatures::all().iter_names().filter(|(name, _)| !is_of_components(name)) {
            let is_named = OFF.iter().any(|off| off.flag == flag);
            assert!(FEATURES.contains(flag) != is_named, "{name}");
        }
    }
}
