"""How numpy arrays and Halide's buffers see the same memory.

Halide counts dimensions from the innermost outwards: x, y, channel. numpy users write images ``[y, x]`` and
``[y, x, c]``. An `AxisOrder` says which numpy axis a dimension is.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError

__all__ = ["AxisOrder", "Dimension", "Region", "Window", "axes_of", "byte_span", "strided"]


class AxisOrder(enum.Enum):
    """Which numpy axis each dimension is.

    ``IMAGE``: arrays of three axes are ``[y, x, c]``, Halide's ``(x, y, c)``; all others are reversed.
    ``REVERSED``: always reversed, ``[c, y, x]`` for ``(x, y, c)``: what Halide's own Python buffers do.
    ``SAME``: axis i is dimension i.
    """

    IMAGE = "image"
    REVERSED = "reversed"
    SAME = "same"


def axes_of(order: AxisOrder, dimensions: int) -> tuple[int, ...]:
    """The numpy axis of every dimension."""
    if order is AxisOrder.SAME:
        return tuple(range(dimensions))
    if order is AxisOrder.IMAGE and dimensions == 3:
        return (1, 0, 2)
    return tuple(reversed(range(dimensions)))


@dataclasses.dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a buffer. ``stride`` counts elements."""

    min: int
    extent: int
    stride: int


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """A region to compute: shape and smallest coordinates, both in numpy's axis order."""

    shape: tuple[int, ...]
    min: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Window:
    """An array that does not begin at coordinate 0: a crop of something larger.

    Args:
        array: the elements.
        min: coordinate of ``array[0, 0, ...]``, in numpy's axis order.
    """

    array: npt.NDArray[Any]
    min: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.min) != np.ndim(self.array):
            raise InvalidArgumentError(
                f"a window over {np.ndim(self.array)} axes needs as many minima, got {tuple(self.min)}"
            )


def strided(
    memory: npt.NDArray[np.uint8], dtype: np.dtype[Any], dimensions: Sequence[Dimension], axes: Sequence[int]
) -> npt.NDArray[Any]:
    """The array of a dense or padded buffer that starts at its smallest coordinates in ``memory``."""
    shape, strides = [0] * len(axes), [0] * len(axes)
    for axis, dimension in zip(axes, dimensions, strict=True):
        shape[axis] = dimension.extent
        strides[axis] = dimension.stride * dtype.itemsize
    array: npt.NDArray[Any] = np.ndarray(tuple(shape), dtype, memory.data, 0, tuple(strides))
    return array


def byte_span(dims: Sequence[Dimension], item_bytes: int) -> tuple[int, int]:
    """First and one past the last byte a buffer covers, relative to its smallest coordinates."""
    if any(dim.extent <= 0 for dim in dims):
        return 0, 0
    low = sum(min(dim.stride, 0) * (dim.extent - 1) for dim in dims)
    high = sum(max(dim.stride, 0) * (dim.extent - 1) for dim in dims)
    return low * item_bytes, (high + 1) * item_bytes
