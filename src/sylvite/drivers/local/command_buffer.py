"""Command buffers of local devices: prepared once as a list of steps over one slab."""

from __future__ import annotations

import abc
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...engines.base import RawCall
from ...errors import (
    DeadlineExceededError,
    GuestError,
    InvalidArgumentError,
    KernelError,
    TrapError,
)
from ...hal import (
    Binding,
    BufferRef,
    Command,
    CommandBuffer,
    CommandBufferMode,
    CommandCategory,
    CopyBuffer,
    Dispatch,
    DispatchIndirect,
    FillBuffer,
    Storage,
    UpdateBuffer,
    transfer,
)
from ...hal.queue import Queue
from .executable import LocalExecutable
from .slab import DispatchLayout, Slab, SlabBuilder

if TYPE_CHECKING:
    from ...linker import LinkSpace
    from ...trace import Tracer

__all__ = ["Execution", "LocalCommandBuffer"]


class Execution:
    """What the steps of one execution share.

    Args:
        dispatcher: runs all workgroups of a dispatch in one call.
        workgroup_state: guest address of the workgroup state.
        bindings: the resolved binding table.
        tracer: counts what happens.
    """

    __slots__ = ("bindings", "counters", "dispatcher", "tracer", "workgroup_state")

    def __init__(
        self,
        dispatcher: RawCall,
        workgroup_state: int,
        bindings: Sequence[Binding | None],
        tracer: Tracer,
    ) -> None:
        self.dispatcher = dispatcher
        self.workgroup_state = workgroup_state
        self.bindings = bindings
        self.tracer = tracer
        self.counters = tracer.counters


class _Step(abc.ABC):
    """One command, prepared. ``name`` is for messages and spans."""

    __slots__ = ()
    category = "transfer"
    name: str

    @abc.abstractmethod
    def run(self, execution: Execution) -> None:
        """Do it."""


class _DispatchStep(_Step):
    """A dispatch: one engine call for all of its workgroups."""

    category = "dispatch"
    __slots__ = ("_environment", "_function", "_grid", "_state", "_workgroups", "name")

    def __init__(self, executable: LocalExecutable, ordinal: int, grid: tuple[int, int, int]) -> None:
        self.name = executable.exports[ordinal].name
        self._function = executable.table_indices[ordinal]
        self._environment = executable.environment_address
        self._state = 0
        self._set_grid(grid)

    def place(self, slab: Slab, layout: DispatchLayout) -> None:
        """Take note of where the dispatch state is."""
        self._state = slab.address + layout.state * 4

    def run(self, execution: Execution) -> None:
        if not self._workgroups:
            return
        counters = execution.counters
        counters.dispatches += 1
        counters.workgroups += self._workgroups
        counters.engine_calls += 1
        code = execution.dispatcher(
            self._function, self._environment, self._state, execution.workgroup_state, *self._grid
        )
        if code:
            raise KernelError(f"the kernel returned {code}", code=code, kernel=self.name)

    def _set_grid(self, grid: tuple[int, int, int]) -> None:
        self._grid = grid
        self._workgroups = grid[0] * grid[1] * grid[2]


class _DispatchIndirectStep(_DispatchStep):
    """A dispatch whose grid is read when it runs."""

    __slots__ = ("_counts", "_layout", "_slab")

    def __init__(self, executable: LocalExecutable, ordinal: int, counts: BufferRef) -> None:
        super().__init__(executable, ordinal, (0, 0, 0))
        self._counts = counts

    def place(self, slab: Slab, layout: DispatchLayout) -> None:
        super().place(slab, layout)
        self._slab = slab
        self._layout = layout

    def run(self, execution: Execution) -> None:
        bound = CommandBuffer.resolve(self._counts, execution.bindings)
        view = bound.storage.view(bound.byte_offset, bound.byte_length, writable=False)
        grid = struct.unpack_from("<3I", view.data)
        self._slab.write_workgroup_count(self._layout, grid)
        self._set_grid(grid)
        super().run(execution)


class _FillStep(_Step):
    __slots__ = ("_command",)
    name = "fill"

    def __init__(self, command: FillBuffer) -> None:
        self._command = command

    def run(self, execution: Execution) -> None:
        target = CommandBuffer.resolve(self._command.target, execution.bindings)
        execution.counters.device_bytes_copied += transfer.fill(target, self._command.pattern)


class _UpdateStep(_Step):
    __slots__ = ("_command",)
    name = "update"

    def __init__(self, command: UpdateBuffer) -> None:
        self._command = command

    def run(self, execution: Execution) -> None:
        target = CommandBuffer.resolve(self._command.target, execution.bindings)
        execution.counters.device_bytes_copied += transfer.update(self._command.data, target)


class _CopyStep(_Step):
    __slots__ = ("_command",)
    name = "copy"

    def __init__(self, command: CopyBuffer) -> None:
        self._command = command

    def run(self, execution: Execution) -> None:
        source = CommandBuffer.resolve(self._command.source, execution.bindings)
        target = CommandBuffer.resolve(self._command.target, execution.bindings)
        execution.counters.device_bytes_copied += transfer.copy(source, target)


