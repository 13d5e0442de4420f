//! All steps from a module to a template, and every way in which an initialisation can fail.

use std::cell::RefCell;
use std::sync::Arc;

use pinion_abi::LogLevel;
use pinion_builder::build::{Built, build};
use pinion_builder::initialise::Wishes;
use pinion_builder_client::protocol::{BuilderMessage, Phase, Start};

const POOL: [u32; 8] = [u32::from_le_bytes(*b"PIN1"), 4, 1600, 4096, 4, 1024, 2048, 0];

/// Returns a module with this initialisation.
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
            (func (export "pinion_abi_v3"))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func (export "pinion_run") (drop (call $wait)))
            (func $log_line (call $log (i32.const 1) (i32.const 100) (i32.const 8)))
            (func (export "pinion_init") (result i32) {init}))"#
    )
}

fn wishes() -> Wishes {
    Wishes {
        config: Arc::from(&b"allow all"[..]),
        files: None,
        memory_bytes_max: 1 << 20,
        fields: Arc::new([]),
        keys: Arc::new([]),
        models: Arc::new([]),
    }
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
fn the_configuration_is_available_during_the_initialisation() {
    // Refuses with the length of the configuration that it got.
    let init = "(call $config (i32.const 200) (i32.const 100))";
    assert_eq!(refusal(init), "its pinion_init refused with status 9");
}

#[test]
fn every_failure_is_explained_in_a_sentence() {
    assert_eq!(refusal("(call $log_line) (i32.const 1)"), "its pinion_init refused with status 1: too blue");
    let trapped = refusal("(call $log_line) unreachable");
    let expected =
        "it trapped during its initialisation: wasm trap: wasm `unreachable` instruction executed: too blue\n";
    assert!(trapped.starts_with(expected), "{trapped}");
    assert_eq!(
        refusal("(loop $l (br $l)) (i32.const 0)"),
        "its initialisation took longer than 2000 ms of processor time"
    );
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
fn no_random_bytes_get_into_a_snapshot() {
    let secret = refusal("(call $random (i32.const 200) (i32.const 16))");
    assert!(secret.starts_with("it asked for random bytes, which every instance would share"), "{secret}");
}

#[test]
fn a_module_whose_library_asks_for_random_bytes_initialises_itself_in_each_instance_and_its_tenant_is_told() {
    thread_local! {
        static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }
    let note = |message: &BuilderMessage| {
        if let BuilderMessage::Log(LogLevel::Warn, line) = message {
            SAID.with_borrow_mut(|said| said.push(line.clone()));
        }
    };
    let seeds = "(if (call $seed (i32.const 200) (i32.const 10000)) (then unreachable))";
    // From there on it may do what an instance may that others do not start from.
    let init =
        format!("{seeds} {seeds} (if (call $random (i32.const 200) (i32.const 16)) (then unreachable)) (i32.const 0)");
    let Built { facts, .. } = build(&wat::parse_str(guest(&init)).unwrap(), &wishes(), note).unwrap();
    let Start::Module(reason) = facts.start else { panic!("a snapshot was taken: {:?}", facts.start) };
    assert!(reason.starts_with("it asked for random bytes (random_get) during its initialisation"), "{reason}");
    let said = SAID.take();
    assert!(matches!(&said[..], [line] if line.starts_with(&reason) && line.contains("each instance")), "{said:?}");
}

#[test]
fn clocks_stand_still_but_for_sleeps_which_are_short_and_over_at_once() {
    let with_calls = |init: &str| {
        let calls = r#"(module
            (import "wasi_snapshot_preview1" "clock_time_get" (func $time (param i32 i64 i32) (result i32)))
            (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))"#;
        built(&guest(init).replacen("(module", calls, 1)).map_or_else(|refused| refused, |_| "it was built".to_owned())
    };
    for clock in [0, 1] {
        let time = format!("(call $time (i32.const {clock}) (i64.const 1) (i32.const 200))");
        let date = "(i64.load (i32.const 200))";
        let init = format!("{time} (i32.wrap_i64 (i64.sub {date} (i64.const 1000))) i32.or");
        assert_eq!(with_calls(&init), "it was built");
    }
    let sleep = "(i64.store (i32.const 324) (i64.const {}))
        (call $poll (i32.const 300) (i32.const 400) (i32.const 1) (i32.const 500))";
    assert_eq!(with_calls(&sleep.replace("{}", "0")), "it was built");
    // The clock is later by the whole sleep.
    let clock = "(call $time (i32.const 1) (i64.const 1) (i32.const 200))";
    let left = "(i32.wrap_i64 (i64.sub (i64.load (i32.const 200)) (i64.const 10000999)))";
    let late = format!("{} {clock} i32.or {left} i32.or", sleep.replace("{}", "9999999"));
    assert_eq!(with_calls(&late), "it was built");
    // All sleeps together.
    let (first, second) = (sleep.replace("{}", "9999999"), sleep.replace("{}", "2"));
    assert_eq!(
        with_calls(&format!("{first} drop {second}")),
        "it slept (poll_oneoff) for longer than 10 ms (sleep when it starts) during its initialisation"
    );
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

/// Returns a module with these metrics at 256: a header of four words, and then entries of ten.
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
fn metrics_are_read_when_the_template_is_made_and_are_among_its_facts() {
    let Built { facts, .. } = built(&with_metrics(&format!("{HEADER}{ENTRY}"))).unwrap();
    let [metric] = &facts.metrics[..] else { panic!("{:?}", facts.metrics) };
    assert_eq!((&*metric.name, &*metric.help, metric.value), ("hits", "Hits.", 640));
    assert_eq!(metric.labels, [("way".to_owned(), "in".to_owned())]);
    assert_eq!(built(&guest("(i32.const 0)")).unwrap().facts.metrics, []);
}

#[test]
fn invalid_metrics_are_refused_by_name() {
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
fn a_module_that_panics_is_refused_with_its_message() {
    let panics = guest("(call $panic (i32.const 100) (i32.const 8)) (i32.const 0)")
        .replace("(memory (export", "(import \"pinion\" \"panic\" (func $panic (param i32 i32))) (memory (export");
    let refused = built(&panics).unwrap_err();
    assert!(refused.starts_with("it panicked during its initialisation: too blue\n"), "{refused}");
}

/// Returns the same module in a form of which no snapshot can be taken.
fn without_snapshot(wat: &str) -> String {
    let table = "(table 1 funcref) (func (table.set (i32.const 0) (ref.null func))) (func $log_line";
    wat.replace("(func $log_line", table)
}

#[test]
fn a_module_without_a_possible_snapshot_is_built_without_one() {
    let Built { facts, .. } = built(&without_snapshot(&guest("(i32.const 0)"))).unwrap();
    assert_eq!(facts.start, Start::Module("unsupported `table.set` instruction".to_owned()));
}

#[test]
fn a_module_without_a_possible_snapshot_is_tried_and_refused_if_every_instance_would_fail() {
    let refusal = |init: &str| {
        built(&without_snapshot(&guest(init))).map_or_else(|refused| refused, |_| "it was built".to_owned())
    };
    assert_eq!(refusal("(call $log_line) (i32.const 1)"), "its pinion_init refused with status 1: too blue");
    assert_eq!(
        refusal("(loop $l (br $l)) (i32.const 0)"),
        "its initialisation took longer than 2000 ms of processor time"
    );
    assert_eq!(refusal("(drop (call $wait)) (i32.const 0)"), "it called pinion.wait during its initialisation");
    assert!(refusal("unreachable").starts_with("it trapped during its initialisation: wasm trap: "));
    // Allowed in an instance from which no others start.
    assert_eq!(refusal("(call $random (i32.const 200) (i32.const 16))"), "it was built");
    let no_pool = without_snapshot(&guest("(i32.const 0)")).replace("PIN1", "NOPE");
    assert_eq!(
        built(&no_pool).unwrap_err(),
        "its packet pool is unusable: pinion_pool names 0x45504f4e where a pool header starts with 0x314e4950"
    );
}

#[test]
fn an_unusable_pool_header_is_refused_with_its_reason() {
    let refusal = |from: &str, to: &str| {
        let wat = guest("(i32.const 0)").replacen(from, to, 1);
        built(&wat).map_or_else(|refused| refused, |_| "it was built".to_owned())
    };
    for (from, to, reason) in [
        ("PIN1", "NOPE", "pinion_pool names 0x45504f4e where a pool header starts with 0x314e4950"),
        ("\\04\\00\\00\\00\\40\\06", "\\00\\00\\00\\00\\40\\06", "a pool of 0 slots"),
        ("\\40\\06\\00\\00", "\\40\\01\\00\\00", "slots of 320 bytes"),
        ("\\00\\10\\00\\00", "\\00\\00\\01\\00", "the slots at 0x10000 is misaligned or reaches outside"),
        ("\\00\\08\\00\\00", "\\00\\04\\00\\00", "the receive ring and the transmit ring overlap"),
    ] {
        let refused = refusal(from, to);
        assert!(refused.starts_with("its packet pool is unusable: ") && refused.contains(reason), "{refused}");
    }
}

/// What fits in a node's room for an instance is accepted, and one more is refused.
#[test]
fn tables_globals_and_functions_are_limited_to_a_nodes_room() {
    let refusal = |more: &str| {
        let wat = guest("(i32.const 0)").replace("(func $log_line", &format!("{more} (func $log_line"));
        built(&wat).map_or_else(|refused| refused, |_| "it was built".to_owned())
    };
    assert_eq!(refusal("(table 16384 funcref)"), "it was built");
    assert_eq!(
        refusal("(table 16385 funcref)"),
        "its table has 16385 elements, and 16384 are the most: call fewer functions by their addresses"
    );
    // Six functions are imported, and four exported.
    let globals = |count: usize| "(global i32 (i32.const 1))".repeat(count);
    let most = (1 << 20) / 16 - 2 * (6 + 4);
    assert_eq!(refusal(&globals(most)), "it was built");
    assert_eq!(
        refusal(&globals(most + 1)),
        "an instance of it takes 1048592 bytes beside its memory, and 1048576 are the most: it has 65517 globals, and 10 functions \
         that are imported, exported or called by their addresses; have fewer"
    );
}

#[test]
fn phases_and_log_lines_are_reported_in_order() {
    thread_local! {
        static SAID: RefCell<Vec<BuilderMessage>> = const { RefCell::new(Vec::new()) };
    }
    let wasm = wat::parse_str(guest("(call $log_line) (i32.const 0)")).unwrap();
    let say = |said: &BuilderMessage| SAID.with_borrow_mut(|all| all.push(said.clone()));
    build(&wasm, &wishes(), say).unwrap();
    let expected = [
        BuilderMessage::Phase(Phase::Validating),
        BuilderMessage::Phase(Phase::Initialising),
        BuilderMessage::Log(LogLevel::Error, "too blue".to_owned()),
        BuilderMessage::Phase(Phase::Compiling),
    ];
    assert_eq!(SAID.take(), expected);
}
