"""From Halide's Python objects to running pipelines: object, linker, loader. Needs the ``halide`` extra."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import CompileError, InvalidArgumentError, UnavailableError
from .arrays import AxisOrder, Region, Window, axes_of
from .autoschedule import Autoscheduler, apply_autoscheduler
from .cache import ModuleCache
from .linking import find_linker, link_object
from .loading import Externs, load
from .place import Place, is_gpu, place_of

if TYPE_CHECKING:
    from ..hal import Device
    from ..linker import LinkSpace
    from .pipeline import Pipeline

__all__ = ["DEFAULT_TARGET", "BuiltPipeline", "build", "compile", "realize", "target_string"]

DEFAULT_TARGET: Final = "wasm-32-wasmrt-wasm_simd128-wasm_bulk_memory"
"""Target of pipelines; ``no_runtime`` is always added."""

_DEFAULT_NAME: Final = "pipeline"

_modules = ModuleCache()
_scratch: dict[str | None, Place] = {}
_scratch_lock = threading.Lock()
_realized: weakref.WeakKeyDictionary[Place, dict[str, Pipeline]] = weakref.WeakKeyDictionary()

Numbers: TypeAlias = "Mapping[Any, Any]"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPipeline:
    """A linked module.

    Args:
        name: of the pipeline in it.
        data: the WebAssembly binary.
        key: digest of what it was built from.
        schedule: the autoscheduler's schedule as source text, when one ran.
    """

    name: str
    data: bytes
    key: str
    schedule: str = ""

    def save(self, path: str | Path) -> Path:
        """Write the binary to a file; returns its path."""
        target = Path(path)
        target.write_bytes(self.data)
        return target


def _halide() -> ModuleType:
    try:
        import halide
    except ImportError as error:
        raise UnavailableError("compiling Halide pipelines needs Halide", extra="halide") from error
    module: ModuleType = halide
    return module


def target_string(target: str | None = None, features: Sequence[str] = ()) -> str:
    """Halide's target for the sandbox.

    Args:
        target: a whole target; by default `DEFAULT_TARGET`.
        features: more features, such as ``wasm_threads``, ``profile``, ``strict_float``, ``trace_all``.

    Raises:
        InvalidArgumentError: Halide does not know it, or it is not wasm32.
        UnavailableError: Halide is not installed.
    """
    hl = _halide()
    text = "-".join([target or DEFAULT_TARGET, *features])
    if "no_runtime" not in text.split("-"):
        text += "-no_runtime"
    if not hl.Target.validate_target_string(text):
        raise InvalidArgumentError(f"Halide knows no target {text!r}")
    if not text.startswith("wasm-32-"):
        raise InvalidArgumentError(f"pipelines run on wasm-32-wasmrt targets, not on {text!r}")
    return text


def build(
    subject: Any,
    args: Sequence[Any] | None = None,
    *,
    name: str | None = None,
    target: str | None = None,
    features: Sequence[str] = (),
    autoscheduler: Autoscheduler | str | None = None,
    generator_params: Mapping[str, Any] | None = None,
    cache: bool = True,
) -> BuiltPipeline:
    """Compile and link a pipeline.

    Args:
        subject: a ``halide.Func``, a ``halide.Pipeline``, or a generator class (``@halide.generator``).
        args: its arguments (``ImageParam``, ``Param``, ``Argument``) in order; by default what it uses, the
            present values of ``Param``\\ s being the defaults.
        name: of the function; by default a generator's name, else ``pipeline``.
        target: Halide's target; by default `DEFAULT_TARGET`.
        features: added to the target.
        autoscheduler: its name (``Mullapudi2016``, ``Adams2019``, ``Li2018``; for GPUs ``Anderson2021``) or
            an `Autoscheduler`.
        generator_params: values of a generator's parameters.
        cache: whether an equal pipeline built before may be used.

    Raises:
        CompileError: Halide or the linker refused it.
        InvalidArgumentError: no such target, or the subject is none of those.
        UnavailableError: Halide or a linker is not installed.
    """
    hl = _halide()
    text = target_string(target, features)
    try:
        pipeline, inferred, default_name = _resolve(hl, subject, args, hl.Target(text), generator_params)
        name = name or default_name
        arguments = [_argument(hl, item) for item in (inferred if args is None else args)]
        schedule = ""
        if autoscheduler is not None:
            schedule = apply_autoscheduler(hl, pipeline, hl.Target(text), autoscheduler)
        serialized = hl.serialize_pipeline(pipeline)
    except hl.HalideError as error:
        raise CompileError(f"Halide refused the pipeline: {str(error).strip()}") from error
    key = ModuleCache.key(serialized, text, name, _versions(hl), *map(_describe, arguments))
    data = _make(hl, pipeline, arguments, name, text) if not cache else None
    if data is None:
        data = _modules.get(key, lambda: _make(hl, pipeline, arguments, name, text))
    return BuiltPipeline(name=name, data=data, key=key, schedule=schedule)


def _versions(hl: ModuleType) -> str:
    from importlib import metadata

    return (
        f"{metadata.version('halide')} {Path(find_linker()[0]).name} {Path(hl.__file__ or '').stat().st_size}"
    )


def _make(hl: ModuleType, pipeline: Any, arguments: Sequence[Any], name: str, target: str) -> bytes:
    find_linker()
    with tempfile.TemporaryDirectory(prefix="sylvite-halide-") as folder:
        path = Path(folder) / "pipeline.o"
        try:
            pipeline.compile_to_object(str(path), list(arguments), name, hl.Target(target))
        except hl.HalideError as error:
            raise CompileError(f"Halide refused the pipeline: {str(error).strip()}") from error
        return link_object(path.read_bytes(), names=[name])


def _resolve(
    hl: ModuleType, subject: Any, args: Sequence[Any] | None, target: Any, params: Mapping[str, Any] | None
) -> tuple[Any, list[Any], str]:
    """The Halide pipeline, its arguments, and a name for it."""
    if isinstance(subject, type) and issubclass(subject, hl.Generator):
        with hl.GeneratorContext(target):
            generator = subject(dict(params or {}))
            pipeline = generator._build_pipeline()
            inputs = [item for item in generator._get_arginfos() if item.dir == hl.ArgInfoDirection.Input]
            found = [generator._get_input_parameter(item.name)._to_argument() for item in inputs]
            return pipeline, found, str(generator._get_name())
    if params:
        raise InvalidArgumentError("generator_params belong to generators")
    if isinstance(subject, hl.Func):
        if not subject.defined():
            raise InvalidArgumentError("the Func is not defined")
        subject = hl.Pipeline(subject)
    if not isinstance(subject, hl.Pipeline):
        message = f"a halide.Func, a halide.Pipeline or a generator is needed, not {type(subject).__name__}"
        raise InvalidArgumentError(message)
    if args is not None:
        return subject, [], _DEFAULT_NAME
    return subject, _inferred(hl, subject), _DEFAULT_NAME


def _inferred(hl: ModuleType, pipeline: Any) -> list[Any]:
    """The arguments a pipeline uses, with the values of its parameters as defaults."""
    parameters = hl.serialize_pipeline(pipeline, get_params=True)[1]
    found = []
    for argument in pipeline.infer_arguments():
        parameter = parameters.get(argument.name)
        if parameter is not None and not parameter.is_buffer():
            _set_default(hl, argument, parameter)
        found.append(argument)
    return found


def _argument(hl: ModuleType, item: Any) -> Any:
    """A Halide argument, with a parameter's value as its default."""
    if isinstance(item, hl.Argument):
        return item
    try:
        argument = hl.Argument(item)
    except TypeError as error:
        raise InvalidArgumentError(f"{item!r} is no argument of a pipeline") from error
    if isinstance(item, hl.Param):
        _set_default(hl, argument, item.parameter())
    return argument


