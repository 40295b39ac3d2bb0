"""Compiling for WebGPU: repairs of the compiler's text, and modules for two kinds of devices."""

from __future__ import annotations

import numpy as np
import pytest

import sylvite
from sylvite.compile import webgpu
from sylvite.errors import CompileError, InvalidArgumentError

IMPORT = (
    "    %3 = hal.tensor.import wait(%arg2) => %arg0 : !hal.buffer_view -> "
    "tensor<?x4xi64> as tensor<?x4xi32>{%dim}"
)


def test_constants_that_fit_are_left_alone():
    text = "%c = arith.constant -5 : i64\n%d = arith.constant dense<[1, -2]> : tensor<2xi64>\n"
    assert webgpu.check_constants(text) == text


def test_constants_that_mean_the_end_are_saturated():
    text = "%c = arith.constant 9223372036854775807 : i64\n"
    assert webgpu.check_constants(text) == "%c = arith.constant 2147483647 : i64\n"


@pytest.mark.parametrize(
    "line",
    [
        "%c = arith.constant 2147483648 : i64",
        "%c = arith.constant dense<[1, 4294967297]> : tensor<2xi64>",
        '%c = arith.constant dense<"0x0000000001000000"> : tensor<1xi64>',
        '%c = arith.constant dense_resource<big> : tensor<1xi64>\n    big: "0x080000000000000001000000"',
    ],
)
def test_constants_that_do_not_fit_are_refused(line):
    with pytest.raises(CompileError, match="does not fit in 32 bits"):
        webgpu.check_constants(line)


def test_imports_take_the_low_words_of_pairs():
    lines = webgpu.narrow_signature(IMPORT).splitlines()
    assert lines[0].endswith("tensor<?x4xi64> as tensor<?x4x2xi32>{%dim}")
    assert lines[1].endswith("[0, 0, 0] [%dim, 4, 1] [1, 1, 1] : tensor<?x4x2xi32> to tensor<?x4xi32>")


def kernel(pipeline, element):
    return (
        f"      func.func @k() attributes {{pipeline = #iree_gpu.spirv_pipeline<{pipeline}>}} {{\n"
        f"        %0 = subspan : !iree_tensor_ext.dispatch.tensor<readonly:tensor<1024x{element}>>\n"
    )


@pytest.mark.parametrize("element", ["f16", "bf16", "f64", "f8E4M3FN"])
@pytest.mark.parametrize("pipeline", ["BaseVectorize", "BaseDistribute"])
def test_kernels_on_floats_of_other_widths_are_refused(pipeline, element):
    with pytest.raises(CompileError, match=f"kernel k handles elements of type {element}"):
        webgpu.repair_kernels(kernel(pipeline, element))


LOOP = (
    "  %9 = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> ({axes})>, affine_map<(d0, d1) -> "
    '({result})>], iterator_types = ["parallel", "parallel"]}} ins(%8 : tensor<9xf32>) '
    "outs(%3 : tensor<9x9xf32>) {{\n"
)


@pytest.mark.parametrize(
    ("maker", "axes", "result", "tiles", "is_alone"),
    [
        ("linalg.fill ins(%c : f32) outs(%4 : tensor<9xf32>)", "d0", "d0, d1", "[[32], [1]]", False),
        ("linalg.fill ins(%c : f32) outs(%4 : tensor<9xf32>)", "d1", "d0, d1", "[[32], [1]]", True),
        ("linalg.fill ins(%c : f32) outs(%4 : tensor<9xf32>)", "d0", "d1, d0", "[[32], [1]]", False),
        ("linalg.fill ins(%c : f32) outs(%4 : tensor<9xf32>)", "d0", "d0, d1", "[[0, 32], [0, 1]]", True),
        ("linalg.fill ins(%c : f32) outs(%4 : tensor<9x9xf32>)", "d0, d1", "d0, d1", "[[2, 16]]", False),
        ("linalg.transpose ins(%8 : tensor<9xf32>) outs(%4 : tensor<9xf32>)", "d0", "d0", "[[32]]", True),
        ("tensor.empty()", "d1", "d0, d1", "[[0, 32], [0, 1]]", False),
    ],
)
def test_kernels_whose_loops_share_values_by_other_axes_run_alone(maker, axes, result, tiles, is_alone):
    head = "func.func @k() {pipeline = spirv_pipeline<BaseDistribute> workgroup_size = [32, 1, 1]} {\n"
    config = f"  // tile_sizes = {tiles}\n"
    text = head + config + f"  %8 = {maker} -> tensor\n" + LOOP.format(axes=axes, result=result)
    assert ("workgroup_size = [1, 1, 1]" in webgpu.repair_kernels(text)) is is_alone


