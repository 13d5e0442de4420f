//! How much memory a model takes on a node, which its tenant is charged with.
//!
//! It follows from the shapes alone, so it is known before a run. A run's results are freed as the library frees them: each after the last
//! step that reads it. Of what steps allocate for themselves nothing is known but that they work on what they read and make, so each counts
//! as if it had a copy of the larger of both.

use tract_core::internal::{TypedModel, TypedNode};

use crate::bounds::{self, OverBounds};

/// What the library keeps of each step beside its constants: the step itself, its facts and its names. An estimate, rounded up.
const NODE_BYTES: u64 = 6144;

/// What a run has of each step beside the elements: the heads of tensors, and lists of them. An estimate, rounded up.
const NODE_RUN_BYTES: u64 = 1024;

/// Memory of a model, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// As long as it is loaded: its constants and its steps.
    pub loaded_bytes: u64,
    /// Of each run while it is under way, with copies of inputs and outputs.
    pub run_bytes: u64,
}

impl Footprint {
    /// Returns the footprint of a graph that was prepared for the processor, whose constants take so many bytes. `order` is that of its steps,
    /// without its constants.
    ///
    /// # Errors
    /// A step whose size is not known.
    pub(crate) fn of(graph: &TypedModel, order: &[usize], constant_bytes: u64) -> Result<Self, OverBounds> {
        let nodes = graph.nodes().len() as u64;
        Ok(Self {
            loaded_bytes: constant_bytes.saturating_add(nodes * NODE_BYTES),
            run_bytes: element_bytes(graph, order)?.saturating_add(nodes * NODE_RUN_BYTES),
        })
    }
}

/// Returns the most that a run of these steps has at a time, of elements.
fn element_bytes(graph: &TypedModel, order: &[usize]) -> Result<u64, OverBounds> {
    let last_use = last_uses(graph, order);
    let made = |id: usize| made_bytes(graph.node(id));
    let is_input = |id: &usize| graph.inputs.iter().any(|input| input.node == *id);
    let mut live = sum(graph.inputs.iter().map(|input| made(input.node)))?;
    let mut peak = live;
    for (step, id) in order.iter().enumerate().filter(|(_, id)| !is_input(id)) {
        let makes = made(*id)?;
        let reads = inputs_of(graph, *id);
        let own = makes.max(sum(reads.iter().map(|read| made(*read)))?);
        peak = peak.max(live.saturating_add(makes).saturating_add(own));
        let over = reads.iter().filter(|read| last_use[**read] == Some(step));
        live = live.saturating_add(makes).saturating_sub(sum(over.map(|read| made(*read)))?);
    }
    // The outputs are copied for their reader.
    let outputs = sum(graph.outputs.iter().map(|output| made(output.node)))?;
    Ok(peak.max(live.saturating_add(outputs)))
}

/// Returns the steps of which a step reads results, each once.
fn inputs_of(graph: &TypedModel, id: usize) -> Vec<usize> {
    let mut reads: Vec<usize> = graph.node(id).inputs.iter().map(|input| input.node).collect();
    reads.sort_unstable();
    reads.dedup();
    reads
}

/// Returns the position of the last step that reads each one's results; none if no step does, or the caller does: they stay to the end.
fn last_uses(graph: &TypedModel, order: &[usize]) -> Vec<Option<usize>> {
    let mut last_use = vec![None; graph.nodes().len()];
    for (step, id) in order.iter().enumerate() {
        graph.node(*id).inputs.iter().for_each(|input| last_use[input.node] = Some(step));
    }
    graph.outputs.iter().for_each(|output| last_use[output.node] = None);
    last_use
}

/// Returns the size of what a step makes in a run. Constants are not a run's own.
fn made_bytes(node: &TypedNode) -> Result<u64, OverBounds> {
    let own = node.outputs.iter().filter(|output| output.fact.konst.is_none());
    sum(own.map(|output| bounds::bytes_of(&output.fact, node)))
}

fn sum(mut bytes: impl Iterator<Item = Result<u64, OverBounds>>) -> Result<u64, OverBounds> {
    bytes.try_fold(0_u64, |sum, bytes| Ok(sum.saturating_add(bytes?)))
}

#[cfg(test)]
mod tests {
    use tract_core::ops::math;
    use tract_core::prelude::*;

    use super::*;

    const TENSOR: u64 = 4 * 1000;

    /// Returns the graph of `steps` steps, each of which adds the result of the one before to itself, or to the input.
    fn graph(steps: usize, with_input: impl Fn(usize) -> bool) -> TypedModel {
        let mut graph = TypedModel::default();
        let input = graph.add_source("input", f32::fact([1000])).unwrap();
        let mut last = input;
        for step in 0..steps {
            let other = if with_input(step) { input } else { last };
            last = graph.wire_node(format!("s{step}"), math::add(), &[last, other]).unwrap()[0];
        }
        graph.select_output_outlets(&[last]).unwrap();
        graph
    }

    fn element_bytes_of(graph: &TypedModel) -> u64 {
        element_bytes(graph, &graph.eval_order().unwrap()).unwrap()
    }

    #[test]
    fn a_run_has_no_more_at_a_time_however_many_steps_it_has() {
        // What a step reads, what it makes, and as much of its own.
        let of_line = [2, 50].map(|steps| element_bytes_of(&graph(steps, |_| false)));
        assert_eq!(of_line, [3 * TENSOR; 2]);
    }

    #[test]
    fn what_a_later_step_reads_is_kept_until_then() {
        let last_reads_input = graph(10, |step| step == 9);
        // The input, two results, and what the step has of its own; the last step reads two tensors.
        assert_eq!(element_bytes_of(&last_reads_input), 5 * TENSOR);
        assert_eq!(element_bytes_of(&graph(10, |step| step == 5)), 5 * TENSOR);
    }

    #[test]
    fn constants_are_the_models_and_not_a_runs() {
        let mut graph = graph(2, |_| false);
        let plain = element_bytes_of(&graph);
        let weight = graph.add_const("weight", tensor1(&[1_f32; 1000])).unwrap();
        let last = graph.outputs[0];
        let sum = graph.wire_node("weighted", math::add(), &[last, weight]).unwrap();
        graph.select_output_outlets(&sum).unwrap();
        let order: Vec<usize> = graph
            .eval_order()
            .unwrap()
            .into_iter()
            .filter(|id| graph.node(*id).outputs[0].fact.konst.is_none())
            .collect();
        let Footprint { loaded_bytes, run_bytes } = Footprint::of(&graph, &order, TENSOR).unwrap();
        let nodes = graph.nodes().len() as u64;
        assert_eq!(run_bytes, plain + nodes * NODE_RUN_BYTES);
        assert_eq!(loaded_bytes, TENSOR + nodes * NODE_BYTES);
    }
}
