from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

import sylvite
from sylvite.compile import Phase, cache_root
from sylvite.errors import (
    CompileError,
    DeadlineExceededError,
    FormatError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from sylvite.vm.parameters import open_parameters
from sylvite.vmfb import open_archive

pytestmark = pytest.mark.compiler
pytest.importorskip("iree.compiler")

ADD = """
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %b : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
CRASH = """
module { func.func @main() -> tensor<2xf32> {
  %0 = "foo.bar"() : () -> tensor<2xf32>
  return %0 : tensor<2xf32>
} }
"""


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache in a directory with a space and a quote in its name."""
    directory = tmp_path / "a cache's dir"
    monkeypatch.setenv("SYLVITE_CACHE_DIR", str(directory))
    return directory


def _wasm_executables(path):
    with open_archive(path) as archive:
        found = [bytes(archive.rodata(segment.ordinal)) for segment in archive.module.rodata]
    return [data for data in found if data.startswith(b"\0asm")]


def test_compile_mlir_text_gives_wasm_and_then_a_cache_hit(own_cache):
    events = []
    first = sylvite.compile(ADD, progress=events.append)
    assert not first.cached
    assert own_cache in first.path.parents
    assert len(_wasm_executables(first.path)) == 1
    assert events[0].phase is Phase.COMPILE
    assert events[-1].phase is Phase.DONE
    events.clear()
    second = sylvite.compile(ADD, progress=events.append)
    assert second.cached
    assert second.path == first.path
    assert [(event.phase, event.cached) for event in events] == [(Phase.DONE, True)]
    assert "iree-compile" in first.log
    json.dumps(first.to_json())


def test_compile_leaves_no_machine_path_in_the_module(own_cache):
    artifact = sylvite.compile(ADD)
    assert str(own_cache).encode() not in artifact.path.read_bytes()


def test_compile_onnx_with_undefined_math_in_directory_with_spaces(own_cache, softmax_model):
    # A tuned build would leave the softmax, whose maximum is undefined, to a kernel.
    artifact = sylvite.compile(softmax_model(), dims={"N": 2}, tuning="off")
    [function] = artifact.functions
    assert function.name == "main_graph"
    assert [(a.name, a.dtype, a.shape) for a in function.inputs] == [("x", "float32", (2, 4))]
    assert [(a.name, a.dtype, a.shape) for a in function.outputs] == [("y", "float32", (2, 8))]
    assert any(b"fmaxf" in data for data in _wasm_executables(artifact.path))
    assert artifact.notes == ()


def test_compile_front_end_result_is_shared_by_targets(own_cache, softmax_model):
    sylvite.compile(softmax_model(), dims={"N": 2})
    phases = []
    sylvite.compile(softmax_model(), "native", dims={"N": 2}, progress=lambda e: phases.append(e.phase))
    assert phases == [Phase.COMPILE, Phase.DONE]


def test_compile_in_process_equals_isolated(own_cache, softmax_model):
    isolated = sylvite.compile(softmax_model(), dims={"N": 3})
    here = sylvite.compile(softmax_model(), dims={"N": 3}, isolate=False, cache=False)
    assert here.functions == isolated.functions
    # The compiler leaves addresses of its own memory in source locations, so bytes differ from run to run.
    assert [*map(len, _wasm_executables(here.path))] == [*map(len, _wasm_executables(isolated.path))]
    assert cache_root() not in here.path.parents


def test_compile_external_parameters_keep_names_and_bytes(tmp_path, softmax_model):
    output = tmp_path / "model.vmfb"
    artifact = sylvite.compile(softmax_model(columns=64, batch=1), external_parameters=True, output=output)
    assert artifact.path == output
    assert artifact.parameters == (tmp_path / "model.irpa",)
    with open_parameters(artifact.parameters[0]) as index:
        assert list(index) == ["w"]
        expected = (np.arange(256, dtype=np.float32) % 7 / 10).tobytes()
        assert bytes(index["w"].view()) == expected


def test_compile_old_operator_set_is_raised_with_a_note(softmax_model):
    artifact = sylvite.compile(softmax_model(opset=12, batch=2))
    assert artifact.notes == ("raised from operator set 12 to 17, as it did not compile",)


def test_compile_quantized_weights_stay_narrow():
    onnx = pytest.importorskip("onnx")
    helper, types = onnx.helper, onnx.TensorProto
    weights = np.random.default_rng(4).integers(-128, 128, (1024, 512)).astype(np.int8)
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", types.FLOAT, [1, 1024])],
        [helper.make_tensor_value_info("y", types.FLOAT, [1, 512])],
        [
            onnx.numpy_helper.from_array(weights, "q"),
            onnx.numpy_helper.from_array(np.float32(0.5), "s"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    artifact = sylvite.compile(model)
    assert artifact.notes == ("not simplified: folding would turn the quantized weights into floats",)
    assert weights.nbytes < artifact.path.stat().st_size < 2 * weights.nbytes
    x = np.random.default_rng(5).integers(-4, 5, (1, 1024)).astype(np.float32)
    with sylvite.load(artifact) as model:
        np.testing.assert_array_equal(model(x), x @ (weights * np.float32(0.5)))


def test_compile_without_simplifier_says_so(monkeypatch, softmax_model):
    monkeypatch.setitem(__import__("sys").modules, "onnxslim", None)
    artifact = sylvite.compile(softmax_model(batch=7), isolate=False, cache=False)
    assert artifact.notes == ("not simplified: onnxslim is not installed (pip install 'sylvite[compile]')",)


def test_compile_f64_model_keeps_its_signature():
    artifact = sylvite.compile(ADD.replace("f32", "f64"))
    with open_archive(artifact.path) as archive:
        [main] = [f for f in archive.module.functions if f.name == "main"]
    assert "tensor<4xf64>" in main.attrs["iree.abi.declaration"]


def test_compile_crashing_compiler_is_an_error_with_a_log():
    with pytest.raises(CompileError, match=r"crashed \(SIGSEGV\)") as caught:
        sylvite.compile(CRASH)
    assert "FormDispatchRegions" in Path(caught.value.log_path).read_text()


def test_compile_malformed_mlir_shows_place_and_log():
    with pytest.raises(CompileError, match=r"model.mlir:2:\d+: .*\n(.*\n)*full log: ") as caught:
        sylvite.compile("module {\n  func.func @f( {\n}\n}\n")
    assert len(str(caught.value)) < 1000


def test_compile_malformed_onnx_is_a_format_error_naming_the_file(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x07\x3a\xff")
    with pytest.raises(FormatError, match=r"broken\.onnx"):
        sylvite.compile(tmp_path / "broken.onnx")


def test_compile_unknown_dim_lists_known_ones(softmax_model):
    with pytest.raises(InvalidArgumentError, match="no symbolic dim named Q; the model has: N"):
        sylvite.compile(softmax_model(), dims={"Q": 1})


def test_compile_dims_of_mlir_are_refused():
    with pytest.raises(InvalidArgumentError, match="ONNX models only"):
        sylvite.compile(ADD, dims={"N": 1})


def test_compile_output_in_missing_directory_is_refused_before_work(tmp_path):
    with pytest.raises(NotFoundError, match="no such directory"):
        sylvite.compile(ADD, output=tmp_path / "no" / "m.vmfb")


def test_compile_past_its_time_limit_is_stopped(own_cache, softmax_model):
    with pytest.raises(DeadlineExceededError, match="ran past its time limit"):
        sylvite.compile(softmax_model(batch=77), timeout_s=0.1)
    assert not list((own_cache / "v1" / "work").iterdir())


def test_compile_missing_compiler_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"pip install 'sylvite\[compile\]'"):
        sylvite.compile(ADD)


def test_compile_progress_callback_may_stop_it(own_cache):
    class Stop(Exception):
        pass

    def stop(event):
        raise Stop

    with pytest.raises(Stop):
        sylvite.compile(ADD, progress=stop)
    assert not list((own_cache / "v1" / "work").iterdir())


def test_compile_from_two_threads_is_done_once(own_cache):
    artifacts, barrier = [], threading.Barrier(2)

    def work():
        barrier.wait()
        artifacts.append(sylvite.compile(ADD))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(artifact.cached for artifact in artifacts) == [False, True]


def test_compile_relaxed_simd_is_another_artifact():
    baseline = sylvite.compile(ADD)
    relaxed = sylvite.compile(ADD, features=("relaxed-simd",))
    assert relaxed.key != baseline.key
    assert any(b"relaxed-simd" in data for data in _wasm_executables(relaxed.path))


def test_symbolic_dims_of_models(softmax_model):
    assert sylvite.compile.symbolic_dims(softmax_model()) == ("N",)
    assert sylvite.compile.symbolic_dims(softmax_model(batch=1)) == ()
    assert sylvite.compile.symbolic_dims(ADD) == ()


def test_compile_name_is_function_and_package():
    import sylvite.compile as package

    assert package is sylvite.compile
    assert callable(sylvite.compile)


@pytest.fixture
def squeeze_model():
    """A convolution, and one of a single pixel that scales its output (squeeze and excitation)."""
    onnx = pytest.importorskip("onnx")
    helper, types, from_array = onnx.helper, onnx.TensorProto, onnx.numpy_helper.from_array
    generator = np.random.default_rng(0)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["features"], kernel_shape=[3, 3]),
            helper.make_node("GlobalAveragePool", ["features"], ["mean"]),
            helper.make_node("Conv", ["mean", "s"], ["scale"], kernel_shape=[1, 1]),
            helper.make_node("Mul", ["features", "scale"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", types.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", types.FLOAT, [1, 6, 6, 6])],
        [
            from_array(generator.standard_normal((6, 3, 3, 3)).astype(np.float32), "w"),
            from_array(generator.standard_normal((6, 6, 1, 1)).astype(np.float32), "s"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("img2col", [None, False])
def test_compile_convolutions_give_the_same_numbers_either_way(squeeze_model, img2col):
    ort = pytest.importorskip("onnxruntime")
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    session = ort.InferenceSession(squeeze_model.SerializeToString(), providers=["CPUExecutionProvider"])
    with sylvite.load(squeeze_model, img2col=img2col) as model:
        assert model.artifacts[0].notes == ()
        np.testing.assert_allclose(model(x), session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
