"""clang from the ``ziglang`` package: where it is, how it is called, what it complains about.

Nothing is imported or started before the first use; without the package every call raises
`UnavailableError` naming the ``abi`` extra.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..errors import FormatError, UnavailableError
from .targets import Target

__all__ = ["Diagnostic", "Toolchain", "default_toolchain", "diagnostics", "require_llvmlite"]

# Directories a compiler searches by itself: naming one with -I must not put it before the target's libc.
_SYSTEM_INCLUDE = re.compile(r"^/usr(/local)?/include(/[a-z0-9_]+-linux-gnu[a-z0-9]*)?/?$")
_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\n:]*(?::\\[^\n:]*)?):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: (?P<message>.*)$"
)
_PLAIN_ERROR = re.compile(r"^(?:zig: |clang: )?error: (?P<message>.*)$")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One error of clang. ``line`` and ``column`` count from 1; 0 where clang names no place."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}" if self.line else self.message


def diagnostics(text: str) -> list[Diagnostic]:
    """The errors in what clang wrote to its standard error."""
    found = []
    for line in text.splitlines():
        match = _DIAGNOSTIC.match(line)
        if match:
            found.append(
                Diagnostic(
                    file=match["file"],
                    line=int(match["line"]),
                    column=int(match["column"]),
                    message=match["message"],
                )
            )
        elif plain := _PLAIN_ERROR.match(line):
            found.append(Diagnostic(file="", line=0, column=0, message=plain["message"]))
    return found


class Toolchain:
    """One installation of ziglang. Holds no resources; every method starts one process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.executable = root / ("zig.exe" if os.name == "nt" else "zig")
        self.library = root / "lib"

    @functools.cached_property
    def version(self) -> str:
        """Version of the ``ziglang`` distribution; part of every cache key."""
        return importlib.metadata.version("ziglang")

    def is_system(self, file: str) -> bool:
        """Whether a header comes with the toolchain and so is nobody's to judge."""
        return file.startswith((str(self.library), "<"))

    def compile_flags(self, target: Target, *, triple: str | None = None) -> list[str]:
        """What clang needs to compile C for ``target`` with that target's own C headers."""
        flags = ["-target", triple or target.triple, *target.flags]
        flags += ["-resource-dir", str(self.library), "-nostdlibinc", "-fno-color-diagnostics"]
        flags += ["-isystem", str(self.library / "include")]
        for directory in target.headers:
            flags += ["-isystem", str(self.library / "libc" / "include" / directory)]
        return flags

    def run(
        self, arguments: Sequence[str], *, input_text: str | None = None, tool: str = "clang",
        cwd: str | os.PathLike[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run ``zig TOOL arguments`` and return what came of it, whatever its exit status.

        Raises:
            UnavailableError: the program cannot be started.
        """
        try:
            return subprocess.run(
                [str(self.executable), tool, *arguments],
                input=input_text,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                cwd=cwd,
            )
        except OSError as error:
            raise UnavailableError(f"cannot start {self.executable.name}: {error}", extra="abi") from error

    def check(
        self, arguments: Sequence[str], *, where: str, input_text: str | None = None, tool: str = "clang",
        cwd: str | os.PathLike[str] | None = None,
    ) -> str:  # fmt: skip
        """Like `run`, but an error of the tool is ours too: returns its standard output.

        Raises:
            FormatError: the tool refused its input; the message is its first errors with file and line.
        """
        done = self.run(arguments, input_text=input_text, tool=tool, cwd=cwd)
        if done.returncode != 0:
            raise FormatError(failure_text(done), where=where)
        return done.stdout


def failure_text(done: subprocess.CompletedProcess[str], limit: int = 5) -> str:
    """The first errors of a failed run, or the end of what it said when it named none."""
    errors = diagnostics(done.stderr)
    if not errors:
        tail = done.stderr.strip().splitlines()[-3:]
        return "\n".join(tail) or f"the compiler ended with status {done.returncode}"
    more = f"\n(and {len(errors) - limit} more)" if len(errors) > limit else ""
    return "\n".join(str(error) for error in errors[:limit]) + more


def include_flags(
    *, include_dirs: Sequence[str] = (), defines: Sequence[str] = (), includes: Sequence[str] = ()
) -> list[str]:
    """Clang's flags for the user's ``-I``, ``-D`` and ``--include``."""
    flags: list[str] = []
    for directory in include_dirs:
        flags += ["-idirafter" if _SYSTEM_INCLUDE.match(directory) else "-I", directory]
    flags += [f"-D{define}" for define in defines]
    for file in includes:
        flags += ["-include", file]
    return flags


@functools.cache
def default_toolchain() -> Toolchain:
    """The toolchain of the installed ``ziglang`` package.

    Raises:
        UnavailableError: the package is not installed.
    """
    try:
        module = importlib.import_module("ziglang")
    except ImportError as error:
        raise UnavailableError("the ABI oracle needs clang from ziglang", extra="abi") from error
    if module.__file__ is None:
        raise UnavailableError("the ziglang package has no files", extra="abi")
    return Toolchain(Path(module.__file__).parent)


def require_llvmlite() -> object:
    """The module ``llvmlite.binding``.

    Raises:
        UnavailableError: llvmlite is not installed.
    """
    try:
        return importlib.import_module("llvmlite.binding")
    except ImportError as error:
        raise UnavailableError("running IR in this process needs llvmlite", extra="abi") from error
