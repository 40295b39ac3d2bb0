"""What bounds a thread's calls for a while. Written out as a class because it surrounds every model call."""

from __future__ import annotations

import sys
import threading
import time
from threading import get_ident
from types import TracebackType
from typing import Any

from .deadlines import ATTENTION_NS, CallState, Watchdog

__all__ = ["Attention", "Guard"]


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

    __slots__ = ("_before", "_report", "_state", "_watchdog")

    def __init__(self, state: CallState, watchdog: Watchdog) -> None:
        self._state = state
        self._watchdog = watchdog
        self._before: Any = None
        self._report = self._take

    def begin(self) -> bool:
        """Attend this thread's calls, which is the main thread; false when they already are."""
        state = self._state
        if state.attended:
            return False
        self._before = sys.unraisablehook
        sys.unraisablehook = self._report
        state.attended = True
        self._watchdog.arm(time.monotonic_ns() + ATTENTION_NS)
        return True

    def end(self) -> None:
        """Undo `begin`."""
        self._state.attended = False
        # Somebody may have put another one in its place meanwhile, to stay.
        if sys.unraisablehook is self._report:
            sys.unraisablehook = self._before
        self._before = None

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
    """Bounds the calls of the entering thread, and delivers Control-C to calls of the main thread.

    Args:
        state: of the store.
        attention: of the store.
        watchdog: of its engine.
        timeout_ns: longest time, in nanoseconds; ``None`` for no limit.
    """

    __slots__ = ("_attention", "_before", "_is_attending", "_state", "_thread", "_timeout_ns", "_watchdog")

    def __init__(
        self, state: CallState, attention: Attention, watchdog: Watchdog, timeout_ns: int | None
    ) -> None:
        self._state = state
        self._attention = attention
        self._watchdog = watchdog
        self._timeout_ns = timeout_ns
        self._thread = 0
        self._before: tuple[int, int] | None = None
        self._is_attending = False

    def __enter__(self) -> None:
        self._thread = thread = get_ident()
        if thread == threading.main_thread().ident:
            self._is_attending = self._attention.begin()
        timeout_ns = self._timeout_ns
        if timeout_ns is not None:
            caps = self._state.caps
            self._before = before = caps.get(thread)
            expires_ns = time.monotonic_ns() + timeout_ns
            if before is None or expires_ns < before[0]:
                caps[thread] = (expires_ns, timeout_ns)
                self._watchdog.arm(expires_ns)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state = self._state
        if self._timeout_ns is not None:
            if self._before is None:
                state.caps.pop(self._thread, None)
            else:
                state.caps[self._thread] = self._before
        if self._is_attending:
            self._is_attending = False
            self._attention.end()
            pending = state.pending
            if pending is not None:
                # It came just before the guest returned.
                state.pending = None
                raise pending
