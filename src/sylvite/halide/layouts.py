"""Layouts of the structs that Halide pipelines and their host share, as tables for wasm32.

Source: ``HalideRuntime.h`` of Halide 21.0; the wasm32 C ABI through `sylvite.abi.structs`. A test compares
every offset with what clang says about Halide's own header.
"""

from __future__ import annotations

import enum
from typing import Final

from ..abi.structs import Array, Field, FieldType, Scalar, Struct

__all__ = [
    "BUFFER",
    "DEVICE_INTERFACE",
    "DIMENSION",
    "FILTER_ARGUMENT",
    "FILTER_METADATA",
    "METADATA_VERSION",
    "PARALLEL_TASK",
    "PROFILER_FUNC_STATS",
    "PROFILER_INSTANCE",
    "SCALAR_VALUE_BYTES",
    "SEMAPHORE",
    "SEMAPHORE_ACQUIRE",
    "STRUCTS",
    "TRACE_EVENT",
    "TYPE",
    "ArgumentKind",
    "BufferFlags",
    "TraceEvent",
]

METADATA_VERSION: Final = 1
"""Version of ``halide_filter_metadata_t`` described here."""

SCALAR_VALUE_BYTES: Final = 8
"""Size of ``halide_scalar_value_t``, a union of all scalar types."""


class ArgumentKind(enum.IntEnum):
    """``halide_argument_kind_t``."""

    SCALAR = 0
    INPUT = 1
    OUTPUT = 2


class BufferFlags(enum.IntFlag):
    """``halide_buffer_flags``."""

    NONE = 0
    HOST_DIRTY = 1
    DEVICE_DIRTY = 2


class TraceEvent(enum.IntEnum):
    """``halide_trace_event_code_t``."""

    LOAD = 0
    STORE = 1
    BEGIN_REALIZATION = 2
    END_REALIZATION = 3
    PRODUCE = 4
    END_PRODUCE = 5
    CONSUME = 6
    END_CONSUME = 7
    BEGIN_PIPELINE = 8
    END_PIPELINE = 9
    TAG = 10


def _struct(name: str, /, **fields: FieldType) -> Struct:
    return Struct(name, tuple(Field(field_name, field_type) for field_name, field_type in fields.items()))


_U8, _U16, _U32, _I32, _U64, _POINTER = (
    Scalar.U8,
    Scalar.U16,
    Scalar.U32,
    Scalar.I32,
    Scalar.U64,
    Scalar.POINTER,
)

TYPE: Final = _struct("halide_type_t", code=_U8, bits=_U8, lanes=_U16)
DIMENSION: Final = _struct("halide_dimension_t", min=_I32, extent=_I32, stride=_I32, flags=_U32)
BUFFER: Final = _struct(
    "halide_buffer_t",
    device=_U64,
    device_interface=_POINTER,
    host=_POINTER,
    flags=_U64,
    type=TYPE,
    dimensions=_I32,
    dim=_POINTER,
    padding=_POINTER,
)
DEVICE_INTERFACE: Final = _struct("halide_device_interface_t", functions=Array(_POINTER, 15), impl=_POINTER)
FILTER_ARGUMENT: Final = _struct(
    "halide_filter_argument_t",
    name=_POINTER,
    kind=_I32,
    dimensions=_I32,
    type=TYPE,
    scalar_def=_POINTER,
    scalar_min=_POINTER,
    scalar_max=_POINTER,
    scalar_estimate=_POINTER,
    buffer_estimates=_POINTER,
)
FILTER_METADATA: Final = _struct(
    "halide_filter_metadata_t",
    version=_I32,
    num_arguments=_I32,
    arguments=_POINTER,
    target=_POINTER,
    name=_POINTER,
)
SEMAPHORE: Final = _struct("halide_semaphore_t", _private=Array(_U64, 2))
SEMAPHORE_ACQUIRE: Final = _struct("halide_semaphore_acquire_t", semaphore=_POINTER, count=_I32)
PARALLEL_TASK: Final = _struct(
    "halide_parallel_task_t",
    fn=_POINTER,
    closure=_POINTER,
    name=_POINTER,
    semaphores=_POINTER,
    num_semaphores=_I32,
    min=_I32,
    extent=_I32,
    min_threads=_I32,
    serial=_U8,
)
TRACE_EVENT: Final = _struct(
    "halide_trace_event_t",
    func=_POINTER,
    value=_POINTER,
    coordinates=_POINTER,
    trace_tag=_POINTER,
    type=TYPE,
    event=_U32,
    parent_id=_I32,
    value_index=_I32,
    dimensions=_I32,
)
PROFILER_FUNC_STATS: Final = _struct(
    "halide_profiler_func_stats",
    time=_U64,
    memory_current=_U64,
    memory_peak=_U64,
    memory_total=_U64,
    stack_peak=_U64,
    active_threads_numerator=_U64,
    active_threads_denominator=_U64,
    name=_POINTER,
    num_allocs=_I32,
)
PROFILER_INSTANCE: Final = _struct(
    "halide_profiler_instance_state",
    billed_time=_U64,
    start_time=_U64,
    memory_current=_U64,
    memory_peak=_U64,
    memory_total=_U64,
    active_threads_numerator=_U64,
    active_threads_denominator=_U64,
    next=_POINTER,
    prev_next=_POINTER,
    pipeline_stats=_POINTER,
    funcs=_POINTER,
    current_func=_I32,
    active_threads=_I32,
    samples=_I32,
    num_allocs=_I32,
    should_collect_statistics=_I32,
)

STRUCTS: Final = (
    TYPE,
    DIMENSION,
    BUFFER,
    DEVICE_INTERFACE,
    FILTER_ARGUMENT,
    FILTER_METADATA,
    SEMAPHORE,
    SEMAPHORE_ACQUIRE,
    PARALLEL_TASK,
    TRACE_EVENT,
    PROFILER_FUNC_STATS,
    PROFILER_INSTANCE,
)
"""All tables, for tests and documentation."""
