"""A Halide stage that writes into a model's input: one memory, nothing copied in between."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import sylvite
from sylvite import halide as sylvite_halide

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "halide"


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLE))
    try:
        import measure
        import pipelines
    finally:
        sys.path.remove(str(EXAMPLE))
    return measure, pipelines


@pytest.mark.compiler
def test_halide_stage_feeds_the_model_without_a_copy(example):
    measure, pipelines = example
    photo = measure.read_photo()
    assert photo.shape == (240, 240, 3)
    with sylvite.load(sylvite.compile(measure.meter())) as model:
        device = model.device
        prepare = sylvite_halide.compile(*pipelines.prepare(), device=device, name="prepare")
        sharpen = sylvite_halide.compile(*pipelines.sharpen(), device=device, name="sharpen")
        meter = measure.Meter(device, model, prepare)
        original = device.allocate(photo.shape, np.uint8)
        original[...] = photo
        before = device.tracer.counters.bytes_copied
        seen = [meter(original) for _ in range(3)]
        assert device.tracer.counters.bytes_copied == before
        # The chain of two pipelines is in place too, apart from the sharpener's planar copies.
        soft, sharp = (meter(sharpen(original, amount))[0] for amount in (-1.0, 1.5))
    small = photo.astype(np.float64).reshape(60, 4, 60, 4, 3).mean((1, 3)) / 255
    tensor = (small - 0.5) / 0.25
    gray = tensor.mean(2)
    edges = gray[:-2, 1:-1] + gray[2:, 1:-1] + gray[1:-1, :-2] + gray[1:-1, 2:] - 4 * gray[1:-1, 1:-1]
    for sharpness, colour in seen:
        assert sharpness == pytest.approx(np.square(edges).mean(), rel=1e-4)
        np.testing.assert_allclose(colour, tensor.mean((0, 1)), rtol=1e-4)
    assert soft < seen[0][0] < sharp
