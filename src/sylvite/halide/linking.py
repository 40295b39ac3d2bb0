"""Linking Halide's objects into side modules, with whichever linker is installed.

Source: WebAssembly tool conventions, DynamicLinking; the flags of ``wasm-ld``.
"""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..errors import CompileError, UnavailableError

__all__ = ["find_linker", "link_object"]

_TIMEOUT_S: Final = 120
_FLAGS: Final = (
    "--no-entry",
    "--experimental-pic",
    "--shared",
    "--unresolved-symbols=import-dynamic",
    "--strip-debug",
)


@functools.cache
def find_linker() -> tuple[str, ...]:
    """The command of a WebAssembly linker: the IREE compiler's, or ziglang's.

    Raises:
        UnavailableError: neither is installed.
    """
    for folder in _locations("iree.compiler"):
        for name in ("iree-lld", "iree-lld.exe"):
            path = folder / "_mlir_libs" / name
            if path.is_file():
                return (str(path), "-flavor", "wasm")
    if _locations("ziglang"):
        return (sys.executable, "-m", "ziglang", "wasm-ld")
    raise UnavailableError("linking Halide's objects needs the IREE compiler or ziglang", extra="compile")


def _locations(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    if spec is None or not spec.submodule_search_locations:
        return []
    return [Path(location) for location in spec.submodule_search_locations]


def link_object(data: bytes, *, names: Sequence[str] | None = None) -> bytes:
    """Link one object into a side module.

    Args:
        data: the object file.
        names: the pipelines to export; by default all symbols the object defines for others.

    Raises:
        UnavailableError: no linker is installed.
        CompileError: the linker refused it.
    """
    command = find_linker()
    if names is None:
        exports = ["--export-dynamic"]
    else:
        exports = [f"--export={name}{suffix}" for name in names for suffix in ("", "_argv", "_metadata")]
    with tempfile.TemporaryDirectory(prefix="sylvite-halide-") as folder:
        source, target = Path(folder) / "pipeline.o", Path(folder) / "pipeline.wasm"
        source.write_bytes(data)
        arguments = [*command, *_FLAGS, *exports, str(source), "-o", str(target)]
        try:
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"the linker {command[0]} did not run: {error}") from error
        if done.returncode:
            raise CompileError(f"linking the pipeline failed:\n{done.stderr.strip()}")
        return target.read_bytes()
