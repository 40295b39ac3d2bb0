"""``python -m benchmarks.bench_webgpu``: models on WebGPU, on both providers, against onnxruntime-web's
WebGPU backend in Node (Dawn), on the same adapter.

All sides of a row are checked against onnxruntime, then timed round by round in one run. Without a GPU the
software driver of Debian's chromium package is used, where one inference takes seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tests import software_gpu

from .contenders import (
    Contender,
    ContenderUnavailableError,
    OnnxRuntimeContender,
    OrtWebContender,
    WebGpuContender,
)
from .harness import Timing, machine, time_interleaved
from .models import MODELS, ModelUnavailableError, RealModel

SIDES: dict[str, Callable[[RealModel], Contender]] = {
    "sylvite webgpu://wgpu": lambda model: WebGpuContender(model, provider="wgpu"),
    "sylvite webgpu://dawn": lambda model: WebGpuContender(model, provider="dawn"),
    "onnxruntime-web webgpu": lambda model: OrtWebContender(model, provider="webgpu"),
}
ROWS = ("minilm-f32", "resnet-18", "magika", "mnist")


def bench(model: RealModel, seconds: float, notes: Console) -> tuple[list[Timing], dict[str, float]]:
    """Timings of one row, and for Sylvite's sides the share of time in which no submission ran."""
    oracle = OnnxRuntimeContender(model)
    oracle.run()
    reference = [np.array(output) for output in oracle.outputs()]
    oracle.close()
    contenders: list[Contender] = []
    try:
        for name, make in SIDES.items():
            try:
                contenders.append(make(model))
            except (ContenderUnavailableError, ImportError) as error:
                notes.print(f"[yellow]{model.name}: {name} left out: {error}[/]")
        # What GPUs do to sums and special functions shows in the fourth digit.
        atol = 1e-3 * max(1.0, *(float(np.abs(output).max(initial=0)) for output in reference))
        timings = time_interleaved(contenders, reference, rtol=1e-3, atol=atol, seconds=seconds)
        medians = {timing.contender: timing.median_ms for timing in timings}
        outside = {
            side.name: 1 - min(statistics.median(side.waited_ms) / medians[side.name], 1.0)
            for side in contenders
            if isinstance(side, WebGpuContender)
        }
        return timings, outside
    finally:
        for contender in contenders:
            contender.close()


def table(results: dict[str, tuple[list[Timing], dict[str, float]]]) -> Table:
    """One line per row and side."""
    made = Table("row", "side", "median ms", "ratio to sylvite", "outside kernels", "load ms", "difference")
    for name, (timings, outside) in results.items():
        own = min((t.median_ms for t in timings if t.contender.startswith("sylvite")), default=None)
        for index, timing in enumerate(timings):
            share = outside.get(timing.contender)
            made.add_row(
                name if index == 0 else "",
                timing.contender,
                f"{timing.median_ms:.1f}",
                "-" if own is None else f"{timing.median_ms / own:.2f}",
                "-" if share is None else f"{share:.0%}",
                f"{timing.load_ms:.0f}",
                f"{timing.largest_difference:.1e}",
            )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_webgpu", description=__doc__)
    parser.add_argument("--rows", default="*", help=f"patterns, with commas; of {', '.join(ROWS)}")
    parser.add_argument("--seconds", type=float, default=20.0, help="time per row, once all sides are loaded")
    parser.add_argument("--json", type=Path, default=None, help="write the numbers there")
    options = parser.parse_args()
    missing = software_gpu.find("wgpu")
    if missing is not None:
        parser.error(missing)
    notes = Console(stderr=True)
    results: dict[str, tuple[list[Timing], dict[str, float]]] = {}
    for name in ROWS:
        if not any(fnmatch.fnmatch(name, pattern) for pattern in options.rows.split(",")):
            continue
        notes.print(f"{name} ...")
        try:
            results[name] = bench(MODELS[name], options.seconds, notes)
        except ModelUnavailableError as error:
            notes.print(f"[yellow]{name} left out: {error}[/]")
    Console(width=None if sys.stdout.isatty() else 150).print(table(results))
    if options.json is not None:
        rows: dict[str, Any] = {
            name: {"timings": [dataclasses.asdict(t) for t in timings], "outside_kernels": outside}
            for name, (timings, outside) in results.items()
        }
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
