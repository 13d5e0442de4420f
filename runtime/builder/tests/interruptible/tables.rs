//! Bulk table operations in pieces behave as in one piece, and are interrupted in between.

use std::fmt::Write;
use std::sync::LazyLock;

use pinion_builder::interruptible::{CHUNK_ELEMENTS, interruptible};
use proptest::prelude::*;
use wasmparser::Payload;
use wasmtime::{AsContextMut, Instance, Module, Ref, Store, Table, Trap, UpdateDeadline};

use crate::{engine, rewritten};

const ELEMENTS: u32 = 4 * CHUNK_ELEMENTS;
/// Of the passive segment.
const SEGMENT_ELEMENTS: u32 = 3 * CHUNK_ELEMENTS + 30;
/// The number of functions among the table's elements.
const KINDS: u32 = 8;

/// Returns a guest with every operation, as a function of the same name; fills write a function or null.
fn guest() -> String {
    let mut functions = String::new();
    for kind in 0..KINDS {
        writeln!(functions, "(func $k{kind} (export \"k{kind}\") (result i32) (i32.const {kind}))").unwrap();
    }
    let listed = |count: u32, step: u32| -> String {
        (0..count).map(|i| format!("$k{} ", (i.wrapping_mul(step) >> 9) % KINDS)).collect()
    };
    let (active, long) = (listed(ELEMENTS, 40_503), listed(SEGMENT_ELEMENTS, 30_011));
    let filler = "(if (result funcref) (i32.and (local.get 1) (i32.const 1))
                    (then (ref.func $k1)) (else (ref.null func)))";
    format!(
        r#"(module
            (memory 1)
            (table $t (export "table") {ELEMENTS} funcref)
            {functions}
            (elem $active (i32.const 0) func {active})
            (elem $long func {long})
            (elem $short func $k1 $k2)
            (func $fill (export "fill") (param i32 i32 i32)
                (table.fill $t (local.get 0) {filler} (local.get 2)))
            (func (export "copy") (param i32 i32 i32)
                (table.copy $t $t (local.get 0) (local.get 1) (local.get 2)))
            (func (export "init") (param i32 i32 i32)
                (table.init $t $long (local.get 0) (local.get 1) (local.get 2)))
            (func (export "init_short") (param i32 i32 i32)
                (table.init $t $short (local.get 0) (local.get 1) (local.get 2)))
            (func (export "init_active") (param i32 i32 i32)
                (table.init $t $active (local.get 0) (local.get 1) (local.get 2)))
            (func (export "init_dropped") (param i32 i32 i32)
                (elem.drop $long)
                (table.init $t $long (local.get 0) (local.get 1) (local.get 2)))
            (func (export "init_constant") (param i32 i32 i32)
                (table.init $t $long (local.get 0) (local.get 1) (i32.const {SEGMENT_ELEMENTS})))
            (func (export "fill_and_copy") (param i32 i32 i32)
                (call $fill (local.get 0) (local.get 1) (local.get 2))
                (memory.fill (i32.const 0) (i32.const 0) (local.get 2))
                (table.copy $t $t (i32.const 3) (i32.const 300) (i32.const {CHUNK_ELEMENTS}))))"#
    )
}

const OPERATIONS: [&str; 8] =
    ["fill", "copy", "init", "init_short", "init_active", "init_dropped", "init_constant", "fill_and_copy"];

/// The guest as written, and as rewritten.
static MODULES: LazyLock<[Module; 2]> = LazyLock::new(|| {
    let engine = engine();
    [wat::parse_str(guest()).unwrap(), rewritten(&guest())].map(|wasm| Module::new(&engine, wasm).unwrap())
});

/// An instance, and the identities of its functions.
struct Guest {
    instance: Instance,
    table: Table,
    kinds: Vec<usize>,
}

