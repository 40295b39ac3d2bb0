"""Run-time routines that compilers leave undefined, as WebAssembly text.

What is exact in wasm is wasm: a callback into Python costs more than a dispatch. Each entry is a signature
(``name:type`` parameters, results, then further locals) and a body of words: an instruction, with its
immediate or memory offset after a colon (``br_if:1``, ``i64.store:8``, ``i32:5`` for ``i32.const 5``);
``$x`` pushes local x, ``set:x`` and ``tee:x`` store it; ``@name`` calls another routine.
`sylvite.linker.support` assembles them.

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
    $x $x {t}.ne if
      $y return
    end
    $y $y {t}.ne if
      $x return
    end
    $x $y {t}.{op}
"""

# Halves away from zero: the fraction and the sum are exact.
_ROUND = """
    $x {t}.abs {t}.trunc tee:whole $whole {t}:1 {t}.add $x {t}.abs $whole {t}.sub {t}:0.5 {t}.lt
    select $x {t}.copysign
"""

_UNARY = """
    $x {t}.{op}
"""

# Splits x into its integral part, stored at p, and the rest, both with x's sign.
_MODF = """
    $p $x {t}.trunc {t}.store
    $x {t}.abs {t}:inf {t}.eq if:{t}
      {t}:0
    else
      $x $x {t}.trunc {t}.sub
    end
    $x {t}.copysign
"""

# Long division of significands; the remainder of floats is always a float.
_FMOD = """
    $y f64:0 f64.eq $y $y f64.ne i32.or $x $x f64.sub f64:0 f64.ne i32.or if
      $x $y f64.mul tee:y $y f64.div return
    end
    $x f64.abs $y f64.abs f64.lt if
      $x return
    end
    $x f64.abs i64.reinterpret_f64 tee:mx i64:52 i64.shr_u i32.wrap_i64 set:ex
    $y f64.abs i64.reinterpret_f64 tee:my i64:52 i64.shr_u i32.wrap_i64 set:ey
    $ex if
      $mx i64:0xfffffffffffff i64.and i64:0x10000000000000 i64.or set:mx
    else
      $mx i64.clz i32.wrap_i64 i32:11 i32.sub set:k
      $mx $k i64.extend_i32_u i64.shl set:mx
      i32:1 $k i32.sub set:ex
    end
    $ey if
      $my i64:0xfffffffffffff i64.and i64:0x10000000000000 i64.or set:my
    else
      $my i64.clz i32.wrap_i64 i32:11 i32.sub set:k
      $my $k i64.extend_i32_u i64.shl set:my
      i32:1 $k i32.sub set:ey
    end
    $ex $ey i32.sub set:k
    block
      loop
        $mx $my i64.ge_u if
          $mx $my i64.sub set:mx
        end
        $k i32.eqz br_if:1
        $mx i64:1 i64.shl set:mx
        $k i32:1 i32.sub set:k
        br:0
      end
    end
    ;; the value is mx * 2**(ey - 1075); below 2**-1074 its low bits are zero
    $ey i32:1075 i32.sub tee:ey i32:-1074 i32.lt_s if
      $mx i32:-1074 $ey i32.sub i64.extend_i32_u i64.shr_u set:mx
      i32:-1074 set:ey
    end
    $mx f64.convert_i64_u $ey i32:-1022 i32.ge_s if:i64
      $ey i32:1023 i32.add i64.extend_i32_u i64:52 i64.shl
    else
      i64:1 $ey i32:1074 i32.add i64.extend_i32_u i64.shl
    end
    f64.reinterpret_i64 f64.mul $x f64.copysign
"""

# Steps that keep every intermediate in range; see the comment on double rounding in docs/linker.md.
_LDEXP = """
    $n i32:1023 i32.gt_s if
      $x f64:8.98846567431158e307 f64.mul set:x
      $n i32:1023 i32.sub tee:n i32:1023 i32.gt_s if
        $x f64:8.98846567431158e307 f64.mul set:x
        $n i32:1023 i32.sub tee:n i32:1023 $n i32:1023 i32.lt_s select set:n
      end
    end
    $n i32:-1022 i32.lt_s if
      $x f64:2.00416836000897278e-292 f64.mul set:x
      $n i32:969 i32.add tee:n i32:-1022 i32.lt_s if
        $x f64:2.00416836000897278e-292 f64.mul set:x
        $n i32:969 i32.add tee:n i32:-1022 $n i32:-1022 i32.gt_s select set:n
      end
    end
    $x $n i32:1023 i32.add i64.extend_i32_s i64:52 i64.shl f64.reinterpret_i64 f64.mul
"""

