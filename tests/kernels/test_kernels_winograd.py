"""Winograd's 3x3 convolutions against sums of double precision."""

from __future__ import annotations

import numpy as np
import pytest

from sylvite import engines, kernels
from sylvite.kernels import WINOGRAD_IMAGE_NAME, WINOGRAD_PRODUCT_NAME
from sylvite.linker import LinkSpace

GUARD = np.full(16, 77, np.float32)


@pytest.fixture(scope="module")
def space():
    with LinkSpace(engines.create("wasmtime")) as space:
        yield space


@pytest.fixture(scope="module", params=[False, True], ids=["exact", "relaxed"])
def exports(request, space):
    compiled = space.engine.compile(kernels.assemble(relaxed=request.param), name="kernels")
    return space.store.instantiate(compiled, space.platform).exports


def convolve(space, exports, image, filters):
    """Both kernels: filters [F, C, 3, 3] on an image [C, H + 2, W + 2]; H by 2, W by 4, F by 8."""
    channels, height, width = image.shape[0], image.shape[1] - 2, image.shape[2] - 2
    blocks, panels, tiles = -(-width // 8), len(filters) // 8, height * width // 4
    packed = filters.reshape(panels, 8, channels, 3, 3).transpose(0, 2, 3, 4, 1).copy()
    row_size = blocks * 16 * channels * 4
    points = np.full(height // 2 * row_size, np.nan, np.float32)
    result = np.full(panels * tiles * 32, np.nan, np.float32)
    addresses = []
    for array in (image, packed, points, result):
        addresses.append(space.reserve(array.nbytes + GUARD.nbytes))
        space.write(addresses[-1], array.tobytes() + GUARD.tobytes())
    pixels, taps, sums, out = addresses
    plane, row = (height + 2) * (width + 2), width + 2
    for tile_row in range(height // 2):
        exports[WINOGRAD_IMAGE_NAME](
            *(pixels, 2 * tile_row * row, plane, row, sums, tile_row * row_size, 0, channels, width)
        )
    exports[WINOGRAD_PRODUCT_NAME](
        *(taps, 0, channels * 72, sums, 0, row_size, out, 0, tiles * 32, 32),
        *(panels, channels, height // 2, width),
    )
    for address, array in ((sums, points), (out, result)):
        behind = space.read(address + array.nbytes, GUARD.nbytes)
        assert behind == GUARD.tobytes(), "written past the end"
    got = np.frombuffer(space.read(out, result.nbytes), np.float32)
    for address in addresses:
        space.release(address)
    return got.reshape(panels, tiles, 8, 4).transpose(0, 2, 1, 3).reshape(len(filters), height, width)


@pytest.mark.parametrize(
    ("filters", "channels", "height", "width"),
    [(8, 1, 2, 4), (8, 3, 4, 8), (16, 5, 2, 12), (8, 17, 6, 16), (24, 33, 4, 20), (8, 2, 2, 40)],
)
def test_winograd_is_the_convolution(space, exports, filters, channels, height, width):
    rng = np.random.default_rng(6)
    image = rng.standard_normal((channels, height + 2, width + 2)).astype(np.float32)
    taps = rng.standard_normal((filters, channels, 3, 3)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (3, 3), axis=(1, 2))
    want = np.einsum("cyxij,fcij->fyx", windows, taps)
    np.testing.assert_allclose(convolve(space, exports, image, taps), want, rtol=0, atol=2e-6 * 9 * channels)


def test_winograd_of_small_integers_is_exact(space, exports):
    rng = np.random.default_rng(6)
    image = rng.integers(-8, 9, (6, 6, 18)).astype(np.float32)
    taps = (4 * rng.integers(-8, 9, (8, 6, 3, 3))).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(1, 2))
    want = np.einsum("cyxij,fcij->fyx", windows, taps)
    np.testing.assert_array_equal(convolve(space, exports, image, taps), want)
