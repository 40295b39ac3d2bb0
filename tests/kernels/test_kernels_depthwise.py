"""``sylvite_depthwise_f32`` against numpy's windows, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from sylvite import engines, kernels
from sylvite.kernels import DEPTHWISE_NAME, MOST_FILTER_COLUMNS
from sylvite.linker import LinkSpace

GUARD = b"\xa5" * 64


@pytest.fixture(scope="module")
def space():
    with LinkSpace(engines.create("wasmtime")) as space:
        yield space


@pytest.fixture(scope="module", params=[False, True], ids=["exact", "relaxed"])
def kernel(request, space):
    """The kernel, and whether it fuses."""
    compiled = space.engine.compile(kernels.assemble(relaxed=request.param), name="kernels")
    return space.store.instantiate(compiled, space.platform).exports[DEPTHWISE_NAME], request.param


def convolved(image, filters, step0, step1):
    """Sums over the filter's rows and columns in order, every operation rounded once."""
    _, height, width = filters.shape
    windows = np.lib.stride_tricks.sliding_window_view(image, (height, width), axis=(1, 2))
    windows = windows[:, ::step0, ::step1]
    total = np.zeros(windows.shape[:3], np.float32)
    for row in range(height):
        for column in range(width):
            total = total + windows[..., row, column] * filters[:, row, column][:, None, None]
    return total


@pytest.mark.parametrize(("step0", "step1"), [(1, 1), (2, 2), (1, 2), (3, 1), (1, 3)])
@pytest.mark.parametrize("height", [1, 3])
@pytest.mark.parametrize("width", [1, 2, 3, MOST_FILTER_COLUMNS])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 7), (5, 3), (4, 12), (2, 5)])
def test_depthwise_is_numpys_sum_in_order(space, kernel, rows, columns, height, width, step0, step1):
    depthwise, relaxed = kernel
    rng = np.random.default_rng(5)
    channels = 3
    image_rows, image_columns = (rows - 1) * step0 + height, (columns - 1) * step1 + width
    # Small integers: fused sums are exact as well.
    image = rng.integers(-9, 9, (channels, image_rows, image_columns)).astype(np.float32)
    filters = rng.integers(-9, 9, (channels, height, width)).astype(np.float32)
    if not relaxed:
        image, filters = image * np.float32(1.7), filters * np.float32(0.3)
    want = convolved(image, filters, step0, step1)
    read = space.reserve(image.nbytes)
    taps = space.reserve(filters.nbytes)
    # The result's rows and planes are spread.
    row, plane = columns + 2, rows * (columns + 2) + 3
    spread = np.full(channels * plane, np.float32(77))
    written = space.reserve(spread.nbytes + len(GUARD))
    space.write(read, image.tobytes())
    space.write(taps, filters.tobytes())
    space.write(written, spread.tobytes() + GUARD)
    depthwise(
        *(read - 8, 2, image_rows * image_columns, image_columns),
        *(taps - 4, 1, height * width),
        *(written - 12, 3, plane, row),
        *(channels, rows, columns, height, width, step0, step1, 2),
    )
    data = space.read(written, spread.nbytes + len(GUARD))
    assert data[spread.nbytes :] == GUARD, "written past the end"
    got = np.frombuffer(data[: spread.nbytes], np.float32).reshape(channels, plane)
    results = got[:, : rows * row].reshape(channels, rows, row)
    np.testing.assert_array_equal(results[..., :columns], want)
    assert (results[..., columns:] == 77).all(), "written between rows"
    assert (got[:, rows * row : rows * row + 2] == 0).all(), "no zeros behind the rows"
    assert (got[:, rows * row + 2 :] == 77).all(), "written between planes"
    for address in (read, taps, written):
        space.release(address)
