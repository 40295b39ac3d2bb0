"""Proof by running: generic callers and native callees for pairs of targets, executed under qemu-user.

The caller is compiled once for the base and retargeted; the callee is compiled by the target's own
compiler. A passing run is weak evidence (a wrong register may hold the right value by luck), so callers
should poison the stack and pass two aggregates; a failing run is proof.
"""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import FormatError, UnavailableError
from .freestanding import runtime_source
from .ir_text import IrModule
from .lowered import LoweredSignature
from .oracle import Query
from .retarget import code_flags, compile_ir, data_layout, retarget
from .targets import Target, runner
from .toolchain import Toolchain, default_toolchain, failure_text

__all__ = ["Outcome", "Program", "run_pair"]

TIMEOUT_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: ``right`` (exit status 0), ``wrong`` (another), ``crash`` (a signal) or ``hang``.
    ``output`` is what the program wrote."""

    target: str
    result: str
    status: int
    output: str

    @property
    def signal_name(self) -> str:
        """The signal that ended a crashed run, "" otherwise."""
        if self.result != "crash":
            return ""
        try:
            return signal.Signals(-self.status if self.status < 0 else self.status - 128).name
        except ValueError:
            return ""


class Program:
    """Builds and runs one program for one target in a folder of its own."""

    def __init__(
        self, target: Target, folder: Path, *, libc: bool = False, optimize: int = 1,
        toolchain: Toolchain | None = None,
    ) -> None:  # fmt: skip
        prefix = runner(target)
        if prefix is None:
            raise UnavailableError(
                f"programs for {target.name} cannot be run here (no qemu-user for {target.qemu})"
                if target.qemu
                else f"programs for {target.name} cannot be run here"
            )
        self.target = target
        self.folder = folder
        self.libc = libc
        self.optimize = optimize
        self.toolchain = toolchain or default_toolchain()
        self.objects: list[Path] = []
        self._prefix = prefix
        self._triple = target.run_triple or target.triple

    def _flags(self, query: Query | None) -> list[str]:
        flags = self.toolchain.compile_flags(self.target, triple=self._triple)
        if query is not None:
            flags += [*query.flags()[:-3], "-w"]
        return [*flags, f"-O{self.optimize}", "-fno-stack-protector", "-fno-pic", "-ffunction-sections"]

    def _object(self, stem: str) -> Path:
        path = self.folder / f"{stem}-{len(self.objects)}.o"
        self.objects.append(path)
        return path

    def add_source(self, source: Path, query: Query | None = None, *flags: str) -> None:
        """Compile C natively into the program.

        Raises:
            FormatError: clang refuses it.
        """
        output = self._object(source.stem)
        done = self.toolchain.run([*self._flags(query), *flags, "-c", str(source), "-o", str(output)])
        if done.returncode != 0:
            raise FormatError(failure_text(done), where=str(source))

    def add_text(self, name: str, text: str, query: Query | None = None, *flags: str) -> None:
        """Compile C text natively into the program."""
        source = self.folder / name
        source.write_text(text, encoding="utf-8")
        self.add_source(source, query, *flags)

    def add_ir(self, text: str) -> None:
        """Compile retargeted IR into the program."""
        compile_ir(
            text, self.target, self._object("generic"), optimize=self.optimize, triple=self._triple,
            toolchain=self.toolchain,
        )  # fmt: skip

    def add_generic(
        self, ir: str | IrModule, *, query: Query | None = None, force: bool = False,
        known: Mapping[str, LoweredSignature] | None = None,
    ) -> None:  # fmt: skip
        """Retarget generic IR and compile it into the program."""
        self.add_ir(
            retarget_to_run(
                ir, self.target, query=query, force=force, known=known, toolchain=self.toolchain
            )
        )  # fmt: skip

    def link(self) -> Path:
        """Link a static program."""
        output = self.folder / "program"
        if self.libc:
            arguments = ["-target", _zig_target(self.target), "-static", *code_flags(self.target)]
            done = self.toolchain.run([*arguments, *map(str, self.objects), "-o", str(output)], tool="cc")
        else:
            self.add_text("runtime.c", runtime_source(self.target), None, "-ffreestanding", "-fno-builtin")
            done = self.toolchain.run(
                ["-static", "--gc-sections", *map(str, self.objects), "-o", str(output)], tool="ld.lld"
            )
        if done.returncode != 0:
            raise FormatError(failure_text(done), where=f"the program for {self.target.name}")
        return output

    def run(self, program: Path, *arguments: str, timeout_s: float = TIMEOUT_S) -> Outcome:
        """Run the linked program."""
        try:
            done = subprocess.run(
                [*self._prefix, str(program), *arguments], capture_output=True, text=True, errors="replace",
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            output = (
                error.stdout
                if isinstance(error.stdout, str)
                else (error.stdout or b"").decode(errors="replace")
            )
            return Outcome(target=self.target.name, result="hang", status=-1, output=output)
        status = done.returncode
        crashed = status < 0 or 128 < status < 160
        result = "right" if status == 0 else "crash" if crashed else "wrong"
        return Outcome(target=self.target.name, result=result, status=status, output=done.stdout)


def _zig_target(target: Target) -> str:
    """zig's name of the target with the musl C library."""
    arch = {"arm": "arm", "i386": "x86", "ppc64le": "powerpc64le"}.get(target.qemu or "", target.qemu or "")
    tail = {"armv7-linux-hard": "musleabihf", "armv7-linux-soft": "musleabi"}.get(target.name, "musl")
    return f"{arch}-linux-{tail}"