# In f64 an f32 times a power of two is exact, so only the last step rounds.
_LDEXPF = """
    $x f64.promote_f32 i32:300 i32:-300 $n $n i32:-300 i32.lt_s select tee:n $n i32:300 i32.gt_s
    select i32:1023 i32.add i64.extend_i32_s i64:52 i64.shl f64.reinterpret_i64 f64.mul
    f32.demote_f64
"""

_FREXP = """
    $x $x f64.sub f64:0 f64.ne $x f64:0 f64.eq i32.or if
      $p i32:0 i32.store
      $x return
    end
    $x f64.abs f64:2.2250738585072014e-308 f64.lt if
      $x f64:18014398509481984 f64.mul set:x
      i32:-54 set:e
    end
    $p $e $x i64.reinterpret_f64 tee:b i64:52 i64.shr_u i32.wrap_i64 i32:0x7ff i32.and i32:1022
    i32.sub i32.add i32.store
    $b i64:0x800fffffffffffff i64.and i64:0x3fe0000000000000 i64.or f64.reinterpret_i64
"""

# The product is exact in f64; the sum is rounded to odd there, which makes rounding to f32 right.
_FMAF = """
    $x f64.promote_f32 $y f64.promote_f32 f64.mul tee:p $z f64.promote_f32 tee:c f64.add tee:s $p
    f64.sub set:t
    $p $s $t f64.sub f64.sub $c $t f64.sub f64.add tee:e f64:0 f64.ne $e $e f64.eq i32.and $s
    i64.reinterpret_f64 tee:b i64:1 i64.and i64.eqz i32.and if
      $b i64:1 i64:-1 $e f64:0 f64.gt $s f64:0 f64.gt i32.eq select i64.add f64.reinterpret_i64
      set:s
    end
    $s f32.demote_f64
"""

_HALF_TO_SINGLE = """
    $h i32:0x7fff i32.and i32:13 i32.shl tee:m i32:0x0f800000 i32.and tee:e i32:0x0f800000 i32.eq
    if:i32
      $m i32:0x70000000 i32.add
    else
      $e if:i32
        $m i32:0x38000000 i32.add
      else
        ;; subnormal: 2**-14 + m * 2**-24 - 2**-14
        $m i32:0x38800000 i32.add f32.reinterpret_i32 f32:0.00006103515625 f32.sub
        i32.reinterpret_f32
      end
    end
    $h i32:0x8000 i32.and i32:16 i32.shl i32.or f32.reinterpret_i32
"""

_SINGLE_TO_HALF = """
    $x i32.reinterpret_f32 tee:b i32:0x7fffffff i32.and tee:a i32:0x7f800000 i32.gt_u if:i32
      $a i32:13 i32.shr_u i32:0x1ff i32.and i32:0x7e00 i32.or
    else
      $a i32:0x47800000 i32.ge_u if:i32
        i32:0x7c00
      else
        $a i32:0x38800000 i32.ge_u if:i32
          $a $a i32:13 i32.shr_u i32:1 i32.and i32.add i32:0x37fff001 i32.sub i32:13 i32.shr_u
        else
          ;; subnormal: adding 0.5 rounds to multiples of 2**-24
          $a f32.reinterpret_i32 f32:0.5 f32.add i32.reinterpret_f32 i32:0x3f000000 i32.sub
        end
      end
    end
    $b i32:16 i32.shr_u i32:0x8000 i32.and i32.or
"""

_SINGLE_TO_BFLOAT = """
    $x i32.reinterpret_f32 set:b
    $x $x f32.ne if:i32
      $b i32:0x400000 i32.or
    else
      $b $b i32:16 i32.shr_u i32:1 i32.and i32.add i32:0x7fff i32.add
    end
    i32:16 i32.shr_u
"""

# To f32, inexact results made odd, so that rounding once more to fewer bits gives the right answer.
_ROUND_TO_ODD = """
    $x f32.demote_f64 tee:f f64.promote_f32 tee:back $x f64.eq $x $x f64.ne i32.or if
      $f return
    end
    $f i32.reinterpret_f32 $back f64.abs $x f64.abs f64.gt i32.sub i32:1 i32.or f32.reinterpret_i32
"""

