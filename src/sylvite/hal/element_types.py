"""Element types: IREE's 32-bit encoding, MLIR's names and numpy's dtypes, in one table.

The encoding is ``numerical_type << 24 | bit_count``. Integers come signless (``i32``), signed (``si32``)
and unsigned (``ui32``). Signless integers become signed numpy integers, since that is what MLIR's
arithmetic on them most often means. ``i1`` occupies a byte per element and becomes ``numpy.bool_``.
Types that numpy lacks (bf16, 8-bit floats) use ``ml_dtypes`` when it is installed and otherwise appear
as unsigned integers of the same width. Elements under a byte (``i4``) are packed, low bits first.

Source: ``iree/hal/buffer_view.h``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError

__all__ = [
    "ELEMENT_TYPES",
    "ElementType",
    "NumericalType",
    "element_type_from_name",
    "element_type_from_numpy",
    "element_type_from_value",
]


class NumericalType(enum.IntEnum):
    """The high byte of an element type."""

    UNKNOWN = 0x00
    INTEGER = 0x10
    INTEGER_SIGNED = 0x11
    INTEGER_UNSIGNED = 0x12
    BOOLEAN = 0x13
    FLOAT = 0x20
    FLOAT_IEEE = 0x21
    FLOAT_BRAIN = 0x22
    FLOAT_COMPLEX = 0x23
    FLOAT_8_E5M2 = 0x24
    FLOAT_8_E4M3_FN = 0x25
    FLOAT_8_E5M2_FNUZ = 0x26
    FLOAT_8_E4M3_FNUZ = 0x27
    FLOAT_8_E8M0_FNU = 0x28


@dataclasses.dataclass(frozen=True, slots=True)
class ElementType:
    """The type of one tensor element.

    Args:
        numerical_type: what the bits mean.
        bit_count: width of one element in memory, in bits.
    """

    numerical_type: NumericalType
    bit_count: int

    @property
    def value(self) -> int:
        """IREE's 32-bit encoding."""
        return self.numerical_type << 24 | self.bit_count

    @property
    def name(self) -> str:
        """MLIR's name (``f32``, ``i1``), or IREE's where MLIR has none (``opaque8``, ``*8``)."""
        known = _NAMES.get(self)
        return known if known is not None else f"0x{self.value:08x}"

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers or booleans."""
        return bool(self.numerical_type & NumericalType.INTEGER)

    @property
    def is_float(self) -> bool:
        """Whether elements are real or complex floating-point numbers."""
        return bool(self.numerical_type & NumericalType.FLOAT)

    @property
    def is_byte_aligned(self) -> bool:
        """Whether an element fills whole bytes; otherwise several share one."""
        return self.bit_count > 0 and self.bit_count % 8 == 0

    def is_compatible_with(self, other: ElementType) -> bool:
        """Whether values of one may stand for the other: equal, or integers of one width (``i32`` and
        ``ui32`` differ only in how a reader takes them)."""
        if self == other:
            return True
        return self.bit_count == other.bit_count and self.is_integer and other.is_integer

    def byte_length(self, shape: Sequence[int]) -> int:
        """Bytes that a dense array of this shape takes; elements under a byte are packed."""
        return (math.prod(shape) * self.bit_count + 7) // 8

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The numpy dtype that has this layout.

        Raises:
            InvalidArgumentError: elements do not fill whole bytes, or the type is unknown.
        """
        return _numpy_dtype(self)

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    numerical_type: NumericalType
    bit_count: int
    numpy_name: str | None = None
    extension_name: str | None = None
    fallback_name: str | None = None
    primary: bool = True


def _row(
    name: str,
    numerical_type: NumericalType,
    bit_count: int,
    numpy_name: str | None = None,
    *,
    extension: str | None = None,
    fallback: str | None = None,
    primary: bool = True,
) -> _Row:
    return _Row(
        name=name,
        numerical_type=numerical_type,
        bit_count=bit_count,
        numpy_name=numpy_name,
        extension_name=extension,
        fallback_name=fallback,
        primary=primary,
    )


