"""``NAME_metadata()``: what a pipeline says about itself, as a signature.

Source: ``HalideRuntime.h``: ``halide_filter_metadata_t``, ``halide_filter_argument_t``.
"""

from __future__ import annotations

import collections
import dataclasses
import struct
from typing import Final

from ..errors import FormatError, InvalidArgumentError, UnsupportedVersionError
from . import layouts
from .guest_memory import GuestMemory
from .layouts import ArgumentKind
from .types import HalideType, TypeCode, plain_name

__all__ = ["Argument", "Number", "Signature", "read_metadata"]

Number = int | float | bool

_MOST_ARGUMENTS: Final = 4096
_MOST_DIMENSIONS: Final = 64
_SCALAR_FORMATS: Final = {
    (TypeCode.UINT, 1): "?",
    (TypeCode.INT, 8): "b",
    (TypeCode.UINT, 8): "B",
    (TypeCode.INT, 16): "h",
    (TypeCode.UINT, 16): "H",
    (TypeCode.INT, 32): "i",
    (TypeCode.UINT, 32): "I",
    (TypeCode.INT, 64): "q",
    (TypeCode.UINT, 64): "Q",
    (TypeCode.FLOAT, 16): "e",
    (TypeCode.FLOAT, 32): "f",
    (TypeCode.FLOAT, 64): "d",
    (TypeCode.HANDLE, 64): "Q",
    (TypeCode.HANDLE, 32): "I",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a pipeline.

    Args:
        name: its name.
        kind: scalar, input buffer or output buffer.
        type: element or scalar type.
        dimensions: of a buffer.
        default, minimum, maximum, estimate: of a scalar, when stated.
        estimates: of a buffer: (min, extent) per dimension in Halide's order, when stated.
    """

    name: str
    kind: ArgumentKind
    type: HalideType
    dimensions: int
    default: Number | None = None
    minimum: Number | None = None
    maximum: Number | None = None
    estimate: Number | None = None
    estimates: tuple[tuple[int, int], ...] | None = None

    @property
    def is_buffer(self) -> bool:
        """Whether it is an input or output buffer."""
        return self.kind is not ArgumentKind.SCALAR

    @property
    def scalar_format(self) -> str:
        """Code of the scalar's type in the struct module.

        Raises:
            InvalidArgumentError: scalars of that type cannot be passed.
        """
        layout = _SCALAR_FORMATS.get((self.type.code, self.type.bits))
        if layout is None:
            raise InvalidArgumentError(f"scalars of type {self.type} cannot be passed ({self.name})")
        return layout

    def __str__(self) -> str:
        if self.is_buffer:
            return f"{self.name}: {self.type}[{self.dimensions}d]"
        limits = "" if self.minimum is None and self.maximum is None else self._limits()
        default = "" if self.default is None else f" = {self.default}"
        return f"{self.name}: {self.type}{limits}{default}"

    def _limits(self) -> str:
        low = "" if self.minimum is None else str(self.minimum)
        high = "" if self.maximum is None else str(self.maximum)
        return f" in {low}..{high}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a pipeline takes and gives. ``target`` is Halide's target string."""

    name: str
    target: str
    arguments: tuple[Argument, ...]

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """Input buffers, in order."""
        return tuple(a for a in self.arguments if a.kind is ArgumentKind.INPUT)

    @property
    def scalars(self) -> tuple[Argument, ...]:
        """Scalars, in order."""
        return tuple(a for a in self.arguments if a.kind is ArgumentKind.SCALAR)

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """Output buffers, in order."""
        return tuple(a for a in self.arguments if a.kind is ArgumentKind.OUTPUT)

    def __str__(self) -> str:
        given = ", ".join(str(a) for a in self.arguments if a.kind is not ArgumentKind.OUTPUT)
        return f"{self.name}({given}) -> {', '.join(map(str, self.outputs))}"


def read_metadata(memory: GuestMemory, address: int) -> Signature:
    """The signature at a guest address.

    Raises:
        FormatError: the metadata is malformed or points outside the memory.
        UnsupportedVersionError: it has another version.
    """
    where = "halide_filter_metadata_t"
    try:
        layout = layouts.FILTER_METADATA
        head = layout.unpack_from(memory.read(address, layout.byte_length))
        if head["version"] != layouts.METADATA_VERSION:
            message = f"metadata of version {head['version']}, this release reads {layouts.METADATA_VERSION}"
            raise UnsupportedVersionError(message, where=where)
        count = head["num_arguments"]
        if not 0 <= count <= _MOST_ARGUMENTS:
            raise FormatError(f"{count} arguments", where=where)
        if count and not head["arguments"]:
            raise FormatError(f"{count} arguments at the null pointer", where=where)
        size = layouts.FILTER_ARGUMENT.byte_length
        found = [_argument(memory, head["arguments"] + i * size) for i in range(count)]
        return Signature(
            name=memory.text(head["name"]),
            target=memory.text(head["target"]),
            arguments=tuple(_with_plain_names(found)),
        )
    except (InvalidArgumentError, struct.error) as error:
        raise FormatError(f"malformed metadata: {error}", where=where) from error


def _with_plain_names(arguments: list[Argument]) -> list[Argument]:
    """The arguments under the names they were written with, where those tell them apart."""
    counts = collections.Counter(plain_name(argument.name) for argument in arguments)
    return [
        dataclasses.replace(argument, name=plain_name(argument.name))
        if counts[plain_name(argument.name)] == 1
        else argument
        for argument in arguments
    ]


def _argument(memory: GuestMemory, address: int) -> Argument:
    layout = layouts.FILTER_ARGUMENT
    raw = layout.unpack_from(memory.read(address, layout.byte_length))
    where = "halide_filter_argument_t"
    try:
        kind = ArgumentKind(raw["kind"])
        code = TypeCode(raw["type.code"])
    except ValueError as error:
        raise FormatError(f"argument of an unknown kind or type: {error}", where=where) from error
    if not 0 <= raw["dimensions"] <= _MOST_DIMENSIONS:
        raise FormatError(f"a buffer of {raw['dimensions']} dimensions", where=where)
    bare = Argument(
        name=memory.text(raw["name"]),
        kind=kind,
        type=HalideType(code, raw["type.bits"]),
        dimensions=raw["dimensions"],
    )
    if bare.is_buffer:
        estimates = _estimates(memory, raw["buffer_estimates"], bare.dimensions)
        return dataclasses.replace(bare, estimates=estimates)
    values = {
        field: _scalar(memory, raw[f"scalar_{short}"], bare)
        for field, short in (
            ("default", "def"),
            ("minimum", "min"),
            ("maximum", "max"),
            ("estimate", "estimate"),
        )
    }
    return dataclasses.replace(bare, **values)  # type: ignore[arg-type]


def _scalar(memory: GuestMemory, address: int, argument: Argument) -> Number | None:
    if not address or argument.type.code is TypeCode.HANDLE:
        return None
    value: Number = memory.unpack(argument.scalar_format, address)[0]
    return value


def _estimates(memory: GuestMemory, address: int, dimensions: int) -> tuple[tuple[int, int], ...] | None:
    if not address:
        return None
    pointers = memory.pointers(address, 2 * dimensions)
    if not all(pointers):
        return None
    values = [int(memory.unpack("q", pointer)[0]) for pointer in pointers]
    return tuple(zip(values[::2], values[1::2], strict=True))
