//! Neural networks that the node runs for a function: named models that the tenant has uploaded, and that the stage was granted. The calls are
//! those of wasi-nn.
//!
//! ```toml
//! [model.cifar]
//! file = "cifar.onnx"
//!
//! [[chain]]
//! name = "classify"
//! stage = [{ module = "classifier", models = ["cifar"] }]
//! ```
//!
//! ```
//! use pinion_sdk::nn::{Model, NnError, Tensor};
//! # use pinion_sdk::testing::{FakeModel, grant_model};
//! # grant_model(FakeModel::new("cifar", |inputs| Some(vec![[0.25_f32, 0.75].map(f32::to_le_bytes).concat()])));
//!
//! fn scores(model: &Model, pixels: &[u8; 3072]) -> Result<Vec<f32>, NnError> {
//!     model.run(&[Tensor::u8(&[1, 32, 32, 3], pixels)])?.f32(0, 2)
//! }
//!
//! let model = Model::load("cifar").unwrap();
//! assert_eq!(scores(&model, &[0; 3072]), Ok(vec![0.25, 0.75]));
//! ```
//!
//! A run happens on another thread of the node. Meanwhile this instance sleeps, and its packets wait.

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use std::borrow::Cow;

use super::calls;
use crate::InitError;

/// The most inputs of a model.
const INPUTS_MAX: usize = 16;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NnError {
    /// The stage was granted no model of this name.
    NoModel,
    /// An input has another type, shape or size than the model's, or there are more or fewer of them.
    Input,
    /// The model has no such output, or the output has another number of elements.
    Output,
    /// Too many runs of the tenant are waiting, or it has no memory left for one: try again later. Or the function is being initialised, and may
    /// run nothing yet.
    Busy,
    /// The instance has no memory left for the model's inputs and outputs, or has loaded too many models.
    NoRoom,
    /// The run failed, or took too long. The tenant's log says why.
    Failed,
}

impl fmt::Display for NnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoModel => "the stage is granted no model of this name: grant it in the chain's manifest",
            Self::Input => "an input is not of the type, shape or size that the model takes",
            Self::Output => "the model has no output of this number and size",
            Self::Busy => "the node can't run the model now",
            Self::NoRoom => "the instance has no memory for the model's inputs and outputs",
            Self::Failed => "the run failed",
        })
    }
}

impl std::error::Error for NnError {}

impl NnError {
    /// Returns the error of this number (`$nn_errno`) from a call that passes an argument of this kind.
    fn of(errno: i32, argument: Self) -> Self {
        match errno {
            1 => argument,
            4 => Self::Busy,
            7 => Self::NoRoom,
            8 => Self::NoModel,
            _ => Self::Failed,
        }
    }
}

/// The type of a tensor's elements, by the number that wasi-nn gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Element {
    /// Numbers of single precision.
    F32 = 1,
    /// Bytes.
    U8 = 3,
    /// Signed numbers of 32 bits.
    I32 = 4,
    /// Signed numbers of 64 bits.
    I64 = 5,
}

/// An input of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    pub(crate) element: Element,
    pub(crate) shape: &'a [u32],
    pub(crate) bytes: Cow<'a, [u8]>,
}

impl<'a> Tensor<'a> {
    /// Returns a tensor of bytes, the last axis varying fastest.
    #[must_use]
    pub fn u8(shape: &'a [u32], elements: &'a [u8]) -> Self {
        Self { element: Element::U8, shape, bytes: elements.into() }
    }

    /// Returns a tensor of numbers of single precision, in the same order.
    #[must_use]
    pub fn f32(shape: &'a [u32], elements: &[f32]) -> Self {
        Self::of(Element::F32, shape, elements.iter().map(|element| element.to_le_bytes()))
    }

    /// Returns a tensor of signed numbers of 32 bits, in the same order.
    #[must_use]
    pub fn i32(shape: &'a [u32], elements: &[i32]) -> Self {
        Self::of(Element::I32, shape, elements.iter().map(|element| element.to_le_bytes()))
    }

    /// Returns a tensor of signed numbers of 64 bits, in the same order.
    #[must_use]
    pub fn i64(shape: &'a [u32], elements: &[i64]) -> Self {
        Self::of(Element::I64, shape, elements.iter().map(|element| element.to_le_bytes()))
    }