_MULTI3 = """
    ;; low halves: four products of 32 bits
    $al i64:0xffffffff i64.and tee:a0 $bl i64:0xffffffff i64.and tee:b0 i64.mul set:low
    $al i64:32 i64.shr_u tee:a1 $b0 i64.mul $low i64:32 i64.shr_u i64.add set:middle
    $a0 $bl i64:32 i64.shr_u tee:b1 i64.mul $middle i64:0xffffffff i64.and i64.add set:carry
    $p $al $bl i64.mul i64.store
    $p $a1 $b1 i64.mul $middle i64:32 i64.shr_u i64.add $carry i64:32 i64.shr_u i64.add $al $bh
    i64.mul i64.add $ah $bl i64.mul i64.add i64.store:8
"""

# Shift and subtract, 128 steps; a zero divisor traps as it does for the machine's own division.
_UDIVMOD = """
    $dl $dh i64.or i64.eqz if
      i64:1 i64:0 i64.div_u drop
    end
    i32:128 set:count
    loop
      $rh i64:63 i64.shr_u set:carry
      $rh i64:1 i64.shl $rl i64:63 i64.shr_u i64.or set:rh
      $rl i64:1 i64.shl $nh i64:63 i64.shr_u i64.or set:rl
      $nh i64:1 i64.shl $nl i64:63 i64.shr_u i64.or set:nh
      $nl i64:1 i64.shl set:nl
      $carry i64.eqz i32.eqz $rh $dh i64.gt_u i32.or $rh $dh i64.eq $rl $dl i64.ge_u i32.and i32.or
      if
        $rh $dh i64.sub $rl $dl i64.lt_u i64.extend_i32_u i64.sub set:rh
        $rl $dl i64.sub set:rl
        $nl i64:1 i64.or set:nl
      end
      $count i32:1 i32.sub tee:count br_if:0
    end
    $nl $nh $rl $rh
"""

_DIVIDE_UNSIGNED = """
    $al $ah $bl $bh @udivmod128 set:rh
    set:rl
    set:qh
    set:ql
    $p ${x}l i64.store
    $p ${x}h i64.store:8
"""

# |v| for a pair, in place: (v ^ s) - s with s the sign spread over 128 bits.
_ABSOLUTE = """
    ${v}h i64:63 i64.shr_s set:s{v}
    ${v}h $s{v} i64.xor ${v}l $s{v} i64.xor tee:{v}l $s{v} i64.lt_u i64.extend_i32_u i64.sub $s{v}
    i64.sub set:{v}h
    ${v}l $s{v} i64.sub set:{v}l
"""


def _divide_signed(result: str, sign: str) -> str:
    return (
        _ABSOLUTE.format(v="a")
        + _ABSOLUTE.format(v="b")
        + f"""
    $al $ah $bl $bh @udivmod128 set:rh
    set:rl
    set:qh
    set:ql
    {sign} set:sa
    $p ${result}l $sa i64.xor tee:{result}l $sa i64.sub i64.store
    $p ${result}h $sa i64.xor $sa i64.sub ${result}l $sa i64.lt_u i64.extend_i32_u i64.sub
    i64.store:8
"""
    )


_DIVISION_LOCALS = "p:i32 al:i64 ah:i64 bl:i64 bh:i64 -> ; ql:i64 qh:i64 rl:i64 rh:i64"
_SIGNED_LOCALS = _DIVISION_LOCALS + " sa:i64 sb:i64"

# Shifts of 128 bits by 0..127; wasm shifts by the count modulo 64.
_SHIFT_LEFT = """
    $n i32:64 i32.and if
      $l $n i64.extend_i32_u i64.shl set:h
      i64:0 set:l
    else
      $n if
        $h $n i64.extend_i32_u i64.shl $l i32:64 $n i32.sub i64.extend_i32_u i64.shr_u i64.or set:h
        $l $n i64.extend_i32_u i64.shl set:l
      end
    end
    $p $l i64.store
    $p $h i64.store:8
"""

_SHIFT_RIGHT = """
    $n i32:64 i32.and if
      $h $n i64.extend_i32_u i64.{op} set:l
      {fill} set:h
    else
      $n if
        $l $n i64.extend_i32_u i64.shr_u $h i32:64 $n i32.sub i64.extend_i32_u i64.shl i64.or set:l
        $h $n i64.extend_i32_u i64.{op} set:h
      end
    end
    $p $l i64.store
    $p $h i64.store:8
"""

