from __future__ import annotations

import numpy as np
import pytest

from sylvite.compile.onnx_rewrites import (
    flatten_products,
    has_convolutions,
    pixel_convolutions_to_products,
)

onnx = pytest.importorskip("onnx")
helper, types = onnx.helper, onnx.TensorProto
RANDOM = np.random.default_rng(0)


def _model(shape, kernel, *, bias=True, opset=17, **attributes):
    weights = RANDOM.standard_normal(kernel).astype(np.float32)
    initializers = [onnx.numpy_helper.from_array(weights, "w")]
    if bias:
        initializers.append(
            onnx.numpy_helper.from_array(RANDOM.standard_normal(kernel[0]).astype(np.float32), "b")
        )
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w", *(["b"] if bias else [])], ["y"], name="conv", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", types.FLOAT, shape)],
        [helper.make_tensor_value_info("y", types.FLOAT, [None] * len(shape))],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def _run(model, x):
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model).run(None, {"x": x})[0]


@pytest.mark.parametrize("opset", [11, 12, 13, 17])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("spatial", [(1,), (1, 1), (1, 1, 1)])
def test_pixel_convolution_becomes_the_same_product(opset, bias, spatial):
    model = _model((2, 3, *spatial), (5, 3, *spatial), bias=bias, opset=opset)
    x = RANDOM.standard_normal((2, 3, *spatial)).astype(np.float32)
    expected = _run(model, x)
    assert has_convolutions(model)
    assert pixel_convolutions_to_products(model, opset) == 1
    assert not has_convolutions(model)
    onnx.checker.check_model(model)
    np.testing.assert_allclose(_run(model, x), expected, rtol=1e-5, atol=1e-6)


def test_pixel_convolution_batch_may_be_open():
    model = _model(("N", 3, 1, 1), (5, 3, 1, 1))
    assert pixel_convolutions_to_products(model, 17) == 1


@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ((1, 3, 2, 2), (5, 3, 1, 1), {}),
        ((1, 3, "H", 1), (5, 3, 1, 1), {}),
        ((1, 3, 1, 1), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((1, 3, 1, 1), (5, 3, 1, 1), {"pads": [1, 1, 1, 1]}),
        ((1, 3, 1, 1), (5, 3, 1, 1), {"auto_pad": "SAME_UPPER"}),
        ((1, 4, 1, 1), (4, 1, 1, 1), {"group": 4}),
    ],
)
def test_other_convolutions_are_left_alone(shape, kernel, attributes):
    model = _model(shape, kernel, **attributes)
    before = model.SerializeToString()
    assert pixel_convolutions_to_products(model, 17) == 0
    assert model.SerializeToString() == before


def test_operator_sets_whose_gemm_needs_a_bias_are_left_alone():
    assert pixel_convolutions_to_products(_model((1, 3, 1, 1), (5, 3, 1, 1), opset=9), 9) == 0


def _product_model(rows, matrix, *, constant=True):
    inputs = [helper.make_tensor_value_info("x", types.FLOAT, rows)]
    weights = np.zeros(0, np.float32)
    if constant:
        weights = RANDOM.standard_normal(matrix).astype(np.float32)
    else:
        inputs.append(helper.make_tensor_value_info("w", types.FLOAT, matrix))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        inputs,
        [helper.make_tensor_value_info("y", types.FLOAT, [*rows[:-1], *matrix[1:]])],
        [onnx.numpy_helper.from_array(weights, "w")] if constant else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "rows", [(1, 5, 4), (3, 5, 4), (2, 3, 5, 4), ("N", 5, 4), (2, 3, "N", 4), (1, 5, "K")]
)
def test_flatten_products_one_matrix_for_all_computes_the_same(rows):
    model = _product_model(rows, (4, 6))
    shape = [{"N": 7, "K": 4}.get(extent, extent) for extent in rows]
    x = RANDOM.standard_normal(shape).astype(np.float32)
    expected = _run(model, x)
    assert flatten_products(model) == 1
    assert [node.op_type for node in model.graph.node].count("MatMul") == 1
    onnx.checker.check_model(model)
    got = _run(model, x)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "matrix"),
    [
        ((5, 4), (4, 6)),
        ((2, 5, 4), (2, 4, 6)),
        (("N", "M", 4), (4, 6)),
        ((2, 5, 4), (4, "J")),
        ((2, 5, 4), (4,)),
    ],
)
def test_flatten_products_leaves_others(rows, matrix):
    model = _product_model(rows, matrix, constant=False)
    before = model.SerializeToString()
    assert flatten_products(model) == 0
    assert model.SerializeToString() == before
