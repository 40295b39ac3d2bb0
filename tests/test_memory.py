"""Resident memory stays flat however loads and calls end. (Plain cycles: ``test_model_calls.py``.)"""

from __future__ import annotations

import subprocess
import sys

import pytest

import sylvite

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
