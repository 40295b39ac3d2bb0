"""Expressions, and constants as WGSL writes them."""

from __future__ import annotations

import dataclasses
import struct
from typing import Final

from .types import Type, scalar_type

__all__ = ["Value", "float_literal", "integer_literal", "zero"]

_SMALLEST_NORMAL: Final = {32: 2.0**-126, 16: 2.0**-14}


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """An expression.

    Args:
        text: WGSL.
        type: its type.
        is_atom: whether it needs no parentheses as an operand.
        is_constant: whether WGSL evaluates it when it compiles the shader; operations on such values must
            not overflow, divide by zero and the like.
        reads_memory: whether a store, barrier or call may change it.
        components: a vector's components when they are known one by one.
    """

    text: str
    type: Type
    is_atom: bool = False
    is_constant: bool = False
    reads_memory: bool = False
    components: tuple[str, ...] | None = None

    @property
    def operand(self) -> str:
        """The text as an operand or before a postfix."""
        return self.text if self.is_atom else f"({self.text})"


def integer_literal(kind: str, bits: int) -> Value:
    """A literal of ``u32`` or ``i32``."""
    bits &= 0xFFFFFFFF
    if kind == "u32":
        return Value(f"{bits}u", scalar_type(kind), True, True)
    number = bits - (1 << 32) if bits >> 31 else bits
    text = f"i32({number})" if number == -(1 << 31) else f"{number}i"
    return Value(text, scalar_type(kind), number >= 0 or number == -(1 << 31), True)


def float_literal(bits: int, width: int) -> str | None:
    """A literal with exactly these bits; None when WGSL has none (NaN, infinities, subnormals)."""
    code = {16: "<e", 32: "<f"}[width]
    (number,) = struct.unpack(code, bits.to_bytes(width // 8, "little"))
    if number != number or number in (float("inf"), float("-inf")):
        return None
    if number == 0:
        return None if bits else ("0.0f" if width == 32 else "0.0h")
    if abs(number) < _SMALLEST_NORMAL[width]:
        return None
    return _shortest(number, code) + ("f" if width == 32 else "h")


def _shortest(number: float, code: str) -> str:
    """The shortest decimal that rounds to a number of less than double precision."""
    # Rounding up the largest number would give text beyond it, which is refused.
    for digits in range(17 if abs(number) > 3.402e38 else 1, 18):
        text = f"{number:.{digits}g}"
        try:
            if struct.unpack(code, struct.pack(code, float(text)))[0] == number:
                break
        except OverflowError:
            continue
    return text if "." in text or "e" in text else f"{text}.0"


def zero(type: Type) -> Value:
    """The zero value of a type."""
    text = {"u32": "0u", "i32": "0i", "f32": "0.0f", "f16": "0.0h", "bool": "false"}.get(type.kind)
    return Value(text or f"{type.wgsl}()", type, True, True)
