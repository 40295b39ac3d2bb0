"""Halide's own native JIT as the judge: bit-exact for integers, ulp-scaled for floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from halide_cases import CASES, Case

import halide as hl
from sylvite import halide as sylvite_halide

pytestmark = pytest.mark.filterwarnings("ignore:The floating-point value:RuntimeWarning")

NATIVE = "x86-64-linux-sse41"


@pytest.fixture(scope="module")
def place():
    from sylvite.halide.place import place_of

    place = place_of(None)
    yield place
    place.close()


def native(subject: Any, sizes: tuple[int, ...], case: Case) -> list[np.ndarray]:
    features = [f for f in case.features if f == "strict_float"]
    result = subject.realize(list(sizes), hl.Target("-".join([NATIVE, *features])))
    buffers = result if isinstance(result, (tuple, list)) else [result]
    return [np.asarray(buffer) for buffer in buffers]


@pytest.mark.parametrize("name", CASES)
def test_pipeline_against_native_jit_agrees(name, place):
    case = CASES[name]
    subject, sizes = case.make()
    expected = native(subject, sizes, case)
    result = sylvite_halide.realize(subject, sizes, device=place, layout="reversed", features=case.features)
    actual = list(result) if isinstance(result, tuple) else [result]
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(got, want)
            continue
        scale = np.maximum(np.abs(want.astype(np.float64)), np.abs(want.astype(np.float64)).max() * 2**-6)
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
        assert (error <= case.ulps * np.finfo(want.dtype).eps * scale).all(), (error / scale).max()


def test_cases_number_is_as_promised():
    assert len(CASES) >= 60
