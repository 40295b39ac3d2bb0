"""Shaders of models are accepted by Chromium, in every variant that a run asks for."""

from __future__ import annotations

import pytest
from benchmarks.models import MODELS, ModelUnavailableError
from tests.webgpu.chromium_runner import ChromiumUnavailableError, Shader, refused

import sylvite
from sylvite.drivers.webgpu.executable import WebGpuExecutable

pytestmark = pytest.mark.compiler
pytest.importorskip("iree.compiler")
pytest.importorskip("onnx")

SLOW = ("mtcnn-pnet", "magika", "minilm-f32", "minilm-int8", "rapidocr-cls", "rapidocr-det")


@pytest.fixture
def met(monkeypatch):
    """The shaders that pipelines are made of from here on, by kernel and merged bindings."""
    shaders = {}
    make = WebGpuExecutable._make

    def remember(self, kernel, groups):
        pipeline = make(self, kernel, groups)
        name = f"{kernel.export.name} {groups}"
        shaders[name] = Shader(pipeline.shader.source, pipeline.shader.entry_point)
        return pipeline

    # Accepted by the provider that makes the pipeline, too.
    monkeypatch.setattr(WebGpuExecutable, "_make", remember)
    return shaders


def refused_or_skip(shaders):
    try:
        return refused(shaders)
    except ChromiumUnavailableError as error:
        pytest.skip(str(error))


def test_refused_shaders_are_told_from_others():
    body = "@compute @workgroup_size(1) fn main() {{ let a: u32 = {}; }}"
    shaders = {
        "right": Shader(body.format("1u")),
        "wrong type": Shader(body.format("1.5")),
        "wrong name": Shader(body.format("1u"), "other"),
    }
    found = refused_or_skip(shaders)
    assert found.keys() == {"wrong type", "wrong name"}
    assert "1:" in found["wrong type"]


@pytest.mark.parametrize("name", ["mnist", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_shaders_of_a_model_are_accepted(provider, met, name):
    real = MODELS[name]
    try:
        path, parameters = real.onnx_path(), real.parameters()
    except ModelUnavailableError as error:
        pytest.skip(str(error))
    options = {"external_parameters": "in-place", "parameters": parameters} if parameters else {}
    with sylvite.load(path, device=f"webgpu://{provider}", dims=real.dims, **options) as model:
        model(*real.inputs())
    assert len(met) >= 3
    assert refused_or_skip(met) == {}
