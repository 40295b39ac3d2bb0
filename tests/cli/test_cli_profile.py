"""``sylvite profile``: its trace, picture and table, and what recording costs when it is off."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from sylvite.cli.app import main
from sylvite.cli.profile_report import flops_of, html_picture, summarize
from sylvite.trace import Span

SOURCE = """
func.func @main(%a: tensor<64x32xf32>, %b: tensor<32x48xf32>) -> tensor<64x48xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x48xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x48xf32>) -> tensor<64x48xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<64x32xf32>, tensor<32x48xf32>)
                     outs(%init : tensor<64x48xf32>) -> tensor<64x48xf32>
  return %0 : tensor<64x48xf32>
}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    pytest.importorskip("iree.compiler", reason="needs the compile extra")
    path = tmp_path_factory.mktemp("profile") / "product.mlir"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("device", ["local-sync", "local-task://2"])
def test_profile_writes_a_trace_and_a_picture(source, tmp_path, capsys, device):
    trace_path, html_path = tmp_path / "trace.json", tmp_path / "picture.html"
    arguments = ["profile", str(source), "--device", device, "--runs", "2", "--json", "--tuning", "off"]
    assert main([*arguments, "--trace", str(trace_path), "--html", str(html_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    kernels = [kernel for kernel in report["kernels"] if kernel["category"] == "dispatch"]
    assert [kernel["count"] for kernel in kernels] == [2] * len(kernels)
    assert any(kernel["gflops"] for kernel in kernels)
    assert report["memory_by_tag"]

    events = json.loads(trace_path.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert "worker 0" in names or "worker 1" in names
    dispatches = [event for event in events if event.get("cat") == "dispatch"]
    assert len(dispatches) >= 2
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in dispatches)
    assert all(event["args"]["workgroups"] >= 1 for event in dispatches)
    assert [event["args"] for event in events if event["ph"] == "C"]

    page = html_path.read_text()
    drawing = ElementTree.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL).group(0))
    assert len(drawing.findall(".//{*}rect")) >= 2
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_profile_prints_a_table(source, capsys):
    assert main(["profile", str(source), "--runs", "1"]) == 0
    text = capsys.readouterr().out
    assert "GFLOP/s" in text
    assert "1 calls" in text


def test_profile_to_a_folder_that_is_not_there_says_so(source, tmp_path, capsys):
    assert main(["profile", str(source), "--trace", str(tmp_path / "no" / "trace.json")]) == 1
    assert "trace.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("main_dispatch_0_matmul_like_128x384x1536_f32", 2 * 128 * 384 * 1536),
        ("main_dispatch_7_batch_matmul_12x128x128x32_f32", 2 * 12 * 128 * 128 * 32),
        ("main_dispatch_2_conv_56x56x64x3x3x64_f32", 2 * 56 * 56 * 64 * 9 * 64),
        ("main_dispatch_3_elementwise_128x384_f32", None),
        ("copy", None),
    ],
)
def test_flops_are_read_from_names_of_products_only(name, flops):
    assert flops_of(name) == flops


def test_summary_adds_up_what_several_workers_did():
    spans = [
        Span(
            name="matmul_10x10x10_f32",
            category="dispatch",
            track=f"worker {worker}",
            begin_ns=0,
            end_ns=1000,
            attributes={"workgroups": 10, "done_here": part, "bytes": 1200},
        )
        for worker, part in ((0, 4), (1, 6))
    ]
    (kernel,) = summarize(spans)
    assert (kernel.count, kernel.workgroups, kernel.total_ns) == (1, 10, 2000)
    assert kernel.gflops == pytest.approx(1.0)
    assert kernel.gbytes == pytest.approx(0.6)


def test_picture_of_nothing_is_a_page():
    assert "Nothing was recorded" in html_picture("a < b", [], [], {})
    assert "a &lt; b" in html_picture("a < b", [], [], {})
