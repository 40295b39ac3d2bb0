"""The sampling profiler of pipelines built with the ``profile`` target feature.

The guest notes the stage it is in (one store in the sandbox); a thread of the host looks at the note once a
millisecond while the pipeline runs.

Source: ``HalideRuntime.h``: ``halide_profiler_instance_state``.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Final

from . import layouts
from .guest_memory import GuestMemory, as_unsigned

__all__ = ["PipelineProfile", "Profiler", "StageProfile"]

PERIOD_S: Final = 0.001
_CURRENT_FUNC = layouts.PROFILER_INSTANCE.offsets["current_func"]
_MOST_STAGES = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageProfile:
    """One stage: its share of the samples as time, and its memory in bytes."""

    name: str
    time_ns: int
    peak_bytes: int
    allocation_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProfile:
    """One run of a pipeline. ``stages`` go by name; ``samples`` is how often the profiler looked."""

    name: str
    time_ns: int
    samples: int
    peak_bytes: int
    stages: Mapping[str, StageProfile]


class _Run:
    """A run that goes on."""

    def __init__(self, memory: GuestMemory, name: str, stages: list[str], instance: int) -> None:
        self.name = name
        self.stages = stages
        self.begin_ns = time.perf_counter_ns()
        self.samples: collections.Counter[int] = collections.Counter()
        self.live: collections.Counter[int] = collections.Counter()
        self.peak: collections.Counter[int] = collections.Counter()
        self.allocations: collections.Counter[int] = collections.Counter()
        self.total_peak = 0
        self._memory = memory
        self._note = instance + _CURRENT_FUNC
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="halide-profiler", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self.samples[int(self._memory.unpack("i", self._note)[0])] += 1

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()

    def report(self) -> PipelineProfile:
        elapsed = time.perf_counter_ns() - self.begin_ns
        total = sum(self.samples.values())
        stages = {
            name: StageProfile(
                name=name,
                time_ns=elapsed * self.samples[index] // total if total else 0,
                peak_bytes=self.peak[index],
                allocation_count=self.allocations[index],
            )
            for index, name in enumerate(self.stages)
        }
        return PipelineProfile(
            name=self.name, time_ns=elapsed, samples=total, peak_bytes=self.total_peak, stages=stages
        )


class Profiler:
    """Profiles the runs of one store. ``reports`` holds the latest runs, newest last."""

    def __init__(self, memory: GuestMemory) -> None:
        self._memory = memory
        self._runs: dict[int, _Run] = {}
        # Several workers may take memory at once.
        self._lock = threading.Lock()
        self.reports: collections.deque[PipelineProfile] = collections.deque(maxlen=64)

    def begin(self, name: int, count: int, names: int, instance: int) -> int:
        """``halide_profiler_instance_start``."""
        instance = as_unsigned(instance)
        if not 0 <= count <= _MOST_STAGES:
            return -1
        # Names are kept as 64-bit values on every target.
        stages = [self._memory.text(int(pointer)) for pointer in self._memory.unpack(f"{count}Q", names)]
        self._memory.write(instance, bytes(layouts.PROFILER_INSTANCE.byte_length))
        self._runs[instance] = _Run(self._memory, self._memory.text(name), stages, instance)
        return 0

    def end(self, instance: int) -> int:
        """``halide_profiler_instance_end``."""
        run = self._runs.pop(as_unsigned(instance), None)
        if run is not None:
            run.finish()
            self.reports.append(run.report())
        return 0

    def allocated(self, instance: int, stage: int, byte_length: int) -> None:
        """A stage took memory (negative: gave it back)."""
        run = self._runs.get(as_unsigned(instance))
        if run is None:
            return
        with self._lock:
            run.live[stage] += byte_length
            run.peak[stage] = max(run.peak[stage], run.live[stage])
            run.total_peak = max(run.total_peak, sum(run.live.values()))
            run.allocations[stage] += byte_length > 0

    def reset(self) -> None:
        """Stop runs that a failed call left."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()
