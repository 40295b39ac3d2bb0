"""A device without a processor: transfers happen, dispatches are only noted.

It checks everything that the object model checks and can keep a log of what it was asked to run, so it
serves as a test double for the layers above, and as the smallest example of a driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import InvalidArgumentError
from ...hal import (
    DEFAULT_MEMORY_TYPE,
    Allocator,
    Binding,
    Command,
    CommandBuffer,
    CommandBufferMode,
    CommandCategory,
    CopyBuffer,
    Device,
    DeviceInfo,
    Driver,
    Executable,
    ExecutableExport,
    FillBuffer,
    MemoryType,
    Storage,
    UpdateBuffer,
)
from ...hal.queue import Queue
from ...trace import Tracer

__all__ = [
    "NullAllocator",
    "NullCommandBuffer",
    "NullDevice",
    "NullDriver",
    "NullExecutable",
    "NullStorage",
]

FORMAT = "null"
"""The executable format: UTF-8 text with one export per line, ``name constant_count binding_count``."""


class NullStorage(Storage):
    """Memory of the host."""

    def __init__(self, allocator: NullAllocator, byte_length: int, tag: str) -> None:
        super().__init__(byte_length, allocator.tracer.counters, allocator.domain)
        self._memory = np.zeros(byte_length, np.uint8)
        self._allocator: NullAllocator | None = allocator
        self._tag = tag

    @property
    def address(self) -> int:
        """Address in this process: device and host are one."""
        return self._memory.ctypes.data

    @property
    def host_address(self) -> int:
        """Address in this process."""
        return self._memory.ctypes.data

    def __del__(self) -> None:
        allocator = getattr(self, "_allocator", None)
        if allocator is not None:
            allocator.note_release(self.byte_length, self._tag)


class NullAllocator(Allocator):
    """Allocates memory of the host.

    Args:
        queue: of the device whose allocator this is.
        tracer: its counters count allocations and copies.
    """

    def __init__(self, queue: Queue, tracer: Tracer) -> None:
        super().__init__(tracer)
        self._queue = queue

    @property
    def domain(self) -> object:
        """Buffers are in memory of this process."""
        return NullAllocator

    def _offered_type(self, memory_type: MemoryType) -> MemoryType:
        return DEFAULT_MEMORY_TYPE

    def _allocate(self, byte_length: int, tag: str) -> Storage:
        self._queue.check_open()
        storage = NullStorage(self, byte_length, tag)
        self._account_allocation(byte_length, tag)
        return storage


class NullExecutable(Executable):
    """Names and counts of exports, without code.

    Args:
        data: see `FORMAT`.
        constants: kept for inspection.
    """

    def __init__(self, data: bytes, constants: tuple[int, ...]) -> None:
        exports = []
        for ordinal, line in enumerate(data.decode("utf-8", "replace").split("\n") if data else []):
            fields = line.split()
            if len(fields) != 3 or not (fields[1].isdigit() and fields[2].isdigit()):
                raise InvalidArgumentError(f"line {ordinal + 1} of a null executable is malformed: {line!r}")
            exports.append(
                ExecutableExport(
                    name=fields[0],
                    ordinal=ordinal,
                    constant_count=int(fields[1]),
                    binding_count=int(fields[2]),
                )
            )
        super().__init__(exports, format=FORMAT)
        self.constants = constants

    def _close(self) -> None:
        """Nothing is loaded."""


class NullCommandBuffer(CommandBuffer):
    """Keeps what was recorded; the base class does all of it."""


class NullDevice(Device):
    """Runs transfers and takes note of everything.

    Args:
        tracer: counts and times what happens.
        record: whether to keep a `log`, which keeps the buffers in it alive.
    """

    def __init__(self, *, tracer: Tracer | None = None, record: bool = False) -> None:
        super().__init__(identifier="null", name="null device", tracer=tracer)
        self._allocator = NullAllocator(self._queue, self.tracer)
        self._record = record
        self.log: list[tuple[Command, tuple[Binding | None, ...]]] = []
        """Every command executed, with the resolved binding table it ran under."""

    @property
    def allocator(self) -> NullAllocator:
        """Makes buffers in memory of the host."""
        return self._allocator

    def can_load(self, format: str) -> bool:
        """Whether the format is the one of this device."""
        return format == FORMAT

    def _create_command_buffer(
        self, *, mode: CommandBufferMode, categories: CommandCategory, binding_capacity: int
    ) -> CommandBuffer:
        return NullCommandBuffer(mode=mode, categories=categories, binding_capacity=binding_capacity)

    def _create_executable(
        self, *, format: str, data: memoryview | bytes, constants: tuple[int, ...]
    ) -> Executable:
        return NullExecutable(bytes(data), constants)

    def _check_own(self, command_buffer: CommandBuffer) -> None:
        if not isinstance(command_buffer, NullCommandBuffer):
            raise InvalidArgumentError("the command buffer belongs to a device of another driver")

    def _execute(self, command_buffer: CommandBuffer, bindings: Sequence[Binding | None]) -> None:
        for command in command_buffer.commands:
            if self._record:
                self.log.append((command, tuple(bindings)))
            counters = self.tracer.counters
            counters.device_bytes_copied += self._run(command_buffer, command, bindings)

    def _run(
        self, command_buffer: CommandBuffer, command: Command, bindings: Sequence[Binding | None]
    ) -> int:
        resolve = command_buffer.resolve
        if isinstance(command, FillBuffer):
            return self._fill(resolve(command.target, bindings), command.pattern)
        if isinstance(command, UpdateBuffer):
            return self._update(command.data, resolve(command.target, bindings))
        if isinstance(command, CopyBuffer):
            return self._copy(resolve(command.source, bindings), resolve(command.target, bindings))
        return 0


class NullDriver(Driver):
    """Opens null devices."""

    name = "null"

    def query_devices(self) -> tuple[DeviceInfo, ...]:
        """The one null device."""
        return (DeviceInfo(identifier="null", name="null device"),)

    def create_device(self, *, tracer: Tracer | None = None, **options: Any) -> NullDevice:
        """Open a null device; ``engine`` and ``limits`` are of no use to it and are ignored.

        Args:
            tracer: counts and times what happens.
            options: ``record`` (see `NullDevice`).

        Raises:
            InvalidArgumentError: an option is not known.
        """
        record = bool(options.pop("record", False))
        unknown = options.keys() - {"engine", "limits"}
        if unknown:
            raise InvalidArgumentError(f"device null has no options {', '.join(sorted(unknown))}")
        return NullDevice(tracer=tracer, record=record)
