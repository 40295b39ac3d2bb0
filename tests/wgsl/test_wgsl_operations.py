"""Every operation on edge values, run on both providers, against numpy."""

# ruff: noqa: E501

from __future__ import annotations

import numpy as np
import pytest
from tests.wgsl import shader_runner as sr

U, S, F = np.uint32, np.int32, np.float32
WORDS = np.array([0, 1, 2, 3, 7, 31, 32, 255, 65536, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF,
                  0x12345678, 0xDEADBEEF], U)  # fmt: skip
NUMBERS = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.25, 1e-20, -1e20, 123456.7, 2.0**31, 7.0,
                    -3.0], F)  # fmt: skip
WITH_NAN = np.array([*NUMBERS[:12], np.nan, np.inf, -np.inf, 4.0], F)


def pairs(values):
    a, b = np.meshgrid(values, values)
    return a.ravel().copy(), b.ravel().copy()


def truncated_remainder(a, b):
    return (np.fmod(a.astype(np.int64), b.astype(np.int64))).astype(S)


def truncated_quotient(a, b):
    a, b = a.astype(np.int64), b.astype(np.int64)
    return (np.sign(a) * np.sign(b) * (abs(a) // abs(b))).astype(S)


def nonzero(a, b):
    return b != 0


def in_range(a, b):
    return b < 32


def divisible(a, b):
    return (b != 0) & ~((a == -(2**31)) & (b == -1))


# name: (numpy over operands seen as the dtype, dtype, where it is defined)
INTEGER = {
    "OpIAdd": (lambda a, b: a + b, U, None),
    "OpISub": (lambda a, b: a - b, U, None),
    "OpIMul": (lambda a, b: a * b, U, None),
    "OpUDiv": (lambda a, b: a // b, U, nonzero),
    "OpUMod": (lambda a, b: a % b, U, nonzero),
    "OpSDiv": (truncated_quotient, S, divisible),
    "OpSRem": (truncated_remainder, S, divisible),
    "OpSMod": (lambda a, b: a % b, S, divisible),
    "OpBitwiseAnd": (lambda a, b: a & b, U, None),
    "OpBitwiseOr": (lambda a, b: a | b, U, None),
    "OpBitwiseXor": (lambda a, b: a ^ b, U, None),
    "OpShiftLeftLogical": (lambda a, b: a << b, U, in_range),
    "OpShiftRightLogical": (lambda a, b: a >> b, U, in_range),
    "OpShiftRightArithmetic": (lambda a, b: a >> b, S, lambda a, b: (b >= 0) & (b < 32)),
    "UMin": (np.minimum, U, None),
    "UMax": (np.maximum, U, None),
    "SMin": (np.minimum, S, None),
    "SMax": (np.maximum, S, None),
}
COMPARED = {
    "OpIEqual": (np.equal, U), "OpINotEqual": (np.not_equal, U), "OpULessThan": (np.less, U),
    "OpULessThanEqual": (np.less_equal, U), "OpUGreaterThan": (np.greater, U),
    "OpUGreaterThanEqual": (np.greater_equal, U), "OpSLessThan": (np.less, S),
    "OpSLessThanEqual": (np.less_equal, S), "OpSGreaterThan": (np.greater, S),
    "OpSGreaterThanEqual": (np.greater_equal, S), "OpFOrdEqual": (np.equal, F),
    "OpFOrdLessThan": (np.less, F), "OpFOrdLessThanEqual": (np.less_equal, F), "OpFOrdGreaterThan": (np.greater, F),
    "OpFOrdGreaterThanEqual": (np.greater_equal, F), "OpFUnordNotEqual": (np.not_equal, F),
    "OpFUnordLessThan": (lambda a, b: ~(a >= b), F), "OpFUnordLessThanEqual": (lambda a, b: ~(a > b), F),
    "OpFUnordGreaterThan": (lambda a, b: ~(a <= b), F), "OpFUnordGreaterThanEqual": (lambda a, b: ~(a < b), F),
    "OpFOrdNotEqual": (lambda a, b: (a < b) | (a > b), F), "OpFUnordEqual": (lambda a, b: ~((a < b) | (a > b)), F),
}  # fmt: skip
REAL = {
    "OpFAdd": lambda a, b: a + b,
    "OpFSub": lambda a, b: a - b,
    "OpFMul": lambda a, b: a * b,
    "FMin": np.minimum,
    "FMax": np.maximum,
}
UNARY_REAL = {
    "OpFNegate": np.negative, "Floor": np.floor, "Ceil": np.ceil, "Trunc": np.trunc, "RoundEven": np.rint,
    "FAbs": np.abs, "FSign": np.sign, "Sqrt": np.sqrt, "Exp": np.exp, "Log": np.log, "Exp2": np.exp2,
    "Log2": np.log2, "Sin": np.sin, "Cos": np.cos, "Tanh": np.tanh, "InverseSqrt": lambda a: 1 / np.sqrt(a),
    "Atan": np.arctan, "Fract": lambda a: a - np.floor(a),
}  # fmt: skip
UNARY_WORDS = {
    "OpNot": lambda a: ~a,
    "OpSNegate": lambda a: 0 - a,
    "OpBitReverse": lambda a: np.array([int(f"{int(x):032b}"[::-1], 2) for x in a], U),
    "OpBitCount": lambda a: np.array([int(x).bit_count() if hasattr(int, "bit_count") else bin(int(x)).count("1")
                                      for x in a], U),
    "FindILsb": lambda a: np.array([(int(x) & -int(x)).bit_length() - 1 for x in a]).astype(S).view(U),
    "FindUMsb": lambda a: np.array([int(x).bit_length() - 1 for x in a]).astype(S).view(U),
}  # fmt: skip


def operation(name, type_, *operands):
    if name.startswith("Op"):
        return f"%r = {name} %{type_} {' '.join(operands)}\n"
    return f"%r = OpExtInst %{type_} %glsl {name} {' '.join(operands)}\n"


def run_words(provider, body, count, *inputs, element="uint", result="uint"):
    buffers = {f"in{index}": element for index in range(len(inputs))}
    text = sr.kernel({**buffers, "out": result}, body, size=64)
    text = text.replace("%lane = OpCompositeExtract %uint %whole 0\n", LANE)
    text = text.replace(
        "OpDecorate %id BuiltIn LocalInvocationId", "OpDecorate %id BuiltIn GlobalInvocationId"
    )
    shader = sr.translate(text)
    arrays = dict(enumerate([*inputs, np.zeros(count, U)]))
    return sr.run(provider, shader, arrays, groups=(-(-count // 64), 1, 1))[len(inputs)]


LANE = "%lane = OpCompositeExtract %uint %whole 0\n"


@pytest.fixture(params=["wgpu", "dawn"])
def provider(request):
    sr.device(request.param)
    return request.param


@pytest.mark.parametrize("name", INTEGER)
def test_integer_operations_on_edge_values_agree_with_numpy(name, provider):
    compute, dtype, defined = INTEGER[name]
    a, b = pairs(WORDS)
    body = sr.load("a", "in0", "uint") + sr.load("b", "in1", "uint") + operation(name, "uint", "%a", "%b")
    got = run_words(provider, body + sr.store("r", "out", "uint"), len(a), a, b)
    a, b = a.view(dtype), b.view(dtype)
    where = np.ones(len(a), bool) if defined is None else defined(a, b)
    expected = np.asarray(compute(a[where], b[where])).view(U)
    np.testing.assert_array_equal(got[where], expected)


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_with_nan_and_extremes_agree_with_numpy(name, provider):
    compute, dtype = COMPARED[name]
    a, b = pairs(WITH_NAN if dtype is F else WORDS)
    element = "float" if dtype is F else "uint"
    body = sr.load("a", "in0", element) + sr.load("b", "in1", element)
    body += f"%c = {name} %bool %a %b\n%r = OpSelect %uint %c %u1 %u0\n" + sr.store("r", "out", "uint")
    got = run_words(provider, body, len(a), a, b, element=element)
    np.testing.assert_array_equal(got, compute(a.view(dtype), b.view(dtype)).astype(U))


@pytest.mark.parametrize("name", REAL)
def test_real_operations_agree_with_numpy(name, provider):
    a, b = pairs(NUMBERS)
    body = sr.load("a", "in0", "float") + sr.load("b", "in1", "float") + operation(name, "float", "%a", "%b")
    body += sr.store("r", "out", "float")
    got = run_words(provider, body, len(a), a, b, element="float", result="float").view(F)
    np.testing.assert_allclose(got, REAL[name](a, b), rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("name", UNARY_REAL)
def test_real_functions_agree_with_numpy(name, provider):
    a = np.array([0.1, 0.5, 1.0, 1.5, 2.5, 3.5, 7.75, 20.0, -0.5, -1.5, -2.5, -7.25], F)
    if name in ("Sqrt", "Log", "Log2", "InverseSqrt"):
        a = np.abs(a)
    body = sr.load("a", "in0", "float") + operation(name, "float", "%a") + sr.store("r", "out", "float")
    got = run_words(provider, body, len(a), a, element="float", result="float").view(F)
    np.testing.assert_allclose(got, UNARY_REAL[name](a), rtol=2e-4, atol=1e-3)


@pytest.mark.parametrize("name", UNARY_WORDS)
def test_bit_functions_agree_with_numpy(name, provider):
    body = sr.load("a", "in0", "uint") + operation(name, "uint", "%a") + sr.store("r", "out", "uint")
    got = run_words(provider, body, len(WORDS), WORDS)
    np.testing.assert_array_equal(got, UNARY_WORDS[name](WORDS))


@pytest.mark.parametrize(
    ("name", "source", "target", "values", "expected"),
    [
        ("OpConvertFToS", "float", "uint", [-1.0, -127.9, 3.7, 0.0], np.array([-1, -127, 3, 0], S)),
        ("OpConvertFToU", "float", "int", [1.0, 4e9, 3.7, 0.0], np.array([1, 4000000000, 3, 0], np.int64)),
        (
            "OpConvertSToF",
            "uint",
            "float",
            [0xFFFFFFFF, 5, 0x80000000, 0],
            np.array([-1, 5, -(2.0**31), 0], F),
        ),
        (
            "OpConvertUToF",
            "int",
            "float",
            [0xFFFFFFFF, 5, 0x80000000, 0],
            np.array([2.0**32, 5, 2.0**31, 0], F),
        ),
        ("OpBitcast", "float", "uint", [1.0, -0.0, 2.5, 1e20], np.array([1.0, -0.0, 2.5, 1e20], F)),
        ("OpBitcast", "uint", "int", [0xFFFFFFFF, 5, 1 << 31, 0], np.array([0xFFFFFFFF, 5, 1 << 31, 0], U)),
    ],
)
def test_conversions_with_either_signedness_agree(name, source, target, values, expected, provider):
    words = np.array(values, F if source == "float" else np.uint64)
    words = words if source == "float" else words.astype(U)
    body = sr.load("a", "in0", source) + operation(name, target, "%a") + sr.store("r", "out", target)
    got = run_words(provider, body, 4, words, element=source, result=target)
    expected = expected.astype(U) if expected.dtype == np.int64 else expected.view(U)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["OpIAddCarry", "OpISubBorrow", "OpUMulExtended", "OpSMulExtended"])
def test_extended_arithmetic_gives_both_halves(name, provider):
    a, b = pairs(WORDS)
    body = sr.load("a", "in0", "uint") + sr.load("b", "in1", "uint") + f"%p = {name} %pair %a %b\n"
    body += "%r = OpCompositeExtract %uint %p 1\n" + sr.store("r", "out", "uint")
    got = run_words(provider, body, len(a), a, b)
    wide = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    signed = [(int(x), int(y)) for x, y in zip(a.view(S), b.view(S), strict=True)]
    expected = {
        "OpIAddCarry": [x + y >> 32 for x, y in wide],
        "OpISubBorrow": [int(x < y) for x, y in wide],
        "OpUMulExtended": [x * y >> 32 for x, y in wide],
        "OpSMulExtended": [x * y >> 32 & 0xFFFFFFFF for x, y in signed],
    }[name]
    np.testing.assert_array_equal(got, np.array(expected, np.uint64).astype(U))


@pytest.mark.parametrize(("name", "compute"), [("NMin", np.fmin), ("NMax", np.fmax)])
def test_minimum_and_maximum_of_numbers_ignore_nan(name, compute, provider):
    a, b = pairs(WITH_NAN)
    body = sr.load("a", "in0", "float") + sr.load("b", "in1", "float") + operation(name, "float", "%a", "%b")
    body += sr.store("r", "out", "float")
    got = run_words(provider, body, len(a), a, b, element="float", result="float").view(F)
    np.testing.assert_array_equal(got, compute(a, b))


def test_is_nan_and_is_inf_see_bits(provider):
    body = sr.load("a", "in0", "float") + "%n = OpIsNan %bool %a\n%i = OpIsInf %bool %a\n"
    body += "%s = OpSelect %uint %n %u1 %u0\n%r = OpSelect %uint %i %u2 %s\n" + sr.store("r", "out", "uint")
    got = run_words(provider, body, len(WITH_NAN), WITH_NAN, element="float")
    np.testing.assert_array_equal(got, np.isnan(WITH_NAN) + 2 * np.isinf(WITH_NAN))


@pytest.mark.parametrize(
    ("name", "a", "b", "expected"),
    [
        ("OpIAdd", 0xFFFFFFFF, 2, 1),
        ("OpUDiv", 7, 0, None),
        ("OpSDiv", 0x80000000, 0xFFFFFFFF, None),
        ("OpIMul", 0x10000, 0x10000, 0),
        ("OpShiftLeftLogical", 1, 31, 0x80000000),
        ("OpShiftLeftLogical", 1, 32, None),
    ],
)
def test_operations_on_constants_are_no_shader_errors(name, a, b, expected, provider):
    globals_ = f"%ca = OpConstant %uint {a}\n%cb = OpConstant %uint {b}\n"
    body = f"%r = {name} %uint %ca %cb\n" + sr.store("r", "out", "uint")
    shader = sr.translate(sr.kernel({"out": "uint"}, body, size=1, globals_=globals_))
    got = sr.run(provider, shader, {0: np.zeros(4, U)})[0]
    if expected is not None:
        assert got[0] == expected


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800000, 0xFF800000, 0x00000001, 0x80000000, 0x7F7FFFFF])
def test_constants_without_literals_keep_their_bits(bits, provider):
    globals_ = f"%c = OpConstant %float !{bits:#x}\n"
    body = "%r = OpBitcast %uint %c\n" + sr.store("r", "out", "uint")
    shader = sr.translate(sr.kernel({"out": "uint"}, body, size=1, globals_=globals_))
    assert sr.run(provider, shader, {0: np.zeros(4, U)})[0][0] == bits
