"""Extern stages in Python (``Func.define_extern``). Each call leaves the sandbox: they are slow.

Source: Halide's documentation of ``define_extern``: the stage's C function takes input buffers and scalars as
listed, then the output buffers; with buffers that have no memory it must fill in the regions it needs.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..engines.base import ValueType
from ..errors import InvalidArgumentError
from . import layouts
from .arrays import AxisOrder, Dimension, Region, axes_of
from .failures import failure_named
from .guest_memory import as_unsigned
from .types import HalideType

if TYPE_CHECKING:
    from ..wasm import FunctionType
    from .runtime import Runtime

__all__ = ["ExternBuffer", "ExternStage", "extern_function"]


@dataclasses.dataclass(frozen=True, slots=True)
class ExternStage:
    """A Python function as an extern stage.

    Args:
        function: called with the inputs' arrays and the scalars as the stage lists them, then one writable
            array per output. Parameters annotated ``int``, ``float`` or ``bool`` are scalars.
        outputs: how many of the last parameters are outputs.
        bounds: given the outputs' regions, says which regions of the inputs are needed, in order; by default
            the same as the first output's. Regions are in numpy's axis order.
    """

    function: Callable[..., object]
    outputs: int = 1
    bounds: Callable[[Sequence[Region]], Sequence[Region]] | None = None


class ExternBuffer:
    """A ``halide_buffer_t`` of the guest."""

    def __init__(self, runtime: Runtime, address: int, order: AxisOrder) -> None:
        self._memory = runtime.memory
        self._runtime = runtime
        self.address = as_unsigned(address)
        raw = layouts.BUFFER.unpack_from(self._memory.read(self.address, layouts.BUFFER.byte_length))
        self.host: int = raw["host"]
        self.type = HalideType.from_word(raw["type.code"] | raw["type.bits"] << 8)
        self._dim: int = raw["dim"]
        count = raw["dimensions"]
        if not 0 <= count <= 64:
            raise InvalidArgumentError(f"an extern stage was given a buffer of {count} dimensions")
        values = self._memory.unpack("iiiI" * count, self._dim)
        self.dims = [Dimension(*map(int, values[at : at + 3])) for at in range(0, 4 * count, 4)]
        self.axes = axes_of(order, count)

    @property
    def region(self) -> Region:
        """The region, in numpy's axis order."""
        order = [self.axes.index(axis) for axis in range(len(self.axes))]
        return Region(
            shape=tuple(self.dims[d].extent for d in order), min=tuple(self.dims[d].min for d in order)
        )

    def require(self, region: Region) -> None:
        """Write a region into a buffer that asks for bounds."""
        if len(region.shape) != len(self.axes):
            raise InvalidArgumentError(
                f"bounds of an extern stage: {len(region.shape)} axes for {len(self.axes)}"
            )
        reach = 1
        for number, axis in enumerate(self.axes):
            low, extent = int(region.min[axis]), int(region.shape[axis])
            packed = layouts.DIMENSION.pack({"min": low, "extent": extent, "stride": reach})
            self._memory.write(self._dim + number * len(packed), packed)
            reach *= max(extent, 1)

    def array(self) -> npt.NDArray[Any]:
        """The elements, without a copy. The stage must not keep it.

        Raises:
            InvalidArgumentError: the buffer reaches outside the guest's memory.
        """
        dtype = self.type.dtype
        low = sum(min(d.stride, 0) * max(d.extent - 1, 0) for d in self.dims) * dtype.itemsize
        high = (sum(max(d.stride, 0) * max(d.extent - 1, 0) for d in self.dims) + 1) * dtype.itemsize
        memory = self._runtime.view(self.host + low, high - low)
        shape, strides = [0] * len(self.axes), [0] * len(self.axes)
        for axis, dim in zip(self.axes, self.dims, strict=True):
            shape[axis], strides[axis] = dim.extent, dim.stride * dtype.itemsize
        array: npt.NDArray[Any] = np.ndarray(tuple(shape), dtype, memory, -low, tuple(strides))
        return array


def extern_function(
    runtime: Runtime,
    symbol: str,
    target: Callable[..., object] | ExternStage,
    function_type: FunctionType,
    order: AxisOrder,
) -> Callable[..., int]:
    """The host function for an extern stage.

    Raises:
        InvalidArgumentError: the function's parameters do not match the stage's.
    """
    stage = target if isinstance(target, ExternStage) else ExternStage(target)
    kinds = _parameter_kinds(symbol, stage, function_type)

    def call(*values: int | float) -> int:
        buffers: list[ExternBuffer] = []
        arguments: list[Any] = []
        for is_buffer, value in zip(kinds, values, strict=True):
            if is_buffer:
                buffers.append(ExternBuffer(runtime, int(value), order))
            arguments.append(buffers[-1] if is_buffer else value)
        if any(not buffer.host for buffer in buffers):
            _answer_bounds(stage, buffers)
            return 0
        arrays = [item.array() if isinstance(item, ExternBuffer) else item for item in arguments]
        result = stage.function(*arrays)
        if isinstance(result, int) and not isinstance(result, bool) and result:
            runtime.note_failure(failure_named("extern_stage_failed", stage=symbol, result=result))
            return result
        return 0

    return call


def _answer_bounds(stage: ExternStage, buffers: Sequence[ExternBuffer]) -> None:
    inputs, outputs = buffers[: -stage.outputs], buffers[-stage.outputs :]
    regions = [buffer.region for buffer in outputs]
    needed = [regions[0]] * len(inputs) if stage.bounds is None else list(stage.bounds(regions))
    if len(needed) != len(inputs):
        raise InvalidArgumentError(f"bounds of an extern stage: {len(needed)} regions, {len(inputs)} inputs")
    for buffer, region in zip(inputs, needed, strict=True):
        if not buffer.host:
            buffer.require(region)


def _parameter_kinds(symbol: str, stage: ExternStage, function_type: FunctionType) -> list[bool]:
    """Whether each parameter is a buffer."""
    parameters = list(inspect.signature(stage.function).parameters.values())
    if len(parameters) != len(function_type.parameters):
        raise InvalidArgumentError(
            f"extern stage {symbol} takes {len(function_type.parameters)} arguments, the function given for "
            f"it takes {len(parameters)}"
        )
    scalars = (int, float, bool, "int", "float", "bool")
    return [
        value_type is ValueType.I32 and parameter.annotation not in scalars
        for parameter, value_type in zip(parameters, function_type.parameters, strict=True)
    ]
