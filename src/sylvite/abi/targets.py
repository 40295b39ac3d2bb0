"""The targets the ABI guard compares, their groups, and which of them can be run here.

One row per target: what clang is told (triple, flags), where its C headers lie inside the ``ziglang``
package, and how a program for it is run on this machine. The data layout is asked of clang, never
written down here, so it cannot go stale.

Source: the C ABIs are clang's own (``clang/lib/CodeGen/Targets``); this table only names them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import FormatError, InvalidArgumentError, NotFoundError

__all__ = ["GROUPS", "TARGETS", "Target", "find_target", "load_targets_file", "runner", "select_targets"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One platform as a C compiler sees it.

    ``triple`` is clang's. ``pointer_bits`` counts bits of a data pointer. ``family`` names targets
    whose objects a linker would join without complaint. ``float_abi`` tells such targets apart.
    ``varargs`` names where variable arguments travel. ``headers`` are directories below the
    ``lib/libc/include`` folder of ziglang. ``abi_name`` is LLVM's ABI name where the triple alone does
    not decide. ``qemu`` is the architecture's name in qemu-user; None where programs cannot be run
    directly. ``run_triple`` is an ELF triple with the same C calling convention.
    """

    name: str
    triple: str
    pointer_bits: int
    family: str
    system: str
    byte_order: str = "little"
    float_abi: str = "hard"
    varargs: str = "registers"
    headers: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    abi_name: str = ""
    qemu: str | None = None
    run_triple: str | None = None
    groups: tuple[str, ...] = ()

    @property
    def long_bits(self) -> int:
        """Width of ``long`` in bits."""
        return 32 if self.system == "windows" else self.pointer_bits

    def key_data(self) -> dict[str, object]:
        """What a cache key says of the target, as JSON."""
        return dataclasses.asdict(self)


def _musl(arch: str, family: str) -> tuple[str, ...]:
    return (f"{arch}-linux-musl", "generic-musl", f"{family}-linux-any", "any-linux-any")


# ziglang's Windows headers are MinGW's: they want GNU C, also where the ABI is Microsoft's.
_MSVC_FLAGS = ("-fgnuc-version=4.2.1", "-U_MSC_VER", "-D__MINGW32__=1")
_DARWIN = ("any-darwin-any",)
_WINDOWS = ("any-windows-any",)
_WASI = ("wasm-wasi-musl", "generic-musl")

