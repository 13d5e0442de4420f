//! Cost of a guest's state calls, measured by the guest: `cargo bench -p pinion-runtime --bench state`.
//!
//! A guest makes batches of calls with keys of 38 bytes, as long as a flow's, and values of 64. It reads its clock before and after each
//! batch. Keys are drawn from all entries in an order that no cache can predict. The clock is coarse, so a batch is 500 calls. A row shows
//! the median and the 99th percentile of the batches' means, in nanoseconds per call. The loop around a call and the making of its key are
//! included; `nothing` is a loop without a call, `clock` a loop with the cheapest call.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use pinion_builder::build::{Built, build};
use pinion_builder::initialise::Wishes;
use pinion_control::model::{Access, Chain, Field, Grant, Stage, WhenFull};
use pinion_guest::calls::state::{Key, State};
use pinion_mma::id::{FwpId, WorkerIndex};
use pinion_mma::wiring::{Edge, Wiring};
use pinion_runtime::fwp::granted::Granted;
use pinion_runtime::fwp::imports;
use pinion_runtime::fwp::template::{Loaded, Template};
use pinion_runtime::fwp::{Fwp, NewFwpSite, Preparation, Turn, TurnReason};
use pinion_runtime::instruments::log::{Origin, hub};
use pinion_runtime::memory::spare_pages::SparePages;
use pinion_runtime::preemption::{Clock, RunSlot, TickUrgency};
use pinion_runtime::state::{Grants, StateLimits, StateStore};
use pinion_runtime::templates::engine::Reset;
use pinion_runtime::templates::{engine, native_code};
use pinion_runtime::tenants::accounts::MemoryAccounts;
use pinion_runtime::tenants::scheduling_params::SchedulingParams;
use wasmtime::Engine;

const BATCHES: u32 = 10_000;
const CALLS: u64 = 500;
const MEMORY_BYTES_MAX: usize = 1 << 20;
const KEY_BYTES: usize = 38;
const VALUE_BYTES: usize = 64;

/// Field 0 is the one measured. Field 1 holds the times: its keys are the guest's batches, its values how long they took.
const FIELDS: [&str; 2] = ["entries", "times"];

const KEY: &str = "(i32.const 0) (i32.const 128) (i32.const 38)";

