"""Patches whose rows are no whole tiles go to a kernel of their own, with the bits of the build without."""

from __future__ import annotations

import numpy as np
import pytest

import sylvite
from sylvite.compile import tuning
from sylvite.compile.ragged_patches import call_ragged_patches
from sylvite.kernels import RAGGED_PATCHES_NAME

pytestmark = pytest.mark.compiler

# Filters, filter size, strides, padding. Few results beside many filters let patches be tiled by 8.
CONVOLUTIONS = [
    (8, (3, 3), (1, 1), 1),
    (96, (3, 3), (2, 2), 1),
    (5, (2, 3), (1, 2), 0),
    (64, (2, 4), (3, 1), 0),
]


def convolutions(height, width, *, is_channels_last):
    """A model of convolutions of one image, and onnxruntime's results."""
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(3)
    helper, nodes, weights, outputs = onnx.helper, [], [], []
    shape = (1, height, width, 6) if is_channels_last else (1, 6, height, width)
    if is_channels_last:
        nodes.append(helper.make_node("Transpose", ["x"], ["image"], perm=[0, 3, 1, 2]))
    for number, (filters, size, strides, padding) in enumerate(CONVOLUTIONS):
        values = rng.standard_normal((filters, 6, *size)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(values, f"w{number}"))
        operands = ["image" if is_channels_last else "x", f"w{number}"]
        attributes = {"strides": strides, "pads": [0 if is_channels_last else padding] * 4}
        nodes.append(helper.make_node("Conv", operands, [f"y{number}"], **attributes))
        outputs.append(helper.make_tensor_value_info(f"y{number}", onnx.TensorProto.FLOAT, None))
    image = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "patches", [image], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model)
    x = rng.standard_normal(shape).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return model, x, session.run(None, {"x": x})


@pytest.mark.parametrize(
    ("height", "width", "is_channels_last"),
    [(9, 13, False), pytest.param(14, 14, False, marks=pytest.mark.slow), (11, 13, True)],
)
def test_compile_ragged_patches_have_the_bits_of_the_build_without_the_kernel(
    height, width, is_channels_last, monkeypatch
):
    model, x, want = convolutions(height, width, is_channels_last=is_channels_last)
    changed = []

    def counted(block):
        result = call_ragged_patches(block)
        changed.append(result != block)
        return result

    results = []
    for rewrite in (counted, lambda block: block):
        monkeypatch.setattr(tuning, "call_ragged_patches", rewrite)
        artifact = sylvite.compile(model, cache=False)
        assert artifact.notes == ()
        is_called = RAGGED_PATCHES_NAME.encode() in artifact.path.read_bytes()
        assert is_called is (rewrite is counted)
        with sylvite.load(artifact) as loaded:
            results.append([np.array(y) for y in loaded(x)])
    assert sum(changed) == len(CONVOLUTIONS)
    for got, reference, expected in zip(*results, want, strict=True):
        np.testing.assert_array_equal(got, reference)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_call_ragged_patches_other_text_stays():
    text = "linalg.generic {} iree_linalg_ext.map_store {}\n"
    assert call_ragged_patches(text) == text
