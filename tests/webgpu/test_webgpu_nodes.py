"""ONNX node cases on WebGPU: whatever passes on local-sync passes on both providers.

`EXCEPTIONS` lists every case for which that is not so, strictly: a listed case that agrees fails the test, so
that the list shrinks by itself.
"""

from __future__ import annotations

import random

import pytest

pytest.importorskip("onnx")

from tests import software_gpu
from tests.oracle.onnx_node_runner import cases
from tests.webgpu.webgpu_node_runner import run_cases

pytestmark = pytest.mark.compiler

SEED = 20261130
SAMPLE = 60
PARTS = 12

_HALF = "WGSL has no bfloat16, and the compiler no right form of f16 for this target: refused by name"
_UNSIGNED = "iree-compile: bitwidth emulation is not implemented yet on unsigned op"
_DIES = "iree-compile ends or does not end: `sylvite.compile` runs it in a process of its own, and says so"
_SORT = "iree-compile: a kernel that sorts writes outside of what it distributes"
_EMPTY = "iree-compile: a slice of a tensor without elements is refused"

EXCEPTIONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "test_attention_24_qk_matmul_output_mode3_softmax_precision_expanded",
            "test_attention_4d_fp16_expanded",
            "test_attention_4d_gqa_causal_nonpad_decode_fp16_expanded",
            "test_attention_4d_gqa_with_past_and_present_fp16_expanded",
            "test_attention_local_window_ext_cache_float16_mask_expanded",
            "test_causal_conv_with_state_fp16_expanded",
            "test_causal_conv_with_state_silu_fp16_expanded",
            "test_celu_bfloat16",
            "test_celu_bfloat16_expanded",
            "test_celu_float16",
            "test_celu_float16_expanded",
            "test_einsum_batch_matmul_bfloat16",
            "test_einsum_sum_bfloat16",
            "test_einsum_transpose_bfloat16",
            "test_flexattention_fp16_expanded_ver26",
            "test_isinf_float16",
            "test_isnan_float16",
            "test_max_float16",
            "test_min_float16",
            "test_mod_float16_mixed_sign_fmod_0",
            "test_mod_float_edge_cases_fmod_0_float16",
            "test_mod_mixed_sign_float16",
            "test_onehot_with_bfloat16_values",
            "test_qlinearmatmul_2D_int8_float16",
            "test_qlinearmatmul_2D_uint8_float16",
            "test_reversesequence_bfloat16",
        ),
        _HALF,
    ),
    **{
        f"test_{comparison}_uint{width}{form}": _UNSIGNED
        for comparison in ("greater", "greater_equal", "less", "less_equal")
        for width in (8, 16)
        for form in ("", "_expanded")
    },
    **dict.fromkeys(
        (
            "test_castlike_FLOAT16_to_INT4",
            "test_castlike_FLOAT16_to_UINT4",
            "test_castlike_FLOAT_to_INT4",
            "test_castlike_FLOAT_to_UINT4",
            "test_nonmaxsuppression_center_point_box_format",
            "test_nonmaxsuppression_flipped_coordinates",
            "test_nonmaxsuppression_identical_boxes",
            "test_nonmaxsuppression_limit_output_size",
            "test_nonmaxsuppression_suppress_by_IOU",
            "test_nonmaxsuppression_suppress_by_IOU_and_scores",
            "test_reshape_allowzero_reordered",
            "test_rotary_embedding_3d_input_expanded",
            "test_rotary_embedding_expanded",
            "test_rotary_embedding_interleaved_expanded",
            "test_rotary_embedding_no_position_ids_expanded",
            "test_rotary_embedding_no_position_ids_interleaved_expanded",
            "test_rotary_embedding_no_position_ids_rotary_dim_expanded",
            "test_rotary_embedding_with_interleaved_rotary_dim_expanded",
            "test_rotary_embedding_with_rotary_dim_expanded",
        ),
        _DIES,
    ),
    "test_top_k_same_values_2d": _SORT,
    "test_top_k_uint64": _SORT,
    "test_tril_zero": _EMPTY,
    "test_triu_zero": _EMPTY,
}


@pytest.fixture(scope="module")
def providers():
    found = [provider for provider in software_gpu.PROVIDERS if software_gpu.find(provider) is None]
    if not found:
        pytest.skip(software_gpu.find("wgpu"))
    return found


def sample() -> list[str]:
    """The seeded sample of `make test`, drawn from the names alone; what kills the compiler takes minutes."""
    names = sorted(name for name in cases() if EXCEPTIONS.get(name) != _DIES)
    return random.Random(SEED).sample(names, SAMPLE)


def check(names: list[str], providers: list[str]) -> None:
    results = run_cases(names, providers)
    wrong = []
    passed = 0
    for result in results:
        for provider in providers:
            passed += result.providers[provider].passed
            if result.agrees(provider) == (result.name in EXCEPTIONS):
                wrong.append(f"{result.name} on {provider}: {result.providers[provider]}, {result.local}")
    print(f"{passed} of {len(providers) * len(results)} pass, {len(wrong)} are not as expected")
    assert not wrong, "\n".join(wrong)
    assert passed > len(providers) * len(results) / 3, "the runner itself looks broken"


def test_onnx_nodes_sample_passes_on_both_providers(providers) -> None:
    check(sample(), providers)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_onnx_nodes_all_pass_on_both_providers(part: int, providers) -> None:
    check(sorted(set(cases()) - set(sample()))[part::PARTS], providers)
