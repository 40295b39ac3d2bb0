"""``sylvite_softmax_f32`` against numpy: row lengths with all tails, strides, in place, NaN, infinities."""

from __future__ import annotations

import numpy as np
import pytest

from sylvite import engines, kernels
from sylvite.linker import LinkSpace

COLUMNS = [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 19, 31, 32, 63, 100, 128, 131]
GUARD = b"\xa5" * 64


@pytest.fixture(scope="module")
def space():
    with LinkSpace(engines.create("wasmtime")) as space:
        yield space


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "relaxed"])
def softmax(space, request):
    compiled = space.engine.compile(kernels.assemble(relaxed=request.param), name="kernels")
    function = space.store.instantiate(compiled, space.platform).exports[kernels.SOFTMAX_NAME]

    def run(x, *, in_stride=None, out_stride=None, flags=0, in_place=False):
        rows, columns = x.shape
        in_stride, out_stride = in_stride or columns, out_stride or columns
        source = np.full((rows, in_stride), 7, np.float32)
        source[:, :columns] = x
        target = source if in_place else np.full((rows, out_stride), -3, np.float32)
        # Offsets in elements, compensated in the addresses.
        addresses = [space.reserve(array.nbytes + 64) for array in (source, target)]
        for address, array in zip(addresses, (source, target), strict=True):
            space.write(address, array.tobytes() + GUARD)
        read, written = (addresses[0], addresses[0]) if in_place else addresses
        function(read - 8, 2, in_stride, written - 12, 3, out_stride, rows, columns, flags)
        data = space.read(written, target.nbytes + 64)
        for address in addresses:
            space.release(address)
        assert data[-64:] == GUARD, "written past the end"
        got = np.frombuffer(data[:-64], np.float32).reshape(target.shape)
        np.testing.assert_array_equal(got[:, columns:], target[:, columns:])
        return got[:, :columns]

    run.relaxed = request.param
    return run


def expected(x):
    with np.errstate(invalid="ignore"):
        shifted = (x - x.max(axis=1, keepdims=True)).astype(np.float64)
        powers = np.exp(shifted)
        return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("columns", COLUMNS)
def test_softmax_any_row_length_is_within_two_units_of_numpy(softmax, columns):
    rng = np.random.default_rng(columns)
    for scale in (0.1, 3, 40):
        x = (rng.standard_normal((5, columns)) * scale).astype(np.float32)
        want = expected(x)
        # Three roundings of the exponential and the quotient, and the sum's, which grows with its length.
        np.testing.assert_allclose(softmax(x), want, rtol=4e-7, atol=1.2e-38)


def test_softmax_strided_rows_leave_the_gaps_alone(softmax):
    x = np.random.default_rng(1).standard_normal((6, 21)).astype(np.float32)
    got = softmax(x, in_stride=25, out_stride=30)
    np.testing.assert_array_equal(got, softmax(x))
    np.testing.assert_array_equal(softmax(x, in_stride=24, out_stride=24, in_place=True), got)


def test_softmax_no_rows_writes_nothing(softmax):
    assert softmax(np.zeros((0, 4), np.float32)).shape == (0, 4)


def test_softmax_far_below_the_top_is_zero(softmax):
    x = np.array([[0, -87, -88, -200, -np.inf, -3.4e38, 0]], np.float32)
    got = softmax(x)[0]
    np.testing.assert_array_equal(got[[2, 3, 4, 5]], 0)
    np.testing.assert_allclose(got[[0, 1, 6]], expected(x)[0][[0, 1, 6]], rtol=4e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 17, 20])
def test_softmax_bad_element_spoils_its_row_alone(softmax, bad, place):
    x = np.random.default_rng(2).standard_normal((3, 21)).astype(np.float32)
    x[1, place] = bad
    got = softmax(x)
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()
    cleaned = softmax(x, flags=kernels.NAN_TO_ZERO)
    np.testing.assert_array_equal(cleaned[1], 0)
    np.testing.assert_array_equal(cleaned[[0, 2]], got[[0, 2]])


def test_softmax_masked_row_is_nan_or_zero_as_asked(softmax):
    x = np.full((2, 9), -np.inf, np.float32)
    assert np.isnan(softmax(x)).all()
    np.testing.assert_array_equal(softmax(x, flags=kernels.NAN_TO_ZERO), 0)


def test_softmax_without_fusion_has_the_bits_of_ieee_arithmetic(softmax):
    """The same operations in numpy, in the same order: no engine may give anything else."""
    x = (np.random.default_rng(3).standard_normal((4, 16)) * 4).astype(np.float32)
    f = np.float32
    d = x - x.max(axis=1, keepdims=True)
    z = d * f(1.4426950408889634) + f(12582912.0)
    n = z - f(12582912.0)
    r = n * f(-0.693359375) + d
    r = n * f(2.12194440e-4) + r
    p = f(0.0013814551057294011)
    for c in (0.00836874544620514, 0.04166838899254799, 0.1666652113199234, 0.4999999403953552, 1.0, 1.0):
        p = p * r + f(c)
    e = (p.view(np.int32) + (z.view(np.int32) << 23)).view(f)
    e[d < f(-87.33654)] = 0
    lanes = e.reshape(4, 4, 4)
    total = (lanes[:, 0] + lanes[:, 1]) + (lanes[:, 2] + lanes[:, 3])
    total = total + total[:, [2, 3, 0, 1]]
    total = total + total[:, [1, 0, 3, 2]]
    if softmax.relaxed:
        np.testing.assert_allclose(softmax(x), e / total[:, :1], rtol=5e-7)
    else:
        np.testing.assert_array_equal(softmax(x), e / total[:, :1])
