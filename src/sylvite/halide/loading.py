"""Loading pipelines from WebAssembly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import wasm
from ..engines.base import Function
from ..errors import FormatError, InvalidArgumentError, NotFoundError
from ..wasm import ExternKind, FunctionType
from .arrays import AxisOrder
from .device_runtime import DEVICE_SYMBOLS
from .externs import extern_function
from .guest_memory import as_unsigned
from .guest_runtime import PARALLEL_SYMBOLS
from .linking import link_object
from .metadata import Signature, read_metadata
from .pipeline import Pipeline
from .place import Place, place_of
from .runtime import Runtime, runtime_of

if TYPE_CHECKING:
    from ..engines.base import Limits
    from ..hal import Device
    from ..linker import LinkedModule, LinkSpace

__all__ = ["Externs", "find_pipelines", "load", "read_signature"]

Externs: TypeAlias = "Mapping[str, Callable[..., Any] | Pipeline]"
"""Extern stages by symbol: Python functions, or other pipelines on the same device."""

_ARGV, _METADATA = "_argv", "_metadata"
_MAGIC = b"\0asm"


def find_pipelines(module: wasm.Module) -> list[str]:
    """Names of the pipelines a module exports: those with a ``_argv`` and a ``_metadata`` function."""
    names = {export.name for export in module.exports if export.kind is ExternKind.FUNCTION}
    return sorted(
        name.removesuffix(_ARGV)
        for name in names
        if name.endswith(_ARGV) and name.removesuffix(_ARGV) + _METADATA in names
    )


def load(
    source: str | os.PathLike[str] | bytes | memoryview,
    *,
    device: Device | LinkSpace | Place | str | None = None,
    name: str | None = None,
    externs: Externs | None = None,
    layout: AxisOrder | str = AxisOrder.IMAGE,
    limits: Limits | None = None,
) -> Pipeline:
    """Load a pipeline.

    Args:
        source: a linked module (``.wasm``) or an object file (``.o``) built with ``no_runtime``; a path or
            the bytes.
        device: where to run: a device (pipelines share its memory with models), the name of one, which is
            then opened for it, or nothing for a sandbox of its own. On WebGPU devices kernels run on the GPU.
        name: the pipeline's name, when the module holds several.
        externs: extern stages, by symbol.
        layout: which numpy axis each dimension is: ``image`` (the default: ``[y, x, c]`` is ``(x, y, c)``,
            others are reversed), ``reversed`` or ``same``.
        limits: of the sandbox, when no device is given.

    Raises:
        NotFoundError: there is no such file, or no such pipeline in it.
        FormatError: it is not WebAssembly, or its metadata is malformed.
        LinkError: it imports what nobody defines; all symbols are named.
        UnavailableError: linking an object needs a linker that is not installed.
        OutOfMemoryError, ClosedError
    """
    data, where = _read(source)
    data = _linked(data, where, name)
    module = wasm.decode(data, where=where)
    name = _choose(find_pipelines(module), name, where)
    place = place_of(device, limits=limits)
    with contextlib.ExitStack() as undo:
        owns_place = device is None or isinstance(device, str)
        if owns_place:
            undo.callback(place.close)
        with place.lock:
            place.check_open()
            pipeline = _load(place, data, module, name, externs or {}, _order(layout), owns_place)
        undo.pop_all()
    return pipeline


def read_signature(
    source: str | os.PathLike[str] | bytes | memoryview, *, name: str | None = None
) -> Signature:
    """What a pipeline takes and gives; pipelines with kernels need no device for that.

    Raises:
        As `load`.
    """
    data, where = _read(source)
    data = _linked(data, where, name)
    module = wasm.decode(data, where=where)
    name = _choose(find_pipelines(module), name, where)
    place = place_of(None)
    try:
        space = place.space
        runtime = runtime_of(space)
        imported = _imported_functions(module)
        symbols: dict[str, Any] = dict(runtime.symbols(imported))
        for symbol, function_type in imported.items():
            # Never called: metadata is data.
            if symbol not in symbols and symbol in DEVICE_SYMBOLS:
                symbols[symbol] = space.make_function(
                    function_type.parameters, function_type.results, _refuse
                )
        with space.load(data, name=name, symbols=symbols, public=False) as linked:
            return _signature(runtime, linked, name)
    finally:
        place.close()


def _refuse(*_: Any) -> Any:
    raise InvalidArgumentError("the pipeline was loaded for its signature only")


def _load(
    place: Place,
    data: bytes,
    module: wasm.Module,
    name: str,
    externs: Externs,
    order: AxisOrder,
    owns_place: bool,
) -> Pipeline:
    space = place.space
    runtime = runtime_of(space, place.workers)
    imported = _imported_functions(module)
    symbols: dict[str, Any] = dict(runtime.symbols(imported))
    if place.device_runtime is not None:
        symbols |= place.device_runtime.symbols(space, imported)
    elif not DEVICE_SYMBOLS.keys().isdisjoint(imported):
        raise InvalidArgumentError(f"pipeline {name} has kernels for WebGPU: load it with device='webgpu'")
    is_parallel = not PARALLEL_SYMBOLS.isdisjoint(imported)
    for symbol, target in externs.items():
        is_parallel = is_parallel or (isinstance(target, Pipeline) and target.is_parallel)
        symbols[symbol] = _extern(place, runtime, symbol, target, imported.get(symbol), order)
    linked = space.load(data, name=name, symbols=symbols, public=False)
    try:
        signature = _signature(runtime, linked, name)
        return Pipeline(
            place,
            runtime,
            linked,
            signature,
            entry=linked.slot_of(name + _ARGV),
            order=order,
            owns_place=owns_place,
            is_parallel=is_parallel,
        )
    except BaseException:
        linked.close()
        raise


def _signature(runtime: Runtime, linked: LinkedModule, name: str) -> Signature:
    function = linked.exports[name + _METADATA]
    argv = linked.exports[name + _ARGV]
    if list(function.parameter_types) or len(function.result_types) != 1:
        raise FormatError(f"{name}{_METADATA} is not of type [] -> [i32]", where=linked.name)
    if len(argv.parameter_types) != 1 or len(argv.result_types) != 1:
        raise FormatError(f"{name}{_ARGV} is not of type [i32] -> [i32]", where=linked.name)
    return read_metadata(runtime.memory, as_unsigned(int(function() or 0)))  # type: ignore[arg-type]


def _extern(
    place: Place,
    runtime: Runtime,
    symbol: str,
    target: Callable[..., Any] | Pipeline,
    function_type: FunctionType | None,
    order: AxisOrder,
) -> Function:
    if isinstance(target, Pipeline):
        if target.place.space is not place.space:
            raise InvalidArgumentError(f"the pipeline for extern stage {symbol} is on another device")
        return target.module.exports[target.name]
    if function_type is None:
        raise InvalidArgumentError(f"the pipeline has no extern stage {symbol!r}")
    function = extern_function(runtime, symbol, target, function_type, order)
    return place.space.make_function(function_type.parameters, function_type.results, function)


def _imported_functions(module: wasm.Module) -> dict[str, FunctionType]:
    return {
        item.name: module.types[item.description]
        for item in module.imports
        if item.kind is ExternKind.FUNCTION and isinstance(item.description, int)
    }


def _order(layout: AxisOrder | str) -> AxisOrder:
    try:
        return AxisOrder(layout)
    except ValueError as error:
        known = ", ".join(order.value for order in AxisOrder)
        raise InvalidArgumentError(f"layout {layout!r} is none of {known}") from error


def _read(source: str | os.PathLike[str] | bytes | memoryview) -> tuple[bytes, str]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), "pipeline"
    path = Path(source)
    try:
        return path.read_bytes(), path.name
    except OSError as error:
        raise NotFoundError(f"cannot read {path}: {error.strerror}") from error


def _linked(data: bytes, where: str, name: str | None) -> bytes:
    """The side module: ``data`` itself, or what the linker makes of an object."""
    if data[:4] != _MAGIC:
        raise FormatError("not WebAssembly: build pipelines for wasm-32-wasmrt", offset=0, where=where)
    module = wasm.decode(data, where=where)
    if not any(section.name == "linking" for section in module.customs):
        return data
    return link_object(data, names=[name] if name else None)


def _choose(found: Sequence[str], name: str | None, where: str) -> str:
    if name is not None:
        if name not in found:
            raise NotFoundError(f"{where} holds no pipeline {name!r}: it has {', '.join(found) or 'none'}")
        return name
    if not found:
        raise NotFoundError(f"{where} holds no Halide pipeline")
    if len(found) > 1:
        raise InvalidArgumentError(f"{where} holds several pipelines: name one of {', '.join(found)}")
    return found[0]
