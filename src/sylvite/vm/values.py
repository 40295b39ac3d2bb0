"""Arguments from Python to the machine's canonical values."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidArgumentError
from ..vmfb.calling_convention import CallingConvention, Span
from ..vmfb.isa import ValueType

__all__ = ["make_converters"]


def _make_integer(bits: int) -> Callable[[Any], Any]:
    least, most, modulus = -(1 << (bits - 1)), (1 << bits) - 1, 1 << bits

    def convert(value: Any) -> Any:
        if value.__class__ is int and least <= value < -least:
            return value
        try:
            number = operator.index(value)
        except TypeError as error:
            raise InvalidArgumentError(
                f"an i{bits} argument must be an integer, not {type(value).__name__}"
            ) from error
        if not least <= number <= most:
            raise InvalidArgumentError(f"{number} does not fit an i{bits} argument")
        return number - modulus if number >= -least else number

    return convert


def _make_float(kind: str) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"an {kind} argument must be a number, not {type(value).__name__}"
            ) from error
        return ctypes.c_float(number).value if kind == "f32" else number

    return convert


def _reference(value: Any) -> Any:
    if isinstance(value, (int, float, str, bytes)):
        raise InvalidArgumentError(f"a reference argument cannot be a {type(value).__name__}")
    return value


def _span(value: Any) -> list[Any]:
    return list(value)


_CONVERTERS: Mapping[ValueType, Callable[[Any], Any]] = {
    ValueType.I32: _make_integer(32),
    ValueType.I64: _make_integer(64),
    ValueType.F32: _make_float("f32"),
    ValueType.F64: _make_float("f64"),
    ValueType.REF: _reference,
}


def make_converters(convention: CallingConvention) -> tuple[Callable[[Any], Any], ...]:
    """A converter for each argument: integers are checked and made signed, f32 are rounded.

    Integers may be given signed or unsigned. Spans of native functions are passed on as lists.
    """
    return tuple(
        _span if isinstance(argument, Span) else _CONVERTERS[argument] for argument in convention.arguments
    )