/// Returns the calls that are measured.
fn calls() -> [(&'static str, String); 6] {
    [
        ("nothing", String::new()),
        ("clock", "(drop (call $clock))".to_owned()),
        ("get", format!("(drop (call $get {KEY} (i32.const 256) (i32.const 64)))")),
        ("put", format!("(drop (call $put {KEY} (i32.const 256) (i32.const 64)))")),
        ("add", format!("(drop (call $add {KEY} (i64.const 1) (i32.const 256)))")),
        (
            "compare-and-swap",
            format!("(drop (call $cas {KEY} (i32.const 256) (i32.const 64) (i32.const 256) (i32.const 64)))"),
        ),
    ]
}

/// Returns a guest that makes batches of a call for ever, one a turn.
fn guest(call: &str, entries: u32) -> String {
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (import "pinion" "yield" (func $yield))
            (import "pinion" "clock" (func $clock (result i64)))
            (import "pinion" "state_get" (func $get (param i32 i32 i32 i32 i32) (result i32)))
            (import "pinion" "state_put" (func $put (param i32 i32 i32 i32 i32) (result i32)))
            (import "pinion" "state_add" (func $add (param i32 i32 i32 i64 i32) (result i32)))
            (import "pinion" "state_cas" (func $cas (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\10\00\00\04\00\00\00\00\04\00\00\00\08\00\00")
            (func (export "pinion_abi_v3"))
            (func (export "pinion_init") (result i32) (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func (export "pinion_run") (local $left i32) (local $random i32) (local $batch i32) (local $start i64)
                (drop (call $wait))
                (loop $batches
                    (local.set $left (i32.const {CALLS}))
                    (local.set $start (call $clock))
                    (loop $calls
                        (local.set $random
                            (i32.add (i32.mul (local.get $random) (i32.const 1664525)) (i32.const 1013904223)))
                        (i32.store (i32.const 128)
                            (i32.rem_u (i32.shr_u (local.get $random) (i32.const 8)) (i32.const {entries})))
                        {call}
                        (br_if $calls (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
                    (i64.store (i32.const 512) (i64.sub (call $clock) (local.get $start)))
                    (i32.store (i32.const 520) (local.get $batch))
                    (drop (call $put (i32.const 1) (i32.const 520) (i32.const 4) (i32.const 512) (i32.const 8)))
                    (local.set $batch (i32.add (local.get $batch) (i32.const 1)))
                    (call $yield)
                    (br $batches))))"#
    )
}

/// Returns the grants of a stage with both fields.
fn grants(entries: u32, value_bytes: u32) -> Grants {
    let limits = StateLimits { default_bytes: 1 << 30, by_name: HashMap::new(), total_bytes: u64::MAX };
    let field = |name: &str, value_bytes, entries| {
        let name = name.parse().expect("a name");
        Field { name, value_bytes, entries, ttl_seconds: None, when_full: WhenFull::Refuse }
    };
    let fields = vec![field(FIELDS[0], value_bytes, entries), field(FIELDS[1], 8, BATCHES)];
    let mut stage = Stage::new("bench".parse().expect("a name"), Vec::new());
    stage.state = fields.iter().map(|field| Grant { field: field.name.clone(), access: Access::Write }).collect();
    let chain = Chain::new("bench".parse().expect("a name"), "bench".parse().expect("a name"), vec![stage]);
    let opened = StateStore::new(limits).open(&Chain { fields, ..chain });
    opened.expect("room for the fields").remove(0)
}

fn template(engine: &Engine, wat: &str) -> Arc<Template> {
    let fields = FIELDS.map(str::to_owned).to_vec().into();
    let wishes = Wishes {
        config: Arc::new([]),
        files: None,
        memory_bytes_max: MEMORY_BYTES_MAX as u64,
        fields,
        keys: Arc::new([]),
        models: Arc::new([]),
    };
    let module = wat::parse_str(wat).expect("a module");
    let Built { facts, artifact } = build(&module, &wishes, |_| ()).expect("a module that is taken");
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), artifact).expect("room for the artifact");
    let module = native_code::load(engine, File::open(file.path()).expect("just written")).expect("just compiled");
    let linker = imports::linker(engine).expect("the node's imports");
    Template::new(&linker, &Loaded::new((module, facts)), Arc::new([]), None, MEMORY_BYTES_MAX)
        .expect("a template that fits")
}

/// Runs a guest's batches; returns how long each took, in nanoseconds per call, sorted.
fn measure(call: &str, entries: u32, value_bytes: usize) -> Vec<f64> {
    let grants = grants(entries, value_bytes as u32);
    for entry in 0..entries {
        let mut key = [0; KEY_BYTES];
        key[..4].copy_from_slice(&entry.to_le_bytes());
        let key = Key::new(&key).expect("no longer than keys may be");
        grants.put(0, &key, &vec![0; value_bytes]).expect("room for the entry");
    }
    let engine = engine::engine(1, Reset::Overwrite).expect("address space for an FWP");
    let mut clock = Clock::new(Duration::from_millis(100));
    let slot = clock.slot(&engine, TickUrgency::Others);
    let spare = SparePages::new(Reset::Overwrite);
    let site = NewFwpSite {
        id: FwpId { index: 0, generation: 0 },
        worker: WorkerIndex(0),
        wiring: Wiring::to(Edge::EgressWhereItCame),
        clock: slot.clone(),
        memory: MemoryAccounts::default(),
        activation: None,
        terms: SchedulingParams::default(),
        state: grants.clone(),
        granted: Granted::default(),
        keep_alives: None,
        spare: spare.clone(),
    };
    let (log, _) = hub(Arc::default());
    let template = template(&engine, &guest(call, entries));
    let (mut fwp, endpoint) =
        Preparation::begin(&template, site, log.log(origin())).finish().expect("it comes to its first wait");
    (0..BATCHES).for_each(|_| turn(&mut fwp, &slot));
    fwp.dismantle(endpoint);
    let mut times: Vec<f64> = (0..BATCHES).map(|batch| time_ns(&grants, batch)).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Gives the guest a turn. No thread checks the clock's slots, so it lasts until the guest yields.
fn turn(fwp: &mut Fwp, clock: &RunSlot) {
    let started_ns = clock.begin();
    let (turn, _) = fwp.turn(TurnReason::Rehearsal, clock, started_ns);
    clock.end();
    assert!(matches!(turn, Turn::Preempted), "it gives way after each batch");
}

fn time_ns(grants: &Grants, batch: u32) -> f64 {
    let (key, mut time) = (Key::new(&batch.to_le_bytes()).expect("no longer than keys may be"), [0; 8]);
    grants.get(1, &key, &mut time).expect("the guest has made all batches");
    u64::from_le_bytes(time) as f64 / CALLS as f64
}

fn origin() -> Origin {
    let (tenant, chain, module) = ("test".parse().unwrap(), "test".parse().unwrap(), "test".parse().unwrap());
    Origin { tenant, chain, stage: 0, module, fwp: "test".to_owned() }
}

fn main() {
    println!("{:<18} {:>8} {:>8} {:>8}", "call", "entries", "p50", "p99");
    for entries in [1, 1000, 100_000] {
        for (name, call) in calls() {
            let value_bytes = if name == "add" { 8 } else { VALUE_BYTES };
            let times = measure(&call, entries, value_bytes);
            let at = |percent: usize| times[times.len() * percent / 100];
            println!("{name:<18} {entries:>8} {:>8.1} {:>8.1}", at(50), at(99));
        }
    }
}
