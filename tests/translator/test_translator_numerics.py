"""Arithmetic against numpy and against exact arithmetic, on random values."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from translator_support import Function, module_of

from sylvite.translator import NUMERICS
from sylvite.vm import Context
from sylvite.vm.module import BytecodeModule
from sylvite.vmfb.isa import BY_NAME, ValueType

EXAMPLES = settings(max_examples=60, deadline=None)

I32 = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)])
I64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])
F32 = st.floats(width=32)
F64 = st.floats()


class Archive:
    verified = True

    def __init__(self, module):
        self.module = module

    def close(self):
        pass


LETTERS = {ValueType.I32: "i", ValueType.I64: "I", ValueType.F32: "f", ValueType.F64: "F"}


@pytest.fixture(scope="module")
def call():
    """Calls one value operation by its name."""
    context = Context([])
    contexts = {}

    def run(name, *values):
        if name not in contexts:
            op = BY_NAME[name]
            reads = [field.type for field in op.fields if field.access == "read"]
            (write,) = (field.type for field in op.fields if field.access == "write")
            convention = "".join(LETTERS[kind] for kind in reads) + "_" + LETTERS[write]
            function = Function(convention).block()
            registers, place = [], 0
            for kind in reads:
                place += place & 1 if kind.is_wide else 0
                registers.append(place)
                place += 2 if kind.is_wide else 1
            function.op(name, *registers, 40).op("return", [40])
            contexts[name] = Context([BytecodeModule(Archive(module_of(function)))])
        return contexts[name].invoke("made.f0", *values)

    yield run
    context.close()


def same(found: float, expected: float) -> bool:
    if math.isnan(expected):
        return math.isnan(found)
    return found == expected and math.copysign(1, found) == math.copysign(1, expected)


def wrapped(value: int, bits: int) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


INTEGER = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


@pytest.mark.parametrize("name", INTEGER)
@EXAMPLES
@given(a=I64, b=I64)
def test_i64_operation_wraps_around(call, name, a, b):
    assert call(f"{name}.i64", a, b) == wrapped(INTEGER[name](a, b), 64)


@pytest.mark.parametrize("name", INTEGER)
@EXAMPLES
@given(a=I32, b=I32)
def test_i32_operation_wraps_around(call, name, a, b):
    assert call(f"{name}.i32", a, b) == wrapped(INTEGER[name](a, b), 32)


@EXAMPLES
@given(a=I64, b=I64.filter(bool))
def test_i64_division_truncates(call, a, b):
    quotient = math.trunc(Fraction(a, b))
    assert call("div.i64.s", a, b) == wrapped(quotient, 64)
    assert call("rem.i64.s", a, b) == a - quotient * b
    unsigned_a, unsigned_b = a % 2**64, b % 2**64
    assert call("div.i64.u", a, b) == wrapped(unsigned_a // unsigned_b, 64)
    assert call("rem.i64.u", a, b) == wrapped(unsigned_a % unsigned_b, 64)


@EXAMPLES
@given(a=I32, amount=I32)
def test_i32_shifts_use_the_low_bits_of_the_amount(call, a, amount):
    count = amount % 32
    assert call("shl.i32", a, amount) == wrapped(a << count, 32)
    assert call("shr.i32.s", a, amount) == a >> count
    assert call("shr.i32.u", a, amount) == wrapped((a % 2**32) >> count, 32)


NUMPY = {"add": numpy.add, "sub": numpy.subtract, "mul": numpy.multiply, "div": numpy.divide}


@pytest.mark.parametrize("name", NUMPY)
@EXAMPLES
@given(a=F32, b=F32)
def test_f32_operation_agrees_with_numpy(call, name, a, b):
    with numpy.errstate(all="ignore"):
        expected = float(NUMPY[name](numpy.float32(a), numpy.float32(b)))
    assert same(call(f"{name}.f32", a, b), expected)


@pytest.mark.parametrize("name", NUMPY)
@EXAMPLES
@given(a=F64, b=F64)
def test_f64_operation_agrees_with_numpy(call, name, a, b):
    with numpy.errstate(all="ignore"):
        expected = float(NUMPY[name](numpy.float64(a), numpy.float64(b)))
    assert same(call(f"{name}.f64", a, b), expected)


UNARY = {
    "sqrt": numpy.sqrt,
    "ceil": numpy.ceil,
    "floor": numpy.floor,
    "abs": numpy.abs,
    "neg": numpy.negative,
}


@pytest.mark.parametrize("name", UNARY)
@EXAMPLES
@given(a=F32)
def test_f32_function_agrees_with_numpy(call, name, a):
    with numpy.errstate(all="ignore"):
        assert same(call(f"{name}.f32", a), float(UNARY[name](numpy.float32(a))))


@EXAMPLES
@given(value=I64)
def test_i64_to_f32_rounds_once(call, value):
    with numpy.errstate(all="ignore"):
        assert call("cast.si64.f32", value) == float(numpy.float32(numpy.int64(value)))
        assert call("cast.ui64.f32", value) == float(numpy.float32(numpy.uint64(value % 2**64)))


@pytest.mark.parametrize("exponent", [25, 40, 62])
def test_i64_next_to_a_tie_rounds_to_its_side(call, exponent):
    """Through f64 these would become ties and round to even."""
    unit = 1 << (exponent - 23)
    tie = (1 << exponent) + unit // 2
    assert call("cast.si64.f32", tie) == float(1 << exponent)
    assert call("cast.si64.f32", tie + 1) == float((1 << exponent) + unit)
    assert call("cast.si64.f32", -tie - 1) == -float((1 << exponent) + unit)


@EXAMPLES
@given(value=F64)
def test_rounding_to_f32_agrees_with_struct(value):
    found = NUMERICS["f32"](value)
    try:
        expected = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        expected = math.copysign(math.inf, value)
    assert same(found, expected)


@EXAMPLES
@given(value=F64)
def test_bits_of_f64_survive_the_round_trip(call, value):
    assert same(call("bitcast.i64.f64", call("bitcast.f64.i64", value)), value)


@EXAMPLES
@given(a=F64, b=F64)
def test_comparisons_follow_the_order_of_floats(call, a, b):
    unordered = math.isnan(a) or math.isnan(b)
    assert call("cmp.lt.f64.o", a, b) == (a < b)
    assert call("cmp.lt.f64.u", a, b) == (unordered or a < b)
    assert call("cmp.lte.f64.o", a, b) == (a <= b)
    assert call("cmp.lte.f64.u", a, b) == (unordered or a <= b)
    assert call("cmp.eq.f64.o", a, b) == (a == b)
    assert call("cmp.eq.f64.u", a, b) == (unordered or a == b)
    assert call("cmp.ne.f64.u", a, b) == (unordered or a != b)


@EXAMPLES
@given(value=F64)
def test_rounding_goes_to_the_nearest_integer(call, value):
    if not math.isfinite(value):
        assert same(call("round.f64", value), value)
        return
    away = call("round.f64", value)
    assert abs(Fraction(away) - Fraction(value)) <= Fraction(1, 2)
    assert away == math.trunc(away)
    even = call("round.f64.even", value)
    assert even == round(Fraction(value))
    if abs(Fraction(value) % 1) == Fraction(1, 2):
        assert abs(away) > abs(value)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("log.f64", (0.0,), -math.inf),
        ("log.f64", (-1.0,), math.nan),
        ("log1p.f64", (-1.0,), -math.inf),
        ("exp.f64", (1e4,), math.inf),
        ("exp2.f64", (-1e9,), 0.0),
        ("pow.f64", (0.0, -1.0), math.inf),
        ("pow.f64", (-0.0, -3.0), -math.inf),
        ("pow.f64", (-0.0, -2.0), math.inf),
        ("pow.f64", (-8.0, 1 / 3), math.nan),
        ("pow.f64", (-1e300, 3.0), -math.inf),
        ("sqrt.f64", (-1.0,), math.nan),
        ("rsqrt.f64", (0.0,), math.inf),
        ("div.f64", (1.0, -0.0), -math.inf),
        ("div.f64", (0.0, 0.0), math.nan),
        ("rem.f64", (5.0, 3.0), -1.0),
        ("rem.f64", (math.inf, 3.0), math.nan),
        ("sin.f64", (math.inf,), math.nan),
        ("exp.f32", (89.0,), math.inf),
        ("add.f32", (3e38, 3e38), math.inf),
        ("min.f64", (math.nan, 1.0), math.nan),
        ("min.f64", (1.0, math.nan), 1.0),
        ("max.f64", (-0.0, 0.0), -0.0),
    ],
)
def test_corner_of_float_function_is_that_of_c(call, name, arguments, expected):
    assert same(call(name, *arguments), expected)
