"""Random signatures: nothing misbehaves that the guard had called safe."""

from __future__ import annotations

import pytest

from sylvite.abi.differential import generate_batch, run_differentials
from sylvite.abi.targets import Target, find_target, runner

TARGETS = {
    "x86_64-linux": [
        "x86_64-linux", "arm64-linux", "riscv64-linux", "ppc64le-linux", "s390x-linux", "arm64-macos",
        "x86_64-windows-msvc",
    ],
    "armv7-linux-hard": ["armv7-linux-soft", "i386-linux"],
    "arm64-linux": ["s390x-linux"],
}  # fmt: skip
MORE = {
    "x86_64-linux": ["x86_64-macos"],
    "armv7-linux-hard": ["riscv32-linux"],
    "arm64-linux": ["x86_64-linux", "riscv64-linux", "ppc64le-linux", "x86_64-windows-msvc"],
    "i386-linux": ["armv7-linux-hard"],
}
SEEDS = range(100, 110)


def runnable(names: list[str]) -> list[Target]:
    """Those of the targets whose programs can be run here; skips when there are none."""
    found = [find_target(name) for name in names if runner(find_target(name)) is not None]
    if not found:
        pytest.skip(f"none of {', '.join(names)} can be run here (qemu-user is not installed)")
    return found


def test_batch_is_the_same_for_the_same_seed():
    assert generate_batch(3, 20) == generate_batch(3, 20)
    assert generate_batch(3, 20) != generate_batch(4, 20)


@pytest.mark.parametrize("base", TARGETS)
def test_sixty_random_signatures_misbehave_only_where_flagged(base):
    chosen = runnable(TARGETS[base])
    tallies = list(run_differentials(find_target(base), chosen, seed=1, count=60))
    assert [tally.target for tally in tallies] == [target.name for target in chosen]
    for tally in tallies:
        assert tally.right + tally.wrong + tally.crash == 60
        assert tally.missed == [], tally.target
        if tally.target == base:
            assert (tally.right, tally.flagged) == (60, 0)
        else:
            assert 0 < tally.flagged < 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("base", [*TARGETS, "i386-linux"])
def test_two_thousand_random_signatures_misbehave_only_where_flagged(base, seed, record_property):
    """Two hundred a seed and ten seeds for each pair."""
    chosen = runnable([*TARGETS.get(base, ()), *MORE[base]])
    for tally in run_differentials(find_target(base), chosen, seed=seed, count=2000 // len(SEEDS)):
        assert tally.missed == [], tally.target
        record_property(f"flagged but harmless on {tally.target}", tally.harmless_share)
