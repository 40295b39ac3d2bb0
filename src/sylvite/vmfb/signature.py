"""Function signatures as a person wrote them, from what the compiler keeps about them.

The front end stores the source declaration of each exported function in the attribute
``iree.abi.declaration``, meant for reading (``sync func @f(%x: tensor<4x?xf32>) -> (...)``), and the
invocation model in ``iree.abi.model``. Neither need be there, and a program may put anything into
the first; then the calling convention alone speaks.

Source: IREE's function ABI design page; the MLIR builtin type grammar.
"""

from __future__ import annotations

import dataclasses
import enum
import re

from .calling_convention import Span
from .isa import ValueType
from .module import FunctionDef

__all__ = ["Argument", "ArgumentKind", "Signature", "read_signature"]

DECLARATION = "iree.abi.declaration"
MODEL = "iree.abi.model"
ASYNC_MODEL = "coarse-fences"
ASYNC_SUFFIX = "$async"


class ArgumentKind(str, enum.Enum):
    """What an argument or result is to the caller."""

    TENSOR = "tensor"
    """A buffer view with a shape and an element type."""

    SCALAR = "scalar"
    """A number passed by value; ``element_type`` says which."""

    REFERENCE = "reference"
    """Any other object; ``type`` names it, as far as it is known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument or result.

    ``shape`` has None for dimensions that vary, and is None where nothing is known; ``element_type``
    is an MLIR type name (``f32``, ``complex<f32>``, ``index``); ``type`` is the type as declared.
    """

    name: str
    kind: ArgumentKind
    type: str
    shape: tuple[int | None, ...] | None = None
    element_type: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A function for callers. Asynchronous functions take two fences after ``inputs``: one to wait
    for and one to signal."""

    name: str
    is_async: bool
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    declaration: str | None = None

    def __str__(self) -> str:
        inputs, outputs = (
            ", ".join(f"%{argument.name}: {argument.type}" for argument in arguments)
            for arguments in (self.inputs, self.outputs)
        )
        return f"{'async' if self.is_async else 'sync'} func @{self.name}({inputs}) -> ({outputs})"


def read_signature(function: FunctionDef, name: str | None = None) -> Signature:
    """The signature of ``function``, exported as ``name`` (by default its own name).

    The declaration is used as far as it agrees with the calling convention.
    """
    name = name or function.name or f"fn{function.ordinal}"
    declaration = function.attrs.get(DECLARATION)
    is_async = (
        function.attrs.get(MODEL) == ASYNC_MODEL
        or (declaration or "").startswith("async ")
        or (MODEL not in function.attrs and declaration is None and name.endswith(ASYNC_SUFFIX))
    )
    convention = function.signature
    inputs = _from_convention("input", convention.arguments[: -2 if is_async else None])
    outputs = _from_convention("output", convention.results)
    if declaration is not None:
        declared = _parse_declaration(declaration)
        if declared is not None and _agree(declared[0], inputs) and _agree(declared[1], outputs):
            inputs, outputs = declared
    return Signature(name=name, is_async=is_async, inputs=inputs, outputs=outputs, declaration=declaration)


def _from_convention(prefix: str, values: tuple[ValueType | Span, ...]) -> tuple[Argument, ...]:
    arguments: list[Argument] = []
    for index, value in enumerate(values):
        name = f"{prefix}{index}"
        if isinstance(value, Span) or value is ValueType.REF:
            arguments.append(Argument(name=name, kind=ArgumentKind.REFERENCE, type="!vm.ref<?>"))
        else:
            arguments.append(_scalar(name, value.value))
    return tuple(arguments)


def _scalar(name: str, type_name: str) -> Argument:
    return Argument(name=name, kind=ArgumentKind.SCALAR, type=type_name, shape=(), element_type=type_name)


def _agree(declared: tuple[Argument, ...], actual: tuple[Argument, ...]) -> bool:
    """Whether a declaration has the registers that the calling convention has."""
    return len(declared) == len(actual) and all(
        (a.kind is ArgumentKind.SCALAR) == (b.kind is ArgumentKind.SCALAR)
        for a, b in zip(declared, actual, strict=True)
    )


# Declarations come from the file: everything here takes time linear in their length.
_SCALAR_PATTERN = re.compile(r"index|[su]?i\d+|bf16|tf32|f\d+\w*")
_DIMENSIONS_PATTERN = re.compile(r"(?:(?:\d{1,19}|\?)x)*")


def _parse_declaration(text: str) -> tuple[tuple[Argument, ...], tuple[Argument, ...]] | None:
    model, function, body = text.partition(" func @")
    inputs, arrow, outputs = body.partition("(")[2].rpartition(") -> (")
    if model not in ("sync", "async") or not function or not arrow or not outputs.endswith(")"):
        return None
    declared_inputs, declared_outputs = _parse_arguments(inputs), _parse_arguments(outputs[:-1])
    if declared_inputs is None or declared_outputs is None:
        return None
    return declared_inputs, declared_outputs


def _parse_arguments(text: str) -> tuple[Argument, ...] | None:
    arguments: list[Argument] = []
    for part in _split(text):
        name, separator, type_name = _without_attributes(part).rpartition(": ")
        if not separator or not name.startswith("%"):
            return None
        arguments.append(_argument(name[1:], type_name))
    return tuple(arguments)


def _argument(name: str, type_name: str) -> Argument:
    if _SCALAR_PATTERN.fullmatch(type_name):
        return _scalar(name, type_name)
    if not (type_name.startswith("tensor<") and type_name.endswith(">")):
        return Argument(name=name, kind=ArgumentKind.REFERENCE, type=type_name)
    body = type_name[len("tensor<") : -1].partition(", ")[0]
    match = _DIMENSIONS_PATTERN.match(body)
    end = match.end() if match else 0
    dimensions = body[:end].split("x")[:-1]
    return Argument(
        name=name,
        kind=ArgumentKind.TENSOR,
        type=type_name,
        shape=tuple(None if dimension == "?" else int(dimension) for dimension in dimensions),
        element_type=body[end:],
    )


def _split(text: str) -> list[str]:
    """Split at commas that are not within brackets."""
    parts: list[str] = []
    depth = start = 0
    for position, character in enumerate(text):
        if character in "<{[(":
            depth += 1
        elif character in ">}])" and not (character == ">" and text[position - 1 : position] == "-"):
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    rest = text[start:].strip()
    return [*parts, rest] if rest else parts


def _without_attributes(part: str) -> str:
    """A part without a trailing attribute dictionary."""
    return part.partition(" {")[0] if part.endswith("}") else part
