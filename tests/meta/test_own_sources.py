"""Digests of the package's own sources, which keys of caches contain."""

from __future__ import annotations

import shutil

import pytest

from sylvite import own_sources


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.py").write_text("A = 1\n")
    monkeypatch.setattr(own_sources, "_PACKAGE", tmp_path)
    monkeypatch.setattr(own_sources, "_IMPORTED_AT", float("inf"))
    own_sources.sources_digest.cache_clear()
    yield tmp_path
    own_sources.sources_digest.cache_clear()


def digest(*parts):
    own_sources.sources_digest.cache_clear()
    return own_sources.sources_digest(*parts)


def test_sources_digest_changes_with_content_name_and_part(package):
    seen = {digest("part")}
    (package / "part" / "a.py").write_text("A = 2\n")
    seen.add(digest("part"))
    (package / "part" / "a.py").rename(package / "part" / "b.py")
    seen.add(digest("part"))
    shutil.copytree(package / "part", package / "part" / "deeper")
    seen.add(digest("part"))
    assert len(seen) == 4
    assert None not in seen


def test_sources_digest_of_sources_changed_since_the_start_is_none(package, monkeypatch):
    assert digest("part") is not None
    monkeypatch.setattr(own_sources, "_IMPORTED_AT", (package / "part" / "a.py").stat().st_mtime)
    assert digest("part") is None


def test_sources_digest_without_sources_is_none(package):
    assert digest("elsewhere") is None
