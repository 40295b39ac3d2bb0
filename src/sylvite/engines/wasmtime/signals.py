"""Learning from another thread that Control-C was pressed while the main thread runs the guest.

Python runs signal handlers between bytecodes of the main thread, and there are none while the guest runs. But
its C handler writes the signal's number into a descriptor at once (`signal.set_wakeup_fd`). There is one such
descriptor in a process, so there is one listener. It stays installed: to put it in place costs system calls,
and Python code between calls of the guest does not mind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket

__all__ = ["LISTENER", "SignalListener"]


class SignalListener:
    """Hears of signals that have a handler in Python."""

    __slots__ = ("_receiver", "_sender")

    def __init__(self) -> None:
        self._receiver: socket.socket | None = None
        self._sender: socket.socket | None = None

    def listen(self) -> None:
        """Hear of signals from now on, in the main thread only. Where somebody else listens (an event loop
        with handlers of its own), it stays that way."""
        if self._sender is None:
            self._receiver, self._sender = socket.socketpair()
            self._receiver.setblocking(False)
            self._sender.setblocking(False)
        ours = self._sender.fileno()
        before = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
        if before not in (-1, ours):
            signal.set_wakeup_fd(before)
        self.take()

    def take(self) -> bytes:
        """Numbers of the signals since the last time; any thread."""
        receiver = self._receiver
        heard = b""
        if receiver is not None:
            with contextlib.suppress(BlockingIOError):
                heard = receiver.recv(4096)
        return heard

    def control_c(self) -> bool:
        """Whether Control-C was pressed since the last time."""
        return signal.SIGINT in self.take()

    def forget(self) -> None:
        """Let go of the descriptors that a forked process shares with its parent."""
        if self._sender is None or self._receiver is None:
            return
        ours = self._sender.fileno()
        before = signal.set_wakeup_fd(-1)
        if before != ours:
            signal.set_wakeup_fd(before)
        self._sender.close()
        self._receiver.close()
        self._sender = self._receiver = None


LISTENER = SignalListener()
"""The process's."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LISTENER.forget)
