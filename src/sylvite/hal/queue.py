"""The queue of a device: runs operations when their wait fence is reached, one at a time.

An operation whose wait is reached runs at once, in the thread that submits it; otherwise in the thread
that brings the last signal. Operations that become ready while one completes are run by the same loop
instead of recursively, so chains of any length need no stack. Failures go to the signal fence; an
operation without one raises to its submitter, or at the next flush when it ran later.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import TypeAlias

from ..errors import ClosedError, GuestError, InternalError, OutOfMemoryError, SylviteError
from .fence import Fence

__all__ = ["Pending", "Queue"]


class Pending:
    """An action that goes on elsewhere after its call returned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_finished = False
        self._failure: BaseException | None = None
        self._callback: Callable[[BaseException | None], None] | None = None

    def finish(self, failure: BaseException | None = None) -> None:
        """It has ended; only the first call counts."""
        with self._lock:
            if self._is_finished:
                return
            self._is_finished = True
            callback, self._callback = self._callback, None
            if callback is None:
                self._failure = failure
        if callback is not None:
            callback(failure)

    def then(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call ``callback`` once with the failure (or ``None``) at its end: now when that has come."""
        with self._lock:
            if not self._is_finished:
                self._callback = callback
                return
        failure, self._failure = self._failure, None
        callback(failure)


Action: TypeAlias = Callable[[], "Pending | None"]


class _Operation:
    """One submitted piece of work."""

    __slots__ = ("action", "failure", "name", "returned", "signal")

    def __init__(self, name: str, signal: Fence | None, action: Action) -> None:
        self.name = name
        self.signal = signal
        self.action: Action | None = action
        self.failure: SylviteError | None = None
        self.returned = False


def _as_sylvite_error(error: BaseException, name: str) -> SylviteError:
    """What a fence can be failed with."""
    if isinstance(error, SylviteError):
        return error
    translated: SylviteError
    if isinstance(error, MemoryError):
        translated = OutOfMemoryError(f"queue {name}: the host ran out of memory")
    elif isinstance(error, Exception):
        translated = InternalError(f"queue {name}: {type(error).__name__}: {error}")
    else:
        translated = GuestError(f"queue {name}: stopped by {type(error).__name__}")
    translated.__cause__ = error
    return translated


class Queue:
    """Runs operations in the order in which they become ready.

    Args:
        name: of the device, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.RLock()
        """Held while an operation runs, and by whoever else touches what operations touch."""
        self._state_lock = threading.Lock()
        self._waiting: set[_Operation] = set()
        self._orphan_failures: collections.deque[SylviteError] = collections.deque()
        self.closed = False
        """Whether `close` was called."""
        self._thread = threading.local()

    def check_open(self) -> None:
        """Refuse use after `close`.

        Raises:
            ClosedError
        """
        if self.closed:
            raise ClosedError(f"device {self.name} is closed")

    def submit(self, name: str, wait: Fence | None, signal: Fence | None, action: Action) -> None:
        """Run ``action`` once ``wait`` is reached, then signal (or fail) ``signal``.

        Args:
            name: of the operation, for messages.
            wait: what has to be reached first; ``None`` for nothing.
            signal: what to signal; ``None`` for nothing.
            action: the work; when it returns a `Pending`, the operation ends with that.

        Raises:
            ClosedError: the queue is closed.
            SylviteError: the failure of the action, when it ran here and has no signal fence.
        """
        self.check_open()
        operation = _Operation(name, signal, action)
        if wait is None or wait.is_reached:
            self._run_all(operation)
        else:
            with self._state_lock:
                self._waiting.add(operation)
            wait.on_reached(lambda failure: self._on_wait_reached(operation, failure))
        operation.returned = True
        if operation.failure is not None and signal is None:
            raise operation.failure

    def flush(self) -> None:
        """Report the failure of an operation that ran later and had no signal fence.

        Raises:
            ClosedError: the queue is closed.
            SylviteError: such a failure, the oldest first.
        """
        self.check_open()
        try:
            failure = self._orphan_failures.popleft()
        except IndexError:
            return
        raise failure

    def close(self, release: Callable[[], None]) -> None:
        """Wait for what is running, call ``release``, then fail everything that still waits. Idempotent."""
        with self.lock:
            if self.closed:
                return
            with self._state_lock:
                self.closed = True
                waiting = list(self._waiting)
                self._waiting.clear()
            release()
        for operation in waiting:
            message = f"device {self.name} was closed before queue {operation.name} ran"
            self._fail(operation, ClosedError(message))

    def _on_wait_reached(self, operation: _Operation, failure: SylviteError | None) -> None:
        with self._state_lock:
            if operation not in self._waiting:
                return
            self._waiting.discard(operation)
        if failure is not None:
            self._fail(operation, failure)
        else:
            self._run_all(operation)

    def _run_all(self, operation: _Operation) -> None:
        """Run it, then everything that this made ready; or leave it to the loop that is doing so."""
        ready: collections.deque[_Operation] | None = getattr(self._thread, "ready", None)
        if ready is not None:
            ready.append(operation)
            return
        self._thread.ready = ready = collections.deque([operation])
        try:
            while ready:
                self._run(ready.popleft())
        finally:
            self._thread.ready = None
            for left in ready:
                self._fail(left, GuestError(f"queue {left.name}: stopped with the operation before it"))

    def _run(self, operation: _Operation) -> None:
        action, operation.action = operation.action, None
        pending: Pending | None = None
        try:
            with self.lock:
                self.check_open()
                if action is not None:
                    pending = action()
        except BaseException as error:
            self._fail(operation, _as_sylvite_error(error, operation.name))
            if not isinstance(error, Exception):
                raise
            return
        if pending is None:
            self._complete(operation)
        else:
            pending.then(lambda failure: self._finish(operation, failure))

    def _finish(self, operation: _Operation, failure: BaseException | None) -> None:
        """End an operation that went on elsewhere."""
        if failure is None:
            self._complete(operation)
        else:
            self._fail(operation, _as_sylvite_error(failure, operation.name))

    def _complete(self, operation: _Operation) -> None:
        if operation.signal is None:
            return
        try:
            operation.signal.signal()
        except SylviteError as error:
            self._fail(operation, error)

    def _fail(self, operation: _Operation, error: SylviteError) -> None:
        operation.action = None
        operation.failure = error
        if operation.signal is not None:
            operation.signal.fail(error)
        elif operation.returned:
            self._orphan_failures.append(error)
