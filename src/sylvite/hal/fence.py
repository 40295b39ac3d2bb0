"""Fences: a set of semaphore timepoints that are waited for, or signalled, together.

Source: ``iree/hal/fence.h``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ..errors import SylviteError
from .semaphore import Semaphore, SemaphoreCallback, wait_timeout_error

__all__ = ["Fence"]


class _Countdown:
    """Calls back once: on the first failure or after the last of ``count`` successes."""

    __slots__ = ("_callback", "_left", "_lock")

    def __init__(self, count: int, callback: SemaphoreCallback) -> None:
        self._left = count
        self._callback: SemaphoreCallback | None = callback
        self._lock = threading.Lock()

    def __call__(self, error: SylviteError | None) -> None:
        with self._lock:
            self._left -= 1
            if self._callback is None or (error is None and self._left):
                return
            callback, self._callback = self._callback, None
        callback(error)


class Fence:
    """A point in time: reached when every one of its timepoints is.

    Args:
        timepoints: pairs of a semaphore and the value it has to reach; for one semaphore the highest
            value counts. None means reached from the start.
    """

    __slots__ = ("_timepoints",)

    def __init__(self, timepoints: Iterable[tuple[Semaphore, int]] = ()) -> None:
        self._timepoints: dict[Semaphore, int] = {}
        for semaphore, value in timepoints:
            self.insert(semaphore, value)

    @classmethod
    def join(cls, fences: Iterable[Fence | None]) -> Fence:
        """A fence that is reached when all of ``fences`` are; ``None`` is a fence that is reached."""
        return cls(point for fence in fences if fence is not None for point in fence.timepoints)

    @property
    def timepoints(self) -> tuple[tuple[Semaphore, int], ...]:
        """Pairs of semaphore and value."""
        return tuple(self._timepoints.items())

    def insert(self, semaphore: Semaphore, value: int) -> None:
        """Add a timepoint."""
        self._timepoints[semaphore] = max(value, self._timepoints.get(semaphore, 0))

    @property
    def is_reached(self) -> bool:
        """Whether it is reached, without raising: a failed fence is not."""
        return all(semaphore.is_reached(value) for semaphore, value in self._timepoints.items())

    def query(self) -> bool:
        """Whether it is reached.

        Raises:
            SylviteError: the failure of one of its semaphores.
        """
        states = [semaphore.has_reached(value) for semaphore, value in self._timepoints.items()]
        return all(states)

    def signal(self) -> None:
        """Signal every timepoint.

        Raises:
            InvalidArgumentError: a semaphore is past its value already.
            SylviteError: a semaphore had failed.
        """
        for semaphore, value in tuple(self._timepoints.items()):
            semaphore.signal(value)

    def fail(self, error: SylviteError) -> None:
        """Fail every semaphore."""
        for semaphore in tuple(self._timepoints):
            semaphore.fail(error)

    def on_reached(self, callback: SemaphoreCallback) -> None:
        """Call ``callback`` once: with ``None`` when all is reached, with the failure at the first one."""
        points = self.timepoints
        if not points:
            callback(None)
            return
        countdown = _Countdown(len(points), callback)
        for semaphore, value in points:
            semaphore.on_reached(value, countdown)

    def wait(self, timeout_ns: int | None = None) -> None:
        """Block until it is reached.

        Raises:
            DeadlineExceededError: it was not within ``timeout_ns`` nanoseconds.
            SylviteError: the failure of one of its semaphores.
        """
        if self.is_reached or self.query():
            return
        done = threading.Event()
        if timeout_ns is None or timeout_ns > 0:
            self.on_reached(lambda _: done.set())
            done.wait(None if timeout_ns is None else timeout_ns / 1e9)
        if not self.query():
            raise wait_timeout_error(timeout_ns or 0)

    def __repr__(self) -> str:
        return f"<Fence {list(self._timepoints.items())!r}>"
