"""``sylvite halide``: build, run, inspect and time pipelines."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from .. import wasm
from ..errors import CompileError, InvalidArgumentError, NotFoundError
from . import images
from .loading import find_pipelines, load, read_signature
from .metadata import Argument, Number, Signature
from .pipeline import Pipeline
from .types import TypeCode

__all__ = ["bench_pipeline", "describe_pipelines", "halide", "holds_pipeline"]

_SEED = 0
_OUTPUT_ALIASES = ("output", "out")


_device_option = click.option(
    "--device", metavar="URI", help="Where to run: local-task, webgpu, ... (default: a sandbox, one thread)."
)


@click.group("halide")
def halide() -> None:
    """Build, run, inspect and time Halide pipelines."""


# build


@halide.command("build")
@click.argument("source", metavar="FILE.py:NAME")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the module.")
@click.option("--name", help="Name of the pipeline (default: NAME).")
@click.option(
    "--feature",
    "features",
    multiple=True,
    help="Target feature, such as webgpu (for kernels), wasm_threads or profile.",
)
@click.option("--autoscheduler", help="Mullapudi2016, Adams2019, Li2018, or Anderson2021 for GPUs.")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="Parameter of a generator.")
def build_command(
    source: str,
    output: Path | None,
    name: str | None,
    features: tuple[str, ...],
    autoscheduler: str | None,
    params: tuple[str, ...],
) -> None:
    """Compile NAME of FILE.py: a Func, a Pipeline, a generator, or a function that returns one of them (or a
    pair of it and its arguments)."""
    from .jit import build

    subject, args, found = _import_subject(source)
    built = build(
        subject,
        args,
        name=name or found,
        features=features,
        autoscheduler=autoscheduler,
        generator_params=dict(_pair(item) for item in params) or None,
    )
    path = built.save(output or Path(f"{built.name}.wasm"))
    click.echo(f"{path}: {len(built.data)} bytes, {read_signature(path)}")
    if built.schedule:
        click.echo(built.schedule)


def _import_subject(source: str) -> tuple[Any, Sequence[Any] | None, str]:
    path, _, name = source.rpartition(":")
    if not path or not Path(path).is_file():
        raise NotFoundError(f"no such file: {path or source} (give FILE.py:NAME)")
    spec = importlib.util.spec_from_file_location(f"sylvite_halide_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        subject = getattr(module, name, None)
        if callable(subject) and not isinstance(subject, type) and type(subject).__name__ == "function":
            subject = subject()
    except Exception as error:
        raise CompileError(f"{path}: {type(error).__name__}: {error}") from error
    if subject is None:
        raise NotFoundError(f"{path} defines no {name!r}")
    if isinstance(subject, tuple):
        func, args = subject
        return func, list(args), name
    return subject, None, name


# run


@halide.command("run")
@click.argument("module", type=click.Path(path_type=Path))
@click.argument("values", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--name", help="Pipeline to run, when the module holds several.")
@click.option("--shape", metavar="H,W[,C]", help="Shape of the output (default: what the inputs allow).")
@click.option(
    "--layout", type=click.Choice(["image", "reversed", "same"]), default="image", show_default=True
)
@_device_option
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with inputs and outputs.")
@click.option(
    "--show/--no-show", default=None, help="Draw pictures in the terminal (default: on a terminal)."
)
def run_command(
    module: Path,
    values: tuple[str, ...],
    name: str | None,
    shape: str | None,
    layout: str,
    device: str | None,
    html: Path | None,
    show: bool | None,
) -> None:
    """Run the pipeline in MODULE. Inputs and outputs are files (PNG, JPEG, NPY), scalars are numbers:
    input=in.png output=out.png radius=3."""
    given = dict(_pair(value) for value in values)
    with load(module, name=name, layout=layout, device=device) as pipeline:
        arguments, targets = _split(pipeline.signature, given)
        begin = time.perf_counter()
        result = pipeline(shape=None if shape is None else _shape(shape), **arguments)
        elapsed = time.perf_counter() - begin
    results = result if isinstance(result, tuple) else (result,)
    names = [argument.name for argument in pipeline.signature.outputs]
    for output, array in zip(names, results, strict=True):
        if output in targets:
            images.write_array(targets[output], array)
        click.echo(f"{output}: {_summary(array)}{'' if output not in targets else f' -> {targets[output]}'}")
    click.echo(f"ran in {elapsed * 1e3:.2f} ms", err=True)
    pictures = [(key, value) for key, value in arguments.items() if isinstance(value, np.ndarray)]
    pictures += list(zip(names, results, strict=True))
    pictures = [(caption, array) for caption, array in pictures if _is_picture(array)]
    if html is not None:
        html.write_text(images.to_html(pictures, pipeline.name), encoding="utf-8")
    if sys.stdout.isatty() if show is None else show:
        for caption, array in pictures:
            click.echo(f"{caption}:\n{images.draw(array)}", color=True)


def _split(signature: Signature, given: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values for the call, and files for outputs."""
    arguments: dict[str, Any] = {}
    targets: dict[str, str] = {}
    by_name = {argument.name: argument for argument in signature.arguments}
    for key, text in given.items():
        argument = by_name.get(key)
        if argument is None and key in _OUTPUT_ALIASES and len(signature.outputs) == 1:
            argument = signature.outputs[0]
        if argument is None:
            raise InvalidArgumentError(f"no argument {key!r}: {signature}")
        if argument in signature.outputs:
            targets[argument.name] = text
        elif argument.is_buffer:
            arguments[argument.name] = images.as_input(images.read_array(text), argument)
        else:
            arguments[argument.name] = _number(argument, text)
    return arguments, targets


