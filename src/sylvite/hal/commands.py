"""What a command buffer records: one frozen record per command, shared by all drivers.

Lengths are resolved when they are recorded for buffers given directly; for slots of the binding table
a length may stay `WHOLE_BUFFER` until execution.

Source: ``iree/hal/command_buffer.h``.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from .buffer import Buffer
from .executable import Executable
from .types import WHOLE_BUFFER, DispatchFlags, ExecutionStage

__all__ = [
    "AdviseBuffer",
    "BeginDebugGroup",
    "BufferRef",
    "Command",
    "CopyBuffer",
    "Dispatch",
    "DispatchIndirect",
    "EndDebugGroup",
    "ExecutionBarrier",
    "FillBuffer",
    "UpdateBuffer",
]


@dataclasses.dataclass(frozen=True, slots=True)
class BufferRef:
    """A range of a buffer, or of whatever a slot of the binding table holds at execution.

    Args:
        buffer: the buffer; ``None`` to take it from ``slot``.
        slot: slot of the binding table, when ``buffer`` is ``None``.
        offset: first byte, added to the offset of the slot's own range.
        length: length in bytes; `WHOLE_BUFFER` for everything after ``offset``.
    """

    buffer: Buffer | None = None
    slot: int = 0
    offset: int = 0
    length: int = WHOLE_BUFFER


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Run an export of an executable over a grid of workgroups."""

    executable: Executable
    export_ordinal: int
    workgroup_count: tuple[int, int, int]
    constants: tuple[int, ...]
    bindings: tuple[BufferRef, ...]
    flags: DispatchFlags = DispatchFlags.NONE


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DispatchIndirect:
    """Like `Dispatch`, with the grid (three u32) read from ``workgroups`` when it is executed."""

    executable: Executable
    export_ordinal: int
    workgroups: BufferRef
    constants: tuple[int, ...]
    bindings: tuple[BufferRef, ...]
    flags: DispatchFlags = DispatchFlags.DYNAMIC_INDIRECT_PARAMETERS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FillBuffer:
    """Repeat a pattern of 1, 2, 4 or 8 bytes over a range."""

    target: BufferRef
    pattern: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBuffer:
    """Write bytes that were captured when the command was recorded."""

    data: bytes
    target: BufferRef


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CopyBuffer:
    """Copy a range to another of the same length that does not overlap it."""

    source: BufferRef
    target: BufferRef


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionBarrier:
    """Everything recorded before happens before everything recorded after."""

    source_stages: ExecutionStage
    target_stages: ExecutionStage


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdviseBuffer:
    """A hint about a range."""

    target: BufferRef
    flags: int
    arguments: tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BeginDebugGroup:
    """Name the commands that follow."""

    label: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EndDebugGroup:
    """End the innermost group."""


Command: TypeAlias = (
    "Dispatch | DispatchIndirect | FillBuffer | UpdateBuffer | CopyBuffer | ExecutionBarrier | AdviseBuffer"
    " | BeginDebugGroup | EndDebugGroup"
)
