"""Makes models and random inputs, and runs them with onnxruntime: models.py CLASSIFIER FOLDER. See main.rs."""

import pathlib
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

random = np.random.Generator(np.random.PCG64(5))
TYPES = {
    np.dtype("float32"): TensorProto.FLOAT,
    np.dtype("uint8"): TensorProto.UINT8,
    np.dtype("int32"): TensorProto.INT32,
    np.dtype("int64"): TensorProto.INT64,
}


def numbers(*shape, low=-1.0, high=1.0):
    return random.uniform(low, high, shape).astype(np.float32)


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def write(folder, name, model, inputs):
    outputs = session(model).run(None, inputs)
    case = folder / name
    case.mkdir()
    (case / "model.onnx").write_bytes(model)
    for index, value in enumerate(inputs.values()):
        (case / f"input-{index}").write_bytes(np.ascontiguousarray(value).tobytes())
    for index, value in enumerate(outputs):
        (case / f"output-{index}").write_bytes(np.ascontiguousarray(value).tobytes())


def graph(steps, inputs, weights, output=TensorProto.FLOAT, opset=13):
    """Returns the bytes of a model whose last step makes its output."""
    infos = [helper.make_tensor_value_info(name, TYPES[value.dtype], value.shape) for name, value in inputs.items()]
    outputs = [helper.make_tensor_value_info(steps[-1].output[0], output, None)]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    made = helper.make_graph(steps, "case", infos, outputs, tensors)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model.SerializeToString()


def step(kind, inputs, output="y", **attributes):
    return helper.make_node(kind, inputs.split(), [output], name=f"{kind}-{output}", **attributes)


def cases():
    """Yields name, steps, inputs, weights, and further arguments of `graph`."""
    x = {"x": numbers(2, 6, 12, 10)}
    for name, settings, shape in [
        ("conv", {"pads": [1, 1, 1, 1]}, (8, 6, 3, 3)),
        ("conv-strides", {"strides": [2, 3], "pads": [0, 1, 2, 1]}, (4, 6, 3, 5)),
        ("conv-groups", {"group": 3, "pads": [1, 1, 1, 1]}, (6, 2, 3, 3)),
        ("conv-depthwise", {"group": 6}, (6, 1, 3, 3)),
        ("conv-dilations", {"dilations": [2, 2], "pads": [2, 2, 2, 2]}, (5, 6, 3, 3)),
        ("conv-1x1", {}, (16, 6, 1, 1)),
        ("conv-same", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (4, 6, 3, 3)),
    ]:
        yield name, [step("Conv", "x w b", **settings)], x, {"w": numbers(*shape), "b": numbers(shape[0])}
    for kind in ("MaxPool", "AveragePool"):
        for name, settings in [("", {"strides": [2, 2]}), ("-pads", {"strides": [2, 2], "pads": [0, 0, 1, 1]})]:
            yield kind.lower() + name, [step(kind, "x", kernel_shape=[3, 3], **settings)], x, {}
    for kind in ("GlobalAveragePool", "GlobalMaxPool"):
        yield kind.lower(), [step(kind, "x")], x, {}
    flat = {"x": numbers(3, 20)}
    yield "gemm", [step("Gemm", "x w b", transB=1, alpha=0.5)], flat, {"w": numbers(7, 20), "b": numbers(7)}
    yield "matmul", [step("MatMul", "x w")], {"x": numbers(2, 4, 5)}, {"w": numbers(5, 9)}
    for kind in ("Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Neg", "Abs", "HardSwish", "Softplus"):
        yield kind.lower(), [step(kind, "x")], flat, {}, {"opset": 14}
    yield "leaky", [step("LeakyRelu", "x", alpha=0.1)], flat, {}
    yield "softmax", [step("Softmax", "x", axis=-1)], flat, {}
    yield "clip", [step("Clip", "x low high")], flat, {"low": np.float32(-0.5), "high": np.float32(0.25)}
    statistics = {name: numbers(6, low=0.5, high=2.0) for name in ("scale", "bias", "mean", "variance")}
    yield "batch-norm", [step("BatchNormalization", "x scale bias mean variance")], x, statistics
    yield "layer-norm", [step("LayerNormalization", "x scale bias", axis=-1)], flat, {"scale": numbers(20), "bias": numbers(20)}, {"opset": 17}
    yield "reduce", [step("ReduceMean", "x", axes=[2, 3], keepdims=0)], x, {}
    yield "slice", [step("Slice", "x starts ends", "a"), step("Transpose", "a", perm=[0, 2, 3, 1])], x, {
        "starts": np.array([0, 1], np.int64),
        "ends": np.array([1, 5], np.int64),
    }
    yield "gather", [step("Gather", "w x")], {"x": np.array([[0, 3], [2, 1]], np.int64)}, {"w": numbers(4, 6)}
    yield "whole-numbers", [step("Mul", "x x", "a"), step("Add", "a w")], {"x": np.arange(-6, 6, dtype=np.int32)}, {
        "w": np.arange(12, dtype=np.int32)
    }, {"output": TensorProto.INT32}
    yield "bytes", [step("Cast", "x", "a", to=TensorProto.FLOAT), step("Div", "a w")], {
        "x": random.integers(0, 256, (5, 5), np.uint8)
    }, {"w": np.float32(255)}
    yield "arg-max", [step("ArgMax", "x", axis=1, keepdims=0)], flat, {}, {"output": TensorProto.INT64}
    residual = [
        step("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        step("Relu", "c", "r"),
        step("Conv", "r w b", "d", pads=[1, 1, 1, 1]),
        step("Add", "d x", "s"),
        step("Relu", "s", "t"),
        step("GlobalAveragePool", "t", "g"),
        step("Flatten", "g", "f"),
        step("Gemm", "f m n", "o"),
        step("Softmax", "o", axis=1),
    ]
    yield "residual", residual, x, {"w": numbers(6, 6, 3, 3), "b": numbers(6), "m": numbers(6, 4), "n": numbers(4)}


def main(classifier, folder):
    for name, steps, inputs, weights, *more in cases():
        write(folder, name, graph(steps, inputs, weights, **(more[0] if more else {})), inputs)
    model = (classifier / "model/cifar.onnx").read_bytes()
    write(folder, "classifier", model, {"image": random.integers(0, 256, (1, 32, 32, 3), np.uint8)})


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
