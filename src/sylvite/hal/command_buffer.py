"""Command buffers: recorded once, checked while recording, executed many times.

Source: ``iree/hal/command_buffer.h``; the checks are those of ``command_buffer_validation.c``.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import ClosedError, InvalidArgumentError
from .buffer import Buffer, Storage, check_range, host_bytes
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
from .executable import Executable, ExecutableExport
from .types import (
    WHOLE_BUFFER,
    BufferUsage,
    CommandBufferMode,
    CommandCategory,
    DispatchFlags,
    ExecutionStage,
    MemoryAccess,
    has_any,
    lacks,
)

__all__ = ["Binding", "CommandBuffer", "CommandBufferState", "check_fill", "check_usage", "overlaps"]

PATTERN_LENGTHS = (1, 2, 4, 8)
MAX_WORKGROUP_COUNT = (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFF)
INDIRECT_PARAMETERS_BYTES = 12

_ANY_DISPATCH_USAGE = BufferUsage.DISPATCH_STORAGE | BufferUsage.DISPATCH_UNIFORM_READ
_SUPPORTED_DISPATCH_FLAGS = (
    DispatchFlags.DYNAMIC_INDIRECT_PARAMETERS
    | DispatchFlags.STATIC_INDIRECT_PARAMETERS
    | DispatchFlags.ALLOW_INLINE_EXECUTION
    | DispatchFlags.BORROW_RESOURCE_LIFETIMES
)


class Binding(NamedTuple):
    """A resolved range: what a slot of the binding table holds during one execution."""

    storage: Storage
    byte_offset: int
    byte_length: int

    @property
    def address(self) -> int:
        """Device address of the first byte."""
        return self.storage.address + self.byte_offset


class CommandBufferState(enum.Enum):
    """Where a command buffer is in its life."""

    RECORDING = "recording"
    EXECUTABLE = "executable"
    SPENT = "spent"
    CLOSED = "closed"


@dataclasses.dataclass(slots=True)
class _SlotRequirements:
    """What the commands recorded so far need from a slot of the binding table."""

    byte_length: int = 0
    alignment: int = 1
    usages: tuple[BufferUsage, ...] = ()
    access: MemoryAccess = MemoryAccess.NONE

    def merge(self, end: int, alignment: int, usage: BufferUsage, access: MemoryAccess) -> None:
        self.byte_length = max(self.byte_length, end)
        self.alignment = math.lcm(self.alignment, alignment)
        if usage not in self.usages:
            self.usages += (usage,)
        self.access |= access


def check_usage(buffer: Buffer, usage: BufferUsage, access: MemoryAccess, *, what: str) -> None:
    """Refuse a buffer that does not allow what a command does with it.

    Raises:
        InvalidArgumentError: none of the bits of ``usage``, or not all of ``access``, are allowed.
    """
    if usage and not has_any(buffer.allowed_usage, usage):
        raise InvalidArgumentError(f"{what}: the buffer allows {buffer.allowed_usage!r}, not {usage!r}")
    if lacks(buffer.allowed_access, access, MemoryAccess.ALL):
        raise InvalidArgumentError(f"{what}: the buffer allows {buffer.allowed_access!r}, not {access!r}")


def check_fill(offset: int, length: int, pattern: bytes, *, what: str) -> None:
    """Refuse fills whose pattern has a wrong length or does not divide the range.

    Raises:
        InvalidArgumentError
    """
    size = len(pattern)
    if size not in PATTERN_LENGTHS:
        raise InvalidArgumentError(f"{what}: a pattern has 1, 2, 4 or 8 bytes, not {size}")
    if offset % size or (length != WHOLE_BUFFER and length % size):
        message = (
            f"{what}: offset {offset} and length {length} are not multiples of the pattern's {size} bytes"
        )
        raise InvalidArgumentError(message)


def overlaps(first: Binding, second: Binding) -> bool:
    """Whether two ranges share a byte."""
    return (
        first.storage is second.storage
        and first.byte_offset < second.byte_offset + second.byte_length
        and second.byte_offset < first.byte_offset + first.byte_length
    )


class CommandBuffer(abc.ABC):  # noqa: B024 - a device may need no hook at all
    """A recorded list of commands. Not thread safe while it is recorded.

    Args:
        mode: how it is going to be used.
        categories: which commands it may hold.
        binding_capacity: slots of the binding table that commands may refer to.
    """

    def __init__(
        self,
        *,
        mode: CommandBufferMode = CommandBufferMode.DEFAULT,
        categories: CommandCategory = CommandCategory.ANY,
        binding_capacity: int = 0,
    ) -> None:
        if binding_capacity < 0:
            raise InvalidArgumentError(f"a binding table cannot have {binding_capacity} slots")
        self.mode = mode
        self.categories = categories
        self.binding_capacity = binding_capacity
        self._commands: list[Command] = []
        self._state = CommandBufferState.RECORDING
        self._debug_group_depth = 0
        self._slots: dict[int, _SlotRequirements] = {}
        self._executables: dict[Executable, None] = {}

    @property
    def state(self) -> CommandBufferState:
        """Where it is in its life."""
        return self._state

    @property
    def commands(self) -> tuple[Command, ...]:
        """Everything recorded, in order."""
        return tuple(self._commands)

    def record_again(self, commands: Sequence[Command]) -> None:
        """Record commands that were checked when another command buffer of the device recorded them (for
        devices).

        Raises:
            InvalidArgumentError: it is not being recorded, or a command is of another device.
        """
        self._check_recording()
        for command in commands:
            self._append(command)

    # -- recording ----------------------------------------------------------------------------------

    def dispatch(
        self,
        executable: Executable,
        export_ordinal: int,
        workgroup_count: tuple[int, int, int],
        *,
        constants: Sequence[int] = (),
        bindings: Sequence[BufferRef] = (),
        flags: DispatchFlags = DispatchFlags.NONE,
    ) -> None:
        """Record the run of an export over a grid of workgroups.

        Args:
            executable: loaded by the same device.
            export_ordinal: which export.
            workgroup_count: workgroups along x, y (32 bits each) and z (16 bits); a zero makes it a no-op.
            constants: 32-bit values, signed or not, as many as the export takes.
            bindings: ranges the export reads and writes, as many as it takes.
            flags: options.

        Raises:
            InvalidArgumentError: any of these does not fit; the message says which.
            ClosedError: the command buffer or the executable is closed.
        """
        what = self._check_dispatch(executable, export_ordinal, len(constants), len(bindings), flags)
        for axis, count, limit in zip("xyz", workgroup_count, MAX_WORKGROUP_COUNT, strict=True):
            if not 0 <= count <= limit:
                raise InvalidArgumentError(f"{what}: {count} workgroups along {axis} are not in 0..{limit}")
        self._append(
            Dispatch(
                executable=executable,
                export_ordinal=export_ordinal,
                workgroup_count=workgroup_count,
                constants=tuple(value & 0xFFFFFFFF for value in constants),
                bindings=self._dispatch_bindings(bindings, what),
                flags=flags,
            )
        )

    def dispatch_indirect(
        self,
        executable: Executable,
        export_ordinal: int,
        workgroups: BufferRef,
        *,
        constants: Sequence[int] = (),
        bindings: Sequence[BufferRef] = (),
        flags: DispatchFlags = DispatchFlags.DYNAMIC_INDIRECT_PARAMETERS,
    ) -> None:
        """Record the run of an export over a grid whose size (three u32) is read when it is executed.

        Args:
            executable: loaded by the same device.
            export_ordinal: which export.
            workgroups: at least 12 bytes, aligned to 4.
            constants: 32-bit values, as many as the export takes.
            bindings: ranges the export reads and writes.
            flags: options.

        Raises:
            InvalidArgumentError: any of these does not fit; the message says which.
            ClosedError: the command buffer or the executable is closed.
        """
        what = self._check_dispatch(executable, export_ordinal, len(constants), len(bindings), flags)
        what_counts = f"{what}: workgroup counts"
        if WHOLE_BUFFER != workgroups.length < INDIRECT_PARAMETERS_BYTES:
            raise InvalidArgumentError(f"{what_counts} need 12 bytes, not {workgroups.length}")
        counts = dataclasses.replace(workgroups, length=INDIRECT_PARAMETERS_BYTES)
        usage = BufferUsage.DISPATCH_INDIRECT_PARAMETERS
        self._append(
            DispatchIndirect(
                executable=executable,
                export_ordinal=export_ordinal,
                workgroups=self._reference(counts, usage, MemoryAccess.READ, what=what_counts, alignment=4),
                constants=tuple(value & 0xFFFFFFFF for value in constants),
                bindings=self._dispatch_bindings(bindings, what),
                flags=flags,
            )
        )

    def fill_buffer(self, target: BufferRef, pattern: bytes) -> None:
        """Record the repetition of a pattern of 1, 2, 4 or 8 bytes over a range.

        Raises:
            InvalidArgumentError: the pattern or the range does not fit.
            ClosedError: the command buffer is closed.
        """
        self._check_recording(CommandCategory.TRANSFER)
        check_fill(target.offset, target.length, pattern, what="fill target")
        usage, access = BufferUsage.TRANSFER_TARGET, MemoryAccess.WRITE
        alignment = len(pattern)
        resolved = self._reference(target, usage, access, what="fill target", alignment=alignment)
        check_fill(resolved.offset, resolved.length, pattern, what="fill target")
        self._append(FillBuffer(target=resolved, pattern=bytes(pattern)))

    def update_buffer(self, source: Any, source_offset: int, target: BufferRef) -> None:
        """Record a write of host bytes, which are captured now.

        Args:
            source: a bytes-like object.
            source_offset: first byte to take.
            target: where to write; its length says how much (`WHOLE_BUFFER`: the rest of the source).

        Raises:
            InvalidArgumentError: a range does not fit.
            ClosedError: the command buffer is closed.
        """
        self._check_recording(CommandCategory.TRANSFER)
        data = host_bytes(source, what="update source")
        length = check_range(source_offset, target.length, data.size, what="update source")
        resolved = self._reference(
            dataclasses.replace(target, length=length),
            BufferUsage.TRANSFER_TARGET,
            MemoryAccess.WRITE,
            what="update target",
        )
        captured = data[source_offset : source_offset + length].tobytes()
        self._append(UpdateBuffer(data=captured, target=resolved))

    def copy_buffer(self, source: BufferRef, target: BufferRef) -> None:
        """Record a copy between ranges of one length.

        Raises:
            InvalidArgumentError: the lengths differ, the ranges overlap or do not fit.
            ClosedError: the command buffer is closed.
        """
        self._check_recording(CommandCategory.TRANSFER)
        source = self._reference(source, BufferUsage.TRANSFER_SOURCE, MemoryAccess.READ, what="copy source")
        target = self._reference(target, BufferUsage.TRANSFER_TARGET, MemoryAccess.WRITE, what="copy target")
        if source.length != target.length:
            message = f"copy: {source.length} source bytes do not fill {target.length} target bytes"
            raise InvalidArgumentError(message)
        direct = source.buffer is not None and target.buffer is not None
        if direct and overlaps(self.resolve(source, ()), self.resolve(target, ())):
            raise InvalidArgumentError("copy: source and target overlap")
        self._append(CopyBuffer(source=source, target=target))

    def execution_barrier(
        self,
        source_stages: ExecutionStage = ExecutionStage.COMMAND_RETIRE,
        target_stages: ExecutionStage = ExecutionStage.COMMAND_ISSUE,
    ) -> None:
        """Record that everything before it happens before everything after it.

        Raises:
            InvalidArgumentError: it is not being recorded.
            ClosedError: the command buffer is closed.
        """
        self._check_recording()
        self._append(ExecutionBarrier(source_stages=source_stages, target_stages=target_stages))

    def advise_buffer(self, target: BufferRef, flags: int = 0, arguments: tuple[int, int] = (0, 0)) -> None:
        """Record a hint about a range.

        Raises:
            InvalidArgumentError: the range does not fit.
            ClosedError: the command buffer is closed.
        """
        self._check_recording()
        target = self._reference(target, BufferUsage.NONE, MemoryAccess.NONE, what="advise target")
        self._append(AdviseBuffer(target=target, flags=flags, arguments=arguments))

    def begin_debug_group(self, label: str) -> None:
        """Name the commands that follow, until `end_debug_group`."""
        self._check_recording()
        self._debug_group_depth += 1
        self._append(BeginDebugGroup(label=label))

    def end_debug_group(self) -> None:
        """End the innermost debug group.

        Raises:
            InvalidArgumentError: none is open.
        """
        self._check_recording()
        if not self._debug_group_depth:
            raise InvalidArgumentError("end_debug_group: no debug group is open")
        self._debug_group_depth -= 1
        self._append(EndDebugGroup())

    def finalize(self) -> None:
        """End the recording and prepare for execution.

        Raises:
            InvalidArgumentError: it is not being recorded, or a debug group is open.
            OutOfMemoryError: there is no memory for what the device prepares.
            ClosedError: the command buffer is closed.
        """
        self._check_recording()
        if self._debug_group_depth:
            raise InvalidArgumentError(f"finalize: {self._debug_group_depth} debug groups are still open")
        self._finalize()
        self._state = CommandBufferState.EXECUTABLE

    # -- execution ----------------------------------------------------------------------------------

    def bind(self, binding_table: Sequence[BufferRef]) -> tuple[Binding | None, ...]:
        """Check a binding table against what was recorded, and resolve it (for devices).

        Slots that no command uses may hold anything.

        Raises:
            InvalidArgumentError: it cannot be executed now, a slot is missing, too short, misaligned or
                of another usage.
            ClosedError: it, an executable it dispatches or a buffer in the table is closed.
        """
        if self._state is not CommandBufferState.EXECUTABLE:
            self._refuse_state("executed")
        self.check_open()
        count = max(self._slots, default=-1) + 1
        missing = count - len(binding_table)
        table = binding_table if missing <= 0 else [*binding_table, *[BufferRef()] * missing]
        return tuple(self._bind_slot(slot, table[slot]) for slot in range(count))

    def check_open(self) -> None:
        """Refuse execution after the end of what is needed for it (for devices).

        Raises:
            ClosedError: it or an executable it dispatches is closed.
        """
        if self._state is CommandBufferState.CLOSED:
            self._refuse_state("executed")
        for executable in self._executables:
            executable.check_open()

    def begin_execution(self) -> None:
        """Note that it is submitted: a one-shot command buffer is spent by that (for devices)."""
        if has_any(self.mode, CommandBufferMode.ONE_SHOT):
            self._state = CommandBufferState.SPENT

    @staticmethod
    def resolve(ref: BufferRef, table: Sequence[Binding | None]) -> Binding:
        """The range a recorded reference means under a resolved binding table."""
        if ref.buffer is not None:
            return Binding(ref.buffer.storage, ref.buffer.byte_offset + ref.offset, ref.length)
        bound = table[ref.slot]
        if bound is None:
            raise InvalidArgumentError(f"slot {ref.slot} of the binding table is empty")
        length = bound.byte_length - ref.offset if ref.length == WHOLE_BUFFER else ref.length
        return Binding(bound.storage, bound.byte_offset + ref.offset, length)

    def close(self) -> None:
        """Let go of everything recorded. Idempotent."""
        if self._state is not CommandBufferState.CLOSED:
            self._state = CommandBufferState.CLOSED
            self._commands.clear()
            self._executables.clear()
            self._close()

    def __enter__(self) -> CommandBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- hooks --------------------------------------------------------------------------------------

    def _record(self, command: Command) -> None:  # noqa: B027 - most devices prepare at finalize
        """Take note of one checked command."""

    def _finalize(self) -> None:  # noqa: B027 - a device may have nothing to prepare
        """Prepare for execution."""

    def _close(self) -> None:  # noqa: B027 - a device may have nothing to let go of
        """Let go of what `_finalize` prepared; called once."""

    # -- checks -------------------------------------------------------------------------------------

    def _append(self, command: Command) -> None:
        self._record(command)
        self._commands.append(command)
        if isinstance(command, (Dispatch, DispatchIndirect)):
            self._executables[command.executable] = None

    def _refuse_state(self, verb: str) -> None:
        if self._state is CommandBufferState.CLOSED:
            raise ClosedError(f"the command buffer cannot be {verb}: it is closed")
        raise InvalidArgumentError(f"the command buffer cannot be {verb}: its state is {self._state.value}")

    def _check_recording(self, category: CommandCategory = CommandCategory.NONE) -> None:
        if self._state is not CommandBufferState.RECORDING:
            self._refuse_state("recorded")
        if lacks(self.categories, category, category):
            raise InvalidArgumentError(f"the command buffer takes {self.categories!r}, not {category!r}")

    def _check_dispatch(
        self,
        executable: Executable,
        ordinal: int,
        constant_count: int,
        binding_count: int,
        flags: DispatchFlags,
    ) -> str:
        self._check_recording(CommandCategory.DISPATCH)
        export = executable.export(ordinal)
        what = f"dispatch of {export.name}"
        if lacks(_SUPPORTED_DISPATCH_FLAGS, flags, flags):
            raise InvalidArgumentError(f"{what}: flags {flags!r} are not supported")
        self._check_count(what, "constants", constant_count, export.constant_count)
        self._check_count(what, "bindings", binding_count, export.binding_count)
        self._check_export(export, what)
        return what

    @staticmethod
    def _check_count(what: str, noun: str, given: int, wanted: int | None) -> None:
        if wanted is not None and given != wanted:
            raise InvalidArgumentError(f"{what}: takes {wanted} {noun}, not {given}")

    def _check_export(self, export: ExecutableExport, what: str) -> None:  # noqa: B027 - optional hook
        """Refuse exports that the device cannot run."""

    def _check_storage(self, storage: Storage, what: str) -> None:  # noqa: B027 - optional hook
        """Refuse memory that kernels of the device cannot address, with InvalidArgumentError."""

    def _dispatch_bindings(self, bindings: Sequence[BufferRef], what: str) -> tuple[BufferRef, ...]:
        return tuple(
            self._reference(ref, _ANY_DISPATCH_USAGE, MemoryAccess.NONE, what=f"{what}: binding {index}")
            for index, ref in enumerate(bindings)
        )

    def _reference(
        self, ref: BufferRef, usage: BufferUsage, access: MemoryAccess, *, what: str, alignment: int = 1
    ) -> BufferRef:
        """Check a reference. A direct one is resolved and gets a buffer handle that nobody can close; an
        indirect one adds to what its slot has to offer at execution."""
        if ref.offset % alignment:
            raise InvalidArgumentError(f"{what}: offset {ref.offset} is not a multiple of {alignment}")
        if ref.buffer is None:
            return self._reference_slot(ref, usage, access, what, alignment)
        check_usage(ref.buffer, usage, access, what=what)
        if has_any(usage, _ANY_DISPATCH_USAGE):
            self._check_storage(ref.buffer.storage, what)
        length = check_range(ref.offset, ref.length, ref.buffer.byte_length, what=what)
        return BufferRef(ref.buffer.subspan(0), 0, ref.offset, length)

    def _reference_slot(
        self, ref: BufferRef, usage: BufferUsage, access: MemoryAccess, what: str, alignment: int
    ) -> BufferRef:
        if not 0 <= ref.slot < self.binding_capacity:
            message = f"{what}: slot {ref.slot} is outside of the {self.binding_capacity} slots declared"
            raise InvalidArgumentError(message)
        if ref.offset < 0 or ref.length < WHOLE_BUFFER:
            message = f"{what}: {ref.length} bytes at offset {ref.offset} are not a range"
            raise InvalidArgumentError(message)
        end = ref.offset + max(ref.length, 0)
        self._slots.setdefault(ref.slot, _SlotRequirements()).merge(end, alignment, usage, access)
        return ref

    def _bind_slot(self, slot: int, ref: BufferRef) -> Binding | None:
        wanted = self._slots.get(slot)
        if wanted is None:
            return None
        what = f"slot {slot} of the binding table"
        buffer = ref.buffer
        if buffer is None:
            raise InvalidArgumentError(f"{what} is used by the command buffer but holds no buffer")
        storage = buffer.storage
        length = check_range(ref.offset, ref.length, buffer.byte_length, what=what)
        if wanted.byte_length > length:
            raise InvalidArgumentError(f"{what}: commands reach {wanted.byte_length} bytes, it has {length}")
        if wanted.alignment > 1 and ref.offset % wanted.alignment:
            raise InvalidArgumentError(f"{what}: offset {ref.offset} is not a multiple of {wanted.alignment}")
        for usage in wanted.usages:
            check_usage(buffer, usage, wanted.access, what=what)
            if has_any(usage, _ANY_DISPATCH_USAGE):
                self._check_storage(storage, what)
        return Binding(storage, buffer.byte_offset + ref.offset, length)
