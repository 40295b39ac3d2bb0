"""Elementary functions on four floats at once, emitted into functions of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..wasm import FunctionBuilder, ValueType, vector

__all__ = ["Push", "emit_exp", "multiply_add", "new_vectors", "splat"]

Push = Callable[[], object]
"""Emits what leaves one operand on the stack."""

_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440e-4
"""``log(2)`` in two parts; the first has so few bits that multiples of it are exact."""

_EXP_COEFFICIENTS = (
    1.0,
    1.0,
    0.4999999403953552,
    0.1666652113199234,
    0.04166838899254799,
    0.00836874544620514,
    0.0013814551057294011,
)
"""``exp(r)`` for ``abs(r) <= log(2) / 2``, lowest power first: a minimax fit of the relative error (3e-9)
with the first two coefficients held at 1."""

_EXP_LEAST = -87.33654
"""Below this the result is 0: it would not be a normal float."""

_ROUNDER = 12582912.0
"""1.5 * 2**23: added to a small float it leaves the nearest integer in the low bits."""


def splat(function: FunctionBuilder, value: float) -> FunctionBuilder:
    """Push four equal floats."""
    return function.emit("v128.const", vector("f32x4", [value] * 4))


def multiply_add(
    function: FunctionBuilder, left: Push, right: Push, addend: Push, *, relaxed: bool
) -> FunctionBuilder:
    """Push ``left * right + addend``, with one rounding where the machine does so when ``relaxed``."""
    left()
    right()
    if relaxed:
        addend()
        return function.emit("f32x4.relaxed_madd")
    function.emit("f32x4.mul")
    addend()
    return function.emit("f32x4.add")


def emit_exp(function: FunctionBuilder, x: int, scratch: Sequence[int], *, relaxed: bool) -> None:
    """``x = exp(x)`` for a v128 local of four floats that are at most 88.

    Within 1 unit in the last place; 0 below -87.33654; NaN stays NaN.

    Args:
        function: the function.
        x: local of type v128.
        scratch: three more.
        relaxed: whether multiplications and additions may be fused.
    """
    rounded, rest, power = scratch

    def local(index: int) -> Push:
        return lambda: function.get(index)

    def constant(value: float) -> Push:
        return lambda: splat(function, value)

    # x = n * log(2) + r, with n in the low bits of ``rounded``.
    multiply_add(function, local(x), constant(1.4426950408889634), constant(_ROUNDER), relaxed=relaxed).set(
        rounded
    )
    splat(function.get(rounded), _ROUNDER).emit("f32x4.sub").set(power)
    multiply_add(function, local(power), constant(-_LN2_HIGH), local(x), relaxed=relaxed).set(rest)
    multiply_add(function, local(power), constant(-_LN2_LOW), local(rest), relaxed=relaxed).set(rest)
    splat(function, _EXP_COEFFICIENTS[-1]).set(power)
    for coefficient in _EXP_COEFFICIENTS[-2::-1]:
        multiply_add(function, local(power), local(rest), constant(coefficient), relaxed=relaxed).set(power)
    # Times 2**n, by adding n to the exponent.
    function.get(power).get(rounded).i32(23).emit("i32x4.shl").emit("i32x4.add")
    splat(function.get(x), _EXP_LEAST).emit("f32x4.lt").emit("v128.andnot").set(x)


def new_vectors(function: FunctionBuilder, count: int) -> list[int]:
    """``count`` new locals of type v128."""
    return [function.local(ValueType.V128) for _ in range(count)]