def _number(argument: Argument, text: str) -> Number:
    if argument.type.code is TypeCode.UINT and argument.type.bits == 1:
        if text.lower() in ("true", "false", "1", "0"):
            return text.lower() in ("true", "1")
        raise InvalidArgumentError(f"{argument.name} is true or false, not {text!r}")
    try:
        return float(text) if argument.type.code is TypeCode.FLOAT else int(text, 0)
    except ValueError as error:
        raise InvalidArgumentError(f"{argument.name} is of type {argument.type}, got {text!r}") from error


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidArgumentError(f"expected NAME=VALUE, got {text!r}")
    return key, value


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError as error:
        raise InvalidArgumentError(f"{text!r} is no shape") from error


def _is_picture(array: Any) -> bool:
    return array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))


def _summary(array: Any) -> str:
    text = f"{array.dtype}{list(array.shape)}"
    if array.size:
        text += f" min {array.min()} max {array.max()} mean {float(array.mean()):.6g}"
    return text


# inspect and bench


def holds_pipeline(path: str | Path) -> bool:
    """Whether a file is a module with Halide pipelines."""
    path = Path(path)
    if path.suffix.lower() not in (".wasm", ".o") or not path.is_file():
        return False
    data = path.read_bytes()
    return data[:4] == b"\0asm" and bool(find_pipelines(wasm.decode(data, where=path.name)))


def describe_pipelines(path: str | Path) -> list[dict[str, Any]]:
    """What the pipelines of a module say about themselves, as JSON values."""
    data = Path(path).read_bytes()
    found = []
    for name in find_pipelines(wasm.decode(data, where=str(path))):
        signature = read_signature(data, name=name)
        found.append(
            {
                "name": name,
                "target": signature.target,
                "signature": str(signature),
                "arguments": [_describe(argument) for argument in signature.arguments],
            }
        )
    return found


def _describe(argument: Argument) -> dict[str, Any]:
    return {
        "name": argument.name,
        "kind": argument.kind.name.lower(),
        "type": str(argument.type),
        "dimensions": argument.dimensions,
        "default": argument.default,
        "minimum": argument.minimum,
        "maximum": argument.maximum,
        "estimate": argument.estimate,
        "estimates": argument.estimates,
    }


@halide.command("inspect")
@click.argument("module", type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect_command(module: Path, as_json: bool) -> None:
    """Show the pipelines in MODULE: arguments, types, defaults, limits, target."""
    found = describe_pipelines(module)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for item in found:
        click.echo(f"{item['signature']}\n  target {item['target']}")


@halide.command("bench")
@click.argument("module", type=click.Path(exists=True, path_type=Path))
@click.argument("values", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--shape", metavar="H,W[,C]", default="1536,2560", show_default=True, help="Shape of the output."
)
@_device_option
@click.option("--runs", type=click.IntRange(min=1), default=20, show_default=True, help="Calls to measure.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench_command(
    module: Path, values: tuple[str, ...], shape: str, device: str | None, runs: int, as_json: bool
) -> None:
    """Time the pipeline in MODULE on noise."""
    report = bench_pipeline(module, values, _shape(shape), runs, device=device)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo(
            f"{report['pipeline']} {report['shape']}: median {report['median_s'] * 1e3:.3f} ms, "
            f"min {report['minimum_s'] * 1e3:.3f} ms, {runs} runs"
        )


def bench_pipeline(
    module: str | Path, values: Sequence[str], shape: Sequence[int], runs: int, *, device: str | None = None
) -> dict[str, Any]:
    """Times of a pipeline over ``shape``, with noise in guest memory for inputs that are not given.

    Raises:
        InvalidArgumentError: a scalar has no value, or the shape has too few axes.
    """
    with load(module, device=device) as pipeline:
        arguments, _ = _split(pipeline.signature, dict(_pair(value) for value in values))
        output = pipeline.signature.outputs[0]
        extents = tuple([*shape, 3, 1, 1, 1][: output.dimensions])
        _fill_inputs(pipeline, arguments, extents)
        times = []
        for _ in range(runs + 2):
            begin = time.perf_counter()
            pipeline(shape=extents, **arguments)
            times.append(time.perf_counter() - begin)
    times = times[2:]
    return {
        "pipeline": pipeline.name,
        "shape": list(extents),
        "runs": runs,
        "median_s": statistics.median(times),
        "minimum_s": min(times),
        "maximum_s": max(times),
    }


def _fill_inputs(pipeline: Pipeline, arguments: dict[str, Any], extents: tuple[int, ...]) -> None:
    """Noise over the regions that the pipeline reads."""
    from .arrays import Window

    scalars = {k: v for k, v in arguments.items() if not isinstance(v, np.ndarray)}
    generator = np.random.default_rng(_SEED)
    needed = pipeline.required(shape=extents, **scalars)
    for argument in pipeline.signature.inputs:
        if argument.name in arguments:
            continue
        region = needed[argument.name]
        shape = tuple(max(extent, 1) for extent in region.shape)
        dtype = argument.type.dtype
        noise = generator.random(shape) if dtype.kind == "f" else generator.integers(0, 100, shape)
        arguments[argument.name] = Window(noise.astype(dtype), region.min)
