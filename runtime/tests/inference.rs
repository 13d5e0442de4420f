//! FWPs that run models by wasi-nn, turn by turn.

mod support;

use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use crossbeam_channel::{Receiver, Sender};
use pinion_builder::model::import;
use pinion_inference::Model;
use pinion_mma::id::FwpId;
use pinion_runtime::fwp::end_reason::EndReason;
use pinion_runtime::fwp::inference::{LoadedModel, ModelGrants};
use pinion_runtime::offload::{Kind, Limits, Offload, OffloadPort, Wake};
use pinion_runtime::scheduler::CpuShare;
use pinion_runtime::tenants::accounts::{Accounts, TenantLimits};
use pinion_runtime::worker::{Worker, WorkerCommand, WorkerEvent};
use support::{Bench, ID, buffer};

const MEMORY_BYTES_MAX: usize = 1 << 20;

/// Errors of wasi-nn, by their numbers.
const INVALID_ARGUMENT: i32 = 1;
const BUSY: i32 = 4;
const UNSUPPORTED: i32 = 6;
const TOO_LARGE: i32 = 7;
const NOT_FOUND: i32 = 8;
/// The status of a guest that did all that it was to do.
const DONE: i32 = 1000;

/// The model of the sample `classifier`: it takes 32 x 32 x 3 bytes, and gives ten numbers.
static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples/classifier/model/cifar.onnx");
    Model::load(&import(&fs::read(path).unwrap()).unwrap()).unwrap()
});

