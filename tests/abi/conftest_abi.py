"""Helpers of the ABI guard's tests: what this machine has, and skips that say what is missing."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path

import pytest

from sylvite.abi.oracle import Query
from sylvite.abi.targets import find_target, runner


def needs_runner(*names: str) -> None:
    """Skip unless programs for all of the targets can be run here."""
    for name in names:
        if runner(find_target(name)) is None:
            pytest.skip(f"programs for {name} cannot be run here (qemu-user is not installed)")


def header(*candidates: str) -> str:
    """The first of some files that exists, else skip."""
    for candidate in candidates:
        if candidate and os.path.isfile(candidate):
            return candidate
    pytest.skip(f"none of these headers is installed: {', '.join(c for c in candidates if c)}")
    return ""


def wgpu_resources() -> Path:
    """The folder of webgpu.h and libwgpu_native, from the environment or the wgpu package."""
    given = os.environ.get("SYLVITE_WGPU_RESOURCES")
    if given:
        return Path(given)
    spec = importlib.util.find_spec("wgpu")
    if spec is None or spec.origin is None:
        pytest.skip("webgpu.h is in the wgpu package, which is not installed")
    return Path(spec.origin).parent / "resources"


def python_header() -> str:
    """Python.h of the interpreter that runs the tests."""
    return header(os.path.join(sysconfig.get_paths()["include"], "Python.h"))


def query_of(*files: str, **options) -> Query:
    """A query about files."""
    return Query(files=files, **options)
