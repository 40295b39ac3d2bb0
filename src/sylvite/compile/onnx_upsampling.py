"""Rewrites of ONNX operators that make images larger by whole factors, as products and copies.

The compiler takes a transposed convolution for a convolution of an image with zeros in between, most of whose
multiplications are by zero; and a resized image for a gather, whose indices it computes in floating point for
every element.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import onnx_graph
from .onnx_rewrites import known_shapes, rewrite

__all__ = ["repeat_pixels", "spread_pixels"]

_EXPAND = 8
_RESIZE_WITH_MODES = 11
_EXACT = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
}
"""Coordinates and rounding by which whole factors repeat pixels: ``floor(x / factor)``."""

_LARGEST_FACTOR = 64


def spread_pixels(model: Any, opset: int) -> int:
    """Turn transposed convolutions with steps as wide as their kernels into convolutions of pixels, in place.

    Each pixel makes a patch of the result, and no two patches overlap: a convolution with as many filters as
    a patch has elements, which are then put in their places.

    Args:
        model: a ModelProto with inferred shapes.
        opset: its operator set.

    Returns:
        how many were turned.
    """
    onnx = onnx_graph.require_onnx()
    if opset < _EXPAND:
        return 0
    shapes = known_shapes(model)

    def patches(node: Any) -> list[Any] | None:
        image, kernel = (shapes.get(name, ()) for name in node.input[:2])
        return _spread(onnx, node, image, kernel) if _is_spread(onnx, node, image, kernel) else None

    return rewrite(model, "ConvTranspose", patches)


def repeat_pixels(model: Any, opset: int) -> int:
    """Turn nearest-neighbour enlargements by whole factors into copies, in place; bit for bit the same.

    Args:
        model: a ModelProto with inferred shapes.
        opset: its operator set.

    Returns:
        how many were turned.
    """
    onnx = onnx_graph.require_onnx()
    if opset < _RESIZE_WITH_MODES:
        return 0
    shapes = known_shapes(model)
    constants = _constants(onnx, model)

    def copies(node: Any) -> list[Any] | None:
        shape = shapes.get(node.input[0], ())
        factors = _factors(onnx, node, shape, constants)
        return None if factors is None else _repeat(onnx, node, shape, factors)

    return rewrite(model, "Resize", copies)


def _attributes(onnx: Any, node: Any) -> dict[str, Any]:
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def _is_spread(onnx: Any, node: Any, image: tuple[int | None, ...], kernel: tuple[int | None, ...]) -> bool:
    """Whether every pixel makes a patch of its own, and all extents are known."""
    attributes = _attributes(onnx, node)
    if len(image) != 4 or len(kernel) != 4 or None in image or None in kernel or 0 in image:
        return False
    return (
        tuple(attributes.get("strides", (1, 1))) == kernel[2:]
        and attributes.get("group", 1) == 1
        and set(attributes.get("dilations", (1,))) == {1}
        and not any(attributes.get("pads", ()))
        and not any(attributes.get("output_padding", ()))
        and "output_shape" not in attributes
        and attributes.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
    )


class _Nodes:
    """Nodes that compute what one of a model does, with names after its result."""

    def __init__(self, onnx: Any, node: Any) -> None:
        self._onnx, self._result = onnx, node.output[0]
        self.made: list[Any] = []

    def add(self, operator: str, part: str, *inputs: str, **attributes: Any) -> str:
        """A node; ``part`` is empty for the one that makes the result."""
        output = f"{self._result}/{part}" if part else self._result
        name = f"{self._result}/{part or 'result'}"
        self.made.append(self._onnx.helper.make_node(operator, inputs, [output], name=name, **attributes))
        return output

    def shape(self, part: str, extents: list[int]) -> str:
        """A constant of extents."""
        tensor = self._onnx.helper.make_tensor(part, self._onnx.TensorProto.INT64, [len(extents)], extents)
        return self.add("Constant", part, value=tensor)

    def reshape(self, part: str, value: str, extents: list[int]) -> str:
        """The value with other extents."""
        return self.add("Reshape", part, value, self.shape(f"{part or 'result'}_shape", extents))


def _spread(onnx: Any, node: Any, image: tuple[Any, ...], kernel: tuple[Any, ...]) -> list[Any]:
    """Nodes that compute what the transposed convolution ``node`` does."""
    batch, inputs, rows, columns = image
    _, outputs, height, width = kernel
    nodes = _Nodes(onnx, node)
    taps = nodes.add("Transpose", "taps", node.input[1], perm=[1, 2, 3, 0])
    operands = [node.input[0], nodes.reshape("filters", taps, [outputs * height * width, inputs, 1, 1])]
    if len(node.input) > 2 and node.input[2]:
        bias = nodes.reshape("column", node.input[2], [outputs, 1])
        spread = nodes.add("Expand", "biases", bias, nodes.shape("biases_shape", [outputs, height * width]))
        operands.append(nodes.reshape("bias", spread, [outputs * height * width]))
    patches = nodes.add("Conv", "patches", *operands, kernel_shape=[1, 1])
    apart = nodes.reshape("apart", patches, [batch, outputs, height, width, rows, columns])
    placed = nodes.add("Transpose", "placed", apart, perm=[0, 1, 4, 2, 5, 3])
    nodes.reshape("", placed, [batch, outputs, rows * height, columns * width])
    return nodes.made


def _constants(onnx: Any, model: Any) -> dict[str, list[float]]:
    """Small constants by name."""
    tensors = [(tensor.name, tensor) for tensor in model.graph.initializer]
    for node in model.graph.node:
        if node.op_type == "Constant":
            values = _attributes(onnx, node)
            if "value" in values:
                tensors.append((node.output[0], values["value"]))
    external = onnx.TensorProto.EXTERNAL
    numbers = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64)
    return {
        name: [float(value) for value in onnx_graph.tensor_array(tensor, Path()).ravel()]
        for name, tensor in tensors
        if tensor.data_type in numbers and list(tensor.dims) == [4] and tensor.data_location != external
    }


def _factors(
    onnx: Any, node: Any, shape: tuple[int | None, ...], constants: dict[str, list[float]]
) -> tuple[int, int] | None:
    """By what rows and columns are repeated; ``None`` for anything else."""
    attributes = _attributes(onnx, node)
    modes = (
        attributes.get("coordinate_transformation_mode", b"half_pixel").decode(),
        attributes.get("nearest_mode", b"round_prefer_floor").decode(),
    )
    if (
        attributes.get("mode", b"nearest") != b"nearest"
        or modes not in _EXACT
        or "axes" in attributes
        or len(shape) != 4
        or None in shape[1:]
        or 0 in shape
    ):
        return None
    inputs = [*node.input, "", "", ""]
    scales = constants.get(inputs[2])
    if inputs[3]:
        sizes = constants.get(inputs[3])
        if sizes is None or None in shape or len(sizes) != 4:
            return None
        policy = attributes.get("keep_aspect_ratio_policy", b"stretch")
        scales = [size / extent for size, extent in zip(sizes, shape, strict=True) if extent]
        if policy != b"stretch":
            return None
    if scales is None or len(scales) != 4 or scales[:2] != [1.0, 1.0]:
        return None
    if any(scale not in range(1, _LARGEST_FACTOR + 1) for scale in scales) or scales[2:] == [1.0, 1.0]:
        return None
    return int(scales[2]), int(scales[3])


def _repeat(onnx: Any, node: Any, shape: tuple[int | None, ...], factors: tuple[int, int]) -> list[Any]:
    """Nodes that compute what the enlargement ``node`` does. The batch may be open: a reshape finds it."""
    nodes = _Nodes(onnx, node)
    batch, channels, rows, columns = (-1 if extent is None else extent for extent in shape)
    apart = nodes.reshape("apart", node.input[0], [batch, channels, rows, 1, columns, 1])
    shape_name = nodes.shape("repeated_shape", [1, 1, 1, factors[0], 1, factors[1]])
    repeated = nodes.add("Expand", "repeated", apart, shape_name)
    nodes.reshape("", repeated, [batch, channels, rows * factors[0], columns * factors[1]])
    return nodes.made
