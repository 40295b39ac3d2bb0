"""``sylvite bench``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from ..errors import InvalidArgumentError
from ..halide.cli import bench_pipeline, holds_pipeline
from ..model import Argument, Function, ValueKind
from .console import format_bytes, print_json, print_table
from .options import chosen_function, compile_options, load_options, open_model
from .run import _parsed

__all__ = ["command"]

_SEED = 0
_PIPELINE_SHAPE = (1536, 2560)


@click.command("bench")
@click.argument("model_path", metavar="MODEL")
@click.option("--function", "function_name", help="Function to call.")
@click.option("--input", "inputs", multiple=True, metavar="VALUE", help="Inputs as in run (default: random).")
@click.option(
    "--warm-up", type=click.IntRange(min=0), default=2, show_default=True, help="Calls before measuring."
)
@click.option("--runs", type=click.IntRange(min=1), default=10, show_default=True, help="Calls to measure.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@load_options
@compile_options
def command(
    model_path: str,
    function_name: str | None,
    inputs: tuple[str, ...],
    warm_up: int,
    runs: int,
    as_json: bool,
    **settings: Any,
) -> None:
    """Time a function of MODEL: median and spread over several calls, after a warm-up."""
    if holds_pipeline(model_path):
        _bench_pipeline(model_path, inputs, runs, as_json)
        return
    given = _parsed(inputs)
    begin = time.perf_counter()
    with open_model(model_path, settings) as model:
        load_s = time.perf_counter() - begin
        function = chosen_function(model, function_name)
        arguments = given or _random_inputs(function, dict(settings["dim"]))
        begin = time.perf_counter()
        function.run(arguments)
        first_s = time.perf_counter() - begin
        for _ in range(warm_up):
            function.run(arguments)
        times = _measure(function, arguments, runs)
        memory = model.device.allocator.statistics
        report = {
            "model": model_path,
            "function": function.name,
            "device": model.device.name,
            "runs": runs,
            "load_s": load_s,
            "first_call_s": first_s,
            **_summary(times),
            "guest_peak_bytes": memory.peak_bytes,
            "counters": model.device.tracer.counters.snapshot(),
        }
    if as_json:
        print_json({**report, "times_s": times})
    else:
        _print(report)


def _bench_pipeline(path: str, inputs: Sequence[str], runs: int, as_json: bool) -> None:
    """Time a Halide pipeline; inputs are NAME=VALUE."""
    report = bench_pipeline(path, inputs, _PIPELINE_SHAPE, runs)
    if as_json:
        print_json(report)
        return
    times = [f"{report[key] * 1e3:.3f} ms" for key in ("median_s", "minimum_s", "maximum_s")]
    rows = [(report["pipeline"], str(report["shape"]), *times, str(runs))]
    print_table(path, ("pipeline", "shape", "median", "min", "max", "runs"), rows)


def _measure(function: Function, arguments: Sequence[Any], runs: int) -> list[float]:
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        function.run(arguments)
        times.append(time.perf_counter() - begin)
    return times


def _summary(times: Sequence[float]) -> dict[str, float]:
    """Median, extremes, and the interquartile range as the spread."""
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
    return {
        "median_s": statistics.median(times),
        "minimum_s": min(times),
        "maximum_s": max(times),
        "spread_s": quartiles[2] - quartiles[0],
    }


def _print(report: dict[str, Any]) -> None:
    def milliseconds(name: str) -> str:
        return f"{report[name] * 1e3:.2f} ms"

    columns = ("function", "median", "spread (IQR)", "min", "max", "runs", "first call", "load", "guest peak")
    row = (
        report["function"],
        milliseconds("median_s"),
        milliseconds("spread_s"),
        milliseconds("minimum_s"),
        milliseconds("maximum_s"),
        str(report["runs"]),
        milliseconds("first_call_s"),
        milliseconds("load_s"),
        format_bytes(report["guest_peak_bytes"]),
    )
    print_table(f"{report['model']} on {report['device']}", columns, [row])


def _random_inputs(function: Function, dims: dict[str, int]) -> list[Any]:
    generator = np.random.default_rng(_SEED)
    return [_random(argument, dims, generator) for argument in function.signature.inputs]


def _random(argument: Argument, dims: dict[str, int], generator: np.random.Generator) -> Any:
    if argument.kind in (ValueKind.INTEGER, ValueKind.FLOAT):
        return 1
    dtype = argument.dtype
    if dtype is None or argument.shape is None:
        raise InvalidArgumentError(f"input {argument} needs a value: --input")
    shape = []
    for extent in argument.shape:
        known = dims.get(extent) if isinstance(extent, str) else extent
        if known is None:
            raise InvalidArgumentError(f"input {argument} has open dims; fix them with --dim or give --input")
        shape.append(known)
    if dtype.kind in "iub":
        return generator.integers(0, 2, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)
