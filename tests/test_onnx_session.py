"""The onnxruntime interface, held against onnxruntime itself."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import sylvite.onnx as ours
from sylvite.errors import ClosedError, InvalidArgumentError, NotFoundError

pytestmark = pytest.mark.compiler
onnx = pytest.importorskip("onnx")
theirs = pytest.importorskip("onnxruntime")
pytest.importorskip("iree.compiler")
helper, types = onnx.helper, onnx.TensorProto


@pytest.fixture(scope="module")
def model_bytes():
    """Two inputs of different dtypes, one open dim with and one without a name, three outputs."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Softmax", ["product"], ["probability"], axis=1),
            helper.make_node("ArgMax", ["product"], ["label"], axis=1, keepdims=0),
            helper.make_node("Greater", ["x", "zero"], ["positive"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", types.FLOAT, ["batch", 4])],
        [
            helper.make_tensor_value_info("probability", types.FLOAT, ["batch", 3]),
            helper.make_tensor_value_info("label", types.INT64, ["batch"]),
            helper.make_tensor_value_info("positive", types.BOOL, ["batch", 4]),
        ],
        [
            onnx.numpy_helper.from_array(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "w"),
            onnx.numpy_helper.from_array(np.float32(0), "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


@pytest.fixture(scope="module")
def sessions(model_bytes):
    with ours.InferenceSession(model_bytes, providers=["CPUExecutionProvider"]) as session:
        yield session, theirs.InferenceSession(model_bytes, providers=["CPUExecutionProvider"])


@pytest.fixture
def feed():
    return {"x": np.array([[1, -2, 3, -4], [0.5, 0.25, 0, 1]], np.float32)}


def test_session_describes_inputs_and_outputs_as_onnxruntime_does(sessions):
    session, reference = sessions
    for mine, other in (
        (session.get_inputs(), reference.get_inputs()),
        (session.get_outputs(), reference.get_outputs()),
    ):
        assert [(a.name, a.type, a.shape) for a in mine] == [(a.name, a.type, a.shape) for a in other]


def test_session_open_dims_without_name_are_none_as_in_onnxruntime():
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", types.FLOAT16, [None, 2])],
        [helper.make_tensor_value_info("y", types.FLOAT16, [None, 2])],
    )
    data = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    reference = theirs.InferenceSession(data, providers=["CPUExecutionProvider"]).get_inputs()[0]
    with ours.InferenceSession(data) as session:
        [mine] = session.get_inputs()
        assert (mine.shape, mine.type) == (reference.shape, reference.type)


@pytest.mark.parametrize("names", [None, [], ["label"], ["positive", "probability"]])
def test_session_run_gives_what_onnxruntime_gives(sessions, feed, names):
    session, reference = sessions
    mine, other = session.run(names, feed), reference.run(names, feed)
    assert [(a.dtype, a.shape) for a in mine] == [(a.dtype, a.shape) for a in other]
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_session_results_are_arrays_of_their_own(sessions, feed):
    session, _ = sessions
    [result] = session.run(["probability"], feed)
    assert result.flags.writeable
    assert result.flags.owndata


@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        (["nothing"], {}, "the model has no output 'nothing'; it has: probability, label, positive"),
        (None, {"x": None}, "cannot take a NoneType"),
        (None, {"y": np.zeros(1)}, "no input 'y'"),
        (None, {"x": np.zeros((2, 4))}, r"expected float32\[batch, 4\], got float64\[2, 4\]"),
        (None, {"x": np.zeros((2, 5), np.float32)}, r"got float32\[2, 5\]"),
    ],
)
def test_session_run_wrong_call_is_a_value_error(sessions, feed, names, change, message):
    session, _ = sessions
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        session.run(names, {**feed, **change})
    assert isinstance(caught.value, ValueError)
    with pytest.raises(InvalidArgumentError, match="inputs missing: x"):
        session.run(None, {})


def test_session_run_async_calls_back(sessions, feed):
    session, _ = sessions
    done, answers = threading.Event(), []

    def callback(outputs, user_data, error):
        answers.append((outputs, user_data, error))
        done.set()

    session.run_async(["label"], feed, callback, "mine")
    assert done.wait(60)
    [(outputs, user_data, error)] = answers
    assert (user_data, error) == ("mine", "")
    np.testing.assert_array_equal(outputs[0], session.run(["label"], feed)[0])
    done.clear()
    answers.clear()
    session.run_async(["label"], {}, callback)
    assert done.wait(60)
    assert "inputs missing" in answers[0][2]


def test_session_options_fix_free_dims(model_bytes, feed):
    options = ours.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ours.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_free_dimension_override_by_name("batch", 2)
    options.add_session_config_entry("key", "value")
    with ours.InferenceSession(model_bytes, options) as session:
        assert session.get_inputs()[0].shape == [2, 4]
        assert len(session.model.artifacts) == 1
        assert session.get_session_options().get_session_config_entry("key") == "value"
        assert session.run(["label"], feed)[0].shape == (2,)
    with pytest.raises(NotFoundError, match="no session config entry 'none'"):
        options.get_session_config_entry("none")
    with pytest.raises(ClosedError):
        session.run(None, feed)


def test_session_providers_unknown_ones_are_warned_about(model_bytes):
    with pytest.warns(UserWarning, match="no execution provider CUDAExecutionProvider here"):
        session = ours.InferenceSession(
            model_bytes, providers=["CUDAExecutionProvider", ("CPUExecutionProvider", {})]
        )
    assert session.get_providers() == ours.get_available_providers() == ["SylviteExecutionProvider"]
    assert session.get_provider_options() == {"SylviteExecutionProvider": {"device": "local-sync"}}
    assert session.get_modelmeta().graph_name == "g"
    assert session.get_overridable_initializers() == []
    session.close()


def test_session_run_options_are_accepted(sessions, feed):
    session, _ = sessions
    options = ours.RunOptions()
    options.timeout_s = 60
    assert len(session.run(None, feed, options)) == 3


def test_module_has_the_names_programs_import():
    for name in ("InferenceSession", "SessionOptions", "RunOptions", "GraphOptimizationLevel", "get_device"):
        assert hasattr(theirs, name)
        assert hasattr(ours, name)
    assert ours.get_device() == "CPU"
