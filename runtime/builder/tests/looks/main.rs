//! Rewritten code looks at the epoch wherever it could otherwise run for too long, and behaves as before.

mod guests;
mod paths;

use std::borrow::Cow;

use pinion_builder::interruptible::{BUDGET, interruptible};
use proptest::prelude::*;
use wasmparser::{Operator, Parser, Payload};
use wasmtime::{Caller, Engine, Instance, Linker, Module, Store, Trap, UpdateDeadline};

use self::guests::{FUNCTIONS, Part};

fn engine() -> Engine {
    Engine::new(&pinion_guest::settings::config()).unwrap()
}

fn rewritten(wat: &str) -> (Vec<u8>, Vec<u8>) {
    let wasm = wat::parse_str(wat).unwrap();
    let rewritten = interruptible(&wasm).unwrap().into_owned();
    (wasm, rewritten)
}

/// Returns how many empty loops, which are looks, a module has.
fn looks(wasm: &[u8]) -> usize {
    let mut looks = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        if let Payload::CodeSectionEntry(body) = payload.unwrap() {
            let code: Vec<_> = body.get_operators_reader().unwrap().into_iter().map(Result::unwrap).collect();
            looks += code.windows(2).filter(|two| matches!(two, [Operator::Loop { .. }, Operator::End])).count();
        }
    }
    looks
}

/// How much a guest does without a look, counted by the guest itself.
#[derive(Default)]
struct Stretch {
    /// Calls of `host.did`.
    done: u32,
    at_last_look: u32,
    longest: u32,
    looks: u32,
}

impl Stretch {
    fn look(&mut self, done: u32) {
        self.longest = self.longest.max(done - self.at_last_look);
        self.at_last_look = done;
        self.looks += 1;
    }
}

/// Runs a guest's `run` with a deadline that has always passed, so that each look is counted. Before each count the epoch advances, because
/// a look at an epoch that was read earlier would be missed. The first word of the guest's memory and its host calls count what the guest
/// has done.
fn stretch(wasm: &[u8]) -> Stretch {
    let engine = engine();
    let module = Module::new(&engine, wasm).unwrap();
    let mut store = Store::new(&engine, Stretch::default());
    store.set_epoch_deadline(0);
    let mut linker = Linker::new(&engine);
    let did = |mut caller: Caller<'_, Stretch>| caller.data_mut().done += 1;
    linker.func_wrap("pinion", "yield", did).unwrap().func_wrap("pinion", "random", did).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let moved = engine.clone();
    store.epoch_deadline_callback(move |mut context| {
        let mut word = [0; 4];
        memory.read(&context, 0, &mut word).unwrap();
        let stretch = context.data_mut();
        stretch.look(stretch.done + u32::from_le_bytes(word));
        moved.increment_epoch();
        Ok(UpdateDeadline::Continue(0))
    });
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    run.call(&mut store, ()).unwrap();
    let mut word = [0; 4];
    memory.read(&store, 0, &mut word).unwrap();
    let mut stretch = store.into_data();
    stretch.look(stretch.done + u32::from_le_bytes(word));
    stretch
}

/// The code with which a guest counts what it has done.
const COUNT: &str = "(i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))";

#[test]
fn a_long_straight_line_is_interrupted_again_and_again() {
    let lines = COUNT.repeat(10_000);
    let (before, after) =
        rewritten(&format!("(module (memory (export \"memory\") 1) (func (export \"run\") {lines}))"));
    assert_eq!(stretch(&before).longest, 10_000);
    let stretch = stretch(&after);
    // Each line is six instructions, two of which access memory that is present.
    assert!((1..=BUDGET / 16).contains(&stretch.longest), "{} lines in one go", stretch.longest);
    // One at the beginning, those in between, and the test's own at the end.
    assert_eq!(stretch.looks as usize, 1 + looks(&after) + 1);
}

#[test]
fn writes_to_many_fresh_pages_are_interrupted_sooner() {
    let by_constant = |n: usize| format!("(i32.store (i32.const {}) (i32.const 1))", n * 4096 + 16);
    let by_offset = |n: usize| format!("(i32.store offset={} (local.get 0) (i32.const 1))", n * 4096 + 16);
    let by_local = |_| {
        let next = "(local.set 0 (i32.add (local.get 0) (i32.const 4096)))";
        format!("{next} (i32.store offset=16 (local.get 0) (i32.const 1))")
    };
    for page in [&by_constant as &dyn Fn(usize) -> String, &by_offset, &by_local] {
        let pages: String = (0..1_000).map(|n| page(n) + COUNT).collect();
        let wat = format!("(module (memory (export \"memory\") 64) (func (export \"run\") (local i32) {pages}))");
        let stretch = stretch(&rewritten(&wat).1);
        assert!((1..=16).contains(&stretch.longest), "{} pages in one go: {}", stretch.longest, page(1));
    }
}

