"""What IREE emits for our target: accepted by naga and tint, and results equal to local-sync's."""

# ruff: noqa: E501

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.wgsl import shader_runner as sr

import sylvite
from sylvite import spirv, vmfb, wgsl
from sylvite.wgsl.instructions import supported

pytestmark = pytest.mark.compiler

PROGRAM = """
func.func @matmul(%a: tensor<33x?xf32>, %b: tensor<?x8xf32>) -> tensor<33x8xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<33x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<33x8xf32>) -> tensor<33x8xf32>
  %0 = linalg.matmul ins(%a, %b: tensor<33x?xf32>, tensor<?x8xf32>) outs(%f: tensor<33x8xf32>) -> tensor<33x8xf32>
  return %0 : tensor<33x8xf32>
}
func.func @big_matmul(%a: tensor<128x64xf32>, %b: tensor<64x128xf32>) -> tensor<128x128xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<128x128xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<128x128xf32>) -> tensor<128x128xf32>
  %0 = linalg.matmul ins(%a, %b: tensor<128x64xf32>, tensor<64x128xf32>) outs(%f: tensor<128x128xf32>) -> tensor<128x128xf32>
  return %0 : tensor<128x128xf32>
}
func.func @softmax(%a: tensor<4x300xf32>) -> tensor<4x300xf32> {
  %e = tensor.empty() : tensor<4x300xf32>
  %0 = linalg.softmax dimension(1) ins(%a: tensor<4x300xf32>) outs(%e: tensor<4x300xf32>) -> tensor<4x300xf32>
  return %0 : tensor<4x300xf32>
}
func.func @mixed(%a: tensor<77xi32>, %b: tensor<77xi32>) -> (tensor<77xi32>, tensor<77xf32>) {
  %d = arith.divsi %a, %b : tensor<77xi32>
  %r = arith.remsi %a, %b : tensor<77xi32>
  %m = arith.maxsi %d, %r : tensor<77xi32>
  %f = arith.sitofp %m : tensor<77xi32> to tensor<77xf32>
  %t = math.tanh %f : tensor<77xf32>
  return %m, %t : tensor<77xi32>, tensor<77xf32>
}
"""
TARGET = ["--iree-hal-target-backends=vulkan-spirv", "--iree-vulkan-target=vp_android_baseline_2022"]


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wgsl")
    source = folder / "program.mlir"
    source.write_text(PROGRAM)
    target = folder / "program.vmfb"
    compiler = Path(sys.executable).parent / "iree-compile"
    subprocess.run([str(compiler), *TARGET, str(source), "-o", str(target)], check=True, timeout=120)
    return target, sylvite.compile(source, output=folder / "cpu.vmfb").path


@pytest.fixture(scope="module")
def shaders(archives):
    archive = vmfb.open_archive(archives[0])
    found = []
    for index in range(len(archive.module.rodata)):
        data = archive.rodata(index)
        if spirv.is_executable(data):
            executable = spirv.read_executable(data)
            for entry in executable.entry_points:
                module = spirv.read(executable.shader_modules[entry.shader_module])
                slots = tuple((binding.set, binding.binding) for binding in entry.bindings)
                found.append((module, entry, slots))
    return found


@pytest.mark.parametrize("provider", ["wgpu", "dawn"])
def test_compiled_kernels_plain_and_with_all_bindings_merged_are_accepted(provider, shaders):
    sr.device(provider)
    assert len(shaders) >= 4
    for module, entry, slots in shaders:
        for merged in ((), (slots,)):
            shader = wgsl.translate(module, entry.name, merged=merged)
            sr.compile_shader(provider, shader.source)


def test_compiled_modules_survive_disassembly_and_assembly(shaders):
    for module, _, _ in shaders:
        text = spirv.disassemble(module)
        again = spirv.read(spirv.assemble(text, version=module.version))
        assert again.instructions == module.instructions


@pytest.mark.parametrize("provider", ["wgpu", "dawn"])
def test_compiled_program_gives_the_results_of_local_sync(provider, archives):
    sr.device(provider)
    random = np.random.default_rng(0)
    numbers = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    a = random.integers(-(2**31), 2**31, 77).astype(np.int32)
    b = random.integers(-9, 9, 77).astype(np.int32)
    b[b == 0] = 7
    rows = numbers(4, 300)
    rows[1, ::2] = -np.inf
    calls = {
        "matmul": (numbers(33, 37), numbers(37, 8)),
        "big_matmul": (numbers(128, 64), numbers(64, 128)),
        "softmax": (rows,),
        "mixed": (a, b),
    }
    gpu = sylvite.load(archives[0], device=f"webgpu://{provider}")
    cpu = sylvite.load(archives[1])
    for name, arguments in calls.items():
        got, expected = gpu.functions[name](*arguments), cpu.functions[name](*arguments)
        for left, right in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, expected)), strict=True):
            np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-5, err_msg=name)
    gpu.close()
    cpu.close()


def test_documented_opcodes_are_those_supported():
    page = (Path(__file__).parents[2] / "docs" / "spirv-to-wgsl.md").read_text(encoding="utf-8")
    section = page.split("## Supported")[1].split("Of `GLSL")[0]
    documented = set(re.findall(r"`(Op\w+)`", section))
    assert set(supported()) - {"OpName", "OpLine", "OpNoLine"} <= documented