@pytest.mark.parametrize("element", ["i8", "i1"])
def test_kernels_on_narrow_elements_are_left_scalar(element):
    assert "BaseDistribute" in webgpu.repair_kernels(kernel("BaseVectorize", element))


@pytest.mark.parametrize(
    ("offset", "size", "extent", "is_scalar"),
    [(1, 96, 98, True), (4, 96, 98, True), (4, 92, 96, False), (0, 98, 98, False), ("%o", 4, 96, True)],
)
def test_kernels_on_parts_of_rows_are_left_scalar_unless_they_begin_at_vectors(
    offset, size, extent, is_scalar
):
    text = kernel("BaseVectorize", "f32") + (
        f"  iree_tensor_ext.dispatch.tensor.store %6, %1, offsets = [0, {offset}], sizes = [8, {size}], "
        f"strides = [1, 1] : tensor<8x{size}xf32> -> "
        f"!iree_tensor_ext.dispatch.tensor<readwrite:tensor<8x{extent}xf32>>\n"
    )
    assert ("BaseDistribute" in webgpu.repair_kernels(text)) is is_scalar


def test_kernels_on_words_and_by_one_invocation_are_left_alone_and_other_forms_refused():
    for text in (kernel("BaseVectorize", "f32"), kernel("BaseLowering", "i8")):
        assert webgpu.repair_kernels(text) == text
    with pytest.raises(CompileError, match="kernel k "):
        webgpu.repair_kernels(kernel("MatmulPromoteVectorize", "i8"))


def test_parameters_of_wide_integers_are_put_into_the_module():
    text = '@p = #flow.parameter.named<"model"::"ids"> : tensor<1xi64>\n'
    values = {("model", "ids"): b"\x07" + bytes(7)}
    inlined = webgpu.inline_wide_parameters(text, lambda scope, key: values[scope, key])
    assert inlined == '@p = dense<"0x0700000000000000"> : tensor<1xi64>\n'


def wide_model():
    onnx = pytest.importorskip("onnx")
    make, types = onnx.helper, onnx.TensorProto
    graph = make.make_graph(
        [
            make.make_node("ArgMax", ["x"], ["a"], axis=1, keepdims=0),
            make.make_node("Add", ["a", "k"], ["y"]),
            make.make_node("Gather", ["t", "i"], ["z"], axis=0),
            make.make_node("Add", ["i", "i"], ["w"]),
        ],
        "wide",
        [
            make.make_tensor_value_info("x", types.FLOAT, [3, 5]),
            make.make_tensor_value_info("k", types.INT64, [3]),
            make.make_tensor_value_info("t", types.FLOAT, [7, 2]),
            make.make_tensor_value_info("i", types.INT64, ["n"]),
        ],
        [
            make.make_tensor_value_info("y", types.INT64, [3]),
            make.make_tensor_value_info("z", types.FLOAT, ["n", 2]),
            make.make_tensor_value_info("w", types.INT64, ["n"]),
        ],
    )
    opsets = [make.make_opsetid("", 17)]
    return make.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.compiler
@pytest.mark.parametrize("specialize", [True, False])
def test_module_for_two_kinds_of_devices_keeps_wide_signatures(specialize):
    pytest.importorskip("iree.compiler")
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    k = np.array([1, -5, 2**31 - 10], np.int64)
    t, i = np.arange(14, dtype=np.float32).reshape(7, 2), np.array([3, -1, 0, 6], np.int64)
    with sylvite.load(wide_model(), target="wasm32,webgpu", specialize=specialize) as model:
        y, z, w = model(x, k, t, i)
        np.testing.assert_array_equal(y, x.argmax(1) + k)
        np.testing.assert_array_equal(z, t[i])
        np.testing.assert_array_equal(w, 2 * i)
        assert (y.dtype, w.dtype) == (np.int64, np.int64)
        for value in (2**31, -(2**31) - 1):
            with pytest.raises(InvalidArgumentError, match=f"{value} does not fit in 32 bits"):
                model(x, k + value - k[0], t, i)
