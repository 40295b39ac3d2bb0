"""Parameter files against IREE's own tools, and programs with parameters against iree.runtime."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import sylvite.compile
from sylvite import drivers
from sylvite.errors import InvalidArgumentError, NotFoundError
from sylvite.hal import BufferView
from sylvite.vm.context import Context
from sylvite.vm.modules import HalModule, IoParametersModule
from sylvite.vm.parameters import (
    ParameterProvider,
    Splat,
    index_arrays,
    open_parameters,
    open_providers,
    write_archive,
)
from sylvite.vmfb import open_archive

pytestmark = pytest.mark.compiler

ROW = re.compile(r"^\s*(\d+|-) \|\s*(\d+|-) \|\s*(\d+) \| `(.*)`$", re.MULTILINE)
ARRAYS = {
    "weight": np.arange(32, dtype=np.float32).reshape(4, 8),
    "bias": np.linspace(-1, 1, 8).astype(np.float32),
    "bytes": np.arange(5, dtype=np.int8),
}


def tool(name, *arguments):
    """Run one of IREE's tools of this environment; its standard output."""
    path = Path(sys.executable).with_name(name)
    done = subprocess.run(
        [path, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def dumped(path):
    """(start, length) by key, as iree-dump-parameters sees the file; the start of a splat is None."""
    return {
        key: (None if start == "-" else int(start), int(length))
        for start, _, length, key in ROW.findall(tool("iree-dump-parameters", f"--parameters={path}"))
    }


def ours(path):
    with open_parameters(path) as index:
        return {
            key: (None if isinstance(entry.storage, Splat) else entry.storage.offset, entry.byte_length)
            for key, entry in index.items()
        }


def test_archive_of_iree_is_read(tmp_path):
    path = tmp_path / "p.irpa"
    # Release 3.13.0 of the tool fails to write data patterns of more than one byte.
    tool(
        "iree-create-parameters",
        *("--data=zeros=16xi16", "--data=ones=8xi8=3", "--splat=big=4096x1024xi64=103"),
        *("--splat=c=2xf64=-1", "--data=odd=5xi8=101", f"--output={path}"),
    )
    assert ours(path) == dumped(path)
    with open_parameters(path) as index:
        assert index["ones"].read() == bytes([3] * 8)
        assert index["zeros"].read() == bytes(32)
        assert index["odd"].read() == bytes([101] * 5)
        assert index["big"].read(8, 16) == np.full(2, 103, np.int64).tobytes()
        assert index["c"].read() == np.full(2, -1.0).tobytes()


def test_archive_of_ours_is_read_by_iree(tmp_path):
    values = {**ARRAYS, "splat": (64, Splat(pattern=b"\1\2\3\4")), "wide": (32, Splat(pattern=bytes(16)))}
    path = write_archive(tmp_path / "p.irpa", values)
    assert dumped(path) == ours(path)
    copy = tmp_path / "copy.irpa"
    tool("iree-convert-parameters", f"--parameters={path}", f"--output={copy}")
    with open_parameters(path) as first, open_parameters(copy) as second:
        assert set(first) == set(second)
        for key in values:
            assert first[key].read() == second[key].read()


def test_safetensors_converted_by_iree_has_the_same_bytes(tmp_path):
    source, target = tmp_path / "p.safetensors", tmp_path / "p.irpa"
    safetensors.numpy.save_file(ARRAYS, source)
    assert ours(source) == dumped(source)
    tool("iree-convert-parameters", f"--parameters={source}", f"--output={target}")
    with open_parameters(source) as first, open_parameters(target) as second:
        for key, array in ARRAYS.items():
            assert first[key].read() == second[key].read() == array.tobytes()


def test_gguf_is_seen_alike_by_iree(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "p.gguf"
    writer = gguf.GGUFWriter(path, "test")
    for key in ("weight", "bias"):
        writer.add_tensor(key, ARRAYS[key])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert ours(path) == dumped(path)


# -- programs --------------------------------------------------------------------------------------------

LINEAR = """
util.global private @w = #flow.parameter.named<"model"::"weight"> : tensor<4x8xf32>
util.global private @b = #flow.parameter.named<"model"::"bias"> : tensor<8xf32>
util.global private @s = #flow.parameter.named<"other"::"scale"> : tensor<8xf32>
func.func @main(%x: tensor<2x4xf32>) -> tensor<2x8xf32> {
  %w = util.global.load @w : tensor<4x8xf32>
  %b = util.global.load @b : tensor<8xf32>
  %s = util.global.load @s : tensor<8xf32>
  %m = stablehlo.dot %x, %w : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32>
  %bb = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<8xf32>) -> tensor<2x8xf32>
  %sb = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<8xf32>) -> tensor<2x8xf32>
  %a = stablehlo.add %m, %bb : tensor<2x8xf32>
  %r = stablehlo.multiply %a, %sb : tensor<2x8xf32>
  return %r : tensor<2x8xf32>
}
"""
X = np.arange(8, dtype=np.float32).reshape(2, 4)
SCALE = np.full(8, 0.5, np.float32)
LINEAR_RESULT = (X @ ARRAYS["weight"] + ARRAYS["bias"]) * SCALE


@pytest.fixture(scope="module")
def device():
    with drivers.create_device("local-sync") as device:
        yield device


@pytest.fixture(scope="module")
def linear():
    with open_archive(sylvite.compile.compile(LINEAR).path) as archive:
        yield archive


@pytest.fixture
def files(tmp_path):
    """Two parameter files of different formats, as flags."""
    model, other = tmp_path / "model.safetensors", tmp_path / "other.irpa"
    safetensors.numpy.save_file({"weight": ARRAYS["weight"], "bias": ARRAYS["bias"]}, model)
    write_archive(other, {"scale": (32, Splat(pattern=SCALE[:1].tobytes()))})
    return [f"model={model}", f"other={other}"]


def call(context, device, *arrays, name="main"):
    views = [BufferView.from_numpy(device.allocator, array) for array in arrays]
    return np.array(context.invoke(f"module.{name}", *views).numpy())


def run_native(vmfb, flags, name, *arrays):
    import iree.runtime as runtime

    config = runtime.Config("local-sync")
    instance = config.vm_instance
    providers = []
    for flag in flags:
        scope, _, path = flag.partition("=")
        index = runtime.ParameterIndex()
        index.load(path)
        providers.append(index.create_provider(scope))
    modules = [
        runtime.create_io_parameters_module(instance, *providers),
        runtime.create_hal_module(instance, config.device),
        runtime.VmModule.copy_buffer(instance, Path(vmfb).read_bytes()),
    ]
    bound = runtime.load_vm_modules(*modules, config=config)
    return bound[-1][name](*arrays).to_host()


def test_program_with_parameters_agrees_with_iree(device, linear, files):
    native = sylvite.compile.compile(LINEAR, "native").path
    expected = run_native(native, files, "main", X)
    providers = open_providers(files)
    with Context([HalModule([device]), IoParametersModule(providers), linear]) as context:
        for provider in providers:
            provider.close()
        np.testing.assert_allclose(call(context, device, X), expected, rtol=1e-6)
    np.testing.assert_allclose(expected, LINEAR_RESULT, rtol=1e-6)


def test_parameters_are_copied_once_into_device_memory(device, linear):
    arrays = {"weight": ARRAYS["weight"], "bias": ARRAYS["bias"]}
    counters = device.tracer.counters
    providers = [
        ParameterProvider("model", index_arrays(arrays)),
        ParameterProvider("other", index_arrays({"scale": SCALE})),
    ]
    before = counters.bytes_copied
    with Context([HalModule([device]), IoParametersModule(providers), linear]) as context:
        assert counters.bytes_copied - before == 4 * (32 + 8 + 8)
        np.testing.assert_allclose(call(context, device, X), LINEAR_RESULT, rtol=1e-6)


def test_program_with_a_missing_parameter_names_it(device, linear):
    providers = [
        ParameterProvider("model", index_arrays({"wieght": ARRAYS["weight"], "bias": ARRAYS["bias"]})),
        ParameterProvider("other", index_arrays({"scale": SCALE})),
    ]
    with pytest.raises(NotFoundError, match=r"'weight' in scope 'model' .*closest: 'wieght'"):
        Context([HalModule([device]), IoParametersModule(providers), linear])
    good = ParameterProvider("model", index_arrays(ARRAYS))
    with pytest.raises(NotFoundError, match="scope 'other'; scopes given: 'model'"):
        Context([HalModule([device]), IoParametersModule([good]), linear])


def test_program_with_a_parameter_of_wrong_length_says_both(device, linear):
    providers = [
        ParameterProvider("model", index_arrays({"weight": ARRAYS["weight"][:3], "bias": ARRAYS["bias"]})),
        ParameterProvider("other", index_arrays({"scale": SCALE})),
    ]
    with pytest.raises(InvalidArgumentError, match=r"wants 128 bytes .*'weight', which has 96 bytes"):
        Context([HalModule([device]), IoParametersModule(providers), linear])


EXPORTED = """
util.global private @w = dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
util.global private @k = dense<[1, 2, 3, 4, 5, 6, 7, 8]> : tensor<8xi16>
util.global private mutable @acc = dense<[0.5, 1.5, 2.5]> : tensor<3xf32>
func.func @main(%x: tensor<4x2xf32>) -> tensor<4x3xf32> {
  %w = util.global.load @w : tensor<2x3xf32>
  %r = stablehlo.dot %x, %w : (tensor<4x2xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
  return %r : tensor<4x3xf32>
}
func.func @constant() -> tensor<8xi16> {
  %k = util.global.load @k : tensor<8xi16>
  return %k : tensor<8xi16>
}
func.func @accumulate(%x: tensor<3xf32>) -> tensor<3xf32> {
  %k = util.global.load @acc : tensor<3xf32>
  %n = arith.addf %k, %x : tensor<3xf32>
  util.global.store %n, @acc : tensor<3xf32>
  return %n : tensor<3xf32>
}
"""


@pytest.mark.parametrize("flag", ["--iree-opt-export-parameters", "--iree-opt-splat-parameters"])
def test_parameters_exported_by_the_compiler_are_loaded(device, tmp_path, flag):
    path = tmp_path / "exported.irpa"
    flags = [
        "--iree-parameter-export-minimum-size=0",
        f"{flag}={path}" if "splat" in flag else f"{flag}=model={path}",
    ]
    if "splat" in flag:
        flags.insert(0, f"--iree-opt-export-parameters=model={tmp_path / 'full.irpa'}")
    vmfb = sylvite.compile.compile(EXPORTED, flags=flags, cache=False).path
    assert ours(path) == dumped(path)
    with (
        open_archive(vmfb) as archive,
        ParameterProvider("model", open_parameters(path)) as provider,
        Context([HalModule([device]), IoParametersModule([provider]), archive]) as context,
    ):
        x = np.arange(8, dtype=np.float32).reshape(4, 2)
        result = call(context, device, x)
        if "splat" in flag:
            assert result.shape == (4, 3)
            return
        np.testing.assert_allclose(result, x @ np.array([[1, 2, 3], [4, 5, 6]], np.float32))
        np.testing.assert_array_equal(call(context, device, name="constant"), np.arange(1, 9))
        step = np.ones(3, np.float32)
        assert call(context, device, step, name="accumulate").tolist() == [1.5, 2.5, 3.5]
        assert call(context, device, step, name="accumulate").tolist() == [2.5, 3.5, 4.5]
