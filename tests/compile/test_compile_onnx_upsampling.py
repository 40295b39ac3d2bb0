"""Rewrites of what makes images larger: the same numbers as onnxruntime computes of the model as it was."""

from __future__ import annotations

import numpy as np
import pytest

import sylvite
from sylvite.compile.onnx_upsampling import repeat_pixels, spread_pixels

onnx = pytest.importorskip("onnx")
helper, types = onnx.helper, onnx.TensorProto
RANDOM = np.random.default_rng(0)
NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
TWICE = np.array([1, 1, 2, 2], np.float32)


def model_of(node, image, constants, *, opset=17):
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", types.FLOAT, image)],
        [helper.make_tensor_value_info("y", types.FLOAT, [None] * len(image))],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def resize(image, *, scales=TWICE, sizes=None, opset=17, **attributes):
    constants = {"s": np.asarray(scales if sizes is None else sizes), "none": np.zeros(0, np.float32)}
    operands = ["x", "none", *(["s"] if sizes is None else ["none", "s"])]
    node = helper.make_node("Resize", operands, ["y"], **{**NEAREST, **attributes})
    return model_of(node, image, constants, opset=opset)


def transposed(image, kernel, *, bias=True, opset=17, **attributes):
    constants = {"w": RANDOM.standard_normal(kernel).astype(np.float32)}
    if bias:
        constants["b"] = RANDOM.standard_normal(kernel[1] * attributes.get("group", 1)).astype(np.float32)
    node = helper.make_node("ConvTranspose", ["x", *constants], ["y"], **attributes)
    return model_of(node, image, constants, opset=opset)


def results(model, x):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def image(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(
    "modes",
    [
        ("asymmetric", "floor"),
        ("half_pixel", "round_prefer_floor"),
        ("half_pixel", "round_prefer_ceil"),
    ],
)
@pytest.mark.parametrize("factors", [(2, 2), (1, 3), (8, 5)])
def test_repeat_pixels_whole_factors_have_the_bits_of_the_resize(opset, modes, factors):
    scales = np.array([1, 1, *factors], np.float32)
    coordinates, rounding = modes
    model = resize(
        (2, 3, 5, 7),
        scales=scales,
        opset=opset,
        coordinate_transformation_mode=coordinates,
        nearest_mode=rounding,
    )
    x = image(2, 3, 5, 7)
    expected = results(model, x)
    assert repeat_pixels(model, opset) == 1
    onnx.checker.check_model(model)
    np.testing.assert_array_equal(results(model, x), expected)


def test_repeat_pixels_takes_sizes_that_are_multiples():
    model = resize((1, 2, 3, 4), sizes=np.array([1, 2, 6, 12], np.int64))
    x = image(1, 2, 3, 4)
    expected = results(model, x)
    assert repeat_pixels(model, 17) == 1
    np.testing.assert_array_equal(results(model, x), expected)


def test_repeat_pixels_batch_may_be_open():
    model = resize(("N", 2, 3, 4))
    x = image(5, 2, 3, 4)
    expected = results(model, x)
    assert repeat_pixels(model, 17) == 1
    np.testing.assert_array_equal(results(model, x), expected)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 2, 4, 4), {"scales": np.array([1, 1, 1.5, 2], np.float32)}),
        ((1, 2, 4, 4), {"scales": np.array([1, 1, 0.5, 0.5], np.float32)}),
        ((1, 2, 4, 4), {"scales": np.array([1, 2, 2, 2], np.float32)}),
        ((1, 2, 4, 4), {"scales": np.array([1, 1, 1, 1], np.float32)}),
        ((1, 2, 4, 4), {"sizes": np.array([1, 2, 7, 8], np.int64)}),
        (("N", 2, 4, 4), {"sizes": np.array([1, 2, 8, 8], np.int64)}),
        ((1, 2, "H", 4), {}),
        ((1, 2, 4, 4), {"mode": "linear"}),
        ((1, 2, 4, 4), {"coordinate_transformation_mode": "align_corners"}),
        ((1, 2, 4, 4), {"nearest_mode": "ceil"}),
        ((1, 2, 4), {"scales": np.array([1, 1, 2], np.float32)}),
    ],
)
def test_repeat_pixels_leaves_other_resizes(shape, options):
    model = resize(shape, **options)
    before = model.SerializeToString()
    assert repeat_pixels(model, 17) == 0
    assert model.SerializeToString() == before