_ROWS: tuple[Target, ...] = (
    Target(
        name="x86_64-linux", triple="x86_64-unknown-linux-gnu", pointer_bits=64, family="x86_64",
        system="linux", headers=_musl("x86_64", "x86"), qemu="x86_64", groups=("desktop",),
    ),
    Target(
        name="x86_64-macos", triple="x86_64-apple-macosx11.0.0", pointer_bits=64, family="x86_64",
        system="darwin", headers=_DARWIN, qemu="x86_64", run_triple="x86_64-apple-macosx11.0.0-elf",
        groups=("desktop",),
    ),
    Target(
        name="x86_64-windows-msvc", triple="x86_64-pc-windows-msvc", pointer_bits=64, family="x86_64",
        system="windows", varargs="windows", headers=_WINDOWS, qemu="x86_64",
        flags=(*_MSVC_FLAGS, "-D__MINGW64__=1"), run_triple="x86_64-pc-windows-elf", groups=("desktop",),
    ),
    Target(
        name="x86_64-windows-gnu", triple="x86_64-w64-windows-gnu", pointer_bits=64, family="x86_64",
        system="windows", varargs="windows", headers=_WINDOWS, groups=("desktop",),
    ),
    Target(
        name="arm64-linux", triple="aarch64-unknown-linux-gnu", pointer_bits=64, family="arm64",
        system="linux", headers=_musl("aarch64", "aarch64"), qemu="aarch64",
        groups=("desktop", "mobile"),
    ),
    Target(
        name="arm64-macos", triple="arm64-apple-macosx11.0.0", pointer_bits=64, family="arm64",
        system="darwin", varargs="stack", headers=_DARWIN, qemu="aarch64",
        run_triple="arm64-apple-macosx11.0.0-elf", groups=("desktop",),
    ),
    Target(
        name="arm64-ios", triple="arm64-apple-ios14.0.0", pointer_bits=64, family="arm64",
        system="darwin", varargs="stack", headers=_DARWIN, groups=("mobile",),
    ),
    Target(
        name="arm64-android", triple="aarch64-unknown-linux-android24", pointer_bits=64, family="arm64",
        system="linux", headers=_musl("aarch64", "aarch64"), groups=("mobile",),
    ),
    Target(
        name="arm64-windows", triple="aarch64-pc-windows-msvc", pointer_bits=64, family="arm64",
        system="windows", varargs="windows-arm64", headers=_WINDOWS,
        flags=(*_MSVC_FLAGS, "-D__MINGW64__=1"), groups=("desktop",),
    ),
    Target(
        name="arm64_32-watchos", triple="arm64_32-apple-watchos7.0.0", pointer_bits=32, family="arm64",
        system="darwin", varargs="stack", headers=_DARWIN, groups=("mobile",),
    ),
    Target(
        name="armv7-linux-hard", triple="armv7-unknown-linux-gnueabihf", pointer_bits=32, family="armv7",
        system="linux", headers=_musl("arm", "arm"), qemu="arm", groups=(),
    ),
    Target(
        name="armv7-linux-soft", triple="armv7-unknown-linux-gnueabi", pointer_bits=32, family="armv7",
        system="linux", float_abi="soft", headers=_musl("arm", "arm"), qemu="arm", groups=("mobile",),
    ),
    Target(
        name="i386-linux", triple="i386-unknown-linux-gnu", pointer_bits=32, family="i386",
        system="linux", varargs="stack", headers=_musl("x86", "x86"), qemu="i386",
    ),
    Target(
        name="i386-windows", triple="i686-pc-windows-msvc", pointer_bits=32, family="i386",
        system="windows", varargs="stack", headers=_WINDOWS,
        flags=(*_MSVC_FLAGS, "-D_X86_=1"), groups=("desktop",),
    ),
    Target(
        name="x32-linux", triple="x86_64-unknown-linux-gnux32", pointer_bits=32, family="x32",
        system="linux", headers=("x86_64-linux-muslx32", "generic-musl", "x86-linux-any", "any-linux-any"),
    ),
    Target(
        name="riscv64-linux", triple="riscv64-unknown-linux-gnu", pointer_bits=64, family="riscv64",
        system="linux", headers=_musl("riscv64", "riscv"), abi_name="lp64d", qemu="riscv64",
        flags=("-march=rv64gc", "-mabi=lp64d"),
    ),
    Target(
        name="riscv32-linux", triple="riscv32-unknown-linux-gnu", pointer_bits=32, family="riscv32",
        system="linux", headers=_musl("riscv32", "riscv"), abi_name="ilp32d", qemu="riscv32",
        flags=("-march=rv32gc", "-mabi=ilp32d"),
    ),
    Target(
        name="ppc64le-linux", triple="powerpc64le-unknown-linux-gnu", pointer_bits=64, family="ppc64le",
        system="linux", headers=_musl("powerpc64", "powerpc"), qemu="ppc64le", abi_name="elfv2",
    ),
    Target(
        name="s390x-linux", triple="s390x-unknown-linux-gnu", pointer_bits=64, family="s390x",
        system="linux", byte_order="big", headers=_musl("s390x", "s390x"), qemu="s390x",
    ),
    Target(
        name="loongarch64-linux", triple="loongarch64-unknown-linux-gnu", pointer_bits=64,
        family="loongarch64", system="linux", headers=_musl("loongarch64", "loongarch"),
        abi_name="lp64d", flags=("-mabi=lp64d",),
    ),
    Target(
        name="mips64el-linux", triple="mips64el-unknown-linux-gnuabi64", pointer_bits=64,
        family="mips64el", system="linux", headers=_musl("mips64", "mips"), abi_name="n64",
        qemu="mips64el",
    ),
    Target(
        name="wasm32", triple="wasm32-unknown-unknown", pointer_bits=32, family="wasm32", system="wasm",
        # WASI's <setjmp.h> declares nothing without exceptions, which change no calling convention.
        varargs="memory", headers=_WASI, flags=("-D__wasi__=1", "-D__wasm_exception_handling__=1"),
    ),
    Target(
        name="wasm64", triple="wasm64-unknown-unknown", pointer_bits=64, family="wasm64", system="wasm",
        # WASI's headers refuse wasm64; musl's for another LP64 target declare the same types.
        varargs="memory", headers=_musl("x86_64", "x86"),
    ),
)  # fmt: skip

TARGETS: Mapping[str, Target] = {row.name: row for row in _ROWS}
"""The built-in targets by name."""

_ALIASES: Mapping[str, str] = {
    "x86_64-generic": "x86_64-linux",
    "generic": "x86_64-linux",
    "x86-64-linux": "x86_64-linux",
    "x86_64": "x86_64-linux",
    "x86-64": "x86_64-linux",
    "x86_64-darwin": "x86_64-macos",
    "x86_64-windows": "x86_64-windows-msvc",
    "aarch64-linux": "arm64-linux",
    "aarch64": "arm64-linux",
    "arm64": "arm64-linux",
    "aarch64-macos": "arm64-macos",
    "arm64-darwin": "arm64-macos",
    "aarch64-windows": "arm64-windows",
    "arm64_32": "arm64_32-watchos",
    "armv7": "armv7-linux-hard",
    "armv7hf": "armv7-linux-hard",
    "armhf": "armv7-linux-hard",
    "armel": "armv7-linux-soft",
    "i386": "i386-linux",
    "x32": "x32-linux",
    "riscv64": "riscv64-linux",
    "riscv32": "riscv32-linux",
    "ppc64le": "ppc64le-linux",
    "s390x": "s390x-linux",
    "loongarch64": "loongarch64-linux",
    "mips64el": "mips64el-linux",
}

