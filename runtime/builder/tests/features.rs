//! The engine and the builder's checks agree on each WebAssembly feature, and each feature that is off is refused by its name.

use pinion_builder::admission;
use pinion_guest::settings::{self, FEATURES};
use wasmparser::{Validator, WasmFeatures};
use wasmtime::{Engine, Module};

/// Returns a module that needs a feature, and the name in its refusal if the feature is off.
fn using(feature: &str) -> (Vec<u8>, &'static str) {
    let (text, name) = match feature {
        "MUTABLE_GLOBAL" => ("(module (global (export \"g\") (mut i32) (i32.const 0)))", ""),
        "SATURATING_FLOAT_TO_INT" => ("(module (func (drop (i32.trunc_sat_f32_s (f32.const 1)))))", ""),
        "SIGN_EXTENSION" => ("(module (func (drop (i32.extend8_s (i32.const 1)))))", ""),
        "REFERENCE_TYPES" => ("(module (table 1 funcref) (func (drop (table.get (i32.const 0)))))", ""),
        "MULTI_VALUE" => ("(module (func (result i32 i32) (i32.const 1) (i32.const 2)))", ""),
        "BULK_MEMORY" => ("(module (memory 1) (data \"x\") (func (data.drop 0)))", ""),
        "BULK_MEMORY_OPT" => ("(module (memory 1) (func (memory.fill (i32.const 0) (i32.const 0) (i32.const 1))))", ""),
        // The table's index in two bytes.
        "CALL_INDIRECT_OVERLONG" => return (overlong_call_indirect(), ""),
        "SIMD" => ("(module (func (drop (v128.const i64x2 0 0))))", ""),
        "FLOATS" => ("(module (func (drop (f32.const 0))))", ""),
        "RELAXED_SIMD" => (
            "(module (func (param v128) (drop (i32x4.relaxed_trunc_f32x4_s (local.get 0)))))",
            "relaxed SIMD instructions (the `relaxed-simd` proposal)",
        ),
        "THREADS" => ("(module (memory 1 1 shared))", "shared memory or atomic instructions (the `threads` proposal)"),
        "SHARED_EVERYTHING_THREADS" => (
            "(module (global (shared mut i32) (i32.const 0)))",
            "what threads share beside memory (the `shared-everything-threads` proposal)",
        ),
        "TAIL_CALL" => ("(module (func (return_call 0)))", "tail calls (the `tail-call` proposal)"),
        "MULTI_MEMORY" => ("(module (memory 1) (memory 1))", "more than one memory (the `multi-memory` proposal)"),
        "EXCEPTIONS" => ("(module (tag $e) (func (throw $e)))", "exceptions (the `exception-handling` proposal)"),
        "LEGACY_EXCEPTIONS" => return (legacy_try(), "exceptions (the `exception-handling` proposal)"),
        "MEMORY64" => ("(module (memory i64 1))", "a memory or table with 64-bit addresses (the `memory64` proposal)"),
        "EXTENDED_CONST" => (
            "(module (global i32 (i32.add (i32.const 1) (i32.const 2))))",
            "computed constants (the `extended-const` proposal)",
        ),
        "FUNCTION_REFERENCES" => (
            "(module (type $f (func)) (func (param (ref $f)) (call_ref $f (local.get 0))))",
            "typed references to functions (the `function-references` proposal)",
        ),
        "MEMORY_CONTROL" => (
            "(module (memory 1) (func (memory.discard (i32.const 0) (i32.const 0))))",
            "instructions that discard memory (the `memory-control` proposal)",
        ),
        "GC" => ("(module (type (struct)))", "subtypes, structures or arrays (the `gc` proposal)"),
        "GC_TYPES" => (
            "(module (table 1 externref))",
            "references to the host's values (externref) (the `reference-types` proposal)",
        ),
        "CUSTOM_PAGE_SIZES" => (
            "(module (memory 1 (pagesize 1)))",
            "a memory with pages of another size (the `custom-page-sizes` proposal)",
        ),
        "STACK_SWITCHING" => (
            "(module (type $f (func)) (type $c (cont $f)) (func (param (ref $c)) (resume $c (local.get 0))))",
            "continuations (the `stack-switching` proposal)",
        ),
        "WIDE_ARITHMETIC" => {
            ("(module (func (param i64 i64) (result i64 i64) (i64.mul_wide_s (local.get 0) (local.get 1))))", "")
        }
        // Depends on another feature.
        "CUSTOM_DESCRIPTORS" => (
            "(module (rec (type $a (descriptor $b) (struct)) (type $b (describes $a) (struct))))",
            "subtypes, structures or arrays (the `gc` proposal)",
        ),
        "COMPACT_IMPORTS" => (
            "(module (import \"m\" (item \"a\" (func)) (item \"b\" (func))))",
            "imports in groups (the `compact-import-section` proposal)",
        ),
        _ => ("(component)", "it is a WebAssembly component"),
    };
    (wat::parse_str(text).unwrap_or_else(|error| panic!("{feature}: {error}")), name)
}