impl Guest {
    fn new<T: 'static>(store: &mut Store<T>, module: &Module) -> Self {
        let instance = Instance::new(&mut *store, module, &[]).unwrap();
        let table = instance.get_table(&mut *store, "table").unwrap();
        let kinds = (0..KINDS)
            .map(|kind| instance.get_func(&mut *store, &format!("k{kind}")).unwrap().to_raw(&mut *store).addr())
            .collect();
        Self { instance, table, kinds }
    }

    fn call<T>(&self, store: &mut Store<T>, operation: &str, arguments: (u32, u32, u32)) -> Option<Trap> {
        let function = self.instance.get_typed_func::<(u32, u32, u32), ()>(&mut *store, operation).unwrap();
        function.call(store, arguments).err().map(|error| *error.downcast_ref::<Trap>().unwrap())
    }
}

/// Returns which function each element is, if it is one.
fn elements(mut store: impl AsContextMut, table: Table, kinds: &[usize]) -> Vec<Option<usize>> {
    let kind = |at: u32| match table.get(&mut store, at.into()).unwrap() {
        Ref::Func(Some(function)) => {
            let address = function.to_raw(&mut store).addr();
            Some(kinds.iter().position(|kind| *kind == address).unwrap())
        }
        _ => None,
    };
    (0..ELEMENTS).map(kind).collect()
}

fn outcome(module: &Module, operation: &str, arguments: (u32, u32, u32)) -> (Option<Trap>, Vec<Option<usize>>) {
    let mut store = Store::new(module.engine(), ());
    store.set_epoch_deadline(1);
    let guest = Guest::new(&mut store, module);
    let trap = guest.call(&mut store, operation, arguments);
    (trap, elements(&mut store, guest.table, &guest.kinds))
}

fn does_the_same(operation: &str, arguments: (u32, u32, u32)) {
    let [expected, actual] = MODULES.each_ref().map(|module| outcome(module, operation, arguments));
    assert_eq!(actual.0, expected.0, "{operation} {arguments:?} ends otherwise");
    let other = actual.1.iter().zip(&expected.1).position(|(actual, expected)| actual != expected);
    assert_eq!(other, None, "{operation} {arguments:?} leaves another element there");
}

