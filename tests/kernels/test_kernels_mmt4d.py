"""``iree_uk_mmt4d`` against numpy: every tile shape, tails, accumulation, offsets and strides."""

from __future__ import annotations

import numpy as np
import pytest

from sylvite import engines, kernels, wasm
from sylvite.errors import TrapError
from sylvite.kernels.mmt4d import TILE_SHAPES
from sylvite.linker import LinkSpace

FLAGS = {"f32": 1, "i8": 2, "i16": 7}
OTHER_SHAPES = [
    ("f32", (3, 5, 2)),
    ("f32", (8, 4, 3)),
    ("f32", (16, 16, 1)),
    ("i8", (3, 4, 1)),
    ("i8", (4, 4, 8)),
    ("i16", (3, 4, 1)),
    ("i16", (8, 8, 2)),
]
ALL_SHAPES = [(shape.kind, (shape.m0, shape.n0, shape.k0)) for shape in TILE_SHAPES] + OTHER_SHAPES
EXTENTS = [
    (1, 1, 1, False),
    (2, 3, 5, True),
    (3, 2, 17, False),
    (1, 9, 33, True),
    (2, 7, 600, False),
    (1, 2, 513, True),
]
EMPTY = [(2, 5, 0, False), (2, 1, 0, True), (0, 2, 3, False), (2, 0, 3, False)]


@pytest.fixture(scope="module")
def space():
    with LinkSpace(engines.create("wasmtime")) as space:
        yield space


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "relaxed"])
def functions(space, request):
    compiled = space.engine.compile(kernels.assemble(relaxed=request.param), name="kernels")
    return space.store.instantiate(compiled, space.platform).exports


def put(space, array):
    """Reserve and fill; 64 guard bytes of 0xA5 stand behind the data."""
    data = array.tobytes() + b"\xa5" * 64
    address = space.reserve(len(data))
    space.write(address, data)
    return address


def get(space, address, like):
    data = space.read(address, like.nbytes + 64)
    assert data[like.nbytes :] == b"\xa5" * 64, "written past the end"
    return np.frombuffer(data[: like.nbytes], like.dtype).reshape(like.shape)


def operands(rng, kind, sizes, tile):
    (m1, n1, k1), (m0, n0, k0) = sizes, tile
    shapes = (m1, k1, m0, k0), (n1, k1, n0, k0), (m1, n1, m0, n0)
    if kind == "f32":
        return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    dtype = np.dtype(kind.replace("i", "int"))
    limits = np.iinfo(dtype)
    left, right = (rng.integers(limits.min, limits.max, shape, dtype, True) for shape in shapes[:2])
    return [left, right, rng.integers(-1000, 1000, shapes[2]).astype(np.int32)]


@pytest.mark.parametrize(("kind", "tile"), ALL_SHAPES, ids=lambda value: str(value).replace(" ", ""))
def test_mmt4d_any_extents_equals_numpy(space, functions, kind, tile):
    rng = np.random.default_rng(1)
    for m1, n1, k1, accumulate in EXTENTS + EMPTY:
        left, right, out = operands(rng, kind, (m1, n1, k1), tile)
        exact = np.float64 if kind == "f32" else np.int64
        want = np.einsum("ikab,jkcb->ijac", left.astype(exact), right.astype(exact)) + accumulate * out
        addresses = [put(space, array) for array in (left, right, out)]
        m0, n0, k0 = tile
        # Offsets in elements, compensated in the addresses.
        code = functions["iree_uk_mmt4d"](
            *(addresses[0] - 3 * left.itemsize, 3, k1 * m0 * k0),
            *(addresses[1] - 8 * right.itemsize, 8, k1 * n0 * k0),
            *(addresses[2] - 2 * out.itemsize, 2, n1 * m0 * n0),
            *(m1, n1, k1, m0, n0, k0, FLAGS[kind] | (0x100 if accumulate else 0) | 0x600, 0),
        )
        got = get(space, addresses[2], out)
        for address in addresses:
            space.release(address)
        assert code == 0
        if kind == "f32":
            # A dot product's error grows with the sum of magnitudes.
            bound = np.einsum("ikab,jkcb->ijac", abs(left).astype(exact), abs(right).astype(exact)) + abs(out)
            assert (abs(got - want) <= 2e-6 * bound).all(), (m1, n1, k1)
        else:
            # Sums of 32 bits wrap around.
            np.testing.assert_array_equal(got, want.astype(np.int32))


