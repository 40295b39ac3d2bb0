"""``sylvite_ragged_patches_f32`` against numpy's windows."""

from __future__ import annotations

import numpy as np
import pytest

from sylvite import engines, kernels
from sylvite.kernels import RAGGED_PATCHES_NAME
from sylvite.linker import LinkSpace

GUARD = b"\xa5" * 64


@pytest.fixture(scope="module")
def space():
    with LinkSpace(engines.create("wasmtime")) as space:
        yield space


def packed(image, size, strides, tile):
    """Tiles of columns, the last filled up with zeros, and how many results there are in a row and in all."""
    windows = np.lib.stride_tricks.sliding_window_view(image, size, axis=(1, 2))
    windows = windows[:, :: strides[0], :: strides[1]]
    channels, rows, columns = windows.shape[:3]
    # channel, filter row, filter column, row and column of the result as one.
    flat = windows.transpose(0, 3, 4, 1, 2).reshape(channels * size[0] * size[1], rows * columns)
    count = rows * columns
    padded = np.zeros((len(flat), -(-count // tile) * tile), np.float32)
    padded[:, :count] = flat
    return padded.reshape(len(flat), -1, tile).transpose(1, 0, 2), columns, count


@pytest.mark.parametrize("is_channels_last", [False, True])
@pytest.mark.parametrize("tile", [4, 8])
@pytest.mark.parametrize(
    ("shape", "size", "strides"),
    [
        ((1, 1, 1), (1, 1), (1, 1)),
        ((3, 16, 16), (3, 3), (1, 1)),
        ((2, 9, 9), (3, 3), (2, 2)),
        ((5, 7, 5), (2, 3), (1, 2)),
        ((2, 4, 3), (3, 1), (1, 1)),
    ],
)
def test_ragged_patches_are_numpys_windows(space, shape, size, strides, tile, is_channels_last):
    compiled = space.engine.compile(kernels.assemble(relaxed=False), name="kernels")
    patches = space.store.instantiate(compiled, space.platform).exports[RAGGED_PATCHES_NAME]
    channels, rows, columns = shape
    image = np.arange(1, 1 + channels * rows * columns, dtype=np.float32).reshape(shape)
    want, width, count = packed(image, size, strides, tile)
    stored = np.ascontiguousarray(image.transpose(1, 2, 0) if is_channels_last else image)
    channel, row, column = (
        (1, columns * channels, channels) if is_channels_last else (rows * columns, columns, 1)
    )
    read, written = space.reserve(stored.nbytes), space.reserve(want.nbytes + len(GUARD))
    space.write(read, stored.tobytes())
    distances = (strides[0] * row, strides[1] * column, channel, row, column)
    # All tiles at once, and the first and the others apart.
    for parts in ([(0, len(want))], [(0, 1), (1, len(want) - 1)]):
        space.write(written, bytes(want.nbytes) + GUARD)
        for first, tiles in parts:
            # Offsets in elements, compensated in the addresses.
            begin = 3 + first * want[0].size
            extents = (first, tiles, tile, channels, *size, width, count)
            patches(read - 8, 2, written - 12, begin, *extents, *distances)
        got = space.read(written, want.nbytes + len(GUARD))
        np.testing.assert_array_equal(np.frombuffer(got[: want.nbytes], np.float32).reshape(want.shape), want)
        assert got[want.nbytes :] == GUARD, "written past the end"
    space.release(read)
    space.release(written)