def retarget_to_run(
    ir: str | IrModule, target: Target, *, query: Query | None = None, force: bool = False,
    known: Mapping[str, LoweredSignature] | None = None, toolchain: Toolchain | None = None,
) -> str:  # fmt: skip
    """Retarget IR to the ELF triple under which a target's convention can be run here."""
    text = retarget(ir, target, query=query, force=force, known=known, toolchain=toolchain)
    if target.run_triple is None:
        return text
    layout = data_layout(target, toolchain, run=True)
    lines = [
        line for line in text.splitlines() if not line.startswith(("target triple", "target datalayout"))
    ]
    head = f'target datalayout = "{layout}"\ntarget triple = "{target.run_triple}"\n'
    return head + "\n".join(lines) + "\n"


def generic_ir(
    source: Path, base: Target, query: Query | None = None, *, optimize: int = 1,
    toolchain: Toolchain | None = None, flags: Sequence[str] = (),
) -> str:  # fmt: skip
    """Compile C to IR for the base, as a project that ships generic code does: not optimized yet, since
    optimizers fold the base's byte order and sizes into the code. `compile_ir` optimizes what is retargeted.

    Raises:
        FormatError: clang refuses it.
    """
    toolchain = toolchain or default_toolchain()
    arguments = toolchain.compile_flags(base)
    if query is not None:
        arguments += [*query.flags()[:-3], "-w"]
    arguments += [f"-O{optimize}", "-Xclang", "-disable-llvm-passes", "-fno-stack-protector"]
    arguments += ["-S", "-emit-llvm", *flags, str(source), "-o", "-"]
    return toolchain.check(arguments, where=str(source))


def run_pair(
    caller: Path, callees: Sequence[Path], *, base: Target, target: Target, query: Query | None = None,
    libc: bool = False, force: bool = True, extra: Sequence[Path] = (), toolchain: Toolchain | None = None,
) -> Outcome:  # fmt: skip
    """Compile ``caller`` for ``base``, retarget it, link it with ``callees`` compiled for ``target``, run.

    ``force`` runs what the gate would refuse: that is how a hazard is shown. ``extra`` is more native C
    (a shim). Without ``libc`` the program has ``main``, ``sylvite_write`` and the memory functions only.

    Raises:
        FormatError: something does not compile or link.
        LinkError: the gate refuses the caller, with ``force`` off.
        UnavailableError: the target cannot be run here.
    """
    toolchain = toolchain or default_toolchain()
    ir = generic_ir(caller, base, query, toolchain=toolchain)
    with tempfile.TemporaryDirectory(prefix="sylvite-abi-") as folder:
        program = Program(target, Path(folder), libc=libc, toolchain=toolchain)
        program.add_generic(ir, query=query, force=force)
        for source in (*callees, *extra):
            program.add_source(source, query)
        return program.run(program.link())
