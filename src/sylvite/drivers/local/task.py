"""The local device with threads: work is handed over, and runs on several workers.

One thread, the *lane*, is worker 0: it takes submissions whose waits are reached, one after another, while
Python prepares the next. See `sylvite.drivers.local.workers` for its helpers, and
`sylvite.drivers.local.aside` for those who run submissions beside it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ...errors import InvalidArgumentError, SylviteError
from ...hal import Binding, CommandBuffer
from ...hal.call_plan import CallPlan, PreparedCall
from ...hal.queue import Pending
from .command_buffer import Execution, LocalCommandBuffer
from .device import LocalDevice
from .lane import Lane

if TYPE_CHECKING:
    from ...engines.base import Engine, Store
    from ...linker import LinkSpace
    from .aside import SideWorker

__all__ = ["LocalTaskDevice", "default_worker_count", "side_count"]

_MOST_SIDES: Final = 3


def default_worker_count() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def side_count(workers: int) -> int:
    """How many side workers a device with so many workers has."""
    return min(workers - 1, _MOST_SIDES)


def _guard_of(guarded: threading.local, store: Store) -> Callable[[int | None], AbstractContextManager[None]]:
    """The guard of calls by the calling thread: by what is given, and by what the thread is bounded by."""

    def guard(timeout_ns: int | None) -> AbstractContextManager[None]:
        expires_ns: int | None = getattr(guarded, "expires_ns", None)
        if expires_ns is not None:
            left_ns = max(expires_ns - time.monotonic_ns(), 0)
            timeout_ns = left_ns if timeout_ns is None else min(timeout_ns, left_ns)
        return store.guard(timeout_ns)

    return guard


class _AllLocks:
    """Several locks as one, taken in order.

    Args:
        locks: all of them reentrant.
    """

    __slots__ = ("_locks",)

    def __init__(self, locks: Sequence[AbstractContextManager[bool]]) -> None:
        self._locks = tuple(locks)

    def __enter__(self) -> bool:
        with ExitStack() as entered:
            for lock in self._locks:
                entered.enter_context(lock)
            entered.pop_all()
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for lock in reversed(self._locks):
            lock.__exit__(kind, value, traceback)


class _CallLock:
    """Held while a caller's own thread runs guest code as worker 0, with helpers where they are.

    Args:
        queue_lock, run_lock: the device's, taken in this order.
        guard: bounds what the calling thread runs meanwhile.
        helpers: threads that cannot have the lock: their own call holds it, in another thread.
    """

    __slots__ = ("_guard", "_guards", "_helpers", "_queue_lock", "_run_lock")

    def __init__(
        self,
        queue_lock: AbstractContextManager[bool],
        run_lock: AbstractContextManager[bool],
        guard: Callable[[int | None], AbstractContextManager[None]],
        helpers: Set[int],
    ) -> None:
        self._queue_lock = queue_lock
        self._run_lock = run_lock
        self._guard = guard
        self._helpers = helpers
        # Only holders of the locks touch the list.
        self._guards: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        if get_ident() in self._helpers:
            raise InvalidArgumentError("a callback that a helper runs cannot call the device")
        self._queue_lock.__enter__()
        try:
            self._run_lock.__enter__()
            try:
                guard = self._guard(None)
                guard.__enter__()
            except BaseException:
                self._run_lock.__exit__(None, None, None)
                raise
        except BaseException:
            self._queue_lock.__exit__(None, None, None)
            raise
        self._guards.append(guard)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._guards.pop().__exit__(kind, value, traceback)
        finally:
            self._run_lock.__exit__(None, None, None)
            self._queue_lock.__exit__(None, None, None)


class LocalTaskDevice(LocalDevice):
    """A local device that returns from a submission at once and runs it on several workers.

    Args:
        space: where code and data live, with a replica per further worker; the device closes it.
        identifier: the device's kind.
        engine: closed with the device, when the device made it.
        is_interpreted: run command buffers step by step, on one worker: slower, for comparison.
        pin: processors to fix the workers to, one each.
        sides: how many of the replicas run submissions beside the workers.
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
        self._run_lock = threading.RLock()
        self._guarded = threading.local()
        self._guard_call = _guard_of(self._guarded, space.store)
        super().__init__(
            space,
            identifier=identifier,
            engine=engine,
            is_interpreted=is_interpreted,
            pin=None if pin is None else pin[1:],
            sides=sides,
        )
        self._all_locks = _AllLocks([self._run_lock, *[side.lock for side in self._workers.sides]])
        self._is_pinned = pin is not None
        self._call_lock = _CallLock(
            self._queue.lock, self._run_lock, self._guard_call, self._workers.helper_threads
        )
        self._lane = Lane(identifier, self._workers.sides, pin)

    @property
    def _running(self) -> AbstractContextManager[bool]:
        return self._all_locks

    @property
    def running_lock(self) -> AbstractContextManager[bool]:
        """Held while a call runs; side workers may be running something else."""
        return self._run_lock

    @contextmanager
    def _exclusive(self) -> Iterator[bool]:
        # In this order always: whoever runs something does not take the queue's lock meanwhile.
        with self._queue.lock, self._all_locks:
            self._workers.park()
            yield True

    def _execute(self, command_buffer: CommandBuffer, bindings: Sequence[Binding | None]) -> Pending:
        if not isinstance(command_buffer, LocalCommandBuffer):
            raise InvalidArgumentError("the command buffer belongs to another device")
        expires_ns: int | None = getattr(self._guarded, "expires_ns", None)

        def run(side: SideWorker | None) -> None:
            if side is not None:
                self._run_aside(side, command_buffer, bindings, expires_ns)
                return
            if self._discarded:
                self._unload_discarded()
            with self._run_lock:
                # Once more: it may have been closed while it waited for its turn.
                command_buffer.check_open()
                left_ns = None if expires_ns is None else max(expires_ns - time.monotonic_ns(), 0)
                with self.space.store.guard(left_ns):
                    self._run(command_buffer, bindings)

        return self._lane.put(run, command_buffer, may_go_aside=self._may_go_aside(command_buffer, bindings))

    def _may_go_aside(self, command_buffer: LocalCommandBuffer, bindings: Sequence[Binding | None]) -> bool:
        """Whether one worker is all that it needs, and it can be run inside of the sandbox."""
        program = command_buffer.program
        return (
            program is not None
            and not program.is_parallel
            and not program.is_foreign
            and not self._is_interpreted
            and all(bound is None or bound.storage.domain is self.space.heap for bound in bindings)
        )

    def _run_aside(
        self,
        side: SideWorker,
        command_buffer: LocalCommandBuffer,
        bindings: Sequence[Binding | None],
        expires_ns: int | None,
    ) -> None:
        """Run a command buffer on a side worker, in its thread."""
        with side.lock:
            command_buffer.check_open()
            left = [limit for limit in (self._deadline_ns,) if limit is not None]
            if expires_ns is not None:
                left.append(max(expires_ns - time.monotonic_ns(), 0))
            execution = Execution(
                side,
                self._dispatcher,
                self._workgroup_state.address,
                bindings,
                self.tracer,
                is_interpreted=False,
            )
            with side.store.guard(min(left, default=None)):
                command_buffer.execute(execution, None)

    @contextmanager
    def guard(self, timeout_ns: int | None) -> Iterator[None]:
        """Bound what this thread submits meanwhile; Control-C stops whatever runs. See `Device.guard`."""
        before = getattr(self._guarded, "expires_ns", None)
        if timeout_ns is not None:
            expires_ns = time.monotonic_ns() + timeout_ns
            self._guarded.expires_ns = expires_ns if before is None else min(before, expires_ns)
        try:
            yield
        except KeyboardInterrupt:
            if self.space.engine.capabilities.deadlines:
                for store in (self.space.store, *[side.store for side in self._workers.sides]):
                    store.interrupt()
            raise
        finally:
            self._guarded.expires_ns = before

    @property
    def call_guard(self) -> Callable[[int | None], AbstractContextManager[None]]:
        """Bounds what the calling thread itself runs meanwhile: takes nanoseconds, or ``None``."""
        return self._guard_call

    @property
    def call_lock(self) -> AbstractContextManager[None]:
        """Held by a thread that runs guest code itself, such as a pipeline; helpers may take part."""
        return self._call_lock

    def _prepare_call(self, plan: CallPlan, explain: Callable[[SylviteError], None]) -> PreparedCall | None:
        # The calling thread is worker 0 of a prepared call, wherever it runs.
        return None if self._is_pinned else super()._prepare_call(plan, explain)

    def close(self) -> None:
        """Wait for what is running, fail what waits, end the threads. Idempotent."""
        self._lane.close()
        super().close()

    def _close(self) -> None:
        # A prepared call may run in another thread, which holds this lock alone.
        with self._all_locks:
            super()._close()

    def __del__(self) -> None:
        # Threads do not refer to the device, so they have to be told.
        lane = getattr(self, "_lane", None)
        # At the end of the process they cannot come out any more to be waited for.
        if lane is not None and not self.closed and not sys.is_finalizing():
            self.close()