def test_mmt4d_strided_panels_are_found_by_their_strides(space, functions):
    rng = np.random.default_rng(2)
    left, right, out = operands(rng, "f32", (3, 3, 40), (8, 4, 1))
    # Only every second panel of each operand takes part.
    addresses = [put(space, array) for array in (left, right, out)]
    functions["iree_uk_mmt4d"](
        *(addresses[0], 0, 2 * 40 * 8, addresses[1], 0, 2 * 40 * 4, addresses[2], 0, 2 * 3 * 32),
        *(2, 2, 40, 8, 4, 1, 1, 0),
    )
    got = get(space, addresses[2], out)
    want = out.copy()
    want[::2, :2] = np.einsum("ikab,jkcb->ijac", left[::2], right[::2])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_mmt4d_extreme_bytes_do_not_overflow(space, functions):
    left = np.full((1, 300, 8, 2), -128, np.int8)
    right = np.full((2, 300, 4, 2), -128, np.int8)
    out = np.zeros((1, 2, 8, 4), np.int32)
    addresses = [put(space, array) for array in (left, right, out)]
    functions["iree_uk_mmt4d"](
        *(addresses[0], 0, 4800, addresses[1], 0, 2400, addresses[2], 0, 64, 1, 2, 300, 8, 4, 2, 2, 0)
    )
    assert (get(space, addresses[2], out) == 600 * 128 * 128).all()


@pytest.mark.parametrize("flags", [0, 8, 9, 10, 0x7F])
def test_mmt4d_unknown_element_types_trap(functions, flags):
    with pytest.raises(TrapError):
        functions["iree_uk_mmt4d"](*(0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 8, 4, 1, flags, 0))


def test_mmt4d_without_relaxed_simd_is_the_sum_in_order(space):
    """Bits are defined: one rounding per multiplication and addition, along K."""
    rng = np.random.default_rng(3)
    left, right, out = operands(rng, "f32", (2, 3, 70), (8, 4, 1))
    compiled = space.engine.compile(kernels.assemble(relaxed=False), name="kernels")
    functions = space.store.instantiate(compiled, space.platform).exports
    addresses = [put(space, array) for array in (left, right, out)]
    functions["iree_uk_mmt4d"](
        *(addresses[0], 0, 560, addresses[1], 0, 280, addresses[2], 0, 96, 2, 3, 70, 8, 4, 1, 1, 0)
    )
    want = np.zeros_like(out)
    for k in range(70):
        want += left[:, None, k, :, 0][..., None] * right[None, :, k, :, 0][:, :, None, :]
    np.testing.assert_array_equal(get(space, addresses[2], out), want)


def test_assemble_plain_needs_no_relaxed_simd():
    required = wasm.features.required(wasm.decode(kernels.assemble(relaxed=False)))
    assert wasm.Feature.RELAXED_SIMD not in required
    assert wasm.Feature.RELAXED_SIMD in wasm.features.required(wasm.decode(kernels.assemble(relaxed=True)))


def test_assemble_exports_exactly_the_kernel_names():
    module = wasm.decode(kernels.assemble(relaxed=False))
    assert {export.name for export in module.exports} == kernels.KERNEL_NAMES
    wasm.validate(module)


@pytest.mark.parametrize("deterministic", [False, True])
def test_link_space_kernels_are_chosen_by_the_engine(deterministic, monkeypatch):
    from sylvite.linker import resolver

    asked = []

    def assemble(*, relaxed):
        asked.append(relaxed)
        return kernels.assemble(relaxed=relaxed)

    monkeypatch.setattr(resolver, "assemble_kernels", assemble)
    builder = wasm.ModuleBuilder("user")
    builder.import_memory("env", "memory", 1)
    parameters = [wasm.ValueType.I32] * 17
    builder.import_function("env", "iree_uk_mmt4d", parameters, [wasm.ValueType.I32])
    builder.dylink(wasm.dylink.DylinkInfo(memory_size=0, memory_alignment=0, table_size=0, table_alignment=0))
    with LinkSpace(engines.create("wasmtime", deterministic=deterministic)) as space:
        space.load(builder.build(), name="user")
    assert asked == [not deterministic]