/// Returns a guest that waits for its first packet and then does this. It has the name `cifar` at 8192, the tensor's record at 8200, its
/// shape at 8224, the pixels from 16384 on, and room for numbers and outputs from 32768 on. `$check` ends it with an error's number.
fn guest(run: &str) -> String {
    format!(
        r#"(module
            (import "pinion" "wait" (func $wait (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (import "wasi_ephemeral_nn" "load" (func $load (param i32 i32 i32 i32 i32) (result i32)))
            (import "wasi_ephemeral_nn" "load_by_name" (func $load_by_name (param i32 i32 i32) (result i32)))
            (import "wasi_ephemeral_nn" "init_execution_context" (func $context (param i32 i32) (result i32)))
            (import "wasi_ephemeral_nn" "set_input" (func $set_input (param i32 i32 i32) (result i32)))
            (import "wasi_ephemeral_nn" "compute" (func $compute (param i32) (result i32)))
            (import "wasi_ephemeral_nn" "get_output" (func $get_output (param i32 i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 4)
            (data (i32.const 16) "PIN1\04\00\00\00\40\06\00\00\00\40\01\00\04\00\00\00\00\04\00\00\00\08\00\00")
            (data (i32.const 8192) "cifar\00\00\00")
            (data (i32.const 8200) "\20\20\00\00\04\00\00\00\03\00\00\00\00\40\00\00\00\0c\00\00")
            (data (i32.const 8224) "\01\00\00\00\20\00\00\00\20\00\00\00\03\00\00\00")
            (func (export "pinion_abi_v3"))
            (func (export "pinion_init") (result i32) (i32.const 0))
            (func (export "pinion_pool") (result i32) (i32.const 16))
            (func $check (param $errno i32) (if (local.get $errno) (then (call $exit (local.get $errno)))))
            (func $open
                (call $check (call $load_by_name (i32.const 8192) (i32.const 5) (i32.const 32768)))
                (call $check (call $context (i32.load (i32.const 32768)) (i32.const 32772))))
            (func $run_model
                (call $check (call $set_input (i32.const 0) (i32.const 0) (i32.const 8200)))
                (call $check (call $compute (i32.const 0))))
            (func (export "pinion_run")
                (local $at i32) (local $best i32) (local $count i32) (local $errno i32)
                (loop $first (br_if $first (i32.eqz (call $wait))))
                {run}
                (call $exit (i32.const {DONE}))))"#
    )
}

/// Passes wake-ups to a worker.
struct ToWorker(Sender<WorkerCommand>);

impl Wake for ToWorker {
    fn wake(&self, id: FwpId, share: CpuShare, took_ns: u64) {
        self.0.send(WorkerCommand::Wake { id, share, took_ns }).unwrap();
    }
}

/// A worker with one FWP, and the runs that wait for a thread.
struct Scene {
    bench: Bench,
    worker: Worker,
    commands: Sender<WorkerCommand>,
    events: Receiver<WorkerEvent>,
    offload: Arc<Offload>,
}

impl Scene {
    /// Launches a guest that was granted a model under this name, and lets a worker adopt it; it gets a packet.
    fn launch(wat: &str, name: &str, memory_bytes_max: usize) -> Result<Self, EndReason> {
        Self::launch_under(wat, name, memory_bytes_max, &Accounts::default())
    }

    /// The same, with the model and its runs charged to the tenant `t` of these accounts.
    fn launch_under(wat: &str, name: &str, memory_bytes_max: usize, accounts: &Accounts) -> Result<Self, EndReason> {
        let charge = accounts.charge(&"t".parse().unwrap(), MODEL.footprint().loaded_bytes).unwrap();
        let loaded = Arc::new(LoadedModel::new(MODEL.clone(), charge));
        let mut bench = Bench::new();
        let (worker, commands, events) = bench.worker();
        let offload = Arc::new(Offload::new([Limits { jobs_max: 4, per_second: None }; 2]));
        let wake = Arc::new(ToWorker(commands.clone()));
        bench.offload = Some(OffloadPort { offload: Arc::clone(&offload), wake });
        bench.model_names = Arc::new([name.to_owned()]);
        bench.models = ModelGrants::new(vec![(name.to_owned(), loaded)]);
        let fwp = bench.launch(wat, memory_bytes_max)?;
        commands.send(WorkerCommand::Adopt(Box::new(fwp))).unwrap();
        let mut scene = Self { bench, worker, commands, events, offload };
        scene.worker.poll();
        scene.bench.send(buffer(), 60);
        Ok(scene)
    }

    /// The same with a guest that does this, and may run `cifar`.
    fn of(run: &str) -> Self {
        Self::launch(&guest(run), "cifar", MEMORY_BYTES_MAX).unwrap()
    }

    /// Lets the worker do all that it has to do.
    fn settle(&mut self) {
        while self.worker.poll() > 0 {}
    }

    /// Lets the guest run to its end, and does its runs when it waits for them. Returns its exit status, and how many runs there were.
    fn status_and_runs(mut self) -> (i32, usize) {
        let mut runs = 0;
        loop {
            self.settle();
            if let Ok(event) = self.events.try_recv() {
                let WorkerEvent::Ended { reason: EndReason::Exited(status), .. } = event else { panic!("it failed") };
                self.release();
                return (status, runs);
            }
            let done = self.offload.work_off(Kind::Inference);
            assert!(done > 0, "it neither ends nor waits for a run");
            runs += done;
        }
    }

    /// Releases the FWP and takes it apart.
    fn release(&mut self) {
        self.commands.send(WorkerCommand::Release(ID)).unwrap();
        self.settle();
        let released = self.events.try_iter().find_map(|event| match event {
            WorkerEvent::Released(fwp) => Some(fwp),
            _ => None,
        });
        self.bench.dismantle(*released.expect("it was not released"));
    }
}

/// Returns the exit status of a guest that does this.
#[track_caller]
fn status(run: &str) -> i32 {
    Scene::of(run).status_and_runs().0
}

#[test]
fn a_guest_gets_the_scores_that_the_model_gives() {
    // Exits with the number of the eight bytes of the highest score's place.
    let run = "(memory.fill (i32.const 16384) (i32.const 200) (i32.const 3072))
        (call $open) (call $run_model)
        (call $check (call $get_output (i32.const 0) (i32.const 0) (i32.const 40000) (i32.const 40) (i32.const 32776)))
        (if (i32.ne (i32.load (i32.const 32776)) (i32.const 40)) (then (call $exit (i32.const 2000))))
        (loop $next
            (if (f32.gt (f32.load offset=40000 (i32.shl (local.get $at) (i32.const 2)))
                        (f32.load offset=40000 (i32.shl (local.get $best) (i32.const 2))))
                (then (local.set $best (local.get $at))))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br_if $next (i32.lt_u (local.get $at) (i32.const 10))))
        (call $exit (i32.add (i32.const 100) (local.get $best)))";
    let scores = &MODEL.run(&[[200; 3072]]).unwrap()[0];
    let scores: Vec<f32> = scores.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect();
    let best = (0..scores.len()).max_by(|one, other| scores[*one].total_cmp(&scores[*other])).unwrap();
    assert_eq!(status(run), 100 + best as i32);
}

#[test]
fn a_guest_sleeps_while_its_model_runs_and_packets_wait() {
    let mut scene = Scene::of("(call $open) (call $run_model)");
    scene.settle();
    (0..2).for_each(|_| scene.bench.send(buffer(), 60));
    scene.settle();
    assert_eq!(scene.worker.time_to_deadline(), None);
    assert!(scene.events.is_empty(), "it has not gone on");
    assert_eq!(scene.status_and_runs(), (DONE, 1));
}

#[test]
fn an_fwp_that_ends_while_its_model_waits_costs_no_run() {
    let mut scene = Scene::of("(call $open) (call $run_model)");
    scene.settle();
    scene.release();
    let Scene { bench, worker, commands, events, offload } = scene;
    drop(bench);
    // It is taken from the queue, but has no owner to run for.
    assert_eq!(offload.work_off(Kind::Inference), 1);
    assert!(events.is_empty() && worker.time_to_deadline().is_none());
    drop((worker, commands));
}

#[test]
fn a_tenant_with_too_many_runs_is_told_so() {
    // The first four calls take all that the tenant may have: they are submitted by the test, and stay.
    let scene = Scene::of(
        "(call $open) (call $check (call $set_input (i32.const 0) (i32.const 0) (i32.const 8200)))
        (call $exit (call $compute (i32.const 0)))",
    );
    let wake = Arc::new(ToWorker(scene.commands.clone()));
    let stays = [(); 4].map(|()| {
        let wake: Arc<dyn Wake> = Arc::clone(&wake) as Arc<dyn Wake>;
        scene.offload.submit(Kind::Inference, &scene.bench.terms, (ID, wake), || Ok(())).unwrap()
    });
    assert_eq!(scene.status_and_runs(), (BUSY, 0));
    drop(stays);
}

/// Returns accounts in which each tenant may have so much memory besides the loaded model, and how much the tenant `t` has besides it.
fn accounts_with(bytes: u64) -> (Accounts, impl Fn(&Accounts) -> u64) {
    let loaded_bytes = MODEL.footprint().loaded_bytes;
    let limits = TenantLimits { default_bytes: Some(loaded_bytes + bytes), ..TenantLimits::default() };
    let besides = move |accounts: &Accounts| accounts.of_tenants()[0].1.used_kib - loaded_bytes / 1024;
    (Accounts::new(limits), besides)
}

#[test]
fn a_run_is_charged_to_its_tenant_while_it_is_under_way() {
    let (accounts, besides) = accounts_with(MODEL.footprint().run_bytes);
    let mut scene =
        Scene::launch_under(&guest("(call $open) (call $run_model)"), "cifar", MEMORY_BYTES_MAX, &accounts).unwrap();
    scene.settle();
    assert_eq!(besides(&accounts), 0, "it waits");
    let grants = scene.bench.models.clone();
    assert_eq!(scene.status_and_runs(), (DONE, 1));
    assert_eq!(besides(&accounts), 0, "it is over");
    drop(grants);
}

#[test]
fn a_run_for_which_its_tenant_has_no_memory_is_not_done_and_the_guest_is_told() {
    let (accounts, besides) = accounts_with(MODEL.footprint().run_bytes - 1);
    let run = "(call $open) (call $check (call $set_input (i32.const 0) (i32.const 0) (i32.const 8200)))
        (call $exit (call $compute (i32.const 0)))";
    let scene = Scene::launch_under(&guest(run), "cifar", MEMORY_BYTES_MAX, &accounts).unwrap();
    let grants = scene.bench.models.clone();
    assert_eq!(scene.status_and_runs(), (BUSY, 1));
    assert_eq!((besides(&accounts), accounts.of_tenants()[0].1.refused), (0, 1));
    drop(grants);
    assert!(accounts.of_tenants().is_empty(), "the model was given back with the last that had it");
}

#[test]
fn a_guest_of_a_stage_without_the_grant_finds_no_model() {
    assert_eq!(
        status("(call $check (call $load_by_name (i32.const 8192) (i32.const 4) (i32.const 32768)))"),
        NOT_FOUND
    );
    let scene = Scene::launch(&guest("(call $open)"), "other", MEMORY_BYTES_MAX).unwrap();
    assert_eq!(scene.status_and_runs().0, NOT_FOUND);
}

#[test]
fn a_model_of_the_guests_own_is_not_loaded() {
    let run = "(call $check (call $load (i32.const 0) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 32768)))";
    assert_eq!(status(run), UNSUPPORTED);
}

#[test]
fn numbers_that_name_nothing_and_addresses_outside_of_memory_are_refused() {
    for call in [
        "(call $load_by_name (i32.const -1) (i32.const 5) (i32.const 32768))",
        "(call $load_by_name (i32.const 8192) (i32.const 5) (i32.const 262141))",
        "(call $context (i32.const 1) (i32.const 32768))",
        "(call $context (i32.const -1) (i32.const 32768))",
        "(call $context (i32.const 0) (i32.const 262141))",
        "(call $set_input (i32.const 1) (i32.const 0) (i32.const 8200))",
        "(call $set_input (i32.const 0) (i32.const 1) (i32.const 8200))",
        "(call $set_input (i32.const 0) (i32.const 0) (i32.const 262130))",
        "(call $set_input (i32.const 0) (i32.const 0) (i32.const -4))",
        "(call $compute (i32.const 7))",
        // Without its input.
        "(call $compute (i32.const 0))",
        "(call $get_output (i32.const 0) (i32.const 0) (i32.const 40000) (i32.const 40) (i32.const 32776))",
        "(call $get_output (i32.const 9) (i32.const 0) (i32.const 40000) (i32.const 40) (i32.const 32776))",
    ] {
        assert_eq!(status(&format!("(call $open) (call $check {call})")), INVALID_ARGUMENT, "{call}");
    }
}

#[test]
fn a_tensor_of_another_type_shape_or_size_is_refused() {
    for change in [
        // The type of its elements, or none.
        "(i32.store8 (i32.const 8208) (i32.const 1))",
        "(i32.store8 (i32.const 8208) (i32.const 77))",
        // Its number of axes, also of more than there can be.
        "(i32.store (i32.const 8204) (i32.const 3))",
        "(i32.store (i32.const 8204) (i32.const 9))",
        "(i32.store (i32.const 8204) (i32.const -1))",
        // Where its shape is, and what that says.
        "(i32.store (i32.const 8200) (i32.const -8))",
        "(i32.store (i32.const 8228) (i32.const 33))",
        // Where its bytes are, and how many.
        "(i32.store (i32.const 8212) (i32.const 262000))",
        "(i32.store (i32.const 8216) (i32.const 3071))",
        "(i32.store (i32.const 8216) (i32.const -1))",
    ] {
        let run = format!("(call $open) {change} (call $run_model)");
        assert_eq!(status(&run), INVALID_ARGUMENT, "{change}");
    }
}

#[test]
fn an_output_needs_room_and_is_copied_as_a_whole_or_not_at_all() {
    let get = |buffer: i32, capacity: i32, size: i32| {
        let call = format!(
            "(call $get_output (i32.const 0) (i32.const 0) (i32.const {buffer}) (i32.const {capacity}) (i32.const {size}))"
        );
        // The place of the first score must not have changed when there was an error.
        format!(
            "(call $open) (call $run_model) (i32.store (i32.const 40000) (i32.const -1))
            (local.set $errno {call})
            (if (i32.and (i32.ne (local.get $errno) (i32.const 0)) (i32.ne (i32.load (i32.const 40000)) (i32.const -1)))
                (then (call $exit (i32.const 2000))))
            (call $check (local.get $errno))"
        )
    };
    assert_eq!(status(&get(40000, 40, 32776)), DONE);
    assert_eq!(status(&get(40000, 39, 32776)), TOO_LARGE);
    assert_eq!(status(&get(262120, 40, 32776)), INVALID_ARGUMENT);
    assert_eq!(status(&get(40000, 40, 262141)), INVALID_ARGUMENT);
    assert_eq!(
        status(
            "(call $open) (call $run_model) (call $check (call $get_output (i32.const 0) (i32.const 1) (i32.const 40000) (i32.const 40) (i32.const 32776)))"
        ),
        INVALID_ARGUMENT
    );
}

#[test]
fn contexts_are_bounded_and_their_tensors_count_as_the_instances_memory() {
    let again = "(call $open)
        (loop $next
            (call $check (call $context (i32.const 0) (i32.const 32772)))
            (br_if $next (i32.lt_u (local.tee $count (i32.add (local.get $count) (i32.const 1))) (i32.const 7))))
        (call $exit (call $context (i32.const 0) (i32.const 32772)))";
    assert_eq!(status(again), TOO_LARGE);
    // The memory of the guest takes all that it may have.
    let scene = Scene::launch(&guest("(call $open)"), "cifar", 4 << 16).unwrap();
    assert_eq!(scene.status_and_runs().0, TOO_LARGE);
}

#[test]
fn a_guest_may_look_for_its_models_while_it_is_initialised_and_make_no_context() {
    let early = |call: &str| {
        let init = "(func (export \"pinion_init\") (result i32) (i32.const 0))";
        let calling = format!("(func (export \"pinion_init\") (result i32) {call})");
        Scene::launch(&guest("").replace(init, &calling), "cifar", MEMORY_BYTES_MAX)
            .map(|mut scene| scene.release())
            .map_err(|end| end.to_string())
    };
    assert_eq!(early("(call $load_by_name (i32.const 8192) (i32.const 5) (i32.const 32768))"), Ok(()));
    for (call, errno) in [
        ("(call $load_by_name (i32.const 8192) (i32.const 4) (i32.const 32768))", NOT_FOUND),
        ("(call $context (i32.const 0) (i32.const 32768))", BUSY),
        ("(call $set_input (i32.const 0) (i32.const 0) (i32.const 8200))", BUSY),
        ("(call $compute (i32.const 0))", BUSY),
    ] {
        let refused = early(call).expect_err("its initialisation refuses");
        assert!(refused.contains(&format!("refused with status {errno}")), "{call}: {refused}");
    }
}

/// Numbers that are often wrong.
fn any_number(random: &mut fastrand::Rng) -> i32 {
    match random.u32(..6) {
        0 => random.i32(..),
        1 | 2 => random.i32(0..3),
        3 => *random.choice(&[5, 40, 3072, 8192, 8200, 8224, 32768, 40000]).unwrap(),
        4 => 262_144 - random.i32(0..100),
        _ => -random.i32(0..100),
    }
}

#[test]
fn whatever_numbers_a_guest_passes_each_call_returns_an_error_or_succeeds() {
    const CALLS: usize = 1000;
    const TABLE: usize = 131_072;
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let numbers = (0..CALLS * 5).flat_map(|_| any_number(&mut random).to_le_bytes());
    let table: String = numbers.map(|byte| format!("\\{byte:02x}")).collect();
    let numbers =
        |count: usize| (0..count).map(|at| format!("(i32.load offset={} (local.get $at))", at * 4)).collect::<String>();
    let calls: String =
        [("load", 5), ("load_by_name", 3), ("context", 2), ("set_input", 3), ("compute", 1), ("get_output", 5)]
            .iter()
            .map(|(name, count)| format!("(call $expect (call ${name} {}))", numbers(*count)))
            .collect();
    let run = format!(
        "(call $open) (call $run_model)
        (local.set $at (i32.const {TABLE})) (local.set $count (i32.const {CALLS}))
        (loop $next
            {calls}
            (local.set $at (i32.add (local.get $at) (i32.const 20)))
            (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 1)))))"
    );
    let expect = format!(
        "(data (i32.const {TABLE}) \"{table}\")
        (func $expect (param $errno i32) (if (i32.gt_u (local.get $errno) (i32.const 8)) (then (call $exit (i32.const 1)))))
        (func $open"
    );
    // Its own results may overwrite its numbers, which makes them others.
    let wat = guest(&run).replacen("(func $open", &expect, 1);
    assert_eq!(Scene::launch(&wat, "cifar", MEMORY_BYTES_MAX).unwrap().status_and_runs().0, DONE);
}
