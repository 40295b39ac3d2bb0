"""Command buffers of local devices: prepared once, as a program over one slab.

The sequencer runs the program in one engine call. The same commands can be interpreted from here, a step at
a time: that is the reference which tests compare with, and how commands run that touch memory outside of the
guest's.
"""

from __future__ import annotations

import abc
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from ...engines.base import RawCall
from ...errors import (
    DeadlineExceededError,
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
from .outcomes import with_kernel_name
from .program import Program, ProgramBuilder
from .slab import WORD_BYTES, DispatchLayout, Slab, SlabBuilder

if TYPE_CHECKING:
    from ...linker import LinkSpace
    from ...trace import Tracer
    from .aside import SideWorker
    from .workers import Workers

__all__ = ["Execution", "LocalCommandBuffer"]


class Execution:
    """What the steps of one execution share.

    Args:
        workers: run programs.
        dispatcher: runs all workgroups of one dispatch in one call, for interpretation.
        workgroup_state: guest address of the first worker's workgroup state.
        bindings: the resolved binding table.
        tracer: counts what happens.
        is_interpreted: whether to go step by step.
    """

    __slots__ = (
        "bindings",
        "counters",
        "dispatcher",
        "is_interpreted",
        "tracer",
        "workers",
        "workgroup_state",
    )

    def __init__(
        self,
        workers: Workers | SideWorker,
        dispatcher: Callable[[], RawCall],
        workgroup_state: int,
        bindings: Sequence[Binding | None],
        tracer: Tracer,
        *,
        is_interpreted: bool,
    ) -> None:
        self.workers = workers
        self.dispatcher = dispatcher
        self.workgroup_state = workgroup_state
        self.bindings = bindings
        self.tracer = tracer
        self.counters = tracer.counters
        self.is_interpreted = is_interpreted


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
        code = execution.dispatcher()(
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


class LocalCommandBuffer(CommandBuffer):
    """Steps over a slab in guest memory.

    Args:
        space: where the slab lies and the kernels run.
        queue: of the device; its lock is held while memory may grow.
        running: held while the device runs something.
        workers: how many share a dispatch.
        mode: how it is going to be used.
        categories: which commands it may hold.
        binding_capacity: slots of the binding table.
    """

    def __init__(
        self,
        space: LinkSpace,
        queue: Queue,
        running: AbstractContextManager[bool],
        *,
        workers: int,
        mode: CommandBufferMode,
        categories: CommandCategory,
        binding_capacity: int,
    ) -> None:
        self._slab: Slab | None = None
        super().__init__(mode=mode, categories=categories, binding_capacity=binding_capacity)
        self.space = space
        self._queue = queue
        self._running = running
        self._workers = workers
        self.duration_ns: int | None = None
        """What it took the last time it was run in another thread than the submitter's."""
        self._steps: tuple[_Step, ...] | None = None
        self._program: Program | None = None
        self._layouts: list[DispatchLayout] = []

    @property
    def program(self) -> Program | None:
        """What the sequencer runs, once it is finalized."""
        return self._program

    def address_words(self) -> dict[int, tuple[memoryview, list[tuple[int, int]]]]:
        """For each slot, the words of the slab that hold addresses in it: index, and distance from what the
        slot holds. All lengths must have been recorded.

        Raises:
            InvalidArgumentError: it is not finalized.
        """
        slab, program = self._slab, self._program
        if slab is None or program is None:
            raise InvalidArgumentError("the command buffer is not finalized")
        found: dict[int, tuple[memoryview, list[tuple[int, int]]]] = {}
        for word, slot, offset in [*slab.address_patches, *program.settle()]:
            found.setdefault(slot, (slab.words.data, []))[1].append((word, offset))
        return found

    def execute(self, execution: Execution, deadline_ns: int | None) -> None:
        """Run everything; the device's lock is held.

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
        program = self._program
        if program is not None and not execution.is_interpreted and program.patch(execution.bindings):
            execution.workers.run(program)
        else:
            self._interpret(slab, execution, deadline_ns)

    def _interpret(self, slab: Slab, execution: Execution, deadline_ns: int | None) -> None:
        """Run all steps in order."""
        tracer = execution.tracer
        expires_ns = None if deadline_ns is None else time.monotonic_ns() + deadline_ns
        for step in self._prepared_steps(slab):
            if expires_ns is not None:
                self._limit(step, expires_ns, deadline_ns or 0)
            try:
                if tracer.enabled:
                    with tracer.span(step.name, category=step.category, track="worker 0"):
                        step.run(execution)
                else:
                    step.run(execution)
            except (TrapError, DeadlineExceededError) as error:
                raise with_kernel_name(error, step.name) from error

    def _prepared_steps(self, slab: Slab) -> tuple[_Step, ...]:
        if self._steps is None:
            layouts = iter(self._layouts)
            steps = []
            for command in self._commands:
                step = _make_step(command)
                if step is not None:
                    steps.append(step)
                if isinstance(step, _DispatchStep):
                    step.place(slab, next(layouts))
            self._steps = tuple(steps)
        return self._steps

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
        builder = SlabBuilder(self._workers)
        program = ProgramBuilder(self.space.heap, self._workers)
        for command in self._commands:
            layout = None
            if isinstance(command, (Dispatch, DispatchIndirect)):
                layout = _place(builder, command)
                self._layouts.append(layout)
            program.add(command, layout)
        byte_length = builder.word_count * WORD_BYTES + program.byte_length
        with self._queue.lock:
            self._queue.check_open()
            address = self.space.heap.allocate(byte_length)
            try:
                words = np.frombuffer(self.space.view(address, byte_length), np.uint32)
                slab = builder.build(address, words)
                self._program = program.build(slab, builder.word_count)
                slab.seal()
            except BaseException:
                self.space.heap.free(address)
                raise
        self._slab = slab

    def _close(self) -> None:
        # A run that is in progress still reads the slab.
        with self._running:
            self._release()

    def _release(self) -> None:
        self._steps = self._program = None
        slab, self._slab = self._slab, None
        if slab is not None:
            self.space.heap.free(slab.address)

    def __del__(self) -> None:
        if getattr(self, "_slab", None) is not None:
            self._release()


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
