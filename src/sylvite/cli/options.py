"""Options that several commands share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import click

from ..engines.base import Limits
from ..errors import InvalidArgumentError
from ..model import Function, Model, load
from .console import ByteSize, Dim, Duration, print_notes, progress_bar

__all__ = [
    "CompileSettings",
    "LoadSettings",
    "chosen_function",
    "compile_options",
    "load_options",
    "open_model",
]

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompileSettings:
    """What ``--dim``, ``--feature``, ... ask of a compile."""

    dim: tuple[tuple[str, int], ...]
    feature: tuple[str, ...]
    simplify: bool
    external_parameters: bool | None
    opset: int | None
    img2col: bool | None
    tuning: Literal["auto", "off"]
    contraction: bool
    optimization: str | None
    compiler_flag: tuple[str, ...]
    compile_timeout: int | None
    cache: bool

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `sylvite.compile`."""
        return {
            "dims": dict(self.dim),
            "features": ("simd128", *self.feature) if self.feature else None,
            "simplify": self.simplify,
            "external_parameters": self.external_parameters,
            "opset": self.opset,
            "img2col": self.img2col,
            "tuning": self.tuning,
            "contraction": self.contraction,
            "optimization": self.optimization,
            "flags": self.compiler_flag,
            "timeout_s": None if self.compile_timeout is None else self.compile_timeout / 1e9,
            "cache": self.cache,
        }

    def given(self) -> dict[str, Any]:
        """The arguments that differ from their defaults, so that compiled modules can refuse them."""
        defaults: Mapping[str, Any] = {
            "dims": {},
            "features": None,
            "simplify": True,
            "external_parameters": None,
            "opset": None,
            "img2col": None,
            "tuning": "auto",
            "contraction": True,
            "optimization": None,
            "flags": (),
            "timeout_s": None,
        }
        return {
            name: value
            for name, value in self.arguments().items()
            if name == "cache" or value != defaults[name]
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What ``--device``, ``--parameters``, ... ask of a load."""

    device: str
    parameters: tuple[str, ...]
    memory_limit: int | None
    deadline: int | None
    specialize: bool

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `sylvite.load`."""
        limited = self.memory_limit is not None or self.deadline is not None
        limits = Limits(memory_bytes=self.memory_limit, deadline_ns=self.deadline) if limited else None
        return {
            "device": self.device,
            "parameters": list(self.parameters) or None,
            "limits": limits,
            "specialize": self.specialize,
        }


def compile_options(function: Command) -> Command:
    """Add the options of `CompileSettings` to a command."""
    options = (
        click.option("--dim", type=Dim(), multiple=True, help="Fix a symbolic dim: --dim N=1."),
        click.option(
            "--feature", multiple=True, help="WebAssembly feature beyond simd128: relaxed-simd, ..."
        ),
        click.option("--simplify/--no-simplify", default=True, help="Simplify ONNX graphs first."),
        click.option(
            "--external-parameters/--inline-parameters",
            default=None,
            help="Keep weights in a parameter file (default: above 64 MiB).",
        ),
        click.option("--opset", type=int, help="Raise ONNX models to this operator set."),
        click.option(
            "--img2col/--no-img2col",
            default=None,
            help="Rewrite convolutions to matrix products (default: where it compiles).",
        ),
        click.option(
            "--tuning",
            type=click.Choice(["auto", "off"]),
            default="auto",
            help="Leave matrix products to kernels of the runtime (default: where it compiles).",
        ),
        click.option(
            "--contraction/--no-contraction",
            default=True,
            help="Let engines fuse multiplications and additions (default).",
        ),
        click.option(
            "-O", "--optimization", type=click.Choice(["O0", "O1", "O2", "O3"]), help="Optimization level."
        ),
        click.option("--compiler-flag", multiple=True, metavar="FLAG", help="Further flag for iree-compile."),
        click.option("--compile-timeout", type=Duration(), help="Stop the compiler after, e.g. 5m."),
        click.option("--cache/--no-cache", default=True, help="Use the compile cache."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def load_options(function: Command) -> Command:
    """Add the options of `LoadSettings` to a command."""
    options = (
        click.option("--device", default="local-sync", show_default=True, help="Device to run on."),
        click.option(
            "--parameters",
            multiple=True,
            metavar="[SCOPE=]PATH",
            help="Parameter file (.irpa, .safetensors).",
        ),
        click.option("--memory-limit", type=ByteSize(), help="Cap of guest memory, e.g. 512MiB."),
        click.option("--deadline", type=Duration(), help="Longest time one call may take, e.g. 2s."),
        click.option(
            "--specialize/--no-specialize",
            default=True,
            help="Compile models with symbolic dims for the shapes of the inputs.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def split_settings(values: Mapping[str, Any]) -> tuple[CompileSettings, LoadSettings]:
    """Make the settings from a command's keyword arguments."""
    compile_names = {field.name for field in dataclasses.fields(CompileSettings)}
    load_names = {field.name for field in dataclasses.fields(LoadSettings)}
    return (
        CompileSettings(**{name: value for name, value in values.items() if name in compile_names}),
        LoadSettings(**{name: value for name, value in values.items() if name in load_names}),
    )


def chosen_function(model: Model, name: str | None) -> Function:
    """The function that ``--function`` names, else the one that calling the model calls.

    Raises:
        InvalidArgumentError: there are several and none is called ``main``.
        NotFoundError: there is none of that name.
    """
    if name is not None:
        return model.functions[name]
    try:
        return model.main
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error} (name it with --function)") from error


def open_model(path: str, values: Mapping[str, Any], *, loader: Callable[..., Model] = load) -> Model:
    """Load a model with progress and notes on standard error."""
    compile_settings, load_settings = split_settings(values)
    with progress_bar(path) as progress:
        model = loader(path, progress=progress, **load_settings.arguments(), **compile_settings.given())
    print_notes(model.artifacts)
    return model
