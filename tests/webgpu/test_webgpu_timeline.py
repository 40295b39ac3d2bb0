"""Spans of dispatches on WebGPU devices, with and without timestamps."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np
import pytest

import sylvite
from sylvite.cli import main
from sylvite.drivers.webgpu import timeline

pytest.importorskip("iree.compiler")
pytestmark = pytest.mark.compiler

PROGRAM = """
func.func @main(%a: tensor<64x32xf32>, %b: tensor<32x48xf32>) -> tensor<64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x48xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x48xf32>) -> tensor<64x48xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<64x32xf32>, tensor<32x48xf32>)
                     outs(%init : tensor<64x48xf32>) -> tensor<64x48xf32>
  %row = tensor.empty() : tensor<64xf32>
  %start = linalg.fill ins(%zero : f32) outs(%row : tensor<64xf32>) -> tensor<64xf32>
  %1 = linalg.reduce ins(%0 : tensor<64x48xf32>) outs(%start : tensor<64xf32>) dimensions = [1]
    (%in: f32, %sum: f32) { %2 = arith.addf %in, %sum : f32 linalg.yield %2 : f32 }
  return %1 : tensor<64xf32>
}
"""


@pytest.fixture
def recorded(device):
    """Calls the program on a device, twice; its spans on the GPU, and when it began and ended."""

    def record():
        a, b = np.ones((64, 32), np.float32), np.ones((32, 48), np.float32)
        spans = []
        with sylvite.load(PROGRAM, device=device) as model:
            model(a, b)
            begin_ns = time.perf_counter_ns()
            with device.tracer.listen(spans.append):
                for _ in range(2):
                    np.testing.assert_array_equal(model(a, b), np.full(64, 32 * 48, np.float32))
        found = [span for span in spans if span.track == timeline.TRACK]
        return found, begin_ns, time.perf_counter_ns()

    return record


def check_dispatches(found, begin_ns, end_ns):
    dispatches = [span for span in found if span.category == "dispatch"]
    names = [span.name for span in dispatches]
    assert len(names) == 2 * len(set(names)) >= 4
    assert names[: len(names) // 2] == names[len(names) // 2 :]
    assert any("matmul" in name for name in names)
    assert all(span.attributes["workgroups"] >= 1 and span.attributes["bytes"] > 0 for span in dispatches)
    for earlier, later in itertools.pairwise(found):
        assert begin_ns <= earlier.begin_ns <= earlier.end_ns <= end_ns
        assert earlier.end_ns <= later.begin_ns


def test_dispatches_have_a_span_each_in_order(device, recorded):
    assert "timestamp-query" in device.features
    check_dispatches(*recorded())


def test_passes_beyond_one_set_of_timestamps_have_spans_too(recorded, monkeypatch):
    monkeypatch.setattr(timeline, "_SET_PASSES", 1)
    check_dispatches(*recorded())


def test_without_timestamps_there_is_a_span_for_the_submission_that_says_so(device, recorded):
    device.gpu.features -= {"timestamp-query"}
    found, begin_ns, end_ns = recorded()
    assert len(found) == 2
    for span in found:
        assert span.category == "submission"
        assert "no timestamps" in span.name
        assert "matmul" in span.attributes["kernels"]
        assert begin_ns <= span.begin_ns < span.end_ns <= end_ns


def test_profile_counts_what_the_gpu_did(provider, tmp_path, capsys):
    source, trace = tmp_path / "product.mlir", tmp_path / "trace.json"
    source.write_text(PROGRAM)
    arguments = ["profile", str(source), "--device", f"webgpu://{provider}", "--runs", "2", "--json"]
    assert main([*arguments, "--trace", str(trace)]) == 0
    kernels = json.loads(capsys.readouterr().out)["kernels"]
    (product,) = [kernel for kernel in kernels if "matmul" in kernel["name"]]
    assert product["count"] == 2
    assert product["workgroups"] >= 2
    events = json.loads(trace.read_text())["traceEvents"]
    assert timeline.TRACK in {event["args"]["name"] for event in events if event["name"] == "thread_name"}
