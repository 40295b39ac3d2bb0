"""Real models against onnxruntime (f32) and IREE native (int8), each within its stated tolerance."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.models import MODELS, ModelUnavailableError, RealModel

import sylvite

pytestmark = pytest.mark.compiler

# Models that take long to compile run in `make test-all`; the rest in `make test`.
QUICK = {"mnist", "minilm-f32", "mtcnn-pnet", "rapidocr-cls"}


def onnxruntime_outputs(model: RealModel, inputs: list[np.ndarray]) -> list[np.ndarray]:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(str(model.onnx_path()), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def native_outputs(model: RealModel, inputs: list[np.ndarray]) -> list[np.ndarray]:
    rt = pytest.importorskip("iree.runtime")
    artifact = sylvite.compile(model.onnx_path(), target="native", dims=model.dims)
    config = rt.Config("local-sync")
    context = rt.SystemContext(config=config)
    module = rt.VmModule.copy_buffer(config.vm_instance, artifact.path.read_bytes())
    context.add_vm_module(module)
    names = [name for name in module.function_names if "$async" not in name and not name.startswith("__")]
    results = context.modules[module.name][names[0]](*inputs)
    results = results if isinstance(results, (tuple, list)) else [results]
    return [result.to_host() for result in results]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MODELS]
)
def test_real_model_matches_its_oracle(name: str) -> None:
    model = MODELS[name]
    try:
        path = model.onnx_path()
        parameters = model.parameters()
    except ModelUnavailableError as error:
        pytest.skip(str(error))
    inputs = model.inputs()
    options = {"external_parameters": "in-place"} if parameters else {}
    with sylvite.load(path, parameters=parameters or None, dims=model.dims, **options) as loaded:
        outputs = loaded(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        outputs = tuple(np.array(output) for output in outputs)
    oracle = onnxruntime_outputs if model.oracle == "onnxruntime" else native_outputs
    expected = oracle(model, inputs)
    assert len(outputs) == len(expected)
    for output, reference in zip(outputs, expected, strict=True):
        assert output.dtype == reference.dtype
        np.testing.assert_allclose(output, reference, rtol=model.rtol, atol=model.atol)
