"""IREE's calling-convention strings: what a function takes and gives, by register kind.

A string such as ``0rrCiD_iI`` has a version digit, argument letters, an underscore and result
letters: ``i`` i32, ``I`` i64, ``f`` f32, ``F`` f64, ``r`` reference, ``v`` nothing, and ``C...D``
a span that repeats its contents any number of times.

Source: IREE ``runtime/src/iree/vm/module.h``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Final, TypeAlias

from ..errors import FormatError
from .isa import ValueType

__all__ = ["VALUE_TYPES", "CallingConvention", "Span", "parse_calling_convention"]

VALUE_TYPES: Final[Mapping[str, ValueType]] = {
    "i": ValueType.I32,
    "I": ValueType.I64,
    "f": ValueType.F32,
    "F": ValueType.F64,
    "r": ValueType.REF,
}
"""Letter -> type of one value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A repeated group of values."""

    elements: tuple[ValueType, ...]


Argument: TypeAlias = "ValueType | Span"


@dataclasses.dataclass(frozen=True, slots=True)
class CallingConvention:
    """Arguments (values or spans) and results (values only)."""

    arguments: tuple[Argument, ...]
    results: tuple[ValueType, ...]

    @property
    def is_variadic(self) -> bool:
        """Whether an argument is a span."""
        return any(isinstance(argument, Span) for argument in self.arguments)


@functools.lru_cache(maxsize=1024)
def parse_calling_convention(text: str) -> CallingConvention:
    """Parse ``text`` without its version digit. The empty string takes and gives nothing.

    Raises:
        FormatError: unknown letters, nested or unterminated spans, spans among the results.
    """
    arguments, _, results = text.partition("_")
    return CallingConvention(_parse_arguments(arguments, text), _parse_values(results, text))


def _parse_values(letters: str, text: str) -> tuple[ValueType, ...]:
    values: list[ValueType] = []
    for letter in letters:
        if letter == "v":
            continue
        if letter not in VALUE_TYPES:
            raise FormatError(f"calling convention {text!r}: unexpected {letter!r}")
        values.append(VALUE_TYPES[letter])
    return tuple(values)


def _parse_arguments(letters: str, text: str) -> tuple[Argument, ...]:
    arguments: list[Argument] = []
    rest = letters
    while rest:
        plain, opening, after = rest.partition("C")
        arguments.extend(_parse_values(plain, text))
        if not opening:
            break
        body, closing, rest = after.partition("D")
        if not closing:
            raise FormatError(f"calling convention {text!r}: span without an end")
        elements = _parse_values(body, text)
        if not elements:
            raise FormatError(f"calling convention {text!r}: empty span")
        arguments.append(Span(elements))
    return tuple(arguments)
