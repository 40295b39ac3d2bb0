"""Rewrites of ONNX graphs that make better code, or code at all, of the same mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from . import onnx_graph

__all__ = [
    "flatten_products",
    "has_convolutions",
    "known_shapes",
    "pixel_convolutions_to_products",
    "rewrite",
]

_GEMM_WITHOUT_BIAS = 11


def has_convolutions(model: Any) -> bool:
    """Whether the main graph convolves."""
    return any(node.op_type == "Conv" for node in model.graph.node)


def pixel_convolutions_to_products(model: Any, opset: int) -> int:
    """Turn convolutions of one pixel (squeeze-and-excitation blocks) into matrix products, in place.

    Once convolutions are matrix products of patches, those of a single pixel become a product with one row
    in a form that the compiler cannot distribute. ``Gemm`` over flattened operands is the same numbers.

    Args:
        model: a ModelProto with inferred shapes.
        opset: its operator set.

    Returns:
        how many were turned.
    """
    onnx = onnx_graph.require_onnx()
    if opset < _GEMM_WITHOUT_BIAS:
        return 0
    shapes = known_shapes(model)

    def product(node: Any) -> list[Any] | None:
        if not _is_pixelwise(node, shapes):
            return None
        return _product(onnx, node, len(shapes[node.input[0]]))

    return rewrite(model, "Conv", product)


def flatten_products(model: Any) -> int:
    """Let products with one matrix for the whole batch be products of two matrices, in place.

    ``MatMul`` of ``[..., M, K]`` and ``[K, N]`` is one product of all rows; as it stands the compiler makes a
    batch of it, which repeats the matrix, and even a batch of one is tiled and copied less well.

    Args:
        model: a ModelProto with inferred shapes.

    Returns:
        how many were flattened.
    """
    onnx = onnx_graph.require_onnx()
    shapes = known_shapes(model)

    def flat(node: Any) -> list[Any] | None:
        rows, matrix = (shapes.get(name, ()) for name in node.input[:2])
        # One extent may be open: a reshape finds it. Extents along K are those of the matrix.
        batch = [-1 if extent is None else extent for extent in rows[:-1]]
        if len(batch) < 2 or len(matrix) != 2 or batch.count(-1) > 1 or 0 in batch:
            return None
        inner, columns = matrix
        if inner is None or columns is None:
            return None
        return _flat_product(onnx, node, batch, inner, columns)

    return rewrite(model, "MatMul", flat)


def _flat_product(onnx: Any, node: Any, batch: list[int], inner: int, columns: int) -> list[Any]:
    """Nodes that compute what the product ``node`` does."""
    helper = onnx.helper
    output = node.output[0]
    names = [f"{output}/{part}" for part in ("rows_shape", "rows", "flat", "shape")]
    rows_shape, rows, flat, shape = names

    def constant(name: str, values: list[int]) -> Any:
        tensor = helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values)
        return helper.make_node("Constant", [], [name], name=name, value=tensor)

    return [
        constant(rows_shape, [-1 if -1 in batch else math.prod(batch), inner]),
        helper.make_node("Reshape", [node.input[0], rows_shape], [rows], name=rows),
        helper.make_node("MatMul", [rows, node.input[1]], [flat], name=node.name),
        constant(shape, [*batch, columns]),
        helper.make_node("Reshape", [flat, shape], [output], name=f"{output}/batch"),
    ]


def rewrite(model: Any, operator: str, replacement: Callable[[Any], list[Any] | None]) -> int:
    """Put other nodes in the place of some of the main graph.

    Args:
        model: a ModelProto.
        operator: which of ONNX's own operators to look at.
        replacement: nodes that compute what a node does, or ``None`` to leave it.

    Returns:
        how many were replaced.
    """
    onnx = onnx_graph.require_onnx()
    nodes: list[Any] = []
    count = 0
    for node in model.graph.node:
        is_wanted = node.op_type == operator and node.domain in ("", "ai.onnx")
        made = replacement(node) if is_wanted else None
        nodes.extend([node] if made is None else made)
        count += made is not None
    if count:
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(copies)
    return count


def known_shapes(model: Any) -> dict[str, tuple[int | None, ...]]:
    """Known shapes by value name; ``None`` for open extents."""
    graph = model.graph
    shapes: dict[str, tuple[int | None, ...]] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            shapes[value.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim
            )
    shapes.update((tensor.name, tuple(tensor.dims)) for tensor in graph.initializer)
    return shapes


def _is_pixelwise(node: Any, shapes: dict[str, tuple[int | None, ...]]) -> bool:
    """Whether input and kernel have one pixel, in one group, without padding."""
    operand, kernel = shapes.get(node.input[0], ()), shapes.get(node.input[1], ())
    if len(operand) < 3 or len(operand) != len(kernel):
        return False
    attributes = {attribute.name: attribute for attribute in node.attribute}
    group = attributes["group"].i if "group" in attributes else 1
    padded = "pads" in attributes and any(attributes["pads"].ints)
    automatic = "auto_pad" in attributes and attributes["auto_pad"].s not in (b"NOTSET", b"VALID", b"")
    one_pixel = all(extent == 1 for extent in (*operand[2:], *kernel[2:]))
    return one_pixel and group == 1 and not padded and not automatic


def _product(onnx: Any, node: Any, rank: int) -> list[Any]:
    """Nodes that compute what the convolution ``node`` does."""
    helper = onnx.helper
    output = node.output[0]
    rows, weights, product, shape = (f"{output}/{part}" for part in ("rows", "weights", "product", "shape"))
    # Unsqueeze would say it better, but its form before operator set 13 has no lowering.
    extents = helper.make_tensor(shape, onnx.TensorProto.INT64, [rank], [0, -1, *[1] * (rank - 2)])
    bias = [node.input[2]] if len(node.input) > 2 and node.input[2] else []
    return [
        helper.make_node("Flatten", [node.input[0]], [rows], name=rows, axis=1),
        helper.make_node("Flatten", [node.input[1]], [weights], name=weights, axis=1),
        helper.make_node("Gemm", [rows, weights, *bias], [product], name=node.name, transB=1),
        helper.make_node("Constant", [], [shape], name=shape, value=extents),
        helper.make_node("Reshape", [product, shape], [output], name=f"{output}/pixels"),
    ]
