"""``sylvite_patches_f32`` against numpy's windows."""

from __future__ import annotations

import numpy as np
import pytest

from sylvite import engines, kernels
from sylvite.kernels.patches import PATCH_TILE, PATCHES_NAME
from sylvite.linker import LinkSpace

GUARD = b"\xa5" * 64


@pytest.fixture(scope="module")
def space():
    with LinkSpace(engines.create("wasmtime")) as space:
        yield space


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(
    ("blocks", "channels", "height", "width"), [(1, 1, 1, 1), (3, 2, 3, 3), (2, 5, 1, 7), (5, 3, 2, 2)]
)
def test_patches_are_numpys_windows(space, blocks, channels, height, width, stride):
    compiled = space.engine.compile(kernels.assemble(relaxed=False), name="kernels")
    patches = space.store.instantiate(compiled, space.platform).exports[PATCHES_NAME]
    columns = (blocks * PATCH_TILE - 1) * stride + width
    row, plane = columns + 3, (height + 2) * (columns + 3) + 5
    source = np.arange(channels * plane, dtype=np.float32)
    image = np.lib.stride_tricks.as_strided(
        source, (channels, height, columns), (4 * plane, 4 * row, 4), writeable=False
    )
    windows = np.lib.stride_tricks.sliding_window_view(image, width, axis=2)[:, :, ::stride]
    # channel, filter row, column of the result, filter column -> blocks of columns first, their 4 last.
    want = windows.reshape(channels, height, blocks, PATCH_TILE, width).transpose(2, 0, 1, 4, 3)
    read, written = space.reserve(source.nbytes), space.reserve(want.nbytes + len(GUARD))
    space.write(read, source.tobytes())
    space.write(written, bytes(want.nbytes) + GUARD)
    # Offsets in elements, compensated in the addresses.
    patches(read - 8, 2, plane, row, written - 12, 3, 0, blocks, channels, height, width, stride)
    got = space.read(written, want.nbytes + len(GUARD))
    np.testing.assert_array_equal(np.frombuffer(got[: want.nbytes], np.float32).reshape(want.shape), want)
    assert got[want.nbytes :] == GUARD, "written past the end"
    space.release(read)
    space.release(written)
