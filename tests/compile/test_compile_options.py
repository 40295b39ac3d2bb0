from __future__ import annotations

import pytest

from sylvite.compile.options import make_options, targets
from sylvite.errors import InvalidArgumentError

DEFAULTS = {
    "target": "wasm32",
    "features": None,
    "dims": None,
    "optimization": None,
    "flags": (),
}


def test_options_default_target_uses_simd_baseline_only():
    flags = make_options(**DEFAULTS).back_end_flags()
    assert "--iree-llvmcpu-target-triple=wasm32-unknown-emscripten" in flags
    assert "--iree-llvmcpu-target-cpu-features=+simd128" in flags
    assert not any("demote-f64" in flag for flag in flags)


def test_options_relaxed_simd_brings_its_baseline():
    flags = make_options(**{**DEFAULTS, "features": ("relaxed-simd",)}).back_end_flags()
    assert "--iree-llvmcpu-target-cpu-features=+simd128,+relaxed-simd" in flags


def test_options_native_target_names_the_cpu():
    flags = make_options(**{**DEFAULTS, "target": "native"}).back_end_flags()
    assert "--iree-llvmcpu-target-cpu=host" in flags
    flags = make_options(
        **{**DEFAULTS, "target": "native", "features": ("generic", "sse4.2")}
    ).back_end_flags()
    assert "--iree-llvmcpu-target-cpu=generic" in flags
    assert "--iree-llvmcpu-target-cpu-features=+sse4.2" in flags


def test_options_f64_models_keep_f64():
    flags = make_options(**DEFAULTS).back_end_flags(keep_f64=True)
    assert "--iree-input-demote-f64-to-f32=false" in flags


def test_options_quantized_models_are_not_evaluated_by_the_compiler():
    options = make_options(**DEFAULTS)
    assert "--iree-opt-const-eval=false" in options.back_end_flags(quantized=True)
    assert "--iree-opt-const-eval=false" not in options.back_end_flags()


def test_options_further_flags_come_last():
    options = make_options(**{**DEFAULTS, "flags": ["--a", "--b"], "optimization": "O3"})
    flags = options.back_end_flags(img2col=True)
    assert flags[-2:] == ("--a", "--b")
    assert "--iree-opt-level=O3" in flags
    assert any("im2col" in flag for flag in flags)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "arm"}, "unknown target 'arm'; known: native, wasm32"),
        ({"features": ("simd256",)}, "target wasm32 has no feature simd256"),
        ({"optimization": "O9"}, "unknown optimization level 'O9'"),
        ({"dims": {"N": -1}}, "dim 'N' needs a non-negative integer, got -1"),
        ({"dims": {"N": True}}, "dim 'N' needs a non-negative integer"),
        ({"dims": {"N": 1.5}}, "dim 'N' needs a non-negative integer"),
    ],
)
def test_options_wrong_value_is_refused(change, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make_options(**{**DEFAULTS, **change})


def test_targets_have_names_and_summaries():
    assert {target.name for target in targets()} == {"wasm32", "native", "webgpu", "wasm32,webgpu"}
    assert all(target.summary for target in targets())


def test_options_contraction_is_a_switch():
    assert make_options(**DEFAULTS).contraction
    with pytest.raises(InvalidArgumentError, match="contraction is True or False, not 'fast'"):
        make_options(**DEFAULTS, contraction="fast")
