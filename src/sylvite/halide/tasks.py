"""``halide_do_parallel_tasks``: producers and consumers of ``async`` schedules, in one thread.

A task runs as far as its semaphores allow, then the next one does. A call made inside a task also lets
the tasks around it run, so everything that needs no second thread comes to its end; what does need one is
recognised and reported.

Source: ``HalideRuntime.h``: ``halide_parallel_task_t`` and the rules about semaphores around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import layouts
from .guest_memory import GuestMemory

__all__ = ["DEADLOCK", "TaskRunner"]

DEADLOCK: Final = -2_000_000_000
"""Result when no task can go on."""

CallTask = Callable[[int, int, int, int, int, int], int]
"""``(context, function, min, extent, closure, parent) -> code``"""


class _Job:
    """One task with what is left of it."""

    __slots__ = ("acquired", "closure", "extent", "function", "min", "running", "semaphores", "serial")

    def __init__(self, memory: GuestMemory, address: int) -> None:
        raw = memory.read(address, layouts.PARALLEL_TASK.byte_length)
        task = layouts.PARALLEL_TASK.unpack_from(raw)
        self.function = int(task["fn"])
        self.closure = int(task["closure"])
        self.min = int(task["min"])
        self.extent = max(int(task["extent"]), 0)
        self.serial = bool(task["serial"])
        self.running = False
        words = memory.pointers(task["semaphores"], 2 * max(int(task["num_semaphores"]), 0))
        self.semaphores = list(zip(words[::2], words[1::2], strict=True))
        self.acquired = 0


class TaskRunner:
    """Runs the tasks of one store.

    Args:
        memory: the guest's.
        call: calls a task's function in the guest.
    """

    def __init__(self, memory: GuestMemory, call: CallTask) -> None:
        self._memory = memory
        self._call = call
        self._open: list[list[_Job]] = []

    def reset(self) -> None:
        """Forget tasks that a failed call left."""
        self._open.clear()

    def run(self, context: int, count: int, tasks: int, parent: int) -> int:
        """Run ``count`` tasks to their end; return the first code that is not 0, or `DEADLOCK`."""
        size = layouts.PARALLEL_TASK.byte_length
        jobs = [_Job(self._memory, tasks + index * size) for index in range(max(count, 0))]
        self._open.append(jobs)
        try:
            return self._run(context, jobs, parent)
        finally:
            if self._open and self._open[-1] is jobs:
                self._open.pop()

    def _run(self, context: int, jobs: list[_Job], parent: int) -> int:
        while any(job.extent for job in jobs):
            advanced = False
            for job in self._candidates(jobs):
                code = self._step(context, job, parent)
                if code is None:
                    continue
                if code:
                    return code
                advanced = True
                break
            if not advanced:
                return DEADLOCK
        return 0

    def _candidates(self, jobs: list[_Job]) -> list[_Job]:
        """Jobs to try, the own ones first, then those of the calls around, the nearest first.

        Of each call the last comes first: consumers stand behind their producers, and a consumer that waits
        can go on from above, iteration by iteration, while a producer in the middle of its loop cannot.
        """
        around = [job for level in reversed(self._open[:-1]) for job in reversed(level)]
        return [job for job in jobs[::-1] + around if job.extent and not job.running]

    def _step(self, context: int, job: _Job, parent: int) -> int | None:
        """Run as much of a job as its semaphores allow; ``None`` when that is nothing."""
        steps = 0
        if not job.semaphores:
            steps = job.extent
        else:
            while steps < job.extent and self._acquire(job):
                steps += 1
        if not steps:
            return None
        begin = job.min
        job.min += steps
        job.extent -= steps
        job.running = True
        try:
            return self._call(context, job.function, begin, steps, job.closure, parent)
        finally:
            job.running = False

    def _acquire(self, job: _Job) -> bool:
        """Take what is left of the semaphores of one iteration."""
        while job.acquired < len(job.semaphores):
            semaphore, count = job.semaphores[job.acquired]
            held = int(self._memory.unpack("i", semaphore)[0])
            if held < count:
                return False
            self._memory.write(semaphore, (held - count).to_bytes(4, "little", signed=True))
            job.acquired += 1
        job.acquired = 0
        return True