    fn of<const N: usize>(element: Element, shape: &'a [u32], bytes: impl Iterator<Item = [u8; N]>) -> Self {
        Self { element, shape, bytes: bytes.flatten().collect::<Vec<_>>().into() }
    }
}

/// A model that the stage was granted. With its first run, an instance gets room for its inputs and outputs in the node, which is freed with the
/// instance: load a model once.
#[derive(Debug)]
pub struct Model {
    graph: u32,
    /// None before the instance's first run.
    context: Cell<Option<u32>>,
}

impl Model {
    /// Loads the model that the stage was granted under this name. Call it in [`Function::init`](crate::Function::init): then a chain that
    /// does not grant the model is refused when it is applied.
    ///
    /// # Errors
    ///
    /// The stage was not granted the model; the message names the model.
    pub fn load(name: &str) -> Result<Self, InitError> {
        match calls::nn_load_by_name(name) {
            Ok(graph) => Ok(Self { graph, context: Cell::new(None) }),
            Err(errno) => Err(InitError::new(format_args!("model {name:?}: {}", NnError::of(errno, NnError::NoModel)))),
        }
    }

    /// Runs it on these inputs, in the model's order. The instance sleeps until the run is done.
    ///
    /// # Errors
    ///
    /// See [`NnError`]; so for all other calls.
    pub fn run(&self, inputs: &[Tensor<'_>]) -> Result<Outputs<'_>, NnError> {
        if inputs.len() > INPUTS_MAX {
            return Err(NnError::Input);
        }
        let context = self.context()?;
        for (index, input) in (0..).zip(inputs) {
            done(calls::nn_set_input(context, index, input))?;
        }
        done(calls::nn_compute(context))?;
        Ok(Outputs { context, model: PhantomData })
    }

    fn context(&self) -> Result<u32, NnError> {
        if let Some(context) = self.context.get() {
            return Ok(context);
        }
        let context =
            calls::nn_init_execution_context(self.graph).map_err(|errno| NnError::of(errno, NnError::NoModel))?;
        self.context.set(Some(context));
        Ok(context)
    }
}

/// The outputs of a model's last run.
#[derive(Debug)]
pub struct Outputs<'m> {
    context: u32,
    model: PhantomData<&'m Model>,
}

impl Outputs<'_> {
    /// Returns an output of so many numbers of single precision.
    ///
    /// # Errors
    ///
    /// [`NnError::Output`] if the model has no such output.
    pub fn f32(&self, index: u32, count: usize) -> Result<Vec<f32>, NnError> {
        self.numbers(index, count, f32::from_le_bytes)
    }

    /// Returns an output of so many bytes.
    ///
    /// # Errors
    ///
    /// [`NnError::Output`] if the model has no such output.
    pub fn u8(&self, index: u32, count: usize) -> Result<Vec<u8>, NnError> {
        self.bytes(index, count)
    }

    /// Returns an output of so many signed numbers of 32 bits.
    ///
    /// # Errors
    ///
    /// [`NnError::Output`] if the model has no such output.
    pub fn i32(&self, index: u32, count: usize) -> Result<Vec<i32>, NnError> {
        self.numbers(index, count, i32::from_le_bytes)
    }

    /// Returns an output of so many signed numbers of 64 bits.
    ///
    /// # Errors
    ///
    /// [`NnError::Output`] if the model has no such output.
    pub fn i64(&self, index: u32, count: usize) -> Result<Vec<i64>, NnError> {
        self.numbers(index, count, i64::from_le_bytes)
    }

    fn numbers<T, const N: usize>(
        &self,
        index: u32,
        count: usize,
        number: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, NnError> {
        let bytes = self.bytes(index, count.checked_mul(N).ok_or(NnError::Output)?)?;
        Ok(bytes.as_chunks::<N>().0.iter().copied().map(number).collect())
    }

    fn bytes(&self, index: u32, len: usize) -> Result<Vec<u8>, NnError> {
        let mut bytes = vec![0; len];
        match calls::nn_get_output(self.context, index, &mut bytes) {
            Ok(written) if written == len => Ok(bytes),
            // An output without room in the buffer is one of another size.
            Ok(_) | Err(7) => Err(NnError::Output),
            Err(errno) => Err(NnError::of(errno, NnError::Output)),
        }
    }
}

fn done(errno: i32) -> Result<(), NnError> {
    if errno == 0 { Ok(()) } else { Err(NnError::of(errno, NnError::Input)) }
}
