"""Layouts of the structs that Halide's wasm pipelines and their host share, as tables.

Source: ``HalideRuntime.h`` (release 21); WebAssembly tool conventions, BasicCABI.
"""

from __future__ import annotations

from typing import Final

from .structs import Array, Field, Scalar, Struct

__all__ = [
    "HALIDE_BUFFER",
    "HALIDE_DEVICE_INTERFACE",
    "HALIDE_DIMENSION",
    "HALIDE_FILTER_ARGUMENT",
    "HALIDE_FILTER_METADATA",
    "HALIDE_PARALLEL_TASK",
    "HALIDE_SEMAPHORE",
    "HALIDE_SEMAPHORE_ACQUIRE",
    "HALIDE_STRUCTS",
    "HALIDE_TYPE",
]

_U8, _U16, _U32, _I32, _U64, _POINTER = (
    Scalar.U8,
    Scalar.U16,
    Scalar.U32,
    Scalar.I32,
    Scalar.U64,
    Scalar.POINTER,
)


def _struct(name: str, *fields: tuple[str, Scalar | Array | Struct]) -> Struct:
    return Struct(name, tuple(Field(field, type_) for field, type_ in fields))


HALIDE_TYPE: Final = _struct("halide_type_t", ("code", _U8), ("bits", _U8), ("lanes", _U16))
HALIDE_DIMENSION: Final = _struct(
    "halide_dimension_t", ("min", _I32), ("extent", _I32), ("stride", _I32), ("flags", _U32)
)
HALIDE_BUFFER: Final = _struct(
    "halide_buffer_t",
    ("device", _U64),
    ("device_interface", _POINTER),
    ("host", _POINTER),
    ("flags", _U64),
    ("type", HALIDE_TYPE),
    ("dimensions", _I32),
    ("dim", _POINTER),
    ("padding", _POINTER),
)
HALIDE_DEVICE_INTERFACE: Final = _struct(
    "halide_device_interface_t", ("functions", Array(_POINTER, 15)), ("impl", _POINTER)
)
HALIDE_FILTER_METADATA: Final = _struct(
    "halide_filter_metadata_t",
    ("version", _I32),
    ("num_arguments", _I32),
    ("arguments", _POINTER),
    ("target", _POINTER),
    ("name", _POINTER),
)
HALIDE_FILTER_ARGUMENT: Final = _struct(
    "halide_filter_argument_t",
    ("name", _POINTER),
    ("kind", _I32),
    ("dimensions", _I32),
    ("type", HALIDE_TYPE),
    ("scalar_def", _POINTER),
    ("scalar_min", _POINTER),
    ("scalar_max", _POINTER),
    ("scalar_estimate", _POINTER),
    ("buffer_estimates", _POINTER),
)
HALIDE_SEMAPHORE: Final = _struct("halide_semaphore_t", ("private", Array(_U64, 2)))
HALIDE_SEMAPHORE_ACQUIRE: Final = _struct(
    "halide_semaphore_acquire_t", ("semaphore", _POINTER), ("count", _I32)
)
HALIDE_PARALLEL_TASK: Final = _struct(
    "halide_parallel_task_t",
    ("fn", _POINTER),
    ("closure", _POINTER),
    ("name", _POINTER),
    ("semaphores", _POINTER),
    ("num_semaphores", _I32),
    ("min", _I32),
    ("extent", _I32),
    ("min_threads", _I32),
    ("serial", _U8),
)

HALIDE_STRUCTS: Final = (
    HALIDE_TYPE,
    HALIDE_DIMENSION,
    HALIDE_BUFFER,
    HALIDE_DEVICE_INTERFACE,
    HALIDE_FILTER_METADATA,
    HALIDE_FILTER_ARGUMENT,
    HALIDE_SEMAPHORE,
    HALIDE_SEMAPHORE_ACQUIRE,
    HALIDE_PARALLEL_TASK,
)
"""All tables, for tests and documentation."""
