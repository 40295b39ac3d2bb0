"""Spans of what workers do, from marks that the sequencer makes."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

from ...trace import Span

if TYPE_CHECKING:
    from ...linker import LinkSpace
    from .program import Program

__all__ = ["Timeline"]


class Timeline:
    """Makes spans of what the sequencer marks. Called by the guest, in the threads of the workers."""

    def __init__(self, space: LinkSpace) -> None:
        self._tracer = space.tracer
        self._begin_ns: dict[int, int] = {}
        # The engine holds this object by its mark function, in a way that garbage collection cannot see
        # through, and a program holds the engine's memory.
        self.program: weakref.ref[Program] | None = None
        self.is_shared = False
        # Of side workers, by number.
        self.programs: dict[int, weakref.ref[Program]] = {}

    def mark(self, worker: int, record: int, units: int) -> None:
        """``env.mark``; see `sylvite.drivers.local.sequencer.MARK_TYPES`."""
        now_ns = time.perf_counter_ns()
        if units < 0:
            self._begin_ns[worker] = now_ns
            return
        aside = self.programs.get(worker)
        found = self.program if aside is None else aside
        is_shared = self.is_shared and aside is None
        program = None if found is None else found()
        unit = None if program is None else program.unit_at(record & 0xFFFFFFFF)
        if unit is None or (is_shared and not units):
            return
        attributes: dict[str, object] = {}
        if unit.category == "dispatch":
            attributes["workgroups"] = unit.workgroups
            if unit.byte_length is not None:
                attributes["bytes"] = unit.byte_length
            if is_shared and unit.workgroups is not None:
                attributes["done_here"] = min(units, unit.workgroups) if unit.workgroups > 1 else 1
        span = Span(
            name=unit.name,
            category=unit.category,
            track=f"worker {worker}",
            begin_ns=self._begin_ns.get(worker, now_ns),
            end_ns=now_ns,
            attributes=attributes,
        )
        self._tracer.emit(span)
