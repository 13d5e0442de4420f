//! From a model that a tenant uploads, in ONNX, to the form that nodes load without its parser.
//!
//! ```text
//!   bytes --protobuf--> model --onnx.rs: steps, weights, inputs--> graph --bounds--> simplified --bounds--> form --load, run once--> form
//! ```
//!
//! All of this happens in the builder's process, since a parser and an optimiser meet a tenant's bytes here. The steps are judged by name and
//! the weights by their sizes before the library sees them. What a graph takes is judged by its shapes. Constants that are computed from others
//! have no such bound: they end with the process's limits of memory and time.

mod onnx;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use pinion_inference::bounds::{self, MODEL_BYTES_MAX};
use pinion_inference::form::{self, Names};
use pinion_inference::{Model, ModelError, RunError};
use pinion_text::{NAME_BYTES_MAX, SENTENCE_BYTES_MAX, printable};
use prost::Message;
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt, TractError, TypedModel};

/// The stack of the thread that reads a model, in bytes: some steps of the library call themselves for each step of the graph.
const STACK_BYTES: usize = 256 << 20;

/// Why a model is refused, in sentences for the tenant. Text from the model is made printable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadModel {
    /// It is too large.
    #[error("it has more bytes than a model may have, {MODEL_BYTES_MAX}")]
    Large,
    /// It is not ONNX.
    #[error("it is not a model in ONNX: {}", sentence(.0))]
    NotOnnx(String),
    /// It has a kind of step that is not offered.
    #[error("its step {} is of the kind {}, which nodes do not run: use others", as_name(.step), as_name(.kind))]
    UnknownStep {
        /// The step's name.
        step: String,
        /// Its kind.
        kind: String,
    },
    /// It has a part that nodes do not take.
    #[error("it has {0}, which nodes do not take: {1}")]
    Part(&'static str, &'static str),
    /// It has too many of something.
    #[error("it has {count} {what}, and {max} are the most")]
    Count {
        /// What.
        what: &'static str,
        /// How many.
        count: usize,
        /// The most.
        max: usize,
    },
    /// A weight's bytes do not match its shape.
    #[error("its weight {} has {given} bytes, and its shape needs {wanted}", as_name(.name))]
    Weight {
        /// The weight's name.
        name: String,
        /// How many bytes it has.
        given: usize,
        /// How many its shape needs.
        wanted: String,
    },
    /// An input has no fixed shape.
    #[error("its input {} has no fixed shape: export it with fixed sizes; only the first may be left open, which counts as 1", as_name(.0))]
    OpenInput(String),
    /// The library can't make sense of it.
    #[error("it can't be read as a model: {}", sentence(.0))]
    Unreadable(String),
    /// It exceeds a bound, or has no form.
    #[error("{}", sentence(&.0.to_string()))]
    Form(#[from] ModelError),
    /// It fails when it is run.
    #[error("it fails on zeros as its input: {}", sentence(&.0.to_string()))]
    Run(#[from] RunError),
    /// The library panicked.
    #[error("the library that reads models failed on it: {}", sentence(.0))]
    Panicked(String),
}

/// Returns the form of a model in ONNX.
///
/// # Errors
/// Why it is refused.
pub fn import(onnx: &[u8]) -> Result<Vec<u8>, BadModel> {
    thread::scope(|scope| {
        let reader = thread::Builder::new().name("model".to_owned()).stack_size(STACK_BYTES);
        let work = || {
            catch_unwind(AssertUnwindSafe(|| read(onnx)))
                .unwrap_or_else(|panic| Err(BadModel::Panicked(text_of(&*panic))))
        };
        let reader = reader.spawn_scoped(scope, work).map_err(|error| BadModel::Panicked(error.to_string()))?;
        reader.join().unwrap_or_else(|panic| Err(BadModel::Panicked(text_of(&*panic))))
    })
}

fn read(onnx: &[u8]) -> Result<Vec<u8>, BadModel> {
    if onnx.len() > MODEL_BYTES_MAX {
        return Err(BadModel::Large);
    }
    let mut model = ModelProto::decode(onnx).map_err(|error| BadModel::NotOnnx(error.to_string()))?;
    let names = onnx::admit(&mut model)?;
    let graph = simplified(&model)?;
    drop(model);
    let form = form::write(graph, &names)?;
    // As a node will, and what the library makes of it must not fail there first.
    let model = Model::load(&form)?;
    let zeros: Vec<Vec<u8>> = model.inputs().iter().map(|input| vec![0; input.bytes()]).collect();
    model.run(&zeros)?;
    Ok(form)
}

fn simplified(model: &ModelProto) -> Result<TypedModel, BadModel> {
    let unreadable = |error: TractError| BadModel::Unreadable(format!("{error:#}"));
    let parser = tract_onnx::onnx().with_ignore_value_info(true);
    let graph = parser.model_for_proto_model(model).and_then(|graph| graph.into_typed()).map_err(unreadable)?;
    bounds::check(&graph).map_err(ModelError::from)?;
    graph.into_decluttered().map_err(unreadable)
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it gives no reason").to_owned()
}

/// Makes a name from the model printable.
fn as_name(text: &str) -> String {
    printable(text, NAME_BYTES_MAX)
}

/// Makes a text from the model or the library printable.
fn sentence(text: &str) -> String {
    printable(text, SENTENCE_BYTES_MAX)
}
