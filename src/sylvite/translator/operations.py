"""What each value operation becomes in Python, as one table.

A row is a template over the operation's register operands, numbered in the order of its encoding
(``{0}``, ``{1}``, ...), and how its result is brought into canonical form. Operands are names of
local variables, so a template may use one twice. Everything with a register file effect besides
"read operands, write one result" (calls, branches, references, globals, lists, buffers) is emitted
by `sylvite.translator.emit` instead.

Source: IREE ``runtime/src/iree/vm/ops.h``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

__all__ = ["EXPRESSIONS", "Expression", "Finish"]


class Finish(enum.Enum):
    """What has to happen to the template's value before it is a register value."""

    NONE = "none"
    WRAP_I32 = "wrap to i32"
    WRAP_I64 = "wrap to i64"
    ROUND_F32 = "round to f32"


@dataclasses.dataclass(frozen=True, slots=True)
class Expression:
    """One row: a template over operand names, and the finish of its value."""

    template: str
    finish: Finish = Finish.NONE


_M32 = "4294967295"
_M64 = "18446744073709551615"
_SCALARS = ("i32", "i64", "f32", "f64")


def _both_widths() -> dict[str, Expression]:
    """Rows that read alike for i32 and i64."""
    rows: dict[str, Expression] = {}
    for name, mask, bits, wrap in (
        ("i32", _M32, 32, Finish.WRAP_I32),
        ("i64", _M64, 64, Finish.WRAP_I64),
    ):
        rows |= {
            f"add.{name}": Expression("{0} + {1}", wrap),
            f"sub.{name}": Expression("{0} - {1}", wrap),
            f"mul.{name}": Expression("{0} * {1}", wrap),
            f"fma.{name}": Expression("{0} * {1} + {2}", wrap),
            f"div.{name}.s": Expression("div_s({0}, {1})", wrap),
            f"div.{name}.u": Expression(f"div_u({{0}} & {mask}, {{1}} & {mask})", wrap),
            f"rem.{name}.s": Expression("rem_s({0}, {1})"),
            f"rem.{name}.u": Expression(f"rem_u({{0}} & {mask}, {{1}} & {mask})", wrap),
            f"abs.{name}": Expression("abs({0})", wrap),
            f"not.{name}": Expression("~{0}"),
            f"and.{name}": Expression("{0} & {1}"),
            f"or.{name}": Expression("{0} | {1}"),
            f"xor.{name}": Expression("{0} ^ {1}"),
            f"ctlz.{name}": Expression(f"{bits} - ({{0}} & {mask}).bit_length()"),
            f"min.{name}.s": Expression("{1} if {1} < {0} else {0}"),
            f"max.{name}.s": Expression("{1} if {0} < {1} else {0}"),
            f"min.{name}.u": Expression(f"{{1}} if ({{1}} & {mask}) < ({{0}} & {mask}) else {{0}}"),
            f"max.{name}.u": Expression(f"{{1}} if ({{0}} & {mask}) < ({{1}} & {mask}) else {{0}}"),
            f"shl.{name}": Expression(f"{{0}} << ({{1}} & {bits - 1})", wrap),
            f"shr.{name}.s": Expression(f"{{0}} >> ({{1}} & {bits - 1})"),
            f"shr.{name}.u": Expression(f"({{0}} & {mask}) >> ({{1}} & {bits - 1})", wrap),
            f"cmp.eq.{name}": Expression("1 if {0} == {1} else 0"),
            f"cmp.ne.{name}": Expression("1 if {0} != {1} else 0"),
            f"cmp.lt.{name}.s": Expression("1 if {0} < {1} else 0"),
            f"cmp.lt.{name}.u": Expression(f"1 if ({{0}} & {mask}) < ({{1}} & {mask}) else 0"),
            f"cmp.nz.{name}": Expression("1 if {0} else 0"),
        }
    return rows


