"""Tuning: products go to the runtime's kernels, results stay, and what cannot be tuned still compiles."""

from __future__ import annotations

import re

import numpy as np
import pytest

import sylvite
from sylvite import engines
from sylvite.compile import tuning
from sylvite.compile.depthwise import write_out_depthwise
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


HALVES = """
func.func @dense(%x: tensor<{m}x{k}x{a}>, %w: tensor<{k}x{n}x{b}>) -> tensor<{m}x{n}x{s}> {{
  %zero = arith.constant {zero} : {s}
  %empty = tensor.empty() : tensor<{m}x{n}x{s}>
  %start = linalg.fill ins(%zero : {s}) outs(%empty : tensor<{m}x{n}x{s}>) -> tensor<{m}x{n}x{s}>
  %y = linalg.matmul ins(%x, %w : tensor<{m}x{k}x{a}>, tensor<{k}x{n}x{b}>)
    outs(%start : tensor<{m}x{n}x{s}>) -> tensor<{m}x{n}x{s}>
  return %y : tensor<{m}x{n}x{s}>
}}
"""


@pytest.mark.parametrize(
    ("a", "b", "result", "is_call"),
    [
        ("f16", "f16", "f32", True),
        ("f16", "f16", "f16", True),
        ("bf16", "bf16", "f32", True),
        ("bf16", "bf16", "bf16", True),
        ("i16", "i16", "i32", True),
        ("f32", "f16", "f32", False),
        ("bf16", "f32", "f32", False),
    ],
)
def test_compile_tuned_narrow_product_equals_numpy(a, b, result, is_call):
    numbers = pytest.importorskip("ml_dtypes")
    m, n, k = 37, 50, 70
    zero = "0" if result == "i32" else "0.0"
    artifact = sylvite.compile(HALVES.format(m=m, n=n, k=k, a=a, b=b, s=result, zero=zero))
    assert artifact.notes == ()
    assert ("iree_uk_mmt4d" in imports(artifact)) == is_call
    dtypes = {"f16": np.float16, "bf16": numbers.bfloat16, "i16": np.int16, "f32": np.float32}
    rng = np.random.default_rng(3)
    # Integers so small that every sum is exact, also rounded to bf16's eight bits at the end.
    x = rng.integers(-1, 2, (m, k)).astype(dtypes[a])
    w = rng.integers(-1, 2, (k, n)).astype(dtypes[b])
    with sylvite.load(artifact) as model:
        got = np.array(model(x, w)).astype(np.float32)
    np.testing.assert_array_equal(got, x.astype(np.float32) @ w.astype(np.float32))


