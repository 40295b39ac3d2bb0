"""Interleaved timing: every round runs every side once, so that noise of the machine hits all alike."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence

import numpy as np

from .contenders import Contender
from .models import ROOT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Milliseconds of one side: median and the quartile spread; ``load_ms`` is loading once."""

    contender: str
    median_ms: float
    low_ms: float
    high_ms: float
    rounds: int
    load_ms: float
    largest_difference: float


def time_interleaved(
    contenders: Sequence[Contender],
    reference: Sequence[np.ndarray],
    *,
    rtol: float,
    atol: float,
    seconds: float = 8.0,
    warmup: int = 2,
) -> list[Timing]:
    """Check every side against ``reference``, then time all of them round by round."""
    differences = {}
    for contender in contenders:
        for _ in range(warmup):
            contender.run()
        outputs = contender.outputs()
        for got, want in zip(outputs, reference, strict=True):
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=contender.name)
        differences[contender.name] = max(
            float(np.abs(got.astype(np.float64) - want).max(initial=0))
            for got, want in zip(outputs, reference, strict=True)
        )
    samples: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    deadline = time.perf_counter() + seconds
    rounds = 0
    while rounds < 5 or time.perf_counter() < deadline:
        # Nobody is always the one that runs after a certain other.
        first = rounds % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            samples[contender.name].append(contender.run())
        rounds += 1
        if rounds >= 2000:
            break
    timings = []
    for contender in contenders:
        low, median, high = statistics.quantiles(samples[contender.name], n=4)
        timings.append(
            Timing(
                contender=contender.name,
                median_ms=median,
                low_ms=low,
                high_ms=high,
                rounds=rounds,
                load_ms=contender.load_ms,
                largest_difference=differences[contender.name],
            )
        )
    return timings


def machine() -> dict[str, str]:
    """What the numbers were taken on."""
    model = platform.processor() or "unknown"
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()) if hasattr(os, "getloadavg") else "",
        "system": platform.system(),
        "python": platform.python_version(),
        "commit": commit or "unknown",
    }
