"""What keeps a running program in bounds: deadline, interruption, depth of recursion."""

from __future__ import annotations

import threading
import time
from typing import Final

from ..errors import DeadlineExceededError, ProgramError, StatusCode
from ..hal.fence import Fence

__all__ = ["MAXIMUM_RECURSION", "Watch"]

MAXIMUM_RECURSION: Final = 300
"""Most nested calls of recursive functions. Each takes one or two frames of Python's own stack,
of which there are 1000 by default; IREE's stack of 1 MiB holds a few thousand."""

_ROUNDS_PER_LOOK: Final = 1000
# A kernel that has run too long is stopped by its device and fails the fence, which says more.
_GRACE_NS: Final = 300_000_000


class Watch:
    """Limits of the call that runs in one context. Used by one thread, except for `interrupt`."""

    __slots__ = ("_deadline", "_is_interrupted", "_waiting", "depth", "timeout_ns")

    def __init__(self) -> None:
        self._deadline: int | None = None
        self._is_interrupted = False
        self._waiting: threading.Event | None = None
        self.timeout_ns: int | None = None
        self.depth = 0

    def start(self, timeout_ns: int | None) -> None:
        """Begin a call that may take ``timeout_ns``; forget an earlier interruption."""
        self.timeout_ns = timeout_ns
        self._deadline = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        self._is_interrupted = False
        self.depth = 0

    def interrupt(self) -> None:
        """Make the call stop at its next look. May be called from any thread."""
        self._is_interrupted = True
        waiting = self._waiting
        if waiting is not None:
            waiting.set()

    def look(self) -> int:
        """Check the limits; return how many cheap rounds may pass before the next look.

        Raises:
            DeadlineExceededError: the time is over.
            ProgramError: `interrupt` was called (status ``CANCELLED``).
        """
        if self._is_interrupted:
            raise ProgramError("interrupted", status=StatusCode.CANCELLED)
        if self._deadline is not None and time.monotonic_ns() > self._deadline:
            raise DeadlineExceededError(f"the program ran longer than its limit of {self.timeout_ns} ns")
        return _ROUNDS_PER_LOOK

    def wait(self, fence: Fence, timeout_ns: int | None) -> bool:
        """Wait for a fence; false when it is not reached within ``timeout_ns``.

        A program may wait for what nobody will ever signal, so the call's limits hold here, too.

        Raises:
            DeadlineExceededError: the call's time is over.
            ProgramError: `interrupt` was called (status ``CANCELLED``).
            SylviteError: the fence failed.
        """
        done = self._waiting = threading.Event()
        try:
            fence.on_reached(lambda _: done.set())
            # An interruption before now has not seen the event.
            if not self._is_interrupted:
                done.wait(self._seconds_to_wait(timeout_ns))
        finally:
            self._waiting = None
        if fence.query():
            return True
        self.look()
        return False

    def _seconds_to_wait(self, timeout_ns: int | None) -> float | None:
        if self._deadline is not None:
            left_ns = self._deadline + _GRACE_NS - time.monotonic_ns()
            timeout_ns = left_ns if timeout_ns is None else min(timeout_ns, left_ns)
        return None if timeout_ns is None else max(timeout_ns, 0) / 1e9

    def enter(self) -> None:
        """Count a call of a recursive function.

        Raises:
            ProgramError: too many are nested (status ``RESOURCE_EXHAUSTED``).
        """
        self.depth += 1
        self.look()
        if self.depth > MAXIMUM_RECURSION:
            raise ProgramError(
                f"recursion deeper than {MAXIMUM_RECURSION} calls", status=StatusCode.RESOURCE_EXHAUSTED
            )

    def leave(self) -> None:
        """Count its return."""
        self.depth -= 1
