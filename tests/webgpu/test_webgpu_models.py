"""Models on WebGPU devices against the CPU device."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.models import MODELS, ModelUnavailableError

import sylvite
from sylvite.errors import InvalidArgumentError

onnx = pytest.importorskip("onnx")
pytest.importorskip("iree.compiler")
pytestmark = pytest.mark.compiler

make, types = onnx.helper, onnx.TensorProto


# With compiling, these take half a minute and more on a software GPU.
SLOW = ("magika", "minilm-f32", "minilm-int8", "rapidocr-cls", "rapidocr-det")


def model(nodes, inputs, outputs, weights=()):
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in weights]
    values = [[make.make_tensor_value_info(*value) for value in group] for group in (inputs, outputs)]
    graph = make.make_graph([make.make_node(*node[:3], **node[3]) for node in nodes], "g", *values, tensors)
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9)


def results(source, device, *inputs, **options):
    with sylvite.load(source, device=device, **options) as loaded:
        found = loaded(*inputs)
        return [np.array(value) for value in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize(
    "name", ["mnist", "mtcnn-pnet", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_real_model_matches_the_cpu(provider, name):
    real = MODELS[name]
    try:
        path, parameters = real.onnx_path(), real.parameters()
    except ModelUnavailableError as error:
        pytest.skip(str(error))
    inputs = real.inputs()
    options = {"dims": real.dims, "parameters": parameters or None}
    if parameters:
        options["external_parameters"] = "in-place"
    expected = results(path, "local-sync", *inputs, **options)
    got = results(path, f"webgpu://{provider}", *inputs, **options)
    for value, reference in zip(got, expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=real.rtol, atol=real.atol)


def test_wide_integers_are_kept_or_refused(provider):
    wide = model(
        [("ArgMax", ["x"], ["a"], {"axis": 1, "keepdims": 0}), ("Add", ["a", "k"], ["y"], {})],
        [("x", types.FLOAT, [3, 5]), ("k", types.INT64, [3])],
        [("y", types.INT64, [3])],
    )
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    with sylvite.load(wide, device=f"webgpu://{provider}") as loaded:
        k = np.array([1, -5, 2**31 - 10], np.int64)
        np.testing.assert_array_equal(loaded(x, k), x.argmax(1) + k)
        with pytest.raises(InvalidArgumentError, match="4294967297 does not fit in 32 bits"):
            loaded(x, np.array([1, 2, 2**32 + 1], np.int64))


def test_wide_integers_of_several_mlir_functions_match_numpy(provider):
    source = """
    func.func @twice(%k: tensor<?xi64>) -> tensor<?xi64> {
      %0 = arith.addi %k, %k : tensor<?xi64>
      return %0 : tensor<?xi64>
    }
    func.func @both(%x: tensor<?xi64>, %y: tensor<3xi64>) -> (tensor<3xi64>, tensor<?xi64>, tensor<1xi64>) {
      %zero = arith.constant 0 : index
      %0 = arith.muli %y, %y : tensor<3xi64>
      %1 = arith.subi %x, %x : tensor<?xi64>
      %2 = arith.subi %1, %x : tensor<?xi64>
      %count = tensor.dim %2, %zero : tensor<?xi64>
      %3 = arith.index_cast %count : index to i64
      %4 = tensor.from_elements %3 : tensor<1xi64>
      return %0, %2, %4 : tensor<3xi64>, tensor<?xi64>, tensor<1xi64>
    }
    """
    x, y = np.arange(-2, 5), np.array([3, -4, 5])
    with sylvite.load(source, device=f"webgpu://{provider}") as loaded:
        np.testing.assert_array_equal(loaded.twice(x), x + x)
        for value, expected in zip(loaded.both(x, y), (y * y, -x, [7]), strict=True):
            assert value.dtype == np.int64
            np.testing.assert_array_equal(value, expected)


def test_depthwise_convolution_does_not_race(provider):
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(24, 1, 3, 3)).astype(np.float32)
    settings = {"group": 24, "pads": [1, 1, 1, 1], "strides": [2, 1], "kernel_shape": [3, 3]}
    convolution = model(
        [("Conv", ["x", "w"], ["y"], settings)],
        [("x", types.FLOAT, [1, 24, 12, 96])],
        [("y", types.FLOAT, [1, 24, 6, 96])],
        [("w", weights)],
    )
    x = generator.normal(size=(1, 24, 12, 96)).astype(np.float32)
    expected = results(convolution, "local-sync", x)[0]
    np.testing.assert_allclose(
        results(convolution, f"webgpu://{provider}", x)[0], expected, rtol=1e-4, atol=1e-5
    )


def test_bytes_in_vectors_of_every_length_are_right(provider):
    for count in (128, 1023, 1024):
        added = model(
            [("Add", ["x", "x"], ["y"], {})], [("x", types.INT8, [count])], [("y", types.INT8, [count])]
        )
        x = np.random.default_rng(count).integers(-60, 60, count).astype(np.int8)
        np.testing.assert_array_equal(results(added, f"webgpu://{provider}", x)[0], x + x)


def test_softmax_with_rows_of_infinities(provider):
    softmax = model(
        [("Softmax", ["x"], ["y"], {"axis": 1})], [("x", types.FLOAT, [4, 40])], [("y", types.FLOAT, [4, 40])]
    )
    x = np.random.default_rng(3).normal(size=(4, 40)).astype(np.float32)
    x[1, 3:] = -np.inf
    expected = results(softmax, "local-sync", x)[0]
    np.testing.assert_allclose(results(softmax, f"webgpu://{provider}", x)[0], expected, rtol=1e-4, atol=1e-6)


def test_reductions_of_the_first_axis_with_what_follows_match_the_cpu(provider):
    several = model(
        [
            ("Softmax", ["x"], ["s"], {"axis": 0}),
            ("Transpose", ["s"], ["t"], {"perm": [1, 0]}),
            ("ArgMin", ["x"], ["a"], {"axis": 0, "keepdims": 0}),
        ],
        [("x", types.FLOAT, [33, 51])],
        [("t", types.FLOAT, [51, 33]), ("a", types.INT64, [51])],
    )
    x = np.random.default_rng(0).normal(size=(33, 51)).astype(np.float32)
    expected = results(several, "local-sync", x)
    got = results(several, f"webgpu://{provider}", x)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
    np.testing.assert_array_equal(got[1], expected[1])


def test_narrow_scalars_match_the_cpu(provider):
    quantized = model(
        [("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}), ("Add", ["z", "z"], ["t"], {})],
        [("x", types.FLOAT, [13])],
        [("q", types.UINT8, [13]), ("s", types.FLOAT, []), ("t", types.UINT8, [])],
    )
    x = np.random.default_rng(0).normal(size=13).astype(np.float32)
    expected = results(quantized, "local-sync", x)
    for got, reference in zip(results(quantized, f"webgpu://{provider}", x), expected, strict=True):
        assert got.dtype == reference.dtype
        np.testing.assert_allclose(got, reference, rtol=1e-6)
