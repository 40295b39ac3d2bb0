"""Softmax and the error function in tuned builds: kernels and cheaper forms, checked against plain builds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import sylvite
from sylvite import engines
from sylvite.compile.error_function import write_out_erf
from sylvite.compile.softmax import call_softmax
from sylvite.drivers import create_device
from sylvite.kernels import SOFTMAX_NAME

pytestmark = pytest.mark.compiler

ATTENTION = """
func.func @attention(%x: tensor<{b}{m}x{k}xf32>, %w: tensor<{b}{k}x{n}xf32>) -> tensor<{b}{m}x{n}xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{b}{m}x{n}xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<{b}{m}x{n}xf32>) -> tensor<{b}{m}x{n}xf32>
  %y = linalg.{op} ins(%x, %w : tensor<{b}{m}x{k}xf32>, tensor<{b}{k}x{n}xf32>)
    outs(%start : tensor<{b}{m}x{n}xf32>) -> tensor<{b}{m}x{n}xf32>
  %p = linalg.softmax dimension({axis}) ins(%y : tensor<{b}{m}x{n}xf32>)
    outs(%empty : tensor<{b}{m}x{n}xf32>) -> tensor<{b}{m}x{n}xf32>
  {tail}
  return %{result} : tensor<{b}{m}x{n}xf32>
}}
"""
NAN_TO_ZERO = """
  %c = linalg.generic {{indexing_maps = [{map}, {map}], iterator_types = [{loops}]}}
    ins(%p : tensor<{t}>) outs(%empty : tensor<{t}>) {{
  ^bb0(%in: f32, %out: f32):
    %bad = arith.cmpf une, %in, %in : f32
    %value = arith.select %bad, %zero, %in : f32
    linalg.yield %value : f32
  }} -> tensor<{t}>
