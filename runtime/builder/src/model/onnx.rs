//! What a model in ONNX must be to be read by the library at all. Each check is by names and lengths in the message, before anything is
//! allocated by what it claims.

use std::collections::BTreeSet;

use pinion_inference::bounds::{NODES_MAX, RANK_MAX, TENSORS_MAX};
use tract_onnx::pb::tensor_proto::{DataLocation, DataType};
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Dim;
use tract_onnx::pb::type_proto::Value as TypeValue;
use tract_onnx::pb::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};

use super::{BadModel, Names};

/// The kinds of steps that models may have, in the order of the alphabet. Those without a bound by the shapes of their inputs are left out,
/// such as loops and steps that fill a tensor of a computed shape, and those of which the result is random.
const STEPS: [&str; 74] = [
    "Abs",
    "Add",
    "ArgMax",
    "ArgMin",
    "AveragePool",
    "BatchNormalization",
    "Cast",
    "Ceil",
    "Clip",
    "Concat",
    "Constant",
    "Conv",
    "Cos",
    "DepthToSpace",
    "DequantizeLinear",
    "Div",
    "Dropout",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Flatten",
    "Floor",
    "Gather",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Greater",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "InstanceNormalization",
    "LayerNormalization",
    "LeakyRelu",
    "Less",
    "Log",
    "LogSoftmax",
    "LRN",
    "MatMul",
    "Max",
    "MaxPool",
    "Mean",
    "Min",
    "Mul",
    "Neg",
    "Pad",
    "Pow",
    "PRelu",
    "QuantizeLinear",
    "Reciprocal",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceSum",
    "Relu",
    "Reshape",
    "Round",
    "Selu",
    "Shape",
    "Sigmoid",
    "Sin",
    "Slice",
    "Softmax",
    "Softplus",
    "Split",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Sum",
    "Tanh",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// The most elements in the window of a convolution or a pool, and the most padding along an axis.
const WINDOW_MAX: i64 = 4096;
/// The longest name of an input or an output, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Checks a model, and sets the first size of an input to 1 where it is left open. Returns the names of its inputs and outputs.
///
/// # Errors
/// Why it is refused.
pub(super) fn admit(model: &mut ModelProto) -> Result<Names, BadModel> {
    if !model.functions.is_empty() {
        return Err(BadModel::Part("functions of its own", "export it with them expanded"));
    }
    let graph = model.graph.as_mut().ok_or_else(|| BadModel::NotOnnx("it has no graph".to_owned()))?;
    let count =
        |what, count: usize, max: usize| if count <= max { Ok(()) } else { Err(BadModel::Count { what, count, max }) };
    count("steps", graph.node.len(), NODES_MAX)?;
    count("weights", graph.initializer.len(), NODES_MAX)?;
    count("inputs", graph.input.len(), NODES_MAX)?;
    count("outputs", graph.output.len(), TENSORS_MAX)?;
    if graph.output.is_empty() {
        return Err(BadModel::NotOnnx("it has no output".to_owned()));
    }
    if !graph.sparse_initializer.is_empty() {
        return Err(BadModel::Part("sparse weights", "export them as dense ones"));
    }
    graph.initializer.iter().try_for_each(weight)?;
    graph.node.iter().try_for_each(step)?;
    has_all_outputs(graph)?;
    let weights: BTreeSet<&str> = graph.initializer.iter().map(|weight| &*weight.name).collect();
    let mut inputs = Vec::new();
    for given in graph.input.iter_mut().filter(|input| !weights.contains(&*input.name)) {
        input(given)?;
        inputs.push(given.name.clone());
    }
    count("inputs", inputs.len(), TENSORS_MAX)?;
    let outputs: Vec<String> = graph.output.iter().map(|output| output.name.clone()).collect();
    for name in inputs.iter().chain(&outputs) {
        count("bytes in the name of an input or output", name.len(), NAME_BYTES_MAX)?;
    }
    Ok(Names { inputs, outputs })
}

fn has_all_outputs(graph: &GraphProto) -> Result<(), BadModel> {
    let made = graph.node.iter().flat_map(|step| &step.output).chain(graph.input.iter().map(|input| &input.name));
    let made: BTreeSet<&str> =
        made.chain(graph.initializer.iter().map(|weight| &weight.name)).map(String::as_str).collect();
    match graph.output.iter().find(|output| !made.contains(&*output.name)) {
        Some(output) => Err(BadModel::NotOnnx(format!("no step makes its output {}", output.name))),
        None => Ok(()),
    }
}

fn step(step: &NodeProto) -> Result<(), BadModel> {
    let is_standard = matches!(&*step.domain, "" | "ai.onnx");
    let kind = &*step.op_type;
    if !is_standard || !STEPS.contains(&kind) {
        let kind = if is_standard { kind.to_owned() } else { format!("{}.{kind}", step.domain) };
        return Err(BadModel::UnknownStep { step: step.name.clone(), kind });
    }
    let inputs = step.input.len().max(step.output.len());
    if inputs > NODES_MAX {
        return Err(BadModel::Count { what: "inputs of a step", count: inputs, max: NODES_MAX });
    }
    for attribute in &step.attribute {
        if attribute.g.is_some() || !attribute.graphs.is_empty() || attribute.sparse_tensor.is_some() {
            return Err(BadModel::Part("a step with a graph or a sparse tensor of its own", "use other steps"));
        }
        attribute.t.iter().chain(&attribute.tensors).try_for_each(weight)?;
        if matches!(&*attribute.name, "kernel_shape" | "pads" | "strides" | "dilations") {
            let product = attribute.ints.iter().try_fold(1_i64, |product, size| product.checked_mul((*size).max(1)));
            let is_window = attribute.name == "kernel_shape";
            let in_all = product.filter(|product| !is_window || *product <= WINDOW_MAX);
            if in_all.is_none() || attribute.ints.iter().any(|size| !(0..=WINDOW_MAX).contains(size)) {
                return Err(BadModel::Part(
                    "a window or padding of more than 4096 elements, or a negative one",
                    "use smaller ones",
                ));
            }
        }
    }
    Ok(())
}

/// Checks that a weight has as many bytes as its shape and type need.
fn weight(weight: &TensorProto) -> Result<(), BadModel> {
    if weight.data_location == Some(DataLocation::External as i32) || !weight.external_data.is_empty() {
        return Err(BadModel::Part("weights in other files", "export it as one file"));
    }
    if weight.dims.len() > RANK_MAX {
        return Err(BadModel::Count { what: "axes in a weight", count: weight.dims.len(), max: RANK_MAX });
    }
    let bytes_each = match DataType::try_from(weight.data_type) {
        Ok(DataType::Uint8 | DataType::Int8 | DataType::Bool) => 1,
        Ok(DataType::Float16) => 2,
        Ok(DataType::Float | DataType::Int32) => 4,
        Ok(DataType::Double | DataType::Int64) => 8,
        _ => {
            return Err(BadModel::Part(
                "a weight of a type other than f16, f32, f64, i8, u8, i32, i64 and bool",
                "convert it",
            ));
        }
    };
    let typed = [weight.float_data.len(), weight.int32_data.len(), weight.int64_data.len(), weight.double_data.len()];
    let given = if weight.raw_data.is_empty() {
        typed.iter().sum::<usize>().saturating_mul(bytes_each)
    } else {
        weight.raw_data.len()
    };
    let wanted = weight.dims.iter().try_fold(bytes_each, |bytes, dim| bytes.checked_mul(usize::try_from(*dim).ok()?));
    if wanted != Some(given) {
        let wanted = wanted.map_or_else(|| "more than there can be".to_owned(), |bytes| bytes.to_string());
        return Err(BadModel::Weight { name: weight.name.clone(), given, wanted });
    }
    Ok(())
}

fn input(input: &mut ValueInfoProto) -> Result<(), BadModel> {
    let open = || BadModel::OpenInput(input.name.clone());
    let Some(TypeValue::TensorType(tensor)) = input.r#type.as_mut().and_then(|ty| ty.value.as_mut()) else {
        return Err(open());
    };
    let shape = tensor.shape.as_mut().ok_or_else(open)?;
    if shape.dim.len() > RANK_MAX {
        return Err(BadModel::Count { what: "axes in an input", count: shape.dim.len(), max: RANK_MAX });
    }
    for (axis, dim) in shape.dim.iter_mut().enumerate() {
        match dim.value {
            Some(Dim::DimValue(1..=0x7fff_ffff)) => {}
            Some(Dim::DimParam(_)) | None if axis == 0 => dim.value = Some(Dim::DimValue(1)),
            _ => return Err(open()),
        }
    }
    Ok(())
}
