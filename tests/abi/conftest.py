"""Shared by the ABI guard's tests: C snippets in files, and what this machine can do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sylvite.abi.rules import Report

sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("ziglang", reason="the ABI guard needs the abi extra")


@pytest.fixture
def snippet(tmp_path):
    """A function that writes C text to a header and returns its path."""

    def write(text: str, name: str = "snippet.h") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def judged(snippet):
    """A function that checks C text without a cache."""

    def check(text: str, targets: str = "64-bit", base: str | None = "x86_64-generic", **options) -> Report:
        from sylvite import abi

        return abi.check(snippet(text), targets=targets, base=base, cache=False, **options)

    return check


@pytest.fixture
def cache_home(tmp_path, monkeypatch):
    """A cache directory of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"