def test_compile_products_of_several_types_in_one_module_are_tuned_one_by_one():
    text = "".join(
        product(24, 32, 40, kind).replace("@dense", f"@dense_{kind}") for kind in ("f32", "f64", "i8")
    )
    artifact = sylvite.compile(text)
    assert artifact.notes == ()
    assert "iree_uk_mmt4d" in imports(artifact)
    with sylvite.load(artifact) as model:
        for kind in ("f32", "f64", "i8"):
            x, w = operands(24, 32, 40, kind)
            got = np.array(model.functions[f"dense_{kind}"](x, w))
            want = x.astype(np.float64) @ w.astype(np.float64)
            np.testing.assert_allclose(got, want, rtol=1e-4 if kind == "f32" else 1e-12, atol=1e-4)


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
      builtin.module {
      %9 = linalg.mmt4d {lowering_config = #iree_cpu.lowering_config<distribution = [4, 16, 0, 0, 0, 0], \
vector_common_parallel = [1, 1, 0, 8, 4, 0], vector_reduction = [0, 0, 1, 0, 0, 1]>} \
ins(%4, %5 : tensor<64x512x8x1x$T>, tensor<126x512x4x1x$T>) \
outs(%8 : tensor<64x126x8x4x$S>) -> tensor<64x126x8x4x$S>
      %1 = linalg.generic {lowering_config = #iree_cpu.lowering_config<vector_common_parallel = [1, 1, 8, 4]>}
      }
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
    assert result.products == 1
    assert "x86_64" not in text
    assert text.count('cpu_features = "+simd128,+relaxed-simd"') == 2
    assert "@a::@system_wasm_wasm_32::@f" in text
    assert "distribution = [8, 21, 0, 0, 0, 0], vector_common_parallel = [8, 21, 0, 8, 4, 0]" in text
    assert "vector_common_parallel = [8, 21, 8, 4], vector_inner_parallel = [1, 1, 8, 4]" in text


@pytest.mark.parametrize(("left", "right", "result"), [("f32", "f16", "f32"), ("i4", "i4", "i32")])
def test_retarget_product_of_types_without_kernel_stays_with_the_compiler(tmp_path, left, right, result):
    text = TEXT.replace("126x512x4x1x$T", f"126x512x4x1x{right}").replace("$T", left).replace("$S", result)
    counts, text = retargeted(tmp_path, text)
    assert counts.products == 0
    assert "vector_common_parallel = [1, 1, 0, 8, 4, 0]" in text
    # The body's target is found first; the variant keeps the one that all executables share.
    assert text.count('ukernels = "none"') == 1
    assert text.count('ukernels = "mmt4d,pack,unpack"') == 2


def test_retarget_batch_of_products_does_without_the_unpacking_kernel(tmp_path):
    text = TEXT.replace("linalg.mmt4d", "linalg.batch_mmt4d").replace("$T", "f32").replace("$S", "f32")
    text = text.replace("tensor<64x", "tensor<3x64x").replace("tensor<126x", "tensor<3x126x")
    result, text = retargeted(tmp_path, text)
    assert result.products == 1
    assert "distribution = [1, 8, 21, 0, 0, 0, 0]" in text
    assert text.count('ukernels = "mmt4d,pack"') == 1
    assert text.count('ukernels = "mmt4d,pack,unpack"') == 2


def test_retarget_text_without_target_raises(tmp_path):
    with pytest.raises(CompileError, match="names no target"):
        retargeted(tmp_path, "module {\n}\n")


COPY = """module {
  util.global private @d = #hal.executable.target<"llvm-cpu", "embedded-elf-x86_64", {cpu = "generic"}>
  hal.executable private @a {
      %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3, d4) -> ($MAP)>, \
affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3, d4)>], \
iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]} \
ins(%2 : tensor<96x42x82xf32>) outs(%3 : tensor<96x3x3x40x80xf32>) attrs =  \
{lowering_config = #iree_cpu.lowering_config<distribution = [32, 3, 3, 20, 20], \
vector_common_parallel = [1, 1, 1, 1, 4]>} {
  }
}
"""


def test_retarget_copy_of_patches_walks_whole_planes(tmp_path):
    _, text = retargeted(tmp_path, COPY.replace("$MAP", "d0, d1 + d3, d2 + d4"))
    assert "distribution = [1, 1, 1, 40, 80], vector_common_parallel = [1, 1, 1, 1, 1]" in text


def test_retarget_plain_copy_keeps_its_config(tmp_path):
    _, text = retargeted(tmp_path, COPY.replace("$MAP", "d0, d3, d4"))
    assert "distribution = [32, 3, 3, 20, 20]" in text


CONVOLUTION = """
func.func @convolve(%x: tensor<1x5x12x14xf32>, %w: tensor<7x5x3x3xf32>) -> tensor<1x7x10x12xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<1x7x10x12xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<1x7x10x12xf32>) -> tensor<1x7x10x12xf32>
  %y = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<1x5x12x14xf32>, tensor<7x5x3x3xf32>)
    outs(%start : tensor<1x7x10x12xf32>) -> tensor<1x7x10x12xf32>
  return %y : tensor<1x7x10x12xf32>
}
"""


def test_compile_tuned_convolution_equals_the_plain_build_and_numpy():
    rng = np.random.default_rng(6)
    x = rng.standard_normal((1, 5, 12, 14)).astype(np.float32)
    w = rng.standard_normal((7, 5, 3, 3)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), axis=(1, 2))
    want = np.einsum("cyxij,fcij->fyx", windows, w)[None]
    for settings in ({"img2col": True}, {"tuning": "off"}):
        with sylvite.load(sylvite.compile(CONVOLUTION, **settings)) as model:
            np.testing.assert_allclose(model(x, w), want, rtol=1e-4, atol=1e-4)


