"""What bounds a thread's calls for a while. Written out as a class because it surrounds every model call."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has none
import os
import signal
import threading
import time
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any, Final

from .deadlines import CallState, Watchdog
from .signals import LISTENER

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

    __slots__ = ("_before", "_depth", "_handler", "_is_set", "_state", "_watchdog")

    def __init__(self, state: CallState, watchdog: Watchdog) -> None:
        self._state = state
        self._watchdog = watchdog
        self._depth = 0
        self._is_set = False
        self._handler = self._take
        # The handler in whose place ours is: Python's own, or another store's.
        self._before: Any = None

    def __enter__(self) -> None:
        """Attend this thread's calls, if it is the main thread. May be nested."""
        if get_ident() != _main_thread:
            return
        if not self._is_set:
            self._begin()
        self._depth += 1
        if self._state.pending is not None and not self._state.depth:
            # It came since then.
            self.__exit__(None, None, None)

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
            _set_handler(_INTERRUPT, self._before)
        pending = state.pending
        if isinstance(pending, KeyboardInterrupt):
            # It came just before the guest returned.
            state.pending = None
            raise pending

    def _begin(self) -> None:
        current = _handler_of(_INTERRUPT)
        if current is not self._handler:
            if current is not signal.default_int_handler and not _is_ours(current):
                return
            self._before = current
            _set_handler(_INTERRUPT, self._handler)
        self._is_set = self._state.attended = True
        self._watchdog.attend()

    def _take(self, _number: int, frame: FrameType | None) -> None:
        state = self._state
        # Heard here, and not by the watchdog any more, which would stop the next call.
        LISTENER.take()
        if state.depth and state.thread == get_ident():
            state.pending = KeyboardInterrupt()
            state.interrupted = True
        elif _is_between(frame):
            # What they do they do to the end, and then raise it.
            state.pending = KeyboardInterrupt()
        else:
            raise KeyboardInterrupt


def _is_between(frame: FrameType | None) -> bool:
    """Whether a guard begins or ends."""
    for _ in range(_FRAMES):
        if frame is None:
            break
        if frame.f_code in _BETWEEN:
            return True
        frame = frame.f_back
    return False


def _is_ours(handler: Any) -> bool:
    return isinstance(getattr(handler, "__self__", None), Attention)


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
        if self._state.pending is not None and not self._state.depth:
            self.__exit__(None, None, None)

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


_BETWEEN = frozenset(
    method.__code__ for method in (Attention.__enter__, Attention.__exit__, Guard.__enter__, Guard.__exit__)
)
_FRAMES = 8
"""How deep they call others."""
