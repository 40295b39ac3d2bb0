"""Buffer views as text, the way IREE's tools write and read them: ``2x3xf32=[1 2 3][4 5 6]``.

Source: ``iree_hal_buffer_view_format``, checked against ``iree-run-module``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...hal.buffer_view import BufferView
from ...hal.element_types import ElementType, NumericalType
from ...hal.types import MemoryAccess

__all__ = ["format_array", "format_buffer_view", "type_name"]


def type_name(element_type: ElementType) -> str:
    """The element type in the spelling of IREE's tools (``cf64``, ``*8`` where MLIR's differs)."""
    if element_type.numerical_type is NumericalType.FLOAT_COMPLEX:
        return f"cf{element_type.bit_count}"
    if element_type.numerical_type is NumericalType.UNKNOWN:
        return f"*{element_type.bit_count}"
    return element_type.name


def _nested(items: Sequence[str], shape: Sequence[int]) -> str:
    """Elements in brackets: none around the outermost dimension."""
    if len(shape) < 2:
        return " ".join(items)
    step = math.prod(shape[1:])
    rows = (_nested(items[start : start + step], shape[1:]) for start in range(0, len(items), max(step, 1)))
    return "".join(f"[{row}]" for row in rows)


def _element_writer(element_type: ElementType) -> Callable[[Any], str]:
    if element_type.is_float and element_type.numerical_type is not NumericalType.FLOAT_COMPLEX:
        return lambda value: f"{float(value):G}"
    if element_type.is_integer:
        return lambda value: str(int(value))
    return lambda value: np.asarray(value).tobytes().hex().upper()


def format_array(array: Any, element_type: ElementType, shape: Sequence[int], *, limit: int = 1024) -> str:
    """Shape, type and elements. More than ``limit`` elements end in ``...``."""
    flat = np.asarray(array).reshape(-1)
    writer = _element_writer(element_type)
    if flat.size > limit:
        text = " ".join(map(writer, flat[:limit])) + "..."
    else:
        text = _nested([writer(value) for value in flat], shape)
    return f"{'x'.join([*map(str, shape), type_name(element_type)])}={text}"


def format_buffer_view(view: BufferView, *, limit: int = 1024) -> str:
    """A buffer view as text. Elements under a byte are shown as packed bytes.

    Raises:
        InvalidArgumentError: The host cannot see the memory.
    """
    element_type = view.element_type
    if element_type.is_byte_aligned:
        return format_array(view.numpy(), element_type, view.shape, limit=limit)
    packed = view.buffer.view(0, view.byte_length, access=MemoryAccess.READ)[:limit]
    return f"{'x'.join([*map(str, view.shape), type_name(element_type)])}={packed.tobytes().hex().upper()}"
