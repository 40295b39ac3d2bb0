"""Deadlines: one thread per engine that sleeps until the next one is due.

Guest code looks at words of its store's stop memory (`sylvite.wasm.interruption`) and traps when they are
set, so they are set only for a call that must stop. The thread exists only while calls with deadlines run,
and a little longer, so that calls now and then do not each start one.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref

from ..base import PAGE_BYTES
from .signals import LISTENER

__all__ = ["ATTENTION_NS", "CallState", "Watchdog"]

ATTENTION_NS = 100_000_000
"""How often guarded calls of the main thread look for signals."""

LINGER_NS = 2_000_000_000
"""How long the thread stays when nothing is due."""


class CallState:
    """What one store's running call is allowed. Touched by its thread, read by the watchdog."""

    __slots__ = (
        "__weakref__",
        "_is_shown",
        "_lock",
        "_words",
        "alarm",
        "attended",
        "caps",
        "closed",
        "deadline_ns",
        "depth",
        "expires_ns",
        "interrupted",
        "pending",
        "thread",
    )

    def __init__(self, deadline_ns: int | None) -> None:
        self.closed = False
        # Longest time one call may run; the monotonic time at which the running one expires.
        self.deadline_ns = deadline_ns
        self.expires_ns: int | None = None
        self.interrupted = False
        # Calls in progress: a host function may call back into the guest.
        self.depth = 0
        self.thread = 0
        # An exception that a host function raised, on its way through the guest's frames.
        self.pending: BaseException | None = None
        # By thread: the monotonic time at which all of its calls expire, and how long that was.
        self.caps: dict[int, tuple[int, int]] = {}
        # Whether somebody looks for signals on behalf of the main thread's calls now and then.
        self.attended = False
        # Whether a call that begins must `settle` first.
        self.alarm = False
        self._lock = threading.RLock()
        # Host address of the stop memory, and whether its words are set.
        self._words: int | None = None
        self._is_shown = False

    def forget_threads(self) -> None:
        """Begin anew in a forked process: another thread may have held the lock."""
        self._lock = threading.RLock()

    def set_words(self, address: int | None) -> None:
        """Say where the stop memory is, all zero; None before it goes."""
        with self._lock:
            self._words = address
            self._is_shown = False

    @property
    def is_stopping(self) -> bool:
        """Whether the guest was told to stop; asked by the call's thread."""
        return self._is_shown

    def stop(self) -> None:
        """Stop the running call if it must; any thread.

        A call that ends meanwhile, and another that begins, are told apart without a lock in either: the
        alarm is raised before looking, so whoever begins too late to be seen here sees the alarm, and waits.
        """
        with self._lock:
            self.alarm = True
            if self.depth and self.must_stop:
                self._show(True)

    def settle(self) -> None:
        """At a call's beginning, by its thread: undo what stopped an earlier one."""
        with self._lock:
            self.alarm = must_stop = self.must_stop
            self._show(must_stop)

    def _show(self, is_shown: bool) -> None:
        if self._words is not None and is_shown is not self._is_shown:
            # Said before it is done: the guest may trap, and its thread ask, before memset has returned here.
            self._is_shown = is_shown
            ctypes.memset(self._words, 0xFF if is_shown else 0, PAGE_BYTES)

    @property
    def must_stop(self) -> bool:
        """Whether the running call was interrupted or is past its deadline."""
        expires_ns = self.expires_ns
        if self.interrupted or (expires_ns is not None and time.monotonic_ns() >= expires_ns):
            return True
        return self.caps_exceeded is not None

    @property
    def caps_exceeded(self) -> int | None:
        """How long the running call's thread had for its calls, if they took longer; in nanoseconds."""
        cap = self.caps.get(self.thread)
        return cap[1] if cap is not None and time.monotonic_ns() >= cap[0] else None


class Watchdog:
    """Stops running calls when their deadlines are due, and those of the main thread at Control-C."""

    def __init__(self) -> None:
        self._states: weakref.WeakSet[CallState] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._wake_ns: int | None = None
        self._attends = False
        self._thread: threading.Thread | None = None
        self._closed = False
        _watchdogs.add(self)

    def forget_thread(self) -> None:
        """Begin anew in a forked process, which has no thread but the one that forked."""
        self._changed = threading.Condition()
        self._wake_ns = None
        self._attends = False
        self._thread = None
        for state in list(self._states):
            state.forget_threads()

    def watch(self, state: CallState) -> None:
        """Make a store's state known. Once per store."""
        with self._changed:
            self._states.add(state)

    def arm(self, expires_ns: int) -> None:
        """Make sure the thread wakes by ``expires_ns``. ``CallState.expires_ns`` must be set before.

        Nearly always the thread already waits for an earlier call's deadline, and this is one comparison.
        """
        wake_ns = self._wake_ns
        if wake_ns is not None and wake_ns <= expires_ns:
            return
        with self._changed:
            if self._closed or (self._wake_ns is not None and self._wake_ns <= expires_ns):
                return
            self._wake_ns = expires_ns
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sylvite-watchdog", daemon=True)
                self._thread.start()
            else:
                self._changed.notify()

    def attend(self) -> None:
        """Look for signals before long, and again, as long as a state says that it is attended; it must say
        so before this call. In the main thread."""
        if not self._attends:
            self._attends = True
            LISTENER.listen()
            self.arm(time.monotonic_ns() + ATTENTION_NS)

    def interrupt_attended(self) -> None:
        """Stop calls of the main thread; the signal's handler runs there when they return."""
        main_thread = threading.main_thread().ident
        for state in list(self._states):
            if state.attended and state.depth and state.thread == main_thread:
                state.interrupted = True
                state.stop()

    def close(self) -> None:
        """End the thread. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def running(self) -> bool:
        """Whether the thread exists now."""
        return self._thread is not None

    def _run(self) -> None:
        with self._changed:
            while not self._closed and self._wake_ns is not None:
                remaining_ns = self._wake_ns - time.monotonic_ns()
                if remaining_ns > 0:
                    self._changed.wait(remaining_ns / 1e9)
                    continue
                # Cleared before looking: a call that starts meanwhile either is seen below or finds None
                # and waits for the lock in arm().
                self._wake_ns = None
                self._wake_ns = self._look()
                if self._wake_ns is None:
                    # Woken by arm().
                    self._changed.wait(LINGER_NS / 1e9)
            self._thread = None

    def _look(self) -> int | None:
        """Stop what is due; return when to look again."""
        now_ns = time.monotonic_ns()
        # Before looking, as with the time to wake.
        self._attends = False
        states = list(self._states)
        due = [state.expires_ns for state in states if state.expires_ns is not None]
        due += [expires_ns for state in states for expires_ns, _ in tuple(state.caps.values())]
        is_attended = self._attends = any(state.attended for state in states)
        if is_attended and LISTENER.control_c():
            for watchdog in list(_watchdogs):
                watchdog.interrupt_attended()
        if any(expires_ns <= now_ns for expires_ns in due) or any(state.interrupted for state in states):
            for state in states:
                state.stop()
        later = [expires_ns for expires_ns in due if expires_ns > now_ns]
        if is_attended or len(later) < len(due):
            # Calls that are due but sit in a host function, or begin only now, are stopped soon, too.
            later.append(now_ns + ATTENTION_NS)
        return min(later) if later else None


_watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _after_fork() -> None:
    for watchdog in list(_watchdogs):
        watchdog.forget_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
