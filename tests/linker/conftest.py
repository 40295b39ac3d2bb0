"""Side modules from real compilers: C through clang and lld, MLIR through iree-compile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sylvite import engines
from sylvite.linker import LinkSpace

ADD = """
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %b : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@pytest.fixture(scope="session")
def linker_engine():
    with engines.create("wasmtime") as engine:
        yield engine


@pytest.fixture
def space(linker_engine):
    with LinkSpace(linker_engine) as link_space:
        yield link_space


@pytest.fixture(scope="session")
def lld():
    compiler = pytest.importorskip("iree.compiler")
    tools = Path(compiler.__path__[0]) / "_mlir_libs"
    return str(next(tools.glob("iree-lld*")))


@pytest.fixture(scope="session")
def build_c(tmp_path_factory, lld):
    """Compile C source to a side module's bytes; equal sources are compiled once."""
    pytest.importorskip("ziglang")
    folder = tmp_path_factory.mktemp("side-modules")
    built = {}

    def build(source, *link_flags, compile_flags=("-O1",)):
        key = (source, link_flags, compile_flags)
        if key not in built:
            stem = folder / f"m{len(built)}"
            stem.with_suffix(".c").write_text(source)
            clang = [sys.executable, "-m", "ziglang", "clang", "--target=wasm32-unknown-emscripten", "-fPIC"]
            compile_command = [*clang, *compile_flags, "-c", f"{stem}.c", "-o", f"{stem}.o"]
            subprocess.run(compile_command, check=True, timeout=120)
            link_command = [lld, "-flavor", "wasm", "--no-entry", "--experimental-pic", "--shared"]
            link_command += ["--unresolved-symbols=import-dynamic", "--export-all", *link_flags]
            subprocess.run([*link_command, f"{stem}.o", "-o", f"{stem}.wasm"], check=True, timeout=120)
            built[key] = stem.with_suffix(".wasm").read_bytes()
        return built[key]

    return build


@pytest.fixture(scope="session")
def iree_executable(tmp_path_factory):
    """The wasm executable that iree-compile makes of an addition of two vectors."""
    compiler = pytest.importorskip("iree.compiler.tools")
    folder = tmp_path_factory.mktemp("iree")
    compiler.compile_str(
        ADD,
        extra_args=[
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-triple=wasm32-unknown-emscripten",
            "--iree-llvmcpu-target-cpu-features=+simd128",
            f"--iree-hal-dump-executable-files-to={folder}",
        ],
    )
    return next(folder.glob("*.wasm")).read_bytes()
