"""Tuning: products go to the runtime's kernels, results stay, and what cannot be tuned still compiles."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import sylvite
from sylvite import engines
from sylvite.compile import tuning
from sylvite.drivers import create_device
from sylvite.errors import CompileError, InvalidArgumentError

pytestmark = pytest.mark.compiler

PRODUCT = """
func.func @dense(%x: tensor<{m}x{k}x{t}>, %w: tensor<{k}x{n}x{t}>) -> tensor<{m}x{n}x{s}> {{
  %zero = arith.constant {zero} : {s}
  %empty = tensor.empty() : tensor<{m}x{n}x{s}>
  %start = linalg.fill ins(%zero : {s}) outs(%empty : tensor<{m}x{n}x{s}>) -> tensor<{m}x{n}x{s}>
  %y = linalg.matmul ins(%x, %w : tensor<{m}x{k}x{t}>, tensor<{k}x{n}x{t}>)
    outs(%start : tensor<{m}x{n}x{s}>) -> tensor<{m}x{n}x{s}>
  return %y : tensor<{m}x{n}x{s}>
}}
"""
TYPES = {"f32": ("f32", np.float32, "0.0"), "i8": ("i32", np.int8, "0"), "f64": ("f64", np.float64, "0.0")}


def product(m, n, k, kind="f32"):
    result, _, zero = TYPES[kind]
    return PRODUCT.format(m=m, n=n, k=k, t=kind, s=result, zero=zero)


def operands(m, n, k, kind="f32"):
    rng = np.random.default_rng(5)
    dtype = TYPES[kind][1]
    if kind == "i8":
        return [rng.integers(-128, 128, shape).astype(dtype) for shape in ((m, k), (k, n))]
    return [rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n))]


def imports(artifact):
    """Kernels that a module's code imports; symbol names stand in it as they are."""
    data = artifact.path.read_bytes()
    return {name for name in ("iree_uk_mmt4d", "iree_uk_pack", "iree_uk_unpack") if name.encode() in data}


@pytest.mark.parametrize(
    ("m", "n", "k", "kind"),
    [(37, 50, 29, "f32"), (64, 96, 128, "f32"), (1, 40, 33, "f32"), (40, 3, 16, "f32"), (20, 24, 31, "i8")],
)
def test_compile_tuned_product_equals_numpy(m, n, k, kind):
    artifact = sylvite.compile(product(m, n, k, kind))
    assert artifact.notes == ()
    assert "iree_uk_mmt4d" in imports(artifact)
    x, w = operands(m, n, k, kind)
    with sylvite.load(artifact) as model:
        got = model(x, w)
        wide = np.int32 if kind == "i8" else np.float64
        np.testing.assert_allclose(got, x.astype(wide) @ w.astype(wide), rtol=1e-4, atol=1e-4)


def test_compile_tuning_off_leaves_products_to_the_compiler():
    artifact = sylvite.compile(product(64, 96, 128), tuning="off")
    assert imports(artifact) == set()


def test_compile_type_without_kernels_is_compiled_plainly():
    artifact = sylvite.compile(product(16, 24, 8, "f64"))
    assert "iree_uk_mmt4d" not in imports(artifact)
    x, w = operands(16, 24, 8, "f64")
    with sylvite.load(artifact) as model:
        np.testing.assert_allclose(model(x, w), x @ w, rtol=1e-12)


def test_compile_failed_tuning_falls_back_and_says_so(monkeypatch):
    def fail(*_, **__):
        raise CompileError("no such text")

    monkeypatch.setattr(tuning, "retarget", fail)
    artifact = sylvite.compile(product(12, 20, 9), cache=False)
    assert any("without tuning" in note and "no such text" in note for note in artifact.notes)
    x, w = operands(12, 20, 9)
    with sylvite.load(artifact) as model:
        np.testing.assert_allclose(model(x, w), x @ w, rtol=1e-4, atol=1e-4)


def test_compile_unknown_tuning_is_refused():
    with pytest.raises(InvalidArgumentError, match="auto, off"):
        sylvite.compile(product(4, 4, 4), tuning="fast")


def test_tuned_module_runs_with_and_without_relaxed_simd():
    """One archive: the engine decides which kernels it gets."""
    artifact = sylvite.compile(product(37, 50, 29))
    x, w = operands(37, 50, 29)
    results = []
    for deterministic in (False, True):
        engine = engines.create("wasmtime", deterministic=deterministic)
        with (
            create_device("local-sync", engine=engine) as device,
            sylvite.load(artifact, device=device) as model,
        ):
            results.append(np.array(model(x, w)))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)
    # The deterministic one rounds every product and every sum.
    want = np.zeros((37, 50), np.float32)
    for k in range(29):
        want += x[:, k, None] * w[None, k]
    np.testing.assert_array_equal(results[1], want)


TEXT = """module {
  util.global private @d = #hal.executable.target<"llvm-cpu", "embedded-elf-x86_64", {cpu = "generic"}>
  hal.executable private @a {
    hal.executable.variant public @embedded_elf_x86_64 target(\
<"llvm-cpu", "embedded-elf-x86_64", {cpu = "x"}>) {
      %9 = linalg.mmt4d {lowering_config = #iree_cpu.lowering_config<distribution = [4, 16, 0, 0, 0, 0], \
vector_common_parallel = [1, 1, 0, 8, 4, 0], vector_reduction = [0, 0, 1, 0, 0, 1]>} \
ins(%4, %5 : tensor<64x512x8x1x$T>, tensor<126x512x4x1x$T>) \
outs(%8 : tensor<64x126x8x4x$S>) -> tensor<64x126x8x4x$S>
      %1 = linalg.generic {lowering_config = #iree_cpu.lowering_config<vector_common_parallel = [1, 1, 8, 4]>}
    }
  }
  stream.cmd.dispatch @a::@embedded_elf_x86_64::@f
}
"""


def retargeted(tmp_path, text):
    source, destination = tmp_path / "a.mlir", tmp_path / "b.mlir"
    source.write_text(text)
    flags = ["--iree-llvmcpu-target-cpu-features=+simd128,+relaxed-simd"]
    result = tuning.retarget(source, destination, flags=flags)
    return result, destination.read_text()


def test_retarget_product_takes_blocks_that_divide_its_extents(tmp_path):
    result, text = retargeted(tmp_path, TEXT.replace("$T", "f32").replace("$S", "f32"))
    assert dataclasses.astuple(result) == (1, 1)
    assert "x86_64" not in text
    assert text.count('cpu_features = "+simd128,+relaxed-simd"') == 2
    assert "@a::@system_wasm_wasm_32::@f" in text
    assert "distribution = [8, 21, 0, 0, 0, 0], vector_common_parallel = [8, 21, 0, 8, 4, 0]" in text
    assert "vector_common_parallel = [8, 21, 8, 4], vector_inner_parallel = [1, 1, 8, 4]" in text


def test_retarget_product_of_other_types_keeps_its_config(tmp_path):
    result, text = retargeted(tmp_path, TEXT.replace("$T", "f16").replace("$S", "f32"))
    assert dataclasses.astuple(result) == (1, 0)
    assert "distribution = [4, 16, 0, 0, 0, 0]" in text
    assert 'ukernels = "pack,unpack"' in text


def test_retarget_text_without_target_raises(tmp_path):
    with pytest.raises(CompileError, match="names no target"):
        retargeted(tmp_path, "module {\n}\n")
