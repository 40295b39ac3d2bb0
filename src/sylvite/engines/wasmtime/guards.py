"""What bounds a thread's calls for a while. Written out as a class because it surrounds every model call."""

from __future__ import annotations

import signal
import threading
import time
from threading import get_ident
from types import TracebackType
from typing import Any

from .deadlines import ATTENTION_NS, CallState, Watchdog

__all__ = ["Guard"]

# The functions below Python's wrappers, which turn handlers into enumerators at ten microseconds a time.
_set_handler: Any = getattr(signal.signal, "__wrapped__", signal.signal)
_handler_of: Any = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
_INTERRUPT = int(signal.SIGINT)


class Guard:
    """Bounds the calls of the entering thread, and delivers Control-C to calls of the main thread.

    Python runs signal handlers between bytecodes, and there are none while the guest runs. So the watchdog
    has the guest call back now and then; and because an exception raised in a callback of C is lost, our
    handler leaves it for the call that entered the guest to raise.

    Args:
        state: of the store.
        watchdog: of its engine.
        timeout_ns: longest time, in nanoseconds; ``None`` for no limit.
    """

    __slots__ = ("_before", "_is_attending", "_state", "_thread", "_timeout_ns", "_watchdog")

    def __init__(self, state: CallState, watchdog: Watchdog, timeout_ns: int | None) -> None:
        self._state = state
        self._watchdog = watchdog
        self._timeout_ns = timeout_ns
        self._thread = 0
        self._before: tuple[int, int] | None = None
        self._is_attending = False

    def __enter__(self) -> None:
        self._thread = thread = get_ident()
        state, timeout_ns = self._state, self._timeout_ns
        self._before = before = state.caps.get(thread)
        if thread == threading.main_thread().ident:
            self._attend()
        if timeout_ns is not None:
            expires_ns = time.monotonic_ns() + timeout_ns
            if before is None or expires_ns < before[0]:
                state.caps[thread] = (expires_ns, timeout_ns)
                self._watchdog.arm(expires_ns)

    def _attend(self) -> None:
        if _handler_of(_INTERRUPT) is not signal.default_int_handler:
            return
        state = self._state

        def interrupt(_number: int, _frame: object) -> None:
            if not state.depth or state.thread != get_ident():
                raise KeyboardInterrupt
            state.pending = KeyboardInterrupt()
            state.interrupted = True

        _set_handler(_INTERRUPT, interrupt)
        self._is_attending = state.attended = True
        self._watchdog.arm(time.monotonic_ns() + ATTENTION_NS)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state = self._state
        if self._before is None:
            state.caps.pop(self._thread, None)
        else:
            state.caps[self._thread] = self._before
        if not self._is_attending:
            return
        self._is_attending = state.attended = False
        _set_handler(_INTERRUPT, signal.default_int_handler)
        pending = state.pending
        if isinstance(pending, KeyboardInterrupt):
            # It came after the guest had returned, or just before.
            state.pending = None
            raise pending
