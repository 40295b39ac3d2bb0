"""Kernels of GPU pipelines: Halide's WGSL made into executables of a device, within the device's limits."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Final

from ..errors import FormatError, InvalidArgumentError, KernelError

if TYPE_CHECKING:
    from ..hal import Device, Executable

__all__ = ["KERNEL_FORMAT", "Kernels", "Launch"]

KERNEL_FORMAT: Final = "webgpu-wgsl-json"
"""The executable format that a device has to take."""

_MOST_EXECUTABLES: Final = 256
_MOST_BYTES: Final = 16 << 20
_SHARED = re.compile(r"var<workgroup>\s+(\w+)\s*:\s*array<[\w<>\s]+?,\s*([^>]+?)\s*>\s*;")
_WORD_BYTES: Final = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a kernel is to be run.

    Args:
        entry: its name.
        groups: workgroups by axis.
        threads: invocations per workgroup by axis.
        shared_bytes: workgroup memory that the pipeline asks for.
        buffer_bytes: lengths of its buffers.
        words: values of its scalars, 32 bits each.
    """

    entry: str
    groups: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared_bytes: int
    buffer_bytes: tuple[int, ...]
    words: tuple[int, ...]


class Kernels:
    """Executables for the kernels of a device's pipelines, made when they first run, and kept.

    Args:
        device: takes `KERNEL_FORMAT`.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._sources: dict[int, tuple[str, str]] = {}
        self._ids: dict[str, int] = {}
        self._executables: collections.OrderedDict[tuple[object, ...], Executable] = collections.OrderedDict()

    def add(self, source: bytes) -> int:
        """A number for a program in WGSL, the same for the same program.

        Raises:
            FormatError: it is not text, or longer than any program.
        """
        if len(source) > _MOST_BYTES:
            raise FormatError(f"{len(source)} bytes are too many for WGSL", where="the pipeline's kernels")
        try:
            text = source.rstrip(b"\0").decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"not WGSL: {error}", where="the pipeline's kernels") from error
        digest = hashlib.sha256(source).hexdigest()
        number = self._ids.setdefault(digest, len(self._ids) + 1)
        self._sources[number] = (text, digest)
        return number

    def executable(self, number: int, launch: Launch) -> Executable:
        """The executable for a kernel of a program with this many invocations and scalars.

        Raises:
            InvalidArgumentError: the device cannot run it: names the limit.
            KernelError: there is no such program.
        """
        known = self._sources.get(number)
        if known is None:
            raise KernelError("the pipeline runs kernels that it did not bring", code=-1, kernel=launch.entry)
        text, digest = known
        self._check_limits(text, launch)
        shape = (len(launch.buffer_bytes), len(launch.words))
        key = (digest, launch.entry, launch.threads, launch.shared_bytes, shape)
        made = self._executables.get(key)
        if made is None:
            made = self._make(text, launch)
            self._executables[key] = made
            if len(self._executables) > _MOST_EXECUTABLES:
                self._executables.popitem(last=False)[1].close()
        self._executables.move_to_end(key)
        return made

    def _make(self, text: str, launch: Launch) -> Executable:
        export = {
            "name": launch.entry,
            "source": _specialized(text, launch),
            "entry_point": launch.entry,
            "workgroup_size": list(launch.threads),
            "bindings": accesses_of(text, launch),
            "constants": len(launch.words),
            "grid": False,
        }
        data = json.dumps({"exports": [export]}).encode()
        return self._device.create_executable(format=KERNEL_FORMAT, data=data)

    def _check_limits(self, text: str, launch: Launch) -> None:
        """Halide looks at no limits, and what a driver does with too much is its own affair."""
        shared = max(launch.shared_bytes, shared_bytes_of(text, launch))
        needs = {
            "max-compute-invocations-per-workgroup": math.prod(launch.threads),
            "max-compute-workgroup-storage-size": shared,
            "max-compute-workgroups-per-dimension": max(launch.groups),
            "max-storage-buffer-binding-size": max(launch.buffer_bytes, default=0),
            "max-storage-buffers-per-shader-stage": len(launch.buffer_bytes),
            "max-uniform-buffer-binding-size": 4 * len(launch.words),
        }
        for axis, count in zip("xyz", launch.threads, strict=True):
            needs[f"max-compute-workgroup-size-{axis}"] = count
        for limit, needed in needs.items():
            available = self._device.query_i64("webgpu.limit", limit)
            if available is not None and needed > available:
                raise InvalidArgumentError(
                    f"kernel {launch.entry} needs {needed} of {limit}, {self._device.name} has {available}: "
                    "schedule it in smaller pieces"
                )
        if min(launch.threads) < 1 or min(launch.groups) < 0:
            raise InvalidArgumentError(
                f"kernel {launch.entry} asks for {launch.groups} workgroups of {launch.threads} invocations"
            )

    def close(self) -> None:
        """Let go of all of them. Idempotent."""
        while self._executables:
            self._executables.popitem()[1].close()


def shared_bytes_of(text: str, launch: Launch) -> int:
    """Bytes of workgroup memory that a kernel declares."""
    total = 0
    for name, count in _SHARED.findall(text):
        if name.startswith(launch.entry):
            # Halide's elements are words: narrower types are widened.
            total += _WORD_BYTES * int(count) if count.isdecimal() else launch.shared_bytes
    return total


def accesses_of(text: str, launch: Launch) -> list[str]:
    """For each buffer of a kernel whether it is written: all are declared alike."""
    declared = rf"@binding\((\d+)\)\s*var<storage[^>]*>\s*({re.escape(launch.entry)}\w*)\s*:"
    names = {int(number): name for number, name in re.findall(declared, text)}
    accesses = []
    for number in range(len(launch.buffer_bytes)):
        name = names.get(number)
        stored = rf"\b{name}\[[^;]*?\]\s*=[^=]|atomic(?!Load)\w+\(\s*&\s*{name}\b"
        accesses.append("read" if name is not None and not re.search(stored, text) else "write")
    return accesses


def _specialized(text: str, launch: Launch) -> str:
    """The program for one kernel: values for what it leaves open, and its scalars beside its buffers."""
    x, y, z = launch.threads
    values = {"wgsize_x": x, "wgsize_y": y, "wgsize_z": z, "workgroup_mem_bytes": launch.shared_bytes}
    for name, value in values.items():
        text = re.sub(rf"\boverride\s+{name}\s*:\s*u32\s*;", f"const {name} : u32 = {value}u;", text)
    declaration = rf"@group\(1\)\s*@binding\(0\)(\s*var<uniform>\s+Args_{re.escape(launch.entry)}\b)"
    return re.sub(declaration, rf"@group(0) @binding({len(launch.buffer_bytes)})\1", text)
