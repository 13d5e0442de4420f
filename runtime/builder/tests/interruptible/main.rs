//! Bulk memory operations in pieces behave as in one piece, and are interrupted in between.

mod tables;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use pinion_builder::interruptible::{CHUNK_BYTES, interruptible};
use proptest::prelude::*;
use wasmtime::{Engine, Instance, Module, Store, Trap, UpdateDeadline, WasmBacktrace};

const PAGES: u32 = 4;
const MEMORY_BYTES: u32 = PAGES * 65_536;
/// Of the passive segment.
const SEGMENT_BYTES: u32 = 3 * CHUNK_BYTES + 100;

/// Returns a guest with every operation, as a function of the same name.
fn guest() -> String {
    let data: String = (0..SEGMENT_BYTES).map(|i| format!("\\{:02x}", i % 251)).collect();
    format!(
        r#"(module
            (type (func (param i64)))
            (memory (export "memory") {PAGES})
            (data $active (i32.const 0) "active")
            (data $long "{data}")
            (data $short "short")
            (func $fill (export "fill") (param i32 i32 i32)
                (memory.fill (local.get 0) (local.get 1) (local.get 2)))
            (func (export "copy") (param i32 i32 i32)
                (memory.copy (local.get 0) (local.get 1) (local.get 2)))
            (func (export "init") (param i32 i32 i32)
                (memory.init $long (local.get 0) (local.get 1) (local.get 2)))
            (func (export "init_short") (param i32 i32 i32)
                (memory.init $short (local.get 0) (local.get 1) (local.get 2)))
            (func (export "init_active") (param i32 i32 i32)
                (memory.init $active (local.get 0) (local.get 1) (local.get 2)))
            (func (export "init_dropped") (param i32 i32 i32)
                (data.drop $long)
                (memory.init $long (local.get 0) (local.get 1) (local.get 2)))
            (func (export "init_constant") (param i32 i32 i32)
                (memory.init $long (local.get 0) (local.get 1) (i32.const {SEGMENT_BYTES})))
            (func (export "fill_constant") (param i32 i32 i32)
                (memory.fill (local.get 0) (local.get 1) (i32.const -1)))
            (func (export "fill_twice") (param i32 i32 i32)
                (call $fill (local.get 0) (local.get 1) (local.get 2))
                (block (memory.fill (local.get 0) (i32.const 7) (local.get 2)))
                (memory.fill (i32.const 3) (local.get 1) (i32.const {CHUNK_BYTES}))))"#
    )
}

const FUNCTIONS: [&str; 9] = [
    "fill",
    "copy",
    "init",
    "init_short",
    "init_active",
    "init_dropped",
    "init_constant",
    "fill_constant",
    "fill_twice",
];

fn engine() -> Engine {
    Engine::new(&pinion_guest::settings::config()).unwrap()
}

fn rewritten(wat: &str) -> Vec<u8> {
    let wasm = wat::parse_str(wat).unwrap();
    let rewritten = interruptible(&wasm).unwrap();
    assert!(matches!(rewritten, Cow::Owned(_)), "nothing was rewritten");
    rewritten.into_owned()
}

/// The guest as written, and as rewritten.
static MODULES: LazyLock<[Module; 2]> = LazyLock::new(|| {
    let engine = engine();
    [wat::parse_str(guest()).unwrap(), rewritten(&guest())].map(|wasm| Module::new(&engine, wasm).unwrap())
});

/// Returns what a call does to a memory with different bytes everywhere.
fn outcome(module: &Module, function: &str, arguments: (u32, u32, u32)) -> (Option<Trap>, Vec<u8>) {
    let mut store = Store::new(module.engine(), ());
    store.set_epoch_deadline(1);
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    memory
        .data_mut(&mut store)
        .iter_mut()
        .zip(0_u32..)
        .for_each(|(byte, i)| *byte = (i.wrapping_mul(40_503) >> 9) as u8);
    let function = instance.get_typed_func::<(u32, u32, u32), ()>(&mut store, function).unwrap();
    let trap = function.call(&mut store, arguments).err().map(|error| *error.downcast_ref::<Trap>().unwrap());
    (trap, memory.data(&store).to_vec())
}

fn does_the_same(function: &str, arguments: (u32, u32, u32)) {
    let [expected, actual] = MODULES.each_ref().map(|module| outcome(module, function, arguments));
    assert_eq!(actual.0, expected.0, "{function} {arguments:?} ends otherwise");
    let other = actual.1.iter().zip(&expected.1).position(|(actual, expected)| actual != expected);
    assert_eq!(other, None, "{function} {arguments:?} leaves another byte there");
}

