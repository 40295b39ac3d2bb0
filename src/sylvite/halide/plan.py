"""A prepared call: where every buffer's memory is and what the argument block looks like.

A plan holds for all calls whose arrays have the same shapes, strides, types and minima. It decides once, by
asking the pipeline, how arrays outside guest memory are laid out in it and how large outputs are that the
caller does not give.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Dimension, byte_span, strided
from .bounds import Dimensions, layout_like
from .metadata import Argument, Signature
from .place import Place
from .slab import Slab

__all__ = ["BoundBuffer", "Given", "Mode", "Plan", "dimensions_of"]


class Mode(enum.Enum):
    """How a buffer gets its memory."""

    DIRECT = "direct"
    """The caller's array, which lies in guest memory."""
    STAGED = "staged"
    """A buffer of the plan, copied to or from the caller's array."""
    FRESH = "fresh"
    """New memory for every call, which becomes the result."""


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """An array that the caller gave, with the coordinates it starts at (dimension order)."""

    array: npt.NDArray[Any]
    mins: tuple[int, ...]


@dataclasses.dataclass(slots=True, kw_only=True)
class BoundBuffer:
    """One buffer of a plan.

    Args:
        index: of the argument.
        argument: the argument.
        mode: where its memory comes from.
        axes: numpy axis of every dimension.
        dims: dimensions the pipeline sees.
        stage: the staging array, in numpy's axis order.
        stage_address: its guest address.
        crop: of a fresh output, the part that was asked for, in numpy's axis order.
    """

    index: int
    argument: Argument
    mode: Mode
    axes: tuple[int, ...]
    dims: list[Dimension]
    stage: npt.NDArray[Any] | None = None
    stage_address: int = 0
    crop: tuple[slice, ...] = ()

    @property
    def is_output(self) -> bool:
        """Whether the pipeline writes it."""
        return self.argument.kind == 2

    def make(self, place: Place) -> npt.NDArray[Any]:
        """A new array over new guest memory with the buffer's dimensions."""
        dtype = self.argument.type.dtype
        _, end = byte_span(self.dims, dtype.itemsize)
        return strided(place.allocate(end), dtype, self.dims, self.axes)

    def prepare_stage(self, place: Place) -> None:
        """Make the staging array."""
        self.stage = self.make(place)
        self.stage_address = place.address_of(self.stage.__array_interface__["data"][0]) or 0


def dimensions_of(given: Given, axes: Sequence[int]) -> list[Dimension] | None:
    """The dimensions of a caller's array; ``None`` when its strides are no multiple of the element."""
    array = given.array
    size = array.itemsize
    found = []
    for axis, low in zip(axes, given.mins, strict=True):
        stride, rest = divmod(array.strides[axis], size)
        if rest:
            return None
        found.append(Dimension(low, array.shape[axis], stride))
    return found


class Plan:
    """Buffers bound and laid out. Made by `sylvite.halide.planner.Planner`."""

    def __init__(self, place: Place, signature: Signature, buffers: Sequence[BoundBuffer]) -> None:
        self._place = place
        self.buffers = tuple(buffers)
        for buffer in self.buffers:
            if buffer.mode is Mode.STAGED:
                buffer.prepare_stage(place)
        self.slab = Slab(place, signature, {b.index: b.dims for b in self.buffers})
        self.outputs = tuple(b for b in self.buffers if b.is_output)
        self.direct = tuple(b for b in self.buffers if b.mode is Mode.DIRECT)
        self._spans = {b.index: byte_span(b.dims, b.argument.type.byte_length) for b in self.direct}
        self.checks_overlap = len(self.direct) > 1 and any(b.is_output for b in self.direct)

    def span(self, buffer: BoundBuffer) -> tuple[int, int]:
        """First and one past the last byte a buffer covers, relative to its smallest coordinates."""
        return byte_span(buffer.dims, buffer.argument.type.byte_length)

    def overlapping_inputs(self, hosts: dict[int, int]) -> frozenset[int]:
        """Direct inputs that share bytes with a direct output."""
        found = set()
        for output in self.direct:
            if not output.is_output:
                continue
            for other in self.direct:
                if not other.is_output and self._overlap(output.index, other.index, hosts):
                    found.add(other.index)
        return frozenset(found)

    def overlapping_outputs(self, hosts: dict[int, int]) -> tuple[str, str] | None:
        """Names of two outputs that share bytes."""
        outputs = [b for b in self.direct if b.is_output]
        for at, one in enumerate(outputs):
            for other in outputs[at + 1 :]:
                if self._overlap(one.index, other.index, hosts):
                    return one.argument.name, other.argument.name
        return None

    def _overlap(self, one: int, other: int, hosts: dict[int, int]) -> bool:
        low, high = (hosts[one] + edge for edge in self._spans[one])
        other_low, other_high = (hosts[other] + edge for edge in self._spans[other])
        return low < other_high and other_low < high


def staged_dimensions(
    proposed: Sequence[Dimension], mins: Sequence[int], extents: Sequence[int]
) -> list[Dimension]:
    """Dimensions of a buffer we lay out ourselves, with the strides the pipeline wants."""
    strides = layout_like(proposed, extents)
    return [Dimension(*values) for values in zip(mins, extents, strides, strict=True)]


def with_dense_strides(dims: Dimensions) -> Dimensions:
    """The same regions with strides dense and dimension 0 innermost."""
    result: Dimensions = {}
    for index, found in dims.items():
        reach, placed = 1, []
        for dim in found:
            placed.append(Dimension(dim.min, dim.extent, reach))
            reach *= max(dim.extent, 1)
        result[index] = placed
    return result


def zeros(count: int) -> list[Dimension]:
    """Dimensions of nothing."""
    return [Dimension(0, 0, 0)] * count


def as_region(dims: Sequence[Dimension]) -> str:
    """A region in words, dimension 0 first."""
    return " x ".join(f"[{d.min}, {d.min + d.extent})" for d in dims) or "a single element"


def crop_of(asked: Sequence[Dimension], made: Sequence[Dimension], axes: Sequence[int]) -> tuple[slice, ...]:
    """The part of ``made`` that is ``asked``, as slices in numpy's axis order."""
    crop = [slice(None)] * len(axes)
    for axis, want, have in zip(axes, asked, made, strict=True):
        start = want.min - have.min
        crop[axis] = slice(start, start + want.extent)
    return tuple(crop)


def empty_like_output(buffer: BoundBuffer) -> npt.NDArray[Any]:
    """The result of an output without elements."""
    shape = [0] * len(buffer.axes)
    for axis, dim in zip(buffer.axes, buffer.dims, strict=True):
        shape[axis] = dim.extent
    return np.empty(tuple(shape), buffer.argument.type.dtype)
