"""The local device that runs everything in the thread that submits it."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from ... import engines
from ...errors import InvalidArgumentError
from ...hal import (
    Binding,
    CommandBuffer,
    CommandBufferMode,
    CommandCategory,
    Device,
    DeviceInfo,
    Driver,
    Executable,
)
from ...linker import LinkSpace
from .allocator import LocalAllocator
from .command_buffer import Execution, LocalCommandBuffer
from .executable import FORMAT, Discarded, LocalExecutable, load_library
from .workers import Workers
from .workgroup_state import WorkgroupState

if TYPE_CHECKING:
    from ...engines.base import Engine, Limits, RawCall
    from ...trace import Tracer

__all__ = ["LocalDevice", "LocalSyncDriver"]

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
    """

    def __init__(
        self,
        space: LinkSpace,
        *,
        identifier: str,
        engine: Engine | None = None,
        is_interpreted: bool = False,
        pin: Sequence[int] | None = None,
    ) -> None:
        capabilities = space.engine.capabilities
        name = f"{identifier} on {capabilities.engine} {capabilities.version}"
        super().__init__(identifier=identifier, name=name, tracer=space.tracer)
        self.space = space
        self._own_engine = engine
        self._allocator = LocalAllocator(space, self._queue)
        self._workgroup_state = WorkgroupState(space)
        self._workers = Workers(space, self._workgroup_state, pin=pin)
        self._is_interpreted = is_interpreted
        self._discarded: Discarded = collections.deque()
        self._executable_numbers = itertools.count()
        self._deadline_ns = space.store.limits.deadline_ns

    @property
    def worker_count(self) -> int:
        """Threads that run workgroups."""
        return self._workers.count

    @property
    def _running(self) -> AbstractContextManager[bool]:
        """Held while the device runs something."""
        return self._queue.lock

    @property
    def allocator(self) -> LocalAllocator:
        """Allocates from the guest heap."""
        return self._allocator

    def can_load(self, format: str) -> bool:
        """Whether the format is that of wasm32 side modules."""
        return format == FORMAT

    def _query_i64(self, category: str, key: str) -> int | None:
        return self.worker_count if (category, key) in _CONCURRENCY else None

    def _create_command_buffer(
        self, *, mode: CommandBufferMode, categories: CommandCategory, binding_capacity: int
    ) -> CommandBuffer:
        return LocalCommandBuffer(
            self.space,
            self._queue,
            self._running,
            mode=mode,
            categories=categories,
            binding_capacity=binding_capacity,
        )

    def _create_executable(
        self, *, format: str, data: memoryview | bytes, constants: tuple[int, ...]
    ) -> Executable:
        self._unload_discarded()
        name = f"executable_{next(self._executable_numbers)}"
        try:
            loaded, library = load_library(
                self.space, self._workgroup_state, bytes(data), name=name, constants=constants
            )
        except BaseException:
            self.space.reset_stack()
            raise
        return LocalExecutable(loaded, library, self.space, self._queue, self._discarded)

    def _check_own(self, command_buffer: CommandBuffer) -> None:
        if not isinstance(command_buffer, LocalCommandBuffer) or command_buffer.space is not self.space:
            raise InvalidArgumentError("the command buffer belongs to another device")

    def _execute(self, command_buffer: CommandBuffer, bindings: Sequence[Binding | None]) -> None:
        if not isinstance(command_buffer, LocalCommandBuffer):
            raise InvalidArgumentError("the command buffer belongs to another device")
        if self._discarded:
            self._unload_discarded()
        self._run(command_buffer, bindings)

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

    def _unload_discarded(self) -> None:
        while self._discarded:
            self._discarded.popleft().release()

    def _close(self) -> None:
        self._discarded.clear()
        self._workers.close()
        self.space.close()
        if self._own_engine is not None:
            self._own_engine.close()


class LocalSyncDriver(Driver):
    """Opens ``local-sync`` devices."""

    name = "local-sync"

    def query_devices(self) -> tuple[DeviceInfo, ...]:
        """One device per engine of this release."""
        return tuple(
            DeviceInfo(identifier=self.name, name=f"{self.name} on {engine}", details=(("engine", engine),))
            for engine in engines.names()
        )

    def create_device(
        self,
        *,
        tracer: Tracer | None = None,
        engine: Engine | str = "wasmtime",
        limits: Limits | None = None,
        **options: Any,
    ) -> LocalDevice:
        """Open a device with a linear memory of its own.

        Args:
            tracer: counts and times what happens.
            engine: the engine to run on, which stays the caller's; or the name of one to make.
            limits: sandbox limits.
            options: ``cache_dir`` for a named engine; ``stack_bytes``, ``maximum_pages`` for the link space.

        Raises:
            InvalidArgumentError: an option is not known.
            UnavailableError: the engine cannot be used here.
        """
        unknown = options.keys() - {"cache_dir", "stack_bytes", "minimum_pages", "maximum_pages"}
        if unknown:
            raise InvalidArgumentError(f"device local-sync has no options {', '.join(sorted(unknown))}")
        own = None
        if isinstance(engine, str):
            cache_dir = options.pop("cache_dir", None)
            own = engine = engines.create(engine, **({} if cache_dir is None else {"cache_dir": cache_dir}))
        numbers = {key: _number(key, value) for key, value in options.items()}
        try:
            space = LinkSpace(engine, limits=limits, tracer=tracer, **numbers)
            return LocalDevice(space, identifier=self.name, engine=own)
        except BaseException:
            if own is not None:
                own.close()
            raise


def _number(key: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"option {key} of device local-sync is not a number: {value!r}") from error
