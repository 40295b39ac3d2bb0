"""What a compile leaves behind, and its description in JSON.

The names, shapes and dtypes of an ONNX graph travel inside the .vmfb as a reflection attribute of each
function (``sylvite.signature``), so a bare .vmfb needs no file beside it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import FormatError

__all__ = ["NARROWED_ATTRIBUTE", "SIGNATURE_ATTRIBUTE", "ArgumentSpec", "Artifact", "FunctionSpec"]

SIGNATURE_ATTRIBUTE = "sylvite.signature"
"""Reflection attribute that holds a `FunctionSpec` in JSON."""

NARROWED_ATTRIBUTE: Final = "sylvite.narrowed"
"""Reflection attribute of functions that compute with 32 bits where their signature says 64."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentSpec:
    """One input or output of a function.

    Args:
        name: the name in the source graph.
        dtype: numpy's (or ml_dtypes') name of the element type, such as ``float32`` or ``bfloat16``.
        shape: extents; an int, or the name of a symbolic dim; ``None`` when even the rank is unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": None if self.shape is None else [*self.shape],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ArgumentSpec:
        """The inverse of `to_json`.

        Raises:
            FormatError: a member is missing or of another type.
        """
        try:
            name, dtype, shape = value["name"], value["dtype"], value["shape"]
        except (KeyError, TypeError) as error:
            raise FormatError(f"argument description lacks {error}", where=SIGNATURE_ATTRIBUTE) from error
        extents = shape if isinstance(shape, list) else []
        well_formed = (
            isinstance(name, str)
            and isinstance(dtype, str)
            and (shape is None or isinstance(shape, list))
            and all(isinstance(extent, int | str) for extent in extents)
        )
        if not well_formed:
            raise FormatError(f"malformed argument description {value!r:.200}", where=SIGNATURE_ATTRIBUTE)
        return cls(name=name, dtype=dtype, shape=None if shape is None else tuple(extents))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec:
    """A function of the source graph with its inputs and outputs in order."""

    name: str
    inputs: tuple[ArgumentSpec, ...]
    outputs: tuple[ArgumentSpec, ...]

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return {
            "name": self.name,
            "inputs": [argument.to_json() for argument in self.inputs],
            "outputs": [argument.to_json() for argument in self.outputs],
        }

    @classmethod
    def from_json(cls, value: Any) -> FunctionSpec:
        """The inverse of `to_json`.

        Raises:
            FormatError: a member is missing or of another type.
        """
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise FormatError("malformed function description", where=SIGNATURE_ATTRIBUTE)
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list):
            raise FormatError("function description lacks inputs or outputs", where=SIGNATURE_ATTRIBUTE)
        return cls(
            name=value["name"],
            inputs=tuple(map(ArgumentSpec.from_json, inputs)),
            outputs=tuple(map(ArgumentSpec.from_json, outputs)),
        )

    @classmethod
    def parse(cls, text: str) -> FunctionSpec:
        """Read the value of `SIGNATURE_ATTRIBUTE`.

        Raises:
            FormatError: it is not JSON, or not such a description.
        """
        try:
            value = json.loads(text)
        except ValueError as error:
            raise FormatError(f"not JSON: {error}", where=SIGNATURE_ATTRIBUTE) from error
        return cls.from_json(value)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A compiled module on disk.

    Args:
        path: the .vmfb archive.
        parameters: external parameter files, to be given to ``load`` as scope ``parameter_scope``.
        target: the name of the target it was compiled for.
        features: WebAssembly features (or CPU features) the code may use.
        functions: the functions of an ONNX graph; empty for MLIR, whose names are in the archive itself.
        notes: what was done differently from what was asked, and why (such as a failed simplification).
        log_path: everything the tools said.
        cached: whether the cache answered.
        seconds: how long each phase took when it was compiled, by phase name.
        compiler: name and release of the compiler.
        key: content hash of the source, the options and the compiler.
    """

    path: Path
    parameters: tuple[Path, ...]
    parameter_scope: str
    target: str
    features: tuple[str, ...]
    functions: tuple[FunctionSpec, ...]
    notes: tuple[str, ...]
    log_path: Path
    cached: bool
    seconds: Mapping[str, float]
    compiler: str
    key: str

    @property
    def log(self) -> str:
        """Everything the tools said."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values; paths as strings."""
        return {
            "path": str(self.path),
            "parameters": [str(path) for path in self.parameters],
            "parameter_scope": self.parameter_scope,
            "target": self.target,
            "features": list(self.features),
            "functions": [function.to_json() for function in self.functions],
            "notes": list(self.notes),
            "log_path": str(self.log_path),
            "cached": self.cached,
            "seconds": dict(self.seconds),
            "compiler": self.compiler,
            "key": self.key,
        }
