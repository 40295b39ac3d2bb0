"""Linking objects: the linker of the IREE compiler, and ziglang's where that is missing."""

from __future__ import annotations

import numpy as np
import pytest

import halide as hl
from sylvite import halide as sylvite_halide
from sylvite.errors import UnavailableError
from sylvite.halide import linking


@pytest.fixture
def hide(monkeypatch):
    """Packages the search for a linker does not find."""
    hidden: set[str] = set()
    found = linking._locations
    monkeypatch.setattr(linking, "_locations", lambda name: [] if name in hidden else found(name))
    linking.find_linker.cache_clear()
    yield hidden
    linking.find_linker.cache_clear()


def test_object_linked_by_ziglang_computes_the_same(tmp_path, hide):
    pytest.importorskip("ziglang")
    x, y = hl.vars("x y")
    source = hl.ImageParam(hl.UInt(8), 2, "source")
    out = hl.Func("out")
    out[x, y] = source[x, y] ^ 90
    target = hl.Target("wasm-32-wasmrt-wasm_simd128-no_runtime")
    out.compile_to_object(str(tmp_path / "a.o"), [source], "flip", target)
    image = np.random.default_rng(5).integers(0, 256, (20, 30), np.uint8)
    hide.add("iree.compiler")
    assert linking.find_linker()[-1] == "wasm-ld"
    with sylvite_halide.load(tmp_path / "a.o") as pipeline:
        np.testing.assert_array_equal(pipeline(image), image ^ 90)


def test_linker_missing_names_the_extra(hide):
    hide.update(("iree.compiler", "ziglang"))
    with pytest.raises(UnavailableError, match="ziglang"):
        linking.find_linker()
