"""ONNX node cases: whatever passes natively (IREE on the host) passes on wasm32 through Sylvite.

`EXCEPTIONS` lists every case for which that is not so, strictly: a listed case that agrees fails the
test, so that the list shrinks by itself.
"""

from __future__ import annotations

import os
import random

import pytest
from onnx_node_runner import cases, run_cases

pytestmark = pytest.mark.compiler
pytest.importorskip("onnx")

SEED = 20261130
SAMPLE = 150

# case name -> (reason, link)
_WIDE_SHIFT = (
    "the front end emits a shift by the bit width or more, which is poison: AVX2 gives 0, WebAssembly masks",
    "https://github.com/llvm/llvm-project/pull/82133",
)
_OUTSIDE_GRID = (
    "the lowering gathers outside the image and multiplies what it finds by 0 (an SSE build fails too)",
    "https://github.com/nod-ai/AMD-SHARK-ModelDev/issues/649",
)
EXCEPTIONS: dict[str, tuple[str, str]] = {
    # Releases of onnx differ in which of these they have.
    **{
        f"test_bitshift_{direction}_{width}_{amount}": _WIDE_SHIFT
        for direction in ("left", "right")
        for width in ("int8", "int32")
        for amount in ("negative_shift", "shift_ge_width")
    },
    "test_gridsample_zeros_padding": _OUTSIDE_GRID,
}


def sample() -> list[str]:
    """The seeded sample of `make test`, drawn from the names alone."""
    return random.Random(SEED).sample(sorted(cases()), SAMPLE)


def check(names: list[str]) -> None:
    results = run_cases(names, jobs=max(1, min(2, os.cpu_count() or 1)))
    wrong = []
    for result in results:
        if result.agrees == (result.name in EXCEPTIONS):
            wrong.append(f"{result.name}: native {result.native}, sylvite {result.sylvite}")
    passed = sum(result.native.passed and result.sylvite.passed for result in results)
    print(f"{passed} of {len(results)} cases pass on both sides, {len(wrong)} differ")
    assert not wrong, "\n".join(wrong)
    assert passed > len(results) / 3, "the runner itself looks broken"


def test_onnx_nodes_seeded_sample_agrees_with_native() -> None:
    check(sample())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(12))
def test_onnx_nodes_all_agree_with_native(part: int) -> None:
    check(sorted(set(cases()) - set(sample()))[part::12])
