"""``--verify``: WebGPU devices held against the CPU device."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sylvite
from sylvite.cli import main
from sylvite.drivers.webgpu import encoding
from sylvite.errors import VerificationError

pytestmark = pytest.mark.compiler
pytest.importorskip("iree.compiler")

PROGRAM = """
func.func @main(%x: tensor<5xf32>, %k: tensor<5xi64>) -> (tensor<5xf32>, tensor<5xi64>) {
  %y = math.exp %x : tensor<5xf32>
  %z = arith.addi %k, %k : tensor<5xi64>
  return %y, %z : tensor<5xf32>, tensor<5xi64>
}
"""
INPUTS = ["--input=5xf32=1 2 3 4 -5", "--input=5xi64=1 2 3 -4 5"]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    return path


def test_verify_of_right_results_prints_the_largest_error_of_each(provider, source, capfd):
    code = main(["run", str(source), "--device", f"webgpu://{provider}", "--verify", *INPUTS])
    lines = capfd.readouterr().out.splitlines()
    assert code == 0
    assert lines[-2].startswith("[SUCCESS] output0 float32[5]: ")
    assert lines[-1] == "[SUCCESS] output1 int64[5]: equal"


def test_verify_of_wrong_results_fails_and_says_where(provider, source, capfd, monkeypatch):
    # A GPU that runs no workgroup but the first.
    monkeypatch.setattr(encoding, "chunks", lambda count, limit: iter(()))
    arguments = ["run", str(source), "--device", f"webgpu://{provider}", "--verify", "--json", *INPUTS]
    assert main(arguments) == 1
    captured = capfd.readouterr()
    assert "gives other results on webgpu on" in captured.err
    assert "5 of 5 elements differ by more" in captured.err
    report = json.loads(captured.out)["verification"]
    assert [output["wrong_count"] for output in report["outputs"]] == [5, 5]


def test_verify_from_python_raises_with_the_numbers(provider, monkeypatch):
    inputs = [np.ones(5, np.float32), np.arange(1, 6)]
    found = sylvite.verify(PROGRAM, inputs, device=f"webgpu://{provider}")
    assert [output.passed for output in found.outputs] == [True, True]
    monkeypatch.setattr(encoding, "chunks", lambda count, limit: iter(()))
    with pytest.raises(VerificationError) as raised:
        sylvite.verify(PROGRAM, inputs, device=f"webgpu://{provider}")
    assert raised.value.verification.outputs[1].largest_error == 10


def test_verify_with_a_module_for_gpus_only_says_what_to_do(provider, source, tmp_path, capfd):
    module = tmp_path / "gpu.vmfb"
    sylvite.compile(source, "webgpu", output=module)
    assert main(["run", str(module), "--device", f"webgpu://{provider}", "--verify", *INPUTS]) == 1
    assert "compile it for both: `sylvite compile MODEL --target wasm32,webgpu" in capfd.readouterr().err


def test_verify_on_the_reference_itself_is_refused(source, capfd):
    assert main(["run", str(source), "--verify", *INPUTS]) == 2
    assert "choose another device" in capfd.readouterr().err