DEPTHWISE = """
func.func @convolve(%x: tensor<1x6x17x19xf32>, %f: tensor<6x{k}x{k}xf32>, %w: tensor<6x4xf32>)
    -> (tensor<1x6x{h}x{w}xf32>, tensor<4x4xf32>) {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<1x6x{h}x{w}xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<1x6x{h}x{w}xf32>) -> tensor<1x6x{h}x{w}xf32>
  %y = linalg.depthwise_conv_2d_nchw_chw {{strides = dense<{s}> : tensor<2xi64>}}
    ins(%x, %f : tensor<1x6x17x19xf32>, tensor<6x{k}x{k}xf32>)
    outs(%start : tensor<1x6x{h}x{w}xf32>) -> tensor<1x6x{h}x{w}xf32>
  %empty2 = tensor.empty() : tensor<4x4xf32>
  %start2 = linalg.fill ins(%zero : f32) outs(%empty2 : tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = tensor.empty() : tensor<4x6xf32>
  %wt = linalg.transpose ins(%w : tensor<6x4xf32>) outs(%t : tensor<4x6xf32>) permutation = [1, 0]
  %z = linalg.matmul ins(%wt, %w : tensor<4x6xf32>, tensor<6x4xf32>)
    outs(%start2 : tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y, %z : tensor<1x6x{h}x{w}xf32>, tensor<4x4xf32>
}}
"""


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (5, 1), (3, 2)])
def test_compile_tuned_depthwise_convolution_has_the_plain_build_bits(size, stride):
    rng = np.random.default_rng(8)
    x = rng.standard_normal((1, 6, 17, 19)).astype(np.float32)
    f = rng.standard_normal((6, size, size)).astype(np.float32)
    w = rng.standard_normal((6, 4)).astype(np.float32)
    height, width = (17 - size) // stride + 1, (19 - size) // stride + 1
    source = DEPTHWISE.format(k=size, s=stride, h=height, w=width)
    results = []
    for settings in ({}, {"tuning": "off"}):
        artifact = sylvite.compile(source, **settings)
        assert artifact.notes == ()
        # Fused sums round differently, and not the same ones are fused.
        engine = engines.create("wasmtime", deterministic=True)
        with (
            create_device("local-sync", engine=engine) as device,
            sylvite.load(artifact, device=device) as model,
        ):
            results.append([np.array(result) for result in model(x, f, w)])
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1], w.T @ w, rtol=1e-4, atol=1e-4)
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (size, size), axis=(1, 2))
    want = np.einsum("cyxij,cij->cyx", windows[:, ::stride, ::stride], f)[None]
    np.testing.assert_allclose(results[0][0], want, rtol=1e-4, atol=1e-4)


LOOP = """          %7 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3, d4, d5) -> \
(d0, d3, d1 * 2 + d4, d2$STRIDE + d5)>, affine_map<(d0, d1, d2, d3, d4, d5) -> (d3, d4, d5)>, \
affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d3, d1, d2)>], iterator_types = \
["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]} \
ins(%6, %3 : tensor<1x48x41x81xf32>, tensor<48x3x2xf32>) outs(%5 : tensor<1x48x20x40xf32>) \
attrs =  {lowering_config = #iree_cpu.lowering_config<distribution = [0, 10, 20, 24, 0, 0], \
vector_common_parallel = [0, 1, 4, 1, 0, 0], vector_reduction = [0, 0, 0, 0, 1, 4]>} {
          ^bb0(%in: f32, %in_0: f32, %out: f32):
            %8 = arith.mulf %in, %in_0 : f32
            %9 = arith.$OP %out, %8 : f32
            linalg.yield %9 : f32
          } -> tensor<1x48x20x40xf32>
"""


def loop(operation="addf", stride=""):
    return LOOP.replace("$OP", operation).replace("$STRIDE", stride)


def test_write_out_depthwise_names_every_term_in_order():
    text = write_out_depthwise(loop())
    assert text.count("tensor.extract_slice %6[") == text.count("tensor.extract_slice %3[") == 6
    assert "%6[0, 0, 2, 1] [1, 48, 20, 40] [1, 1, 2, 1]" in text
    assert "distribution = [0, 24, 10, 20], vector_common_parallel = [0, 1, 1, 4]" in text
    assert [f"%t{n}" for n in range(6)] == re.findall(r"(%t\d) =", text)


@pytest.mark.parametrize(
    "text", [loop("maximumf"), loop(stride=" * 2")], ids=["body", "stride along the row"]
)
def test_write_out_depthwise_leaves_other_loops(text):
    assert write_out_depthwise(text) == text
