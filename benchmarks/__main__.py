"""``python -m benchmarks``: time Sylvite against its neighbours and print a table (and JSON).

usage: python -m benchmarks [--models a,b] [--seconds S] [--json FILE] [--markdown]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from .contenders import (
    Contender,
    ContenderUnavailableError,
    IreeContender,
    OnnxRuntimeContender,
    OrtWebContender,
    SylviteContender,
)
from .harness import Timing, machine, time_interleaved
from .models import MODELS, ModelUnavailableError, RealModel

SIDES: dict[str, Callable[[RealModel], Contender]] = {
    "sylvite": SylviteContender,
    "iree native host": lambda model: IreeContender(model, cpu="host", label="host"),
    "iree native SSE4.2": lambda model: IreeContender(model, cpu="nehalem", label="SSE4.2"),
    "onnxruntime": OnnxRuntimeContender,
    "onnxruntime-web": OrtWebContender,
}


def bench(model: RealModel, seconds: float, notes: Console) -> list[Timing]:
    """All sides of one model. A side that cannot run is named and left out."""
    contenders: list[Contender] = []
    for name, make in SIDES.items():
        try:
            contenders.append(make(model))
        except (ContenderUnavailableError, ImportError) as error:
            notes.print(f"[yellow]{model.name}: {name} left out: {error}[/]")
    try:
        reference = reference_outputs(model, contenders)
        rtol, atol = (model.rtol, model.atol) if model.oracle == "onnxruntime" else (np.inf, 0.5)
        return time_interleaved(contenders, reference, rtol=rtol, atol=atol, seconds=seconds)
    finally:
        for contender in contenders:
            contender.close()


def reference_outputs(model: RealModel, contenders: list[Contender]) -> list[np.ndarray]:
    """Outputs of the model's oracle among the sides."""
    wanted = "onnxruntime" if model.oracle == "onnxruntime" else "iree native host"
    oracle = next(contender for contender in contenders if contender.name == wanted)
    oracle.run()
    return oracle.outputs()


def ratio_table(results: dict[str, list[Timing]]) -> Table:
    """One row per model and side; the ratio is the side's median over Sylvite's."""
    table = Table(
        "model", "side", "median ms", "quartiles", "ratio to sylvite", "load ms", "max |difference|"
    )
    for name, timings in results.items():
        own = timings[0].median_ms
        for index, timing in enumerate(timings):
            table.add_row(
                name if index == 0 else "",
                timing.contender,
                f"{timing.median_ms:.3f}",
                f"{timing.low_ms:.3f} .. {timing.high_ms:.3f}",
                f"{timing.median_ms / own:.2f}",
                f"{timing.load_ms:.0f}",
                f"{timing.largest_difference:.1e}",
                end_section=index == len(timings) - 1,
            )
    return table


def markdown(results: dict[str, list[Timing]]) -> str:
    """The table of docs/performance.md."""
    sides = list(SIDES)
    lines = [
        "| model | " + " | ".join(f"{side} ms (ratio)" for side in sides) + " |",
        "|---" * (len(sides) + 1) + "|",
    ]
    for name, timings in results.items():
        cells = {
            t.contender: f"{t.median_ms:.2f} ({t.median_ms / timings[0].median_ms:.2f})" for t in timings
        }
        row = [
            next((v for k, v in cells.items() if k == side or k.startswith(f"{side} local")), "-")
            for side in sides
        ]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated names")
    parser.add_argument("--seconds", type=float, default=8.0, help="timing budget per model")
    parser.add_argument("--json", type=Path, default=None, help="write results here")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/performance.md")
    options = parser.parse_args()
    notes = Console(stderr=True)
    results = {}
    for name in options.models.split(","):
        notes.print(f"{name} ...")
        try:
            results[name] = bench(MODELS[name], options.seconds, notes)
        except ModelUnavailableError as error:
            notes.print(f"[yellow]{name} left out: {error}[/]")
    Console().print(ratio_table(results))
    if options.markdown:
        sys.stdout.write(markdown(results) + "\n")
    if options.json is not None:
        data = {
            "machine": machine(),
            "results": {name: [dataclasses.asdict(t) for t in timings] for name, timings in results.items()},
        }
        options.json.write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    main()
