"""``sylvite profile``."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import click

from ..model import Function, Model
from ..trace import Span
from .bench import _random_inputs
from .console import format_bytes, print_json, print_table
from .options import chosen_function, compile_options, load_options, open_model
from .profile_report import (
    KernelSummary,
    MemorySample,
    chrome_trace,
    html_picture,
    summarize,
    to_json,
)
from .run import _parsed

__all__ = ["command"]

_SHOWN_KERNELS = 25


@click.command("profile")
@click.argument("model_path", metavar="MODEL")
@click.option("--function", "function_name", help="Function to call.")
@click.option("--input", "inputs", multiple=True, metavar="VALUE", help="Inputs as in run (default: random).")
@click.option("--warm-up", type=click.IntRange(min=0), default=2, show_default=True, help="Calls before.")
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Calls to record.")
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a Chrome trace here, for Perfetto.",
)
@click.option(
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a picture of the timeline here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@load_options
@compile_options
def command(
    model_path: str,
    function_name: str | None,
    inputs: tuple[str, ...],
    warm_up: int,
    runs: int,
    trace_path: Path | None,
    html_path: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Record where the time of MODEL goes: a span per dispatch and worker, a table of kernels."""
    given = _parsed(inputs)
    with open_model(model_path, settings) as model:
        function = chosen_function(model, function_name)
        arguments = given or _random_inputs(function, dict(settings["dim"]))
        for _ in range(warm_up):
            function.run(arguments)
        spans, memory, elapsed_s = _record(model, function, arguments, runs)
        title = f"{function.name} of {Path(model_path).name} on {model.device.name}"
        peak_bytes = model.device.allocator.statistics.peak_bytes
    kernels = summarize(spans)
    by_tag = dict(memory[-1].by_tag)
    report = {
        "model": model_path,
        "function": function.name,
        "runs": runs,
        "elapsed_s": elapsed_s,
        "worker_s": sum(kernel.total_ns for kernel in kernels) / 1e9,
        "guest_peak_bytes": peak_bytes,
        "memory_by_tag": by_tag,
    }
    if trace_path is not None:
        _write(trace_path, to_json(chrome_trace(spans, memory, {"title": title, **report})))
    if html_path is not None:
        _write(html_path, html_picture(title, spans, kernels, by_tag))
    if as_json:
        print_json({**report, "kernels": [dataclasses.asdict(kernel) for kernel in kernels]})
    else:
        _print(title, report, kernels)


def _record(
    model: Model, function: Function, arguments: list[Any], runs: int
) -> tuple[list[Span], list[MemorySample], float]:
    spans: list[Span] = []
    memory: list[MemorySample] = []

    def sample() -> None:
        by_tag = dict(model.device.allocator.statistics.by_tag)
        memory.append(MemorySample(time_ns=time.perf_counter_ns(), by_tag=by_tag))

    begin = time.perf_counter()
    with model.device.tracer.listen(spans.append):
        sample()
        for _ in range(runs):
            # Held while memory is looked at, so that outputs count.
            outputs = function.run(arguments)
            sample()
            del outputs
    return spans, memory, time.perf_counter() - begin


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.FileError(str(path), hint=error.strerror or str(error)) from error
    click.echo(f"wrote {path}", err=True)


def _print(title: str, report: dict[str, Any], kernels: list[KernelSummary]) -> None:
    rows = [
        (
            kernel.name,
            str(kernel.count),
            f"{kernel.total_ns / 1e6:.3f} ms",
            f"{kernel.share:.1%}",
            str(kernel.workgroups or ""),
            "" if kernel.gflops is None else f"{kernel.gflops:.2f}",
            "" if kernel.gbytes is None else f"{kernel.gbytes:.2f}",
        )
        for kernel in kernels[:_SHOWN_KERNELS]
    ]
    columns = ("kernel", "runs", "time", "share", "workgroups", "GFLOP/s", "GB/s")
    print_table(title, columns, rows)
    if len(kernels) > _SHOWN_KERNELS:
        click.echo(f"and {len(kernels) - _SHOWN_KERNELS} more kernels; --json has all of them")
    click.echo(
        f"{report['runs']} calls in {report['elapsed_s'] * 1e3:.2f} ms, {report['worker_s'] * 1e3:.2f} ms of "
        f"worker time, guest memory peak {format_bytes(report['guest_peak_bytes'])}"
    )
