"""`load`: from a file to a `Model`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ..compile import Artifact, Progress, cache_root
from ..drivers import create_device
from ..engines.base import Limits
from ..errors import InvalidArgumentError
from ..hal import Device
from ..vm.native import NativeModule
from .model import Model
from .program import Program
from .signature import signature_from_spec
from .source import (
    ModuleSource,
    Parameters,
    compile_target,
    is_module,
    module_source,
    open_parameter_providers,
)
from .variants import FixedProgram, ProgramSource, SpecializedPrograms

__all__ = ["load"]

DEFAULT_VARIANTS = 8


def load(
    source: Any,
    *,
    device: str | Device = "local-sync",
    parameters: Parameters | None = None,
    limits: Limits | None = None,
    dims: Mapping[str, int] | None = None,
    specialize: bool = True,
    variants: int = DEFAULT_VARIANTS,
    modules: Sequence[NativeModule] = (),
    copy: bool = False,
    plans: bool = True,
    cache: bool = True,
    progress: Progress | None = None,
    **compile_options: Any,
) -> Model:
    """Load a model; one that is not compiled yet is compiled first, through the cache.

    Args:
        source: a .vmfb (path, bytes or `Artifact`), or anything `sylvite.compile` takes.
        device: a driver's name, whose device the model then owns, or a device to share.
        parameters: ``path``, ``scope=path``, several, or a mapping from scope to path or arrays by key; an
            .irpa file of the module's stem beside it is found by itself.
        limits: sandbox limits of a device made here (memory and deadline) and of the program's host memory;
            without any, calls have the deadline of a device that is given.
        dims: extents for symbolic dims of an ONNX model.
        specialize: compile a model with symbolic dims for the shapes it is called with; else with open dims.
        variants: how many specialized programs to keep.
        modules: further modules the program may import from.
        copy: return copies of outputs instead of views of guest memory.
        plans: do calls with shapes that came before from a recording where the program allows it, which
            takes a tenth of the time around the kernels; the same otherwise.
        cache: use the caches of compiled models and of machine code.
        progress: called when a phase of the compile begins.
        compile_options: further options of `sylvite.compile`.

    Raises:
        NotFoundError: a file, driver or scope that does not exist.
        InvalidArgumentError: options that do not go together.
        FormatError: a malformed file.
        CompileError: the compiler refused the model.
        LinkError: the program imports something that is not there.
        OutOfMemoryError, UnavailableError
    """
    _check_options(limits, dims, variants, modules)
    if is_module(source):
        _refuse_compile_options(dims, compile_options)
    opened, owns_device = _open_device(device, limits, cache=cache)
    try:
        loader = _Loader(opened, parameters, _program_limits(opened, limits), tuple(modules), plans=plans)
        if is_module(source):
            programs: ProgramSource = FixedProgram(loader.program(module_source(source)))
        else:
            options = {
                "cache": cache,
                "progress": progress,
                "target": compile_target(opened),
                **compile_options,
            }
            programs = _compiled(source, dims or {}, options, loader, variants if specialize else 0)
        return Model(programs, opened, owns_device=owns_device, copy=copy, artifacts=loader.artifacts)
    except BaseException:
        if owns_device:
            opened.close()
        raise


def _open_device(device: str | Device, limits: Limits | None, *, cache: bool) -> tuple[Device, bool]:
    if isinstance(device, str):
        # Local devices compile WebAssembly to machine code, which takes long for large modules.
        keeps_code = cache and device.startswith("local-") and "cache_dir=" not in device
        options: dict[str, Any] = {"cache_dir": cache_root() / "code"} if keeps_code else {}
        return create_device(device, limits=limits, **options), True
    if not isinstance(device, Device):
        raise InvalidArgumentError(f"device must be a driver's name or a Device, not {type(device).__name__}")
    if limits is not None and limits.memory_bytes is not None:
        raise InvalidArgumentError(
            "a shared device has its memory limit already; give it to sylvite.create_device(limits=...)"
        )
    return device, False


def _program_limits(device: Device, limits: Limits | None) -> Limits | None:
    """A device's deadline holds for the programs on it, too: those have code that never enters a kernel."""
    if limits is None and device.deadline_ns is not None:
        return Limits(deadline_ns=device.deadline_ns)
    return limits


def _check_options(limits: Any, dims: Any, variants: Any, modules: Any) -> None:
    expected = {
        "limits": (limits, Limits | None, "Limits"),
        "dims": (dims, Mapping | None, "a mapping from names to extents"),
        "variants": (variants, int, "a number"),
        "modules": (modules, Sequence, "a sequence of NativeModule"),
    }
    for name, (value, kind, words) in expected.items():
        if not isinstance(value, kind):
            raise InvalidArgumentError(f"{name} must be {words}, not {type(value).__name__}")
    for module in modules:
        if not isinstance(module, NativeModule):
            raise InvalidArgumentError(f"modules must hold NativeModules, not {type(module).__name__}")
    if variants < 0:
        raise InvalidArgumentError(f"variants must not be negative, got {variants}")


def _refuse_compile_options(dims: Mapping[str, int] | None, options: Mapping[str, Any]) -> None:
    given = [*(["dims"] if dims else []), *options]
    if given:
        raise InvalidArgumentError(f"the module is compiled already, so {', '.join(given)} cannot be given")


class _Loader:
    """Makes programs out of modules, with what `load` was given."""

    def __init__(
        self,
        device: Device,
        parameters: Parameters | None,
        limits: Limits | None,
        modules: tuple[NativeModule, ...],
        *,
        plans: bool,
    ) -> None:
        self._plans = plans
        self._device = device
        self._parameters = parameters
        self._limits = limits
        self._modules = modules
        self.artifacts: list[Artifact] = []

    def compiled_program(self, artifact: Artifact) -> Program:
        self.artifacts.append(artifact)
        return self.program(ModuleSource.from_artifact(artifact))

    def program(self, source: ModuleSource) -> Program:
        archive = source.open()
        try:
            providers = open_parameter_providers(self._parameters, source.parameters)
        except BaseException:
            archive.close()
            raise
        return Program(
            archive,
            device=self._device,
            providers=providers,
            modules=self._modules,
            limits=self._limits,
            plans=self._plans,
        )


def _compiled(
    source: Any, dims: Mapping[str, int], options: Mapping[str, Any], loader: _Loader, variants: int
) -> ProgramSource:
    """Compile now, or when shapes are known if the model has symbolic dims and ``variants`` allows."""
    # The compiler's half takes long to import, and compiled modules do not need it.
    from ..compile import compile as compile_model
    from ..compile.open_dims import open_function
    from ..compile.options import checked_dims
    from ..compile.sources import resolve

    dims = checked_dims(dims)
    unknown = sorted(options.keys() - inspect.signature(compile_model).parameters.keys())
    if unknown:
        raise InvalidArgumentError(f"neither load nor compile has an option {', '.join(unknown)}")
    root = cache_root() if options["cache"] else None
    resolved = resolve(source, example_inputs=options.get("example_inputs"), cache=root is not None)
    options = {name: value for name, value in options.items() if name != "example_inputs"}
    open_spec = open_function(resolved, dims, root) if variants else None
    if open_spec is None:
        return FixedProgram(loader.compiled_program(compile_model(resolved, dims=dims, **options)))

    def build(extents: Mapping[str, int]) -> Program:
        return loader.compiled_program(compile_model(resolved, dims={**dims, **extents}, **options))

    return SpecializedPrograms(signature_from_spec(open_spec), build, capacity=variants)
