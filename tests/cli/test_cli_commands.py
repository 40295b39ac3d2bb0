from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import pytest

import sylvite
from sylvite.cli import main

pytestmark = pytest.mark.compiler
pytest.importorskip("iree.compiler")

PROGRAM = """
func.func @add(%a: tensor<2x2xf32>, %b: tensor<2x2xf32>) -> tensor<2x2xf32> {
  %0 = arith.addf %a, %b : tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}
func.func @kinds(
    %a: tensor<2x1x3xf32>, %b: tensor<3xi64>, %c: tensor<f16>, %d: tensor<2xi1>, %e: i32, %f: f32)
    -> (tensor<2x1x3xf32>, tensor<3xi64>, tensor<f16>, tensor<2xi1>, i32, f32) {
  %0 = arith.mulf %a, %a : tensor<2x1x3xf32>
  %1 = arith.addi %b, %b : tensor<3xi64>
  %2 = arith.addf %c, %c : tensor<f16>
  %3 = arith.xori %d, %d : tensor<2xi1>
  %4 = arith.addi %e, %e : i32
  return %0, %1, %2, %3, %4, %f : tensor<2x1x3xf32>, tensor<3xi64>, tensor<f16>, tensor<2xi1>, i32, f32
}
"""
INPUTS = ["--input=2x2xf32=1 2 3 4", "--input=2x2xf32=0.5"]


@pytest.fixture(scope="module")
def module_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "program.mlir").write_text(PROGRAM)
    sylvite.compile(PROGRAM, output=folder / "program.vmfb")
    return folder / "program.vmfb"


@pytest.fixture
def run(capfd):
    """Runs the command line in this process: exit code, standard output, standard error."""

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


# run


def test_run_prints_results_and_nothing_else(run, module_path):
    code, out, err = run("run", module_path, "--function=add", *INPUTS)
    assert (code, err) == (0, "")
    assert out == "EXEC @add\nresult[0]: hal.buffer_view\n2x2xf32=[1.5 2.5][3.5 4.5]\n"


def test_run_output_agrees_with_iree_run_module(run, module_path, tmp_path):
    tool = Path(sysconfig.get_path("scripts")) / "iree-run-module"
    if not tool.exists():
        pytest.skip("needs iree-base-runtime")
    native = sylvite.compile(PROGRAM, "native", output=tmp_path / "native.vmfb")
    inputs = [
        "--input=2x1x3xf32=1 1e10 -0.001 1e-7 3 123456789",
        "--input=3xi64=-1 2 3",
        "--input=f16=0.1",
        "--input=2xi8=1 0",
        "--input=7",
        "--input=0.1",
    ]
    theirs = subprocess.run(
        [tool, f"--module={native.path}", "--function=kinds", *inputs],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    inputs[3] = "--input=2xi1=1 0"  # the tool has no way to write booleans
    code, ours, _ = run("run", module_path, "--function=kinds", *inputs)
    assert code == 0
    # It prints booleans as bytes in hexadecimal.
    assert ours == theirs.replace("2xi8=", "2xi1=").replace("2xi1=00 00", "2xi1=0 0")


def test_run_compiles_what_is_not_compiled(run, module_path):
    code, out, _ = run("run", module_path.with_suffix(".mlir"), "--function=add", *INPUTS)
    assert code == 0
    assert "[1.5 2.5]" in out


def test_run_json_and_files(run, module_path, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 2), np.float32))
    x = f"--input=@{tmp_path / 'x.npy'}"
    code, out, _ = run(
        "run", module_path, "--function=add", x, x, "--json", f"--output=@{tmp_path / 'y.npy'}"
    )
    assert code == 0
    [result] = json.loads(out)["results"]
    assert result == {"dtype": "float32", "shape": [2, 2], "data": [[2.0, 2.0], [2.0, 2.0]]}
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.full((2, 2), 2, np.float32))


@pytest.mark.parametrize(
    ("expected", "options", "code", "message"),
    [
        ("2x2xf32=1.5 2.5 3.5 4.5", [], 0, "[SUCCESS]"),
        ("2x2xf32=1.5 2.5 3.5 4.6", [], 1, "[FAILED] result[0]: element 3 is 4.5, expected 4.5999"),
        ("2x2xf32=1.5 2.5 3.5 4.6", ["--atol=0.2"], 0, "[SUCCESS]"),
        ("(ignored)", [], 0, "[SUCCESS]"),
    ],
)
def test_run_expected_output_decides_the_exit_code(run, module_path, expected, options, code, message):
    for spelling in ("--expected_output", "--expected-output"):
        answer = run("run", module_path, "--function=add", *INPUTS, f"{spelling}={expected}", *options)
        assert answer[0] == code
        assert message in answer[1]


