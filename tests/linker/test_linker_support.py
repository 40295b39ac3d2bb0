"""The support module's routines against NumPy, the C library, ml_dtypes and Python's integers."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from fractions import Fraction

import numpy as np
import pytest

from sylvite.errors import TrapError
from sylvite.linker import LinkSpace
from sylvite.linker.support import HOST_MATH, WASM_ROUTINES, assemble
from sylvite.wasm import ModuleBuilder, ValueType

I32, I64, F32, F64 = ValueType.I32, ValueType.I64, ValueType.F32, ValueType.F64
DTYPES = {I32: np.int32, I64: np.int64, F32: np.float32, F64: np.float64}
SEED = 20


@pytest.fixture(scope="module")
def support_space(linker_engine):
    with LinkSpace(linker_engine) as link_space:
        yield link_space


@pytest.fixture(scope="module")
def apply(support_space):
    """Call a routine on whole arrays: a generated loop loads its arguments and stores its result."""
    space = support_space
    made = {}

    def loop_for(name, function):
        parameters, (result,) = list(function.parameter_types), function.result_types
        module = ModuleBuilder(f"apply {name}")
        module.import_memory("env", "memory", 0)
        target = module.import_function("env", "target", parameters, [result])
        count = len(parameters)
        loop = module.function("loop", [I32] * (count + 2), export=True)
        with loop.loop() as again:
            loop.get(count)
            for index, value_type in enumerate(parameters):
                loop.get(index).emit(f"{value_type.text}.load")
            loop.call(target).emit(f"{result.text}.store")
            for index, value_type in enumerate([*parameters, result]):
                loop.get(index).i32(DTYPES[value_type]().itemsize).emit("i32.add").set(index)
            loop.get(count + 1).i32(1).emit("i32.sub").tee(count + 1).br_if(again)
        compiled = space.engine.compile(module.build())
        imports = {("env", "memory"): space.memory, ("env", "target"): function}
        return space.store.instantiate(compiled, imports).exports["loop"]

    def call(name, *arrays):
        function = space.support[name]
        if name not in made:
            made[name] = loop_for(name, function)
        length = len(arrays[0])
        addresses = []
        for array, value_type in zip(arrays, function.parameter_types, strict=True):
            data = np.ascontiguousarray(array, dtype=DTYPES[value_type])
            addresses.append(space.reserve(max(data.nbytes, 1)))
            space.write(addresses[-1], data)
        dtype = np.dtype(DTYPES[function.result_types[0]])
        addresses.append(space.reserve(length * dtype.itemsize))
        made[name](*addresses, length)
        result = np.frombuffer(space.read(addresses[-1], length * dtype.itemsize), dtype)
        for address in addresses:
            space.release(address)
        return result

    return call


def random_floats(dtype, count, seed=SEED):
    """Random bit patterns: all exponents, subnormals, infinities and NaNs occur."""
    bits = np.dtype(dtype).itemsize * 8
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 1 << bits, count, dtype=f"u{bits // 8}", endpoint=False).view(dtype)
    special = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan]
    tiny = np.finfo(dtype)
    special += [tiny.max, -tiny.max, tiny.tiny, tiny.smallest_subnormal, -tiny.smallest_subnormal]
    values[: len(special)] = special
    return values


def pairs(dtype, count):
    """Pairs of floats: random ones, all pairs of special ones, and close ones."""
    x, y = random_floats(dtype, count), random_floats(dtype, count, SEED + 1)
    special = x[:17]
    close = np.random.default_rng(SEED).normal(size=(2, count)).astype(dtype)
    return (
        np.concatenate([x, np.repeat(special, 17), close[0] * 1000]),
        np.concatenate([y, np.tile(special, 17), close[1]]),
    )


def same(actual, expected):
    """Equal bits, any NaN for a NaN."""
    expected = np.asarray(expected, dtype=actual.dtype)
    bits = f"u{actual.dtype.itemsize}"
    equal = (actual.view(bits) == expected.view(bits)) | (np.isnan(actual) & np.isnan(expected))
    assert equal.all(), (np.flatnonzero(~equal)[:5], actual[~equal][:5], expected[~equal][:5])


FLOATS = pytest.mark.parametrize(("suffix", "dtype"), [("f", np.float32), ("", np.float64)])


def test_tables_are_disjoint_and_the_module_exports_its_half(support_space):
    assert WASM_ROUTINES.isdisjoint(HOST_MATH)
    assert set(support_space.support) == WASM_ROUTINES
    assert assemble() is assemble()


@FLOATS
@pytest.mark.parametrize("name", ["fmax", "fmin"])
def test_minimum_and_maximum_ignore_nan(apply, name, suffix, dtype):
    x, y = pairs(dtype, 100_000)
    actual = apply(name + suffix, x, y)
    expected = getattr(np, name)(x, y)
    # The order of zeros is left open by C; ours is -0 < +0.
    zeros = (x == 0) & (y == 0)
    same(actual[~zeros], expected[~zeros])
    signs = np.signbit(x) & np.signbit(y) if name == "fmax" else np.signbit(x) | np.signbit(y)
    assert (np.signbit(actual) == signs)[zeros].all()


@FLOATS
def test_fmod_is_exact(apply, suffix, dtype):
    x, y = pairs(dtype, 30_000)
    with np.errstate(all="ignore"):
        same(apply("fmod" + suffix, x, y), np.fmod(x, y))


@FLOATS
@pytest.mark.parametrize("name", ["round", "trunc", "rint", "ceil", "floor", "fabs", "sqrt", "roundeven"])
def test_unary_routine_agrees(apply, name, suffix, dtype):
    x = random_floats(dtype, 50_000)
    x[1000:20_000] = np.random.default_rng(3).integers(-4000, 4000, 19_000) / 2
    with np.errstate(all="ignore"):
        if name == "round":
            expected = np.copysign(np.trunc(np.abs(x)), x)
            expected = np.where(
                np.abs(x) - np.trunc(np.abs(x)) >= 0.5, expected + np.copysign(1, x), expected
            )
            expected = np.where(np.isfinite(x), np.copysign(expected, x), x).astype(dtype)
        else:
            expected = getattr(np, {"roundeven": "rint"}.get(name, name))(x)
    same(apply(name + suffix, x), expected)


@FLOATS
def test_ldexp_rounds_once(apply, suffix, dtype):
    x = random_floats(dtype, 100_000)
    n = np.random.default_rng(4).integers(-2300, 2300, len(x)).astype(np.int32)
    n[::3] //= 20
    n[:4] = [2**31 - 1, -(2**31), 0, 1]
    with np.errstate(all="ignore"):
        # Via f64 for f32: exact there, so only the last step rounds.
        expected = (
            np.ldexp(x.astype(np.float64), np.clip(n, -400, 400)).astype(dtype) if suffix else np.ldexp(x, n)
        )
    same(apply("ldexp" + suffix, x, n), expected)
    same(apply("scalbn" + suffix, x, n), expected)


@FLOATS
def test_split_routines_agree(support_space, suffix, dtype):
    pointer = support_space.reserve(8)
    frexp, modf = support_space.support["frexp" + suffix], support_space.support["modf" + suffix]
    for value in random_floats(dtype, 2000):
        value = float(value)
        with np.errstate(all="ignore"):
            fraction, exponent = np.frexp(dtype(value))
            rest, whole = np.modf(dtype(value))
        actual = frexp(value, pointer)
        same(np.array([actual], dtype), [fraction])
        if math.isfinite(value):
            assert int.from_bytes(support_space.read(pointer, 4), "little", signed=True) == exponent
        actual = modf(value, pointer)
        same(np.array([actual], dtype), [rest])
        same(np.frombuffer(support_space.read(pointer, np.dtype(dtype).itemsize), dtype), [whole])


@FLOATS
def test_copysign_and_integers_agree(apply, suffix, dtype):
    x, y = pairs(dtype, 1000)
    same(apply("copysign" + suffix, x, y), np.copysign(x, y))
    small = np.random.default_rng(5).integers(-8000, 8000, 5000).astype(dtype) / 4
    away = np.copysign(np.floor(np.abs(small) + 0.5), small)
    for prefix in ("l", "ll"):
        assert (apply(f"{prefix}round{suffix}", small) == away).all()
        assert (apply(f"{prefix}rint{suffix}", small) == np.rint(small)).all()


def test_fmaf_rounds_once(apply):
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.fmaf.restype = ctypes.c_float
    library.fmaf.argtypes = [ctypes.c_float] * 3
    generator = np.random.default_rng(6)
    x, y = pairs(np.float32, 15_000)
    z = random_floats(np.float32, len(x), 9)
    close = slice(0, 10_000)
    x[close], y[close] = generator.normal(size=(2, 10_000))
    # Nearly cancelling sums are where rounding twice shows.
    z[close] = -(x[close] * y[close]) * (1 + generator.integers(-4, 5, 10_000) * np.float32(2**-22))
    expected = np.array([library.fmaf(*map(float, row)) for row in zip(x, y, z, strict=True)], np.float32)
    same(apply("fmaf", x, y, z), expected)


@FLOATS
def test_powers_of_integers(apply, suffix, dtype):
    name = "__powisf2" if suffix else "__powidf2"
    x = np.random.default_rng(7).uniform(0.1, 4, 3000).astype(dtype)
    x[::2] *= -1
    n = np.random.default_rng(8).integers(-20, 20, 3000).astype(np.int32)
    expected = x.astype(np.float64) ** n
    np.testing.assert_allclose(apply(name, x, n), expected, rtol=64 * np.finfo(dtype).eps)
    assert list(apply(name, np.array([2.0, 3.0]), np.array([0, -(2**31)]))) == [1.0, 0.0]


# Halves and bfloats


@pytest.mark.parametrize("name", ["__extendhfsf2", "__gnu_h2f_ieee", "__extendhfdf2"])
def test_half_extension_is_exact_for_all_halves(apply, name):
    halves = np.arange(65536, dtype=np.uint16)
    actual = apply(name, halves)
    same(actual, halves.view(np.float16).astype(actual.dtype))


def half_cases(dtype):
    """All halves, all ties between neighbours, the floats next to both, and random ones."""
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(dtype)
    halves[-1] = 65536
    ties = (halves[1:] + halves[:-1]) / 2
    exact = np.concatenate([halves, ties])
    around = [exact, np.nextafter(exact, dtype(np.inf)), np.nextafter(exact, dtype(-np.inf))]
    positive = np.concatenate([*around, np.abs(random_floats(dtype, 100_000))])
    return np.concatenate([positive, -positive])


@pytest.mark.parametrize("name", ["__truncsfhf2", "__gnu_f2h_ieee", "__truncdfhf2"])
def test_half_truncation_rounds_to_nearest_even(apply, name):
    x = half_cases(np.float64 if name == "__truncdfhf2" else np.float32)
    with np.errstate(all="ignore"):
        expected = x.astype(np.float16)
    actual = apply(name, x)
    assert (actual >> 16 == 0).all()
    same(actual.astype(np.uint16).view(np.float16), expected)


def test_bfloat_truncation_agrees_with_ml_dtypes(apply):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(0x7F81, dtype=np.uint32) << 16
    exact = bits.view(np.float32)
    ties = (bits | 0x8000).view(np.float32)
    x = np.concatenate([exact, ties, (bits | 0x8001).view(np.float32), (bits | 0x7FFF).view(np.float32)])
    x = np.concatenate([x, -x, random_floats(np.float32, 100_000)])
    actual = apply("__truncsfbf2", x).astype(np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(all="ignore"):
        same(actual.astype(np.float32), x.astype(ml_dtypes.bfloat16).astype(np.float32))
    every = np.arange(65536, dtype=np.uint32)
    same(apply("__extendbfsf2", every), (every << 16).view(np.float32))


def test_bfloat_truncation_of_doubles_rounds_once(apply):
    generator = np.random.default_rng(10)
    base = (generator.integers(0, 0x7F7F, 3000).astype(np.uint32) << 16 | 0x8000).view(np.float32)
    base = base.astype(np.float64)
    x = np.concatenate([base, np.nextafter(base, np.inf), np.nextafter(base, 0), -base])
    actual = (apply("__truncdfbf2", x).astype(np.uint32) << 16).view(np.float32)
    for value, rounded in zip(x, actual, strict=True):
        magnitude, low = Fraction(abs(float(value))), abs(float(value))
        bits = np.array([low]).astype(np.float32).view(np.uint32)[0] >> 16
        candidates = [np.array([b << 16], np.uint32).view(np.float32)[0] for b in range(bits - 1, bits + 3)]
        candidates = [c for c in candidates if np.isfinite(c)]
        best = min(
            candidates,
            key=lambda c: (abs(Fraction(float(c)) - magnitude), (np.float32(c).view(np.uint32) >> 16) & 1),
        )
        assert abs(rounded) == best
        assert np.signbit(rounded) == np.signbit(value)


# 128-bit integers and memory


def integers(count=1500):
    generator = np.random.default_rng(11)
    edge = [0, 1, 2, (1 << 64) - 1, 1 << 64, (1 << 127) - 1, 1 << 127, (1 << 128) - 1, (1 << 63), 10**30]
    values = [
        int.from_bytes(generator.bytes(16), "little") >> int(generator.integers(0, 128)) for _ in range(count)
    ]
    return [(a, b) for a in edge for b in edge] + list(zip(values, values[::-1], strict=True))


def signed(value):
    return value - (1 << 128) if value >> 127 else value


def c_divide(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


WIDE = {
    "__multi3": lambda a, b: a * b,
    "__udivti3": lambda a, b: a // b,
    "__umodti3": lambda a, b: a % b,
    "__divti3": lambda a, b: c_divide(signed(a), signed(b)),
    "__modti3": lambda a, b: signed(a) - signed(b) * c_divide(signed(a), signed(b)),
}


@pytest.mark.parametrize("name", WIDE)
def test_wide_integer_routine_agrees_with_python(support_space, name):
    pointer = support_space.reserve(16)
    call = support_space.support[name].prepare()
    mask = (1 << 64) - 1

    def word(value):
        value &= mask
        return value - (1 << 64) if value >> 63 else value

    for a, b in integers():
        if b == 0 and name != "__multi3":
            continue
        call(pointer, word(a), word(a >> 64), word(b), word(b >> 64))
        actual = int.from_bytes(support_space.read(pointer, 16), "little")
        assert actual == WIDE[name](a, b) % (1 << 128), (name, a, b)


@pytest.mark.parametrize("name", ["__udivti3", "__umodti3", "__divti3", "__modti3"])
def test_wide_division_by_zero_traps(support_space, name):
    with pytest.raises(TrapError) as caught:
        support_space.support[name](support_space.reserve(16), 1, 2, 0, 0)
    assert caught.value.code == "integer_divide_by_zero"
    assert caught.value.frames == ("udivmod128", name)


@pytest.mark.parametrize(
    ("name", "shift"),
    [
        ("__ashlti3", lambda v, n: v << n),
        ("__lshrti3", lambda v, n: v >> n),
        ("__ashrti3", lambda v, n: signed(v) >> n),
    ],
)
def test_wide_shift_agrees_with_python(support_space, name, shift):
    pointer = support_space.reserve(16)
    value = 0x8123456789ABCDEF_FEDCBA9876543210
    for v in (value, value >> 1):
        for n in range(128):
            support_space.support[name](pointer, v & ((1 << 64) - 1), v >> 64, n)
            actual = int.from_bytes(support_space.read(pointer, 16), "little")
            assert actual == shift(v, n) % (1 << 128), (name, n)


def test_memory_routines_do_as_c(support_space):
    space, support = support_space, support_space.support
    address = space.reserve(100)
    space.write(address, bytes(range(100)))
    assert support["memmove"](address + 10, address, 50) == address + 10
    assert space.read(address, 70) == bytes(range(10)) + bytes(range(50)) + bytes(range(60, 70))
    assert support["memset"](address, 0x1AB, 5) == address
    assert space.read(address, 6) == b"\xab" * 5 + b"\5"
    space.write(address, b"hello\0help\0")
    assert support["memcmp"](address, address + 6, 3) == 0
    assert support["memcmp"](address, address + 6, 4) < 0
    assert support["memcmp"](address + 6, address, 4) > 0
    assert support["memcmp"](address, address + 6, 0) == 0
    assert support["strlen"](address) == 5
    assert support["memcpy"](address + 20, address, 6) == address + 20
    assert space.read(address + 20, 6) == b"hello\0"
    with pytest.raises(TrapError, match="unreachable in abort"):
        support["abort"]()


# Mathematics of the host


def test_host_math_has_c_special_values():
    table = {
        ("log", (0.0,)): -math.inf,
        ("log", (-1.0,)): math.nan,
        ("exp", (1000.0,)): math.inf,
        ("sin", (math.inf,)): math.nan,
        ("pow", (0.0, -1.0)): math.inf,
        ("pow", (-8.0, 1 / 3)): math.nan,
        ("pow", (1.0, math.nan)): 1.0,
        ("atan2", (-0.0, -1.0)): -math.pi,
        ("erf", (math.inf,)): 1.0,
        ("tgamma", (0.0,)): math.inf,
        ("tgamma", (-1.0,)): math.nan,
        ("tgamma", (500.0,)): math.inf,
        ("lgamma", (-3.0,)): math.inf,
        ("exp10", (2.0,)): 100.0,
    }
    for (name, arguments), expected in table.items():
        actual = HOST_MATH[name].function(*arguments)
        assert actual == expected or (math.isnan(actual) and math.isnan(expected)), (name, arguments, actual)


def test_host_fma_rounds_once():
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.fma.restype = ctypes.c_double
    library.fma.argtypes = [ctypes.c_double] * 3
    fma = HOST_MATH["fma"].function
    x, y = pairs(np.float64, 3000)
    z = random_floats(np.float64, len(x), 12)
    with np.errstate(all="ignore"):
        z[500:2500] = -(x[500:2500] * y[500:2500])
    special = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan]
    rows = [*zip(x, y, z, strict=True), *((a, b, c) for a in special for b in special for c in special)]
    rows = [tuple(map(float, row)) for row in rows]
    actual = np.array([fma(*row) for row in rows])
    same(actual, [library.fma(*row) for row in rows])
