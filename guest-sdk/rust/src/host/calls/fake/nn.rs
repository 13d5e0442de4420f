//! Replaces a node's models in native tests: a model is a closure.

use core::cell::RefCell;

use crate::nn::Tensor;
use crate::testing::FakeModel;

const INVALID_ARGUMENT: i32 = 1;
const BUSY: i32 = 4;
const RUNTIME_ERROR: i32 = 5;
const TOO_LARGE: i32 = 7;
const NOT_FOUND: i32 = 8;

struct Context {
    model: usize,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

thread_local! {
    static MODELS: RefCell<Vec<FakeModel>> = const { RefCell::new(Vec::new()) };
    static CONTEXTS: RefCell<Vec<Context>> = const { RefCell::new(Vec::new()) };
}

/// Grants a model. One of the same name is replaced.
pub(crate) fn grant_model(model: FakeModel) {
    MODELS.with_borrow_mut(|models| match models.iter_mut().find(|granted| granted.name == model.name) {
        Some(granted) => *granted = model,
        None => models.push(model),
    });
}

pub(crate) fn nn_load_by_name(name: &str) -> Result<u32, i32> {
    let position = MODELS.with_borrow(|models| models.iter().position(|model| model.name == name));
    position.map(|position| position as u32).ok_or(NOT_FOUND)
}

pub(crate) fn nn_init_execution_context(graph: u32) -> Result<u32, i32> {
    if super::state::is_initialising() {
        return Err(BUSY);
    }
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.push(Context { model: graph as usize, inputs: Vec::new(), outputs: Vec::new() });
        Ok(contexts.len() as u32 - 1)
    })
}

pub(crate) fn nn_set_input(context: u32, index: u32, tensor: &Tensor<'_>) -> i32 {
    let shape = tensor.shape.iter().map(|dim| *dim as usize).product::<usize>();
    let size = match tensor.element {
        crate::nn::Element::U8 => 1,
        crate::nn::Element::F32 | crate::nn::Element::I32 => 4,
        crate::nn::Element::I64 => 8,
    };
    if shape * size != tensor.bytes.len() {
        return INVALID_ARGUMENT;
    }
    CONTEXTS.with_borrow_mut(|contexts| {
        let inputs = &mut contexts[context as usize].inputs;
        inputs.resize(inputs.len().max(index as usize + 1), Vec::new());
        inputs[index as usize] = tensor.bytes.to_vec();
    });
    0
}

pub(crate) fn nn_compute(context: u32) -> i32 {
    CONTEXTS.with_borrow_mut(|contexts| {
        let context = &mut contexts[context as usize];
        let outputs = MODELS.with_borrow(|models| (models[context.model].run)(&context.inputs));
        context.outputs = outputs.clone().unwrap_or_default();
        if outputs.is_some() { 0 } else { RUNTIME_ERROR }
    })
}

pub(crate) fn nn_get_output(context: u32, index: u32, buffer: &mut [u8]) -> Result<usize, i32> {
    CONTEXTS.with_borrow(|contexts| {
        let output = contexts[context as usize].outputs.get(index as usize).ok_or(INVALID_ARGUMENT)?;
        buffer.get_mut(..output.len()).ok_or(TOO_LARGE)?.copy_from_slice(output);
        Ok(output.len())
    })
}
