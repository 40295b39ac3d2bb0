from __future__ import annotations

import numpy as np
import pytest

from sylvite.compile import onnx_graph
from sylvite.compile.artifact import ArgumentSpec, FunctionSpec
from sylvite.errors import FormatError, InvalidArgumentError, UnsupportedFeatureError

onnx = pytest.importorskip("onnx")
helper, types = onnx.helper, onnx.TensorProto


def _model(shape, *, output=None, dtype=types.FLOAT):
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, shape if output is None else output)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_symbolic_dims_have_symbols_or_places():
    names = [dim.name for dim in onnx_graph.symbolic_dims(_model(["N", None, "?", 3, -1]))]
    assert names == ["N", "x.1", "x.2", "x.4"]


def test_symbolic_dims_ignore_inputs_with_initializers():
    model = _model(["N"])
    model.graph.input.append(helper.make_tensor_value_info("w", types.FLOAT, ["K"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(3, np.float32), "w"))
    assert [dim.name for dim in onnx_graph.symbolic_dims(model)] == ["N"]


def test_fix_dims_sets_symbol_everywhere():
    model = _model(["N", "M"])
    onnx_graph.fix_dims(model, {"N": 5})
    spec = onnx_graph.function_spec(model, "g")
    assert spec.inputs[0].shape == (5, "M")
    assert spec.outputs[0].shape == (5, "M")


def test_fix_dims_takes_places_too():
    model = _model([None, "N"])
    onnx_graph.fix_dims(model, {"x.0": 2, "x.1": 7})
    assert onnx_graph.function_spec(model, "g").inputs[0].shape == (2, 7)
    assert not onnx_graph.symbolic_dims(model)


def test_fix_dims_forgets_stale_output_symbols():
    model = _model(["N"], output=["unk__7"])
    onnx_graph.fix_dims(model, {"N": 4})
    inferred = onnx.shape_inference.infer_shapes(model)
    assert inferred.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 4


def test_fix_dims_unknown_name_lists_known_ones():
    with pytest.raises(InvalidArgumentError, match=r"no symbolic dim named Q; the model has: N, x\.1"):
        onnx_graph.fix_dims(_model(["N", None]), {"Q": 1})
    with pytest.raises(InvalidArgumentError, match="the model has: none"):
        onnx_graph.fix_dims(_model([1]), {"Q": 1})


@pytest.mark.parametrize(
    ("elem_type", "dtype"),
    [
        (types.FLOAT, "float32"),
        (types.DOUBLE, "float64"),
        (types.INT64, "int64"),
        (types.UINT8, "uint8"),
        (types.BOOL, "bool"),
        (types.BFLOAT16, "bfloat16"),
        (types.FLOAT8E5M2, "float8_e5m2"),
        (types.INT4, "int4"),
    ],
)
def test_function_spec_names_dtypes(elem_type, dtype):
    assert onnx_graph.function_spec(_model([1], dtype=elem_type), "g").inputs[0].dtype == dtype


def test_function_spec_refuses_what_is_no_tensor_of_numbers():
    with pytest.raises(UnsupportedFeatureError, match="'x' is a tensor of strings"):
        onnx_graph.function_spec(_model([1], dtype=types.STRING), "g")
    model = _model([1])
    model.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", types.FLOAT, None))
    with pytest.raises(UnsupportedFeatureError, match="'x' is a sequence"):
        onnx_graph.function_spec(model, "g")


def test_uses_double_looks_at_values_constants_and_casts():
    assert not onnx_graph.uses_double(_model([1]))
    assert onnx_graph.uses_double(_model([1], dtype=types.DOUBLE))
    model = _model([1])
    model.graph.node.append(helper.make_node("Cast", ["x"], ["z"], to=types.DOUBLE))
    assert onnx_graph.uses_double(model)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\x00\x01\x02", "does not parse"), (b"", "has no graph"), (b"hello, this is text", "does not parse")],
)
def test_load_model_refuses_what_is_no_model(tmp_path, content, message):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        onnx_graph.load_model(path, tmp_path, where="m.onnx")
    assert caught.value.where == "m.onnx"


def test_load_model_invalid_graph_is_refused(tmp_path):
    model = _model([1])
    model.graph.node[0].op_type = "NoSuchOperator"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match="invalid ONNX model"):
        onnx_graph.load_model(tmp_path / "m.onnx", tmp_path, where="m.onnx")


def test_load_model_missing_external_data_is_refused(tmp_path, softmax_model):
    onnx.save_model(
        softmax_model(), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    (tmp_path / "w.bin").unlink()
    with pytest.raises(FormatError, match="external data"):
        onnx_graph.load_model(tmp_path / "m.onnx", tmp_path, where="m.onnx")


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd"])
def test_tensor_array_path_outside_of_folder_is_refused(tmp_path, location):
    tensor = onnx.numpy_helper.from_array(np.zeros(3, np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = types.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    with pytest.raises(FormatError, match="cannot leave"):
        onnx_graph.tensor_array(tensor, tmp_path)


def test_tensor_array_maps_external_data(tmp_path):
    values = np.arange(6, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(b"\0" * 64 + values.tobytes())
    tensor = types(name="w", data_type=types.FLOAT, dims=[2, 3], data_location=types.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    tensor.external_data.add(key="offset", value="64")
    np.testing.assert_array_equal(onnx_graph.tensor_array(tensor, tmp_path), values.reshape(2, 3))


def test_spec_survives_json():
    spec = FunctionSpec(
        name="f",
        inputs=(ArgumentSpec(name="x", dtype="float32", shape=("N", 3)),),
        outputs=(ArgumentSpec(name="y", dtype="int64", shape=None),),
    )
    assert FunctionSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"name": 1, "inputs": [], "outputs": []}',
        '{"name": "f", "inputs": {}, "outputs": []}',
        '{"name": "f", "inputs": [1], "outputs": []}',
        '{"name": "f", "inputs": [{"name": "x", "dtype": "f", "shape": [1.5]}], "outputs": []}',
        '{"name": "f", "inputs": [{"name": "x", "dtype": "f", "shape": 3}], "outputs": []}',
        '{"name": "f", "inputs": [{"name": "x", "shape": []}], "outputs": []}',
    ],
)
def test_spec_malformed_json_is_refused(text):
    with pytest.raises(FormatError, match=r"sylvite\.signature"):
        FunctionSpec.parse(text)
