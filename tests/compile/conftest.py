"""Small ONNX models for the tests of the compile package."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest


@pytest.fixture
def softmax_model() -> Callable[..., object]:
    """Makes ``softmax(x @ w)`` with a symbolic batch dim; options change shapes, opset, weights."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper, types = onnx.helper, onnx.numpy_helper, onnx.TensorProto

    def make(
        *, batch: int | str | None = "N", opset: int = 17, columns: int = 8, name: str = "main_graph"
    ) -> object:
        weights = (np.arange(4 * columns, dtype=np.float32) % 7 / 10).reshape(4, columns)
        return helper.make_model(
            helper.make_graph(
                [
                    helper.make_node("MatMul", ["x", "w"], ["product"]),
                    helper.make_node("Softmax", ["product"], ["y"], axis=1),
                ],
                name,
                [helper.make_tensor_value_info("x", types.FLOAT, [batch, 4])],
                [helper.make_tensor_value_info("y", types.FLOAT, [batch, columns])],
                [numpy_helper.from_array(weights, "w")],
            ),
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=8,
        )

    return make