def test_repeat_pixels_leaves_operator_sets_with_another_resize():
    assert repeat_pixels(resize((1, 2, 4, 4), opset=11), 10) == 0


def test_repeat_pixels_scales_that_are_no_numbers_are_left_to_the_importer():
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], **NEAREST)
    model = model_of(node, (1, 2, 4, 4), {})
    model.graph.initializer.append(helper.make_tensor("s", types.STRING, [4], [b"1", b"1", b"2", b"2"]))
    assert repeat_pixels(model, 17) == 0


@pytest.mark.parametrize("opset", [8, 13, 17])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(2, 2), (3, 1), (4, 5), (1, 1)])
def test_spread_pixels_steps_of_a_kernel_compute_the_same(opset, bias, size):
    model = transposed((2, 3, 5, 4), (3, 6, *size), bias=bias, opset=opset, strides=size)
    x = image(2, 3, 5, 4)
    expected = results(model, x)
    assert spread_pixels(model, opset) == 1
    onnx.checker.check_model(model)
    np.testing.assert_allclose(results(model, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ((1, 3, 4, 4), (3, 2, 3, 3), {"strides": (2, 2)}),
        ((1, 3, 4, 4), (3, 2, 2, 2), {"strides": (3, 3)}),
        ((1, 3, 4, 4), (3, 2, 2, 2), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((1, 3, 4, 4), (3, 2, 2, 2), {"strides": (2, 2), "output_padding": (1, 1)}),
        ((1, 3, 4, 4), (3, 2, 2, 2), {"strides": (2, 2), "output_shape": (8, 8)}),
        ((1, 3, 4, 4), (3, 2, 2, 2), {"strides": (2, 2), "dilations": (2, 2)}),
        ((1, 3, 4, 4), (3, 2, 2, 2), {"strides": (2, 2), "auto_pad": "SAME_UPPER"}),
        ((1, 4, 4, 4), (4, 1, 2, 2), {"strides": (2, 2), "group": 2}),
        (("N", 3, 4, 4), (3, 2, 2, 2), {"strides": (2, 2)}),
        ((1, 3, 4), (3, 2, 2), {"strides": (2,)}),
    ],
)
def test_spread_pixels_leaves_other_transposed_convolutions(shape, kernel, attributes):
    model = transposed(shape, kernel, **attributes)
    before = model.SerializeToString()
    assert spread_pixels(model, 17) == 0
    assert model.SerializeToString() == before


@pytest.mark.compiler
def test_compiled_enlargements_compute_what_onnxruntime_does():
    weights = RANDOM.standard_normal((3, 4, 2, 2)).astype(np.float32)
    bias = RANDOM.standard_normal(4).astype(np.float32)
    constants = {"s": np.array([1, 1, 2, 4], np.float32), "w": weights, "b": bias}
    model = model_of(helper.make_node("Resize", ["x", "", "s"], ["r"], **NEAREST), (1, 3, 6, 5), constants)
    model.graph.node.append(helper.make_node("ConvTranspose", ["r", "w", "b"], ["y"], strides=(2, 2)))
    x = image(1, 3, 6, 5)
    artifact = sylvite.compile(model)
    assert artifact.notes == ()
    with sylvite.load(artifact) as loaded:
        np.testing.assert_allclose(loaded(x), results(model, x), rtol=1e-5, atol=1e-5)