/// Numbers around the multiples of a chunk, the ends of segment and table, and the largest number.
fn numbers() -> impl Strategy<Value = u32> {
    let chunks = (0..=ELEMENTS / CHUNK_ELEMENTS).prop_map(|n| n * CHUNK_ELEMENTS);
    let near = prop_oneof![4 => chunks, 1 => Just(SEGMENT_ELEMENTS), 1 => Just(0), 1 => Just(1 << 31)];
    let edges = (near, -2..=2_i32).prop_map(|(near, off)| near.wrapping_add_signed(off));
    prop_oneof![3 => 0..ELEMENTS / 2, 3 => edges, 1 => any::<u32>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_rewritten_operation_moves_the_same_elements_and_ends_in_the_same_trap(
        operation in proptest::sample::select(&OPERATIONS[..]), to in numbers(), from in numbers(), count in numbers(),
    ) {
        does_the_same(operation, (to, from, count));
    }

    #[test]
    fn a_copy_onto_itself_moves_the_same_elements_whichever_way_it_overlaps(
        to in 0..ELEMENTS, by in -3 * CHUNK_ELEMENTS as i32..3 * CHUNK_ELEMENTS as i32, count in 0..ELEMENTS,
    ) {
        let from = to.saturating_add_signed(by).min(ELEMENTS);
        does_the_same("copy", (to, from, count.min(ELEMENTS - to.max(from))));
    }

    #[test]
    fn an_operation_that_ends_at_the_last_element_is_done_and_one_more_is_a_trap(
        operation in proptest::sample::select(&OPERATIONS[..]), to in 0..ELEMENTS, from in 0..ELEMENTS, past in 0..2_u32,
    ) {
        does_the_same(operation, (to, from, ELEMENTS - to + past));
        does_the_same(operation, (to, from, ELEMENTS - from + past));
        does_the_same(operation, (to, from, SEGMENT_ELEMENTS.saturating_sub(from) + past));
    }
}

#[test]
fn an_out_of_bounds_operation_traps_before_an_element_is_written() {
    let [_, module] = &*MODULES;
    let (_, untouched) = outcome(module, "fill", (0, 0, 0));
    let beyond = ELEMENTS - 2 * CHUNK_ELEMENTS;
    for (operation, to, from, count) in [
        ("fill", beyond, 1, 2 * CHUNK_ELEMENTS + 1),
        ("copy", beyond, 0, 2 * CHUNK_ELEMENTS + 1),
        ("copy", 0, beyond, 2 * CHUNK_ELEMENTS + 1),
        ("init", 0, 0, SEGMENT_ELEMENTS + 1),
        ("init_dropped", 0, 0, SEGMENT_ELEMENTS),
    ] {
        let (trap, elements) = outcome(module, operation, (to, from, count));
        assert_eq!(trap, Some(Trap::TableOutOfBounds), "{operation}");
        assert!(elements == untouched, "{operation} has written");
    }
}

/// Returns the most elements that change between two looks at the epoch.
fn longest_stretch(module: &Module, operation: &str, arguments: (u32, u32, u32)) -> usize {
    let changed = |before: &[Option<usize>], after: &[Option<usize>]| {
        before.iter().zip(after).filter(|(before, after)| before != after).count()
    };
    let mut store = Store::new(module.engine(), (Vec::new(), 0));
    store.set_epoch_deadline(1);
    let guest = Guest::new(&mut store, module);
    // The deadline has always passed, so that each look is counted.
    store.set_epoch_deadline(0);
    // Places that a copy connects never hold the same element.
    for at in 0..ELEMENTS {
        let kind = format!("k{}", at / 100 % KINDS);
        let function = guest.instance.get_func(&mut store, &kind).unwrap();
        guest.table.set(&mut store, at.into(), Ref::Func(Some(function))).unwrap();
    }
    store.data_mut().0 = elements(&mut store, guest.table, &guest.kinds);
    let (table, kinds) = (guest.table, guest.kinds.clone());
    store.epoch_deadline_callback(move |mut context| {
        let now = elements(&mut context, table, &kinds);
        let (last, longest) = context.data_mut();
        *longest = changed(last, &now).max(*longest);
        *last = now;
        Ok(UpdateDeadline::Continue(0))
    });
    assert_eq!(guest.call(&mut store, operation, arguments), None);
    let now = elements(&mut store, guest.table, &guest.kinds);
    let (last, longest) = store.data();
    changed(last, &now).max(*longest)
}

#[test]
fn between_two_looks_at_the_epoch_at_most_a_chunk_of_a_table_is_moved() {
    for (operation, arguments) in [
        ("fill", (0, 0, ELEMENTS)),
        ("copy", (0, 100, ELEMENTS - 100)),
        ("copy", (100, 0, ELEMENTS - 100)),
        ("init", (0, 0, SEGMENT_ELEMENTS)),
        ("init_constant", (0, 0, 0)),
        ("fill_and_copy", (0, 0, ELEMENTS)),
    ] {
        let [at_once, in_pieces] =
            MODULES.each_ref().map(|module| longest_stretch(module, operation, arguments) as u32);
        assert!(at_once > 2 * CHUNK_ELEMENTS, "{operation} was to be long, and is of {at_once} elements");
        assert!((1..=CHUNK_ELEMENTS).contains(&in_pieces), "{operation} moves {in_pieces} elements in one go");
    }
}

#[test]
fn operations_on_a_few_elements_are_not_replaced() {
    let wat = format!(
        "(module (table 1000 funcref) (elem $short func $run $run)
            (func $run (param i32)
                (table.copy (i32.const 1) (i32.const 2) (i32.const {CHUNK_ELEMENTS}))
                (table.init $short (i32.const 1) (i32.const 0) (local.get 0))))"
    );
    let wasm = wat::parse_str(wat).unwrap();
    let functions = |wasm: &[u8]| {
        let payloads = wasmparser::Parser::new(0).parse_all(wasm);
        payloads.filter(|payload| matches!(payload, Ok(Payload::CodeSectionEntry(_)))).count()
    };
    assert_eq!(functions(&interruptible(&wasm).unwrap()), functions(&wasm));
}
