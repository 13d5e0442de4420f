//! The form in which a node keeps models: written by the builder, read by the node.
//!
//! ```text
//!   "PMD1" | length of the header, 4 bytes | header: names of inputs and outputs, JSON | NNEF: an archive with graph and weights
//! ```

use serde::{Deserialize, Serialize};
use tract_core::internal::TypedModel;
use tract_core::prelude::Framework;
use tract_nnef::nnef;

use crate::bounds::{self, FORM_BYTES_MAX, TENSORS_MAX};
use crate::model::ModelError;

const MAGIC: [u8; 4] = *b"PMD1";
/// Version of forms. To be raised whenever forms that were written before must not be used any more: when the builder refuses more or simplifies
/// in another way, and with another version of `tract`.
pub const VERSION: u32 = 1;
/// The longest header, in bytes: of each name, four bytes for each of 256 characters.
const HEADER_BYTES_MAX: usize = 2 * TENSORS_MAX * 1024 + 1024;

/// The names of a model's inputs and outputs, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Names {
    /// Of its inputs.
    pub inputs: Vec<String>,
    /// Of its outputs.
    pub outputs: Vec<String>,
}

/// Writes a graph, which was simplified but not prepared for a processor. Its steps get numbers for names: the form replaces most signs in
/// names, so that different ones could become the same.
///
/// # Errors
/// The bound that it exceeds, or a step that the form has no word for.
pub fn write(mut graph: TypedModel, names: &Names) -> Result<Vec<u8>, ModelError> {
    bounds::check(&graph)?;
    graph.properties.clear();
    graph.outlet_labels.clear();
    for (number, node) in graph.nodes_mut().iter_mut().enumerate() {
        node.name = format!("n{number}");
    }
    let header = serde_json::to_vec(names).map_err(|error| ModelError::Form(error.to_string()))?;
    if header.len() > HEADER_BYTES_MAX {
        return Err(ModelError::Form(format!(
            "its names take {} bytes, and {HEADER_BYTES_MAX} are the most",
            header.len()
        )));
    }
    let form = [&MAGIC[..], &(header.len() as u32).to_le_bytes(), &header].concat();
    let written = nnef().write_to_tar_with_config(&graph, form, false, true);
    let form = written.map_err(|error| ModelError::Form(format!("{error:#}")))?;
    if form.len() > FORM_BYTES_MAX {
        return Err(ModelError::Form(format!("it has {} bytes, and {FORM_BYTES_MAX} are the most", form.len())));
    }
    Ok(form)
}

/// Reads a form.
///
/// # Errors
/// What is wrong with it, or the bound that it exceeds.
pub(crate) fn read(form: &[u8]) -> Result<(TypedModel, Names), ModelError> {
    let damaged = |what: &str| ModelError::Form(format!("its form is damaged: {what}"));
    if form.len() > FORM_BYTES_MAX {
        return Err(damaged("it is too long"));
    }
    let (magic, rest) = form.split_first_chunk::<4>().ok_or_else(|| damaged("it is too short"))?;
    if *magic != MAGIC {
        return Err(damaged("it starts with other bytes"));
    }
    let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(|| damaged("it is too short"))?;
    let len = u32::from_le_bytes(*len) as usize;
    let (header, mut archive) =
        rest.split_at_checked(len.min(HEADER_BYTES_MAX)).ok_or_else(|| damaged("its header is cut off"))?;
    let names: Names = serde_json::from_slice(header).map_err(|error| damaged(&error.to_string()))?;
    let graph = nnef().model_for_read(&mut archive).map_err(|error| damaged(&format!("{error:#}")))?;
    if graph.inputs.len() != names.inputs.len() || graph.outputs.len() != names.outputs.len() {
        return Err(damaged("its names are not those of its graph"));
    }
    Ok((graph, names))
}