/// Returns `try catch_all end end`, which has no text form any more, in place of `block nop end end`.
fn legacy_try() -> Vec<u8> {
    let mut wasm = wat::parse_str("(module (func (block (nop))))").unwrap();
    let at = wasm.windows(5).position(|bytes| bytes == [0x02, 0x40, 0x01, 0x0b, 0x0b]).expect("that is the function");
    wasm[at..at + 3].copy_from_slice(&[0x06, 0x40, 0x19]);
    wasm
}

fn overlong_call_indirect() -> Vec<u8> {
    let plain = wat::parse_str("(module (table 1 funcref) (func (call_indirect (i32.const 0))))").unwrap();
    // `i32.const 0`, `call_indirect` of type 0, table 0, `end`.
    let code = [0x41, 0, 0x11, 0, 0, 0x0b];
    let at = plain.windows(code.len()).position(|bytes| bytes == code).expect("that is the function");
    let mut wasm = plain[..at].to_vec();
    wasm.extend([0x41, 0, 0x11, 0, 0x80, 0, 0x0b]);
    // Body and section are one byte longer. Section: id, size, count, body's size, locals.
    wasm[at - 2] += 1;
    wasm[at - 4] += 1;
    wasm
}

#[test]
fn the_engine_and_admission_agree_on_each_feature_and_disabled_features_are_refused_by_name() {
    let engine = Engine::new(&settings::config()).unwrap();
    for (feature, flag) in WasmFeatures::all().iter_names() {
        let (wasm, name) = using(feature);
        if let Err(error) = Validator::new_with_features(WasmFeatures::all()).validate_all(&wasm) {
            panic!("{feature}: with all features on it is valid: {error}");
        }
        let is_on = FEATURES.contains(flag);
        let compiled = Module::from_binary(&engine, &wasm);
        assert_eq!(compiled.is_ok(), is_on, "{feature}: the engine: {compiled:?}");
        let refused = admission::check(&engine, &wasm).expect_err("none of them is a function").to_string();
        if is_on {
            assert!(refused.contains("exports no function pinion_abi_v3"), "{feature}: {refused}");
        } else {
            assert!(refused.contains(name), "{feature}: {refused}");
        }
    }
}

/// The engine would end the process with this.
#[test]
fn an_indirect_call_by_a_supertype_is_refused_by_its_proposal() {
    let wasm = wat::parse_str(
        r#"(module
            (type $a (sub (func))) (type $b (sub $a (func)))
            (table 1 funcref) (elem (i32.const 0) $f) (func $f (type $b))
            (memory (export "memory") 1)
            (func (export "pinion_abi_v3")) (func (export "pinion_init") (result i32) (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 0))
            (func (export "pinion_run") (call_indirect (type $a) (i32.const 0))))"#,
    )
    .unwrap();
    let engine = Engine::new(&settings::config()).unwrap();
    let refused = admission::check(&engine, &wasm).unwrap_err().to_string();
    assert!(refused.starts_with("it uses subtypes, structures or arrays (the `gc` proposal)"), "{refused}");
    assert!(refused.contains("build it for the target wasm32-wasip1"), "{refused}");
    assert!(Module::from_binary(&engine, &wasm).is_err());
}

/// The validator accepts these whatever features are on, and later steps do not know them.
#[test]
fn functions_imported_or_exported_by_their_exact_type_are_refused_by_their_proposal() {
    let engine = Engine::new(&settings::config()).unwrap();
    let refused = |wasm: &[u8]| admission::check(&engine, wasm).unwrap_err().to_string();
    // Kind 0x20 in place of 0.
    let exact = |wat: &str, kind_behind: &[u8]| {
        let mut wasm = wat::parse_str(wat).unwrap();
        let at = wasm.windows(kind_behind.len()).position(|bytes| bytes == kind_behind).expect("that is the name");
        wasm[at + kind_behind.len()] = 0x20;
        wasm
    };
    let import = exact("(module (import \"pinion\" \"yield\" (func)))", b"yield");
    assert!(refused(&import).contains("exact types (the `custom-descriptors` proposal)"), "{}", refused(&import));
    let export = exact("(module (func (export \"pinion_run\")))", b"pinion_run");
    let refused = refused(&export);
    assert!(refused.contains("`custom-descriptors`") || refused.contains("does not compile"), "{refused}");
}
