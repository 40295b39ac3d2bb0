"""The local device: runs everything in the thread that submits it."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from ...errors import InvalidArgumentError, SylviteError
from ...hal import (
    Binding,
    CommandBuffer,
    CommandBufferMode,
    CommandCategory,
    Device,
    Executable,
)
from ...hal.call_plan import CallPlan, PreparedCall
from ...hal.file import OpenFile
from ...hal.queue import Pending, Queue
from ...linker import LinkSpace
from .allocator import LocalAllocator
from .calls import LocalCall
from .command_buffer import Execution, LocalCommandBuffer
from .executable import FORMAT, Discarded, LocalExecutable, load_library
from .workers import Workers
from .workgroup_state import WorkgroupState

if TYPE_CHECKING:
    from ...engines.base import Engine, RawCall
    from ...engines.code_cache import CodeCache
    from .program import Program

__all__ = ["LocalDevice"]

# What programs may ask for, by category and key.
_CONCURRENCY: Final = {("hal.device", "concurrency"), ("hal.dispatch", "concurrency")}


class LocalDevice(Device):
    """A device on one link space: one linear memory, one table, one thread at a time.

    Args:
        space: where code and data live; the device closes it.
        identifier: the device's kind.
        engine: closed with the device, when the device made it.
        is_interpreted: run command buffers step by step from the host: slower, for comparison.
        pin: processors for the further workers.
        sides: replicas of the space that become side workers.
    """

    def __init__(
        self,
        space: LinkSpace,
        *,
        identifier: str,
        engine: Engine | None = None,
        is_interpreted: bool = False,
        pin: Sequence[int] | None = None,
        sides: int = 0,
    ) -> None:
        capabilities = space.engine.capabilities
        name = f"{identifier} on {capabilities.engine} {capabilities.version}"
        super().__init__(identifier=identifier, name=name, tracer=space.tracer)
        self.space = space
        self._own_engine = engine
        self._allocator = LocalAllocator(space, self._queue)
        self._workgroup_state = WorkgroupState(space)
        self._workers = Workers(space, self._workgroup_state, pin=pin, sides=sides)
        self._is_interpreted = is_interpreted
        self._discarded: Discarded = collections.deque()
        self._executable_numbers = itertools.count()
        self._deadline_ns = space.store.limits.deadline_ns

    @property
    def worker_count(self) -> int:
        """Threads that run workgroups."""
        return self._workers.count

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """Held while an operation runs. Whoever else runs code in the device's store holds it too."""
        return self._exclusive()

    def _exclusive(self) -> AbstractContextManager[bool]:
        """Held by whoever touches the stores: nothing runs meanwhile."""
        return self._queue.lock

    @property
    def deadline_ns(self) -> int | None:
        """Longest time one call may run here, in nanoseconds; ``None`` when nothing was said."""
        return self._deadline_ns

    @property
    def _running(self) -> AbstractContextManager[bool]:
        """Held while the device runs something."""
        return self._queue.lock

    @property
    def allocator(self) -> LocalAllocator:
        """Allocates from the guest heap."""
        return self._allocator

    @property
    def code_cache(self) -> CodeCache | None:
        """The engine's."""
        return self.space.engine.cache

    def guard(self, timeout_ns: int | None) -> AbstractContextManager[None]:
        """Bound what this thread runs meanwhile; see `Device.guard`."""
        return self.space.store.guard(timeout_ns)

    # -- calls that are done again ------------------------------------------------------------------

    @property
    def queue(self) -> Queue:
        """The device's queue."""
        return self._queue

    @property
    def submission_lock(self) -> AbstractContextManager[bool]:
        """Held while memory is taken for a call. Before `running_lock`, never within."""
        return self._queue.lock

    @property
    def running_lock(self) -> AbstractContextManager[bool]:
        """Held while a call runs."""
        return self._running

    @property
    def discarded(self) -> Discarded:
        """Executables that wait to be unloaded."""
        return self._discarded

    @property
    def call_guard(self) -> Callable[[int | None], AbstractContextManager[None]]:
        """Bounds what the calling thread itself runs meanwhile: takes nanoseconds, or ``None``."""
        return self.space.store.guard

    @property
    def workers(self) -> Workers:
        """What runs programs, while `running_lock` is held; after a failure the stack has to be reset."""
        return self._workers

    def _prepare_call(self, plan: CallPlan, explain: Callable[[SylviteError], None]) -> PreparedCall | None:
        if self._is_interpreted:
            return None
        slots = len(plan.inputs) + len(plan.allocations)
        buffers: list[LocalCommandBuffer] = []
        programs: list[Program] = []
        for commands in plan.submissions:
            buffer = self._create_command_buffer(
                mode=CommandBufferMode.DEFAULT, categories=CommandCategory.ANY, binding_capacity=slots
            )
            buffer.record_again(commands)
            buffer.finalize()
            program = buffer.program
            if program is None or program.is_foreign:
                return None
            with self.submission_lock, self.running_lock:
                self._workers.prepare(program)
            buffers.append(buffer)
            programs.append(program)
        return LocalCall(self, plan, buffers, programs, explain)

    def can_load(self, format: str) -> bool:
        """Whether the format is that of wasm32 side modules."""
        return format == FORMAT

    def _query_i64(self, category: str, key: str) -> int | None:
        return self.worker_count if (category, key) in _CONCURRENCY else None

    def _create_command_buffer(
        self, *, mode: CommandBufferMode, categories: CommandCategory, binding_capacity: int
    ) -> LocalCommandBuffer:
        return LocalCommandBuffer(
            self.space,
            self._queue,
            self._running,
            workers=self.worker_count,
            mode=mode,
            categories=categories,
            binding_capacity=binding_capacity,
        )

    def _create_executable(
        self, *, format: str, data: memoryview | bytes, constants: tuple[int, ...]
    ) -> Executable:
        with self._exclusive():
            self._unload_discarded()
            name = f"executable_{next(self._executable_numbers)}"
            try:
                loaded, library = load_library(
                    self.space, self._workgroup_state, bytes(data), name=name, constants=constants
                )
            except BaseException:
                self.space.reset_stack()
                raise
            return LocalExecutable(loaded, library, self.space, self, self._discarded)

    def _check_own(self, command_buffer: CommandBuffer) -> None:
        if not isinstance(command_buffer, LocalCommandBuffer) or command_buffer.space is not self.space:
            raise InvalidArgumentError("the command buffer belongs to another device")

    def _execute(self, command_buffer: CommandBuffer, bindings: Sequence[Binding | None]) -> Pending | None:
        if not isinstance(command_buffer, LocalCommandBuffer):
            raise InvalidArgumentError("the command buffer belongs to another device")
        if self._discarded:
            self._unload_discarded()
        self._run(command_buffer, bindings)
        return None

    def _run(self, command_buffer: LocalCommandBuffer, bindings: Sequence[Binding | None]) -> None:
        """Run a command buffer in this thread."""
        execution = Execution(
            self._workers,
            self._dispatcher,
            self._workgroup_state.address,
            bindings,
            self.tracer,
            is_interpreted=self._is_interpreted,
        )
        try:
            command_buffer.execute(execution, self._deadline_ns)
        except BaseException:
            self.space.reset_stack()
            raise
        finally:
            if self._deadline_ns is not None:
                self.space.store.set_deadline(self._deadline_ns)

    def _dispatcher(self) -> RawCall:
        return self.space.dispatcher

    def _read(self, data: memoryview, opened: OpenFile | None, offset: int, target: Binding) -> int:
        if opened is None:
            return self._update(data, target)
        opened.read_into(
            target.storage.view(target.byte_offset, target.byte_length, writable=True).data, offset
        )
        return target.byte_length

    def _unload_discarded(self) -> None:
        with self._exclusive():
            while self._discarded:
                self._discarded.popleft().release()

    def _close(self) -> None:
        self._discarded.clear()
        self._workers.close()
        self.space.close()
        if self._own_engine is not None:
            self._own_engine.close()
