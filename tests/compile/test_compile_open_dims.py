"""Which ONNX models leave dims open, asked through the cache."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sylvite.compile import open_dims
from sylvite.compile.open_dims import open_function
from sylvite.compile.sources import resolve
from sylvite.errors import InvalidArgumentError

onnx = pytest.importorskip("onnx")


@pytest.fixture
def model(tmp_path):
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 4])],
    )
    path = tmp_path / "relu.onnx"
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return resolve(path)


def test_open_function_is_read_once_for_equal_questions(model, tmp_path, monkeypatch):
    root = tmp_path / "cache"
    asked = [{}, {"N": 2}]
    first = [open_function(model, dims, root) for dims in asked]
    assert first[0].inputs[0].shape == ("N", 4)
    assert first[1] is None
    assert first == [open_function(model, dims, None) for dims in asked]
    monkeypatch.setattr(open_dims, "_read", None)
    assert [open_function(model, dims, root) for dims in asked] == first


def test_open_function_of_a_wrong_dim_is_refused_each_time(model, tmp_path):
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="M"):
            open_function(model, {"M": 2}, tmp_path / "cache")


def test_open_function_of_other_content_is_another_question(model, tmp_path, monkeypatch):
    open_function(model, {}, tmp_path / "cache")
    monkeypatch.setattr(open_dims, "_read", lambda source, dims: None)
    model.path.write_bytes(model.path.read_bytes() + b"\x42\x04\x0a\x00\x10\x0b")
    assert open_function(resolve(model.path), {}, tmp_path / "cache") is None


@pytest.mark.compiler
def test_load_of_a_cached_model_imports_no_onnx(model, tmp_path, monkeypatch):
    pytest.importorskip("iree.compiler")
    monkeypatch.setenv("SYLVITE_CACHE_DIR", str(tmp_path / "cache"))
    code = (
        "import sys, numpy, sylvite\n"
        "with sylvite.load(sys.argv[1]) as model:\n"
        "    assert (model(numpy.full((3, 4), -1, 'f4')) == 0).all()\n"
        "print(sorted({'onnx', 'iree.compiler'} & sys.modules.keys()))\n"
    )
    printed = [
        subprocess.run([sys.executable, "-c", code, model.path], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert "onnx" in printed[0].stdout
    assert printed[1].stdout == "[]\n"


def test_load_of_a_compiled_module_imports_no_compiler(tmp_path):
    code = (
        "import sys, sylvite.model.load\n"
        "print(sorted(n for n in sys.modules if n.startswith('sylvite.compile')))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = ["sylvite.compile", *(f"sylvite.compile.{name}" for name in ("artifact", "cache", "progress"))]
    assert run.stdout == f"{expected}\n"
