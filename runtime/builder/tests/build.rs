//! The whole way from a module to a template, and every way in which an initialisation can go wrong.

use std::cell::RefCell;
use std::sync::Arc;

use pinion_builder::build::{Built, build};
use pinion_builder::initialise::Wishes;
use pinion_builder_client::protocol::{Said, Start};

const POOL: [u32; 8] = [u32::from_le_bytes(*b"PIN1"), 4, 1600, 4096, 4, 1024, 2048, 0];

/// A module with this initialisation.
fn guest(init: &str) -> String {
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (import "pinion" "log" (func $log (param i32 i32 i32)))
            (import "pinion" "random" (func $random (param i32 i32) (result i32)))
            (import "pinion" "config" (func $config (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "random_get" (func $seed (param i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\10\00\00\04\00\00\00\00\04\00\00\00\08\00\00")
            (data (i32.const 100) "too blue")
            (func (export "pinion_abi_v2"))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func (export "pinion_run") (drop (call $wait)))
            (func $log_line (call $log (i32.const 1) (i32.const 100) (i32.const 8)))
            (func (export "pinion_init") (result i32) {init}))"#
    )
}

fn wishes() -> Wishes {
    Wishes { config: Arc::from(&b"allow all"[..]), files: None, memory_bytes_max: 1 << 20, fields: Arc::new([]) }
}

fn built(wat: &str) -> Result<Built, String> {
    build(&wat::parse_str(wat).unwrap(), &wishes(), |_| ()).map_err(|refused| refused.to_string())
}

fn refusal(init: &str) -> String {
    built(&guest(init)).map_or_else(|refused| refused, |_| "it was built".to_owned())
}

#[test]
fn a_template_starts_where_its_initialisation_ended() {
    let Built { facts, .. } = built(&guest("(drop (memory.grow (i32.const 2))) (i32.const 0)")).unwrap();
    assert_eq!(facts.memory_bytes, 3 * 65536);
    let Start::Snapshot(pool) = facts.start else { panic!("no snapshot was taken: {:?}", facts.start) };
    assert_eq!(pool.0, POOL);
}

#[test]
fn the_configuration_is_there_during_the_initialisation() {
    // Refuses with the length of what it got.
    let init = "(call $config (i32.const 200) (i32.const 100))";
    assert_eq!(refusal(init), "its pinion_init refused with status 9");
}

#[test]
fn what_went_wrong_is_said_in_a_sentence() {
    assert_eq!(refusal("(call $log_line) (i32.const 1)"), "its pinion_init refused with status 1: too blue");
    let trapped = refusal("(call $log_line) unreachable");
    let expected =
        "it trapped during its initialisation: wasm trap: wasm `unreachable` instruction executed: too blue\n";
    assert!(trapped.starts_with(expected), "{trapped}");
    assert_eq!(refusal("(loop $l (br $l)) (i32.const 0)"), "its initialisation took longer than 2000 ms");
    assert_eq!(refusal("(drop (call $wait)) (i32.const 0)"), "it called pinion.wait during its initialisation");
    assert_eq!(
        refusal("(call $exit (i32.const 3)) (i32.const 0)"),
        "it exited with status 3 during its initialisation"
    );
    let deep = built(
        &guest("(call $deep)").replace("(func $log_line", "(func $deep (result i32) (call $deep)) (func $log_line"),
    );
    assert!(deep.unwrap_err().starts_with("it trapped during its initialisation: wasm trap: call stack exhausted"));
}

#[test]
fn nothing_secret_gets_into_a_snapshot_but_hash_tables_get_their_seed() {
    let secret = refusal("(call $random (i32.const 200) (i32.const 16))");
    assert!(secret.starts_with("it asked for random bytes, which every instance would share"), "{secret}");
    assert_eq!(refusal("(call $seed (i32.const 200) (i32.const 16))"), "it was built");
}

#[test]
fn memory_is_held_to_the_limit_from_the_start() {
    let grow = "(block $full (loop $more
                  (br_if $full (i32.eq (memory.grow (i32.const 1)) (i32.const -1))) (br $more))) (memory.size)";
    assert_eq!(refusal(grow), "its pinion_init refused with status 16");
    let too_large = guest("(i32.const 0)").replace("\"memory\") 1", "\"memory\") 17");
    assert_eq!(
        built(&too_large).unwrap_err(),
        "it starts with 1088 KiB of memory, and memory_limit_kib is 1024: raise it"
    );
}

