"""What bounds a thread's calls for a while. Written out as a class because it surrounds every model call."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has none
import os
import signal
import threading
import time
from threading import get_ident
from types import TracebackType
from typing import Any, Final

from .deadlines import CallState, Watchdog

__all__ = ["Attention", "Guard"]

_main_thread = threading.main_thread().ident


def _after_fork() -> None:
    global _main_thread
    _main_thread = threading.main_thread().ident


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# Below Python's wrappers, which turn handlers into enumerators at some microseconds a time.
_set_handler: Any = _signal.signal
_handler_of: Any = _signal.getsignal
_INTERRUPT: Final = int(signal.SIGINT)


class Attention:
    """While entered, brings Control-C to calls of the main thread.

    Python runs signal handlers between bytecodes, and there are none while the guest runs. So the watchdog
    listens for the signal and stops the guest, and the handler runs when the call returns. While the guest is
    in a host function, it runs there. What Python's own handler raises in such a callback of C would be lost,
    and the callback's result with it; so ours leaves it for the call that entered the guest to raise.

    Args:
        state: of the store.
        watchdog: of its engine.
    """

    __slots__ = ("_depth", "_handler", "_is_set", "_state", "_watchdog")

    def __init__(self, state: CallState, watchdog: Watchdog) -> None:
        self._state = state
        self._watchdog = watchdog
        self._depth = 0
        self._is_set = False
        self._handler = self._take

    def __enter__(self) -> None:
        """Attend this thread's calls, if it is the main thread. May be nested."""
        if get_ident() != _main_thread:
            return
        self._depth += 1
        if self._depth == 1 and _handler_of(_INTERRUPT) is signal.default_int_handler:
            _set_handler(_INTERRUPT, self._handler)
            self._is_set = self._state.attended = True
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
        if self._depth or not self._is_set:
            return
        state = self._state
        self._is_set = state.attended = False
        # Somebody may have put another one in its place meanwhile, to stay.
        if _handler_of(_INTERRUPT) is self._handler:
            _set_handler(_INTERRUPT, signal.default_int_handler)
        pending = state.pending
        if isinstance(pending, KeyboardInterrupt):
            # It came just before the guest returned.
            state.pending = None
            raise pending

    def _take(self, _number: int, _frame: object) -> None:
        state = self._state
        if not state.depth or state.thread != get_ident():
            raise KeyboardInterrupt
        state.pending = KeyboardInterrupt()
        state.interrupted = True


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