def test_run_statistics_go_to_standard_error(run, module_path):
    code, out, err = run("run", module_path, "--function=add", *INPUTS, "--statistics")
    assert code == 0
    assert "dispatches: 1" in err
    assert "dispatches" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.vmfb"], 1, "error: no such file: nowhere.vmfb"),
        (["{module}", "--function=none"], 1, "error: no function 'none'; there are: add, kinds"),
        (["{module}"], 1, "name it with --function"),
        (["{module}", "--function=add"], 1, "inputs missing: input0, input1"),
        (["{module}", "--function=add", "--input=2x2xf64=1", "--input=2x2xf32=1"], 1, "got float64[2, 2]"),
        (["{module}", "--function=add", "--input=2x2xf32=1 2"], 2, "has 4 elements, 2 are given"),
        (["{module}", "--function=add", "--input=z z"], 2, "cannot read 'z z'"),
        (["{module}", "--dim=N"], 2, "not of the form NAME=EXTENT"),
        (["{module}", "--dim=N=1"], 1, "compiled already, so dims cannot be given"),
        (["{module}", "--device=none"], 1, "no driver 'none'"),
        (["{module}", "--no-such-option"], 2, "No such option"),
        (["{module}", "--memory-limit=big"], 2, "'big' is not a size"),
        ([], 2, "Missing argument 'MODEL'"),
    ],
)
def test_run_errors_are_one_message_with_an_exit_code(run, module_path, arguments, code, message):
    answer = run("run", *[argument.format(module=module_path) for argument in arguments])
    assert answer[0] == code
    assert answer[1] == ""
    assert message in answer[2]
    assert "Traceback" not in answer[2]


def test_run_traceback_is_shown_when_asked_for(run, module_path):
    code, _, err = run("run", "nowhere.vmfb", "--traceback")
    assert code == 1
    assert "Traceback" in err
    assert "NotFoundError" in err


def test_run_malformed_module_names_place(run, tmp_path, module_path):
    (tmp_path / "cut.vmfb").write_bytes(module_path.read_bytes()[:-1])
    code, _, err = run("run", tmp_path / "cut.vmfb")
    assert code == 1
    assert err.startswith("error: ")
    assert "cut.vmfb" in err


# compile


