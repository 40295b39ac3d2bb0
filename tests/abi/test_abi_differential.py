"""Random signatures: nothing misbehaves that the guard had called safe."""

from __future__ import annotations

import pytest
from conftest_abi import needs_runner

from sylvite.abi.differential import generate_batch, run_differential
from sylvite.abi.targets import find_target

PAIRS = [
    ("x86_64-linux", "x86_64-linux"),
    ("x86_64-linux", "arm64-linux"),
    ("x86_64-linux", "riscv64-linux"),
    ("x86_64-linux", "ppc64le-linux"),
    ("x86_64-linux", "s390x-linux"),
    ("x86_64-linux", "arm64-macos"),
    ("x86_64-linux", "x86_64-windows-msvc"),
    ("armv7-linux-hard", "armv7-linux-soft"),
    ("armv7-linux-hard", "i386-linux"),
    ("arm64-linux", "s390x-linux"),
]
MORE = [
    ("x86_64-linux", "x86_64-macos"),
    ("arm64-linux", "x86_64-linux"),
    ("arm64-linux", "riscv64-linux"),
    ("arm64-linux", "ppc64le-linux"),
    ("arm64-linux", "x86_64-windows-msvc"),
    ("armv7-linux-hard", "riscv32-linux"),
    ("i386-linux", "armv7-linux-hard"),
]


def test_batch_is_the_same_for_the_same_seed():
    assert generate_batch(3, 20) == generate_batch(3, 20)
    assert generate_batch(3, 20) != generate_batch(4, 20)


@pytest.mark.parametrize(("base", "target"), PAIRS)
def test_sixty_random_signatures_misbehave_only_where_flagged(base, target):
    needs_runner(target)
    tally = run_differential(find_target(base), find_target(target), seed=1, count=60)
    assert tally.right + tally.wrong + tally.crash == 60
    assert tally.missed == []
    if base == target:
        assert (tally.right, tally.flagged) == (60, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("base", "target"), PAIRS + MORE)
def test_two_thousand_random_signatures_misbehave_only_where_flagged(base, target, record_property):
    needs_runner(target)
    flagged = harmless = 0
    for seed in range(100, 110):
        tally = run_differential(find_target(base), find_target(target), seed=seed, count=200)
        assert tally.missed == [], f"seed {seed}"
        flagged += tally.flagged
        harmless += tally.flagged_harmless
    share = harmless / flagged if flagged else 0.0
    record_property("flagged_but_harmless", share)
    print(f"{base} -> {target}: {flagged} of 2000 flagged, {share:.0%} of them harmless")
