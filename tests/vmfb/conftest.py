"""Compiled modules and the tool that judges them."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sysconfig

import pytest
import vm_programs

MODEL = """
func.func @add(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @product(%x: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %w = arith.constant dense<"0x@WEIGHTS@"> : tensor<8x8xf32>
  %c0 = arith.constant 0 : index
  %z = arith.constant 0.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?x8xf32>
  %e = tensor.empty(%n) : tensor<?x8xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<?x8xf32>) -> tensor<?x8xf32>
  %0 = linalg.matmul ins(%x, %w : tensor<?x8xf32>, tensor<8x8xf32>) outs(%i : tensor<?x8xf32>) -> tensor<?x8xf32>
  return %0 : tensor<?x8xf32>
}
func.func @loop(%n: i32, %x: tensor<4xf32>) -> (tensor<4xf32>, i32) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %r:2 = scf.while (%i = %c0, %a = %x) : (i32, tensor<4xf32>) -> (i32, tensor<4xf32>) {
    %c = arith.cmpi slt, %i, %n : i32
    scf.condition(%c) %i, %a : i32, tensor<4xf32>
  } do {
  ^bb0(%i: i32, %a: tensor<4xf32>):
    %j = arith.addi %i, %c1 : i32
    %b = arith.addf %a, %x : tensor<4xf32>
    scf.yield %j, %b : i32, tensor<4xf32>
  }
  %k = arith.addi %r#0, %c1 : i32
  %t = arith.mulf %r#1, %x : tensor<4xf32>
  return %t, %k : tensor<4xf32>, i32
}
func.func @named(%x: tensor<2x?xi1> {iree.abi.name = "pixels"}, %k: index) -> (tensor<2x?xi1> {iree.abi.name = "out"}) {
  return %x : tensor<2x?xi1>
}
func.func @later(%x: tensor<4xf32>) -> tensor<4xf32> attributes {iree.abi.model = "coarse-fences"} {
  %0 = arith.mulf %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""  # noqa: E501

WASM_FLAGS = [
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-triple=wasm32-unknown-emscripten",
    "--iree-llvmcpu-target-cpu=generic",
    "--iree-llvmcpu-target-cpu-features=+simd128",
]


def tool(name: str) -> str:
    """The path of an installed command."""
    path = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


class Compiler:
    """Compiles programs once per test run; workers share the results."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def __call__(self, name: str, text: str, *flags: str) -> pathlib.Path:
        target = self.folder / f"{name}.vmfb"
        if target.exists():
            return target
        # Compiled from inside a folder of this process, so that locations name the bare file, and
        # moved into place at once, for another worker may be doing the same.
        own = self.folder / f"{os.getpid()}"
        own.mkdir(exist_ok=True)
        (own / f"{name}.mlir").write_text(text)
        command = [tool("iree-compile"), f"{name}.mlir", *flags, "-o", f"{name}.vmfb"]
        done = subprocess.run(command, cwd=own, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[:4000]
        os.replace(own / f"{name}.vmfb", target)
        return target


@pytest.fixture(scope="session")
def compiler(tmp_path_factory) -> Compiler:
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent
    folder = base / "vmfb-compiled"
    folder.mkdir(exist_ok=True)
    return Compiler(folder)


@pytest.fixture(scope="session")
def every_operation(compiler) -> pathlib.Path:
    """A module with a function per operation."""
    return compiler("every", vm_programs.all_operations(), "--compile-mode=vm")


@pytest.fixture(scope="session")
def printable_operations(compiler) -> pathlib.Path:
    """The same without what iree-dump-module cannot print."""
    text = vm_programs.all_operations(without=vm_programs.TOOL_CANNOT_PRINT)
    return compiler("printable", text, "--compile-mode=vm")


@pytest.fixture(scope="session")
def model(compiler) -> pathlib.Path:
    """A module of tensor functions for wasm32: kernels, dynamic shapes, loops, fences, a constant."""
    weights = "".join(f"{i:02X}00803F" for i in range(64))
    return compiler("model", MODEL.replace("@WEIGHTS@", weights), *WASM_FLAGS)


@pytest.fixture(scope="session")
def bare_model(compiler) -> pathlib.Path:
    """The same model without the zip file around it."""
    weights = "".join(f"{i:02X}00803F" for i in range(64))
    text = MODEL.replace("@WEIGHTS@", weights)
    return compiler("bare", text, *WASM_FLAGS, "--iree-vm-emit-polyglot-zip=false")


@pytest.fixture(scope="session")
def dump():
    """What ``iree-dump-module`` prints about a file."""

    def run(path: pathlib.Path, *flags: str) -> str:
        command = [tool("iree-dump-module"), *flags, str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    return run
