"""Run-time routines that compilers leave undefined, as WebAssembly text.

What is exact in wasm is wasm: a callback into Python costs ten times a dispatch. Each entry is a
signature (``name:type`` parameters, results, then further locals) and a body, one instruction a line,
``$name`` being a local, ``@name`` another routine. `sylvite.linker.support` assembles them.

Source: names and signatures from the C standard library and LLVM's runtime library calls for wasm32
(``RuntimeLibcalls``, ``WebAssemblyRuntimeLibcallSignatures``); 128-bit integers are returned through a
pointer in the first parameter, halves and bfloats travel as the low 16 bits of an i32.
"""

from __future__ import annotations

import dataclasses

from ..wasm.types import ValueType

__all__ = ["ROUTINES", "Routine"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Routine:
    """One routine. ``locals`` are those beyond the parameters; ``body`` is its text."""

    parameters: tuple[tuple[str, ValueType], ...]
    results: tuple[ValueType, ...]
    locals: tuple[tuple[str, ValueType], ...]
    body: str
    public: bool


def _routine(signature: str, body: str, *, public: bool = True) -> Routine:
    left, _, rest = signature.partition("->")
    results, _, variables = rest.partition(";")
    return Routine(
        parameters=_named(left),
        results=tuple(ValueType[text.upper()] for text in results.split()),
        locals=_named(variables),
        body=body,
        public=public,
    )


def _named(text: str) -> tuple[tuple[str, ValueType], ...]:
    pairs = (item.split(":") for item in text.split())
    return tuple((name, ValueType[value_type.upper()]) for name, value_type in pairs)


# C's minimum and maximum ignore a NaN where WebAssembly's spread it.
_IGNORE_NAN = """
    local.get $x
    local.get $x
    {t}.ne
    if
    local.get $y
    return
    end
    local.get $y
    local.get $y
    {t}.ne
    if
    local.get $x
    return
    end
    local.get $x
    local.get $y
    {t}.{op}
"""

# Halves away from zero: the fraction and the sum are exact.
_ROUND = """
    local.get $x
    {t}.abs
    {t}.trunc
    local.tee $whole
    local.get $whole
    {t}.const 1
    {t}.add
    local.get $x
    {t}.abs
    local.get $whole
    {t}.sub
    {t}.const 0.5
    {t}.lt
    select
    local.get $x
    {t}.copysign
"""

_UNARY = """
    local.get $x
    {t}.{op}
"""

# Splits x into its integral part, stored at p, and the rest, both with x's sign.
_MODF = """
    local.get $p
    local.get $x
    {t}.trunc
    {t}.store
    local.get $x
    {t}.abs
    {t}.const inf
    {t}.eq
    if {t}
    {t}.const 0
    else
    local.get $x
    local.get $x
    {t}.trunc
    {t}.sub
    end
    local.get $x
    {t}.copysign
"""

# Long division of significands; the remainder of floats is always a float.
_FMOD = """
    local.get $y
    f64.const 0
    f64.eq
    local.get $y
    local.get $y
    f64.ne
    i32.or
    local.get $x
    local.get $x
    f64.sub
    f64.const 0
    f64.ne
    i32.or
    if
    local.get $x
    local.get $y
    f64.mul
    local.tee $y
    local.get $y
    f64.div
    return
    end
    local.get $x
    f64.abs
    local.get $y
    f64.abs
    f64.lt
    if
    local.get $x
    return
    end
    local.get $x
    f64.abs
    i64.reinterpret_f64
    local.tee $mx
    i64.const 52
    i64.shr_u
    i32.wrap_i64
    local.set $ex
    local.get $y
    f64.abs
    i64.reinterpret_f64
    local.tee $my
    i64.const 52
    i64.shr_u
    i32.wrap_i64
    local.set $ey
    local.get $ex
    if
    local.get $mx
    i64.const 0xfffffffffffff
    i64.and
    i64.const 0x10000000000000
    i64.or
    local.set $mx
    else
    local.get $mx
    i64.clz
    i32.wrap_i64
    i32.const 11
    i32.sub
    local.set $k
    local.get $mx
    local.get $k
    i64.extend_i32_u
    i64.shl
    local.set $mx
    i32.const 1
    local.get $k
    i32.sub
    local.set $ex
    end
    local.get $ey
    if
    local.get $my
    i64.const 0xfffffffffffff
    i64.and
    i64.const 0x10000000000000
    i64.or
    local.set $my
    else
    local.get $my
    i64.clz
    i32.wrap_i64
    i32.const 11
    i32.sub
    local.set $k
    local.get $my
    local.get $k
    i64.extend_i32_u
    i64.shl
    local.set $my
    i32.const 1
    local.get $k
    i32.sub
    local.set $ey
    end
    local.get $ex
    local.get $ey
    i32.sub
    local.set $k
    block
    loop
    local.get $mx
    local.get $my
    i64.ge_u
    if
    local.get $mx
    local.get $my
    i64.sub
    local.set $mx
    end
    local.get $k
    i32.eqz
    br_if 1
    local.get $mx
    i64.const 1
    i64.shl
    local.set $mx
    local.get $k
    i32.const 1
    i32.sub
    local.set $k
    br 0
    end
    end
    ;; the value is mx * 2**(ey - 1075); below 2**-1074 its low bits are zero
    local.get $ey
    i32.const 1075
    i32.sub
    local.tee $ey
    i32.const -1074
    i32.lt_s
    if
    local.get $mx
    i32.const -1074
    local.get $ey
    i32.sub
    i64.extend_i32_u
    i64.shr_u
    local.set $mx
    i32.const -1074
    local.set $ey
    end
    local.get $mx
    f64.convert_i64_u
    local.get $ey
    i32.const -1022
    i32.ge_s
    if i64
    local.get $ey
    i32.const 1023
    i32.add
    i64.extend_i32_u
    i64.const 52
    i64.shl
    else
    i64.const 1
    local.get $ey
    i32.const 1074
    i32.add
    i64.extend_i32_u
    i64.shl
    end
    f64.reinterpret_i64
    f64.mul
    local.get $x
    f64.copysign
"""

# Steps that keep every intermediate in range; see the comment on double rounding in docs/linker.md.
_LDEXP = """
    local.get $n
    i32.const 1023
    i32.gt_s
    if
    local.get $x
    f64.const 8.98846567431158e307
    f64.mul
    local.set $x
    local.get $n
    i32.const 1023
    i32.sub
    local.tee $n
    i32.const 1023
    i32.gt_s
    if
    local.get $x
    f64.const 8.98846567431158e307
    f64.mul
    local.set $x
    local.get $n
    i32.const 1023
    i32.sub
    local.tee $n
    i32.const 1023
    local.get $n
    i32.const 1023
    i32.lt_s
    select
    local.set $n
    end
    end
    local.get $n
    i32.const -1022
    i32.lt_s
    if
    local.get $x
    f64.const 2.00416836000897278e-292
    f64.mul
    local.set $x
    local.get $n
    i32.const 969
    i32.add
    local.tee $n
    i32.const -1022
    i32.lt_s
    if
    local.get $x
    f64.const 2.00416836000897278e-292
    f64.mul
    local.set $x
    local.get $n
    i32.const 969
    i32.add
    local.tee $n
    i32.const -1022
    local.get $n
    i32.const -1022
    i32.gt_s
    select
    local.set $n
    end
    end
    local.get $x
    local.get $n
    i32.const 1023
    i32.add
    i64.extend_i32_s
    i64.const 52
    i64.shl
    f64.reinterpret_i64
    f64.mul
"""

# In f64 an f32 times a power of two is exact, so only the last step rounds.
_LDEXPF = """
    local.get $x
    f64.promote_f32
    i32.const 300
    i32.const -300
    local.get $n
    local.get $n
    i32.const -300
    i32.lt_s
    select
    local.tee $n
    local.get $n
    i32.const 300
    i32.gt_s
    select
    i32.const 1023
    i32.add
    i64.extend_i32_s
    i64.const 52
    i64.shl
    f64.reinterpret_i64
    f64.mul
    f32.demote_f64
"""

_FREXP = """
    local.get $x
    local.get $x
    f64.sub
    f64.const 0
    f64.ne
    local.get $x
    f64.const 0
    f64.eq
    i32.or
    if
    local.get $p
    i32.const 0
    i32.store
    local.get $x
    return
    end
    local.get $x
    f64.abs
    f64.const 2.2250738585072014e-308
    f64.lt
    if
    local.get $x
    f64.const 18014398509481984
    f64.mul
    local.set $x
    i32.const -54
    local.set $e
    end
    local.get $p
    local.get $e
    local.get $x
    i64.reinterpret_f64
    local.tee $b
    i64.const 52
    i64.shr_u
    i32.wrap_i64
    i32.const 0x7ff
    i32.and
    i32.const 1022
    i32.sub
    i32.add
    i32.store
    local.get $b
    i64.const 0x800fffffffffffff
    i64.and
    i64.const 0x3fe0000000000000
    i64.or
    f64.reinterpret_i64
"""

# The product is exact in f64; the sum is rounded to odd there, which makes rounding to f32 right.
_FMAF = """
    local.get $x
    f64.promote_f32
    local.get $y
    f64.promote_f32
    f64.mul
    local.tee $p
    local.get $z
    f64.promote_f32
    local.tee $c
    f64.add
    local.tee $s
    local.get $p
    f64.sub
    local.set $t
    local.get $p
    local.get $s
    local.get $t
    f64.sub
    f64.sub
    local.get $c
    local.get $t
    f64.sub
    f64.add
    local.tee $e
    f64.const 0
    f64.ne
    local.get $e
    local.get $e
    f64.eq
    i32.and
    local.get $s
    i64.reinterpret_f64
    local.tee $b
    i64.const 1
    i64.and
    i64.eqz
    i32.and
    if
    local.get $b
    i64.const 1
    i64.const -1
    local.get $e
    f64.const 0
    f64.gt
    local.get $s
    f64.const 0
    f64.gt
    i32.eq
    select
    i64.add
    f64.reinterpret_i64
    local.set $s
    end
    local.get $s
    f32.demote_f64
"""

_HALF_TO_SINGLE = """
    local.get $h
    i32.const 0x7fff
    i32.and
    i32.const 13
    i32.shl
    local.tee $m
    i32.const 0x0f800000
    i32.and
    local.tee $e
    i32.const 0x0f800000
    i32.eq
    if i32
    local.get $m
    i32.const 0x70000000
    i32.add
    else
    local.get $e
    if i32
    local.get $m
    i32.const 0x38000000
    i32.add
    else
    ;; subnormal: 2**-14 + m * 2**-24 - 2**-14
    local.get $m
    i32.const 0x38800000
    i32.add
    f32.reinterpret_i32
    f32.const 0.00006103515625
    f32.sub
    i32.reinterpret_f32
    end
    end
    local.get $h
    i32.const 0x8000
    i32.and
    i32.const 16
    i32.shl
    i32.or
    f32.reinterpret_i32
"""

_SINGLE_TO_HALF = """
    local.get $x
    i32.reinterpret_f32
    local.tee $b
    i32.const 0x7fffffff
    i32.and
    local.tee $a
    i32.const 0x7f800000
    i32.gt_u
    if i32
    local.get $a
    i32.const 13
    i32.shr_u
    i32.const 0x1ff
    i32.and
    i32.const 0x7e00
    i32.or
    else
    local.get $a
    i32.const 0x47800000
    i32.ge_u
    if i32
    i32.const 0x7c00
    else
    local.get $a
    i32.const 0x38800000
    i32.ge_u
    if i32
    local.get $a
    local.get $a
    i32.const 13
    i32.shr_u
    i32.const 1
    i32.and
    i32.add
    i32.const 0x37fff001
    i32.sub
    i32.const 13
    i32.shr_u
    else
    ;; subnormal: adding 0.5 rounds to multiples of 2**-24
    local.get $a
    f32.reinterpret_i32
    f32.const 0.5
    f32.add
    i32.reinterpret_f32
    i32.const 0x3f000000
    i32.sub
    end
    end
    end
    local.get $b
    i32.const 16
    i32.shr_u
    i32.const 0x8000
    i32.and
    i32.or
"""

_SINGLE_TO_BFLOAT = """
    local.get $x
    i32.reinterpret_f32
    local.set $b
    local.get $x
    local.get $x
    f32.ne
    if i32
    local.get $b
    i32.const 0x400000
    i32.or
    else
    local.get $b
    local.get $b
    i32.const 16
    i32.shr_u
    i32.const 1
    i32.and
    i32.add
    i32.const 0x7fff
    i32.add
    end
    i32.const 16
    i32.shr_u
"""

# To f32, inexact results made odd, so that rounding once more to fewer bits gives the right answer.
_ROUND_TO_ODD = """
    local.get $x
    f32.demote_f64
    local.tee $f
    f64.promote_f32
    local.tee $back
    local.get $x
    f64.eq
    local.get $x
    local.get $x
    f64.ne
    i32.or
    if
    local.get $f
    return
    end
    local.get $f
    i32.reinterpret_f32
    local.get $back
    f64.abs
    local.get $x
    f64.abs
    f64.gt
    i32.sub
    i32.const 1
    i32.or
    f32.reinterpret_i32
"""

_MULTI3 = """
    ;; low halves: four products of 32 bits
    local.get $al
    i64.const 0xffffffff
    i64.and
    local.tee $a0
    local.get $bl
    i64.const 0xffffffff
    i64.and
    local.tee $b0
    i64.mul
    local.set $low
    local.get $al
    i64.const 32
    i64.shr_u
    local.tee $a1
    local.get $b0
    i64.mul
    local.get $low
    i64.const 32
    i64.shr_u
    i64.add
    local.set $middle
    local.get $a0
    local.get $bl
    i64.const 32
    i64.shr_u
    local.tee $b1
    i64.mul
    local.get $middle
    i64.const 0xffffffff
    i64.and
    i64.add
    local.set $carry
    local.get $p
    local.get $al
    local.get $bl
    i64.mul
    i64.store
    local.get $p
    local.get $a1
    local.get $b1
    i64.mul
    local.get $middle
    i64.const 32
    i64.shr_u
    i64.add
    local.get $carry
    i64.const 32
    i64.shr_u
    i64.add
    local.get $al
    local.get $bh
    i64.mul
    i64.add
    local.get $ah
    local.get $bl
    i64.mul
    i64.add
    i64.store offset=8
"""

# Shift and subtract, 128 steps; a zero divisor traps as it does for the machine's own division.
_UDIVMOD = """
    local.get $dl
    local.get $dh
    i64.or
    i64.eqz
    if
    i64.const 1
    i64.const 0
    i64.div_u
    drop
    end
    i32.const 128
    local.set $count
    loop
    local.get $rh
    i64.const 63
    i64.shr_u
    local.set $carry
    local.get $rh
    i64.const 1
    i64.shl
    local.get $rl
    i64.const 63
    i64.shr_u
    i64.or
    local.set $rh
    local.get $rl
    i64.const 1
    i64.shl
    local.get $nh
    i64.const 63
    i64.shr_u
    i64.or
    local.set $rl
    local.get $nh
    i64.const 1
    i64.shl
    local.get $nl
    i64.const 63
    i64.shr_u
    i64.or
    local.set $nh
    local.get $nl
    i64.const 1
    i64.shl
    local.set $nl
    local.get $carry
    i64.eqz
    i32.eqz
    local.get $rh
    local.get $dh
    i64.gt_u
    i32.or
    local.get $rh
    local.get $dh
    i64.eq
    local.get $rl
    local.get $dl
    i64.ge_u
    i32.and
    i32.or
    if
    local.get $rh
    local.get $dh
    i64.sub
    local.get $rl
    local.get $dl
    i64.lt_u
    i64.extend_i32_u
    i64.sub
    local.set $rh
    local.get $rl
    local.get $dl
    i64.sub
    local.set $rl
    local.get $nl
    i64.const 1
    i64.or
    local.set $nl
    end
    local.get $count
    i32.const 1
    i32.sub
    local.tee $count
    br_if 0
    end
    local.get $nl
    local.get $nh
    local.get $rl
    local.get $rh
"""

_DIVIDE_UNSIGNED = """
    local.get $al
    local.get $ah
    local.get $bl
    local.get $bh
    call @udivmod128
    local.set $rh
    local.set $rl
    local.set $qh
    local.set $ql
    local.get $p
    local.get ${x}l
    i64.store
    local.get $p
    local.get ${x}h
    i64.store offset=8
"""

# |v| for a pair, in place: (v ^ s) - s with s the sign spread over 128 bits.
_ABSOLUTE = """
    local.get ${v}h
    i64.const 63
    i64.shr_s
    local.set $s{v}
    local.get ${v}h
    local.get $s{v}
    i64.xor
    local.get ${v}l
    local.get $s{v}
    i64.xor
    local.tee ${v}l
    local.get $s{v}
    i64.lt_u
    i64.extend_i32_u
    i64.sub
    local.get $s{v}
    i64.sub
    local.set ${v}h
    local.get ${v}l
    local.get $s{v}
    i64.sub
    local.set ${v}l
"""


def _divide_signed(result: str, sign: str) -> str:
    return (
        _ABSOLUTE.format(v="a")
        + _ABSOLUTE.format(v="b")
        + f"""
    local.get $al
    local.get $ah
    local.get $bl
    local.get $bh
    call @udivmod128
    local.set $rh
    local.set $rl
    local.set $qh
    local.set $ql
    {sign}
    local.set $sa
    local.get $p
    local.get ${result}l
    local.get $sa
    i64.xor
    local.tee ${result}l
    local.get $sa
    i64.sub
    i64.store
    local.get $p
    local.get ${result}h
    local.get $sa
    i64.xor
    local.get $sa
    i64.sub
    local.get ${result}l
    local.get $sa
    i64.lt_u
    i64.extend_i32_u
    i64.sub
    i64.store offset=8
"""
    )


_DIVISION_LOCALS = "p:i32 al:i64 ah:i64 bl:i64 bh:i64 -> ; ql:i64 qh:i64 rl:i64 rh:i64"
_SIGNED_LOCALS = _DIVISION_LOCALS + " sa:i64 sb:i64"

# Shifts of 128 bits by 0..127; wasm shifts by the count modulo 64.
_SHIFT_LEFT = """
    local.get $n
    i32.const 64
    i32.and
    if
    local.get $l
    local.get $n
    i64.extend_i32_u
    i64.shl
    local.set $h
    i64.const 0
    local.set $l
    else
    local.get $n
    if
    local.get $h
    local.get $n
    i64.extend_i32_u
    i64.shl
    local.get $l
    i32.const 64
    local.get $n
    i32.sub
    i64.extend_i32_u
    i64.shr_u
    i64.or
    local.set $h
    local.get $l
    local.get $n
    i64.extend_i32_u
    i64.shl
    local.set $l
    end
    end
    local.get $p
    local.get $l
    i64.store
    local.get $p
    local.get $h
    i64.store offset=8
"""

_SHIFT_RIGHT = """
    local.get $n
    i32.const 64
    i32.and
    if
    local.get $h
    local.get $n
    i64.extend_i32_u
    i64.{op}
    local.set $l
    {fill}
    local.set $h
    else
    local.get $n
    if
    local.get $l
    local.get $n
    i64.extend_i32_u
    i64.shr_u
    local.get $h
    i32.const 64
    local.get $n
    i32.sub
    i64.extend_i32_u
    i64.shl
    i64.or
    local.set $l
    local.get $h
    local.get $n
    i64.extend_i32_u
    i64.{op}
    local.set $h
    end
    end
    local.get $p
    local.get $l
    i64.store
    local.get $p
    local.get $h
    i64.store offset=8
"""

# Powers by squaring; a negative exponent takes the reciprocal at the end.
_POWI = """
    {t}.const 1
    local.set $r
    local.get $n
    local.set $m
    block
    loop
    local.get $m
    i32.const 1
    i32.and
    if
    local.get $r
    local.get $x
    {t}.mul
    local.set $r
    end
    local.get $m
    i32.const 2
    i32.div_s
    local.tee $m
    i32.eqz
    br_if 1
    local.get $x
    local.get $x
    {t}.mul
    local.set $x
    br 0
    end
    end
    {t}.const 1
    local.get $r
    {t}.div
    local.get $r
    local.get $n
    i32.const 0
    i32.lt_s
    select
"""

_COMPARE_BYTES = """
    block
    loop
    local.get $n
    i32.eqz
    br_if 1
    local.get $a
    i32.load8_u
    local.get $b
    i32.load8_u
    i32.sub
    local.tee $d
    br_if 1
    local.get $a
    i32.const 1
    i32.add
    local.set $a
    local.get $b
    i32.const 1
    i32.add
    local.set $b
    local.get $n
    i32.const 1
    i32.sub
    local.set $n
    br 0
    end
    end
    local.get $d
"""

_STRING_LENGTH = """
    local.get $s
    local.set $p
    block
    loop
    local.get $p
    i32.load8_u
    i32.eqz
    br_if 1
    local.get $p
    i32.const 1
    i32.add
    local.set $p
    br 0
    end
    end
    local.get $p
    local.get $s
    i32.sub
"""

_BULK = """
    local.get $d
    local.get $s
    local.get $n
    memory.{op}
    local.get $d
"""

_TO_INTEGER = """
    local.get $x
    {rounding}
    {i}.trunc_sat_{t}_s
"""


def _call(name: str, *before: str) -> str:
    return "\n".join([*before, f"call @{name}"])


def _float_routines() -> dict[str, Routine]:
    table: dict[str, Routine] = {}
    for suffix, t in (("f", "f32"), ("", "f64")):
        two, one = f"x:{t} y:{t} -> {t}", f"x:{t} -> {t}"
        table["fmax" + suffix] = _routine(two, _IGNORE_NAN.format(t=t, op="max"))
        table["fmin" + suffix] = _routine(two, _IGNORE_NAN.format(t=t, op="min"))
        table["fmaximum_num" + suffix] = table["fmax" + suffix]
        table["fminimum_num" + suffix] = table["fmin" + suffix]
        for name, op in _SINGLE_INSTRUCTIONS.items():
            table[name + suffix] = _routine(one, _UNARY.format(t=t, op=op))
        table["copysign" + suffix] = _routine(two, f"local.get $x\nlocal.get $y\n{t}.copysign")
        table["round" + suffix] = _routine(f"{one} ; whole:{t}", _ROUND.format(t=t))
        table["modf" + suffix] = _routine(f"x:{t} p:i32 -> {t}", _MODF.format(t=t))
        for name, rounding in (("round", f"call @round{suffix}"), ("rint", f"{t}.nearest")):
            for prefix, i in (("l", "i32"), ("ll", "i64")):
                table[f"{prefix}{name}{suffix}"] = _routine(
                    f"x:{t} -> {i}", _TO_INTEGER.format(t=t, i=i, rounding=rounding)
                )
    powi = "x:{t} n:i32 -> {t} ; r:{t} m:i32"
    table["__powisf2"] = _routine(powi.format(t="f32"), _POWI.format(t="f32"))
    table["__powidf2"] = _routine(powi.format(t="f64"), _POWI.format(t="f64"))
    return table


_SINGLE_INSTRUCTIONS = {
    "fabs": "abs",
    "sqrt": "sqrt",
    "ceil": "ceil",
    "floor": "floor",
    "trunc": "trunc",
    "nearbyint": "nearest",
    "rint": "nearest",
    "roundeven": "nearest",
}

ROUTINES: dict[str, Routine] = {
    **_float_routines(),
    "fmod": _routine("x:f64 y:f64 -> f64 ; mx:i64 my:i64 ex:i32 ey:i32 k:i32", _FMOD),
    "fmodf": _routine(
        "x:f32 y:f32 -> f32",
        "local.get $x\nf64.promote_f32\nlocal.get $y\nf64.promote_f32\ncall @fmod\nf32.demote_f64",
    ),
    "ldexp": _routine("x:f64 n:i32 -> f64", _LDEXP),
    "ldexpf": _routine("x:f32 n:i32 -> f32", _LDEXPF),
    "scalbn": _routine("x:f64 n:i32 -> f64", _LDEXP),
    "scalbnf": _routine("x:f32 n:i32 -> f32", _LDEXPF),
    "frexp": _routine("x:f64 p:i32 -> f64 ; b:i64 e:i32", _FREXP),
    "frexpf": _routine(
        "x:f32 p:i32 -> f32",
        "local.get $x\nf64.promote_f32\nlocal.get $p\ncall @frexp\nf32.demote_f64",
    ),
    "fmaf": _routine("x:f32 y:f32 z:f32 -> f32 ; p:f64 c:f64 s:f64 t:f64 e:f64 b:i64", _FMAF),
    "roundtoodd": _routine("x:f64 -> f32 ; f:f32 back:f64", _ROUND_TO_ODD, public=False),
    "__gnu_h2f_ieee": _routine("h:i32 -> f32 ; m:i32 e:i32", _HALF_TO_SINGLE),
    "__extendhfsf2": _routine("h:i32 -> f32 ; m:i32 e:i32", _HALF_TO_SINGLE),
    "__extendhfdf2": _routine("h:i32 -> f64", "local.get $h\ncall @__extendhfsf2\nf64.promote_f32"),
    "__gnu_f2h_ieee": _routine("x:f32 -> i32 ; a:i32 b:i32", _SINGLE_TO_HALF),
    "__truncsfhf2": _routine("x:f32 -> i32 ; a:i32 b:i32", _SINGLE_TO_HALF),
    "__truncdfhf2": _routine("x:f64 -> i32", "local.get $x\ncall @roundtoodd\ncall @__truncsfhf2"),
    "__truncsfbf2": _routine("x:f32 -> i32 ; b:i32", _SINGLE_TO_BFLOAT),
    "__truncdfbf2": _routine("x:f64 -> i32", "local.get $x\ncall @roundtoodd\ncall @__truncsfbf2"),
    "__extendbfsf2": _routine("h:i32 -> f32", "local.get $h\ni32.const 16\ni32.shl\nf32.reinterpret_i32"),
    "memcpy": _routine("d:i32 s:i32 n:i32 -> i32", _BULK.format(op="copy")),
    "memmove": _routine("d:i32 s:i32 n:i32 -> i32", _BULK.format(op="copy")),
    "memset": _routine("d:i32 s:i32 n:i32 -> i32", _BULK.format(op="fill")),
    "memcmp": _routine("a:i32 b:i32 n:i32 -> i32 ; d:i32", _COMPARE_BYTES),
    "bcmp": _routine("a:i32 b:i32 n:i32 -> i32 ; d:i32", _COMPARE_BYTES),
    "strlen": _routine("s:i32 -> i32 ; p:i32", _STRING_LENGTH),
    "abort": _routine(" -> ", "unreachable"),
    "udivmod128": _routine(
        "nl:i64 nh:i64 dl:i64 dh:i64 -> i64 i64 i64 i64 ; rl:i64 rh:i64 carry:i64 count:i32",
        _UDIVMOD,
        public=False,
    ),
    "__multi3": _routine(
        "p:i32 al:i64 ah:i64 bl:i64 bh:i64 -> ; a0:i64 a1:i64 b0:i64 b1:i64 low:i64 middle:i64 carry:i64",
        _MULTI3,
    ),
    "__udivti3": _routine(_DIVISION_LOCALS, _DIVIDE_UNSIGNED.replace("{x}", "q")),
    "__umodti3": _routine(_DIVISION_LOCALS, _DIVIDE_UNSIGNED.replace("{x}", "r")),
    "__divti3": _routine(_SIGNED_LOCALS, _divide_signed("q", "local.get $sa\nlocal.get $sb\ni64.xor")),
    "__modti3": _routine(_SIGNED_LOCALS, _divide_signed("r", "local.get $sa")),
    "__ashlti3": _routine("p:i32 l:i64 h:i64 n:i32 -> ", _SHIFT_LEFT),
    "__lshrti3": _routine("p:i32 l:i64 h:i64 n:i32 -> ", _SHIFT_RIGHT.format(op="shr_u", fill="i64.const 0")),
    "__ashrti3": _routine(
        "p:i32 l:i64 h:i64 n:i32 -> ",
        _SHIFT_RIGHT.format(op="shr_s", fill="local.get $h\ni64.const 63\ni64.shr_s"),
    ),
}
