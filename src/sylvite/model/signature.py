"""What a function takes and gives: names, dtypes, shapes.

Three sources, in this order: the ONNX graph's names that `sylvite.compile` recorded in the module, IREE's
``iree.abi.declaration``, and the calling convention, which tells the number of values only.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..compile.artifact import NARROWED_ATTRIBUTE, SIGNATURE_ATTRIBUTE, ArgumentSpec, FunctionSpec
from ..errors import FormatError, InvalidArgumentError
from ..hal import ElementType, element_type_from_name, element_type_from_numpy
from ..vmfb import Argument as DeclaredArgument
from ..vmfb import ArgumentKind, FunctionDef, read_signature

__all__ = [
    "Argument",
    "Signature",
    "ValueKind",
    "describe_shape",
    "function_signature",
    "signature_from_spec",
]

_FROM_NUMPY_NAME = {
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
    "int4": "i4",
    "uint4": "ui4",
}


class ValueKind(enum.Enum):
    """What sort of value an argument is."""

    TENSOR = "tensor"
    INTEGER = "integer"
    FLOAT = "float"
    BUFFER = "buffer"
    REFERENCE = "reference"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One input or output.

    Args:
        name: its name in the source, or ``input0``, ``output0``, ...
        kind: what sort of value it is.
        element_type: type of a tensor's elements or of a scalar; ``None`` when the module does not say.
        shape: extents; ``None`` for an extent that is open, a string for one with a name; ``None``
            altogether when the module does not say, and for scalars.
        narrowed: the program computes with 32 of its 64 bits; values that need more are refused.
    """

    name: str
    kind: ValueKind
    element_type: ElementType | None = None
    shape: tuple[int | str | None, ...] | None = None
    narrowed: bool = False

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy dtype, where numpy has one."""
        if self.element_type is None or not self.element_type.is_byte_aligned:
            return None
        return self.element_type.numpy_dtype

    def describe(self) -> str:
        """Type and shape for messages: ``float32[1, N]``."""
        if self.element_type is None:
            return self.kind.value
        dtype = self.dtype
        name = self.element_type.name if dtype is None else str(dtype)
        if self.kind is not ValueKind.TENSOR:
            return name
        return name if self.shape is None else describe_shape(name, self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.describe()}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs and outputs of a function, in order."""

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Bring positional and keyword inputs into order.

        Raises:
            InvalidArgumentError: too many, too few, unknown, or one given twice.
        """
        if len(args) > len(self.inputs):
            raise InvalidArgumentError(f"{self} takes {len(self.inputs)} inputs, got {len(args)}")
        names = [argument.name for argument in self.inputs]
        unknown = [name for name in kwargs if name not in names]
        if unknown:
            raise InvalidArgumentError(
                f"{self.name} has no input {', '.join(map(repr, unknown))}; it is {self}"
            )
        values = dict(zip(names, args, strict=False))
        twice = [name for name in kwargs if name in values]
        if twice:
            raise InvalidArgumentError(f"input {twice[0]!r} of {self.name} is given by position and by name")
        values.update(kwargs)
        missing = [name for name in names if name not in values]
        if missing:
            raise InvalidArgumentError(f"inputs missing: {', '.join(missing)}; {self}")
        return [values[name] for name in names]

    def __str__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        outputs = ", ".join(map(str, self.outputs))
        return f"{self.name}({inputs}) -> ({outputs})"


def describe_shape(name: str, shape: Sequence[int | str | None]) -> str:
    """``float32[1, N]`` for messages."""
    return f"{name}[{', '.join('?' if extent is None else str(extent) for extent in shape)}]"


def signature_from_spec(spec: FunctionSpec) -> Signature:
    """The signature that a compile recorded.

    Raises:
        FormatError: it names a dtype that does not exist.
    """
    return Signature(
        name=spec.name,
        inputs=tuple(map(_argument_from_spec, spec.inputs)),
        outputs=tuple(map(_argument_from_spec, spec.outputs)),
    )


def _argument_from_spec(spec: ArgumentSpec) -> Argument:
    return Argument(
        name=spec.name, kind=ValueKind.TENSOR, element_type=_element_type(spec.dtype), shape=spec.shape
    )


def _element_type(dtype: str) -> ElementType:
    try:
        if dtype in _FROM_NUMPY_NAME:
            return element_type_from_name(_FROM_NUMPY_NAME[dtype])
        return element_type_from_numpy(np.dtype(dtype))
    except (TypeError, InvalidArgumentError) as error:
        raise FormatError(f"unknown dtype {dtype!r:.100}", where=SIGNATURE_ATTRIBUTE) from error


def function_signature(function: FunctionDef, name: str) -> tuple[Signature, bool]:
    """The signature of an exported function, and whether it takes and signals fences.

    Raises:
        FormatError: the recorded signature is malformed.
    """
    declared = read_signature(function, name)
    recorded = function.attrs.get(SIGNATURE_ATTRIBUTE)
    if recorded is not None:
        spec = signature_from_spec(FunctionSpec.parse(recorded))
        counts = (len(spec.inputs), len(spec.outputs))
        if counts == (len(declared.inputs), len(declared.outputs)):
            if NARROWED_ATTRIBUTE in function.attrs:
                spec = dataclasses.replace(spec, inputs=tuple(map(_narrowed, spec.inputs)))
            return dataclasses.replace(spec, name=name), declared.is_async
    signature = Signature(
        name=name,
        inputs=tuple(map(_argument_from_declaration, declared.inputs)),
        outputs=tuple(map(_argument_from_declaration, declared.outputs)),
    )
    return signature, declared.is_async


def _narrowed(argument: Argument) -> Argument:
    element_type = argument.element_type
    is_wide = element_type is not None and element_type.is_integer and element_type.bit_count == 64
    return dataclasses.replace(argument, narrowed=is_wide)


def _argument_from_declaration(argument: DeclaredArgument) -> Argument:
    kind, element_type = _kind(argument)
    is_tensor = kind is ValueKind.TENSOR
    return Argument(
        name=argument.name, kind=kind, element_type=element_type, shape=argument.shape if is_tensor else None
    )


def _kind(argument: DeclaredArgument) -> tuple[ValueKind, ElementType | None]:
    name = argument.element_type or ""
    if argument.kind is ArgumentKind.REFERENCE:
        is_buffer = argument.type in ("!vm.buffer", "!util.buffer")
        return (ValueKind.BUFFER if is_buffer else ValueKind.REFERENCE), None
    try:
        element_type = element_type_from_name("i64" if name == "index" else name)
    except InvalidArgumentError:
        element_type = None  # a type of a dialect we have no numbers for; the program checks it
    if argument.kind is ArgumentKind.TENSOR:
        return ValueKind.TENSOR, element_type
    is_float = element_type is not None and element_type.is_float
    return (ValueKind.FLOAT if is_float else ValueKind.INTEGER), element_type
