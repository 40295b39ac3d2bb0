"""Spans of what the GPU does, from timestamps at both ends of each pass.

Timestamps count nanoseconds from a moment that only the GPU knows. A submission has ended when the host sees
its end, so the host's clock minus the GPU's is at most their difference then; the least of all such
differences is taken. Implementations may round timestamps (Dawn to 65.536 us), so spans may
seem to take no time.

Source: WebGPU specification, sections 20.4 (timestamp query) and 21 (timestamps and privacy).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ...trace import Span
from .gpu import Gpu
from .providers import BufferUsageBits

__all__ = ["TRACK", "Timeline"]

TRACK: Final = "gpu"
_FEATURE: Final = "timestamp-query"
_SET_PASSES: Final = 256
_RESOLVE_USAGE: Final = BufferUsageBits.QUERY_RESOLVE | BufferUsageBits.COPY_SRC


class _Pass(NamedTuple):
    name: str
    category: str
    attributes: Mapping[str, object]


class Timeline:
    """What one execution of a command buffer did on the GPU. Used under the GPU's lock.

    Args:
        gpu: the device. Without the feature ``timestamp-query`` there is one span for everything.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._has_timestamps = _FEATURE in gpu.features
        self._begin_ns = time.perf_counter_ns()
        self._open: list[_Pass] = []
        self._sets: list[Any] = []
        self._resolved: list[tuple[Any, list[_Pass]]] = []

    def begin_pass(self, name: str, category: str, attributes: Mapping[str, object]) -> dict[str, Any] | None:
        """What the next pass is given to be timed; None when passes cannot be."""
        number = len(self._open)
        self._open.append(_Pass(name, category, attributes))
        if not self._has_timestamps:
            return None
        if number % _SET_PASSES == 0:
            made = self._gpu.device.create_query_set(type="timestamp", count=2 * _SET_PASSES)
            self._sets.append(made)
        query = 2 * (number % _SET_PASSES)
        return {
            "query_set": self._sets[-1],
            "beginning_of_pass_write_index": query,
            "end_of_pass_write_index": query + 1,
        }

    def resolve(self, encoder: Any) -> None:
        """Have a submission leave its timestamps where they can be read; all passes have ended."""
        if not self._has_timestamps:
            return
        for index, queries in enumerate(self._sets):
            passes = self._open[index * _SET_PASSES : (index + 1) * _SET_PASSES]
            buffer = self._gpu.device.create_buffer(size=16 * _SET_PASSES, usage=_RESOLVE_USAGE)
            encoder.resolve_query_set(queries, 0, 2 * len(passes), buffer, 0)
            self._resolved.append((buffer, passes))
        self._sets, self._open = [], []

    def finish(self, end_ns: int) -> None:
        """Emit the spans; the submission was seen to end at ``end_ns``.

        Raises:
            DeviceLostError, OutOfMemoryError
        """
        if not self._has_timestamps:
            self._emit_whole(end_ns)
            return
        timed = [
            (done, begin, end)
            for buffer, passes in self._resolved
            for done, begin, end in self._read(buffer, passes)
        ]
        self._resolved = []
        if not timed:
            return
        offset_ns = self._gpu.clock_offset(end_ns - max(end for _, _, end in timed))
        for done, begin, end in timed:
            self._emit(done, begin + offset_ns, max(begin, end) + offset_ns)

    def _read(self, buffer: Any, passes: list[_Pass]) -> list[tuple[_Pass, int, int]]:
        raw = np.zeros(16 * len(passes), np.uint8)
        self._gpu.download(buffer, 0, raw)
        ticks = [(int(begin), int(end)) for begin, end in raw.view("<u8").reshape(-1, 2)]
        return [(done, begin, end) for done, (begin, end) in zip(passes, ticks, strict=True)]

    def _emit(self, done: _Pass, begin_ns: int, end_ns: int) -> None:
        self._gpu.tracer.emit(
            Span(
                name=done.name,
                category=done.category,
                track=TRACK,
                begin_ns=begin_ns,
                end_ns=end_ns,
                attributes=done.attributes,
            )
        )

    def _emit_whole(self, end_ns: int) -> None:
        """One span for the submission, for adapters that cannot tell more."""
        kernels = [done.name for done in self._open if done.category == "dispatch"]
        if not self._open:
            return
        name = f"submission of {len(kernels)} dispatches (no timestamps)"
        attributes = {"kernels": ", ".join(dict.fromkeys(kernels))}
        self._emit(_Pass(name, "submission", attributes), self._begin_ns, end_ns)
