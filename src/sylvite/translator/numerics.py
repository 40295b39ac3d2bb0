"""Arithmetic of the virtual machine that a Python expression cannot say.

Generated code does most integer work inline (`sylvite.translator.operations`); the functions here
are what it calls otherwise. Integers come and go in signed canonical form; f32 values are Python
floats that an f32 can hold.

IREE implements the operations in C, so its corner cases are those of C on x86-64. They are kept
here, except where C leaves the result undefined and the processor traps, which would end the
process: division by zero raises `ProgramError`, and the least integer divided by -1 wraps around.
Not kept are the payloads of NaNs that arithmetic makes, and the last bit of transcendental
functions in f32 (computed in f64 and rounded here).

Source: IREE ``runtime/src/iree/vm/ops.h``.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ProgramError, StatusCode

__all__ = ["NUMERICS"]

_INF = math.inf
_NAN = math.nan
_BITS_F32 = struct.Struct("<f")
_BITS_I32 = struct.Struct("<i")
_BITS_F64 = struct.Struct("<d")
_BITS_I64 = struct.Struct("<q")
_LEAST_I64 = -(1 << 63)
_c_float = ctypes.c_float


def f32(value: float) -> float:
    """``value`` rounded to f32, to infinity where it is too large."""
    return _c_float(value).value


def wrap_i32(value: int) -> int:
    """The i32 congruent to ``value``."""
    return (value + 0x80000000 & 0xFFFFFFFF) - 0x80000000


def wrap_i64(value: int) -> int:
    """The i64 congruent to ``value``."""
    return (value + 0x8000000000000000 & 0xFFFFFFFFFFFFFFFF) - 0x8000000000000000


def _zero_divisor() -> ProgramError:
    return ProgramError("integer division by zero", status=StatusCode.INVALID_ARGUMENT)


def div_signed(left: int, right: int) -> int:
    """Quotient rounded toward zero; not wrapped."""
    if not right:
        raise _zero_divisor()
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def rem_signed(left: int, right: int) -> int:
    """Remainder with the sign of ``left``."""
    if not right:
        raise _zero_divisor()
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def div_unsigned(left: int, right: int) -> int:
    """Quotient of two values that are already unsigned."""
    if not right:
        raise _zero_divisor()
    return left // right


def rem_unsigned(left: int, right: int) -> int:
    """Remainder of two values that are already unsigned."""
    if not right:
        raise _zero_divisor()
    return left % right


def div_float(left: float, right: float) -> float:
    """IEEE division."""
    if right:
        return left / right
    if left != left or right != right or left == 0:
        return _NAN
    return math.copysign(_INF, left) * math.copysign(1.0, right)


def rem_float(left: float, right: float) -> float:
    """IEEE remainder (quotient rounded to nearest, ties to even), as C's ``remainder``."""
    if right == 0 or math.isinf(left):
        return _NAN
    return math.remainder(left, right)


def fma_f32(first: float, second: float, third: float) -> float:
    """Product and sum, each rounded to f32 (IREE's portable builds do not fuse)."""
    return f32(f32(first * second) + third)


def ceil(value: float) -> float:
    """Least integral value not below ``value``; keeps the sign of zero."""
    return math.copysign(float(math.ceil(value)), value) if math.isfinite(value) else value


def floor(value: float) -> float:
    """Greatest integral value not above ``value``; keeps the sign of zero."""
    return math.copysign(float(math.floor(value)), value) if math.isfinite(value) else value


def round_away(value: float) -> float:
    """Nearest integral value, ties away from zero; keeps the sign of zero."""
    if not abs(value) < 4503599627370496.0:
        return value
    magnitude = abs(value)
    whole = float(int(magnitude))
    if magnitude - whole >= 0.5:
        whole += 1.0
    return math.copysign(whole, value)


def round_even(value: float) -> float:
    """Nearest integral value, ties to even. As in IREE, -0.5 gives +0."""
    rounded = round_away(value)
    if abs(value - rounded) == 0.5 and rounded % 2.0:
        return rounded - 1.0 if rounded > 0 else rounded + 1.0
    return rounded


def _guarded(function: Callable[[float], float]) -> Callable[[float], float]:
    """``function`` with NaN for arguments outside its domain and infinity where it overflows."""

    def call(value: float) -> float:
        try:
            return function(value)
        except ValueError:
            return _NAN
        except OverflowError:
            return _INF

    return call


def _guarded_log(function: Callable[[float], float], pole: float) -> Callable[[float], float]:
    """A logarithm that is minus infinity at its pole."""

    def call(value: float) -> float:
        try:
            return function(value)
        except ValueError:
            return -_INF if value == pole else _NAN

    return call


def _exp2(value: float) -> float:
    return math.pow(2.0, value)


