"""Timeline semaphores: a number that only grows, and that work waits for.

Source: ``iree/hal/semaphore.h``.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from ..errors import DeadlineExceededError, InternalError, InvalidArgumentError, SylviteError

__all__ = ["Semaphore", "SemaphoreCallback", "wait_timeout_error"]

SemaphoreCallback: TypeAlias = Callable[["SylviteError | None"], None]
"""Called once: with ``None`` when the value was reached, else with the failure."""


def wait_timeout_error(timeout_ns: int) -> DeadlineExceededError:
    """The error of a wait that took too long."""
    return DeadlineExceededError(f"a wait was not satisfied within {timeout_ns / 1e6:g} ms")


def _copy_of(error: SylviteError) -> SylviteError:
    """A copy to raise. Raising hangs the frames of whoever catches it on an error; on one that lives as
    long as its semaphore that would be a reference cycle, and keep buffers alive that nobody uses."""
    # Not by calling the class, which wants its keywords, nor by its own __new__: Python takes that of
    # MemoryError for one of our classes and then refuses it.
    copied = BaseException.__new__(type(error), *error.args)
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    return copied


def _without_frames(error: SylviteError) -> SylviteError:
    """Let go of the frames that failed, which hold buffers too. Bugs of ours keep them."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and not isinstance(link, InternalError):
        seen.add(id(link))
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


class Semaphore:
    """A timeline: an unsigned 64-bit value that rises, or fails for good.

    Args:
        initial: value to start from.
    """

    def __init__(self, initial: int = 0) -> None:
        if not 0 <= initial < 1 << 64:
            raise InvalidArgumentError(f"a semaphore cannot start from {initial}")
        self._value = initial
        self._failure: SylviteError | None = None
        self._lock = threading.RLock()
        # Made by the first who blocks: most semaphores are never waited for.
        self._condition: threading.Condition | None = None
        self._callbacks: list[tuple[int, int, SemaphoreCallback]] = []
        self._order = 0

    def __repr__(self) -> str:
        return f"<Semaphore {self._value if self._failure is None else self._failure!r}>"

    @property
    def failure(self) -> SylviteError | None:
        """Why it failed, if it did."""
        return self._failure

    def query(self) -> int:
        """The value reached so far.

        Raises:
            SylviteError: the failure it was given.
        """
        if self._failure is not None:
            raise _copy_of(self._failure)
        return self._value

    def is_reached(self, value: int) -> bool:
        """Whether ``value`` was reached and nothing has failed."""
        return self._failure is None and self._value >= value

    def has_reached(self, value: int) -> bool:
        """Whether ``value`` was reached.

        Raises:
            SylviteError: the failure it was given.
        """
        return self.query() >= value

    def signal(self, value: int) -> None:
        """Raise it to ``value`` and run what waited for that, in this thread.

        Raises:
            InvalidArgumentError: the value is not above the present one.
            SylviteError: it has failed before; the failure.
        """
        with self._lock:
            if self._failure is not None:
                raise _copy_of(self._failure)
            if not self._value < value < 1 << 64:
                raise InvalidArgumentError(f"a semaphore at {self._value} cannot be signalled to {value}")
            self._value = value
            if self._condition is not None:
                self._condition.notify_all()
            if not self._callbacks:
                return
            ready = []
            while self._callbacks and self._callbacks[0][0] <= value:
                ready.append(heapq.heappop(self._callbacks)[2])
        for callback in ready:
            callback(None)

    def fail(self, error: SylviteError) -> None:
        """Fail it for good: every wait from now on raises ``error``. The first failure stays."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = _without_frames(error)
            if self._condition is not None:
                self._condition.notify_all()
            callbacks = [callback for _, _, callback in sorted(self._callbacks, key=lambda entry: entry[:2])]
            self._callbacks.clear()
        for callback in callbacks:
            callback(error)

    def on_reached(self, value: int, callback: SemaphoreCallback) -> None:
        """Call ``callback`` once when ``value`` is reached or the semaphore fails: now, in this thread,
        when that is so already, else in the thread that signals."""
        with self._lock:
            failure = self._failure
            if failure is None and self._value < value:
                self._order += 1
                heapq.heappush(self._callbacks, (value, self._order, callback))
                return
        callback(failure)

    def wait(self, value: int, timeout_ns: int | None = None) -> None:
        """Block until ``value`` is reached.

        Raises:
            DeadlineExceededError: it was not within ``timeout_ns`` nanoseconds.
            SylviteError: the failure it was given.
        """
        deadline = None if timeout_ns is None else time.monotonic_ns() + max(timeout_ns, 0)
        with self._lock:
            condition = self._condition
            if condition is None:
                condition = self._condition = threading.Condition(self._lock)
            while self._failure is None and self._value < value:
                left_ns = None if deadline is None else deadline - time.monotonic_ns()
                if left_ns is not None and left_ns <= 0:
                    raise wait_timeout_error(timeout_ns or 0)
                condition.wait(None if left_ns is None else left_ns / 1e9)
            if self._failure is not None:
                raise _copy_of(self._failure)
