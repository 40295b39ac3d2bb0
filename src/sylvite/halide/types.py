"""Halide's element types and numpy's dtypes.

Source: ``halide_type_t`` in ``HalideRuntime.h``.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError

__all__ = ["HalideType", "TypeCode", "plain_name"]

_UNIQUE = re.compile(r"\$\d+(?=\.|$)")


def plain_name(name: str) -> str:
    """A name as it was written: Halide makes the names of one process unique by adding ``$1``, ``$2``, ..."""
    return _UNIQUE.sub("", name)


class TypeCode(enum.IntEnum):
    """``halide_type_code_t``."""

    INT = 0
    UINT = 1
    FLOAT = 2
    HANDLE = 3
    BFLOAT = 4


_NAMES = {
    TypeCode.INT: "int",
    TypeCode.UINT: "uint",
    TypeCode.FLOAT: "float",
    TypeCode.HANDLE: "handle",
    TypeCode.BFLOAT: "bfloat",
}
_KINDS = {"i": TypeCode.INT, "u": TypeCode.UINT, "f": TypeCode.FLOAT}


@dataclasses.dataclass(frozen=True, slots=True)
class HalideType:
    """An element type: a code and a width in bits (1 to 64)."""

    code: TypeCode
    bits: int

    @property
    def byte_length(self) -> int:
        """Bytes an element takes in a buffer."""
        return (self.bits + 7) // 8

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of elements. ``bfloat16`` is ml_dtypes' when that is installed, else its raw bits
        as ``uint16``; handles are guest addresses, ``uint32``.

        Raises:
            InvalidArgumentError: numpy has no such type.
        """
        if self.code is TypeCode.UINT and self.bits == 1:
            return np.dtype(np.bool_)
        if self.code is TypeCode.BFLOAT and self.bits == 16:
            return _bfloat16()
        if self.code is TypeCode.HANDLE:
            return np.dtype(np.uint32)
        if self.bits not in (8, 16, 32, 64) or (self.code is TypeCode.FLOAT and self.bits == 8):
            raise InvalidArgumentError(f"numpy has no type for Halide's {self}")
        return np.dtype(f"{'iuf'[self.code]}{self.bits // 8}")

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> HalideType:
        """The type of elements of a dtype.

        Raises:
            InvalidArgumentError: Halide has no such type.
        """
        if dtype == np.bool_:
            return cls(TypeCode.UINT, 1)
        if dtype.name == "bfloat16":
            return cls(TypeCode.BFLOAT, 16)
        code = _KINDS.get(dtype.kind)
        if code is None or dtype.itemsize > 8 or not dtype.isnative:
            raise InvalidArgumentError(f"Halide has no type for dtype {dtype}")
        return cls(code, dtype.itemsize * 8)

    @classmethod
    def from_word(cls, word: int) -> HalideType:
        """From the 32 bits of a ``halide_type_t``; lanes are ignored. An unknown code becomes a handle."""
        code = word & 0xFF
        return cls(TypeCode(code) if code in _NAMES else TypeCode.HANDLE, (word >> 8) & 0xFF)

    def __str__(self) -> str:
        return f"{_NAMES[self.code]}{self.bits}"


def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16)
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found
