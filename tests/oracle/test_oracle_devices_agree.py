"""Real models give the same bits on every local device and in every way of running commands."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.models import MODELS, ModelUnavailableError

import sylvite

pytestmark = pytest.mark.compiler

DEVICES = ("local-sync?commands=interpreted", "local-task://1", "local-task://3")
QUICK = {"mnist", "mtcnn-pnet"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MODELS]
)
def test_real_model_has_the_bits_of_local_sync(name: str) -> None:
    model = MODELS[name]
    try:
        path, parameters = model.onnx_path(), model.parameters()
    except ModelUnavailableError as error:
        pytest.skip(str(error))
    inputs = model.inputs()
    options = {"external_parameters": "in-place"} if parameters else {}

    def outputs(device: str) -> list[bytes]:
        with sylvite.load(
            path, device=device, parameters=parameters or None, dims=model.dims, **options
        ) as loaded:
            results = [loaded(*inputs) for _ in range(2)][-1]
            results = results if isinstance(results, tuple) else (results,)
            return [np.array(result).tobytes() for result in results]

    expected = outputs("local-sync")
    for device in DEVICES:
        assert outputs(device) == expected, device