def power(base: float, exponent: float) -> float:
    """C's ``pow``."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        is_odd = exponent % 2.0 == 1.0
        return -_INF if base < 0 and is_odd else _INF
    except ValueError:
        if base == 0:
            return math.copysign(_INF, base) if exponent % 2.0 == 1.0 else _INF
        return _NAN


def sqrt(value: float) -> float:
    """Square root, NaN below zero."""
    return math.sqrt(value) if value >= 0 else _NAN


def rsqrt_f32(value: float) -> float:
    """Reciprocal of the f32 square root; not rounded."""
    return div_float(1.0, f32(sqrt(value)))


def rsqrt_f64(value: float) -> float:
    """Reciprocal of the square root."""
    return div_float(1.0, sqrt(value))


def _to_i64(value: float) -> int:
    """C's ``llround`` on x86-64: ties away from zero, the least i64 where it does not fit."""
    if not -9.3e18 < value < 9.3e18:
        return _LEAST_I64
    result = int(round_away(value))
    return result if -(1 << 63) <= result < 1 << 63 else _LEAST_I64


def float_to_i64(value: float) -> int:
    """Cast to a signed or (for f64) unsigned 64-bit integer."""
    return _to_i64(value)


def float_to_i32(value: float) -> int:
    """Cast to a 32-bit integer: the low half of the 64-bit one."""
    return wrap_i32(_to_i64(value))


def f64_to_i32(value: float) -> int:
    """Cast of an f64 to a 32-bit integer, which IREE does by way of f32."""
    return wrap_i32(_to_i64(f32(value)))


def f32_to_u64(value: float) -> int:
    """Cast of an f32 to an unsigned 64-bit integer, in signed form."""
    if not -9.3e18 < value < 18446744073709551616.0:
        return _LEAST_I64
    result = int(round_away(value))
    return wrap_i64(result) if result >= -(1 << 63) else _LEAST_I64


def int_to_f32(value: int) -> float:
    """The f32 nearest to an integer of up to 64 bits, rounded once."""
    excess = abs(value).bit_length() - 53
    if excess > 0:
        # Rounding to f64 first could turn a value next to a tie into the tie: make the dropped
        # bits sticky instead, which keeps the side on which the value lies.
        kept = abs(value) >> excess
        if kept << excess != abs(value):
            kept |= 1
        value = kept << excess if value > 0 else -(kept << excess)
    return f32(float(value))


def bits_to_f32(value: int) -> float:
    """The f32 whose bits are ``value``. A signalling NaN becomes quiet."""
    result: float = _BITS_F32.unpack(_BITS_I32.pack(value))[0]
    return result


def f32_to_bits(value: float) -> int:
    """The bits of an f32."""
    result: int = _BITS_I32.unpack(_BITS_F32.pack(value))[0]
    return result


def bits_to_f64(value: int) -> float:
    """The f64 whose bits are ``value``."""
    result: float = _BITS_F64.unpack(_BITS_I64.pack(value))[0]
    return result


def f64_to_bits(value: float) -> int:
    """The bits of an f64."""
    result: int = _BITS_I64.unpack(_BITS_F64.pack(value))[0]
    return result


NUMERICS: Mapping[str, Any] = {
    "abs": abs,
    "float": float,
    "inf": _INF,
    "nan": _NAN,
    "f32": f32,
    "div_s": div_signed,
    "rem_s": rem_signed,
    "div_u": div_unsigned,
    "rem_u": rem_unsigned,
    "div_f": div_float,
    "rem_f": rem_float,
    "fma_f32": fma_f32,
    "ceil": ceil,
    "floor": floor,
    "round_away": round_away,
    "round_even": round_even,
    "atan": math.atan,
    "atan2": math.atan2,
    "cos": _guarded(math.cos),
    "sin": _guarded(math.sin),
    "exp": _guarded(math.exp),
    "exp2": _guarded(_exp2),
    "expm1": _guarded(math.expm1),
    "log": _guarded_log(math.log, 0.0),
    "log10": _guarded_log(math.log10, 0.0),
    "log1p": _guarded_log(math.log1p, -1.0),
    "log2": _guarded_log(math.log2, 0.0),
    "pow": power,
    "rsqrt_f32": rsqrt_f32,
    "rsqrt_f64": rsqrt_f64,
    "sqrt": sqrt,
    "tanh": math.tanh,
    "erf": math.erf,
    "float_to_i32": float_to_i32,
    "float_to_i64": float_to_i64,
    "f64_to_i32": f64_to_i32,
    "f32_to_u64": f32_to_u64,
    "int_to_f32": int_to_f32,
    "bits_to_f32": bits_to_f32,
    "f32_to_bits": f32_to_bits,
    "bits_to_f64": bits_to_f64,
    "f64_to_bits": f64_to_bits,
}
"""Names that generated code may use, and what they mean."""
