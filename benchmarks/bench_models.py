"""``python -m benchmarks.bench_models``: whole models and single operators, Sylvite against its neighbours.

All sides of a row are checked against the row's oracle, then timed round by round in one run.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    TfjsContender,
)
from .harness import Timing, machine, time_interleaved
from .models import MODELS, OPERATORS, ModelUnavailableError, RealModel

Make = Callable[[RealModel], Contender]

ONE_THREAD: dict[str, Make] = {
    "sylvite": SylviteContender,
    "onnxruntime-web": OrtWebContender,
    "onnxruntime": OnnxRuntimeContender,
    "iree native host": lambda model: IreeContender(model, cpu="host", label="host"),
    "iree native SSE4.2": lambda model: IreeContender(model, cpu="nehalem", label="SSE4.2"),
}
TWO_THREADS: dict[str, Make] = {
    "sylvite (2 threads)": lambda model: SylviteContender(model, threads=2),
    "onnxruntime-web (2 threads)": lambda model: OrtWebContender(model, threads=2),
    "onnxruntime (2 threads)": lambda model: OnnxRuntimeContender(model, threads=2),
}
MODEL_SIDES = {**ONE_THREAD, **TWO_THREADS}
OPERATOR_SIDES = {
    **ONE_THREAD,
    "tfjs-wasm": TfjsContender,
    **TWO_THREADS,
    "tfjs-wasm (2 threads)": lambda model: TfjsContender(model, threads=2),
}
# What the numbers of the issue are about comes first, so that a run that is cut short has them.
ROWS = {
    name: (MODELS | OPERATORS)[name]
    for name in (
        "minilm-f32",
        "mobilenet-v2",
        "resnet-18",
        "rapidocr-det",
        *OPERATORS,
        "minilm-int8",
        "magika",
        "rapidocr-cls",
        "mtcnn-pnet",
        "mnist",
    )
}
QUICK_ROWS = "minilm-f32,mobilenet-v2,resnet-18,rapidocr-det,matmul-512*,conv*"
QUICK_SIDES = "sylvite*,onnxruntime*,tfjs*"


def bench(model: RealModel, wanted: list[str], seconds: float, notes: Console) -> list[Timing]:
    """All wanted sides of one row, and the oracle. A side that cannot run is named and left out."""
    oracle = "onnxruntime" if model.oracle == "onnxruntime" else "iree native host"
    sides = OPERATOR_SIDES if model.name in OPERATORS else MODEL_SIDES
    contenders: dict[str, Contender] = {}
    try:
        for name, make in sides.items():
            if name != oracle and not any(fnmatch.fnmatch(name, pattern) for pattern in wanted):
                continue
            try:
                contenders[name] = make(model)
            except (ContenderUnavailableError, ImportError) as error:
                notes.print(f"[yellow]{model.name}: {name} left out: {error}[/]")
        contenders[oracle].run()
        reference = [np.array(output) for output in contenders[oracle].outputs()]
        # Where rounding differs by design, only the order of magnitude is held to the oracle.
        rtol, atol = (model.rtol, model.atol) if model.oracle == "onnxruntime" else (np.inf, 0.5)
        atol *= max(1.0, *(float(np.abs(output).max(initial=0)) for output in reference))
        return time_interleaved(list(contenders.values()), reference, rtol=rtol, atol=atol, seconds=seconds)
    finally:
        for contender in contenders.values():
            contender.close()


def flops(name: str) -> int | None:
    """Floating point operations of an operator."""
    kind, _, shape = name.rpartition("-")
    extents = [int(extent) for extent in shape.split("x")] if name in OPERATORS else []
    if kind == "matmul":
        return 2 * extents[0] * extents[1] * extents[2]
    if kind.startswith("conv"):
        return 2 * int(np.prod(extents)) * 9
    return None


def side_table(results: dict[str, list[Timing]]) -> Table:
    """One line per row and side; the ratio is the side's median over Sylvite's of as many threads."""
    table = Table(
        "row", "side", "median ms", "quartiles", "ratio to sylvite", "GFLOP/s", "load ms", "difference"
    )
    for name, timings in results.items():
        medians = {timing.contender: timing.median_ms for timing in timings}
        operations = flops(name)
        for index, timing in enumerate(timings):
            own = medians.get("sylvite" + "".join(timing.contender.partition(" (")[1:]))
            table.add_row(
                name if index == 0 else "",
                timing.contender,
                f"{timing.median_ms:.3f}",
                f"{timing.low_ms:.3f} .. {timing.high_ms:.3f}",
                "-" if own is None else f"{timing.median_ms / own:.2f}",
                "" if operations is None else f"{operations / timing.median_ms / 1e6:.1f}",
                f"{timing.load_ms:.0f}",
                f"{timing.largest_difference:.1e}",
                end_section=index == len(timings) - 1,
            )
    return table


def thread_table(results: dict[str, list[Timing]]) -> Table:
    """What a second thread brings, side by side."""
    columns = ["row"]
    lines = []
    for name, timings in results.items():
        medians = {timing.contender: timing.median_ms for timing in timings}
        pairs = {side: medians.get(f"{side} (2 threads)") for side in medians if "(" not in side}
        speedups = {side: medians[side] / two for side, two in pairs.items() if two is not None}
        columns += [side for side in speedups if side not in columns]
        lines.append((name, speedups))
    table = Table(*[columns[0], *(f"{column}: 1 over 2" for column in columns[1:])])
    for name, speedups in lines:
        table.add_row(name, *(f"{speedups[c]:.2f}" if c in speedups else "-" for c in columns[1:]))
    return table


def markdown(results: dict[str, list[Timing]]) -> str:
    """The tables of docs/performance.md: milliseconds, and in brackets the ratio to Sylvite."""
    texts = []
    for sides in (ONE_THREAD | {"tfjs-wasm": TfjsContender}, TWO_THREADS | {"tfjs-wasm (2 threads)": None}):
        names = list(sides)
        texts += ["| row | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for row, timings in results.items():
            medians = {timing.contender: timing.median_ms for timing in timings}
            own = medians.get(names[0])
            cells = [
                "-" if side not in medians else f"{medians[side]:.2f}" + _ratio(medians[side], own, index)
                for index, side in enumerate(names)
            ]
            texts.append(f"| {row} | " + " | ".join(cells) + " |")
        texts.append("")
    return "\n".join(texts)


def _ratio(median: float, own: float | None, index: int) -> str:
    return f" ({median / own:.2f})" if own and index else ""


def run(options: argparse.Namespace, notes: Console) -> dict[str, Any]:
    """Time the rows and print the tables."""
    names = [name for name in ROWS if any(fnmatch.fnmatch(name, p) for p in options.rows.split(","))]
    results: dict[str, list[Timing]] = {}
    for name in names:
        notes.print(f"{name} ...")
        try:
            results[name] = bench(ROWS[name], options.sides.split(","), options.seconds, notes)
        except ModelUnavailableError as error:
            notes.print(f"[yellow]{name} left out: {error}[/]")
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(side_table(results))
    console.print(thread_table(results))
    if options.markdown:
        print(markdown(results))
    return {name: [dataclasses.asdict(t) for t in timings] for name, timings in results.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_models", description=__doc__)
    parser.add_argument("--rows", default=None, help=f"patterns, with commas; of {', '.join(ROWS)}")
    parser.add_argument("--sides", default=None, help=f"patterns, with commas; of {list(OPERATOR_SIDES)}")
    parser.add_argument("--seconds", type=float, default=None, help="time per row, once all sides are loaded")
    parser.add_argument("--quick", action="store_true", help="fewer rows and sides, two seconds each")
    parser.add_argument("--json", type=Path, default=None, help="write the numbers there")
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/performance.md")
    options = parser.parse_args()
    rows, sides, seconds = (QUICK_ROWS, QUICK_SIDES, 2.0) if options.quick else ("*", "*", 8.0)
    options.rows = rows if options.rows is None else options.rows
    options.sides = sides if options.sides is None else options.sides
    options.seconds = seconds if options.seconds is None else options.seconds
    results = run(options, Console(stderr=True))
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "rows": results}, indent=1))


if __name__ == "__main__":
    main()
