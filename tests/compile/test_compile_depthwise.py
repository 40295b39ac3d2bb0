"""Depthwise convolutions go to the runtime's kernel, with the bits of the plain build."""

from __future__ import annotations

import numpy as np
import pytest

import sylvite
from sylvite import engines
from sylvite.compile.depthwise_call import call_depthwise
from sylvite.drivers import create_device
from sylvite.kernels import DEPTHWISE_NAME

pytestmark = pytest.mark.compiler

# Channels, filter size, strides, padding, activation.
CONVOLUTIONS = [
    (12, (3, 3), (1, 1), 1, None),
    (12, (3, 3), (2, 2), 1, "Clip"),
    (12, (5, 5), (1, 1), 2, "HardSwish"),
    (12, (3, 2), (2, 1), 1, "Relu"),
    (12, (1, 7), (1, 2), 3, None),
]


def convolutions(height, width, *, followed):
    """A model of depthwise convolutions of one image, and onnxruntime's results."""
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(3)
    helper, nodes, weights, outputs = onnx.helper, [], [], []

    def weight(name, *shape):
        values = rng.standard_normal(shape).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(values, name))
        return name

    for bound, value in (("low", 0.0), ("high", 6.0)):
        weights.append(onnx.numpy_helper.from_array(np.float32(value), bound))
    for number, (channels, size, strides, padding, activation) in enumerate(CONVOLUTIONS):
        operands = ["x", weight(f"w{number}", channels, 1, *size), weight(f"b{number}", channels)]
        attributes = {"strides": strides, "pads": [padding] * 4, "group": channels}
        nodes.append(helper.make_node("Conv", operands, [f"c{number}"], **attributes))
        result = f"c{number}"
        if activation is not None:
            bounds = ["low", "high"] if activation == "Clip" else []
            nodes.append(helper.make_node(activation, [result, *bounds], [f"a{number}"]))
            result = f"a{number}"
        if followed:
            operands = [result, weight(f"p{number}", 8, channels, 1, 1)]
            nodes.append(helper.make_node("Conv", operands, [f"y{number}"]))
            result = f"y{number}"
        outputs.append(helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, None))
    # A product, without which a model is not tuned.
    nodes.append(helper.make_node("MatMul", ["x", weight("m", width, 8)], ["product"]))
    outputs.append(helper.make_tensor_value_info("product", onnx.TensorProto.FLOAT, None))
    image = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 12, height, width])
    graph = helper.make_graph(nodes, "depthwise", [image], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model)
    x = rng.standard_normal((1, 12, height, width)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return model, x, session.run(None, {"x": x})


def results(artifact, x, device="local-sync", *, deterministic=False):
    engine = engines.create("wasmtime", deterministic=deterministic)
    with create_device(device, engine=engine) as opened, sylvite.load(artifact, device=opened) as loaded:
        return [np.array(y) for y in loaded(x)]


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize(("height", "width"), [(16, 16), (7, 9), (3, 3)])
def test_compile_depthwise_convolutions_with_the_kernel_agree(height, width, followed):
    model, x, want = convolutions(height, width, followed=followed)
    tuned, plain = sylvite.compile(model), sylvite.compile(model, tuning="off")
    assert not any("without tuning" in note for note in tuned.notes)
    assert DEPTHWISE_NAME.encode() in tuned.path.read_bytes()
    assert DEPTHWISE_NAME.encode() not in plain.path.read_bytes()
    got, exact = results(tuned, x), results(tuned, x, deterministic=True)
    reference = results(plain, x, deterministic=True)
    for y, same, bits, expected in zip(got, exact, reference, want, strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
        if followed:
            np.testing.assert_allclose(same, bits, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(same, bits)


def test_compile_depthwise_convolutions_on_workers_have_the_same_bits():
    model, x, _ = convolutions(16, 16, followed=True)
    artifact = sylvite.compile(model)
    for one, two in zip(results(artifact, x), results(artifact, x, "local-task://2"), strict=True):
        np.testing.assert_array_equal(one, two)


def test_call_depthwise_other_text_stays():
    text = "linalg.generic {} iree_linalg_ext.map_store {}\n"
    assert call_depthwise(text) == text
