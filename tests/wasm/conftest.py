"""Modules from real compilers, and an engine with every proposal switched on as the judge."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import wasmtime

C_SOURCE = """
extern float external(float);
extern int counter;
static float weights[4] = {1, 2, 3, 4};
float *position = &weights[1];
float (*pointer)(float) = external;
void _start(void);
__attribute__((visibility("default"))) float dot(float *a, int n) {
  float sum = 0;
  for (int i = 0; i < n; i++) sum += pointer(a[i]) * weights[i & 3];
  counter += n;
  return sum + *position;
}
__attribute__((visibility("default"))) void scale(float *restrict a, const float *restrict b, int n) {
  for (int i = 0; i < n; i++) a[i] = b[i] * 2.5f;
}
__attribute__((visibility("default"))) unsigned long long convert(double x) { return (unsigned long long)x; }
"""

MLIR_SOURCE = """
func.func @mix(%a: tensor<4x?xf32>, %b: tensor<?x8xf32>) -> tensor<4x8xf32> {
  %zero = arith.constant dense<0.0> : tensor<4x8xf32>
  %0 = linalg.matmul ins(%a, %b: tensor<4x?xf32>, tensor<?x8xf32>)
      outs(%zero: tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %b : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.fixture(scope="session")
def judge() -> wasmtime.Engine:
    """A wasmtime engine that takes every proposal we support."""
    config = wasmtime.Config()
    for name in [
        "simd",
        "relaxed_simd",
        "threads",
        "bulk_memory",
        "reference_types",
        "multi_value",
        "multi_memory",
        "memory64",
        "tail_call",
        "exceptions",
        "wide_arithmetic",
        "gc",
        "function_references",
    ]:
        setattr(config, f"wasm_{name}", True)
    config.strategy = "cranelift"
    return wasmtime.Engine(config)


def _clang(folder: Path, *flags: str) -> Path:
    source = folder / "source.c"
    source.write_text(C_SOURCE, encoding="utf-8")
    output = folder / "source.o"
    command = [sys.executable, "-m", "ziglang", "clang", "-target", "wasm32-freestanding"]
    subprocess.run([*command, *flags, "-c", str(source), "-o", str(output)], check=True, timeout=300)
    return output


def _link(tool: Path, source: Path, *flags: str) -> bytes:
    output = source.with_suffix(".wasm")
    command = [str(tool), "-flavor", "wasm", "--no-entry", *flags, str(source), "-o", str(output)]
    subprocess.run(command, check=True, timeout=300)
    return output.read_bytes()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Modules by the compiler that made them: clang objects, linked side modules, IREE executables."""
    pytest.importorskip("ziglang")
    compiler = pytest.importorskip("iree.compiler")
    package = Path(compiler.__file__).parent
    linker = package / "_mlir_libs" / "iree-lld"
    found: dict[str, bytes] = {}
    for name, flags in {
        "plain": ("-O1", "-g"),
        "simd": ("-O2", "-fPIC", "-msimd128", "-mbulk-memory", "-mnontrapping-fptoint"),
        "relaxed": ("-O3", "-fPIC", "-mrelaxed-simd", "-matomics", "-mbulk-memory"),
    }.items():
        folder = tmp_path_factory.mktemp(name)
        source = _clang(folder, *flags)
        found[f"clang-{name}"] = source.read_bytes()
        if "-fPIC" in flags:
            link = ("--experimental-pic", "--shared", "--unresolved-symbols=import-dynamic")
            found[f"linked-{name}"] = _link(linker, source, *link)
        else:
            found[f"linked-{name}"] = _link(linker, source, "--export-all", "--allow-undefined")
    found.update(_iree(tmp_path_factory.mktemp("iree"), compiler))
    return found


def _iree(folder: Path, compiler: object) -> dict[str, bytes]:
    archive = folder / "model.vmfb"
    flags = [
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-triple=wasm32-unknown-emscripten",
        "--iree-llvmcpu-target-cpu-features=+simd128",
    ]
    compiler.compile_str(MLIR_SOURCE, output_file=str(archive), extra_args=flags)  # type: ignore[attr-defined]
    with zipfile.ZipFile(archive) as contents:
        return {
            f"iree-{i}": contents.read(name)
            for i, name in enumerate(n for n in contents.namelist() if n.endswith(".wasm"))
        }


@pytest.fixture
def small_module() -> bytes:
    """A module with every section, by wasmtime's text parser."""
    return bytes(
        wasmtime.wat2wasm("""
        (module $small
          (type $t (func (param i32 f32) (result i32)))
          (type $v (func))
          (import "env" "f" (func $imported (type $t)))
          (import "env" "g" (global $g i32))
          (import "env" "m" (memory 1 4))
          (table $table 4 funcref)
          (tag $tag (param i32))
          (global $counter (mut i64) (i64.const -5))
          (global $address i32 (i32.add (global.get $g) (i32.const 16)))
          (export "run" (func $run))
          (export "table" (table $table))
          (start $begin)
          (elem $e (i32.const 1) func $run $imported)
          (elem $p funcref (ref.func $run) (ref.null func))
          (elem declare func $begin)
          (func $begin)
          (func $run (type $t) (local $x f64) (local $y v128)
            (memory.init $d (i32.const 0) (i32.const 0) (i32.const 2))
            (local.set $y (v128.const i32x4 1 2 3 4))
            (block $out (br_if $out (local.get 0)))
            (call $imported (local.get 0) (f32.load offset=300 (i32.const 8))))
          (data $d "passive")
          (data (global.get $g) "ac\\00tive")
        )""")
    )