#[test]
fn straight_host_calls_are_interrupted_after_eight_and_after_each_long_one() {
    for (call, at_once) in [("yield", 8), ("random", 1)] {
        let calls = "(call 0)".repeat(1_000);
        let wat = format!(
            "(module (import \"pinion\" \"{call}\" (func)) (memory (export \"memory\") 1) (func (export \"run\") {calls}))"
        );
        let (before, after) = rewritten(&wat);
        assert_eq!(stretch(&before).longest, 1_000);
        assert_eq!(stretch(&after).longest, at_once, "{call}");
    }
}

#[test]
fn the_way_back_out_of_a_recursion_is_interrupted_at_each_step() {
    let recursion = |call: &str| {
        format!(
            "(module (type $down (func (param i32))) (memory (export \"memory\") 1)
               (table 1 funcref) (elem (i32.const 0) $down)
               (func $down (param i32)
                 (if (local.get 0) (then {call}))
                 {COUNT})
               (func (export \"run\") (call $down (i32.const 500))))"
        )
    };
    let argument = "(i32.sub (local.get 0) (i32.const 1))";
    for call in [
        format!("(call $down {argument})"),
        format!("(call_indirect (type $down) {argument} (i32.const 0))"),
        format!("(block (br_if 0 (i32.eqz (local.get 0))) (call $down {argument}))"),
    ] {
        let (before, after) = rewritten(&recursion(&call));
        assert_eq!(stretch(&before).longest, 501, "{call}");
        assert_eq!(stretch(&after).longest, 1, "{call}");
    }
}

#[test]
fn tables_are_changed_between_two_looks() {
    let change = "(table.fill 0 (i32.const 0) (ref.null func) (i32.const 4)) (call 0)";
    let wat = format!(
        "(module (import \"pinion\" \"yield\" (func)) (memory (export \"memory\") 1) (table 8 funcref)
           (func (export \"run\") {}))",
        change.repeat(100)
    );
    assert_eq!(stretch(&rewritten(&wat).1).longest, 1);
}

/// The epoch advances in the middle of straight code, through the host.
#[test]
fn a_guest_is_stopped_within_a_few_host_calls_of_its_deadline() {
    let calls = "(call 0)".repeat(1_000);
    let wat = format!("(module (import \"pinion\" \"yield\" (func)) (func (export \"run\") {calls}))");
    let (_, wasm) = rewritten(&wat);
    let engine = engine();
    let mut store = Store::new(&engine, 0_u32);
    store.set_epoch_deadline(1);
    let mut linker = Linker::new(&engine);
    let call = |mut caller: Caller<'_, u32>| {
        *caller.data_mut() += 1;
        if *caller.data() == 100 {
            caller.engine().increment_epoch();
        }
    };
    linker.func_wrap("pinion", "yield", call).unwrap();
    let instance = linker.instantiate(&mut store, &Module::new(&engine, wasm).unwrap()).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    let error = run.call(&mut store, ()).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&Trap::Interrupt));
    assert!((100..108).contains(store.data()), "it went on to call {}", store.data());
}

#[test]
fn code_that_is_short_on_each_path_is_unchanged() {
    let additions = |count: usize| "(local.set 0 (i32.add (local.get 0) (i32.const 1)))".repeat(count);
    let (most, half) = (additions(2_000), additions(1_000));
    for body in [
        // One path, and two paths of which only one is taken.
        most.clone(),
        format!("(if (local.get 0) (then {most}) (else {most}))"),
        // Looks that exist anyway.
        format!("{most} (loop {most} (br_if 0 (local.get 0)))"),
        // Unreachable code.
        format!("{half} (return) {most}"),
        format!("(block {half} (br 0) {most}) {half}"),
        // Code that ends with a call, because the caller looks; or code before something that looks.
        format!("{most} (call 0 (local.get 0))"),
        "(call 0 (local.get 0)) (return)".to_owned(),
        "(call 0 (local.get 0)) (unreachable)".to_owned(),
        "(call 0 (local.get 0)) (loop)".to_owned(),
        "(loop (call 0 (local.get 0)) (br 0))".to_owned(),
    ] {
        let wasm = wat::parse_str(format!("(module (func (param i32) {body}))")).unwrap();
        assert!(matches!(interruptible(&wasm).unwrap(), Cow::Borrowed(same) if same == wasm), "{body}");
    }
}

#[test]
fn one_look_is_added_where_the_longest_of_joining_paths_would_be_too_long() {
    let additions = |count: usize| "(local.set 0 (i32.add (local.get 0) (i32.const 1)))".repeat(count);
    let (most, half, little) = (additions(2_000), additions(1_100), additions(10));
    for body in [
        additions(2_100),
        format!("{half} {half}"),
        format!("(if (local.get 0) (then {most})) {half}"),
        format!("(if (local.get 0) (then {little}) (else {most})) {half}"),
        format!("(block (br_if 0 (local.get 0)) {most}) {half}"),
        format!("(block (block {most} (br_table 0 1 1 0 (local.get 0))) (return)) {half}"),
        format!("(loop {little}) {most} {half}"),
        "(call 0 (local.get 0)) (local.set 0 (i32.const 1))".to_owned(),
        "(block (call 0 (local.get 0)) (br 0))".to_owned(),
        "(block (call 0 (local.get 0)))".to_owned(),
    ] {
        let (before, after) = rewritten(&format!("(module (func (param i32) {body}))"));
        assert_eq!(looks(&after) - looks(&before), 1, "{body}");
        Module::new(&engine(), after).unwrap();
    }
}

#[test]
fn names_of_places_in_the_code_are_dropped_and_names_of_functions_and_locals_are_kept() {
    let wat = r#"(module
        (func $callee (param $number i32) (if $label (local.get 0) (then (unreachable))))
        (func $caller (param $number i32)
            (call $callee (local.get 0)) (block $label (br $label))
            (@metadata.code.branch_hint "\00") (if (local.get 0) (then (nop))))
        (@custom "metadata.other" (after last) "kept"))"#;
    let sections = |wasm: &[u8]| -> Vec<String> {
        let custom = |payload: Payload<'_>| match payload {
            Payload::CustomSection(section) => Some(section.name().to_owned()),
            _ => None,
        };
        Parser::new(0).parse_all(wasm).filter_map(|payload| custom(payload.unwrap())).collect()
    };
    let (before, after) = rewritten(wat);
    assert!(sections(&before).contains(&"metadata.code.branch_hint".to_owned()), "{:?}", sections(&before));
    assert!(!sections(&after).contains(&"metadata.code.branch_hint".to_owned()), "{:?}", sections(&after));
    assert!(sections(&after).contains(&"metadata.other".to_owned()), "{:?}", sections(&after));
    let text = String::from_utf8_lossy(&after);
    assert!(text.contains("callee") && text.contains("number"));
    // Names of blocks go by number.
    assert!(!text.contains("label"));
}

