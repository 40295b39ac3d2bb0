"""Half-precision numbers to and from floats, four at once: what wasm has no instructions for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..wasm import FunctionBuilder, ModuleBuilder, ValueType, vector

__all__ = ["CONVERSION_PARAMETERS", "Conversions", "HalfKind", "emit_conversions"]

_I32, _F32, _V128 = ValueType.I32, ValueType.F32, ValueType.V128

CONVERSION_PARAMETERS = (_I32,) * 3
"""source, target, number of elements."""


class HalfKind:
    """The 16-bit floating-point types."""

    F16 = "f16"
    BF16 = "bf16"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Conversions:
    """Functions that convert runs of one type: ``widen`` and ``narrow`` (`CONVERSION_PARAMETERS`), and
    ``widen_one(i32) -> f32`` and ``narrow_one(f32) -> i32``."""

    widen: FunctionBuilder
    narrow: FunctionBuilder
    widen_one: FunctionBuilder
    narrow_one: FunctionBuilder


def emit_conversions(module: ModuleBuilder, kind: str) -> Conversions:
    """Emit the conversions of ``kind`` into ``module``, which has a memory."""
    widen, narrow = _VECTORS[kind]
    widen_one = module.function(f"widen_one_{kind}", [_I32], [_F32])
    lanes, scratch = widen_one.local(_V128), widen_one.local(_V128)
    widen_one.get(0).emit("i32x4.splat").set(lanes)
    widen(widen_one, lanes, scratch)
    widen_one.get(lanes).emit("f32x4.extract_lane", 0)
    narrow_one = module.function(f"narrow_one_{kind}", [_F32], [_I32])
    lanes, scratch = narrow_one.local(_V128), narrow_one.local(_V128)
    narrow_one.get(0).emit("f32x4.splat").set(lanes)
    narrow(narrow_one, lanes, scratch)
    narrow_one.get(lanes).emit("i32x4.extract_lane", 0)
    return Conversions(
        widen=_emit_widen_run(module, kind),
        narrow=_emit_narrow_run(module, kind),
        widen_one=widen_one,
        narrow_one=narrow_one,
    )


def _constant(function: FunctionBuilder, value: int) -> FunctionBuilder:
    return function.emit("v128.const", vector("i32x4", [value] * 4))


def _widen_f16(function: FunctionBuilder, x: int, scratch: int) -> None:
    """``x``: four halves in the low bits of its lanes; exact, NaN keeps its bits."""
    # Exponent and significand in their places of a float, which is 2**112 too small. The product is exact
    # for subnormal halves too; for infinity and NaN the exponent is put right behind it.
    _constant(function.get(x), 0x7FFF).emit("v128.and").i32(13).emit("i32x4.shl").tee(scratch)
    _constant(function, 0x77800000).emit("f32x4.mul")
    _constant(function.get(scratch), 0x0F7FFFFF).emit("i32x4.gt_s")
    _constant(function, 0x7F800000).emit("v128.and").emit("v128.or")
    _constant(function.get(x), 0x8000).emit("v128.and").i32(16).emit("i32x4.shl").emit("v128.or").set(x)


def _widen_bf16(function: FunctionBuilder, x: int, scratch: int) -> None:
    function.get(x).i32(16).emit("i32x4.shl").set(x)


def _narrow_f16(function: FunctionBuilder, x: int, magnitude: int) -> None:
    """Rounded to nearest, ties to even; too much is infinity; NaN is quiet."""
    _constant(function.get(x), 0x7FFFFFFF).emit("v128.and").set(magnitude)
    # Normal halves: round at bit 13, and put the exponent's bias right.
    function.get(magnitude)
    _constant(function.get(magnitude).i32(13).emit("i32x4.shr_u"), 1).emit("v128.and").emit("i32x4.add")
    _constant(function, 0x37FFF001).emit("i32x4.sub").i32(13).emit("i32x4.shr_u")
    # Subnormal halves: adding 0.5 rounds to multiples of 2**-24.
    _constant(function.get(magnitude), 0x3F000000).emit("f32x4.add")
    _constant(function, 0x3F000000).emit("i32x4.sub")
    _constant(function.get(magnitude), 0x387FFFFF).emit("i32x4.gt_s").emit("v128.bitselect")
    # Infinity, and what rounds to it is less than this by then; NaN with the bit that makes it quiet.
    _constant(function, 0x7C00)
    _constant(function.get(magnitude), 0x47800000).emit("i32x4.lt_s").emit("v128.bitselect")
    _constant(function.get(magnitude).i32(13).emit("i32x4.shr_u"), 0x1FF).emit("v128.and")
    _constant(function, 0x7E00).emit("v128.or")
    _constant(function.get(magnitude), 0x7F800001).emit("i32x4.lt_s").emit("v128.bitselect")
    _constant(function.get(x).i32(16).emit("i32x4.shr_u"), 0x8000).emit("v128.and").emit("v128.or").set(x)


def _narrow_bf16(function: FunctionBuilder, x: int, scratch: int) -> None:
    """Rounded to nearest, ties to even; NaN is quiet."""
    function.get(x)
    _constant(function.get(x).i32(16).emit("i32x4.shr_u"), 1).emit("v128.and").emit("i32x4.add")
    _constant(function, 0x7FFF).emit("i32x4.add")
    _constant(function.get(x), 0x400000).emit("v128.or")
    function.get(x).get(x).emit("f32x4.eq").emit("v128.bitselect").i32(16).emit("i32x4.shr_u").set(x)


_Convert = Callable[[FunctionBuilder, int, int], None]
_VECTORS: dict[str, tuple[_Convert, _Convert]] = {
    HalfKind.F16: (_widen_f16, _narrow_f16),
    HalfKind.BF16: (_widen_bf16, _narrow_bf16),
}


def _emit_widen_run(module: ModuleBuilder, kind: str) -> FunctionBuilder:
    function = module.function(f"widen_{kind}", CONVERSION_PARAMETERS, [])
    widen = _VECTORS[kind][0]
    source, target = 0, 1
    low, high, scratch = (function.local(_V128) for _ in range(3))

    def eight() -> None:
        function.get(source).emit("v128.load", align=0).tee(low).emit("i32x4.extend_high_i16x8_u").set(high)
        function.get(low).emit("i32x4.extend_low_i16x8_u").set(low)
        for number, lanes in enumerate((low, high)):
            widen(function, lanes, scratch)
            function.get(target).get(lanes).emit("v128.store", offset=16 * number, align=0)

    def one() -> None:
        function.get(source).emit("v128.load16_splat", align=0).emit("i32x4.extend_low_i16x8_u").set(low)
        widen(function, low, scratch)
        function.get(target).get(low).emit("v128.store32_lane", 0, align=0)

    _sweep(function, ((source, 2), (target, 4)), eight, one)
    return function


def _emit_narrow_run(module: ModuleBuilder, kind: str) -> FunctionBuilder:
    function = module.function(f"narrow_{kind}", CONVERSION_PARAMETERS, [])
    narrow = _VECTORS[kind][1]
    source, target = 0, 1
    low, high, scratch = (function.local(_V128) for _ in range(3))

    def eight() -> None:
        for number, lanes in enumerate((low, high)):
            function.get(source).emit("v128.load", offset=16 * number, align=0).set(lanes)
            narrow(function, lanes, scratch)
        function.get(target).get(low).get(high).emit("i16x8.narrow_i32x4_u").emit("v128.store", align=0)

    def one() -> None:
        function.get(source).emit("v128.load32_splat", align=0).set(low)
        narrow(function, low, scratch)
        function.get(target).get(low).emit("v128.store16_lane", 0, align=0)

    _sweep(function, ((source, 4), (target, 2)), eight, one)
    return function


def _sweep(
    function: FunctionBuilder,
    cursors: tuple[tuple[int, int], ...],
    eight: Callable[[], None],
    one: Callable[[], None],
) -> None:
    """All elements; ``cursors`` are locals with addresses and the bytes of an element there."""
    rest = 2
    for count, body in ((8, eight), (1, one)):
        with function.block() as done, function.loop() as again:
            function.get(rest).i32(count).emit("i32.lt_u").br_if(done)
            body()
            for cursor, size in cursors:
                function.get(cursor).i32(count * size).emit("i32.add").set(cursor)
            function.get(rest).i32(-count).emit("i32.add").set(rest)
            function.br(again)
