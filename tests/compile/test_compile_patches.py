"""Patches of convolutions go to the runtime's kernel, with the bits of the plain build's patches."""

from __future__ import annotations

import numpy as np
import pytest

import sylvite
from sylvite.compile.patches import call_patches
from sylvite.kernels import PATCHES_NAME

pytestmark = pytest.mark.compiler

# Input channels, filters, filter size, stride, padding, dilation.
CONVOLUTIONS = [
    (6, 8, (3, 3), 1, 1, 1),
    (6, 5, (2, 2), 1, 0, 1),
    (6, 8, (3, 3), 2, 1, 1),
    (6, 9, (5, 3), 3, 2, 1),
    (6, 4, (3, 3), 1, 2, 2),
]


def convolutions(height, width):
    """A model of convolutions of one image, and onnxruntime's results."""
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(3)
    helper, nodes, weights, outputs = onnx.helper, [], [], []
    for number, (channels, filters, size, stride, padding, dilation) in enumerate(CONVOLUTIONS):
        values = rng.standard_normal((filters, channels, *size)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(values, f"w{number}"))
        nodes.append(
            helper.make_node(
                "Conv",
                ["x", f"w{number}"],
                [f"y{number}"],
                strides=[stride] * 2,
                pads=[padding] * 4,
                dilations=[dilation] * 2,
            )
        )
        outputs.append(helper.make_tensor_value_info(f"y{number}", onnx.TensorProto.FLOAT, None))
    image = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 6, height, width])
    graph = helper.make_graph(nodes, "patches", [image], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model)
    x = rng.standard_normal((1, 6, height, width)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return model, x, session.run(None, {"x": x})


# Rows of the second image give no result whose width is a multiple of 4.
@pytest.mark.parametrize(("height", "width", "is_called"), [(12, 16, True), (9, 18, False)])
def test_compile_convolutions_with_the_kernel_of_patches_agree(height, width, is_called):
    model, x, want = convolutions(height, width)
    tuned, plain = sylvite.compile(model), sylvite.compile(model, tuning="off")
    assert (PATCHES_NAME.encode() in tuned.path.read_bytes()) is is_called
    assert PATCHES_NAME.encode() not in plain.path.read_bytes()
    results = []
    for artifact in (tuned, plain):
        with sylvite.load(artifact) as loaded:
            results.append([np.array(y) for y in loaded(x)])
    for got, reference, expected in zip(*results, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got, reference, rtol=1e-4, atol=1e-4)


def test_call_patches_other_text_stays():
    text = "linalg.generic {} linalg.pack {}\n"
    assert call_patches(text) == text