#[test]
fn a_pool_outside_the_memory_is_refused() {
    let wild = guest("(i32.const 0)").replace("(result i32) (i32.const 16)", "(result i32) (i32.const -16)");
    assert_eq!(built(&wild).unwrap_err(), "its pinion_pool names 0xfffffff0, which is outside its memory");
}

/// A module with the metrics that this data has, at 256: a header of four words, and then entries of ten.
fn with_metrics(data: &str) -> String {
    guest("(i32.const 0)").replace(
        "(func $log_line",
        &format!(
            r#"(data (i32.const 256) "{data}") (data (i32.const 512) "hits\nHits.\nway=in")
            (func (export "pinion_metrics") (result i32) (i32.const 256)) (func $log_line"#
        ),
    )
}

const HEADER: &str = "PMT1\\01\\00\\00\\00\\10\\01\\00\\00\\00\\00\\00\\00";
/// A counter at 640.
const ENTRY: &str = "\\01\\00\\00\\00\\80\\02\\00\\00\\00\\02\\00\\00\\04\\00\\00\\00\\05\\02\\00\\00\\05\\00\\00\\00\\0b\\02\\00\\00\\06\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00\\00";

#[test]
fn metrics_are_read_when_the_template_is_made_and_known_of_it() {
    let Built { facts, .. } = built(&with_metrics(&format!("{HEADER}{ENTRY}"))).unwrap();
    let [metric] = &facts.metrics[..] else { panic!("{:?}", facts.metrics) };
    assert_eq!((&*metric.name, &*metric.help, metric.value), ("hits", "Hits.", 640));
    assert_eq!(metric.labels, [("way".to_owned(), "in".to_owned())]);
    assert_eq!(built(&guest("(i32.const 0)")).unwrap().facts.metrics, []);
}

#[test]
fn metrics_that_are_not_what_they_have_to_be_are_refused_by_name() {
    let refusal = |data: &str| built(&with_metrics(data)).map_or_else(|refused| refused, |_| "it was built".to_owned());
    assert_eq!(
        refusal("nonsense"),
        "its pinion_metrics is unusable: it names 0x736e6f6e where a header starts with 0x31544d50"
    );
    let wild = ENTRY.replacen("\\80\\02\\00\\00", "\\f8\\ff\\ff\\ff", 1);
    assert_eq!(
        refusal(&format!("{HEADER}{wild}")),
        "its pinion_metrics is unusable: metric 0 (\"hits\"): its value at 0xfffffff8 is outside its memory"
    );
}

#[test]
fn who_panics_is_refused_with_what_it_says_of_it() {
    let panics = guest("(call $panic (i32.const 100) (i32.const 8)) (i32.const 0)")
        .replace("(memory (export", "(import \"pinion\" \"panic\" (func $panic (param i32 i32))) (memory (export");
    let refused = built(&panics).unwrap_err();
    assert!(refused.starts_with("it panicked during its initialisation: too blue\n"), "{refused}");
}

#[test]
fn a_module_that_no_snapshot_can_be_taken_of_is_built_without_one() {
    let wat = guest("(i32.const 1)").replace(
        "(func $log_line",
        "(table 1 funcref) (func (table.set (i32.const 0) (ref.null func))) (func $log_line",
    );
    let Built { facts, .. } = built(&wat).unwrap();
    assert_eq!(facts.start, Start::Module("unsupported `table.set` instruction".to_owned()));
}

#[test]
fn phases_and_lines_are_told_in_their_order() {
    thread_local! {
        static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }
    let wasm = wat::parse_str(guest("(call $log_line) (i32.const 0)")).unwrap();
    let say = |said: &Said| SAID.with_borrow_mut(|all| all.push(said.to_string()));
    build(&wasm, &wishes(), say).unwrap();
    let expected = ["phase: validating", "phase: initialising", "log 1: too blue", "phase: compiling"];
    assert_eq!(SAID.take(), expected);
}
