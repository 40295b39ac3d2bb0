"""Resident memory stays flat however loads and calls end. (Plain cycles: ``test_model_calls.py``.)"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import sylvite
from sylvite.vm.parameters import write_archive

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]
pytest.importorskip("iree.compiler")

PROGRAM = """
func.func @divide(%a: tensor<256xi32>, %b: tensor<256xi32>) -> tensor<256xi32> {
  %0 = arith.divsi %a, %b : tensor<256xi32>
  return %0 : tensor<256xi32>
}
"""

CYCLES = """
import gc, resource, sys, numpy as np, sylvite
from sylvite.errors import SylviteError
data = open(sys.argv[1], "rb").read()
cut, damaged = data[: len(data) // 2], data[:-400] + bytes(400)
ones = np.ones(256, np.int32)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def fails(call, *arguments):
    try:
        call(*arguments)
    except SylviteError:
        return
    raise SystemExit("did not fail")

def cycle(shared):
    fails(sylvite.load, cut)
    fails(sylvite.load, damaged)
    for device in ("local-sync", shared):
        model = sylvite.load(data, device=device)
        fails(model, ones, ones * 0)
        fails(model, ones)
        kept = model(ones, ones)
        model.close()
        assert kept[0] == 1

sizes = []
with sylvite.create_device("local-sync") as shared:
    for step in range(int(sys.argv[2])):
        cycle(shared)
        if step >= 40 and step % 10 == 0:
            sizes.append(resident())
    gc.collect()
    assert shared.allocator.statistics.live_count == 0, shared.allocator.statistics
print(sizes[0], max(sizes))
"""


def test_memory_stays_flat_over_failures_and_reuse_of_a_device():
    path = sylvite.compile(PROGRAM).path
    answer = subprocess.run(
        [sys.executable, "-c", CYCLES, str(path), "120"], capture_output=True, text=True, timeout=300
    )
    assert answer.returncode == 0, answer.stderr
    first, largest = map(int, answer.stdout.split())
    assert largest <= first * 1.05, (first, largest)


# The right side of the product is packed when the module starts; what is summed up is used as it is.
WEIGHTED = """
util.global private @packed = #flow.parameter.named<"model"::"packed"> : tensor<2048x2048xf32>
util.global private @plain = #flow.parameter.named<"model"::"plain"> : tensor<8x2097152xf32>
func.func @main(%x: tensor<64x2048xf32>, %i: tensor<8xf32>) -> (tensor<64x2048xf32>, tensor<8xf32>) {
  %packed = util.global.load @packed : tensor<2048x2048xf32>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x2048xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x2048xf32>) -> tensor<64x2048xf32>
  %product = linalg.matmul ins(%x, %packed : tensor<64x2048xf32>, tensor<2048x2048xf32>)
      outs(%start : tensor<64x2048xf32>) -> tensor<64x2048xf32>
  %plain = util.global.load @plain : tensor<8x2097152xf32>
  %sum = linalg.generic {
      indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
      iterator_types = ["parallel", "reduction"]
    } ins(%plain : tensor<8x2097152xf32>) outs(%i : tensor<8xf32>) {
    ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      linalg.yield %c : f32
  } -> tensor<8xf32>
  return %product, %sum : tensor<64x2048xf32>, tensor<8xf32>
}
"""

LOADED = """
import sys, numpy as np, sylvite, sylvite.model.load, sylvite.drivers.local

def resident(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

before = resident("VmRSS")
model = sylvite.load(sys.argv[1], parameters={"model": sys.argv[2]})
after = resident("VmRSS")
product, sums = model(np.ones((64, 2048), np.float32), np.zeros(8, np.float32))
assert (product == 2048).all() and (sums == 2097152).all(), (product, sums)
print(after - before, resident("VmHWM") - before)
"""


def test_memory_of_loaded_weights_is_theirs_and_of_what_is_packed(tmp_path):
    weights = {"packed": np.ones((2048, 2048), np.float32), "plain": np.ones((8, 2097152), np.float32)}
    file = write_archive(tmp_path / "weights.irpa", weights)
    path = sylvite.compile(WEIGHTED).path
    answer = subprocess.run(
        [sys.executable, "-c", LOADED, str(path), str(file)], capture_output=True, text=True, timeout=300
    )
    assert answer.returncode == 0, answer.stderr
    loaded, peak = (int(text) / 1e6 for text in answer.stdout.split())
    packed, plain = (array.nbytes / 1e6 for array in weights.values())
    assert packed + plain < loaded < packed + plain + 28
    # Packing has both forms of what it packs, but the file's own pages are not there too.
    assert peak < 2 * packed + plain + 40