_N = NumericalType
# ``primary`` rows answer "which element type has this numpy dtype": signed dtypes are signless MLIR
# integers (what compilers emit for them), unsigned ones likewise, as IREE's own tools treat them.
_TABLE: tuple[_Row, ...] = (
    _row("i1", _N.BOOLEAN, 8, "bool"),
    _row("i4", _N.INTEGER, 4),
    _row("si4", _N.INTEGER_SIGNED, 4),
    _row("ui4", _N.INTEGER_UNSIGNED, 4),
    _row("i8", _N.INTEGER, 8, "int8"),
    _row("si8", _N.INTEGER_SIGNED, 8, "int8", primary=False),
    _row("ui8", _N.INTEGER_UNSIGNED, 8, "uint8"),
    _row("i16", _N.INTEGER, 16, "int16"),
    _row("si16", _N.INTEGER_SIGNED, 16, "int16", primary=False),
    _row("ui16", _N.INTEGER_UNSIGNED, 16, "uint16"),
    _row("i32", _N.INTEGER, 32, "int32"),
    _row("si32", _N.INTEGER_SIGNED, 32, "int32", primary=False),
    _row("ui32", _N.INTEGER_UNSIGNED, 32, "uint32"),
    _row("i64", _N.INTEGER, 64, "int64"),
    _row("si64", _N.INTEGER_SIGNED, 64, "int64", primary=False),
    _row("ui64", _N.INTEGER_UNSIGNED, 64, "uint64"),
    _row("f16", _N.FLOAT_IEEE, 16, "float16"),
    _row("f32", _N.FLOAT_IEEE, 32, "float32"),
    _row("f64", _N.FLOAT_IEEE, 64, "float64"),
    _row("bf16", _N.FLOAT_BRAIN, 16, extension="bfloat16", fallback="uint16"),
    _row("complex<f32>", _N.FLOAT_COMPLEX, 64, "complex64"),
    _row("complex<f64>", _N.FLOAT_COMPLEX, 128, "complex128"),
    _row("f8E5M2", _N.FLOAT_8_E5M2, 8, extension="float8_e5m2", fallback="uint8"),
    _row("f8E4M3FN", _N.FLOAT_8_E4M3_FN, 8, extension="float8_e4m3fn", fallback="uint8"),
    _row("f8E5M2FNUZ", _N.FLOAT_8_E5M2_FNUZ, 8, extension="float8_e5m2fnuz", fallback="uint8"),
    _row("f8E4M3FNUZ", _N.FLOAT_8_E4M3_FNUZ, 8, extension="float8_e4m3fnuz", fallback="uint8"),
    _row("f8E8M0FNU", _N.FLOAT_8_E8M0_FNU, 8, extension="float8_e8m0fnu", fallback="uint8"),
    _row("opaque8", _N.UNKNOWN, 8, "V1"),
    _row("opaque16", _N.UNKNOWN, 16, "V2"),
    _row("opaque32", _N.UNKNOWN, 32, "V4"),
    _row("opaque64", _N.UNKNOWN, 64, "V8"),
)
_ROWS = {ElementType(row.numerical_type, row.bit_count): row for row in _TABLE}
_NAMES = {element_type: row.name for element_type, row in _ROWS.items()}
_BY_NAME = {row.name: element_type for element_type, row in _ROWS.items()}
# IREE's tools spell some types in another way than MLIR: cf64 (both parts together), x8 or *8 (opaque).
_IREE_PREFIXES = {
    "i": _N.INTEGER,
    "si": _N.INTEGER_SIGNED,
    "ui": _N.INTEGER_UNSIGNED,
    "f": _N.FLOAT_IEEE,
    "bf": _N.FLOAT_BRAIN,
    "cf": _N.FLOAT_COMPLEX,
    "x": _N.UNKNOWN,
    "*": _N.UNKNOWN,
}
_IREE_NAME = re.compile(r"([a-z]+|\*)([0-9]{1,3})")

ELEMENT_TYPES: tuple[ElementType, ...] = tuple(_ROWS)
"""Every element type with a name."""


@functools.cache
def _extension_dtype(name: str) -> np.dtype[Any] | None:
    """A dtype of ml_dtypes, when that package is installed and has it."""
    try:
        module = importlib.import_module("ml_dtypes")
    except ImportError:
        return None
    scalar_type = getattr(module, name, None)
    return None if scalar_type is None else np.dtype(scalar_type)


@functools.cache
def _numpy_dtype(element_type: ElementType) -> np.dtype[Any]:
    row = _ROWS.get(element_type)
    if row is None:
        raise InvalidArgumentError(f"element type {element_type.name} has no numpy dtype")
    if row.numpy_name is not None:
        return np.dtype(row.numpy_name)
    if row.extension_name is not None:
        extension = _extension_dtype(row.extension_name)
        return extension if extension is not None else np.dtype(row.fallback_name)
    raise InvalidArgumentError(
        f"elements of type {row.name} take {row.bit_count} bits, less than a byte, so no numpy dtype "
        "has their layout; read the packed bytes from the buffer or use BufferView.unpack()"
    )


@functools.cache
def _by_dtype() -> dict[np.dtype[Any], ElementType]:
    found: dict[np.dtype[Any], ElementType] = {}
    for element_type, row in _ROWS.items():
        dtype: np.dtype[Any] | None = None
        if row.numpy_name is not None and row.primary:
            dtype = np.dtype(row.numpy_name)
        elif row.extension_name is not None:
            dtype = _extension_dtype(row.extension_name)
        if dtype is not None:
            found[dtype] = element_type
    return found


def element_type_from_numpy(dtype: Any) -> ElementType:
    """The element type of arrays of this dtype; signed integers become signless ones.

    Raises:
        InvalidArgumentError: no element type has this layout (strings, objects, records, big endian).
    """
    wanted = np.dtype(dtype)
    found = _by_dtype().get(wanted)
    if found is None:
        raise InvalidArgumentError(f"numpy dtype {wanted!s} ({wanted.str}) has no element type")
    return found


def element_type_from_name(name: str) -> ElementType:
    """The element type with this name of MLIR (``complex<f32>``) or of IREE's tools (``cf64``).

    Raises:
        InvalidArgumentError: there is none.
    """
    found = _BY_NAME.get(name)
    if found is not None:
        return found
    match = _IREE_NAME.fullmatch(name)
    if match is not None and match[1] in _IREE_PREFIXES and 0 < int(match[2]) <= 255:
        return ElementType(_IREE_PREFIXES[match[1]], int(match[2]))
    raise InvalidArgumentError(f"unknown element type {name!r}; known are {', '.join(_BY_NAME)}")


def element_type_from_value(value: int) -> ElementType:
    """The element type with this encoding; an unnamed width of a known numerical type is accepted.

    Raises:
        InvalidArgumentError: the numerical type is unknown or reserved bits are set.
    """
    unsigned = value & 0xFFFFFFFF
    if unsigned & 0x00FFFF00:
        raise InvalidArgumentError(f"element type {unsigned:#010x} has reserved bits set")
    try:
        numerical_type = NumericalType(unsigned >> 24)
    except ValueError as error:
        raise InvalidArgumentError(f"element type {unsigned:#010x} has an unknown numerical type") from error
    return ElementType(numerical_type, unsigned & 0xFF)