def _set_default(hl: ModuleType, argument: Any, parameter: Any) -> None:
    try:
        value = parameter.scalar_expr()
    except hl.HalideError:
        # It was never given a value.
        return
    if value.defined() and not argument.argument_estimates.scalar_def.defined():
        argument.argument_estimates.scalar_def = value


def _describe(argument: Any) -> str:
    estimates = argument.argument_estimates
    scalars = (estimates.scalar_def, estimates.scalar_min, estimates.scalar_max, estimates.scalar_estimate)
    ranges = [f"{item.min} {item.extent}" for item in estimates.buffer_estimates]
    return f"{argument.name} {argument.kind} {argument.dimensions} {argument.type} {scalars} {ranges}"


def compile(
    subject: Any,
    args: Sequence[Any] | None = None,
    *,
    device: Device | LinkSpace | Place | str | None = None,
    externs: Externs | None = None,
    layout: AxisOrder | str = AxisOrder.IMAGE,
    name: str | None = None,
    target: str | None = None,
    features: Sequence[str] = (),
    autoscheduler: Autoscheduler | str | None = None,
    generator_params: Mapping[str, Any] | None = None,
    cache: bool = True,
) -> Pipeline:
    """Compile a pipeline and load it: `build`, then `load`; see there.

    Raises:
        CompileError, LinkError, InvalidArgumentError, UnavailableError
    """
    built = build(
        subject,
        args,
        name=name,
        target=target,
        features=_features(target, features, device),
        autoscheduler=autoscheduler,
        generator_params=generator_params,
        cache=cache,
    )
    return load(built.data, device=device, name=built.name, externs=externs, layout=layout)


