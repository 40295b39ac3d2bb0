"""bfloat16 buffers: ml_dtypes is the judge of rounding."""

from __future__ import annotations

import numpy as np
import pytest

import halide as hl
from sylvite import halide as sylvite_halide


def test_bfloat16_buffers_round_as_ml_dtypes_does():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = hl.Var("x")
    source = hl.ImageParam(hl.BFloat(16), 1, "source")
    out = hl.Func("out")
    out[x] = hl.cast(hl.BFloat(16), hl.f32(source[x]) * 1.5 + 2.0)
    values = np.random.default_rng(9).normal(0, 100, 4096).astype(bfloat16)
    with sylvite_halide.compile(out, [source]) as pipeline:
        result = pipeline(values)
    assert result.dtype == bfloat16
    expected = (values.astype(np.float32) * np.float32(1.5) + np.float32(2)).astype(bfloat16)
    np.testing.assert_array_equal(result.view(np.uint16), expected.view(np.uint16))
