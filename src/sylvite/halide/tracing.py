"""``halide_trace``: what a pipeline does, as spans of the tracer.

Source: ``HalideRuntime.h``: ``halide_trace_event_code_t`` and the parents of events.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError
from ..trace import Span, Tracer
from .guest_memory import GuestMemory
from .layouts import TraceEvent
from .types import HalideType, TypeCode

__all__ = ["EventTracer"]

_NAMES = {
    TraceEvent.BEGIN_REALIZATION: "realize",
    TraceEvent.PRODUCE: "produce",
    TraceEvent.CONSUME: "consume",
    TraceEvent.BEGIN_PIPELINE: "pipeline",
}
_ENDS = frozenset(
    {TraceEvent.END_REALIZATION, TraceEvent.END_PRODUCE, TraceEvent.END_CONSUME, TraceEvent.END_PIPELINE}
)
_CATEGORY = "halide"


class EventTracer:
    """Turns begin and end events into spans, and loads, stores and tags into spans without length."""

    def __init__(self, memory: GuestMemory, tracer: Tracer) -> None:
        self._memory = memory
        self._tracer = tracer
        # Workers share them.
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[str, int]] = {}

    def reset(self) -> None:
        """Forget events that a failed call left open."""
        self._open.clear()

    def event(
        self,
        func: int,
        value: int,
        coordinates: int,
        value_type: HalideType,
        lanes: int,
        code: int,
        parent: int,
        dimensions: int,
        tag: int,
    ) -> int:
        """One event; returns its id."""
        identity = next(self._numbers)
        if not self._tracer.enabled:
            return identity
        try:
            kind = TraceEvent(code)
        except ValueError as error:
            raise InvalidArgumentError(f"trace event of unknown kind {code}") from error
        name = self._memory.text(func)
        now = time.perf_counter_ns()
        if kind in _NAMES:
            self._open[identity] = (f"{_NAMES[kind]} {name}", now)
        elif kind in _ENDS:
            title, begin = self._open.pop(parent, (name, now))
            self._emit(title, begin, now)
        else:
            self._emit(
                f"{kind.name.lower()} {name}",
                now,
                now,
                **self._details(value, coordinates, value_type, lanes, dimensions, tag),
            )
        return identity

    def _details(
        self, value: int, coordinates: int, value_type: HalideType, lanes: int, dimensions: int, tag: int
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if coordinates and 0 < dimensions < 1 << 16:
            found["coordinates"] = self._memory.unpack(f"{dimensions}i", coordinates)
        if value and value_type.code is not TypeCode.HANDLE:
            raw = self._memory.read(value, value_type.byte_length * max(lanes, 1))
            found["value"] = np.frombuffer(raw, value_type.dtype).tolist()
        if tag:
            found["tag"] = self._memory.text(tag)
        return found

    def _emit(self, name: str, begin: int, end: int, **attributes: object) -> None:
        self._tracer.emit(
            Span(
                name=name,
                category=_CATEGORY,
                track=_CATEGORY,
                begin_ns=begin,
                end_ns=end,
                attributes=attributes,
            )
        )
