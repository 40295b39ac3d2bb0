"""What `load` is given, and how it becomes an archive with its parameters."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..compile.artifact import Artifact
from ..errors import InvalidArgumentError, NotFoundError, UnavailableError
from ..hal import Device
from ..vm.parameters import ParameterIndex, ParameterProvider, index_arrays, open_parameters, open_providers
from ..vmfb import Archive, open_archive
from ..vmfb.recognize import is_archive_head

__all__ = [
    "ModuleSource",
    "Parameters",
    "compile_target",
    "is_module",
    "module_source",
    "open_parameter_providers",
]

Parameters: TypeAlias = (
    "str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Mapping[str, Any] | ParameterIndex"
)
"""``path``, ``scope=path``, several of them, or a mapping of scopes to paths, indices or arrays by key."""

_WASM_FORMAT = "system-wasm-wasm_32"
_SPIRV_FORMAT = "vulkan-spirv-fb"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSource:
    """A compiled module: a file, or its bytes, and the parameter files that belong to it by scope."""

    path: Path | None
    data: bytes | memoryview | None
    parameters: tuple[tuple[str, Path], ...] = ()

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> ModuleSource:
        """The module that a compile left."""
        parameters = tuple((artifact.parameter_scope, path) for path in artifact.parameters)
        return cls(path=artifact.path, data=None, parameters=parameters)

    @classmethod
    def from_path(cls, path: Path) -> ModuleSource:
        """A .vmfb; a parameter file of the same stem beside it, as ``compile`` leaves it, belongs to it."""
        beside = path.with_suffix(".irpa")
        try:
            parameters = (("model", beside),) if beside.is_file() else ()
        except OSError:
            parameters = ()  # `open` says what is wrong with the path
        return cls(path=path, data=None, parameters=parameters)

    def open(self) -> Archive:
        """Open the archive; its bytecode is left to be verified.

        Raises:
            NotFoundError, FormatError
        """
        if self.path is None:
            return open_archive(self.data if self.data is not None else b"", verify=False)
        try:
            if not self.path.exists():
                raise NotFoundError(f"no such file: {self.path}")
            return open_archive(self.path, verify=False)
        except OSError as error:
            raise NotFoundError(f"cannot open {str(self.path)[:200]}: {error.strerror}") from error


def is_module(source: Any) -> bool:
    """Whether ``source`` is compiled already."""
    if isinstance(source, Artifact | ModuleSource):
        return True
    if isinstance(source, bytes | bytearray | memoryview):
        return is_archive_head(bytes(source)[:12])
    if isinstance(source, str | os.PathLike) and "\n" not in os.fspath(source):
        return Path(source).suffix.lower() == ".vmfb" or _looks_like_module(Path(source))
    return False


def _looks_like_module(path: Path) -> bool:
    # A torch program (.pt2) is a zip too.
    if path.suffix.lower() not in ("", ".bin", ".zip"):
        return False
    try:
        with path.open("rb") as file:
            return path.is_file() and is_archive_head(file.read(12))
    except (OSError, ValueError):
        return False  # whoever opens it to compile it says what is wrong


def module_source(source: Any) -> ModuleSource:
    """The module that ``source`` is; it must satisfy `is_module`."""
    if isinstance(source, ModuleSource):
        return source
    if isinstance(source, Artifact):
        return ModuleSource.from_artifact(source)
    if isinstance(source, str | os.PathLike):
        return ModuleSource.from_path(Path(source))
    return ModuleSource(path=None, data=bytes(source))


def compile_target(device: Device) -> str:
    """The compile target whose code ``device`` runs.

    Raises:
        UnavailableError: none does.
    """
    if device.can_load(_WASM_FORMAT):
        return "wasm32"
    if device.can_load(_SPIRV_FORMAT):
        return "webgpu"
    raise UnavailableError(f"no compile target for device {device.identifier}; load a compiled module")


def open_parameter_providers(
    parameters: Parameters | None, belonging: Sequence[tuple[str, Path]]
) -> list[ParameterProvider]:
    """Open what the caller gave, and for scopes the caller did not give, what belongs to the module.

    Raises:
        NotFoundError, FormatError, InvalidArgumentError
    """
    providers = _open_given(parameters)
    given = {provider.scope for provider in providers}
    flags = [f"{scope}={path}" for scope, path in belonging if scope not in given]
    try:
        return [*providers, *open_providers(flags)]
    except BaseException:
        for provider in providers:
            provider.close()
        raise


def _open_given(parameters: Parameters | None) -> list[ParameterProvider]:
    if parameters is None:
        return []
    if isinstance(parameters, str | os.PathLike):
        return open_providers([parameters])
    if isinstance(parameters, ParameterIndex):
        return [ParameterProvider("", parameters)]
    if isinstance(parameters, Mapping):
        return [ParameterProvider(scope, _index(scope, value)) for scope, value in parameters.items()]
    if isinstance(parameters, bytes | bytearray) or not isinstance(parameters, Iterable):
        raise InvalidArgumentError(
            f"parameters must be a path, several, or a mapping by scope, not {type(parameters).__name__}"
        )
    given = list(parameters)
    for one in given:
        if not isinstance(one, str | os.PathLike):
            raise InvalidArgumentError(f"a parameter file must be given as a path, not {type(one).__name__}")
    return open_providers(given)


def _index(scope: str, value: Any) -> ParameterIndex:
    if isinstance(value, ParameterIndex):
        return value
    if isinstance(value, str | os.PathLike):
        return open_parameters(value)
    if isinstance(value, Mapping) and all(isinstance(array, np.ndarray) for array in value.values()):
        return index_arrays(value)
    if isinstance(value, Sequence):
        merged = ParameterIndex()
        for path in value:
            merged.merge(open_parameters(path))
        return merged
    raise InvalidArgumentError(
        f"parameters of scope {scope!r} must be a path, paths, a ParameterIndex or a mapping of arrays, "
        f"not {type(value).__name__}"
    )