def _both_precisions() -> dict[str, Expression]:
    """Rows that read alike for f32 and f64 except for rounding."""
    rows: dict[str, Expression] = {}
    for name, finish in (("f32", Finish.ROUND_F32), ("f64", Finish.NONE)):
        rows |= {
            f"add.{name}": Expression("{0} + {1}", finish),
            f"sub.{name}": Expression("{0} - {1}", finish),
            f"mul.{name}": Expression("{0} * {1}", finish),
            f"div.{name}": Expression("div_f({0}, {1})", finish),
            f"rem.{name}": Expression("rem_f({0}, {1})", finish),
            f"atan2.{name}": Expression("atan2({0}, {1})", finish),
            f"pow.{name}": Expression("pow({0}, {1})", finish),
            f"rsqrt.{name}": Expression(f"rsqrt_{name}({{0}})", finish),
            f"abs.{name}": Expression("abs({0})"),
            f"neg.{name}": Expression("-{0}"),
            f"ceil.{name}": Expression("ceil({0})"),
            f"floor.{name}": Expression("floor({0})"),
            f"round.{name}": Expression("round_away({0})"),
            f"round.{name}.even": Expression("round_even({0})"),
            f"min.{name}": Expression("{1} if {1} < {0} else {0}"),
            f"max.{name}": Expression("{1} if {0} < {1} else {0}"),
            # "o" is ordered and "u" unordered, but IREE's "ordered not equal" holds for NaN too.
            f"cmp.eq.{name}.o": Expression("1 if {0} == {1} else 0"),
            f"cmp.eq.{name}.u": Expression("0 if {0} < {1} or {0} > {1} else 1"),
            f"cmp.ne.{name}.o": Expression("1 if {0} != {1} else 0"),
            f"cmp.ne.{name}.u": Expression("1 if {0} != {1} else 0"),
            f"cmp.lt.{name}.o": Expression("1 if {0} < {1} else 0"),
            f"cmp.lt.{name}.u": Expression("0 if {0} >= {1} else 1"),
            f"cmp.lte.{name}.o": Expression("1 if {0} <= {1} else 0"),
            f"cmp.lte.{name}.u": Expression("0 if {0} > {1} else 1"),
            f"cmp.nan.{name}": Expression("1 if {0} != {0} else 0"),
        }
        for function in ("atan", "cos", "sin", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2"):
            rows[f"{function}.{name}"] = Expression(f"{function}({{0}})", finish)
        for function in ("sqrt", "tanh", "erf"):
            rows[f"{function}.{name}"] = Expression(f"{function}({{0}})", finish)
    rows["fma.f32"] = Expression("fma_f32({0}, {1}, {2})")
    rows["fma.f64"] = Expression("{0} * {1} + {2}")
    return rows


_CONVERSIONS: dict[str, Expression] = {
    "trunc.i32.i8": Expression("{0} & 255"),
    "trunc.i32.i16": Expression("{0} & 65535"),
    "trunc.i64.i32": Expression("{0}", Finish.WRAP_I32),
    "ext.i8.i32.s": Expression("({0} + 128 & 255) - 128"),
    "ext.i8.i32.u": Expression("{0} & 255"),
    "ext.i16.i32.s": Expression("({0} + 32768 & 65535) - 32768"),
    "ext.i16.i32.u": Expression("{0} & 65535"),
    "ext.i32.i64.s": Expression("{0}"),
    "ext.i32.i64.u": Expression(f"{{0}} & {_M32}"),
    "cast.si32.f32": Expression("{0}", Finish.ROUND_F32),
    "cast.ui32.f32": Expression(f"{{0}} & {_M32}", Finish.ROUND_F32),
    "cast.si64.f32": Expression("int_to_f32({0})"),
    "cast.ui64.f32": Expression(f"int_to_f32({{0}} & {_M64})"),
    "cast.f32.si32": Expression("float_to_i32({0})"),
    "cast.f32.ui32": Expression("float_to_i32({0})"),
    "cast.f32.si64": Expression("float_to_i64({0})"),
    "cast.f32.ui64": Expression("f32_to_u64({0})"),
    "bitcast.i32.f32": Expression("bits_to_f32({0})"),
    "bitcast.f32.i32": Expression("f32_to_bits({0})"),
    "trunc.f64.f32": Expression("{0}", Finish.ROUND_F32),
    "ext.f32.f64": Expression("{0}"),
    "cast.si32.f64": Expression("float({0})"),
    "cast.ui32.f64": Expression(f"float({{0}} & {_M32})"),
    "cast.si64.f64": Expression("float({0})"),
    "cast.ui64.f64": Expression(f"float({{0}} & {_M64})"),
    "cast.f64.si32": Expression("f64_to_i32({0})"),
    "cast.f64.ui32": Expression("f64_to_i32({0})"),
    "cast.f64.si64": Expression("float_to_i64({0})"),
    "cast.f64.ui64": Expression("float_to_i64({0})"),
    "bitcast.i64.f64": Expression("bits_to_f64({0})"),
    "bitcast.f64.i64": Expression("f64_to_bits({0})"),
}

_OTHERS: dict[str, Expression] = {
    "cmp.eq.ref": Expression("1 if {0} is {1} else 0"),
    "cmp.ne.ref": Expression("1 if {0} is not {1} else 0"),
    "cmp.nz.ref": Expression("1 if {0} is not None else 0"),
    **{f"select.{name}": Expression("{1} if {0} else {2}") for name in _SCALARS},
    "list.size": Expression("list_size({0})"),
    **{f"list.get.{name}": Expression(f"list_get_{name}({{0}}, {{1}})") for name in _SCALARS},
    "buffer.length": Expression("buffer_length({0})"),
    "buffer.compare": Expression("buffer_compare({0}, {1}, {2}, {3}, {4})"),
    "buffer.hash": Expression("buffer_hash({0}, {1}, {2})"),
    "buffer.load.i8.u": Expression("load_u8({0}, {1})"),
    "buffer.load.i8.s": Expression("load_i8({0}, {1})"),
    "buffer.load.i16.u": Expression("load_u16({0}, {1})"),
    "buffer.load.i16.s": Expression("load_i16({0}, {1})"),
    **{f"buffer.load.{name}": Expression(f"load_{name}({{0}}, {{1}})") for name in _SCALARS},
    # Operations without a result.
    "list.reserve": Expression("list_reserve({0}, {1})"),
    "list.resize": Expression("list_resize({0}, {1})"),
    **{f"list.set.{name}": Expression(f"list_set_{name}({{0}}, {{1}}, {{2}})") for name in _SCALARS},
    "buffer.copy": Expression("buffer_copy({0}, {1}, {2}, {3}, {4})"),
    **{
        f"buffer.store.{name}": Expression(f"store_{name}({{0}}, {{1}}, {{2}})")
        for name in ("i8", "i16", *_SCALARS)
    },
    **{
        f"buffer.fill.{name}": Expression(f"fill_{name}({{0}}, {{1}}, {{2}}, {{3}})")
        for name in ("i8", "i16", *_SCALARS)
    },
}

EXPRESSIONS: Mapping[str, Expression] = {**_both_widths(), **_both_precisions(), **_CONVERSIONS, **_OTHERS}
"""Operation name -> template. Operations without a result field become a statement."""
