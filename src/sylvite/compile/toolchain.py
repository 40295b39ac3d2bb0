"""Finding and running IREE's command line tools.

The compiler runs in a child process: a bug in it ends that process only, and a deadline can stop it.
Sources: ``iree-compile --help``; the wheel's layout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import DeadlineExceededError, UnavailableError
from ..wasm import contraction as contraction_pass
from ..wasm.leb import encode_unsigned

__all__ = ["CompletedTool", "Toolchain", "find_toolchain", "package_version", "run_tool", "write_linker"]

_POLL_S = 0.05
_CONTRACTION_OBJECT = "contraction.o"
LINK_STARTED = "link.started"
"""File the linker wrapper leaves in the working directory when it first runs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Where the tools of one installed compiler are."""

    compile_path: Path
    linker_path: Path
    version: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompletedTool:
    """A tool that has ended. A negative ``exit_code`` is the signal that ended it."""

    exit_code: int
    output: str
    seconds: float


def package_version(distribution: str) -> str:
    """Version of an installed distribution, or ``""``."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def find_toolchain() -> Toolchain:
    """The compiler of this Python environment.

    Raises:
        UnavailableError: it is not installed; names the extra.
    """
    try:
        spec = importlib.util.find_spec("iree.compiler")
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError("compiling needs the IREE compiler", extra="compile")
    suffix = ".exe" if os.name == "nt" else ""
    for location in spec.submodule_search_locations:
        directory = Path(location) / "_mlir_libs"
        compiler, linker = directory / f"iree-compile{suffix}", directory / f"iree-lld{suffix}"
        if compiler.is_file() and linker.is_file():
            return _toolchain(compiler, linker)
    raise UnavailableError(
        f"no iree-compile or iree-lld in the installed compiler ({spec.submodule_search_locations[0]})",
        extra="compile",
    )


@functools.lru_cache(maxsize=4)
def _toolchain(compiler: Path, linker: Path) -> Toolchain:
    return Toolchain(compile_path=compiler, linker_path=linker, version=package_version("iree-base-compiler"))


def write_linker(directory: Path, linker: Path, *, contraction: bool = False) -> str:
    """Write the linker wrapper into ``directory``; return the command for the compiler's linker flag.

    The stock link line refuses symbols nobody defines (``fmaxf`` in every softmax); ours turns them into
    imports, which the dynamic linker resolves. The compiler passes one shell command line, so the command
    names the wrapper relative to the working directory: paths with spaces never appear unquoted.

    With ``contraction`` the module gets the custom section that allows it (`sylvite.wasm.contraction`): the
    linker copies it from an object file that has nothing else.
    """
    options = "-flavor wasm --unresolved-symbols=import-dynamic"
    if contraction:
        (directory / _CONTRACTION_OBJECT).write_bytes(_section_object(contraction_pass.ALLOWED_SECTION))
        options += f" {_CONTRACTION_OBJECT}"
    if os.name == "nt":
        # The first two arguments are ``-flavor wasm``; a batch file cannot shift %*.
        lines = [
            "@echo off",
            f"type nul > {LINK_STARTED}",
            "set rest=",
            ":next",
            "shift /2",
            'if "%~2"=="" goto run',
            "set rest=%rest% %2",
            "goto next",
            ":run",
            f'"{linker}" {options} %rest%',
        ]
        (directory / "link.cmd").write_text("\r\n".join(lines) + "\r\n", encoding="utf-8")
        return ".\\link.cmd"
    script = f'#!/bin/sh\n: > {LINK_STARTED}\nshift 2\nexec {shlex.quote(str(linker))} {options} "$@"\n'
    (directory / "link.sh").write_text(script, encoding="utf-8")
    return "sh ./link.sh"  # through sh, so that a file system mounted noexec will do


def _section_object(name: str) -> bytes:
    """A relocatable object with one custom section."""
    # Linkers leave out empty sections; "linking", version 2, makes an object of a module.
    sections = ((name.encode(), b"allowed"), (b"linking", b"\x02"))
    data = b"\0asm\1\0\0\0"
    for title, contents in sections:
        section = encode_unsigned(len(title)) + title + contents
        data += b"\0" + encode_unsigned(len(section)) + section
    return data


def run_tool(
    command: Sequence[str],
    *,
    name: str,
    directory: Path,
    log_path: Path,
    deadline: float | None,
    on_poll: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
) -> CompletedTool:
    """Run ``command`` in ``directory``; its output goes to ``log_path``, ``on_poll`` is called meanwhile.

    ``name`` is what messages call it; ``deadline`` is a time of ``time.monotonic``. Temporary files of the
    tool go to ``directory`` as well.

    Raises:
        DeadlineExceededError: it ran past the deadline and was stopped.
        UnavailableError: it could not be started.
    """
    begin = time.monotonic()
    # Relative, so that the compiler's unquoted link line never meets a directory with spaces.
    variables = {**os.environ, "TMPDIR": ".", "TMP": ".", "TEMP": ".", **(environment or {})}
    with log_path.open("ab") as log:
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        start = log.tell()
        try:
            process = subprocess.Popen(
                command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables
            )
        except OSError as error:
            raise UnavailableError(f"cannot start {command[0]}: {error.strerror}") from error
        try:
            exit_code = _wait(process, deadline, on_poll, name)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    with log_path.open("rb") as log:
        log.seek(start)
        output = log.read().decode("utf-8", errors="replace")
    return CompletedTool(exit_code=exit_code, output=output, seconds=time.monotonic() - begin)


def _wait(
    process: subprocess.Popen[bytes], deadline: float | None, on_poll: Callable[[], None], name: str
) -> int:
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=_POLL_S)
        on_poll()
        if deadline is not None and time.monotonic() > deadline:
            raise DeadlineExceededError(f"{name} ran past its time limit and was stopped")


def python_command(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment that run ``module`` in a child with this interpreter's search path.

    Raises:
        UnavailableError: this process does not know its interpreter (an embedded Python).
    """
    if not sys.executable:
        raise UnavailableError(
            "sys.executable is not set, so the front end cannot run in a child; pass isolate=False"
        )
    paths = os.pathsep.join(path for path in sys.path if path)
    return [sys.executable, "-m", module, *arguments], {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