def test_compile_writes_the_module_and_says_so(run, module_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("compile", module_path.with_suffix(".mlir"))
    assert (code, err) == (0, "")
    assert out.startswith("program.vmfb  ")
    assert (tmp_path / "program.vmfb").read_bytes() == module_path.read_bytes()
    code, out, _ = run("compile", module_path.with_suffix(".mlir"), "-o", "other.vmfb", "--json")
    assert code == 0
    assert json.loads(out)["path"] == "other.vmfb"


def test_compile_error_has_cause_and_log(run, tmp_path):
    (tmp_path / "bad.mlir").write_text("func.func @main( {\n}\n")
    code, out, err = run("compile", tmp_path / "bad.mlir", "-o", tmp_path / "bad.vmfb")
    assert (code, out) == (1, "")
    assert "bad.mlir: iree-compile refused the model" in err
    assert "full log: " in err
    assert not (tmp_path / "bad.vmfb").exists()


# inspect


def test_inspect_module_shows_functions_imports_and_kernels(run, module_path):
    code, out, _ = run("inspect", module_path)
    assert code == 0
    for text in (
        "add(input0: float32[2, 2], input1: float32[2, 2]) -> (output0: float32[2, 2])",
        "hal.command_buffer.dispatch",
        "iree_hal_executable_library_query",
        "add_dispatch_0",
        "+simd128",
    ):
        assert text in out
    code, out, _ = run("inspect", module_path, "--json")
    report = json.loads(out)
    assert report["bytecode_version"] == "17.0"
    assert [function["name"] for function in report["functions"]] == ["add", "kinds"]
    assert report["executables"][0]["byte_length"] > 500


def test_inspect_calls_a_compiled_model_by_the_name_that_was_given(run, tmp_path):
    pytest.importorskip("iree.compiler", reason="compiling needs the compile extra")
    source = tmp_path / "same.mlir"
    source.write_text("func.func @same(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }")
    code, out, _ = run("inspect", source, "--json")
    report = json.loads(out)
    assert (code, report["path"]) == (0, str(source))
    assert report["compiled"].endswith(".vmfb")
    assert "same.mlir: module" in run("inspect", source)[1].replace("\n", "")


def test_inspect_shows_kernels_for_gpus(run, tmp_path):
    pytest.importorskip("iree.compiler", reason="compiling needs the compile extra")
    source, module = tmp_path / "both.mlir", tmp_path / "both.vmfb"
    source.write_text(
        "func.func @twice(%x: tensor<7xf32>) -> tensor<7xf32> {\n"
        "  %y = arith.addf %x, %x : tensor<7xf32>\n  return %y : tensor<7xf32>\n}\n"
    )
    assert run("compile", source, "--target", "wasm32,webgpu", "-o", module)[0] == 0
    report = json.loads(run("inspect", module, "--json")[1])
    (kernel,) = report["shaders"]
    assert (kernel["name"], kernel["bindings"], kernel["constants"]) == (
        report["executables"][0]["kernels"][0],
        2,
        0,
    )
    assert "Kernels for GPUs" in run("inspect", module)[1]


def test_inspect_disassembles_modules_and_wasm(run, module_path, tmp_path):
    code, out, _ = run("inspect", module_path, "--disassemble")
    assert code == 0
    assert "vm.call" in out
    with zipfile.ZipFile(module_path) as archive:
        [member] = [name for name in archive.namelist() if name.endswith(".wasm")]
        (tmp_path / "x.wasm").write_bytes(archive.read(member))
    code, out, _ = run("inspect", tmp_path / "x.wasm")
    assert code == 0
    assert "env.memory" in out
    code, out, _ = run("inspect", tmp_path / "x.wasm", "--json")
    assert json.loads(out)["imports"][0] == {"module": "env", "name": "memory", "kind": "memory"}
    code, out, _ = run("inspect", tmp_path / "x.wasm", "--disassemble")
    assert code == 0
    assert "f32x4.add" in out


def test_inspect_parameters(run, tmp_path):
    from sylvite.vm.parameters import write_archive

    path = write_archive(tmp_path / "p.irpa", {"weight": np.ones(4, np.float32)})
    code, out, _ = run("inspect", path, "--json")
    assert code == 0
    assert json.loads(out)["parameters"][0]["byte_length"] == 16
    code, out, _ = run("inspect", path)
    assert "weight" in out


# devices, bench, version, help


def test_devices_lists_drivers_and_engines(run):
    code, out, _ = run("devices", "--json")
    report = json.loads(out)
    assert code == 0
    assert "local-sync" in [device["device"] for device in report["devices"]]
    assert "simd" in report["engines"][0]["capabilities"]
    code, out, _ = run("devices")
    assert "local-sync" in out
    assert "wasmtime" in out


def test_bench_reports_median_and_spread(run, module_path):
    code, out, _ = run("bench", module_path, "--function=add", "--runs=5", "--json")
    report = json.loads(out)
    assert code == 0
    assert len(report["times_s"]) == report["runs"] == 5
    assert report["minimum_s"] <= report["median_s"] <= report["maximum_s"]
    assert report["guest_peak_bytes"] > 0
    code, out, _ = run("bench", module_path, "--function=add", "--runs=1", "--warm-up=0", *INPUTS)
    assert code == 0
    assert "median" in out


def test_demo_unknown_step_is_a_usage_error(run):
    code, _, err = run("demo", "no-such-step")
    assert code == 2
    assert "no step no-such-step" in err


def test_version_and_help(run):
    code, out, _ = run("version")
    assert code == 0
    assert out.startswith(f"sylvite {sylvite.__version__}\n")
    assert run("--version")[1] == f"sylvite, version {sylvite.__version__}\n"
    for command in ("bench", "compile", "demo", "devices", "inspect", "run"):
        code, out, _ = run(command, "--help")
        assert code == 0
        assert "Usage: sylvite " + command in out


def test_help_of_the_group_imports_neither_numpy_nor_engine():
    program = (
        "import sys; from sylvite.cli import main; main(['--help'])\n"
        "print([name for name in ('numpy', 'wasmtime', 'rich', 'onnx') if name in sys.modules])\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"
    assert "inspect" in answer.stdout


def test_command_is_installed_and_returns_the_exit_code(module_path):
    tool = Path(sysconfig.get_path("scripts")) / "sylvite"
    if not tool.exists():
        pytest.skip("sylvite is not installed")
    answer = subprocess.run([tool, "run", "nowhere.vmfb"], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr == "error: no such file: nowhere.vmfb\n"


def test_output_to_a_closed_pipe_is_quiet(module_path):
    program = f"import sys; from sylvite.cli import main; sys.exit(main(['inspect', {str(module_path)!r}]))"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 1
