"""A GPU for tests: SwiftShader, the software Vulkan driver in Debian's chromium package.

The environment is set before any test runs (tests/conftest.py): providers read it when they are first
asked for adapters, which any test that lists devices does.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile

PROVIDERS = ("wgpu", "dawn")
_PACKAGES = ("chromium-common", "chromium")


def _driver_json() -> str | None:
    for package in _PACKAGES:
        try:
            listed = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, timeout=30)
        except OSError:
            return None
        for line in listed.stdout.splitlines():
            if line.endswith("vk_swiftshader_icd.json") and os.path.exists(line):
                return line
    return None


@functools.cache
def prepare() -> str | None:
    """Point Vulkan at the software driver unless one is named; the reason why there is none, or None."""
    if "VK_ICD_FILENAMES" in os.environ or "VK_DRIVER_FILES" in os.environ:
        return None
    json = _driver_json()
    if json is None:
        return "needs a Vulkan driver: SwiftShader of Debian's package chromium"
    os.environ["VK_ICD_FILENAMES"] = os.environ["VK_DRIVER_FILES"] = json
    return None


@functools.cache
def find(provider: str) -> str | None:
    """Make a GPU available; the reason why there is none, or None."""
    missing = prepare()
    if missing is not None:
        return missing
    if "XDG_RUNTIME_DIR" not in os.environ:
        os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="sylvite-gpu-")
    from sylvite.drivers.webgpu.providers import load_provider
    from sylvite.errors import UnavailableError

    try:
        adapters = load_provider(provider).adapters()
    except UnavailableError as error:
        return str(error)
    return None if adapters else f"{provider} finds no adapter"
