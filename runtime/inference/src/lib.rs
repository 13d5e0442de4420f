//! Neural networks that tenants upload: their bounds, the form in which a node keeps them, and their runs.
//!
//! ```text
//!   ONNX --builder's process: parse, check, optimise--> form --node: load, check again--> Model --run on a thread for inference--> outputs
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`form`] | the form that the builder writes and a node reads |
//! | [`bounds`] | what a model may take: memory, operations, size of its inputs and outputs |
//! | [`footprint`] | how much memory a model takes, loaded and in a run |
//! | [`tensor`] | the types and shapes of inputs and outputs |
//! | [`processor`] | what runs are fitted to |
//! | [`model`] | a model that is ready to run, shared by all who were granted it |
//!
//! The form is NNEF, which `tract` reads without its parser of ONNX, behind a header with the names of inputs and outputs. Graph and weights
//! are stored before the steps that depend on the machine, so a node prepares them for its own processor when it loads them.
//!
//! `tract` has `unsafe` code of its own, and runs in the node's process, as a run in a process of its own would cost each client more than the
//! run. So only graphs of fixed shapes reach it here, of kinds of steps on a closed list, which the builder's process has run once. A panic
//! of the library ends the run only.
//!
//! The node takes a form from the builder, as it takes native code. It checks the bounds again all the same: they are few, and what they
//! protect is the memory and the threads of all tenants. Nothing here may be called on the data path.
#![forbid(unsafe_code)]

pub mod bounds;
pub mod footprint;
pub mod form;
pub mod model;
pub mod processor;
pub mod tensor;

pub use footprint::Footprint;
pub use model::{Model, ModelError, RunError};
pub use tensor::{ElementType, TensorInfo};
pub use tract_core;
