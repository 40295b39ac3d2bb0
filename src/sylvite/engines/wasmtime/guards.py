"""What bounds a thread's calls for a while. Written out as a class because it surrounds every model call."""

from __future__ import annotations

import os
import sys
import threading
import time
from threading import get_ident
from types import TracebackType
from typing import Any

from .deadlines import CallState, Watchdog

__all__ = ["Attention", "Guard"]

_main_thread = threading.main_thread().ident


def _after_fork() -> None:
    global _main_thread
    _main_thread = threading.main_thread().ident


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Attention:
    """Brings what a signal handler raises within one of our callbacks to the call that entered the guest.

    Python runs signal handlers between bytecodes, and there are none while the guest runs. So the watchdog
    has the guest call back now and then. An exception that a handler raises there, before the callback's
    first statement, is lost in C, and Python reports it as unraisable. While calls are attended we take
    that report. (Handlers of our own would do, too; but to set one costs system calls, and others look at
    which one is set.)

    Args:
        state: of the store.
        watchdog: of its engine.
    """

    __slots__ = ("_before", "_depth", "_report", "_state", "_watchdog")

    def __init__(self, state: CallState, watchdog: Watchdog) -> None:
        self._state = state
        self._watchdog = watchdog
        self._depth = 0
        self._before: Any = None
        self._report = self._take

    def __enter__(self) -> None:
        """Attend this thread's calls, if it is the main thread. May be nested."""
        if get_ident() != _main_thread:
            return
        self._depth += 1
        if self._depth == 1:
            self._before = sys.unraisablehook
            sys.unraisablehook = self._report
            self._state.attended = True
            self._watchdog.attend()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if get_ident() != _main_thread:
            return
        self._depth -= 1
        if self._depth:
            return
        state = self._state
        state.attended = False
        # Somebody may have put another one in its place meanwhile, to stay.
        if sys.unraisablehook is self._report:
            sys.unraisablehook = self._before
        self._before = None
        pending = state.pending
        if pending is not None:
            # It came just before the guest returned.
            state.pending = None
            raise pending

    def _take(self, unraisable: sys.UnraisableHookArgs) -> None:
        state, error = self._state, unraisable.exc_value
        is_ours = error is not None and "ctypes callback" in (unraisable.err_msg or "")
        if is_ours and state.depth and state.thread == get_ident():
            state.pending = error
            state.interrupted = True
            self._watchdog.raise_epoch()
        elif self._before is not None:
            self._before(unraisable)


class Guard:
    """Bounds the calls of the entering thread, and has those of the main thread attended.

    Args:
        state: of the store.
        attention: of the store.
        watchdog: of its engine.
        timeout_ns: longest time, in nanoseconds.
    """

    __slots__ = ("_attention", "_before", "_state", "_thread", "_timeout_ns", "_watchdog")

    def __init__(self, state: CallState, attention: Attention, watchdog: Watchdog, timeout_ns: int) -> None:
        self._state = state
        self._attention = attention
        self._watchdog = watchdog
        self._timeout_ns = timeout_ns
        self._thread = 0
        self._before: tuple[int, int] | None = None

    def __enter__(self) -> None:
        self._attention.__enter__()
        self._thread = thread = get_ident()
        caps = self._state.caps
        self._before = before = caps.get(thread)
        expires_ns = time.monotonic_ns() + self._timeout_ns
        if before is None or expires_ns < before[0]:
            caps[thread] = (expires_ns, self._timeout_ns)
            self._watchdog.arm(expires_ns)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        caps = self._state.caps
        if self._before is None:
            caps.pop(self._thread, None)
        else:
            caps[self._thread] = self._before
        self._attention.__exit__(kind, value, traceback)