def _with_kernel_name(error: TrapError | DeadlineExceededError, kernel: str) -> GuestError:
    """The same failure with the name of the kernel that ran."""
    if isinstance(error, TrapError):
        return TrapError(error.message, code=error.code, frames=error.frames, kernel=kernel)
    return DeadlineExceededError(error.message, kernel=kernel)


class LocalCommandBuffer(CommandBuffer):
    """Steps over a slab in guest memory.

    Args:
        space: where the slab lies and the kernels run.
        queue: of the device; its lock is held while memory may grow.
        mode: how it is going to be used.
        categories: which commands it may hold.
        binding_capacity: slots of the binding table.
    """

    def __init__(
        self,
        space: LinkSpace,
        queue: Queue,
        *,
        mode: CommandBufferMode,
        categories: CommandCategory,
        binding_capacity: int,
    ) -> None:
        self._slab: Slab | None = None
        super().__init__(mode=mode, categories=categories, binding_capacity=binding_capacity)
        self.space = space
        self._queue = queue
        self._steps: tuple[_Step, ...] = ()

    def execute(self, execution: Execution, deadline_ns: int | None) -> None:
        """Run all steps in order.

        Args:
            execution: the binding table and what else the steps share.
            deadline_ns: longest time for all of it, in nanoseconds.

        Raises:
            TrapError, KernelError, DeadlineExceededError: a kernel failed; they name it.
            InvalidArgumentError: what could only be checked now does not fit.
        """
        slab = self._slab
        if slab is None:
            return
        slab.patch(execution.bindings)
        tracer = execution.tracer
        expires_ns = None if deadline_ns is None else time.monotonic_ns() + deadline_ns
        for step in self._steps:
            if expires_ns is not None:
                self._limit(step, expires_ns, deadline_ns or 0)
            try:
                if tracer.enabled:
                    with tracer.span(step.name, category=step.category, track="device"):
                        step.run(execution)
                else:
                    step.run(execution)
            except (TrapError, DeadlineExceededError) as error:
                raise _with_kernel_name(error, step.name) from error

    def _limit(self, step: _Step, expires_ns: int, deadline_ns: int) -> None:
        left_ns = expires_ns - time.monotonic_ns()
        if left_ns <= 0:
            message = f"the submission ran longer than {deadline_ns / 1e6:g} ms"
            raise DeadlineExceededError(message, kernel=step.name)
        self.space.store.set_deadline(left_ns)

    def _record(self, command: Command) -> None:
        if not isinstance(command, (Dispatch, DispatchIndirect)):
            return
        executable = command.executable
        if not isinstance(executable, LocalExecutable) or executable.space is not self.space:
            raise InvalidArgumentError("the executable belongs to another device")

    def _check_storage(self, storage: Storage, what: str) -> None:
        if storage.domain is not self.space.heap:
            raise InvalidArgumentError(f"{what}: the buffer belongs to another device")

    def _finalize(self) -> None:
        builder = SlabBuilder()
        steps: list[_Step] = []
        placed: list[tuple[_DispatchStep, DispatchLayout]] = []
        for command in self._commands:
            step = _make_step(command)
            if step is None:
                continue
            steps.append(step)
            if isinstance(step, _DispatchStep) and isinstance(command, (Dispatch, DispatchIndirect)):
                placed.append((step, _place(builder, command)))
        self._slab = self._write_slab(builder)
        for step, layout in placed:
            step.place(self._slab, layout)
        self._steps = tuple(steps)

    def _write_slab(self, builder: SlabBuilder) -> Slab:
        with self._queue.lock:
            self._queue.check_open()
            address = self.space.heap.allocate(builder.byte_length)
            try:
                words = np.frombuffer(self.space.view(address, builder.byte_length), np.uint32)
                return builder.build(address, words)
            except BaseException:
                self.space.heap.free(address)
                raise

    def _close(self) -> None:
        self._steps = ()
        slab, self._slab = self._slab, None
        if slab is not None:
            self.space.heap.free(slab.address)

    def __del__(self) -> None:
        if getattr(self, "_slab", None) is not None:
            self._close()


def _place(builder: SlabBuilder, command: Dispatch | DispatchIndirect) -> DispatchLayout:
    export = command.executable.exports[command.export_ordinal]
    grid = command.workgroup_count if isinstance(command, Dispatch) else (0, 0, 0)
    return builder.add(export, grid, command.constants, command.bindings)


def _make_step(command: Command) -> _Step | None:
    """The step of a command; ``None`` for those that order or describe, since steps run in order."""
    if isinstance(command, (Dispatch, DispatchIndirect)):
        executable = command.executable
        if not isinstance(executable, LocalExecutable):
            raise InvalidArgumentError("the executable belongs to another device")
        if isinstance(command, Dispatch):
            return _DispatchStep(executable, command.export_ordinal, command.workgroup_count)
        return _DispatchIndirectStep(executable, command.export_ordinal, command.workgroups)
    if isinstance(command, FillBuffer):
        return _FillStep(command)
    if isinstance(command, UpdateBuffer):
        return _UpdateStep(command)
    if isinstance(command, CopyBuffer):
        return _CopyStep(command)
    return None