# Powers by squaring; a negative exponent takes the reciprocal at the end.
_POWI = """
    {t}:1 set:r
    $n set:m
    block
      loop
        $m i32:1 i32.and if
          $r $x {t}.mul set:r
        end
        $m i32:2 i32.div_s tee:m i32.eqz br_if:1
        $x $x {t}.mul set:x
        br:0
      end
    end
    {t}:1 $r {t}.div $r $n i32:0 i32.lt_s select
"""

_COMPARE_BYTES = """
    block
      loop
        $n i32.eqz br_if:1
        $a i32.load8_u $b i32.load8_u i32.sub tee:d br_if:1
        $a i32:1 i32.add set:a
        $b i32:1 i32.add set:b
        $n i32:1 i32.sub set:n
        br:0
      end
    end
    $d
"""

_STRING_LENGTH = """
    $s set:p
    block
      loop
        $p i32.load8_u i32.eqz br_if:1
        $p i32:1 i32.add set:p
        br:0
      end
    end
    $p $s i32.sub
"""

_BULK = """
    $d $s $n memory.{op} $d
"""

_TO_INTEGER = """
    $x {rounding} {i}.trunc_sat_{t}_s
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
        table["copysign" + suffix] = _routine(two, f"$x $y {t}.copysign")
        table["round" + suffix] = _routine(f"{one} ; whole:{t}", _ROUND.format(t=t))
        table["modf" + suffix] = _routine(f"x:{t} p:i32 -> {t}", _MODF.format(t=t))
        for name, rounding in (("round", f"@round{suffix}"), ("rint", f"{t}.nearest")):
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
        "$x f64.promote_f32 $y f64.promote_f32 @fmod f32.demote_f64",
    ),
    "ldexp": _routine("x:f64 n:i32 -> f64", _LDEXP),
    "ldexpf": _routine("x:f32 n:i32 -> f32", _LDEXPF),
    "scalbn": _routine("x:f64 n:i32 -> f64", _LDEXP),
    "scalbnf": _routine("x:f32 n:i32 -> f32", _LDEXPF),
    "frexp": _routine("x:f64 p:i32 -> f64 ; b:i64 e:i32", _FREXP),
    "frexpf": _routine(
        "x:f32 p:i32 -> f32",
        "$x f64.promote_f32 $p @frexp f32.demote_f64",
    ),
    "fmaf": _routine("x:f32 y:f32 z:f32 -> f32 ; p:f64 c:f64 s:f64 t:f64 e:f64 b:i64", _FMAF),
    "roundtoodd": _routine("x:f64 -> f32 ; f:f32 back:f64", _ROUND_TO_ODD, public=False),
    "__gnu_h2f_ieee": _routine("h:i32 -> f32 ; m:i32 e:i32", _HALF_TO_SINGLE),
    "__extendhfsf2": _routine("h:i32 -> f32 ; m:i32 e:i32", _HALF_TO_SINGLE),
    "__extendhfdf2": _routine("h:i32 -> f64", "$h @__extendhfsf2 f64.promote_f32"),
    "__gnu_f2h_ieee": _routine("x:f32 -> i32 ; a:i32 b:i32", _SINGLE_TO_HALF),
    "__truncsfhf2": _routine("x:f32 -> i32 ; a:i32 b:i32", _SINGLE_TO_HALF),
    "__truncdfhf2": _routine("x:f64 -> i32", "$x @roundtoodd @__truncsfhf2"),
    "__truncsfbf2": _routine("x:f32 -> i32 ; b:i32", _SINGLE_TO_BFLOAT),
    "__truncdfbf2": _routine("x:f64 -> i32", "$x @roundtoodd @__truncsfbf2"),
    "__extendbfsf2": _routine("h:i32 -> f32", "$h i32:16 i32.shl f32.reinterpret_i32"),
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
    "__divti3": _routine(_SIGNED_LOCALS, _divide_signed("q", "$sa $sb i64.xor")),
    "__modti3": _routine(_SIGNED_LOCALS, _divide_signed("r", "$sa")),
    "__ashlti3": _routine("p:i32 l:i64 h:i64 n:i32 -> ", _SHIFT_LEFT),
    "__lshrti3": _routine("p:i32 l:i64 h:i64 n:i32 -> ", _SHIFT_RIGHT.format(op="shr_u", fill="i64:0")),
    "__ashrti3": _routine(
        "p:i32 l:i64 h:i64 n:i32 -> ",
        _SHIFT_RIGHT.format(op="shr_s", fill="$h i64:63 i64.shr_s"),
    ),
}
