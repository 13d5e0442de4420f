//! Models in ONNX, as the builder reads them. Nothing is computed by steps of which all inputs are constants, as only the limits of the builder's
//! process bound that.

use std::collections::HashSet;
use std::{panic, thread};

use pinion_builder::model::{BadModel, import};
use pinion_inference::Model;
use pinion_inference::bounds::{IO_BYTES_MAX, RUN_BYTES_MAX, RUN_OPERATIONS_MAX};
use prost::Message;
use tract_onnx::pb::ModelProto;

/// The thread on which the builder reads a model, and contains the library's panics.
const READER: &str = "model";
/// The longest sentence, in bytes. Names and reasons in it are cut before.
const SENTENCE_BYTES_MAX: usize = 4096;
/// More operations than this would take a fuzzer's time, and find nothing.
const OPERATIONS_MAX: u64 = 10_000_000;

/// What became of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A node would run it.
    Taken,
    /// It is refused.
    Refused,
    /// It is not read, as some of its steps have constants only.
    LeftOut,
}

/// Reads a model.
///
/// # Panics
/// If what is made of it does not hold.
pub fn check(onnx: &[u8]) -> Outcome {
    if ModelProto::decode(onnx).is_ok_and(|model| computes_constants(&model)) {
        return Outcome::LeftOut;
    }
    match import(onnx) {
        Ok(form) => {
            judge(&form);
            Outcome::Taken
        }
        Err(refused) => {
            let sentence = refused.to_string();
            assert!(!sentence.is_empty() && sentence.len() <= SENTENCE_BYTES_MAX, "{sentence}");
            assert!(!sentence.contains(char::is_control), "{sentence:?}");
            assert!(!matches!(refused, BadModel::Run(_)) || sentence.contains("zeros"), "{sentence}");
            Outcome::Refused
        }
    }
}

/// Checks that a node loads a form, and that the model keeps its bounds and gives the same each time.
fn judge(form: &[u8]) {
    let model = Model::load(form).expect("the builder has loaded it");
    let needs = model.needs();
    assert!(needs.run_bytes <= RUN_BYTES_MAX && needs.operations <= RUN_OPERATIONS_MAX, "{needs:?}");
    let tensors = model.inputs().iter().chain(model.outputs());
    let bytes: u64 = tensors.map(|tensor| tensor.bytes() as u64).sum();
    assert!(bytes <= IO_BYTES_MAX, "{bytes} bytes");
    if needs.operations > OPERATIONS_MAX {
        return;
    }
    let inputs: Vec<Vec<u8>> = model.inputs().iter().map(|input| vec![1; input.bytes()]).collect();
    let run = || contained(|| model.run(&inputs).ok());
    let first = run();
    assert!(first == run(), "two runs differ");
    if let Some(outputs) = &first {
        assert!(outputs.iter().map(Vec::len).eq(model.outputs().iter().map(|output| output.bytes())));
    }
}

/// Runs this as a node does, which contains the library's panics.
fn contained<T: Send>(work: impl FnOnce() -> Option<T> + Send) -> Option<T> {
    thread::scope(|scope| {
        let runner = thread::Builder::new().name(READER.to_owned()).spawn_scoped(scope, work);
        runner.expect("there is room for a thread").join().ok().flatten()
    })
}

/// Returns whether a step other than `Constant` would be computed while the model is read: its inputs are constants, or shapes.
fn computes_constants(model: &ModelProto) -> bool {
    let Some(graph) = &model.graph else { return false };
    let weights: HashSet<&str> = graph.initializer.iter().map(|weight| weight.name.as_str()).collect();
    let inputs = graph.input.iter().map(|input| input.name.as_str()).filter(|name| !weights.contains(name));
    let mut varying: HashSet<&str> = inputs.collect();
    // Steps may be in any order.
    let mut is_settled = false;
    while !is_settled {
        is_settled = true;
        for step in graph.node.iter().filter(|step| step.op_type != "Shape") {
            if step.input.iter().any(|input| varying.contains(input.as_str())) {
                for output in &step.output {
                    is_settled &= !varying.insert(output);
                }
            }
        }
    }
    let is_of_constants =
        |inputs: &[String]| inputs.iter().all(|input| input.is_empty() || !varying.contains(input.as_str()));
    let mut steps = graph.node.iter().filter(|step| step.op_type != "Constant" && step.op_type != "Shape");
    steps.any(|step| is_of_constants(&step.input))
}

/// Lets a panic of the library go to the builder, which contains it: the fuzzing engine would end the process. All other panics still do.
pub fn let_the_library_panic() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().name() != Some(READER) {
            hook(info);
        }
    }));
}
