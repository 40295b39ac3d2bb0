"""The thread that sees submissions end, and signals what waits for them."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Sequence
from typing import Any

from ...errors import ClosedError, DeadlineExceededError
from ...hal.queue import Pending
from .gpu import Gpu
from .memory import GpuStorage
from .providers import Promise
from .timeline import Timeline

__all__ = ["Lane"]

_CLOSE_SECONDS = 10.0


@dataclasses.dataclass(slots=True)
class _Submission:
    promise: Promise
    mark: Any
    written: list[GpuStorage]
    kernels: tuple[str, ...]
    expires_ns: int | None
    pending: Pending
    timeline: Timeline | None


class Lane:
    """Waits for submissions in order. Does not refer to the device, so that the device can be forgotten.

    Args:
        gpu: whose submissions.
        name: of the device, for messages.
    """

    def __init__(self, gpu: Gpu, name: str) -> None:
        self._gpu = gpu
        self._name = name
        self._submissions: collections.deque[_Submission] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._abandoned = False
        self._current: Pending | None = None
        self._thread: threading.Thread | None = None

    def put(
        self,
        promise: Promise,
        mark: Any,
        written: Sequence[GpuStorage],
        *,
        kernels: Sequence[str] = (),
        expires_ns: int | None = None,
        timeline: Timeline | None = None,
    ) -> Pending:
        """What ends when a submission has ended and views of what it wrote are up to date."""
        pending = Pending()
        submission = _Submission(promise, mark, list(written), tuple(kernels), expires_ns, pending, timeline)
        with self._changed:
            if self._closed:
                raise ClosedError(f"device {self._name} is closed")
            self._submissions.append(submission)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="sylvite-webgpu", daemon=True)
                self._thread.start()
            self._changed.notify()
        return pending

    def _take(self) -> _Submission | None:
        with self._changed:
            self._current = None
            while not (self._submissions or self._closed):
                self._changed.wait()
            if not self._submissions:
                return None
            submission = self._submissions.popleft()
            self._current = submission.pending
            return submission

    def _work(self) -> None:
        submission = self._take()
        while submission is not None:
            failure: BaseException | None = None
            try:
                self._finish(submission)
            except BaseException as error:  # noqa: BLE001 - goes to the fence
                failure = error
            pending = submission.pending
            # What it wrote must not live longer than the caller thinks.
            del submission
            pending.finish(failure)
            del failure, pending
            submission = self._take()

    def _finish(self, submission: _Submission) -> None:
        expires_ns = submission.expires_ns
        named = ", ".join(submission.kernels)

        def is_late() -> bool:
            return self._abandoned or (expires_ns is not None and time.monotonic_ns() > expires_ns)

        if not self._gpu.wait(submission.promise, f"kernels {named}" if named else "a submission", is_late):
            if self._abandoned:
                raise ClosedError(
                    f"device {self._name} was closed while the GPU did not finish kernels {named}"
                )
            raise DeadlineExceededError("the GPU did not finish in time", kernel=named or None)
        end_ns = time.perf_counter_ns()
        with self._gpu.lock:
            self._gpu.reuse_mark(submission.mark)
            if submission.timeline is not None:
                submission.timeline.finish(end_ns)
            for storage in submission.written:
                storage.refresh_views()
            submission.written.clear()

    def close(self) -> None:
        """Wait for what was submitted, but not for ever; end the thread. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(_CLOSE_SECONDS)
        if thread.is_alive():
            self._abandoned = True
            thread.join()
