"""``sylvite run``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
import numpy as np

from ..errors import InvalidArgumentError
from ..model import Model, Verification
from ..model.verify import REFERENCE, Tolerances, compare_results, load_reference
from .console import format_bytes, print_json
from .options import chosen_function, compile_options, load_options, open_model
from .values import Tolerance, compare, format_result, parse_inputs, write_outputs

__all__ = ["command"]


@click.command("run")
@click.argument("model_path", metavar="MODEL")
@click.option("--function", "function_name", help="Function to call (default: the only one, or main).")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="VALUE",
    help="2x2xf32=1 2 3 4, 4xf32=2, @x.npy, 2xf32=@x.bin, 3.",
)
@click.option(
    "--output", "outputs", multiple=True, metavar="@FILE", help="Write a result to @f.npy or @f.bin."
)
@click.option(
    "--expected-output",
    "--expected_output",
    "expected",
    multiple=True,
    metavar="VALUE",
    help="Compare a result; (ignored) skips one.",
)
@click.option(
    "--verify", is_flag=True, help="Run on local-sync too; fail when results are beyond the tolerance."
)
@click.option("--atol", type=float, help="Absolute tolerance (default: by type, 1e-4 for f32).")
@click.option("--rtol", type=float, help="Relative tolerance (default: 1e-5; with --verify 1e-3).")
@click.option(
    "--max-elements", type=int, default=1024, show_default=True, help="Elements to print of a result."
)
@click.option("--statistics", is_flag=True, help="Print counters and memory on standard error.")
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")
@load_options
@compile_options
def command(
    model_path: str,
    function_name: str | None,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    expected: tuple[str, ...],
    verify: bool,
    atol: float | None,
    rtol: float | None,
    max_elements: int,
    statistics: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Run a function of MODEL (.onnx, .mlir, .vmfb) and print its results.

    Values are written as iree-run-module writes them.
    """
    if verify and settings["device"] == REFERENCE:
        raise click.UsageError(f"--verify compares with {REFERENCE}; choose another device with --device")
    arguments = _parsed(inputs)
    with contextlib.ExitStack() as stack:
        reference = stack.enter_context(_open_reference(model_path, settings)) if verify else None
        model = stack.enter_context(open_model(model_path, settings))
        function = chosen_function(model, function_name)
        result = function.run(arguments)
        values = list(result) if isinstance(result, tuple) else [] if result is None else [result]
        write_outputs(values, outputs)
        found = None
        if reference is not None:
            expectation = reference.functions[function.name].run(arguments)
            tolerances = Tolerances(atol=atol, rtol=rtol)
            found = compare_results(function.name, model, result, reference, expectation, tolerances)
        if as_json:
            print_json(_json_report(function.name, values, found))
        elif not outputs and not expected:
            _print_results(function.name, values, max_elements)
        if statistics:
            _print_statistics(model)
        code = _judge(values, expected, Tolerance(atol=atol, rtol=rtol)) if expected else 0
        if found is not None:
            _report(found, quiet=as_json)
        return code


def _open_reference(model_path: str, settings: Mapping[str, Any]) -> Model:
    return open_model(model_path, {**settings, "device": REFERENCE}, loader=load_reference)


def _report(found: Verification, *, quiet: bool) -> None:
    """Say how far results are from the reference; fail when they are too far."""
    if not quiet:
        for output in found.outputs:
            click.echo(f"[{'SUCCESS' if output.passed else 'FAILED'}] {output}")
    found.check()


def _parsed(inputs: Sequence[str]) -> list[Any]:
    """Inputs; malformed ones are the command line's fault."""
    try:
        return parse_inputs(inputs)
    except InvalidArgumentError as error:
        raise click.UsageError(f"--input: {error}") from error


def _print_results(name: str, values: Sequence[Any], limit: int) -> None:
    click.echo(f"EXEC @{name}")
    for index, value in enumerate(values):
        first, *rest = format_result(value, limit=limit)
        click.echo("\n".join([f"result[{index}]: {first}", *rest]))


def _judge(values: Sequence[Any], expected: Sequence[str], tolerance: Tolerance) -> int:
    try:
        problems = compare(values, expected, tolerance)
    except InvalidArgumentError as error:
        raise click.UsageError(f"--expected-output: {error}") from error
    for problem in problems:
        click.echo(f"[FAILED] {problem}")
    if not problems:
        click.echo("[SUCCESS] all function outputs matched their expected values.")
    return 1 if problems else 0


def _json_report(name: str, values: Sequence[Any], found: Verification | None) -> dict[str, Any]:
    report: dict[str, Any] = {"function": name, "results": [_json_value(value) for value in values]}
    if found is not None:
        report["verification"] = found.to_json()
    return report


def _json_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        numbers = value.astype(np.float64) if value.dtype.kind not in "biuf" else value
        return {"dtype": str(value.dtype), "shape": list(value.shape), "data": numbers.tolist()}
    return value if isinstance(value, int | float | None) else repr(value)


def _print_statistics(model: Model) -> None:
    memory = model.device.allocator.statistics
    click.echo(f"device: {model.device.name}", err=True)
    click.echo(
        f"guest memory: {format_bytes(memory.live_bytes)} live, {format_bytes(memory.peak_bytes)} peak",
        err=True,
    )
    for name, count in model.device.tracer.counters.snapshot().items():
        click.echo(f"{name}: {count}", err=True)
    sys.stderr.flush()
