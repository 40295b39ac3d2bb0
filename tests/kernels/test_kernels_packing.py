"""``iree_uk_pack`` and ``iree_uk_unpack`` against numpy: tiles, transpositions, padding, odd extents."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sylvite import engines, kernels
from sylvite.errors import TrapError
from sylvite.linker import LinkSpace

TYPES = [(np.float32, 1), (np.int8, 2), (np.int32, 3), (np.float16, 4), (np.uint16, 5)]
EXTENTS = [(8, 8), (13, 9), (16, 12), (1, 1), (7, 32), (40, 5)]
TILES = [(8, 1), (4, 1), (1, 4), (8, 4), (4, 8), (1, 16), (8, 2), (3, 5), (2, 1)]
PADDING = 3


@pytest.fixture(scope="module")
def space():
    with LinkSpace(engines.create("wasmtime")) as space:
        yield space


@pytest.fixture(scope="module")
def functions(space):
    compiled = space.engine.compile(kernels.assemble(relaxed=False), name="kernels")
    return space.store.instantiate(compiled, space.platform).exports


def put(space, array):
    data = array.tobytes() + b"\xa5" * 64
    address = space.reserve(len(data))
    space.write(address, data)
    return address


def get(space, address, like):
    data = space.read(address, like.nbytes + 64)
    assert data[like.nbytes :] == b"\xa5" * 64, "written past the end"
    return np.frombuffer(data[: like.nbytes], like.dtype).reshape(like.shape)


def tiled(matrix, tile, inner, outer):
    """The packed form, by numpy."""
    (rows, columns), (t0, t1) = matrix.shape, tile
    full = np.full((-(-rows // t0) * t0, -(-columns // t1) * t1), PADDING, matrix.dtype)
    full[:rows, :columns] = matrix
    blocks = full.reshape(full.shape[0] // t0, t0, full.shape[1] // t1, t1).transpose(0, 2, 1, 3)
    if outer:
        blocks = blocks.transpose(1, 0, 2, 3)
    if inner:
        blocks = blocks.transpose(0, 1, 3, 2)
    return np.ascontiguousarray(blocks)


@pytest.mark.parametrize(("dtype", "kind"), TYPES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_pack_and_unpack_equal_numpy(space, functions, dtype, kind):
    rng = np.random.default_rng(4)
    for (rows, columns), tile, inner, outer in itertools.product(EXTENTS, TILES, (0, 1), (0, 1)):
        # The matrix is a part of a wider one.
        wide = (rng.standard_normal((rows, columns + 3)) * 50).astype(dtype)
        matrix = wide[:, :columns]
        want = tiled(matrix, tile, inner, outer)
        empty = np.zeros_like(want)
        flags = kind | inner * 0x100 | outer * 0x200
        padding = int.from_bytes(np.array(PADDING, dtype).tobytes(), "little")
        strides = [stride // want.itemsize for stride in want.strides[:2]]
        source, target, back = put(space, wide), put(space, empty), put(space, np.zeros_like(wide))
        functions["iree_uk_pack"](
            *(source - 2 * want.itemsize, 2, columns + 3, 1, target - want.itemsize, 1, *strides),
            *(rows, columns, *want.shape, padding, flags, 0),
        )
        case = f"{rows}x{columns} tile {tile} inner {inner} outer {outer}"
        np.testing.assert_array_equal(get(space, target, want), want, err_msg=case)
        functions["iree_uk_unpack"](
            *(target, 0, *strides, back - 3 * want.itemsize, 3, columns + 3, 1, *want.shape),
            *(rows, columns, flags, 0),
        )
        expected = np.zeros_like(wide)
        expected[:, :columns] = matrix
        np.testing.assert_array_equal(get(space, back, wide), expected, err_msg=case)
        for address in (source, target, back):
            space.release(address)


def test_pack_columns_of_a_transposed_matrix_equals_numpy(space, functions):
    """Stride 1 need not be along the rows."""
    matrix = np.arange(96, dtype=np.float32).reshape(8, 12)
    want = tiled(matrix.T, (4, 1), 0, 0)
    source, target = put(space, matrix), put(space, np.zeros_like(want))
    functions["iree_uk_pack"](source, 0, 1, 12, target, 0, 32, 4, 12, 8, *want.shape, 0, 1, 0)
    np.testing.assert_array_equal(get(space, target, want), want)


@pytest.mark.parametrize("flags", [0, 6, 0x7F])
def test_pack_unknown_element_types_trap(functions, flags):
    with pytest.raises(TrapError):
        functions["iree_uk_pack"](*(0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, flags, 0))
    with pytest.raises(TrapError):
        functions["iree_uk_unpack"](*(0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, flags, 0))