/// Numbers around the multiples of a chunk, the ends of segment and memory, and the end of the address space.
fn edges() -> impl Strategy<Value = u32> {
    let chunks = (0..=MEMORY_BYTES / CHUNK_BYTES).prop_map(|n| n * CHUNK_BYTES);
    let near =
        prop_oneof![4 => chunks, 1 => Just(SEGMENT_BYTES), 1 => Just(MEMORY_BYTES), 1 => Just(0), 1 => Just(1 << 31)];
    (near, -2..=2_i32).prop_map(|(near, off)| near.wrapping_add_signed(off))
}

fn numbers() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 0..MEMORY_BYTES / 2, 3 => edges(), 1 => any::<u32>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_rewritten_operation_moves_the_same_bytes_and_ends_in_the_same_trap(
        function in proptest::sample::select(&FUNCTIONS[..]), to in numbers(), from in numbers(), count in numbers(),
    ) {
        does_the_same(function, (to, from, count));
    }

    #[test]
    fn a_copy_onto_itself_moves_the_same_bytes_whichever_way_it_overlaps(
        to in numbers(), by in -3 * CHUNK_BYTES as i32..3 * CHUNK_BYTES as i32, count in numbers(),
    ) {
        does_the_same("copy", (to, to.wrapping_add_signed(by), count));
    }

    #[test]
    fn an_operation_that_ends_at_the_last_byte_is_done_and_one_byte_more_is_a_trap(
        function in proptest::sample::select(&FUNCTIONS[..]), to in 0..MEMORY_BYTES, from in 0..MEMORY_BYTES, past in 0..2_u32,
    ) {
        does_the_same(function, (to, from, MEMORY_BYTES - to + past));
        does_the_same(function, (to, from, MEMORY_BYTES - from + past));
        does_the_same(function, (to, from, SEGMENT_BYTES.saturating_sub(from) + past));
    }
}

#[test]
fn every_operation_behaves_as_before_at_every_edge() {
    let counts = [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, SEGMENT_BYTES, MEMORY_BYTES, u32::MAX];
    let places = [0, 1, CHUNK_BYTES, MEMORY_BYTES - CHUNK_BYTES, MEMORY_BYTES, MEMORY_BYTES + 1, u32::MAX];
    for function in FUNCTIONS {
        for to in places {
            for from in places {
                for count in counts {
                    does_the_same(function, (to, from, count));
                }
            }
        }
    }
}

#[test]
fn an_out_of_bounds_operation_traps_before_a_byte_is_written() {
    let [_, module] = &*MODULES;
    let (_, untouched) = outcome(module, "fill", (0, 0, 0));
    let beyond = MEMORY_BYTES - 2 * CHUNK_BYTES;
    for (function, to, from, count) in [
        ("fill", beyond, 1, 2 * CHUNK_BYTES + 1),
        ("copy", beyond, 0, 2 * CHUNK_BYTES + 1),
        ("copy", 0, beyond, 2 * CHUNK_BYTES + 1),
        ("init", 0, 0, SEGMENT_BYTES + 1),
        ("init_dropped", 0, 0, SEGMENT_BYTES),
    ] {
        let (trap, memory) = outcome(module, function, (to, from, count));
        assert_eq!(trap, Some(Trap::MemoryOutOfBounds), "{function}");
        assert!(memory == untouched, "{function} has written");
    }
}

/// Returns the most bytes that change between two looks at the epoch.
fn longest_stretch(module: &Module, function: &str, arguments: (u32, u32, u32)) -> usize {
    let changed = |before: &[u8], after: &[u8]| before.iter().zip(after).filter(|(a, b)| a != b).count();
    let mut store = Store::new(module.engine(), (Vec::new(), 0));
    // The deadline has always passed, so that each look is counted.
    store.set_epoch_deadline(0);
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    // Places that a copy connects never hold the same byte.
    memory.data_mut(&mut store).iter_mut().zip(0_usize..).for_each(|(byte, i)| *byte = (i / 1000 % 251) as u8 + 1);
    store.data_mut().0 = memory.data(&store).to_vec();
    store.epoch_deadline_callback(move |mut context| {
        let (now, (last, longest)) = memory.data_and_store_mut(&mut context);
        *longest = changed(last, now).max(*longest);
        last.copy_from_slice(now);
        Ok(UpdateDeadline::Continue(0))
    });
    let function = instance.get_typed_func::<(u32, u32, u32), ()>(&mut store, function).unwrap();
    function.call(&mut store, arguments).unwrap();
    let (last, longest) = store.data();
    changed(last, memory.data(&store)).max(*longest)
}

#[test]
fn between_two_looks_at_the_epoch_at_most_a_chunk_is_moved() {
    for (function, arguments) in [
        ("fill", (0, 255, MEMORY_BYTES)),
        ("copy", (0, 100_000, MEMORY_BYTES - 100_000)),
        ("copy", (100_000, 0, MEMORY_BYTES - 100_000)),
        ("init", (0, 0, SEGMENT_BYTES)),
        ("init_constant", (0, 0, 0)),
        ("fill_twice", (0, 255, MEMORY_BYTES)),
    ] {
        let [at_once, in_pieces] = MODULES.each_ref().map(|module| longest_stretch(module, function, arguments) as u32);
        assert!(at_once > 2 * CHUNK_BYTES, "{function} was to be long, and is of {at_once} bytes");
        assert!((1..=CHUNK_BYTES).contains(&in_pieces), "{function} moves {in_pieces} bytes in one go");
    }
}

