//! Makes models in ONNX for tests.

use prost::Message;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, attribute_proto, type_proto,
};

/// A graph with one input `x` and one output `y`, unless the members say otherwise.
pub(crate) struct Onnx {
    pub(crate) inputs: Vec<ValueInfoProto>,
    pub(crate) weights: Vec<TensorProto>,
    pub(crate) steps: Vec<NodeProto>,
    pub(crate) output: &'static str,
}

impl Onnx {
    /// A graph whose input has this shape.
    pub(crate) fn of(shape: &[i64], steps: Vec<NodeProto>) -> Self {
        Self { inputs: vec![input("x", DataType::Float, shape)], weights: Vec::new(), steps, output: "y" }
    }

    pub(crate) fn with(mut self, weight: TensorProto) -> Self {
        self.weights.push(weight);
        self
    }

    pub(crate) fn proto(self) -> ModelProto {
        let output = ValueInfoProto { name: self.output.to_owned(), ..input("y", DataType::Float, &[]) };
        let graph = GraphProto {
            name: "test".to_owned(),
            node: self.steps,
            initializer: self.weights,
            input: self.inputs,
            output: vec![output],
            ..GraphProto::default()
        };
        let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 13 }];
        ModelProto { ir_version: 8, opset_import, graph: Some(graph), ..ModelProto::default() }
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.proto().encode_to_vec()
    }
}

/// A step of a kind, with the names of its inputs and of its output.
pub(crate) fn step(kind: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: kind.to_owned(),
        name: format!("{kind} of {output}"),
        input: inputs.iter().map(|name| (*name).to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

/// The same with a list of numbers.
pub(crate) fn step_with(kind: &str, inputs: &[&str], output: &str, lists: &[(&str, &[i64])]) -> NodeProto {
    let attribute = |(name, ints): &(&str, &[i64])| AttributeProto {
        name: (*name).to_owned(),
        ints: ints.to_vec(),
        r#type: attribute_proto::AttributeType::Ints as i32,
        ..AttributeProto::default()
    };
    NodeProto { attribute: lists.iter().map(attribute).collect(), ..step(kind, inputs, output) }
}

/// The same with a number.
pub(crate) fn step_along(kind: &str, inputs: &[&str], output: &str, axis: i64) -> NodeProto {
    let attribute = AttributeProto {
        name: "axis".to_owned(),
        i: axis,
        r#type: attribute_proto::AttributeType::Int as i32,
        ..AttributeProto::default()
    };
    NodeProto { attribute: vec![attribute], ..step(kind, inputs, output) }
}

/// A weight of numbers of single precision.
pub(crate) fn weight(name: &str, shape: &[i64], numbers: Vec<f32>) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: shape.to_vec(),
        data_type: DataType::Float as i32,
        float_data: numbers,
        ..TensorProto::default()
    }
}

/// An input; a size of 0 is left open.
pub(crate) fn input(name: &str, element: DataType, shape: &[i64]) -> ValueInfoProto {
    let dim = |size: &i64| Dimension {
        value: (*size != 0).then_some(dimension::Value::DimValue(*size)),
        ..Dimension::default()
    };
    let shape = TensorShapeProto { dim: shape.iter().map(dim).collect() };
    let tensor = type_proto::Tensor { elem_type: element as i32, shape: Some(shape) };
    let ty = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: name.to_owned(), r#type: Some(ty), ..ValueInfoProto::default() }
}
