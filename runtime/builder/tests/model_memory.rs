//! What a tenant is charged for a model covers what the library allocates for it, loaded and in a run.
#![allow(unsafe_code)] // A counting allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use pinion_builder::model::import;
use pinion_inference::Model;

struct Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed; less than zero if it frees what others have allocated.
    static HELD: Cell<i64> = const { Cell::new(0) };
    /// The most of these since it was last set.
    static MOST: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    HELD.set(HELD.get() + bytes);
    MOST.set(MOST.get().max(HELD.get()));
}

// SAFETY: passes every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns what `work` returns, how many bytes of this thread's it leaves allocated, and the most that it had at a time.
fn measured<T>(work: impl FnOnce() -> T) -> (T, u64, u64) {
    let before = HELD.get();
    MOST.set(before);
    let done = work();
    (done, (HELD.get() - before).max(0) as u64, (MOST.get() - before).max(0) as u64)
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the models, in ONNX, that are taken: the sample's, and those of the fuzzer.
fn models() -> Vec<(String, Vec<u8>)> {
    let seeds = fs::read_dir(workspace().join("tests/fuzz/seeds/models")).unwrap().map(|entry| entry.unwrap().path());
    let taken = seeds.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("taken-"));
    let sample = workspace().join("samples/classifier/model/cifar.onnx");
    let all: Vec<_> = taken.chain([sample]).map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect();
    assert!(all.len() > 5);
    all
}

#[test]
fn a_model_and_its_runs_take_no_more_memory_than_their_tenant_is_charged_with() {
    for (name, onnx) in models() {
        let Ok(form) = import(&onnx) else { panic!("{name} is not taken") };
        // What the library keeps for all models is there after the first.
        drop(Model::load(&form).unwrap());
        let (model, loaded_bytes, _) = measured(|| Model::load(&form).unwrap());
        let footprint = model.footprint();
        let inputs: Vec<Vec<u8>> = model.inputs().iter().map(|input| vec![0; input.bytes()]).collect();
        model.run(&inputs).unwrap();
        let (outputs, left_bytes, run_bytes) = measured(|| model.run(&inputs).unwrap());
        let own: u64 = outputs.iter().map(|output| output.len() as u64).sum();
        assert!(loaded_bytes <= footprint.loaded_bytes, "{name} has {loaded_bytes} bytes: {footprint:?}");
        assert!(run_bytes <= footprint.run_bytes, "a run of {name} has {run_bytes} bytes: {footprint:?}");
        assert!(left_bytes <= own + 4096, "a run of {name} leaves {left_bytes} bytes, {own} of them its outputs");
    }
}