/// Returns the sections of a module, by id.
fn sections(wasm: &[u8]) -> Vec<(u8, Range<usize>)> {
    let payloads = wasmparser::Parser::new(0).parse_all(wasm);
    payloads.filter_map(|payload| payload.unwrap().as_section()).collect()
}

#[test]
fn a_module_that_moves_little_or_nothing_is_unchanged() {
    for body in [
        "(drop (i32.const 1))",
        "(memory.copy (i32.const 1) (i32.const 2) (i32.const 64))",
        "(memory.fill (i32.const 1) (i32.const 2) (i32.const 8192))",
        "(memory.init $short (i32.const 1) (i32.const 2) (memory.size))",
        "(memory.init $active (i32.const 1) (i32.const 2) (memory.size))",
    ] {
        let active = "x".repeat(2 * CHUNK_BYTES as usize);
        let wat = format!(
            "(module (memory 1) (data $short \"short\") (data $active (i32.const 0) \"{active}\") (func {body}))"
        );
        let wasm = wat::parse_str(wat).unwrap();
        assert!(matches!(interruptible(&wasm).unwrap(), Cow::Borrowed(same) if same == wasm), "{body}");
    }
}

#[test]
fn unrelated_sections_are_unchanged() {
    let custom = r#"(module (@custom "before" (before type) "first") (@custom "after" (after last) "last")"#;
    let wat = guest().replacen("(module", custom, 1);
    let (before, after) = (wat::parse_str(&wat).unwrap(), rewritten(&wat));
    let changed: Vec<u8> = sections(&before)
        .into_iter()
        .zip(sections(&after))
        .filter(|((_, old), (_, new))| before[old.clone()] != after[new.clone()])
        .map(|((id, _), (other, _))| {
            assert_eq!(id, other);
            id
        })
        .collect();
    // Types, functions, code, and of the custom sections the names.
    assert_eq!(changed, [1, 3, 10, 0]);
    assert_eq!(sections(&before).len(), sections(&after).len());
}

#[test]
fn an_unreadable_name_section_is_unchanged() {
    let wat = r#"(module (@custom "name" "\01\05\ff\ff\ff\ff\ff") (memory 1)
                   (func (param i32) (memory.fill (i32.const 0) (i32.const 0) (local.get 0))))"#;
    let wasm = rewritten(wat);
    let names = sections(&wasm).into_iter().find(|(id, _)| *id == 0).unwrap().1;
    assert_eq!(&wasm[names], b"\x04name\x01\x05\xff\xff\xff\xff\xff");
    Module::new(&engine(), wasm).unwrap();
}

#[test]
fn a_backtrace_names_the_operation_and_its_caller() {
    let [_, module] = &*MODULES;
    let mut store = Store::new(module.engine(), ());
    store.set_epoch_deadline(1);
    let instance = Instance::new(&mut store, module, &[]).unwrap();
    let function = instance.get_typed_func::<(u32, u32, u32), ()>(&mut store, "fill").unwrap();
    let error = function.call(&mut store, (0, 0, u32::MAX)).unwrap_err();
    let backtrace = error.downcast_ref::<WasmBacktrace>().unwrap();
    let names: Vec<_> = backtrace.frames().iter().filter_map(|frame| frame.func_name()).collect();
    assert_eq!(names, ["pinion:memory.fill", "fill"]);
}

#[test]
fn functions_that_are_imported_exported_and_called_keep_their_indices() {
    let wat = r#"(module
        (import "host" "two" (func $two (result i32)))
        (memory (export "memory") 1) (table 1 funcref) (elem (i32.const 0) $three)
        (type $number (func (result i32)))
        (func $three (result i32) (i32.const 3))
        (func $start (memory.fill (i32.const 0) (call $two) (i32.mul (i32.const 30000) (call $two))))
        (start $start)
        (func (export "sum") (result i32)
            (i32.add (i32.load8_u (i32.const 59999)) (call_indirect (type $number) (i32.const 0)))))"#;
    let module = Module::new(&engine(), rewritten(wat)).unwrap();
    let mut store = Store::new(module.engine(), ());
    store.set_epoch_deadline(1);
    let two = wasmtime::Func::wrap(&mut store, || 2);
    let instance = Instance::new(&mut store, &module, &[two.into()]).unwrap();
    let sum = instance.get_typed_func::<(), i32>(&mut store, "sum").unwrap();
    assert_eq!(sum.call(&mut store, ()).unwrap(), 5);
}
