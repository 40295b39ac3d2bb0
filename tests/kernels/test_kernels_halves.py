"""Products of half-precision operands, and the conversions they use, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from sylvite import engines, kernels
from sylvite.kernels.halves import emit_conversions
from sylvite.linker import LinkSpace
from sylvite.wasm import ModuleBuilder, ValueType

KINDS = ["f16", "bf16"]
FLAGS = {("f16", "f32"): 3, ("f16", "f16"): 4, ("bf16", "f32"): 5, ("bf16", "bf16"): 6}
GUARD = b"\xa5" * 64


def widened(bits, kind):
    """Floats of 16-bit patterns."""
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrowed(values, kind):
    """16-bit patterns of floats, rounded to nearest even."""
    if kind == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), (bits >> 16 | 0x40).astype(np.uint16), rounded)


@pytest.fixture(scope="module")
def space():
    with LinkSpace(engines.create("wasmtime")) as space:
        yield space


@pytest.fixture(scope="module", params=KINDS)
def conversions(space, request):
    """``run(name, array, element bytes of the result)`` for the conversions of a kind."""
    module = ModuleBuilder("conversions")
    module.import_memory("env", "memory", 0)
    emitted = emit_conversions(module, request.param)
    for name in ("widen", "narrow", "widen_one", "narrow_one"):
        function = getattr(emitted, name)
        types = {"widen_one": ([ValueType.I32], [ValueType.F32])}.get(name, ([ValueType.I32] * 3, []))
        if name == "narrow_one":
            types = ([ValueType.F32], [ValueType.I32])
        wrapper = module.function(f"call_{name}", *types, export=True)
        for parameter in range(len(types[0])):
            wrapper.get(parameter)
        wrapper.call(function)
    exports = space.store.instantiate(space.engine.compile(module.build(), name="c"), space.platform).exports

    def run(name, array, result):
        source, target = space.reserve(array.nbytes + 64), space.reserve(result.itemsize * array.size + 64)
        space.write(source, array.tobytes())
        space.write(target, bytes(result.itemsize * array.size) + GUARD)
        exports[f"call_{name}"](source, target, array.size)
        data = space.read(target, result.itemsize * array.size + 64)
        for address in (source, target):
            space.release(address)
        assert data[-64:] == GUARD
        return np.frombuffer(data[:-64], result)

    run.kind, run.exports = request.param, exports
    return run


def test_widen_every_pattern_is_exact(conversions):
    bits = np.arange(1 << 16, dtype=np.uint16)
    got = conversions("widen", bits, np.dtype(np.uint32))
    want = widened(bits, conversions.kind)
    np.testing.assert_array_equal(got.view(np.float32), want)
    assert (np.signbit(got.view(np.float32)) == np.signbit(want))[~np.isnan(want)].all()
    for pattern in (0x3C00, 0x8001, 0x7C00):
        want_one = float(widened(np.array([pattern], np.uint16), conversions.kind)[0])
        assert conversions.exports["call_widen_one"](pattern) == want_one


def test_narrow_rounds_to_nearest_even(conversions):
    rng = np.random.default_rng(6)
    every = widened(np.arange(1 << 16, dtype=np.uint16), conversions.kind)
    finite = every[np.isfinite(every)]
    # Every value, those halfway to the next one, and their neighbours.
    with np.errstate(over="ignore"):
        halfway = (finite.astype(np.float64) + np.roll(finite, -1)).astype(np.float32) / 2
    values = np.concatenate(
        [
            finite,
            halfway,
            np.nextafter(halfway, np.float32(np.inf)),
            np.nextafter(halfway, np.float32(-np.inf)),
            rng.integers(0, 1 << 32, 20_000, np.uint32).view(np.float32),
            np.array([np.inf, -np.inf, 65519, 65520, -65520, 1e30, 3.4e38, 0.0, -0.0], np.float32),
        ]
    )
    got, want = conversions("narrow", values, np.dtype(np.uint16)), narrowed(values, conversions.kind)
    is_nan = np.isnan(values)
    np.testing.assert_array_equal(got[~is_nan], want[~is_nan])
    assert np.isnan(widened(got[is_nan], conversions.kind)).all()
    assert (
        conversions.exports["call_narrow_one"](1.5)
        == narrowed(np.array([1.5], np.float32), conversions.kind)[0]
    )


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 23])
def test_conversions_any_count_stay_in_their_range(conversions, count):
    bits = np.random.default_rng(7).integers(0, 0x7C00, count).astype(np.uint16)
    wide = conversions("widen", bits, np.dtype(np.float32))
    np.testing.assert_array_equal(wide, widened(bits, conversions.kind))
    np.testing.assert_array_equal(conversions("narrow", wide, np.dtype(np.uint16)), bits)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "relaxed"])
def mmt4d(space, request):
    compiled = space.engine.compile(kernels.assemble(relaxed=request.param), name="kernels")
    return space.store.instantiate(compiled, space.platform).exports["iree_uk_mmt4d"]


def put(space, array):
    data = array.tobytes() + GUARD
    address = space.reserve(len(data))
    space.write(address, data)
    return address


SIZES = [(1, 1, 1, False), (3, 2, 17, True), (8, 33, 65, False), (9, 5, 130, True), (17, 70, 64, False)]
EMPTY = [(2, 3, 0, False), (2, 3, 0, True), (0, 2, 3, False), (2, 0, 3, True)]


@pytest.mark.parametrize("kinds", FLAGS, ids="-".join)
@pytest.mark.parametrize("tile", [(8, 4, 1), (4, 4, 1), (2, 4, 1), (1, 4, 1), (3, 5, 2)], ids=str)
def test_mmt4d_of_halves_equals_numpy(space, mmt4d, kinds, tile):
    kind, result = kinds
    (m0, n0, k0), rng = tile, np.random.default_rng(8)
    for m1, n1, k1, accumulate in SIZES + EMPTY:
        shapes = (m1, k1, m0, k0), (n1, k1, n0, k0), (m1, n1, m0, n0)
        left, right, start = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
        left, right = narrowed(left, kind), narrowed(right, kind)
        out = start if result == "f32" else narrowed(start, kind)
        wide = [widened(part, kind).astype(np.float64) for part in (left, right)]
        before = (out if result == "f32" else widened(out, kind)).astype(np.float64)
        want = np.einsum("ikab,jkcb->ijac", *wide) + accumulate * before
        bound = np.einsum("ikab,jkcb->ijac", *map(abs, wide)) + abs(before)
        addresses = [put(space, array) for array in (left, right, out)]
        stack = space.stack.pointer.value
        code = mmt4d(
            *(addresses[0] - 6, 3, k1 * m0 * k0),
            *(addresses[1] - 16, 8, k1 * n0 * k0),
            *(addresses[2] - 2 * out.itemsize, 2, n1 * m0 * n0),
            *(m1, n1, k1, m0, n0, k0, FLAGS[kinds] | (0x100 if accumulate else 0) | 0x600, 0),
        )
        data = space.read(addresses[2], out.nbytes + 64)
        for address in addresses:
            space.release(address)
        assert (code, space.stack.pointer.value, data[out.nbytes :]) == (0, stack, GUARD)
        got = np.frombuffer(data[: out.nbytes], out.dtype).reshape(out.shape)
        if result == "f32":
            assert (abs(got - want) <= 2e-6 * bound).all(), (m1, n1, k1)
        else:
            unit = {"f16": 2.0**-11, "bf16": 2.0**-8}[kind]
            assert (abs(widened(got, kind) - want) <= unit * abs(want) + 2e-6 * bound + 2.0**-25).all()


def test_mmt4d_of_halves_walks_strided_panels(space, mmt4d):
    rng = np.random.default_rng(9)
    left, right = (narrowed(rng.standard_normal((20, 70, w)).astype(np.float32), "f16") for w in (8, 4))
    out = np.zeros((20, 20, 8, 4), np.uint16)
    addresses = [put(space, array) for array in (left, right, out)]
    # Every second panel of each operand takes part.
    mmt4d(
        *(addresses[0], 0, 2 * 70 * 8, addresses[1], 0, 2 * 70 * 4, addresses[2], 0, 2 * 20 * 32),
        *(10, 10, 70, 8, 4, 1, 4 | 0x400, 0),
    )
    got = widened(np.frombuffer(space.read(addresses[2], out.nbytes), np.uint16).reshape(out.shape), "f16")
    want = np.einsum("ika,jkc->ijac", widened(left[::2], "f16"), widened(right[::2], "f16"))
    np.testing.assert_allclose(got[::2, :10], want, rtol=1e-3, atol=1e-2)
    assert (got[1::2] == 0).all()
    assert (got[:, 10:] == 0).all()