def realize(
    subject: Any,
    sizes: Sequence[int] | int = (),
    *,
    inputs: Numbers | None = None,
    device: Device | LinkSpace | Place | str | None = None,
    externs: Externs | None = None,
    layout: AxisOrder | str = AxisOrder.IMAGE,
    target: str | None = None,
    features: Sequence[str] = (),
) -> Any:
    """Evaluate a Func over a region at the origin, as ``Func.realize`` does, but in the sandbox.

    Args:
        subject: a ``halide.Func`` or ``halide.Pipeline``.
        sizes: extents in Halide's order: ``(width, height, channels)``.
        inputs: values by ``ImageParam``, ``Param`` or name; those bound to the parameters are used otherwise.
        device: where to run: a device or a place, by default a sandbox. Sandboxes, and devices that are
            named, are shared by all such calls of the process.
        externs, layout, target, features: see `compile`.

    Returns:
        An array (in the layout's axis order: ``[y, x, c]``), or a tuple of them.

    Raises:
        CompileError, InvalidArgumentError, PipelineError, TrapError
    """
    hl = _halide()
    if isinstance(subject, hl.Func):
        subject = hl.Pipeline(subject)
    values = _bound_values(hl, subject, AxisOrder(layout))
    for key, value in (inputs or {}).items():
        values[key if isinstance(key, str) else key.name()] = value
    place = _place(device)
    built = build(subject, target=target, features=_features(target, features, place))
    pipeline = _loaded(place, built, externs, layout)
    extents = (sizes,) if isinstance(sizes, int) else tuple(int(size) for size in sizes)
    axes = axes_of(AxisOrder(layout), len(extents))
    shape = [0] * len(extents)
    for axis, extent in zip(axes, extents, strict=True):
        shape[axis] = extent
    known = {argument.name for argument in pipeline.signature.arguments}
    named = {name: value for name, value in values.items() if name in known}
    return pipeline(shape=Region(tuple(shape), (0,) * len(shape)), **named)


def _features(target: str | None, features: Sequence[str], device: Any) -> Sequence[str]:
    """Features with what the device wants."""
    wants_kernels = is_gpu(device) and "webgpu" not in (target or "").split("-")
    return [*features, "webgpu"] if wants_kernels and "webgpu" not in features else features


def _place(device: Device | LinkSpace | Place | str | None) -> Place:
    """Where a single evaluation runs; sandboxes and devices that are named are kept."""
    if device is not None and not isinstance(device, str):
        return place_of(device)
    return _scratch_place(device)


def _scratch_place(name: str | None) -> Place:
    with _scratch_lock:
        place = _scratch.get(name)
        if place is None:
            place = _scratch[name] = place_of(name)
        return place


def _loaded(place: Place, built: BuiltPipeline, externs: Externs | None, layout: AxisOrder | str) -> Pipeline:
    load_it: Callable[[], Pipeline] = lambda: load(  # noqa: E731 - named for the two places below
        built.data, device=place, name=built.name, externs=externs, layout=layout
    )
    if externs:
        return load_it()
    known = _realized.setdefault(place, {})
    key = f"{built.key} {AxisOrder(layout).value}"
    if key not in known:
        known[key] = load_it()
    return known[key]


def _bound_values(hl: ModuleType, pipeline: Any, order: AxisOrder) -> dict[str, Any]:
    """Arrays bound to a pipeline's ``ImageParam``\\ s, by name; scalars are defaults already."""
    values: dict[str, Any] = {}
    with contextlib.suppress(hl.HalideError):
        for name, parameter in hl.serialize_pipeline(pipeline, get_params=True)[1].items():
            if parameter.is_buffer():
                buffer = parameter.buffer()
                if buffer.defined():
                    values[name] = _window(buffer, order)
    return values


def _window(buffer: Any, order: AxisOrder) -> Window:
    """A Halide buffer as an array in our axis order, without a copy."""
    reversed_array: npt.NDArray[Any] = np.asarray(buffer)
    count = reversed_array.ndim
    axes = axes_of(order, count)
    transposed = reversed_array.transpose([count - 1 - axes.index(axis) for axis in range(count)])
    return Window(transposed, [buffer.dim(axes.index(axis)).min() for axis in range(count)])
