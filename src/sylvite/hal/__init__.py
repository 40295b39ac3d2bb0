"""The hardware abstraction layer: IREE's object model, without any device in it.

Devices live in `sylvite.drivers`; they subclass `Device`, `Allocator`, `CommandBuffer`, `Executable`.
"""

from __future__ import annotations

from .allocator import DEFAULT_MEMORY_TYPE, DEFAULT_USAGE, Allocator, AllocatorStatistics
from .buffer import Buffer, Storage, TransientStorage
from .buffer_view import BufferView
from .command_buffer import Binding, CommandBuffer, CommandBufferState
from .commands import (
    AdviseBuffer,
    BeginDebugGroup,
    BufferRef,
    Command,
    CopyBuffer,
    Dispatch,
    DispatchIndirect,
    EndDebugGroup,
    ExecutionBarrier,
    FillBuffer,
    UpdateBuffer,
)
from .device import Device, DeviceInfo, Driver
from .element_types import (
    ELEMENT_TYPES,
    ElementType,
    NumericalType,
    element_type_from_name,
    element_type_from_numpy,
    element_type_from_value,
)
from .executable import Executable, ExecutableExport
from .fence import Fence
from .file import File
from .semaphore import Semaphore
from .types import (
    QUEUE_AFFINITY_ANY,
    WHOLE_BUFFER,
    AccessScope,
    BufferUsage,
    CommandBufferMode,
    CommandCategory,
    DispatchFlags,
    EncodingType,
    ExecutionBarrierFlags,
    ExecutionStage,
    MemoryAccess,
    MemoryType,
    parse_enum,
    parse_flags,
)

__all__ = [
    "DEFAULT_MEMORY_TYPE",
    "DEFAULT_USAGE",
    "ELEMENT_TYPES",
    "QUEUE_AFFINITY_ANY",
    "WHOLE_BUFFER",
    "AccessScope",
    "AdviseBuffer",
    "Allocator",
    "AllocatorStatistics",
    "BeginDebugGroup",
    "Binding",
    "Buffer",
    "BufferRef",
    "BufferUsage",
    "BufferView",
    "Command",
    "CommandBuffer",
    "CommandBufferMode",
    "CommandBufferState",
    "CommandCategory",
    "CopyBuffer",
    "Device",
    "DeviceInfo",
    "Dispatch",
    "DispatchFlags",
    "DispatchIndirect",
    "Driver",
    "ElementType",
    "EncodingType",
    "EndDebugGroup",
    "Executable",
    "ExecutableExport",
    "ExecutionBarrier",
    "ExecutionBarrierFlags",
    "ExecutionStage",
    "Fence",
    "File",
    "FillBuffer",
    "MemoryAccess",
    "MemoryType",
    "NumericalType",
    "Semaphore",
    "Storage",
    "TransientStorage",
    "UpdateBuffer",
    "element_type_from_name",
    "element_type_from_numpy",
    "element_type_from_value",
    "parse_enum",
    "parse_flags",
]