"""


def attention(batch, m, n, k, *, axis=None, cleaned=False):
    rank = 2 if batch is None else 3
    b = "" if batch is None else f"{batch}x"
    loops = ", ".join(f"d{i}" for i in range(rank))
    tail = NAN_TO_ZERO.format(
        map=f"affine_map<({loops}) -> ({loops})>",
        loops=", ".join(['"parallel"'] * rank),
        t=f"{b}{m}x{n}xf32",
    )
    return ATTENTION.format(
        b=b,
        m=m,
        n=n,
        k=k,
        op="matmul" if batch is None else "batch_matmul",
        axis=rank - 1 if axis is None else axis,
        tail=tail if cleaned else "",
        result="c" if cleaned else "p",
    )


def operands(batch, m, n, k):
    rng = np.random.default_rng(11)
    lead = () if batch is None else (batch,)
    return [rng.standard_normal((*lead, *s)).astype(np.float32) for s in ((m, k), (k, n))]


def run(artifact, inputs, device="local-sync"):
    with sylvite.load(artifact, device=device) as model:
        return np.array(model(*inputs))


def softmax(y, axis=-1):
    powers = np.exp(y - y.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize(
    ("batch", "m", "n", "k"), [(3, 40, 50, 8), (None, 48, 37, 16), (2, 128, 128, 32), (1, 7, 3, 5)]
)
@pytest.mark.parametrize("cleaned", [False, True])
def test_compile_tuned_softmax_calls_the_kernel_and_equals_the_plain_build(batch, m, n, k, cleaned):
    text = attention(batch, m, n, k, cleaned=cleaned)
    tuned, plain = sylvite.compile(text), sylvite.compile(text, tuning="off")
    name = SOFTMAX_NAME.encode()
    assert name in tuned.path.read_bytes()
    assert name not in plain.path.read_bytes()
    inputs = operands(batch, m, n, k)
    if cleaned:
        inputs[0][..., 0, :] = np.inf
        inputs[1][..., :, :] = abs(inputs[1]) + 1
    got, want = run(tuned, inputs), run(plain, inputs)
    if cleaned:
        assert (got[..., 0, :] == 0).all()
        assert (want[..., 0, :] == 0).all()
    # The exponential turns absolute differences of the products, some 1e-6, into relative ones.
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-8)
    with np.errstate(invalid="ignore"):
        exact = np.nan_to_num(softmax(np.matmul(*inputs).astype(np.float64)))
    np.testing.assert_allclose(got, exact, rtol=2e-5, atol=1e-8)


def test_compile_softmax_along_another_axis_stays_with_the_compiler():
    text = attention(3, 40, 50, 8, axis=1)
    tuned = sylvite.compile(text)
    assert SOFTMAX_NAME.encode() not in tuned.path.read_bytes()
    inputs = operands(3, 40, 50, 8)
    np.testing.assert_allclose(run(tuned, inputs), softmax(np.matmul(*inputs), axis=1), rtol=2e-5, atol=1e-7)


def test_call_softmax_leaves_other_text_as_it_is():
    text = "  hal.executable private @f {\n    %1 = arith.maxnumf %a, %b : f32\n    math.exp %1 : f32\n  }\n"
    assert call_softmax(text) == text


GELU = """
func.func @gelu(%x: tensor<{m}x{k}xf32>, %w: tensor<{k}x{n}xf32>) -> tensor<{m}x{n}xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{m}x{n}xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %y = linalg.matmul ins(%x, %w : tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>)
    outs(%start : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %z = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
    iterator_types = ["parallel", "parallel"]}}
    ins(%y : tensor<{m}x{n}xf32>) outs(%empty : tensor<{m}x{n}xf32>) {{
  ^bb0(%in: f32, %out: f32):
    %e = math.erf %in : f32
    linalg.yield %e : f32
  }} -> tensor<{m}x{n}xf32>
  return %z : tensor<{m}x{n}xf32>
}}
"""


def erf_of(values, *, tuning="auto", deterministic=False):
    """The error function of values, computed behind a product with the identity."""
    n = len(values) // 16
    artifact = sylvite.compile(GELU.format(m=16, n=n, k=n), tuning=tuning)
    engine = engines.create("wasmtime", deterministic=deterministic)
    x = np.ascontiguousarray(values[: 16 * n].reshape(16, n))
    with create_device("local-sync", engine=engine) as device:
        return run(artifact, [x, np.eye(n, dtype=np.float32)], device).ravel()


def test_compile_tuned_erf_is_near_the_error_function():
    import math

    values = np.concatenate([np.linspace(-5, 5, 800), np.linspace(-1e-3, 1e-3, 150), [0, -0.0, 1e30, -1e30]])
    values = np.concatenate([values, np.zeros(960 - len(values))]).astype(np.float32)
    exact = np.array([math.erf(float(v)) for v in values])
    for deterministic in (False, True):
        got = erf_of(values, deterministic=deterministic)
        np.testing.assert_allclose(got, exact, rtol=5e-7, atol=1e-9)
        assert abs(got).max() == 1
    # The compiler's own form is no nearer.
    assert abs(erf_of(values, tuning="off") - exact).max() > 1e-7


def test_write_out_erf_replaces_every_erf_of_f32_alone():
    text = "  %1 = math.erf %0 : f32\n  %3 = math.erf %2 : f64\n  %5 = math.erf %4#1 : f32\n"
    written = write_out_erf(text)
    assert written.count("math.erf") == 1
    assert "math.erf %2 : f64" in written
    assert "  %1 = arith.select " in written
    assert "  %5 = arith.select " in written
    assert written.count("arith.divf") == 2


def test_compile_contraction_is_recorded_and_changes_roundings_alone():
    text = GELU.format(m=16, n=24, k=24)
    fused, plain = sylvite.compile(text), sylvite.compile(text, contraction=False)
    section = b"sylvite.contraction"
    assert section in fused.path.read_bytes()
    assert section not in plain.path.read_bytes()
    rng = np.random.default_rng(9)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((16, 24), (24, 24))]
    results = {}
    for deterministic in (False, True):
        for name, artifact in (("fused", fused), ("plain", plain)):
            engine = engines.create("wasmtime", deterministic=deterministic)
            with create_device("local-sync", engine=engine) as device:
                results[name, deterministic] = run(artifact, inputs, device)
    np.testing.assert_array_equal(results["fused", True], results["plain", True])
    assert (results["fused", False] != results["plain", False]).any()
    np.testing.assert_allclose(results["fused", False], results["plain", False], rtol=1e-6, atol=1e-8)


ENCODER = """
func.func @encoder(%x: tensor<2x24x16xf32>, %k: tensor<2x16x24xf32>, %q: tensor<24x32xi8>,
    %p: tensor<32x24xi8>) -> (tensor<2x24x24xf32>, tensor<24x24xi32>) {
  %zero = arith.constant 0.0 : f32
  %none = arith.constant 0 : i32
  %e = tensor.empty() : tensor<2x24x24xf32>
  %s = linalg.fill ins(%zero : f32) outs(%e : tensor<2x24x24xf32>) -> tensor<2x24x24xf32>
  %y = linalg.batch_matmul ins(%x, %k : tensor<2x24x16xf32>, tensor<2x16x24xf32>)
    outs(%s : tensor<2x24x24xf32>) -> tensor<2x24x24xf32>
  %a = linalg.softmax dimension(2) ins(%y : tensor<2x24x24xf32>) outs(%e : tensor<2x24x24xf32>)
    -> tensor<2x24x24xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>,
    affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%a : tensor<2x24x24xf32>) outs(%e : tensor<2x24x24xf32>) {
  ^bb0(%in: f32, %out: f32):
    %f = math.erf %in : f32
    %g = math.exp %f : f32
    %h = arith.mulf %f, %g : f32
    %i = arith.addf %h, %in : f32
    linalg.yield %i : f32
  } -> tensor<2x24x24xf32>
  %ei = tensor.empty() : tensor<24x24xi32>
  %si = linalg.fill ins(%none : i32) outs(%ei : tensor<24x24xi32>) -> tensor<24x24xi32>
  %w = linalg.matmul ins(%q, %p : tensor<24x32xi8>, tensor<32x24xi8>) outs(%si : tensor<24x24xi32>)
    -> tensor<24x24xi32>
  return %z, %w : tensor<2x24x24xf32>, tensor<24x24xi32>
}
"""


def test_deterministic_engine_gives_the_bits_of_one_without_relaxed_simd(monkeypatch):
    """One archive on three engines: with relaxed SIMD, with it but deterministic, and without it."""
    artifact = sylvite.compile(ENCODER)
    assert artifact.notes == ()
    rng = np.random.default_rng(13)
    inputs = [
        *(rng.standard_normal(shape).astype(np.float32) for shape in ((2, 24, 16), (2, 16, 24))),
        *(rng.integers(-128, 128, shape).astype(np.int8) for shape in ((24, 32), (32, 24))),
    ]

    def results(*, deterministic=False, lacking=False):
        engine = engines.create("wasmtime", deterministic=deterministic)
        if lacking:
            less = dataclasses.replace(engine.capabilities, relaxed_simd=False)
            monkeypatch.setattr(type(engine), "capabilities", property(lambda _: less))
        with (
            create_device("local-sync", engine=engine) as device,
            sylvite.load(artifact, device=device) as model,
        ):
            return [np.array(result) for result in model(*inputs)]

    relaxed, deterministic = results(), results(deterministic=True)
    without = results(lacking=True)
    for first, second in zip(deterministic, without, strict=True):
        np.testing.assert_array_equal(first, second)
    assert (relaxed[0] != deterministic[0]).any()
    np.testing.assert_allclose(relaxed[0], deterministic[0], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(relaxed[1], deterministic[1])
    np.testing.assert_array_equal(relaxed[1], inputs[2].astype(np.int32) @ inputs[3].astype(np.int32))