/// Code cannot contain what the walk through it does not know.
#[test]
fn proposals_with_other_control_flow_are_off() {
    let engine = engine();
    for wat in [
        "(module (tag $e) (func (try_table (throw $e))))",
        "(module (func (return_call 0)))",
        "(module (type $t (array i8)) (func (drop (array.new_default $t (i32.const 1)))))",
        "(module (memory 1 1 shared) (func (drop (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1)))))",
        "(module (memory i64 1))",
        "(module (table 1 externref))",
        "(module (type $f (func)) (type $c (cont $f)) (func (param (ref $c)) (resume $c (local.get 0))))",
    ] {
        let wasm = wat::parse_str(wat).unwrap();
        assert!(Module::validate(&engine, &wasm).is_err(), "{wat}");
    }
}

/// How a function call ends, and the state that it leaves.
#[derive(Debug, PartialEq)]
struct Outcome {
    result: Result<i32, Trap>,
    fuel: i32,
    host_calls: u32,
    memory: Vec<u8>,
}

/// Whether a guest is interrupted at each of its looks.
#[derive(Clone, Copy)]
enum Interrupted {
    Never,
    Always,
}

fn outcome(module: &Module, function: u32, x: i32, interrupted: Interrupted) -> Outcome {
    let engine = module.engine();
    let mut store = Store::new(engine, 0_u32);
    match interrupted {
        Interrupted::Never => store.set_epoch_deadline(1),
        Interrupted::Always => {
            store.set_epoch_deadline(0);
            store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Continue(0)));
        }
    }
    let mut linker = Linker::new(engine);
    let call = |mut caller: Caller<'_, u32>| *caller.data_mut() += 1;
    linker.func_wrap("pinion", "yield", call).unwrap().func_wrap("pinion", "random", call).unwrap();
    let instance: Instance = linker.instantiate(&mut store, module).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, &format!("f{function}")).unwrap();
    let result = run.call(&mut store, x).map_err(|error| *error.downcast_ref::<Trap>().unwrap());
    let fuel = instance.get_global(&mut store, "fuel").unwrap().get(&mut store).i32().unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap().data(&store).to_vec();
    Outcome { result, fuel, host_calls: *store.data(), memory }
}

fn functions() -> impl Strategy<Value = Vec<Vec<Part>>> {
    prop::collection::vec(guests::parts(), FUNCTIONS as usize)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_path_through_a_rewritten_guest_costs_more_than_the_budget_between_two_looks(functions in functions()) {
        let wasm = interruptible(&guests::module(&functions)).unwrap().into_owned();
        let costliest = paths::costliest_stretch(&wasm, FUNCTIONS);
        prop_assert!(costliest <= BUDGET, "{costliest}");
    }
}

proptest! {
    // Each guest is compiled twice.
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn a_rewritten_guest_behaves_as_before_interrupted_or_not(functions in functions(), x in any::<i32>()) {
        let engine = engine();
        let wasm = guests::module(&functions);
        let [before, after] = [&wasm[..], &interruptible(&wasm).unwrap()].map(|wasm| Module::new(&engine, wasm).unwrap());
        for function in 0..FUNCTIONS {
            let expected = outcome(&before, function, x, Interrupted::Never);
            for interrupted in [Interrupted::Never, Interrupted::Always] {
                prop_assert!(outcome(&after, function, x, interrupted) == expected, "{:?}", expected.result);
            }
        }
    }
}