GROUPS: Mapping[str, tuple[str, ...]] = {
    "all": tuple(TARGETS),
    "64-bit": tuple(t.name for t in _ROWS if t.pointer_bits == 64),
    "32-bit": tuple(t.name for t in _ROWS if t.pointer_bits == 32),
    "desktop": tuple(t.name for t in _ROWS if "desktop" in t.groups),
    "mobile": tuple(t.name for t in _ROWS if "mobile" in t.groups),
    "linux": tuple(t.name for t in _ROWS if t.system == "linux"),
    "darwin": tuple(t.name for t in _ROWS if t.system == "darwin"),
    "windows": tuple(t.name for t in _ROWS if t.system == "windows"),
    "wasm": tuple(t.name for t in _ROWS if t.system == "wasm"),
    "runnable": tuple(t.name for t in _ROWS if t.qemu is not None),
}
"""Names of targets by group. ``runnable`` needs qemu-user for foreign architectures."""


def find_target(name: str, extra: Mapping[str, Target] | None = None) -> Target:
    """The target called ``name``: a table row, an alias, or clang's triple of a row.

    Raises:
        NotFoundError: no such target; the message lists the known ones.
    """
    table = {**TARGETS, **(extra or {})}
    found = table.get(name) or table.get(_ALIASES.get(name, ""))
    if found is None:
        found = next((row for row in table.values() if row.triple == name), None)
    if found is None:
        raise NotFoundError(f"no target {name!r}; known: {', '.join(table)}; groups: {', '.join(GROUPS)}")
    return found


def select_targets(
    selection: str | Iterable[str | Target] = "all", extra: Mapping[str, Target] | None = None
) -> tuple[Target, ...]:
    """Expand group names, target names and targets (a comma-separated string or a sequence), in order,
    each once. The group ``all`` includes the user's own targets in ``extra``.

    Raises:
        NotFoundError: a name that is neither a group nor a target.
        InvalidArgumentError: nothing was selected.
    """
    parts: Iterable[str | Target] = selection.split(",") if isinstance(selection, str) else selection
    chosen: dict[str, Target] = {}
    for part in parts:
        for target in _expand(part, extra or {}):
            chosen.setdefault(target.name, target)
    if not chosen:
        raise InvalidArgumentError("no target selected")
    return tuple(chosen.values())


def _expand(part: str | Target, extra: Mapping[str, Target]) -> Sequence[Target]:
    if isinstance(part, Target):
        return [part]
    name = part.strip()
    if not name:
        return []
    if name in GROUPS:
        rows = [TARGETS[member] for member in GROUPS[name]]
        return rows + list(extra.values()) if name == "all" else rows
    members = [target for target in extra.values() if name in target.groups]
    return members or [find_target(name, extra)]


_FILE_KEYS = {field.name: field for field in dataclasses.fields(Target)}
_TUPLES = ("headers", "flags", "groups")


def load_targets_file(path: str | os.PathLike[str]) -> dict[str, Target]:
    """Read a user's own targets from JSON: a list of objects with the fields of `Target`.

    An object may name a built-in row in ``like`` and state only what differs.

    Raises:
        FormatError: not such a file.
    """
    where = str(path)
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot read targets: {error}", where=where) from error
    if not isinstance(rows, list):
        raise FormatError("a list of targets was expected", where=where)
    made = [_target_from(row, where) for row in rows]
    return {target.name: target for target in made}


def _target_from(row: object, where: str) -> Target:
    if not isinstance(row, dict):
        raise FormatError("each target is an object", where=where)
    values = dict(row)
    like = values.pop("like", None)
    unknown = sorted(set(values) - set(_FILE_KEYS))
    if unknown:
        raise FormatError(f"unknown keys of a target: {', '.join(unknown)}", where=where)
    for key in _TUPLES:
        if key in values:
            values[key] = tuple(values[key])
    try:
        if like is not None:
            return dataclasses.replace(find_target(str(like)), **values)
        return Target(**values)
    except TypeError as error:
        raise FormatError(f"incomplete target: {error}", where=where) from error


_HOST_ARCHITECTURES = {"AMD64": "x86_64", "arm64": "aarch64"}


def host_architecture() -> str:
    """The architecture of this machine in qemu's words (``x86_64``, ``aarch64``, ...)."""
    machine = platform.machine()
    return _HOST_ARCHITECTURES.get(machine, machine)


def runner(target: Target) -> tuple[str, ...] | None:
    """The command prefix that runs a static ELF program of ``target`` here: empty on the host's own
    architecture, qemu-user elsewhere, None where it cannot be run."""
    if target.qemu is None or platform.system() != "Linux":
        return None
    if target.qemu == host_architecture():
        return ()
    for name in (f"qemu-{target.qemu}-static", f"qemu-{target.qemu}"):
        found = shutil.which(name)
        if found:
            return (found,)
    return None
