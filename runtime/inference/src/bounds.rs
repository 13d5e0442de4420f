//! What a model may take. A graph is judged by its shapes, before anything of their size is allocated.

use std::time::Duration;

use tract_core::internal::{DatumType, TypedFact, TypedModel, TypedNode};
use tract_core::ops::cnn::{MaxPool, SumPool};

/// The largest model, as it is uploaded, in bytes.
pub const MODEL_BYTES_MAX: usize = 64 << 20;
/// The largest form of a model, in bytes. Weights of a byte each may take four.
pub const FORM_BYTES_MAX: usize = 4 * MODEL_BYTES_MAX;
/// The most steps of a model.
pub const NODES_MAX: usize = 4096;
/// The most axes of a tensor.
pub const RANK_MAX: usize = 8;
/// The most inputs, and the most outputs.
pub const TENSORS_MAX: usize = 16;
/// The most that all inputs and outputs take, in bytes.
pub const IO_BYTES_MAX: u64 = 4 << 20;
/// The most that all results of a run's steps take together, in bytes. A run frees each once nothing needs it any more, so it takes less.
pub const RUN_BYTES_MAX: u64 = 256 << 20;
/// The most that constants take, in bytes.
pub const CONSTANT_BYTES_MAX: u64 = FORM_BYTES_MAX as u64;
/// The most operations of a run: multiplications with an addition, or elements that other steps make.
pub const RUN_OPERATIONS_MAX: u64 = 4_000_000_000;
/// The most processor time of a run. Checked between its steps, whose operations are bounded.
pub const RUN_TIME_MAX: Duration = Duration::from_secs(4);

/// Operations that a step which is no multiplication takes for each element that it makes, at most: those of an exponential function.
const OPERATIONS_OF_ELEMENT: u64 = 16;

/// A bound that a model exceeds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverBounds {
    /// It has too many of something.
    #[error("it has {count} {what}, and {max} are the most")]
    Count {
        /// What.
        what: &'static str,
        /// How many.
        count: u64,
        /// The most.
        max: u64,
    },
    /// A step makes a tensor of which the size is not known before a run.
    #[error("the size of what its step {0} makes depends on the input: export it with fixed shapes")]
    OpenShape(String),
    /// A tensor has a size that no machine has memory for.
    #[error("its step {0} makes a tensor larger than any memory")]
    Overflow(String),
    /// The library can't tell what a step takes.
    #[error("what its step {0} takes is not known: {1}")]
    UnknownCost(String, String),
}

/// What a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Results of all steps of a run, in bytes.
    pub run_bytes: u64,
    /// Constants, in bytes.
    pub constant_bytes: u64,
    /// Operations of a run.
    pub operations: u64,
}

/// Returns what a graph takes, if it keeps the bounds.
///
/// # Errors
/// The bound that it exceeds.
pub fn check(graph: &TypedModel) -> Result<Needs, OverBounds> {
    let within = |what, count: u64, max: u64| {
        if count <= max { Ok(count) } else { Err(OverBounds::Count { what, count, max }) }
    };
    within("steps", graph.nodes().len() as u64, NODES_MAX as u64)?;
    within("inputs", graph.inputs.len() as u64, TENSORS_MAX as u64)?;
    within("outputs", graph.outputs.len() as u64, TENSORS_MAX as u64)?;
    let mut needs = Needs { run_bytes: 0, constant_bytes: 0, operations: 0 };
    for node in graph.nodes() {
        for output in &node.outputs {
            within("axes in a tensor", output.fact.rank() as u64, RANK_MAX as u64)?;
            let bytes = bytes_of(&output.fact, node)?;
            let sum = if output.fact.konst.is_some() { &mut needs.constant_bytes } else { &mut needs.run_bytes };
            *sum = sum.saturating_add(bytes);
        }
        needs.operations = needs.operations.saturating_add(operations_of(graph, node)?);
    }
    within("bytes of results in a run", needs.run_bytes, RUN_BYTES_MAX)?;
    within("bytes of constants", needs.constant_bytes, CONSTANT_BYTES_MAX)?;
    within("operations in a run", needs.operations, RUN_OPERATIONS_MAX)?;
    Ok(needs)
}

/// Returns the number of elements of a tensor. Computed without the library's arithmetic, which wraps around.
fn elements_of(fact: &TypedFact, node: &TypedNode) -> Result<u64, OverBounds> {
    fact.shape.iter().try_fold(1_u64, |product, dim| {
        let dim = dim.to_i64().map_err(|_| OverBounds::OpenShape(node.name.clone()))?;
        let dim = u64::try_from(dim).map_err(|_| OverBounds::Overflow(node.name.clone()))?;
        product
            .checked_mul(dim)
            .filter(|elements| *elements <= i64::MAX as u64)
            .ok_or_else(|| OverBounds::Overflow(node.name.clone()))
    })
}

/// Returns the size of a tensor, with what it is packed into, in bytes.
pub(crate) fn bytes_of(fact: &TypedFact, node: &TypedNode) -> Result<u64, OverBounds> {
    let size = if fact.datum_type == DatumType::String { size_of::<String>() } else { fact.datum_type.size_of() };
    let packed: u64 = match &fact.exotic_fact {
        // Such as packed matrices, which are not larger than what they are packed from but for the padding.
        Some(exotic) => exotic
            .buffer_sizes()
            .iter()
            .map(|bytes| bytes.to_i64().unwrap_or(i64::MAX) as u64)
            .fold(0, u64::saturating_add),
        None => 0,
    };
    let plain = elements_of(fact, node)?.checked_mul(size as u64);
    plain.ok_or_else(|| OverBounds::Overflow(node.name.clone())).map(|plain| plain.saturating_add(packed))
}

fn operations_of(graph: &TypedModel, node: &TypedNode) -> Result<u64, OverBounds> {
    let unknown = |error: &dyn std::fmt::Display| OverBounds::UnknownCost(node.name.clone(), format!("{error:#}"));
    let inputs = graph.node_input_facts(node.id).map_err(|error| unknown(&error))?;
    let mut operations = 0_u64;
    for (kind, count) in node.op.cost(&inputs).map_err(|error| unknown(&error))? {
        if kind.is_compute() {
            let count = count.to_i64().map_err(|_| OverBounds::OpenShape(node.name.clone()))?;
            operations = operations.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        }
    }
    let pool =
        node.op_as::<MaxPool>().map(|op| &op.pool_spec).or_else(|| node.op_as::<SumPool>().map(|op| &op.pool_spec));
    let window =
        pool.map_or(1, |pool| pool.kernel_shape.iter().fold(1_u64, |product, dim| product.saturating_mul(*dim as u64)));
    for output in &node.outputs {
        let elements = elements_of(&output.fact, node)?;
        operations = operations.saturating_add(elements.saturating_mul(window.max(OPERATIONS_OF_ELEMENT)));
    }
    Ok(operations)
}
