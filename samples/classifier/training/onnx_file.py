"""Writes the network as ONNX. The messages (onnx.proto3 of ONNX 1.12) are written field by field, so that numpy is all that this takes."""

import numpy as np

FLOAT, UINT8, INT64 = 1, 2, 7
OPSET = 13


def model(weights):
    """Returns the file's bytes. The input takes images as they are: bytes, in the order row, column, channel; the output has a softmax."""
    names = ["conv1", "conv2", "conv3", "full"]
    tensors = [_tensor("scale", np.float32(1 / 255)), _tensor("middle", np.float32(0.5))]
    for index, name in enumerate(names):
        matrix, offset = weights[2 * index], weights[2 * index + 1]
        if name == "full":
            # Here the pixels come before the channels, there the channels before the pixels.
            matrix = matrix.reshape(4, 4, 32, -1).transpose(2, 0, 1, 3).reshape(512, -1)
        else:
            matrix = matrix.reshape(5, 5, -1, matrix.shape[1]).transpose(3, 2, 0, 1)
        tensors += [_tensor(name + ".weight", matrix), _tensor(name + ".bias", offset)]
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]}
    convolution = {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}
    steps = [
        _step("Cast", ["image"], "numbers", {"to": FLOAT}),
        _step("Mul", ["numbers", "scale"], "scaled", {}),
        _step("Sub", ["scaled", "middle"], "centred", {}),
        _step("Transpose", ["centred"], "planes", {"perm": [0, 3, 1, 2]}),
        _step("Conv", ["planes", "conv1.weight", "conv1.bias"], "first", convolution),
        _step("MaxPool", ["first"], "first.pooled", pool),
        _step("Relu", ["first.pooled"], "first.relu", {}),
        _step("Conv", ["first.relu", "conv2.weight", "conv2.bias"], "second", convolution),
        _step("Relu", ["second"], "second.relu", {}),
        _step("AveragePool", ["second.relu"], "second.pooled", pool),
        _step("Conv", ["second.pooled", "conv3.weight", "conv3.bias"], "third", convolution),
        _step("Relu", ["third"], "third.relu", {}),
        _step("AveragePool", ["third.relu"], "third.pooled", pool),
        _step("Flatten", ["third.pooled"], "flat", {"axis": 1}),
        _step("Gemm", ["flat", "full.weight", "full.bias"], "logits", {}),
        _step("Softmax", ["logits"], "scores", {"axis": 1}),
    ]
    graph = b"".join(
        [_bytes(1, step) for step in steps]
        + [_bytes(2, b"classifier")]
        + [_bytes(5, tensor) for tensor in tensors]
        + [_bytes(11, _value("image", UINT8, [1, 32, 32, 3])), _bytes(12, _value("scores", FLOAT, [1, 10]))]
    )
    return _number(1, 8) + _bytes(2, b"pinion") + _bytes(7, graph) + _bytes(8, _bytes(1, b"") + _number(2, OPSET))


def _varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def _number(field, value):
    return _varint(field << 3) + _varint(value)


def _bytes(field, value):
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _tensor(name, array):
    array = np.ascontiguousarray(array, "<f4") if np.ndim(array) else np.asarray(array, "<f4")
    shape = b"".join(_number(1, size) for size in array.shape)
    return shape + _number(2, FLOAT) + _bytes(8, name.encode()) + _bytes(9, array.tobytes())


def _value(name, kind, shape):
    dims = b"".join(_bytes(1, _number(1, size)) for size in shape)
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, _number(1, kind) + _bytes(2, dims)))


def _step(kind, inputs, output, attributes):
    text = b"".join(_bytes(1, name.encode()) for name in inputs) + _bytes(2, output.encode())
    text += _bytes(3, output.encode()) + _bytes(4, kind.encode())
    return text + b"".join(_bytes(5, _attribute(name, value)) for name, value in attributes.items())


def _attribute(name, value):
    if isinstance(value, int):
        return _bytes(1, name.encode()) + _number(3, value) + _number(20, 2)
    return _bytes(1, name.encode()) + b"".join(_number(8, item) for item in value) + _number(20, INT64)
