"""Threads that run submissions whose waits are reached: the lane, and side workers while it is busy."""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ...errors import ClosedError
from ...hal.queue import Pending

if TYPE_CHECKING:
    from .aside import SideWorker
    from .command_buffer import LocalCommandBuffer

__all__ = ["Lane"]

_SHORT_NS: Final = 100_000
"""What took less the last time waits for its turn: waking a thread is no faster."""


class _Task:
    """One submission that can run."""

    __slots__ = ("command_buffer", "may_go_aside", "pending", "run")

    def __init__(
        self,
        run: Callable[[SideWorker | None], None],
        command_buffer: LocalCommandBuffer,
        *,
        may_go_aside: bool,
    ) -> None:
        self.run = run
        self.command_buffer = command_buffer
        self.may_go_aside = may_go_aside
        self.pending = Pending()


class Lane:
    """A thread that runs submissions in order. While it is busy, side workers run those that need one worker
    and whose command buffer is not running already. All ends with `close`.

    Args:
        name: of the device, for messages.
        sides: the side workers; each gets a thread when it is first needed.
        pin: processors to fix the lane and the side workers to.
    """

    def __init__(self, name: str, sides: Sequence[SideWorker], pin: Sequence[int] | None) -> None:
        self._name = name
        self._pin = pin
        self._tasks: collections.deque[_Task] = collections.deque()
        self._lock = threading.Lock()
        self._lane_called = threading.Condition(self._lock)
        self._sides_called = threading.Condition(self._lock)
        self._closed = False
        self._is_busy = False
        self._idle_sides = 0
        self._unused_sides = collections.deque(sides)
        # By identity: what runs now.
        self._running: set[int] = set()
        self._threads: list[threading.Thread] = []

    def put(
        self,
        run: Callable[[SideWorker | None], None],
        command_buffer: LocalCommandBuffer,
        *,
        may_go_aside: bool,
    ) -> Pending:
        """Have ``run`` called, with the side worker if one is to do it.

        Args:
            run: the work.
            command_buffer: what it runs, which must not run twice at a time.
            may_go_aside: whether a side worker can do it.

        Raises:
            ClosedError: the lane is closed.
        """
        task = _Task(run, command_buffer, may_go_aside=may_go_aside)
        with self._lock:
            if self._closed:
                raise ClosedError(f"device {self._name} is closed")
            self._tasks.append(task)
            if not self._threads:
                self._start(None)
            elif not self._is_busy:
                self._lane_called.notify()
            elif self._can_go_aside(task):
                self._call_side()
        return task.pending

    def _can_go_aside(self, task: _Task) -> bool:
        duration_ns = task.command_buffer.duration_ns
        return task.may_go_aside and (duration_ns is None or duration_ns >= _SHORT_NS)

    def _call_side(self) -> None:
        """Have a side worker look for work; the lock is held."""
        if self._idle_sides:
            self._sides_called.notify()
        elif self._unused_sides and self._unused_sides[0].is_prepared:
            self._start(self._unused_sides.popleft())

    def _start(self, side: SideWorker | None) -> None:
        """Start the thread of the lane or of a side worker; the lock is held."""
        number = len(self._threads)
        processor = None if self._pin is None else self._pin[number % len(self._pin)]
        name = f"sylvite-side-{number}" if number else "sylvite-worker-0"
        thread = threading.Thread(target=self._work, args=(side, processor), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _find(self, side: SideWorker | None) -> _Task | None:
        """Take the first task that can run now, and that a side worker can do if one asks."""
        for index, task in enumerate(self._tasks):
            if id(task.command_buffer) in self._running:
                continue
            if side is None or self._can_go_aside(task):
                del self._tasks[index]
                return task
        return None

    def _take(self, side: SideWorker | None) -> _Task | None:
        """Wait for a task; ``None`` when closed."""
        with self._lock:
            while not self._closed:
                task = self._find(side)
                if task is not None:
                    self._running.add(id(task.command_buffer))
                    self._is_busy |= side is None
                    if any(self._can_go_aside(left) for left in self._tasks):
                        self._call_side()
                    return task
                self._wait(side)
        return None

    def _wait(self, side: SideWorker | None) -> None:
        if side is None:
            self._is_busy = False
            self._lane_called.wait()
        else:
            self._idle_sides += 1
            self._sides_called.wait()
            self._idle_sides -= 1

    def _end(self, task: _Task, duration_ns: int) -> None:
        """Take note that a task has ended; another one may have waited for that."""
        task.command_buffer.duration_ns = duration_ns
        with self._lock:
            self._running.discard(id(task.command_buffer))
            if self._tasks and not self._is_busy:
                self._lane_called.notify()

    def _work(self, side: SideWorker | None, processor: int | None) -> None:
        if processor is not None:
            os.sched_setaffinity(0, {processor})
        task = self._take(side)
        while task is not None:
            failure: BaseException | None = None
            begin_ns = time.perf_counter_ns()
            try:
                task.run(side)
            except BaseException as error:  # noqa: BLE001 - goes to the fence
                failure = error
            self._end(task, time.perf_counter_ns() - begin_ns)
            pending = task.pending
            # What is waited for may hold buffers; it must not live until the next task comes.
            del task
            pending.finish(failure)
            del failure, pending
            task = self._take(side)

    def close(self) -> None:
        """Finish the tasks in progress, fail the others, end the threads. Idempotent."""
        with self._lock:
            self._closed = True
            left = list(self._tasks)
            self._tasks.clear()
            self._lane_called.notify_all()
            self._sides_called.notify_all()
            threads = list(self._threads)
        for task in left:
            task.pending.finish(ClosedError(f"device {self._name} was closed before the submission ran"))
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
