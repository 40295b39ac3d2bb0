"""Spans and counters, near free when nobody listens.

A `Tracer` is passed in, never looked up: every device owns one. Counters always count (an integer
addition); spans are recorded only while a listener is attached. Times are ``time.perf_counter_ns``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping

__all__ = ["Counters", "Span", "SpanListener", "Tracer"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One finished interval of work. ``track`` is the row it belongs to (a worker, ``host``)."""

    name: str
    category: str
    track: str
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def duration_ns(self) -> int:
        """Length of the span in nanoseconds."""
        return self.end_ns - self.begin_ns


SpanListener = Callable[[Span], None]


@dataclasses.dataclass(slots=True)
class Counters:
    """Monotonic counts. Bytes copied are copies the *host* made of tensor contents between
    host and guest memory or between two guest buffers on behalf of a caller; device-side copies
    that the program itself asks for are ``device_bytes_copied``."""

    bytes_copied: int = 0
    device_bytes_copied: int = 0
    dispatches: int = 0
    workgroups: int = 0
    submissions: int = 0
    engine_calls: int = 0
    allocations: int = 0
    deallocations: int = 0
    host_callbacks: int = 0

    def snapshot(self) -> dict[str, int]:
        """The counts now, by name."""
        return dataclasses.asdict(self)


class Tracer:
    """Holds the counters of one device and hands finished spans to listeners."""

    __slots__ = ("_listeners", "_lock", "counters")

    def __init__(self) -> None:
        self.counters = Counters()
        self._listeners: tuple[SpanListener, ...] = ()
        self._lock = threading.Lock()

    @property
    def enabled(self) -> bool:
        """Whether anybody listens; hot paths test this before they measure."""
        return bool(self._listeners)

    def emit(self, span: Span) -> None:
        """Hand a finished span to every listener."""
        for listener in self._listeners:
            listener(span)

    @contextlib.contextmanager
    def span(
        self, name: str, *, category: str = "host", track: str = "host", **attributes: object
    ) -> Iterator[None]:
        """Record the enclosed block as one span when anybody listens."""
        if not self._listeners:
            yield
            return
        begin_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            end_ns = time.perf_counter_ns()
            self.emit(
                Span(
                    name=name,
                    category=category,
                    track=track,
                    begin_ns=begin_ns,
                    end_ns=end_ns,
                    attributes=attributes,
                )
            )

    @contextlib.contextmanager
    def listen(self, listener: SpanListener) -> Iterator[None]:
        """Attach a listener for the enclosed block."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
        try:
            yield
        finally:
            with self._lock:
                remaining = list(self._listeners)
                remaining.remove(listener)
                self._listeners = tuple(remaining)
