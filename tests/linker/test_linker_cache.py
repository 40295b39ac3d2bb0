"""What the linker assembles itself is kept in the engine's cache."""

from __future__ import annotations

import pytest

from sylvite import engines
from sylvite.linker import LinkSpace, resolver


def kernels_through(cache_dir, **options):
    with engines.create("wasmtime", cache_dir=cache_dir, **options) as engine, LinkSpace(engine) as space:
        names = set(space._resolver.kernels) | set(space.support)
        return names, engine.cache.statistics


@pytest.fixture
def known_sources(monkeypatch):
    monkeypatch.setattr(resolver, "sources_digest", lambda *names: "".join(names).encode())


def test_kernels_kept_in_the_cache_are_not_assembled_again(tmp_path, known_sources, monkeypatch):
    first, _ = kernels_through(tmp_path)
    monkeypatch.setattr(resolver, "assemble_kernels", None)
    monkeypatch.setattr(resolver.support, "assemble", None)
    again, statistics = kernels_through(tmp_path)
    assert again == first
    assert (statistics.hits, statistics.misses) == (4, 0)


def test_kernels_for_other_capabilities_or_sources_are_others(tmp_path, known_sources, monkeypatch):
    kernels_through(tmp_path)
    _, statistics = kernels_through(tmp_path, deterministic=True)
    assert statistics.hits == 1  # support routines are the same; their machine code is not
    monkeypatch.setattr(resolver, "sources_digest", lambda *names: b"newer")
    _, statistics = kernels_through(tmp_path)
    assert (statistics.hits, statistics.misses) == (2, 2)  # the same bytes: only machine code is found


def test_kernels_from_changed_sources_are_assembled(tmp_path, monkeypatch):
    monkeypatch.setattr(resolver, "sources_digest", lambda *names: None)
    kernels_through(tmp_path)
    _, statistics = kernels_through(tmp_path)
    assert (statistics.hits, statistics.misses) == (2, 0)


def test_kernels_damaged_in_the_cache_are_assembled_again(tmp_path, known_sources):
    first, _ = kernels_through(tmp_path)
    for entry in tmp_path.glob("wasmtime-*/*.code"):
        entry.write_bytes(entry.read_bytes()[:-1])
    again, statistics = kernels_through(tmp_path)
    assert again == first
    assert (statistics.hits, statistics.discarded) == (0, 4)
    assert kernels_through(tmp_path)[1].hits == 4
